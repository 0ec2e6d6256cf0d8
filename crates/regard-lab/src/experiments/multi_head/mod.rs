//! Multi-head attention: split, attend, concatenate, project, with every shape.

mod figures;
mod run;

pub use run::MultiHeadConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct MultiHead;

impl Experiment for MultiHead {
    type Config = MultiHeadConfig;

    const ID: &'static str = "multi-head";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("multi_head_shapes", WHOLE), ("multi_head", WHOLE), ("multi_head_maps", HIDDEN)];
    const FIGURES: &'static [&'static str] = &["multi_head"];

    fn work(_: &MultiHeadConfig) -> u64 {
        run::HEADS.len() as u64
    }

    fn run(config: &MultiHeadConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn in_report(_: &ReportConfig) -> Option<MultiHeadConfig> {
        Some(MultiHeadConfig::default())
    }
}
