//! Comparison with the oracle, and the set of known mistakes that explains every case.

use super::catalogue::{CATALOGUE, HARD, Mistake, Occurrence, Part, Switches};
use super::problem::{Problem, RESULTS, Results};
use super::program::{Precision, Run, evaluate};
use super::when::When;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// The search for a set of mistakes ends after this many steps, some 20 s; not after a time, so that a busy machine finds the same.
const STEPS: usize = 1_500_000_000;
/// Cases of at most this much work are run with every known mistake.
const SMALL: usize = 15_000;
/// Mistakes that hard cases add to a set, at most.
const DEEPEST: usize = 5;
/// Conditions that are tried where several separate the calls with a mistake from the others.
const CONDITIONS: usize = 4;
/// Sets that explain everything equally well, at most this many are kept.
const MOST: usize = 6;

/// Why a kernel gave no results.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// An exception by which a kernel refuses what it does not support.
    Refused(String),
    /// Any other exception.
    Raised(String),
    /// A result of another shape.
    Shape(String),
    /// Timeout, crash, memory: the process is gone.
    Gone(String),
}

/// What is right for a case, and how far an honest result may be from it.
#[derive(Clone, Debug)]
pub struct Expected {
    pub results: Results,
    pub tolerance: [f64; 6],
    /// Largest error of the naive computation in the same type.
    pub naive: [f64; 6],
}

/// A wrong element.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    pub result: usize,
    pub at: usize,
    pub expected: f64,
    pub got: f64,
    pub tolerance: f64,
    /// How many elements of this result are wrong, and of how many.
    pub wrong: [usize; 2],
}

/// A case and what a kernel returned.
#[derive(Clone, Debug)]
pub struct Seen {
    pub problem: Problem,
    pub expected: Expected,
    pub got: Result<Results, Failure>,
    pub mismatch: Option<Mismatch>,
}

impl Seen {
    pub fn new(problem: Problem, precision: Precision, got: Result<Results, Failure>) -> Self {
        let expected = expect(&problem, precision);
        Self::compared(problem, expected, got)
    }

    /// With expectations that were computed before.
    pub fn compared(problem: Problem, expected: Expected, got: Result<Results, Failure>) -> Self {
        let mismatch =
            got.as_ref().ok().and_then(|got| compare(&problem, &expected.results, &expected.tolerance, got, &Switches::default()));
        Self { problem, expected, got, mismatch }
    }

    pub fn wrong(&self) -> bool {
        self.mismatch.is_some() || matches!(self.got, Err(Failure::Raised(_) | Failure::Shape(_) | Failure::Gone(_)))
    }

    /// Largest error over that of the naive computation.
    pub fn ratio(&self) -> Option<f64> {
        let got = self.got.as_ref().ok()?;
        let mut worst: Option<f64> = None;
        for at in 0..RESULTS.len() {
            let (Some(want), Some(have)) = (&self.expected.results.arrays[at], &got.arrays[at]) else { continue };
            let errors = want.iter().zip(have).map(|(a, b)| (a - b).abs()).filter(|e| e.is_finite());
            let floor = self.expected.tolerance[at] / 64.0;
            let ratio = errors.fold(0.0, f64::max) / self.expected.naive[at].max(floor).max(f64::MIN_POSITIVE);
            worst = Some(worst.map_or(ratio, |w| w.max(ratio)));
        }
        worst
    }
}

/// The oracle's results, and their tolerance: 4 E + 16 eps A, where E is the largest error of naive evaluations in the kernel's type and A
/// the size of the terms.
pub fn expect(problem: &Problem, precision: Precision) -> Expected {
    let none = Switches::default();
    let results = evaluate(problem, Run { switches: &none, precision: Precision::F64, backwards: false });
    let (mut naive, mut tolerance) = ([0.0; 6], [0.0; 6]);
    for backwards in [false, true] {
        let rounded = evaluate(problem, Run { switches: &none, precision, backwards });
        for (at, largest) in naive.iter_mut().enumerate() {
            if let (Some(a), Some(b)) = (&results.arrays[at], &rounded.arrays[at]) {
                let errors = a.iter().zip(b).map(|(a, b)| (a - b).abs()).filter(|e| e.is_finite());
                *largest = errors.fold(*largest, f64::max);
            }
        }
    }
    let sizes = magnitudes(problem);
    for at in 0..RESULTS.len() {
        tolerance[at] = 4.0 * naive[at] + 16.0 * precision.eps() * sizes[at];
    }
    Expected { results, tolerance, naive }
}

/// Size of the terms that each result is a sum of.
fn magnitudes(p: &Problem) -> [f64; 6] {
    let largest = |all: &[f64]| all.iter().filter(|x| x.is_finite()).fold(0.0, |top: f64, x| top.max(x.abs()));
    if let Some(parts) = &p.merge {
        let out = largest(&parts.out[0]).max(largest(&parts.out[1]));
        let lse = largest(&parts.lse[0]).max(largest(&parts.lse[1]));
        return [out * (1.0 + lse.min(64.0)), 1.0 + lse, 0.0, 0.0, 0.0, 0.0];
    }
    let [d, dv] = p.dims.map(|d| d as f64);
    let scale = p.scale.unwrap_or(1.0 / d.sqrt()).abs();
    let row = p.k_scale.as_deref().map_or(1.0, largest);
    let (q, k, v) = (largest(&p.q), largest(&p.k) * row, largest(&p.v));
    // Terms of a dot product of random signs: sqrt(d) of them count.
    let score = q * k * d.sqrt() * scale + p.bias.as_ref().map_or(0.0, |bias| largest(&bias.data));
    let amplified = 1.0 + score.min(64.0);
    let d_out = p.d_out.as_deref().map_or(0.0, largest);
    let d_weight = d_out * v * dv.sqrt();
    [
        v * amplified,
        1.0 + score,
        d_weight * k * scale * amplified,
        d_weight * q * scale * amplified,
        d_out * amplified,
        d_weight * amplified,
    ]
}

/// Whether a number may stand for another.
fn close(got: f64, expected: f64, tolerance: f64) -> bool {
    got == expected || (got.is_nan() && expected.is_nan()) || (got - expected).abs() <= tolerance
}

/// The first wrong element. With switches for unspecified results, these may be anything.
pub fn compare(p: &Problem, want: &Results, tolerance: &[f64; 6], got: &Results, switches: &Switches) -> Option<Mismatch> {
    if p.dropout_fault.is_some_and(|fault| !switches.on(fault)) {
        let share = p.kept_share();
        let expected = 1.0 - p.dropout;
        return Some(Mismatch { result: 0, at: 0, expected, got: share, tolerance: 0.0, wrong: [1, 1] });
    }
    let blind = if p.hard && p.merge.is_none() { blind_rows(p) } else { Vec::new() };
    (0..RESULTS.len()).find_map(|result| differs(p, [want, got], tolerance, (result, &blind), &switches.made_for(result)))
}

/// The first wrong element of one result; `switches` are the mistakes that are made where it is computed.
fn differs(
    p: &Problem,
    [want, got]: [&Results; 2],
    tolerance: &[f64; 6],
    (result, blind): (usize, &[bool]),
    switches: &Switches,
) -> Option<Mismatch> {
    let have_out = got.named("out");
    let (Some(want), Some(have)) = (&want.arrays[result], &got.arrays[result]) else { return None };
    let any = |list: &[Mistake]| list.iter().any(|mistake| switches.on(*mistake));
    // A row that sees nothing and is 0 has no wrong output that its gradient could follow.
    let not_zero = || {
        let out = have_out.map_or(&[][..], |out| out.as_slice());
        out.chunks(p.dims[1].max(1)).zip(blind).any(|(row, blind)| *blind && row.iter().any(|x| *x != 0.0))
    };
    let free_gradients = (blind.contains(&true) && any(&[Mistake::EmptyNan, Mistake::HiddenFinite]))
        || (blind.contains(&true) && switches.on(Mistake::EmptyOther) && not_zero())
        || (p.hidden_nan && any(&[Mistake::NanKey, Mistake::NanValue, Mistake::NanLeak]));
    if result >= 2 && free_gradients {
        return None;
    }
    let width = if result == 0 { p.dims[1] } else { 1 };
    let right = |at: usize| {
        let (got, expected) = (have[at], want[at]);
        let row_blind = result < 2 && blind.get(at / width) == Some(&true);
        match result {
            _ if row_blind && switches.on(Mistake::EmptyOther) => true,
            _ if row_blind && switches.form(Mistake::EmptyNan) == Some(1) && got.is_nan() => true,
            _ if expected.is_nan() && switches.form(Mistake::NanSwallowed) == Some(3) => true,
            // The log-sum-exp of no keys is not judged, but for NaN of merged states.
            1 if expected == f64::NEG_INFINITY => row_blind || !got.is_nan(),
            0 if row_blind && switches.is_empty() => got == 0.0,
            _ if p.hidden_nan && switches.on(Mistake::NanLeak) && got.is_nan() => true,
            _ => close(got, expected, tolerance[result]),
        }
    };
    let mut wrong = (0..want.len()).filter(|&at| !right(at));
    let at = wrong.next()?;
    let (expected, got, tolerance) = (want[at], have[at], tolerance[result]);
    Some(Mismatch { result, at, expected, got, tolerance, wrong: [1 + wrong.count(), want.len()] })
}

fn blind_rows(p: &Problem) -> Vec<bool> {
    let mut rows = vec![false; p.tokens()[0] * p.heads[0]];
    for (s, segment) in p.segments.iter().enumerate() {
        for i in 0..segment.n {
            for h in 0..p.heads[0] {
                rows[(segment.q0 + i) * p.heads[0] + h] = p.blind(s, h, i);
            }
        }
    }
    rows
}

/// Mistakes that put results at other places: the weights that a kernel dropped cannot be read from its results, which then say nothing.
const MOVED: &[Mistake] = &[Mistake::HeadsViewed, Mistake::TailNext, Mistake::QueryTail, Mistake::BatchLast];

/// Whether a program with these mistakes gives what the kernel returned, in f64 or in the kernel's type.
pub fn explains(seen: &Seen, switches: &Switches, precision: Precision) -> bool {
    explained(seen, &switches.made_in(&seen.problem), precision)
}

/// The same with the mistakes that are made in this call.
fn explained(seen: &Seen, switches: &Switches, precision: Precision) -> bool {
    let p = &seen.problem;
    let got = match &seen.got {
        Ok(got) => got,
        Err(Failure::Refused(_)) => return true,
        // Gradients that are exchanged have each other's shapes.
        Err(Failure::Shape(_)) => {
            let swapped = switches.on(Mistake::DkDvSwapped) && p.dims[0] != p.dims[1];
            return swapped || (switches.on(Mistake::DqDkSwapped) && p.q.len() != p.k.len());
        }
        Err(_) => return false,
    };
    if switches.is_empty() {
        return seen.mismatch.is_none();
    }
    if p.dropout > 0.0 && MOVED.iter().any(|mistake| switches.on(*mistake)) {
        return true;
    }
    let at = |precision: Precision, got: &Results| {
        let results = evaluate(&seen.problem, Run { switches, precision, backwards: false });
        let mut tolerance = seen.expected.tolerance;
        for (result, allowed) in tolerance.iter_mut().enumerate() {
            let size = |all: &Vec<f64>| all.iter().filter(|x| x.is_finite()).fold(0.0, |top: f64, x| top.max(x.abs()));
            let [want, have] = [&results, &seen.expected.results].map(|r| r.arrays[result].as_ref().map_or(0.0, size));
            // A mistake that makes results larger makes their rounding larger.
            *allowed *= (want / have.max(f64::MIN_POSITIVE)).clamp(1.0, 1e9);
            *allowed = allowed.max(4.0 * precision.eps() * want);
            // A weight may be rounded to the other side.
            if switches.on(Mistake::Rounded) && switches.form(Mistake::Rounded).is_some_and(|form| form > 1) {
                let half = switches.form(Mistake::Rounded).unwrap_or(0).is_multiple_of(2);
                *allowed += want * if half { 2f64.powi(-11) } else { 2f64.powi(-8) };
            }
        }
        compare(&seen.problem, &results, &tolerance, got, switches).is_none()
    };
    at(Precision::F64, got) || at(precision, got)
}

/// A set of mistakes that explains every case.
pub type Found = Vec<Occurrence>;

/// The sets of known mistakes that explain every case: none, one, or several that these cases cannot tell apart.
pub fn diagnose(seen: &[Seen], precision: Precision) -> Vec<Found> {
    let mut cases: Vec<&Seen> = seen.iter().filter(|one| !matches!(one.got, Err(Failure::Refused(_)))).collect();
    if cases.iter().any(|one| matches!(one.got, Err(Failure::Raised(_) | Failure::Gone(_)))) {
        return Vec::new();
    }
    // Failed cases refute most sets; small ones do it fast, the smallest hardly at all.
    cases.sort_by_key(|one| (!one.wrong(), one.problem.work() < 100, one.problem.work()));
    let of = |hard: bool| (0..cases.len()).filter(|&at| cases[at].problem.hard == hard).collect::<Vec<usize>>();
    let (core, hard) = (of(false), of(true));
    let (explained, parts) = (RefCell::default(), parts(&cases));
    let mut search = Search { precision, cases, core, hard, stage: Stage::Plain, parts, steps: Cell::new(0), explained };
    for stage in [Stage::Plain, Stage::Restricted, Stage::Unusual, Stage::Independent, Stage::Pairs] {
        search.stage = stage;
        let found = search.found();
        if !found.is_empty() {
            return simplest(found);
        }
    }
    Vec::new()
}

/// Where mistakes may be made: everywhere, or where all wrong results are computed.
fn parts(cases: &[&Seen]) -> Vec<Part> {
    let none = Switches::default();
    let (mut wrong, mut there) = ([false; RESULTS.len()], [false; RESULTS.len()]);
    for one in cases {
        let Ok(got) = &one.got else { continue };
        let blind = if one.problem.hard && one.problem.merge.is_none() { blind_rows(&one.problem) } else { Vec::new() };
        for result in 0..RESULTS.len() {
            there[result] |= got.arrays[result].is_some();
            let places = [&one.expected.results, got];
            wrong[result] |= differs(&one.problem, places, &one.expected.tolerance, (result, &blind), &none).is_some();
        }
    }
    let fits = |part: &Part| {
        let all = (0..RESULTS.len()).all(|result| !wrong[result] || part.makes(result));
        // What a part makes alone is wrong somewhere.
        all && (2..5).any(|result| there[result]) && (*part != Part::Forward || wrong[..2].contains(&true))
    };
    let mut parts = vec![Part::All];
    parts.extend(Part::CONFINED.into_iter().filter(fits));
    parts
}

/// The sets of the fewest mistakes, each once.
fn simplest(found: Vec<Found>) -> Vec<Found> {
    // Forms of the same mistakes are one answer.
    let ids = |set: &Found| set.iter().map(|one| one.mistake).collect::<Vec<_>>();
    let mut different: Vec<Found> = Vec::new();
    for set in found {
        if !different.iter().any(|other| ids(other) == ids(&set)) {
            different.push(set);
        }
    }
    // One side of a window explains as much as both, and a hidden NaN as much as any that leaks: the simpler mistake is the answer.
    let simpler = |set: &Found| -> Found {
        let side = |mistake: Mistake| match mistake {
            Mistake::WindowBothLong => Mistake::WindowLeftLong,
            Mistake::WindowBothShort => Mistake::WindowLeftShort,
            other => other,
        };
        set.iter().map(|one| Occurrence { mistake: side(one.mistake), ..*one }).collect()
    };
    let copy = different.clone();
    different.retain(|set| simpler(set) == *set || !copy.iter().any(|other| ids(other) == ids(&simpler(set))));
    // Without rows that see nothing, a finite number in place of -inf shows by a hidden NaN only, which leaks by its value.
    let by_value = |set: &Found| -> Vec<Mistake> {
        let mut ids: Vec<Mistake> =
            set.iter().map(|one| if one.mistake == Mistake::HiddenFinite { Mistake::NanValue } else { one.mistake }).collect();
        ids.sort_unstable();
        ids
    };
    let copy = different.clone();
    different.retain(|set| ids(set) == by_value(set) || !copy.iter().any(|other| ids(other) == by_value(set)));
    // What may be anything explains more than what is exact: it is the answer only where nothing exact is.
    let vague = |set: &Found| set.iter().filter(|one| VAGUE.contains(&(one.mistake, one.form))).count();
    let restricted = |set: &Found| set.iter().map(Occurrence::restrictions).sum::<usize>();
    // With tiles as long as the keys, a mistake of tiles is one without them.
    let tiles = |set: &Found| set.iter().filter(|one| one.mistake.entry().forms.len() > 3).count();
    let rank = |set: &Found| (set.len(), vague(set), restricted(set), tiles(set));
    let best = different.iter().map(rank).min().unwrap_or_default();
    different.retain(|set| rank(set) == best);
    different.truncate(MOST);
    different
}

/// Mistakes whose results may be anything.
const VAGUE: &[(Mistake, u32)] = &[
    (Mistake::EmptyOther, 0),
    (Mistake::EmptyNan, 1),
    (Mistake::NanLeak, 0),
    (Mistake::NanSwallowed, 3),
    (Mistake::Rounded, 2),
    (Mistake::Rounded, 3),
    (Mistake::Rounded, 4),
    (Mistake::Rounded, 5),
];

/// Mistakes that are made in a case, and its place.
type Key = (Vec<Occurrence>, usize);

/// What is searched, the simplest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// One mistake, and what hard cases add to it.
    Plain,
    /// In some calls or results only.
    Restricted,
    /// Tiles of unusual sizes.
    Unusual,
    /// Several mistakes, each of which explains some cases by itself.
    Independent,
    /// Two mistakes that explain cases only together.
    Pairs,
}

struct Search<'a> {
    precision: Precision,
    /// Judged cases in the order in which they are tried.
    cases: Vec<&'a Seen>,
    /// Places of the ordinary and of the hard ones.
    core: Vec<usize>,
    hard: Vec<usize>,
    stage: Stage,
    /// Where mistakes may be made, by the results that are wrong.
    parts: Vec<Part>,
    steps: Cell<usize>,
    /// Whether a set explains a case.
    explained: RefCell<HashMap<Key, bool>>,
}

impl Search<'_> {
    /// Sets that explain every case, those with the fewest hard mistakes.
    fn found(&self) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        let sets = self.core();
        let deepest = if self.stage == Stage::Independent { 3 } else { DEEPEST };
        for depth in 0..=deepest {
            for set in &sets {
                self.extend(set, [0, depth], &mut found);
            }
            found.retain(|set| !set.is_empty());
            if !found.is_empty() {
                break;
            }
        }
        found
    }

    fn late(&self) -> bool {
        self.steps.get() > STEPS
    }

    fn explains(&self, set: &Switches, case: usize) -> bool {
        let seen = self.cases[case];
        let made = set.made_in(&seen.problem);
        if made.is_empty() {
            return !seen.wrong();
        }
        let key = (made.all().to_vec(), case);
        if let Some(known) = self.explained.borrow().get(&key) {
            return *known;
        }
        self.steps.set(self.steps.get() + 200 + 2 * seen.problem.work());
        let holds = explained(seen, &made, self.precision);
        self.explained.borrow_mut().insert(key, holds);
        holds
    }

    fn all(&self, cases: &[usize], set: &Switches) -> bool {
        cases.iter().all(|&case| self.explains(set, case))
    }

    fn forms(&self, hard: bool) -> Vec<Occurrence> {
        // Windows and masks of ordinary cases hide first tiles, too.
        let first = |entry: &super::catalogue::Entry| entry.group == "first";
        let listed = |entry: &&super::catalogue::Entry| HARD.contains(&entry.mistake) == hard || (!hard && first(entry));
        let mut all: Vec<Occurrence> = CATALOGUE
            .iter()
            .filter(listed)
            .flat_map(|entry| entry.forms.iter().map(|form| Occurrence::new(entry.mistake, *form)))
            .collect();
        if self.stage == Stage::Unusual {
            all.extend(
                CATALOGUE.iter().filter(listed).flat_map(|entry| entry.unusual_tiles().map(|form| Occurrence::new(entry.mistake, form))),
            );
        }
        if hard {
            all.sort_by_key(|one| HARD.iter().position(|mistake| *mistake == one.mistake));
        }
        all
    }

    /// Sets that explain all ordinary cases.
    fn core(&self) -> Vec<Switches> {
        let none = Switches::default();
        if self.core.iter().all(|&case| !self.cases[case].wrong()) {
            return vec![none];
        }
        let forms = self.forms(false);
        let sets: Vec<Switches> = forms.iter().map(|one| none.and(*one)).collect();
        let mut found: Vec<Switches> = sets.iter().filter(|set| self.all(&self.core, set)).cloned().collect();
        match self.stage {
            Stage::Plain | Stage::Unusual => {}
            Stage::Restricted => {
                let parts = self.parts.iter().flat_map(|part| forms.iter().map(|one| Occurrence { part: *part, ..*one }));
                found.extend(parts.flat_map(|one| self.when(&none, one, &self.core)));
            }
            Stage::Independent => found.push(none),
            Stage::Pairs => {
                let table = self.table(&sets);
                for size in 2..=4 {
                    self.cover(&Cover { sets: &sets, table: &table, size }, &mut Vec::new(), &mut found);
                    if size == 2 && found.is_empty() {
                        self.pairs(&sets, &table, &mut found);
                    }
                    if !found.is_empty() {
                        break;
                    }
                }
            }
        }
        found
    }

    /// The set with one more mistake, in those calls that make it explain all of these cases which are wrong.
    fn when(&self, set: &Switches, one: Occurrence, cases: &[usize]) -> Vec<Switches> {
        let more = set.and(one);
        let open: Vec<usize> = cases.iter().copied().filter(|&case| !self.explains(set, case)).collect();
        if open.is_empty() || !self.all(&open, &more) {
            return Vec::new();
        }
        let [mut made, mut not] = [Vec::new(), Vec::new()];
        open.iter().for_each(|&case| made.push(&self.cases[case].problem));
        for &case in self.core.iter().chain(&self.hard).filter(|&case| !open.contains(case)) {
            if self.explains(set, case) && !self.explains(&more, case) {
                not.push(&self.cases[case].problem);
            }
        }
        if not.is_empty() {
            return vec![more];
        }
        When::between(&made, &not).into_iter().take(CONDITIONS).map(|when| set.and(Occurrence { when, ..one })).collect()
    }

    /// What each mistake alone does to the small ordinary cases.
    fn table(&self, sets: &[Switches]) -> Vec<Vec<Effect>> {
        let small: Vec<usize> = self.core.iter().copied().filter(|&case| self.cases[case].problem.work() <= SMALL).collect();
        let effect = |set: &Switches, case: usize| {
            let seen = self.cases[case];
            let results = evaluate(&seen.problem, Run { switches: set, precision: Precision::F64, backwards: false });
            let same = compare(&seen.problem, &results, &seen.expected.tolerance, &seen.expected.results, &Switches::default()).is_none();
            Effect { case, touches: !same, explains: if same { !seen.wrong() } else { self.explains(set, case) } }
        };
        sets.iter().map(|set| small.iter().map(|&case| effect(set, case)).collect()).collect()
    }

    /// Whether two mistakes may explain the small cases: exact where only one of them changes a case.
    fn may(&self, [a, b]: [&[Effect]; 2], union: &Switches) -> bool {
        let one = |(a, b): (&Effect, &Effect)| match [a.touches, b.touches] {
            [true, true] => true,
            [true, false] => a.explains,
            [false, true] => b.explains,
            [false, false] => !self.cases[a.case].wrong(),
        };
        let both = |(a, b): (&Effect, &Effect)| !(a.touches && b.touches) || self.explains(union, a.case);
        a.iter().zip(b).all(one) && a.iter().zip(b).all(both)
    }

    /// Mistakes that each explain some failed cases and together all: independent ones.
    fn cover(&self, cover: &Cover<'_>, chosen: &mut Vec<usize>, found: &mut Vec<Switches>) {
        if found.len() >= MOST || self.late() {
            return;
        }
        let rows = cover.table[0].len();
        let wrong = |row: usize| self.cases[cover.table[0][row].case].wrong();
        let explained = |at: usize, row: usize| cover.table[at][row].touches && cover.table[at][row].explains;
        let open = (0..rows).filter(|&row| wrong(row)).find(|&row| !chosen.iter().any(|&at| explained(at, row)));
        if chosen.len() == cover.size {
            let sets = chosen.iter().map(|&at| &cover.sets[at]);
            let union = sets.clone().try_fold(Switches::default(), |all, set| all.union(set));
            if let Some(union) = union.filter(|union| open.is_none() && !found.contains(union) && self.all(&self.core, union)) {
                found.push(union);
            }
            return;
        }
        // A case that none of the chosen explains needs another mistake.
        let Some(row) = open else { return };
        for at in (0..cover.sets.len()).filter(|&at| explained(at, row)) {
            if !chosen.contains(&at) {
                chosen.push(at);
                self.cover(cover, chosen, found);
                chosen.pop();
            }
        }
    }

    /// Any two mistakes.
    fn pairs(&self, sets: &[Switches], table: &[Vec<Effect>], found: &mut Vec<Switches>) {
        for first in 0..sets.len() {
            for second in first + 1..sets.len() {
                if found.len() >= MOST || self.late() {
                    return;
                }
                let Some(union) = sets[first].union(&sets[second]) else { continue };
                if self.may([&table[first], &table[second]], &union) && self.all(&self.core, &union) {
                    found.push(union);
                }
            }
        }
    }

    /// Adds what hard cases need: so far `added` mistakes, up to `depth`.
    fn extend(&self, set: &Switches, [added, depth]: [usize; 2], found: &mut Vec<Found>) {
        let Some(&open) = self.core.iter().chain(&self.hard).find(|&&case| !self.explains(set, case)) else {
            let whole: Found = set.all().to_vec();
            if !found.contains(&whole) {
                found.push(whole);
            }
            return;
        };
        if added == depth || found.len() >= MOST || self.late() {
            return;
        }
        let ordinary = if added < 2 && self.stage != Stage::Unusual { self.forms(false) } else { Vec::new() };
        let restricted = matches!(self.stage, Stage::Restricted | Stage::Independent);
        let parts = if restricted { self.parts.as_slice() } else { &[] };
        for one in self.forms(true).into_iter().chain(ordinary) {
            if set.has_group(one.mistake.entry().group) {
                continue;
            }
            let more = set.and(one);
            if self.explains(&more, open) {
                self.extend(&more, [added + 1, depth], found);
            }
            for part in parts {
                let one = Occurrence { part: *part, ..one };
                for more in self.when_open(set, one, open) {
                    self.extend(&more, [added + 1, depth], found);
                }
            }
        }
    }

    /// The set with a mistake that explains a hard case, in calls that leave alone what the set explains.
    fn when_open(&self, set: &Switches, one: Occurrence, open: usize) -> Vec<Switches> {
        let more = set.and(one);
        if VAGUE.contains(&(one.mistake, one.form)) || !self.explains(&more, open) {
            return Vec::new();
        }
        let spoils = |case: &&usize| self.explains(set, **case) && !self.explains(&more, **case);
        let not: Vec<&Problem> = self.core.iter().chain(&self.hard).filter(spoils).map(|&case| &self.cases[case].problem).collect();
        if not.is_empty() {
            return if one.part == Part::All { Vec::new() } else { vec![more] };
        }
        // A condition that explains more of the other wrong cases is the better one.
        let mut sets: Vec<Switches> =
            When::between(&[&self.cases[open].problem], &not).into_iter().map(|when| set.and(Occurrence { when, ..one })).collect();
        let left = |set: &Switches| self.core.iter().chain(&self.hard).filter(|&&case| !self.explains(set, case)).count();
        sets.sort_by_cached_key(left);
        sets.truncate(CONDITIONS);
        sets
    }
}

/// What a mistake alone does to a case: whether its results change, and whether they are then the kernel's.
struct Effect {
    case: usize,
    touches: bool,
    explains: bool,
}

struct Cover<'a> {
    sets: &'a [Switches],
    table: &'a [Vec<Effect>],
    size: usize,
}
