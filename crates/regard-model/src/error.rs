//! What can go wrong, in one line that says what to do.

use std::path::{Path, PathBuf};

/// Why a model, a text or an edit was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The transformer refused.
    #[error(transparent)]
    Network(regard_nn::Error),
    /// Attention refused.
    #[error(transparent)]
    Attention(regard::Error),
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file layer refused.
    #[error(transparent)]
    Files(#[from] regard_files::Error),
    /// A file that is not what it should be.
    #[error("{} cannot be used: {reason}", path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Nothing that looks like a model.
    #[error("{} is no model: {reason}", path.display())]
    NoModel {
        /// Which.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// A family of models that has no list of parts here.
    #[error("the family {name:?} is not known: {missing}")]
    Family {
        /// As the file calls it.
        name: String,
        /// What would be needed.
        missing: String,
    },
    /// A setting of a model that has no part here.
    #[error("the setting {name} of the model is {value}, which cannot be run: {reason}")]
    Setting {
        /// Its name in the file.
        name: String,
        /// What it is.
        value: String,
        /// What can.
        reason: String,
    },
    /// A model without a tokenizer got a text.
    #[error("{reason}; give token ids instead of a text")]
    NoTokenizer {
        /// What was looked for.
        reason: String,
    },
    /// A tokenizer that cannot be used.
    #[error("the tokenizer cannot be used: {reason}")]
    Tokenizer {
        /// Why.
        reason: String,
    },
    /// Tokens that cannot be run.
    #[error("{reason}")]
    Tokens {
        /// Which, and why.
        reason: String,
    },
    /// A model that only reads was asked for logits.
    #[error("the model has no head for next tokens: it gives hidden states, not {what}")]
    NoHead {
        /// What was asked for.
        what: &'static str,
    },
    /// A model that reads in both directions was asked to write.
    #[error("the model is bidirectional and cannot generate; use a causal model")]
    Encoder,
    /// The work was cancelled.
    #[error("stopped")]
    Stopped,
    /// Numbers that are none.
    #[error("{what} of the model are not finite: its weights are damaged, or the edit has made them too large")]
    NotNumbers {
        /// Which.
        what: &'static str,
    },
    /// An edit that cannot be read or does not fit the model.
    #[error("the edit {edit:?} cannot be made: {reason}")]
    Edit {
        /// As it was given.
        edit: String,
        /// Why.
        reason: String,
    },
    /// A place that the model does not have.
    #[error("{what} {number} is out of range: there are {count}, counted from 0")]
    Outside {
        /// Layer, head or row.
        what: &'static str,
        /// Which.
        number: usize,
        /// How many.
        count: usize,
    },
}

impl From<regard_nn::Error> for Error {
    fn from(error: regard_nn::Error) -> Self {
        match error {
            regard_nn::Error::Attention(error) => error.into(),
            error => Self::Network(error),
        }
    }
}

impl From<regard::Error> for Error {
    fn from(error: regard::Error) -> Self {
        match error {
            regard::Error::Interrupted => Self::Stopped,
            error => Self::Attention(error),
        }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn damaged(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }

    pub(crate) fn file(path: &Path, source: std::io::Error) -> Self {
        Self::File { path: path.to_owned(), source }
    }
}
