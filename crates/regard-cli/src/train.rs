//! `regard train`: a language model from a text, in steps that can be interrupted at any moment.
//!
//! The order of writing makes it so. The checkpoint is the first file of a training, and is replaced whole; the table of steps is
//! written before each checkpoint, so it never has fewer rows than the checkpoint has steps, and what it has more is cut off when the
//! training is taken up again.

use crate::common::{Common, Outcome, Unusable};
use crate::model_folder::{FIGURES, FILES, LOG, MODEL, Origin, TOKENIZER, read_checkpoint, remove_half_written, text_digest, token_digest};
use crate::progress::Bar;
use crate::train_settings::{SettingArgs, Settings};
use crate::training_log::TrainingLog;
use anyhow::{Context, Result};
use clap::Args;
use regard_lab::experiments::Progress;
use regard_lab::{Folder, Table};
use regard_nn::checkpoint::{Checkpoint, save_with};
use regard_nn::data::{Target, Text};
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::train::{TextTask, Trainer};
use regard_nn::{LanguageModel, Loss, MaskKind, ModelConfig};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Train a language model on a text, or on stories of our own whose entropy is known
///
/// A decoder-only transformer learns to predict the next token. Without --text it learns small stories that a grammar writes: then the
/// entropy of the text is known exactly, and is shown as the floor below which no loss can stay.
///
/// Writes into the model's folder: model.safetensors (parameters and the optimiser's state: all that is needed to go on), model.json (the
/// settings, for people), tokenizer.json, training.csv (one row per step), and at the end training.svg and training.png. The bytes do
/// not depend on the number of threads or on interruptions.
///
/// Ctrl-C finishes the step, saves and stops; a second Ctrl-C stops at once. After a crash at most the steps since the last checkpoint
/// are lost. --resume goes on in both cases, to the same bytes as a training that was never stopped.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard train                                              stories, a small model, into the folder model
  regard train --text book.txt --tokenizer bpe:1024 --width 128 --layers 4 --heads 8 --context 128 --out book
  regard train --positions rotary --norm rms --mlp swiglu --kv-heads 2 --tied --out modern
  regard train --resume --out book                          go on where it was stopped
  regard train --resume --out book --steps 5000             go on beyond the last step
Then:
  regard eval model
  regard generate model --prompt \"Anna and Ben\"")]
pub(crate) struct Train {
    /// The model's folder; made where it is not there
    #[arg(long, default_value = "model", value_name = "DIR")]
    out: PathBuf,
    /// Go on from the last checkpoint in the folder, with its settings and its text
    #[arg(long)]
    resume: bool,
    /// Replace the model that is in the folder
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Write a checkpoint every so many steps, and at the end
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
    #[command(flatten)]
    settings: SettingArgs,
    #[command(flatten)]
    common: Common,
}

/// Windows of the validation text that a measurement takes at least.
const VALIDATION_WINDOWS: usize = 64;
/// From so many bytes on a tokenizer is not made in an instant.
const LONG_TEXT: usize = 1 << 20;
/// More than this is a slip of the finger: 16 GB of parameters, gradients and moments; 8 GB of logits.
const MAX_PARAMETERS: usize = 1 << 30;
const MAX_LOGITS: usize = 1 << 31;

/// A training, ready to go on.
struct Training {
    folder: PathBuf,
    /// Nobody else writes there meanwhile.
    _held: Folder,
    settings: Settings,
    origin: Origin,
    tokenizer: Tokenizer,
    text: Text,
    model: LanguageModel,
    trainer: Trainer,
    log: TrainingLog,
}

fn refuse<T>(message: String) -> Result<T> {
    Err(Unusable(message).into())
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
fn check_size(model: &LanguageModel, settings: &Settings) -> Result<()> {
    let parameters = model.layout().len();
    if parameters > MAX_PARAMETERS {
        return refuse(format!("the model has {parameters} parameters, at most {MAX_PARAMETERS} are possible: make it smaller"));
    }
    let (batch, config) = (settings.train.batch / settings.train.micro_batches, model.config());
    let logits = batch.saturating_mul(config.context).saturating_mul(config.vocab);
    if logits > MAX_LOGITS {
        return refuse(format!("a step of {batch} x {} tokens is too large for memory: give more --micro-batches", config.context));
    }
    Ok(())
}

impl Training {
    /// From first values; nothing is written yet.
    fn begin(folder: &Path, settings: Settings, overwrite: bool, bar: &Bar) -> Result<Self> {
        if !overwrite && let Some(name) = FILES.iter().find(|name| folder.join(name).exists()) {
            let shown = folder.display();
            return if *name == MODEL {
                refuse(format!("{shown} has a model already: go on with --resume, replace it with --overwrite, or choose another --out"))
            } else {
                refuse(format!("{shown} has a file {name} already: move it, replace it with --overwrite, or choose another --out"))
            };
        }
        settings.model.check()?;
        settings.train.check()?;
        let text = settings.text.read()?;
        let held = Folder::open(folder, "train")?;
        remove_half_written(folder);
        if settings.tokenizer != TokenizerKind::Char && text.len() > LONG_TEXT {
            bar.note("making the tokenizer ...");
        }
        let tokenizer = Tokenizer::train(settings.tokenizer, &text)?;
        let (tokens, origin) = tokenized(&settings, &text, &tokenizer)?;
        let settings = Settings { model: ModelConfig { vocab: tokenizer.vocab(), ..settings.model }, ..settings };
        let text = Text::split(tokens, settings.model.context)?;
        let model = LanguageModel::new(settings.model.clone())?;
        check_size(&model, &settings)?;
        let trainer = Trainer::new(model.layout(), settings.train.clone())?;
        let log = TrainingLog::new(&settings.command(), origin.floor())?;
        Ok(Self { folder: folder.to_owned(), _held: held, settings, origin, tokenizer, text, model, trainer, log })
    }

    /// From the checkpoint.
    fn take_up(folder: &Path, said: &SettingArgs) -> Result<Self> {
        let checkpoint = read_checkpoint(folder)?;
        let settings = settled(folder, said, &checkpoint)?;
        let origin: Origin = checkpoint.origin()?;
        let source = said.applied_to(settings.clone()).text;
        let text = source.read()?;
        if text_digest(&text) != origin.text_sha256 {
            let shown = folder.display();
            return refuse(format!("the text is not the one that the model in {shown} learns: give that one with --text, or train anew"));
        }
        let held = Folder::open(folder, "train")?;
        remove_half_written(folder);
        let (tokenizer, tokens) = same_tokens(folder, &settings, &text, &origin)?;
        let text = Text::split(tokens, settings.model.context)?;
        let model = LanguageModel::new(settings.model.clone())?;
        check_size(&model, &settings)?;
        let trainer = Trainer::resume(model.layout(), settings.train.clone(), checkpoint)?;
        let mut log = TrainingLog::new(&settings.command(), origin.floor())?;
        if !log.take_over(folder, trainer.step()) {
            eprintln!("warning: {LOG} has not all {} steps that were done; it begins anew", trainer.step());
        }
        Ok(Self { folder: folder.to_owned(), _held: held, settings, origin, tokenizer, text, model, trainer, log })
    }

    /// The first files, the checkpoint before all: from now on there is something to resume.
    fn write_first(&self) -> Result<()> {
        self.save()?;
        self.tokenizer.save(&self.folder.join(TOKENIZER))?;
        self.log.write(&self.folder)?;
        for name in FIGURES {
            // Of the model that was replaced.
            let _ = std::fs::remove_file(self.folder.join(name));
        }
        Ok(())
    }

    fn save(&self) -> Result<()> {
        Ok(save_with(&self.folder.join(MODEL), &self.trainer, self.model.config(), &self.origin)?)
    }

    /// First the table, then the checkpoint.
    fn write(&self) -> Result<()> {
        self.log.write(&self.folder)?;
        self.save()
    }

    /// Step until all are done, or `stop`.
    fn run(&mut self, checkpoint_every: u64, stop: &AtomicBool, bar: &Bar) -> Result<Rate> {
        let (mut rate, mut task) = (Rate::begin(), TextTask::new(&self.model, &self.text, MaskKind::Causal, Target::Next));
        bar.expect(self.settings.train.steps.saturating_sub(self.trainer.step()));
        while !self.trainer.finished() && !stop.load(Ordering::Relaxed) {
            let report = self.trainer.advance(&mut task)?;
            let due = report.step % self.settings.validate_every == 0 || self.trainer.finished();
            let validation = due.then(|| validate(&mut task, &self.trainer)).transpose()?;
            self.log.push(&report, validation);
            rate.count(report.tokens);
            if report.step % checkpoint_every == 0 && !self.trainer.finished() {
                self.write()?;
            }
            bar.say(format!("train: loss {:.3}, {:.0} tokens/s", report.loss, rate.per_second()));
            bar.advance(1);
        }
        self.write()?;
        Ok(rate)
    }

    fn summary(&self, rate: &Rate) -> Table {
        let columns = [
            ("step", "steps done"),
            ("loss", "loss of the last step (nats per token)"),
            ("validation_loss", "last loss on text that is not learned (nats per token)"),
            ("floor", "entropy of the text (nats per token), where it is known"),
            ("accuracy", "share of tokens of the last step that were the likeliest"),
            ("parameters", "parameters"),
            ("tokens", "tokens of the text"),
            ("tokens_per_second", "tokens trained per second, in this run"),
        ];
        let mut table = Table::new("training", "What was trained; losses in nats per token", &columns);
        table.push(vec![
            i64::try_from(self.trainer.step()).unwrap_or(i64::MAX).into(),
            self.log.last("loss").into(),
            self.log.last("validation_loss").into(),
            self.origin.floor().into(),
            self.log.last("accuracy").into(),
            self.trainer.params().len().into(),
            self.origin.tokens.into(),
            (rate.tokens > 0).then(|| rate.per_second()).into(),
        ]);
        table
    }
}

/// The checkpoint's settings, with more steps where these were asked for. Any other wish is an error.
fn settled(folder: &Path, said: &SettingArgs, checkpoint: &Checkpoint) -> Result<Settings> {
    let origin: Origin = checkpoint.origin()?;
    let Some(train) = checkpoint.train.clone() else {
        return refuse(format!("{} does not say how it was trained: train anew", folder.join(MODEL).display()));
    };
    let Origin { text, tokenizer, validate_every, .. } = origin;
    let before = Settings { text, tokenizer, model: checkpoint.model()?, train, validate_every };
    let wanted = said.applied_to(before.clone());
    let differ = |(a, b): &(&(&str, String), &(&str, String))| a != b && !["--steps", "--text"].contains(&a.0);
    if let Some(((name, value), (old_name, old_value))) = wanted.options().iter().zip(&before.options()).find(differ) {
        return refuse(format!(
            "{name} {value} cannot be had with --resume: the model in {} is trained with {old_name} {old_value}; leave it out, or train anew",
            folder.display()
        ));
    }
    let steps = wanted.train.steps;
    if steps < before.train.steps {
        return refuse(format!(
            "--steps {steps} is less than the {} of the training that goes on: steps can only grow",
            before.train.steps
        ));
    }
    Ok(Settings { train: wanted.train, ..before })
}

/// The tokenizer of the folder, or one made anew, whichever gives the tokens that the model learns.
fn same_tokens(folder: &Path, settings: &Settings, text: &str, origin: &Origin) -> Result<(Tokenizer, Vec<u32>)> {
    let path = folder.join(TOKENIZER);
    if let Ok(tokenizer) = Tokenizer::load(&path)
        && let Ok((tokens, found)) = tokenized(settings, text, &tokenizer)
        && found.tokens_sha256 == origin.tokens_sha256
    {
        return Ok((tokenizer, tokens));
    }
    let tokenizer = Tokenizer::train(settings.tokenizer, text)?;
    let (tokens, found) = tokenized(settings, text, &tokenizer)?;
    if found.tokens_sha256 != origin.tokens_sha256 {
        return refuse(format!("{} is not the tokenizer that the model learns with: put that one back, or train anew", path.display()));
    }
    tokenizer.save(&path)?;
    Ok((tokenizer, tokens))
}

/// The loss on validation windows, the same ones each time.
fn validate(task: &mut TextTask<'_>, trainer: &Trainer) -> Result<f64> {
    let config = trainer.config();
    let count = config.batch / config.micro_batches;
    let mut loss = Loss::default();
    for group in 0..VALIDATION_WINDOWS.div_ceil(count) as u64 {
        loss += task.validate(trainer.params(), count, config.seed.wrapping_add(group))?;
    }
    Ok(loss.mean())
}

/// Tokens per second.
struct Rate {
    started: Instant,
    tokens: usize,
}

impl Rate {
    fn begin() -> Self {
        Self { started: Instant::now(), tokens: 0 }
    }

    fn count(&mut self, tokens: usize) {
        self.tokens += tokens;
    }

    fn per_second(&self) -> f64 {
        self.tokens as f64 / self.started.elapsed().as_secs_f64().max(1e-9)
    }
}

/// The first Ctrl-C asks for a stop after the step, the second stops at once.
fn stop_on_interrupt(quiet: bool) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if asked.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(crate::INTERRUPTED));
        }
        if !quiet {
            eprintln!("\nstopping after this step; Ctrl-C again stops at once");
        }
    })
    .context("cannot wait for Ctrl-C")?;
    Ok(stop)
}

impl Train {
    pub(crate) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("train")?;
        let mut training = if self.resume {
            Training::take_up(&self.out, &self.settings)?
        } else {
            let settings = self.settings.applied_to(Settings::default());
            Training::begin(&self.out, settings, self.overwrite, &bar)?
        };
        let stop = stop_on_interrupt(self.common.quiet)?;
        if !self.resume {
            training.write_first()?;
        }
        let again = format!("regard train --resume --out {}", self.out.display());
        let rate = training.run(self.checkpoint_every, &stop, &bar);
        drop(bar);
        let rate = rate.map_err(|error| match error.downcast_ref() {
            Some(regard_nn::Error::File { .. }) => error.context(format!("`{again}` goes on from the last checkpoint")),
            _ => error,
        })?;
        if !training.trainer.finished() {
            if !self.common.quiet {
                eprintln!("saved after step {} of {}; go on with: {again}", training.trainer.step(), training.settings.train.steps);
            }
            return Ok(Outcome::Interrupted);
        }
        training.log.draw(&self.out)?;
        self.common.show(&[training.summary(&rate)])?;
        self.common.wrote(&self.out, &FILES.map(str::to_owned));
        Ok(Outcome::Done)
    }
}
