//! Tasks that need cross-attention: read a sequence, write another one.

use super::{CurvePoint, Watch, train_with_curve};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::layers::stack::Keep;
use crate::loss::{IGNORE, Loss};
use crate::params::Layout;
use crate::random::Draws;
use crate::seq2seq::{EncoderDecoder, PairActivations, Pairs};
use crate::train::{Task, TrainConfig, Trainer};
use ndarray::Array2;
use serde::{Deserialize, Serialize};

/// What is to be learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairKind {
    /// 3 to 12 letters, written backwards.
    #[default]
    Reverse,
    /// A number below a million, written in words.
    NumberWords,
}

const START: u32 = 0;
const END: u32 = 1;
/// The first token that is a letter or a digit.
const FIRST: u32 = 2;
const SHORTEST: usize = 3;
const LONGEST: usize = 12;
const LETTERS: usize = 26;
const DIGITS: usize = 6;
const WORDS: [&str; 30] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
    "hundred",
    "thousand",
];
const HUNDRED: usize = 28;
const THOUSAND: usize = 29;

/// The words of a number below a thousand, by index.
fn below_thousand(n: usize, words: &mut Vec<usize>) {
    if n >= 100 {
        words.extend([n / 100, HUNDRED]);
    }
    let rest = n % 100;
    if rest >= 20 {
        words.push(18 + rest / 10);
        if !rest.is_multiple_of(10) {
            words.push(rest % 10);
        }
    } else if rest > 0 {
        words.push(rest);
    }
}

/// The words of a number below a million, by index.
fn number_words(n: usize) -> Vec<usize> {
    let mut words = Vec::new();
    if n >= 1000 {
        below_thousand(n / 1000, &mut words);
        words.push(THOUSAND);
    }
    below_thousand(n % 1000, &mut words);
    if words.is_empty() {
        words.push(0);
    }
    words
}

impl PairKind {
    /// Tokens of the vocabulary.
    pub const fn vocab(self) -> usize {
        FIRST as usize
            + match self {
                Self::Reverse => LETTERS,
                Self::NumberWords => 10 + WORDS.len(),
            }
    }

    /// The longest sequence of either side, its end included.
    pub const fn context(self) -> usize {
        match self {
            Self::Reverse => LONGEST + 1,
            Self::NumberWords => 12,
        }
    }

    /// What is read, and what is to be written, without start and end.
    fn draw(self, draws: &mut Draws) -> (Vec<u32>, Vec<u32>) {
        match self {
            Self::Reverse => {
                let length = SHORTEST + draws.below(LONGEST - SHORTEST + 1);
                let source: Vec<u32> = (0..length).map(|_| FIRST + draws.below(LETTERS) as u32).collect();
                let target = source.iter().rev().copied().collect();
                (source, target)
            }
            Self::NumberWords => {
                // As many numbers of one digit as of six would never be seen otherwise.
                let digits = 1 + draws.below(DIGITS) as u32;
                let n = draws.below(10usize.pow(digits));
                let source = n.to_string().bytes().map(|b| FIRST + u32::from(b - b'0')).collect();
                (source, number_words(n).into_iter().map(|w| FIRST + 10 + w as u32).collect())
            }
        }
    }

    /// One source in ten is never trained on; those of fewer than four tokens are too few to be spared.
    fn held_out(source: &[u32]) -> bool {
        source.len() > 3 && Draws::at(7, &source.iter().map(|&t| u64::from(t)).collect::<Vec<_>>()).below(10) == 0
    }

    /// Tokens as people read them.
    pub fn show(self, tokens: &[u32]) -> String {
        let one = |&t: &u32| match (t.checked_sub(FIRST), self) {
            (None, _) => String::new(),
            (Some(letter), Self::Reverse) => char::from(b'a' + letter as u8).to_string(),
            (Some(digit @ 0..10), Self::NumberWords) => digit.to_string(),
            (Some(word), Self::NumberWords) => format!("{} ", WORDS[word as usize - 10]),
        };
        tokens.iter().map(one).collect::<String>().trim_end().to_owned()
    }

    /// A batch; of sources that are held out, or of others.
    fn batch(self, size: usize, held_out: bool, draws: &mut Draws) -> Pairs {
        let context = self.context();
        let mut pairs = Pairs { batch: size, ..Pairs::default() };
        while pairs.source_lengths.len() < size {
            let (source, target) = self.draw(draws);
            if Self::held_out(&source) != held_out {
                continue;
            }
            pairs.source_lengths.push(source.len());
            let pad = |mut tokens: Vec<u32>, by: u32| {
                tokens.resize(context, by);
                tokens
            };
            pairs.source.extend(pad(source, END));
            pairs.written.extend(pad([&[START], target.as_slice()].concat(), END));
            pairs.targets.extend(pad([target.as_slice(), &[END]].concat(), IGNORE));
        }
        pairs
    }
}

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct PairsConfig {
    /// Which task.
    pub kind: PairKind,
    /// The model; vocabulary and context follow from the task.
    pub model: ModelConfig,
    /// The training.
    pub train: TrainConfig,
    /// Held-out sources that are written at the end.
    pub held_out: usize,
    /// A point of the curve every so many steps.
    pub curve_every: u64,
}

impl PairsConfig {
    /// Settings that learn the task.
    pub fn new(kind: PairKind) -> Self {
        let train = TrainConfig { steps: 1500, batch: 64, ..TrainConfig::default() };
        Self { kind, model: ModelConfig::default(), train, held_out: 1000, curve_every: 50 }
    }
}

/// One source, and what was made of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Example {
    /// Read.
    pub source: String,
    /// Written.
    pub written: String,
    /// Should have been written.
    pub right: String,
}

/// Cross-attention of one head on one source: rows are written tokens, columns read ones.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossMap {
    /// Decoder block.
    pub layer: usize,
    /// Head.
    pub head: usize,
    /// Weights.
    pub weights: Array2<f32>,
    /// Mean weight on the anti-diagonal (row i, column n - 1 - i).
    pub anti_diagonal: f64,
}

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct PairsResult {
    /// Training loss over time.
    pub curve: Vec<CurvePoint>,
    /// The share of held-out sources whose result is right to the last token.
    pub exact_match: f64,
    /// How many were tried.
    pub held_out: usize,
    /// Some of them; the wrong ones first.
    pub examples: Vec<Example>,
    /// The source that the maps are of.
    pub mapped: String,
    /// What was written of it, token by token, its end included.
    pub mapped_written: Vec<String>,
    /// Cross-attention of all heads on it.
    pub maps: Vec<CrossMap>,
}

struct PairTask<'t> {
    model: &'t EncoderDecoder,
    kind: PairKind,
    pass: Option<PairActivations<f32>>,
}

impl Task for PairTask<'_> {
    fn layout(&self) -> &Layout {
        self.model.layout()
    }

    fn gradient(&mut self, p: &[f32], g: &mut [f32], config: &TrainConfig, step: u64, part: usize) -> Result<Loss> {
        let size = config.batch / config.micro_batches;
        let pairs = self.kind.batch(size, false, &mut Draws::at(config.seed, &[0x9A18, step, part as u64]));
        let dropout = (self.model.config().dropout > 0.0).then(|| Draws::at(config.seed, &[0xD80F, step, part as u64]).bits());
        let pass = self.pass.get_or_insert_with(|| self.model.plan(&pairs, Keep::Tape));
        let counted = pairs.targets.iter().filter(|t| **t != IGNORE).count() * config.micro_batches;
        self.model.loss_and_gradient(&self.model.weights(p), g, &pairs, dropout, counted as f64, pass)
    }
}

/// Learn a task and try it on sources that were never trained on.
///
/// # Errors
/// When a setting makes no sense.
pub fn learn_pairs(config: &PairsConfig, watch: Watch<'_>) -> Result<PairsResult> {
    if config.held_out == 0 {
        return Err(Error::Config { name: "held_out", value: "0".to_owned(), requirement: "at least 1".to_owned() });
    }
    let kind = config.kind;
    let model = EncoderDecoder::new(ModelConfig { vocab: kind.vocab(), context: kind.context(), ..config.model.clone() })?;
    let mut trainer = Trainer::new(model.layout(), config.train.clone())?;
    let mut task = PairTask { model: &model, kind, pass: None };
    let curve = train_with_curve("encoder-decoder", &mut trainer, &mut task, config.curve_every, watch, |_, _| Ok(()))?;
    let p = trainer.params();
    let pairs = kind.batch(config.held_out, true, &mut Draws::at(config.train.seed, &[0x4E1D]));
    let written = model.write(&model.weights(p), &pairs, START, END, kind.context())?;
    let context = kind.context();
    let (mut right, mut examples) = (0, Vec::new());
    for (i, written) in written.iter().enumerate() {
        let targets: Vec<u32> = pairs.targets[i * context..(i + 1) * context].iter().copied().filter(|t| *t != IGNORE).collect();
        let source = &pairs.source[i * context..i * context + pairs.source_lengths[i]];
        let correct = targets == *written;
        right += usize::from(correct);
        examples.push((correct, Example { source: kind.show(source), written: kind.show(written), right: kind.show(&targets) }));
    }
    examples.sort_by_key(|(correct, _)| *correct);
    let (mapped, mapped_written, maps) = maps(&model, p, kind, config.train.seed)?;
    Ok(PairsResult {
        curve,
        exact_match: right as f64 / config.held_out as f64,
        held_out: config.held_out,
        examples: examples.into_iter().map(|(_, e)| e).take(10).collect(),
        mapped,
        mapped_written,
        maps,
    })
}

/// Cross-attention on the longest of some held-out sources.
fn maps(model: &EncoderDecoder, p: &[f32], kind: PairKind, seed: u64) -> Result<(String, Vec<String>, Vec<CrossMap>)> {
    let pairs = kind.batch(64, true, &mut Draws::at(seed, &[0x3A9]));
    let context = kind.context();
    let longest = (0..pairs.batch).max_by_key(|&i| pairs.source_lengths[i]).unwrap_or(0);
    let mut pass = model.plan(&pairs, Keep::Tape);
    model.loss(&model.weights(p), &pairs, &mut pass)?;
    let keys = pairs.source_lengths[longest];
    let targets = &pairs.targets[longest * context..(longest + 1) * context];
    let rows = targets.iter().filter(|t| **t != IGNORE).count();
    let (call, attentions) = model.cross_attentions(&pairs, &pass);
    let mut maps = Vec::new();
    for (layer, (attention, saved)) in attentions.into_iter().enumerate() {
        let weights = attention.weights(&call, saved)?;
        for head in 0..attention.config().heads {
            let weights = Array2::from_shape_fn((rows, keys), |(i, j)| weights[[longest, head, i, j]]);
            let steps = keys.min(rows);
            let anti_diagonal = (0..steps).map(|i| f64::from(weights[[i, keys - 1 - i]])).sum::<f64>() / steps.max(1) as f64;
            maps.push(CrossMap { layer, head, weights, anti_diagonal });
        }
    }
    let source = kind.show(&pairs.source[longest * context..longest * context + keys]);
    let written = targets[..rows].iter().map(|&t| if t == END { "(end)".to_owned() } else { kind.show(&[t]) }).collect();
    Ok((source, written, maps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_say_them() {
        let say = |n| number_words(n).into_iter().map(|w| WORDS[w]).collect::<Vec<_>>().join(" ");
        for (n, words) in [
            (0, "zero"),
            (7, "seven"),
            (13, "thirteen"),
            (20, "twenty"),
            (99, "ninety nine"),
            (100, "one hundred"),
            (415, "four hundred fifteen"),
            (1000, "one thousand"),
            (21_006, "twenty one thousand six"),
            (999_999, "nine hundred ninety nine thousand nine hundred ninety nine"),
        ] {
            assert_eq!(say(n), words);
        }
        assert!((0..1_000_000).step_by(997).chain([777_777]).all(|n| number_words(n).len() < PairKind::NumberWords.context()));
    }

    #[test]
    fn held_out_sources_are_never_trained_on() {
        for kind in [PairKind::Reverse, PairKind::NumberWords] {
            let sources = |held_out| {
                let pairs = kind.batch(500, held_out, &mut Draws::at(1, &[u64::from(held_out)]));
                let rows = pairs.source.chunks(kind.context()).zip(&pairs.source_lengths).map(|(s, &n)| s[..n].to_vec());
                rows.collect::<std::collections::BTreeSet<_>>()
            };
            assert_eq!(sources(true).intersection(&sources(false)).count(), 0);
        }
    }
}
