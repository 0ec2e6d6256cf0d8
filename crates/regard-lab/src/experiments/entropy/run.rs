//! Entropy of the weights against d_k, and the weights of one row.

use super::Entropy;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin};
use crate::experiments::robustness::{SUMMARY_COLUMNS, summary_cells};
use crate::options::sizes;
use crate::options::{check_d_k, check_seeds, check_seq};
use crate::published::{self, Statistic};
use crate::rows::{self, Row};
use crate::statistics::cell::{Cell, Numbers};
use crate::statistics::estimate::Estimate;
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
#[command(after_help = "Example:\n  regard lab entropy --d-k 8,32,128,512 --seq 64")]
pub struct EntropyConfig {
    /// Head dimensions, each up to 4096
    #[arg(long, value_parser = sizes, default_value = "8,16,32,64,128,256,512", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Tokens
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub seq: usize,
    /// Draws per cell
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
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
        columns.push(("~any_outside", "draws with one of both numbers outside the central 95 %"));
        let mut table = rows::table("attention_entropy", "Entropy in nats, mean over the rows of a matrix", &columns);
        let cell = |d_k| Cell { seq: self.seq, d_k, seeds: self.seeds, seed: self.seed, numbers: Numbers::Regard, loss: None };
        for &d_k in &self.d_k {
            let both = cell(d_k).measure(progress)?.map(|measured| measured.entropy);
            let summaries = both.each_ref().map(|sample| Summary::new(sample));
            let pairs = summaries[0].outside(&both[0], 0.025).zip(summaries[1].outside(&both[1], 0.025));
            let outside = Estimate::of_share(pairs.filter(|(a, b)| *a || *b).count(), self.seeds);
            for (scaled, summary) in [false, true].into_iter().zip(&summaries) {
                let published = published::number(Statistic::Entropy, self.seq, d_k, scaled);
                let row = Row::default().of(self.seq).of(d_k).of(scaled);
                let row = summary_cells(row, summary, Some(theory::row(self.seq, d_k, scaled).entropy), published);
                row.estimate(outside).put(&mut table);
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
