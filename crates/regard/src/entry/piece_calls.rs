//! A whole in pieces: keys that are not all there at once, pairs that are shared out. The bits are those of one call for the whole.

use super::{Element, View};
use crate::backward::{GradientOutputs, check_saved};
use crate::error::{Error, Result, check_shape};
use crate::forward::attend::Splits;
use crate::forward::schedule::Running;
use crate::forward::{Inputs, Outputs, Saved, SavedView, as_uninit, saved};
use crate::instruments::stats::StatSums;
use crate::instruments::{MapSoFar, Rectangle, RowStates, RowStats, StatsOptions, check_states};
use crate::plan::{Attention, Dims, Part, Plan};
use crate::walk::tiling::GRADIENT_SPLIT;
use ndarray::{Array4, ArrayView4, ArrayViewMut4};
use regard_simd::{Real, Storage};
use std::ops::Range;

/// What rows have seen of their keys, and what statistics they are to have (see [`crate::stats`]). It begins with the default.
#[derive(Default)]
pub struct RowsSoFar<T: Real> {
    /// Statistics that are wanted.
    pub stats: Option<StatsOptions>,
    pub(super) states: Running<T, ()>,
    observed: Running<T, StatSums<T>>,
    ahead: Option<Ahead<T>>,
}

/// A call that is still to come, and what is known of its keys.
type Ahead<T> = (Part, Dims, Vec<Splits<T, ()>>);

/// What rows come to, with their statistics where these were wanted.
pub type RowsDone<E> = (Saved<E>, Option<RowStats<<E as Storage>::Real>>);

impl Attention<'_> {
    /// Attend to some of the keys of a whole. They come in order, cut at multiples of 256; with the last ones there are results.
    ///
    /// # Errors
    /// As [`Attention::forward`]; [`Error::Piece`] for keys that are not such; [`Error::Unsupported`] with top-k.
    pub fn forward_part<'x, E: Element>(
        &self,
        part: Part,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        so_far: &mut RowsSoFar<E::Real>,
    ) -> Result<Option<RowsDone<E>>> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan_piece(&inputs, part, false)?;
        if plan.top_k().is_some() {
            return Err(Error::Unsupported { what: "top-k of keys in pieces" });
        }
        let RowsSoFar { stats, states, observed, ahead } = so_far;
        let ahead = match ahead.take() {
            Some((of, dims, splits)) if (of, dims) == (part, plan.dims) => splits,
            Some(_) => return Err(Error::State { what: "calls of these tensors ahead", got: 0, expected: 1 }),
            None => Vec::new(),
        };
        let attend = |outputs: Option<Outputs<'_, E>>| match *stats {
            None => E::forward_part(&plan, inputs, outputs, states, ahead).map(|()| None),
            Some(options) => E::forward_part_with_stats(&plan, inputs, outputs, observed, options).map(Some),
        };
        if part.key + plan.dims.seq_kv < part.whole[3] {
            return attend(None).map(|_| None);
        }
        // SAFETY: on success every row of every query tile was written, and the tiles are all of `out` and `exact`.
        unsafe { saved(&plan, |outputs| attend(Some(outputs))) }.map(Some)
    }

    /// What [`Attention::forward_part`] can do before it is known what was seen of the keys before: the sums of the splits of 2048 keys that begin here. The call for the
    /// same tensors and the same `so_far` then does the rest, with the same result.
    ///
    /// # Errors
    /// As [`Attention::forward_part`]; [`Error::Unsupported`] with statistics.
    pub fn forward_ahead<'x, E: Element>(
        &self,
        part: Part,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        so_far: &mut RowsSoFar<E::Real>,
    ) -> Result<()> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan_piece(&inputs, part, false)?;
        if plan.top_k().is_some() || so_far.stats.is_some() {
            return Err(Error::Unsupported { what: "top-k or statistics of keys ahead" });
        }
        so_far.ahead = Some((part, plan.dims, E::forward_ahead(&plan, inputs)?));
        Ok(())
    }

    /// What [`Attention::backward`] adds to the gradients for the pairs of some queries and 256 keys of a whole (fewer at its end). `rows` are q and
    /// d_out, cut as keys are in [`Attention::forward_part`]; `keys` are k and v. Of `sums`, dq is written: its sum over all keys, in order, times the scale
    /// is the gradient (and that sum times q, summed over all rows in f64, the one on the scale). dk and dv are written by the first queries and added to by
    /// all others: they go from queries to queries, in order. Returned is the gradient on the sink logits of these rows.
    ///
    /// # Errors
    /// As [`Attention::backward`]; and [`Error::Unsupported`] with top-k, a scale beyond 4, or the gradient of a bias.
    pub fn backward_part<'x, E: Element>(
        &self,
        part: Part,
        rows: [ArrayView4<'x, E>; 2],
        keys: [ArrayView4<'x, E>; 2],
        saved: impl Into<SavedView<'x, E>>,
        sums: [&mut ArrayViewMut4<'_, E::Real>; 3],
    ) -> Result<Option<Vec<f64>>> {
        let ([q, d_out], [k, v], saved) = (rows, keys, saved.into());
        let inputs = Inputs { q, k, v };
        let plan = self.plan_piece(&inputs, part, true)?;
        check_saved(&plan.dims, &saved, &d_out)?;
        for (operand, sum, like) in [("dq", &*sums[0], &inputs.q), ("dk", &*sums[1], &inputs.k), ("dv", &*sums[2], &inputs.v)] {
            check_shape(operand, sum.shape(), like.shape())?;
        }
        let [dq, dk, dv] = sums.map(as_uninit);
        Ok(E::backward_part(&plan, inputs, saved, d_out, GradientOutputs { dq, dk, dv, adds: true }, false)?.options.d_sink)
    }

    /// [`Attention::heat_map`] of a whole of so many cells, as far as some queries and keys of it go: `states` are those of the queries, and keys come in order, cut at multiples of 256.
    /// When all have been there, [`MapCells::add`](crate::MapCells::add) adds what the queries have to the map.
    ///
    /// # Errors
    /// As [`Attention::forward_part`] and [`Attention::heat_map`].
    pub fn heat_map_part<'x, E: Element>(
        &self,
        part: Part,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        states: &RowStates<E::Real>,
        cells: [usize; 2],
        so_far: &mut MapSoFar<E::Real>,
    ) -> Result<()> {
        let (q, k) = (q.into(), k.into());
        let none = Array4::from_elem([k.shape()[0], k.shape()[1], k.shape()[2], 0], E::STORED_ZERO);
        let inputs = Inputs { q, k, v: none.view() };
        let plan = self.plan_piece(&inputs, part, false)?;
        check_states(&plan, states)?;
        if plan.top_k().is_some() {
            return Err(Error::Unsupported { what: "top-k of keys in pieces" });
        }
        let all = Rectangle { rows: 0..part.whole[2], keys: 0..part.whole[3] };
        E::heat_map_part(&plan, inputs.q, inputs.k, states, all, cells, so_far)
    }

    /// What some queries of a whole of these scores need of some keys: a part of them outside which none sees anything, in any batch entry and head.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn key_ranges(&self, scores: [usize; 4]) -> Result<impl Fn(Range<usize>, Range<usize>) -> Range<usize> + '_> {
        let [batch, heads, seq_q, seq_kv] = scores;
        let dims = Dims { batch, heads_q: heads, heads_kv: heads, seq_q, seq_kv, head_dim: 1, value_dim: 1 };
        let plan = self.plan_part::<f64>(dims, Part { batch: 0, query: 0, key: 0, whole: scores })?;
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
    fn plan_piece<E: Element>(&self, inputs: &Inputs<'_, E>, part: Part, backward: bool) -> Result<Plan<'_>> {
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
