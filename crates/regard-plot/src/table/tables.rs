//! The tables of a report, by name.

use crate::error::{Error, Result};
use crate::table::{Table, Value};
use regard_files::limits::TABLE_BYTES;
use regard_files::{read_bytes, recorded};
use std::path::{Path, PathBuf};

/// Tables, found by name.
#[derive(Debug, Clone)]
pub struct Tables {
    tables: Vec<Table>,
    /// Where they were read from.
    folder: PathBuf,
    verified: bool,
}

impl Default for Tables {
    fn default() -> Self {
        Self::from(Vec::new())
    }
}

impl From<Vec<Table>> for Tables {
    fn from(tables: Vec<Table>) -> Self {
        Self { tables, folder: PathBuf::from("report"), verified: true }
    }
}

impl Tables {
    /// Every CSV file of a directory that is a table with an origin. Where the directory has a record, each must have the recorded bytes;
    /// other CSV files are passed over.
    ///
    /// # Errors
    /// When the directory cannot be read, or a table is damaged, changed, not recorded or recorded and gone.
    pub fn read(folder: &Path) -> Result<Self> {
        let record = recorded(folder)?;
        let recorded_table = |name: &&str| name.ends_with(".csv");
        if let Some(name) = record.names().filter(recorded_table).find(|name| !folder.join(name).exists()) {
            return Err(Error::Gone { path: folder.join(name) });
        }
        let cannot = |source| regard_files::Error::File { action: "read", path: folder.to_owned(), source };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            if path.extension().is_some_and(|e| e == "csv") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut tables = Vec::new();
        for path in paths {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let bytes = read_bytes(&path, TABLE_BYTES.max)?;
            let is_table = bytes.starts_with(b"# caption: ");
            if record.contains(name) {
                if !record.has(name, &bytes) {
                    return Err(Error::Changed { path });
                }
            } else if !is_table {
                continue;
            } else if record.exists {
                return Err(Error::NotRecorded { path });
            }
            let name = name.strip_suffix(".csv").unwrap_or(name).to_owned();
            tables.push(Table::from_csv(&name, &bytes).map_err(|reason| Error::NotATable { path, reason })?);
        }
        Ok(Self { tables, folder: folder.to_owned(), verified: record.exists })
    }

    /// Whether every table has the digest that the record of its directory has; true for tables that were not read.
    pub fn verified(&self) -> bool {
        self.verified
    }

    /// The table of that name.
    ///
    /// # Errors
    /// [`Error::NoTable`] when there is none.
    pub fn get(&self, name: &str) -> Result<&Table> {
        self.find(name).ok_or_else(|| Error::NoTable { path: self.folder.clone(), table: name.to_owned() })
    }

    /// The table of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// One more, or another of the same name.
    pub fn put(&mut self, table: Table) {
        match self.tables.iter_mut().find(|t| t.name == table.name) {
            Some(old) => *old = table,
            None => self.tables.push(table),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[Table] {
        &self.tables
    }

    /// One number: of the first row of a table whose columns have these values; NaN where the row has none.
    ///
    /// # Errors
    /// When there is no such table or row.
    pub fn number(&self, table: &str, at: &[(&str, Value)], column: &str) -> Result<f64> {
        let table = self.get(table)?;
        let here = |row: &&Vec<Value>| at.iter().all(|(column, value)| table.value(row, column) == value);
        let missing = || {
            let wanted: Vec<_> = at.iter().map(|(column, value)| format!("{column} = {}", value.to_field())).collect();
            Error::NoRow { table: table.name.clone(), wanted: wanted.join(", ") }
        };
        table.rows.iter().find(here).map(|row| table.number(row, column)).ok_or_else(missing)
    }
}
