//! Training, step by step, deterministic: what a step does depends on the seed, the step's number and the state, so a run that is
//! taken up from a checkpoint ends with the bits of one that was never stopped.

use crate::checkpoint::Checkpoint;
use crate::data::{Target, Text, Windows};
use crate::error::{Error, Result};
use crate::layers::pass::{MaskKind, Pass};
use crate::layers::stack::Keep;
use crate::lm::{LanguageModel, LmActivations};
use crate::loss::Loss;
use crate::optim::{Adam, OptimConfig, norm_of, sums_of_squares};
use crate::parallel::in_pool;
use crate::random::Draws;
use crate::tensors::layout::Layout;
use crate::training::parts::{self, chunks, slice};
use crate::training::ranks::{Message, Ranks, SingleRank, Stage, agree, copy_floats, others, receive, words};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// How to train.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Steps in all.
    pub steps: u64,
    /// Sequences of a step.
    pub batch: usize,
    /// A step's sequences (those of each part, where there are several) are computed in this number of pieces, one after the other, to save
    /// memory; divides `batch`.
    pub micro_batches: usize,
    /// The number of parts of a step, whose gradients start at zero and are added up in a fixed tree: any number of ranks may share them,
    /// with the same bits. With `micro_batches` it divides `batch`.
    // Not written where it is 1: checkpoints without parts have the bytes that they had before there were any.
    #[serde(skip_serializing_if = "is_one")]
    pub parts: usize,
    /// The seed of first values, windows and dropout.
    pub seed: u64,
    /// The optimiser.
    pub optim: OptimConfig,
    /// Share of windows that repeat a segment of random tokens.
    pub repeats: f64,
    /// The number of first steps in which all windows repeat, and only repeated tokens count.
    pub repeats_first: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by serde")]
fn is_one(x: &usize) -> bool {
    *x == 1
}

impl Default for TrainConfig {
    fn default() -> Self {
        let optim = OptimConfig::default();
        Self { steps: 1000, batch: 32, micro_batches: 1, parts: 1, seed: 1, optim, repeats: 0.0, repeats_first: 0 }
    }
}

impl TrainConfig {
    /// Whether the settings are valid.
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
        if self.parts == 0 || !(self.batch / self.micro_batches).is_multiple_of(self.parts) {
            let requirement = format!("a divisor of batch / micro_batches ({})", self.batch / self.micro_batches);
            return Err(Error::Config { name: "parts", value: self.parts.to_string(), requirement });
        }
        if !(0.0..=1.0).contains(&self.repeats) {
            let requirement = "a share, from 0 to 1".to_owned();
            return Err(Error::Config { name: "repeats", value: self.repeats.to_string(), requirement });
        }
        self.optim.check()
    }

    /// What a step's sequences are computed in.
    pub fn pieces(&self) -> usize {
        self.parts * self.micro_batches
    }
}

/// Something that has a loss and a gradient.
pub trait Task: Send {
    /// Its parameters.
    fn layout(&self) -> &Layout;

    /// The loss of piece `piece` of step `step` (from 1), its gradient added to `g`. Over all [pieces](TrainConfig::pieces) of a step the
    /// gradient is that of the mean loss.
    ///
    /// # Errors
    /// When data and model do not fit together.
    fn gradient(&mut self, p: &[f32], g: &mut [f32], config: &TrainConfig, step: u64, piece: usize) -> Result<Loss>;
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// From 1.
    pub step: u64,
    /// Mean loss of the step's tokens, before its update.
    pub loss: f64,
    /// Share of targets that were the most likely token.
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
    /// Sums of the tree that are not in `gradient`.
    spare: Vec<Vec<f32>>,
    adam: Adam<f32>,
    step: u64,
}

impl Trainer {
    /// From first values.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(layout: &Layout, config: TrainConfig) -> Result<Self> {
        let state = (layout.init(config.seed), Adam::new(layout.len()), 0);
        Self::at(layout, config, state)
    }

    /// From where a checkpoint stopped. Its settings must be the same, but `steps` may be another number.
    ///
    /// # Errors
    /// When the checkpoint is of another model or training.
    pub fn resume(layout: &Layout, config: TrainConfig, checkpoint: Checkpoint) -> Result<Self> {
        checkpoint.check_training(&config)?;
        Self::at(layout, config, checkpoint.into_state(layout)?)
    }

    /// In this state: parameters, moments, and steps done.
    pub(crate) fn at(layout: &Layout, config: TrainConfig, (params, adam, step): (Vec<f32>, Adam<f32>, u64)) -> Result<Self> {
        config.check()?;
        let gradient = vec![0.0; layout.len()];
        Ok(Self { config, layout: layout.clone(), params, gradient, spare: Vec::new(), adam, step })
    }

    /// The settings.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// The parameters now.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// The moments now; of this rank's slice, where a training is [shared](Trainer::share).
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

    /// One of the ranks that share this training: each has made it with the same settings, or of the same checkpoint, and keeps the moments
    /// of its slice.
    ///
    /// # Errors
    /// [`Error::Ranks`] when they have not: `about` is what else is to be the same.
    pub fn share(mut self, ranks: &dyn Ranks, about: &str) -> Result<Self> {
        let mut hasher = regard_files::Hasher::new();
        [&self.params, &self.adam.first, &self.adam.second].iter().for_each(|x| hasher.update(bytemuck::cast_slice::<f32, u8>(x)));
        let digest = &hasher.finish()[..16];
        let settings = serde_json::to_string(&self.config).unwrap_or_default();
        // AVX2 and AVX-512 have the same bits.
        let portable = regard_simd::Level::preferred_or_panic() == regard_simd::Level::Portable;
        let level = if portable { "the portable level" } else { "vectors" };
        let version = env!("CARGO_PKG_VERSION");
        agree(ranks, self.step, &format!("step {} of {settings}, state {digest}, {about}, {level}, version {version}", self.step))?;
        let slice = slice(self.params.len(), ranks.ranks(), ranks.rank());
        let [first, second] = [&self.adam.first, &self.adam.second].map(|x| x[slice.clone()].to_vec());
        self.adam = Adam { start: slice.start, first, second };
        Ok(self)
    }

    /// The moments of all slices, on rank 0: a call of all ranks.
    ///
    /// # Errors
    /// [`Error::Ranks`].
    pub fn moments(&self, ranks: &dyn Ranks) -> Result<Option<Cow<'_, Adam<f32>>>> {
        if ranks.ranks() == 1 {
            return Ok(Some(Cow::Borrowed(&self.adam)));
        }
        let (step, what) = (self.step, || format!("the moments of step {}", self.step));
        let Adam { first, second, .. } = &self.adam;
        if ranks.rank() > 0 {
            return Message::new(step, Stage::Moments).floats(first).floats(second).send(ranks, 0, &what).map(|()| None);
        }
        let mut whole = Adam::new(self.params.len());
        whole.first[..first.len()].copy_from_slice(first);
        whole.second[..second.len()].copy_from_slice(second);
        for from in others(ranks) {
            let slice = slice(self.params.len(), ranks.ranks(), from);
            let bytes = receive(ranks, from, (step, Stage::Moments), Some(8 * slice.len()), &what)?;
            let (first, second) = bytes.split_at(4 * slice.len());
            copy_floats(first, &mut whole.first[slice.clone()]);
            copy_floats(second, &mut whole.second[slice]);
        }
        Ok(Some(Cow::Owned(whole)))
    }

    /// One step.
    ///
    /// # Errors
    /// When data and model do not fit together, or the loss or the gradient is no number any more; the parameters are then as before the
    /// step.
    pub fn advance(&mut self, task: &mut dyn Task) -> Result<StepReport> {
        self.advance_by(task, &SingleRank, false).map(|(report, _)| report)
    }

    /// One step, whose parts the ranks [share](Trainer::share): all of them make this call, and have the same report and parameters
    /// afterwards, which are those of [`Trainer::advance`]. Returned with it is whether some rank said `stop`.
    ///
    /// # Errors
    /// As [`Trainer::advance`], on all ranks; and [`Error::Ranks`].
    pub fn advance_by(&mut self, task: &mut dyn Task, ranks: &dyn Ranks, stop: bool) -> Result<(StepReport, bool)> {
        let step = self.step + 1;
        let losses = parts::gradient(task, (&self.config, step), &self.params, &mut self.gradient, &mut self.spare, ranks)?;
        let mut loss = Loss::default();
        losses.into_iter().for_each(|piece| loss += piece);
        if !loss.mean().is_finite() {
            return Err(Error::Diverged { step, loss: loss.mean() });
        }
        let slice = slice(self.params.len(), ranks.ranks(), ranks.rank());
        let sums = in_pool(|| sums_of_squares(&self.gradient[slice.clone()]));
        let (sums, stop) = all_sums(ranks, step, self.params.len(), sums, stop)?;
        let gradient_norm = norm_of(&sums);
        if !gradient_norm.is_finite() {
            return Err(Error::Gradient { step, norm: gradient_norm });
        }
        let rate = self.config.optim.rate_at(step, self.config.steps);
        let Self { config, layout, params, gradient, adam, .. } = self;
        let (p, g) = (&mut params[slice.clone()], &mut gradient[slice.clone()]);
        in_pool(|| adam.update(&config.optim, layout, p, g, gradient_norm, step, rate));
        all_weights(ranks, step, params)?;
        self.step = step;
        Ok((StepReport { step, loss: loss.mean(), accuracy: loss.accuracy(), gradient_norm, rate, tokens: loss.rows }, stop))
    }

    /// Step until all are done or `watch` returns false: the one loop of every training.
    ///
    /// # Errors
    /// As [`Trainer::advance`], and what `watch` says.
    pub fn run(&mut self, task: &mut dyn Task, watch: impl FnMut(&Self, &StepReport) -> Result<bool>) -> Result<()> {
        self.run_by(task, &SingleRank, watch)
    }

    /// The same by ranks that [share](Trainer::share) it. All of them stop after the same step: the next one, when `watch` of any returns
    /// false.
    ///
    /// # Errors
    /// As [`Trainer::advance_by`], and what `watch` says.
    pub fn run_by(
        &mut self,
        task: &mut dyn Task,
        ranks: &dyn Ranks,
        mut watch: impl FnMut(&Self, &StepReport) -> Result<bool>,
    ) -> Result<()> {
        let (mut wish, mut stopped) = (false, false);
        while !(self.finished() || stopped) {
            let (report, all) = self.advance_by(task, ranks, wish)?;
            wish = !watch(self, &report)?;
            stopped = all || wish && ranks.ranks() == 1;
        }
        Ok(())
    }
}

/// The sums of squares of all slices, and whether a rank requests a stop.
fn all_sums(ranks: &dyn Ranks, step: u64, parameters: usize, mine: Vec<f64>, stop: bool) -> Result<(Vec<f64>, bool)> {
    if ranks.ranks() == 1 {
        return Ok((mine, stop));
    }
    let what = || format!("the norm of the gradient of step {step}");
    for to in others(ranks) {
        let message = Message::new(step, Stage::Squares).bytes(&u64::from(stop).to_le_bytes());
        message.bytes(bytemuck::cast_slice(&mine)).send(ranks, to, &what)?;
    }
    let (mut sums, mut stop) = (Vec::new(), stop);
    for from in 0..ranks.ranks() {
        if from == ranks.rank() {
            sums.extend_from_slice(&mine);
            continue;
        }
        let count = chunks(&slice(parameters, ranks.ranks(), from));
        let bytes = receive(ranks, from, (step, Stage::Squares), Some(8 + 8 * count), &what)?;
        let mut words = words(&bytes);
        stop |= words.next() == Some(1);
        sums.extend(words.map(f64::from_bits));
    }
    Ok((sums, stop))
}

/// Every rank gets the new weights of every other's slice.
fn all_weights(ranks: &dyn Ranks, step: u64, params: &mut [f32]) -> Result<()> {
    let of = |rank: usize| slice(params.len(), ranks.ranks(), rank);
    let (mine, what) = (of(ranks.rank()), |from: usize| format!("parameters {:?} of step {step}", of(from)));
    for to in others(ranks) {
        Message::new(step, Stage::Weights).floats(&params[mine.clone()]).send(ranks, to, &|| what(to))?;
    }
    let slices: Vec<_> = others(ranks).map(|from| (from, of(from))).collect();
    let messages = slices.iter().map(|(from, slice)| receive(ranks, *from, (step, Stage::Weights), Some(4 * slice.len()), &|| what(*from)));
    let messages = messages.collect::<Result<Vec<_>>>()?;
    slices.into_iter().zip(messages).for_each(|((_, slice), bytes)| copy_floats(&bytes, &mut params[slice]));
    Ok(())
}

/// Where windows are drawn.
const WINDOWS: u64 = 0x817D;
/// Random stream of the repeated segments.
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
    /// Next-token prediction with a causal mask by default.
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

    fn gradient(&mut self, p: &[f32], g: &mut [f32], config: &TrainConfig, step: u64, piece: usize) -> Result<Loss> {
        let (seq, size) = (self.model.config().context, config.batch / config.pieces());
        // One draw per window: those of the pieces before are passed over.
        let mut draws = Draws::at(config.seed, &[WINDOWS, step]).skip((piece * size) as u64);
        let mut windows = Windows::draw(&self.text.train, size, seq, self.target, &mut draws).begun(self.text.bos, seq);
        let first = step <= config.repeats_first;
        let share = if first { 1.0 } else { config.repeats };
        if share > 0.0 {
            let draws = |window: usize| Draws::at(config.seed, &[REPEATS, step, (piece * size + window) as u64]);
            windows.repeat(share, first, seq, self.model.config().vocab, self.text.bos, draws);
        }
        let dropout = (self.model.config().dropout > 0.0).then(|| Draws::at(config.seed, &[DROPOUT, step, piece as u64]).bits());
        let call = Pass { dropout, ..Pass::new(size, seq, self.mask) };
        let mut pass =
            self.pass.take().filter(|pass| pass.shape() == (size, seq)).unwrap_or_else(|| self.model.plan(size, seq, Keep::Tape));
        let counted = (config.batch * seq) as f64;
        let loss = self.model.loss_and_gradient(&self.model.weights(p), g, &windows.ids, &windows.targets, &call, counted, &mut pass);
        self.pass = Some(pass);
        loss
    }
}
