//! Our attention against another implementation: the golden vectors that PyTorch's own mathematics gave, and PyTorch itself where it is.

use super::Parity;
use crate::error::{Error, Result};
use crate::experiment::{Progress, defaults, origin, signed};
use crate::options::path_as_text;
use crate::statistics::draws::{Draw, Purpose};
use clap::Args;
use ndarray::Array4;
use regard::{Attention, Bias, Element, Mask, Real, Scale, Stage};
use regard_plot::Table;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const GOLDEN: &str = include_str!("stored/attention.json");
const PROGRAM: &str = include_str!("answer.py");

/// Taken out before anything is imported: with `-c` Python would look for modules in the current directory first, and whoever made that
/// directory would have their `torch.py` run.
const SAFE_PATH: &str = "import sys\nsys.path[:] = [p for p in sys.path if p]\n";

/// Compare with PyTorch: stored answers always, PyTorch itself where a Python has it
///
/// Looks for PyTorch in the active virtual environment, in python3 and in python, and says so when it is in none of them.
/// The exit code is 1 when a comparison does not hold. Writes parity_golden.csv and parity_torch.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab parity --python .venv/bin/python")]
pub struct ParityConfig {
    /// A Python that has PyTorch
    #[arg(long, value_name = "PATH")]
    #[serde(serialize_with = "path_as_text")]
    pub python: Option<PathBuf>,
    /// Compare with the stored answers only
    #[arg(long, conflicts_with = "python")]
    pub stored: bool,
    /// Seconds that Python is waited for
    #[arg(long, default_value_t = 120, value_name = "S")]
    #[serde(skip)]
    pub timeout: u64,
}

impl Default for ParityConfig {
    fn default() -> Self {
        defaults()
    }
}

#[derive(Deserialize)]
struct Golden {
    about: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    options: Options,
    mask_kind: Option<String>,
    shapes: Shapes,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mask: Option<Vec<Option<f32>>>,
    out: Vec<f64>,
    lse: Vec<Option<f64>>,
}

#[derive(Deserialize)]
struct Shapes {
    q: [usize; 4],
    k: [usize; 4],
    v: [usize; 4],
    mask: Option<[usize; 4]>,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Options {
    causal: Option<String>,
    window: Option<[Option<usize>; 2]>,
    q_offset: Option<Vec<i64>>,
    kv_lens: Option<Vec<usize>>,
    scale: Option<f64>,
    softcap: Option<f64>,
}

/// The answers of the golden file have all their digits.
const GOLDEN_TOLERANCE: [(&str, f64); 2] = [("float32", 2e-6), ("float64", 1e-13)];

impl ParityConfig {
    /// Whether the given Python, if one is given, has PyTorch.
    pub(super) fn check(&self) -> Result<()> {
        let Some(given) = &self.python else { return Ok(()) };
        match find_torch(Some(given), self.timeout)? {
            Some(_) => Ok(()),
            None => Err(Error::NoTorch { python: given.clone() }),
        }
    }

    /// `parity_golden`, and `parity_torch` where there is a Python with PyTorch.
    ///
    /// # Errors
    /// When PyTorch fails, not when it disagrees.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        let golden = golden();
        let columns = [
            ("case", "case"),
            ("type", "type"),
            ("out_error", "largest error of the output"),
            ("lse_error", "largest error of the log-sum-exp"),
            ("tolerance", "tolerance"),
            ("agrees", "agrees"),
        ];
        let mut table = Table::new("parity_golden", &format!("Against stored answers: {}", golden.about), &columns);
        for case in &golden.cases {
            for (kind, tolerance) in GOLDEN_TOLERANCE {
                let (out, lse) = if kind == "float32" { case.errors::<f32>()? } else { case.errors::<f64>()? };
                let agrees = out <= tolerance && lse <= tolerance;
                table.push(vec![case.name.as_str().into(), kind.into(), out.into(), lse.into(), tolerance.into(), agrees.into()]);
            }
            progress.advance(1);
        }
        let without = Self { python: None, stored: true, ..self.clone() };
        let mut tables = signed(vec![table], &origin::<Parity>(&without, 0, &golden.about)?);
        if self.stored {
            return Ok(tables);
        }
        match (find_torch(self.python.as_deref(), self.timeout)?, &self.python) {
            (Some(python), _) => tables.push(Self { python: Some(python.clone()), ..self.clone() }.against_torch(&python)?),
            (None, Some(given)) => return Err(Error::NoTorch { python: given.clone() }),
            (None, None) => {
                progress.warn("no Python with PyTorch was found (python3 -c 'import torch' fails): comparing with the stored answers only")
            }
        }
        Ok(tables)
    }
}

fn golden() -> Golden {
    serde_json::from_str(GOLDEN).expect("the golden vectors are in order: they are tested")
}

/// How many stored answers there are.
pub(super) fn cases() -> u64 {
    golden().cases.len() as u64
}

impl Case {
    fn attention(&self) -> Attention<'static> {
        let o = &self.options;
        let mut a = match o.causal.as_deref() {
            None => Attention::new(),
            Some("bottom_right") => Attention::new().causal_bottom_right(),
            Some(_) => Attention::new().causal(),
        };
        if let Some([left, right]) = o.window {
            a = a.mask(Mask::window(left, right));
        }
        if let Some(offsets) = &o.q_offset {
            a = a.q_offsets(offsets.clone());
        }
        if let Some(lengths) = &o.kv_lens {
            a = a.key_lengths(lengths.clone());
        }
        if let Some(scale) = o.scale {
            a = a.scale(Scale::By(scale));
        }
        if let Some(cap) = o.softcap {
            a = a.softcap(cap);
        }
        let (Some(mask), Some(shape)) = (&self.mask, self.shapes.mask) else { return a };
        if self.mask_kind.as_deref() == Some("bool") {
            let table = mask.iter().map(|&x| x == Some(1.0)).collect();
            a.mask(Mask::dense(Array4::from_shape_vec(shape, table).expect("the golden shapes fit")))
        } else {
            let numbers = mask.iter().map(|x| x.unwrap_or(f32::NEG_INFINITY)).collect();
            a.bias(Bias::Dense(Array4::from_shape_vec(shape, numbers).expect("the golden shapes fit").into()))
        }
    }

    /// Largest errors of the output and of the log-sum-exp.
    fn errors<E: Element>(&self) -> Result<(f64, f64)> {
        let array = |shape: [usize; 4], numbers: &[f32]| {
            let numbers = numbers.iter().map(|&x| E::from_real(E::Real::from_f64(x.into()))).collect();
            Array4::<E>::from_shape_vec(shape, numbers).expect("the golden shapes fit")
        };
        let s = &self.shapes;
        let (q, k, v) = (array(s.q, &self.q), array(s.k, &self.k), array(s.v, &self.v));
        let got = self.attention().forward(&q, &k, &v)?;
        let out = got.out.iter().map(|x| x.to_real().to_f64()).zip(self.out.iter().copied());
        let lse = got.lse.iter().map(|x| x.to_f64()).zip(self.lse.iter().map(|x| x.unwrap_or(f64::NEG_INFINITY)));
        Ok((largest_error(out), largest_error(lse)))
    }
}

/// Equal infinities are no error; a NaN is an infinite one.
fn largest_error(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let error = |(a, b): (f64, f64)| if a == b { 0.0 } else { (a - b).abs() };
    pairs.map(error).fold(0.0, |most, e| if e.is_nan() || e > most { if e.is_nan() { f64::INFINITY } else { e } } else { most })
}

/// The active virtual environment. A relative or empty path would name a program below the current directory.
fn active_environment() -> Option<PathBuf> {
    std::env::var_os("VIRTUAL_ENV").map(PathBuf::from).filter(|dir| dir.is_absolute())
}

/// The Python of a virtual environment.
fn python_in(environment: &Path) -> PathBuf {
    environment.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}

/// The first Python that can import PyTorch: the given one alone, or the active environment's, then the system's. Nothing in the current
/// directory is started unless it is given.
///
/// # Errors
/// [`Error::Peer`] when the given one does not answer within the timeout.
fn find_torch(given: Option<&Path>, timeout: u64) -> Result<Option<PathBuf>> {
    let candidates = match given {
        Some(python) => vec![python.to_owned()],
        None => {
            let active = active_environment().map(|dir| python_in(&dir));
            active.into_iter().chain(["python3", "python"].map(PathBuf::from)).collect()
        }
    };
    for python in candidates {
        match run_python(&python, &format!("{SAFE_PATH}import torch"), Vec::new(), timeout) {
            Ok(_) => return Ok(Some(python)),
            Err(Silence::TimedOut) if given.is_some() => return Err(timed_out(&python, timeout)),
            Err(_) => {}
        }
    }
    Ok(None)
}

fn timed_out(python: &Path, timeout: u64) -> Error {
    Error::Peer { python: python.to_owned(), reason: format!("no answer within {timeout} seconds; --timeout waits longer") }
}

/// Why a program said nothing.
enum Silence {
    TimedOut,
    Failed(String),
}

/// What a program prints, given its input, in limited time. It is killed when the time is over.
fn run_python(python: &Path, program: &str, input: Vec<u8>, timeout: u64) -> std::result::Result<Vec<u8>, Silence> {
    let failed = |e: std::io::Error| Silence::Failed(e.to_string());
    let mut command = Command::new(python);
    command.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(failed)?;
    let (mut stdin, stdout, stderr) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
    let (send, receive) = std::sync::mpsc::channel();
    // Each pipe has a thread, so that none of them fills up; the last word of standard output is that of the program.
    std::thread::spawn(move || stdin.take().map(|mut pipe| pipe.write_all(&input)));
    let errors = std::thread::spawn(move || read_all(stderr));
    std::thread::spawn(move || send.send(read_all(stdout)));
    let deadline = Instant::now() + Duration::from_secs(timeout);
    let printed = receive.recv_timeout(Duration::from_secs(timeout));
    while printed.is_ok() && Instant::now() < deadline {
        if let Some(status) = process.try_wait().map_err(failed)? {
            if status.success() {
                return Ok(printed.unwrap_or_default());
            }
            let message = errors.join().unwrap_or_default();
            let message = String::from_utf8_lossy(&message);
            return Err(Silence::Failed(message.lines().last().unwrap_or("it ended early").to_owned()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = process.kill();
    let _ = process.wait();
    Err(Silence::TimedOut)
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    bytes
}

#[derive(Serialize)]
struct Question {
    name: &'static str,
    shape_q: [usize; 4],
    shape_kv: [usize; 4],
    causal: bool,
    scale: Option<f64>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
}

#[derive(Deserialize)]
struct Answers {
    version: String,
    cases: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    float64: Vec<f64>,
    float32: Vec<f64>,
}

fn questions() -> Vec<Question> {
    let make = |name, batch, heads, seq_q, seq_kv, dim, causal, scale| {
        let (shape_q, shape_kv) = ([batch, heads, seq_q, dim], [batch, heads, seq_kv, dim]);
        let mut numbers = Draw::new(0, Purpose::Bench, [seq_q, seq_kv], u64::from(causal));
        // Rounded to float32, so that both types see the same numbers.
        let mut draw = |shape: [usize; 4]| {
            let mut x = vec![0.0; shape.iter().product()];
            numbers.normal(&mut x);
            x.into_iter().map(|x| f64::from(x as f32)).collect()
        };
        Question { name, q: draw(shape_q), k: draw(shape_kv), v: draw(shape_kv), shape_q, shape_kv, causal, scale }
    };
    vec![
        make("8 tokens, d_k = 64", 1, 1, 8, 8, 64, false, None),
        make("8 tokens, d_k = 256, unscaled", 1, 1, 8, 8, 256, false, Some(1.0)),
        make("4 heads of 128 tokens", 1, 4, 128, 128, 64, false, None),
        make("4 heads of 128 tokens, causal", 1, 4, 128, 128, 64, true, None),
        make("batch of 2, 32 over 200 tokens", 2, 2, 32, 200, 32, false, None),
    ]
}

fn ask(python: &Path, timeout: u64, questions: &[Question]) -> Result<Answers> {
    let failed = |reason: String| Error::Peer { python: python.to_owned(), reason };
    let text = serde_json::to_vec(questions).expect("numbers and names are JSON");
    let answer = run_python(python, &format!("{SAFE_PATH}{PROGRAM}"), text, timeout).map_err(|silence| match silence {
        Silence::TimedOut => timed_out(python, timeout),
        Silence::Failed(reason) => failed(reason),
    })?;
    serde_json::from_slice(&answer).map_err(|e| failed(format!("it did not answer in JSON ({e})")))
}

impl ParityConfig {
    /// `parity_torch`.
    fn against_torch(&self, python: &Path) -> Result<Table> {
        let questions = questions();
        let answers = ask(python, self.timeout, &questions)?;
        let columns = [
            ("case", "case"),
            ("type", "type"),
            ("difference", "largest difference to PyTorch"),
            ("torch_error", "PyTorch's error against float64"),
            ("regard_error", "Regard's error against float64"),
            ("tolerance", "tolerance"),
            ("agrees", "agrees"),
        ];
        let mut table =
            Table::new("parity_torch", &format!("Against scaled_dot_product_attention of PyTorch {}", answers.version), &columns);
        for (question, answer) in questions.iter().zip(&answers.cases) {
            let exact = &answer.float64;
            let scale = question.scale.map_or(Scale::InvSqrtDim, Scale::By);
            let attention = Attention::new().scale(scale);
            let attention = if question.causal { attention.causal() } else { attention };
            let largest = largest_score(&attention, question)?;
            for (kind, theirs) in [("float64", exact), ("float32", &answer.float32)] {
                let ours = if kind == "float64" { outputs::<f64>(&attention, question)? } else { outputs::<f32>(&attention, question)? };
                let apart = |a: &[f64], b: &[f64]| largest_error(a.iter().copied().zip(b.iter().copied()));
                // A score is rounded in proportion to its size, and an output moves as its scores do.
                let tolerance = 16.0 * (1.0 + largest) * if kind == "float64" { f64::EPSILON / 2.0 } else { f64::from(f32::EPSILON) / 2.0 };
                let difference = apart(&ours, theirs);
                let errors = [apart(theirs, exact), apart(&ours, exact)];
                table.push(vec![
                    question.name.into(),
                    kind.into(),
                    difference.into(),
                    errors[0].into(),
                    errors[1].into(),
                    tolerance.into(),
                    (difference <= tolerance).into(),
                ]);
            }
        }
        table.origin = origin::<Parity>(self, 0, &format!("PyTorch {}", answers.version))?;
        Ok(table)
    }
}

fn largest_score(attention: &Attention<'_>, question: &Question) -> Result<f64> {
    let array = |shape, x: &[f64]| Array4::from_shape_vec(shape, x.to_vec()).expect("the length matches the shape");
    let scores = attention.scores(&array(question.shape_q, &question.q), &array(question.shape_kv, &question.k), Stage::Raw)?;
    Ok(scores.fold(0.0, |a: f64, s| a.max(s.abs())))
}

fn outputs<T: Real + regard::Element>(attention: &Attention<'_>, question: &Question) -> Result<Vec<f64>> {
    let array = |shape: [usize; 4], x: &[f64]| {
        Array4::from_shape_vec(shape, x.iter().map(|&x| T::from_f64(x)).collect()).expect("the length matches the shape")
    };
    let (q, k, v) = (array(question.shape_q, &question.q), array(question.shape_kv, &question.k), array(question.shape_kv, &question.v));
    Ok(attention.forward(&q, &k, &v)?.out.iter().map(|x| x.to_f64()).collect())
}

/// Whether every comparison of the tables holds.
pub(super) fn agrees(tables: &[Table]) -> bool {
    tables.iter().all(|table| table.rows.iter().all(|row| *table.value(row, "agrees") != false.into()))
}
