//! Dropout as a pure function: whether a weight is dropped depends on (seed, batch, head, query, key) and on nothing else, so
//! the forward pass, the backward pass and the laid-out weights agree, whatever the tiles and the threads.
//!
//! The random numbers are those of [`regard_simd::philox`]. The seed is the key; the counter is `(key / 4, query, head, batch)`, and its
//! four words serve four neighbouring keys.

use super::tiling::{Need, QueryTile};
use crate::plan::Dropout;
use regard_simd::philox::{WORDS, philox};
use regard_simd::{Kernel, Real, Simd};
use std::ops::Range;

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
}

/// `factors[key][lane]`: what the weights of a panel are multiplied with. Lanes past the panel's rows get unspecified values.
pub(crate) struct DropoutFactors<'k, T> {
    pub(crate) dropout: Dropout,
    pub(crate) tile: QueryTile,
    pub(crate) need: &'k Need,
    pub(crate) factors: &'k mut [T],
}

impl<T: Real> Kernel<T> for DropoutFactors<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, _: S) {
        let Self { dropout, tile, need, factors } = self;
        let (keys, width) = (&need.keys, need.panel.width);
        let factors = &mut factors[..keys.len() * width];
        for lane in (0..width).step_by(8) {
            fill(dropout, tile, need.panel.start + lane, keys, Lanes { width, first: lane }, factors);
        }
    }
}

#[derive(Clone, Copy)]
struct Lanes {
    width: usize,
    first: usize,
}

/// Eight lanes, from `first` on (four, where a panel has no more).
#[inline(always)]
fn fill<T: Real>(dropout: Dropout, tile: QueryTile, row: usize, keys: &Range<usize>, lanes: Lanes, factors: &mut [T]) {
    let Lanes { width, first } = lanes;
    let (mut queries, mut heads) = ([0; 8], [0; 8]);
    for (i, (query, head)) in queries.iter_mut().zip(&mut heads).enumerate() {
        let (h, q) = tile.row(row + i);
        (*query, *head) = (q as u64, h as u64);
    }
    let (threshold, kept) = (dropout.threshold(), T::from_f64(dropout.factor()));
    let lanes = 8.min(width - first);
    for group in keys.start / WORDS..keys.end.div_ceil(WORDS) {
        let mut counter = [[group as u64; 8], queries, heads, [tile.batch as u64; 8]];
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
struct Multiply<'k, T> {
    factors: &'k [T],
    values: &'k mut [T],
}

impl<T: Real> Kernel<T> for Multiply<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { factors, values } = self;
        for (value, factor) in values.chunks_exact_mut(S::LANES).zip(factors.chunks_exact(S::LANES)) {
            // SAFETY: both chunks are one whole vector.
            unsafe { simd.store(value.as_mut_ptr(), simd.mul(simd.load(value.as_ptr()), simd.load(factor.as_ptr()))) };
        }
    }
}

/// Drop weights of a panel. `factors` is scratch of the same length.
pub(crate) fn apply_dropout<S: Simd>(
    simd: S,
    dropout: Option<Dropout>,
    tile: QueryTile,
    need: &Need,
    weights: &mut [S::T],
    factors: &mut [S::T],
) {
    if let Some(dropout) = dropout {
        let factors = &mut factors[..weights.len()];
        simd.call(DropoutFactors { dropout, tile, need, factors });
        simd.call(Multiply { factors, values: weights });
    }
}
