//! `regard.attention_vjp`, `regard.gradient_statistics`, and the two halves that the door to PyTorch calls one after the other.

use crate::arguments::{Keywords, Settings, refused};
use crate::arrays::{self, Inputs, Scalar, room_for, with_dtype};
use crate::instruments::{field, result};
use numpy::{IntoPyArray, PyArray3, PyArrayMethods, PyReadonlyArray3};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use regard::{Attention, GradientStats, Gradients, SavedView};

/// The gradients of :func:`attention`: given ``dout``, the gradient of a loss on ``out``, the tuple ``(dq, dk, dv)`` of its gradients on
/// q, k and v, in their shapes and element types. Linear memory: the weights are made anew, tile by tile.
///
/// After these three come the gradients of what else a gradient can be taken of, where it is given, in this order:
///
/// * a float ``mask``, in the mask's own shape: summed over the axes that it is broadcast along;
/// * ``bias``, likewise;
/// * ``alibi``, where the slopes are given: float64, one per head;
/// * ``sink``: float64, one per head.
///
/// q, k, v and the options are those of :func:`attention` (mask, bias, alibi, causal, window, q_offset, kv_lens, scale, softcap, top_k,
/// sink, dropout_p, seed, threads, level): with the same ``seed``, the same weights are dropped. A row without any visible key has
/// gradients of zero, and a hidden key gets none. The bits depend neither on the threads nor on the rest of the batch.
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
#[pyfunction]
#[pyo3(
    signature = (q, k, v, dout, **options),
    text_signature = "(q, k, v, dout, *, mask=None, causal=False, scale=None, softcap=None, window=None, q_offset=None, \
        kv_lens=None, dropout_p=0.0, seed=0, bias=None, alibi=None, top_k=None, sink=None, threads=None, level=None)"
)]
pub(crate) fn attention_vjp<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    dout: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyTuple>> {
    fn run<'py, E: Scalar>(
        py: Python<'py>,
        inputs: &Inputs<'py>,
        settings: &Settings<'py>,
        dout: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (gradients, _) = both_passes::<E>(py, inputs, &settings.attention(), dout, false)?;
        let (mut all, sink) = in_order(py, inputs, settings, gradients)?;
        all.extend(sink);
        PyTuple::new(py, all)
    }
    let keywords = Keywords::from_dict("attention_vjp", options)?;
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings, dout))
}

/// What the gradients did, row by row, in the pass that computes them: linear memory. Arguments as for :func:`attention_vjp`.
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
#[pyfunction]
#[pyo3(
    signature = (q, k, v, dout, **options),
    text_signature = "(q, k, v, dout, *, mask=None, causal=False, scale=None, softcap=None, window=None, q_offset=None, \
        kv_lens=None, dropout_p=0.0, seed=0, bias=None, alibi=None, top_k=None, sink=None, threads=None, level=None)"
)]
pub(crate) fn gradient_statistics<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    dout: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(
        py: Python<'py>,
        inputs: &Inputs<'py>,
        attention: &Attention<'_>,
        dout: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (gradients, stats) = both_passes::<E>(py, inputs, attention, dout, true)?;
        let stats = stats.expect("they were asked for");
        let fields = PyDict::new(py);
        field(&fields, "dq_rows", stats.dq_rows)?;
        field(&fields, "dk_rows", stats.dk_rows)?;
        field(&fields, "dv_rows", stats.dv_rows)?;
        field(&fields, "d_scores_rows", stats.d_scores_rows)?;
        fields.set_item("dq_norm", stats.dq)?;
        fields.set_item("dk_norm", stats.dk)?;
        fields.set_item("dv_norm", stats.dv)?;
        field(&fields, "dq", gradients.dq)?;
        field(&fields, "dk", gradients.dk)?;
        field(&fields, "dv", gradients.dv)?;
        result(&CLASS, "GradientStatistics", &fields)
    }
    let keywords = Keywords::from_dict("gradient_statistics", options)?;
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings.attention().bias_gradient(false), dout))
}

/// ``(out, row_max, row_sum)``: a forward pass, and what :func:`_backward` needs of it.
#[pyfunction]
#[pyo3(signature = (q, k, v, **options))]
pub(crate) fn _forward_saved<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyTuple>> {
    fn run<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, attention: &Attention<'_>) -> PyResult<Bound<'py, PyTuple>> {
        let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, values::<E>(inputs)?);
        let (q, k, v) = (q.as_array(), k.as_array(), v.as_array());
        let [batch, heads_q, seq_q, _] = inputs.q_shape();
        room_for::<E>(&[batch, heads_q, seq_q, v.dim().3])?;
        let saved = py.detach(|| attention.forward_saved(q, k, v)).map_err(refused)?;
        (saved.out.into_pyarray(py), saved.row_max.into_pyarray(py), saved.row_sum.into_pyarray(py)).into_pyobject(py)
    }
    let keywords = Keywords::from_dict("_forward_saved", options)?;
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings.attention()))
}

/// ``(dq, dk, dv, gradients of what was added to the scores, d_sink or None)``, given what :func:`_forward_saved` returned.
#[pyfunction]
#[pyo3(signature = (q, k, v, dout, saved, bias_gradient, **options))]
pub(crate) fn _backward<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    dout: &Bound<'py, PyAny>,
    saved: [Bound<'py, PyAny>; 3],
    bias_gradient: bool,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyTuple>> {
    fn run<'py, E: Scalar>(
        py: Python<'py>,
        inputs: &Inputs<'py>,
        settings: &Settings<'py>,
        dout: &Bound<'py, PyAny>,
        saved: [Bound<'py, PyAny>; 3],
        bias_gradient: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let [out, row_max, row_sum] = saved;
        let out = inputs.companion::<E>("out", &out)?;
        let (row_max, row_sum) = (per_row::<E>("row_max", &row_max)?, per_row::<E>("row_sum", &row_sum)?);
        let dout = inputs.companion::<E>("dout", dout)?;
        let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, values::<E>(inputs)?);
        let (q, k, v, dout) = (q.as_array(), k.as_array(), v.as_array(), dout.as_array());
        let saved = SavedView::<E> { out: out.as_array(), row_max: row_max.as_array(), row_sum: row_sum.as_array() };
        room_for_gradients::<E>([q.shape(), k.shape(), v.shape()])?;
        let attention = settings.attention().bias_gradient(bias_gradient);
        let gradients = py.detach(|| attention.backward(q, k, v, saved, dout)).map_err(refused)?;
        let (mut all, sink) = in_order(py, inputs, settings, gradients)?;
        let added = PyTuple::new(py, all.split_off(3))?;
        all.push(added.into_any());
        all.push(sink.unwrap_or_else(|| py.None().into_bound(py)));
        PyTuple::new(py, all)
    }
    let keywords = Keywords::from_dict("_backward", options)?;
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings, dout, saved, bias_gradient))
}

fn values<'py, E: Scalar>(inputs: &Inputs<'py>) -> PyResult<numpy::PyReadonlyArray4<'py, E>> {
    Ok(inputs.v::<E>()?.expect("gradients have values"))
}

/// `MemoryError` where there is no room for dq, dk and dv.
fn room_for_gradients<E: Scalar>(shapes: [&[usize]; 3]) -> PyResult<()> {
    shapes.into_iter().try_for_each(room_for::<E>)
}

/// Forward and backward at once, for those who have no use for `out`.
fn both_passes<'py, E: Scalar>(
    py: Python<'py>,
    inputs: &Inputs<'py>,
    attention: &Attention<'_>,
    dout: &Bound<'py, PyAny>,
    stats: bool,
) -> PyResult<(Gradients<E>, Option<GradientStats>)> {
    let dout = inputs.companion::<E>("dout", dout)?;
    let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, values::<E>(inputs)?);
    let (q, k, v, dout) = (q.as_array(), k.as_array(), v.as_array(), dout.as_array());
    room_for_gradients::<E>([q.shape(), k.shape(), v.shape()])?;
    room_for::<E>(dout.shape())?;
    py.detach(|| {
        let saved = attention.forward_saved(q, k, v)?;
        if stats {
            let (gradients, stats) = attention.backward_with_stats(q, k, v, &saved, dout)?;
            return Ok((gradients, Some(stats)));
        }
        Ok((attention.backward(q, k, v, &saved, dout)?, None))
    })
    .map_err(refused)
}

type Arrays<'py> = Vec<Bound<'py, PyAny>>;

/// dq, dk, dv, then those of the operands that were added to the scores; and, apart, that of the sinks.
fn in_order<'py, E: Scalar>(
    py: Python<'py>,
    inputs: &Inputs<'py>,
    settings: &Settings<'py>,
    gradients: Gradients<E>,
) -> PyResult<(Arrays<'py>, Option<Bound<'py, PyAny>>)> {
    let Gradients { dq, dk, dv, d_biases, d_sink, .. } = gradients;
    let mut all: Arrays<'py> = [dq, dk, dv].into_iter().map(|gradient| gradient.into_pyarray(py).into_any()).collect();
    if let Some(whole) = d_biases.into_iter().next() {
        all.extend(settings.operand_gradients(py, whole, inputs.scores_shape())?);
    }
    Ok((all, d_sink.map(|sink| sink.into_pyarray(py).into_any())))
}

fn per_row<'py, E: Scalar>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray3<'py, E::Real>> {
    let array = arrays::array(name, object)?;
    let typed = array.as_any().cast::<PyArray3<E::Real>>();
    let typed = typed.map_err(|_| PyTypeError::new_err(format!("{name} is not what _forward_saved returned")))?;
    Ok(typed.try_readonly()?)
}
