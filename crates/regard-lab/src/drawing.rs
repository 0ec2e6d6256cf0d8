//! What the figures of several experiments have in common.

use crate::error::Result;
use regard_plot::figure::{Axis, HeatPlot, Line, LinePlot, Series, numbers};
use regard_plot::{Table, Value};

/// The same colour for the same thing in every figure.
pub(crate) const SCALED: usize = 0;
pub(crate) const UNSCALED: usize = 1;
pub(crate) const OTHER: usize = 2;
pub(crate) const PUBLISHED: usize = 3;
/// The last colour of the palette: for what is no model.
pub(crate) const GREY: usize = 6;

pub(crate) const WORDS: [(bool, &str, usize); 2] = [(false, "unscaled", UNSCALED), (true, "scaled", SCALED)];

pub(crate) fn d_k_axis() -> Axis {
    Axis::log2("head dimension d_{k}")
}

/// The rows where each column has its value.
pub(crate) fn part(table: &Table, at: &[(&str, Value)]) -> Table {
    table.filtered(|table, row| at.iter().all(|(column, value)| table.value(row, column) == value))
}

/// The rows of an experiment with a value in that column.
pub(crate) fn with(table: &Table, column: &str) -> Table {
    table.filtered(|table, row| table.number(row, column).is_finite())
}

/// The number of a column in the row where each key column has its value; NaN where there is no such row, so that nothing is drawn there.
pub(crate) fn joined(table: &Table, at: &[(&str, Value)], column: &str) -> f64 {
    let rows = part(table, at);
    rows.rows.first().map_or(f64::NAN, |row| rows.number(row, column))
}

/// The published single draws as points, where there are any.
pub(crate) fn with_published(plot: LinePlot, rows: &Table) -> Result<LinePlot> {
    let quoted = with(rows, "published");
    if quoted.rows.is_empty() {
        return Ok(plot);
    }
    Ok(plot.series(Series::from_table("published draws", &quoted, "d_k", "published")?.line(Line::None).colour(PUBLISHED)))
}

/// A square map out of rows of query, key and a value.
pub(crate) fn map(title: &str, rows: &Table, value: &str) -> Result<HeatPlot> {
    let values = numbers(rows, value)?;
    let n = (values.len() as f64).sqrt().round() as usize;
    Ok(HeatPlot::new(title, n, values.len() / n.max(1), values)?)
}
