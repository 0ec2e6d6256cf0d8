//! The notebook in NumPy: weights of 0.01 make a map in which there is nothing to see.

mod figures;
mod run;

pub use run::FlatMapConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct FlatMap;

impl Experiment for FlatMap {
    type Config = FlatMapConfig;

    const ID: &'static str = "flat-map";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("flat_map", WHOLE), ("flat_map_weights", HIDDEN)];
    const FIGURES: &'static [&'static str] = &["flat_map"];

    fn work(config: &FlatMapConfig) -> u64 {
        config.seeds as u64
    }

    fn run(config: &FlatMapConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<FlatMapConfig> {
        Some(FlatMapConfig { seeds: report.seeds, seed: report.seed })
    }
}
