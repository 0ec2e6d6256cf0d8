//! `regard patch`: which head carries the difference between two texts.

use super::{ABOUT_MODEL, load};
use crate::options::{Common, Outcome, Unusable};
use anyhow::Result;
use clap::Args;
use regard_lab::Table;
use regard_lab::experiments::Progress;
use regard_model::{Edits, Input, Sources};
use std::path::PathBuf;

/// Patch activations: put each head's output on one text into a run of another, and rank the heads
///
/// Both texts must have the same number of tokens. For each head: the logit of the clean text's
/// next token less that of the corrupt one's, of the corrupt run with this head's z from the clean
/// run, as a share of the whole difference.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard patch model.gguf --clean \"The capital of France is\" --corrupt \"The capital of Italy is\"")]
pub(crate) struct Patch {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text that head outputs are taken from
    #[arg(long, value_name = "TEXT")]
    clean: String,
    /// The text that they are put into, with the same number of tokens
    #[arg(long, value_name = "TEXT")]
    corrupt: String,
    #[command(flatten)]
    common: Common,
}

impl Patch {
    pub(super) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("patch")?;
        let model = load(self.model.as_deref())?;
        let (clean, corrupt) = (model.ids(Input::Text(&self.clean))?, model.ids(Input::Text(&self.corrupt))?);
        if clean.len() != corrupt.len() {
            let message = format!("the clean text has {} tokens and the corrupt one {}: they must be as long", clean.len(), corrupt.len());
            return Err(Unusable(message).into());
        }
        let mut sources = Sources::default();
        model.source(&mut sources, "clean", &clean)?;
        let last = |ids: &[u32], edits: &Edits| -> Result<Vec<f32>> {
            let run = model.run(ids, edits, &sources)?;
            Ok(model.logits(&run.hidden().row(ids.len() - 1).to_vec())?)
        };
        let (a, b) = (last(&clean, &Edits::default())?, last(&corrupt, &Edits::default())?);
        let (right, wrong) = (regard_nn::generate::argmax(&a), regard_nn::generate::argmax(&b));
        if right == wrong {
            return Err(Unusable(format!(
                "both texts have the same most likely next token: {:?}; give texts that differ in it",
                model.piece(right as u32)
            ))
            .into());
        }
        let margin = |logits: &[f32]| f64::from(logits[right]) - f64::from(logits[wrong]);
        let (high, low) = (margin(&a), margin(&b));
        let shape = model.shape();
        let columns = [
            ("layer", "layer"),
            ("head", "head"),
            ("margin", "margin with this head from the clean text"),
            ("share", "share of the difference"),
        ];
        let caption = format!(
            "Margin of {:?} over {:?}: {high:.3} on the clean text, {low:.3} on the corrupt one.",
            model.piece(right as u32),
            model.piece(wrong as u32)
        );
        let mut table = Table::new("patch", &caption, &columns);
        bar.expect((shape.layers * shape.heads) as u64);
        for layer in 0..shape.layers {
            for head in 0..shape.heads {
                let now = margin(&last(&corrupt, &Edits::parse(&format!("L{layer}.H{head}=patch:clean"))?)?);
                table.push(vec![layer.into(), head.into(), now.into(), ((now - low) / (high - low)).into()]);
                bar.advance(1);
            }
        }
        drop(bar);
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }
}
