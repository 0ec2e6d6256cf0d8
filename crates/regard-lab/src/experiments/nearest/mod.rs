//! Sparse attention: only the k nearest keys of each query.

mod claims;
mod figures;
mod run;

pub use run::NearestConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::learning::SeedsConfig;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Nearest;

impl Experiment for Nearest {
    type Config = NearestConfig;

    const ID: &'static str = "nearest";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("nearest", WHOLE), ("nearest_random", WHOLE)];
    const LEARNS_TEXT: bool = true;
    const FIGURES: &'static [&'static str] = &["nearest"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored!["nearest", "nearest_random"];

    fn work(config: &NearestConfig) -> u64 {
        config.seeds.seeds as u64 * config.steps + (config.keys.len() * config.draws) as u64
    }

    fn run(config: &NearestConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<NearestConfig> {
        let seeds = SeedsConfig { seed: report.seed, ..SeedsConfig::default() };
        Some(NearestConfig { seeds, learning: report.learning(), ..NearestConfig::default() })
    }
}
