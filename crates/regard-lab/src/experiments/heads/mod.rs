//! How different are the heads of untrained multi-head attention? Three measures beside each other, and what the first really measures.

mod claims;
mod figures;
mod run;

pub use run::HeadsConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Heads;

impl Experiment for Heads {
    type Config = HeadsConfig;

    const ID: &'static str = "heads";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[
        ("head_diversity", Some(&["heads", "measure", "mean", "std", "independent", "published", "percentile"])),
        ("head_sharpness", WHOLE),
        ("head_maps", HIDDEN),
    ];
    const FIGURES: &'static [&'static str] = &["head_similarity", "head_maps"];

    fn work(config: &HeadsConfig) -> u64 {
        config.work()
    }

    fn run(config: &HeadsConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<HeadsConfig> {
        Some(HeadsConfig { seeds: report.seeds, seed: report.seed, ..HeadsConfig::default() })
    }
}
