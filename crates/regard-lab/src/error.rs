//! What can go wrong in the laboratory.

use std::path::PathBuf;

/// Why an experiment did not run, or a file was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of an experiment is outside of what it can do.
    #[error("{name} = {value} is not possible: it must be {requirement}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What it must be.
        requirement: &'static str,
    },
    /// A list of values to go through is empty.
    #[error("{name} is an empty list: give at least one value, for example {example}")]
    EmptyList {
        /// The setting.
        name: &'static str,
        /// A list that would work.
        example: &'static str,
    },
    /// More memory would be needed than there is.
    #[error("{what} would take {needed}, and {free} are free: choose smaller sizes")]
    Memory {
        /// What would take it.
        what: String,
        /// How much.
        needed: String,
        /// How much there is.
        free: String,
    },
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
    /// A text to learn from cannot be used.
    #[error("cannot read {}: {reason}", path.display())]
    Text {
        /// The file, or `-` for the standard input.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
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
    /// The attention library refused a call.
    #[error(transparent)]
    Attention(#[from] regard::Error),
    /// A model could not be built or trained.
    #[error(transparent)]
    Learning(#[from] regard_nn::Error),
    /// The other implementation answered something else than results.
    #[error("the Python program {} failed: {reason}", python.display())]
    Peer {
        /// The interpreter.
        python: PathBuf,
        /// Its last line.
        reason: String,
    },
}

/// A result, or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

/// `Err` with the name, the value and the requirement, unless `ok`.
pub(crate) fn require(ok: bool, name: &'static str, value: impl ToString, requirement: &'static str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Setting { name, value: value.to_string(), requirement }) }
}
