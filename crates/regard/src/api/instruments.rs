//! Entry points of the instruments.

use super::{Element, View};
use crate::arrays::uninit;
use crate::error::{Result, checked_len};
use crate::forward::{Forward, Inputs, Outputs, row_array};
use crate::instruments::{HeadSimilarity, HeatMap, Rectangle, RowStats, SoftmaxDenominators, StatsOptions, check_states};
use crate::mainloop::scores::Stage;
use crate::plan::{Attention, Plan};
use ndarray::{Array3, Array4, ArrayView4};
use regard_simd::Real;

impl Attention<'_> {
    /// Attend, and collect statistics of every row: see [`crate::stats`]. Linear memory.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn forward_with_stats<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        options: StatsOptions,
    ) -> Result<(Forward<E>, RowStats<E::Real>)> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan(&inputs.q, &inputs.k, Some(&inputs.v))?;
        let (mut out, mut lse) = (uninit("out", plan.dims.out())?, row_array(&plan, E::Real::NEG_INFINITY)?);
        let outputs = Outputs { lse: Some(lse.view_mut()), ..Outputs::new(out.view_mut()) };
        let stats = E::forward_with_stats(&plan, inputs, outputs, options)?;
        // SAFETY: the call succeeded, so every row of every query tile was written, and the tiles are all of `out`.
        Ok((Forward { out: unsafe { out.assume_init() }, lse }, stats))
    }

    /// The softmax denominator of each row: the first half of [`Attention::weights`], to be used for any number of rectangles.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn row_states<'x, E: Element>(&self, q: impl View<'x, E>, k: impl View<'x, E>) -> Result<SoftmaxDenominators<E::Real>> {
        let (q, k) = (q.into(), k.into());
        let plan = self.plan(&q, &k, None)?;
        find_row_states(&plan, &q, &k)
    }

    /// The weights as they are applied to v, `[batch, heads_q, seq_q, seq_kv]`: quadratic in memory. Without dropout, rows sum to one,
    /// less a sink's share; a row without any visible key is zero.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn weights<'x, E: Element>(&self, q: impl View<'x, E>, k: impl View<'x, E>) -> Result<Array4<E::Real>> {
        let (q, k) = (q.into(), k.into());
        let plan = self.plan(&q, &k, None)?;
        // Reserved for a moment: weights that do not fit into memory are an error before any work.
        drop(uninit::<E::Real>("weights", plan.dims.scores())?);
        let states = find_row_states(&plan, &q, &k)?;
        E::weights(&plan, q, k, &states, Rectangle::all(&plan))
    }

    /// The weights of some rows and keys, `[batch, heads_q, rows, keys]`.
    ///
    /// # Errors
    /// As [`Attention::forward`], and when the rectangle is not inside the pattern or `states` have another shape.
    pub fn weights_of<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        states: &SoftmaxDenominators<E::Real>,
        of: Rectangle,
    ) -> Result<Array4<E::Real>> {
        let (q, k) = (q.into(), k.into());
        let plan = self.plan(&q, &k, None)?;
        check_states(&plan, states)?;
        of.check(&plan)?;
        E::weights(&plan, q, k, states, of)
    }

    /// The scores on their way to the softmax, `[batch, heads_q, seq_q, seq_kv]`: quadratic in memory.
    /// At [`Stage::Masked`] hidden keys are `-inf`; sinks come after.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn scores<'x, E: Element>(&self, q: impl View<'x, E>, k: impl View<'x, E>, stage: Stage) -> Result<Array4<E::Real>> {
        let (q, k) = (q.into(), k.into());
        let plan = self.plan(&q, &k, None)?;
        E::scores(&plan, q, k, stage)
    }

    /// The pattern as a picture of at most `rows x cols` cells (never more than there are queries and keys), however
    /// long the sequence.
    ///
    /// ```
    /// let x = ndarray::Array4::<f32>::ones((1, 1, 1000, 8));
    /// let map = regard::Attention::new().causal().heat_map(&x, &x, 10, 10)?;
    /// assert_eq!(map.mean.shape(), [1, 1, 10, 10]);
    /// assert_eq!(map.mean[[0, 0, 0, 9]], 0.0);
    /// assert_eq!(map.max[[0, 0, 0, 0]], 1.0);
    /// # Ok::<(), regard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward`], and [`crate::Error::Zero`] for no rows or columns.
    pub fn heat_map<'x, E: Element>(&self, q: impl View<'x, E>, k: impl View<'x, E>, rows: usize, cols: usize) -> Result<HeatMap<E::Real>> {
        let (q, k) = (q.into(), k.into());
        let plan = self.plan(&q, &k, None)?;
        let d = &plan.dims;
        checked_len("a heat map", [d.batch, d.heads_q, rows.min(d.seq_q), cols.min(d.seq_kv)])?;
        let states = find_row_states(&plan, &q, &k)?;
        E::heat_map(&plan, q, k, &states, Rectangle::all(&plan), [rows, cols])
    }

    /// [`Attention::heat_map`] of a rectangle, at the cost of the rectangle.
    ///
    /// # Errors
    /// As [`Attention::heat_map`], and when the rectangle is not inside the pattern or `states` have another shape.
    pub fn heat_map_of<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        states: &SoftmaxDenominators<E::Real>,
        of: Rectangle,
        cells: [usize; 2],
    ) -> Result<HeatMap<E::Real>> {
        let (q, k) = (q.into(), k.into());
        let plan = self.plan(&q, &k, None)?;
        check_states(&plan, states)?;
        of.check(&plan)?;
        E::heat_map(&plan, q, k, states, of, cells)
    }

    /// The sum of each key's weights over all queries, `[batch, heads_q, seq_kv]`.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn column_sums<'x, E: Element>(&self, q: impl View<'x, E>, k: impl View<'x, E>) -> Result<Array3<E::Real>> {
        let (q, k) = (q.into(), k.into());
        let plan = self.plan(&q, &k, None)?;
        let states = find_row_states(&plan, &q, &k)?;
        E::column_sums(&plan, q, k, &states)
    }

    /// Similarity of every pair of query heads.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn head_similarity<'x, E: Element>(&self, q: impl View<'x, E>, k: impl View<'x, E>) -> Result<HeadSimilarity> {
        let (q, k) = (q.into(), k.into());
        let plan = self.plan(&q, &k, None)?;
        let states = find_row_states(&plan, &q, &k)?;
        E::head_similarity(&plan, q, k, &states)
    }
}

/// A forward pass with values that have no dimensions.
fn find_row_states<E: Element>(plan: &Plan<'_>, q: &ArrayView4<'_, E>, k: &ArrayView4<'_, E>) -> Result<SoftmaxDenominators<E::Real>> {
    let (mut row_max, mut row_sum) = (row_array(plan, E::Real::NEG_INFINITY)?, row_array(plan, E::Real::ZERO)?);
    let d = &plan.dims;
    let (mut out, v) = (uninit("out", d.out())?, Array4::from_elem([d.batch, d.heads_kv, d.seq_kv, 0], E::STORED_ZERO));
    let inputs = Inputs { q: q.view(), k: k.view(), v: v.view() };
    let [max, sum] = [&mut row_max, &mut row_sum].map(|rows| Some(rows.view_mut()));
    E::forward(plan, inputs, Outputs { row_max: max, row_sum: sum, ..Outputs::new(out.view_mut()) })?;
    Ok(SoftmaxDenominators { row_max, row_sum })
}
