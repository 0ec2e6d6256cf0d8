//! Measured ceilings of one thread: multiply-adds per second in registers, and bytes read per second.
//!
//! The functions are not generic, so the loops are compiled in this crate, with the flags of the kernels that they are compared with.

use crate::float::Real;
use crate::level::Level;
use crate::simd::{Kernel, Simd};
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
