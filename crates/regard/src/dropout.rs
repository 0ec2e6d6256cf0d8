//! Dropout as a pure function: whether a weight is dropped depends on (seed, batch, head, query, key) and on nothing else, so
//! the forward pass, the backward pass and the laid-out weights agree, whatever the tiles and the threads.
//!
//! The random numbers are those of [`crate::philox`]. The seed is the key; the counter is `(key / 4, query, head, batch)`, and its four words serve
//! four neighbouring keys.

use crate::philox::{WORDS, philox};
use crate::score::RowBlock;
use crate::simd::{Lanes, Operation, Real};
use std::ops::Range;

/// Dropout with a given probability and seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dropout {
    pub(crate) probability: f64,
    pub(crate) seed: u64,
}

impl Dropout {
    /// A word below this is a drop.
    fn threshold(&self) -> u32 {
        // Below 1, so that the product is below 2^32 or rounds to it.
        (self.probability * 4_294_967_296.0).round().min(4_294_967_295.0) as u32
    }

    /// What a kept weight is multiplied with.
    fn factor(&self) -> f64 {
        1.0 / (1.0 - self.probability)
    }

    /// What the weight of one pair is multiplied with: 0, or `1 / (1 - p)`.
    pub(crate) fn at(&self, [batch, head, query, key]: [usize; 4]) -> f64 {
        let mut counter = [[(key / WORDS) as u64], [query as u64], [head as u64], [batch as u64]];
        philox(&mut counter, self.seed);
        if (counter[key % WORDS][0] as u32) < self.threshold() { 0.0 } else { self.factor() }
    }
}

/// `factors[key][lane]`: what the weights of a panel are multiplied with. Lanes past the panel's rows get numbers of no meaning.
pub(crate) struct Factors<'k, T> {
    pub(crate) dropout: Dropout,
    pub(crate) block: RowBlock,
    pub(crate) panel: Range<usize>,
    pub(crate) keys: Range<usize>,
    pub(crate) width: usize,
    pub(crate) factors: &'k mut [T],
}

impl<T: Real> Operation<T> for Factors<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, _: S) {
        let Self { dropout, block, panel, keys, width, factors } = self;
        let factors = &mut factors[..keys.len() * width];
        for first in (0..width).step_by(8) {
            fill(dropout, block, panel.start + first, &keys, width, first, factors);
        }
    }
}

/// Eight lanes, from `first` on (four, where a panel has no more).
#[inline(always)]
fn fill<T: Real>(dropout: Dropout, block: RowBlock, row: usize, keys: &Range<usize>, width: usize, first: usize, factors: &mut [T]) {
    let (mut queries, mut heads) = ([0; 8], [0; 8]);
    for (i, (query, head)) in queries.iter_mut().zip(&mut heads).enumerate() {
        let (h, q) = block.row(row + i);
        (*query, *head) = (q as u64, h as u64);
    }
    let (threshold, kept) = (dropout.threshold(), T::from_f64(dropout.factor()));
    let lanes = 8.min(width - first);
    for group in keys.start / WORDS..keys.end.div_ceil(WORDS) {
        let mut counter = [[group as u64; 8], queries, heads, [block.batch as u64; 8]];
        philox(&mut counter, dropout.seed);
        for (word, key) in counter.iter().zip(group * WORDS..) {
            if !keys.contains(&key) {
                continue;
            }
            let mut line = [T::ZERO; 8];
            for (to, &word) in line.iter_mut().zip(word) {
                *to = if (word as u32) < threshold { T::ZERO } else { kept };
            }
            let at = (key - keys.start) * width + first;
            factors[at..at + lanes].copy_from_slice(&line[..lanes]);
        }
    }
}

/// `values *= factors`
pub(crate) struct Multiply<'k, T> {
    pub(crate) factors: &'k [T],
    pub(crate) values: &'k mut [T],
}

impl<T: Real> Operation<T> for Multiply<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { factors, values } = self;
        for (value, factor) in values.chunks_exact_mut(S::LANES).zip(factors.chunks_exact(S::LANES)) {
            // SAFETY: both chunks are one whole vector.
            unsafe { simd.store(value.as_mut_ptr(), simd.mul(simd.load(value.as_ptr()), simd.load(factor.as_ptr()))) };
        }
    }
}
