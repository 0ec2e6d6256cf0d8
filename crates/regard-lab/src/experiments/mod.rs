//! The experiments: a folder each, and this list. Whatever goes over all of them goes over the list.

/// Stored tables of the experiment's own folder: `stored/NAME.csv`.
macro_rules! stored {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("stored/", $name, ".csv")).as_slice())),*]
    };
}

mod bench;
mod checks;
mod entropy;
mod gradients;
mod heads;
mod mask_training;
mod pairs;
mod parity;
mod patterns;
pub(crate) mod robustness;
mod scale_training;
mod sweep;
mod trained_heads;

pub use bench::BenchConfig;
pub use checks::ChecksConfig;
pub use entropy::EntropyConfig;
pub use gradients::GradientsConfig;
pub use heads::HeadsConfig;
pub use mask_training::{MaskTrainingConfig, Variant, variant_name};
pub use pairs::{PairTask, PairTasksConfig, task_name};
pub use parity::ParityConfig;
pub use patterns::{PATTERNS, PatternsConfig};
pub use robustness::RobustnessConfig;
pub use scale_training::ScaleTrainingConfig;
pub use sweep::SweepConfig;
pub use trained_heads::TrainedHeadsConfig;

pub use crate::experiment::{Progress, Unwatched};
pub use crate::learning::{LearningConfig, read_text};
pub use crate::statistics::cell::{Loss, Numbers};

use crate::experiment::Entry;

/// Every experiment, in the order of the report. A new one is a folder and a line here.
pub static EXPERIMENTS: &[&dyn Entry] = &[
    &sweep::Sweep,
    &robustness::Robustness,
    &gradients::Gradients,
    &entropy::Entropy,
    &patterns::Patterns,
    &heads::Heads,
    &checks::Checks,
    &mask_training::MaskTraining,
    &scale_training::ScaleTraining,
    &trained_heads::TrainedHeads,
    &pairs::Pairs,
    &parity::Parity,
    &bench::Bench,
];
