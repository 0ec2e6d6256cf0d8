//! What can go wrong with tables, figures and folders.

use std::path::PathBuf;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A directory cannot be made or written to.
    #[error("cannot write into {}: {source}; choose another directory with --out", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file that Regard would write is there already, and is not one of Regard's.
    #[error("{} was not written by regard and is left alone: move it, or choose another directory with --out", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// A file that Regard wrote has other bytes now.
    #[error("{} was changed since regard wrote it and is left alone: move it, or choose another directory with --out", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The record of what Regard wrote into a directory cannot be trusted.
    #[error("{} is not a record that regard wrote: {reason}; remove it, or choose another directory", path.display())]
    Record {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A table that is recorded is gone.
    #[error("{} is recorded in .regard.json but is not there: put it back, or run the command that made it again", path.display())]
    Gone {
        /// The table.
        path: PathBuf,
    },
    /// Another run of Regard writes to this directory.
    #[error("another run of regard is writing to {}: wait until it ends, or choose another directory with --out", path.display())]
    Busy {
        /// The directory.
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
