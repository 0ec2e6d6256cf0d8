//! Entropy of the weights against d_k, and the weights of one row.

use super::Entropy;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin};
use crate::experiments::robustness::{PERCENTILE, SUMMARY_COLUMNS, summary_values};
use crate::options::sizes;
use crate::options::{check_d_k, check_seeds, check_seq};
use crate::published::{self, Statistic};
use crate::statistics::cell::{Cell, Numbers};
use crate::statistics::summary::Summary;
use crate::statistics::theory;
use clap::Args;
use regard::{Attention, Scale};
use regard_plot::Table;
use serde::Serialize;

/// Entropy of the weights against d_k at 20 tokens, and the weights of one row
///
/// Writes attention_entropy.csv and attention_entropy_row.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard entropy --d-k 8,32,128,512 --seq 64")]
pub struct EntropyConfig {
    /// Head dimensions, each up to 4096
    #[arg(long, value_parser = sizes, default_value = "8,16,32,64,128,256,512", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Tokens
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub seq: usize,
    /// Draws per cell
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pub seeds: usize,
    /// Which draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The dimension whose first row is shown weight by weight
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub row_d_k: usize,
}

impl Default for EntropyConfig {
    fn default() -> Self {
        defaults()
    }
}

impl EntropyConfig {
    /// `attention_entropy` over d_k, and `attention_entropy_row`, the weights of one row.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_d_k(&self.d_k)?;
        check_d_k(&[self.row_d_k])?;
        check_seq(self.seq)?;
        check_seeds(self.seeds, 2)?;
        let mut columns = vec![("seq", "tokens"), ("d_k", "d_k"), ("scaled", "scaled")];
        columns.extend(SUMMARY_COLUMNS);
        columns.push(PERCENTILE);
        let mut table =
            Table::new("attention_entropy", "Entropy of the attention weights in nats, mean over the rows of a matrix", &columns);
        let cell = |d_k| Cell { seq: self.seq, d_k, seeds: self.seeds, seed: self.seed, numbers: Numbers::Regard, loss: None };
        for &d_k in &self.d_k {
            for (scaled, measured) in [false, true].into_iter().zip(cell(d_k).measure(progress)?) {
                let published = published::number(Statistic::Entropy, self.seq, d_k, scaled);
                let mut row = vec![self.seq.into(), d_k.into(), scaled.into()];
                row.extend(summary_values(&Summary::new(&measured.entropy), Some(theory::row(self.seq, d_k, scaled).entropy), published));
                table.push(row);
            }
        }
        let mut one = Table::new(
            "attention_entropy_row",
            "Weights of the first row of the first draw, without and with the scale",
            &[("d_k", "d_k"), ("key", "key"), ("unscaled", "weight, unscaled"), ("scaled", "weight, scaled")],
        );
        let [q, k] = cell(self.row_d_k).one_draw(0)?;
        let weights = |scale| Attention::new().scale(scale).weights(&q, &k);
        let (unscaled, scaled) = (weights(Scale::Off)?, weights(Scale::InvSqrtDim)?);
        for key in 0..self.seq {
            one.push(vec![self.row_d_k.into(), key.into(), unscaled[[0, 0, 0, key]].into(), scaled[[0, 0, 0, key]].into()]);
        }
        let origin = origin::<Entropy>(self, self.seed, Numbers::Regard.describe())?;
        (table.origin, one.origin) = (origin.clone(), origin);
        Ok(vec![table, one])
    }
}
