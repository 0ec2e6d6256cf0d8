//! Models that other people trained: what the scale, the mask, the first token and single heads are worth, and what heads look at.

mod claims;
mod figures;
mod relations;
mod run;

pub use run::RealHeadsConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct RealHeads;

impl Experiment for RealHeads {
    type Config = RealHeadsConfig;

    const ID: &'static str = "real-heads";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("real_edits", WHOLE), ("real_kinds", WHOLE), ("real_relations", WHOLE), ("real_screen", HIDDEN)];
    const FIGURES: &'static [&'static str] = &["real_edits", "real_screen", "real_relations"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored!["real_edits", "real_kinds", "real_relations", "real_screen"];
    const FETCHED: bool = true;

    fn work(config: &RealHeadsConfig) -> u64 {
        config.work()
    }

    fn run(config: &RealHeadsConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(_report: &ReportConfig) -> Option<RealHeadsConfig> {
        Some(RealHeadsConfig::default())
    }
}
