//! `regard generate`.

use crate::common::{Common, Outcome, Sizes, Unusable};
use crate::train::{is_ours, warn_unverified};
use anyhow::{Context, Result};
use clap::Args;
use regard_lab::experiments::Progress;
use regard_nn::generate::{Sampling, Writer};
use regard_nn::streaming::TextStream;
use regard_nn::tokenizer::Tokenizer;
use regard_nn::training::folder::Trained;
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::Instant;

/// Let a trained model write
///
/// The text appears as it is written, and is all that is printed. With temperature 0 the likeliest token is taken each time; below 1 the
/// model is more careful than it was trained to be, above 1 more daring. --top-k and --top-p leave the unlikely tokens out.
/// The same seed writes the same, with and without the cache of keys and values.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard generate model
  regard generate model --prompt \"Anna and Ben went to\" --tokens 500 --temperature 0.8
  regard generate model --top-k 20 --top-p 0.9 --seed 7
  regard generate model --temperature 0 --json
  regard generate stories15M/model.bin --prompt \"Once upon a time\" --edits scale=off")]
pub(crate) struct Generate {
    /// A folder that `regard train` wrote, or any model that `regard look` can read
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Edits of the model, as in L3.H1=zero/scale=off: see `regard surgery --help`
    #[arg(long, default_value = "", value_name = "EDITS")]
    edits: String,
    /// What the text begins with [default: the end of a line, which is not printed]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The same as tokens: a list of their numbers
    #[arg(long, value_name = "LIST", conflicts_with = "prompt")]
    prompt_tokens: Option<Sizes>,
    /// How many tokens to write
    #[arg(long, default_value_t = 300, value_name = "N")]
    tokens: usize,
    /// Divides the logits; 0 takes the likeliest token
    #[arg(long, default_value_t = 1.0, value_name = "X", allow_negative_numbers = true)]
    temperature: f64,
    /// Only the N likeliest tokens
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,
    /// Which draws
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Read the whole text again for each token: slower, the same text
    #[arg(long)]
    no_cache: bool,
    /// Print one JSON object at the end, with prompt, text, tokens and tokens per second
    #[arg(long)]
    json: bool,
    /// Use so many threads; the text is the same for any number [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

/// What a text may follow when nothing was said: the first of these that the tokenizer knows.
fn silent_prompt(tokenizer: &Tokenizer) -> Vec<u32> {
    let known = ["\n", " ", "."].iter().filter_map(|text| tokenizer.encode(text).ok()).find(|tokens| !tokens.is_empty());
    known.unwrap_or_else(|| vec![0])
}

/// Write what became certain. False: nobody reads any more.
fn put(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot write the text"),
    }
}

impl Generate {
    /// The tokens to begin with.
    fn prompt(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        if let Some(list) = &self.prompt_tokens {
            let number = |&n: &usize| {
                u32::try_from(n).map_err(|_| Unusable(format!("token {n} is outside the vocabulary of {}", tokenizer.vocab())))
            };
            return Ok(list.0.iter().map(number).collect::<Result<_, _>>()?);
        }
        let tokens = self.prompt.as_ref().map(|text| tokenizer.encode(text)).transpose()?;
        Ok(tokens.unwrap_or_else(|| silent_prompt(tokenizer)))
    }

    /// Any checkpoint, with edits.
    fn run_checkpoint(&self, bar: &impl Progress) -> Result<Outcome> {
        let model = regard_model::Model::load(&self.folder)?;
        let edits = regard_model::Edits::parse(&self.edits)?;
        let sources = model.sources_of(&edits)?;
        let prompt = match (&self.prompt_tokens, &self.prompt) {
            (Some(list), _) => list.0.iter().map(|&n| u32::try_from(n).unwrap_or(u32::MAX)).collect(),
            (None, Some(text)) => model.ids(regard_model::Input::Text(text))?,
            (None, None) => model.ids(regard_model::Input::Text("\n"))?,
        };
        if let Some(warning) = model.warning(prompt.len() + self.tokens) {
            bar.warn(&warning);
        }
        let shown = self.prompt.clone().unwrap_or_default();
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p, seed: self.seed };
        bar.expect(self.tokens as u64);
        let (mut so_far, mut done) = (Vec::new(), String::new());
        let mut failed = None;
        let mut listening = self.json || put(&shown)?;
        let started = Instant::now();
        let written = model.generate(&prompt, self.tokens, &edits, &sources, &sampling, |token| {
            so_far.push(token);
            bar.advance(1);
            // Characters may be several tokens: only what is certain is shown.
            if let Ok(text) = model.tokenizer().and_then(|tokenizer| tokenizer.decode(&so_far))
                && let Some(new) = text.strip_prefix(&done)
                && !new.ends_with('\u{fffd}')
            {
                if !self.json {
                    match put(new) {
                        Ok(still) => listening = still,
                        Err(error) => failed = Some(error),
                    }
                }
                done = text;
            }
            listening && failed.is_none()
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        let seconds = started.elapsed().as_secs_f64();
        if self.json {
            let text = model.tokenizer().and_then(|tokenizer| tokenizer.decode(&written)).unwrap_or_default();
            let speed = written.len() as f64 / seconds.max(1e-9);
            let summary = json!({
                "prompt": shown, "text": text, "tokens": written, "edits": edits.canonical(), "seconds": seconds, "tokens_per_second": speed,
            });
            put(&format!("{summary}\n"))?;
        } else {
            put("\n")?;
        }
        Ok(Outcome::Done)
    }

    pub(crate) fn run(self) -> Result<Outcome> {
        let bar = Common { json: self.json, quiet: !self.json, threads: self.threads }.start("generate")?;
        if !self.edits.is_empty() || !is_ours(&self.folder) {
            return self.run_checkpoint(&bar);
        }
        let trained = Trained::read(&self.folder)?;
        if trained.tokenizer.bos().is_some() {
            return self.run_checkpoint(&bar);
        }
        if !trained.verified {
            warn_unverified(&self.folder);
        }
        let prompt = self.prompt(&trained.tokenizer)?;
        if prompt.is_empty() {
            return Err(Unusable("the prompt has no tokens: give at least one, or leave it out".to_owned()).into());
        }
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k, top_p: self.top_p, seed: self.seed };
        let mut writer = Writer::new(&trained.model, &trained.params, &prompt, sampling, !self.no_cache)?;
        let mut stream = TextStream::new(&trained.tokenizer);
        let read = prompt.iter().map(|&token| stream.push(token)).collect::<Result<String, _>>()?;
        // As it was given: some tokenizers do not keep case and spaces.
        let shown = if self.prompt_tokens.is_some() { read } else { self.prompt.clone().unwrap_or_default() };
        let mut text = String::new();
        let mut listening = self.json || put(&shown)?;
        bar.expect(self.tokens as u64);
        let started = Instant::now();
        for _ in 0..self.tokens {
            if !listening {
                return Ok(Outcome::Done);
            }
            let piece = stream.push(writer.next_token()?)?;
            listening = self.json || put(&piece)?;
            text += &piece;
            bar.advance(1);
        }
        let seconds = started.elapsed().as_secs_f64();
        drop(bar);
        let rest = stream.finish()?;
        text += &rest;
        if self.json {
            let summary = json!({
                "prompt": shown,
                "text": text,
                "tokens": writer.tokens()[prompt.len()..],
                "seconds": seconds,
                "tokens_per_second": self.tokens as f64 / seconds.max(1e-9),
            });
            put(&format!("{summary}\n"))?;
        } else {
            put(&format!("{rest}\n"))?;
        }
        Ok(Outcome::Done)
    }
}
