//! Tables, figures and pages of results.
//!
//! A [`Table`] has named columns and its origin; [`figure`] draws tables as SVG and PNG; [`page`] sets both on one HTML page that works
//! from a file, offline.
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod error;
pub mod figure;
pub mod page;
mod table;

pub use error::{Error, Result};
pub use regard_files::{Folder, MANIFEST};
pub use table::{Column, Table, Tables, Value, prose_number, short_number, with_interval};
