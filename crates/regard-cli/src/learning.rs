//! The arguments of the experiments that train.

use crate::common::{Common, Out, Outcome, Sizes};
use crate::experiments::experiment;
use anyhow::Result;
use clap::Args;
use regard_lab::experiments::{
    LearningConfig, LearningText, MaskTrainingConfig, PairTask, PairTasksConfig, ScaleTrainingConfig, TrainedHeadsConfig, Variant,
    read_text, task_name, variant_name,
};
use std::path::PathBuf;
use std::str::FromStr;

/// Text, model and training.
#[derive(Args, Debug)]
pub(crate) struct Learning {
    /// Learn this text (UTF-8; - is the standard input), character by character [default: a million characters of Regard's own stories, whose entropy is known]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Windows of text in a step
    #[arg(long, default_value_t = 32, value_name = "N")]
    batch: usize,
    /// Tokens that the model sees at once
    #[arg(long, default_value_t = 64, value_name = "N")]
    context: usize,
    /// Width of the model
    #[arg(long, default_value_t = 64, value_name = "N")]
    width: usize,
    /// Heads of each block
    #[arg(long, default_value_t = 4, value_name = "N")]
    heads: usize,
    /// Blocks
    #[arg(long, default_value_t = 2, value_name = "N")]
    layers: usize,
    /// Of first values and windows
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Learning {
    fn config(&self, steps: u64, windows: usize) -> Result<LearningConfig> {
        let text = match &self.text {
            None => LearningText::Stories,
            Some(path) => LearningText::Given { name: path.display().to_string(), content: read_text(path)? },
        };
        Ok(LearningConfig {
            text,
            steps,
            batch: self.batch,
            context: self.context,
            width: self.width,
            heads: self.heads,
            layers: self.layers,
            windows,
            seed: self.seed,
        })
    }
}

/// A list of names, each once.
fn named<T: Copy + PartialEq>(text: &str, what: &str, all: &[T], name: impl Fn(T) -> String) -> Result<Vec<T>, String> {
    let mut found = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let known = || all.iter().map(|&one| name(one)).collect::<Vec<_>>().join(", ");
        let one = all.iter().copied().find(|&one| name(one) == item);
        let one = one.ok_or_else(|| format!("there is no {what} {item:?}; there are {}", known()))?;
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Ok(found)
}

#[derive(Debug, Clone)]
struct Variants(Vec<Variant>);

impl FromStr for Variants {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(text, "variant", &Variant::ALL, variant_name).map(Self)
    }
}

#[derive(Debug, Clone)]
struct Tasks(Vec<PairTask>);

impl FromStr for Tasks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = if text == "both" { "reverse,number-words" } else { text };
        named(text, "task", &[PairTask::Reverse, PairTask::NumberWords], |task| task_name(task).to_owned()).map(Self)
    }
}

/// Train the same language model under six masks: who cheats, and how it shows
///
/// A model that sees the token it must predict looks perfect in training and in validation alike, because both hand it the future; it fails
/// when it must write. Five steps find that out: a leak probe (change what must not matter), the usual loss, the loss from the prefix alone, a
/// placeholder for the future, and writing. Variants: causal, reverse, strictly-future, none, future-without-target, right-to-left (the reverse mask
/// with the target that fits it). Writes mask_training.csv and four tables that it rests on.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard masks                                             all six on Regard's stories\n  regard masks --variants causal,reverse --steps 200       a first look\n  regard masks --text book.txt --out masks-of-a-book       your own text"
)]
pub(crate) struct Masks {
    /// Which masks, in this order
    #[arg(long, default_value = "causal,reverse,strictly-future,none,future-without-target,right-to-left", value_name = "LIST")]
    variants: Variants,
    /// Steps of training of each
    #[arg(long, default_value_t = 1000, value_name = "N")]
    steps: u64,
    #[command(flatten)]
    learning: Learning,
    /// Validation windows that each model is judged by
    #[arg(long, default_value_t = 512, value_name = "N")]
    windows: usize,
    /// Texts that each model writes
    #[arg(long, default_value_t = 32, value_name = "N")]
    samples: usize,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Masks {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = MaskTrainingConfig {
            learning: self.learning.config(self.steps, self.windows)?,
            variants: self.variants.0,
            samples: self.samples,
        };
        experiment("masks", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// Train the same language model with and without 1/sqrt(d_k), at several head sizes
///
/// Loss curves, entropy and saturation of every head over time, and the norms of the gradients on queries, keys and values: what the scale does for
/// a model that learns, and what learning makes up for without it. Writes scale_training.csv and three tables that it rests on.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard ablate-scale                              head sizes 4, 16, 64, 256\n  regard ablate-scale --head-dims 16,512 --steps 300"
)]
pub(crate) struct AblateScale {
    /// Widths of a head, each up to 1024
    #[arg(long, default_value = "4,16,64,256", value_name = "LIST")]
    head_dims: Sizes,
    /// Steps of training of each
    #[arg(long, default_value_t = 500, value_name = "N")]
    steps: u64,
    #[command(flatten)]
    learning: Learning,
    /// Validation windows that each model is looked at with
    #[arg(long, default_value_t = 64, value_name = "N")]
    windows: usize,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl AblateScale {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = ScaleTrainingConfig { learning: self.learning.config(self.steps, self.windows)?, head_dims: self.head_dims.0 };
        experiment("ablate-scale", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// Do heads learn different patterns? Their statistics and likeness while a model learns
///
/// For every head over time: entropy, largest weight, and how much it looks at itself, the token before and the first token. For every block: how
/// alike its heads are, by centred cosine and Jensen-Shannon divergence. (`regard heads` asks the same of untrained heads.)
/// Writes trained_heads.csv and trained_heads_likeness.csv.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  regard trained-heads\n  regard trained-heads --heads 8 --layers 4 --steps 3000 --text book.txt")]
pub(crate) struct TrainedHeads {
    /// Steps of training
    #[arg(long, default_value_t = 1000, value_name = "N")]
    steps: u64,
    #[command(flatten)]
    learning: Learning,
    /// Validation windows that heads are looked at with
    #[arg(long, default_value_t = 64, value_name = "N")]
    windows: usize,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl TrainedHeads {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = TrainedHeadsConfig { learning: self.learning.config(self.steps, self.windows)? };
        experiment("trained-heads", &self.common, &self.out, |progress| config.run(progress))
    }
}

/// Learn tasks that need cross-attention: words backwards, numbers in words
///
/// An encoder-decoder reads one sequence and writes another, and is tried on inputs that it was never trained on. To write a word backwards, each
/// written letter must look at one read letter: cross-attention becomes the anti-diagonal, and the figure shows it token by token.
/// Writes pairs_results.csv and five tables that it rests on.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  regard pairs                        both tasks\n  regard pairs --task reverse         one of them\n  regard pairs --task number-words --steps 500 --held-out 5000"
)]
pub(crate) struct Pairs {
    /// reverse, number-words, or both
    #[arg(long, default_value = "reverse,number-words", value_name = "LIST")]
    task: Tasks,
    /// Steps of training
    #[arg(long, default_value_t = 1500, value_name = "N")]
    steps: u64,
    /// Pairs in a step
    #[arg(long, default_value_t = 64, value_name = "N")]
    batch: usize,
    /// Width of the model
    #[arg(long, default_value_t = 64, value_name = "N")]
    width: usize,
    /// Heads of each block
    #[arg(long, default_value_t = 4, value_name = "N")]
    heads: usize,
    /// Blocks on each side
    #[arg(long, default_value_t = 2, value_name = "N")]
    layers: usize,
    /// Inputs, never trained on, that are tried at the end
    #[arg(long, default_value_t = 1000, value_name = "N")]
    held_out: usize,
    /// Of first values and pairs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Pairs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let config = PairTasksConfig {
            tasks: self.task.0,
            steps: self.steps,
            batch: self.batch,
            width: self.width,
            heads: self.heads,
            layers: self.layers,
            held_out: self.held_out,
            seed: self.seed,
        };
        experiment("pairs", &self.common, &self.out, |progress| config.run(progress))
    }
}
