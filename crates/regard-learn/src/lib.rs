//! Sixteen exercises on attention and one judge.
//!
//! The learner writes a function in Python (NumPy or PyTorch) or Rust. The judge runs it in a process of its own, compares it with an
//! oracle in f64 on edge cases and random ones, and where it is wrong names the mistake, but only if a program that makes this mistake (a
//! mutant of the solution) gives the learner's numbers on every case.

#![forbid(unsafe_code)]

pub mod app;
pub mod error;
pub mod exercise;
pub mod exercises;
mod files;
pub mod formula;
pub mod judge;
pub mod kernels;
pub mod real;
pub mod rng;
mod runner;
pub mod sets;
pub mod show;
pub mod value;
pub mod wrong;

pub use error::{Error, Result};
pub use runner::Builds;
