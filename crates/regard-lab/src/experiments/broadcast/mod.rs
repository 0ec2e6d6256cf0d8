//! Broadcast and phrase patterns of trained heads: one letter that many queries attend to, and the letters of the own word.

mod claims;
mod figures;
mod run;

pub use run::BroadcastConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Broadcast;

impl Experiment for Broadcast {
    type Config = BroadcastConfig;

    const ID: &'static str = "broadcast";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("broadcast", WHOLE), ("broadcast_heads", HIDDEN)];
    const FIGURES: &'static [&'static str] = &["broadcast"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored!["broadcast", "broadcast_heads"];
    const LEARNS_TEXT: bool = true;

    fn work(config: &BroadcastConfig) -> u64 {
        config.seeds.seeds as u64 * config.steps
    }

    fn run(config: &BroadcastConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<BroadcastConfig> {
        Some(BroadcastConfig { learning: report.learning(), ..BroadcastConfig::default() })
    }
}
