//! The laboratory: experiments on attention, each a function from a configuration to tables, and the report that is made of tables alone.
//!
//! [`EXPERIMENTS`] is the list that everything goes over; [`experiment`] says what an experiment is. Tables, figures and pages are those of
//! `regard-plot`, whose names are here too.
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod drawing;
mod error;
pub mod experiment;
pub mod experiments;
pub mod judging;
mod kept;
mod learning;
mod memory;
mod options;
mod rows;
pub mod pattern;
pub mod published;
pub mod report;
pub mod shards;
pub mod statistics;
pub mod training_log;

pub use error::{Error, Result};
pub use experiment::Entry;
pub use experiments::EXPERIMENTS;
pub use kept::{Kept, UNFINISHED};
pub use regard_plot::{Column, Folder, MANIFEST, Table, Tables, Value, figure, page, short_number, write_atomic};
pub use statistics::theory;
pub use statistics::torch_randn::TorchRandn;
