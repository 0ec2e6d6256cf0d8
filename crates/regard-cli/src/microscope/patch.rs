//! `regard patch`: which head, or which place of the residual stream, carries the difference between two texts.

use super::{ABOUT_MODEL, load};
use crate::options::{Common, Outcome};
use anyhow::Result;
use clap::Args;
use regard_lab::experiments::Progress;
use regard_lab::{Table, Value};
use regard_model::{Input, PatchOptions, Site};
use std::path::PathBuf;

/// Patch activations: put each head's output on one text, or another activation, into a run of another text
///
/// Both texts must have the same number of tokens. For each head: the logit of the clean text's next token less that of the corrupt one's,
/// of the corrupt run with this head's output before W_O (z) from the clean run, as a share of the whole difference. --site chooses the
/// activation; k and v have key and value heads, and those of the stream's width have a row for each layer. Of the residual stream
/// each position is on its own: all together hold everything.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard patch --clean \"Emma loves the school\" --corrupt \"Emma loves the garden\"\n  regard patch \
        model.gguf --clean \"The capital of France is\" --corrupt \"The capital of Italy is\"\n  regard patch --site resid_pre --clean \
        \"Emma loves the school\" --corrupt \"Emma loves the garden\"")]
pub(crate) struct Patch {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// The text that head outputs are taken from
    #[arg(long, value_name = "TEXT")]
    clean: String,
    /// The text that they are put into, with the same number of tokens
    #[arg(long, value_name = "TEXT")]
    corrupt: String,
    /// What is taken from the clean run: resid_pre, resid_mid, resid_post, q, k, v, pattern, z, attn_out, mlp_out
    #[arg(long, default_value = "z", value_name = "SITE")]
    site: Site,
    /// Compare the logit of this token, a text, instead of the clean text's most likely one (needs --minus)
    #[arg(long, value_name = "TEXT", requires = "minus")]
    token: Option<String>,
    /// And take off the logit of this one, instead of the corrupt text's
    #[arg(long, value_name = "TEXT", requires = "token")]
    minus: Option<String>,
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
        let tokens = match (&self.token, &self.minus) {
            (Some(token), Some(minus)) => Some([model.token(token)?, model.token(minus)?]),
            _ => None,
        };
        let (site, by_position) = (self.site, self.by_position || self.site.is_stream());
        let options = PatchOptions { site, tokens, by_position };
        let mut seen = 0;
        let patched = model.patch(&clean, &corrupt, options, |done, all| {
            if seen == 0 {
                bar.expect(all as u64);
            }
            bar.advance((done - seen) as u64);
            seen = done;
        })?;
        drop(bar);
        let [right, wrong] = patched.tokens.map(|token| model.piece(token));
        let caption = format!(
            "Margin of {right:?} over {wrong:?}: {:.3} on the clean text, {:.3} on the corrupt one; {} of the clean run is patched.",
            patched.clean,
            patched.corrupt,
            site.name()
        );
        let (head, of) = match site {
            Site::K | Site::V => ("key and value head", "this head"),
            _ if site.has_heads() => ("head", "this head"),
            _ => ("", "this layer"),
        };
        let position = by_position.then_some([("position", "token of both texts, from 0"), ("token", "that token of the clean text")]);
        let margin = format!("margin with {of} from the clean text");
        let columns: Vec<(&str, &str)> = std::iter::once(("layer", "layer"))
            .chain(site.has_heads().then_some(("head", head)))
            .chain(position.into_iter().flatten())
            .chain([("margin", margin.as_str()), ("share", "share of the difference")])
            .collect();
        let mut table = Table::new("patch", &caption, &columns);
        for ((layer, head, at), &margin) in patched.margins.indexed_iter() {
            let mut row: Vec<Value> = vec![layer.into()];
            row.extend(site.has_heads().then(|| Value::from(head)));
            if by_position {
                row.extend([Value::from(at), Value::from(model.piece(clean[at]))]);
            }
            row.extend([Value::from(margin), Value::from(patched.share(margin))]);
            table.push(row);
        }
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }
}
