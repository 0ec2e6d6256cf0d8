//! Random numbers by counter: the seed of a run is the key, and the place of a number (which experiment, which cell, which draw) is its counter. So draw
//! 17 of a cell is the same whoever computes it, and draws can be made in any order and on any thread.

use regard::random::Stream;

/// A sequence of numbers of its own.
pub struct Draw(Stream);

/// Which experiment, so that two of them with the same seed do not share their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Purpose {
    Cell = 1,
    Heads = 2,
    Patterns = 3,
    Checks = 4,
    Bench = 5,
    Module = 6,
}

impl Draw {
    /// Draw number `index` of the cell that `purpose` and two of its sizes (up to 2^24) name.
    pub(crate) fn new(seed: u64, purpose: Purpose, sizes: [usize; 2], index: u64) -> Self {
        Self(Stream::new(seed, [(purpose as u32) << 24 ^ sizes[0] as u32, sizes[1] as u32, index as u32]))
    }

    /// Fill with independent standard normal numbers.
    pub(crate) fn normal(&mut self, to: &mut [f64]) {
        self.0.normal(to);
    }

    /// Fill with independent numbers, uniform between -1 and 1.
    pub(crate) fn uniform(&mut self, to: &mut [f64]) {
        self.0.uniform(to);
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
    fn the_distribution_is_normal_in_every_part() {
        let mut x: Vec<f64> = (0..50).flat_map(|i| numbers(9, Purpose::Cell, [2, 2], i)).collect();
        x.sort_unstable_by(f64::total_cmp);
        let n = x.len() as f64;
        let share_below = |y: f64| 0.5 * libm::erfc(-y / std::f64::consts::SQRT_2);
        // Kolmogorov and Smirnov: above 1.95 / sqrt(n) once in a thousand.
        let apart = x.iter().enumerate().map(|(i, &y)| (share_below(y) - (i as f64 + 0.5) / n).abs()).fold(0.0, f64::max);
        assert!(apart < 1.95 / n.sqrt(), "{apart}");
        for from in [3.0, 3.65, 4.0] {
            let (expected, got) = (2.0 * n * share_below(-from), x.iter().filter(|y| y.abs() > from).count() as f64);
            assert!((got - expected).abs() < 4.0 * expected.sqrt(), "beyond {from}: {got} instead of {expected}");
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
