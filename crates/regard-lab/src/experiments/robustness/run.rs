//! The sweep over many seeds: how far single draws lie from their expectation, and the expectation itself.

use super::Robustness;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin, signed};
use crate::options::sizes;
use crate::options::{check_d_k, check_list, check_seeds, check_seq};
use crate::published::{self, Statistic};
use crate::rows::{self, Row};
use crate::statistics::cell::{Cell, Loss, Measured, Numbers};
use crate::statistics::estimate::Estimate;
use crate::statistics::summary::Summary;
use crate::statistics::theory;
use clap::Args;
use regard_plot::Table;
use serde::Serialize;

/// The same over many seeds: mean, spread, exact expectation, and where published numbers lie
///
/// The expectations are computed by quadrature, without sampling; `deviation` is the distance of the mean from it in standard errors.
/// Writes attention_robustness_summary.csv and attention_robustness_rule.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab robustness --d-k 64,256 --seq 8 --seeds 200000")]
pub struct RobustnessConfig {
    /// Head dimensions, each up to 4096
    #[arg(long, value_parser = sizes, default_value = "4,16,64,256,1024", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Numbers of tokens
    #[arg(long, value_parser = sizes, default_value = "4,8", value_name = "LIST")]
    pub seq: ::std::vec::Vec<usize>,
    /// Draws per cell
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for RobustnessConfig {
    fn default() -> Self {
        defaults()
    }
}

/// The columns that say what a sample came to; [`summary_cells`] fills them.
pub(crate) const SUMMARY_COLUMNS: [(&str, &str); 10] = [
    ("seeds", "draws"),
    ("~mean", "mean"),
    ("~std", "std of one draw"),
    ("~q025", "2.5 % of draws below"),
    ("~median", "median"),
    ("~q975", "97.5 % of draws below"),
    ("exact", "exact expectation"),
    ("deviation", "mean - exact, in standard errors"),
    ("published", "published"),
    ("~percentile", "percentile of the published value"),
];

pub(crate) fn summary_cells(row: Row, s: &Summary, exact: Option<f64>, published: Option<f64>) -> Row {
    let row = row.of(s.count).estimate(s.estimate()).estimate(s.deviation());
    let row = row.estimate(s.quantile(0.025)).estimate(s.median()).estimate(s.quantile(0.975));
    let row = row.of(exact).of(exact.map(|e| (s.mean - e) / s.standard_error())).of(published);
    row.maybe(published.map(|p| s.percentile_of(p)))
}

impl RobustnessConfig {
    /// `attention_robustness_summary`: one row per number of tokens, d_k, scale and statistic.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_d_k(&self.d_k)?;
        check_list("seq", &self.seq, "4,8")?;
        self.seq.iter().try_for_each(|&n| check_seq(n))?;
        check_seeds(self.seeds, 2)?;
        let mut columns = vec![("seq", "tokens"), ("d_k", "d_k"), ("scaled", "scaled"), ("statistic", "statistic, mean over the rows")];
        columns.extend(SUMMARY_COLUMNS);
        let mut table =
            rows::table("attention_robustness_summary", "Many draws, their exact expectations, and the published single draws", &columns);
        let mut rule = rows::table(
            "attention_robustness_rule",
            "Share of draws with a number outside the central 95 % of its distribution",
            &RULE_COLUMNS,
        );
        for &seq in &self.seq {
            for &d_k in &self.d_k {
                let cell = Cell { seq, d_k, seeds: self.seeds, seed: self.seed, numbers: Numbers::Regard, loss: Some(Loss::MeanSquare) };
                let both = cell.measure(progress)?;
                for (scaled, measured) in [false, true].into_iter().zip(&both) {
                    push_cell(&mut table, seq, d_k, scaled, measured);
                }
                push_rule(&mut rule, seq, d_k, &both);
            }
        }
        Ok(signed(vec![table, rule], &origin::<Robustness>(self, self.seed, Numbers::Regard.describe())?))
    }
}

fn push_cell(table: &mut Table, seq: usize, d_k: usize, scaled: bool, m: &Measured) {
    let exact = theory::row(seq, d_k, scaled);
    let rows = [
        (Statistic::MaxWeight, &m.max_weight, Some(exact.max_weight)),
        (Statistic::Entropy, &m.entropy, Some(exact.entropy)),
        (Statistic::SumOfSquares, &m.sum_of_squares, Some(exact.sum_of_squares)),
        (Statistic::NormDq, &m.dq, None),
        (Statistic::NormDk, &m.dk, None),
    ];
    for (statistic, sample, exact) in rows {
        let published = published::number(statistic, seq, d_k, scaled);
        let row = Row::default().of(seq).of(d_k).of(scaled).of(statistic.word());
        summary_cells(row, &Summary::new(sample), exact, published).put(table);
    }
}

const RULE_COLUMNS: [(&str, &str); 3] =
    [("seq", "tokens"), ("d_k", "d_k"), ("~any_outside", "one of its eight numbers outside the central 95 % of its distribution")];

fn push_rule(table: &mut Table, seq: usize, d_k: usize, both: &[Measured; 2]) {
    let unusual = |lists: &[&Vec<f64>], side: f64| {
        let mut any = vec![false; lists[0].len()];
        for list in lists {
            any.iter_mut().zip(Summary::new(list).outside(list, side)).for_each(|(any, outside)| *any |= outside);
        }
        Estimate::of_share(any.iter().filter(|any| **any).count(), any.len())
    };
    let four = |m: &'_ Measured| [m.max_weight.clone(), m.entropy.clone(), m.dq.clone(), m.dk.clone()];
    let all: Vec<Vec<f64>> = both.iter().flat_map(four).collect();
    let row = Row::default().of(seq).of(d_k).estimate(unusual(&all.iter().collect::<Vec<_>>(), 0.025));
    row.put(table);
}
