//! Instruments: `statistics`, `row_states`, `heat_map`, `column_sums`, `head_similarity`. All in linear memory.

use crate::arrays::{Inputs, Layout, PerRow, Scalar, with_dtype};
use crate::interrupt;
use crate::options::{Given, Keywords, function_without_dropout};
use crate::parse::{count, not_negative, pair, wrong_type};
use crate::settings::Settings;
use ndarray::{Array, ArrayView4, Dimension};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PySlice};
use regard::{HeadStats, Rectangle, RowStats, SoftmaxDenominators, StatsOptions};
use std::ops::Range;

/// An object of one of the result classes of the package.
pub(crate) fn result<'py>(cell: &'static PyOnceLock<Py<PyAny>>, class: &str, fields: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    cell.import(fields.py(), "regard._results", class)?.call((), Some(fields))
}

/// Hand an array over to Python, under a name.
pub(crate) fn field<T: numpy::Element, D: Dimension>(
    fields: &Bound<'_, PyDict>,
    layout: Layout,
    name: &str,
    array: Array<T, D>,
) -> PyResult<()> {
    fields.set_item(name, layout.give(fields.py(), array))
}

function_without_dropout! {
    /// Statistics of the weights, row by row, in the pass that computes attention: linear memory, no weight matrix.
    ///
    /// q, k, v and the options are those of :func:`attention`, dropout apart. Without v there are statistics only. Returns a
    /// :class:`Statistics`: with ``w`` the weights of a row, ``i`` the query's position on the key axis and ``j`` the key,
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
    fn statistics(q, k [v]; local_window: i64 = 3, top_keys: i64 = 0) => run_statistics
}

fn run_statistics<'py>(
    py: Python<'py>,
    [q, k]: [&Bound<'py, PyAny>; 2],
    v: Option<&Bound<'py, PyAny>>,
    local_window: i64,
    top_keys: i64,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let collected =
        StatsOptions { local_window: not_negative("local_window", local_window)?, top_keys: not_negative("top_keys", top_keys)? };
    let inputs = Inputs::new(q, k, v)?;
    let settings = Settings::new(keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => statistics_as::<E>(py, &inputs, &settings, collected))
}

fn statistics_as<'py, E: Scalar>(
    py: Python<'py>,
    inputs: &Inputs<'py>,
    settings: &Settings<'py>,
    options: StatsOptions,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (q, k, v) = (inputs.q::<E>()?, inputs.k::<E>()?, inputs.v::<E>()?);
    let (q, k, layout, attention) = (q.view(), k.view(), inputs.layout, settings.attention());
    let (batch, heads_kv, seq_kv, _) = k.dim();
    let no_values = ArrayView4::from_shape([batch, heads_kv, seq_kv, 0], &[]).expect("no elements in no memory");
    let values = v.as_ref().map_or(no_values, |v| v.view());
    let (forward, rows, heads) = interrupt::run(py, settings, inputs.work(), || {
        let (forward, rows) = attention.forward_with_stats(q, k, values, options)?;
        let heads = rows.heads();
        Ok((forward, rows, heads))
    })?;
    let fields = row_fields(py, layout, rows)?;
    fields.set_item("heads", head_fields(py, layout, heads)?)?;
    fields.set_item("out", v.is_some().then(|| layout.give(py, forward.out)))?;
    field(&fields, layout, "lse", forward.lse)?;
    result(&CLASS, "Statistics", &fields)
}

pub(crate) fn row_fields<'py, T: numpy::Element>(py: Python<'py>, layout: Layout, rows: RowStats<T>) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    field(&fields, layout, "entropy", rows.entropy)?;
    field(&fields, layout, "max_weight", rows.max_weight)?;
    field(&fields, layout, "argmax", rows.argmax)?;
    field(&fields, layout, "sum_of_squares", rows.sum_of_squares)?;
    field(&fields, layout, "diagonal_mass", rows.diagonal_mass)?;
    field(&fields, layout, "previous_token_mass", rows.previous_token_mass)?;
    field(&fields, layout, "first_token_mass", rows.first_token_mass)?;
    field(&fields, layout, "local_mass", rows.local_mass)?;
    field(&fields, layout, "mean_distance", rows.mean_distance)?;
    field(&fields, layout, "top_keys", rows.top_keys)?;
    field(&fields, layout, "top_weights", rows.top_weights)?;
    Ok(fields)
}

pub(crate) fn head_fields(py: Python<'_>, layout: Layout, heads: HeadStats) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let fields = PyDict::new(py);
    field(&fields, layout, "entropy", heads.entropy)?;
    field(&fields, layout, "max_weight", heads.max_weight)?;
    field(&fields, layout, "sum_of_squares", heads.sum_of_squares)?;
    field(&fields, layout, "diagonal_mass", heads.diagonal_mass)?;
    field(&fields, layout, "previous_token_mass", heads.previous_token_mass)?;
    field(&fields, layout, "first_token_mass", heads.first_token_mass)?;
    field(&fields, layout, "local_mass", heads.local_mass)?;
    field(&fields, layout, "mean_distance", heads.mean_distance)?;
    result(&CLASS, "HeadStatistics", &fields)
}

/// A result of `row_states`, or an object with the same two arrays.
pub(crate) fn states_given<E: Scalar>(object: &Bound<'_, PyAny>, layout: Layout) -> PyResult<SoftmaxDenominators<E::Real>> {
    let part = |name: &str| {
        let array = object.getattr(name).map_err(|_| wrong_type("states", "a result of row_states", object))?;
        Ok::<_, PyErr>(PerRow::<E::Real>::new(name, "row_states", &array, layout)?.view().to_owned())
    };
    Ok(SoftmaxDenominators { row_max: part("row_max")?, row_sum: part("row_sum")? })
}

/// Queries and keys, each a slice or a pair.
pub(crate) fn rectangle(object: &Bound<'_, PyAny>, [_, _, seq_q, seq_kv]: [usize; 4]) -> PyResult<Rectangle> {
    let [rows, keys] = pair("region", "(queries, keys), each a slice or (start, stop)", object)?;
    Ok(Rectangle { rows: range("queries of region", &rows, seq_q)?, keys: range("keys of region", &keys, seq_kv)? })
}

fn range(name: &str, object: &Bound<'_, PyAny>, len: usize) -> PyResult<Range<usize>> {
    if let Ok(slice) = object.cast::<PySlice>() {
        let slice = slice.indices(isize::try_from(len).unwrap_or(isize::MAX))?;
        if slice.step != 1 {
            return Err(PyValueError::new_err(format!("{name} is {object}; its step must be 1")));
        }
        return Ok(slice.start as usize..slice.stop.max(slice.start) as usize);
    }
    let [start, stop] = pair(name, "a slice or (start, stop)", object)?;
    Ok(count(name, &start)?..count(name, &stop)?)
}

function_without_dropout! {
    /// Softmax maximum and denominator of each row: ``row_max`` and ``row_sum``, each ``[batch, heads_q, seq_q]``; a weight is
    /// ``exp(score - row_max) / row_sum``. With it :func:`weights` and :func:`heat_map` of a region cost that region only.
    /// Options as for :func:`attention`.
    ///
    /// >>> import numpy as np, regard
    /// >>> x = np.zeros((1, 1, 3, 4), np.float32)
    /// >>> regard.row_states(x, x, causal=True).row_sum
    /// array([[[1., 2., 3.]]], dtype=float32)
    fn row_states(q, k;) => run_row_states
}

fn run_row_states<'py>(py: Python<'py>, [q, k]: [&Bound<'py, PyAny>; 2], keywords: &Keywords<'py>) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, settings: &Settings<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
        let (q, k, attention) = (q.view(), k.view(), settings.attention());
        let states = interrupt::run(py, settings, inputs.work(), || attention.row_states(q, k))?;
        let fields = PyDict::new(py);
        field(&fields, inputs.layout, "row_max", states.row_max)?;
        field(&fields, inputs.layout, "row_sum", states.row_sum)?;
        result(&CLASS, "RowStates", &fields)
    }
    let inputs = Inputs::new(q, k, None)?;
    let settings = Settings::new(keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings))
}

function_without_dropout! {
    /// The weight matrix at the size of a picture: ``mean`` and ``max`` of the weights over ``rows`` x ``cols`` cells (never
    /// more than there are queries and keys), each ``[batch, heads_q, rows, cols]``. Hidden pairs count as 0. The matrix
    /// itself is never in memory. ``region`` and ``states`` zoom in, as in :func:`weights`. Options as for :func:`attention`.
    ///
    /// >>> import numpy as np, regard
    /// >>> x = np.zeros((1, 1, 8, 4), np.float32)
    /// >>> picture = regard.heat_map(x, x, rows=2, cols=2, causal=True)
    /// >>> picture.max.round(3)[0, 0]
    /// array([[1. , 0. ],
    ///        [0.2, 0.2]], dtype=float32)
    fn heat_map(q, k; rows: i64 = 512, cols: i64 = 512, region: Given<'py> = None, states: Given<'py> = None) => run_heat_map
}

fn run_heat_map<'py>(
    py: Python<'py>,
    [q, k]: [&Bound<'py, PyAny>; 2],
    rows: i64,
    cols: i64,
    region: Given<'py>,
    states: Given<'py>,
    keywords: &Keywords<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(
        py: Python<'py>,
        inputs: &Inputs<'py>,
        settings: &Settings<'py>,
        cells: [usize; 2],
        region: Option<Rectangle>,
        states: Given<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let states = states.map(|states| states_given::<E>(&states, inputs.layout)).transpose()?;
        let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
        let (q, k, attention) = (q.view(), k.view(), settings.attention());
        let picture = interrupt::run(py, settings, inputs.work(), || match (states, region) {
            (None, None) => attention.heat_map(q, k, cells[0], cells[1]),
            (states, region) => {
                let states = states.map_or_else(|| attention.row_states(q, k), Ok)?;
                let region = region.unwrap_or(Rectangle { rows: 0..q.dim().2, keys: 0..k.dim().2 });
                attention.heat_map_of(q, k, &states, region, cells)
            }
        })?;
        let fields = PyDict::new(py);
        field(&fields, inputs.layout, "mean", picture.mean)?;
        field(&fields, inputs.layout, "max", picture.max)?;
        result(&CLASS, "HeatMap", &fields)
    }
    let cells = [not_negative("rows", rows)?, not_negative("cols", cols)?];
    let inputs = Inputs::new(q, k, None)?;
    let settings = Settings::new(keywords, &inputs)?;
    let region = region.map(|region| rectangle(&region, inputs.scores_shape())).transpose()?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings, cells, region, states))
}

function_without_dropout! {
    /// How much attention each key gets: the weights summed over the queries, ``[batch, heads_q, seq_kv]``.
    /// Options as for :func:`attention`.
    ///
    /// >>> import numpy as np, regard
    /// >>> x = np.zeros((1, 1, 2, 4), np.float32)
    /// >>> regard.column_sums(x, x, causal=True)[0, 0]
    /// array([1.5, 0.5], dtype=float32)
    fn column_sums(q, k;) => run_column_sums
}

fn run_column_sums<'py>(py: Python<'py>, [q, k]: [&Bound<'py, PyAny>; 2], keywords: &Keywords<'py>) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, settings: &Settings<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
        let (q, k, attention) = (q.view(), k.view(), settings.attention());
        let sums = interrupt::run(py, settings, inputs.work().saturating_mul(2), || attention.column_sums(q, k))?;
        Ok(inputs.layout.give(py, sums))
    }
    let inputs = Inputs::new(q, k, None)?;
    let settings = Settings::new(keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings))
}

function_without_dropout! {
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
    fn head_similarity(q, k;) => run_head_similarity
}

fn run_head_similarity<'py>(py: Python<'py>, [q, k]: [&Bound<'py, PyAny>; 2], keywords: &Keywords<'py>) -> PyResult<Bound<'py, PyAny>> {
    fn run<'py, E: Scalar>(py: Python<'py>, inputs: &Inputs<'py>, settings: &Settings<'py>) -> PyResult<Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (q, k) = (inputs.q::<E>()?, inputs.k::<E>()?);
        let (q, k, attention) = (q.view(), k.view(), settings.attention());
        let alike = interrupt::run(py, settings, inputs.work().saturating_mul(2), || attention.head_similarity(q, k))?;
        let fields = PyDict::new(py);
        // Between heads: where q has none, there is one, and its axes stay.
        let layout = if inputs.layout == Layout::Axes(2) { Layout::Axes(3) } else { inputs.layout };
        field(&fields, layout, "centred_cosine", alike.centred_cosine)?;
        field(&fields, layout, "jensen_shannon", alike.jensen_shannon)?;
        result(&CLASS, "HeadSimilarity", &fields)
    }
    let inputs = Inputs::new(q, k, None)?;
    let settings = Settings::new(keywords, &inputs)?;
    with_dtype!(inputs.dtype, E => run::<E>(py, &inputs, &settings))
}
