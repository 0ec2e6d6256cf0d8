//! Errors of tables, figures and folders.

use std::path::PathBuf;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or a folder could not be used.
    #[error(transparent)]
    Files(#[from] regard_files::Error),
    /// A recorded table does not exist.
    #[error("{} is recorded in .regard.json but does not exist: put it back, or run the command that made it again", path.display())]
    Gone {
        /// The table.
        path: PathBuf,
    },
    /// A table that is recorded has other bytes now.
    #[error("{} was changed since regard wrote it: put the table back, or run the command that made it again", path.display())]
    Changed {
        /// The table.
        path: PathBuf,
    },
    /// A table that no record of its directory has.
    #[error("{} is not recorded in .regard.json: move it to another directory, or run the command that makes it", path.display())]
    NotRecorded {
        /// The table.
        path: PathBuf,
    },
    /// A CSV file is not a table.
    #[error("{} is not a table that regard wrote: {reason}", path.display())]
    NotATable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A directory does not hold the tables of a report.
    #[error("{} has no {table}.csv: run `regard report --out {}` first", path.display(), path.display())]
    NoTable {
        /// The directory.
        path: PathBuf,
        /// The table that is missing.
        table: String,
    },
    /// A table lacks a row that a figure or a verdict needs.
    #[error("table {table} has no row with {wanted}: run `regard report` again")]
    NoRow {
        /// The table.
        table: String,
        /// Which row.
        wanted: String,
    },
    /// A figure could not be drawn.
    #[error(transparent)]
    Figure(#[from] crate::figure::FigureError),
}

/// A result, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;
