//! The loss of a whole text, however long: window by window, every token once.
//!
//! A window has at most the tokens that the model was trained for, and begins with the token that its tokenizer puts before texts. Without such a token
//! the first of each window is not predicted in it, so windows overlap by one.

use crate::edits::{Edits, Sources};
use crate::error::{Error, Result};
use crate::model::Model;

impl Model {
    /// The loss of each token of a text in nats (but of the first, where nothing comes before it), by windows that begin `stride` tokens apart; by default
    /// as far apart as they can. `watch` is told how many tokens are done, of how many.
    ///
    /// # Errors
    /// As [`Model::losses`]; [`Error::Tokens`] for a stride that would leave tokens out, or a text without two tokens.
    pub fn evaluate(
        &self,
        ids: &[u32],
        stride: Option<usize>,
        edits: &Edits,
        sources: &Sources,
        mut watch: impl FnMut(usize, usize),
    ) -> Result<Vec<f64>> {
        let first = self.tokenizer().ok().and_then(|tokenizer| tokenizer.first()).filter(|first| ids.first() == Some(first));
        let text = &ids[usize::from(first.is_some())..];
        // Of each window: what has nothing before it.
        let unknown = usize::from(first.is_none());
        let room = self.context().saturating_sub(1 - unknown);
        if text.len() < 1 + unknown {
            return Err(Error::Tokens { reason: "a loss needs two tokens at least: the second is predicted from the first".to_owned() });
        }
        let most = room.saturating_sub(unknown).max(1);
        let stride = stride.unwrap_or(most);
        if stride == 0 || stride > most {
            return Err(Error::Tokens {
                reason: format!("a stride of {stride} is not possible: from 1 to {most} tokens, so that none is left out"),
            });
        }
        let (mut losses, mut start) = (Vec::with_capacity(text.len()), 0);
        loop {
            let end = (start + room.max(2)).min(text.len());
            let window: Vec<u32> = first.into_iter().chain(text[start..end].iter().copied()).collect();
            let new = losses.len() + unknown..end;
            let of_window = self.losses(&window, edits, sources)?;
            losses.extend(new.map(|token| of_window[token - start - unknown]));
            watch(end, text.len());
            if end == text.len() {
                return Ok(losses);
            }
            start += stride;
        }
    }
}
