//! `regard eval`.

use crate::common::{Common, Outcome, Unusable};
use crate::progress::Bar;
use crate::train::{is_ours, warn_unverified};
use anyhow::Result;
use clap::Args;
use regard_lab::Table;
use regard_lab::experiments::Progress;
use regard_nn::data::Text;
use regard_nn::evaluate::evaluate;
use regard_nn::training::folder::{Trained, text_digest};
use regard_nn::training::source::TextSource;
use std::f64::consts::LN_2;
use std::path::PathBuf;

/// Measure a trained model: loss, perplexity, bits per character, accuracy
///
/// On the last tenth of the text that it was trained on, which it has not learned; or on the whole of another text. Every token but the
/// first is predicted exactly once, from at most a context of tokens before it. Where the text is the stories that a grammar writes, its
/// entropy stands beside the loss: no model can stay below it.
///
/// Any other model that `regard look` can read is measured on the text that is given; with --edits, as it is and edited.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard eval model
  regard eval model --stride 16                 more context for each token, and more work
  regard eval model --text other.txt --json
  regard eval stories15M/model.bin --text book.txt --edits scale=off")]
pub(crate) struct Eval {
    /// A folder that `regard train` wrote, or any model that `regard look` can read
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Another text, or the same one where it has moved; - is the standard input [default: the text that it was trained on]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Windows begin so many tokens apart; the shorter, the more context each token has [default: the context]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Edits of the model, as in L3.H1=zero/scale=off: see `regard surgery --help`
    #[arg(long, default_value = "", value_name = "EDITS")]
    edits: String,
    #[command(flatten)]
    common: Common,
}

const COLUMNS: [(&str, &str); 11] = [
    ("part", "what was read"),
    ("step", "training steps of the model"),
    ("tokens", "tokens predicted"),
    ("characters", "characters of these"),
    ("loss", "loss (nats per token)"),
    ("floor", "entropy of the text (nats per token), where it is known"),
    ("perplexity", "perplexity of a token"),
    ("bits_per_token", "bits per token"),
    ("bits_per_character", "bits per character"),
    ("floor_bits_per_character", "entropy of the text (bits per character), where it is known"),
    ("accuracy", "share of tokens that were the likeliest"),
];

impl Eval {
    /// Any checkpoint, with edits; `text` where none was given.
    fn run_checkpoint(&self, bar: Bar, text: Option<&TextSource>) -> Result<Outcome> {
        let model = regard_model::Model::load(&self.folder)?;
        let edits = regard_model::Edits::parse(&self.edits)?;
        let sources = crate::microscope::sources(&model, &edits)?;
        let source = match (&self.text, text) {
            (Some(path), _) => TextSource::named(path.clone()),
            (None, Some(text)) => text.clone(),
            (None, None) => return Err(Unusable("say which text to read, with --text FILE".to_owned()).into()),
        };
        let text = source.read()?;
        let ids = model.ids(regard_model::Input::Text(&text))?;
        let none = (regard_model::Edits::default(), regard_model::Sources::default());
        let mut ways = vec![("as it is", &none.0, &none.1)];
        if !edits.is_empty() {
            ways.push(("edited", &edits, &sources));
        }
        bar.expect((ways.len() * ids.len()) as u64);
        let columns = [
            ("model", "the model"),
            ("edits", "its edits"),
            ("tokens", "tokens predicted"),
            ("loss", "loss (nats per token)"),
            ("perplexity", "perplexity of a token"),
            ("bits_per_character", "bits per character"),
        ];
        let caption =
            format!("How well {} predicts; every token is judged once, by at most {} before it.", model.path().display(), model.context());
        let mut table = Table::new("eval", &caption, &columns);
        for (what, edits, sources) in ways {
            let mut seen = 0;
            let losses = model.evaluate(&ids, self.stride, edits, sources, |done, _| {
                bar.advance((done - seen) as u64);
                seen = done;
            })?;
            let nats: f64 = losses.iter().sum();
            let loss = nats / losses.len() as f64;
            table.push(vec![
                what.into(),
                edits.canonical().into(),
                losses.len().into(),
                loss.into(),
                loss.exp().into(),
                (nats / LN_2 / text.chars().count().max(1) as f64).into(),
            ]);
        }
        drop(bar);
        self.common.show(&[table])?;
        Ok(Outcome::Done)
    }

    pub(crate) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("eval")?;
        if !is_ours(&self.folder) {
            return self.run_checkpoint(bar, None);
        }
        let trained = Trained::read(&self.folder)?;
        if !self.edits.is_empty() || trained.tokenizer.bos().is_some() {
            return self.run_checkpoint(bar, Some(&trained.origin.text));
        }
        if !trained.verified {
            warn_unverified(&self.folder);
        }
        let source = self.text.clone().map_or_else(|| trained.origin.text.clone(), TextSource::named);
        if source == TextSource::Stdin && self.text.is_none() {
            let message = "the text came from the standard input: give it again, with --text - or as a file with --text FILE";
            return Err(Unusable(message.to_owned()).into());
        }
        let text = source.read()?;
        let tokens = trained.tokenizer.encode(&text)?;
        let known = text_digest(&text) == trained.origin.text_sha256;
        let context = trained.model.config().context;
        let (part, tokens) = if known { ("validation", Text::split(tokens, context)?.validation) } else { ("whole text", tokens) };
        let mut seen = 0;
        let loss = evaluate(&trained.model, &trained.params, &tokens, self.stride.unwrap_or(context), |done, all| {
            if seen == 0 {
                bar.expect(all as u64);
            }
            bar.advance((done - seen) as u64);
            seen = done;
        })?;
        drop(bar);
        let characters = trained.tokenizer.decode(&tokens[1..])?.chars().count();
        let per_character = |nats_per_token: f64| nats_per_token * loss.rows as f64 / characters.max(1) as f64 / LN_2;
        // The grammar's entropy is per character; tokens of this part may be longer or shorter than those of the whole text.
        let origin = &trained.origin;
        let entropy = origin.floor().filter(|_| known).map(|floor| floor * origin.tokens as f64 / origin.characters as f64);
        let mut table = Table::new(
            "eval",
            "How well the model predicts; every token but the first is judged once, by the tokens before it. (`regard train` looks at some windows of the same text only.)",
            &COLUMNS,
        );
        table.push(vec![
            part.into(),
            i64::try_from(trained.step).unwrap_or(i64::MAX).into(),
            loss.rows.into(),
            characters.into(),
            loss.mean().into(),
            entropy.map(|entropy| entropy * characters as f64 / loss.rows as f64).into(),
            loss.mean().exp().into(),
            (loss.mean() / LN_2).into(),
            per_character(loss.mean()).into(),
            entropy.map(|entropy| entropy / LN_2).into(),
            loss.accuracy().into(),
        ]);
        self.common.show(&[table])?;
        Ok(Outcome::Done)
    }
}
