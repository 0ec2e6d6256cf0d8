//! Series of points, made by hand or out of a table's columns.

use super::FigureError;
use crate::table::{Table, Value};

/// A point, with an interval around it where there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Along the horizontal axis.
    pub x: f64,
    /// Along the vertical axis; NaN leaves a gap.
    pub y: f64,
    /// Lower and upper end of a confidence interval.
    pub interval: Option<(f64, f64)>,
}

/// How the points of a series are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Line {
    /// A solid line.
    #[default]
    Solid,
    /// A dashed line: for theory beside measurement.
    Dashed,
    /// A dotted line.
    Dotted,
    /// No line: points alone, with error bars for intervals.
    None,
    /// A filled staircase from each point to the next: for histograms.
    Steps,
}

/// Points that belong together, with a name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// The name in legends and beside the line; `d_{k}` sets a subscript.
    pub label: String,
    /// In the order in which they are joined.
    pub points: Vec<Point>,
    /// How they are joined.
    pub line: Line,
    /// Draw a marker at each point. Lines of more than 40 points have none.
    pub markers: bool,
    /// Place in the palette; the place in the plot where `None`. Give the same number to the same thing in every figure.
    pub colour: Option<usize>,
}

impl Series {
    /// Points `(x[i], y[i])`; the longer list is cut.
    pub fn new(label: impl Into<String>, x: &[f64], y: &[f64]) -> Self {
        let points = x.iter().zip(y).map(|(&x, &y)| Point { x, y, interval: None }).collect();
        Self { label: label.into(), points, markers: true, ..Self::default() }
    }

    /// Points out of two columns of a table, in the order of its rows.
    ///
    /// # Errors
    /// When a column is not there, or has a cell that is no number. Missing cells are gaps.
    pub fn from_table(label: impl Into<String>, table: &Table, x: &str, y: &str) -> Result<Self, FigureError> {
        Ok(Self::new(label, &numbers(table, x)?, &numbers(table, y)?))
    }

    /// The same, for the rows whose cell in column `name` reads `text`.
    ///
    /// # Errors
    /// As [`Series::from_table`].
    pub fn from_rows(label: impl Into<String>, table: &Table, name: &str, text: &str, x: &str, y: &str) -> Result<Self, FigureError> {
        Self::from_table(label, &rows_where(table, name, text)?, x, y)
    }

    /// Intervals around the points.
    pub fn band(mut self, low: &[f64], high: &[f64]) -> Self {
        for (point, interval) in self.points.iter_mut().zip(low.iter().copied().zip(high.iter().copied())) {
            point.interval = Some(interval);
        }
        self
    }

    /// Symmetric intervals, `y - half .. y + half`.
    pub fn plus_minus(mut self, half: &[f64]) -> Self {
        for (point, h) in self.points.iter_mut().zip(half) {
            point.interval = Some((point.y - h, point.y + h));
        }
        self
    }

    /// How the points are joined.
    pub fn line(mut self, line: Line) -> Self {
        self.line = line;
        self
    }

    /// A dashed line without markers: theory.
    pub fn theory(mut self) -> Self {
        self.line = Line::Dashed;
        self.markers = false;
        self
    }

    /// Draw no markers.
    pub fn without_markers(mut self) -> Self {
        self.markers = false;
        self
    }

    /// Take this place of the palette.
    pub fn colour(mut self, place: usize) -> Self {
        self.colour = Some(place);
        self
    }

    /// The distribution of some values: `bins` equal bins between the smallest and the largest, as a filled staircase. Each point
    /// is the left edge of a bin with its share of the values; the last closes the staircase at zero.
    pub fn histogram(label: impl Into<String>, values: &[f64], bins: usize) -> Self {
        let finite: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
        let (low, high) = finite.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), &x| (a.min(x), b.max(x)));
        let (bins, width) = (bins.max(1), (high - low).max(f64::MIN_POSITIVE));
        let mut counts = vec![0usize; bins];
        for x in &finite {
            counts[(((x - low) / width * bins as f64) as usize).min(bins - 1)] += 1;
        }
        let edge = |i: usize| low + width * i as f64 / bins as f64;
        let mut points: Vec<Point> = Vec::new();
        if !finite.is_empty() {
            let share = |n: usize| n as f64 / finite.len() as f64;
            points.extend(counts.iter().enumerate().map(|(i, &n)| Point { x: edge(i), y: share(n), interval: None }));
            points.push(Point { x: edge(bins), y: 0.0, interval: None });
        }
        Self { label: label.into(), points, line: Line::Steps, markers: false, colour: None }
    }
}

/// The place of a column.
fn column(table: &Table, name: &str) -> Result<usize, FigureError> {
    table.columns.iter().position(|c| c.name == name).ok_or_else(|| FigureError::NoColumn {
        table: table.name.clone(),
        column: name.to_owned(),
        known: table.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

/// A column as numbers: integers are converted, flags are 0 and 1, missing cells NaN.
///
/// # Errors
/// When the column is not there, or has text in it.
pub fn numbers(table: &Table, name: &str) -> Result<Vec<f64>, FigureError> {
    let at = column(table, name)?;
    let number = |(row, cells): (usize, &Vec<Value>)| match cells.get(at) {
        Some(Value::Number(x)) => Ok(*x),
        Some(Value::Integer(x)) => Ok(*x as f64),
        Some(Value::Flag(x)) => Ok(f64::from(u8::from(*x))),
        Some(Value::Missing) | None => Ok(f64::NAN),
        Some(Value::Text(text)) => {
            Err(FigureError::NotANumber { table: table.name.clone(), column: name.to_owned(), row, text: text.clone() })
        }
    };
    table.rows.iter().enumerate().map(number).collect()
}

/// A column as text, for names of categories.
///
/// # Errors
/// When the column is not there.
pub fn texts(table: &Table, name: &str) -> Result<Vec<String>, FigureError> {
    let at = column(table, name)?;
    Ok(table.rows.iter().map(|cells| cells.get(at).map_or_else(String::new, cell_text)).collect())
}

/// The rows whose cell in column `name` reads `text`.
///
/// # Errors
/// When the column is not there.
pub fn rows_where(table: &Table, name: &str, text: &str) -> Result<Table, FigureError> {
    let at = column(table, name)?;
    let rows = table.rows.iter().filter(|cells| cells.get(at).is_some_and(|c| cell_text(c) == text)).cloned().collect();
    Ok(Table { rows, ..table.clone() })
}

/// A cell as people read it.
pub(crate) fn cell_text(value: &Value) -> String {
    match value {
        Value::Number(x) => super::axis::plain_number(*x),
        Value::Integer(x) => x.to_string(),
        Value::Text(text) => text.clone(),
        Value::Flag(true) => "yes".to_owned(),
        Value::Flag(false) => "no".to_owned(),
        Value::Missing => "\u{2013}".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Column;

    fn sample() -> Table {
        let column = |name: &str| Column { name: name.to_owned(), title: name.to_owned() };
        Table {
            name: "sweep".to_owned(),
            columns: ["d_k", "mode", "entropy"].map(column).to_vec(),
            rows: vec![
                vec![Value::Integer(4), Value::Text("scaled".to_owned()), Value::Number(1.7)],
                vec![Value::Integer(4), Value::Text("unscaled".to_owned()), Value::Number(1.3)],
                vec![Value::Integer(16), Value::Text("scaled".to_owned()), Value::Missing],
            ],
            ..Table::default()
        }
    }

    #[test]
    fn a_series_takes_the_rows_it_is_asked_for() {
        let series = Series::from_rows("scaled", &sample(), "mode", "scaled", "d_k", "entropy").unwrap();
        assert_eq!(series.points[0], Point { x: 4.0, y: 1.7, interval: None });
        assert!(series.points.len() == 2 && series.points[1].y.is_nan());
    }

    #[test]
    fn unknown_columns_and_text_among_numbers_are_errors() {
        let message = numbers(&sample(), "entropie").unwrap_err().to_string();
        assert_eq!(message, "table sweep has no column entropie; it has d_k, mode, entropy");
        let message = numbers(&sample(), "mode").unwrap_err().to_string();
        assert_eq!(message, "table sweep: row 0 of column mode is \"scaled\", not a number");
    }

    #[test]
    fn a_histogram_counts_every_finite_value_once() {
        let series = Series::histogram("h", &[0.0, 0.1, 0.9, 1.0, f64::NAN], 2);
        let shares: Vec<f64> = series.points.iter().map(|p| p.y).collect();
        assert_eq!(shares, [0.5, 0.5, 0.0]);
        assert!(Series::histogram("h", &[], 3).points.is_empty());
    }
}
