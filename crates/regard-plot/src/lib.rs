//! Tables, figures and pages: what results are shown with, and the folders that they are kept in.
//!
//! A [`Table`] has named columns and says where it came from; [`figure`] draws tables as SVG and PNG; [`page`] sets both on one HTML page that works
//! from a file, offline; a [`Folder`] knows which of its files are ours.
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod error;
pub mod figure;
mod folder;
pub mod page;
mod table;
mod write;

pub use error::{Error, Result};
pub use folder::{Folder, MANIFEST, digest, recorded};
pub use table::{Column, Table, Tables, Value, prose_number, short_number, with_interval};
pub use write::{remove_parts, remove_parts_unchanged_for, write_atomic};
