//! The mask experiment: the same language model trained with masks of different honesty, then judged as it would be used.
//!
//! 1. *Leak probe*, before and after training: tokens that a row must not depend on are changed; how far does its prediction move?
//! 2. *Teacher-forced* training and validation loss: what one usually looks at.
//! 3. *Prefix-only* loss: for each length, only the tokens that would exist. An honest model has the loss of 2.
//! 4. *Placeholder*: the missing future is filled with one token; is that what is predicted?
//! 5. *Sampling* at temperature 1: the share of real words, and the surprise of an n-gram model.

use super::{CurvePoint, Progress, Watch, train_with_curve};
use regard_nn::config::ModelConfig;
use regard_nn::data::{Target, Text, Windows};
use regard_nn::generate::{Sampling, argmax};
use regard_nn::layers::pass::{MaskKind, Pass};
use regard_nn::layers::stack::Keep;
use regard_nn::lm::LanguageModel;
use regard_nn::loss::Loss;
use regard_nn::ngram::NGram;
use regard_nn::random::Draws;
use regard_nn::tokenizer::Tokenizer;
use regard_nn::training::trainer::{TextTask, TrainConfig, Trainer};
use regard_nn::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};

/// A mask with a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// The honest one.
    Causal,
    /// Looks at itself and the future, in which its target stands.
    Reverse,
    /// Looks at the future only.
    StrictlyFuture,
    /// Looks at everything.
    Everything,
    /// Looks at the future except its target.
    SkipNext,
    /// The reverse mask with the previous token as target: honest, from right to left.
    RightToLeft,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Causal, Self::Reverse, Self::StrictlyFuture, Self::Everything, Self::SkipNext, Self::RightToLeft];

    /// Its mask.
    pub const fn mask(self) -> MaskKind {
        match self {
            Self::Causal => MaskKind::Causal,
            Self::Reverse | Self::RightToLeft => MaskKind::Reverse,
            Self::StrictlyFuture => MaskKind::StrictlyFuture,
            Self::Everything => MaskKind::Everything,
            Self::SkipNext => MaskKind::SkipNext,
        }
    }

    /// Its target.
    pub const fn target(self) -> Target {
        if matches!(self, Self::RightToLeft) { Target::Previous } else { Target::Next }
    }

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Causal => "causal",
            Self::Reverse => "reverse",
            Self::StrictlyFuture => "strictly future",
            Self::Everything => "none",
            Self::SkipNext => "future without target",
            Self::RightToLeft => "right to left",
        }
    }
}

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct MasksConfig {
    /// The model; its vocabulary is replaced by the tokenizer's.
    pub model: ModelConfig,
    /// The training of each variant.
    pub train: TrainConfig,
    /// Which variants.
    pub variants: Vec<Variant>,
    /// Validation windows.
    pub windows: usize,
    /// Texts to write.
    pub samples: usize,
    /// Tokens of each.
    pub sample_tokens: usize,
    /// Steps between two points of the training curve.
    pub curve_every: u64,
}

impl Default for MasksConfig {
    fn default() -> Self {
        Self {
            model: ModelConfig::default(),
            train: TrainConfig::default(),
            variants: Variant::ALL.to_vec(),
            windows: 512,
            samples: 32,
            sample_tokens: 256,
            curve_every: 50,
        }
    }
}

/// What simple models reach on the same text, in nats per token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baselines {
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Tokens of the text.
    pub tokens: usize,
    /// Knowing nothing: `ln(vocab)`.
    pub uniform: f64,
    /// Knowing how frequent tokens are.
    pub unigram: f64,
    /// Knowing the token before, on validation.
    pub bigram: f64,
    /// Knowing four tokens before, on validation.
    pub five_gram: f64,
    /// The share of validation words that the training text has.
    pub real_words: f64,
}

/// Texts that a model wrote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// The share of its whole words that the training text has.
    pub real_words: f64,
    /// Whole words written.
    pub words: usize,
    /// Mean surprise of the n-gram model, in nats per token.
    pub surprise: f64,
    /// Different tokens used.
    pub distinct: usize,
    /// What the first text began with.
    pub prompt: String,
    /// What was written after it.
    pub sample: String,
}

/// The result of one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VariantResult {
    /// Which.
    pub variant: Variant,
    /// Total variation of a prediction when hidden tokens change, before training.
    pub leak_before: f64,
    /// The same after training; exactly 0 for an honest mask.
    pub leak: f64,
    /// Training loss over time.
    pub curve: Vec<CurvePoint>,
    /// Validation loss, teacher-forced.
    pub validation: f64,
    /// Its accuracy.
    pub accuracy: f64,
    /// The same at the last position only (of right to left: the first), whose target is not in the window.
    pub last_position: f64,
    /// Validation loss with only the first 1, 2, ... tokens (of right to left: the last).
    pub prefix_only: Vec<f64>,
    /// Their mean.
    pub prefix_only_mean: f64,
    /// Validation loss when a causal mask is put in after training.
    pub causal_swapped_in: f64,
    /// With the future filled by a placeholder: how often the placeholder is predicted, for each one tried.
    pub placeholder: Vec<(String, f64)>,
    /// Written at temperature 1; not from right to left.
    pub sampled: Option<Written>,
    /// Written greedily.
    pub greedy: Option<Written>,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MasksResult {
    /// What simple models reach.
    pub baselines: Baselines,
    /// The variants, in order.
    pub variants: Vec<VariantResult>,
}

/// Sequences that are evaluated together.
const CHUNK: usize = 128;

/// The text, its words and its simple models: what every variant is judged with.
pub struct MaskBench<'b> {
    config: &'b MasksConfig,
    model: LanguageModel,
    text: Text,
    tokenizer: &'b Tokenizer,
    ngram: NGram,
    words: HashSet<&'b str>,
    held_out: &'b str,
}

/// Run the experiment on a text.
///
/// # Errors
/// When the text is too short, or a setting makes no sense.
pub fn masks(config: &MasksConfig, text: &str, tokenizer: &Tokenizer, watch: Watch<'_>) -> Result<MasksResult> {
    let bench = MaskBench::new(config, text, tokenizer)?;
    let variants = config.variants.iter().map(|&variant| bench.variant(variant, config.train.seed, watch)).collect::<Result<_>>()?;
    Ok(MasksResult { baselines: bench.baselines(), variants })
}

impl<'b> MaskBench<'b> {
    /// For a text.
    ///
    /// # Errors
    /// When the text is too short, or a setting makes no sense.
    pub fn new(config: &'b MasksConfig, text: &'b str, tokenizer: &'b Tokenizer) -> Result<Self> {
        let model = LanguageModel::new(ModelConfig { vocab: tokenizer.vocab(), ..config.model.clone() })?;
        if model.config().context < 2 {
            return Err(Error::Config { name: "context", value: model.config().context.to_string(), requirement: "at least 2".to_owned() });
        }
        for (name, value) in [("windows", config.windows), ("samples", config.samples)] {
            if value == 0 {
                return Err(Error::Config { name, value: "0".to_owned(), requirement: "at least 1".to_owned() });
            }
        }
        let tokens = Text::split(tokenizer.encode(text)?, model.config().context)?;
        let cut = text.char_indices().nth(text.chars().count() * 9 / 10).map_or(text.len(), |(i, _)| i);
        let ngram = NGram::new(&tokens.train, tokenizer.vocab());
        let words: HashSet<&str> = text[..cut].split_whitespace().collect();
        Ok(Self { config, model, text: tokens, tokenizer, ngram, words, held_out: &text[cut..] })
    }
}

impl MaskBench<'_> {
    /// What simple models reach.
    pub fn baselines(&self) -> Baselines {
        let vocab = self.tokenizer.vocab();
        let mut counts = vec![0usize; vocab];
        self.text.train.iter().for_each(|&t| counts[t as usize] += 1);
        let total = self.text.train.len() as f64;
        let share = |&c: &usize| if c == 0 { 0.0 } else { -(c as f64 / total) * (c as f64 / total).ln() };
        let held_out = &self.text.validation[..self.text.validation.len().min(20_008)];
        let surprise = |order: usize| {
            let sum: f64 = (8..held_out.len()).map(|i| -self.ngram.probability(&held_out[i + 1 - order..i], held_out[i]).ln()).sum();
            sum / held_out.len().saturating_sub(8).max(1) as f64
        };
        let (real, all) =
            self.held_out.split_whitespace().fold((0, 0), |(r, n): (usize, usize), w| (r + usize::from(self.words.contains(w)), n + 1));
        Baselines {
            vocab,
            tokens: self.text.train.len() + self.text.validation.len(),
            uniform: (vocab as f64).ln(),
            unigram: counts.iter().map(share).sum(),
            bigram: surprise(2),
            five_gram: surprise(5),
            real_words: real as f64 / all.max(1) as f64,
        }
    }

    /// Train one variant with a seed, and judge it.
    ///
    /// # Errors
    /// When a training does not go on.
    pub fn variant(&self, variant: Variant, seed: u64, watch: Watch<'_>) -> Result<VariantResult> {
        let mut task = TextTask::new(&self.model, &self.text, variant.mask(), variant.target());
        let mut trainer = Trainer::new(self.model.layout(), TrainConfig { seed, ..self.config.train.clone() })?;
        let seq = self.model.config().context;
        let windows = Windows::spread(&self.text.validation, self.config.windows, seq, variant.target());
        let leak_before = self.leak(trainer.params(), variant, &windows, seed)?;
        let curve = train_with_curve(variant.name(), &mut trainer, &mut task, self.config.curve_every, watch, |_, _| Ok(()))?;
        let p = trainer.params();
        let (validation, last) = self.teacher_forced(p, variant, variant.mask(), &windows)?;
        let (causal_swapped_in, _) = self.teacher_forced(p, variant, MaskKind::Causal, &windows)?;
        let stage = format!("{}: prefix-only", variant.name());
        let mut prefix_only = Vec::with_capacity(seq);
        for length in 1..=seq {
            watch(&Progress { stage: &stage, step: length as u64, steps: seq as u64, loss: None });
            prefix_only.push(self.prefix_only(p, variant, &windows, length)?);
        }
        let mut written = |temperature: f64| -> Result<Option<Written>> {
            if variant == Variant::RightToLeft {
                Ok(None)
            } else {
                self.written(p, variant, &windows, Sampling { temperature, ..Sampling::default() }, seed, watch).map(Some)
            }
        };
        let (sampled, greedy) = (written(1.0)?, written(0.0)?);
        Ok(VariantResult {
            variant,
            leak_before,
            leak: self.leak(p, variant, &windows, seed)?,
            curve,
            validation: validation.mean(),
            accuracy: validation.accuracy(),
            last_position: last,
            prefix_only_mean: prefix_only.iter().sum::<f64>() / seq as f64,
            prefix_only,
            causal_swapped_in: causal_swapped_in.mean(),
            placeholder: self.placeholders(p, variant, &windows)?,
            sampled,
            greedy,
        })
    }

    /// Logits of row `row` of each sequence of `ids`, whose first token is position `offset`.
    fn row_logits(&self, p: &[f32], mask: MaskKind, ids: &[u32], seq: usize, offset: usize, row: usize) -> Result<Vec<Vec<f32>>> {
        let vocab = self.model.config().vocab;
        let mut rows = Vec::new();
        for ids in ids.chunks(CHUNK * seq) {
            let batch = ids.len() / seq;
            let mut pass = self.model.plan(batch, seq, Keep::Discard);
            self.model.forward(&self.model.weights(p), ids, &Pass { offset, ..Pass::new(batch, seq, mask) }, &mut pass)?;
            rows.extend(pass.logits().chunks_exact(seq * vocab).map(|logits| logits[row * vocab..(row + 1) * vocab].to_vec()));
        }
        Ok(rows)
    }

    /// The loss of whole windows, and at the position whose target is outside of them.
    fn teacher_forced(&self, p: &[f32], variant: Variant, mask: MaskKind, windows: &Windows) -> Result<(Loss, f64)> {
        let seq = self.model.config().context;
        let outside = if variant.target() == Target::Next { seq - 1 } else { 0 };
        let (mut loss, mut last, mut count) = (Loss::default(), 0.0, 0);
        for (ids, targets) in windows.ids.chunks(CHUNK * seq).zip(windows.targets.chunks(CHUNK * seq)) {
            let batch = ids.len() / seq;
            let mut pass = self.model.plan(batch, seq, Keep::Discard);
            loss += self.model.loss(&self.model.weights(p), ids, targets, &Pass::new(batch, seq, mask), &mut pass)?;
            last += pass.row_losses().iter().skip(outside).step_by(seq).sum::<f64>();
            count += batch;
        }
        Ok((loss, last / count.max(1) as f64))
    }

    /// The loss at the end of the first `length` tokens alone; from right to left, at the beginning of the last.
    fn prefix_only(&self, p: &[f32], variant: Variant, windows: &Windows, length: usize) -> Result<f64> {
        let seq = self.model.config().context;
        let (first, row) = if variant.target() == Target::Next { (0, length - 1) } else { (seq - length, 0) };
        let ids: Vec<u32> = windows.ids.chunks_exact(seq).flat_map(|w| &w[first..first + length]).copied().collect();
        let logits = self.row_logits(p, variant.mask(), &ids, length, first, row)?;
        let targets = windows.targets.chunks_exact(seq).map(|w| w[first + row] as usize);
        let loss = |logits: &[f32], target: usize| {
            let max = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
            let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
            sum.ln() - f64::from(logits[target] - max)
        };
        Ok(logits.iter().zip(targets).map(|(l, t)| loss(l, t)).sum::<f64>() / logits.len().max(1) as f64)
    }

    /// The middle row: its number, and which tokens it must not depend on.
    fn middle(&self, variant: Variant) -> (usize, std::ops::Range<usize>) {
        let seq = self.model.config().context;
        if variant.target() == Target::Next { (seq / 2 - 1, seq / 2..seq) } else { (seq / 2, 0..seq / 2) }
    }

    /// The windows with the tokens that the middle row must not depend on replaced.
    fn replaced(&self, windows: &Windows, hidden: &std::ops::Range<usize>, mut by: impl FnMut() -> u32) -> Vec<u32> {
        let mut ids = windows.ids.clone();
        for window in ids.chunks_exact_mut(self.model.config().context) {
            window[hidden.clone()].iter_mut().for_each(|t| *t = by());
        }
        ids
    }

    fn leak(&self, p: &[f32], variant: Variant, windows: &Windows, seed: u64) -> Result<f64> {
        let (seq, vocab) = (self.model.config().context, self.model.config().vocab);
        let (row, hidden) = self.middle(variant);
        let mut draws = Draws::at(seed, &[0x1EA4]);
        let changed = self.replaced(windows, &hidden, || draws.below(vocab) as u32);
        let before = self.row_logits(p, variant.mask(), &windows.ids, seq, 0, row)?;
        let after = self.row_logits(p, variant.mask(), &changed, seq, 0, row)?;
        let sum: f64 =
            before.iter().zip(&after).map(|(a, b)| 0.5 * softmax(a).iter().zip(softmax(b)).map(|(a, b)| (a - b).abs()).sum::<f64>()).sum();
        Ok(sum / before.len().max(1) as f64)
    }

    fn placeholders(&self, p: &[f32], variant: Variant, windows: &Windows) -> Result<Vec<(String, f64)>> {
        let seq = self.model.config().context;
        let (row, hidden) = self.middle(variant);
        let mut shares = Vec::new();
        for text in ["q", "e"] {
            // A tokenizer may not have them as tokens of their own.
            let Ok(&[token]) = self.tokenizer.encode(text).as_deref() else { continue };
            let ids = self.replaced(windows, &hidden, || token);
            let logits = self.row_logits(p, variant.mask(), &ids, seq, 0, row)?;
            let hits = logits.iter().filter(|l| argmax(l) == token as usize).count();
            shares.push((text.to_owned(), hits as f64 / logits.len().max(1) as f64));
        }
        Ok(shares)
    }

    /// Continue the beginnings of windows, with the model's own mask over the last tokens.
    fn written(&self, p: &[f32], variant: Variant, windows: &Windows, sampling: Sampling, seed: u64, watch: Watch<'_>) -> Result<Written> {
        let seq = self.model.config().context;
        let prompt = seq / 2;
        let mut texts: Vec<Vec<u32>> = windows.ids.chunks_exact(seq).take(self.config.samples).map(|w| w[..prompt].to_vec()).collect();
        let mut draws = Draws::at(seed, &[0x3A71]);
        let stage = format!("{}: {}", variant.name(), if sampling.temperature > 0.0 { "sampling" } else { "writing greedily" });
        for step in 1..=self.config.sample_tokens {
            watch(&Progress { stage: &stage, step: step as u64, steps: self.config.sample_tokens as u64, loss: None });
            let length = texts.first().map_or(0, Vec::len).min(seq);
            let ids: Vec<u32> = texts.iter().flat_map(|t| &t[t.len() - length..]).copied().collect();
            let logits = self.row_logits(p, variant.mask(), &ids, length, 0, length - 1)?;
            for (text, logits) in texts.iter_mut().zip(&logits) {
                text.push(sampling.draw(logits, &mut draws)?);
            }
        }
        let (mut real, mut words) = (0, 0);
        for text in &texts {
            let decoded = self.tokenizer.decode(&text[prompt..])?;
            let all: Vec<&str> = decoded.split_whitespace().collect();
            // The first and the last may be cut.
            for word in all.iter().take(all.len().saturating_sub(1)).skip(1) {
                words += 1;
                real += usize::from(self.words.contains(word));
            }
        }
        let surprise = texts.iter().map(|t| self.ngram.surprise(t, prompt)).sum::<f64>() / texts.len().max(1) as f64;
        let distinct = texts.iter().flat_map(|t| &t[prompt..]).collect::<BTreeSet<_>>().len();
        let first = texts.first().map_or((&[][..], &[][..]), |t| t.split_at(prompt));
        let (prompt, sample) = (self.tokenizer.decode(first.0)?, self.tokenizer.decode(first.1)?);
        Ok(Written { real_words: real as f64 / words.max(1) as f64, words, surprise, distinct, prompt, sample })
    }
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    let powers: Vec<f64> = logits.iter().map(|x| f64::from(x - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|x| x / sum).collect()
}
