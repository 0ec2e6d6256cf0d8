//! The same language model with and without 1/sqrt(d_k), at several head sizes.

mod claims;
mod figures;
mod run;

pub use run::ScaleTrainingConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::learning::SeedsConfig;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct ScaleTraining;

impl Experiment for ScaleTraining {
    type Config = ScaleTrainingConfig;

    const ID: &'static str = "scale-training";
    const ALIASES: &'static [&'static str] = &["ablate-scale"];
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[
        ("scale_training_paired", WHOLE),
        ("scale_training", WHOLE),
        ("scale_training_seeds", HIDDEN),
        ("scale_training_gradients", HIDDEN),
        ("scale_training_curves", HIDDEN),
        ("scale_training_heads", HIDDEN),
    ];
    const LEARNS_TEXT: bool = true;
    const FIGURES: &'static [&'static str] = &["scale_training", "scale_training_entropy", "scale_training_saturation"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored![
        "scale_training",
        "scale_training_paired",
        "scale_training_seeds",
        "scale_training_curves",
        "scale_training_heads",
        "scale_training_gradients",
    ];

    fn work(config: &ScaleTrainingConfig) -> u64 {
        (2 * config.head_dims.len() * config.seeds.seeds) as u64 * config.steps
    }

    fn run(config: &ScaleTrainingConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<ScaleTrainingConfig> {
        let seeds = SeedsConfig { seed: report.seed, ..SeedsConfig::default() };
        Some(ScaleTrainingConfig { seeds, learning: report.learning(), ..ScaleTrainingConfig::default() })
    }
}
