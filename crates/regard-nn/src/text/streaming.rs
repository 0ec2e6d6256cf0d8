//! Tokens to text while they are being written: only text that no later token can change.

/// Stands for bytes that are no character, or not yet.
const REPLACEMENT: char = '\u{FFFD}';
/// A character has at most four bytes and a token at least one: the last of four tokens can still change, the first cannot.
const NEEDED: usize = 4;
/// Tokens that are decoded again with each new one, at most.
const KEPT: usize = 16;

/// A text that grows token by token. A byte-level token may hold only the first bytes of a character: these are held back until
/// the rest is there, or until it cannot come any more.
#[derive(Debug)]
pub struct TextStream<D> {
    decode: D,
    /// The last tokens: decoders look at the tokens before.
    tokens: Vec<u32>,
    /// Bytes of their text that were returned.
    given: usize,
}

impl<E, D: Fn(&[u32]) -> Result<String, E>> TextStream<D> {
    /// No text yet; `decode` makes a text from tokens.
    pub fn new(decode: D) -> Self {
        Self { decode, tokens: Vec::new(), given: 0 }
    }

    /// One more token; returns the text that it completes, often none.
    ///
    /// # Errors
    /// Those of the decoder.
    pub fn push(&mut self, token: u32) -> Result<String, E> {
        self.tokens.push(token);
        let text = (self.decode)(&self.tokens)?;
        // An unfinished character is one replacement at the very end; any other one stays what it is.
        let unfinished = if text.ends_with(REPLACEMENT) { REPLACEMENT.len_utf8() } else { 0 };
        let certain = text.len() - unfinished;
        let new = text.get(self.given..certain).unwrap_or_default().to_owned();
        self.given = certain.max(self.given.min(text.len()));
        if self.tokens.len() >= KEPT {
            self.tokens.drain(..KEPT - NEEDED);
            self.given = (self.decode)(&self.tokens)?.len().saturating_sub(unfinished);
        }
        Ok(new)
    }

    /// The text that is held back: bytes that no further token completes.
    ///
    /// # Errors
    /// None after every [`TextStream::push`] succeeded.
    pub fn finish(self) -> Result<String, E> {
        let mut text = (self.decode)(&self.tokens)?;
        Ok(text.split_off(self.given.min(text.len())))
    }
}
