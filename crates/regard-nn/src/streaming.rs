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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::TokenizerKind;

    fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> (String, Vec<String>) {
        let mut stream = TextStream::new(tokenizer);
        let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).expect("a token")).collect();
        pieces.push(stream.finish().expect("a rest"));
        (pieces.concat(), pieces)
    }

    #[test]
    fn text_is_the_same_piece_by_piece_and_no_character_is_torn() {
        let text = "The cat's café: 日本, \u{1F600}! The cat sat on the mat, the dog did not.\n";
        for kind in [TokenizerKind::Char, TokenizerKind::Bpe(257), TokenizerKind::Bpe(300), TokenizerKind::WordPiece(80)] {
            let tokenizer = Tokenizer::train(kind, text).expect("trained");
            let ids = tokenizer.encode(text).expect("encoded");
            let (whole, pieces) = streamed(&tokenizer, &ids);
            assert_eq!(whole, tokenizer.decode(&ids).expect("decoded"), "{kind:?}");
            assert!(pieces.iter().all(|piece| !piece.contains(REPLACEMENT)), "{kind:?}: {pieces:?}");
            assert!(pieces.iter().filter(|piece| !piece.is_empty()).count() > 10, "it comes in pieces: {pieces:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_character_come_out_as_the_whole_text_has_them() {
        let tokenizer = Tokenizer::train(TokenizerKind::Bpe(256), "日本 a").expect("trained");
        let ids = tokenizer.encode("日本a").expect("encoded");
        assert_eq!(ids.len(), 7);
        // The second character lacks its last byte, then its first.
        for broken in [[&ids[..5], &ids[6..]].concat(), [&ids[..3], &ids[4..]].concat(), ids[..5].to_vec()] {
            let (whole, _) = streamed(&tokenizer, &broken);
            assert_eq!(whole, tokenizer.decode(&broken).expect("decoded"));
            assert!(whole.contains(REPLACEMENT));
        }
    }
}
