//! Whole models: lists of parts.

pub mod alike;
pub mod config;
pub mod encoder;
pub mod ends;
pub mod lm;
pub mod seq2seq;
pub mod transformer;
