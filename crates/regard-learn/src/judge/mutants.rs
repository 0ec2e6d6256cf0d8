//! Which known mistake gives the learner's numbers: a mutant makes the mistake on every case, and is named only if it gives these numbers
//! on every case.

use super::Seen;
use super::compare::{Expected, close, evaluate};
use crate::exercise::{Exercise, Judging, Lang, Mistake};
use crate::formula::{How, MANNERS, Manners};
use crate::value::{Reply, Trouble, Value};
use std::time::{Duration, Instant};

/// Sets of one, two, three and four mistakes are drawn from this number of mutants at the front of the list, where frequent ones are.
const FROM: [usize; 4] = [usize::MAX, usize::MAX, 24, 12];

/// Cases with more input values than this are compared last.
const LARGE: usize = 1000;
/// The search for a set of mistakes ends after this time.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Mistakes that together give the learner's numbers on every case.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The mutants.
    pub mutants: Vec<&'static str>,
    /// The mistakes, the most telling first.
    pub mistakes: Vec<Mistake>,
    /// How the program is written otherwise.
    pub manners: Manners,
    /// Number of cases that it explains: all of them.
    pub explains: usize,
}

/// Whether an answer is what a formula gives, in f64 or in f32.
fn gives(lang: Lang, expected: &Result<Expected, Trouble>, reply: &Reply<f64>) -> bool {
    match (expected, reply) {
        (Err(Trouble::Shapes), Err(Trouble::Raised { .. } | Trouble::Form { .. })) => true,
        (Ok(expected), Ok(got)) => {
            let ways = std::iter::once(&expected.values).chain(&expected.honest);
            ways.into_iter()
                .any(|way| way.len() == got.len() && way.iter().zip(got).zip(&expected.tolerance).all(|((w, g), t)| alike(lang, w, g, *t)))
        }
        _ => false,
    }
}

/// Same shape and numbers; an answer in Rust has a length, but no shape. Past an overflow the order of operations decides between inf and
/// NaN.
fn alike(lang: Lang, way: &Value<f64>, got: &Value<f64>, tolerance: f64) -> bool {
    let flat = lang == Lang::Rust && way.data.len() == got.data.len();
    (way.shape == got.shape || flat)
        && way.data.iter().zip(&got.data).all(|(w, g)| close(*g, *w, tolerance) || (!w.is_finite() && !g.is_finite()))
}

impl Diagnosis {
    /// Whether these mistakes explain a case as well.
    pub fn explains(&self, exercise: &Exercise, lang: Lang, seen: &Seen) -> bool {
        !self.far_off(exercise, seen) && gives(lang, &evaluate(exercise, &seen.case, &self.mutants, self.manners), &seen.reply)
    }

    /// Most sets are refuted by two evaluations: a finite number that is a hundredth off in f64 and in f32 is not rounding. Neither alone
    /// will do: where exp overflows or underflows in f32 only, a mutant has other numbers in f64, and the learner may compute in either.
    fn far_off(&self, exercise: &Exercise, seen: &Seen) -> bool {
        let Judging::Numbers { formula, session } = &exercise.judging else { return true };
        let Ok(got) = &seen.reply else { return false };
        let how = How { manners: self.manners, ..How::with(&self.mutants) };
        let apart = |a: f64, b: f64| a.is_finite() && b.is_finite() && (a - b).abs() > 1e-2 * a.abs().max(b.abs()).max(1.0);
        let far = |mutant: &[Value<f64>]| {
            let same_size = |(t, g): &(&Value<f64>, &Value<f64>)| t.data.len() == g.data.len();
            mutant.iter().zip(got).filter(same_size).any(|(t, g)| t.data.iter().zip(&g.data).any(|(a, b)| apart(*a, *b)))
        };
        let wide = (session.f64)(&seen.case, &mut |call| (formula.f64)(call, &how));
        if !wide.is_ok_and(|mutant| far(&mutant)) {
            return false;
        }
        let narrow = (session.f32)(&seen.case, &mut |call| (formula.f32)(call, &how));
        narrow.is_ok_and(|mutant| far(&mutant.iter().map(Value::to).collect::<Vec<_>>()))
    }

    fn explains_all(&self, exercise: &Exercise, lang: Lang, seen: &[&Seen]) -> bool {
        seen.iter().all(|one| self.explains(exercise, lang, one))
    }

    /// A mutant that is as near to the oracle as to the answer says nothing: on some failed case it must stand clear of it.
    fn stands_clear(&self, exercise: &Exercise, seen: &[&Seen]) -> bool {
        seen.iter().filter(|one| one.failure.is_some()).any(|one| match evaluate(exercise, &one.case, &self.mutants, self.manners) {
            Err(_) => true,
            Ok(mutant) => {
                let pairs = mutant.values.iter().zip(&one.expected.values).zip(&mutant.tolerance);
                pairs.into_iter().any(|((t, right), tolerance)| {
                    t.shape != right.shape || t.data.iter().zip(&right.data).any(|(a, b)| !close(*a, *b, 8.0 * tolerance))
                }) || mutant.honest.iter().flatten().flat_map(|v| &v.data).any(|x| !x.is_finite())
            }
        })
    }
}

/// The smallest set of known mistakes that explains every case; single mistakes in the order of the exercise.
pub fn diagnose(exercise: &'static Exercise, lang: Lang, seen: &[Seen]) -> Option<Diagnosis> {
    // Results of the wrong form on every case have no numbers that a mistake could explain.
    if seen.iter().all(|one| matches!(one.reply, Err(Trouble::Form { .. }))) {
        return None;
    }
    // Small cases first, failed ones before others: they refute most mutants at once. Large ones cost a thousand times as much.
    let mut order: Vec<&Seen> = seen.iter().collect();
    let size = |one: &Seen| one.case.call.args.iter().map(|a| a.data.len()).sum::<usize>();
    order.sort_by_key(|one| (size(one) > LARGE, one.failure.is_none(), size(one)));
    let start = Instant::now();
    for (size, from) in (1..).zip(FROM) {
        let mut found: Option<Diagnosis> = None;
        for_each_set(&exercise.mutants[..from.min(exercise.mutants.len())], size, &mut |set| {
            if start.elapsed() > TIME_LIMIT {
                return true;
            }
            for manners in MANNERS {
                let mistakes = set.iter().map(|mutant| exercise.mistake(mutant)).collect();
                let diagnosis = Diagnosis { mutants: set.to_vec(), mistakes, manners, explains: order.len() };
                if diagnosis.explains_all(exercise, lang, &order) && diagnosis.stands_clear(exercise, &order) {
                    found = Some(diagnosis);
                    return true;
                }
            }
            false
        });
        if let Some(mut diagnosis) = found {
            // What goes wrong in every row is more telling than what goes wrong in special ones.
            diagnosis.mistakes.sort_by_key(|m| m.id.starts_with("nan-") || m.id.starts_with("empty-"));
            return Some(diagnosis);
        }
    }
    None
}

/// Sets of a given number of mutants, no two forms of one mistake, until the callback stops.
fn for_each_set(mutants: &[&'static str], size: usize, visit: &mut dyn FnMut(&[&'static str]) -> bool) {
    fn go(mutants: &[&'static str], size: usize, set: &mut Vec<&'static str>, visit: &mut dyn FnMut(&[&'static str]) -> bool) -> bool {
        if set.len() == size {
            return visit(set);
        }
        for (at, mutant) in mutants.iter().enumerate() {
            let id = |mutant: &'static str| mutant.split('/').next();
            if set.iter().any(|other| id(other) == id(mutant)) {
                continue;
            }
            set.push(mutant);
            let stop = go(&mutants[at + 1..], size, set, visit);
            set.pop();
            if stop {
                return true;
            }
        }
        false
    }
    go(mutants, size, &mut Vec::new(), visit);
}
