//! Entropy of the weights against d_k, and the weights of one row.

use crate::error::Result;
use crate::experiments::cell::{Cell, Numbers};
use crate::experiments::robustness::{PERCENTILE, SUMMARY_COLUMNS, summary_values};
use crate::experiments::{Progress, check_d_k, check_seeds, check_seq, listed, origin};
use crate::published::{self, Statistic};
use crate::summary::Summary;
use crate::table::Table;
use crate::theory;
use regard::{Attention, Scale};

/// Which dimensions, how many tokens, how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntropyConfig {
    /// Head dimensions.
    pub d_k: Vec<usize>,
    /// Tokens.
    pub seq: usize,
    /// Draws per cell.
    pub seeds: usize,
    /// Which draws.
    pub seed: u64,
    /// The dimension whose first row is shown weight by weight.
    pub row_d_k: usize,
}

impl Default for EntropyConfig {
    fn default() -> Self {
        Self { d_k: vec![8, 16, 32, 64, 128, 256, 512], seq: 20, seeds: 2000, seed: 1, row_d_k: 256 }
    }
}

impl EntropyConfig {
    /// The command that makes the same tables.
    pub fn command(&self) -> String {
        let d_k = listed(&self.d_k);
        format!("regard entropy --d-k {d_k} --seq {} --seeds {} --seed {} --row-d-k {}", self.seq, self.seeds, self.seed, self.row_d_k)
    }

    /// `attention_entropy` over d_k, and `attention_entropy_row`, the weights of one row.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_d_k(&self.d_k)?;
        check_d_k(&[self.row_d_k])?;
        check_seq(self.seq)?;
        check_seeds(self.seeds, 2)?;
        progress.expect((self.d_k.len() * self.seeds) as u64);
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
        let origin = origin(self.command(), self.seed, Numbers::Regard.describe())?;
        (table.origin, one.origin) = (origin.clone(), origin);
        Ok(vec![table, one])
    }
}
