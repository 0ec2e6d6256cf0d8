//! Masks as patterns: their maps, their cost, and rows without visible keys.

mod claims;
mod figures;
mod run;

pub(crate) use run::textbook_softmax;
pub use run::{PATTERNS, PatternsConfig};

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, HIDDEN, Progress, Shown, WHOLE};
use crate::judging::Answer;
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Patterns;

impl Experiment for Patterns {
    type Config = PatternsConfig;

    const ID: &'static str = "patterns";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[
        ("attention_patterns", WHOLE),
        ("attention_empty_rows", WHOLE),
        ("patterns_exponents", WHOLE),
        ("patterns_time", WHOLE),
        ("attention_patterns_maps", HIDDEN),
    ];
    const FIGURES: &'static [&'static str] = &["attention_patterns", "attention_pattern_cost"];

    fn work(config: &PatternsConfig) -> u64 {
        (PATTERNS.len() + if config.no_timing { 0 } else { run::TIMED.len() * config.timed_seq.len() }) as u64
    }

    fn run(config: &PatternsConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn claims(tables: &Tables) -> Result<Vec<Answer>> {
        claims::claims(tables)
    }

    fn in_report(report: &ReportConfig) -> Option<PatternsConfig> {
        Some(PatternsConfig {
            seed: report.seed,
            seeds: PatternsConfig::default().seeds.min(report.seeds),
            no_timing: !report.timing,
            ..PatternsConfig::default()
        })
    }
}
