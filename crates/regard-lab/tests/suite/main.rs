//! The laboratory, looked at from outside. One program, so that one report serves all of it.

mod honesty;
mod laboratory;
mod list;
mod pattern;
mod trained;
mod trainings;

use regard_lab::experiments::Unwatched;
use regard_lab::report::ReportConfig;
use regard_lab::{Table, Tables};
use std::sync::OnceLock;

/// The report that the tests look at: 4,000 draws per cell, made once.
fn report() -> &'static Tables {
    static REPORT: OnceLock<Tables> = OnceLock::new();
    REPORT.get_or_init(|| ReportConfig { seeds: 4000, timing: false, ..ReportConfig::default() }.run(&Unwatched).expect("the report runs"))
}

fn table(name: &str) -> &'static Table {
    report().get(name).expect("the report has the table")
}
