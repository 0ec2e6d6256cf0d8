//! Facts about an answer that no known mistake explains. Each is measured on what was seen; none is a guess.

use super::compare::close;
use super::{Failure, Seen, run_case};
use crate::exercise::Exercise;
use crate::runner::Runner;
use crate::value::Value;
use std::collections::BTreeSet;

/// A failed case with numbers of the right shape.
struct Wrong<'a> {
    seen: &'a Seen,
    got: &'a [Value<f64>],
}

impl Wrong<'_> {
    fn result(&self, r: usize) -> (&Value<f64>, &Value<f64>, f64) {
        (&self.got[r], &self.seen.expected.values[r], self.seen.expected.tolerance[r])
    }
}

/// What holds of the answer.
pub(super) fn facts(exercise: &Exercise, runner: &mut Runner<'_>, all: &[Seen]) -> Vec<String> {
    let failed: Vec<&Seen> = all.iter().filter(|s| s.failure.is_some()).collect();
    let numbers = |s: &&&Seen| matches!(s.failure, Some(Failure::Numbers { .. }));
    let wrong: Vec<Wrong<'_>> =
        failed.iter().filter(numbers).filter_map(|&seen| Some(Wrong { seen, got: seen.reply.as_ref().ok()? })).collect();
    let mut facts: Vec<String> = failed
        .iter()
        .find_map(|s| match &s.failure {
            Some(Failure::Shape { text, .. }) => Some(text.clone()),
            _ => None,
        })
        .into_iter()
        .collect();
    facts.extend(unsteady(exercise, runner, &wrong));
    facts.extend(precision(runner));
    for r in 0..wrong.first().map_or(0, |w| w.got.len()) {
        let name = exercise.judged(r);
        if wrong.iter().all(|w| !differs(w, r)) {
            facts.push(format!("{name} is right in every case"));
            continue;
        }
        let here: Vec<&Wrong<'_>> = wrong.iter().filter(|w| differs(w, r)).collect();
        facts.extend(emptiness(name, &here, r));
        facts.extend(ratio(exercise, name, &here, r));
        facts.extend(turned(name, &here, r));
        facts.extend(sums(name, &here, r));
        facts.extend(rows(name, &here, r));
        facts.extend(returned_input(exercise, name, &here, r));
        facts.extend(not_numbers(name, &here, r));
        facts.extend(permuted(name, &here, r));
    }
    facts.extend(bits(exercise, &failed));
    facts.extend(where_wrong(exercise, all, &failed));
    facts
}

fn differs(w: &Wrong<'_>, r: usize) -> bool {
    let (got, want, tolerance) = w.result(r);
    got.data.iter().zip(&want.data).any(|(g, x)| !close(*g, *x, tolerance))
}

fn unsteady(exercise: &Exercise, runner: &mut Runner<'_>, wrong: &[Wrong<'_>]) -> Option<String> {
    let first = wrong.first()?;
    let second = run_case(exercise, runner, &first.seen.case).ok()?;
    let moved = |r: usize| second[r].data.iter().zip(&first.got[r].data).any(|(a, b)| !close(*a, *b, first.seen.expected.tolerance[r]));
    let r = (0..second.len().min(first.got.len())).find(|&r| second[r].shape == first.got[r].shape && moved(r))?;
    Some(format!("{} differs from call to call with the same inputs", exercise.judged(r)))
}

fn precision(runner: &Runner<'_>) -> Option<String> {
    let coarse =
        runner.dtypes.iter().find(|d| ["float16", "bfloat16"].contains(&d.as_str()) || d.starts_with("int") || d.starts_with("uint"))?;
    Some(format!("a result is of type {coarse}, which cannot hold it: return float32 or float64"))
}

fn emptiness(name: &str, here: &[&Wrong<'_>], r: usize) -> Option<String> {
    let all = |test: fn(&f64) -> bool| here.iter().all(|w| w.got[r].data.iter().all(test));
    if all(|x| *x == 0.0) {
        return Some(format!("{name} is 0 everywhere in the cases where it is wrong"));
    }
    if all(|x| x.is_nan()) {
        return Some(format!("{name} is NaN everywhere in the cases where it is wrong"));
    }
    let constant = |w: &&Wrong<'_>| w.got[r].data.len() > 1 && w.got[r].data.windows(2).all(|pair| pair[0] == pair[1]);
    here.iter().all(constant).then(|| format!("{name} has the same number everywhere in each case where it is wrong"))
}

/// A function of a dimension.
type Form = fn(f64) -> f64;

/// A constant factor within each case, and what it is of the dimensions if that holds in all.
fn ratio(exercise: &Exercise, name: &str, here: &[&Wrong<'_>], r: usize) -> Option<String> {
    let mut factors = Vec::new();
    for w in here {
        let (got, want, tolerance) = w.result(r);
        let (at, _) = want.data.iter().enumerate().filter(|(_, x)| x.is_finite()).max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
        let factor = got.data[at] / want.data[at];
        let holds = got.data.iter().zip(&want.data).all(|(g, x)| close(*g, factor * x, 4.0 * tolerance * factor.abs().max(1.0)));
        // One number is in proportion to anything.
        if !factor.is_finite() || factor == 0.0 || !holds {
            return None;
        }
        factors.push((factor, &w.seen.case.call.dims, want.data.iter().filter(|x| x.abs() > 8.0 * tolerance).count()));
    }
    if factors.iter().map(|f| f.2).max()? < 2 {
        return None;
    }
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.abs();
    let forms: [(&str, Form); 4] = [("", |x| x), ("1/", |x| 1.0 / x), ("sqrt ", f64::sqrt), ("1/sqrt ", |x| 1.0 / x.sqrt())];
    if factors.len() > 1 && factors.iter().any(|f| !near(f.0, factors[0].0)) {
        for (at, dim) in exercise.dims.iter().enumerate() {
            for (words, form) in forms {
                if factors.iter().all(|(factor, dims, _)| near(*factor, form(dims[at] as f64))) {
                    return Some(format!("{name} is {words}{dim} times what it must be, in every case where it is wrong"));
                }
            }
        }
        return Some(format!(
            "{name} is in proportion to what it must be, with another factor in each case ({:.3}, {:.3}, ..)",
            factors[0].0, factors[1].0
        ));
    }
    Some(format!("{name} is {:.4} times what it must be, in every case where it is wrong", factors[0].0))
}

fn turned(name: &str, here: &[&Wrong<'_>], r: usize) -> Option<String> {
    let holds = |w: &&Wrong<'_>| {
        let (got, want, tolerance) = w.result(r);
        want.shape.len() == 2 && alike(&Value { shape: vec![want.shape[1], want.shape[0]], ..got.clone() }.transposed(), want, tolerance)
    };
    here.iter()
        .all(holds)
        .then(|| format!("{name} holds the right numbers with rows and columns exchanged, in every case where it is wrong"))
}

fn alike(a: &Value<f64>, b: &Value<f64>, tolerance: f64) -> bool {
    a.shape == b.shape && a.data.iter().zip(&b.data).all(|(x, y)| close(*x, *y, tolerance))
}

/// Sums of rows and columns, where the right rows sum to 1.
fn sums(name: &str, here: &[&Wrong<'_>], r: usize) -> Option<String> {
    let total = |row: &[f64]| row.iter().sum::<f64>();
    let unit = |x: f64| (x - 1.0).abs() < 1e-3 || x == 0.0;
    let right = |w: &&Wrong<'_>| {
        let (_, want, _) = w.result(r);
        want.width() > 1 && want.rows() > 0 && (0..want.rows()).all(|i| unit(total(want.row(i))) || total(want.row(i)).is_nan())
    };
    if !name.contains("weights") && name != "result" || !here.iter().all(right) {
        return None;
    }
    let bad = here.iter().find_map(|w| {
        let (got, want, _) = w.result(r);
        (0..got.rows())
            .map(|i| (i, total(got.row(i)), total(want.row(i))))
            .find(|(_, sum, right)| right.is_finite() && (sum - right).abs() > 1e-3)
    });
    let every = here.iter().all(|w| {
        let (got, want, _) = w.result(r);
        (0..got.rows()).all(|i| (total(got.row(i)) - total(want.row(i))).abs() <= 1e-3)
    });
    let columns = here.iter().all(|w| {
        let turned = w.result(r).0.transposed();
        (0..turned.rows()).all(|i| (total(turned.row(i)) - 1.0).abs() < 1e-3)
    });
    match bad {
        Some(_) if columns => Some(format!("columns of {name} sum to 1, rows do not, in the cases where it is wrong")),
        Some((i, sum, right)) => Some(format!("row {i} of {name} sums to {sum:.4} in one case, where it must be {right:.0}")),
        None => every.then(|| format!("rows of {name} sum to what they must, also where it is wrong")),
    }
}

/// Which rows are wrong, where not all of a case are. In three dimensions a row is named by its first two places.
fn rows(name: &str, here: &[&Wrong<'_>], r: usize) -> Option<String> {
    let bad = |w: &Wrong<'_>| {
        let (got, want, tolerance) = w.result(r);
        let wrong = |i: &usize| got.row(*i).iter().zip(want.row(*i)).any(|(g, x)| !close(*g, *x, tolerance));
        (0..want.rows()).filter(wrong).collect::<Vec<usize>>()
    };
    let wanted = |w: &Wrong<'_>| w.result(r).1.clone();
    let many = |w: &&&Wrong<'_>| wanted(w).rows() > 1;
    let place = |w: &Wrong<'_>, row: usize| match &wanted(w).shape[..] {
        [_, _] => row.to_string(),
        shape => format!("{:?}", super::super::show::index(&shape[..shape.len().max(1) - 1], row)),
    };
    if here.iter().all(|w| bad(w) == [0]) && here.iter().any(|w| many(&w)) {
        return Some(format!("only row {} of {name} is wrong", place(here[0], 0)));
    }
    let few = here.iter().filter(many).map(|w| (w, bad(w))).find(|(w, bad)| bad.len() <= 4 && bad.len() < wanted(w).rows());
    few.map(|(w, bad)| {
        let list: Vec<String> = bad.iter().map(|row| place(w, *row)).collect();
        format!("in the case \"{}\" only row(s) {} of {} of {name} are wrong", w.seen.case.label, list.join(", "), wanted(w).rows())
    })
}

fn returned_input(exercise: &Exercise, name: &str, here: &[&Wrong<'_>], r: usize) -> Option<String> {
    let inputs = exercise.inputs();
    let found = (0..inputs.len())
        .find(|&at| here.iter().all(|w| w.seen.case.call.args.get(at).is_some_and(|a| a.data == w.got[r].data && a.data.len() > 1)))?;
    Some(format!("where it is wrong, {name} is the input {}, unchanged", inputs[found].name))
}

fn not_numbers(name: &str, here: &[&Wrong<'_>], r: usize) -> Option<String> {
    for w in here {
        let (got, want, _) = w.result(r);
        for (at, (g, x)) in got.data.iter().zip(&want.data).enumerate() {
            let place = || format!("{name}{:?} in the case \"{}\"", super::super::show::index(&want.shape, at), w.seen.case.label);
            if !g.is_finite() && x.is_finite() {
                return Some(format!("{} is {g} where a number is expected", place()));
            }
            if g.is_finite() && x.is_nan() {
                return Some(format!("{} is {g} where NaN must show: a NaN that is seen may not disappear", place()));
            }
        }
    }
    None
}

/// Entries of the first of three dimensions (heads, batch) in another order.
fn permuted(name: &str, here: &[&Wrong<'_>], r: usize) -> Option<String> {
    let order = |w: &&&Wrong<'_>| {
        let (got, want, tolerance) = w.result(r);
        if want.shape.len() != 3 || want.shape[0] < 2 {
            return None;
        }
        (0..want.shape[0])
            .map(|i| (0..want.shape[0]).find(|&j| alike(&got.part(i), &want.part(j), tolerance)))
            .collect::<Option<Vec<usize>>>()
    };
    let orders: Vec<Vec<usize>> = here.iter().map(|w| order(&w)).collect::<Option<_>>()?;
    let first = orders.first()?;
    let each_once = |order: &Vec<usize>| order.iter().collect::<BTreeSet<_>>().len() == order.len();
    Some(if orders.iter().all(each_once) {
        format!("{name} holds the right parts in another order: {first:?} in one case")
    } else {
        let doubled = orders.iter().find(|order| !each_once(order))?;
        format!("{name} holds right parts only, but not each of them once: {doubled:?} in one case")
    })
}

fn bits(exercise: &Exercise, failed: &[&Seen]) -> Option<String> {
    failed.iter().find_map(|seen| match &seen.failure {
        Some(Failure::Bits { result, at, by, what }) => {
            let shape = &seen.expected.values[*result].shape;
            Some(format!(
                "a hidden input matters: with {what}, {}{:?} changes by {by:.1e}",
                exercise.judged(*result),
                super::super::show::index(shape, *at)
            ))
        }
        _ => None,
    })
}

/// In which cases it fails, by what is special about them.
fn where_wrong(exercise: &Exercise, all: &[Seen], failed: &[&Seen]) -> Vec<String> {
    let mut facts = Vec::new();
    let right: Vec<&Seen> = all.iter().filter(|s| s.failure.is_none()).collect();
    if right.is_empty() {
        return vec![format!("wrong in all {} cases", all.len())];
    }
    let labels: BTreeSet<&str> = failed.iter().map(|s| s.case.label.as_str()).collect();
    if labels.len() <= 5 {
        let quoted: Vec<String> = labels.iter().map(|l| format!("\"{l}\"")).collect();
        facts.push(format!("right in {} of {} cases, wrong in: {}", right.len(), all.len(), quoted.join(", ")));
    } else {
        facts.push(format!("right in {} of {} cases", right.len(), all.len()));
    }
    for (a, first) in exercise.dims.iter().enumerate() {
        for (b, second) in exercise.dims.iter().enumerate().skip(a + 1) {
            let same = |s: &&&Seen| s.case.call.dims[a] == s.case.call.dims[b];
            if failed.iter().all(|s| !same(&s)) && right.iter().filter(same).count() >= 2 && right.iter().all(|s| same(&s)) {
                facts.push(format!("wrong exactly where {first} and {second} differ"));
            }
        }
    }
    facts
}
