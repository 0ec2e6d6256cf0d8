//! Training as a whole: where the text comes from, the folder, the run.

pub mod folder;
pub mod memory;
pub mod run;
pub mod source;
