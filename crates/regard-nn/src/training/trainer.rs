//! Training, step by step, deterministic: what a step does depends on the seed, the step's number and the state, so a run that is
//! taken up from a checkpoint ends with the bits of one that was never stopped.

use crate::checkpoint::Checkpoint;
use crate::data::{Target, Text, Windows};
use crate::error::{Error, Result};
use crate::layers::stack::Keep;
use crate::lm::{LanguageModel, LmActivations};
use crate::look::{MaskKind, Pass};
use crate::loss::Loss;
use crate::optim::{Adam, OptimConfig, norm};
use crate::parallel::in_pool;
use crate::params::Layout;
use crate::random::Draws;
use serde::{Deserialize, Serialize};

/// How to train.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Steps in all.
    pub steps: u64,
    /// Sequences of a step.
    pub batch: usize,
    /// A step's sequences are computed in so many parts, one after the other, to save memory; divides `batch`.
    pub micro_batches: usize,
    /// The seed of first values, windows and dropout.
    pub seed: u64,
    /// The optimiser.
    pub optim: OptimConfig,
    /// Share of windows that are random tokens, said again and again.
    pub repeats: f64,
    /// In so many first steps all windows are such, and only tokens that can be looked up count.
    pub repeats_first: u64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self { steps: 1000, batch: 32, micro_batches: 1, seed: 1, optim: OptimConfig::default(), repeats: 0.0, repeats_first: 0 }
    }
}

impl TrainConfig {
    /// Do the numbers make sense?
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<()> {
        if self.batch == 0 {
            return Err(Error::Config { name: "batch", value: "0".to_owned(), requirement: "at least 1".to_owned() });
        }
        if self.micro_batches == 0 || !self.batch.is_multiple_of(self.micro_batches) {
            let requirement = format!("a divisor of batch ({})", self.batch);
            return Err(Error::Config { name: "micro_batches", value: self.micro_batches.to_string(), requirement });
        }
        if !(0.0..=1.0).contains(&self.repeats) {
            let requirement = "a share, from 0 to 1".to_owned();
            return Err(Error::Config { name: "repeats", value: self.repeats.to_string(), requirement });
        }
        self.optim.check()
    }
}

/// Something that has a loss and a gradient.
pub trait Task: Send {
    /// Its parameters.
    fn layout(&self) -> &Layout;

    /// The loss of part `part` of step `step` (from 1), its gradient added to `g`. Over all parts of a step the gradient is that of
    /// the mean loss.
    ///
    /// # Errors
    /// When data and model do not fit together.
    fn gradient(&mut self, p: &[f32], g: &mut [f32], config: &TrainConfig, step: u64, part: usize) -> Result<Loss>;
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// From 1.
    pub step: u64,
    /// Mean loss of the step's tokens, before its update.
    pub loss: f64,
    /// Share of targets that were the likeliest.
    pub accuracy: f64,
    /// The gradient's norm before clipping.
    pub gradient_norm: f64,
    /// The learning rate.
    pub rate: f64,
    /// Tokens that counted.
    pub tokens: usize,
}

/// A training under way: parameters, moments, the step.
#[derive(Debug, Clone)]
pub struct Trainer {
    config: TrainConfig,
    layout: Layout,
    params: Vec<f32>,
    gradient: Vec<f32>,
    adam: Adam<f32>,
    step: u64,
}

impl Trainer {
    /// From first values.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(layout: &Layout, config: TrainConfig) -> Result<Self> {
        config.check()?;
        let count = layout.len();
        let params = layout.init(config.seed);
        Ok(Self { config, layout: layout.clone(), params, gradient: vec![0.0; count], adam: Adam::new(count), step: 0 })
    }

    /// From where a checkpoint stopped. Its settings must be the same, but `steps` may be another number.
    ///
    /// # Errors
    /// When the checkpoint is of another model or training.
    pub fn resume(layout: &Layout, config: TrainConfig, checkpoint: Checkpoint) -> Result<Self> {
        checkpoint.check_training(&config)?;
        let mut trainer = Self::new(layout, config)?;
        let (params, adam, step) = checkpoint.into_state(layout)?;
        trainer.params = params;
        trainer.adam = adam;
        trainer.step = step;
        Ok(trainer)
    }

    /// The settings.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// The parameters now.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// The moments now.
    pub fn adam(&self) -> &Adam<f32> {
        &self.adam
    }

    /// Tensors and their names.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Steps done.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// All steps are done.
    pub fn finished(&self) -> bool {
        self.step >= self.config.steps
    }

    /// One step.
    ///
    /// # Errors
    /// When data and model do not fit together, or the loss or the gradient is no number any more; the parameters are then as before the step.
    pub fn advance(&mut self, task: &mut dyn Task) -> Result<StepReport> {
        in_pool(|| self.one_step(task))
    }

    fn one_step(&mut self, task: &mut dyn Task) -> Result<StepReport> {
        let step = self.step + 1;
        let mut loss = Loss::default();
        self.gradient.fill(0.0);
        for part in 0..self.config.micro_batches {
            loss += task.gradient(&self.params, &mut self.gradient, &self.config, step, part)?;
        }
        if !loss.mean().is_finite() {
            return Err(Error::Diverged { step, loss: loss.mean() });
        }
        let gradient_norm = norm(&self.gradient);
        if !gradient_norm.is_finite() {
            return Err(Error::Gradient { step, norm: gradient_norm });
        }
        let rate = self.config.optim.rate_at(step, self.config.steps);
        self.adam.update(&self.config.optim, &self.layout, &mut self.params, &mut self.gradient, gradient_norm, step, rate);
        self.step = step;
        Ok(StepReport { step, loss: loss.mean(), accuracy: loss.accuracy(), gradient_norm, rate, tokens: loss.rows })
    }

    /// Step until all are done or `watch` returns false: the one loop of every training.
    ///
    /// # Errors
    /// As [`Trainer::advance`], and what `watch` says.
    pub fn run(&mut self, task: &mut dyn Task, mut watch: impl FnMut(&Self, &StepReport) -> Result<bool>) -> Result<()> {
        while !self.finished() {
            let report = self.advance(task)?;
            if !watch(self, &report)? {
                break;
            }
        }
        Ok(())
    }
}

/// Where windows are drawn.
const WINDOWS: u64 = 0x817D;
/// Where sequences that are said again are drawn.
const REPEATS: u64 = 0x2E9E;
/// Where dropout is drawn.
const DROPOUT: u64 = 0xD80F;

/// A language model that learns a text.
#[derive(Debug)]
pub struct TextTask<'t> {
    model: &'t LanguageModel,
    text: &'t Text,
    mask: MaskKind,
    target: Target,
    pass: Option<LmActivations<f32>>,
}

impl<'t> TextTask<'t> {
    /// Next tokens with a causal mask, if nothing else is said.
    pub fn new(model: &'t LanguageModel, text: &'t Text, mask: MaskKind, target: Target) -> Self {
        Self { model, text, mask, target, pass: None }
    }

    /// The pass of the last step, for those who want to look inside.
    pub fn last_pass(&self) -> Option<&LmActivations<f32>> {
        self.pass.as_ref()
    }

    /// The loss on `count` validation windows that depend on the seed only.
    ///
    /// # Errors
    /// When text and model do not fit together.
    pub fn validate(&self, p: &[f32], count: usize, seed: u64) -> Result<Loss> {
        validate(self.model, self.text, self.mask, self.target, p, count, seed)
    }
}

/// The loss on `count` validation windows that depend on the seed only.
///
/// # Errors
/// When text and model do not fit together.
pub fn validate(model: &LanguageModel, text: &Text, mask: MaskKind, target: Target, p: &[f32], count: usize, seed: u64) -> Result<Loss> {
    let seq = model.config().context;
    let windows = Windows::draw(&text.validation, count, seq, target, &mut Draws::at(seed, &[0x7A11])).begun(text.bos, seq);
    let mut pass = model.plan(count, seq, Keep::Discard);
    model.loss(&model.weights(p), &windows.ids, &windows.targets, &Pass::new(count, seq, mask), &mut pass)
}

impl Task for TextTask<'_> {
    fn layout(&self) -> &Layout {
        self.model.layout()
    }

    fn gradient(&mut self, p: &[f32], g: &mut [f32], config: &TrainConfig, step: u64, part: usize) -> Result<Loss> {
        let (seq, size) = (self.model.config().context, config.batch / config.micro_batches);
        // One draw per window: those of the parts before are passed over.
        let mut draws = Draws::at(config.seed, &[WINDOWS, step]).skip((part * size) as u64);
        let mut windows = Windows::draw(&self.text.train, size, seq, self.target, &mut draws).begun(self.text.bos, seq);
        let first = step <= config.repeats_first;
        let share = if first { 1.0 } else { config.repeats };
        if share > 0.0 {
            let draws = |window: usize| Draws::at(config.seed, &[REPEATS, step, (part * size + window) as u64]);
            windows.repeat(share, first, seq, self.model.config().vocab, self.text.bos, draws);
        }
        let dropout = (self.model.config().dropout > 0.0).then(|| Draws::at(config.seed, &[DROPOUT, step, part as u64]).bits());
        let call = Pass { dropout, ..Pass::new(size, seq, self.mask) };
        let mut pass =
            self.pass.take().filter(|pass| pass.shape() == (size, seq)).unwrap_or_else(|| self.model.plan(size, seq, Keep::Tape));
        let counted = (config.batch * seq) as f64;
        let loss = self.model.loss_and_gradient(&self.model.weights(p), g, &windows.ids, &windows.targets, &call, counted, &mut pass);
        self.pass = Some(pass);
        loss
    }
}
