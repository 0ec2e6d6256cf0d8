//! Tasks that need cross-attention: an encoder-decoder reads a sequence and writes another one.

mod claims;
mod figures;
mod run;

pub use run::{PairTask, PairTasksConfig, task_name};

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::learning::SeedsConfig;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Pairs;

impl Experiment for Pairs {
    type Config = PairTasksConfig;

    const ID: &'static str = "pairs";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[
        ("pairs_results", WHOLE),
        ("pairs_heads", WHOLE),
        ("pairs_examples", WHOLE),
        ("pairs_curves", HIDDEN),
        ("pairs_tokens", HIDDEN),
        ("pairs_maps", HIDDEN),
        ("pairs_influence", HIDDEN),
    ];
    const FIGURES: &'static [&'static str] = &["pairs_reverse", "pairs_number_words", "pairs_explained", "pairs_learning"];
    const STORED: &'static [(&'static str, &'static [u8])] =
        &stored!["pairs_results", "pairs_heads", "pairs_curves", "pairs_examples", "pairs_tokens", "pairs_maps", "pairs_influence"];

    fn work(config: &PairTasksConfig) -> u64 {
        (config.task.len() * config.seeds.seeds) as u64 * config.steps
    }

    fn run(config: &PairTasksConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<PairTasksConfig> {
        let seeds = SeedsConfig { seed: report.seed, ..SeedsConfig::default() };
        Some(PairTasksConfig { seeds, ..PairTasksConfig::default() })
    }
}
