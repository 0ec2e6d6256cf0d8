//! The sweep over d_k: what the scale does to the weights, the scores and the gradients.

use super::Sweep;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin};
use crate::options::sizes;
use crate::options::{check_d_k, check_seeds, check_seq};
use crate::rows::{self, Row};
use crate::statistics::cell::{Cell, Loss, Measured, Numbers};
use crate::statistics::estimate::Estimate;
use crate::statistics::summary::{Rows, share_of_largest};
use clap::Args;
use rayon::prelude::*;
use regard::{Attention, Scale};
use regard_plot::Table;
use serde::Serialize;

/// Sweep d_k, without and with the scale: weights, scores and gradients
///
/// By default this is the run of the first document, number for number: 8 tokens, the draws of PyTorch's seeds 42 + d_k, loss mean(out^2).
/// Writes attention_sweep_results.csv, and the weights of the first draws.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab sweep --d-k 4,16,64,256,1024,4096 --numbers regard --loss unit --seeds 20000")]
pub struct SweepConfig {
    /// Head dimensions, each up to 4096
    #[arg(long, value_parser = sizes, default_value = "4,16,64,256", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Tokens: queries and keys of each matrix
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub seq: usize,
    /// Draws per cell; the table has means over them
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Where the random numbers come from
    #[arg(long, value_enum, default_value_t = Numbers::PyTorch)]
    pub numbers: Numbers,
    /// What the gradients are gradients of
    #[arg(long, value_enum, default_value_t = Loss::MeanSquare)]
    pub loss: Loss,
}

impl Default for SweepConfig {
    fn default() -> Self {
        defaults()
    }
}

impl SweepConfig {
    fn cell(&self, d_k: usize) -> Cell {
        Cell { seq: self.seq, d_k, seeds: self.seeds, seed: self.seed, numbers: self.numbers, loss: Some(self.loss) }
    }

    /// `attention_sweep_results`, one row per d_k, unscaled and scaled; and, for up to 32 tokens, `attention_sweep_weights`, the weights of
    /// the first draws.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_d_k(&self.d_k)?;
        check_seq(self.seq)?;
        check_seeds(self.seeds, 1)?;
        let origin = origin::<Sweep>(self, self.seed, self.numbers.describe())?;
        let mut table = rows::table(
            "attention_sweep_results",
            "Random queries and keys, with and without 1/sqrt(d_k): means over draws, row statistics over all rows",
            &COLUMNS,
        );
        let mut weights = Table::new(
            "attention_sweep_weights",
            "Attention weights of the first draw of each cell",
            &[("d_k", "d_k"), ("scaled", "scaled"), ("query", "query"), ("key", "key"), ("weight", "weight")],
        );
        // Cells side by side: while the rows of one are sorted, another is drawn.
        let rows = self.d_k.par_iter().map(|&d_k| {
            let both = self.cell(d_k).measure(progress)?;
            Ok([false, true].into_par_iter().zip(both).map(|(scaled, measured)| self.row(d_k, scaled, &measured)).collect())
        });
        for rows in rows.collect::<Result<Vec<Vec<Row>>>>()? {
            rows.into_iter().for_each(|row: Row| row.put(&mut table));
        }
        if self.seq <= 32 {
            for &d_k in &self.d_k {
                [false, true].into_iter().try_for_each(|scaled| push_weights(&mut weights, &self.cell(d_k), scaled))?;
            }
        }
        (table.origin, weights.origin) = (origin.clone(), origin);
        Ok(if weights.rows.is_empty() { vec![table] } else { vec![table, weights] })
    }

    fn row(&self, d_k: usize, scaled: bool, m: &Measured) -> Row {
        let [dq, d_scores] = [&m.dq_rows, &m.d_scores_rows].map(|rows| Rows::new(rows, self.seq));
        let mut row = Row::default().of(d_k).of(scaled).of(self.seq).of(self.seeds);
        for sample in [&m.max_weight, &m.entropy, &m.sum_of_squares, &m.dq, &m.dk, &m.dv] {
            row = row.estimate(Estimate::of_mean(sample));
        }
        row = row.estimate(dq.root_mean_square()).estimate(dq.quantile(0.1)).estimate(dq.quantile(0.5)).estimate(dq.quantile(0.9));
        row = row.estimate(d_scores.root_mean_square()).estimate(d_scores.quantile(0.5));
        row = row.estimate(dq.share_below(VANISHED)).estimate(dq.share_holding(0.9));
        row = row.estimate(Estimate::of_mean(&m.score_min)).estimate(Estimate::of_mean(&m.score_max));
        let std = Estimate::of_mean(&m.score_square).map(|x| x.clamp(0.0, f64::INFINITY).sqrt());
        row.estimate(std).estimate(share_of_largest(&m.dq)).of(self.loss.word())
    }
}

/// A row of a gradient below this counts as vanished.
const VANISHED: f64 = 1e-8;

const COLUMNS: [(&str, &str); 23] = [
    ("d_k", "d_k"),
    ("scaled", "scaled"),
    ("seq", "tokens"),
    ("seeds", "draws"),
    ("~mean_max_weight", "mean largest weight"),
    ("~mean_entropy", "mean entropy (nats)"),
    ("~mean_sum_of_squares", "mean sum of squares"),
    ("~grad_norm_q", "norm of dQ"),
    ("~grad_norm_k", "norm of dK"),
    ("~grad_norm_v", "norm of dV"),
    ("~row_dq_rms", "row of dQ, root mean square"),
    ("~row_dq_q10", "row of dQ, 10 % below"),
    ("~row_dq_median", "row of dQ, median"),
    ("~row_dq_q90", "row of dQ, 90 % below"),
    ("~row_d_scores_rms", "row of d_scores, root mean square"),
    ("~row_d_scores_median", "row of d_scores, median"),
    ("~rows_below_1e_8", "share of rows of dQ below 1e-8"),
    ("~rows_holding_90_percent", "share of rows with 90 % of the squared norm"),
    ("~score_min", "smallest score"),
    ("~score_max", "largest score"),
    ("~score_std", "std of the scores"),
    ("~largest_percent", "share of the mean norm of dQ that is in the top 1 % of draws"),
    ("loss", "loss"),
];

fn push_weights(table: &mut Table, cell: &Cell, scaled: bool) -> Result<()> {
    let [q, k] = cell.one_draw(0)?;
    let scale = if scaled { Scale::InvSqrtDim } else { Scale::Off };
    let weights = Attention::new().scale(scale).weights(&q, &k)?;
    for ((_, _, query, key), &weight) in weights.indexed_iter() {
        table.push(vec![cell.d_k.into(), scaled.into(), query.into(), key.into(), weight.into()]);
    }
    Ok(())
}
