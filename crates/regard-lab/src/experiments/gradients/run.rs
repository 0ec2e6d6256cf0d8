//! Gradients of a loss whose gradient on each weight has variance 1 at every width.

use super::{Gradients, positions};
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin, signed};
use crate::experiments::SweepConfig;
use crate::options::sizes;
use crate::statistics::cell::{Loss, Numbers};
use clap::Args;
use regard_plot::Table;
use serde::Serialize;

/// Gradients with and without the scale at widths up to 4096: dS, dQ, dK, dV, by row, by position and by draw
///
/// The loss has a random direction; its gradient on each weight has variance 1 at every width. dS is the gradient through the softmax.
/// Writes attention_gradients.csv and attention_gradient_positions.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab gradients --d-k 16,256,4096 --seeds 100000")]
pub struct GradientsConfig {
    /// Head dimensions, each up to 4096
    #[arg(long, value_parser = sizes, default_value = "4,16,64,256,512,1024,4096", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Tokens: queries and keys of each matrix
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub seq: usize,
    /// Draws per cell
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for GradientsConfig {
    fn default() -> Self {
        defaults()
    }
}

impl GradientsConfig {
    /// `attention_gradients` and `attention_gradient_positions`, one row per d_k, unscaled and scaled.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        let (numbers, loss) = (Numbers::Regard, Loss::Unit);
        let sweep = SweepConfig { d_k: self.d_k.clone(), seq: self.seq, seeds: self.seeds, seed: self.seed, numbers, loss };
        let mut table = sweep.run(progress)?.swap_remove(0);
        table.name = "attention_gradients".to_owned();
        let positions = positions::table(&self.d_k, self.seq, self.seeds, self.seed, progress)?;
        Ok(signed(vec![table, positions], &origin::<Gradients>(self, self.seed, numbers.describe())?))
    }
}
