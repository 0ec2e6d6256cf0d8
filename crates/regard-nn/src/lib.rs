//! The transformer around attention: parts with explicit forward and backward passes, training, generation.
//!
//! # What it promises
//!
//! 1. **Explicit gradients**, checked by finite differences and against PyTorch's. No tape.
//! 2. **Bits that do not move**: work is cut into fixed pieces, so losses and weights are the same for any number of threads.
//! 3. **Nothing allocated per step** that grows with the model: buffers are planned once per shape.
//!
//! Parameters of a model lie in one buffer ([`params`]); parts know where theirs are. Rows are `[batch, seq, width]`, row-major.

#![forbid(unsafe_code)]

pub mod atomic;
pub mod attention;
pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod dropout;
pub mod embedding;
pub mod encoder;
pub mod error;
pub mod evaluate;
pub mod experiments;
pub mod float;
pub mod generate;
pub mod linear;
pub mod lm;
pub mod look;
pub mod loss;
pub mod mlp;
pub mod ngram;
pub mod norm;
pub mod optim;
mod parallel;
pub mod params;
pub mod pcfg;
pub mod positions;
pub mod random;
pub mod scaled;
pub mod seq2seq;
pub mod stack;
pub mod stories;
pub mod streaming;
pub mod sublayer;
pub mod tokenizer;
pub mod train;
pub mod training;

pub use config::ModelConfig;
pub use error::{Error, Result};
pub use float::Float;
pub use lm::LanguageModel;
pub use look::{Call, Look, MaskKind};
pub use loss::{IGNORE, Loss};
pub use seq2seq::EncoderDecoder;
