//! Errors of the laboratory.

use std::path::PathBuf;

/// Reasons why an experiment does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting of an experiment is outside of what it can do.
    #[error("invalid {name}: {value}; it must be {requirement}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What it was set to.
        value: String,
        /// What it must be.
        requirement: &'static str,
    },
    /// A list of values to go through is empty.
    #[error("{name} is an empty list; give at least one value, for example {example}")]
    EmptyList {
        /// The setting.
        name: &'static str,
        /// A list that would work.
        example: &'static str,
    },
    /// More memory would be needed than there is.
    #[error("not enough memory for {what}: {needed} needed, {free} free; choose smaller sizes")]
    Memory {
        /// What would take it.
        what: String,
        /// How much.
        needed: String,
        /// How much there is.
        free: String,
    },
    /// A file could not be used.
    #[error(transparent)]
    Files(#[from] regard_files::Error),
    /// The attention library refused a call.
    #[error(transparent)]
    Attention(#[from] regard::Error),
    /// A model could not be built or trained.
    #[error(transparent)]
    Learning(#[from] regard_nn::Error),
    /// A checkpoint could not be read or run.
    #[error(transparent)]
    Model(#[from] regard_model::Error),
    /// PyTorch's program failed or returned an invalid result.
    #[error("the Python program {} failed: {reason}", python.display())]
    Peer {
        /// The interpreter.
        python: PathBuf,
        /// Its last line.
        reason: String,
    },
    /// A figure could not be drawn.
    #[error(transparent)]
    Figure(#[from] regard_plot::figure::FigureError),
    /// A table or a folder could not be used.
    #[error(transparent)]
    Plot(#[from] regard_plot::Error),
    /// A Python has no PyTorch.
    #[error("{} cannot import torch; give a Python that has PyTorch, or omit --python", python.display())]
    NoTorch {
        /// The interpreter.
        python: PathBuf,
    },
    /// Arguments that the experiment does not accept.
    #[error("{reason}")]
    Arguments {
        /// What is wrong with them.
        reason: String,
    },
    /// A file of claims that cannot be used.
    #[error("{}: {reason}", path.display())]
    Claims {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An invalid shard of a run.
    #[error("{}: {reason}", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// `Result` with the laboratory's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// [`Error::Setting`] unless `ok`.
pub(crate) fn require(ok: bool, name: &'static str, value: impl ToString, requirement: &'static str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Setting { name, value: value.to_string(), requirement }) }
}
