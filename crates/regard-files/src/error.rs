//! Errors of the file layer.

use std::path::PathBuf;

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A directory cannot be created or written to.
    #[error("cannot write into {}: {source}; choose another directory", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file cannot be read, written or removed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// `read`, `write` or `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file that Regard would write exists and is not recorded as Regard's.
    #[error("{} was not written by regard and is left alone: move it, or choose another name or directory", path.display())]
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// A file that Regard wrote has other bytes now.
    #[error("{} was changed since regard wrote it and is left alone: move it, or choose another name or directory", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A name that must be a regular file is something else.
    #[error("{} is a {kind}, not a regular file: {advice}", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// `symbolic link`, `directory`, `named pipe`, `socket`, `device` ...
        kind: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The record of a directory is not valid.
    #[error("{} is not a record that regard wrote: {reason}; remove it, or choose another directory", path.display())]
    Record {
        /// The record.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A stored step of an interrupted run is not what Regard wrote.
    #[error("{} is not a step that regard stored: {reason}; remove it, and the step runs again", path.display())]
    Step {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Another process has the directory locked.
    #[error("another run of regard is writing to {}: wait until it ends, or choose another directory", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// A file is longer than the limit.
    #[error("{} is longer than {limit} bytes; give a smaller file", shown(path))]
    TooLong {
        /// The file, or `-` for the standard input.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// A text is not UTF-8.
    #[error("{} is not UTF-8: invalid UTF-8 at byte {at}; convert it to UTF-8 first", shown(path))]
    NotUtf8 {
        /// The file, or `-` for the standard input.
        path: PathBuf,
        /// Offset of the first invalid byte.
        at: usize,
    },
    /// A text has no characters.
    #[error("{} is empty; give a file with text", shown(path))]
    Empty {
        /// The file, or `-` for the standard input.
        path: PathBuf,
    },
    /// A value of 0 where something is counted.
    #[error("{name} = 0 leaves nothing to do; give at least 1")]
    Zero {
        /// The option.
        name: &'static str,
    },
    /// A value is above its limit.
    #[error("{name} = {value} is above the limit of {limit} {unit}; give a smaller value")]
    Limit {
        /// The option or input.
        name: String,
        /// Its value.
        value: u64,
        /// The largest value.
        limit: u64,
        /// What is counted.
        unit: &'static str,
    },
}

/// `-` in words.
fn shown(path: &std::path::Path) -> std::path::Display<'_> {
    if path == std::path::Path::new("-") { std::path::Path::new("the standard input").display() } else { path.display() }
}

impl Error {
    /// Whether other arguments or another input avoid it; false for a failing disk.
    pub fn is_usage(&self) -> bool {
        !matches!(self, Self::File { action: "write" | "remove", .. })
    }
}

/// Result of the file layer.
pub type Result<T> = std::result::Result<T, Error>;
