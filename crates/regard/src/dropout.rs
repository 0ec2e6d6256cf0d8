//! Dropout as a pure function: whether a weight is dropped depends on (seed, batch, head, query, key) and on nothing else, so
//! the forward pass, the backward pass and the laid-out weights agree, whatever the tiles and the threads.
//!
//! The random numbers are Philox 4x32 with 7 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
//! 2011: the fewest rounds that pass their battery of tests). The seed is the key; the counter is
//! `(key / 4, query, head, batch)`, and its four words serve four neighbouring keys.

use crate::score::RowBlock;
use crate::simd::{Lanes, Operation, Real};
use std::ops::Range;

const ROUNDS: usize = 7;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Keys that share a counter.
const WORDS: usize = 4;

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

    fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }

    /// What the weight of one pair is multiplied with: 0, or `1 / (1 - p)`.
    pub(crate) fn at(&self, [batch, head, query, key]: [usize; 4]) -> f64 {
        let mut counter = [[(key / WORDS) as u32], [query as u32], [head as u32], [batch as u32]];
        philox(&mut counter, self.key());
        if counter[key % WORDS][0] < self.threshold() { 0.0 } else { self.factor() }
    }
}

/// Seven rounds on N counters side by side.
#[inline(always)]
fn philox<const N: usize>(counter: &mut [[u32; N]; WORDS], mut key: [u32; 2]) {
    for _ in 0..ROUNDS {
        let [c0, c1, c2, c3] = counter;
        for i in 0..N {
            let first = u64::from(c0[i]) * u64::from(MULTIPLIERS[0]);
            let second = u64::from(c2[i]) * u64::from(MULTIPLIERS[1]);
            c0[i] = (second >> 32) as u32 ^ c1[i] ^ key[0];
            c1[i] = second as u32;
            c2[i] = (first >> 32) as u32 ^ c3[i] ^ key[1];
            c3[i] = first as u32;
        }
        key = [key[0].wrapping_add(KEY_STEPS[0]), key[1].wrapping_add(KEY_STEPS[1])];
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
        (*query, *head) = (q as u32, h as u32);
    }
    let (threshold, kept) = (dropout.threshold(), T::from_f64(dropout.factor()));
    let lanes = 8.min(width - first);
    for group in keys.start / WORDS..keys.end.div_ceil(WORDS) {
        let mut counter = [[group as u32; 8], queries, heads, [block.batch as u32; 8]];
        philox(&mut counter, dropout.key());
        for (word, key) in counter.iter().zip(group * WORDS..) {
            if !keys.contains(&key) {
                continue;
            }
            let mut line = [T::ZERO; 8];
            for (to, &word) in line.iter_mut().zip(word) {
                *to = if word < threshold { T::ZERO } else { kept };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that the authors of Philox publish for 4x32 with 7 rounds.
    #[test]
    fn philox_gives_the_published_words() {
        let run = |counter: [u32; 4], key| {
            let mut c = counter.map(|x| [x]);
            philox(&mut c, key);
            c.map(|[x]| x)
        };
        assert_eq!(run([0; 4], [0; 2]), [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]);
        assert_eq!(run([u32::MAX; 4], [u32::MAX; 2]), [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]);
        assert_eq!(
            run([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a]
        );
    }
}
