//! How sure a difference is: the unit is the text, never the token.
//!
//! ```text
//! interval    percentiles of means over texts drawn again with replacement (bootstrap, seeded)
//! p           share of the 2^n ways to flip signs that give a mean as far from zero (exact up to 20 texts, drawn beyond)
//! q           Benjamini-Hochberg over many p
//! ```

use regard_nn::random::Draws;
use serde::Serialize;

/// Draws of a bootstrap.
const RESAMPLES: usize = 2000;
/// All sign flips are tried up to this many texts.
const EXACT: usize = 20;
/// Sign flips that are drawn beyond.
const TRIALS: usize = 20_000;

/// Paired differences, one per text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// How many texts.
    pub texts: usize,
    /// Mean difference.
    pub mean: f64,
    /// Standard deviation over texts; 0 of one.
    pub deviation: f64,
    /// 95 % bootstrap interval of the mean.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// Texts whose difference is above zero.
    pub worse: usize,
    /// Two-sided sign-flip p.
    pub p: f64,
    /// The smallest p that this many texts can give.
    pub least_p: f64,
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len().max(1) as f64
}

/// The 95 % bootstrap interval of a mean.
pub fn interval(values: &[f64], seed: u64) -> (f64, f64) {
    if values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let mut draws = Draws::at(seed, &[0xB007]);
    let mut means: Vec<f64> =
        (0..RESAMPLES).map(|_| (0..values.len()).map(|_| values[draws.below(values.len())]).sum::<f64>() / values.len() as f64).collect();
    means.sort_by(f64::total_cmp);
    (means[RESAMPLES / 40], means[RESAMPLES - 1 - RESAMPLES / 40])
}

/// Two-sided p of paired differences under flips of their signs.
pub(crate) fn sign_flip(values: &[f64], seed: u64) -> f64 {
    let n = values.len();
    let observed = values.iter().sum::<f64>().abs();
    // Sums of the same numbers in another order may differ in the last bits.
    let far = |sum: f64| sum.abs() >= observed - 1e-12 * (1.0 + observed);
    if n <= EXACT {
        // Each sum is one of the first half's and one of the second half's, which are sorted: counted without adding them all up.
        let sums =
            |values: &[f64]| values.iter().fold(vec![0.0], |sums: Vec<f64>, x| sums.iter().flat_map(|sum| [sum + x, sum - x]).collect());
        let (first, second) = values.split_at(n / 2);
        let (first, mut second) = (sums(first), sums(second));
        second.sort_by(f64::total_cmp);
        let near = |sum: &f64| {
            let low = second.partition_point(|x| sum + x < 0.0 && far(sum + x));
            let high = second.partition_point(|x| !(sum + x > 0.0 && far(sum + x)));
            high.saturating_sub(low)
        };
        let count = if far(0.0) { 1usize << n } else { (1usize << n) - first.iter().map(near).sum::<usize>() };
        return count as f64 / (1u64 << n) as f64;
    }
    let mut draws = Draws::at(seed, &[0xF11B]);
    let count = (0..TRIALS).filter(|_| far(values.iter().map(|x| if draws.bits() & 1 == 1 { -x } else { *x }).sum())).count();
    (count + 1) as f64 / (TRIALS + 1) as f64
}

impl Evidence {
    /// Of the differences of texts.
    pub fn of(values: &[f64], seed: u64) -> Self {
        let (n, mean) = (values.len(), mean(values));
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n.saturating_sub(1).max(1) as f64;
        let (low, high) = interval(values, seed);
        Self {
            texts: n,
            mean,
            deviation: variance.sqrt(),
            low,
            high,
            worse: values.iter().filter(|x| **x > 0.0).count(),
            p: sign_flip(values, seed),
            least_p: if n <= EXACT { 2.0 / 2f64.powi(n as i32) } else { 1.0 / (TRIALS + 1) as f64 },
        }
    }
}

/// Benjamini-Hochberg: for each p the smallest rate of false discoveries at which it would be one.
pub fn benjamini_hochberg(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
    let (mut q, mut least) = (vec![1.0; p.len()], 1f64);
    for (behind, i) in order.into_iter().enumerate() {
        least = least.min(p[i] * p.len() as f64 / (p.len() - behind) as f64);
        q[i] = least;
    }
    q
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_on_one_side_has_the_least_p_there_is() {
        let evidence = Evidence::of(&[0.1, 0.2, 0.3, 0.15, 0.25], 1);
        assert_eq!((evidence.p, evidence.least_p, evidence.worse), (2.0 / 32.0, 2.0 / 32.0, 5));
        assert!(evidence.low > 0.1 && evidence.high < 0.3 && (evidence.mean - 0.2).abs() < 1e-15);
        // By hand: of +-1 +-2 +-3 with sum 4, four of eight ways give 4 or more: +6, -6, +4, -4.
        assert_eq!(Evidence::of(&[3.0, 2.0, -1.0], 1).p, 0.5);
        assert_eq!(Evidence::of(&[0.0, 0.0], 1).p, 1.0);
    }

    #[test]
    fn many_texts_are_drawn_and_agree_with_the_normal_law() {
        let mut draws = Draws::at(3, &[]);
        let values: Vec<f64> = (0..40).map(|_| draws.normal() + 0.5).collect();
        let evidence = Evidence::of(&values, 1);
        let error = evidence.deviation / 40f64.sqrt();
        assert!((evidence.high - evidence.low - 3.92 * error).abs() < 0.6 * error, "{evidence:?}");
        assert!(evidence.p < 0.05 && evidence.p > 0.0);
        // Drawn flips cannot give less than one of all that were drawn.
        let sure = Evidence::of(&[1.0; 40], 1);
        assert_eq!((sure.p, sure.least_p), (1.0 / 20_001.0, 1.0 / 20_001.0));
        assert_eq!(Evidence::of(&[1.0; 20], 1).least_p, 2.0 / f64::from(1 << 20));
    }

    #[test]
    fn false_discoveries_are_those_of_the_paper() {
        let q = benjamini_hochberg(&[0.01, 0.04, 0.03, 0.005]);
        assert_eq!(q.iter().map(|x| (x * 1e6).round() / 1e6).collect::<Vec<_>>(), [0.02, 0.04, 0.04, 0.02]);
        assert!(benjamini_hochberg(&[]).is_empty());
    }
}
