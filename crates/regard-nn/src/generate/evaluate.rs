//! Windows over a long text, such that every token is predicted exactly once.
//!
//! ```text
//! tokens            a b c d e f g h i          4 predictions a window, stride 2
//! first window      a b c d                    predicts b c d e
//! second                c d e f                predicts     f g       d and e were predicted before
//! last                      e f g h            predicts         h i
//! ```
//!
//! A stride as long as a window reads each token once, and the first tokens of each window have little context. A shorter one gives every
//! token at least `predictions - stride` tokens before it, and costs `predictions / stride` times as much.

use crate::error::{Error, Result};
use std::ops::Range;

/// How a text is split into windows.
#[derive(Debug, Clone, Copy)]
pub struct Split {
    /// Tokens of the text.
    pub tokens: usize,
    /// The first token that is predicted: 1, or 0 after a BOS token.
    pub first: usize,
    /// Predictions of a window.
    pub predictions: usize,
    /// Predictions between the starts of windows; as many as a window has by default.
    pub stride: Option<usize>,
    /// The last window is as long as the others and ends with the text; else it is shorter.
    pub whole_last: bool,
}

/// The tokens that a window predicts, and those of them that no window before it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// All predictions.
    pub targets: Range<usize>,
    /// Those that count.
    pub new: Range<usize>,
}

impl Split {
    /// The windows in order.
    ///
    /// # Errors
    /// [`Error::Config`] for a stride of 0 or beyond a window, [`Error::ShortText`] when there is nothing to predict.
    pub fn windows(&self) -> Result<Vec<Window>> {
        let Self { tokens, first, predictions, whole_last, .. } = *self;
        let stride = self.stride.unwrap_or(predictions);
        if stride == 0 || stride > predictions {
            let requirement = format!("from 1 to {predictions}, so that no token is left out");
            return Err(Error::Config { name: "the stride", value: stride.to_string(), requirement });
        }
        if tokens <= first {
            return Err(Error::ShortText { what: "the text", got: tokens, needed: first + 1 });
        }
        let (mut windows, mut done, mut start) = (Vec::new(), first, first);
        while done < tokens {
            let end = start.saturating_add(predictions).min(tokens);
            if whole_last && end == tokens {
                start = tokens.saturating_sub(predictions).max(first);
            }
            windows.push(Window { targets: start..end, new: done..end });
            (done, start) = (end, start + stride);
        }
        Ok(windows)
    }
}
