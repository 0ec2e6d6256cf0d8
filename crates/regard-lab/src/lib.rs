//! The laboratory: experiments on attention, each a pure function from a configuration to a [`Table`], and the figures and
//! reports that are made of tables alone.
#![forbid(unsafe_code)]

pub mod figure;
pub mod page;
pub mod plot;
pub mod plot_input;
mod table;

pub use table::{Column, Table, Value};
