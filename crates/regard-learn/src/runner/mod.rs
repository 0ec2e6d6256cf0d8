//! The learner's program as a child process with limits on time, memory and (on Linux) writing.
//!
//! A call has two seconds, the process a gibibyte; a call without an answer never passes. Dropping a `Runner` ends its process group and,
//! on Linux, the processes that left the group.

mod builds;
mod confine;
mod frame;
mod kernel;
mod process;
mod python;
mod rust;
mod system;

pub use builds::Builds;
pub(crate) use kernel::{HarnessProcess, PythonHarness};

use crate::error::Error;
use crate::exercise::{Exercise, Kind, Lang};
use crate::value::{Call, Gone, Reply, Trouble, Value};
use process::Process;
use serde_json::{Value as Json, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Limits of a runner.
const CALL_LIMIT: Duration = Duration::from_secs(2);
const LOAD_LIMIT: Duration = Duration::from_secs(5);
const START_LIMIT: Duration = Duration::from_secs(20);
/// PyTorch is large: some seconds, a minute on a slow disk.
const TORCH_START_LIMIT: Duration = Duration::from_secs(120);
const CHECK_LIMIT: Duration = Duration::from_secs(20);
const MEMORY_LIMIT: u64 = 1 << 30;
/// On a busy machine, a call ends after this multiple of its limit.
const MOST_PATIENT: u32 = 10;

/// What a runner is started with.
pub struct Start<'a> {
    /// The exercise.
    pub exercise: &'static Exercise,
    /// Its language.
    pub lang: Lang,
    /// The learner's file.
    pub file: &'a Path,
    /// A Python that was asked for.
    pub python: Option<&'a Path>,
    /// Where Rust answers are compiled.
    pub builds: &'a Builds,
    /// Set when the judge is to stop.
    pub stop: &'a AtomicBool,
}

/// A running answer.
pub struct Runner<'a> {
    process: Process,
    exercise: &'static Exercise,
    lang: Lang,
    file: PathBuf,
    stop: &'a AtomicBool,
    next_id: u64,
    /// When the check is over, by the clock of the runner.
    limit: Duration,
    /// Types of the results of the last answer, as they were named there.
    pub dtypes: Vec<String>,
    /// Whether arrays are passed as float64.
    pub wide: bool,
    /// Result of the forward pass where the answer is a function with a backward pass of its own.
    pub forward: Option<Value<f64>>,
}

/// Why there is no runner.
pub enum StartError {
    /// A tool is missing, or the machine does not let us.
    Error(Error),
    /// The answer cannot even be loaded.
    Trouble(Trouble),
}

impl From<Error> for StartError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Answers a question of exercise 14.
pub type Model<'m> = &'m mut dyn FnMut(&[usize]) -> Result<(Value<f64>, Value<f64>), String>;

impl<'a> Runner<'a> {
    /// Compiles or finds what runs the file, starts it and loads the file.
    pub fn start(start: &Start<'a>) -> Result<Self, StartError> {
        let file = start.file.canonicalize().map_err(|e| Error::file("read", start.file, e))?;
        let command = match start.lang {
            Lang::Python => python::command(start.python, python::Arrays::NumPy)?,
            Lang::Torch if start.exercise.custom.is_some() => python::command(start.python, python::Arrays::TorchCustom)?,
            Lang::Torch => python::command(start.python, python::Arrays::Torch)?,
            Lang::Rust => rust::command(start.exercise, &file, start.builds, start.stop)?,
        };
        let process = Process::start(command, &file)?;
        let start_limit = if start.lang == Lang::Torch { TORCH_START_LIMIT } else { START_LIMIT };
        let limit = start_limit + CHECK_LIMIT;
        let Start { exercise, lang, stop, .. } = *start;
        let mut runner = Self { process, exercise, lang, file, stop, next_id: 0, limit, dtypes: Vec::new(), wide: false, forward: None };
        match runner.wait(start_limit) {
            Ok(_) => {}
            Err(Trouble::Raised { kind, text, .. }) if kind == "no-numpy" => {
                return Err(Error::NoNumpy { python: runner.process.program().to_owned(), reason: text }.into());
            }
            Err(Trouble::Raised { kind, text, .. }) if kind == "no-torch" => {
                return Err(Error::NoTorch { python: runner.process.program().to_owned(), reason: text }.into());
            }
            Err(Trouble::Gone(_)) if start.lang != Lang::Rust => {
                return Err(Error::BadPython { python: runner.process.program().to_owned(), reason: runner.last_words() }.into());
            }
            Err(trouble) => return Err(StartError::Trouble(trouble)),
        }
        runner.begin_check();
        let load = runner.request(json!({"call": "load"}), &[], LOAD_LIMIT);
        load.map(|_| runner).map_err(StartError::Trouble)
    }

    /// A new check begins: its time starts now.
    pub fn begin_check(&mut self) {
        self.limit = self.process.clock() + CHECK_LIMIT;
    }

    /// The learner's own lines so far, and how many there were.
    fn prints(&mut self) -> (Vec<String>, usize) {
        self.process.prints()
    }

    /// What it said before it ended, in one line.
    fn last_words(&mut self) -> String {
        let words = self.prints().0.join(" ");
        if words.is_empty() { "it ends without a word".to_owned() } else { words }
    }

    /// Ends it; all that it printed is then read.
    pub fn finish(&mut self) -> (Vec<String>, usize) {
        self.process.end();
        self.process.prints()
    }

    /// Whether it can still be asked.
    pub fn alive(&self) -> bool {
        self.process.alive()
    }

    fn request(&mut self, mut header: Json, payload: &[u8], limit: Duration) -> Result<(Json, Vec<u8>), Trouble> {
        self.next_id += 1;
        header["id"] = json!(self.next_id);
        self.process.send(&frame::pack(&header, payload));
        self.wait(limit)
    }

    /// Waits for the answer to the last request; ends the runner when there is none in time.
    fn wait(&mut self, limit: Duration) -> Result<(Json, Vec<u8>), Trouble> {
        let (start, asked) = (Instant::now(), self.process.clock());
        loop {
            match self.process.receive() {
                Ok(Some((header, payload))) => return self.answer(header, payload),
                Ok(None) => {}
                Err(gone) => return self.gone(gone),
            }
            if self.stop.load(Ordering::Relaxed) {
                self.process.end();
                return Err(Trouble::Stopped);
            }
            if let Some(bytes) = self.process.over(MEMORY_LIMIT) {
                return self.gone(Gone::Memory { bytes });
            }
            let clock = self.process.clock();
            let late = clock > (asked + limit).min(self.limit) || start.elapsed() > MOST_PATIENT * limit;
            // One that fills memory has longer, until it is clear with how much.
            if late && !(self.process.growing() && clock < asked + MOST_PATIENT * limit) {
                let line = if self.lang != Lang::Rust { self.process.line_of(&self.file) } else { None };
                return self.gone(Gone::Timeout { seconds: (clock.saturating_sub(asked)).as_secs_f64(), line });
            }
        }
    }

    fn gone<T>(&mut self, gone: Gone) -> Result<T, Trouble> {
        self.process.end();
        Err(Trouble::Gone(gone))
    }

    fn answer(&mut self, header: Json, payload: Vec<u8>) -> Result<(Json, Vec<u8>), Trouble> {
        if header["id"] != json!(self.next_id) {
            return self
                .gone(Gone::Garbled { text: format!("an answer to call {}, which is not the one that was asked", short(&header["id"])) });
        }
        let Some(error) = header.get("error") else { return Ok((header, payload)) };
        let word = |name: &str| printable(error[name].as_str().unwrap_or_default());
        let line = error["line"].as_u64().map(|line| line as usize);
        Err(match word("kind").as_str() {
            "todo" => Trouble::Todo,
            "form" => Trouble::Form { text: word("text") },
            kind => Trouble::Raised { kind: kind.to_owned(), text: word("text"), line },
        })
    }

    /// Calls the learner's function.
    pub fn call(&mut self, call: &Call<f64>, strided: bool) -> Reply<f64> {
        let (header, payload) = self.pack(call, strided);
        let (header, payload) = self.request(header, &payload, CALL_LIMIT)?;
        let changed = header["changed"].as_array().and_then(|list| list.first()).and_then(Json::as_u64);
        let names = self.passed().nth(changed.map_or(usize::MAX, |at| at as usize)).map(|p| p.name.to_owned());
        if let Some(name) = names {
            return Err(Trouble::ChangedInput { name });
        }
        self.unpack(call, &header, &payload)
    }

    /// Asks the learner's function about a model, which it may question.
    pub fn diagnose(&mut self, numbers: &[usize], model: Model<'_>) -> Result<String, Trouble> {
        let mut header = json!({"call": self.exercise.name, "model": true, "dims": numbers, "results": ["name"]});
        header["args"] = numbers.iter().map(|_| json!({"dtype": "i64", "shape": []})).collect();
        let payload: Vec<u8> = numbers.iter().flat_map(|x| (*x as i64).to_le_bytes()).collect();
        let (mut header, mut _payload) = self.request(header, &payload, CALL_LIMIT)?;
        while let Some(tokens) = header.get("ask").cloned() {
            let tokens: Vec<usize> =
                tokens.as_array().into_iter().flatten().map(|t| t.as_u64().map_or(usize::MAX, |t| t as usize)).collect();
            let (answer, payload) = match model(&tokens) {
                Ok((logits, weights)) => {
                    let spec = |value: &Value<f64>| json!({"dtype": "f32", "shape": value.shape});
                    let numbers = logits.data.iter().chain(&weights.data);
                    let bytes = numbers.flat_map(|x| (*x as f32).to_le_bytes()).collect();
                    (json!({"id": self.next_id, "results": [spec(&logits), spec(&weights)]}), bytes)
                }
                Err(text) => (json!({"id": self.next_id, "error": text}), Vec::new()),
            };
            self.process.send(&frame::pack(&answer, &payload));
            (header, _payload) = self.wait(CALL_LIMIT)?;
        }
        header["results"][0]["text"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| Trouble::Form { text: "the function returned no name".to_owned() })
    }

    /// The arguments that go over the wire.
    fn passed(&self) -> impl Iterator<Item = &'static crate::exercise::Param> + use<> {
        let rust = self.lang == Lang::Rust;
        self.exercise.params.iter().filter(move |p| !(rust && p.kind == Kind::Count))
    }

    fn pack(&self, call: &Call<f64>, strided: bool) -> (Json, Vec<u8>) {
        let (mut specs, mut payload) = (Vec::new(), Vec::new());
        for (param, value) in self.exercise.params.iter().zip(&call.args) {
            if self.lang == Lang::Rust && param.kind == Kind::Count {
                continue;
            }
            if param.kind == Kind::File {
                let path = self.process.file(&value.data.iter().map(|byte| *byte as u8).collect::<Vec<u8>>());
                payload.extend(path.as_bytes());
                specs.push(json!({"dtype": "path", "shape": [path.len()], "strided": false}));
                continue;
            }
            let dtype = match param.kind {
                Kind::Array | Kind::State | Kind::Number if self.wide => "f64",
                Kind::Array | Kind::State | Kind::Number => "f32",
                Kind::Flags | Kind::File => "u8",
                Kind::Lengths | Kind::Offset | Kind::Count => "i64",
            };
            for x in &value.data {
                match dtype {
                    "f32" => payload.extend((*x as f32).to_le_bytes()),
                    "f64" => payload.extend(x.to_le_bytes()),
                    "u8" => payload.push(u8::from(*x != 0.0)),
                    _ => payload.extend((*x as i64).to_le_bytes()),
                }
            }
            let strided = strided && param.kind == Kind::Array;
            specs.push(json!({"dtype": dtype, "shape": value.shape, "strided": strided}));
        }
        let results: Vec<_> = self.exercise.results.iter().map(|r| r.0).collect();
        let mut header = json!({"call": self.exercise.name, "dims": call.dims, "results": results, "args": specs});
        if let Some(custom) = self.custom() {
            header["custom"] = json!({"class": custom.class, "d_out": custom.d_out, "leaves": custom.leaves});
        }
        (header, payload)
    }

    fn custom(&self) -> Option<&'static crate::exercise::Custom> {
        self.exercise.custom.as_ref().filter(|_| self.lang == Lang::Torch)
    }

    fn unpack(&mut self, call: &Call<f64>, header: &Json, payload: &[u8]) -> Reply<f64> {
        let empty = Vec::new();
        let specs = header["results"].as_array().unwrap_or(&empty);
        let wanted = self.exercise.results.len() + usize::from(self.custom().is_some());
        if specs.len() != wanted {
            return self.gone(Gone::Garbled { text: format!("{} results in place of {wanted}", specs.len()) });
        }
        self.dtypes = specs.iter().map(|s| s["was"].as_str().unwrap_or("f32").to_owned()).collect();
        let (mut values, mut at) = (Vec::new(), 0usize);
        let forward: crate::exercise::Output = ("the result of forward", &["n", "dv"]);
        for (spec, output) in specs.iter().zip(self.exercise.results.iter().chain([&forward])) {
            let mut shape: Vec<usize> = spec["shape"].as_array().into_iter().flatten().map(|d| d.as_u64().unwrap_or(0) as usize).collect();
            if spec["omitted"] == json!(true) {
                return Err(Trouble::Form { text: format!("{} has the shape {shape:?}, which is far too large", output.0) });
            }
            let width = if spec["dtype"] == "f64" { 8 } else { 4 };
            let count = shape.iter().try_fold(1usize, |a, b| a.checked_mul(*b)).unwrap_or(usize::MAX);
            let Some(bytes) = count.checked_mul(width).and_then(|len| payload.get(at..at.checked_add(len)?)) else {
                return self.gone(Gone::Garbled { text: "an answer with fewer numbers than it announces".to_owned() });
            };
            at += bytes.len();
            let data = bytes.chunks_exact(width).map(|chunk| match chunk {
                [a, b, c, d] => f64::from(f32::from_le_bytes([*a, *b, *c, *d])),
                _ => f64::from_le_bytes(chunk.try_into().unwrap_or_default()),
            });
            let data: Vec<f64> = data.collect();
            let right = self.exercise.shape(&call.dims, output);
            if self.lang == Lang::Rust && data.len() == right.iter().product::<usize>() {
                shape = right;
            }
            values.push(Value::new(&shape, data));
        }
        self.forward = if self.custom().is_some() { values.pop() } else { None };
        Ok(values)
    }
}

/// A text of the runner's, without what would steer the terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || *c == '\n').take(2000).collect()
}

fn short(json: &Json) -> String {
    json.to_string().chars().take(40).collect()
}
