//! Tokens to text while they are being written, with nothing that a later token could still change.

use crate::error::Result;
use crate::tokenizer::Tokenizer;

/// Stands for bytes that are no character, or not yet.
const REPLACEMENT: char = '\u{FFFD}';
/// A character has at most four bytes and a token at least one: of so many tokens the last can still change, the first not.
const NEEDED: usize = 4;
/// Tokens that are decoded again with each new one, at most.
const KEPT: usize = 16;

/// A text that grows token by token. A byte-level token may hold only the first bytes of a character: these are held back until
/// the rest is there, or until it cannot come any more.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The last tokens: a decoder may want to see what a token follows.
    tokens: Vec<u32>,
    /// How much of their text was given out, in bytes.
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
        let text = self.tokenizer.decode(&self.tokens)?;
        // An unfinished character is one replacement at the very end; any other one stays what it is.
        let unfinished = if text.ends_with(REPLACEMENT) { REPLACEMENT.len_utf8() } else { 0 };
        let certain = text.len() - unfinished;
        let new = text.get(self.given..certain).unwrap_or_default().to_owned();
        self.given = certain.max(self.given.min(text.len()));
        if self.tokens.len() >= KEPT {
            self.tokens.drain(..KEPT - NEEDED);
            self.given = self.tokenizer.decode(&self.tokens)?.len().saturating_sub(unfinished);
        }
        Ok(new)
    }

    /// What is held back: bytes that no further token completes.
    ///
    /// # Errors
    /// None after every [`TextStream::push`] succeeded.
    pub fn finish(self) -> Result<String> {
        let mut text = self.tokenizer.decode(&self.tokens)?;
        Ok(text.split_off(self.given.min(text.len())))
    }
}
