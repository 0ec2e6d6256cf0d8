//! `regard.attention` and `regard.merge`.

use crate::arguments::{Keywords, Settings, flag, refused, text};
use crate::arrays::{self, Inputs, Scalar, room_for, with_dtype, zeros};
use ndarray::{Array4, Ix3, Ix4};
use numpy::{IntoPyArray, PyArray3, PyArrayMethods, PyReadonlyArray3};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use regard::{Attention, Real, Stage};

/// Exact scaled dot-product attention: ``softmax(q k^T * scale + bias, where the masks allow) v``.
///
/// q is ``[batch, heads_q, seq_q, head_dim]``, k ``[batch, heads_kv, seq_kv, head_dim]`` and
/// v ``[batch, heads_kv, seq_kv, value_dim]``, all float32, float64, float16 or bfloat16 (ml_dtypes), with any strides;
/// they are read in place. Query head ``h`` reads key/value head ``h // (heads_q // heads_kv)``.
///
/// What a query may attend to. All of it must hold:
///
/// * ``mask``: bool (True: attend), or float (added to the scores; ``-inf`` hides), broadcastable to
///   ``[batch, heads_q, seq_q, seq_kv]``.
/// * ``causal``: False, True or ``'top_left'`` (key ``j`` is visible to query ``i`` if ``j <= i + q_offset``), or
///   ``'bottom_right'`` (the last query stands at the last key).
/// * ``window``: ``(left, right)``, how many neighbours on each side are visible; None (or -1): all.
/// * ``q_offset``: where query 0 stands on the key axis, an int or one per batch entry; serves causal, window and alibi.
/// * ``kv_lens``: one int per batch entry; only the first so many keys exist.
/// * ``top_k``: only the so many highest scores of each query count.
///
/// What the scores are:
///
/// * ``scale``: None is ``1 / sqrt(head_dim)``.
/// * ``softcap``: ``cap * tanh(score / cap)``, before bias and masks; None or 0: off.
/// * ``bias``: float, added; broadcast as ``mask`` is.
/// * ``alibi``: slopes, one per query head, or True for :func:`alibi_slopes`; adds ``-slope * distance``.
/// * ``sink``: one more logit per query head, which takes part in the softmax and has no value.
///
/// What happens to the weights: ``dropout_p`` is the probability that a weight is dropped after the softmax; the others are multiplied
/// with ``1 / (1 - dropout_p)``. Which ones is a function of ``seed`` (an int from 0 on) and of the place of the weight alone: the same
/// here, in :func:`attention_vjp`, and on any number of threads.
///
/// What comes back: ``out`` ``[batch, heads_q, seq_q, value_dim]``, alone or first in a tuple with what was asked for:
///
/// * ``return_weights``: the weights that the values are summed with, ``[batch, heads_q, seq_q, seq_kv]``.
/// * ``return_scores``: the scores before it: ``'raw'`` (scaled), ``'softcap'`` or ``'bias'`` (hidden keys: ``-inf``).
/// * ``return_lse``: ``ln(sum(exp(scores)))`` of each row, ``[batch, heads_q, seq_q]``, as the last element.
///
/// How it is computed, without any effect on what: ``threads``, ``level`` (``'portable'``, ``'avx2'``, ``'avx512'``).
/// A row without any visible key gives exactly zero. A hidden key never contributes, even where it is NaN. The bits of
/// the result depend neither on the threads nor on the rest of the batch.
///
/// >>> import numpy as np, regard
/// >>> q = k = np.zeros((1, 1, 4, 8), np.float32)
/// >>> v = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
/// >>> regard.attention(q, k, v)[0, 0, :, 0]
/// array([1.5, 1.5, 1.5, 1.5], dtype=float32)
/// >>> regard.attention(q, k, v, causal=True)[0, 0, :, 0]
/// array([0. , 0.5, 1. , 1.5], dtype=float32)
/// >>> out, weights = regard.attention(q, k, v, window=(1, 0), return_weights=True)
/// >>> weights[0, 0]
/// array([[1. , 0. , 0. , 0. ],
///        [0.5, 0.5, 0. , 0. ],
///        [0. , 0.5, 0.5, 0. ],
///        [0. , 0. , 0.5, 0.5]], dtype=float32)
#[pyfunction]
#[pyo3(
    signature = (q, k, v, *, mask=None, causal=None, scale=None, softcap=None, window=None, q_offset=None, kv_lens=None,
        dropout_p=None, seed=None, return_weights=None, return_scores=None, bias=None, alibi=None, top_k=None, sink=None,
        return_lse=None, threads=None, level=None),
    text_signature = "(q, k, v, *, mask=None, causal=False, scale=None, softcap=None, window=None, q_offset=None, \
        kv_lens=None, dropout_p=0.0, seed=0, return_weights=False, return_scores=None, bias=None, alibi=None, \
        top_k=None, sink=None, return_lse=False, threads=None, level=None)"
)]
pub(crate) fn attention<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    mask: Option<Bound<'py, PyAny>>,
    causal: Option<Bound<'py, PyAny>>,
    scale: Option<Bound<'py, PyAny>>,
    softcap: Option<Bound<'py, PyAny>>,
    window: Option<Bound<'py, PyAny>>,
    q_offset: Option<Bound<'py, PyAny>>,
    kv_lens: Option<Bound<'py, PyAny>>,
    dropout_p: Option<Bound<'py, PyAny>>,
    seed: Option<Bound<'py, PyAny>>,
    return_weights: Option<Bound<'py, PyAny>>,
    return_scores: Option<Bound<'py, PyAny>>,
    bias: Option<Bound<'py, PyAny>>,
    alibi: Option<Bound<'py, PyAny>>,
    top_k: Option<Bound<'py, PyAny>>,
    sink: Option<Bound<'py, PyAny>>,
    return_lse: Option<Bound<'py, PyAny>>,
    threads: Option<Bound<'py, PyAny>>,
    level: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let wanted = Wanted {
        matrix: Matrix::asked_for(return_weights.as_ref(), return_scores.as_ref())?,
        lse: flag("return_lse", return_lse.as_ref())?,
    };
    let keywords =
        Keywords { mask, bias, alibi, causal, window, q_offset, kv_lens, scale, softcap, top_k, sink, dropout_p, seed, threads, level };
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => forward::<E>(py, &inputs, &settings.attention(), wanted))
}

/// What to return beside `out`.
#[derive(Clone, Copy)]
struct Wanted {
    matrix: Option<Matrix>,
    lse: bool,
}

#[derive(Clone, Copy)]
enum Matrix {
    Weights,
    Scores(Stage),
}

impl Matrix {
    fn asked_for(weights: Option<&Bound<'_, PyAny>>, scores: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Self>> {
        let weights = flag("return_weights", weights)?;
        let Some(scores) = scores else { return Ok(weights.then_some(Self::Weights)) };
        let stage = match text("return_scores", scores)?.as_str() {
            "raw" => Stage::Raw,
            "softcap" => Stage::Softcap,
            "bias" => Stage::Bias,
            other => {
                let text = format!("return_scores is '{other}'; it must be 'raw', 'softcap' or 'bias'");
                return Err(PyValueError::new_err(text));
            }
        };
        if weights {
            return Err(PyValueError::new_err("return_weights and return_scores exclude each other; ask for one at a time"));
        }
        Ok(Some(Self::Scores(stage)))
    }

    /// In the element type of q.
    fn compute<E: Scalar>(self, inputs: &Inputs<'_>, attention: &Attention<'_>, py: Python<'_>) -> PyResult<Array4<E>> {
        let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
        let (q, k) = (q.as_array(), k.as_array());
        let matrix = py.detach(|| {
            let matrix = match self {
                Self::Weights => attention.weights(q, k),
                Self::Scores(stage) => attention.scores(q, k, stage),
            };
            matrix.map(|matrix| matrix.mapv_into_any(E::from_real))
        });
        matrix.map_err(refused)
    }
}

fn forward<'py, E: Scalar>(
    py: Python<'py>,
    inputs: &Inputs<'py>,
    attention: &Attention<'_>,
    wanted: Wanted,
) -> PyResult<Bound<'py, PyAny>> {
    let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
    let v = inputs.v::<E>()?.expect("attention has values");
    let (q_view, k_view, v_view) = (q.as_array(), k.as_array(), v.as_array());
    let [batch, heads_q, seq_q, _] = inputs.q_shape();
    if wanted.matrix.is_some() {
        room_for::<(E::Real, E)>(&inputs.scores_shape())?;
    }
    let out = zeros::<E, Ix4>(py, [batch, heads_q, seq_q, v_view.dim().3])?;
    let lse = if wanted.lse { Some(zeros::<E::Real, Ix3>(py, [batch, heads_q, seq_q])?) } else { None };
    {
        let mut out = out.try_readwrite()?;
        let mut lse = lse.as_ref().map(|lse| lse.try_readwrite()).transpose()?;
        let out = out.as_array_mut();
        let lse = lse.as_mut().map(|lse| {
            let mut lse = lse.as_array_mut();
            lse.fill(E::Real::MASKED);
            lse
        });
        py.detach(|| attention.forward_into(q_view, k_view, v_view, out, lse)).map_err(refused)?;
    }
    let matrix = wanted.matrix.map(|matrix| matrix.compute::<E>(inputs, attention, py)).transpose()?;
    let out = out.into_any();
    let matrix = matrix.map(|matrix| matrix.into_pyarray(py).into_any());
    let lse = lse.map(Bound::into_any);
    match (matrix, lse) {
        (None, None) => Ok(out),
        (Some(matrix), None) => (out, matrix).into_bound_py_any(py),
        (None, Some(lse)) => (out, lse).into_bound_py_any(py),
        (Some(matrix), Some(lse)) => (out, matrix, lse).into_bound_py_any(py),
    }
}

/// Join attention over two disjoint sets of keys, each given by its ``out`` and its ``lse``; returns ``(out, lse)``.
///
/// Rows that saw nothing (``lse = -inf``) give way to the other side; two of them stay empty.
///
/// >>> import numpy as np, regard
/// >>> rng = np.random.default_rng(0)
/// >>> q, k, v = rng.standard_normal((3, 1, 2, 50, 16))
/// >>> whole = regard.attention(q, k, v)
/// >>> a = regard.attention(q, k[:, :, :30], v[:, :, :30], return_lse=True)
/// >>> b = regard.attention(q, k[:, :, 30:], v[:, :, 30:], return_lse=True)
/// >>> out, lse = regard.merge(*a, *b)
/// >>> bool(np.allclose(out, whole))
/// True
#[pyfunction]
pub(crate) fn merge<'py>(
    py: Python<'py>,
    out_a: &Bound<'py, PyAny>,
    lse_a: &Bound<'py, PyAny>,
    out_b: &Bound<'py, PyAny>,
    lse_b: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let outs = Inputs::named(("out_a", out_a), ("out_b", out_b), None)?;
    with_dtype!(outs.dtype, E => merge_as::<E>(py, &outs, lse_a, lse_b))
}

fn merge_as<'py, E: Scalar>(
    py: Python<'py>,
    outs: &Inputs<'py>,
    lse_a: &Bound<'py, PyAny>,
    lse_b: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyTuple>> {
    let (out_a, out_b) = (outs.q::<E>()?, outs.k::<E>()?);
    let (lse_a, lse_b) = (lse::<E>("lse_a", lse_a)?, lse::<E>("lse_b", lse_b)?);
    room_for::<[E::Real; 4]>(&outs.q_shape())?;
    let (out_a, out_b, lse_a, lse_b) = (out_a.as_array(), out_b.as_array(), lse_a.as_array(), lse_b.as_array());
    let merged = py.detach(|| {
        let (wide_a, wide_b) = (out_a.mapv(E::to_real), out_b.mapv(E::to_real));
        let (out, lse) = regard::merge(wide_a.view(), lse_a, wide_b.view(), lse_b)?;
        Ok((out.mapv_into_any(E::from_real), lse))
    });
    let (out, lse) = merged.map_err(refused)?;
    (out.into_pyarray(py), lse.into_pyarray(py)).into_pyobject(py)
}

fn lse<'py, E: Scalar>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray3<'py, E::Real>> {
    let array = arrays::array(name, object)?;
    let typed = array.as_any().cast::<PyArray3<E::Real>>().map_err(|_| {
        let dtype = if size_of::<E::Real>() == 8 { "float64" } else { "float32" };
        PyValueError::new_err(format!("{name} must be the {dtype} array [batch, heads_q, seq_q] that return_lse gives"))
    })?;
    Ok(typed.try_readonly()?)
}
