//! Who may look at whom. See [`Mask`].

mod algebra;
mod bits;
mod coverage;

pub use algebra::{HeadPosition, Mask, MaskRule};
pub(crate) use algebra::{broadcast_index, check_broadcast};
pub(crate) use bits::MOST_KEYS;
pub use coverage::TileCoverage;
