//! `regard lens`: the prediction after each layer.

use super::{ABOUT_MODEL, VectorArgs, load, sources};
use crate::options::{Common, Outcome};
use anyhow::Result;
use clap::Args;
use regard_lab::Table;
use regard_model::{Edits, Input};
use std::path::PathBuf;

/// Show the logit lens: the prediction after each layer
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard lens --text \"Emma and David went to the m\"\n  regard lens model.gguf --text \"The capital of \
        France is\" --edits L9=zero"
)]
pub(crate) struct Lens {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text; the prediction is that after its last token
    #[arg(long, value_name = "TEXT", default_value = "Emma and David went to the market. David said, ")]
    text: String,
    /// Edits, as in L3.H1=zero/scale=off
    #[arg(long, default_value = "", value_name = "EDITS")]
    edits: String,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    common: Common,
}

impl Lens {
    pub(super) fn run(self) -> Result<Outcome> {
        let _bar = self.common.start("lens")?;
        let model = self.vectors.given(load(self.model.as_deref())?)?;
        let (ids, edits) = (model.ids(Input::Text(&self.text))?, Edits::parse(&self.edits)?);
        let lens = model.lens(&ids, &edits, &sources(&model, &edits)?, 3)?;
        let columns = [
            ("layer", "after layer"),
            ("first", "most likely token"),
            ("probability", "its probability"),
            ("second", "second"),
            ("third", "third"),
            ("entropy", "entropy (nats)"),
        ];
        let mut table = Table::new(
            "lens",
            "The prediction after the last token, read from the residual stream after each layer; layer 0 is the embedding.",
            &columns,
        );
        for layer in 0..=model.shape().layers {
            let row = ids.len() - 1;
            let word = |place: usize| format!("{:?}", model.piece(lens.top[[layer, row, place]]));
            let probability = f64::from(lens.probability[[layer, row, 0]]);
            table.push(vec![
                layer.into(),
                word(0).into(),
                probability.into(),
                word(1).into(),
                word(2).into(),
                lens.entropy[[layer, row]].into(),
            ]);
        }
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }
}
