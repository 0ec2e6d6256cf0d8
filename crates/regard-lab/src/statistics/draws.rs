//! Counter-based random numbers: the seed of a run is the key, and the place of a number (which experiment, which cell, which draw) is its
//! counter. Draw 17 of a cell is the same on any machine, and draws can be made in any order and on any thread.

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

    /// The same for a purpose that has a name of its own, such as the id of an experiment.
    pub(crate) fn named(seed: u64, purpose: &str, sizes: [usize; 2], index: u64) -> Self {
        // FNV-1a: two names share no numbers, and no list of purposes has to be kept.
        let hash = purpose.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        Self(Stream::new(seed ^ hash, [sizes[0] as u32, sizes[1] as u32, index as u32]))
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

/// `vectors` independent vectors of `d` standard normal numbers, turned so that vector i has zeros after its first i + 1 numbers: a
/// triangle (Bartlett's decomposition). Dot products among the vectors are invariant under rotation, so everything computed from them has
/// exactly the distribution that it has for the vectors themselves, at a cost that does not grow with `d`. More dimensions than vectors
/// are needed.
pub(crate) fn triangle(normal: &mut Draw, chi: &mut Chi, vectors: usize, d: usize, to: &mut [f64]) {
    debug_assert!(d > vectors && to.len() == vectors * vectors, "a triangle needs more dimensions than vectors");
    normal.normal(to);
    for (i, row) in to.chunks_exact_mut(vectors).enumerate() {
        row[i] = chi.draw(d - i);
        row[i + 1..].fill(0.0);
    }
}

/// Lengths of vectors of standard normal numbers, by Marsaglia and Tsang's method for gamma-distributed numbers.
pub(crate) struct Chi {
    draw: Draw,
    normal: [f64; 64],
    uniform: [f64; 64],
    next: usize,
}

impl Chi {
    pub(crate) fn new(draw: Draw) -> Self {
        Self { draw, normal: [0.0; 64], uniform: [0.0; 64], next: 64 }
    }

    fn pair(&mut self) -> (f64, f64) {
        if self.next == self.normal.len() {
            self.draw.normal(&mut self.normal);
            self.draw.uniform(&mut self.uniform);
            self.next = 0;
        }
        self.next += 1;
        (self.normal[self.next - 1], 0.5 + 0.5 * self.uniform[self.next - 1])
    }

    /// The length of a vector of `d` numbers, at least 2.
    pub(crate) fn draw(&mut self, d: usize) -> f64 {
        let shape = d as f64 / 2.0 - 1.0 / 3.0;
        let c = 1.0 / (9.0 * shape).sqrt();
        loop {
            let (x, u) = self.pair();
            let v = (1.0 + c * x) * (1.0 + c * x) * (1.0 + c * x);
            if v > 0.0 && libm::log(u) < 0.5 * x * x + shape - shape * v + shape * libm::log(v) {
                return (2.0 * shape * v).sqrt();
            }
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
    fn lengths_have_the_moments_of_their_distribution() {
        for d in [2, 3, 17, 256] {
            let mut chi = Chi::new(Draw::named(5, "chi", [1, d], 0));
            let squares: Vec<f64> = (0..40_000).map(|_| chi.draw(d).powi(2)).collect();
            let n = squares.len() as f64;
            let mean = squares.iter().sum::<f64>() / n;
            let variance = squares.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let d = d as f64;
            assert!((mean - d).abs() < 4.0 * (2.0 * d / n).sqrt(), "{d}: {mean}");
            // The fourth central moment of a chi-square is 12 d (d + 4).
            assert!((variance - 2.0 * d).abs() < 4.0 * ((12.0 * d * (d + 4.0) - 4.0 * d * d) / n).sqrt(), "{d}: {variance}");
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
