//! Entropy of the weights against d_k, and the weights of one row.

mod claims;
mod figures;
mod run;

pub use run::EntropyConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Entropy;

impl Experiment for Entropy {
    type Config = EntropyConfig;

    const ID: &'static str = "entropy";
    const SECTION: &'static str = include_str!("section.md");
    const DRAWS: bool = true;
    const TABLES: &'static [Shown] = &[
        ("attention_entropy", Some(&["d_k", "scaled", "mean", "std", "exact", "deviation", "published", "percentile"])),
        ("attention_entropy_row", HIDDEN),
    ];
    const FIGURES: &'static [&'static str] = &["attention_entropy"];

    fn work(config: &EntropyConfig) -> u64 {
        (config.d_k.len() * config.seeds) as u64
    }

    fn run(config: &EntropyConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<EntropyConfig> {
        Some(EntropyConfig { seeds: report.seeds, seed: report.seed, ..EntropyConfig::default() })
    }
}
