//! k-nearest attention: which is the lowest score that each row keeps?
//!
//! A first pass over the tiles keeps up to `2 k` candidates per row and cuts them to `k` whenever they are full, so it takes
//! memory for the rows of one block only. The second pass computes the same scores, bit for bit, and hides what is below.

use crate::element::Element;
use crate::score::{Cutoff, KV_TILE, Scorer};
use crate::scratch::Scratch;
use crate::simd::{Lanes, Operation, Real};
use std::cmp::Ordering;

/// The cutoff of every row of a block.
pub(crate) struct FindCutoffs<'s, 'a, E: Element> {
    pub(crate) scorer: &'s Scorer<'a, E>,
    pub(crate) k: usize,
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
            return Cutoff { score: T::HIDDEN, last_key: usize::MAX };
        }
        self.cut();
        let (score, last_key) = self.list[self.k - 1];
        Cutoff { score, last_key }
    }
}

impl<E: Element> Operation<E::Real> for FindCutoffs<'_, '_, E> {
    type Output = Vec<Cutoff<E::Real>>;

    fn run<S: Lanes<T = E::Real>>(self, simd: S) -> Self::Output {
        let Self { scorer, k } = self;
        let mut rows: Vec<_> = (0..scorer.block.rows()).map(|_| Candidates { k, list: Vec::new(), low: E::Real::HIDDEN }).collect();
        let lengths = [scorer.queries_len::<S>(), scorer.keys_len(), KV_TILE * 2 * S::LANES, scorer.numbers_len::<S>()];
        let mut memory = Scratch::take();
        let [queries, copy, scores, numbers] = memory.slices(lengths);
        scorer.pack_queries(simd, queries);
        scorer.each_tile::<S>(simd, 0..scorer.plan.dims.seq_kv, queries, copy, scores, numbers, |panel, keys, width, scores| {
            for (key, line) in keys.zip(scores.chunks_exact(width)) {
                for (row, &score) in rows[panel.clone()].iter_mut().zip(line) {
                    row.offer(score, key);
                }
            }
        });
        rows.into_iter().map(Candidates::cutoff).collect()
    }
}
