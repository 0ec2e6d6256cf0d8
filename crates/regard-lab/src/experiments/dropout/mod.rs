//! Dropout of attention weights: what it does to the weights, and what it does in training.

mod claims;
mod figures;
mod run;

pub use run::DropoutConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::learning::SeedsConfig;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Dropout;

impl Experiment for Dropout {
    type Config = DropoutConfig;

    const ID: &'static str = "dropout";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] =
        &[("dropout_weights", WHOLE), ("dropout_training", WHOLE), ("dropout_curves", HIDDEN), ("dropout_seeds", HIDDEN)];
    const LEARNS_TEXT: bool = true;
    const FIGURES: &'static [&'static str] = &["dropout_weights", "dropout_training"];
    const STORED: &'static [(&'static str, &'static [u8])] =
        &stored!["dropout_weights", "dropout_training", "dropout_curves", "dropout_seeds"];

    fn work(config: &DropoutConfig) -> u64 {
        (config.rates.len() * config.seeds.seeds) as u64 * config.steps + (config.rates.len() * config.draws) as u64
    }

    fn run(config: &DropoutConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<DropoutConfig> {
        let seeds = SeedsConfig { seed: report.seed, ..SeedsConfig::default() };
        Some(DropoutConfig { seeds, learning: report.learning(), ..DropoutConfig::default() })
    }
}
