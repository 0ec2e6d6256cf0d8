//! What experiments on random numbers are made of: draws, cells, exact expectations, summaries.

pub mod cell;
pub(crate) mod draws;
pub(crate) mod estimate;
pub(crate) mod rank;
pub(crate) mod summary;
pub mod theory;
pub(crate) mod torch_randn;
