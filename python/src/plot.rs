//! Figures for `regard.plot`: heat maps, grids, lines between tokens, curves.

use crate::lab::PyFigure;
use numpy::{PyReadonlyArray2, PyReadonlyArray3};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use regard_lab::figure::{Axis, ColourMap, Figure, HeatPlot, LinePlot, LinkPlot, Norm, Series};

fn refused(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Name and texts of a figure.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Words {
    name: String,
    title: String,
    caption: String,
    value: String,
}

/// A heat map, with tokens at its sides, or pooled from `pooled` queries and keys.
#[pyfunction]
#[pyo3(signature = (values, words, rows, keys, pooled, limits))]
pub(crate) fn _plot_map(
    values: PyReadonlyArray2<'_, f64>,
    words: Words,
    rows: Option<Vec<String>>,
    keys: Option<Vec<String>>,
    pooled: Option<(usize, usize)>,
    limits: Option<(f64, f64)>,
) -> PyResult<PyFigure> {
    let values = values.as_array();
    let (n, m) = values.dim();
    let mut plot = HeatPlot::new("", n, m, values.iter().copied().collect()).map_err(refused)?.value_title(words.value);
    if let (Some(rows), Some(keys)) = (&rows, &keys) {
        plot = plot.tokens(rows, keys).map_err(refused)?;
    }
    if let Some((queries, keys)) = pooled {
        // Means of many weights differ by orders of magnitude.
        plot = plot.pooled(queries, keys).norm(Norm::Log);
    }
    if let Some((low, high)) = limits {
        let middle = low < 0.0 && high > 0.0;
        plot = plot.limits(low, high).map(if middle { ColourMap::PurpleOrange } else { ColourMap::default() });
    }
    Ok(PyFigure(Figure::new(words.name, words.title).panel(plot).caption(words.caption)))
}

/// A grid of maps, with optional tokens of rows and columns at its left and bottom sides.
#[pyfunction]
pub(crate) fn _plot_grid(
    values: PyReadonlyArray3<'_, f64>,
    words: Words,
    names: Vec<String>,
    columns: usize,
    tokens: Option<(Vec<String>, Vec<String>)>,
) -> PyResult<PyFigure> {
    let values = values.as_array();
    let (_, n, m) = values.dim();
    let map = |values: ndarray::ArrayView2<'_, f64>, name| {
        let plot = HeatPlot::new(name, n, m, values.iter().copied().collect())?.limits(0.0, 1.0);
        tokens.as_ref().map_or_else(|| Ok(plot.clone()), |(rows, keys)| plot.clone().tokens(rows, keys))
    };
    let maps = values.outer_iter().zip(names).map(|(values, name)| map(values, name).map_err(refused));
    let maps = maps.collect::<PyResult<Vec<_>>>()?;
    Ok(PyFigure(Figure::grid(words.name, words.title, maps, columns.max(1)).caption(words.caption)))
}

/// Lines between tokens, as strong as the weights; a colour for each head.
#[pyfunction]
pub(crate) fn _plot_links(
    values: PyReadonlyArray3<'_, f64>,
    words: Words,
    names: Vec<String>,
    tokens: (Vec<String>, Vec<String>),
    chosen: Vec<usize>,
) -> PyResult<PyFigure> {
    let mut plot = LinkPlot::new(tokens.0, tokens.1).chosen(chosen);
    for (head, name) in values.as_array().outer_iter().zip(names) {
        plot = plot.head(name, head.iter().copied().collect()).map_err(refused)?;
    }
    Ok(PyFigure(Figure::new(words.name, words.title).panel(plot).caption(words.caption)))
}

/// Curves over one axis.
#[pyfunction]
pub(crate) fn _plot_lines(words: Words, x: (String, Vec<f64>, bool), series: Vec<(String, Vec<f64>)>) -> PyResult<PyFigure> {
    let (title, places, logarithmic) = x;
    let axis = if logarithmic { Axis::log2(title) } else { Axis::linear(title) };
    let mut plot = LinePlot::new("", axis, Axis::linear(words.value));
    for (name, values) in series {
        if values.len() != places.len() {
            return Err(PyValueError::new_err(format!("{name:?} has {} values for {} positions", values.len(), places.len())));
        }
        plot = plot.series(Series::new(name, &places, &values));
    }
    Ok(PyFigure(Figure::new(words.name, words.title).panel(plot).caption(words.caption)))
}
