//! What a softmax without the subtraction of the maximum does to numbers of limited range.

use super::Overflow;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin, signed};
use crate::options::{check_d_k, check_seeds, sizes};
use crate::rows::{self, Row};
use crate::statistics::cell::Numbers;
use crate::statistics::draws::{Chi, Draw};
use crate::statistics::estimate::Estimate;
use clap::Args;
use half::f16;
use rayon::prelude::*;
use regard_plot::{Table, Value};
use serde::Serialize;

/// Take a softmax without subtracting the maximum: which rows are lost, in single and half precision
///
/// Three rows in numbers, and the share of random rows of 8 keys that end as NaN, by width, with and without the scale. Writes
/// overflow_rows.csv and overflow_shares.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab overflow --d-k 1024,4096 --seeds 100000")]
pub struct OverflowConfig {
    /// Head dimensions, each up to 4096
    #[arg(long, value_parser = sizes, default_value = "16,64,256,1024,4096", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Rows per width
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for OverflowConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Keys of a random row.
const KEYS: usize = 8;

/// The naive softmax, in single precision.
fn naive(scores: &[f64]) -> Vec<f32> {
    let powers: Vec<f32> = scores.iter().map(|s| (*s as f32).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}

/// The same with every number in half precision.
fn naive_half(scores: &[f64]) -> Vec<f16> {
    let powers: Vec<f16> = scores.iter().map(|s| f16::from_f32(f16::from_f64(*s).to_f32().exp())).collect();
    let sum = powers.iter().fold(f16::ZERO, |sum, p| f16::from_f32(sum.to_f32() + p.to_f32()));
    powers.iter().map(|p| f16::from_f32(p.to_f32() / sum.to_f32())).collect()
}

/// With the largest score subtracted first.
fn stable(scores: &[f64]) -> Vec<f32> {
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    naive(&scores.iter().map(|s| s - top).collect::<Vec<_>>())
}

impl OverflowConfig {
    /// `overflow_rows` and `overflow_shares`.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_d_k(&self.d_k)?;
        check_seeds(self.seeds, 2)?;
        let tables = vec![examples(), self.shares(progress)];
        Ok(signed(tables, &origin::<Overflow>(self, self.seed, Numbers::Regard.describe())?))
    }

    fn shares(&self, progress: &dyn Progress) -> Table {
        let columns = [
            ("d_k", "d_k"),
            ("scaled", "scaled"),
            ("seeds", "rows"),
            ("~lost", "lost in single precision"),
            ("~lost_half", "lost in half precision"),
            ("~lost_stable", "lost with the maximum subtracted"),
        ];
        let caption = format!("Share of random rows of {KEYS} keys with NaN");
        let mut table = rows::table("overflow_shares", &caption, &columns);
        for &d_k in &self.d_k {
            for scaled in [false, true] {
                let draw = |index: usize| {
                    let mut draw = Draw::named(self.seed, "overflow", [KEYS, d_k], index as u64);
                    let mut scores = [0.0; KEYS];
                    draw.normal(&mut scores);
                    // Given q, the scores are normal numbers of its length.
                    let mut chi = Chi::new(Draw::named(self.seed, "overflow q", [KEYS, d_k], index as u64));
                    let length = if d_k > 1 { chi.draw(d_k) } else { 1.0 } * if scaled { 1.0 / (d_k as f64).sqrt() } else { 1.0 };
                    scores.iter_mut().for_each(|s| *s *= length);
                    let lost = |weights: &[f32]| weights.iter().any(|w| w.is_nan());
                    [lost(&naive(&scores)), naive_half(&scores).iter().any(|w| w.is_nan()), lost(&stable(&scores))]
                };
                let all: Vec<[bool; 3]> = (0..self.seeds).into_par_iter().map(draw).collect();
                let share = |which: usize| Estimate::of_share(all.iter().filter(|lost| lost[which]).count(), self.seeds);
                let row = Row::default().of(d_k).of(scaled).of(self.seeds);
                row.estimate(share(0)).estimate(share(1)).estimate(share(2)).put(&mut table);
            }
            progress.advance(self.seeds as u64);
        }
        table
    }
}

fn examples() -> Table {
    let columns = [
        ("scores", "scores"),
        ("naive", "exp first, single precision"),
        ("half", "exp first, half precision"),
        ("stable", "maximum subtracted first"),
    ];
    let mut table = Table::new("overflow_rows", "Three rows of scores: naive and stable softmax", &columns);
    for scores in [[1.0, 2.0, 3.0], [11.0, 12.0, 13.0], [1000.0, 1001.0, 1002.0]] {
        let list = |numbers: Vec<f64>| {
            let one = |x: &f64| if x.is_nan() { "NaN".to_owned() } else { format!("{x:.3}") };
            Value::Text(numbers.iter().map(one).collect::<Vec<_>>().join(" "))
        };
        table.push(vec![
            Value::Text(scores.map(|s| s.to_string()).join(" ")),
            list(naive(&scores).into_iter().map(f64::from).collect()),
            list(naive_half(&scores).into_iter().map(f64::from).collect()),
            list(stable(&scores).into_iter().map(f64::from).collect()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_first_fail_where_they_must_and_nowhere_else() {
        assert!(naive(&[88.0, 0.0]).iter().all(|w| w.is_finite()) && naive(&[89.0, 0.0])[0].is_nan());
        assert!(naive_half(&[11.0, 0.0])[0].is_finite() && naive_half(&[12.0, 0.0])[0].is_nan());
        let weights = stable(&[1000.0, 1001.0, 1002.0]);
        for (w, known) in weights.iter().zip([0.090_030_57, 0.244_728_47, 0.665_240_96]) {
            assert!((w - known).abs() < 1e-6);
        }
    }
}
