//! 04: the scale that gives scores variance 1.

use super::{different, normal, strided};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, attention as attend};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Value, number};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 4,
    name: "scaled_attention",
    title: "choose the scale",
    dims: &["n", "m", "d", "dv"],
    params: &[
        input("q", &["n", "d"]),
        input("k", &["m", "d"]),
        input("v", &["m", "dv"]),
        param("var_q", Kind::Number, &[]),
        param("var_k", Kind::Number, &[]),
    ],
    results: &[("scale", &[]), ("out", &["n", "dv"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "none", text: "the scale is 1: scores of width d have variance d var_q var_k" },
        Mistake { id: "times", text: "it multiplies by the root of d var_q var_k: divide by it" },
        Mistake { id: "value-width", text: "the root of dv, the width of the values: scores are sums over d, the width of q and k" },
        Mistake { id: "fixed", text: "the scale is 1/8 whatever d is" },
        Mistake { id: "variances-ignored", text: "1/sqrt(d) is right for variances of 1 only: use var_q and var_k" },
        Mistake { id: "one-variance", text: "only one of the variances is used: a product has the variance var_q var_k" },
        Mistake { id: "no-root", text: "it divides by the variance d var_q var_k: divide by its root" },
        Mistake { id: "roots-of-variances-missing", text: "the variances are used as deviations: only d is under the root" },
        Mistake { id: "variances-added", text: "the variances are added: a product of independent numbers has the product of their variances" },
        Mistake { id: "scale-unused", text: "the scale is right, but out is computed without it" },
        Mistake { id: "root-returned", text: "out is right, but the scale that is returned is its inverse, the root" },
        Mistake { id: "key-count", text: "the root of m, the number of keys: scores are sums over d" },
    ],
    twins: &[
        "none", "times", "value-width", "fixed", "fixed/with-variances", "variances-ignored", "one-variance", "one-variance/k", "scale-after", "no-root",
        "roots-of-variances-missing", "variances-added", "scale-unused", "root-returned", "key-count", "value-width/without-variances",
        "no-root/without-variances", "times/without-variances", "columns", "no-softmax", "keys-as-values", "transposed-scores", "all-at-once",
        "unnormalised",
    ],
    hints: ["What is the variance of a sum of d products?", "It is d var_q var_k.", "Divide by its root, before the softmax."],
    idea: "A sum of d independent products has variance d var_q var_k. Dividing by its root keeps the softmax awake at any width.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(scaled_attention), session: session!(plain) },
    files: files!(),
};

fn chosen<T: Real>(how: &How, [m, d, dv]: [usize; 3], var_q: T, var_k: T) -> T {
    let one = T::of(1.0);
    let [m, d, dv] = [m, d, dv].map(|x| T::of(x as f64));
    let right = one / (d * var_q * var_k).sqrt();
    match () {
        () if how.is("none") => one,
        () if how.is("times") => (d * var_q * var_k).sqrt(),
        () if how.is("times/without-variances") => d.sqrt(),
        () if how.is("value-width") => one / (dv * var_q * var_k).sqrt(),
        () if how.is("value-width/without-variances") => one / dv.sqrt(),
        () if how.is("fixed") => T::of(0.125),
        () if how.is("fixed/with-variances") => T::of(0.125) / (var_q * var_k).sqrt(),
        () if how.is("variances-ignored") => one / d.sqrt(),
        () if how.is("one-variance") => one / (d * var_q).sqrt(),
        () if how.is("one-variance/k") => one / (d * var_k).sqrt(),
        () if how.is("no-root") => one / (d * var_q * var_k),
        () if how.is("no-root/without-variances") => one / d,
        () if how.is("roots-of-variances-missing") => one / (d.sqrt() * var_q * var_k),
        () if how.is("variances-added") => one / (d * (var_q + var_k)).sqrt(),
        () if how.is("key-count") => one / (m * var_q * var_k).sqrt(),
        () => right,
    }
}

fn scaled_attention<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v] = [&call.args[0], &call.args[1], &call.args[2]];
    let scale = chosen(how, [k.rows(), q.width(), v.width()], call.args[3].scalar(), call.args[4].scalar());
    let applied = if how.is("scale-unused") { T::of(1.0) } else { scale };
    let (mut out, _) = attend(how, [q, k, v], applied, &vec![true; q.rows() * k.rows()])?;
    out.zeros.clear();
    let said = if how.is("root-returned") { T::of(1.0) / scale } else { scale };
    Ok(vec![Value::number(said), out])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [n, m, d, dv]: [usize; 4], var_q: f64, var_k: f64| {
        let drawn = |rng: &mut Rng, shape: &[usize], variance: f64| {
            let mut x = normal(rng, shape);
            x.data.iter_mut().for_each(|x| *x = f64::from((*x * variance.sqrt()) as f32));
            x
        };
        let args = vec![drawn(rng, &[n, d], var_q), drawn(rng, &[m, d], var_k), normal(rng, &[m, dv]), number(var_q), number(var_k)];
        cases.push(Case::new(label, &[n, m, d, dv], args));
    };
    for d in [1, 2, 4, 16, 64, 100, 256] {
        add(rng, "variances of 1", [3, 5, d, 2], 1.0, 1.0);
    }
    for (d, var_q, var_k) in [(1, 4.0, 0.25), (8, 4.0, 1.0), (8, 1.0, 4.0), (16, 0.25, 2.0), (64, 3.0, 0.5), (256, 0.1, 5.0), (32, 4.0, 9.0)] {
        add(rng, "other variances", [4, 3, d, 5], var_q, var_k);
    }
    for _ in 0..8 {
        let (sizes, var_q, var_k) = (different(rng, 2, 9), 0.2 + 3.0 * rng.uniform(), 0.2 + 3.0 * rng.uniform());
        add(rng, "random", sizes, var_q, var_k);
    }
    for size in [2, 3, 4] {
        add(rng, "square", [size, size, size, size], 2.0, 0.7);
    }
    add(rng, "one query, one key", [1, 1, 6, 3], 2.0, 3.0);
    strided(cases)
}
