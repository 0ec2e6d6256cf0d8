//! The judge of kernels: each mistake of the catalogue is found when it is planted, alone and in pairs; right kernels are accepted.

use regard_learn::kernels::catalogue::{CATALOGUE, Mistake, Occurrence, Part, Switches};
use regard_learn::kernels::when::When;
use regard_learn::kernels::{
    Align, Expected, Failure, Found, Kernel, Options, Precision, Problem, Report, Results, Run, Takes, evaluate, explains, judge_kernel,
    name_mistakes, prepare,
};
use regard_learn::rng::Rng;

/// The reference program in f32, sums backwards, with planted mistakes.
struct Planted(Switches);

impl Kernel for Planted {
    fn run(&mut self, problem: &Problem) -> Result<Results, Failure> {
        // The masks that a kernel draws: chosen here, inferred by the judge.
        let mut problem = problem.clone();
        if problem.dropout > 0.0 {
            let s = problem.segments[0];
            let count = problem.segments.len() * problem.heads[0] * s.n * s.m;
            let draw = |name: &str| {
                let mut rng = Rng::new(3, name);
                let kept = if self.0.on(Mistake::DropoutKeepsP) { 0.25 } else { 0.75 };
                Some((0..count).map(|_| self.0.on(Mistake::DropoutIgnored) || rng.chance(kept)).collect())
            };
            problem.keep = [draw("forward"), draw("backward")];
        }
        Ok(evaluate(&problem, Run { switches: &self.0, precision: Precision::F32, backwards: true }))
    }
}

const ALL: [&str; 16] = [
    "paged",
    "mask",
    "bias",
    "causal",
    "scale",
    "window",
    "softcap",
    "alibi",
    "sinks",
    "lengths",
    "offset",
    "dropout",
    "backward",
    "lse",
    "causal+mask",
    "none",
];

fn takes(kind: &str, align: Align) -> Takes {
    let mut features: Vec<String> = ALL.iter().map(|word| (*word).to_owned()).collect();
    match kind {
        "packed" => features.push("packed".to_owned()),
        "merge" => features = vec!["merge".to_owned(), "lse".to_owned()],
        "quantised" => features = vec!["k_scale".to_owned(), "causal".to_owned()],
        _ => {}
    }
    Takes { features, rank: if kind == "packed" { 3 } else { 4 }, align, seq_major: false, precision: Precision::F32 }
}

/// What a kernel takes, its cases, and what is right.
type Setting = (Takes, Vec<(Problem, Expected)>);

fn prepared(takes: Takes) -> Setting {
    let cases = prepare(&takes, 1);
    (takes, cases)
}

fn judged(switches: &Switches, (takes, cases): &Setting) -> Report {
    let options = Options { seed: 1, precision: Precision::F32, align: None, allow: Vec::new() };
    let mut report = judge_kernel(&mut Planted(switches.clone()), takes, cases);
    name_mistakes(&mut report, &options);
    report
}

fn ids(report: &Report) -> Vec<Vec<&'static str>> {
    report.found.iter().map(|set| set.iter().map(|one| one.mistake.entry().id).collect()).collect()
}

/// The kinds of kernels and alignments that can show a mistake.
fn settings() -> Vec<Takes> {
    let mut all = vec![takes("plain", Align::BottomRight), takes("plain", Align::TopLeft)];
    all.extend([takes("packed", Align::BottomRight), takes("merge", Align::TopLeft), takes("quantised", Align::TopLeft)]);
    all
}

#[test]
fn a_right_kernel_is_accepted() {
    for takes in settings() {
        for seed in 1..4 {
            let report = judge_kernel(&mut Planted(Switches::default()), &takes, &prepare(&takes, seed));
            let wrong: Vec<_> = report.seen.iter().filter(|one| one.wrong()).map(|one| (&one.problem.label, &one.mismatch)).collect();
            assert!(wrong.is_empty(), "{:?} {wrong:?}", takes.features);
        }
    }
}

/// Forms whose results may be anything: they cannot be planted.
const UNSPECIFIED: [(Mistake, u32); 2] = [(Mistake::EmptyNan, 1), (Mistake::NanSwallowed, 3)];
/// Pairs that are rejected, and not named.
const UNNAMED: [[&str; 2]; 2] = [["delta-missing", "softmax-log2e-twice"], ["causal-lost-with-mask", "query-tail-zero"]];

#[test]
fn each_mistake_is_found_alone() {
    let mut missed = Vec::new();
    let settings: Vec<Setting> = settings().into_iter().map(prepared).collect();
    for entry in CATALOGUE {
        // Unspecified results cannot be planted.
        if [Mistake::EmptyOther, Mistake::NanLeak].contains(&entry.mistake) {
            continue;
        }
        for form in entry.forms {
            if UNSPECIFIED.contains(&(entry.mistake, *form)) {
                continue;
            }
            let switches = Switches::default().with(entry.mistake, *form);
            let shown = settings.iter().map(|setting| judged(&switches, setting)).find(|report| !report.right);
            match shown.as_ref().map(ids) {
                None => missed.push(format!("{} {form}: accepted", entry.id)),
                Some(found) if found.iter().any(|set| *set == [entry.id]) => {}
                // A block that is longer than the keys: two mistakes have the same results.
                Some(_) if shown.as_ref().is_some_and(|report| no_other(report, &switches)) => {}
                Some(found) => missed.push(format!("{} {form}: {found:?}", entry.id)),
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn mistakes_of_some_calls_or_results_are_found_with_them() {
    let setting = prepared(takes("plain", Align::BottomRight));
    let only = |mistake, part, words: &str| {
        let when = if words.is_empty() { When::default() } else { When::named(words).expect("a condition") };
        Occurrence { part, when, ..Occurrence::new(mistake, 0) }
    };
    let planted = [
        only(Mistake::CausalIgnored, Part::All, "with a bias"),
        only(Mistake::MaskPolarity, Part::All, "with the causal mask"),
        only(Mistake::AlibiIgnored, Part::All, "with one query"),
        only(Mistake::SoftcapMissing, Part::All, "with several queries"),
        only(Mistake::GqaModulo, Part::All, "with one query"),
        only(Mistake::WindowIgnored, Part::All, "with sinks"),
        only(Mistake::CausalAlways, Part::Recomputed, ""),
        only(Mistake::MaskIgnored, Part::DkDv, ""),
        only(Mistake::SoftcapMissing, Part::Recomputed, ""),
        only(Mistake::EmptyNan, Part::Gradients, ""),
    ];
    let mut missed = Vec::new();
    for one in planted {
        let report = judged(&Switches::of(&[one]), &setting);
        let found = report.found.iter().any(|set| {
            let explained = report.seen.iter().all(|seen| explains(seen, &Switches::of(set), Precision::F32));
            explained && matches!(set.as_slice(), [named] if named.mistake == one.mistake && named.only().is_some())
        });
        if report.right || !found {
            missed.push(format!("{one:?}: {:?}", report.found));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Whether the mistake that was named gives the results of the planted one in every case.
fn no_other(report: &Report, planted: &Switches) -> bool {
    let run = |switches: &Switches, problem: &Problem| Planted(switches.clone()).run(problem).expect("a program");
    report.found.first().is_some_and(|set| {
        let named = Switches::of(set);
        set.len() == 1 && report.seen.iter().all(|one| same(&[run(&named, &one.problem)], &[run(planted, &one.problem)]))
    })
}

#[test]
fn fifty_random_pairs_are_found() {
    let mut rng = Rng::new(1, "pairs");
    let (mut tried, mut missed) = (0, Vec::new());
    let setting = prepared(takes("plain", Align::BottomRight));
    while tried < 50 {
        let mut pick = || {
            let entry = &CATALOGUE[rng.size(0, CATALOGUE.len() - 1)];
            (entry, entry.forms[rng.size(0, entry.forms.len() - 1)])
        };
        let ((first, a), (second, b)) = (pick(), pick());
        let single = |entry: &regard_learn::kernels::catalogue::Entry, form| Switches::default().with(entry.mistake, form);
        if [(first.mistake, a), (second.mistake, b)].iter().any(|form| UNSPECIFIED.contains(form)) {
            continue;
        }
        if first.group == second.group || [first, second].iter().any(|e| ["nan-any", "empty-not-zero"].contains(&e.group)) {
            continue;
        }
        let both = single(first, a).with(second.mistake, b);
        // A pair counts where each of the two changes something that the other does not undo.
        let result = |switches: &Switches| -> Vec<Results> {
            setting.1.iter().map(|(p, _)| Planted(switches.clone()).run(p).expect("a program")).collect()
        };
        let all = result(&both);
        if same(&all, &result(&single(first, a))) || same(&all, &result(&single(second, b))) {
            continue;
        }
        tried += 1;
        let report = judged(&both, &setting);
        let mut want = vec![first.id, second.id];
        want.sort_unstable();
        let found: Vec<Vec<&str>> = ids(&report)
            .into_iter()
            .map(|mut set| {
                set.sort_unstable();
                set
            })
            .collect();
        // Other mistakes that give the same numbers in every case are an answer, too.
        let as_good = |set: &Found| {
            let switches = Switches::of(set);
            set.len() <= 2 && report.seen.iter().all(|one| explains(one, &switches, Precision::F32))
        };
        let unnamed = !report.right && UNNAMED.iter().any(|pair| pair == want.as_slice());
        if !found.contains(&want) && !report.found.first().is_some_and(as_good) && !unnamed {
            missed.push(format!("{want:?} ({a}, {b}): {found:?}, right: {}", report.right));
        }
    }
    assert!(missed.is_empty(), "{} of 50\n{}", missed.len(), missed.join("\n"));
}

fn same(a: &[Results], b: &[Results]) -> bool {
    let close = |x: &Vec<f64>, y: &Vec<f64>| x.iter().zip(y).all(|(x, y)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() < 1e-4);
    a.iter().zip(b).all(|(a, b)| {
        a.arrays.iter().zip(&b.arrays).all(|(x, y)| match (x, y) {
            (Some(x), Some(y)) => close(x, y),
            _ => true,
        })
    })
}
