//! The judge: runs the cases, names the mistake, finds the smallest case.

mod compare;
mod models;
mod probes;
mod shrink;
mod mutants;
mod programs;

pub use compare::{Expected, Failure, compare, evaluate, expect};
pub use models::{MODELS, QUESTIONS};
pub use mutants::Diagnosis;

use crate::exercise::{Exercise, Judging, Lang};
use crate::formula::Manners;
use crate::rng::Rng;
use crate::runner::{Builds, Runner, Start, StartError};
use crate::value::{Case, Gone, Reply, Trouble, Value};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A case and what the answer made of it.
pub struct Seen {
    /// The case.
    pub case: Case,
    /// What is right.
    pub expected: Expected,
    /// What came.
    pub reply: Reply<f64>,
    /// How it fails, if it does.
    pub failure: Option<Failure>,
}

/// How an exercise stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Right on every case.
    Pass,
    /// Wrong numbers.
    Fail,
    /// An exception, a compile error, a crash.
    Error,
    /// No answer in time.
    Timeout,
    /// Not begun.
    Todo,
}

/// What is said of an answer.
pub struct Verdict {
    /// The exercise.
    pub exercise: &'static Exercise,
    /// Its language.
    pub lang: Lang,
    /// How it stands.
    pub status: Status,
    /// How many cases there are.
    pub cases: usize,
    /// How many of them failed.
    pub failed: usize,
    /// The known mistakes that explain it.
    pub diagnosis: Option<Diagnosis>,
    /// Facts about it, each true of what was seen.
    pub facts: Vec<String>,
    /// What happened, where numbers cannot say it.
    pub message: Option<String>,
    /// The smallest failing case.
    pub smallest: Option<Seen>,
    /// Its number among the cases, from 1.
    pub case_number: usize,
    /// What the learner's code printed, and how many lines that were.
    pub prints: (Vec<String>, usize),
    /// How long it took.
    pub millis: u128,
    /// Hash of the file that was judged.
    pub source: String,
}

/// What is to be judged.
pub struct Task<'a> {
    /// The exercise.
    pub exercise: &'static Exercise,
    /// The language.
    pub lang: Lang,
    /// The learner's file.
    pub file: &'a Path,
    /// A Python that was asked for.
    pub python: Option<&'a Path>,
    /// Which cases.
    pub seed: u64,
    /// Where Rust answers are compiled.
    pub builds: &'a Builds,
    /// Set when the judge is to stop.
    pub stop: &'a AtomicBool,
}

/// Why there is no verdict.
pub enum NoVerdict {
    /// Something is missing.
    Error(crate::Error),
    /// The judge was told to stop.
    Stopped,
}

impl From<crate::Error> for NoVerdict {
    fn from(error: crate::Error) -> Self {
        NoVerdict::Error(error)
    }
}

/// The cases of an exercise for a seed.
pub fn cases(exercise: &Exercise, seed: u64) -> Vec<Case> {
    let mut rng = Rng::new(seed, exercise.name);
    match &exercise.judging {
        Judging::Programs(programs) => (programs.cases)(&mut rng),
        _ => (exercise.cases)(&mut rng),
    }
}

/// What is right in a case.
type Oracle<'o> = &'o mut dyn FnMut(&Case) -> Result<Expected, Trouble>;

/// Judges a file.
pub fn check(task: &Task<'_>) -> Result<Verdict, NoVerdict> {
    check_seeds(task, 1)
}

/// Judges a file on several seeds with one program, until it fails.
pub fn check_seeds(task: &Task<'_>, seeds: u64) -> Result<Verdict, NoVerdict> {
    let start = Instant::now();
    let Task { exercise, lang, file, python, builds, stop, .. } = *task;
    let source = crate::app::state::hash(&crate::files::read_answer(file)?);
    let mut runner = match Runner::start(&Start { exercise, lang, file, python, builds, stop }) {
        Ok(runner) => runner,
        Err(StartError::Error(error)) => return Err(error.into()),
        Err(StartError::Trouble(Trouble::Stopped)) => return Err(NoVerdict::Stopped),
        Err(StartError::Trouble(trouble)) => {
            let mut verdict = blank(task.exercise, task.lang);
            verdict.told(file, "while the file was loaded", &trouble);
            (verdict.millis, verdict.source) = (start.elapsed().as_millis(), source);
            return Ok(verdict);
        }
    };
    let mut verdict = blank(task.exercise, task.lang);
    for seed in task.seed..task.seed + seeds {
        runner.begin_check();
        verdict = match &exercise.judging {
            Judging::Numbers { .. } => judge_numbers(task, &mut runner, seed, &mut |case| expect(exercise, case))?,
            Judging::Programs(programs) => {
                let mut oracle = programs::Oracle::start(task, programs)?;
                judge_numbers(task, &mut runner, seed, &mut |case| oracle.expect(case))?
            }
            Judging::Models => models::judge(task, &mut runner, seed)?,
        };
        if verdict.status != Status::Pass {
            break;
        }
    }
    verdict.prints = runner.finish();
    (verdict.millis, verdict.source) = (start.elapsed().as_millis(), source);
    Ok(verdict)
}

fn blank(exercise: &'static Exercise, lang: Lang) -> Verdict {
    Verdict {
        exercise,
        lang,
        status: Status::Error,
        cases: 0,
        failed: 0,
        diagnosis: None,
        facts: Vec::new(),
        message: None,
        smallest: None,
        case_number: 0,
        prints: (Vec::new(), 0),
        millis: 0,
        source: String::new(),
    }
}

/// Runs one case: its calls, the comparison, the second call.
fn see(exercise: &Exercise, runner: &mut Runner<'_>, case: Case, expected: Expected) -> Seen {
    let reply = run_case(exercise, runner, &case);
    let mut failure = compare(exercise, &case, &expected, &reply);
    if let (None, Some(again), Ok(first)) = (&failure, &case.again, &reply) {
        let second = runner.call(&again.call, case.strided);
        failure = compare::same_bits(&case, first, &second, &[]);
        if let Some(Failure::Bits { .. }) = failure {
            // A product of a library can depend on where its operands lie in memory: bits count if the same call repeats them.
            let repeats = (0..4).all(|_| run_case(exercise, runner, &case).is_ok_and(|third| same_data(&third, first)));
            failure = if repeats { failure } else { compare::same_bits(&case, first, &second, &expected.tolerance) };
        }
    }
    Seen { case, expected, reply, failure }
}

fn same_data(a: &[Value<f64>], b: &[Value<f64>]) -> bool {
    let bits = |values: &[Value<f64>]| values.iter().flat_map(|v| v.data.iter().map(|x| x.to_bits())).collect::<Vec<u64>>();
    bits(a) == bits(b)
}

fn run_case(exercise: &Exercise, runner: &mut Runner<'_>, case: &Case) -> Reply<f64> {
    let session = match &exercise.judging {
        Judging::Numbers { session, .. } => session,
        Judging::Programs(_) => return runner.call(&case.call, case.strided),
        Judging::Models => return Err(Trouble::Shapes),
    };
    (session.f64)(case, &mut |call| {
        let results = runner.call(call, case.strided)?;
        if let (Some(custom), Some(got)) = (&exercise.custom, runner.forward.take()) {
            check_forward(custom, call, &got)?;
        }
        if exercise.judged.is_empty() && exercise.inputs.is_empty() && case.pieces.is_empty() {
            return Ok(results);
        }
        // A session goes on with the results: their shapes must be right.
        exercise.shaped(&call.dims, results)
    })
}

/// Whether `forward` of a function with a backward pass of its own returned what it must.
fn check_forward(custom: &crate::exercise::Custom, call: &crate::value::Call<f64>, got: &Value<f64>) -> Result<(), Trouble> {
    let session = crate::session!(crate::exercise::plain);
    let case = Case::new("forward", &call.dims, call.args.clone());
    let right = compare::evaluate_with(&custom.forward, &session, &case, &crate::formula::How::default(), 0.0)?;
    let (want, tolerance) = (&right.values[0], right.tolerance[0]);
    if want.shape != got.shape {
        let text = format!("forward returned the shape {:?}; it must be {:?}", got.shape, want.shape);
        return Err(Trouble::Form { text });
    }
    let wrong = (0..want.data.len()).find(|&at| !compare::close(got.data[at], want.data[at], tolerance));
    wrong.map_or(Ok(()), |at| {
        let place = crate::show::index(&want.shape, at);
        let text = format!("forward is wrong: {place:?} of its result is {}; it must be {}", got.data[at], want.data[at]);
        Err(Trouble::Form { text })
    })
}

fn judge_numbers(task: &Task<'_>, runner: &mut Runner<'_>, seed: u64, oracle: Oracle<'_>) -> Result<Verdict, NoVerdict> {
    let exercise = task.exercise;
    let cases = cases(exercise, seed);
    let mut verdict = blank(task.exercise, task.lang);
    verdict.cases = cases.len();
    let mut all: Vec<Seen> = Vec::new();
    for (at, case) in cases.into_iter().enumerate() {
        let expected = oracle(&case).map_err(|trouble| {
            let why = if let Trouble::Raised { kind, text, .. } = trouble { format!(": {kind}: {text}") } else { String::new() };
            crate::Error::Usage(format!("the oracle of {} fails in the case {:?}{why}", exercise.name, case.label))
        })?;
        let seen = see(exercise, runner, case, expected);
        match &seen.failure {
            Some(Failure::Trouble(Trouble::Stopped)) => return Err(NoVerdict::Stopped),
            Some(Failure::Trouble(trouble @ (Trouble::Todo | Trouble::Gone(_)))) => {
                let place = format!("in case {} ({}: {})", at + 1, seen.case.label, exercise.dims_text(&seen.case.call.dims));
                verdict.failed = all.iter().filter(|s| s.failure.is_some()).count() + 1;
                verdict.case_number = at + 1;
                verdict.told(task.file, &place, trouble);
                if let Trouble::Gone(Gone::Memory { .. }) = trouble {
                    let bytes: usize = seen.case.call.args.iter().map(|a| 4 * a.data.len()).sum();
                    verdict.facts.push(format!("the inputs of that case have {bytes} bytes"));
                }
                return Ok(verdict);
            }
            _ => all.push(seen),
        }
    }
    verdict.failed = all.iter().filter(|s| s.failure.is_some()).count();
    if verdict.failed == 0 {
        verdict.status = Status::Pass;
        return Ok(verdict);
    }
    verdict.status = Status::Fail;
    explain(task, runner, all, &mut verdict, oracle);
    Ok(verdict)
}

/// Diagnosis, facts, smallest case.
fn explain(task: &Task<'_>, runner: &mut Runner<'_>, all: Vec<Seen>, verdict: &mut Verdict, oracle: Oracle<'_>) {
    let exercise = task.exercise;
    let changes_input = |s: &Seen| matches!(s.failure, None | Some(Failure::Trouble(Trouble::ChangedInput { .. })));
    verdict.diagnosis = if all.iter().all(changes_input) {
        let mistakes = vec![exercise.mistake("input-changed")];
        Some(Diagnosis { mutants: Vec::new(), mistakes, manners: Manners::default(), explains: all.len() })
    } else if let Judging::Programs(programs) = &exercise.judging {
        programs::diagnose(task, programs, &all)
    } else {
        mutants::diagnose(exercise, task.lang, &all)
    };
    if verdict.diagnosis.is_none() {
        verdict.facts = probes::facts(exercise, runner, &all);
    }
    // The easiest failing case: the fewest numbers.
    let size = |seen: &Seen| seen.case.call.args.iter().map(|a| a.data.len()).sum::<usize>();
    let failing = all.into_iter().enumerate().filter(|(_, s)| s.failure.is_some());
    let Some((at, seen)) = failing.min_by_key(|(_, s)| size(s)) else { return };
    verdict.case_number = at + 1;
    if let Some(Failure::Trouble(trouble)) = &seen.failure {
        let place = format!("in case {} ({}: {})", at + 1, seen.case.label, exercise.dims_text(&seen.case.call.dims));
        verdict.told(task.file, &place, trouble);
    }
    let kind = seen.failure.as_ref().map(Failure::kind).unwrap_or_default();
    let diagnosis = verdict.diagnosis.clone().filter(|diagnosis| !diagnosis.mutants.is_empty());
    let mut best = None;
    let started = Instant::now();
    shrink::shrink(exercise, &seen.case, &mut |case| {
        if !runner.alive() || started.elapsed().as_secs() >= 3 {
            return false;
        }
        let Ok(expected) = oracle(case) else { return false };
        let smaller = see(exercise, runner, case.clone(), expected);
        let same = smaller.failure.as_ref().is_some_and(|f| f.kind() == kind);
        let fits = same && diagnosis.as_ref().is_none_or(|diagnosis| diagnosis.explains(exercise, task.lang, &smaller));
        if fits {
            best = Some(smaller);
        }
        fits
    });
    verdict.smallest = Some(best.unwrap_or(seen));
}

impl Verdict {
    /// Of a file that is not there.
    pub fn absent(exercise: &'static Exercise, lang: Lang, file: &Path) -> Self {
        let mut verdict = blank(exercise, lang);
        verdict.status = Status::Todo;
        verdict.message = Some(format!("there is no {}: `regard learn` makes it", file.display()));
        verdict
    }

    /// Puts into words what happened in place of an answer.
    fn told(&mut self, file: &Path, place: &str, trouble: &Trouble) {
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let at = |line: &Option<usize>| line.map(|line| format!(" at {name}:{line}")).unwrap_or_default();
        let (status, text) = match trouble {
            Trouble::Todo => (Status::Todo, "not begun yet: the function is still the stub's".to_owned()),
            Trouble::Raised { kind, text, line } if kind == "compile error" => {
                (Status::Error, format!("it does not compile{}:\n{text}", at(line)))
            }
            Trouble::Raised { kind, text, line } if kind == "memory" => {
                (Status::Error, format!("it ran out of memory{} {place}: {text}; the limit is 1 GiB", at(line)))
            }
            Trouble::Raised { kind, text, line } => (Status::Error, format!("{kind}{} {place}: {text}", at(line))),
            Trouble::Form { text } => (Status::Fail, format!("{text} ({place})")),
            Trouble::ChangedInput { name } => {
                (Status::Fail, format!("your function changes its input {name} {place}: work on a copy, the caller still needs it"))
            }
            Trouble::Gone(Gone::Timeout { seconds, line }) => {
                let line = line.map(|line| format!("; it was in line {line} of {name}")).unwrap_or_default();
                (Status::Timeout, format!("no answer after {seconds:.0} s {place}{line}"))
            }
            Trouble::Gone(Gone::Memory { bytes }) => {
                let used = *bytes as f64 / f64::from(1 << 30);
                (Status::Error, format!("it used {used:.1} GiB of memory {place}; the limit is 1 GiB"))
            }
            Trouble::Gone(Gone::Exit { how }) => (Status::Error, format!("no answer {place}: {how}. No answer is never a pass")),
            Trouble::Gone(Gone::Garbled { text }) => {
                (Status::Error, format!("the judge's connection brought {text} {place}: something in your code writes to it"))
            }
            Trouble::Shapes => (Status::Error, format!("shapes do not fit {place}")),
            Trouble::Stopped => (Status::Error, "stopped".to_owned()),
        };
        self.status = status;
        self.message = Some(text);
    }
}
