//! `regard.attention_vjp`, `regard.gradient_statistics`, and the two passes that `regard.torch` calls.

use crate::arrays::{self, Inputs, PerRow, Scalar, with_dtype};
use crate::instruments::{field, result};
use crate::interrupt;
use crate::options::{Keywords, function};
use crate::settings::Settings;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use regard::{Gradients, Saved, SavedView};

function! {
    /// The gradients of :func:`attention`: given ``dout``, the gradient of a loss on ``out``, the tuple ``(dq, dk, dv)`` of its gradients
    /// on q, k and v, in their shapes and element types. Linear memory: the weights are made anew, tile by tile.
    ///
    /// After these three come the gradients of what else a gradient can be taken of, where it is given, in this order; each is also an
    /// attribute of the tuple, None where it is not there:
    ///
    /// * ``d_mask`` of a float ``mask``, in the mask's own shape: summed over the axes that it is broadcast along;
    /// * ``d_bias``, likewise;
    /// * ``d_alibi``, where the slopes are given: float64, one per head;
    /// * ``d_relative``, in the shape of the table;
    /// * ``d_sink``: float64, one per head;
    /// * ``d_scale``: a float, with ``scale_gradient=True``.
    ///
    /// ``mask_gradient=False`` leaves out the gradients of mask, bias, slopes and table.
    ///
    /// q, k, v and the options are those of :func:`attention` (which it names): with the same ``seed``, the same weights are dropped. A row
    /// without any visible key has gradients of zero, and a hidden key gets none. The bits depend neither on the threads nor on the rest of
    /// the batch.
    ///
    /// >>> import numpy as np, regard
    /// >>> q = k = np.zeros((1, 1, 3, 8), np.float32)
    /// >>> v = np.ones((1, 1, 3, 1), np.float32)
    /// >>> dq, dk, dv = regard.attention_vjp(q, k, v, np.ones_like(v), causal=True)
    /// >>> dv[0, 0, :, 0].round(3)                         # 1 + 1/2 + 1/3, 1/2 + 1/3, 1/3
    /// array([1.833, 0.833, 0.333], dtype=float32)
    /// >>> bias = np.zeros((3, 3), np.float32)
    /// >>> dq, dk, dv, dbias = regard.attention_vjp(q, k, v, np.ones_like(v), bias=bias)
    /// >>> dbias.shape
    /// (3, 3)
    fn attention_vjp(q, k, v, dout; mask_gradient: bool = true, scale_gradient: bool = false) => vjp
}

fn vjp<'py>(
    py: Python<'py>,
    [q, k, v, dout]: [&Bound<'py, PyAny>; 4],
    mask_gradient: bool,
    scale_gradient: bool,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    gradients(py, [q, k, v, dout], None, Wanted { added: mask_gradient, scale: scale_gradient }, keywords)
}

/// With the saved state of a forward pass, or after a forward pass of its own.
fn gradients<'py>(
    py: Python<'py>,
    [q, k, v, dout]: [&Bound<'py, PyAny>; 4],
    saved: Option<&Bound<'py, PyAny>>,
    wanted: Wanted,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => gradients_as::<E>(py, &inputs, &settings, dout, saved, wanted))
}

fn gradients_as<'py, E: Scalar>(
    py: Python<'py>,
    inputs: &Inputs<'py>,
    settings: &Settings<'py>,
    dout: &Bound<'py, PyAny>,
    saved: Option<&Bound<'py, PyAny>>,
    wanted: Wanted,
) -> PyResult<Bound<'py, PyAny>> {
    let saved = saved.map(|saved| SavedArrays::<E>::new(saved, inputs)).transpose()?;
    let dout = inputs.companion::<E>("dout", dout)?;
    let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
    let (q, k, v, dout, saved) = (q.view(), k.view(), v.view(), dout.view(), saved.as_ref().map(SavedArrays::view));
    let attention = wanted.of(settings);
    let work = inputs.work().saturating_mul(if saved.is_some() { 3 } else { 4 });
    let gradients = interrupt::run(py, settings, work, || match saved {
        Some(saved) => attention.backward(q, k, v, saved, dout),
        None => {
            let saved = attention.forward_saved(q, k, v)?;
            attention.backward(q, k, v, &saved, dout)
        }
    })?;
    named(py, inputs, settings, gradients)
}

/// Which gradients beside those of q, k and v.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Of the biases.
    pub(crate) added: bool,
    pub(crate) scale: bool,
}

impl Wanted {
    pub(crate) fn of<'a>(self, settings: &'a Settings<'_>) -> regard::Attention<'a> {
        settings.attention().bias_gradient(self.added).scale_gradient(self.scale)
    }
}

function! {
    /// Norms of the gradients, row by row, in the pass that computes them: linear memory. Arguments as for :func:`attention_vjp`.
    ///
    /// Returns a :class:`GradientStatistics`, of Euclidean norms in float64:
    ///
    /// * ``dq_rows``: of each row of dq, ``[batch, heads_q, seq_q]``
    /// * ``dk_rows``, ``dv_rows``: of each row of dk and of dv, ``[batch, heads_kv, seq_kv]``
    /// * ``d_scores_rows``: of each row of the gradient on the scores as they enter the softmax, ``[batch, heads_q, seq_q]``
    /// * ``dq_norm``, ``dk_norm``, ``dv_norm``: of each gradient as a whole
    /// * ``share_below(threshold)``: the share of the rows of dq whose norm is below a threshold
    ///
    /// and the gradients themselves, ``dq``, ``dk`` and ``dv``. Where the softmax saturates the median row vanishes, while the norm of the
    /// whole does not:
    ///
    /// >>> import numpy as np, regard
    /// >>> q, k, v, dout = np.random.default_rng(0).standard_normal((4, 1, 2, 256, 64))
    /// >>> for scale in (0.125, 8.0):
    /// ...     stats = regard.gradient_statistics(q, k, v, dout, scale=scale)
    /// ...     print(f"{stats.dq_norm:.3g}, median row {np.median(stats.dq_rows):.3g}, vanished {stats.share_below(1e-6):.3g}")
    /// 18.1, median row 0.752, vanished 0
    /// 1.33e+03, median row 0.000116, vanished 0.393
    fn gradient_statistics(q, k, v, dout;) => statistics
}

fn statistics<'py>(py: Python<'py>, [q, k, v, dout]: [&Bound<'py, PyAny>; 4], keywords: &Keywords<'py>) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(
        py: Python<'py>,
        inputs: &Inputs<'py>,
        settings: &Settings<'py>,
        dout: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let dout = inputs.companion::<E>("dout", dout)?;
        let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
        let (q, k, v, dout) = (q.view(), k.view(), v.view(), dout.view());
        let attention = settings.attention().bias_gradient(false);
        let (gradients, stats) = interrupt::run(py, settings, inputs.work().saturating_mul(4), || {
            let saved = attention.forward_saved(q, k, v)?;
            attention.backward_with_stats(q, k, v, &saved, dout)
        })?;
        let (fields, layout) = (PyDict::new(py), inputs.layout);
        field(&fields, layout, "dq_rows", stats.dq_rows)?;
        field(&fields, layout, "dk_rows", stats.dk_rows)?;
        field(&fields, layout, "dv_rows", stats.dv_rows)?;
        field(&fields, layout, "d_scores_rows", stats.d_scores_rows)?;
        fields.set_item("dq_norm", stats.dq)?;
        fields.set_item("dk_norm", stats.dk)?;
        fields.set_item("dv_norm", stats.dv)?;
        field(&fields, layout, "dq", gradients.dq)?;
        field(&fields, layout, "dk", gradients.dk)?;
        field(&fields, layout, "dv", gradients.dv)?;
        result(&CLASS, "GradientStatistics", &fields)
    }
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings, dout))
}

function! {
    /// ``(out, out_unrounded, row_max, row_sum)``: a forward pass, and what :func:`_backward` needs of it; ``out_unrounded`` is None where
    /// nothing is rounded.
    fn _forward_saved(q, k, v;) => forward_saved
}

fn forward_saved<'py>(py: Python<'py>, [q, k, v]: [&Bound<'py, PyAny>; 3], keywords: &Keywords<'py>) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, settings: &Settings<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
        let (q, k, v, attention) = (q.view(), k.view(), v.view(), settings.attention());
        let saved = interrupt::run(py, settings, inputs.work(), || attention.forward_saved(q, k, v))?;
        give_saved(py, inputs, saved)
    }
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings))
}

pub(crate) fn give_saved<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, saved: Saved<E>) -> PyResult<Bound<'py, PyAny>> {
    let layout = inputs.layout;
    let out_unrounded = saved.out_unrounded.map(|x| layout.give(py, x));
    (layout.give(py, saved.out), out_unrounded, layout.give(py, saved.row_max), layout.give(py, saved.row_sum)).into_bound_py_any(py)
}

function! {
    /// The gradients as :func:`attention_vjp` gives them, from what :func:`_forward_saved` returned.
    fn _backward(q, k, v, dout, saved; mask_gradient: bool = true, scale_gradient: bool = false) => backward
}

fn backward<'py>(
    py: Python<'py>,
    [q, k, v, dout, saved]: [&Bound<'py, PyAny>; 5],
    mask_gradient: bool,
    scale_gradient: bool,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    gradients(py, [q, k, v, dout], Some(saved), Wanted { added: mask_gradient, scale: scale_gradient }, keywords)
}

/// What [`give_saved`] gave, borrowed back.
pub(crate) struct SavedArrays<'py, E: Scalar> {
    out: arrays::Tensor<'py, E>,
    out_unrounded: Option<arrays::Tensor<'py, E::Real>>,
    row_max: PerRow<'py, E::Real>,
    row_sum: PerRow<'py, E::Real>,
}

impl<'py, E: Scalar> SavedArrays<'py, E> {
    pub(crate) fn new(saved: &Bound<'py, PyAny>, inputs: &Inputs<'py>) -> PyResult<Self> {
        let [out, out_unrounded, row_max, row_sum]: [Bound<'py, PyAny>; 4] =
            saved.extract().map_err(|_| PyTypeError::new_err("saved is not what the forward pass returned"))?;
        let per_row = |name, array| PerRow::new(name, "the forward pass", array, inputs.layout);
        Ok(Self {
            out: inputs.companion("out", &out)?,
            out_unrounded: if out_unrounded.is_none() { None } else { Some(inputs.exact::<E>(&out_unrounded)?) },
            row_max: per_row("row_max", &row_max)?,
            row_sum: per_row("row_sum", &row_sum)?,
        })
    }

    pub(crate) fn view(&self) -> SavedView<'_, E> {
        let out_unrounded = self.out_unrounded.as_ref().map(arrays::Tensor::view);
        SavedView { out: self.out.view(), out_unrounded, row_max: self.row_max.view(), row_sum: self.row_sum.view() }
    }
}

/// dq, dk, dv, then those of the operands that there are, under their names.
pub(crate) fn named<'py, E: Scalar>(
    py: Python<'py>,
    inputs: &Inputs<'py>,
    settings: &Settings<'py>,
    gradients: Gradients<E>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let Gradients { dq, dk, dv, d_biases, d_sink, d_scale } = gradients;
    let tensors = [("dq", dq), ("dk", dk), ("dv", dv)];
    let mut all: Vec<_> = tensors.into_iter().map(|(name, gradient)| (name, inputs.layout.give(py, gradient))).collect();
    all.extend(settings.operand_gradients(py, d_biases)?);
    if let Some(sink) = d_sink {
        all.push(("d_sink", numpy::PyArray1::from_vec(py, sink).into_any()));
    }
    if let Some(scale) = d_scale {
        all.push(("d_scale", scale.into_bound_py_any(py)?));
    }
    let (names, values): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    CLASS.import(py, "regard._results", "Gradients")?.call1((PyTuple::new(py, values)?, PyTuple::new(py, names)?))
}
