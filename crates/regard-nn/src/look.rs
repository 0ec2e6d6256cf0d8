//! Which tokens a model may look at.

use regard::Mask;
use serde::{Deserialize, Serialize};

/// The mask of self-attention in words. With next-token targets only [`MaskKind::Causal`] is honest.
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

/// What one call of self- or cross-attention may look at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Look<'a> {
    /// Which keys, by position.
    pub mask: MaskKind,
    /// Only the first so many keys of each sequence exist.
    pub key_lengths: Option<&'a [usize]>,
}

/// The shape of one pass through a stack, and what holds for all its layers.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Sequences.
    pub batch: usize,
    /// Tokens of each.
    pub seq: usize,
    /// Position of the first token, where positions are added to embeddings.
    pub offset: usize,
    /// Self-attention.
    pub look: Look<'a>,
    /// Tokens of each sequence of the memory that cross-attention reads.
    pub memory_seq: usize,
    /// Only the first so many of these exist.
    pub memory_lengths: Option<&'a [usize]>,
    /// Training with dropout: the seed of this step.
    pub dropout: Option<u64>,
}

impl<'a> Call<'a> {
    /// Self-attention only, no dropout.
    pub fn new(batch: usize, seq: usize, mask: MaskKind) -> Self {
        Self { batch, seq, offset: 0, look: Look { mask, key_lengths: None }, memory_seq: 0, memory_lengths: None, dropout: None }
    }

    /// Rows of the residual stream.
    pub fn rows(&self) -> usize {
        self.batch * self.seq
    }

    /// Rows of the memory.
    pub fn memory_rows(&self) -> usize {
        self.batch * self.memory_seq
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
}
