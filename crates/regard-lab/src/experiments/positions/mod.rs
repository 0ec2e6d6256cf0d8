//! Positional encodings: what a model without them cannot do.

mod claims;
mod figures;
mod run;

pub use run::PositionsConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::learning::SeedsConfig;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Positions;

impl Experiment for Positions {
    type Config = PositionsConfig;

    const ID: &'static str = "positions";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("positions", WHOLE), ("positions_seeds", WHOLE)];
    const FIGURES: &'static [&'static str] = &["positions"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored!["positions", "positions_seeds"];

    fn work(config: &PositionsConfig) -> u64 {
        (run::KINDS.len() * config.seeds.seeds) as u64 * config.steps
    }

    fn run(config: &PositionsConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<PositionsConfig> {
        let seeds = SeedsConfig { seed: report.seed, ..SeedsConfig::default() };
        Some(PositionsConfig { seeds, ..PositionsConfig::default() })
    }
}
