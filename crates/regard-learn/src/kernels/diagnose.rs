//! Comparison with the oracle, and the set of known mistakes that explains every case.

use super::catalogue::{CATALOGUE, HARD, Mistake, Switches};
use super::problem::{Problem, RESULTS, Results};
use super::program::{Precision, Run, evaluate};
use std::time::{Duration, Instant};

/// The search for a set of mistakes ends after this time.
const TIME_LIMIT: Duration = Duration::from_secs(20);
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
    let blind = if p.hard && p.merge.is_none() { blind_rows(p) } else { Vec::new() };
    let any_blind = blind.iter().any(|b| *b);
    let free_gradients = (any_blind && [Mistake::EmptyNan, Mistake::EmptyOther, Mistake::HiddenFinite].iter().any(|m| switches.on(*m)))
        || (p.hidden_nan && [Mistake::NanKey, Mistake::NanValue, Mistake::NanLeak].iter().any(|m| switches.on(*m)));
    for result in 0..RESULTS.len() {
        let (Some(want), Some(have)) = (&want.arrays[result], &got.arrays[result]) else { continue };
        if result >= 2 && free_gradients {
            continue;
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
        let wrong: Vec<usize> = (0..want.len()).filter(|&at| !right(at)).collect();
        if let Some(&at) = wrong.first() {
            let (expected, got, tolerance) = (want[at], have[at], tolerance[result]);
            return Some(Mismatch { result, at, expected, got, tolerance, wrong: [wrong.len(), want.len()] });
        }
    }
    None
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

/// Whether a program with these mistakes gives what the kernel returned, in f64 or in the kernel's type.
pub fn explains(seen: &Seen, switches: &Switches, precision: Precision) -> bool {
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
    let at = |precision: Precision, got: &Results| {
        let results = evaluate(&seen.problem, Run { switches, precision, backwards: false });
        let mut tolerance = seen.expected.tolerance;
        for (result, allowed) in tolerance.iter_mut().enumerate() {
            let size = |all: &Vec<f64>| all.iter().filter(|x| x.is_finite()).fold(0.0, |top: f64, x| top.max(x.abs()));
            let [want, have] = [&results, &seen.expected.results].map(|r| r.arrays[result].as_ref().map_or(0.0, size));
            // A mistake that makes results larger makes their rounding larger.
            *allowed *= (want / have.max(f64::MIN_POSITIVE)).clamp(1.0, 1e3);
            *allowed = allowed.max(4.0 * precision.eps() * want);
        }
        compare(&seen.problem, &results, &tolerance, got, switches).is_none()
    };
    at(Precision::F64, got) || at(precision, got)
}

/// A set of mistakes that explains every case.
pub type Found = Vec<(Mistake, u32)>;

/// The sets of known mistakes that explain every case: none, one, or several that these cases cannot tell apart.
pub fn diagnose(seen: &[Seen], precision: Precision) -> Vec<Found> {
    let judge = Search { precision, start: Instant::now() };
    let (mut core, mut hard): (Vec<&Seen>, Vec<&Seen>) = (Vec::new(), Vec::new());
    for one in seen.iter().filter(|one| !matches!(one.got, Err(Failure::Refused(_)))) {
        if matches!(one.got, Err(Failure::Raised(_) | Failure::Gone(_))) {
            return Vec::new();
        }
        if one.problem.hard { hard.push(one) } else { core.push(one) }
    }
    // Failed cases refute most sets; small ones do it fast, the smallest hardly at all.
    let order = |one: &&Seen| (!one.wrong(), one.problem.work() < 100, one.problem.work());
    core.sort_by_key(order);
    hard.sort_by_key(order);
    let mut found = Vec::new();
    for set in judge.core(&core) {
        if let Some(all) = judge.extend(&set, &hard, 0)
            && judge.all(&core, &all)
        {
            found.push(all.all().collect::<Found>());
        }
    }
    found.retain(|set| !set.is_empty());
    // Forms of the same mistakes are one answer.
    let ids = |set: &Found| set.iter().map(|(mistake, _)| *mistake).collect::<Vec<_>>();
    let mut different: Vec<Found> = Vec::new();
    for set in found {
        if !different.iter().any(|other| ids(other) == ids(&set)) {
            different.push(set);
        }
    }
    // One side of a window explains as much as both: the simpler mistake is the answer.
    let simpler = |set: &Found| -> Found {
        let side = |mistake: Mistake| match mistake {
            Mistake::WindowBothLong => Mistake::WindowLeftLong,
            Mistake::WindowBothShort => Mistake::WindowLeftShort,
            other => other,
        };
        set.iter().map(|(mistake, form)| (side(*mistake), *form)).collect()
    };
    let copy = different.clone();
    different.retain(|set| simpler(set) == *set || !copy.iter().any(|other| ids(other) == ids(&simpler(set))));
    let fewest = different.iter().map(Vec::len).min().unwrap_or(0);
    different.retain(|set| set.len() == fewest);
    different
}

struct Search {
    precision: Precision,
    start: Instant,
}

impl Search {
    fn late(&self) -> bool {
        self.start.elapsed() > TIME_LIMIT
    }

    fn all(&self, seen: &[&Seen], switches: &Switches) -> bool {
        seen.iter().all(|one| explains(one, switches, self.precision))
    }

    fn forms(hard: bool) -> Vec<(Mistake, u32)> {
        let listed = |entry: &&super::catalogue::Entry| HARD.contains(&entry.mistake) == hard;
        let mut all: Vec<(Mistake, u32)> =
            CATALOGUE.iter().filter(listed).flat_map(|entry| entry.forms.iter().map(|form| (entry.mistake, *form))).collect();
        if hard {
            all.sort_by_key(|(mistake, _)| HARD.iter().position(|one| one == mistake));
        }
        all
    }

    /// Sets that explain all ordinary cases.
    fn core(&self, core: &[&Seen]) -> Vec<Switches> {
        let none = Switches::default();
        if core.iter().all(|one| !one.wrong()) {
            return vec![none];
        }
        let forms = Self::forms(false);
        let mut found: Vec<Switches> = Vec::new();
        for (mistake, form) in &forms {
            let set = none.with(*mistake, *form);
            if self.all(core, &set) {
                found.push(set);
            }
        }
        if !found.is_empty() {
            return found;
        }
        let wrong: Vec<&Seen> = core.iter().copied().filter(|one| one.wrong()).collect();
        self.unions(core, &wrong, &forms, &mut found);
        if found.is_empty() {
            self.pairs(core, &forms, &mut found);
        }
        found
    }

    /// Mistakes that each explain some failed cases and together all: independent ones.
    fn unions(&self, core: &[&Seen], wrong: &[&Seen], forms: &[(Mistake, u32)], found: &mut Vec<Switches>) {
        let none = Switches::default();
        let sets: Vec<Switches> = forms.iter().map(|(mistake, form)| none.with(*mistake, *form)).collect();
        let explained: Vec<Vec<bool>> =
            sets.iter().map(|set| wrong.iter().map(|one| explains(one, set, self.precision)).collect()).collect();
        let useful: Vec<usize> = (0..sets.len()).filter(|&at| explained[at].contains(&true)).collect();
        for size in 2..=4 {
            let mut chosen = Vec::new();
            self.cover(core, &Cover { sets: &sets, explained: &explained, useful: &useful, size }, &mut chosen, found);
            if !found.is_empty() {
                return;
            }
        }
    }

    fn cover(&self, core: &[&Seen], cover: &Cover<'_>, chosen: &mut Vec<usize>, found: &mut Vec<Switches>) {
        if found.len() >= MOST || self.late() {
            return;
        }
        let open = (0..cover.explained[0].len()).find(|&case| !chosen.iter().any(|&at| cover.explained[at][case]));
        if chosen.len() == cover.size {
            let sets = chosen.iter().map(|&at| &cover.sets[at]);
            let union = sets.clone().try_fold(Switches::default(), |all, set| all.union(set));
            if let Some(union) = union.filter(|union| !found.contains(union) && self.all(core, union)) {
                found.push(union);
            }
            return;
        }
        // A case that none of the chosen explains needs another mistake; without such a case any may be added.
        for &at in cover.useful.iter().filter(|&&at| open.is_none_or(|case| cover.explained[at][case])) {
            if !chosen.contains(&at) {
                chosen.push(at);
                self.cover(core, cover, chosen, found);
                chosen.pop();
            }
        }
    }

    /// Any two mistakes.
    fn pairs(&self, core: &[&Seen], forms: &[(Mistake, u32)], found: &mut Vec<Switches>) {
        let none = Switches::default();
        for (at, (first, form)) in forms.iter().enumerate() {
            for (second, other) in &forms[at + 1..] {
                if first.entry().group == second.entry().group {
                    continue;
                }
                if found.len() >= MOST || self.late() {
                    return;
                }
                let set = none.with(*first, *form).with(*second, *other);
                if self.all(core, &set) {
                    found.push(set);
                }
            }
        }
    }

    /// Adds what hard cases need.
    fn extend(&self, set: &Switches, hard: &[&Seen], depth: usize) -> Option<Switches> {
        let Some(open) = hard.iter().find(|one| !explains(one, set, self.precision)) else { return Some(set.clone()) };
        if depth >= 5 || self.late() {
            return None;
        }
        let mut forms = Self::forms(true);
        if depth < 2 {
            forms.extend(Self::forms(false));
        }
        for (mistake, form) in &forms {
            if set.has_group(mistake.entry().group) {
                continue;
            }
            let more = set.with(*mistake, *form);
            if explains(open, &more, self.precision)
                && let Some(all) = self.extend(&more, hard, depth + 1)
            {
                return Some(all);
            }
        }
        None
    }
}

struct Cover<'a> {
    sets: &'a [Switches],
    explained: &'a [Vec<bool>],
    useful: &'a [usize],
    size: usize,
}
