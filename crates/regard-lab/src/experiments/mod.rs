//! The experiments: a folder each, and a line below, in the order of the report. [`EXPERIMENTS`] lists all of them;
//! `build.rs` generates it from the lines below.

use crate::experiment::Entry;

/// Stored tables of the experiment's own folder: `stored/NAME.csv`.
macro_rules! stored {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("stored/", $name, ".csv")).as_slice())),*]
    };
}

pub mod worked;
pub mod sweep;
pub mod robustness;
pub mod gradients;
pub mod entropy;
pub mod patterns;
pub mod heads;
pub mod multi_head;
pub mod checks;
pub mod linear_region;
pub mod scale_place;
pub mod overflow;
pub mod flat_map;
pub mod mask_training;
pub mod scale_training;
pub mod trained_heads;
pub mod broadcast;
pub mod real_heads;
pub mod pairs;
pub mod focus;
pub mod roles;
pub mod positions;
pub mod tokenizers;
pub mod nearest;
pub mod multi_query;
pub mod dropout;
pub mod flash;
pub mod parity;
pub mod bench;

include!(concat!(env!("OUT_DIR"), "/list.rs"));

pub use crate::experiment::{Progress, Unwatched};
pub use crate::learning::{LearningConfig, SeedsConfig, read_text};
pub use crate::statistics::cell::{Loss, Numbers};
