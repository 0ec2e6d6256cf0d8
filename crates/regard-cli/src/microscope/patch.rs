//! `regard patch`: which head carries the difference between two texts.

use super::{ABOUT_MODEL, load};
use crate::options::{Common, Outcome};
use anyhow::Result;
use clap::Args;
use regard_lab::experiments::Progress;
use regard_lab::{Table, Value};
use regard_model::{Input, PatchOptions};
use std::path::PathBuf;

/// Patch activations: put each head's output on one text into a run of another, and rank the heads
///
/// Both texts must have the same number of tokens. For each head: the logit of the clean text's
/// next token less that of the corrupt one's, of the corrupt run with this head's output before W_O
/// (z) from the clean run, as a share of the whole difference.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard patch --clean \"Emma loves the school\" --corrupt \"Emma loves the garden\"\n  regard patch \
        model.gguf --clean \"The capital of France is\" --corrupt \"The capital of Italy is\"")]
pub(crate) struct Patch {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text that head outputs are taken from
    #[arg(long, value_name = "TEXT")]
    clean: String,
    /// The text that they are put into, with the same number of tokens
    #[arg(long, value_name = "TEXT")]
    corrupt: String,
    /// Each position on its own: a row for each head and token
    #[arg(long)]
    by_position: bool,
    #[command(flatten)]
    common: Common,
}

impl Patch {
    pub(super) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("patch")?;
        let model = load(self.model.as_deref())?;
        let (clean, corrupt) = (model.ids(Input::Text(&self.clean))?, model.ids(Input::Text(&self.corrupt))?);
        let options = PatchOptions { tokens: None, by_position: self.by_position };
        let mut seen = 0;
        bar.expect((model.shape().layers * model.shape().heads * if self.by_position { clean.len() } else { 1 }) as u64);
        let patched = model.patch(&clean, &corrupt, options, |done, _| {
            bar.advance((done - seen) as u64);
            seen = done;
        })?;
        drop(bar);
        let [right, wrong] = patched.tokens.map(|token| model.piece(token));
        let caption = format!(
            "Margin of {right:?} over {wrong:?}: {:.3} on the clean text, {:.3} on the corrupt one.",
            patched.clean, patched.corrupt
        );
        let position = self.by_position.then_some([("position", "token of both texts, from 0"), ("token", "that token of the clean text")]);
        let columns: Vec<(&str, &str)> = [("layer", "layer"), ("head", "head")]
            .into_iter()
            .chain(position.into_iter().flatten())
            .chain([("margin", "margin with this head from the clean text"), ("share", "share of the difference")])
            .collect();
        let mut table = Table::new("patch", &caption, &columns);
        for ((layer, head, at), &margin) in patched.margins.indexed_iter() {
            let mut row: Vec<Value> = vec![layer.into(), head.into()];
            if self.by_position {
                row.extend([Value::from(at), Value::from(model.piece(clean[at]))]);
            }
            row.extend([Value::from(margin), Value::from(patched.share(margin))]);
            table.push(row);
        }
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }
}
