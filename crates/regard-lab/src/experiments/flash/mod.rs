//! Tiling: the memory of attention against its length, tiled and with the weights laid out.

mod claims;
mod figures;
mod run;

pub use run::FlashConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Flash;

impl Experiment for Flash {
    type Config = FlashConfig;

    const ID: &'static str = "flash";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("flash_memory", WHOLE)];
    const FIGURES: &'static [&'static str] = &["flash_memory"];

    fn work(config: &FlashConfig) -> u64 {
        (2 * config.seq.len()) as u64
    }

    fn run(config: &FlashConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<FlashConfig> {
        report.timing.then(FlashConfig::default)
    }
}
