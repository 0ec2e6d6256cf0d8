//! `regard classify`: what every head does.

use super::{ABOUT_MODEL, Texts, load};
use crate::options::{Common, Outcome};
use anyhow::Result;
use clap::Args;
use regard_lab::Table;
use regard_lab::experiments::Progress;
use std::path::PathBuf;

/// Name what every head does: previous token, induction, first token, ..., with baselines and intervals
///
/// A label needs the lower end of the 95 % interval of its lift above 0.4. Induction is measured on text, and on a repeated
/// random sequence.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard classify\n  regard classify model.gguf --texts 8 --tokens 128 --json")]
pub(crate) struct Classify {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    #[command(flatten)]
    texts: Texts,
    #[command(flatten)]
    common: Common,
}

/// Columns of scores: what labels are made of comes first.
const ORDER: [usize; 8] = [0, 1, 2, 3, 5, 4, 6, 7];

impl Classify {
    pub(super) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("classify")?;
        let model = load(self.model.as_deref())?;
        let texts = self.texts.ids(&model)?;
        self.texts.warn_foreign(&model, &bar);
        let mut seen = 0;
        let heads = model.classify(&texts, |done, all| {
            if seen == 0 {
                bar.expect(all as u64);
            }
            bar.advance((done - seen) as u64);
            seen = done;
            true
        })?;
        drop(bar);
        let mut columns = vec![("layer", "layer"), ("head", "head"), ("labels", "labels")];
        columns.extend(ORDER.map(|score| (regard_model::scores::NAMES[score], regard_model::scores::NAMES[score])));
        columns.extend([("broad", "broad"), ("column", "largest column"), ("positional", "positional"), ("writes", "share of writing")]);
        let caption =
            format!("Mean scores of every head {}; a label needs its lift's lower 95 % bound above 0.4.", self.texts.described(&texts));
        let mut table = Table::new("classify", &caption, &columns);
        for head in heads {
            let labels = if head.labels.is_empty() { "mixed".to_owned() } else { head.labels.join(" ") };
            let mut row = vec![head.layer.into(), head.head.into(), labels.into()];
            row.extend(ORDER.map(|score| regard_lab::Value::from(head.scores[score])));
            row.extend([head.broad.into(), head.column.into(), head.positional.into(), head.writes.into()]);
            table.push(row);
        }
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }
}
