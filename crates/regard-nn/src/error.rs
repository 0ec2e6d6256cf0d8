//! What can go wrong, in one line that says what to do.

use std::path::PathBuf;

/// Why something was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Attention refused its operands.
    #[error(transparent)]
    Attention(#[from] regard::Error),
    /// A backward pass without a forward pass with the same buffers.
    #[error("backward was called before forward")]
    BackwardFirst,
    /// A configuration that makes no sense.
    #[error("{name} is {value}; it must be {requirement}")]
    Config {
        /// Which setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        requirement: String,
    },
    /// A token that the vocabulary does not have.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// How many there are.
        vocab: usize,
    },
    /// More tokens than there are positions.
    #[error("{tokens} tokens do not fit the context of {context}")]
    TooLong {
        /// How many.
        tokens: usize,
        /// How many are possible.
        context: usize,
    },
    /// A list has another length than the rest of the call says.
    #[error("{what} has {got} entries, expected {expected}")]
    Length {
        /// Which list.
        what: &'static str,
        /// Its length.
        got: usize,
        /// What it must be.
        expected: usize,
    },
    /// A text that is too short to train on.
    #[error("{what} has {got} tokens, but at least {needed} are needed; give a longer text or a smaller context")]
    ShortText {
        /// Which text.
        what: &'static str,
        /// Its tokens.
        got: usize,
        /// How many must be there.
        needed: usize,
    },
    /// A character that the tokenizer has not seen in training.
    #[error("the character {character:?} is not in the tokenizer's vocabulary")]
    Character {
        /// The character.
        character: char,
    },
    /// The tokenizer library refused.
    #[error("tokenizer: {reason}")]
    Tokenizer {
        /// What it said.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A checkpoint that cannot be used.
    #[error("checkpoint {path} cannot be used: {reason}")]
    Checkpoint {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The loss is not a number any more.
    #[error("the loss is {loss} at step {step}; lower the learning rate or clip gradients")]
    Diverged {
        /// The step.
        step: u64,
        /// The loss.
        loss: f64,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
