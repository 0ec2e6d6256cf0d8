//! The microscope: real models, one command to a file.

mod circuit;
mod classify;
mod diff;
mod image;
mod inspect;
mod lens;
mod look;
pub mod neuron;
mod patch;
pub mod picture;
mod screen;
mod surgery;
mod tokens;

use crate::options::{Outcome, Unusable};
use crate::progress::Bar;
use anyhow::Result;
use clap::{Args, Subcommand};
use regard_files::limits;
use regard_lab::experiments::Progress;
use regard_model::front::sound::Sound;
use regard_model::{Edits, Generation, Input, Model, Sources, Vectors};
use std::path::{Path, PathBuf};

pub(crate) const ABOUT_MODEL: &str = "A model: a file (GGUF, safetensors, llama2.c's .bin, PyTorch's .bin), a folder, or a name in the \
    local Hugging Face cache [default: built-in, the small model that comes with regard]";

/// Real models under the microscope.
#[derive(Subcommand)]
pub(crate) enum Microscope {
    Inspect(inspect::Inspect),
    Tokens(tokens::Tokens),
    Look(look::Look),
    Classify(classify::Classify),
    Lens(lens::Lens),
    Surgery(surgery::Surgery),
    Screen(screen::Screen),
    Patch(patch::Patch),
    Diff(diff::Diff),
    Circuit(circuit::Circuit),
}

impl Microscope {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Inspect(command) => command.run(),
            Self::Tokens(command) => command.run(),
            Self::Look(command) => command.run(),
            Self::Classify(command) => command.run(),
            Self::Lens(command) => command.run(),
            Self::Surgery(command) => command.run(),
            Self::Screen(command) => command.run(),
            Self::Patch(command) => command.run(),
            Self::Diff(command) => command.run(),
            Self::Circuit(command) => command.run(),
        }
    }
}

/// The model at a path, or the one that comes with regard, which is also named `built-in`.
pub(crate) fn load(path: Option<&Path>) -> Result<Model> {
    let file = path.filter(|path| path.as_os_str() != "built-in" || path.exists());
    if let Some(text) = file.filter(|path| path.to_string_lossy().contains(' ') && !path.exists()) {
        let text = text.display();
        return Err(Unusable(format!("{text} is not a model file, a folder or a cached name; for a text: --text \"{text}\"")).into());
    }
    Ok(file.map_or_else(Model::built_in, Model::load)?)
}

/// Which texts a model is judged on.
#[derive(Args, Debug, Clone)]
struct Texts {
    /// A text; may be given several times
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// A file with a text; may be given several times
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Number of built-in stories, where no text is given
    #[arg(long, default_value_t = 16, value_name = "N")]
    texts: usize,
    /// Tokens of each text, at most
    #[arg(long, default_value_t = 256, value_name = "N")]
    tokens: usize,
}

impl Texts {
    /// The texts that were given, within limits.
    fn given(&self) -> Result<Vec<String>> {
        let mut texts = self.text.clone();
        for path in &self.file {
            texts.push(regard_files::read_text(path, limits::TEXT_BYTES.max)?);
        }
        limits::check_texts(if texts.is_empty() { self.texts } else { texts.len() }, self.tokens)?;
        if self.tokens < 2 {
            let reason = "give at least 2, since the second is predicted from the first";
            return Err(Unusable(format!("too few tokens: --tokens {}; {reason}", self.tokens)).into());
        }
        Ok(texts)
    }

    /// The same, or built-in stories.
    fn strings(&self, model: &Model) -> Result<Vec<String>> {
        let texts = self.given()?;
        if texts.is_empty() { Ok(model.own_stories(self.texts, self.tokens)?) } else { Ok(texts) }
    }

    fn ids(&self, model: &Model) -> Result<Vec<Vec<u32>>> {
        let texts = self.given()?;
        if texts.is_empty() {
            return Ok(model.own_texts(self.texts, self.tokens)?);
        }
        Ok(model.cut_texts(&texts.iter().map(String::as_str).collect::<Vec<_>>(), self.tokens)?)
    }

    /// The texts in words, for captions: "over 16 built-in stories".
    fn described(&self, ids: &[Vec<u32>]) -> String {
        let n = ids.len();
        match (self.text.is_empty() && self.file.is_empty(), n) {
            (true, _) => format!("over {n} built-in stories"),
            (false, 1) => "over 1 text".to_owned(),
            (false, _) => format!("over {n} texts"),
        }
    }

    /// A warning for a model of others that is judged on our stories.
    fn warn_foreign(&self, model: &Model, bar: &Bar) {
        if self.text.is_empty() && self.file.is_empty() && !model.is_built_in() {
            bar.warn("no text is given: the built-in stories of children are used; give texts that the model knows with --text or --file");
        }
    }
}

/// What an encoder-decoder reads.
#[derive(Args, Debug, Clone)]
pub(crate) struct SourceArgs {
    /// Of a speech model (Whisper): a WAV file of at most 30 seconds
    #[arg(long, value_name = "FILE", conflicts_with = "source")]
    audio: Option<PathBuf>,
    /// Of an encoder-decoder: the text that the encoder reads
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,
}

impl SourceArgs {
    /// The model as it is, or with its decoder reading the source.
    pub(crate) fn decoder(&self, model: &Model) -> Result<Model> {
        let (none, nothing) = (Edits::default(), Sources::default());
        let given = self.audio.is_some() || self.source.is_some();
        let Some(encoder) = model.encoder() else {
            if given {
                let name = model.family();
                return Err(Unusable(format!("{name} has no encoder; give the text with --text or --prompt")).into());
            }
            return Ok(model.clone());
        };
        let read = match (&self.audio, &self.source) {
            (Some(path), _) => model.read(Input::Sound(&Sound::read(path)?), &none, &nothing)?,
            (None, Some(text)) => model.read(Input::Text(text), &none, &nothing)?,
            (None, None) => {
                let option = if encoder.front_kind().is_some() { "--audio FILE" } else { "--source TEXT" };
                return Err(Unusable(format!("{} reads before it writes; give {option}", model.family())).into());
            }
        };
        Ok(model.reading(&read)?)
    }
}

/// Vectors that edits add.
#[derive(Args, Debug, Clone)]
pub(crate) struct VectorArgs {
    /// A safetensors file of named vectors, for edits such as L1.resid=add:NAME*2
    #[arg(long, value_name = "FILE")]
    vectors: Option<PathBuf>,
}

impl VectorArgs {
    /// The model with these vectors.
    pub(crate) fn given(&self, model: Model) -> Result<Model> {
        Ok(match &self.vectors {
            Some(path) => model.with_vectors(Vectors::read(path)?),
            None => model,
        })
    }
}

/// Tokens that a decoder writes by itself, at most.
const TRANSCRIPT: usize = 224;

/// The tokens of an encoder-decoder's text, and how many of them the model wrote: all, where no text is given.
fn written(model: &Model, text: Option<&str>, more: usize, edits: &Edits, sources: &Sources) -> Result<(Vec<u32>, usize)> {
    let mut ids = model.start_ids().to_vec();
    if let Some(text) = text {
        ids.extend(model.tokens(text)?.into_iter().filter(|token| !token.added).map(|token| token.id));
    }
    let count = if text.is_none() && more == 0 { TRANSCRIPT } else { more };
    let written = if count > 0 { model.generate(&ids, &Generation::greedy(count), edits, sources, |_| true)? } else { Vec::new() };
    ids.extend_from_slice(&written);
    Ok((ids, written.len()))
}

/// What an edit needs from other texts: for `mean` and `resample` stories that are not judged.
pub(crate) fn sources(model: &Model, edits: &Edits) -> Result<Sources> {
    Ok(model.sources_of(edits)?)
}

/// Edits in words, as a further sentence.
fn said(edits: &Edits) -> String {
    if edits.is_empty() { String::new() } else { format!(" {}", edits.explain().replace('\n', " ")) }
}
