//! Four questions about attention, each answered by an experiment, and a test that cannot fail.

mod claims;
mod figures;
mod gradient_test;
mod run;

pub use run::ChecksConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Checks;

impl Experiment for Checks {
    type Config = ChecksConfig;

    const ID: &'static str = "checks";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[
        ("check_growth", WHOLE),
        ("check_masking", WHOLE),
        ("check_output_width", WHOLE),
        ("check_rank", WHOLE),
        ("check_gradient_test", WHOLE),
    ];
    const FIGURES: &'static [&'static str] = &["attention_checks"];

    fn work(config: &ChecksConfig) -> u64 {
        (config.d_k.len() * config.seeds) as u64
    }

    fn run(config: &ChecksConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<ChecksConfig> {
        Some(ChecksConfig { seeds: report.seeds, seed: report.seed, ..ChecksConfig::default() })
    }
}
