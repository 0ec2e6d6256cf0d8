//! A run of a model, and what can be asked of it.

use crate::arrays::Layout;
use crate::hooks::{Activations, is_always_there, parse};
use crate::instruments::{field, head_fields, result, row_fields};
use crate::lab::PyFigure;
use crate::model::{cancellable, column, table};
use ndarray::{Array3, ArrayD, Axis, concatenate, stack};
use numpy::IntoPyArray;
use pyo3::exceptions::{PyIndexError, PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use regard::{RowStats, StatsOptions};
use regard_cli::microscope::picture;
use regard_lab::figure::Figure;
use regard_model::{Cancel, Sink, Site};

/// One text through a model: see :meth:`Model.run`.
#[pyclass(frozen, module = "regard")]
pub(crate) struct Run(pub(crate) regard_model::Run, pub(crate) Activations);

impl Run {
    /// A view of the run, without the GIL; Ctrl-C ends it.
    fn look<R: Send>(&self, py: Python<'_>, look: impl FnOnce(&regard_model::Run) -> regard_model::Result<R> + Send) -> PyResult<R> {
        let cancel = Cancel::new();
        let run = self.0.with_cancel(&cancel);
        cancellable(py, &cancel, || look(&run))
    }

    /// A layer, counted from the end where it is negative.
    fn layer(&self, layer: i64) -> PyResult<usize> {
        place("layer", layer, self.0.model().shape().layers)
    }

    /// A head of a layer.
    fn head(&self, head: i64) -> PyResult<usize> {
        place("head", head, self.0.model().shape().heads)
    }

    /// A token.
    fn token(&self, what: &str, token: i64) -> PyResult<usize> {
        place(what, token, self.0.len())
    }
}

impl Run {
    /// An activation of a layer: kept, or made again.
    fn activation(&self, py: Python<'_>, layer: usize, site: Site) -> PyResult<ArrayD<f32>> {
        if let Some(kept) = self.1.get(&(layer, site)) {
            return Ok(kept.clone());
        }
        if !is_always_there(site) {
            let text = format!("{} of layer {layer} was not kept: run with keep=[{:?}]", site.name(), site.name());
            return Err(PyKeyError::new_err(text));
        }
        self.look(py, |run| {
            Ok(match site {
                Site::Q => run.q(layer, true)?,
                Site::K => run.k(layer, true)?,
                Site::V => run.v(layer)?.clone(),
                Site::Z => run.z(layer)?.clone(),
                _ => {
                    let heads = (0..run.model().shape().heads).map(|head| run.weights(layer, head)).collect::<Result<Vec<_>, _>>()?;
                    let views: Vec<_> = heads.iter().map(|x| x.view()).collect();
                    stack(Axis(0), &views).expect("the same shapes")
                }
            }
            .into_dyn())
        })
    }
}

/// An index as Python counts: from the end where it is negative.
pub(crate) fn place(what: &str, index: i64, count: usize) -> PyResult<usize> {
    let from_start = if index < 0 { index + count as i64 } else { index };
    let inside = usize::try_from(from_start).ok().filter(|index| *index < count);
    inside.ok_or_else(|| {
        PyIndexError::new_err(format!("{what} {index} is out of range: there are {count}, from 0 to {}", count.saturating_sub(1)))
    })
}

/// What is shown of the first key.
fn sink_of(how: &str) -> PyResult<Sink> {
    match how {
        "show" => Ok(Sink::Show),
        "hide" => Ok(Sink::Hide),
        "renormalise" => Ok(Sink::Renormalise),
        other => Err(PyValueError::new_err(format!("sink is {other:?}; it must be 'show', 'hide' or 'renormalise'"))),
    }
}

/// A drawing as Python has it, which shows itself in a notebook.
fn shown(py: Python<'_>, figure: Figure) -> PyResult<Py<PyAny>> {
    Ok(py.import("regard._results")?.getattr("Figure")?.call1((PyFigure(figure),))?.unbind())
}

/// Statistics of all layers, each `[layers, heads, rows]`.
fn stacked(layers: Vec<RowStats<f32>>) -> RowStats<f32> {
    macro_rules! all {
        ($($name:ident),*) => {
            RowStats { $($name: concatenate(Axis(0), &layers.iter().map(|layer| layer.$name.view()).collect::<Vec<_>>()).expect("the \
                same heads"),)* }
        };
    }
    all!(
        entropy,
        max_weight,
        sum_of_squares,
        diagonal_mass,
        previous_token_mass,
        first_token_mass,
        local_mass,
        mean_distance,
        argmax,
        top_keys,
        top_weights
    )
}

#[pymethods]
impl Run {
    /// The ids that were run.
    #[getter]
    fn ids(&self) -> Vec<u32> {
        self.0.ids().to_vec()
    }

    /// Each of them as people read it.
    #[getter]
    fn tokens(&self) -> Vec<String> {
        self.0.pieces().into_iter().next().unwrap_or_default()
    }

    /// The run of the encoder that a decoder read; None for other models.
    #[getter]
    fn encoder(&self) -> Option<Self> {
        self.0.encoder().cloned().map(|run| Self(run, Activations::default()))
    }

    /// The same run seen through its cross-attention, from tokens to what the encoder read; None for other models.
    #[getter]
    fn cross(&self) -> Option<Self> {
        self.0.cross().map(|run| Self(run, Activations::default()))
    }

    /// The edits in their canonical form.
    #[getter]
    fn edits(&self) -> String {
        self.0.edits().canonical()
    }

    /// Logits of every token, float32 ``[n, vocab]``.
    #[getter]
    fn logits(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let logits = self.look(py, |run| run.logits())?;
        Ok(logits.into_pyarray(py).into_any().unbind())
    }

    /// The mean loss of next tokens, in nats.
    #[getter]
    fn loss(&self, py: Python<'_>) -> PyResult<f64> {
        self.look(py, |run| run.loss())
    }

    /// The loss of each next token, float64 ``[n - 1]``.
    #[getter]
    fn losses(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.look(py, |run| run.losses())?.into_pyarray(py).into_any().unbind())
    }

    /// The final hidden states, after the last norm, float32 ``[n, width]``.
    #[getter]
    fn hidden(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.look(py, |run| Ok(run.hidden().to_owned()))?.into_pyarray(py).into_any().unbind())
    }

    /// The weights of a head, float32 ``[n, n]`` (``[n, keys]`` of cross-attention); those of some rows with ``rows=(first, end)``.
    #[pyo3(signature = (layer, head, rows = None))]
    fn weights(&self, py: Python<'_>, layer: i64, head: i64, rows: Option<(usize, usize)>) -> PyResult<Py<PyAny>> {
        let (layer, head) = (self.layer(layer)?, self.head(head)?);
        let weights = self.look(py, |run| {
            let (first, end) = rows.unwrap_or((0, run.len()));
            run.weights_of(layer, head, first..end)
        })?;
        Ok(weights.into_pyarray(py).into_any().unbind())
    }

    /// What every row of every head attended to, each ``[layers, heads, n]``, in linear memory: a :class:`Statistics`.
    #[getter]
    fn statistics(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let layers = self.0.model().shape().layers;
        let (rows, lse, heads) = self.look(py, |run| {
            let all: Vec<_> = (0..layers).map(|layer| run.layer_statistics(layer, StatsOptions::default())).collect::<Result<_, _>>()?;
            let (rows, lse): (Vec<_>, Vec<Array3<f32>>) = all.into_iter().unzip();
            let rows = stacked(rows);
            let heads = rows.heads();
            let lse = concatenate(Axis(0), &lse.iter().map(|lse| lse.view()).collect::<Vec<_>>()).expect("the same heads");
            Ok((rows, lse, heads))
        })?;
        let layout = Layout::Axes(4);
        let fields = row_fields(py, layout, rows)?;
        fields.set_item("heads", head_fields(py, layout, heads)?)?;
        fields.set_item("out", py.None())?;
        field(&fields, layout, "lse", lse)?;
        Ok(result(&CLASS, "Statistics", &fields)?.unbind())
    }

    /// The weight that each token gets as a key from all queries, float32 ``[layers, heads, n]``, in linear memory.
    #[getter]
    fn column_sums(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let layers = self.0.model().shape().layers;
        let sums = self.look(py, |run| (0..layers).map(|layer| run.layer_column_sums(layer)).collect::<Result<Vec<_>, _>>())?;
        let views: Vec<_> = sums.iter().map(|sums| sums.view()).collect();
        Ok(stack(Axis(0), &views).expect("the same shapes").into_pyarray(py).into_any().unbind())
    }

    /// A head's weights at the size of a picture: ``mean`` and ``max`` over at most ``rows`` x ``cols`` cells, whatever the length.
    /// ``sink`` is what is shown of the first key: ``"show"``, ``"hide"``, or ``"renormalise"``, where the rest is divided by what
    /// remains.
    #[pyo3(signature = (layer, head, rows = 512, cols = None, *, sink = "show"))]
    fn heat_map(&self, py: Python<'_>, layer: i64, head: i64, rows: usize, cols: Option<usize>, sink: &str) -> PyResult<Py<PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let (layer, head, sink) = (self.layer(layer)?, self.head(head)?, sink_of(sink)?);
        let map = self.look(py, |run| run.heat_map_without(layer, head, [rows, cols.unwrap_or(rows)], sink))?;
        let fields = PyDict::new(py);
        let two = |x: ndarray::Array4<f32>| x.index_axis_move(Axis(0), 0).index_axis_move(Axis(0), 0);
        fields.set_item("mean", two(map.mean).into_pyarray(py))?;
        fields.set_item("max", two(map.max).into_pyarray(py))?;
        Ok(result(&CLASS, "HeatMap", &fields)?.unbind())
    }

    /// Every head, or one with its tokens: a :class:`Figure`, which shows itself in a notebook. ``sink`` as in :meth:`heat_map`. With
    /// ``keys``, which keys each head attends to: the mean weight that each gets from the queries that may see it.
    #[pyo3(signature = (layer = None, head = None, *, sink = "show", keys = false))]
    fn picture(&self, py: Python<'_>, layer: Option<i64>, head: Option<i64>, sink: &str, keys: bool) -> PyResult<Py<PyAny>> {
        let sink = sink_of(sink)?;
        let layer = layer.map(|layer| self.layer(layer)).transpose()?;
        let head = head.map(|head| self.head(head)).transpose()?;
        let figure = self.look(py, |run| {
            let drawn = match (layer, head) {
                (None, None) if keys => picture::keys(run),
                _ if keys => return Ok(Err("the picture of keys is of all heads: leave layer and head out".to_owned())),
                (Some(layer), Some(head)) => picture::head(run, layer, head, sink),
                (None, None) => picture::heads(run, sink),
                _ => return Ok(Err("a picture is of all heads, or of one: give layer and head, or neither".to_owned())),
            };
            Ok(drawn.map_err(|e| e.to_string()))
        })?;
        shown(py, figure.map_err(PyValueError::new_err)?)
    }

    /// How one score of a head comes about: a :class:`Table` along the numbers of the vectors, with query and key before and after rotary
    /// positions, their products and their sums.
    fn neuron(&self, py: Python<'_>, layer: i64, head: i64, query: i64, key: i64) -> PyResult<Py<PyAny>> {
        let (layer, head) = (self.layer(layer)?, self.head(head)?);
        let (query, key) = (self.token("query", query)?, self.token("key", key)?);
        let neuron = self.look(py, |run| run.neuron(layer, head, query, key))?;
        let fields = PyDict::new(py);
        for (name, numbers) in [("q_before", neuron.q_before), ("k_before", neuron.k_before), ("q", neuron.q), ("k", neuron.k)] {
            fields.set_item(name, numbers.into_pyarray(py))?;
        }
        fields.set_item("products", neuron.products.into_pyarray(py))?;
        fields.set_item("sums", neuron.sums.into_pyarray(py))?;
        table(&fields)
    }

    /// A query's row, key by key, on its way through the softmax: a :class:`Table` with ``dot``, ``scaled``, ``capped``, ``score`` and
    /// ``weight``.
    fn row(&self, py: Python<'_>, layer: i64, head: i64, query: i64) -> PyResult<Py<PyAny>> {
        let (layer, head, query) = (self.layer(layer)?, self.head(head)?, self.token("query", query)?);
        let keys = self.look(py, |run| run.neuron(layer, head, query, 0))?.keys;
        let fields = PyDict::new(py);
        fields.set_item("dot", column(py, keys.iter().map(|key| key.dot)))?;
        fields.set_item("scaled", column(py, keys.iter().map(|key| key.scaled)))?;
        fields.set_item("capped", column(py, keys.iter().map(|key| key.capped)))?;
        fields.set_item("score", column(py, keys.iter().map(|key| key.score)))?;
        fields.set_item("weight", column(py, keys.iter().map(|key| key.weight)))?;
        table(&fields)
    }

    fn _repr_svg_(&self, py: Python<'_>) -> PyResult<String> {
        let figure = self.look(py, |run| Ok(picture::heads(run, Sink::Show).map_err(|e| e.to_string())))?;
        figure.map_err(PyValueError::new_err)?.svg().map_err(|e| PyValueError::new_err(e.to_string()))
    }

    /// The queries of a layer, float32 ``[heads, n, head_dim]``, as they attend; before rotary positions with ``rotated=False``.
    #[pyo3(signature = (layer, rotated = true))]
    fn q(&self, py: Python<'_>, layer: i64, rotated: bool) -> PyResult<Py<PyAny>> {
        let layer = self.layer(layer)?;
        Ok(self.look(py, |run| run.q(layer, rotated))?.into_pyarray(py).into_any().unbind())
    }

    /// The keys of a layer, float32 ``[kv_heads, n, head_dim]``.
    #[pyo3(signature = (layer, rotated = true))]
    fn k(&self, py: Python<'_>, layer: i64, rotated: bool) -> PyResult<Py<PyAny>> {
        let layer = self.layer(layer)?;
        Ok(self.look(py, |run| run.k(layer, rotated))?.into_pyarray(py).into_any().unbind())
    }

    /// The values of a layer, float32 ``[kv_heads, n, head_dim]``.
    fn v(&self, py: Python<'_>, layer: i64) -> PyResult<Py<PyAny>> {
        let layer = self.layer(layer)?;
        Ok(self.look(py, |run| run.v(layer).cloned())?.into_pyarray(py).into_any().unbind())
    }

    /// What the heads of a layer give to the output projection, float32 ``[heads, n, head_dim]``.
    fn z(&self, py: Python<'_>, layer: i64) -> PyResult<Py<PyAny>> {
        let layer = self.layer(layer)?;
        Ok(self.look(py, |run| run.z(layer).cloned())?.into_pyarray(py).into_any().unbind())
    }

    /// An activation by its name, float32: ``run["L3.resid_post"]``, or ``run["resid_post"]`` for all layers, ``[layers, ...]``.
    ///
    /// Names are ``resid_pre``, ``resid_mid``, ``resid_post``, ``attn_out`` and ``mlp_out`` ``[n, width]`` (these with ``keep=`` of
    /// :meth:`Model.run`), ``q`` and ``z`` ``[heads, n, head_dim]``, ``k`` and ``v`` ``[kv_heads, n, head_dim]``, ``pattern`` ``[heads,
    /// n, n]``, and ``logits`` ``[n, vocab]``.
    fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        if name == "logits" {
            return self.logits(py);
        }
        let layers = self.0.model().shape().layers;
        match parse(name, layers)? {
            (Some(layer), site) => Ok(self.activation(py, layer, site)?.into_pyarray(py).into_any().unbind()),
            (None, site) => {
                let all = (0..layers).map(|layer| self.activation(py, layer, site)).collect::<PyResult<Vec<_>>>()?;
                let views: Vec<_> = all.iter().map(|x| x.view()).collect();
                let stacked = stack(Axis(0), &views).map_err(|e| PyValueError::new_err(e.to_string()))?;
                Ok(stacked.into_pyarray(py).into_any().unbind())
            }
        }
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        let run = &self.0;
        let edits = if run.edits().is_empty() { String::new() } else { format!(", edits {:?}", run.edits().canonical()) };
        format!("Run({} tokens{edits})", run.len())
    }
}
