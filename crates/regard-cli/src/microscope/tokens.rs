//! `regard tokens`: a text as a model reads it.

use super::{ABOUT_MODEL, load};
use crate::options::{Common, Outcome};
use anyhow::Result;
use clap::Args;
use regard_lab::Table;
use std::path::PathBuf;

/// Show the tokens of a text: id, piece, bytes, and which ones the tokenizer added
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard tokens --text \"Emma and David\"\n  regard tokens stories15M/model.bin --text \"caf\u{e9}\"")]
pub(crate) struct Tokens {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text
    #[arg(long, value_name = "TEXT", default_value = "Emma and David went to the market.")]
    text: String,
    #[command(flatten)]
    common: Common,
}

impl Tokens {
    pub(super) fn run(self) -> Result<Outcome> {
        let _bar = self.common.start("tokens")?;
        let model = load(self.model.as_deref())?;
        let columns = [
            ("number", "number"),
            ("id", "id"),
            ("piece", "piece"),
            ("start", "first byte"),
            ("end", "byte after the last"),
            ("origin", "added by"),
        ];
        let mut table = Table::new("tokens", "Tokens of the text, with their bytes start..end.", &columns);
        for (number, token) in model.tokens(&self.text)?.into_iter().enumerate() {
            let origin = if token.added { "tokenizer" } else { "text" };
            let piece = format!("{:?}", model.piece(token.id));
            table.push(vec![
                number.into(),
                (token.id as usize).into(),
                piece.into(),
                token.bytes.start.into(),
                token.bytes.end.into(),
                origin.into(),
            ]);
        }
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }
}
