//! Our attention against another implementation: stored answers of PyTorch's own mathematics, and PyTorch itself where it is.

mod claims;
mod run;

pub use run::ParityConfig;

use crate::error::Result;
use crate::experiment::{Experiment, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Parity;

impl Experiment for Parity {
    type Config = ParityConfig;

    const ID: &'static str = "parity";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("parity_golden", WHOLE), ("parity_torch", WHOLE)];

    fn work(_config: &ParityConfig) -> u64 {
        run::cases()
    }

    fn check(config: &ParityConfig) -> Result<()> {
        config.check()
    }

    fn run(config: &ParityConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn agrees(tables: &[Table]) -> Option<bool> {
        Some(run::agrees(tables))
    }

    fn in_report(report: &ReportConfig) -> Option<ParityConfig> {
        let (python, stored) = (report.python.clone(), report.python.is_none());
        Some(ParityConfig { python, stored, ..ParityConfig::default() })
    }
}
