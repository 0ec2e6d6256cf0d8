//! Writing with a model, and windows to evaluate it.

pub mod evaluate;
mod writer;

pub use writer::{Continuation, Sampling, Writer, argmax};
