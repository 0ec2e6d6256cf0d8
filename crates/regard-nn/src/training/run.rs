//! A training as a whole: its settings, its text, its folder; begun, interrupted at any moment, and resumed.
//!
//! The order of writing makes it so. The checkpoint is the first file of a training, and is replaced whole; the table of steps is
//! written before each checkpoint, so it never has fewer rows than the checkpoint has steps, and what it has more is cut off when the
//! training is resumed.

use super::bootstrap::{RankState, receive_state, send_state};
use super::folder::{FIGURES, LOG, MODEL, ModelFolder, Origin, SUMMARY, TOKENIZER, text_digest, token_digest};
use super::memory::{available_bytes, training_bytes, worker_bytes};
use super::parts::tree_depth;
use super::ranks::{Ranks, SingleRank, Worker};
use super::source::TextSource;
use crate::checkpoint::{Checkpoint, encode};
use crate::config::ModelConfig;
use crate::data::{Target, Text};
use crate::error::{Error, Result};
use crate::layers::pass::MaskKind;
use crate::lm::LanguageModel;
use crate::loss::Loss;
use crate::optim::Adam;
use crate::tokenizer::{Tokenizer, TokenizerKind};
use crate::training::trainer::{StepReport, TextTask, TrainConfig, Trainer, validate};
use std::path::Path;

/// Windows of the validation text that a measurement takes at least.
pub const VALIDATION_WINDOWS: usize = 64;
/// Upper bound that catches typos: 16 GB of parameters, gradients and moments.
pub const MAX_PARAMETERS: usize = 1 << 30;

/// All that decides what a training comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// What is learned.
    pub text: TextSource,
    /// How it is cut into tokens.
    pub tokenizer: TokenizerKind,
    /// The model; its vocabulary follows from text and tokenizer.
    pub model: ModelConfig,
    /// Steps, batches, rates.
    pub train: TrainConfig,
    /// Steps between two measurements of the validation loss.
    pub validate_every: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let train = TrainConfig::default();
        Self {
            text: TextSource::Stories { characters: 1_000_000, seed: train.seed },
            tokenizer: TokenizerKind::Char,
            model: ModelConfig::default(),
            train,
            validate_every: 100,
        }
    }
}

impl Settings {
    /// Those of a training that stopped.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when it does not say them.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let Origin { text, tokenizer, validate_every, .. } = checkpoint.origin()?;
        Ok(Self { text, tokenizer, model: checkpoint.model()?, train: checkpoint.settings()?.clone(), validate_every })
    }
}

/// Where the steps of a training are written down.
pub trait Journal {
    /// A step, and the loss on text that is not learned where it was measured.
    fn push(&mut self, report: &StepReport, validation: Option<f64>);

    /// All steps as a table in CSV; empty for a journal without a file.
    fn to_csv(&self) -> Vec<u8>;
}

/// A training, ready to go on.
#[derive(Debug)]
pub struct Training {
    folder: ModelFolder,
    settings: Settings,
    origin: Origin,
    tokenizer: Tokenizer,
    text: Text,
    model: LanguageModel,
    trainer: Trainer,
}

/// The tokens of a text, and what a checkpoint says about both.
fn tokenized(settings: &Settings, text: &str, tokenizer: &Tokenizer) -> Result<(Vec<u32>, Origin)> {
    let tokens = tokenizer.encode(text)?;
    let origin = Origin {
        text: settings.text.clone(),
        text_sha256: text_digest(text),
        characters: text.chars().count(),
        tokenizer: settings.tokenizer,
        tokens: tokens.len(),
        tokens_sha256: token_digest(&tokens),
        validate_every: settings.validate_every,
    };
    Ok((tokens, origin))
}

/// Can this be held in memory at all?
fn check_size(model: &LanguageModel, train: &TrainConfig, workers: usize) -> Result<()> {
    let parameters = model.layout().len();
    if parameters > MAX_PARAMETERS {
        return Err(Error::TooManyParameters { parameters, most: MAX_PARAMETERS });
    }
    let batch = train.batch / train.pieces();
    // A gradient for each sum of the tree that waits for its other side.
    let tree = 4 * parameters as u128 * tree_depth(train.parts) as u128;
    let (needed, available) = (training_bytes(model.config(), parameters, batch) + tree, available_bytes().unwrap_or(1 << 40));
    if needed > available {
        return Err(Error::Memory { batch, seq: model.config().context, needed, available });
    }
    let others = (workers.max(1) - 1) as u128 * (worker_bytes(model.config(), parameters, batch) + tree);
    if needed + others > available {
        return Err(Error::Workers { workers, needed: needed + others, available });
    }
    Ok(())
}

impl Training {
    /// From first values, in a folder without a model, or one that may be overwritten. Nothing is written yet.
    ///
    /// # Errors
    /// When a setting, the text or the folder cannot be used, or there is not enough memory.
    pub fn begin(folder: &Path, settings: Settings, overwrite: bool) -> Result<Self> {
        settings.model.check()?;
        settings.train.check()?;
        let text = settings.text.read()?;
        // Locked from here on: no other process can put a model there before this one writes.
        let folder = ModelFolder::open(folder, overwrite)?;
        let tokenizer = Tokenizer::train(settings.tokenizer, &text)?;
        let (tokens, origin) = tokenized(&settings, &text, &tokenizer)?;
        let settings = Settings { model: ModelConfig { vocab: tokenizer.vocab(), ..settings.model }, ..settings };
        let text = Text::split(tokens, settings.model.context)?.begun(tokenizer.bos());
        let model = LanguageModel::new(settings.model.clone())?;
        check_size(&model, &settings.train, 1)?;
        let trainer = Trainer::new(model.layout(), settings.train.clone())?;
        Ok(Self { folder, settings, origin, tokenizer, text, model, trainer })
    }

    /// From a checkpoint, with its settings but for the number of steps; `source` has its text.
    ///
    /// # Errors
    /// When text, tokenizer or settings are others than the checkpoint's.
    pub fn resume(folder: ModelFolder, checkpoint: Checkpoint, settings: Settings, source: &TextSource) -> Result<Self> {
        let origin: Origin = checkpoint.origin()?;
        let text = source.read()?;
        if text_digest(&text) != origin.text_sha256 {
            return Err(Error::OtherText { folder: folder.path().to_owned() });
        }
        let mut folder = folder;
        let (tokenizer, tokens) = same_tokens(&mut folder, &settings, &text, &origin)?;
        let text = Text::split(tokens, settings.model.context)?.begun(tokenizer.bos());
        let model = LanguageModel::new(settings.model.clone())?;
        check_size(&model, &settings.train, 1)?;
        let trainer = Trainer::resume(model.layout(), settings.train.clone(), checkpoint)?;
        Ok(Self { folder, settings, origin, tokenizer, text, model, trainer })
    }

    /// Check that this number of workers of this process fits into memory.
    ///
    /// # Errors
    /// [`Error::Workers`].
    pub fn check_workers(&self, workers: usize) -> Result<()> {
        check_size(&self.model, &self.settings.train, workers)
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Text and tokens.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Parameters and steps done.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// Write the first files, the checkpoint before all others: from now on the training can be resumed.
    ///
    /// # Errors
    /// [`Error::Files`].
    pub fn write_first(&mut self, journal: &dyn Journal) -> Result<()> {
        let (trainer, path) = (&self.trainer, self.folder.path().to_owned());
        let mut files = encode(&path.join(MODEL), trainer, trainer.adam(), self.model.config(), &self.origin)?.files(MODEL, SUMMARY, &path);
        files.push((TOKENIZER, self.tokenizer.to_json()?.into_bytes()));
        let log = journal.to_csv();
        if !log.is_empty() {
            files.push((LOG, log));
        }
        self.folder.write(&files)?;
        // Figures of the model that was replaced.
        FIGURES.into_iter().try_for_each(|name| self.folder.remove(name))
    }

    /// Write the figures at the end of the training, in the order of [`FIGURES`].
    ///
    /// # Errors
    /// [`Error::Files`].
    pub fn write_figures(&mut self, figures: [Vec<u8>; 2]) -> Result<()> {
        let files: Vec<_> = FIGURES.into_iter().zip(figures).collect();
        self.folder.write(&files)?;
        self.folder.settle()
    }

    /// Step until all are done or `watch` returns false; write a checkpoint every `checkpoint_every` steps and at the end.
    ///
    /// # Errors
    /// When a file cannot be written, and when loss or gradient are no numbers any more: the state before that step is then saved.
    pub fn run(&mut self, checkpoint_every: u64, journal: &mut dyn Journal, watch: &mut dyn FnMut(&StepReport) -> bool) -> Result<()> {
        let Self { folder, settings, origin, text, model, trainer, .. } = self;
        let mut writer = Writer { folder, settings, origin, text, model, journal, watch };
        steps(&SingleRank, trainer, (model, text), checkpoint_every, &mut writer)
    }

    /// The same with `workers` threads that share the parts of each step, to the same bytes. They stop one step after `watch` returns
    /// false.
    ///
    /// # Errors
    /// As [`Training::run`].
    pub fn run_by_workers(
        &mut self,
        workers: usize,
        checkpoint_every: u64,
        journal: &mut dyn Journal,
        watch: &mut dyn FnMut(&StepReport) -> bool,
    ) -> Result<()> {
        if workers <= 1 {
            return self.run(checkpoint_every, journal, watch);
        }
        let Self { folder, settings, origin, text, model, trainer, .. } = self;
        let (begun, model, text) = (trainer.clone(), &*model, &*text);
        let share = |worker: &Worker| begun.clone().share(worker, &origin.tokens_sha256);
        let mut team = Worker::team(workers).into_iter();
        let first = team.next().expect("there are several");
        std::thread::scope(|scope| {
            // Dropped at the end of this scope, so that no worker waits for it after an error.
            let first = first;
            for worker in team {
                let (rank, builder) = (worker.rank(), std::thread::Builder::new().name("worker".to_owned()));
                // Rank 0 gets an error when a worker fails.
                let work = move || steps(&worker, &mut share(&worker)?, (model, text), checkpoint_every, &mut Other(&mut || true));
                builder.spawn_scoped(scope, work).map_err(|e| Error::Ranks {
                    problem: format!("worker {} of {workers} cannot be started ({e}): give fewer --workers", rank + 1),
                })?;
            }
            *trainer = share(&first)?;
            let mut writer = Writer { folder, settings, origin, text, model, journal, watch };
            steps(&first, trainer, (model, text), checkpoint_every, &mut writer)
        })
    }

    /// The same by ranks, of which this is rank 0. All others [assist], and get their state from it.
    ///
    /// # Errors
    /// As [`Training::run`], and [`Error::Ranks`].
    pub fn run_by(
        &mut self,
        ranks: &dyn Ranks,
        checkpoint_every: u64,
        journal: &mut dyn Journal,
        watch: &mut dyn FnMut(&StepReport) -> bool,
    ) -> Result<()> {
        let Self { folder, settings, origin, text, model, trainer, .. } = self;
        send_state(ranks, (model, text), trainer, checkpoint_every)?;
        *trainer = trainer.clone().share(ranks, &origin.tokens_sha256)?;
        let mut writer = Writer { folder, settings, origin, text, model, journal, watch };
        steps(ranks, trainer, (model, text), checkpoint_every, &mut writer)
    }
}

/// The work of any rank but the first, which [runs](Training::run_by) the training and writes its files. All stop one step after `watch` of
/// any returns false.
///
/// # Errors
/// [`Error::Ranks`], and errors of this rank alone. What all ranks find, such as a loss that is not finite, is an error of rank 0 only.
pub fn assist(ranks: &dyn Ranks, watch: &mut dyn FnMut() -> bool) -> Result<()> {
    let RankState { model, text, trainer, checkpoint_every, tokens_sha256 } = receive_state(ranks)?;
    check_size(&model, trainer.config(), 1)?;
    let mut trainer = trainer.share(ranks, &tokens_sha256)?;
    match steps(ranks, &mut trainer, (&model, &text), checkpoint_every, &mut Other(watch)) {
        Err(Error::Diverged { .. } | Error::Gradient { .. }) => Ok(()),
        ran => ran,
    }
}

/// Hooks of a rank's steps.
trait StepHook {
    /// After each step; false stops the training.
    fn step(&mut self, trainer: &Trainer, report: &StepReport) -> Result<bool>;

    /// Save a checkpoint, with the moments of all ranks.
    fn save(&mut self, trainer: &Trainer, adam: &Adam<f32>) -> Result<()>;
}

/// Rank 0, which writes.
struct Writer<'t> {
    folder: &'t mut ModelFolder,
    settings: &'t Settings,
    origin: &'t Origin,
    text: &'t Text,
    model: &'t LanguageModel,
    journal: &'t mut dyn Journal,
    watch: &'t mut dyn FnMut(&StepReport) -> bool,
}

impl StepHook for Writer<'_> {
    fn step(&mut self, trainer: &Trainer, report: &StepReport) -> Result<bool> {
        let due = report.step.is_multiple_of(self.settings.validate_every) || trainer.finished();
        let validation = due.then(|| validation_loss(self.model, self.text, trainer)).transpose()?;
        self.journal.push(report, validation);
        Ok((self.watch)(report))
    }

    /// First the table, then the checkpoint.
    fn save(&mut self, trainer: &Trainer, adam: &Adam<f32>) -> Result<()> {
        let path = self.folder.path().to_owned();
        let checkpoint = encode(&path.join(MODEL), trainer, adam, self.model.config(), self.origin)?;
        let log = Some(self.journal.to_csv()).filter(|log| !log.is_empty()).map(|log| (LOG, log));
        let files: Vec<_> = log.into_iter().chain(checkpoint.files(MODEL, SUMMARY, &path)).collect();
        self.folder.write(&files)
    }
}

/// Any other rank, which may stop the training.
struct Other<'w>(&'w mut dyn FnMut() -> bool);

impl StepHook for Other<'_> {
    fn step(&mut self, _: &Trainer, _: &StepReport) -> Result<bool> {
        Ok((self.0)())
    }

    fn save(&mut self, _: &Trainer, _: &Adam<f32>) -> Result<()> {
        Ok(())
    }
}

/// The steps of one rank.
fn steps(
    ranks: &dyn Ranks,
    trainer: &mut Trainer,
    (model, text): (&LanguageModel, &Text),
    checkpoint_every: u64,
    hook: &mut dyn StepHook,
) -> Result<()> {
    let save = |trainer: &Trainer, hook: &mut dyn StepHook| match trainer.moments(ranks)? {
        Some(adam) => hook.save(trainer, &adam),
        None => Ok(()),
    };
    let mut task = TextTask::new(model, text, MaskKind::Causal, Target::Next);
    let ran = trainer.run_by(&mut task, ranks, |trainer, report| {
        let on = hook.step(trainer, report)?;
        if report.step % checkpoint_every == 0 && !trainer.finished() {
            save(trainer, hook)?;
        }
        Ok(on)
    });
    // Without the others there is no state to save.
    let saved = if matches!(ran, Err(Error::Ranks { .. })) { Ok(()) } else { save(trainer, hook) };
    // The first error is returned; after one that the state cannot be saved, the last checkpoint stays.
    ran.and(saved)
}

/// The loss on at least [`VALIDATION_WINDOWS`] windows of the validation text, the same ones each time.
fn validation_loss(model: &LanguageModel, text: &Text, trainer: &Trainer) -> Result<f64> {
    let config = trainer.config();
    let count = config.batch / config.pieces();
    let mut loss = Loss::default();
    for group in 0..VALIDATION_WINDOWS.div_ceil(count) as u64 {
        let seed = config.seed.wrapping_add(group);
        loss += validate(model, text, MaskKind::Causal, Target::Next, trainer.params(), count, seed)?;
    }
    Ok(loss.mean())
}

/// The tokenizer of the folder, or one made anew, whichever gives the tokens that the model learns.
fn same_tokens(folder: &mut ModelFolder, settings: &Settings, text: &str, origin: &Origin) -> Result<(Tokenizer, Vec<u32>)> {
    let path = folder.path().join(TOKENIZER);
    if let Ok(tokenizer) = Tokenizer::load(&path)
        && let Ok((tokens, found)) = tokenized(settings, text, &tokenizer)
        && found.tokens_sha256 == origin.tokens_sha256
    {
        return Ok((tokenizer, tokens));
    }
    let tokenizer = Tokenizer::train(settings.tokenizer, text)?;
    let (tokens, found) = tokenized(settings, text, &tokenizer)?;
    if found.tokens_sha256 != origin.tokens_sha256 {
        return Err(Error::OtherTokens { path });
    }
    folder.write(&[(TOKENIZER, tokenizer.to_json()?.into_bytes())])?;
    Ok((tokenizer, tokens))
}
