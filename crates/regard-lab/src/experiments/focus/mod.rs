//! Fixed operations against learned focus: convolution, GRU, attention and local attention on recall and copying.

mod claims;
mod figures;
mod run;

pub use run::FocusConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Focus;

impl Experiment for Focus {
    type Config = FocusConfig;

    const ID: &'static str = "focus";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("focus", WHOLE), ("focus_distance", HIDDEN), ("focus_curves", HIDDEN), ("focus_seeds", HIDDEN)];
    const FIGURES: &'static [&'static str] = &["focus", "focus_curves"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored!["focus", "focus_distance", "focus_curves", "focus_seeds"];

    fn work(config: &FocusConfig) -> u64 {
        run::RUNS as u64 * config.seeds.seeds as u64 * config.steps
    }

    fn run(config: &FocusConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(_: &ReportConfig) -> Option<FocusConfig> {
        Some(FocusConfig::default())
    }
}
