//! Which tokens each rank has.

use crate::error::{Error, Result};
use bytemuck::Zeroable;
use ndarray::{Array, Array4, ArrayView, ArrayView4, Axis, Dimension, Slice, s};
use regard::tiling::{GRADIENT_SPLIT, KV_SPLIT};
use std::ops::Range;

/// Tokens that one rank has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Their places in the sequence.
    pub tokens: Range<usize>,
    /// The rank that has them.
    pub rank: usize,
}

/// Which tokens each rank has: blocks of a multiple of 256 tokens. The partition decides the speed, never the bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    tokens: usize,
    ranks: usize,
    blocks: Vec<Block>,
}

impl Partition {
    /// One range of tokens per rank: for windows, documents, and attention without a mask. The last ranks may have none.
    ///
    /// # Errors
    /// When there is no rank.
    pub fn contiguous(tokens: usize, ranks: usize) -> Result<Self> {
        let block = tokens.div_ceil(ranks.max(1)).next_multiple_of(GRADIENT_SPLIT).max(GRADIENT_SPLIT);
        Self::of_blocks(tokens, ranks, block, |block| block)
    }

    /// Blocks of `block` tokens, dealt to ranks 0, 1, 2, ..., 2, 1, 0, 0, 1, ...: for causal attention, whose later rows cost more.
    ///
    /// # Errors
    /// When there is no rank, or a block is not a multiple of 256.
    pub fn snake(tokens: usize, ranks: usize, block: usize) -> Result<Self> {
        Self::of_blocks(tokens, ranks, block, |i| {
            let (lap, place) = (i / ranks, i % ranks);
            if lap.is_multiple_of(2) { place } else { ranks - 1 - place }
        })
    }

    fn of_blocks(tokens: usize, ranks: usize, block: usize, rank: impl Fn(usize) -> usize) -> Result<Self> {
        if ranks == 0 {
            return Err(Error::Partition { what: "the number of ranks", got: 0, requirement: "at least 1" });
        }
        if block == 0 || !block.is_multiple_of(GRADIENT_SPLIT) {
            return Err(Error::Partition { what: "the block of a partition", got: block, requirement: "a multiple of 256" });
        }
        let block_at = |(i, first): (usize, usize)| Block { tokens: first..tokens.min(first + block), rank: rank(i) };
        Ok(Self { tokens, ranks, blocks: (0..tokens).step_by(block).enumerate().map(block_at).collect() })
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// All blocks, in the order of tokens.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The blocks in pieces of at most one split of the forward pass: what is sent at a time.
    pub(crate) fn pieces(&self) -> Vec<Block> {
        let cut = |block: &Block| {
            let Block { tokens, rank } = block.clone();
            tokens.clone().step_by(KV_SPLIT).map(move |first| Block { tokens: first..tokens.end.min(first + KV_SPLIT), rank })
        };
        self.blocks.iter().flat_map(cut).collect()
    }

    /// The blocks of a rank, in order.
    pub fn blocks_of_rank(&self, rank: usize) -> impl Iterator<Item = Range<usize>> {
        self.blocks.iter().filter(move |block| block.rank == rank).map(|block| block.tokens.clone())
    }

    /// The number of tokens of a rank.
    pub fn count(&self, rank: usize) -> usize {
        self.blocks_of_rank(rank).map(|tokens| tokens.len()).sum()
    }

    /// The place in the sequence of each token of a rank, as rotary positions need it.
    pub fn positions(&self, rank: usize) -> Vec<usize> {
        self.blocks_of_rank(rank).flatten().collect()
    }

    /// The tokens of a rank (axis 2), one block after the other.
    ///
    /// # Panics
    /// When `x` does not have all tokens.
    pub fn shard<T: Copy + Zeroable>(&self, rank: usize, x: ArrayView4<'_, T>) -> Array4<T> {
        assert_eq!(x.len_of(Axis(2)), self.tokens, "x has all tokens");
        let blocks: Vec<_> = self.blocks_of_rank(rank).map(|tokens| x.slice(s![.., .., tokens, ..])).collect();
        if blocks.is_empty() { x.slice(s![.., .., ..0, ..]).to_owned() } else { concatenate(&blocks) }
    }

    /// The tensor of all tokens, from those of the ranks.
    ///
    /// # Panics
    /// When there is not one part per rank, or a part has other tokens.
    pub fn join<T: Copy + Zeroable>(&self, parts: &[ArrayView4<'_, T>]) -> Array4<T> {
        assert_eq!(parts.len(), self.ranks, "one part per rank");
        let mut next = vec![0; self.ranks];
        let pieces: Vec<_> = self
            .blocks
            .iter()
            .map(|Block { tokens, rank }| {
                let first = next[*rank];
                next[*rank] += tokens.len();
                parts[*rank].slice(s![.., .., first..first + tokens.len(), ..])
            })
            .collect();
        if pieces.is_empty() { parts[0].to_owned() } else { concatenate(&pieces) }
    }
}

/// Concatenate along the tokens, into standard layout, which is read faster than that of ndarray's `concatenate`.
pub(crate) fn concatenate<T: Copy + Zeroable, D: Dimension>(parts: &[ArrayView<'_, T, D>]) -> Array<T, D> {
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
