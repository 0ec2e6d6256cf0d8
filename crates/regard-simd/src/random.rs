//! Random numbers that are a pure function of a seed and a place: the same on every CPU, on any thread and in any order.
//!
//! ```
//! use regard_simd::random::Stream;
//! let mut numbers = [0.0; 8];
//! Stream::new(42, [1, 0, 17]).normal(&mut numbers);
//! let mut again = [0.0; 8];
//! // In two parts they are the same numbers.
//! let mut stream = Stream::new(42, [1, 0, 17]);
//! stream.normal(&mut again[..3]);
//! stream.normal(&mut again[3..]);
//! assert_eq!(numbers, again);
//! ```
//!
//! Words come from [`crate::philox`]: the seed is its key, a place and a running number its counter. A pair of normal numbers is a point of
//! the plane in polar coordinates (Box and Muller): 32 bits for the radius, 32 for the angle. The elementary functions are written out
//! here, without fused multiply-adds, so that no CPU and no library rounds them in its own way; they are right to 1e-9, which is about what
//! 32 bits tell apart.

use crate::float::Real;
use crate::level::Level;
use crate::math::Coefficients;
use crate::philox::{LOW, WORDS, philox};
use crate::simd::{Kernel, Simd};
use std::f64::consts::{FRAC_PI_2, LN_2};

/// Counters that are worked on together.
const COUNTERS: usize = 16;

/// Numbers that are made together.
const BLOCK: usize = WORDS * COUNTERS;

/// A sequence of random numbers of its own.
#[derive(Debug, Clone)]
pub struct Stream {
    seed: u64,
    place: [u32; 3],
    /// Counters that are used up.
    counters: u32,
    /// Normal numbers that were made and not yet handed out: the last ones.
    made: [f64; BLOCK],
    left: usize,
}

impl Stream {
    /// The sequence of a seed and a place, for example which experiment, which of its cases, and which draw. It has 2^34 numbers, and
    /// begins anew.
    pub fn new(seed: u64, place: [u32; 3]) -> Self {
        Self { seed, place, counters: 0, made: [0.0; BLOCK], left: 0 }
    }

    /// Fill with independent standard normal numbers.
    pub fn normal(&mut self, to: &mut [f64]) {
        let (first, rest) = to.split_at_mut(to.len().min(self.left));
        first.copy_from_slice(&self.made[BLOCK - self.left..][..first.len()]);
        self.left -= first.len();
        let (blocks, last) = rest.as_chunks_mut();
        self.make(blocks, true);
        if !last.is_empty() {
            let mut block = [[0.0; BLOCK]];
            self.make(&mut block, true);
            [self.made] = block;
            last.copy_from_slice(&self.made[..last.len()]);
            self.left = BLOCK - last.len();
        }
    }

    /// Fill with independent numbers, uniform between -1 and 1. Each call begins with a counter of its own.
    pub fn uniform(&mut self, to: &mut [f64]) {
        let (blocks, last) = to.as_chunks_mut();
        self.make(blocks, false);
        if !last.is_empty() {
            let mut block = [[0.0; BLOCK]];
            self.make(&mut block, false);
            last.copy_from_slice(&block[0][..last.len()]);
        }
    }

    fn make(&mut self, blocks: &mut [[f64; BLOCK]], normal: bool) {
        let Self { seed, place, counters: first, .. } = *self;
        self.counters = first.wrapping_add((blocks.len() * COUNTERS) as u32);
        let level = Level::preferred_or_panic();
        f64::call(level, Make { seed, place, first, blocks, normal });
    }
}

/// Numbers from counter `first` on.
struct Make<'k> {
    seed: u64,
    place: [u32; 3],
    first: u32,
    blocks: &'k mut [[f64; BLOCK]],
    normal: bool,
}

impl Kernel<f64> for Make<'_> {
    #[inline(always)]
    fn run<S: Simd<T = f64>>(self, _: S) {
        let Self { seed, place: [a, b, c], mut first, blocks, normal } = self;
        for block in blocks {
            let mut words = [[0; COUNTERS], [a.into(); COUNTERS], [b.into(); COUNTERS], [c.into(); COUNTERS]];
            for (i, word) in words[0].iter_mut().enumerate() {
                *word = u64::from(first.wrapping_add(i as u32));
            }
            philox(&mut words, seed);
            if normal {
                to_normal(words.as_flattened(), block);
            } else {
                for (to, &word) in block.iter_mut().zip(words.as_flattened()) {
                    *to = exact(word) * 2f64.powi(-31) - 1.0;
                }
            }
            first = first.wrapping_add(COUNTERS as u32);
        }
    }
}

/// The first half of the words are radii, the second angles.
#[inline(always)]
fn to_normal(words: &[u64], to: &mut [f64; BLOCK]) {
    let (radii, angles) = words.split_at(BLOCK / 2);
    let (first, second) = to.split_at_mut(BLOCK / 2);
    let mut r = [0.0; BLOCK / 2];
    for i in 0..BLOCK / 2 {
        r[i] = radius(radii[i]);
    }
    for i in 0..BLOCK / 2 {
        let (cos, sin) = turn(angles[i]);
        first[i] = r[i] * cos;
        second[i] = r[i] * sin;
    }
}

/// 2^52: with this exponent an integer below it stands in the low bits of a number as it is.
const SHIFT: f64 = 4_503_599_627_370_496.0;

// Polynomials in x^2 for artanh(x) / x up to 0.172, and for sin(x) / x and cos(x) up to pi / 4: interpolated at the Chebyshev nodes; errors
// 7e-10, 4e-12 and 5e-11.
const ARTANH: [f64; 4] = [0.999_999_999_315_659, 0.333_334_076_690_847_9, 0.199_874_252_578_584_93, 0.149_621_952_609_911_2];
const SIN: [f64; 5] =
    [0.999_999_999_995_672_6, -0.166_666_666_315_890_03, 0.008_333_328_782_299_36, -1.983_920_217_215_978_4e-4, 2.717_345_361_627_713e-6];
const COS: [f64; 5] =
    [0.999_999_999_952_489, -0.499_999_996_148_557_7, 0.041_666_616_692_394_19, -1.388_661_799_611_383_4e-3, 2.437_983_096_389_459_5e-5];

/// A word plus one half.
#[inline(always)]
fn exact(word: u64) -> f64 {
    f64::from_bits(SHIFT.to_bits() | (word & LOW)) - (SHIFT - 0.5)
}

/// `sqrt(-2 ln u)` with `u = (word + 1/2) / 2^32`
#[inline(always)]
fn radius(word: u64) -> f64 {
    const FRACTION: u64 = 0x000f_ffff_ffff_ffff;
    let root = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    // word + 1/2 = m 2^e with m from sqrt(1/2) to sqrt(2)
    let shifted = exact(word).to_bits().wrapping_add(1f64.to_bits() - root);
    let m = f64::from_bits((shifted & FRACTION) + root);
    let e = f64::from_bits(SHIFT.to_bits() | (shifted >> 52)) - (SHIFT + 1023.0);
    // ln m = 2 artanh s with s = (m - 1) / (m + 1), at most 0.172
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let z2 = z * z;
    let [a, b, c, d] = ARTANH;
    let series = (a + z * b) + z2 * (c + z * d);
    ((e - 32.0) * (-2.0 * LN_2) + (-4.0 * s) * series).sqrt()
}

/// Cosine and sine of `(word + 1/2) / 2^32` turns.
#[inline(always)]
fn turn(word: u64) -> (f64, f64) {
    let quarters = exact(word) * 2f64.powi(-30);
    // The nearest integer, in the low bits too.
    let nearest = quarters + f64::ROUNDING;
    let x = (quarters - (nearest - f64::ROUNDING)) * FRAC_PI_2;
    let z = x * x;
    let z2 = z * z;
    let even = |[a, b, c, d, e]: [f64; 5]| (a + z * b) + z2 * ((c + z * d) + z2 * e);
    let (sin, cos) = (x * even(SIN), even(COS));
    let quarter = nearest.to_bits();
    let (a, b) = if quarter & 1 == 0 { (cos, sin) } else { (sin, cos) };
    let flip = |x: f64, twos: u64| f64::from_bits(x.to_bits() ^ (twos & 2) << 62);
    (flip(a, quarter.wrapping_add(1)), flip(b, quarter))
}

#[cfg(test)]
#[path = "../tests/unit/random.rs"]
mod tests;
