//! Tokens to text while they are being written, with nothing that a later token could still change.

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Stands for bytes that are no character, or not yet.
const REPLACEMENT: char = '\u{FFFD}';

/// A text that grows token by token. A byte-level token may hold only the first bytes of a character: these are held back until
/// the rest is there.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// Tokens that were given out last, because a decoder may want to see what a token follows, and those held back.
    tokens: Vec<u32>,
    given: usize,
}

impl<'t> TextStream<'t> {
    /// No text yet.
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self { tokenizer, tokens: Vec::new(), given: 0 }
    }

    /// One more token; returns what became certain by it, often nothing.
    ///
    /// # Errors
    /// When the token is not in the vocabulary.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.tokens.push(token);
        let text = self.held_back()?;
        if text.ends_with(REPLACEMENT) {
            return Ok(String::new());
        }
        self.tokens.drain(..self.given);
        self.given = self.tokens.len();
        Ok(text)
    }

    /// What is held back: bytes that no further token completes.
    ///
    /// # Errors
    /// None after every [`TextStream::push`] succeeded.
    pub fn finish(self) -> Result<String> {
        self.held_back()
    }

    fn held_back(&self) -> Result<String> {
        let before = self.tokenizer.decode(&self.tokens[..self.given])?.len();
        let mut text = self.tokenizer.decode(&self.tokens)?;
        Ok(text.split_off(before.min(text.len())))
    }
}
