//! Do heads come to differ? Their statistics and their likeness while a language model learns.

mod claims;
mod figures;
mod run;

pub use run::TrainedHeadsConfig;
#[cfg(test)]
pub(crate) use run::tests;

use crate::error::Result;
use crate::experiment::{Experiment, Progress, Shown, WHOLE};
use crate::judging::Judged;
use crate::report::ReportConfig;
use regard_plot::figure::Figure;
use regard_plot::{Table, Tables};

/// The experiment.
#[derive(Debug)]
pub struct TrainedHeads;

impl Experiment for TrainedHeads {
    type Config = TrainedHeadsConfig;

    const ID: &'static str = "trained-heads";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("trained_heads_likeness", WHOLE), ("trained_heads", WHOLE)];
    const FIGURES: &'static [&'static str] = &["trained_heads", "trained_heads_look"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored!["trained_heads", "trained_heads_likeness"];

    fn work(config: &TrainedHeadsConfig) -> u64 {
        config.steps
    }

    fn run(config: &TrainedHeadsConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Figure>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Judged>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<TrainedHeadsConfig> {
        Some(TrainedHeadsConfig { seed: report.seed, ..TrainedHeadsConfig::default() })
    }
}
