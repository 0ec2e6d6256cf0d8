//! The parts of a transformer, one file each: which tensors a part has, its forward and its backward pass.

pub mod activation;
pub mod attention;
pub mod cache;
pub mod dropout;
pub mod embedding;
pub(crate) mod experts;
pub mod heads;
pub mod linear;
pub mod loss;
pub mod mlp;
pub mod norm;
pub mod pass;
pub mod positions;
pub mod probe;
pub(crate) mod relative;
pub mod scaled;
pub mod stack;
pub mod sublayer;
