//! `regard inspect`: what a model's files say.

use super::{ABOUT_MODEL, load};
use crate::options::{Common, Outcome, Unusable};
use crate::output::note;
use anyhow::Result;
use clap::Args;
use regard_lab::Table;
use regard_model::hub::Hub;
use std::path::{Path, PathBuf};

/// Show what a model's files contain: family, shape, tensors
///
/// Nothing is run. Tensors are listed with --tensors.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard inspect\n  regard inspect SmolLM2-135M.Q4_1.gguf --tensors --json\n  regard inspect org/model \
        --download"
)]
pub(crate) struct Inspect {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Download a model like org/model into the local Hugging Face cache, where it is not there yet: every command then finds it by its
    /// name
    #[arg(long, requires = "model")]
    download: bool,
    #[command(flatten)]
    common: Common,
}

impl Inspect {
    /// Nothing where it is there already.
    fn fetch(&self, name: &Path) -> Result<()> {
        let hub = Hub::from_env()
            .ok_or_else(|| Unusable("no folder for downloads: neither a home folder nor HF_HUB_CACHE; set HF_HUB_CACHE".to_owned()))?;
        if name.exists() || hub.cached(name).is_some() {
            return Ok(());
        }
        hub.download(name, |file| {
            if !self.common.quiet {
                note(format_args!("downloading {file} of {}", name.display()));
            }
        })?;
        Ok(())
    }

    pub(super) fn run(self) -> Result<Outcome> {
        let _bar = self.common.start("inspect")?;
        if let (true, Some(name)) = (self.download, &self.model) {
            self.fetch(name)?;
        }
        let (model, mut tables) = (load(self.model.as_deref())?, Vec::new());
        let mut table = Table::new("model", "Contents of the model's files.", &[("what", "what"), ("value", "value")]);
        let (shape, attention) = (model.shape(), model.attention());
        let tokenizer = model.tokenizer().map_or_else(|e| e.to_string(), |t| format!("{} tokens", t.vocab()));
        for (what, value) in [
            ("model", model.path().display().to_string()),
            ("format", model.format().to_owned()),
            ("family", model.family().to_owned()),
            ("parameters", model.parameters().to_string()),
            ("layers", shape.layers.to_string()),
            ("query heads", shape.heads.to_string()),
            ("key and value heads", shape.kv_heads.to_string()),
            ("head dimension", model.head_dim().to_string()),
            ("width", model.width().to_string()),
            ("vocabulary", model.vocab().to_string()),
            ("context", model.context().to_string()),
            ("attention", if model.is_causal() { "causal" } else { "bidirectional" }.to_owned()),
            ("rotary base", attention.rotary.map_or("none".to_owned(), |rotary| rotary.base.to_string())),
            ("predicts tokens", model.has_head().to_string()),
            ("tokenizer", tokenizer),
        ] {
            table.push(vec![what.into(), value.into()]);
        }
        tables.push(table);
        if self.tensors {
            let columns = [("name", "tensor"), ("shape", "shape"), ("kind", "type"), ("bytes", "bytes")];
            let mut list = Table::new("tensors", "Tensors of the model.", &columns);
            for tensor in model.tensors() {
                list.push(vec![tensor.name.into(), format!("{:?}", tensor.shape).into(), tensor.kind.into(), tensor.bytes.into()]);
            }
            tables.push(list);
        }
        self.common.show_whole(&tables)?;
        Ok(Outcome::Done)
    }
}
