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
    /// Tokens for a model that has none.
    #[error("the model has no table of tokens: its rows come from a front end; give it sound or an image")]
    Untokenized,
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
    /// A file or a folder could not be read or written.
    #[error(transparent)]
    Files(#[from] regard_files::Error),
    /// A text that is not the one of the training that goes on.
    #[error("the text is not the one that the model in {} learns: give that one with --text, or train anew", folder.display())]
    OtherText {
        /// Where the model is.
        folder: PathBuf,
    },
    /// A tokenizer that gives other tokens than those of the training that goes on.
    #[error("{} is not the tokenizer that the model learns with: put that one back, or train anew", path.display())]
    OtherTokens {
        /// The tokenizer.
        path: PathBuf,
    },
    /// A tokenizer with another vocabulary than the model's.
    #[error("{} has {tokens} tokens, but the model has {vocab}: it is the tokenizer of another model", path.display())]
    OtherTokenizer {
        /// The tokenizer.
        path: PathBuf,
        /// Its tokens.
        tokens: usize,
        /// The model's.
        vocab: usize,
    },
    /// A folder without a model.
    #[error("{0} has no {file}: train one first with `regard train --out {0}{1}`", folder.display(), if *begun { " \
        --overwrite" } else { "" })]
    NoModel {
        /// The folder.
        folder: PathBuf,
        /// What is missing.
        file: &'static str,
        /// Others of a training's files are there: it was stopped before its first checkpoint.
        begun: bool,
    },
    /// A folder that has a model, or a file that would be replaced.
    #[error(
        "{} has a {} already: {} it with --overwrite, or choose another --out",
        folder.display(),
        if *model { "model".to_owned() } else { format!("file {file}") },
        if *model { "go on with --resume, replace" } else { "move it, replace" }
    )]
    Taken {
        /// The folder.
        folder: PathBuf,
        /// Which file.
        file: &'static str,
        /// It is the model itself.
        model: bool,
    },
    /// A model above the limit.
    #[error("the model has {parameters} parameters, at most {most} are possible: make it smaller")]
    TooManyParameters {
        /// Its parameters.
        parameters: usize,
        /// How many are possible.
        most: usize,
    },
    /// A training that does not fit into memory.
    #[error(
        "a step of {batch} x {seq} tokens needs about {} GB of memory, and {} GB are free: give more --micro-batches, or make the model \
            smaller",
        gigabytes(*needed),
        gigabytes(*available)
    )]
    Memory {
        /// Sequences that are computed at a time.
        batch: usize,
        /// Tokens of each.
        seq: usize,
        /// Bytes.
        needed: u128,
        /// Bytes.
        available: u128,
    },
    /// More workers than there is memory for.
    #[error(
        "{workers} workers need about {} GB of memory, and {} GB are free: give fewer --workers",
        gigabytes(*needed),
        gigabytes(*available)
    )]
    Workers {
        /// How many.
        workers: usize,
        /// Bytes.
        needed: u128,
        /// Bytes.
        available: u128,
    },
    /// A tensor that is missing or cannot be used.
    #[error("tensor {name} cannot be used: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A part that has no backward pass, or weights that cannot be trained.
    #[error("{part} can be used, but not trained")]
    Untrainable {
        /// Which part.
        part: &'static str,
    },
    /// A checkpoint that cannot be used.
    #[error("checkpoint {path} cannot be used: {reason}")]
    Checkpoint {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The gradient is not a number, or too large to be one.
    #[error("the gradient's norm is {norm} at step {step}, so the step was not made; lower the learning rate or clip gradients")]
    Gradient {
        /// The step.
        step: u64,
        /// The norm.
        norm: f64,
    },
    /// Another rank of a training is gone, silent, or does something else.
    #[error("{problem}")]
    Ranks {
        /// Which ranks, and what is the matter.
        problem: String,
    },
    /// Logits that no token can be drawn from.
    #[error("the logits of the next token are not finite: the model's weights are damaged or have diverged")]
    Logits,
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

fn gigabytes(bytes: u128) -> String {
    format!("{:.1}", bytes as f64 / 1e9)
}
