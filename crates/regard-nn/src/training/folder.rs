//! A folder with a model: which files are in it, where the model comes from, and reading it back.

use super::source::TextSource;
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::lm::LanguageModel;
use crate::stories;
use crate::tokenizer::{Tokenizer, TokenizerKind};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// The checkpoint: all that is needed to go on, and the first file that a training writes.
pub const MODEL: &str = "model.safetensors";
/// The summary for people, with the checkpoint's checksum.
pub const SUMMARY: &str = "model.json";
/// The tokenizer.
pub const TOKENIZER: &str = "tokenizer.json";
/// One row per step.
pub const LOG: &str = "training.csv";
/// Drawn at the end.
pub const FIGURES: [&str; 2] = ["training.svg", "training.png"];
/// Every file that a training writes.
pub const FILES: [&str; 6] = [MODEL, SUMMARY, TOKENIZER, LOG, FIGURES[0], FIGURES[1]];

/// What a checkpoint says about the text that it was trained on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Where it came from.
    pub text: TextSource,
    /// Of the text, without a byte order mark.
    pub text_sha256: String,
    /// How many it has.
    pub characters: usize,
    /// How it was cut into tokens.
    pub tokenizer: TokenizerKind,
    /// How many it has.
    pub tokens: usize,
    /// Of these.
    pub tokens_sha256: String,
    /// The loss on text that is not learned was measured every so many steps.
    pub validate_every: u64,
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As `sha256sum` prints it.
pub fn text_digest(text: &str) -> String {
    hexadecimal(Sha256::new_with_prefix(text))
}

/// The same of tokens, each as four bytes, the lowest first.
pub fn token_digest(tokens: &[u32]) -> String {
    let mut hash = Sha256::new();
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hexadecimal(hash)
}

impl Origin {
    /// The least loss per token that is possible in the long run, where the text is ours and the tokens hold all of it.
    pub fn floor(&self) -> Option<f64> {
        let whole = !matches!(self.tokenizer, TokenizerKind::WordPiece(_));
        (whole && matches!(self.text, TextSource::Stories { .. }))
            .then(|| stories::entropy_rate() * self.characters as f64 / self.tokens as f64)
    }
}

/// A model that was read from its folder.
#[derive(Debug)]
pub struct Trained {
    /// The model.
    pub model: LanguageModel,
    /// Its parameters.
    pub params: Vec<f32>,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// What it was trained on.
    pub origin: Origin,
    /// Steps done.
    pub step: u64,
    /// The weights have the checksum that [`SUMMARY`] says; false where that file is missing or says none.
    pub verified: bool,
}

impl Trained {
    /// Read a folder.
    ///
    /// # Errors
    /// When there is no model, it is damaged, or the tokenizer is another model's.
    pub fn read(folder: &Path) -> Result<Self> {
        let checkpoint = read_checkpoint(folder)?;
        let model = LanguageModel::new(checkpoint.model::<ModelConfig>()?)?;
        let (params, origin) = (checkpoint.params(model.layout())?, checkpoint.origin()?);
        let path = folder.join(TOKENIZER);
        let tokenizer = Tokenizer::load(&path)?;
        let (tokens, vocab) = (tokenizer.vocab(), model.config().vocab);
        if tokens != vocab {
            return Err(Error::OtherTokenizer { path, tokens, vocab });
        }
        Ok(Self { model, params, tokenizer, origin, step: checkpoint.step, verified: checkpoint.verified() })
    }
}

fn read_checkpoint(folder: &Path) -> Result<Checkpoint> {
    check_files(folder)?;
    Checkpoint::read(&folder.join(MODEL))
}

/// There is a model, and what is to be read are files: a pipe would be waited for, and a device may have no end.
fn check_files(folder: &Path) -> Result<()> {
    let there = |name: &&str| folder.join(name).metadata();
    if there(&MODEL).is_err() {
        let begun = FILES.iter().any(|name| there(name).is_ok());
        return Err(Error::NoModel { folder: folder.to_owned(), file: MODEL, begun });
    }
    match FILES.iter().find(|name| there(name).is_ok_and(|kind| !kind.is_file())) {
        None => Ok(()),
        Some(name) => {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a file");
            Err(Error::File { action: "read", path: folder.join(name), source })
        }
    }
}

/// A folder that one training writes to; nobody else meanwhile, where the file system can lock directories.
#[derive(Debug)]
pub struct ModelFolder {
    path: PathBuf,
    /// The lock goes with it.
    _held: Option<File>,
}

impl ModelFolder {
    /// Make the folder where it is not there, lock it, and clear away what a killed training left half-written.
    ///
    /// # Errors
    /// [`Error::Directory`] when it cannot be made or written to, [`Error::Busy`] when another run has it.
    pub fn open(path: &Path) -> Result<Self> {
        let refused = |source| Error::Directory { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(refused)?;
        let held = match File::open(path).map(|folder| folder.try_lock().map(|()| folder)) {
            Ok(Ok(folder)) => Some(folder),
            Ok(Err(TryLockError::WouldBlock)) => return Err(Error::Busy { path: path.to_owned() }),
            Ok(Err(TryLockError::Error(_))) | Err(_) => None,
        };
        // Found out now, not after the first steps.
        let probe = path.join(format!(".regard.{}.probe", std::process::id()));
        std::fs::write(&probe, []).map_err(refused)?;
        std::fs::remove_file(&probe).map_err(refused)?;
        let folder = Self { path: path.to_owned(), _held: held };
        folder.remove_half_written();
        Ok(folder)
    }

    /// The same of a folder that has a model, which is read.
    ///
    /// # Errors
    /// As [`ModelFolder::open`], and when there is no model or it is damaged. Nothing is made where there is nothing.
    pub fn open_model(path: &Path) -> Result<(Self, Checkpoint)> {
        check_files(path)?;
        let folder = Self::open(path)?;
        let checkpoint = read_checkpoint(path)?;
        Ok((folder, checkpoint))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first of the files that a training writes, if one is there.
    pub fn taken(&self) -> Option<&'static str> {
        FILES.into_iter().find(|name| self.path.join(name).symlink_metadata().is_ok())
    }

    fn remove_half_written(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(".partial") && FILES.iter().any(|file| name.starts_with(&format!(".{file}."))) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}
