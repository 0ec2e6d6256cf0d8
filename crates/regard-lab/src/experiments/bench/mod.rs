//! Attention at the user's shape, against what this machine can do at best.

mod run;

pub use run::{BenchConfig, Dtype};

use crate::error::Result;
use crate::experiment::{Experiment, Progress, Shown, WHOLE};
use crate::report::ReportConfig;
use regard_plot::Table;

#[derive(Debug)]
pub struct Bench;

impl Experiment for Bench {
    type Config = BenchConfig;

    const ID: &'static str = "bench";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("bench", WHOLE)];

    fn work(_config: &BenchConfig) -> u64 {
        3
    }

    fn run(config: &BenchConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn in_report(report: &ReportConfig) -> Option<BenchConfig> {
        // One head of many tokens: here the weights, laid out, would be a gigabyte.
        report.timing.then(|| BenchConfig { heads: 1, seq: 16_384, seconds: 0.5, ..BenchConfig::default() })
    }
}
