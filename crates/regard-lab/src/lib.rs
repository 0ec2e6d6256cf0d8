//! The laboratory: experiments on attention, each a function from a configuration to tables, and the report made from the tables alone.
//!
//! [`EXPERIMENTS`] lists all of them; [`experiment`] defines the trait. Tables, figures and pages are those of `regard-plot`, re-exported
//! here.
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod claims;
mod drawing;
mod error;
pub mod experiment;
pub mod experiments;
pub mod judging;
mod learning;
pub mod memory;
mod options;
mod rows;
mod rules;
pub mod pattern;
pub mod published;
mod recall;
pub mod report;
pub mod shards;
pub mod statistics;
pub mod training_log;
pub mod trainings;

pub use error::{Error, Result};
pub use experiment::Entry;
pub use experiments::EXPERIMENTS;
pub use regard_files::{ResumeStore, UNFINISHED};
pub use regard_plot::{Column, Folder, MANIFEST, Table, Tables, Value, figure, page, short_number};
pub use statistics::theory;
pub use statistics::torch_randn::TorchRandn;
