//! A folder with a model: which files are in it, where the model comes from, and reading it back.

use crate::common::Unusable;
use anyhow::Result;
use regard_nn::checkpoint::Checkpoint;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::{LanguageModel, ModelConfig, stories};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The checkpoint: all that is needed to go on, and the first file that a training writes.
pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const LOG: &str = "training.csv";
pub(crate) const FIGURES: [&str; 2] = ["training.svg", "training.png"];

/// Every file that a training writes.
pub(crate) const FILES: [&str; 6] = [MODEL, "model.json", TOKENIZER, LOG, FIGURES[0], FIGURES[1]];

/// Where a text comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TextSource {
    /// Our own, of known entropy.
    Stories {
        characters: usize,
        seed: u64,
    },
    File {
        path: PathBuf,
    },
}

impl TextSource {
    /// The text; a file must be UTF-8 and not empty.
    pub(crate) fn read(&self) -> Result<String> {
        let path = match self {
            Self::Stories { characters, seed } => return Ok(stories::write(*characters, *seed)),
            Self::File { path } => path,
        };
        let refused = |reason: String| Unusable(format!("{} {reason}", path.display()));
        let bytes = std::fs::read(path).map_err(|e| Unusable(format!("cannot read {}: {e}", path.display())))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            refused(format!("is not UTF-8: byte {} is no part of a character; convert it to UTF-8 first", e.utf8_error().valid_up_to()))
        })?;
        if text.is_empty() {
            return Err(refused("is empty: give a text to read".to_owned()).into());
        }
        Ok(text)
    }
}

/// What a checkpoint says about the text that it was trained on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) text: TextSource,
    pub(crate) text_sha256: String,
    pub(crate) characters: usize,
    pub(crate) tokenizer: TokenizerKind,
    pub(crate) tokens: usize,
    pub(crate) tokens_sha256: String,
    pub(crate) validate_every: u64,
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As `sha256sum` prints it for the text's file.
pub(crate) fn text_digest(text: &str) -> String {
    hexadecimal(Sha256::new_with_prefix(text))
}

pub(crate) fn token_digest(tokens: &[u32]) -> String {
    let mut hash = Sha256::new();
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hexadecimal(hash)
}

impl Origin {
    /// The least loss per token that is possible in the long run, where the text is ours and the tokens hold all of it.
    pub(crate) fn floor(&self) -> Option<f64> {
        let whole = !matches!(self.tokenizer, TokenizerKind::WordPiece(_));
        (whole && matches!(self.text, TextSource::Stories { .. }))
            .then(|| stories::entropy_rate() * self.characters as f64 / self.tokens as f64)
    }
}

/// A model that was read from its folder.
pub(crate) struct Trained {
    pub(crate) model: LanguageModel,
    pub(crate) params: Vec<f32>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) origin: Origin,
    pub(crate) step: u64,
}

/// The checkpoint of a folder.
pub(crate) fn read_checkpoint(folder: &Path) -> Result<Checkpoint> {
    let path = folder.join(MODEL);
    if !path.exists() {
        let folder = folder.display();
        return Err(Unusable(format!("{folder} has no {MODEL}: train one first with `regard train --out {folder}`")).into());
    }
    Ok(Checkpoint::read(&path)?)
}

impl Trained {
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let checkpoint = read_checkpoint(folder)?;
        let model = LanguageModel::new(checkpoint.model::<ModelConfig>()?)?;
        let (params, origin) = (checkpoint.params(model.layout())?, checkpoint.origin()?);
        let tokenizer = Tokenizer::load(&folder.join(TOKENIZER))?;
        let (tokens, vocab) = (tokenizer.vocab(), model.config().vocab);
        if tokens != vocab {
            let message = format!(
                "{} has {tokens} tokens, but the model has {vocab}: it is the tokenizer of another model",
                folder.join(TOKENIZER).display()
            );
            return Err(Unusable(message).into());
        }
        Ok(Self { model, params, tokenizer, origin, step: checkpoint.step })
    }
}

/// Remove what a killed training left half-written.
pub(crate) fn remove_half_written(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(".partial") && FILES.iter().any(|file| name.starts_with(&format!(".{file}."))) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
