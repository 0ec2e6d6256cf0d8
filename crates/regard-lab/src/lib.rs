//! The laboratory: experiments on attention, each a pure function from a configuration to a [`Table`], and the figures and
//! reports that are made of tables alone.
#![forbid(unsafe_code)]

pub mod claims;
pub mod draw;
mod error;
pub mod experiments;
pub mod figure;
mod folder;
mod memory;
pub mod page;
pub mod plot;
pub mod plot_input;
pub mod published;
mod rank;
pub mod report;
mod rng;
mod summary;
mod table;
mod table_file;
mod table_text;
mod tables;
pub mod theory;
mod torch_randn;
mod trained;
mod write;

pub use error::{Error, Result};
pub use folder::{Folder, MANIFEST, recorded};
pub use table::{Column, Table, Value};
pub use table_text::short_number;
pub use tables::Tables;
pub use torch_randn::TorchRandn;
pub use write::write_atomic;
