//! The sweep over many seeds: how far single draws lie from their expectation, and the expectation itself.

use super::Robustness;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin};
use crate::options::sizes;
use crate::options::{check_d_k, check_list, check_seeds, check_seq};
use crate::published::{self, Statistic};
use crate::statistics::cell::{Cell, Loss, Measured, Numbers};
use crate::statistics::summary::Summary;
use crate::statistics::theory;
use clap::Args;
use regard_plot::{Table, Value};
use serde::Serialize;

/// The same over many seeds: mean, spread, exact expectation, and where published numbers lie
///
/// The expectations are computed by quadrature, without sampling; `deviation` is the distance of the mean from it in standard errors.
/// Writes attention_robustness_summary.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard robustness --d-k 64,256 --seq 8 --seeds 20000")]
pub struct RobustnessConfig {
    /// Head dimensions, each up to 4096
    #[arg(long, value_parser = sizes, default_value = "4,16,64,256,1024", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Numbers of tokens
    #[arg(long, value_parser = sizes, default_value = "4,8", value_name = "LIST")]
    pub seq: ::std::vec::Vec<usize>,
    /// Draws per cell
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pub seeds: usize,
    /// Which draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for RobustnessConfig {
    fn default() -> Self {
        defaults()
    }
}

/// The columns that say what a sample came to; [`summary_values`] fills them.
pub(crate) const SUMMARY_COLUMNS: [(&str, &str); 12] = [
    ("seeds", "draws"),
    ("mean", "mean"),
    ("std", "std of one draw"),
    ("standard_error", "standard error"),
    ("ci_low", "95 % interval of the mean, low"),
    ("ci_high", "high"),
    ("q025", "2.5 % of draws below"),
    ("median", "median"),
    ("q975", "97.5 % of draws below"),
    ("exact", "exact expectation"),
    ("deviation", "mean - exact, in standard errors"),
    ("published", "published"),
];

pub(crate) fn summary_values(s: &Summary, exact: Option<f64>, published: Option<f64>) -> Vec<Value> {
    let (low, high) = s.confidence();
    vec![
        s.count.into(),
        s.mean.into(),
        s.std.into(),
        s.standard_error().into(),
        low.into(),
        high.into(),
        s.quantile(0.025).into(),
        s.median().into(),
        s.quantile(0.975).into(),
        exact.into(),
        exact.map(|e| (s.mean - e) / s.standard_error()).into(),
        published.into(),
        published.map(|p| s.percentile_of(p)).into(),
    ]
}

/// Behind [`SUMMARY_COLUMNS`].
pub(crate) const PERCENTILE: (&str, &str) = ("percentile", "percentile of the published value");

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
        columns.push(PERCENTILE);
        let mut table = Table::new(
            "attention_robustness_summary",
            "Statistics of attention matrices over many independent draws, beside their exact expectations and the published single draws",
            &columns,
        );
        for &seq in &self.seq {
            for &d_k in &self.d_k {
                let cell = Cell { seq, d_k, seeds: self.seeds, seed: self.seed, numbers: Numbers::Regard, loss: Some(Loss::MeanSquare) };
                for (scaled, measured) in [false, true].into_iter().zip(cell.measure(progress)?) {
                    push_cell(&mut table, seq, d_k, scaled, &measured);
                }
            }
        }
        table.origin = origin::<Robustness>(self, self.seed, Numbers::Regard.describe())?;
        Ok(vec![table])
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
        let mut row = vec![seq.into(), d_k.into(), scaled.into(), statistic.word().into()];
        row.extend(summary_values(&Summary::new(sample), exact, published));
        table.push(row);
    }
}
