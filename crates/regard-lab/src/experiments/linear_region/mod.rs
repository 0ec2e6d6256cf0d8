//! The problem sheet's three widths, and the linear region that the softmax is said to work in.

mod figures;
mod run;

pub use run::LinearRegionConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct LinearRegion;

impl Experiment for LinearRegion {
    type Config = LinearRegionConfig;

    const ID: &'static str = "linear-region";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("linear_region", WHOLE), ("linear_region_spread", WHOLE)];
    const FIGURES: &'static [&'static str] = &["linear_region"];

    fn work(config: &LinearRegionConfig) -> u64 {
        (config.d_k.len() * config.seeds) as u64
    }

    fn run(config: &LinearRegionConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<LinearRegionConfig> {
        Some(LinearRegionConfig { seeds: report.seeds, seed: report.seed, ..LinearRegionConfig::default() })
    }
}
