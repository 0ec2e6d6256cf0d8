//! 02: softmax, row by row.

use super::{different, normal, strided, whole};
use crate::exercise::{Exercise, Judging, Mistake, input, plain};
use crate::formula::{How, softmax as rows_softmax};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Value};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 2,
    name: "softmax",
    title: "softmax that survives large scores",
    dims: &["n", "m"],
    params: &[input("x", &["n", "m"])],
    results: &[("weights", &["n", "m"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "no-max", text: "exp overflows at 1e4: subtract the row's maximum before exp" },
        Mistake { id: "empty-nan", text: "a row of -inf only divides 0 by 0: it must give zeros" },
        Mistake { id: "clipped", text: "large scores are flattened before exp: subtract the row's maximum instead of clipping" },
        Mistake { id: "nan-swallowed", text: "a NaN in a row becomes 0: it must spoil its row (NaN), and no other" },
        Mistake { id: "mean-subtracted", text: "the row's mean is subtracted: exp still overflows; subtract its maximum" },
        Mistake { id: "min-subtracted", text: "the row's minimum is subtracted, which makes large scores larger: subtract its maximum" },
        Mistake { id: "sigmoid", text: "this is the logistic function of each score: softmax divides by the row's sum" },
        Mistake { id: "negated", text: "the smallest score gets the largest weight: a sign is wrong" },
        Mistake { id: "nan-skipped", text: "a NaN is left out of the maximum and the sum: the rest of its row must be NaN too" },
        Mistake { id: "empty-mean", text: "-inf becomes a finite number: a row of -inf only gives equal weights; it must give zeros" },
        Mistake { id: "proportion", text: "scores are divided by their sum: exp is missing" },
    ],
    mutants: &[
        "no-max", "columns", "one-max", "clipped", "empty-nan", "logarithm", "base-2", "all-at-once", "hard", "unnormalised",
        "nan-swallowed",
        "mean-subtracted", "min-subtracted", "sigmoid", "negated", "proportion", "column-max", "column-sum", "one-sum", "twice",
        "nan-skipped",
        "empty-mean", "hard/last", "hard/all", "hard/shared", "keepdims-lost", "keepdims-lost/max", "keepdims-lost/both",
        "numerator-unshifted",
        "absolute-max", "one-in-sum", "uniform", "added-epsilon/1e-3", "added-epsilon/1e-4", "added-epsilon/1e-5", "added-epsilon/1e-2",
        "clipped/80", "clipped/20", "clipped/30", "clipped/88", "clipped/10",
        "clipped/top-80", "clipped/top-88", "clipped/top-50", "clipped/top-20", "clipped/top-30",
        "l2-normalised",
    ],
    hints: ["What is exp(89) in f32?", "x - c has the same softmax as x, for any c.", "c = the row's maximum, unless that is -inf."],
    idea: "Softmax only sees differences: subtract the maximum, and nothing overflows.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(softmax), session: session!(plain) },
    custom: None,
    files: files!(),
};

fn softmax<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let x = &call.args[0];
    let (n, m) = (x.rows(), x.width());
    let one = T::of(1.0);
    let each = |f: &dyn Fn(T) -> T| Value::new(&[n, m], x.data.iter().map(|y| f(*y)).collect());
    let mut result = match () {
        () if how.number("clipped/").or_else(|| how.number("clipped/top-")).is_some() => {
            let high = how.number("clipped/").or_else(|| how.number("clipped/top-")).unwrap_or(0.0);
            let low = if how.number("clipped/").is_some() { -high } else { f64::NEG_INFINITY };
            let clip = |y: T| if y.value().is_nan() { y } else { T::of(y.value().clamp(low, high)) };
            rows_softmax(&how.and("no-max"), &each(&clip), &vec![true; n * m])
        }
        () if how.is("sigmoid") => each(&|y| one / (one + (-y).exp())),
        () if how.is("negated") => rows_softmax(how, &each(&|y| -y), &vec![true; n * m]),
        () if how.is("nan-skipped") => {
            let seen: Vec<bool> = x.data.iter().map(|y| !y.value().is_nan()).collect();
            let skipped = rows_softmax(how, &each(&|y| if y.value().is_nan() { T::of(f64::NEG_INFINITY) } else { y }), &seen);
            if skipped.shape != [n, m] {
                return Err(crate::value::Trouble::Shapes);
            }
            Value::new(&[n, m], (0..n * m).map(|at| if seen[at] { skipped.data[at] } else { T::of(f64::NAN) }).collect())
        }
        () if how.is("empty-mean") => {
            rows_softmax(how, &each(&|y| if y.value() == f64::NEG_INFINITY { T::of(-1e9) } else { y }), &vec![true; n * m])
        }
        () if how.is("proportion") => {
            let total = |i: usize| crate::formula::sum(how, m, |j| x.data[i * m + j]);
            Value::new(&[n, m], (0..n * m).map(|at| x.data[at] / total(at / m)).collect())
        }
        () if how.is("mean-subtracted") || how.is("min-subtracted") => {
            let shift = |i: usize| {
                let mean = crate::formula::sum(how, m, |j| x.data[i * m + j]) / T::of(m as f64);
                let least = (0..m).fold(T::of(f64::INFINITY), |low, j| -(-low).max(-x.data[i * m + j]));
                let least = if least.value().is_finite() { least } else { T::of(0.0) };
                if how.is("mean-subtracted") { mean } else { least }
            };
            let moved = Value::new(&[n, m], (0..n * m).map(|at| x.data[at] - shift(at / m)).collect());
            rows_softmax(&How { wrong: [&how.wrong[..], &["no-max"]].concat(), ..how.clone() }, &moved, &vec![true; n * m])
        }
        () => rows_softmax(how, x, &vec![true; n * m]),
    };
    if result.shape == [0, 0] {
        return Err(crate::value::Trouble::Shapes);
    }
    result.zeros = x.data.iter().map(|y| y.value() == f64::NEG_INFINITY).collect();
    Ok(vec![result])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |label: &str, x: Value<f64>| cases.push(Case::new(label, &x.shape.clone(), vec![x]));
    let moved = |mut x: Value<f64>, change: &dyn Fn(usize, f64) -> f64| {
        x.data.iter_mut().enumerate().for_each(|(at, y)| *y = change(at, *y));
        x
    };
    add("one number", normal(rng, &[1, 1]));
    add("one column", normal(rng, &[4, 1]));
    add("one row", normal(rng, &[1, 5]));
    add("scores of 1e4", moved(whole(rng, &[3, 4], 3, 1.0), &|_, y| y + 10_000.0));
    add("scores of -1e4", moved(whole(rng, &[4, 3], 3, 1.0), &|_, y| y - 10_000.0));
    add("scores of 90", moved(whole(rng, &[3, 5], 3, 0.5), &|_, y| y + 90.0));
    add("scores of -110", moved(whole(rng, &[3, 4], 3, 0.5), &|_, y| y - 110.0));
    add("rows at different levels", moved(whole(rng, &[4, 5], 3, 0.5), &|at, y| y + [0.0, 10_000.0, -10_000.0, 200.0][at / 5]));
    add("rows at 0 and -200", moved(whole(rng, &[3, 4], 3, 0.5), &|at, y| y - [0.0, 200.0, 1000.0][at / 4]));
    add("spread of 1e4", whole(rng, &[4, 6], 5, 2048.0));
    add("spread of 150", whole(rng, &[3, 5], 5, 32.0));
    add("some -inf", moved(normal(rng, &[4, 5]), &|at, y| if at % 3 == 1 { f64::NEG_INFINITY } else { y }));
    add("a row of -inf only", moved(normal(rng, &[3, 4]), &|at, y| if at / 4 == 1 { f64::NEG_INFINITY } else { y }));
    add("-inf only", moved(normal(rng, &[2, 3]), &|_, _| f64::NEG_INFINITY));
    add("-inf first, then 1e4", moved(whole(rng, &[2, 4], 3, 1.0), &|at, y| if at % 4 == 0 { f64::NEG_INFINITY } else { y + 10_000.0 }));
    add("NaN in one row", moved(normal(rng, &[3, 5]), &|at, y| if at == 7 { f64::NAN } else { y }));
    add("equal scores", moved(normal(rng, &[3, 4]), &|_, _| 0.5));
    for _ in 0..8 {
        let sizes: [usize; 2] = different(rng, 2, 9);
        add("random", normal(rng, &sizes));
    }
    for size in [2, 3, 5] {
        add("square", normal(rng, &[size, size]));
    }
    add("wide", moved(normal(rng, &[3, 200]), &|_, y| 3.0 * y));
    add("large", normal(rng, &[65, 130]));
    strided(cases)
}
