//! Parts that the figures of several experiments share.

use crate::error::Result;
use crate::experiment::{Check, Drawn};
use crate::statistics::estimate::Estimate;
use regard_plot::figure::{Axis, Figure, HeatPlot, Line, LinePlot, Panel, Series, numbers};
use regard_plot::{Table, Value};

/// The same colour for the same thing in every figure.
pub(crate) const SCALED: usize = 0;
pub(crate) const UNSCALED: usize = 1;
pub(crate) const OTHER: usize = 2;
/// The last colour of the palette: baselines and theory.
pub(crate) const GREY: usize = 6;

pub(crate) const WORDS: [(bool, &str, usize); 2] = [(false, "unscaled", UNSCALED), (true, "scaled", SCALED)];

pub(crate) fn d_k_axis() -> Axis {
    Axis::log2("width d_{k}")
}

/// The rows where each column has its value.
pub(crate) fn part(table: &Table, at: &[(&str, Value)]) -> Table {
    table.filtered(|table, row| at.iter().all(|(column, value)| table.value(row, column) == value))
}

/// The rows with a finite number in that column.
pub(crate) fn with(table: &Table, column: &str) -> Table {
    table.filtered(|table, row| table.number(row, column).is_finite())
}

/// The number of a column in the row where each key column has its value; NaN where there is no such row: nothing is drawn there.
pub(crate) fn joined(table: &Table, at: &[(&str, Value)], column: &str) -> f64 {
    let rows = part(table, at);
    rows.rows.first().map_or(f64::NAN, |row| rows.number(row, column))
}

/// The published single draws as points, each condition by its own name and colour.
pub(crate) fn with_published(mut plot: LinePlot, rows: &Table) -> Result<LinePlot> {
    let quoted = with(rows, "published");
    for (scaled, word, colour) in WORDS {
        let points = part(&quoted, &[("scaled", scaled.into())]);
        if !points.rows.is_empty() {
            let series = Series::from_table(format!("published, {word}"), &points, "d_k", "published")?;
            plot = plot.series(series.line(Line::None).colour(colour));
        }
    }
    Ok(plot)
}

/// A square map out of rows of query, key and a value.
pub(crate) fn map(title: &str, rows: &Table, value: &str) -> Result<HeatPlot> {
    let values = numbers(rows, value)?;
    let n = (values.len() as f64).sqrt().round() as usize;
    Ok(HeatPlot::new(title, n, values.len() / n.max(1), values)?)
}

/// A figure whose title and sentences are checked against its tables: a sentence that does not hold is left out.
pub(crate) struct CheckedFigure {
    figure: Figure,
    checks: Vec<Check>,
}

impl CheckedFigure {
    /// `plain` describes what is drawn; it is the title when the stated finding does not hold.
    pub(crate) fn new(name: &str, plain: impl Into<String>) -> Self {
        Self { figure: Figure::new(name, plain), checks: Vec::new() }
    }

    /// A grid of maps.
    pub(crate) fn grid(name: &str, plain: impl Into<String>, maps: Vec<HeatPlot>, columns: usize) -> Self {
        Self { figure: Figure::grid(name, plain, maps, columns), checks: Vec::new() }
    }

    /// A finding as the title, if it holds.
    pub(crate) fn title(mut self, says: impl Into<String>, holds: bool) -> Self {
        let says = says.into();
        if holds {
            self.figure.title.clone_from(&says);
        }
        self.checks.push(Check { says, holds });
        self
    }

    pub(crate) fn panel(mut self, panel: impl Into<Panel>) -> Self {
        self.figure = self.figure.panel(panel);
        self
    }

    /// A sentence of the caption that explains how to read the figure.
    pub(crate) fn shows(mut self, sentence: impl AsRef<str>) -> Self {
        let gap = if self.figure.caption.is_empty() { "" } else { " " };
        self.figure.caption = format!("{}{gap}{}", self.figure.caption, sentence.as_ref());
        self
    }

    /// A sentence of the caption that states a finding, if it holds.
    pub(crate) fn says(mut self, sentence: impl Into<String>, holds: bool) -> Self {
        let says = sentence.into();
        if holds {
            self = self.shows(&says);
        }
        self.checks.push(Check { says, holds });
        self
    }

    pub(crate) fn drawn(self) -> Drawn {
        Drawn { figure: self.figure, checks: self.checks }
    }
}

/// A series with its intervals as a band.
pub(crate) fn with_band(label: impl Into<String>, table: &Table, x: &str, y: &str) -> Result<Series> {
    let (low, high) = (numbers(table, &format!("{y}_low"))?, numbers(table, &format!("{y}_high"))?);
    Ok(Series::from_table(label, table, x, y)?.band(&low, &high))
}

/// Numbers, and the ends of their intervals.
pub(crate) type WithEnds = (Vec<f64>, Vec<(f64, f64)>);

/// The numbers of a column and their intervals.
pub(crate) fn with_ends(table: &Table, column: &str) -> Result<WithEnds> {
    let ends = numbers(table, &format!("{column}_low"))?.into_iter().zip(numbers(table, &format!("{column}_high"))?);
    Ok((numbers(table, column)?, ends.collect()))
}

/// Whether each is above the one before it.
pub(crate) fn rises(values: &[f64]) -> bool {
    values.len() > 1 && values.windows(2).all(|pair| pair[1] > pair[0])
}

/// Whether each is below the one before it.
pub(crate) fn falls(values: &[f64]) -> bool {
    values.len() > 1 && values.windows(2).all(|pair| pair[1] < pair[0])
}

/// The estimate of a column in the row where each key column has its value; not a number where there is no such row.
pub(crate) fn estimate_at(table: &Table, at: &[(&str, Value)], column: &str) -> Estimate {
    let rows = part(table, at);
    let none = Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN };
    rows.rows.first().map_or(none, |row| crate::rows::estimate(&rows, row, column))
}
