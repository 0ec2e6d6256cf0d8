//! What the experiments that train have in common: the text, the model, the training, and how far they have come.

use crate::error::{Error, Result, require};
use crate::experiment::{Progress, defaults};
use crate::memory;
use crate::options::path_as_text;
use clap::Args;
use regard_nn::config::ModelConfig;
use regard_nn::data::Text;
use regard_nn::stories;
use regard_nn::tokenizer::{Tokenizer, TokenizerKind};
use regard_nn::train::TrainConfig;
use regard_plot::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Characters of the stories that are written where no text is given, and their seed: all seeds of a training learn the same text.
const STORIES: (usize, u64) = (1_000_000, 1);

/// Bytes of a text that are read at most.
const MAX_TEXT: u64 = 512 << 20;

/// A text in UTF-8 out of a file, or out of the standard input where the file is `-`. A byte order mark is no part of it.
///
/// # Errors
/// [`Error::Text`] when it cannot be read, is not UTF-8, is empty, or does not end.
pub fn read_text(path: &Path) -> Result<String> {
    let refused = |reason: String| Error::Text { path: path.to_owned(), reason };
    let read = |stream: &mut dyn Read| -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        stream.take(MAX_TEXT + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes =
        if path == Path::new("-") { read(&mut std::io::stdin().lock()) } else { File::open(path).and_then(|mut file| read(&mut file)) };
    let bytes = bytes.map_err(|e| refused(e.to_string()))?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(refused(format!("it is longer than {MAX_TEXT} bytes; give a part of it")));
    }
    let mut text = String::from_utf8(bytes).map_err(|e| {
        refused(format!("it is not UTF-8: byte {} is no part of a character; convert it first", e.utf8_error().valid_up_to()))
    })?;
    if text.starts_with('\u{feff}') {
        text.remove(0);
    }
    if text.is_empty() { Err(refused("it is empty; give a text to learn".to_owned())) } else { Ok(text) }
}

/// A small language model of characters, and the text that it learns.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct LearningConfig {
    /// Learn this text (UTF-8; - is the standard input), character by character [default: a million characters of Regard's own stories, whose
    /// entropy is known]
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

/// Bytes that a step holds at the very least, in single precision: of every token and block what the backward pass reads again (two norms, queries,
/// keys, values, the mixed values, and the wide layer with its derivative: 4 of 4 widths), and the parameters with gradients and two moments.
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

    /// No model's loss per character can be lower in the long run; known of stories.
    pub(crate) fn entropy(&self) -> Option<f64> {
        self.text.is_none().then(stories::entropy_rate)
    }

    /// What is learnt, in a few words.
    pub(crate) fn describe(&self, text: &str) -> String {
        match &self.text {
            None => format!("Regard's stories, {} characters", STORIES.0),
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

/// A point of a curve every so many steps, for about `points` of them.
pub(crate) fn every(steps: u64, points: u64) -> u64 {
    (steps / points).max(1)
}

/// Trainings with so many seeds at most.
const MAX_SEEDS: usize = 1000;

/// How often each training is run.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct SeedsConfig {
    /// Trainings of each kind, with the seeds `seed`, `seed + 1`, ...: what is said is said of their mean
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub seeds: usize,
    /// Of first values and windows
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

/// One training of several: what it is called, and the steps that it tells of.
pub(crate) struct Job<J> {
    pub(crate) name: String,
    pub(crate) steps: u64,
    pub(crate) what: J,
}

/// Told how far a training has come.
pub(crate) type Watch<'w> = &'w mut dyn FnMut(&regard_nn::experiments::Progress<'_>);

/// Trainings that do not depend on each other, one per thread, each on that thread alone: none waits for another, and the bits are those of any
/// number of threads. What is finished is kept, and not trained again by the next run of the same settings.
pub(crate) struct Jobs<'p> {
    progress: &'p dyn Progress,
    setting: String,
}

impl<'p> Jobs<'p> {
    /// Of an experiment whose configuration and text decide what a job of a name comes to.
    pub(crate) fn new<C: Serialize>(progress: &'p dyn Progress, id: &str, config: &C, text: &str) -> Self {
        let mut values = serde_json::to_value(config).expect("a configuration is made of numbers and words");
        if let Some(values) = values.as_object_mut() {
            // A job's name has its own seed.
            ["seeds", "seed"].iter().for_each(|name| drop(values.remove(*name)));
        }
        Self { progress, setting: format!("{id} {} {values} {}", env!("CARGO_PKG_VERSION"), regard_plot::digest(text.as_bytes())) }
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
                *done[at].lock().expect("nobody else holds it") = Some(result);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..rayon::current_num_threads().min(jobs.len())).map(|_| scope.spawn(work)).collect();
            // What ends a thread ends the whole, as it is.
            threads.into_iter().for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        });
        // After a failure the jobs behind it were not begun: the first failure stands before them.
        done.into_iter().filter_map(|cell| cell.into_inner().expect("the threads have ended")).collect()
    }

    fn one<J, R: Serialize + DeserializeOwned>(&self, job: &Job<J>, run: &impl Fn(&J, Watch<'_>) -> Result<R>) -> Result<R> {
        let name = format!("{} {}", self.setting, job.name);
        if let Some(result) = self.progress.recall(&name).and_then(|text| serde_json::from_str(&text).ok()) {
            self.progress.advance(job.steps);
            return Ok(result);
        }
        let mut relay = Relay { progress: self.progress, name: &job.name, stage: String::new(), done: 0, told: 0 };
        let result = run(&job.what, &mut |now| relay.watch(now))?;
        self.progress.advance(job.steps.saturating_sub(relay.told));
        self.progress.remember(&name, &serde_json::to_string(&result).expect("a result is made of numbers and words"))?;
        Ok(result)
    }
}

/// Passes on how far a training has come.
struct Relay<'p> {
    progress: &'p dyn Progress,
    name: &'p str,
    stage: String,
    done: u64,
    told: u64,
}

impl Relay<'_> {
    fn watch(&mut self, now: &regard_nn::experiments::Progress<'_>) {
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
        (self.done, self.told) = (now.step, self.told + more);
    }
}

/// Five digits that count: more are noise in a curve, and bytes in a file.
pub(crate) fn brief(x: f64) -> Value {
    Value::Number(if x.is_finite() { format!("{x:.4e}").parse().unwrap_or(x) } else { x })
}

/// A text that people are shown: on one line, between quotes, and not too long.
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

    #[test]
    fn a_text_is_read_without_its_byte_order_mark_and_refused_where_it_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        std::fs::write(&path, "\u{feff}caf\u{e9}").unwrap();
        assert_eq!(read_text(&path).unwrap(), "caf\u{e9}");
        for (bytes, words) in
            [(&b"caf\xe9"[..], "byte 3 is no part of a character"), (b"", "it is empty"), (b"\xef\xbb\xbf", "it is empty")]
        {
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
