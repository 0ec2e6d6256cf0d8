//! Whole models: lists of parts.

pub mod merged_logits;
pub mod config;
pub mod encoder;
pub mod embedding_head;
pub mod lm;
pub mod seq2seq;
pub mod transformer;
