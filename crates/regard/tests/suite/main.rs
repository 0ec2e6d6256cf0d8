//! The tests of the library, one module per idea.
//!
//! They are one program, because the kernels are generic: every test program compiles all of them again.
//! `cargo test -p regard --test suite bits::` runs one module.

mod bits;
mod bugs_others_shipped;
mod common;
mod drawings;
mod dropout;
mod errors;
mod exact;
mod finite_differences;
mod golden;
mod gradient_bits;
mod gradient_bugs;
mod gradient_hidden;
mod gradient_stats;
mod gradients;
mod hidden_and_empty;
mod linear_memory;
mod memory_safety;
mod properties;
mod stats;
mod strides;
