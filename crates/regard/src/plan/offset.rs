//! The global offset of a call within a larger whole, and the progress of calls over its pieces.

use crate::error::{Error, Result};
use std::ops::Range;

/// Global offset of a call's tensors within a larger whole: masks, dropout and distances use positions in the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalOffset {
    /// The first batch entry.
    pub batch: usize,
    /// The first query.
    pub query: usize,
    /// The first key.
    pub key: usize,
    /// The shape of all scores, `[batch, heads_q, seq_q, seq_kv]`.
    pub whole: [usize; 4],
}

/// Progress of calls over the pieces of a whole.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// The place of the next piece; `None` before the first one.
    pub(crate) next: Option<GlobalOffset>,
    /// The last piece was absorbed.
    pub(crate) finished: bool,
}

impl Progress {
    /// The keys between the last piece and this one.
    ///
    /// # Errors
    /// [`Error::State`] for pieces of another whole, [`Error::PieceOrder`] for keys that were absorbed before.
    pub(crate) fn skipped(&self, part: &GlobalOffset, keys: usize) -> Result<Range<usize>> {
        let next = self.next.unwrap_or(GlobalOffset { key: 0, ..*part });
        let places = |part: &GlobalOffset| [part.batch, part.query, part.whole[0], part.whole[1], part.whole[2], part.whole[3]];
        let names = ["as its first batch entry", "as its first query", "batch entries", "heads", "queries", "keys"];
        for ((what, got), expected) in names.into_iter().zip(places(&next)).zip(places(part)) {
            if got != expected {
                return Err(Error::State { what, got, expected });
            }
        }
        if self.finished || part.key < next.key { Err(self.out_of_order(part, keys)) } else { Ok(next.key..part.key) }
    }

    pub(crate) fn out_of_order(&self, part: &GlobalOffset, keys: usize) -> Error {
        Error::PieceOrder { start: part.key, end: part.key + keys, next: self.next.map_or(0, |next| next.key), len: part.whole[3] }
    }

    /// A piece was absorbed.
    pub(crate) fn advance(&mut self, part: &GlobalOffset, keys: usize) {
        let end = part.key + keys;
        *self = Self { next: Some(GlobalOffset { key: end, ..*part }), finished: end == part.whole[3] };
    }
}
