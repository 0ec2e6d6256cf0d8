//! The tables of a report, by name.

use crate::error::{Error, Result};
use crate::folder::recorded;
use crate::table::{Table, Value};
use std::path::{Path, PathBuf};

/// Tables, found by name.
#[derive(Debug, Clone, Default)]
pub struct Tables {
    tables: Vec<Table>,
    /// Where they were read from.
    folder: PathBuf,
}

impl From<Vec<Table>> for Tables {
    fn from(tables: Vec<Table>) -> Self {
        Self { tables, folder: PathBuf::from("report") }
    }
}

impl Tables {
    /// Every CSV file of a directory that is a table with an origin; other files are passed over, unless the directory's record has them.
    ///
    /// # Errors
    /// When the directory cannot be read, a table in it is damaged, or one that is recorded is gone.
    pub fn read(folder: &Path) -> Result<Self> {
        let recorded: Vec<PathBuf> = recorded(folder)?.iter().filter(|name| name.ends_with(".csv")).map(|name| folder.join(name)).collect();
        if let Some(path) = recorded.iter().find(|path| !path.exists()) {
            return Err(Error::Gone { path: path.clone() });
        }
        let cannot = |source| Error::File { action: "read", path: folder.to_owned(), source };
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
            let bytes = std::fs::read(&path).map_err(|source| Error::File { action: "read", path: path.clone(), source })?;
            if bytes.starts_with(b"# caption: ") {
                tables.push(Table::read(&path)?);
            } else if recorded.contains(&path) {
                return Err(Error::NotATable {
                    path,
                    reason: "it does not begin with a caption; put the table back that was there".to_owned(),
                });
            }
        }
        Ok(Self { tables, folder: folder.to_owned() })
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
