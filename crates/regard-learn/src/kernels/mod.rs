//! `regard judge`: attention kernels of others against a reference program, and which known mistake explains every case.
//!
//! The catalogue (`catalogue.rs`) lists the mistakes; each is a switch of the reference program (`program.rs`). A set of
//! mistakes is named only if the program with exactly these switches gives the kernel's numbers in every case.

mod cases;
pub mod catalogue;
mod diagnose;
mod problem;
mod program;
mod report;
mod shrink;
mod target;
pub mod when;

pub use cases::{Takes, cases};
pub use diagnose::{Expected, Failure, Found, Mismatch, Seen, diagnose, expect, explains};
pub use problem::{Align, Memory, Plane, Problem, RESULTS, Results, Segment};
pub use program::{Precision, Run, evaluate};
pub use report::{json, junit, markdown, text};
pub use target::{Description, Target, harness, is_file};

use crate::error::{Error, Result};
use catalogue::Mistake;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use target::Remote;

/// A case that would take longer than this is left out.
const LONGEST_CASE: Duration = Duration::from_secs(10);
/// Mistakes that libraries document as limits: rows without a visible key, NaN in hidden input, a mask beside the causal one.
const LIMITS: &[Mistake] = &[
    Mistake::EmptyNan,
    Mistake::EmptyOther,
    Mistake::HiddenFinite,
    Mistake::NanKey,
    Mistake::NanValue,
    Mistake::NanLeak,
    Mistake::NanSwallowed,
    Mistake::MaskLostWithCausal,
];

/// An attention kernel. A Rust function is judged by implementing this for it: [`judge_kernel`].
pub trait Kernel {
    /// Computes the results that the problem asks for.
    ///
    /// # Errors
    /// [`Failure::Refused`] for what the kernel does not support.
    fn run(&mut self, problem: &Problem) -> std::result::Result<Results, Failure>;
}

impl Kernel for Remote<'_> {
    fn run(&mut self, problem: &Problem) -> std::result::Result<Results, Failure> {
        self.call(problem)
    }
}

/// How a kernel is judged.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub precision: Precision,
    pub align: Option<Align>,
    /// Mistakes that are accepted, by id.
    pub allow: Vec<String>,
}

/// What was found out about a kernel.
#[derive(Debug)]
pub struct Report {
    pub name: String,
    pub style: String,
    pub framework: String,
    pub layout: String,
    pub takes: Takes,
    pub library: Option<String>,
    pub seen: Vec<Seen>,
    /// Sets of mistakes that explain every case; several where the cases cannot tell them apart.
    pub found: Vec<Found>,
    /// Accepted deviations: documented limits of a library, or allowed by the caller.
    pub limits: Found,
    pub facts: Vec<String>,
    pub skipped: Vec<String>,
    pub smallest: Option<Seen>,
    pub right: bool,
    pub millis: u128,
}

impl Report {
    pub fn wrong(&self) -> usize {
        self.seen.iter().filter(|one| one.wrong()).count()
    }

    /// Cases that the kernel refused, with its words.
    pub fn refused(&self) -> Vec<(&str, &str)> {
        fn words(one: &Seen) -> Option<(&str, &str)> {
            if let Err(Failure::Refused(text)) = &one.got { Some((&one.problem.label, text)) } else { None }
        }
        self.seen.iter().filter_map(words).collect()
    }

    /// Mistakes of the first set that are not accepted.
    pub fn mistakes(&self, set: &Found) -> Found {
        set.iter().filter(|one| !self.limits.contains(one)).copied().collect()
    }
}

/// Judges a function or command.
///
/// # Errors
/// The target cannot be started, or takes no input that the judge can make.
pub fn judge(target: &Target, options: &Options, stop: &AtomicBool) -> Result<Report> {
    let start = Instant::now();
    let (mut remote, description) = Remote::start(target, stop)?;
    let align = match description.align.as_deref() {
        Some("bottom-right") => Align::BottomRight,
        _ => Align::TopLeft,
    };
    let mut takes = Takes {
        features: description.features.clone(),
        rank: 4,
        align: options.align.unwrap_or(align),
        seq_major: false,
        precision: options.precision,
    };
    probe(&mut remote, &mut takes, &description)?;
    let mut report = judge_kernel(&mut remote, &takes, &prepare(&takes, options.seed));
    report.library = remote.library();
    report.name.clone_from(&target.name);
    report.style = description.style;
    (report.framework, report.layout) = (remote.framework.clone(), remote.layout.clone());
    name_mistakes(&mut report, options);
    find_smallest(&mut remote, &mut report);
    for line in remote.finish().iter().take(5) {
        report.facts.push(format!("the kernel printed: {line}"));
    }
    report.millis = start.elapsed().as_millis();
    Ok(report)
}

/// Finds framework, layout and number type by calls with a plain problem.
fn probe(remote: &mut Remote<'_>, takes: &mut Takes, description: &Description) -> Result<()> {
    let mut refusals: Vec<String> = Vec::new();
    let mut usable: Option<(String, String, Precision)> = None;
    let mut precisions = vec![takes.precision];
    if takes.precision == Precision::F32 {
        precisions.extend([Precision::F16, Precision::Bf16]);
    }
    let wants_gradient = !takes.has("backward");
    'search: for precision in precisions {
        for square in [false, true] {
            for framework in &description.frameworks {
                for layout in &description.layouts {
                    set(remote, takes, [framework, layout], precision);
                    let problem = probing(takes, square, layout);
                    let got = remote.call(&problem);
                    match got {
                        Ok(got) => {
                            let right = Seen::new(problem, precision, Ok(got)).mismatch.is_none();
                            if right || usable.is_none() {
                                usable = Some((framework.clone(), layout.clone(), precision));
                            }
                            if right {
                                break 'search;
                            }
                        }
                        Err(Failure::Refused(text) | Failure::Raised(text) | Failure::Shape(text)) => {
                            refusals.push(format!("{framework}, {layout}, {}: {text}", precision.name()));
                        }
                        Err(Failure::Gone(text)) => return Err(Error::Usage(format!("the kernel is gone after the first call: {text}"))),
                    }
                }
            }
            if usable.is_some() {
                break 'search;
            }
        }
    }
    let Some((framework, layout, precision)) = usable else {
        let list = refusals.iter().take(6).map(String::as_str).collect::<Vec<_>>().join("; ");
        return Err(Error::Usage(format!(
            "the function takes none of the inputs that were tried ({list}); say what it takes with --layout, --framework, --arg or --set"
        )));
    };
    set(remote, takes, [&framework, &layout], precision);
    // What else it gives: log-sum-exp, gradients.
    takes.features.push("lse".to_owned());
    let square = remote.call(&probing(takes, false, &layout)).is_err();
    let lse = remote.call(&probing(takes, square, &layout)).is_ok_and(|got| got.named("lse").is_some());
    takes.features.retain(|one| one != "lse");
    if lse {
        takes.features.push("lse".to_owned());
    }
    if wants_gradient && !takes.has("merge") {
        takes.features.push("backward".to_owned());
        remote.probing = true;
        let got = remote.call(&probing(takes, square, &layout));
        remote.probing = false;
        if !got.is_ok_and(|got| got.named("dq").is_some()) {
            takes.features.retain(|one| one != "backward");
        }
    }
    Ok(())
}

fn set(remote: &mut Remote<'_>, takes: &mut Takes, [framework, layout]: [&str; 2], precision: Precision) {
    framework.clone_into(&mut remote.framework);
    layout.clone_into(&mut remote.layout);
    remote.precision = precision;
    takes.precision = precision;
    takes.rank = if layout.starts_with('b') { 4 } else { layout.len() };
    takes.seq_major = ["bshd", "shd", "bsf", "bhd"].contains(&layout);
}

/// A plain problem with unequal sizes.
fn probing(takes: &Takes, square: bool, layout: &str) -> Problem {
    let all = cases(takes, 7);
    let label = match (takes.has("packed") || takes.has("merge"), square) {
        // One list of lengths for queries and keys may be all that the function takes.
        (true, true) if takes.has("packed") => Some("three sequences of equal lengths"),
        (true, _) => None,
        (false, _) if layout == "bhd" => Some("one query"),
        (false, true) => Some("square"),
        (false, false) => Some("random"),
    };
    let found = label.and_then(|label| all.iter().position(|one| one.label == label)).unwrap_or(0);
    all.into_iter().nth(found).unwrap_or_else(|| unreachable!("there are always cases"))
}

/// The cases of a kernel with what is right in each.
pub fn prepare(takes: &Takes, seed: u64) -> Vec<(Problem, Expected)> {
    let with = |problem: Problem| {
        let expected = expect(&problem, takes.precision);
        (problem, expected)
    };
    cases(takes, seed).into_iter().map(with).collect()
}

/// Runs all cases that apply and compares them with the reference; without a diagnosis yet.
pub fn judge_kernel(kernel: &mut dyn Kernel, takes: &Takes, prepared: &[(Problem, Expected)]) -> Report {
    let start = Instant::now();
    let (mut seen, mut skipped, mut rate) = (Vec::new(), Vec::new(), 0.0f64);
    // The case that the rate was measured with.
    let mut timed: Option<Problem> = None;
    for (problem, expected) in prepared {
        let (mut problem, mut expected) = (problem.clone(), expected.clone());
        let work = problem.work() as f64;
        if rate * work > LONGEST_CASE.as_secs_f64()
            && let Some(last) = timed.take()
        {
            // The first call with new shapes may have compiled: the second one is what it takes.
            let before = Instant::now();
            drop(kernel.run(&last));
            rate = before.elapsed().as_secs_f64() / last.work() as f64 * 0.5;
        }
        if rate * work > LONGEST_CASE.as_secs_f64() {
            skipped.push(format!("{}: it would take {:.0} s", problem.label, rate * work));
            continue;
        }
        let before = Instant::now();
        let got = match kernel.run(&problem) {
            // Arrays that are broadcast over heads are not support for grouped heads.
            Err(Failure::Shape(text)) if problem.heads[0] != problem.heads[1] => Err(Failure::Refused(text)),
            other => other,
        };
        let now = before.elapsed().as_secs_f64() / work * 0.5;
        if work > 1000.0 && now > rate {
            (rate, timed) = (now, Some(problem.clone()));
        }
        let gone = matches!(got, Err(Failure::Gone(_)));
        if problem.dropout > 0.0
            && let Ok(got) = &got
        {
            infer_dropout(&mut problem, got);
            expected = expect(&problem, takes.precision);
        }
        seen.push(Seen::compared(problem, expected, got));
        if gone {
            break;
        }
    }
    Report {
        name: String::new(),
        style: String::new(),
        framework: String::new(),
        layout: String::new(),
        takes: takes.clone(),
        library: None,
        seen,
        found: Vec::new(),
        limits: Vec::new(),
        facts: Vec::new(),
        skipped,
        smallest: None,
        right: false,
        millis: start.elapsed().as_millis(),
    }
}

/// Which weights were kept: values and gradients of the case are unit vectors, so that the results show it.
fn infer_dropout(p: &mut Problem, got: &Results) {
    let (b, h, n, dv) = (p.segments.len(), p.heads[0], p.segments[0].n, p.dims[1]);
    let kept = |all: &[f64], swap: bool| -> Vec<bool> {
        let mut keep = vec![false; b * h * n * n];
        for s in 0..b {
            for head in 0..h {
                for i in 0..n {
                    for j in 0..n {
                        let (row, column) = if swap { (j, i) } else { (i, j) };
                        keep[((s * h + head) * n + i) * n + j] = all[((s * n + row) * h + head) * dv + column] != 0.0;
                    }
                }
            }
        }
        keep
    };
    p.keep = [got.named("out").map(|out| kept(out, false)), got.named("dv").map(|dv| kept(dv, true))];
    // Within six standard deviations of p, and further from 1 - p: other shares come from weights that another mistake hides.
    let (share, right) = (p.kept_share(), 1.0 - p.dropout);
    let most = 6.0 * (right * p.dropout / (b * h * n * n) as f64).sqrt();
    if (share - right).abs() > most && (share - p.dropout).abs() <= most {
        p.dropout_fault = Some(Mistake::DropoutKeepsP);
    }
}

/// Diagnosis, limits and facts.
pub fn name_mistakes(report: &mut Report, options: &Options) {
    let precision = report.takes.precision;
    let answered = report.seen.iter().any(|one| one.got.is_ok());
    if report.wrong() == 0 && answered {
        report.right = true;
        return;
    }
    report.found = diagnose(&report.seen, precision);
    let accepted = |mistake: Mistake| {
        options.allow.iter().any(|id| id == mistake.entry().id) || (report.library.is_some() && LIMITS.contains(&mistake))
    };
    if let Some(first) = report.found.iter().find(|set| set.iter().all(|one| accepted(one.mistake))).or(report.found.first()) {
        let first = first.clone();
        report.limits = first.iter().filter(|one| accepted(one.mistake)).copied().collect();
        if report.limits.len() == first.len() {
            report.right = true;
            report.found = vec![first];
            return;
        }
    }
    report.facts = report::facts(&report.seen, report.found.is_empty());
}

/// The smallest case that is wrong in the same way.
pub fn find_smallest(kernel: &mut dyn Kernel, report: &mut Report) {
    let precision = report.takes.precision;
    if report.right {
        return;
    }
    let mut wrong: Vec<&Seen> = report.seen.iter().filter(|one| one.mismatch.is_some()).collect();
    let told = report.found.first().map(|set| report.mistakes(set)).unwrap_or_default();
    let about_hard = !told.is_empty() && told.iter().all(|one| catalogue::HARD.contains(&one.mistake));
    wrong.sort_by_key(|one| (one.problem.hard != about_hard, one.problem.work()));
    let Some(first) = wrong.first() else { return };
    let set = report.found.first().cloned().unwrap_or_default();
    let switches = catalogue::Switches::of(&set);
    let mut still = |problem: &Problem| {
        let seen = Seen::new(problem.clone(), precision, kernel.run(problem));
        let alike = seen.mismatch.is_some() && (set.is_empty() || explains(&seen, &switches, precision));
        alike.then_some(seen)
    };
    report.smallest = Some(shrink::shrink(first, &mut still));
}
