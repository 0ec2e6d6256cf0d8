//! Fourteen exercises on attention and one judge.
//!
//! The learner writes a function in Python or Rust. The judge runs it in a process of its own, compares it with an oracle in f64 on edge cases and random ones, and
//! where it is wrong names the mistake, but only if a twin that makes this mistake gives the learner's numbers on every case.

#![forbid(unsafe_code)]

pub mod app;
pub mod error;
pub mod exercise;
pub mod exercises;
pub mod formula;
mod guest;
pub mod judge;
pub mod real;
pub mod rng;
pub mod show;
pub mod value;
pub mod wrong;

pub use error::{Error, Result};
