//! Top-k: the lowest score that each row keeps.
//!
//! A first pass over the tiles keeps up to `2 k` candidates per row and cuts them to `k` whenever they are full, so it takes
//! memory for the rows of one query tile only. The second pass computes the same scores, bit for bit, and hides what is below.

use super::scores::{Scorer, Stage};
use super::tiling::Need;
use super::{KvTile, Visitor, mainloop};
use regard_simd::{Driver, Real, Simd, Storage};
use std::cmp::Ordering;
use std::sync::Arc;

/// The lowest score of a row that top-k keeps, and the last key that keeps it at that very score.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cutoff<T> {
    pub(crate) score: T,
    pub(crate) last_key: usize,
}

/// The cutoffs of the rows of a query tile.
pub(crate) type Cutoffs<T> = Arc<[Cutoff<T>]>;

impl<E: Storage> Scorer<'_, E> {
    /// With the cutoffs of its rows, if there is a top-k.
    pub(crate) fn with_cutoffs(mut self) -> Self {
        self.cutoffs = self.plan.top_k().map(|k| E::dispatch_stored(self.plan.level, FindCutoffs { scorer: &self, k }).into());
        self
    }
}

/// The cutoff of every row of a query tile.
struct FindCutoffs<'s, 'a, E: Storage> {
    scorer: &'s Scorer<'a, E>,
    k: usize,
}

impl<E: Storage> Driver<E::Real> for FindCutoffs<'_, '_, E> {
    type Output = Vec<Cutoff<E::Real>>;

    fn run<S: Simd<T = E::Real>>(self, simd: S) -> Self::Output {
        let Self { scorer, k } = self;
        let rows = (0..scorer.tile.rows()).map(|_| Candidates { k, list: Vec::new(), low: E::Real::NEG_INFINITY }).collect();
        let mut best = BestScores { rows };
        mainloop(simd, scorer, scorer.key_range(scorer.all_keys()), usize::MAX, &mut best);
        best.rows.into_iter().map(Candidates::cutoff).collect()
    }
}

struct BestScores<T> {
    rows: Vec<Candidates<T>>,
}

impl<S: Simd, E: Storage<Real = S::T>> Visitor<S, E> for BestScores<S::T> {
    fn stage(&self) -> Stage {
        Stage::Masked
    }

    fn panel(&mut self, _: S, _: &mut KvTile<'_, '_, E>, need: &Need, scores: &mut [S::T]) {
        for (key, line) in need.keys.clone().zip(scores.chunks_exact(need.panel.width)) {
            for (row, &score) in self.rows[need.panel.rows()].iter_mut().zip(line) {
                row.offer(score, key);
            }
        }
    }
}

/// The best of a row so far.
struct Candidates<T> {
    k: usize,
    list: Vec<(T, usize)>,
    /// Scores at or below it are out: there are k better ones, or equal ones with lower keys.
    low: T,
}

impl<T: Real> Candidates<T> {
    fn offer(&mut self, score: T, key: usize) {
        if self.low < score {
            self.list.push((score, key));
            if self.list.len() >= 2 * self.k {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        let order = |a: &(T, usize), b: &(T, usize)| b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1));
        self.list.select_nth_unstable_by(self.k - 1, order);
        self.list.truncate(self.k);
        self.low = self.list[self.k - 1].0;
    }

    fn cutoff(mut self) -> Cutoff<T> {
        if self.list.len() < self.k {
            return Cutoff { score: T::NEG_INFINITY, last_key: usize::MAX };
        }
        self.cut();
        let (score, last_key) = self.list[self.k - 1];
        Cutoff { score, last_key }
    }
}
