//! Measured ceilings of one thread: multiply-adds, products of bf16 pairs or tiles and exponentials per second in registers, and bytes read
//! per second.
//!
//! The functions are not generic, so the loops are compiled in this crate, with the flags of the kernels that they are compared with.

use crate::float::{Real, Storage};
use crate::level::Level;
use crate::math;
use crate::simd::{Driver, Kernel, Simd};
use crate::tiles::{Parts, TILE, TILE_DEPTH, TileProduct};
use half::bf16;
use std::time::Instant;

/// Repetitions of a measurement; the fastest counts.
const REPETITIONS: usize = 6;

/// `N` independent chains of multiply-adds.
struct Chains<'k, T, const N: usize> {
    rounds: u64,
    operations: &'k mut f64,
    result: &'k mut T,
}

impl<T: Real, const N: usize> Kernel<T> for Chains<'_, T, N> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let (factor, plus) = (simd.splat(T::from_f64(0.999)), simd.splat(T::from_f64(0.001)));
        let mut acc = [plus; N];
        for _ in 0..self.rounds {
            for a in &mut acc {
                *a = simd.mul_add(*a, factor, plus);
            }
        }
        for a in acc {
            *self.result += simd.to_array(a)[0];
        }
        *self.operations = 2.0 * (N * S::LANES) as f64 * self.rounds as f64;
    }
}

fn chains<T: Real, const N: usize>(level: Level) -> f64 {
    let mut best: f64 = 0.0;
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        let (mut operations, mut result) = (0.0, T::ZERO);
        T::call(level, Chains::<T, N> { rounds: 200_000, operations: &mut operations, result: &mut result });
        std::hint::black_box(result);
        best = best.max(operations / start.elapsed().as_secs_f64());
    }
    best
}

/// The best of several numbers of chains: few do not hide the latency, many do not fit into the registers of the portable level.
fn best_chains<T: Real>(level: Level) -> f64 {
    [chains::<T, 4>(level), chains::<T, 6>(level), chains::<T, 8>(level), chains::<T, 12>(level)].into_iter().fold(0.0, f64::max)
}

/// Floating-point operations per second of one thread at `level`, in f32: two per multiply-add. Takes some hundredths of a second.
///
/// # Panics
/// When this CPU does not have the level.
#[inline(never)]
pub fn flops_f32(level: Level) -> f64 {
    best_chains::<f32>(level)
}

/// [`flops_f32`], in f64.
///
/// # Panics
/// When this CPU does not have the level.
#[inline(never)]
pub fn flops_f64(level: Level) -> f64 {
    best_chains::<f64>(level)
}

/// `N` independent chains of products of pairs.
struct PairChains<'k, const N: usize> {
    rounds: u64,
    operations: &'k mut f64,
    result: &'k mut f32,
}

impl<const N: usize> Kernel<f32> for PairChains<'_, N> {
    #[inline(always)]
    fn run<S: Simd<T = f32>>(self, simd: S) {
        // Both elements of a pair are 0.5, or 2^-10.
        let (a, b) = (simd.splat(f32::from_bits(0x3f00_3f00)), simd.splat(f32::from_bits(0x3a80_3a80)));
        let mut acc = [simd.splat(0.0); N];
        for _ in 0..self.rounds {
            for c in &mut acc {
                *c = simd.dot_pairs(a, b, *c);
            }
        }
        for c in acc {
            *self.result += simd.to_array(c)[0];
        }
        *self.operations = 4.0 * (N * S::LANES) as f64 * self.rounds as f64;
    }
}

/// A product of tiles so deep that the rest of it does not count. All rows are the same memory, which stays in the first cache.
struct DeepTiles<'k> {
    rounds: u64,
    operations: &'k mut f64,
    result: &'k mut f32,
}

/// The depth of [`DeepTiles`], in tiles.
const TILES_DEEP: usize = 256;

impl Kernel<f32> for DeepTiles<'_> {
    #[inline(always)]
    fn run<S: Simd<T = f32>>(self, simd: S) {
        let columns = 2 * TILE;
        // Pairs of 2^-10.
        let (a, b) = ([f32::from_bits(0x3a80_3a80); TILES_DEEP * TILE], [f32::from_bits(0x3a80_3a80); 2 * TILE]);
        let mut c = [0.0; 2 * TILE];
        let product = TileProduct {
            rows: 2 * TILE,
            columns,
            steps: TILES_DEEP,
            parts: Parts::None,
            a: a.as_ptr(),
            a_stride: 0,
            b: b.as_ptr(),
            b_stride: 0,
            c: c.as_mut_ptr(),
            c_stride: 0,
        };
        for _ in 0..self.rounds {
            // SAFETY: `a` is a row of TILES_DEEP tiles, `b` and `c` are rows of two; each row stands for all rows.
            unsafe { simd.multiply_tiles(product) };
        }
        *self.result += c[0];
        *self.operations = 2.0 * (2 * TILE * columns * TILE_DEPTH * TILES_DEEP) as f64 * self.rounds as f64;
    }
}

/// Operations per second, if the lanes multiply pairs or tiles.
struct PairFlops;

impl Driver<f32> for PairFlops {
    type Output = Option<f64>;
    fn run<S: Simd<T = f32>>(self, simd: S) -> Option<f64> {
        let mut best: f64 = 0.0;
        for _ in 0..if S::TILES { REPETITIONS } else { 0 } {
            let start = Instant::now();
            let (mut operations, mut result) = (0.0, 0.0);
            simd.call(DeepTiles { rounds: 100, operations: &mut operations, result: &mut result });
            std::hint::black_box(result);
            best = best.max(operations / start.elapsed().as_secs_f64());
        }
        for _ in 0..if S::PAIRS && !S::TILES { REPETITIONS } else { 0 } {
            macro_rules! chains {
                ($($n:literal)*) => {$(
                    let start = Instant::now();
                    let (mut operations, mut result) = (0.0, 0.0);
                    simd.call(PairChains::<$n> { rounds: 200_000, operations: &mut operations, result: &mut result });
                    std::hint::black_box(result);
                    best = best.max(operations / start.elapsed().as_secs_f64());
                )*};
            }
            chains!(8 12 16);
        }
        S::PAIRS.then_some(best)
    }
}

/// [`flops_f32`] of products of bf16 pairs, four operations per pair and step, or of tiles. `None` where the level has no such products.
///
/// # Panics
/// When this CPU does not have the level.
#[inline(never)]
pub fn flops_bf16(level: Level) -> Option<f64> {
    bf16::dispatch_stored(level, PairFlops)
}

/// Exponentials of `N` vectors, each of a number that the round changes.
struct Exponentials<'k, T, const N: usize> {
    rounds: u64,
    count: &'k mut f64,
    result: &'k mut T,
}

impl<T: Real, const N: usize> Kernel<T> for Exponentials<'_, T, N> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let (mut x, step) = ([simd.splat(-T::ONE); N], simd.splat(T::from_f64(-1e-6)));
        let mut sums = [simd.splat(T::ZERO); N];
        for _ in 0..self.rounds {
            for (x, sum) in x.iter_mut().zip(&mut sums) {
                *x = simd.add(*x, step);
                *sum = simd.add(*sum, math::exp(simd, *x));
            }
        }
        for sum in sums {
            *self.result += simd.to_array(sum)[0];
        }
        *self.count = (N * S::LANES) as f64 * self.rounds as f64;
    }
}

fn best_exponentials<T: Real>(level: Level) -> f64 {
    let mut best: f64 = 0.0;
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        let (mut count, mut result) = (0.0, T::ZERO);
        T::call(level, Exponentials::<T, 4> { rounds: 50_000, count: &mut count, result: &mut result });
        std::hint::black_box(result);
        best = best.max(count / start.elapsed().as_secs_f64());
    }
    best
}

/// Exponentials ([`math::exp`]) per second of one thread at `level`, in f32.
///
/// # Panics
/// When this CPU does not have the level.
#[inline(never)]
pub fn exponentials_f32(level: Level) -> f64 {
    best_exponentials::<f32>(level)
}

/// [`exponentials_f32`], in f64.
///
/// # Panics
/// When this CPU does not have the level.
#[inline(never)]
pub fn exponentials_f64(level: Level) -> f64 {
    best_exponentials::<f64>(level)
}

/// The sum of all words, in eight independent chains.
#[inline(never)]
pub fn sum_words(words: &[u64]) -> u64 {
    let (chunks, rest) = words.as_chunks::<8>();
    let mut sums = [0u64; 8];
    for chunk in chunks {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.into_iter().chain(rest.iter().copied()).fold(0, u64::wrapping_add)
}

#[cfg(test)]
#[path = "../tests/unit/peak.rs"]
mod tests;
