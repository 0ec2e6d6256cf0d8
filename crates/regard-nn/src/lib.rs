//! The transformer around attention: parts with explicit forward and backward passes, training, generation.
//!
//! # What it promises
//!
//! 1. **Explicit gradients**, checked by finite differences and against PyTorch's. No tape of operations.
//! 2. **Bits that do not move**: work is cut into fixed pieces, so losses and weights are the same for any number of threads.
//! 3. **Weights apart from layers**: a layer keeps names of tensors; the elements come from a training's buffer or a file, in f32, f64,
//!    f16, bf16 or quantised blocks, and are read where they lie.
//! 4. **One implementation**: inference is the training's forward pass with [`Keep::Discard`].
//!
//! Rows are `[batch, seq, width]`, row-major.
//!
//! ```text
//! tensors/   names, elements, sources                     layers/   parts: one file each       models/     whole models, as lists of parts
//! training/  one loop, its folder and checkpoints        text/     tokenizers, stories         generate/   writing and judging
//! ```

#![forbid(unsafe_code)]

pub mod error;
pub mod float;
pub mod generate;
pub mod layers;
pub mod models;
mod parallel;
pub mod random;
pub mod tensors;
pub mod text;
pub mod training;

pub use error::{Error, Result};
pub use float::Float;
pub use generate::evaluate;
pub use layers::loss::{IGNORE, Loss};
pub use layers::pass::{MaskKind, Pass, Wanted};
pub use layers::stack::Keep;
pub use layers::{attention, cache, dropout, embedding, linear, loss, mlp, norm, positions, scaled, stack, sublayer};
pub use models::config::ModelConfig;
pub use models::lm::LanguageModel;
pub use models::seq2seq::EncoderDecoder;
pub use models::{config, encoder, lm, seq2seq};
pub use text::{ngram, pcfg, stories, streaming, tokenizer};
pub use training::{checkpoint, data, optim};
