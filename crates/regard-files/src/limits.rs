//! The table of limits: the largest values of inputs and options, for every command.

use crate::error::{Error, Result};

/// Largest value of one quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Largest value.
    pub max: u64,
    /// What is counted.
    pub unit: &'static str,
}

impl Limit {
    const fn new(max: u64, unit: &'static str) -> Self {
        Self { max, unit }
    }

    /// Refuse a value above the limit; `name` is the option, for example `--tokens`.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub fn check(&self, name: &str, value: usize) -> Result<()> {
        let (value, limit, unit) = (value as u64, self.max, self.unit);
        if value > limit { Err(Error::Limit { name: name.to_owned(), value, limit, unit }) } else { Ok(()) }
    }
}

/// A text to train on or to look at, in a file, an argument or on the standard input.
pub const TEXT_BYTES: Limit = Limit::new(512 << 20, "bytes");
/// Tokens of one text, and tokens to generate.
pub const TOKENS: Limit = Limit::new(1 << 20, "tokens");
/// Texts of one call.
pub const TEXTS: Limit = Limit::new(10_000, "texts");
/// Tokens of all texts of one call.
pub const ALL_TOKENS: Limit = Limit::new(1 << 24, "tokens in all texts");
/// Points between two texts at which gradients are taken.
pub const GRADIENT_STEPS: Limit = Limit::new(1000, "points");
/// Random circuits of one call.
pub const RANDOM_CIRCUITS: Limit = Limit::new(1000, "circuits");
/// Threads of the pool.
pub const THREADS: Limit = Limit::new(4096, "threads");
/// The record of a folder, a settings file, stored state: small files of JSON.
pub const STATE_BYTES: Limit = Limit::new(64 << 20, "bytes");
/// A file of claims.
pub const CLAIMS_BYTES: Limit = Limit::new(1 << 20, "bytes");
/// An image in a file.
pub const IMAGE_BYTES: Limit = Limit::new(64 << 20, "bytes");
/// Its pixels.
pub const IMAGE_PIXELS: Limit = Limit::new(1 << 26, "pixels");
/// A file of vectors that edits add.
pub const VECTORS_BYTES: Limit = Limit::new(1 << 30, "bytes");
/// `tokenizer.json` and vocabularies.
pub const TOKENIZER_BYTES: Limit = Limit::new(256 << 20, "bytes");
/// A sound: an hour in stereo at 48 kHz and 16 bits.
pub const SOUND_BYTES: Limit = Limit::new(700 << 20, "bytes");
/// A table (CSV) that Regard wrote.
pub const TABLE_BYTES: Limit = Limit::new(1 << 30, "bytes");
/// A page of `regard look --html` that may be replaced.
pub const PAGE_BYTES: Limit = Limit::new(4 << 30, "bytes");
/// A checkpoint that is read into memory.
pub const CHECKPOINT_BYTES: Limit = Limit::new(64 << 30, "bytes");

/// Texts and tokens of one call: at least one, each within its limit, and all together.
///
/// # Errors
/// [`Error::Zero`], [`Error::Limit`].
pub fn check_texts(texts: usize, tokens: usize) -> Result<()> {
    for (name, value) in [("--texts", texts), ("--tokens", tokens)] {
        if value == 0 {
            return Err(Error::Zero { name });
        }
    }
    TEXTS.check("--texts", texts)?;
    TOKENS.check("--tokens", tokens)?;
    ALL_TOKENS.check("--texts times --tokens", texts.saturating_mul(tokens))
}
