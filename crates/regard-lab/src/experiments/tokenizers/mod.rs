//! BPE and WordPiece beside characters and a dictionary of words.

mod figures;
mod run;

pub use run::TokenizersConfig;

use crate::error::Result;
use crate::experiment::{Drawn, Experiment, Progress, Shown, WHOLE};
use crate::report::ReportConfig;
use regard_plot::{Table, Tables};

#[derive(Debug)]
pub struct Tokenizers;

impl Experiment for Tokenizers {
    type Config = TokenizersConfig;

    const ID: &'static str = "tokenizers";
    const SECTION: &'static str = include_str!("section.md");
    const TABLES: &'static [Shown] = &[("tokenizers", WHOLE), ("tokenizers_words", WHOLE)];
    const FIGURES: &'static [&'static str] = &["tokenizers"];

    fn work(config: &TokenizersConfig) -> u64 {
        2 * config.sizes.len() as u64 + 2
    }

    fn run(config: &TokenizersConfig, progress: &dyn Progress) -> Result<Vec<Table>> {
        config.run(progress)
    }

    fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
        figures::figures(tables)
    }

    fn in_report(_: &ReportConfig) -> Option<TokenizersConfig> {
        Some(TokenizersConfig::default())
    }
}
