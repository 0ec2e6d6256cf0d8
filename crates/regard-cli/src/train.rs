//! `regard train`: arguments, progress and exit codes. Settings, folder, resuming and the loop are in `regard_nn`, the log in `regard_lab`.

use crate::options::{Common, Outcome, Unusable};
use crate::output::note;
use crate::progress::Bar;
use crate::ranks::{ByExchange, Ranks, process_costs};
use crate::train_settings::{CommandLine, SettingArgs};
use anyhow::{Context, Result};
use clap::Args;
use regard_dist::{Comm, Exchange, Kind};
use regard_files::shell_quoted;
use regard_lab::experiments::Progress;
use regard_lab::training_log::TrainingLog;
use regard_lab::{Table, Value};
use regard_nn::tokenizer::TokenizerKind;
use regard_nn::training::bootstrap::with_heartbeat;
use regard_nn::training::folder::{FILES, LOG, ModelFolder};
use regard_nn::training::run::{Settings, Training, VALIDATION_WINDOWS, assist};
use regard_nn::training::source::TextSource;
use regard_nn::training::trainer::StepReport;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Train a small language model on a text, or on built-in stories of known entropy
///
/// A decoder-only transformer learns to predict the next token. Without --text it learns stories of a built-in grammar, whose entropy is
/// known exactly: the floor of the loss.
///
/// Writes into the model's folder: model.safetensors (parameters and the optimiser's state, enough to resume), model.json (the
/// settings), tokenizer.json, training.csv (one row per step), and at the end training.svg and training.png. The bytes do
/// not depend on the number of threads or on interruptions.
///
/// Ctrl-C (and SIGTERM) finishes the step, saves and stops; a second one stops at once. After a crash at most the steps since the last
/// checkpoint are lost. --resume continues in both cases, to the same bytes as a training without interruption.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard train                                              stories, a small model, into the folder model
  regard train --text book.txt --tokenizer bpe:1024 --width 128 --layers 4 --heads 8 --context 128 --out book
  regard train --positions rotary --norm rms --mlp swiglu --kv-heads 2 --tied --out modern
  regard train --parts 8 --workers 2                        two workers share the parts of a step; the bytes stay the same
  mpirun --bind-to none -n 4 regard train --parts 8         ranks on several machines (see docs/cluster.md)
  regard train --resume --out book                          resume at the last checkpoint
  regard train --resume --out book --steps 5000             train more steps
Then:
  regard eval model
  regard generate model --prompt \"Anna and Ben\"")]
pub(crate) struct Train {
    /// Folder of the model; created if missing
    #[arg(long, default_value = "model", value_name = "DIR")]
    out: PathBuf,
    /// Resume from the last checkpoint in the folder, with its settings and its text
    #[arg(long)]
    resume: bool,
    /// Replace the model that is in the folder
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Steps between checkpoints; the last step has one, too
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: u64,
    /// Threads that share the parts of each step, without changing a byte; at most --parts, and 256
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// Timeout in seconds for other ranks
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    watchdog: f64,
    #[command(flatten)]
    settings: SettingArgs,
    #[command(flatten)]
    common: Common,
}

/// From first values, or from the checkpoint.
fn prepared(arguments: &Train, bar: &Bar) -> Result<Training> {
    if !arguments.resume {
        let settings = arguments.settings.applied_to(Settings::default());
        if settings.tokenizer != TokenizerKind::Char {
            bar.note("making the tokenizer ...");
        }
        return Ok(Training::begin(&arguments.out, settings, arguments.overwrite)?);
    }
    let (folder, checkpoint) = ModelFolder::open_model(&arguments.out)?;
    if !checkpoint.verified() {
        warn_unverified(&arguments.out);
    }
    let before = Settings::of(&checkpoint)?;
    let settings = settled(&arguments.out, &arguments.settings, &before)?;
    let source = arguments.settings.applied_to(before).text;
    if source == TextSource::Stdin && arguments.settings.text.is_none() {
        let message = "the text came from the standard input; give it again with --text - or as a file with --text FILE";
        return Err(Unusable(message.to_owned()).into());
    }
    Ok(Training::resume(folder, checkpoint, settings, &source)?)
}

/// Weights without a checksum may be damaged without notice.
pub(crate) fn warn_unverified(folder: &Path) {
    note(format_args!("warning: {} has no model.json with a checksum: the weights are read unchecked", folder.display()));
}

/// The checkpoint's settings, with more steps where given. Any other change is an error.
fn settled(folder: &Path, said: &SettingArgs, before: &Settings) -> Result<Settings> {
    let wanted = said.applied_to(before.clone());
    let differ = |(a, b): &(&(&str, String), &(&str, String))| a != b && !["--steps", "--text"].contains(&a.0);
    if let Some(((name, value), (old_name, old_value))) = wanted.options().iter().zip(&before.options()).find(differ) {
        return Err(Unusable(format!(
            "{name} {value} cannot be changed with --resume: the model in {} is trained with {old_name} {old_value}; leave it out, or \
                train a new model",
            folder.display()
        ))
        .into());
    }
    let (steps, done) = (wanted.train.steps, before.train.steps);
    if steps < done {
        return Err(Unusable(format!("too few steps: {steps}; the resumed training has {done}, and steps can only grow")).into());
    }
    Ok(Settings { train: wanted.train, ..before.clone() })
}

fn summary(training: &Training, log: &TrainingLog, rate: &Rate) -> Table {
    let validation = format!(
        "last loss on {VALIDATION_WINDOWS} windows or more of text that is not learned (nats per token); `regard eval` reads all of that \
            text"
    );
    let columns = [
        ("step", "steps done"),
        ("loss", "loss of the last step (nats per token)"),
        ("validation_loss", validation.as_str()),
        ("floor", "entropy of the text (nats per token), where it is known"),
        ("accuracy", "share of tokens of the last step that were the most likely"),
        ("parameters", "parameters"),
        ("tokens", "tokens of the text"),
        ("tokens_per_second", "tokens trained per second, in this run"),
    ];
    let caption = format!(
        "What was trained; losses in nats per token. validation_loss is over {VALIDATION_WINDOWS} windows or more; `regard eval` reads \
            all of the text \
         that is not learned, so its loss differs a little"
    );
    let mut table = Table::new("training", &caption, &columns);
    table.push(vec![
        i64::try_from(training.trainer().step()).unwrap_or(i64::MAX).into(),
        log.last("loss").into(),
        log.last("validation_loss").into(),
        training.origin().floor().into(),
        log.last("accuracy").into(),
        training.trainer().params().len().into(),
        training.origin().tokens.into(),
        (rate.tokens > 0).then(|| rate.per_second()).into(),
    ]);
    table
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

/// The first Ctrl-C (or SIGTERM) stops after the step, the second at once. `said` is printed at the first one.
fn stop_on_interrupt(said: Option<&'static str>) -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if asked.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(crate::INTERRUPTED));
        }
        if let Some(said) = said {
            note(format_args!("\n{said}"));
        }
    })
    .context("cannot wait for Ctrl-C")?;
    Ok(stop)
}

/// Errors after which the training can be resumed.
fn resumable(error: &regard_nn::Error) -> bool {
    use regard_nn::Error;
    matches!(error, Error::Files(_) | Error::Diverged { .. } | Error::Gradient { .. } | Error::Ranks { .. })
}

/// On rank 0, a table with the costs of all ranks.
fn costs(ranks: &Ranks) -> Result<Table> {
    let (comm, tag, what) = (Comm::new(ranks), (Kind::Partials, 0), || "its costs".to_owned());
    let columns =
        [("rank", "rank"), ("cpu_seconds", "CPU, s"), ("received_bytes", "received, bytes"), ("peak_memory_bytes", "peak memory, bytes")];
    let mut table = Table::new("ranks", "Costs of each rank", &columns);
    let mut told = Vec::new();
    if ranks.rank() == 0 {
        for rank in 1..ranks.ranks() {
            told.push(comm.receive_exactly(rank, tag, 24, what)?);
        }
    }
    let costs = process_costs();
    let mine: Vec<u8> =
        [costs.cpu_seconds, ranks.bytes_received() as f64, costs.peak_memory].iter().flat_map(|x| x.to_le_bytes()).collect();
    if ranks.rank() > 0 {
        comm.send(0, tag, mine, what)?;
        return Ok(table);
    }
    told.insert(0, mine);
    for (rank, bytes) in told.iter().enumerate() {
        let mut numbers = bytes.as_chunks().0.iter().map(|word| f64::from_le_bytes(*word)).chain(std::iter::repeat(f64::NAN));
        let mut real = || numbers.next().filter(|x| !x.is_nan());
        let (cpu, received, peak) = (real(), real(), real());
        let whole = |x: Option<f64>| x.map_or(Value::Missing, |x| Value::Integer(x as i64));
        table.push(vec![rank.into(), cpu.into(), whole(received), whole(peak)]);
    }
    Ok(table)
}

impl Train {
    pub(crate) fn run(self) -> Result<Outcome> {
        let ranks = Ranks::start(self.watchdog)?;
        ranks.or_end(if ranks.rank() == 0 { self.by(&ranks) } else { self.assist(&ranks) })
    }

    /// Ranks other than 0: no files, no output.
    fn assist(&self, ranks: &Ranks) -> Result<Outcome> {
        let common = Common { quiet: true, ..self.common.clone() };
        drop(common.start("train")?);
        let stop = stop_on_interrupt(None)?;
        assist(&ByExchange(ranks), &mut || !stop.load(Ordering::Relaxed))?;
        costs(ranks)?;
        Ok(Outcome::Done)
    }

    /// The training with its table, and what asks it to stop. It is in the folder when this returns.
    fn begin(&self, ranks: &Ranks, bar: &Bar) -> Result<(Training, TrainingLog, Arc<AtomicBool>)> {
        let mut training = prepared(self, bar)?;
        let parts = training.settings().train.parts;
        let sharing = if ranks.ranks() > 1 { ("mpirun -n ", ranks.ranks()) } else { ("--workers ", usize::from(self.workers)) };
        if sharing.1 > parts {
            let (name, count) = sharing;
            let message =
                format!("{name}{count} is more than the {parts} parts of a step; use fewer, or train a new model with more --parts");
            return Err(Unusable(message).into());
        }
        training.check_workers(self.workers.into())?;
        let mut log = TrainingLog::new(&training.settings().command(), training.origin().floor())?;
        if self.resume && !log.take_over(&self.out, training.trainer().step()) {
            note(format_args!("warning: {LOG} does not have all {} steps; a new log begins", training.trainer().step()));
        }
        let said = match ranks.ranks() {
            1 => "stopping after this step; Ctrl-C again stops at once",
            // Who starts ranks asks them to stop also where one of them is gone.
            _ => "stopping after this step, if all ranks are there",
        };
        let stop = stop_on_interrupt((!self.common.quiet).then_some(said))?;
        if !self.resume {
            training.write_first(&log)?;
        }
        Ok((training, log, stop))
    }

    /// Rank 0, or the only one.
    fn by(&self, ranks: &Ranks) -> Result<Outcome> {
        let bar = self.common.start("train")?;
        let several = ranks.ranks() > 1;
        if several && self.workers > 1 {
            return Err(Unusable("--workers is for one process; leave it out, ranks share the parts already".to_owned()).into());
        }
        let by = ByExchange(ranks);
        let every = Duration::from_secs_f64((self.watchdog / 4.0).min(1.0));
        let (mut training, mut log, stop) = with_heartbeat(&by, every, || self.begin(ranks, &bar))?;
        let (steps, again) =
            (training.settings().train.steps, format!("regard train --resume --out {}", shell_quoted(&self.out.display().to_string())));
        bar.expect(steps.saturating_sub(training.trainer().step()));
        let mut rate = Rate::begin();
        let mut watch = |report: &StepReport| {
            rate.count(report.tokens);
            bar.say(format!("train: loss {:.3}, {:.0} tokens/s", report.loss, rate.per_second()));
            bar.advance(1);
            !stop.load(Ordering::Relaxed)
        };
        let ran = if several {
            training.run_by(&by, self.checkpoint_every, &mut log, &mut watch)
        } else {
            training.run_by_workers(self.workers.into(), self.checkpoint_every, &mut log, &mut watch)
        };
        drop(bar);
        ran.map_err(|error| {
            let known = resumable(&error);
            let error = anyhow::Error::from(error);
            if known { error.context(format!("`{again}` resumes from the last checkpoint")) } else { error }
        })?;
        let costs = several.then(|| costs(ranks)).transpose()?;
        if !training.trainer().finished() {
            if !self.common.quiet {
                note(format_args!("saved after step {} of {steps}; resume with: {again}", training.trainer().step()));
            }
            return Ok(Outcome::Interrupted);
        }
        training.write_figures(log.draw()?)?;
        let tables: Vec<_> = [summary(&training, &log, &rate)].into_iter().chain(costs).collect();
        self.common.show(&tables)?;
        self.common.wrote(&self.out, &FILES.map(str::to_owned));
        Ok(Outcome::Done)
    }
}
