//! The tests of the library, one module per idea.
//!
//! They are one program, which is linked once; `cargo test -p regard --test suite bits::` runs one module. What runs under
//! memory checkers is a program of its own, `memory_safety`, since it is compiled again for them.

/// Calls a function of the tests for every element type.
macro_rules! for_every_type {
    ($function:ident) => {
        $function::<f32>();
        $function::<f64>();
        $function::<half::f16>();
        $function::<half::bf16>();
    };
}

mod bf16_level;
mod bits;
mod bugs_others_shipped;
mod cache;
mod calls;
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
mod instruments;
mod large_scores;
mod linear_memory;
mod packed;
mod pieces;
mod poison;
mod properties;
mod random_calls;
mod ranges;
mod stats;
mod strides;
