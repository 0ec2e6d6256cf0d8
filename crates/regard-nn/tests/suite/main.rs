//! Tests of the transformer's parts, models, training and generation, against definitions and against PyTorch.

mod activation_gradients;
mod merged_logits;
mod bootstrap;
mod by_exchange;
mod common;
mod finite_differences;
mod golden;
mod kv_cache;
mod models;
mod parts;
mod textbook;
mod tokens;
mod training;
