//! Gradients at widths up to 4096, without and with the scale.

mod figures;
mod positions;
mod run;

pub use run::GradientsConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Gradients;

impl Experiment for Gradients {
    type Config = GradientsConfig;

    const ID: &'static str = "gradients";
    const SECTION: &'static str = include_str!("section.md");
    const DRAWS: bool = true;
    const TABLES: &'static [Shown] = &[
        ("attention_gradient_positions", WHOLE),
        (
            "attention_gradients",
            Some(&[
                "d_k",
                "scaled",
                "seeds",
                "grad_norm_q",
                "grad_norm_k",
                "grad_norm_v",
                "row_dq_rms",
                "row_dq_median",
                "row_d_scores_rms",
                "row_d_scores_median",
                "rows_below_1e_8",
                "rows_holding_90_percent",
                "largest_percent",
            ]),
        ),
    ];
    const FIGURES: &'static [&'static str] = &["attention_gradient_positions", "attention_gradients"];

    fn work(config: &GradientsConfig) -> u64 {
        (config.d_k.len() * (config.seeds + config.seeds.min(positions::DRAWS))) as u64
    }

    fn run(config: &GradientsConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<GradientsConfig> {
        Some(GradientsConfig { seeds: report.seeds, seed: report.seed, ..GradientsConfig::default() })
    }
}
