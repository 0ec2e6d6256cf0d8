//! Masks: which keys each query attends to. See [`Mask`].

mod algebra;
mod bits;
mod coverage;
mod fingerprint;

pub use algebra::{HeadPosition, Mask, MaskRule};
pub(crate) use algebra::{broadcast_index, check_broadcast};
pub(crate) use bits::MOST_KEYS;
pub use coverage::TileCoverage;
