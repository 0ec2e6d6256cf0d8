//! Heads that share keys and values: what the cache saves, and what it costs.

mod claims;
mod figures;
mod run;

pub use run::MultiQueryConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::learning::SeedsConfig;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct MultiQuery;

impl Experiment for MultiQuery {
    type Config = MultiQueryConfig;

    const ID: &'static str = "multi-query";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("multi_query", WHOLE), ("multi_query_seeds", HIDDEN)];
    const LEARNS_TEXT: bool = true;
    const FIGURES: &'static [&'static str] = &["multi_query"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored!["multi_query", "multi_query_seeds"];

    fn work(config: &MultiQueryConfig) -> u64 {
        (config.kv_heads.len() * config.seeds.seeds) as u64 * config.steps
    }

    fn run(config: &MultiQueryConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<MultiQueryConfig> {
        let seeds = SeedsConfig { seed: report.seed, ..SeedsConfig::default() };
        Some(MultiQueryConfig { seeds, learning: report.learning(), ..MultiQueryConfig::default() })
    }
}
