//! `regard eval`.

use crate::microscope::{ABOUT_MODEL, VectorArgs, load};
use crate::options::{Common, Outcome, Unusable};
use crate::train::warn_unverified;
use anyhow::Result;
use clap::Args;
use regard_lab::experiments::Progress;
use regard_lab::{Table, Value};
use regard_model::{Edits, Evaluated, Input, Model, Sources, TrainedOn};
use regard_nn::cache::CacheType;
use regard_nn::data::Text;
use regard_nn::training::folder::text_digest;
use regard_nn::training::source::TextSource;
use std::f64::consts::LN_2;
use std::path::PathBuf;

/// Measure a model: loss, perplexity, bits per character, accuracy
///
/// A model of `regard train` is measured on the last tenth of its training text, which it has not learned; any model on the whole of
/// another text (--text); the built-in model on stories. Every token is predicted exactly once, from at most a context of tokens before it;
/// without a BOS token, all but the first. For a model that `regard train` trained on its built-in stories, the entropy of their grammar
/// stands beside the loss: no model can stay below it.
///
/// With --edits there are two rows: the model as it is, and edited. With --cache-type there is one more: what the (edited) model predicts
/// when it decodes over a cache of that type.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard eval --edits L1.H2=zero
  regard eval model
  regard eval model --stride 16                 more context for each token, and more work
  regard eval model --text other.txt --json
  regard eval stories15M/model.bin --text book.txt --edits scale=off
  regard eval model.gguf --text book.txt --cache-type q8_0")]
pub(crate) struct Eval {
    #[arg(value_name = "MODEL", help = ABOUT_MODEL)]
    model: Option<PathBuf>,
    /// Another text, or the same one where it has moved; - is the standard input [default: the text that it was trained on]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Tokens between the starts of windows; the smaller, the more context each token has [default: the context]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Edits of the model, as in L3.H1=zero/scale=off: see `regard surgery --help`
    #[arg(long, default_value = "", value_name = "EDITS")]
    edits: String,
    #[command(flatten)]
    vectors: VectorArgs,
    /// Measure with keys and values as a cache of this type stores them, too: f16, bf16 or q8_0
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    cache_type: CacheType,
    #[command(flatten)]
    common: Common,
}

const COLUMNS: [(&str, &str); 13] = [
    ("part", "what was read"),
    ("edits", "edits of the model"),
    ("cache_type", "how keys and values are stored"),
    ("tokens", "tokens predicted"),
    ("loss", "loss (nats per token)"),
    ("floor", "entropy of the text (nats per token), where it is known"),
    ("perplexity", "perplexity of a token"),
    ("bits_per_character", "bits per character"),
    ("accuracy", "share of tokens that were the most likely"),
    ("bits_per_token", "bits per token"),
    ("floor_bits_per_character", "entropy of the text (bits per character), where it is known"),
    ("step", "training steps of the model, where they are known"),
    ("characters", "characters of these tokens"),
];

/// Stories that the built-in model is judged on, and the tokens of each.
const STORIES: usize = 16;
const STORY_TOKENS: usize = 256;

/// A text to judge a model on.
struct Judged {
    part: &'static str,
    /// With the BOS token, where the tokenizer adds one.
    ids: Vec<u32>,
    /// Characters of the predicted tokens.
    characters: usize,
    /// Entropy in nats per character, where it is known.
    entropy: Option<f64>,
}

impl Eval {
    /// The text that was given, else the one that the model was trained on.
    fn source(&self, trained: Option<&TrainedOn>) -> Result<TextSource> {
        match (&self.text, trained.map(|trained| &trained.origin.text)) {
            (Some(path), _) if path.as_os_str() != "-" && !path.exists() => {
                Err(Unusable(format!("cannot read {}: no such file; --text takes a file here, not a text", path.display())).into())
            }
            (Some(path), _) => Ok(TextSource::named(path.clone())),
            (None, Some(TextSource::Stdin)) => {
                let message = "the text came from the standard input: give it again, with --text - or as a file with --text FILE";
                Err(Unusable(message.to_owned()).into())
            }
            (None, Some(source)) => Ok(source.clone()),
            (None, None) => Err(Unusable("no text to read: give one with --text FILE".to_owned()).into()),
        }
    }

    /// The last tenth of the text that the model was trained on, or all of another one.
    fn judged(&self, model: &Model) -> Result<Judged> {
        let trained = model.trained();
        let stories = self.text.is_none() && model.is_built_in();
        let text = if stories { model.own_stories(STORIES, STORY_TOKENS)?.join("\n") } else { self.source(trained)?.read()? };
        let ids = model.ids(Input::Text(&text))?;
        let bos = model.tokenizer()?.first().filter(|bos| ids.first() == Some(bos));
        let origin = trained.map(|trained| &trained.origin).filter(|origin| origin.text_sha256 == text_digest(&text));
        let (part, ids) = match origin {
            Some(_) => {
                let unseen = Text::split(ids[usize::from(bos.is_some())..].to_vec(), model.context())?.validation;
                ("validation", bos.into_iter().chain(unseen).collect())
            }
            None => (if stories { "built-in stories" } else { "whole text" }, ids),
        };
        // All tokens but the first are predicted.
        let characters = model.tokenizer()?.decode(&ids[1.min(ids.len())..])?.chars().count();
        // The grammar's entropy is per character; tokens of this part may be longer or shorter than those of the whole text.
        let floor = origin.and_then(|origin| Some(origin.floor()? * origin.tokens as f64 / origin.characters as f64));
        Ok(Judged { part, ids, characters, entropy: floor })
    }

    pub(crate) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("eval")?;
        let model = self.vectors.given(load(self.model.as_deref())?)?;
        if let Some(folder) = self.model.as_deref().filter(|_| model.trained().is_some_and(|trained| !trained.verified)) {
            warn_unverified(folder);
        }
        let edits = Edits::parse(&self.edits)?;
        let sources = model.sources_of(&edits)?;
        let judged = self.judged(&model)?;
        let (none, nothing) = (Edits::default(), Sources::default());
        let mut rows = vec![(&none, &nothing, CacheType::F32)];
        if !edits.is_empty() {
            rows.push((&edits, &sources, CacheType::F32));
        }
        if self.cache_type != CacheType::F32 {
            rows.push((&edits, &sources, self.cache_type));
        }
        bar.expect((rows.len() * judged.ids.len()) as u64);
        let caption = "How well the model predicts; every token is predicted once, from at most a context of tokens before it. \
                       (`regard train` validates on some windows of the same text only.)";
        let mut table = Table::new("eval", caption, &COLUMNS);
        for (edits, sources, cache_type) in rows {
            let mut seen = 0;
            let evaluated = model.evaluate_with_cache(&judged.ids, self.stride, edits, sources, cache_type, |done, _| {
                bar.advance((done - seen) as u64);
                seen = done;
            })?;
            table.push(row(&model, &judged, edits, cache_type, &evaluated));
        }
        drop(bar);
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }
}

fn row(model: &Model, judged: &Judged, edits: &Edits, cache_type: CacheType, evaluated: &Evaluated) -> Vec<Value> {
    let (tokens, loss) = (evaluated.losses.len(), evaluated.loss());
    let per_token = judged.characters as f64 / tokens as f64;
    let step = model.trained().map(|trained| i64::try_from(trained.step).unwrap_or(i64::MAX));
    vec![
        judged.part.into(),
        edits.canonical().into(),
        cache_type.name().into(),
        tokens.into(),
        loss.into(),
        judged.entropy.map(|entropy| entropy * per_token).into(),
        loss.exp().into(),
        (loss / per_token.max(f64::MIN_POSITIVE) / LN_2).into(),
        evaluated.accuracy().into(),
        (loss / LN_2).into(),
        judged.entropy.map(|entropy| entropy / LN_2).into(),
        step.into(),
        judged.characters.into(),
    ]
}
