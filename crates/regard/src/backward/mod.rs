//! The backward pass: gradients in linear memory, the scores recomputed tile by tile.
//!
//! Every sum has a fixed order: dq over tiles of keys within a split, then over splits; dk and dv over tiles of queries; so that bits
//! depend neither on threads nor on what else is in the batch.

mod deltas;
mod differentiate;
mod kernels;
mod schedule;

pub(crate) use schedule::run;

use crate::bias::BiasGradient;
use crate::error::{Result, check_shape};
use crate::forward::SavedView;
use crate::plan::Dims;
use kernels::RowSquares;
use ndarray::{Array3, Array4, ArrayView4, ArrayViewMut4};
use regard_simd::{Level, Real, Storage};
use std::mem::MaybeUninit;

/// The gradients of a loss, given its gradient on `out`.
#[derive(Debug, Clone)]
pub struct Gradients<E: Storage> {
    /// On q, in its shape.
    pub dq: Array4<E>,
    /// On k, in its shape: summed over the query heads that share it.
    pub dk: Array4<E>,
    /// On v, in its shape.
    pub dv: Array4<E>,
    /// See [`OptionGradients::d_biases`].
    pub d_biases: Vec<BiasGradient>,
    /// See [`OptionGradients::d_sink`].
    pub d_sink: Option<Vec<f64>>,
    /// See [`OptionGradients::d_scale`].
    pub d_scale: Option<f64>,
}

/// The gradients on options.
#[derive(Debug, Clone, Default)]
pub struct OptionGradients {
    /// On the biases, in the order in which they were given, each in its own shape; empty without bias gradients.
    pub d_biases: Vec<BiasGradient>,
    /// On the sink logits, one per query head, if there are any.
    pub d_sink: Option<Vec<f64>>,
    /// On the scale, with [`crate::Attention::scale_gradient`].
    pub d_scale: Option<f64>,
}

/// The caller's buffers for [`crate::Attention::backward_into`].
#[derive(Debug)]
pub struct GradientsViewMut<'a, E> {
    /// In the shape of q.
    pub dq: ArrayViewMut4<'a, E>,
    /// In the shape of k.
    pub dk: ArrayViewMut4<'a, E>,
    /// In the shape of v.
    pub dv: ArrayViewMut4<'a, E>,
}

/// Norms (Euclidean) of the gradients of every row.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientStats {
    /// Norm of each row of dq, `[batch, heads_q, seq_q]`.
    pub dq_rows: Array3<f64>,
    /// Norm of each row of dk, `[batch, heads_kv, seq_kv]`.
    pub dk_rows: Array3<f64>,
    /// Norm of each row of dv, `[batch, heads_kv, seq_kv]`.
    pub dv_rows: Array3<f64>,
    /// Norm of each row of the gradient on the scores as they enter the softmax, `[batch, heads_q, seq_q]`.
    pub d_scores_rows: Array3<f64>,
    /// Norm of all of dq.
    pub dq: f64,
    /// Norm of all of dk.
    pub dk: f64,
    /// Norm of all of dv.
    pub dv: f64,
}

impl GradientStats {
    /// The share of rows whose norm is below a threshold: `stats.share_below(&stats.dq_rows, 1e-8)`. NaN when there are no rows.
    pub fn share_below(rows: &Array3<f64>, threshold: f64) -> f64 {
        rows.iter().filter(|&&x| x < threshold).count() as f64 / rows.len() as f64
    }
}

/// Output buffers of a backward pass.
pub(crate) struct GradientOutputs<'g, E> {
    pub(crate) dq: ArrayViewMut4<'g, MaybeUninit<E>>,
    pub(crate) dk: ArrayViewMut4<'g, MaybeUninit<E>>,
    pub(crate) dv: ArrayViewMut4<'g, MaybeUninit<E>>,
    /// A part of a whole: dk and dv hold the sums over queries before, and dq is without the scale.
    pub(crate) adds: bool,
}

/// The other results of a backward pass.
#[derive(Default)]
pub(crate) struct GradientSums {
    pub(crate) options: OptionGradients,
    /// Sums of the squares of `d_scores` over the keys, if collected.
    pub(crate) squares: Option<Array3<f64>>,
}

/// Check that the saved state and d_out have the shape of the result.
pub(crate) fn check_saved<E: Storage>(dims: &Dims, saved: &SavedView<'_, E>, d_out: &ArrayView4<'_, E>) -> Result<()> {
    let expected = dims.out();
    check_shape("d_out", d_out.shape(), &expected)?;
    check_shape("saved.out", saved.out.shape(), &expected)?;
    if let Some(out_unrounded) = &saved.out_unrounded {
        check_shape("saved.out_unrounded", out_unrounded.shape(), &expected)?;
    }
    check_shape("saved.row_max", saved.row_max.shape(), &expected[..3])?;
    check_shape("saved.row_sum", saved.row_sum.shape(), &expected[..3])
}

/// Of each row, and of all.
pub(crate) fn norms<E: Storage>(level: Level, x: &Array4<E>) -> (Array3<f64>, f64) {
    let (b, h, n, dims) = x.dim();
    let mut rows = vec![0.0; b * h * n];
    let numbers = x.as_standard_layout();
    let squares = RowSquares { rows: numbers.as_slice().expect("it is the standard layout"), dims, to: &mut rows };
    E::Real::call(level, squares);
    let whole = rows.iter().sum::<f64>().sqrt();
    rows.iter_mut().for_each(|x| *x = x.sqrt());
    (Array3::from_shape_vec([b, h, n], rows).expect("one number per row"), whole)
}
