//! Tables as files: CSV with `# key: value` lines above it, and JSON.

use crate::error::{Error, Result};
use crate::table::{Column, Table, Value};
use serde_json::{Map, json};
use std::path::Path;

const CAPTION: &str = "caption";
/// `# title NAME: TITLE` keeps what people read above the column.
const TITLE: &str = "title ";

impl Table {
    /// The whole file.
    pub fn to_csv(&self) -> Vec<u8> {
        let line = |text: &str| text.replace(['\n', '\r'], " ");
        let mut out = format!("# {CAPTION}: {}\n", line(&self.caption));
        for (key, value) in &self.origin {
            out += &format!("# {}: {}\n", line(key), line(value));
        }
        for column in self.columns.iter().filter(|c| c.title != c.name) {
            out += &format!("# {TITLE}{}: {}\n", column.name, line(&column.title));
        }
        let mut csv = csv::WriterBuilder::new().from_writer(out.into_bytes());
        let header = self.columns.iter().map(|c| c.name.as_str());
        csv.write_record(header).expect("memory can be written to, and every record has the same length");
        for row in &self.rows {
            csv.write_record(row.iter().map(Value::to_field)).expect("rows are as long as the columns");
        }
        csv.into_inner().expect("memory can be flushed")
    }

    /// Reads back what [`Table::to_csv`] wrote; `name` is the file's stem.
    ///
    /// # Errors
    /// The reason, when the bytes are not such a file.
    pub fn from_csv(name: &str, bytes: &[u8]) -> std::result::Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        let mut table = Self { name: name.to_owned(), ..Self::default() };
        let mut titles = Vec::new();
        let mut body = 0;
        for line in text.split_inclusive('\n') {
            let Some(comment) = line.strip_prefix("# ") else { break };
            body += line.len();
            let (key, value) =
                comment.trim_end_matches(['\r', '\n']).split_once(": ").ok_or("a line above the header is not `# key: value`")?;
            match key.strip_prefix(TITLE) {
                Some(column) => titles.push((column, value)),
                None if key == CAPTION => table.caption = value.to_owned(),
                None => table.origin.push((key.to_owned(), value.to_owned())),
            }
        }
        let mut csv = csv::ReaderBuilder::new().from_reader(&bytes[body..]);
        for name in csv.headers().map_err(|e| e.to_string())? {
            let title = titles.iter().find(|(column, _)| *column == name).map_or(name, |(_, title)| title);
            table.columns.push(Column { name: name.to_owned(), title: title.to_owned() });
        }
        for record in csv.records() {
            table.rows.push(record.map_err(|e| e.to_string())?.iter().map(Value::from_field).collect());
        }
        Ok(table)
    }

    /// An object with the caption, the origin, the columns, and one object per row.
    pub fn to_json(&self) -> serde_json::Value {
        let row = |row: &Vec<Value>| -> serde_json::Value {
            let pairs = self.columns.iter().zip(row).map(|(c, v)| (c.name.clone(), json_value(v)));
            serde_json::Value::Object(pairs.collect::<Map<_, _>>())
        };
        let origin: Map<_, _> = self.origin.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        json!({
            "name": self.name,
            "caption": self.caption,
            "origin": origin,
            "columns": self.columns.iter().map(|c| json!({"name": c.name, "title": c.title})).collect::<Vec<_>>(),
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }

    /// Reads `DIR/NAME.csv`.
    ///
    /// # Errors
    /// When the file cannot be read, or is not a table.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = regard_files::read_bytes(path, regard_files::limits::TABLE_BYTES.max)?;
        let name = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        Self::from_csv(&name, &bytes).map_err(|reason| Error::NotATable { path: path.to_owned(), reason })
    }
}

/// NaN and infinities, which JSON lacks, become strings.
fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Number(x) if x.is_finite() => json!(x),
        Value::Number(x) => json!(format!("{x:?}")),
        Value::Integer(n) => json!(n),
        Value::Text(text) => json!(text),
        Value::Flag(flag) => json!(flag),
        Value::Missing => serde_json::Value::Null,
    }
}
