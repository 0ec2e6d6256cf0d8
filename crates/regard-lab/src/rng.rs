//! Normal numbers that are a pure function of where they stand.
//!
//! ChaCha with 8 rounds as a counter-based generator: the key is the seed and the name of the experiment's cell, the stream is the number of
//! the draw, the counter runs along. So draw 17 of a cell is the same whoever computes it, and draws can be made in any order
//! and on any thread.

use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

/// A sequence of numbers of its own.
pub struct Draw(ChaCha8Rng);

/// Which experiment, so that two of them with the same seed do not share their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Purpose {
    Cell = 1,
    Heads = 2,
    Patterns = 3,
    Checks = 4,
    Bench = 5,
    Module = 6,
}

impl Draw {
    /// Draw number `index` of the cell that `purpose` and two of its sizes name.
    pub(crate) fn new(seed: u64, purpose: Purpose, sizes: [usize; 2], index: u64) -> Self {
        let mut key = [0; 32];
        let words = [seed, purpose as u64, sizes[0] as u64, sizes[1] as u64];
        for (to, word) in key.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(index);
        Self(rng)
    }

    /// Fill with independent standard normal numbers.
    pub(crate) fn normal(&mut self, to: &mut [f64]) {
        for x in to {
            *x = StandardNormal.sample(&mut self.0);
        }
    }

    /// Add `count` independent normal numbers of that standard deviation.
    pub(crate) fn add_normal(&mut self, to: &mut Vec<f64>, count: usize, deviation: f64) {
        to.extend((0..count).map(|_| {
            let x: f64 = StandardNormal.sample(&mut self.0);
            x * deviation
        }));
    }

    /// Fill with independent numbers, uniform between -1 and 1.
    pub(crate) fn uniform(&mut self, to: &mut [f64]) {
        for x in to {
            *x = (self.0.next_u64() >> 11) as f64 * 2f64.powi(-52) - 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u64, purpose: Purpose, sizes: [usize; 2], index: u64) -> Vec<f64> {
        let mut x = vec![0.0; 20_000];
        Draw::new(seed, purpose, sizes, index).normal(&mut x);
        x
    }

    #[test]
    fn a_draw_is_a_function_of_its_place_and_of_every_part_of_it() {
        let first = numbers(1, Purpose::Cell, [8, 64], 3);
        assert_eq!(first, numbers(1, Purpose::Cell, [8, 64], 3));
        for other in [
            numbers(2, Purpose::Cell, [8, 64], 3),
            numbers(1, Purpose::Heads, [8, 64], 3),
            numbers(1, Purpose::Cell, [9, 64], 3),
            numbers(1, Purpose::Cell, [8, 65], 3),
            numbers(1, Purpose::Cell, [8, 64], 4),
        ] {
            let correlation = first.iter().zip(&other).map(|(a, b)| a * b).sum::<f64>() / first.len() as f64;
            assert!(correlation.abs() < 4.0 / (first.len() as f64).sqrt(), "{correlation}");
        }
    }

    #[test]
    fn the_first_four_moments_are_those_of_a_normal_number() {
        let x: Vec<f64> = (0..10).flat_map(|i| numbers(5, Purpose::Cell, [1, 1], i)).collect();
        let n = x.len() as f64;
        for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let mean = x.iter().map(|v| v.powi(power)).sum::<f64>() / n;
            assert!((mean - expected).abs() < 4.0 * (variance / n).sqrt(), "moment {power}: {mean}");
        }
    }
}
