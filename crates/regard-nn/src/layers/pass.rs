//! One pass through a model: its shape, its mask, and the requested results.

use regard::Mask;
use serde::{Deserialize, Serialize};

/// Masks of self-attention that have a name. With next-token targets only [`MaskKind::Causal`] is honest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaskKind {
    /// Itself and the past: `j <= i`.
    #[default]
    Causal,
    /// Itself and the future: `j >= i`.
    Reverse,
    /// Only the future: `j > i`; the last row sees nothing.
    StrictlyFuture,
    /// Everything.
    Everything,
    /// The future except the next token: `j = i` or `j >= i + 2`.
    SkipNext,
}

impl MaskKind {
    /// As a mask of the attention.
    pub fn mask(self) -> Mask<'static> {
        match self {
            Self::Causal => Mask::causal(),
            Self::Reverse => Mask::reverse(),
            Self::StrictlyFuture => Mask::strictly_future(),
            Self::Everything => Mask::everything(),
            Self::SkipNext => Mask::reverse() & !(Mask::strictly_future() & Mask::window(None, Some(1))),
        }
    }
}

impl From<MaskKind> for Mask<'_> {
    fn from(kind: MaskKind) -> Self {
        kind.mask()
    }
}

/// Which rows' logits are wanted: each costs a product with the whole vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wanted<'a> {
    /// The last token's, of each sequence.
    LastRow,
    /// These rows', counted over all sequences one after the other.
    Rows(&'a [usize]),
    /// All.
    #[default]
    All,
}

/// The shape of one pass through a model, and what holds for all its layers.
#[derive(Debug, Clone)]
pub struct Pass<'a> {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub seq: usize,
    /// Position of the first token of every sequence.
    pub offset: usize,
    /// The same, one for each sequence; instead of `offset`.
    pub offsets: Option<&'a [usize]>,
    /// Self-attention: which keys, by position.
    pub mask: Mask<'a>,
    /// The number of valid keys of each sequence.
    pub key_lengths: Option<&'a [usize]>,
    /// Tokens of each sequence of the memory that cross-attention reads.
    pub memory_seq: usize,
    /// The number of valid rows of each sequence.
    pub memory_lengths: Option<&'a [usize]>,
    /// Training with dropout: the seed of this step.
    pub dropout: Option<u64>,
    /// Which logits.
    pub wanted: Wanted<'a>,
}

impl<'a> Pass<'a> {
    /// Self-attention only, no dropout, all logits.
    pub fn new(batch: usize, seq: usize, mask: impl Into<Mask<'a>>) -> Self {
        Self {
            batch,
            seq,
            offset: 0,
            offsets: None,
            mask: mask.into(),
            key_lengths: None,
            memory_seq: 0,
            memory_lengths: None,
            dropout: None,
            wanted: Wanted::All,
        }
    }

    /// Rows of the residual stream.
    pub fn rows(&self) -> usize {
        self.batch * self.seq
    }

    /// Rows of the memory.
    pub fn memory_rows(&self) -> usize {
        self.batch * self.memory_seq
    }

    /// Position of the first token of a sequence.
    pub fn start(&self, sequence: usize) -> usize {
        self.offsets.map_or(self.offset, |offsets| offsets[sequence])
    }

    /// Position of a row.
    pub fn position(&self, row: usize) -> usize {
        self.start(row / self.seq.max(1)) + row % self.seq.max(1)
    }

    /// One more than the last position of any sequence.
    pub fn end(&self) -> usize {
        self.seq + self.offsets.map_or(self.offset, |offsets| offsets.iter().copied().max().unwrap_or(0))
    }

    /// The rows whose logits are wanted; `None` for all.
    pub fn wanted_rows(&self) -> Option<Vec<usize>> {
        match self.wanted {
            Wanted::All => None,
            Wanted::LastRow => Some((1..=self.batch).map(|b| (b * self.seq).saturating_sub(1)).collect()),
            Wanted::Rows(rows) => Some(rows.to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard::HeadPosition;

    #[test]
    fn masks_are_what_they_are_called() {
        let place = HeadPosition { batch: 0, head: 0, q_offset: 0 };
        let rows = |kind: MaskKind| {
            let row = |i| (0..5).map(|j| if kind.mask().visible(&place, i, j) { '#' } else { '.' }).collect::<String>();
            (0..5).map(row).collect::<Vec<_>>()
        };
        assert_eq!(rows(MaskKind::Causal), ["#....", "##...", "###..", "####.", "#####"]);
        assert_eq!(rows(MaskKind::Reverse), ["#####", ".####", "..###", "...##", "....#"]);
        assert_eq!(rows(MaskKind::StrictlyFuture), [".####", "..###", "...##", "....#", "....."]);
        assert_eq!(rows(MaskKind::SkipNext), ["#.###", ".#.##", "..#.#", "...#.", "....#"]);
        assert_eq!(rows(MaskKind::Everything), ["#####"; 5]);
    }

    #[test]
    fn positions_and_wanted_rows_are_counted_by_sequence() {
        let pass = Pass { offsets: Some(&[5, 0]), wanted: Wanted::LastRow, ..Pass::new(2, 3, MaskKind::Causal) };
        assert_eq!((0..6).map(|row| pass.position(row)).collect::<Vec<_>>(), [5, 6, 7, 0, 1, 2]);
        assert_eq!((pass.end(), pass.wanted_rows()), (8, Some(vec![2, 5])));
    }
}
