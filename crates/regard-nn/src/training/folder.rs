//! The folder of a model: its files, the origin of the model, and reading it back.

use super::source::TextSource;
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::lm::LanguageModel;
use crate::stories;
use crate::tokenizer::{Tokenizer, TokenizerKind};
use regard_files::limits::CHECKPOINT_BYTES;
pub use regard_files::names::model::{FIGURES, FILES, LOG, SUMMARY, TOKENIZER, WEIGHTS as MODEL};
use regard_files::{Folder, Hasher, check_target, digest};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The command in the folder's record.
const COMMAND: &str = "train";

/// The training text of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Source of the text.
    pub text: TextSource,
    /// SHA-256 of the text, without a byte order mark.
    pub text_sha256: String,
    /// Characters of the text.
    pub characters: usize,
    /// The tokenizer.
    pub tokenizer: TokenizerKind,
    /// Tokens of the text.
    pub tokens: usize,
    /// SHA-256 of the tokens.
    pub tokens_sha256: String,
    /// Steps between measurements of the validation loss.
    pub validate_every: u64,
}

/// SHA-256 of a text.
pub fn text_digest(text: &str) -> String {
    digest(text)
}

/// SHA-256 of tokens, each as four little-endian bytes.
pub fn token_digest(tokens: &[u32]) -> String {
    let mut hasher = Hasher::new();
    tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
    hasher.finish()
}

impl Origin {
    /// Entropy of the text per token, for generated stories and lossless tokenizers.
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
    /// The weights have the checksum in [`SUMMARY`]; false where that file is missing or has none.
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

fn check_model(folder: &Path) -> Result<()> {
    if folder.join(MODEL).metadata().is_err() {
        let begun = FILES.iter().any(|name| folder.join(name).metadata().is_ok());
        return Err(Error::NoModel { folder: folder.to_owned(), file: MODEL, begun });
    }
    Ok(())
}

fn read_checkpoint(folder: &Path) -> Result<Checkpoint> {
    check_model(folder)?;
    Checkpoint::read(&folder.join(MODEL))
}

/// The folder that one training writes to, locked.
#[derive(Debug)]
pub struct ModelFolder(Folder);

impl ModelFolder {
    /// Open a folder for a new training, and create it where it does not exist. With `overwrite` the model in it may be replaced, also if
    /// its files were changed; files that no training wrote are never replaced.
    ///
    /// # Errors
    /// [`Error::Taken`] for a folder with a model, and those of [`Folder::open`] and [`Folder::reserve`].
    pub fn open(path: &Path, overwrite: bool) -> Result<Self> {
        let mut folder = Folder::open(path, COMMAND)?;
        let taken = FILES.into_iter().find(|name| path.join(name).symlink_metadata().is_ok());
        if let Some(file) = taken.filter(|_| !overwrite) {
            return Err(Error::Taken { folder: path.to_owned(), file, model: file == MODEL });
        }
        if taken.is_some() {
            if !folder.has_record() && Checkpoint::read(&path.join(MODEL)).is_ok() {
                adopt_all(&mut folder)?;
            }
            FILES.into_iter().try_for_each(|name| folder.accept_change(name))?;
            folder.reserve(&FILES)?;
        }
        Ok(Self(folder))
    }

    /// Open a folder with a model, to continue its training, and read the checkpoint. Nothing is created where there is no model.
    ///
    /// # Errors
    /// Those of [`ModelFolder::open`], and when there is no model, it is damaged, or a file of the training was changed.
    pub fn open_model(path: &Path) -> Result<(Self, Checkpoint)> {
        check_model(path)?;
        FILES.into_iter().try_for_each(|name| check_target(&path.join(name)))?;
        let mut folder = Folder::open(path, COMMAND)?;
        let checkpoint = read_checkpoint(path)?;
        if !folder.has_record() {
            adopt_all(&mut folder)?;
        }
        folder.reserve(&FILES)?;
        Ok((Self(folder), checkpoint))
    }

    /// The path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Write files of the training, in this order.
    pub(crate) fn write(&mut self, files: &[(&str, Vec<u8>)]) -> Result<()> {
        Ok(self.0.write_all(files)?)
    }

    /// Remove a file that a training wrote.
    pub(crate) fn remove(&mut self, name: &str) -> Result<()> {
        self.0.remove(name)?;
        Ok(())
    }

    /// Forget the digests of replaced files.
    pub(crate) fn settle(&mut self) -> Result<()> {
        Ok(self.0.settle()?)
    }
}

/// Versions before the record wrote a checkpoint beside files without digests: all are recorded as they are.
fn adopt_all(folder: &mut Folder) -> Result<()> {
    for name in FILES {
        folder.adopt(name, CHECKPOINT_BYTES.max, |_| true)?;
    }
    Ok(())
}
