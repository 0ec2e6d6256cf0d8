//! 03: attention.

use super::{different, normal, strided, whole};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, attention as attend};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, number};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 3,
    name: "attention",
    title: "each output is an average of values",
    dims: &["n", "m", "d", "dv"],
    params: &[input("q", &["n", "d"]), input("k", &["m", "d"]), input("v", &["m", "dv"]), param("scale", Kind::Number, &[])],
    results: &[("out", &["n", "dv"]), ("weights", &["n", "m"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "own-scale/width", text: "the scale that is given is not used: the numbers are those of 1/d" },
        Mistake { id: "own-scale/values", text: "the scale that is given is not used: the numbers are those of 1/sqrt(dv)" },
        Mistake { id: "own-scale/keys", text: "the scale that is given is not used: the numbers are those of 1/sqrt(m)" },
        Mistake { id: "weights-transposed/returned", text: "the weights are returned transposed: rows are queries, columns keys" },
    ],
    mutants: &[
        "columns", "no-softmax", "no-scale", "scale-after", "keys-as-values", "no-max", "transposed-scores", "scale-inverted",
        "scale-twice",
        "scale-rooted", "all-at-once", "one-max", "hard", "base-2", "unnormalised", "weights-transposed", "queries-as-keys", "clipped",
        "own-scale", "results-swapped", "negated", "sigmoid", "hard/last", "hard/all", "hard/shared", "column-max", "column-sum",
        "one-sum", "twice",
        "scale-after/out", "scale-and-root", "values-as-keys", "cosine-scores", "distance-scores", "scores-returned", "exp-returned",
        "scale-truncated", "scale-absolute", "one-in-sum", "uniform", "keepdims-lost", "keepdims-lost/max", "keepdims-lost/both",
        "numerator-unshifted", "absolute-max", "own-scale/width", "own-scale/values", "own-scale/keys", "component-missing",
        "component-missing/first", "scale-halved", "added-epsilon/1e-3", "added-epsilon/1e-4", "added-epsilon/1e-5",
        "weights-transposed/returned",
        "l2-normalised", "relu-scores", "out-overwritten", "component-last-only", "out-unnormalised",
    ],
    hints: ["Write the shape of each step beside it.", "q k^T is [n, m]: a score for each query and key.", "softmax(q k^T scale) v, \
        softmax by rows."],
    idea: "Each row of out is an average of rows of v: the weights are positive and sum to 1.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(attention), session: session!(plain) },
    custom: None,
    files: files!(),
};

fn attention<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v] = [&call.args[0], &call.args[1], &call.args[2]];
    let root = crate::formula::root_scale::<T>;
    let scale = match () {
        () if how.is("own-scale") => root(q.width()),
        () if how.is("own-scale/width") => T::of(1.0) / T::of(q.width() as f64),
        () if how.is("own-scale/values") => root(v.width()),
        () if how.is("own-scale/keys") => root(k.rows()),
        () => call.args[3].scalar(),
    };
    let (out, mut weights) = attend(how, [q, k, v], scale, &vec![true; q.rows() * k.rows()])?;
    if how.is("weights-transposed/returned") {
        weights = weights.transposed();
    }
    Ok(if how.is("results-swapped") { vec![weights, out] } else { vec![out, weights] })
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [n, m, d, dv]: [usize; 4], scale: f64| {
        let args = vec![normal(rng, &[n, d]), normal(rng, &[m, d]), normal(rng, &[m, dv]), number(scale)];
        cases.push(Case::new(label, &[n, m, d, dv], args));
    };
    add(rng, "one query", [1, 4, 3, 2], 0.5);
    add(rng, "one key", [3, 1, 2, 4], 0.5);
    add(rng, "one of everything", [1, 1, 1, 1], 0.5);
    add(rng, "scale 0", [3, 4, 5, 2], 0.0);
    add(rng, "negative scale", [4, 3, 2, 5], -0.7);
    add(rng, "scale 1", [3, 4, 2, 5], 1.0);
    add(rng, "values narrower than keys", [3, 5, 6, 2], 0.4);
    add(rng, "values wider than keys", [5, 3, 2, 6], 0.4);
    add(rng, "large scale", [4, 5, 3, 2], 8.0);
    for _ in 0..8 {
        let (sizes, scale) = (different(rng, 2, 8), 0.2 + rng.uniform());
        add(rng, "random", sizes, scale);
    }
    for size in [2, 3, 4, 5] {
        add(rng, "square", [size, size, size, size], 0.6);
    }
    let large = vec![normal(rng, &[67, 18]), normal(rng, &[71, 18]), normal(rng, &[71, 33]), number(0.3)];
    // Products of small whole numbers and powers of two: exact in f32 in any order.
    for (label, unit, scale) in [("scores of 1e4", 64.0, 0.5), ("scores of 1e4, negative scale", 64.0, -0.5), ("scores of \
        100", 8.0, 0.25)] {
        for [n, m, d, dv] in [[3, 4, 4, 2], [4, 4, 4, 4]] {
            let args = vec![whole(rng, &[n, d], 4, unit), whole(rng, &[m, d], 4, unit), normal(rng, &[m, dv]), number(scale)];
            cases.push(Case::new(label, &[n, m, d, dv], args));
        }
    }
    cases.push(Case::new("large", &[67, 71, 18, 33], large));
    strided(cases)
}
