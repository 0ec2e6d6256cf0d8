//! The same language model trained under six masks, then judged as it would be used.
//!
//! Five steps: a leak probe, the teacher-forced loss, the loss from the prefix alone, a placeholder for the future, and writing.

use super::MaskTraining;
use crate::error::{Error, Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, LearningConfig, SeedsConfig, brief, every, quoted};
use crate::options::named;
use crate::rows::{self, Row};
use crate::trainings::masks::{Baselines, MaskBench, MasksConfig, VariantResult};
use clap::Args;
use regard_nn::data::Target;
use regard_nn::layers::pass::MaskKind;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_plot::{Table, Value};
use serde::{Serialize, Serializer};

pub use crate::trainings::masks::Variant;

/// Train the same language model under six masks, and detect those that leak the target
///
/// A model that sees the token it must predict looks perfect in training and in validation alike, because both hand it the future; it fails
/// when it must write. Five steps find that out: a leak probe (change what must not matter), the usual loss, the loss from the prefix
/// alone, a placeholder for the future, and writing. Variants: causal, reverse, strictly-future, none, future-without-target,
/// right-to-left (the reverse mask with the target that fits it). Writes mask_training.csv and four tables that it rests on.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(
    after_help = "Examples:\n  regard lab mask-training                                         all six on Regard's stories\n  regard \
         lab mask-training --variants causal,reverse --steps 200   a first look\n  regard lab mask-training --text book.txt --out \
         masks-of-a-book   your own text"
)]
pub struct MaskTrainingConfig {
    /// Which masks, in this order
    #[arg(
        long,
        value_parser = variants,
        default_value = "causal,reverse,strictly-future,none,future-without-target,right-to-left",
        value_name = "LIST"
    )]
    #[serde(serialize_with = "variant_names")]
    pub variants: ::std::vec::Vec<Variant>,
    /// Steps of training of each
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub steps: u64,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Validation windows that each model is judged by
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub windows: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
    /// Texts that each model writes
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub samples: usize,
}

impl Default for MaskTrainingConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Characters that each text has.
const SAMPLE_TOKENS: usize = 256;
/// Characters of a text that a table shows.
const SHOWN: usize = 120;

fn variants(text: &str) -> std::result::Result<Vec<Variant>, String> {
    named(text, "variant", &Variant::ALL, variant_name)
}

fn variant_names<S: Serializer>(variants: &[Variant], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(variants.iter().map(|&variant| variant_name(variant)))
}

/// The name of a variant on a command line.
pub fn variant_name(variant: Variant) -> String {
    variant.name().replace(' ', "-")
}

/// Which keys a query sees.
const fn sees(variant: Variant) -> &'static str {
    match variant.mask() {
        MaskKind::Causal => "j <= i",
        MaskKind::Reverse => "j >= i",
        MaskKind::StrictlyFuture => "j > i",
        MaskKind::Everything => "every j",
        MaskKind::SkipNext => "j = i or j > i + 1",
    }
}

const fn predicts(variant: Variant) -> &'static str {
    match variant.target() {
        Target::Next => "token i + 1",
        Target::Previous => "token i - 1",
    }
}

impl MaskTrainingConfig {
    /// Progress steps of a run.
    pub(super) fn work(&self) -> u64 {
        (self.variants.len() * self.seeds.seeds) as u64 * self.work_of_one()
    }

    fn work_of_one(&self) -> u64 {
        self.steps + self.learning.context as u64 + 2 * SAMPLE_TOKENS as u64
    }

    fn check(&self) -> Result<()> {
        self.learning.check(self.steps, self.windows)?;
        self.seeds.check()?;
        require((1..=1000).contains(&self.samples), "samples", self.samples, "from 1 to 1000")?;
        if self.variants.is_empty() {
            return Err(Error::EmptyList { name: "variants", example: "causal,reverse" });
        }
        Ok(())
    }

    /// `mask_training`, the outcome of each variant; `mask_training_curves`; `mask_training_prefix`, the loss by the length of the prefix;
    /// `mask_training_baselines`; `mask_training_samples`.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let learning = &self.learning;
        let config = MasksConfig {
            model: learning.model(1),
            train: learning.train(self.steps, self.seeds.seed),
            variants: self.variants.clone(),
            windows: self.windows,
            samples: self.samples,
            sample_tokens: SAMPLE_TOKENS,
            curve_every: every(self.steps, 20),
        };
        let text = learning.content()?;
        let tokenizer = Tokenizer::train(TokenizerKind::Char, &text)?;
        let bench = MaskBench::new(&config, &text, &tokenizer)?;
        let jobs = self.seeds.jobs(&self.variants, self.work_of_one(), |variant| variant.name().to_owned());
        let results = Jobs::new(progress, MaskTraining::ID, self, &text)
            .run(&jobs, |&(variant, seed), watch| Ok(bench.variant(variant, seed, watch)?))?;
        let runs: Vec<Run> = jobs.iter().zip(results).map(|(job, result)| Run { seed: job.what.1, result }).collect();
        let tables = vec![
            outcome(&runs),
            paired(&runs),
            each(&runs),
            curves(&runs),
            prefixes(&runs),
            baselines(&bench.baselines(), learning.entropy()),
            samples(&runs),
        ];
        Ok(signed(tables, &origin::<MaskTraining>(self, self.seeds.seed, &learning.describe(&text))?))
    }
}

/// One training.
struct Run {
    seed: u64,
    result: VariantResult,
}

/// Variants in the order of the first seed, each with its trainings in the order of the seeds.
fn by_variant(runs: &[Run]) -> Vec<(Variant, Vec<&Run>)> {
    let mut all: Vec<(Variant, Vec<&Run>)> = Vec::new();
    for run in runs {
        match all.iter_mut().find(|(variant, _)| *variant == run.result.variant) {
            Some((_, runs)) => runs.push(run),
            None => all.push((run.result.variant, vec![run])),
        }
    }
    all
}

/// What is measured of every training: its name, its title, and how it is had.
type Measure = (&'static str, &'static str, fn(&VariantResult) -> Option<f64>);

fn placeholder(v: &VariantResult, text: &str) -> Option<f64> {
    v.placeholder.iter().find(|(name, _)| name == text).map(|(_, share)| *share)
}

/// A causal mask shows a right-to-left model its targets: nothing is judged by that.
fn swapped(v: &VariantResult) -> Option<f64> {
    (v.variant.target() == Target::Next).then_some(v.causal_swapped_in)
}

const MEASURES: [Measure; 14] = [
    ("train_loss", "training loss", |v| v.curve.last().map(|point| point.loss)),
    ("validation_loss", "validation loss", |v| Some(v.validation)),
    ("accuracy", "accuracy", |v| Some(v.accuracy)),
    ("last_position_loss", "loss where the target is outside the window", |v| Some(v.last_position)),
    ("prefix_only_loss", "loss from the prefix alone", |v| Some(v.prefix_only_mean)),
    ("causal_mask_loss", "loss with a causal mask put in", swapped),
    ("leak_before", "leak before training", |v| Some(v.leak_before)),
    ("leak", "leak after training", |v| Some(v.leak)),
    ("placeholder_q", "predicts the placeholder q", |v| placeholder(v, "q")),
    ("placeholder_e", "predicts the placeholder e", |v| placeholder(v, "e")),
    ("real_words", "real words written", |v| v.sampled.as_ref().map(|w| w.real_words)),
    ("surprise", "surprise of a 5-gram (nats)", |v| v.sampled.as_ref().map(|w| w.surprise)),
    ("greedy_real_words", "real words, greedily", |v| v.greedy.as_ref().map(|w| w.real_words)),
    ("greedy_distinct", "different characters, greedily", |v| v.greedy.as_ref().map(|w| w.distinct as f64)),
];

/// Those of them that lie between 0 and 1.
const SHARES: [&str; 7] = ["accuracy", "leak_before", "leak", "placeholder_q", "placeholder_e", "real_words", "greedy_real_words"];

/// A measure of several trainings; nothing where one of them has none.
fn sample(runs: &[&Run], f: fn(&VariantResult) -> Option<f64>) -> Option<Vec<f64>> {
    runs.iter().map(|run| f(&run.result)).collect()
}

fn outcome(runs: &[Run]) -> Table {
    let estimates: Vec<(String, &str)> = MEASURES.iter().map(|(name, title, _)| (format!("~{name}"), *title)).collect();
    let mut columns = vec![("variant", "mask"), ("sees", "query i sees key j where"), ("predicts", "and predicts"), ("seeds", "trainings")];
    columns.extend(estimates.iter().map(|(name, title)| (name.as_str(), *title)));
    let caption = "Six masks, judged as trained (validation) and as used (prefix alone, writing): means over trainings";
    let mut table = rows::table("mask_training", caption, &columns);
    for (variant, runs) in by_variant(runs) {
        let mut row = Row::default().of(variant.name()).of(sees(variant)).of(predicts(variant)).of(runs.len());
        for (name, _, f) in MEASURES {
            row = match sample(&runs, f) {
                Some(sample) if SHARES.contains(&name) => row.share(&sample),
                Some(sample) => row.mean(&sample),
                None => row.maybe(None),
            };
        }
        row.put(&mut table);
    }
    table
}

/// Each variant against the causal one of the same seed.
fn paired(runs: &[Run]) -> Table {
    let columns = [
        ("variant", "mask"),
        ("measure", "measure"),
        ("seeds", "pairs"),
        ("~difference", "difference to the causal mask, same seed"),
        ("same_sign", "pairs with the sign of the mean"),
    ];
    let mut table = rows::table("mask_training_paired", "Against the causal mask, seed by seed", &columns);
    let all = by_variant(runs);
    let Some((_, causal)) = all.iter().find(|(variant, _)| *variant == Variant::Causal) else { return table };
    for (variant, runs) in all.iter().filter(|(variant, _)| *variant != Variant::Causal) {
        for (name, _, f) in MEASURES.into_iter().filter(|(name, ..)| ["validation_loss", "prefix_only_loss", "real_words"].contains(name)) {
            let (Some(here), Some(there)) = (sample(runs, f), sample(causal, f)) else { continue };
            Row::default().of(variant.name()).of(name).of(here.len()).paired(&here, &there).put(&mut table);
        }
    }
    table
}

/// Seed by seed.
fn each(runs: &[Run]) -> Table {
    let named = MEASURES.map(|(name, title, _)| (name, title));
    let columns: Vec<_> = [("variant", "mask"), ("seed", "seed")].into_iter().chain(named).collect();
    let mut table = Table::new("mask_training_seeds", "Every training by itself", &columns);
    for run in runs {
        let numbers = MEASURES.map(|(_, _, f)| f(&run.result).map_or(Value::Missing, brief));
        Row::default().of(run.result.variant.name()).of(run.seed as usize).all(numbers).put(&mut table);
    }
    table
}

fn curves(runs: &[Run]) -> Table {
    let columns = [("variant", "mask"), ("step", "step"), ("~loss", "training loss (nats per token)")];
    let mut table = rows::table("mask_training_curves", "Training loss, the mean since the point before, over trainings", &columns);
    for (variant, runs) in by_variant(runs) {
        for (at, point) in runs[0].result.curve.iter().enumerate() {
            let sample: Vec<f64> = runs.iter().filter_map(|run| run.result.curve.get(at)).map(|point| point.loss).collect();
            Row::default().of(variant.name()).of(point.step as usize).mean(&sample).put(&mut table);
        }
    }
    table
}

fn prefixes(runs: &[Run]) -> Table {
    let columns = [("variant", "mask"), ("length", "tokens of the prefix"), ("~loss", "validation loss (nats per token)")];
    let caption = "Validation loss when the model is given only the first tokens of a window (from right to left: the last)";
    let mut table = rows::table("mask_training_prefix", caption, &columns);
    for (variant, runs) in by_variant(runs) {
        for at in 0..runs[0].result.prefix_only.len() {
            let sample: Vec<f64> = runs.iter().map(|run| run.result.prefix_only[at]).collect();
            Row::default().of(variant.name()).of(at + 1).mean(&sample).put(&mut table);
        }
    }
    table
}

fn baselines(baselines: &Baselines, entropy: Option<f64>) -> Table {
    let columns = [("name", "name"), ("value", "value"), ("meaning", "meaning")];
    let caption = "Losses of simple models on the same text";
    let caption = if entropy.is_some() { format!("{caption}, and its entropy") } else { caption.to_owned() };
    let mut table = Table::new("mask_training_baselines", &caption, &columns);
    let mut add = |name: &str, value: Value, meaning: &str| table.push(vec![name.into(), value, meaning.into()]);
    add("vocab", baselines.vocab.into(), "different characters");
    add("tokens", baselines.tokens.into(), "characters of the text; the last tenth is for validation");
    add("uniform", baselines.uniform.into(), "loss of knowing nothing: ln(vocab)");
    add("unigram", baselines.unigram.into(), "loss of knowing how frequent characters are");
    add("bigram", baselines.bigram.into(), "loss of knowing the character before");
    add("five_gram", baselines.five_gram.into(), "loss of knowing four characters before");
    if let Some(entropy) = entropy {
        add("entropy", entropy.into(), "entropy per character of the text's grammar: the floor");
    }
    add("real_words", baselines.real_words.into(), "share of the validation text's words that the training text has");
    table
}

/// Of the first seed.
fn samples(runs: &[Run]) -> Table {
    let columns = [
        ("variant", "mask"),
        ("seed", "seed"),
        ("temperature", "temperature"),
        ("real_words", "real words of this training"),
        ("surprise", "surprise of a 5-gram (nats)"),
        ("distinct", "different characters"),
        ("prompt", "given"),
        ("written", "written"),
    ];
    let caption = format!("What one training of each writes: {SHOWN} characters");
    let mut table = Table::new("mask_training_samples", &caption, &columns);
    for (variant, runs) in by_variant(runs) {
        for (temperature, written) in [(1usize, &runs[0].result.sampled), (0, &runs[0].result.greedy)] {
            let Some(written) = written else { continue };
            table.push(vec![
                variant.name().into(),
                (runs[0].seed as usize).into(),
                temperature.into(),
                written.real_words.into(),
                written.surprise.into(),
                written.distinct.into(),
                quoted(&written.prompt, SHOWN).into(),
                quoted(&written.sample, SHOWN).into(),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainings::CurvePoint;
    use crate::trainings::masks::Written;

    #[test]
    fn every_number_of_a_variant_stands_in_its_column() {
        let written = |real_words: f64, surprise: f64, distinct: usize| {
            let (prompt, sample) = ("given".to_owned(), format!("written {distinct}"));
            Some(Written { real_words, words: 7, surprise, distinct, prompt, sample })
        };
        let variant = VariantResult {
            variant: Variant::Reverse,
            leak_before: 1.0,
            leak: 2.0,
            curve: vec![CurvePoint { step: 1, loss: 30.0 }, CurvePoint { step: 50, loss: 3.0 }],
            validation: 4.0,
            accuracy: 5.0,
            last_position: 6.0,
            prefix_only: vec![70.0, 71.0],
            prefix_only_mean: 7.0,
            causal_swapped_in: 8.0,
            placeholder: vec![("e".to_owned(), 9.0), ("q".to_owned(), 10.0)],
            sampled: written(11.0, 12.0, 13),
            greedy: written(14.0, 15.0, 16),
        };
        let right_to_left = VariantResult { variant: Variant::RightToLeft, sampled: None, greedy: None, ..variant.clone() };
        let both = [variant, right_to_left].map(|result| Run { seed: 1, result });
        let table = outcome(&both);
        for (column, value) in [
            ("train_loss", 3.0),
            ("validation_loss", 4.0),
            ("accuracy", 1.0),
            ("last_position_loss", 6.0),
            ("prefix_only_loss", 7.0),
            ("causal_mask_loss", 8.0),
            ("leak_before", 1.0),
            ("leak", 1.0),
            ("placeholder_q", 1.0),
            ("placeholder_e", 1.0),
            ("real_words", 1.0),
            ("surprise", 12.0),
            ("greedy_real_words", 1.0),
            ("greedy_distinct", 16.0),
        ] {
            assert_eq!(table.number(&table.rows[0], column), value, "{column}");
        }
        assert_eq!(["variant", "sees", "predicts"].map(|c| table.text(&table.rows[0], c)), ["reverse", "j >= i", "token i + 1"]);
        assert_eq!(["variant", "sees", "predicts"].map(|c| table.text(&table.rows[1], c)), ["right to left", "j >= i", "token i - 1"]);
        for column in ["causal_mask_loss", "real_words", "surprise", "greedy_real_words", "greedy_distinct"] {
            assert_eq!(*table.value(&table.rows[1], column), Value::Missing, "{column}");
        }
        let texts = samples(&both);
        let row = |i: usize| ["temperature", "real_words", "surprise", "distinct"].map(|column| texts.number(&texts.rows[i], column));
        assert_eq!((row(0), row(1), texts.rows.len()), ([1.0, 11.0, 12.0, 13.0], [0.0, 14.0, 15.0, 16.0], 2));
        let seeds = each(&both);
        assert_eq!(["seed", "train_loss", "greedy_distinct"].map(|c| seeds.number(&seeds.rows[0], c)), [1.0, 3.0, 16.0]);
        let shown = ["prompt", "written"].map(|column| texts.text(&texts.rows[1], column));
        assert_eq!(shown, ["\u{201c}given\u{201d}", "\u{201c}written 16\u{201d}"]);
        let prefix = prefixes(&both);
        assert_eq!(["length", "loss"].map(|column| prefix.number(&prefix.rows[1], column)), [2.0, 71.0]);
    }
}
