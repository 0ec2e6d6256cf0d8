//! The problem sheet's three widths, and the linear region that the softmax is said to work in.

use super::LinearRegion;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin, signed};
use crate::options::{check_d_k, check_seeds, sizes};
use crate::rows::{self, Row};
use crate::statistics::cell::Numbers;
use crate::statistics::draws::{Chi, Draw};
use crate::statistics::estimate::Estimate;
use crate::statistics::theory;
use clap::Args;
use rayon::prelude::*;
use regard_plot::Table;
use serde::Serialize;

/// Put the softmax against a straight line: is there a linear region that the scale keeps it in?
///
/// At d_k = 64, 256, 1024 the largest weight with and without the scale, and how far the weights are from those of the softmax's tangent
/// at 0; the same for scores of any spread. Writes linear_region.csv and linear_region_spread.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab linear-region --d-k 16,64 --seeds 100000")]
pub struct LinearRegionConfig {
    /// Head dimensions, each up to 4096
    #[arg(long, value_parser = sizes, default_value = "64,256,1024", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Rows per width
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for LinearRegionConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Keys of a row.
const KEYS: usize = 8;
/// Standard deviations of scores that are tried.
const SPREADS: [f64; 7] = [0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0];

/// Of one row: the largest score, how far the weights are from the tangent's, as a share of how far they are from even, and whether the
/// tangent makes a negative weight.
fn against_the_tangent(scores: &[f64]) -> [f64; 3] {
    let n = scores.len() as f64;
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let (sum, mean) = (powers.iter().sum::<f64>(), scores.iter().sum::<f64>() / n);
    let (mut apart, mut uneven, mut negative) = (0.0, 0.0, false);
    for (power, score) in powers.iter().zip(scores) {
        let (weight, line) = (power / sum, (1.0 + score - mean) / n);
        apart += (weight - line).powi(2);
        uneven += (weight - 1.0 / n).powi(2);
        negative |= line < 0.0;
    }
    [scores.iter().fold(0.0, |m: f64, s| m.max(s.abs())), (apart / uneven).sqrt(), f64::from(u8::from(negative))]
}

impl LinearRegionConfig {
    /// `linear_region` by width, `linear_region_spread` by the spread of the scores.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_d_k(&self.d_k)?;
        check_seeds(self.seeds, 2)?;
        let tables = vec![self.widths(progress), self.spreads()];
        Ok(signed(tables, &origin::<LinearRegion>(self, self.seed, Numbers::Regard.describe())?))
    }

    fn rows(&self, purpose: &str, size: usize, spread: impl Fn(u64) -> f64 + Sync) -> [Estimate; 3] {
        let draw = |index: usize| {
            let mut scores = [0.0; KEYS];
            Draw::named(self.seed, purpose, [KEYS, size], index as u64).normal(&mut scores);
            let spread = spread(index as u64);
            scores.iter_mut().for_each(|s| *s *= spread);
            against_the_tangent(&scores)
        };
        let all: Vec<[f64; 3]> = (0..self.seeds).into_par_iter().map(draw).collect();
        let of = |which: usize| all.iter().map(|row| row[which]).collect::<Vec<_>>();
        [Estimate::of_mean(&of(0)), Estimate::of_mean(&of(1)), Estimate::of_shares(&of(2))]
    }

    fn widths(&self, progress: &dyn Progress) -> Table {
        let columns = [
            ("d_k", "d_k"),
            ("words", "in the sheet's words"),
            ("scaled", "scaled"),
            ("max_weight", "expected largest weight (exact)"),
            ("entropy", "expected entropy (exact)"),
            ("~largest_score", "mean largest |score|"),
            ("~error", "distance from the tangent / distance from even"),
            ("~negative", "rows in which the tangent makes a negative weight"),
        ];
        let caption = format!("Rows of {KEYS} random keys, and their distance from the tangent");
        let mut table = rows::table("linear_region", &caption, &columns);
        for &d_k in &self.d_k {
            let words = match d_k {
                64 => "little difference",
                256 => "helps noticeably",
                1024 => "essential",
                _ => "not said",
            };
            for scaled in [false, true] {
                let unit = if scaled { 1.0 / (d_k as f64).sqrt() } else { 1.0 };
                let length =
                    |index| unit * if d_k > 1 { Chi::new(Draw::named(self.seed, "linear q", [KEYS, d_k], index)).draw(d_k) } else { 1.0 };
                let [largest, error, negative] = self.rows("linear-region", d_k, length);
                let exact = theory::row(KEYS, d_k, scaled);
                let row = Row::default().of(d_k).of(words).of(scaled).of(exact.max_weight).of(exact.entropy);
                row.estimate(largest).estimate(error).estimate(negative).put(&mut table);
            }
            progress.advance(self.seeds as u64);
        }
        table
    }

    fn spreads(&self) -> Table {
        let columns = [
            ("spread", "standard deviation of the scores"),
            ("~error", "distance from the tangent / distance from even"),
            ("~negative", "rows in which the tangent makes a negative weight"),
        ];
        let mut table = rows::table("linear_region_spread", "Distance from the tangent at 0, by the spread of the scores", &columns);
        for (place, spread) in SPREADS.into_iter().enumerate() {
            let [_, error, negative] = self.rows("linear spread", place, |_| spread);
            Row::default().of(spread).estimate(error).estimate(negative).put(&mut table);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_scores_are_on_the_tangent_and_large_ones_are_not() {
        // Two keys at +-x: weights 1/2 +- tanh(x)/2, the tangent has 1/2 +- x/2.
        for x in [0.01f64, 0.5, 3.0] {
            let [largest, error, negative] = against_the_tangent(&[x, -x]);
            assert!((largest - x).abs() < 1e-12 && (error - (x / x.tanh() - 1.0)).abs() < 1e-9, "{x}: {error}");
            assert_eq!(negative, f64::from(u8::from(x > 1.0)));
        }
    }
}
