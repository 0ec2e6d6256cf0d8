//! Weights and scores laid out, for those who ask, and the second pass over the tiles that makes weights without
//! laying them out.

use crate::attention::{Attention, Plan};
use crate::block::{PanelTile, Soften};
use crate::element::Element;
use crate::error::Result;
use crate::forward::{block_cutoffs, block_scorer, blocks, checked_len, for_tasks};
use crate::mask::TileCoverage;
use crate::online_softmax::State;
use crate::score::{KV_TILE, RowBlock, Scorer, Stage, width};
use crate::scratch::Scratch;
use crate::simd::{Lanes, Operation, Real, math};
use ndarray::{Array4, ArrayView4, ArrayViewMut3, Axis};
use std::ops::Range;

impl Attention<'_> {
    /// The weights as they are applied to v, `[batch, heads_q, seq_q, seq_kv]`: quadratic in memory. Without dropout, rows sum to one,
    /// less a sink's share; a row without any visible key is zero.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn weights<'x, E: Element>(&self, q: impl Into<ArrayView4<'x, E>>, k: impl Into<ArrayView4<'x, E>>) -> Result<Array4<E::Real>> {
        E::weights(self, q.into(), k.into())
    }

    pub(crate) fn compute_weights<E: Element>(&self, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>) -> Result<Array4<E::Real>> {
        let plan = self.plan(&q, &k, None)?;
        let mut weights = matrix(&plan, E::Real::ZERO)?;
        let tasks = split(&plan, &mut weights);
        for_tasks(&plan, tasks, |(block, to)| {
            let scorer = full_scorer(&plan, &q, &k, block);
            E::Real::dispatch(plan.level, BlockWeights { scorer: &scorer, to: Drop { scorer: &scorer, then: Copy { block, to } } });
        })?;
        Ok(weights)
    }

    /// The scores on their way to the softmax, `[batch, heads_q, seq_q, seq_kv]`: quadratic in memory.
    /// At [`Stage::Bias`] hidden keys are `-inf`; top-k and sinks come after.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn scores<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
        stage: Stage,
    ) -> Result<Array4<E::Real>> {
        E::scores(self, q.into(), k.into(), stage)
    }

    pub(crate) fn compute_scores<E: Element>(&self, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>, stage: Stage) -> Result<Array4<E::Real>> {
        let plan = self.plan(&q, &k, None)?;
        let mut scores = matrix(&plan, E::Real::HIDDEN)?;
        let tasks = split(&plan, &mut scores);
        for_tasks(&plan, tasks, |(block, to)| {
            let scorer = block_scorer(&plan, &q, &k, block, None);
            E::Real::dispatch(plan.level, BlockScores { scorer: &scorer, stage, to: Copy { block, to } });
        })?;
        Ok(scores)
    }
}

fn matrix<T: Real>(plan: &Plan<'_>, fill: T) -> Result<Array4<T>> {
    let shape = plan.dims.scores();
    checked_len("the matrix", shape)?;
    Ok(Array4::from_elem(shape, fill))
}

/// The part of a matrix that belongs to each block.
fn split<'m, T: Real>(plan: &Plan<'_>, matrix: &'m mut Array4<T>) -> Vec<(RowBlock, ArrayViewMut3<'m, T>)> {
    let mut tasks = Vec::new();
    let mut all = blocks(plan).into_iter().peekable();
    for (batch, by_batch) in matrix.outer_iter_mut().enumerate() {
        let mut heads = by_batch;
        while let Some(head) = all.peek().filter(|b| b.batch == batch).map(|b| b.head) {
            let count = all.peek().map_or(1, |b| b.heads);
            let (here, rest) = heads.split_at(Axis(0), count);
            heads = rest;
            let mut rows = here;
            while let Some(block) = all.next_if(|b| b.batch == batch && b.head == head) {
                let (here, rest) = rows.split_at(Axis(1), block.queries);
                rows = rest;
                tasks.push((block, here));
            }
        }
    }
    tasks
}

/// Takes finished tiles: `values[key * width + lane]` for the rows of a panel.
pub(crate) trait TakeTile<T> {
    fn take<S: Lanes<T = T>>(&mut self, simd: S, panel: &Range<usize>, keys: &Range<usize>, width: usize, values: &mut [T]);
}

/// Into a matrix.
struct Copy<'m, T> {
    block: RowBlock,
    to: ArrayViewMut3<'m, T>,
}

impl<T: Real> TakeTile<T> for Copy<'_, T> {
    fn take<S: Lanes<T = T>>(&mut self, _: S, panel: &Range<usize>, keys: &Range<usize>, width: usize, values: &mut [T]) {
        for r in panel.clone() {
            let (head, query) = (r / self.block.queries, r % self.block.queries);
            let mut to = self.to.slice_mut(ndarray::s![head, query, keys.clone()]);
            let from = values[r - panel.start..].iter().step_by(width);
            to.iter_mut().zip(from).for_each(|(to, &x)| *to = x);
        }
    }
}

/// Weights lose what dropout takes.
struct Drop<'s, 'a, E: Element, C> {
    scorer: &'s Scorer<'a, E>,
    then: C,
}

impl<E: Element, C: TakeTile<E::Real>> TakeTile<E::Real> for Drop<'_, '_, E, C> {
    fn take<S: Lanes<T = E::Real>>(&mut self, simd: S, panel: &Range<usize>, keys: &Range<usize>, width: usize, values: &mut [E::Real]) {
        let mut memory = Scratch::take();
        let [numbers] = memory.slices([if self.scorer.plan.dropout().is_some() { values.len() } else { 0 }]);
        self.scorer.drop_out(simd, panel, keys, width, numbers, values);
        self.then.take(simd, panel, keys, width, values);
    }
}

struct BlockScores<'s, 'a, E: Element, C> {
    scorer: &'s Scorer<'a, E>,
    stage: Stage,
    to: C,
}

impl<E: Element, C: TakeTile<E::Real>> Operation<E::Real> for BlockScores<'_, '_, E, C> {
    type Output = ();

    fn run<S: Lanes<T = E::Real>>(mut self, simd: S) {
        let scorer = self.scorer;
        let mut memory = Scratch::take();
        let [queries, copy, scores, numbers] = memory.slices(tile_lengths::<S, E>(scorer));
        scorer.pack_queries(simd, queries);
        let seq_kv = scorer.plan.dims.seq_kv;
        for start in (0..seq_kv).step_by(KV_TILE) {
            let keys = start..seq_kv.min(start + KV_TILE);
            let tile = scorer.key_tile(simd, keys.start, keys.end, copy);
            for panel in scorer.panels::<S>() {
                let width = width::<S>(panel.len());
                // The coverage matters at the last stage only, where asking for every pair is always right.
                let coverage = TileCoverage::Partial;
                if width > S::LANES {
                    scorer.scores::<S, 2>(simd, queries, &panel, &tile, &keys, coverage, self.stage, numbers, scores);
                } else {
                    scorer.scores::<S, 1>(simd, queries, &panel, &tile, &keys, coverage, self.stage, numbers, scores);
                }
                self.to.take(simd, &panel, &keys, width, &mut scores[..keys.len() * width]);
            }
        }
    }
}

/// Weights of a block, tile by tile: one pass for the denominators, one for the weights.
pub(crate) struct BlockWeights<'s, 'a, E: Element, C> {
    pub(crate) scorer: &'s Scorer<'a, E>,
    pub(crate) to: C,
}

impl<E: Element, C: TakeTile<E::Real>> Operation<E::Real> for BlockWeights<'_, '_, E, C> {
    type Output = C;

    fn run<S: Lanes<T = E::Real>>(mut self, simd: S) -> C {
        let scorer = self.scorer;
        let keys = 0..scorer.plan.dims.seq_kv;
        let denominators = denominators(simd, scorer);
        each_weights(simd, scorer, keys, &denominators, &mut self.to);
        self.to
    }
}

/// The denominator of each row's softmax, its two parts kept apart: a weight is `exp(score - max) / sum`.
#[derive(Debug, Clone)]
pub(crate) struct Denominators<T> {
    pub(crate) max: Vec<T>,
    pub(crate) sum: Vec<T>,
}

/// Denominators of a block, one per lane.
pub(crate) fn denominators<S: Lanes, E: Element<Real = S::T>>(simd: S, scorer: &Scorer<'_, E>) -> Denominators<S::T> {
    let lanes = scorer.block.rows().next_multiple_of(2 * S::LANES);
    let (mut max, mut sum) = (vec![S::T::HIDDEN; lanes], vec![S::T::ZERO; lanes]);
    let mut memory = Scratch::take();
    let [a, b, c, d] = tile_lengths::<S, E>(scorer);
    let [queries, copy, scores, numbers, factors] = memory.slices([a, b, c, d, 2 * S::LANES]);
    scorer.pack_queries(simd, queries);
    let mut state = State { row_max: &mut max, row_sum: &mut sum, acc: &mut [], stats: None };
    scorer.each_tile::<S>(simd, 0..scorer.plan.dims.seq_kv, queries, copy, scores, numbers, |panel, keys, width, scores| {
        let at = PanelTile { panel, keys, coverage: TileCoverage::Partial };
        if width > S::LANES {
            simd.call(Soften::<_, 2> { at: &at, scores, state: &mut state, factors });
        } else {
            simd.call(Soften::<_, 1> { at: &at, scores, state: &mut state, factors });
        }
    });
    for r in 0..scorer.block.rows() {
        if let Some(sink) = scorer.plan.sink(scorer.block.row(r).0).map(S::T::from_f64)
            && sink > S::T::HIDDEN
        {
            let top = if max[r] < sink { sink } else { max[r] };
            let exp = |x: S::T| S::T::from_f64((x - top).to_f64().exp());
            sum[r] = sum[r] * exp(max[r]) + exp(sink);
            max[r] = top;
        }
    }
    Denominators { max, sum }
}

/// Weights of some keys, tile by tile.
pub(crate) fn each_weights<S: Lanes, E: Element<Real = S::T>>(
    simd: S,
    scorer: &Scorer<'_, E>,
    keys: Range<usize>,
    denominators: &Denominators<S::T>,
    to: &mut impl TakeTile<S::T>,
) {
    let mut memory = Scratch::take();
    let [queries, copy, scores, numbers] = memory.slices(tile_lengths::<S, E>(scorer));
    scorer.pack_queries(simd, queries);
    scorer.each_tile::<S>(simd, keys, queries, copy, scores, numbers, |panel, keys, width, scores| {
        let lanes = panel.start..panel.start + width;
        simd.call(Normalise { max: &denominators.max[lanes.clone()], sum: &denominators.sum[lanes], scores });
        to.take(simd, &panel, &keys, width, scores);
    });
}

fn tile_lengths<S: Lanes, E: Element<Real = S::T>>(scorer: &Scorer<'_, E>) -> [usize; 4] {
    [scorer.queries_len::<S>(), scorer.keys_len(), KV_TILE * 2 * S::LANES, scorer.numbers_len::<S>()]
}

/// Scores become weights.
struct Normalise<'k, T> {
    /// Per lane of the panel.
    max: &'k [T],
    sum: &'k [T],
    scores: &'k mut [T],
}

impl<T: Real> Operation<T> for Normalise<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { max, sum, scores } = self;
        assert!(max.len() == sum.len() && max.len() % S::LANES == 0);
        let (zero, one) = (simd.splat(T::ZERO), simd.splat(T::ONE));
        for line in scores.chunks_exact_mut(max.len()) {
            for n in (0..max.len()).step_by(S::LANES) {
                // SAFETY: n is the start of a whole vector of max, sum and the line, which are equally long.
                unsafe {
                    let (max, sum) = (simd.load(max.as_ptr().add(n)), simd.load(sum.as_ptr().add(n)));
                    // A row that saw nothing: -inf - 0, and 0 / 1.
                    let empty = simd.eq(sum, zero);
                    let x = simd.sub(simd.load(line.as_ptr().add(n)), simd.clear(empty, max));
                    let p = math::exp(simd, x);
                    simd.store(line.as_mut_ptr().add(n), simd.div(p, simd.select(empty, one, sum)));
                }
            }
        }
    }
}

/// What makes the scores of a block, top-k included.
pub(crate) fn full_scorer<'a, E: Element>(
    plan: &'a Plan<'a>,
    q: &ArrayView4<'a, E>,
    k: &ArrayView4<'a, E>,
    block: RowBlock,
) -> Scorer<'a, E> {
    let scorer = block_scorer(plan, q, k, block, None);
    let cutoffs = block_cutoffs(plan, &scorer);
    Scorer { cutoffs, ..scorer }
}
