//! Where the scale belongs: before the softmax, after it, or nowhere; and power against division.

mod figures;
mod run;

pub use run::ScalePlaceConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct ScalePlace;

impl Experiment for ScalePlace {
    type Config = ScalePlaceConfig;

    const ID: &'static str = "scale-place";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("scale_place", WHOLE), ("scale_place_maps", HIDDEN), ("scale_power", WHOLE)];
    const FIGURES: &'static [&'static str] = &["scale_place_maps", "scale_place"];

    fn work(config: &ScalePlaceConfig) -> u64 {
        (run::D_K.len() * config.draws()) as u64
    }

    fn run(config: &ScalePlaceConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<ScalePlaceConfig> {
        Some(ScalePlaceConfig { seeds: report.seeds, seed: report.seed, no_timing: !report.timing })
    }
}
