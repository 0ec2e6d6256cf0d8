//! 05: how saturated is attention? Entropy, largest weight, slack; mean, standard error, median.

use super::{normal, strided, whole};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, scores, softmax, sum};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Value, number};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 5,
    name: "saturation",
    title: "measure how peaked the weights are",
    dims: &["t", "n", "m", "d"],
    params: &[input("q", &["t", "n", "d"]), input("k", &["t", "m", "d"]), param("scale", Kind::Number, &[])],
    results: &[("table", &["3", "3"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "bits", text: "the entropy is in bits: use the natural logarithm" },
        Mistake { id: "zero-log-zero", text: "a weight of 0 gives 0 times -inf: 0 ln 0 is 0" },
        Mistake { id: "rows-independent", text: "the standard error treats all rows as independent: the rows of a draw share their keys; \
            only draws are independent" },
        Mistake { id: "deviation", text: "this is the deviation of the draws' means: the standard error is that over sqrt(t)" },
        Mistake { id: "largest-of-draw", text: "the largest weight is taken over the whole draw: take it in each row" },
        Mistake { id: "relative-entropy", text: "the entropy is divided by ln m" },
        Mistake { id: "divided-by-t", text: "the deviation divides by t: with t draws it is t - 1" },
        Mistake { id: "median-of-means", text: "the median is taken of the draws' means: take it over all rows" },
        Mistake { id: "upper-median", text: "with an even number of rows the median is the mean of the middle two" },
        Mistake { id: "sum-of-squares", text: "the slack is 1 minus the sum of squares" },
        Mistake { id: "variance", text: "this is a variance: the root is missing" },
        Mistake { id: "decimal", text: "the entropy uses the logarithm of base 10: use the natural logarithm" },
        Mistake { id: "slack-largest", text: "the slack is 1 minus the largest weight here: it is 1 minus the sum of squares" },
        Mistake { id: "over-queries", text: "the measures are taken over the queries of a key: take them over the keys of a query" },
        Mistake { id: "rows-over-t", text: "the deviation is that of all rows, over sqrt(t): take the deviation of the draws' means" },
        Mistake { id: "medians-of-draws", text: "the median is taken of the draws' medians: take it over all rows" },
        Mistake { id: "lower-median", text: "with an even number of rows the median is the mean of the middle two" },
        Mistake { id: "columns-exchanged", text: "the standard error and the median have changed places: mean, standard error, median" },
        Mistake { id: "columns-exchanged/first", text: "the mean and the median have changed places: mean, standard error, median" },
        Mistake { id: "rows-exchanged", text: "largest weight and slack have changed places: entropy, largest weight, slack" },
        Mistake { id: "rows-exchanged/first", text: "entropy and largest weight have changed places: entropy, largest weight, slack" },
        Mistake { id: "slack-each", text: "the slack sums 1 - w^2 over the keys: it is 1 minus the sum of w^2" },
        Mistake { id: "slack-rooted", text: "the slack is 1 minus the root of the sum of squares: the root is too much" },
        Mistake { id: "error-over-n", text: "the standard error divides by sqrt(n): it is the deviation of the draws' means over sqrt(t)" },
        Mistake { id: "error-over-rows", text: "the standard error divides by sqrt(t n): only the t draws are independent" },
        Mistake { id: "error-over-t", text: "the standard error divides by t: divide by sqrt(t)" },
        Mistake { id: "error-over-less", text: "the standard error divides by sqrt(t - 1): the deviation has t - 1 already; divide by \
            sqrt(t)" },
        Mistake { id: "log-epsilon", text: "a number is added inside the logarithm: that moves the entropy; 0 ln 0 is 0" },
        Mistake { id: "means-over-draws", text: "means are taken over the draws, and their deviation over the rows: average the rows of \
            each draw first" },
        Mistake { id: "means-over-draws/n", text: "means are taken over the draws, and their standard error over the n rows: average the \
            rows of each draw first" },
        Mistake { id: "entropy-mean", text: "the entropy is the mean over keys of -w ln w: it is their sum" },
        Mistake { id: "entropy-negated", text: "the entropy is negative: a sign is missing" },
    ],
    mutants: &[
        "bits", "zero-log-zero", "rows-independent", "deviation", "largest-of-draw", "relative-entropy", "no-scale", "divided-by-t",
        "median-of-means", "upper-median", "sum-of-squares", "variance", "entropy-negated", "transposed", "columns", "no-max",
        "scale-inverted",
        "unnormalised", "decimal", "slack-largest", "over-queries", "rows-over-t", "medians-of-draws", "lower-median",
        "columns-exchanged", "columns-exchanged/first", "rows-exchanged", "rows-exchanged/first", "slack-each", "slack-rooted",
        "error-over-n",
        "error-over-rows", "error-over-t", "error-over-less", "log-epsilon/1e-3", "log-epsilon/1e-4", "log-epsilon/1e-5",
        "log-epsilon/1e-6",
        "log-epsilon/1e-2", "entropy-mean", "scale-twice", "all-at-once", "one-max", "scale-halved", "base-2", "twice", "component-missing",
        "means-over-draws", "means-over-draws/n", "component-last-only",
    ],
    hints: ["What is independent of what?", "Reduce over keys, then rows, then draws.", "The logarithm of where(w > 0, w, 1)."],
    idea: "Rows of a draw share their keys, so only draws are independent: an error bar that forgets it is too small.",
    floor: 1e-6,
    cases,
    possible: |dims| dims[0] >= 2,
    judging: Judging::Numbers { formula: formula!(saturation), session: session!(plain) },
    custom: None,
    files: files!(),
};

/// Entropy, largest weight and slack of a row.
fn measures<T: Real>(how: &How, w: &[T]) -> [T; 3] {
    let skipped = |x: T| x.value() == 0.0 && !how.is("zero-log-zero");
    let term = |j: usize| if skipped(w[j]) { T::of(0.0) } else { w[j] * w[j].ln() };
    let mut entropy = match how.number("log-epsilon/") {
        Some(epsilon) => -sum(how, w.len(), |j| w[j] * (w[j] + T::of(epsilon)).ln()),
        None => -sum(how, w.len(), term),
    };
    if how.is("entropy-mean") {
        entropy = entropy / T::of(w.len() as f64);
    }
    if how.is("bits") {
        entropy = entropy / T::of(2.0).ln();
    }
    if how.is("decimal") {
        entropy = entropy / T::of(10.0).ln();
    }
    if how.is("relative-entropy") {
        entropy = entropy / T::of(w.len() as f64).ln();
    }
    if how.is("entropy-negated") {
        entropy = -entropy;
    }
    let largest = w.iter().fold(T::of(f64::NEG_INFINITY), |top, x| how.max(top, *x));
    let squares = sum(how, w.len(), |j| w[j] * w[j]);
    let slack = match () {
        () if how.is("sum-of-squares") => squares,
        () if how.is("slack-each") => T::of(w.len() as f64) - squares,
        () if how.is("slack-rooted") => T::of(1.0) - squares.sqrt(),
        () if how.is("slack-largest") => T::of(1.0) - largest,
        () => T::of(1.0) - squares,
    };
    [entropy, largest, slack]
}

fn mean<T: Real>(how: &How, x: &[T]) -> T {
    sum(how, x.len(), |i| x[i]) / T::of(x.len() as f64)
}

fn deviation<T: Real>(how: &How, x: &[T]) -> T {
    let centre = mean(how, x);
    let squares = sum(how, x.len(), |i| (x[i] - centre) * (x[i] - centre));
    let variance = squares / T::of(if how.is("divided-by-t") { x.len() } else { x.len() - 1 } as f64);
    if how.is("variance") { variance } else { variance.sqrt() }
}

fn median<T: Real>(how: &How, x: &[T]) -> T {
    if !how.manners.lax && x.iter().any(|y| y.value().is_nan()) {
        return T::of(f64::NAN);
    }
    let mut sorted = x.to_vec();
    sorted.sort_by(|a, b| a.value().total_cmp(&b.value()));
    let middle = sorted.len() / 2;
    if how.is("lower-median") {
        return sorted[(sorted.len() - 1) / 2];
    }
    if sorted.len() % 2 == 1 || how.is("upper-median") { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / T::of(2.0) }
}

fn saturation<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let (q, k, scale) = (&call.args[0], &call.args[1], call.args[2].scalar());
    let [t, n, m, _] = call.dims[..] else { return Ok(Vec::new()) };
    // Per measure, the rows of each draw.
    let mut draws: [Vec<Vec<T>>; 3] = [Vec::new(), Vec::new(), Vec::new()];
    for draw in 0..t {
        let weights = softmax(how, &scores(how, &q.part(draw), &k.part(draw), scale)?, &vec![true; n * m]);
        if weights.shape != [n, m] {
            return Err(crate::value::Trouble::Shapes);
        }
        let weights = if how.is("over-queries") { weights.transposed() } else { weights };
        let rows: Vec<[T; 3]> = (0..weights.rows()).map(|i| measures(how, weights.row(i))).collect();
        for (at, measure) in draws.iter_mut().enumerate() {
            let mut of_rows: Vec<T> = rows.iter().map(|row| row[at]).collect();
            if at == 1 && how.is("largest-of-draw") {
                of_rows = vec![of_rows.iter().fold(T::of(f64::NEG_INFINITY), |top, x| how.max(top, *x))];
            }
            measure.push(of_rows);
        }
    }
    let mut table = Vec::new();
    for measure in &draws {
        let means: Vec<T> = measure.iter().map(|rows| mean(how, rows)).collect();
        let all: Vec<T> = measure.iter().flatten().copied().collect();
        let independent = if how.is("rows-independent") || how.is("rows-over-t") { &all } else { &means };
        let count = T::of(if how.is("rows-over-t") { t } else { independent.len() } as f64);
        let over_draws = how.is("means-over-draws") || how.is("means-over-draws/n");
        let across: Vec<T> = (0..if over_draws { measure[0].len() } else { 0 })
            .map(|i| mean(how, &measure.iter().map(|rows| rows[i]).collect::<Vec<T>>()))
            .collect();
        let independent = if over_draws { &across } else { independent };
        let count = if how.is("means-over-draws/n") { T::of(n as f64) } else { count };
        let error = if independent.len() < 2 { T::of(f64::NAN) } else { deviation(how, independent) };
        let error = match () {
            () if how.is("deviation") => error,
            () if how.is("error-over-n") => error / T::of(n as f64).sqrt(),
            () if how.is("error-over-rows") => error / T::of((t * n) as f64).sqrt(),
            () if how.is("error-over-t") => error / count,
            () if how.is("error-over-less") => error / (count - T::of(1.0)).sqrt(),
            () => error / count.sqrt(),
        };
        let middle = match () {
            () if how.is("median-of-means") => median(how, &means),
            () if how.is("medians-of-draws") => median(how, &measure.iter().map(|rows| median(how, rows)).collect::<Vec<T>>()),
            () => median(how, &all),
        };
        let centre = mean(how, &means);
        table.extend(match () {
            () if how.is("columns-exchanged") => [centre, middle, error],
            () if how.is("columns-exchanged/first") => [middle, error, centre],
            () => [centre, error, middle],
        });
    }
    let mut table = Value::new(&[3, 3], table);
    if how.is("rows-exchanged") || how.is("rows-exchanged/first") {
        let first = if how.is("rows-exchanged") { 3 } else { 0 };
        (0..3).for_each(|c| table.data.swap(first + c, first + 3 + c));
    }
    Ok(vec![if how.is("transposed") { table.transposed() } else { table }])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [t, n, m, d]: [usize; 4], scale: f64| {
        let args = vec![normal(rng, &[t, n, d]), normal(rng, &[t, m, d]), number(scale)];
        cases.push(Case::new(label, &[t, n, m, d], args));
    };
    add(rng, "two draws of one row", [2, 1, 3, 4], 0.5);
    add(rng, "one key", [3, 2, 1, 4], 0.5);
    add(rng, "an even number of rows", [2, 3, 4, 5], 0.4);
    add(rng, "an odd number of rows", [3, 5, 4, 2], 0.7);
    add(rng, "one row a draw", [5, 1, 6, 3], 0.6);
    add(rng, "scale 0", [3, 2, 4, 5], 0.0);
    add(rng, "negative scale", [3, 4, 5, 2], -0.5);
    add(rng, "wide", [4, 8, 16, 64], 0.125);
    for _ in 0..10 {
        let sizes = [rng.size(2, 6), rng.size(2, 7), rng.size(2, 8), rng.size(2, 6)];
        let scale = 0.3 + rng.uniform();
        add(rng, "random", sizes, scale);
    }
    add(rng, "large", [12, 40, 33, 20], 0.25);
    for (label, unit) in [("saturated rows", 8.0), ("weights that underflow", 64.0)] {
        for [t, n, m] in [[3, 4, 5], [2, 3, 4], [4, 1, 6]] {
            let args = vec![whole(rng, &[t, n, 4], 4, unit), whole(rng, &[t, m, 4], 4, unit), number(0.5)];
            cases.push(Case::new(label, &[t, n, m, 4], args));
        }
    }
    strided(cases)
}
