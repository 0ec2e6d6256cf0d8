//! What query, key and value are for: tied in training, or swapped after it.

mod claims;
mod figures;
mod run;

pub use run::RolesConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Roles;

impl Experiment for Roles {
    type Config = RolesConfig;

    const ID: &'static str = "roles";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("roles", WHOLE), ("roles_seeds", HIDDEN)];
    const FIGURES: &'static [&'static str] = &["roles"];
    const STORED: &'static [(&'static str, &'static [u8])] = &stored!["roles", "roles_seeds"];

    fn work(config: &RolesConfig) -> u64 {
        run::RUNS as u64 * config.seeds.seeds as u64 * config.steps
    }

    fn run(config: &RolesConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(_: &ReportConfig) -> Option<RolesConfig> {
        Some(RolesConfig::default())
    }
}
