//! [`Table`]: what every experiment comes to, and all that figures and reports know.

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number; NaN and infinities are allowed and shown as such.
    Number(f64),
    /// A count, an index, a size.
    Integer(i64),
    /// A name, a verdict, a sentence.
    Text(String),
    /// A question answered.
    Flag(bool),
    /// Not applicable, or not measured.
    Missing,
}

/// A column: its name in files, and what people read above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// `snake_case`, the header in CSV and the key in JSON.
    pub name: String,
    /// A short title with its unit, for pages and axes.
    pub title: String,
}

/// Rows under named columns, with where they came from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// File stem, for example `attention_sweep_results`.
    pub name: String,
    /// What the table shows, in one sentence.
    pub caption: String,
    /// Columns, in order.
    pub columns: Vec<Column>,
    /// Rows; each is as long as `columns`.
    pub rows: Vec<Vec<Value>>,
    /// Where the numbers came from: seed, version, SIMD level, command line. Written as `# key: value` lines above the CSV.
    pub origin: Vec<(String, String)>,
}
