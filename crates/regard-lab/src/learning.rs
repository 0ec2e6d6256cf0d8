//! Shared by the experiments that train: the text, the model, the jobs and their progress.

use crate::error::{Result, require};
use crate::experiment::{Progress, defaults};
use crate::memory;
use crate::options::path_as_text;
use clap::Args;
use regard_nn::config::ModelConfig;
use regard_nn::data::Text;
use regard_nn::stories;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::training::trainer::TrainConfig;
use regard_plot::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Characters and seed of the generated stories, the default text: all seeds of a training learn the same text.
const STORIES: (usize, u64) = (1_000_000, 1);

/// How tables name the default text.
pub(crate) const STORIES_NAME: &str = "Regard's stories";

/// A text in UTF-8 from a file, or from the standard input where the path is `-`, without its byte order mark.
///
/// # Errors
/// When it cannot be read, is not UTF-8, is empty, or too long.
pub fn read_text(path: &Path) -> Result<String> {
    Ok(regard_files::read_text(path, regard_files::limits::TEXT_BYTES.max)?)
}

/// A small language model of characters, and the text that it learns.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct LearningConfig {
    /// Learn this text (UTF-8; - is the standard input), character by character [default: a million characters of Regard's own stories,
    /// whose entropy is known]
    #[arg(long, value_name = "FILE")]
    #[serde(serialize_with = "path_as_text")]
    pub text: Option<PathBuf>,
    /// Windows of text in a step
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub batch: usize,
    /// Tokens that the model sees at once
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub context: usize,
    /// Width of the model
    #[arg(long, default_value_t = ModelConfig::default().width, value_name = "N")]
    pub width: usize,
    /// Heads of each block
    #[arg(long, default_value_t = ModelConfig::default().heads, value_name = "N")]
    pub heads: usize,
    /// Blocks
    #[arg(long, default_value_t = ModelConfig::default().layers, value_name = "N")]
    pub layers: usize,
}

impl Default for LearningConfig {
    fn default() -> Self {
        defaults()
    }
}

pub(crate) fn check_steps(steps: u64) -> Result<()> {
    require((1..=1_000_000).contains(&steps), "steps", steps, "from 1 to 1000000")
}

/// Lower bound of the bytes of a step, in single precision: for every token and block what the backward pass reads (two norms, queries,
/// keys, values, the mixed values, and the wide layer with its derivative: 4 of 4 widths), and the parameters with gradients and two
/// moments.
pub(crate) fn training_bytes(tokens: usize, width: usize, layers: usize) -> u128 {
    let (tokens, width, layers) = (tokens as u128, width as u128, layers as u128);
    4 * layers * (14 * tokens * width + 4 * 12 * width * width)
}

impl LearningConfig {
    pub(crate) fn check(&self, steps: u64, windows: usize) -> Result<()> {
        check_steps(steps)?;
        require((1..=4096).contains(&self.batch), "batch", self.batch, "from 1 to 4096 windows")?;
        require((2..=1024).contains(&self.context), "context", self.context, "from 2 to 1024 tokens")?;
        require((1..=1024).contains(&self.width), "width", self.width, "from 1 to 1024")?;
        require((1..=64).contains(&self.heads), "heads", self.heads, "from 1 to 64")?;
        require((1..=32).contains(&self.layers), "layers", self.layers, "from 1 to 32")?;
        require((1..=10_000).contains(&windows), "windows", windows, "from 1 to 10000")?;
        memory::check("one step of this training", training_bytes(self.batch * self.context, self.width, self.layers))
    }

    /// The text itself.
    pub(crate) fn content(&self) -> Result<String> {
        self.text.as_deref().map_or_else(|| Ok(stories::write(STORIES.0, STORIES.1)), read_text)
    }

    /// Entropy rate, the lower bound of any model's loss per character; known for the generated stories only.
    pub(crate) fn entropy(&self) -> Option<f64> {
        self.text.is_none().then(stories::entropy_rate)
    }

    /// Short description of the text.
    pub(crate) fn describe(&self, text: &str) -> String {
        match &self.text {
            None => format!("{STORIES_NAME}, {} characters", STORIES.0),
            Some(path) => format!("{}, {} characters", path.display(), text.chars().count()),
        }
    }

    pub(crate) fn model(&self, vocab: usize) -> ModelConfig {
        ModelConfig { vocab, context: self.context, width: self.width, heads: self.heads, layers: self.layers, ..ModelConfig::default() }
    }

    pub(crate) fn train(&self, steps: u64, seed: u64) -> TrainConfig {
        TrainConfig { steps, batch: self.batch, seed, ..TrainConfig::default() }
    }

    /// A text as tokens, one per character, how many different ones there are, and what the text is.
    pub(crate) fn tokens_of(&self, text: &str) -> Result<(Text, usize, String)> {
        let tokenizer = Tokenizer::train(TokenizerKind::Char, text)?;
        Ok((Text::split(tokenizer.encode(text)?, self.context)?, tokenizer.vocab(), self.describe(text)))
    }
}

/// Steps between the points of a curve with about `points` points.
pub(crate) fn every(steps: u64, points: u64) -> u64 {
    (steps / points).max(1)
}

/// Upper bound of the number of trainings.
const MAX_SEEDS: usize = 1000;

/// Seeds of the trainings.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct SeedsConfig {
    /// Trainings of each kind, with the seeds `seed`, `seed + 1`, ...; results are means over them
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub seeds: usize,
    /// Seed of the initial parameters and the windows
    #[arg(long, default_value_t = TrainConfig::default().seed)]
    pub seed: u64,
}

impl Default for SeedsConfig {
    fn default() -> Self {
        defaults()
    }
}

impl SeedsConfig {
    pub(crate) fn check(&self) -> Result<()> {
        require((1..=MAX_SEEDS).contains(&self.seeds), "seeds", self.seeds, "from 1 to 1000")
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = u64> + use<> {
        let first = self.seed;
        (0..self.seeds as u64).map(move |i| first.wrapping_add(i))
    }

    /// A training of every kind with every seed, seed by seed.
    pub(crate) fn jobs<K: Copy>(&self, kinds: &[K], steps: u64, name: impl Fn(K) -> String) -> Vec<Job<(K, u64)>> {
        let mut jobs = Vec::new();
        for seed in self.all() {
            jobs.extend(kinds.iter().map(|&kind| Job { name: format!("{}, seed {seed}", name(kind)), steps, what: (kind, seed) }));
        }
        jobs
    }
}

/// One training of several: its name and its progress steps.
pub(crate) struct Job<J> {
    pub(crate) name: String,
    pub(crate) steps: u64,
    pub(crate) what: J,
}

/// Progress callback of a training.
pub(crate) type Watch<'w> = &'w mut dyn FnMut(&crate::trainings::Progress<'_>);

/// Independent trainings, one per thread, each single-threaded: results do not depend on the number of threads. Finished trainings are
/// stored, and reused by the next run of the same settings.
pub(crate) struct Jobs<'p> {
    progress: &'p dyn Progress,
    setting: String,
}

impl<'p> Jobs<'p> {
    /// The configuration and the text determine the result of a job.
    pub(crate) fn new<C: Serialize>(progress: &'p dyn Progress, id: &str, config: &C, text: &str) -> Self {
        let mut values = serde_json::to_value(config).expect("a configuration serialises");
        if let Some(values) = values.as_object_mut() {
            // A job's name has its own seed.
            ["seeds", "seed"].iter().for_each(|name| drop(values.remove(*name)));
        }
        Self { progress, setting: format!("{id} {} {values} {}", env!("CARGO_PKG_VERSION"), regard_files::digest(text)) }
    }

    /// The results, in the order of the jobs.
    pub(crate) fn run<J: Sync, R: Serialize + DeserializeOwned + Send>(
        &self,
        jobs: &[Job<J>],
        run: impl Fn(&J, Watch<'_>) -> Result<R> + Sync,
    ) -> Result<Vec<R>> {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let done: Vec<std::sync::Mutex<Option<Result<R>>>> = jobs.iter().map(|_| std::sync::Mutex::new(None)).collect();
        let failed = std::sync::atomic::AtomicBool::new(false);
        let work = || {
            // A pool of one thread: a training's own parallel loops stay on it.
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one more thread");
            loop {
                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let (Some(job), false) = (jobs.get(at), failed.load(std::sync::atomic::Ordering::Relaxed)) else { return };
                let result = pool.install(|| self.one(job, &run));
                failed.fetch_or(result.is_err(), std::sync::atomic::Ordering::Relaxed);
                *done[at].lock().expect("no thread panicked") = Some(result);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..rayon::current_num_threads().min(jobs.len())).map(|_| scope.spawn(work)).collect();
            // A panic of a thread is propagated.
            threads.into_iter().for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        });
        // Jobs after the first failure were not started.
        done.into_iter().filter_map(|cell| cell.into_inner().expect("the threads have ended")).collect()
    }

    fn one<J, R: Serialize + DeserializeOwned>(&self, job: &Job<J>, run: &impl Fn(&J, Watch<'_>) -> Result<R>) -> Result<R> {
        let name = format!("{} {}", self.setting, job.name);
        if let Some(result) = self.progress.recall(&name).and_then(|text| serde_json::from_str(&text).ok()) {
            self.progress.advance(job.steps);
            return Ok(result);
        }
        let mut relay = Relay { progress: self.progress, name: &job.name, stage: String::new(), done: 0, reported: 0 };
        let result = run(&job.what, &mut |now| relay.watch(now))?;
        self.progress.advance(job.steps.saturating_sub(relay.reported));
        self.progress.remember(&name, &serde_json::to_string(&result).expect("a result is made of numbers and words"))?;
        Ok(result)
    }
}

/// Forwards the progress of a training.
struct Relay<'p> {
    progress: &'p dyn Progress,
    name: &'p str,
    stage: String,
    done: u64,
    reported: u64,
}

impl Relay<'_> {
    fn watch(&mut self, now: &crate::trainings::Progress<'_>) {
        if self.stage != now.stage {
            now.stage.clone_into(&mut self.stage);
            self.done = 0;
        }
        match now.loss {
            Some(loss) => self.progress.say(&format!("{}, loss {loss:.3}", self.name)),
            None => self.progress.say(&format!("{}, {}", self.name, now.stage)),
        }
        let more = now.step.saturating_sub(self.done);
        self.progress.advance(more);
        (self.done, self.reported) = (now.step, self.reported + more);
    }
}

/// Rounds to five significant digits.
pub(crate) fn brief(x: f64) -> Value {
    Value::Number(if x.is_finite() { format!("{x:.4e}").parse().unwrap_or(x) } else { x })
}

/// A text in quotes, on one line, of at most `most` characters.
pub(crate) fn quoted(text: &str, most: usize) -> String {
    let mut shown: String = text.chars().take(most).map(|c| if c == '\n' { '\u{21b5}' } else { c }).collect();
    if text.chars().count() > most {
        shown.push('\u{2026}');
    }
    format!("\u{201c}{shown}\u{201d}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn a_text_is_read_without_its_byte_order_mark_and_refused_where_it_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        std::fs::write(&path, "\u{feff}caf\u{e9}").unwrap();
        assert_eq!(read_text(&path).unwrap(), "caf\u{e9}");
        for (bytes, words) in [(&b"caf\xe9"[..], "invalid UTF-8 at byte 3"), (b"", "is empty"), (b"\xef\xbb\xbf", "is empty")] {
            std::fs::write(&path, bytes).unwrap();
            let error = read_text(&path).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(read_text(&dir.path().join("nowhere")).is_err());
    }

    #[test]
    fn a_step_that_cannot_fit_is_refused_before_it_begins() {
        let config = LearningConfig { batch: 4096, context: 1024, width: 1024, layers: 32, ..LearningConfig::default() };
        assert!(matches!(config.check(1, 1), Err(Error::Memory { .. })));
        assert!(LearningConfig::default().check(1, 1).is_ok());
    }

    #[test]
    fn shown_texts_are_short_and_on_one_line() {
        assert_eq!(quoted("a\nb", 5), "\u{201c}a\u{21b5}b\u{201d}");
        assert_eq!(quoted("abcdef", 3), "\u{201c}abc\u{2026}\u{201d}");
    }

    #[test]
    fn brief_numbers_have_five_digits() {
        assert_eq!(brief(1.234_567_89), Value::Number(1.2346));
        assert_eq!(brief(0.0), Value::Number(0.0));
        assert!(matches!(brief(f64::NAN), Value::Number(x) if x.is_nan()));
    }
}
