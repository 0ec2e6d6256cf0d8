//! The sweep over d_k: what the scale does to the weights, the scores and the gradients.

mod figures;
mod run;

pub use run::SweepConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown};
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Sweep;

impl Experiment for Sweep {
    type Config = SweepConfig;

    const ID: &'static str = "sweep";
    const SECTION: &'static str = include_str!("section.md");
    const DRAWS: bool = true;
    const TABLES: &'static [Shown] = &[
        (
            "attention_sweep_results",
            Some(&[
                "d_k",
                "scaled",
                "mean_max_weight",
                "mean_entropy",
                "mean_sum_of_squares",
                "grad_norm_q",
                "grad_norm_k",
                "row_dq_median",
                "row_d_scores_median",
                "score_min",
                "score_max",
            ]),
        ),
        ("attention_sweep_weights", HIDDEN),
    ];
    const FIGURES: &'static [&'static str] = &["attention_sweep", "gradient_norms_vs_dk", "attention_heatmap_gallery"];

    fn work(config: &SweepConfig) -> u64 {
        (config.d_k.len() * config.seeds) as u64
    }

    fn run(config: &SweepConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn in_report(_report: &ReportConfig) -> Option<SweepConfig> {
        Some(SweepConfig::default())
    }
}
