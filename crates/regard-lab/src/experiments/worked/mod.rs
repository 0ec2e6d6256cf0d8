//! Attention of three tokens with every number, and larger inputs step by step.

mod figures;
mod run;

pub use run::WorkedConfig;
pub(crate) use run::{TOKENS, example};

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Worked;

impl Experiment for Worked {
    type Config = WorkedConfig;

    const ID: &'static str = "worked";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("worked_example", WHOLE), ("worked_outputs", WHOLE), ("worked_larger", WHOLE)];
    const FIGURES: &'static [&'static str] = &["worked_example"];

    fn work(_: &WorkedConfig) -> u64 {
        run::LARGER.len() as u64
    }

    fn run(config: &WorkedConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn in_report(_: &ReportConfig) -> Option<WorkedConfig> {
        Some(WorkedConfig::default())
    }
}
