//! The forward pass: its inputs and results.
//!
//! What a row's bits depend on is the row: the order of every sum is fixed by the key numbers, so neither threads, nor the
//! batch, nor the other rows of the call change them.

pub(crate) mod attend;
pub(crate) mod output;
pub(crate) mod schedule;
pub(crate) mod softmax;

pub use softmax::merge;

use crate::arrays::{filled, uninit};
use crate::error::Result;
use crate::plan::Plan;
use ndarray::{Array3, Array4, ArrayView3, ArrayView4, ArrayViewMut3, ArrayViewMut4, Axis};
pub(crate) use output::Outputs;
use output::lse_of;
use regard_simd::{Real, Storage};
use std::mem::MaybeUninit;

/// The result of attention.
#[derive(Debug, Clone)]
pub struct Forward<E: Storage> {
    /// `[batch, heads_q, seq_q, value_dim]`.
    pub out: Array4<E>,
    /// `ln(sum(exp(scores)))` of each row, `[batch, heads_q, seq_q]`; `-inf` for a row without any visible key.
    pub lse: Array3<E::Real>,
}

/// State that the forward pass keeps for the backward pass: linear in memory.
///
/// `row_max` and `row_sum` are kept apart: their log-sum-exp would round the sum away where scores are large, and the weights that
/// the backward pass makes of it would be off.
#[derive(Debug, Clone)]
pub struct Saved<E: Storage> {
    /// The result, `[batch, heads_q, seq_q, value_dim]`.
    pub out: Array4<E>,
    /// The result before it was rounded to f16 or bf16, for the gradients; `None` where nothing is rounded.
    pub out_unrounded: Option<Array4<E::Real>>,
    /// The highest score of each row (a sink logit included), `[batch, heads_q, seq_q]`; `-inf` for a row without any visible key.
    pub row_max: Array3<E::Real>,
    /// `sum(exp(scores - row_max))` of each row; 0 for a row without any visible key.
    pub row_sum: Array3<E::Real>,
}

impl<E: Storage> Saved<E> {
    /// `ln(sum(exp(scores)))` of each row, `[batch, heads_q, seq_q]`; `-inf` for a row without any visible key.
    pub fn lse(&self) -> Array3<E::Real> {
        ndarray::Zip::from(&self.row_max).and(&self.row_sum).map_collect(|&max, &sum| lse_of(max, sum))
    }
}

/// A borrowed [`Saved`].
#[derive(Debug, Clone, Copy)]
pub struct SavedView<'a, E: Storage> {
    /// See [`Saved::out`].
    pub out: ArrayView4<'a, E>,
    /// See [`Saved::out_unrounded`]; without it, gradients in half precision are off by what `out` was rounded by.
    pub out_unrounded: Option<ArrayView4<'a, E::Real>>,
    /// See [`Saved::row_max`].
    pub row_max: ArrayView3<'a, E::Real>,
    /// See [`Saved::row_sum`].
    pub row_sum: ArrayView3<'a, E::Real>,
}

impl<E: Storage> SavedView<'_, E> {
    /// These outputs, borrowed for a shorter time; the compiler does not see by itself that this is allowed.
    pub(crate) fn reborrow(&self) -> SavedView<'_, E> {
        let out_unrounded = self.out_unrounded.as_ref().map(|x| x.view());
        SavedView { out: self.out.view(), out_unrounded, row_max: self.row_max.view(), row_sum: self.row_sum.view() }
    }
}

impl<'a, E: Storage> From<&'a Saved<E>> for SavedView<'a, E> {
    fn from(saved: &'a Saved<E>) -> Self {
        let Saved { out, out_unrounded, row_max, row_sum } = saved;
        Self { out: out.view(), out_unrounded: out_unrounded.as_ref().map(|x| x.view()), row_max: row_max.view(), row_sum: row_sum.view() }
    }
}

/// The caller's buffers for [`crate::Attention::forward_saved_into`], in the shapes of [`Saved`].
#[derive(Debug)]
pub struct SavedViewMut<'a, E: Storage> {
    /// See [`Saved::out`].
    pub out: ArrayViewMut4<'a, E>,
    /// See [`Saved::out_unrounded`]; it may be left out.
    pub out_unrounded: Option<ArrayViewMut4<'a, E::Real>>,
    /// See [`Saved::row_max`].
    pub row_max: ArrayViewMut3<'a, E::Real>,
    /// See [`Saved::row_sum`].
    pub row_sum: ArrayViewMut3<'a, E::Real>,
}

/// q, k and v of a call; K is another type where keys and values are compressed.
pub(crate) struct Inputs<'x, E, K = ArrayView4<'x, E>> {
    pub(crate) q: ArrayView4<'x, E>,
    pub(crate) k: K,
    pub(crate) v: K,
}

/// Memory for what a backward pass needs, and what `attend` makes of it.
///
/// # Safety
/// Where it succeeds, `attend` must have written every element of `out` and `out_unrounded`.
pub(crate) unsafe fn saved<E: Storage, R>(plan: &Plan<'_>, attend: impl FnOnce(Outputs<'_, E>) -> Result<R>) -> Result<(Saved<E>, R)> {
    let (mut row_max, mut row_sum) = (row_array(plan, E::Real::NEG_INFINITY)?, row_array(plan, E::Real::ZERO)?);
    let mut out = uninit("out", plan.dims.out())?;
    let mut out_unrounded = if E::IS_REAL { None } else { Some(uninit("out", plan.dims.out())?) };
    let [max, sum] = [&mut row_max, &mut row_sum].map(|rows| Some(rows.view_mut()));
    let unrounded_view = out_unrounded.as_mut().map(|x| x.view_mut());
    let result = attend(Outputs { out_unrounded: unrounded_view, row_max: max, row_sum: sum, ..Outputs::new(out.view_mut()) })?;
    // SAFETY: the caller guarantees it.
    let (out, out_unrounded) = unsafe { (out.assume_init(), out_unrounded.map(|x| x.assume_init())) };
    Ok((Saved { out, out_unrounded, row_max, row_sum }, result))
}

/// A place for elements as a place that may be uninitialised.
pub(crate) fn as_uninit<'a, T>(out: &'a mut ArrayViewMut4<'_, T>) -> ArrayViewMut4<'a, MaybeUninit<T>> {
    // SAFETY: only elements are written to it; the view is exclusive for as long as `out` is borrowed.
    unsafe { out.raw_view_mut().cast::<MaybeUninit<T>>().deref_into_view_mut() }
}

/// One value per row.
pub(crate) fn row_array<T: Real>(plan: &Plan<'_>, with: T) -> Result<Array3<T>> {
    let d = &plan.dims;
    Ok(filled("a number per row", [d.batch, d.heads_q, d.seq_q, 1], with)?.remove_axis(Axis(3)))
}
