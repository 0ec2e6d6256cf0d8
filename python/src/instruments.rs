//! What attention did: `statistics`, `heat_map`, `column_sums`, `head_similarity`. None of them makes the whole matrix.

use crate::arguments::{Keywords, Settings, not_negative, refused};
use crate::arrays::{Inputs, Scalar, room_for, with_dtype};
use ndarray::{Array, ArrayView4, Dimension};
use numpy::IntoPyArray;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use regard::{Attention, HeadStats, RowStats, StatsOptions};

/// An object of one of the result classes of the package.
pub(crate) fn result<'py>(cell: &'static PyOnceLock<Py<PyAny>>, class: &str, fields: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    cell.import(fields.py(), "regard._results", class)?.call((), Some(fields))
}

/// Hand an array over to Python, under a name.
pub(crate) fn field<T: numpy::Element, D: Dimension>(fields: &Bound<'_, PyDict>, name: &str, array: Array<T, D>) -> PyResult<()> {
    fields.set_item(name, array.into_pyarray(fields.py()))
}

/// What attention did, row by row, in the pass that computes it: linear memory, no weight matrix.
///
/// q, k, v and the options are those of :func:`attention` (mask, bias, alibi, causal, window, q_offset, kv_lens, scale,
/// softcap, top_k, sink, threads, level). Without v there are statistics only. Returns a :class:`Statistics`: with ``w``
/// the weights of a row, ``i`` the query's position on the key axis and ``j`` the key,
///
/// * ``entropy``: ``-sum(w ln w)``, in nats
/// * ``max_weight``, ``argmax``: the largest weight, and the lowest key that has it (-1: no visible key)
/// * ``sum_of_squares``: ``sum(w ** 2)``; its inverse is an effective number of keys
/// * ``diagonal_mass``, ``previous_token_mass``, ``first_token_mass``: the weight of key ``i``, ``i - 1``, 0
/// * ``local_mass``: the weight of the keys with ``abs(i - j) <= local_window``
/// * ``mean_distance``: ``sum(w * abs(i - j))``
///
/// each ``[batch, heads_q, seq_q]``; ``top_keys`` and ``top_weights`` ``[batch, heads_q, seq_q, top_keys]``, heaviest
/// first; ``heads``, the means over the rows that see any key, ``[batch, heads_q]``; ``out`` and ``lse``.
/// For float16 and bfloat16 they are float32.
///
/// >>> import numpy as np, regard
/// >>> x = np.zeros((1, 1, 4, 8), np.float32)
/// >>> stats = regard.statistics(x, x, x, causal=True)
/// >>> np.exp(stats.entropy[0, 0]).round(3)
/// array([1., 2., 3., 4.], dtype=float32)
/// >>> stats.heads.max_weight.round(3)
/// array([[0.521]])
/// >>> stats
/// Statistics of [1, 1, 4] rows
///   entropy              mean 0.7945  from 0 to 1.386
///   max_weight           mean 0.5208  from 0.25 to 1
///   sum_of_squares       mean 0.5208  from 0.25 to 1
///   diagonal_mass        mean 0.5208  from 0.25 to 1
///   previous_token_mass  mean 0.2708  from 0 to 0.5
///   first_token_mass     mean 0.5208  from 0.25 to 1
///   local_mass           mean 1  from 1 to 1
///   mean_distance        mean 0.75  from 0 to 1.5
#[pyfunction]
#[pyo3(
    signature = (q, k, v=None, *, local_window=3, top_keys=0, **options),
    text_signature = "(q, k, v=None, *, local_window=3, top_keys=0, mask=None, causal=False, scale=None, softcap=None, \
        window=None, q_offset=None, kv_lens=None, bias=None, alibi=None, top_k=None, sink=None, threads=None, level=None)"
)]
pub(crate) fn statistics<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: Option<&Bound<'py, PyAny>>,
    local_window: i64,
    top_keys: i64,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let keywords = Keywords::without_dropout("statistics", options)?;
    let collected =
        StatsOptions { local_window: not_negative("local_window", local_window)?, top_keys: not_negative("top_keys", top_keys)? };
    let inputs = Inputs::new(q, k, v)?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => statistics_as::<E>(py, &inputs, &settings.attention(), collected))
}

fn statistics_as<'py, E: Scalar>(
    py: Python<'py>,
    inputs: &Inputs<'py>,
    attention: &Attention<'_>,
    options: StatsOptions,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.v::<E>()?);
    let (q, k) = (q.as_array(), k.as_array());
    let [batch, heads_q, seq_q, _] = inputs.q_shape();
    let [_, heads_kv, seq_kv, _] = inputs.k_shape();
    let no_values = ArrayView4::from_shape([k.dim().0, heads_kv, seq_kv, 0], &[]).expect("no elements in no memory");
    let values = v.as_ref().map_or(no_values, |v| v.as_array());
    // Nine numbers per row beside the lists of keys, in the library and on their way there.
    room_for::<[f64; 24]>(&[batch, heads_q, seq_q, options.top_keys + 1])?;
    room_for::<E>(&[batch, heads_q, seq_q, values.dim().3])?;
    let (forward, rows, heads) = py
        .detach(|| {
            let (forward, rows) = attention.forward_with_stats(q, k, values, options)?;
            let heads = rows.heads();
            Ok((forward, rows, heads))
        })
        .map_err(refused)?;
    let fields = row_fields(py, rows)?;
    fields.set_item("heads", head_fields(py, heads)?)?;
    fields.set_item("out", v.is_some().then(|| forward.out.into_pyarray(py)))?;
    field(&fields, "lse", forward.lse)?;
    result(&CLASS, "Statistics", &fields)
}

fn row_fields<'py, T: numpy::Element>(py: Python<'py>, rows: RowStats<T>) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    field(&fields, "entropy", rows.entropy)?;
    field(&fields, "max_weight", rows.max_weight)?;
    field(&fields, "argmax", rows.argmax)?;
    field(&fields, "sum_of_squares", rows.sum_of_squares)?;
    field(&fields, "diagonal_mass", rows.diagonal_mass)?;
    field(&fields, "previous_token_mass", rows.previous_token_mass)?;
    field(&fields, "first_token_mass", rows.first_token_mass)?;
    field(&fields, "local_mass", rows.local_mass)?;
    field(&fields, "mean_distance", rows.mean_distance)?;
    field(&fields, "top_keys", rows.top_keys)?;
    field(&fields, "top_weights", rows.top_weights)?;
    Ok(fields)
}

fn head_fields(py: Python<'_>, heads: HeadStats) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let fields = PyDict::new(py);
    field(&fields, "entropy", heads.entropy)?;
    field(&fields, "max_weight", heads.max_weight)?;
    field(&fields, "sum_of_squares", heads.sum_of_squares)?;
    field(&fields, "diagonal_mass", heads.diagonal_mass)?;
    field(&fields, "previous_token_mass", heads.previous_token_mass)?;
    field(&fields, "first_token_mass", heads.first_token_mass)?;
    field(&fields, "local_mass", heads.local_mass)?;
    field(&fields, "mean_distance", heads.mean_distance)?;
    result(&CLASS, "HeadStatistics", &fields)
}

/// The weight matrix at the size of a picture: ``mean`` and ``max`` of the weights over ``rows`` x ``cols`` cells (never
/// more than there are queries and keys), each ``[batch, heads_q, rows, cols]``. Hidden pairs count as 0. The matrix
/// itself is never in memory. Options as for :func:`attention`.
///
/// >>> import numpy as np, regard
/// >>> x = np.zeros((1, 1, 8, 4), np.float32)
/// >>> picture = regard.heat_map(x, x, rows=2, cols=2, causal=True)
/// >>> picture.max.round(3)[0, 0]
/// array([[1. , 0. ],
///        [0.2, 0.2]], dtype=float32)
#[pyfunction]
#[pyo3(
    signature = (q, k, *, rows=512, cols=512, **options),
    text_signature = "(q, k, *, rows=512, cols=512, mask=None, causal=False, scale=None, softcap=None, window=None, \
        q_offset=None, kv_lens=None, bias=None, alibi=None, top_k=None, sink=None, threads=None, level=None)"
)]
pub(crate) fn heat_map<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    rows: i64,
    cols: i64,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let keywords = Keywords::without_dropout("heat_map", options)?;
    let (rows, cols) = (not_negative("rows", rows)?, not_negative("cols", cols)?);
    let inputs = Inputs::new(q, k, None)?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => heat_map_as::<E>(py, &inputs, &settings.attention(), rows, cols))
}

fn heat_map_as<'py, E: Scalar>(
    py: Python<'py>,
    inputs: &Inputs<'py>,
    attention: &Attention<'_>,
    rows: usize,
    cols: usize,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let [batch, heads_q, seq_q, seq_kv] = inputs.scores_shape();
    room_for::<[f64; 4]>(&[batch, heads_q, rows.min(seq_q), cols.min(seq_kv)])?;
    let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
    let (q, k) = (q.as_array(), k.as_array());
    let picture = py.detach(|| attention.heat_map(q, k, rows, cols)).map_err(refused)?;
    let fields = PyDict::new(py);
    field(&fields, "mean", picture.mean)?;
    field(&fields, "max", picture.max)?;
    result(&CLASS, "HeatMap", &fields)
}

/// How much attention each key gets: the weights summed over the queries, ``[batch, heads_q, seq_kv]``.
/// Options as for :func:`attention`.
///
/// >>> import numpy as np, regard
/// >>> x = np.zeros((1, 1, 2, 4), np.float32)
/// >>> regard.column_sums(x, x, causal=True)[0, 0]
/// array([1.5, 0.5], dtype=float32)
#[pyfunction]
#[pyo3(
    signature = (q, k, **options),
    text_signature = "(q, k, *, mask=None, causal=False, scale=None, softcap=None, window=None, q_offset=None, \
        kv_lens=None, bias=None, alibi=None, top_k=None, sink=None, threads=None, level=None)"
)]
pub(crate) fn column_sums<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, attention: &Attention<'_>) -> PyResult<Bound<'py, PyAny>> {
        let [batch, heads_q, _, seq_kv] = inputs.scores_shape();
        room_for::<[f64; 2]>(&[batch, heads_q, seq_kv])?;
        let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
        let (q, k) = (q.as_array(), k.as_array());
        let sums = py.detach(|| attention.column_sums(q, k)).map_err(refused)?;
        Ok(sums.into_pyarray(py).into_any())
    }
    let keywords = Keywords::without_dropout("column_sums", options)?;
    let inputs = Inputs::new(q, k, None)?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings.attention()))
}

/// How alike the heads attend, for every pair of them, ``[batch, heads_q, heads_q]``: ``centred_cosine``, the
/// correlation of their weights over the pairs that either may see (1 for equal maps, about 0 for unrelated ones), and
/// ``jensen_shannon``, the divergence of their rows in nats, averaged (0 for equal, ln 2 for disjoint ones).
/// Options as for :func:`attention`.
///
/// >>> import numpy as np, regard
/// >>> x = np.random.default_rng(0).standard_normal((1, 1, 30, 8)).repeat(2, axis=1)
/// >>> alike = regard.head_similarity(x, x, causal=True)
/// >>> alike.centred_cosine.round(6)[0]
/// array([[1., 1.],
///        [1., 1.]])
/// >>> bool(np.allclose(alike.jensen_shannon, 0))
/// True
#[pyfunction]
#[pyo3(
    signature = (q, k, **options),
    text_signature = "(q, k, *, mask=None, causal=False, scale=None, softcap=None, window=None, q_offset=None, \
        kv_lens=None, bias=None, alibi=None, top_k=None, sink=None, threads=None, level=None)"
)]
pub(crate) fn head_similarity<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, attention: &Attention<'_>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let [batch, heads_q, ..] = inputs.q_shape();
        room_for::<[f64; 4]>(&[batch, heads_q, heads_q])?;
        let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
        let (q, k) = (q.as_array(), k.as_array());
        let alike = py.detach(|| attention.head_similarity(q, k)).map_err(refused)?;
        let fields = PyDict::new(py);
        field(&fields, "centred_cosine", alike.centred_cosine)?;
        field(&fields, "jensen_shannon", alike.jensen_shannon)?;
        result(&CLASS, "HeadSimilarity", &fields)
    }
    let keywords = Keywords::without_dropout("head_similarity", options)?;
    let inputs = Inputs::new(q, k, None)?;
    let settings = Settings::new(&keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings.attention()))
}
