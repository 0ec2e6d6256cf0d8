//! Which tokens a rank has.

use crate::error::{Error, Result};
use bytemuck::Zeroable;
use ndarray::{Array, Array4, ArrayView, ArrayView4, Axis, Dimension, Slice, s};
use std::ops::Range;

/// Blocks begin at multiples of it: all sums of attention have an end there.
const SPAN: usize = 256;

/// Tokens of a piece, at the most: a split of the forward pass, which a running state is read and written for once.
pub(crate) const PIECE: usize = 2048;

/// Which tokens each rank has: blocks of a multiple of 256, decided by the length of the whole. A choice of speed, never of bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    tokens: usize,
    ranks: usize,
    /// Every block and the rank that has it, in the order of tokens.
    blocks: Vec<(Range<usize>, usize)>,
}

impl Partition {
    /// One range of tokens to each rank: for windows, documents, and attention without a mask. The last ranks may have none.
    ///
    /// # Errors
    /// When there is no rank.
    pub fn contiguous(tokens: usize, ranks: usize) -> Result<Self> {
        let most = tokens.div_ceil(ranks.max(1)).next_multiple_of(SPAN).max(SPAN);
        Self::blocks_of(tokens, ranks, most, |block| block)
    }

    /// Blocks of so many tokens go round the ranks, forwards and backwards in turn: for causal attention, whose later rows cost more.
    ///
    /// # Errors
    /// When there is no rank, or a block is not a multiple of 256.
    pub fn snake(tokens: usize, ranks: usize, block: usize) -> Result<Self> {
        Self::blocks_of(tokens, ranks, block, |i| {
            let (lap, place) = (i / ranks, i % ranks);
            if lap.is_multiple_of(2) { place } else { ranks - 1 - place }
        })
    }

    fn blocks_of(tokens: usize, ranks: usize, block: usize, owner: impl Fn(usize) -> usize) -> Result<Self> {
        if ranks == 0 {
            return Err(Error::Partition { what: "the number of ranks", got: 0, requirement: "at least 1" });
        }
        if block == 0 || !block.is_multiple_of(SPAN) {
            return Err(Error::Partition { what: "the block of a partition", got: block, requirement: "a multiple of 256" });
        }
        let blocks = (0..tokens).step_by(block).enumerate().map(|(i, first)| (first..tokens.min(first + block), owner(i))).collect();
        Ok(Self { tokens, ranks, blocks })
    }

    /// Tokens of the whole.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How many ranks share them.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Every block and the rank that has it, in the order of tokens.
    pub fn blocks(&self) -> &[(Range<usize>, usize)] {
        &self.blocks
    }

    /// What travels at a time, with the rank that has it, in the order of tokens: blocks, cut where they are long.
    pub(crate) fn pieces(&self) -> Vec<(Range<usize>, usize)> {
        let cut = |(block, owner): &(Range<usize>, usize)| {
            let (block, owner) = (block.clone(), *owner);
            block.clone().step_by(PIECE).map(move |first| (first..block.end.min(first + PIECE), owner))
        };
        self.blocks.iter().flat_map(cut).collect()
    }

    /// The blocks of a rank, in order.
    pub fn blocks_of_rank(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        self.blocks.iter().filter(move |(_, owner)| *owner == rank).map(|(range, _)| range.clone())
    }

    /// How many tokens a rank has.
    pub fn count(&self, rank: usize) -> usize {
        self.blocks_of_rank(rank).map(|range| range.len()).sum()
    }

    /// The place in the whole of each token of a rank: rotary positions go by it.
    pub fn positions(&self, rank: usize) -> Vec<usize> {
        self.blocks_of_rank(rank).flatten().collect()
    }

    /// The tokens of a rank (axis 2), one block after the other.
    ///
    /// # Panics
    /// When `x` does not have the tokens of the whole.
    pub fn shard<T: Copy + Zeroable>(&self, rank: usize, x: ArrayView4<'_, T>) -> Array4<T> {
        assert_eq!(x.len_of(Axis(2)), self.tokens, "x has the tokens of the whole");
        let blocks: Vec<_> = self.blocks_of_rank(rank).map(|range| x.slice(s![.., .., range, ..])).collect();
        if blocks.is_empty() { x.slice(s![.., .., ..0, ..]).to_owned() } else { side_by_side(&blocks) }
    }

    /// The whole of the parts of all ranks.
    ///
    /// # Panics
    /// When there is not one part for each rank, or a part has other tokens.
    pub fn join<T: Copy + Zeroable>(&self, parts: &[ArrayView4<'_, T>]) -> Array4<T> {
        assert_eq!(parts.len(), self.ranks, "one part for each rank");
        let mut next = vec![0; self.ranks];
        let pieces: Vec<_> = self
            .blocks
            .iter()
            .map(|(range, owner)| {
                let first = next[*owner];
                next[*owner] += range.len();
                parts[*owner].slice(s![.., .., first..first + range.len(), ..])
            })
            .collect();
        if pieces.is_empty() { parts[0].to_owned() } else { side_by_side(&pieces) }
    }
}

/// Along the tokens, in the standard layout, which is read faster than that of ndarray's `concatenate`.
pub(crate) fn side_by_side<T: Copy + Zeroable, D: Dimension>(parts: &[ArrayView<'_, T, D>]) -> Array<T, D> {
    let mut shape = parts[0].raw_dim();
    shape[2] = parts.iter().map(|part| part.len_of(Axis(2))).sum();
    let mut joined = Array::from_elem(shape, T::zeroed());
    let mut first = 0;
    for part in parts {
        let end = first + part.len_of(Axis(2));
        joined.slice_axis_mut(Axis(2), Slice::from(first..end)).assign(part);
        first = end;
    }
    joined
}
