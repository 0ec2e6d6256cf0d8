//! The same language model trained under six masks, then judged as it would be used.

mod claims;
mod figures;
mod run;

pub use run::{MaskTrainingConfig, Variant, variant_name};

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::learning::SeedsConfig;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct MaskTraining;

impl Experiment for MaskTraining {
    type Config = MaskTrainingConfig;

    const ID: &'static str = "mask-training";
    const ALIASES: &'static [&'static str] = &["masks"];
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[
        (
            "mask_training",
            Some(&[
                "variant",
                "sees",
                "predicts",
                "seeds",
                "train_loss",
                "validation_loss",
                "accuracy",
                "last_position_loss",
                "prefix_only_loss",
                "causal_mask_loss",
                "leak_before",
                "leak",
                "placeholder_q",
                "placeholder_e",
                "real_words",
                "surprise",
            ]),
        ),
        ("mask_training_paired", WHOLE),
        ("mask_training_samples", Some(&["variant", "temperature", "written", "prompt", "real_words", "surprise"])),
        ("mask_training_baselines", WHOLE),
        ("mask_training_seeds", HIDDEN),
        ("mask_training_prefix", HIDDEN),
        ("mask_training_curves", HIDDEN),
    ];
    const LEARNS_TEXT: bool = true;
    const FIGURES: &'static [&'static str] = &["mask_training", "mask_training_use"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored![
        "mask_training",
        "mask_training_paired",
        "mask_training_seeds",
        "mask_training_curves",
        "mask_training_prefix",
        "mask_training_baselines",
        "mask_training_samples",
    ];

    fn work(config: &MaskTrainingConfig) -> u64 {
        config.work()
    }

    fn run(config: &MaskTrainingConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<MaskTrainingConfig> {
        let seeds = SeedsConfig { seed: report.seed, ..SeedsConfig::default() };
        Some(MaskTrainingConfig { seeds, learning: report.learning(), ..MaskTrainingConfig::default() })
    }
}
