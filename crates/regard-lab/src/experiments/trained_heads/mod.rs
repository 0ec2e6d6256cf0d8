//! Do heads come to differ, and what do they look at? Their likeness while a language model learns, their maps, and patterns that have a
//! name.

mod claims;
mod figures;
mod run;

pub use run::TrainedHeadsConfig;
#[cfg(test)]
pub(crate) use run::tests;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::learning::SeedsConfig;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct TrainedHeads;

impl Experiment for TrainedHeads {
    type Config = TrainedHeadsConfig;

    const ID: &'static str = "trained-heads";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[
        ("trained_heads_named", WHOLE),
        ("trained_heads_patterns", WHOLE),
        ("trained_heads_likeness", HIDDEN),
        ("trained_heads_tokens", HIDDEN),
        ("trained_heads_maps", HIDDEN),
    ];
    const LEARNS_TEXT: bool = true;
    const FIGURES: &'static [&'static str] = &["trained_heads", "trained_heads_one", "trained_heads_pre_norm", "trained_heads_post_norm"];
    const STORED: &'static [(&'static str, &'static [u8])] =
        &stored!["trained_heads_named", "trained_heads_patterns", "trained_heads_likeness", "trained_heads_tokens", "trained_heads_maps"];

    fn work(config: &TrainedHeadsConfig) -> u64 {
        (2 * config.seeds.seeds) as u64 * config.steps
    }

    fn run(config: &TrainedHeadsConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<TrainedHeadsConfig> {
        let seeds = SeedsConfig { seed: report.seed, ..SeedsConfig::default() };
        Some(TrainedHeadsConfig { seeds, learning: report.learning(), ..TrainedHeadsConfig::default() })
    }
}
