//! Tests of the microscope, against small random checkpoints with what transformers computed of them (`tests/golden/make.py`).

mod circuit;
mod diff;
mod gradients;
mod damage;
mod edits;
mod formats;
mod golden;
mod handles;
mod hub;
mod known;
mod pairs;
mod patch;
mod screen;
mod tiles;
