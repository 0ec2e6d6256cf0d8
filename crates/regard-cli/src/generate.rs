//! `regard generate`.

use crate::microscope::{ABOUT_MODEL, SourceArgs, VectorArgs, load};
use crate::options::{Common, Outcome, Sizes, Unusable};
use crate::train::warn_unverified;
use anyhow::{Context, Result};
use clap::Args;
use regard_lab::experiments::Progress;
use regard_model::{Edits, Generation, Input, Model};
use regard_nn::cache::CacheType;
use regard_nn::generate::Sampling;
use regard_nn::streaming::TextStream;
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::Instant;

/// Generate text with a model
///
/// The text appears as it is written, and is all that is printed. With temperature 0 the most likely token is taken each time; below 1 the
/// distribution is sharper than the model's, above 1 flatter. --top-k and --top-p leave the unlikely tokens out. When the context of a
/// model is full, the older half of the text is dropped and the rest read again, with edits and without. The same seed writes the same
/// text, with and without the cache of keys and values.
///
/// --cache-type q8_0 (blocks of 32 8-bit integers with a scale, as llama.cpp's) stores keys and values in 0.27 of the memory of f32, bf16
/// and f16 in half; `regard eval --cache-type` measures what that costs.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard generate --prompt \"Anna and Ben went to\"
  regard generate model
  regard generate model --prompt \"Anna and Ben went to\" --tokens 500 --temperature 0.8
  regard generate model --top-k 20 --top-p 0.9 --seed 7
  regard generate model --temperature 0 --json
  regard generate model.gguf --prompt \"Once upon a time\" --cache-type q8_0
  regard generate tiny.en.pt --audio speech.wav --temperature 0
  regard generate stories15M/model.bin --prompt \"Once upon a time\" --edits scale=off")]
pub(crate) struct Generate {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    /// Edits of the model, as in L3.H1=zero/scale=off: see `regard surgery --help`
    #[arg(long, default_value = "", value_name = "EDITS")]
    edits: String,
    #[command(flatten)]
    vectors: VectorArgs,
    /// What the text begins with [default: the beginning of a story for the built-in model, else a line break, which is not printed]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The same as token ids, as in 12,7,105
    #[arg(long, value_name = "LIST", conflicts_with = "prompt")]
    prompt_tokens: Option<Sizes>,
    /// How many tokens to write
    #[arg(long, default_value_t = 300, value_name = "N")]
    tokens: usize,
    /// Divides the logits; 0 takes the most likely token
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true)]
    temperature: f64,
    /// Only the N most likely tokens
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Only the most likely tokens that together have this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Seed of the draws
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Read the whole text again for each token: slower, the same text
    #[arg(long)]
    no_cache: bool,
    /// How the cache stores keys and values: f32, f16, bf16 or q8_0; fewer bits take less memory and time, and change the text a little
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    cache_type: CacheType,
    /// Print one JSON object at the end, with prompt, text, tokens, tokens per second and bytes of the cache
    #[arg(long)]
    json: bool,
    /// Number of threads; the text is the same for any number [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// Print text at once; false when the reader has closed the pipe.
fn put(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write the text"),
    }
}

/// How stories of the built-in model begin; without it, it may go on with the random tokens that it was trained on, too.
const BEGINNING: &str = "Emma and";

impl Generate {
    /// The text to begin with.
    fn beginning(&self, model: &Model) -> Option<&str> {
        self.prompt.as_deref().or_else(|| (model.is_built_in() && self.prompt_tokens.is_none()).then_some(BEGINNING))
    }

    /// The tokens to begin with.
    fn prompt(&self, model: &Model) -> Result<Vec<u32>> {
        if let Some(list) = &self.prompt_tokens {
            let id =
                |&n: &usize| u32::try_from(n).map_err(|_| Unusable(format!("token {n} is outside the vocabulary of {}", model.vocab())));
            return Ok(list.0.iter().map(id).collect::<Result<_, _>>()?);
        }
        if model.encoder().is_some() {
            let text = self.prompt.as_deref().unwrap_or_default();
            let given = if text.is_empty() { Vec::new() } else { model.tokens(text)? };
            let ids = given.into_iter().filter(|token| !token.added).map(|token| token.id);
            return Ok(model.start_ids().iter().copied().chain(ids).collect());
        }
        if let Some(text) = self.beginning(model) {
            return Ok(model.ids(Input::Text(text))?);
        }
        // The first of these that the tokenizer has.
        let known = ["\n", " ", "."].iter().filter_map(|text| model.ids(Input::Text(text)).ok()).find(|tokens| !tokens.is_empty());
        Ok(known.unwrap_or_else(|| vec![0]))
    }

    pub(crate) fn run(self) -> Result<Outcome> {
        let bar = Common { json: self.json, quiet: !self.json, wide: false, threads: self.threads }.start("generate")?;
        let model = self.source.decoder(&self.vectors.given(load(self.model.as_deref())?)?)?;
        if let Some(folder) = self.model.as_deref().filter(|_| model.trained().is_some_and(|trained| !trained.verified)) {
            warn_unverified(folder);
        }
        let edits = Edits::parse(&self.edits)?;
        let sources = model.sources_of(&edits)?;
        let prompt = self.prompt(&model)?;
        if prompt.is_empty() {
            return Err(Unusable("the prompt has no tokens: give at least one, or leave it out".to_owned()).into());
        }
        if let (Some(warning), None) = (model.warning(prompt.len() + self.tokens), model.trained()) {
            bar.warn(&warning);
        }
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p, seed: self.seed };
        sampling.check()?;
        let options = Generation { tokens: self.tokens, sampling, cached: !self.no_cache, context: None, cache_type: self.cache_type };
        let mut stream = TextStream::new(|ids: &[u32]| match model.tokenizer() {
            Ok(tokenizer) => tokenizer.decode(ids),
            // Without a tokenizer only --json has something to say: the ids.
            Err(_) => Ok(String::new()),
        });
        model.check_tokens(&prompt)?;
        let read = prompt.iter().map(|&token| stream.push(token)).collect::<Result<String, _>>()?;
        // As it was given: some tokenizers do not keep case and spaces.
        let shown = if self.prompt_tokens.is_some() { read } else { self.beginning(&model).unwrap_or_default().to_owned() };
        let (mut text, mut failed) = (String::new(), None);
        let mut listening = self.json || put(&shown)?;
        bar.expect(self.tokens as u64);
        let started = Instant::now();
        let written = model.generate(&prompt, &options, &edits, &sources, |token| {
            bar.advance(1);
            let printed = stream.push(token).map_err(anyhow::Error::from).and_then(|piece| {
                text += &piece;
                if self.json { Ok(true) } else { put(&piece) }
            });
            match printed {
                Ok(still) => listening = still,
                Err(error) => failed = Some(error),
            }
            listening && failed.is_none()
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        let seconds = started.elapsed().as_secs_f64();
        drop(bar);
        if !listening {
            return Ok(Outcome::Done);
        }
        let rest = stream.finish()?;
        text += &rest;
        if self.json {
            let summary = json!({
                "prompt": shown,
                "edits": edits.canonical(),
                "text": text,
                "tokens": written,
                "seconds": seconds,
                "tokens_per_second": written.len() as f64 / seconds.max(1e-9),
                "cache_type": self.cache_type.name(),
                "cache_bytes": model.cache_bytes(self.cache_type, prompt.len() + written.len()),
            });
            put(&format!("{summary}\n"))?;
        } else {
            put(&format!("{rest}\n"))?;
        }
        Ok(Outcome::Done)
    }
}
