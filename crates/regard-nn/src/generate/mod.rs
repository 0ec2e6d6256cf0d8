//! Writing with a model, and judging it.

pub mod evaluate;
mod writer;

pub use writer::{Sampling, Writer, argmax};
