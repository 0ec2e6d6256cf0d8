//! The sweep over many seeds: how far single draws lie from their expectation, and the expectation itself.

mod claims;
mod figures;
mod run;

pub(crate) use figures::with_draws;
pub use run::RobustnessConfig;
pub(crate) use run::{SUMMARY_COLUMNS, summary_cells};

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Robustness;

impl Experiment for Robustness {
    type Config = RobustnessConfig;

    const ID: &'static str = "robustness";
    const SECTION: &'static str = include_str!("section.md");
    const DRAWS: bool = true;
    const TABLES: &'static [Shown] = &[
        (
            "attention_robustness_summary",
            Some(&["seq", "d_k", "scaled", "statistic", "mean", "std", "exact", "deviation", "published", "percentile"]),
        ),
        ("attention_robustness_rule", WHOLE),
    ];
    const FIGURES: &'static [&'static str] = &["attention_robustness", "published_percentiles"];

    fn work(config: &RobustnessConfig) -> u64 {
        (config.seq.len() * config.d_k.len() * config.seeds) as u64
    }

    fn run(config: &RobustnessConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<RobustnessConfig> {
        Some(RobustnessConfig { seeds: report.seeds, seed: report.seed, ..RobustnessConfig::default() })
    }
}
