//! Normal numbers that are a pure function of where they stand.
//!
//! ChaCha with 8 rounds as a counter-based generator: the key is the seed and the name of the experiment's cell, the stream is the number of
//! the draw, the counter runs along. So draw 17 of a cell is the same whoever computes it, and draws can be made in any order
//! and on any thread.
//!
//! Words become normal numbers by the ziggurat of Marsaglia and Tsang with 256 layers and 53 bits. (`rand_distr` has the same method, one number and
//! one call of the generator at a time; over a buffer it takes half the time, and draws are a third of a sweep.)

use chacha20::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use std::sync::LazyLock;

/// A sequence of numbers of its own.
pub struct Draw {
    rng: ChaCha8Rng,
    words: [u64; WORDS],
    next: usize,
}

/// Words that are made at a time: what the smallest matrices need.
const WORDS: usize = 128;

const LAYERS: usize = 256;
/// Where the tail begins, and the area of each layer, for 256 of them.
const TAIL: f64 = 3.654_152_885_361_009;
const AREA: f64 = 0.004_928_673_233_974_655;

/// Right edges of the layers, from the widest, which stands for the tail too, to 0 at the top.
static EDGES: LazyLock<[f64; LAYERS + 1]> = LazyLock::new(|| {
    let mut edges = [0.0; LAYERS + 1];
    edges[0] = AREA / bell(TAIL);
    edges[1] = TAIL;
    for i in 2..LAYERS {
        edges[i] = (-2.0 * libm::log(AREA / edges[i - 1] + bell(edges[i - 1]))).sqrt();
    }
    edges
});

fn bell(x: f64) -> f64 {
    libm::exp(-0.5 * x * x)
}

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
        Self { rng, words: [0; WORDS], next: WORDS }
    }

    #[inline]
    fn word(&mut self) -> u64 {
        if self.next == WORDS {
            let mut bytes = [0; 8 * WORDS];
            self.rng.fill_bytes(&mut bytes);
            for (word, bytes) in self.words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            }
            self.next = 0;
        }
        self.next += 1;
        self.words[self.next - 1]
    }

    /// Between 0 and 1, neither of them.
    fn open_unit(&mut self) -> f64 {
        ((self.word() >> 12) as f64 + 0.5) * 2f64.powi(-52)
    }

    #[inline]
    fn one_normal(&mut self, edges: &[f64; LAYERS + 1]) -> f64 {
        let word = self.word();
        let layer = (word & 0xff) as usize;
        // The upper 53 bits, with their sign.
        let x = ((word as i64) >> 11) as f64 * 2f64.powi(-52) * edges[layer];
        if x.abs() < edges[layer + 1] { x } else { self.rare_normal(edges, layer, x) }
    }

    /// Beside the part of the layer that lies under the bell as a whole: one number in a hundred.
    #[cold]
    fn rare_normal(&mut self, edges: &[f64; LAYERS + 1], layer: usize, x: f64) -> f64 {
        if layer == 0 {
            loop {
                let (a, b) = (libm::log(self.open_unit()) / TAIL, libm::log(self.open_unit()));
                if -2.0 * b >= a * a {
                    return if x < 0.0 { a - TAIL } else { TAIL - a };
                }
            }
        }
        let (low, high) = (bell(edges[layer]), bell(edges[layer + 1]));
        if low + self.open_unit() * (high - low) < bell(x) { x } else { self.one_normal(edges) }
    }

    /// Fill with independent standard normal numbers.
    pub(crate) fn normal(&mut self, to: &mut [f64]) {
        let edges = &*EDGES;
        for x in to {
            *x = self.one_normal(edges);
        }
    }

    /// Add `count` independent normal numbers of that standard deviation.
    pub(crate) fn add_normal(&mut self, to: &mut Vec<f64>, count: usize, deviation: f64) {
        let edges = &*EDGES;
        to.extend((0..count).map(|_| self.one_normal(edges) * deviation));
    }

    /// Fill with independent numbers, uniform between -1 and 1.
    pub(crate) fn uniform(&mut self, to: &mut [f64]) {
        for x in to {
            *x = (self.word() >> 11) as f64 * 2f64.powi(-52) - 1.0;
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
        // The tail is a branch of its own.
        for from in [3.0, TAIL, 4.0] {
            let (expected, got) = (2.0 * n * share_below(-from), x.iter().filter(|y| y.abs() > from).count() as f64);
            assert!((got - expected).abs() < 4.0 * expected.sqrt(), "beyond {from}: {got} instead of {expected}");
        }
    }

    #[test]
    fn layers_have_the_same_area_and_end_at_the_top() {
        for i in 1..LAYERS - 1 {
            let area = EDGES[i] * (bell(EDGES[i + 1]) - bell(EDGES[i]));
            assert!((area - AREA).abs() < 1e-12, "layer {i}: {area}");
        }
        assert!((EDGES[LAYERS - 1] * (1.0 - bell(EDGES[LAYERS - 1])) - AREA).abs() < 1e-9);
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
