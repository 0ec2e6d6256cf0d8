//! `regard.attention`, `regard.weights` and `regard.merge`.

use crate::arrays::{self, Inputs, PerRow, Scalar, with_dtype};
use crate::instruments::{rectangle, states_given};
use crate::interrupt;
use crate::options::{Given, Keywords, function};
use crate::parse::{refused, text};
use crate::settings::Settings;
use ndarray::{Array4, ArrayView4};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use regard::{Attention, Rectangle, Stage};

function! {
    /// Exact scaled dot-product attention: ``softmax(q k^T * scale + bias, where the masks allow) v``.
    ///
    /// q is ``[batch, heads_q, seq_q, head_dim]``, k ``[batch, heads_kv, seq_kv, head_dim]`` and
    /// v ``[batch, heads_kv, seq_kv, value_dim]``, all float32, float64, float16 or bfloat16 (ml_dtypes), with any strides;
    /// they are read in place. The batch, or batch and heads, may be left out of all three, and then of the results. Query head ``h`` reads
    /// key/value head ``h // (heads_q // heads_kv)``.
    ///
    /// Which keys a query attends to. All conditions must hold:
    ///
    /// * ``mask``: bool (True: attend), or float (added to the scores; ``-inf`` hides), broadcastable to
    ///   ``[batch, heads_q, seq_q, seq_kv]``; or a :class:`Mask`, which describes it.
    /// * ``causal``: False, True or ``'top_left'`` (key ``j`` is visible to query ``i`` if ``j <= i + q_offset``), or
    ///   ``'bottom_right'`` (the last query stands at the last key).
    /// * ``window``: ``(left, right)``, how many neighbours on each side are visible; None (or -1): all.
    /// * ``q_offset``: where query 0 stands on the key axis, an int or one per batch entry; serves causal, window and alibi.
    /// * ``kv_lens``: one int per batch entry; the number of keys that exist.
    /// * ``top_k``: only the ``top_k`` highest scores of each query count.
    ///
    /// Scores:
    ///
    /// * ``scale``: a factor; None or True is ``1 / sqrt(head_dim)``, False is no scale.
    /// * ``softcap``: ``cap * tanh(score / cap)``, before bias and masks; None or 0: off.
    /// * ``bias``: float, added; broadcast as ``mask`` is.
    /// * ``alibi``: slopes, one per query head, or True for :func:`alibi_slopes`; adds ``-slope * distance``.
    /// * ``relative``: float32 ``[heads_q, 2 r + 1]`` (or without the heads), a number per distance: adds
    ///   ``relative[h, clip(j - i, -r, r) + r]``.
    /// * ``sink``: one more logit per query head, which takes part in the softmax and has no value.
    ///
    /// Dropout: ``dropout_p`` is the probability that a weight is dropped after the softmax; the others are multiplied
    /// with ``1 / (1 - dropout_p)``. Which ones is a function of ``seed`` (an int from 0 on, required) and of the position of the weight:
    /// the same here, in :func:`attention_vjp`, and on any number of threads. The same seed drops the same weights in every call.
    ///
    /// Returns ``out`` ``[batch, heads_q, seq_q, value_dim]``, alone or first in a tuple with the requested results:
    ///
    /// * ``return_weights``: the weights that the values are summed with, ``[batch, heads_q, seq_q, seq_kv]``.
    /// * ``return_scores``: the scores before it: ``'raw'`` (scaled), ``'softcap'`` or ``'bias'`` (hidden keys: ``-inf``).
    /// * ``return_lse``: ``ln(sum(exp(scores)))`` of each row, ``[batch, heads_q, seq_q]``, as the last element.
    ///
    /// Execution: ``threads``, without any effect on the result, and ``level`` (``'portable'``, ``'avx2'``, ``'avx512'``,
    /// ``'avx512bf16'``, ``'amx'``), whose bits are its own for ``'portable'``, and for the last two where the elements are bfloat16. A row
    /// without any visible key gives exactly zero. A hidden key never contributes, even where it is NaN. The bits of the result depend
    /// neither on the threads nor on the rest of the batch.
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
    fn attention(q, k, v; return_weights: bool = false, return_scores: Given<'py> = None, return_lse: bool = false) => run
}

fn run<'py>(
    py: Python<'py>,
    [q, k, v]: [&Bound<'py, PyAny>; 3],
    return_weights: bool,
    return_scores: Option<Bound<'py, PyAny>>,
    return_lse: bool,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let wanted = Wanted { matrix: Matrix::requested(return_weights, return_scores.as_ref())?, lse: return_lse };
    arrays::no_gradient([("q", q), ("k", k), ("v", v)])?;
    let inputs = Inputs::new(q, k, Some(v))?;
    let settings = Settings::new(keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => forward::<E>(py, &inputs, &settings, wanted))
}

/// Results besides `out`.
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
    fn requested(weights: bool, scores: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Self>> {
        let Some(scores) = scores else { return Ok(weights.then_some(Self::Weights)) };
        let stage = match text("return_scores", scores)?.as_str() {
            "raw" => Stage::Raw,
            "softcap" => Stage::Softcap,
            "bias" => Stage::Masked,
            other => {
                let text = format!("return_scores is '{other}'; it must be 'raw', 'softcap' or 'bias'");
                return Err(PyValueError::new_err(text));
            }
        };
        if weights {
            return Err(PyValueError::new_err("return_weights and return_scores exclude each other; request one of them"));
        }
        Ok(Some(Self::Scores(stage)))
    }

    /// In the element type of q.
    fn compute<E: Scalar>(self, attention: &Attention<'_>, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>) -> regard::Result<Array4<E>> {
        match self {
            Self::Weights => arrays::rounded::<E>("weights", attention.weights(q, k)?),
            Self::Scores(stage) => arrays::rounded::<E>("scores", attention.scores(q, k, stage)?),
        }
    }
}

fn forward<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, settings: &Settings<'py>, wanted: Wanted) -> PyResult<Bound<'py, PyAny>> {
    let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.values::<E>()?);
    let attention = settings.attention();
    let (q, k, v) = (q.view(), k.view(), v.view());
    let (forward, matrix) = interrupt::run(py, settings, inputs.work(), || {
        let forward = attention.forward(q, k, v)?;
        Ok((forward, wanted.matrix.map(|matrix| matrix.compute::<E>(&attention, q, k)).transpose()?))
    })?;
    let out = inputs.layout.give(py, forward.out);
    let matrix = matrix.map(|matrix| inputs.layout.give(py, matrix));
    let lse = wanted.lse.then(|| inputs.layout.give(py, forward.lse));
    match (matrix, lse) {
        (None, None) => Ok(out),
        (Some(matrix), None) => (out, matrix).into_bound_py_any(py),
        (None, Some(lse)) => (out, lse).into_bound_py_any(py),
        (Some(matrix), Some(lse)) => (out, matrix, lse).into_bound_py_any(py),
    }
}

function! {
    /// The weights that :func:`attention` sums the values with, ``[batch, heads_q, seq_q, seq_kv]``, or a part of them.
    ///
    /// ``region`` is ``(queries, keys)``, each a slice or a pair ``(start, stop)``: the weights of these only, at the cost of these, if
    /// ``states`` gives the softmax denominators of the rows (see :func:`row_states`). Options as for :func:`attention`.
    ///
    /// >>> import numpy as np, regard
    /// >>> x = np.zeros((1, 1, 1000, 8), np.float32)
    /// >>> states = regard.row_states(x, x, causal=True)
    /// >>> regard.weights(x, x, causal=True, states=states, region=((1, 3), slice(0, 4)))[0, 0].round(2)
    /// array([[0.5 , 0.5 , 0.  , 0.  ],
    ///        [0.33, 0.33, 0.33, 0.  ]], dtype=float32)
    fn weights(q, k; region: Given<'py> = None, states: Given<'py> = None) => run_weights
}

fn run_weights<'py>(
    py: Python<'py>,
    [q, k]: [&Bound<'py, PyAny>; 2],
    region: Option<Bound<'py, PyAny>>,
    states: Option<Bound<'py, PyAny>>,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    fn of<'py, E: Scalar>(
        py: Python<'py>,
        inputs: &Inputs<'py>,
        settings: &Settings<'py>,
        region: Option<Rectangle>,
        states: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let states = states.map(|states| states_given::<E>(states, inputs.layout)).transpose()?;
        let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
        let (q, k, attention) = (q.view(), k.view(), settings.attention());
        let [_, _, seq_q, seq_kv] = inputs.scores_shape();
        let region = region.unwrap_or(Rectangle { rows: 0..seq_q, keys: 0..seq_kv });
        let weights = interrupt::run(py, settings, inputs.work(), || {
            let states = states.map_or_else(|| attention.row_states(q, k), Ok)?;
            arrays::rounded::<E>("weights", attention.weights_of(q, k, &states, region)?)
        })?;
        Ok(inputs.layout.give(py, weights))
    }
    let inputs = Inputs::new(q, k, None)?;
    let settings = Settings::new(keywords, &inputs)?;
    let region = region.map(|region| rectangle(&region, inputs.scores_shape())).transpose()?;
    with_dtype!(inputs.dtype, E => of::<E>(py, &inputs, &settings, region, states.as_ref()))
}

/// Join attention over two disjoint sets of keys, each given by its ``out`` and its ``lse``; returns ``(out, lse)``.
///
/// A row without visible keys (``lse = -inf``) takes the values of the other side; if both are empty, the row stays empty.
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
) -> PyResult<Bound<'py, PyAny>> {
    let outs = Inputs::named(("out_a", out_a), ("out_b", out_b), None)?;
    with_dtype!(outs.dtype, E => merge_as::<E>(py, &outs, lse_a, lse_b))
}

fn merge_as<'py, E: Scalar>(
    py: Python<'py>,
    outs: &Inputs<'py>,
    lse_a: &Bound<'py, PyAny>,
    lse_b: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let (out_a, out_b) = (outs.q::<E>()?, outs.k::<E>()?);
    let lse = |name, lse| PerRow::<E::Real>::new(name, "return_lse", lse, outs.layout);
    let (lse_a, lse_b) = (lse("lse_a", lse_a)?, lse("lse_b", lse_b)?);
    let (out_a, out_b, lse_a, lse_b) = (out_a.view(), out_b.view(), lse_a.view(), lse_b.view());
    let merged = py.detach(|| {
        let (wide_a, wide_b) = (arrays::widened::<E>("out_a", out_a)?, arrays::widened::<E>("out_b", out_b)?);
        let (out, lse) = regard::merge(wide_a.view(), lse_a, wide_b.view(), lse_b)?;
        Ok((arrays::rounded::<E>("out", out)?, lse))
    });
    let (out, lse) = merged.map_err(refused)?;
    (outs.layout.give(py, out), outs.layout.give(py, lse)).into_bound_py_any(py)
}
