//! Weights and scores laid out, and the second pass over the tiles that makes weights without laying them out: scores become weights by the
//! row states that a forward pass has found.

use super::{Rectangle, SoftmaxDenominators};
use crate::arrays::{cut, filled};
use crate::error::Result;
use crate::mainloop::dropout::apply_dropout;
use crate::mainloop::scores::{Scorer, Stage};
use crate::mainloop::tiling::{KV_TILE, Need, QueryTile, lanes, query_tiles};
use crate::mainloop::{KvTile, Visitor, mainloop};
use crate::plan::Plan;
use ndarray::{Array4, ArrayView4, ArrayViewMut3, Axis};
use regard_simd::{Driver, Kernel, Real, Simd, Storage, math};
use std::ops::Range;

/// The weights of a rectangle, `[batch, heads_q, rows, keys]`.
pub(crate) fn weights<E: Storage>(
    plan: &Plan<'_>,
    q: ArrayView4<'_, E>,
    k: ArrayView4<'_, E>,
    states: &SoftmaxDenominators<E::Real>,
    of: Rectangle,
) -> Result<Array4<E::Real>> {
    let d = plan.dims;
    let mut weights = filled("weights", [d.batch, d.heads_q, of.rows.len(), of.keys.len()], E::Real::ZERO)?;
    plan.for_tasks(split(plan, &of, &mut weights), |(tile, to)| {
        let scorer = Scorer::new(plan, &q, &k, tile).with_cutoffs();
        each_weight(&scorer, of.keys.clone(), states, &mut CopyOut { tile, first_key: of.keys.start, to });
    })?;
    Ok(weights)
}

/// The scores of all pairs at a stage.
pub(crate) fn scores<E: Storage>(plan: &Plan<'_>, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>, stage: Stage) -> Result<Array4<E::Real>> {
    let d = plan.dims;
    let mut scores = filled("scores", d.scores(), E::Real::NEG_INFINITY)?;
    let all = Rectangle { rows: 0..d.seq_q, keys: 0..d.seq_kv };
    plan.for_tasks(split(plan, &all, &mut scores), |(tile, to)| {
        let scorer = Scorer::new(plan, &q, &k, tile);
        let scorer = if stage == Stage::Masked { scorer.with_cutoffs() } else { Scorer { ignores_mask: true, ..scorer } };
        E::dispatch_stored(plan.level, RawScores { scorer: &scorer, stage, to: CopyOut { tile, first_key: 0, to } });
    })?;
    Ok(scores)
}

/// The part of a matrix that belongs to each query tile of a rectangle.
fn split<'m, T: Real>(plan: &Plan<'_>, of: &Rectangle, matrix: &'m mut Array4<T>) -> Vec<(QueryTile, ArrayViewMut3<'m, T>)> {
    let tiles = query_tiles(plan, of.rows.clone());
    let Some((heads, queries)) = tiles.first().map(|tile| (tile.heads, tile.queries)) else { return Vec::new() };
    let parts = cut(matrix.view_mut(), 0, 1).into_iter().flat_map(|part| cut(part, 1, heads)).flat_map(|part| cut(part, 2, queries));
    tiles.into_iter().zip(parts.map(|part| part.index_axis_move(Axis(0), 0))).collect()
}

/// Takes finished weights, `values[key * width + lane]` for the keys and rows of the need.
pub(crate) trait Consumer<T: Real> {
    /// Whether `take` needs the visible pairs.
    const WANTS_VISIBLE: bool = false;
    /// `visible` has one bit per row for each key, with `WANTS_VISIBLE`.
    fn take<S: Simd<T = T>>(&mut self, simd: S, need: &Need, values: &[T], visible: Option<&[u32; KV_TILE]>);
}

/// Weights of some keys (counted in the call), tile by tile, as they are applied: after dropout.
pub(crate) fn each_weight<E: Storage, C: Consumer<E::Real>>(
    scorer: &Scorer<'_, E>,
    keys: Range<usize>,
    states: &SoftmaxDenominators<E::Real>,
    consumer: &mut C,
) {
    struct EachWeight<'s, 'a, E: Storage, C> {
        scorer: &'s Scorer<'a, E>,
        keys: Range<usize>,
        states: &'s SoftmaxDenominators<E::Real>,
        consumer: &'s mut C,
    }
    impl<E: Storage, C: Consumer<E::Real>> Driver<E::Real> for EachWeight<'_, '_, E, C> {
        type Output = ();
        fn run<S: Simd<T = E::Real>>(self, simd: S) {
            let Self { scorer, keys, states, consumer } = self;
            let rows = scorer.tile.rows();
            let (mut max, mut sum) = (vec![E::Real::ZERO; lanes::<S>(rows)], vec![E::Real::ONE; lanes::<S>(rows)]);
            for r in 0..rows {
                let place = scorer.tile.place(scorer.plan, r);
                let (row_max, row_sum) = (states.row_max[place], states.row_sum[place]);
                // A row that saw nothing: -inf - 0, and 0 / 1.
                if row_sum != E::Real::ZERO {
                    (max[r], sum[r]) = (row_max, row_sum);
                }
            }
            let dropout = vec![E::Real::ZERO; if scorer.plan.dropout().is_some() { KV_TILE * 2 * S::LANES } else { 0 }];
            mainloop(simd, scorer, scorer.key_range(keys), usize::MAX, &mut Normalised { max, sum, dropout, consumer });
        }
    }
    let origin = scorer.plan.part.key;
    let keys = origin + keys.start..origin + keys.end;
    E::dispatch_stored(scorer.plan.level, EachWeight { scorer, keys, states, consumer });
}

/// Scores become weights.
struct Normalised<'c, T, C> {
    /// Per lane.
    max: Vec<T>,
    sum: Vec<T>,
    dropout: Vec<T>,
    consumer: &'c mut C,
}

impl<S: Simd, E: Storage<Real = S::T>, C: Consumer<S::T>> Visitor<S, E> for Normalised<'_, S::T, C> {
    fn stage(&self) -> Stage {
        Stage::Masked
    }

    fn panel(&mut self, simd: S, tile: &mut KvTile<'_, '_, E>, need: &Need, scores: &mut [S::T]) {
        let visible = C::WANTS_VISIBLE.then(|| tile.scorer.visible(simd, need, scores));
        let lanes = need.panel.lanes();
        simd.call(Normalise { max: &self.max[lanes.clone()], sum: &self.sum[lanes], scores });
        apply_dropout(simd, tile.scorer.plan.dropout(), tile.scorer.tile, need, scores, &mut self.dropout);
        self.consumer.take(simd, need, scores, visible.as_ref());
    }
}

/// `weight = exp(score - max) / sum`, 0 for hidden keys: also where the sum is NaN.
struct Normalise<'k, T> {
    max: &'k [T],
    sum: &'k [T],
    scores: &'k mut [T],
}

impl<T: Real> Kernel<T> for Normalise<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { max, sum, scores } = self;
        assert!(max.len() == sum.len() && max.len().is_multiple_of(S::LANES));
        let hidden = simd.splat(T::NEG_INFINITY);
        for line in scores.chunks_exact_mut(max.len()) {
            for n in (0..max.len()).step_by(S::LANES) {
                // SAFETY: n is the start of a whole vector of max, sum and the line, which are equally long.
                unsafe {
                    let (max, sum) = (simd.load(max.as_ptr().add(n)), simd.load(sum.as_ptr().add(n)));
                    let score = simd.load(line.as_ptr().add(n));
                    let p = math::exp(simd, simd.sub(score, max));
                    simd.store(line.as_mut_ptr().add(n), simd.clear(simd.eq(score, hidden), simd.div(p, sum)));
                }
            }
        }
    }
}

/// Scores as they are.
struct RawScores<'s, 'a, E: Storage> {
    scorer: &'s Scorer<'a, E>,
    stage: Stage,
    to: CopyOut<'s, E::Real>,
}

impl<E: Storage> Driver<E::Real> for RawScores<'_, '_, E> {
    type Output = ();
    fn run<S: Simd<T = E::Real>>(mut self, simd: S) {
        mainloop(simd, self.scorer, self.scorer.key_range(self.scorer.all_keys()), usize::MAX, &mut self);
    }
}

impl<S: Simd, E: Storage<Real = S::T>> Visitor<S, E> for RawScores<'_, '_, E> {
    fn stage(&self) -> Stage {
        self.stage
    }

    fn panel(&mut self, simd: S, _: &mut KvTile<'_, '_, E>, need: &Need, scores: &mut [S::T]) {
        self.to.take(simd, need, scores, None);
    }
}

/// Into a matrix.
struct CopyOut<'m, T> {
    tile: QueryTile,
    /// The key of the first column.
    first_key: usize,
    to: ArrayViewMut3<'m, T>,
}

impl<T: Real> Consumer<T> for CopyOut<'_, T> {
    fn take<S: Simd<T = T>>(&mut self, _: S, need: &Need, values: &[T], _: Option<&[u32; KV_TILE]>) {
        let keys = need.keys.start - self.first_key..need.keys.end - self.first_key;
        for (lane, r) in need.panel.rows().enumerate() {
            let mut to = self.to.slice_mut(ndarray::s![r / self.tile.queries, r % self.tile.queries, keys.clone()]);
            to.iter_mut().zip(values[lane..].iter().step_by(need.panel.width)).for_each(|(to, &x)| *to = x);
        }
    }
}
