//! What a softmax without the subtraction of the maximum does to numbers of limited range.

mod claims;
mod figures;
mod run;

pub use run::OverflowConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Overflow;

impl Experiment for Overflow {
    type Config = OverflowConfig;

    const ID: &'static str = "overflow";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("overflow_rows", WHOLE), ("overflow_shares", WHOLE)];
    const FIGURES: &'static [&'static str] = &["overflow"];

    fn work(config: &OverflowConfig) -> u64 {
        (config.d_k.len() * config.seeds) as u64
    }

    fn run(config: &OverflowConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<OverflowConfig> {
        Some(OverflowConfig { seeds: report.seeds, seed: report.seed, ..OverflowConfig::default() })
    }
}
