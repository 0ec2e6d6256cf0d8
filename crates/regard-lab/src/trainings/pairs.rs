//! Tasks that need cross-attention: read a sequence, write another one.

use super::explain::{Explained, explain};
use super::heads::HeadMap;
use super::{CurvePoint, Watch, train_with_curve};
use regard_nn::config::ModelConfig;
use regard_nn::layers::stack::Keep;
use regard_nn::loss::{IGNORE, Loss};
use regard_nn::random::Draws;
use regard_nn::seq2seq::{EncoderDecoder, PairActivations, Pairs};
use regard_nn::tensors::layout::Layout;
use regard_nn::training::trainer::{Task, TrainConfig, Trainer};
use regard_nn::{Error, Result};
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

/// A word by its index, and the digits that it is for: those of its own, by place from the left; none for "hundred" and "thousand".
type Word = (usize, Vec<usize>);

/// The words of a number below a thousand whose last digit stands at `last`.
fn below_thousand(n: usize, last: usize, words: &mut Vec<Word>) {
    if n >= 100 {
        words.extend([(n / 100, vec![last - 2]), (HUNDRED, Vec::new())]);
    }
    let rest = n % 100;
    if rest >= 20 {
        words.push((18 + rest / 10, vec![last - 1]));
        if !rest.is_multiple_of(10) {
            words.push((rest % 10, vec![last]));
        }
    } else if rest > 0 {
        // "thirteen" is for both of its digits.
        words.push((rest, if rest >= 10 { vec![last - 1, last] } else { vec![last] }));
    }
}

/// The words of a number below a million.
fn number_words(n: usize) -> Vec<Word> {
    let (mut words, digits) = (Vec::new(), n.to_string().len());
    if n >= 1000 {
        below_thousand(n / 1000, digits - 4, &mut words);
        words.push((THOUSAND, Vec::new()));
    }
    below_thousand(n % 1000, digits - 1, &mut words);
    if words.is_empty() {
        words.push((0, vec![0]));
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
                (source, number_words(n).into_iter().map(|(w, _)| FIRST + 10 + w as u32).collect())
            }
        }
    }

    /// One source in ten is never trained on; those of fewer than four tokens are too few to be spared.
    fn held_out(source: &[u32]) -> bool {
        source.len() > 3 && Draws::at(7, &source.iter().map(|&t| u64::from(t)).collect::<Vec<_>>()).below(10) == 0
    }

    /// The read tokens that each written one is for, row by row; none for the end, and for words that no digit names.
    pub(super) fn places(self, pairs: &Pairs, pair: usize) -> Vec<Vec<usize>> {
        let (context, length) = (self.context(), pairs.source_lengths[pair]);
        let source = &pairs.source[pair * context..pair * context + length];
        match self {
            Self::Reverse => (0..length).rev().map(|j| vec![j]).collect(),
            Self::NumberWords => {
                let n = source.iter().fold(0, |n, &t| 10 * n + (t - FIRST) as usize);
                number_words(n).into_iter().map(|(_, places)| places).collect()
            }
        }
    }

    /// Another letter or digit than this one.
    pub(super) fn another(self, token: u32, draws: &mut Draws) -> u32 {
        let count = if self == Self::Reverse { LETTERS } else { 10 };
        FIRST + (token - FIRST + 1 + draws.below(count - 1) as u32) % count as u32
    }

    /// The first pairs of a batch.
    pub(super) fn first(self, pairs: &Pairs, count: usize) -> Pairs {
        let (batch, context) = (pairs.batch.min(count), self.context());
        let part = |tokens: &[u32]| tokens[..batch * context].to_vec();
        Pairs {
            batch,
            source: part(&pairs.source),
            source_lengths: pairs.source_lengths[..batch].to_vec(),
            written: part(&pairs.written),
            targets: part(&pairs.targets),
        }
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
    /// Steps between two points of the curve.
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

/// What came out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Cross-attention of all heads on it: rows are written tokens, columns read ones.
    pub maps: Vec<HeadMap>,
    /// Whether its weights explain anything.
    pub explained: Explained,
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

    fn gradient(&mut self, p: &[f32], g: &mut [f32], config: &TrainConfig, step: u64, piece: usize) -> Result<Loss> {
        let size = config.batch / config.pieces();
        let pairs = self.kind.batch(size, false, &mut Draws::at(config.seed, &[0x9A18, step, piece as u64]));
        let dropout = (self.model.config().dropout > 0.0).then(|| Draws::at(config.seed, &[0xD80F, step, piece as u64]).bits());
        let pass = self.pass.get_or_insert_with(|| self.model.plan(&pairs, Keep::Tape));
        let counted = pairs.targets.iter().filter(|t| **t != IGNORE).count() * config.pieces();
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
    let shown = longest(kind, config.train.seed);
    let (mapped, mapped_written, maps) = maps(&model, p, kind, &shown)?;
    let explained = explain(&model, p, kind, &kind.first(&pairs, EXPLAINED), &shown, config.train.seed)?;
    Ok(PairsResult {
        curve,
        exact_match: right as f64 / config.held_out as f64,
        held_out: config.held_out,
        examples: examples.into_iter().map(|(_, e)| e).take(10).collect(),
        mapped,
        mapped_written,
        maps,
        explained,
    })
}

/// Held-out sources whose cross-attention is operated on.
const EXPLAINED: usize = 256;

/// The longest of some held-out sources.
fn longest(kind: PairKind, seed: u64) -> Pairs {
    let pairs = kind.batch(64, true, &mut Draws::at(seed, &[0x3A9]));
    let longest = (0..pairs.batch).max_by_key(|&i| pairs.source_lengths[i]).unwrap_or(0);
    let here = longest * kind.context()..(longest + 1) * kind.context();
    Pairs {
        batch: 1,
        source: pairs.source[here.clone()].to_vec(),
        source_lengths: vec![pairs.source_lengths[longest]],
        written: pairs.written[here.clone()].to_vec(),
        targets: pairs.targets[here].to_vec(),
    }
}

/// Cross-attention on one source, and its tokens.
fn maps(model: &EncoderDecoder, p: &[f32], kind: PairKind, pairs: &Pairs) -> Result<(String, Vec<String>, Vec<HeadMap>)> {
    let mut pass = model.plan(pairs, Keep::Tape);
    model.loss(&model.weights(p), pairs, &mut pass)?;
    let cols = pairs.source_lengths[0];
    let rows = pairs.targets.iter().filter(|t| **t != IGNORE).count();
    let (call, attentions) = model.cross_attentions(pairs, &pass);
    let mut maps = Vec::new();
    for (layer, (attention, saved)) in attentions.into_iter().enumerate() {
        let weights = attention.weights(&call, saved)?;
        for head in 0..attention.config().heads {
            let weights = (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))).map(|(i, j)| weights[[0, head, i, j]]).collect();
            maps.push(HeadMap { layer, head, rows, cols, weights });
        }
    }
    let written = pairs.targets[..rows].iter().map(|&t| if t == END { "(end)".to_owned() } else { kind.show(&[t]) }).collect();
    Ok((kind.show(&pairs.source[..cols]), written, maps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_say_them() {
        let say = |n| number_words(n).into_iter().map(|(w, _)| WORDS[w]).collect::<Vec<_>>().join(" ");
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
    fn a_word_is_for_the_digits_that_it_names() {
        let places = |n| number_words(n).into_iter().map(|(_, places)| places).collect::<Vec<_>>();
        assert_eq!(places(0), [vec![0]]);
        // four hundred fifteen
        assert_eq!(places(415), [vec![0], vec![], vec![1, 2]]);
        // twenty one thousand six
        assert_eq!(places(21_006), [vec![0], vec![1], vec![], vec![4]]);
        // nine hundred ninety nine thousand nine hundred ninety nine
        let nines = [vec![0], vec![], vec![1], vec![2], vec![], vec![3], vec![], vec![4], vec![5]];
        assert_eq!(places(999_999), nines);
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
