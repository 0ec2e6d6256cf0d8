//! Entry points for keys in pieces and for gradients of some pairs. The bits are those of one call for the whole.

use super::{Element, View};
use crate::backward::{GradientOutputs, check_saved};
use crate::error::{Error, Result, check_shape};
use crate::forward::attend::Splits;
use crate::forward::schedule::Running;
use crate::forward::{Inputs, Outputs, Saved, SavedView, as_uninit, saved};
use crate::instruments::stats::StatSums;
use crate::instruments::{HeatMapState, Rectangle, RowStats, SoftmaxDenominators, StatsOptions, check_states};
use crate::mainloop::tiling::{GRADIENT_SPLIT, query_tiles};
use crate::plan::{Attention, Dims, GlobalOffset, Plan, Progress};
use ndarray::{Array4, ArrayView4, ArrayViewMut4};
use regard_simd::{Real, Storage};
use std::ops::Range;

/// Running softmax state of some rows after some of their keys. Starts as the default.
#[derive(Default)]
pub struct RunningAttention<T: Real> {
    /// Statistics to collect (see [`crate::stats`]).
    pub stats: Option<StatsOptions>,
    pub(super) states: Running<T, ()>,
    observed: Running<T, StatSums<T>>,
    ahead: Option<Ahead<T>>,
    pub(super) progress: Progress,
}

/// A later call, and the precomputed splits of its keys.
type Ahead<T> = (GlobalOffset, Dims, Vec<Splits<T, ()>>);

/// Inputs of [`Attention::backward_part`]: q and d_out of some queries, k and v of some keys.
#[derive(Debug, Clone, Copy)]
pub struct PartInputs<'x, E> {
    /// Queries.
    pub q: ArrayView4<'x, E>,
    /// Keys.
    pub k: ArrayView4<'x, E>,
    /// Values.
    pub v: ArrayView4<'x, E>,
    /// The gradient on the result.
    pub d_out: ArrayView4<'x, E>,
}

/// Sums of [`Attention::backward_part`].
#[derive(Debug)]
pub struct PartSums<'s, 'v, T> {
    /// Written. The sum over all keys, in order, times the scale is the gradient on q; that sum times q, summed over all rows in f64, is
    /// the gradient on the scale.
    pub dq: &'s mut ArrayViewMut4<'v, T>,
    /// Written by the first queries of the whole, and added to by the others, in order.
    pub dk: &'s mut ArrayViewMut4<'v, T>,
    /// As dk.
    pub dv: &'s mut ArrayViewMut4<'v, T>,
}

/// Results of finished rows, with statistics if they were collected.
pub type Finished<E> = (Saved<E>, Option<RowStats<<E as Storage>::Real>>);

impl Attention<'_> {
    /// Attend to some of the keys of a whole. They come in order, cut at multiples of 256; with the last ones there are results. Pieces
    /// before the first key that any of the rows sees, and after the last one, may be left out, but for the last piece.
    ///
    /// # Errors
    /// As [`Attention::forward`]; [`Error::Piece`] for keys that are not such; [`Error::PieceOrder`] for a piece that comes again, too
    /// early or after the last one; [`Error::State`] for a state of other rows; [`Error::Unsupported`] with top-k. After an error,
    /// [`Error::Interrupted`] too, `so_far` is as it was before the call: the piece can be given again.
    pub fn forward_part<'x, E: Element>(
        &self,
        part: GlobalOffset,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        so_far: &mut RunningAttention<E::Real>,
    ) -> Result<Option<Finished<E>>> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan_piece(&inputs, part, false)?;
        if plan.top_k().is_some() {
            return Err(Error::Unsupported { what: "top-k over keys in pieces" });
        }
        let RunningAttention { stats, states, observed, ahead, progress } = so_far;
        let skipped = progress.skipped(&part, plan.dims.seq_kv)?;
        if sees_any_of(&plan, &skipped) {
            return Err(progress.out_of_order(&part, plan.dims.seq_kv));
        }
        let known: &[Splits<E::Real, ()>] = match ahead {
            Some((of, dims, splits)) if (*of, *dims) == (part, plan.dims) => splits,
            Some(_) => return Err(Error::State { what: "calls of these tensors ahead", got: 0, expected: 1 }),
            None => &[],
        };
        let attend = |outputs: Option<Outputs<'_, E>>| match *stats {
            None => E::forward_part(&plan, inputs, outputs, states, known).map(|()| None),
            Some(options) => E::forward_part_with_stats(&plan, inputs, outputs, observed, options).map(Some),
        };
        let result = if part.key + plan.dims.seq_kv < part.whole[3] {
            attend(None).map(|_| None)?
        } else {
            // SAFETY: on success every row of every query tile was written, and the tiles are all of `out` and `exact`.
            Some(unsafe { saved(&plan, |outputs| attend(Some(outputs))) }?)
        };
        *ahead = None;
        progress.advance(&part, plan.dims.seq_kv);
        Ok(result)
    }

    /// Compute the splits of 2048 keys that begin in this piece before the state of earlier keys is known. The following
    /// [`Attention::forward_part`] with the same tensors and `so_far` uses them, with the same result.
    ///
    /// # Errors
    /// As [`Attention::forward_part`]; [`Error::Unsupported`] with statistics.
    pub fn precompute_splits<'x, E: Element>(
        &self,
        part: GlobalOffset,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        so_far: &mut RunningAttention<E::Real>,
    ) -> Result<()> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan_piece(&inputs, part, false)?;
        if plan.top_k().is_some() || so_far.stats.is_some() {
            return Err(Error::Unsupported { what: "precomputed splits with top-k or statistics" });
        }
        so_far.ahead = Some((part, plan.dims, E::precompute_splits(&plan, inputs)?));
        Ok(())
    }

    /// The share of [`Attention::backward`]'s gradients for the pairs of some queries and 256 keys of a whole (fewer at its end). Queries
    /// are cut as keys are in [`Attention::forward_part`]. Returns the gradient on the sink logits of these rows.
    ///
    /// # Errors
    /// As [`Attention::backward`]; and [`Error::Unsupported`] with top-k, a scale beyond 4, or the gradient of a bias.
    pub fn backward_part<'x, E: Element>(
        &self,
        part: GlobalOffset,
        inputs: PartInputs<'x, E>,
        saved: impl Into<SavedView<'x, E>>,
        sums: PartSums<'_, '_, E::Real>,
    ) -> Result<Option<Vec<f64>>> {
        let (PartInputs { q, k, v, d_out }, saved) = (inputs, saved.into());
        let inputs = Inputs { q, k, v };
        let plan = self.plan_piece(&inputs, part, true)?;
        check_saved(&plan.dims, &saved, &d_out)?;
        let PartSums { dq, dk, dv } = sums;
        for (operand, sum, like) in [("dq", &*dq, &inputs.q), ("dk", &*dk, &inputs.k), ("dv", &*dv, &inputs.v)] {
            check_shape(operand, sum.shape(), like.shape())?;
        }
        let [dq, dk, dv] = [dq, dk, dv].map(as_uninit);
        Ok(E::backward_part(&plan, inputs, saved, d_out, GradientOutputs { dq, dk, dv, adds: true }, false)?.options.d_sink)
    }

    /// [`Attention::heat_map`] for some queries and keys of a whole of `cells` cells: `states` are those of the queries, and keys come in
    /// order, cut at multiples of 256.
    /// After the last piece, [`HeatMapCells::add`](crate::HeatMapCells::add) adds what the queries have to the map.
    ///
    /// # Errors
    /// As [`Attention::forward_part`] and [`Attention::heat_map`]; no piece may be left out.
    pub fn heat_map_part<'x, E: Element>(
        &self,
        part: GlobalOffset,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        states: &SoftmaxDenominators<E::Real>,
        cells: [usize; 2],
        so_far: &mut HeatMapState<E::Real>,
    ) -> Result<()> {
        let (q, k) = (q.into(), k.into());
        let none = Array4::from_elem([k.shape()[0], k.shape()[1], k.shape()[2], 0], E::STORED_ZERO);
        let inputs = Inputs { q, k, v: none.view() };
        let plan = self.plan_piece(&inputs, part, false)?;
        check_states(&plan, states)?;
        if plan.top_k().is_some() {
            return Err(Error::Unsupported { what: "top-k over keys in pieces" });
        }
        if !so_far.progress.skipped(&part, plan.dims.seq_kv)?.is_empty() {
            return Err(so_far.progress.out_of_order(&part, plan.dims.seq_kv));
        }
        let all = Rectangle { rows: 0..part.whole[2], keys: 0..part.whole[3] };
        E::heat_map_part(&plan, inputs.q, inputs.k, states, all, cells, so_far)?;
        so_far.progress.advance(&part, plan.dims.seq_kv);
        Ok(())
    }

    /// A function from (queries, keys) to the part of the keys outside which none of the queries sees anything, in any batch entry and
    /// head, for scores of this shape.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn key_ranges(&self, scores: [usize; 4]) -> Result<impl Fn(Range<usize>, Range<usize>) -> Range<usize> + '_> {
        let [batch, heads, seq_q, seq_kv] = scores;
        let dims = Dims { batch, heads_q: heads, heads_kv: heads, seq_q, seq_kv, head_dim: 1, value_dim: 1 };
        let plan = self.plan_part::<f64>(dims, GlobalOffset { batch: 0, query: 0, key: 0, whole: scores })?;
        let join = |a: Range<usize>, b: Range<usize>| if a.is_empty() { b } else { a.start.min(b.start)..a.end.max(b.end) };
        Ok(move |queries: Range<usize>, keys: Range<usize>| {
            if plan.mask().is_everything() {
                return if queries.is_empty() { keys.start..keys.start } else { keys };
            }
            let mut all = keys.start..keys.start;
            for place in 0..batch * heads {
                let one = plan.mask().key_range(&plan.position(place / heads, place % heads), queries.clone(), keys.clone());
                if !one.is_empty() {
                    all = join(all, one);
                }
                if all == keys {
                    break;
                }
            }
            all
        })
    }

    /// Sums over a piece are those of one call where it is made of whole spans; backward, keys are one span.
    fn plan_piece<E: Element>(&self, inputs: &Inputs<'_, E>, part: GlobalOffset, backward: bool) -> Result<Plan<'_>> {
        let (dims, span) = (Dims::check(inputs.q.shape(), inputs.k.shape(), Some(inputs.v.shape()))?, GRADIENT_SPLIT);
        let [batch, heads, queries, keys] = part.whole;
        check_shape("heads of q", &inputs.q.shape()[1..2], &[heads])?;
        let (step, most) = if backward && dims.seq_kv > 0 { (span, span) } else { (1, usize::MAX) };
        for (operand, start, count, len, step, most) in [
            ("batch entries", part.batch, dims.batch, batch, 1, usize::MAX),
            ("queries", part.query, dims.seq_q, queries, step, usize::MAX),
            ("keys", part.key, dims.seq_kv, keys, span, most),
        ] {
            let end = start.saturating_add(count);
            if end > len || count > most || !start.is_multiple_of(step) || !(end == len || end.is_multiple_of(step)) {
                return Err(Error::Piece { operand, start, end, len });
            }
        }
        self.plan_part::<E::Real>(dims, part)
    }
}

/// Whether a range of keys of the whole overlaps those from the first to the last that any row of a query tile sees.
fn sees_any_of(plan: &Plan<'_>, keys: &Range<usize>) -> bool {
    !keys.is_empty()
        && query_tiles(plan, 0..plan.dims.seq_q).iter().any(|tile| {
            let seen = tile.key_range(plan, 0..tile.rows(), 0..plan.part.whole[3]);
            seen.start < keys.end && keys.start < seen.end
        })
}
