//! Training: one loop, its optimiser, checkpoints, and as a whole: where the text comes from, the folder, the run.

pub mod bootstrap;
pub mod checkpoint;
pub mod data;
pub mod folder;
pub mod memory;
pub mod optim;
pub mod parts;
pub mod ranks;
pub mod run;
pub mod source;
pub mod trainer;
