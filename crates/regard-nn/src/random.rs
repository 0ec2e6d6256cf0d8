//! Random numbers as pure functions of a seed and a place, so that a run can be taken up at any step.

/// One round of SplitMix64's output function.
#[inline]
const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A stream of random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Draws {
    state: u64,
}

impl Draws {
    /// The stream that belongs to a seed and a place in the computation (a step, a tensor, a purpose).
    pub fn at(seed: u64, place: &[u64]) -> Self {
        let state = place.iter().fold(mix(seed.wrapping_add(GOLDEN)), |s, &p| mix(s.wrapping_add(GOLDEN) ^ mix(p.wrapping_add(GOLDEN))));
        Self { state }
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// The stream as it is after `count` more draws of [`Draws::bits`].
    pub fn skip(mut self, count: u64) -> Self {
        self.state = self.state.wrapping_add(GOLDEN.wrapping_mul(count));
        self
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0 .. n; n must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// An index drawn with the given weights, which need not sum to one.
    pub fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut x = self.uniform() * weights.iter().sum::<f64>();
        for (i, w) in weights.iter().enumerate() {
            if x < *w {
                return i;
            }
            x -= w;
        }
        // Rounding can leave u above the total: fall back to the last non-zero weight.
        weights.iter().rposition(|w| *w > 0.0).unwrap_or(0)
    }

    /// Shuffle in place.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_ranges_are_those_of_the_distributions() {
        let mut draws = Draws::at(7, &[1, 2]);
        let n = 200_000i32;
        let (mut sum, mut squares) = (0.0, 0.0);
        let mut counts = [0; 5];
        for _ in 0..n {
            let x = draws.normal();
            sum += x;
            squares += x * x;
            counts[draws.below(5)] += 1;
        }
        assert!((sum / f64::from(n)).abs() < 0.01);
        assert!((squares / f64::from(n) - 1.0).abs() < 0.02);
        assert!(counts.iter().all(|c| (c - n / 5).abs() < 1000), "{counts:?}");
        assert_eq!((0..1000).filter(|_| draws.weighted(&[0.0, 3.0, 1.0]) == 0).count(), 0);
    }

    #[test]
    fn places_have_streams_of_their_own() {
        assert_ne!(Draws::at(1, &[2, 3]).bits(), Draws::at(1, &[3, 2]).bits());
        assert_ne!(Draws::at(1, &[0]).bits(), Draws::at(1, &[0, 0]).bits());
        assert_eq!(Draws::at(1, &[2]).bits(), Draws::at(1, &[2]).bits());
    }
}
