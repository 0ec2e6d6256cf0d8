//! [`Table`]: what every experiment comes to, and all that figures and reports know.

mod file;
mod tables;
mod text;

pub use tables::Tables;
pub use text::{prose_number, short_number, with_interval};

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

impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Self::Number(x)
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Self {
        Self::Integer(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Self {
        Self::Integer(n)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Missing, Into::into)
    }
}

impl Value {
    /// The number, of a number or an integer.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Self::Number(x) => Some(x),
            Self::Integer(n) => Some(n as f64),
            _ => None,
        }
    }

    /// The text, of a text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// As it is written in a CSV file: a number in the shortest form that reads back as the same bits, nothing for
    /// [`Value::Missing`].
    pub fn to_field(&self) -> String {
        match self {
            Self::Number(x) => format!("{x:?}"),
            Self::Integer(n) => n.to_string(),
            Self::Text(text) => text.clone(),
            Self::Flag(flag) => flag.to_string(),
            Self::Missing => String::new(),
        }
    }

    /// The inverse of [`Value::to_field`], except that a text which looks like a number becomes one.
    pub fn from_field(field: &str) -> Self {
        match field {
            "" => Self::Missing,
            "true" => Self::Flag(true),
            "false" => Self::Flag(false),
            _ => field
                .parse()
                .map(Self::Integer)
                .or_else(|_| field.parse().map(Self::Number))
                .unwrap_or_else(|_| Self::Text(field.to_owned())),
        }
    }
}

impl Table {
    /// An empty table; `columns` are pairs of name and title.
    pub fn new(name: &str, caption: &str, columns: &[(&str, &str)]) -> Self {
        Self {
            name: name.to_owned(),
            caption: caption.to_owned(),
            columns: columns.iter().map(|&(name, title)| Column { name: name.to_owned(), title: title.to_owned() }).collect(),
            ..Self::default()
        }
    }

    /// One more row.
    ///
    /// # Panics
    /// If it is not as long as the columns.
    pub fn push(&mut self, row: Vec<Value>) {
        assert_eq!(row.len(), self.columns.len(), "a row of {} must have a value per column", self.name);
        self.rows.push(row);
    }

    /// Where the column of that name stands.
    pub fn position(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.name == column)
    }

    /// The value of a row in the column of that name; missing where there is no such column.
    pub fn value<'t>(&self, row: &'t [Value], column: &str) -> &'t Value {
        self.position(column).and_then(|at| row.get(at)).unwrap_or(&Value::Missing)
    }

    /// The number of a row in the column of that name, NaN where there is none.
    pub fn number(&self, row: &[Value], column: &str) -> f64 {
        self.value(row, column).number().unwrap_or(f64::NAN)
    }

    /// The text of a row in the column of that name, empty where there is none.
    pub fn text<'t>(&self, row: &'t [Value], column: &str) -> &'t str {
        self.value(row, column).text().unwrap_or("")
    }

    /// The rows whose column has that value.
    pub fn rows_where<'t>(&'t self, column: &str, value: impl Into<Value>) -> impl Iterator<Item = &'t Vec<Value>> {
        let (at, value) = (self.position(column), value.into());
        self.rows.iter().filter(move |row| at.is_some_and(|at| row[at] == value))
    }

    /// The ends of a number's 95 % interval, where the table has them: in the columns of the same name with `_low` and `_high` after it.
    pub fn interval(&self, row: &[Value], column: &str) -> Option<(f64, f64)> {
        let end = |which: &str| self.position(&format!("{column}_{which}")).and_then(|at| row.get(at)).and_then(Value::number);
        Some((end("low")?, end("high")?))
    }

    /// Whether the column has only the end of another one's interval.
    pub fn is_end(&self, column: &str) -> bool {
        let of = |which: &str| column.strip_suffix(which).is_some_and(|name| self.position(name).is_some());
        of("_low") || of("_high")
    }

    /// A table of some of the columns, in that order, for a page that shows only some.
    pub fn select(&self, columns: &[&str]) -> Self {
        let at: Vec<usize> = columns.iter().filter_map(|name| self.position(name)).collect();
        Self {
            columns: at.iter().map(|&c| self.columns[c].clone()).collect(),
            rows: self.rows.iter().map(|row| at.iter().map(|&c| row[c].clone()).collect()).collect(),
            name: self.name.clone(),
            caption: self.caption.clone(),
            origin: self.origin.clone(),
        }
    }

    /// The same with only the rows for which `keep` holds.
    pub fn filtered(&self, keep: impl Fn(&Self, &[Value]) -> bool) -> Self {
        let rows = self.rows.iter().filter(|row| keep(self, row)).cloned().collect();
        Self { rows, ..self.clone() }
    }
}
