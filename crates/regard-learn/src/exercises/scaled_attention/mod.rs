//! 04: the scale that gives scores variance 1.

use super::{different, normal, strided};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, attention as attend, scores, sum};
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
        Mistake { id: "scale-unused", text: "the scale is right, but out is computed without it" },
        Mistake { id: "root-returned", text: "out is right, but the scale that is returned is its inverse, the root" },
        Mistake { id: "measured", text: "the variances are measured in q and k: use var_q and var_k, which are those of the distribution" },
        Mistake { id: "measured/scores", text: "the scale is 1 over the deviation of these scores: choose it from d, var_q and var_k" },
        Mistake { id: "none", text: "`1`: without a scale the scores have variance d var_q var_k" },
        Mistake { id: "times", text: "`sqrt(d * var_q * var_k)`: it multiplies by the root; divide by it" },
        Mistake { id: "times/without-variances", text: "`sqrt(d)`: it multiplies by sqrt(d), and ignores the variances; divide by sqrt(d \
            var_q var_k)" },
        Mistake { id: "value-width", text: "`1 / sqrt(dv * var_q * var_k)`: dv is the width of the values; scores are sums over d, the \
            width of q and k" },
        Mistake { id: "value-width/without-variances", text: "`1 / sqrt(dv)`: dv is the width of the values, and the variances are \
            ignored" },
        Mistake { id: "fixed", text: "`1 / 8`: the scale depends on d, var_q and var_k" },
        Mistake { id: "fixed/with-variances", text: "`1 / 8 / sqrt(var_q * var_k)`: the scale depends on d, too" },
        Mistake { id: "variances-ignored", text: "`1 / sqrt(d)`: right for variances of 1 only; use var_q and var_k" },
        Mistake { id: "one-variance", text: "`1 / sqrt(d * var_q)`: a product has the variance var_q var_k" },
        Mistake { id: "one-variance/k", text: "`1 / sqrt(d * var_k)`: a product has the variance var_q var_k" },
        Mistake { id: "no-root", text: "`1 / (d * var_q * var_k)`: it divides by the variance; divide by its root" },
        Mistake { id: "no-root/without-variances", text: "`1 / d`: it divides by d; divide by the root, and use var_q and var_k" },
        Mistake { id: "roots-of-variances-missing", text: "`1 / (sqrt(d) * var_q * var_k)`: the variances belong under the root, too" },
        Mistake { id: "variances-added", text: "`1 / sqrt(d * (var_q + var_k))`: a product of independent numbers has the product of \
            their variances" },
        Mistake { id: "key-count", text: "`1 / sqrt(m * var_q * var_k)`: m is the number of keys; scores are sums over d" },
        Mistake { id: "key-count/without-variances", text: "`1 / sqrt(m)`: m is the number of keys; scores are sums over d, with \
            variance var_q var_k each" },
        Mistake { id: "query-count", text: "`1 / sqrt(n * var_q * var_k)`: n is the number of queries; scores are sums over d" },
        Mistake { id: "query-count/without-variances", text: "`1 / sqrt(n)`: n is the number of queries; scores are sums over d" },
        Mistake { id: "variances-multiplied", text: "`sqrt(var_q * var_k) / sqrt(d)`: the variances multiply; the scale divides by their \
            root" },
        Mistake { id: "variances-multiplied/plain", text: "`var_q * var_k / sqrt(d)`: the variances multiply; the scale divides by their \
            root" },
        Mistake { id: "d-unrooted", text: "`1 / (d * sqrt(var_q * var_k))`: d belongs under the root, like the variances" },
        Mistake { id: "one-root-missing", text: "`1 / (sqrt(d) * sqrt(var_q) * var_k)`: var_k belongs under the root, too" },
        Mistake { id: "one-root-missing/q", text: "`1 / (sqrt(d) * var_q * sqrt(var_k))`: var_q belongs under the root, too" },
        Mistake { id: "variances-added/mean", text: "`1 / sqrt(d * (var_q + var_k) / 2)`: a product of independent numbers has the \
            product of their variances" },
        Mistake { id: "variances-added/roots", text: "`1 / (sqrt(d) * (sqrt(var_q) + sqrt(var_k)))`: a product of independent numbers \
            has the product of their variances" },
        Mistake { id: "variances-added/unrooted", text: "`1 / (sqrt(d) * (var_q + var_k))`: a product of independent numbers has the \
            product of their variances, under the root" },
        Mistake { id: "width-missing", text: "`1 / sqrt(var_q * var_k)`: a score is a sum of d products: d is missing under the root" },
        Mistake { id: "width-missing/no-root", text: "`1 / (var_q * var_k)`: a score is a sum of d products: d is missing, and the root" },
        Mistake { id: "one-variance/q-twice", text: "`1 / (sqrt(d) * var_q)`: a product has the variance var_q var_k: var_k is not used, \
            and var_q not under the root" },
        Mistake { id: "one-variance/k-twice", text: "`1 / (sqrt(d) * var_k)`: a product has the variance var_q var_k: var_q is not used, \
            and var_k not under the root" },
        Mistake { id: "one-variance/no-root", text: "`1 / (d * var_q)`: it divides by d var_q; divide by the root of d var_q var_k" },
        Mistake { id: "one-variance/no-root-k", text: "`1 / (d * var_k)`: it divides by d var_k; divide by the root of d var_q var_k" },
        Mistake { id: "times/no-root", text: "`d * var_q * var_k`: it multiplies by the variance; divide by its root" },
        Mistake { id: "times/width", text: "`d`: it multiplies by d; divide by the root of d var_q var_k" },
        Mistake { id: "times/root-of-width", text: "`sqrt(d) / sqrt(var_q * var_k)`: d multiplies; it belongs under the root that \
            divides" },
        Mistake { id: "squared", text: "`1 / (d * d * var_q * var_k)`: it divides by d squared; divide by the root of d var_q var_k" },
        Mistake { id: "variance-ratio", text: "`sqrt(var_q / var_k) / sqrt(d)`: var_q multiplies; both variances belong under the root \
            that divides" },
        Mistake { id: "variance-ratio/inverted", text: "`sqrt(var_k / var_q) / sqrt(d)`: var_k multiplies; both variances belong under \
            the root that divides" },
        Mistake { id: "both-widths", text: "`1 / sqrt(2 * d * var_q * var_k)`: the width of q and k counts once: a score is a sum of d \
            products" },
        Mistake { id: "one-less", text: "`1 / sqrt((d + 1) * var_q * var_k)`: a score is a sum of d products, not d + 1" },
        Mistake { id: "no-root/value-width", text: "`1 / (dv * var_q * var_k)`: dv is the width of the values, and the root is missing" },
        Mistake { id: "no-root/keys", text: "`1 / m`: m is the number of keys; divide by the root of d var_q var_k" },
        Mistake { id: "scale-twice", text: "the scale is right, but out has it twice" },
        Mistake { id: "returned-root-only", text: "out is right, but the scale that is returned is 1/sqrt(d): the variances belong to it" },
        Mistake { id: "fourth-root", text: "`1 / sqrt(sqrt(d * var_q * var_k))`: one root is enough" },
    ],
    mutants: &[
        "none", "times", "value-width", "fixed", "fixed/with-variances", "variances-ignored", "one-variance", "one-variance/k",
        "scale-after", "no-root",
        "roots-of-variances-missing", "variances-added", "scale-unused", "root-returned", "key-count", "value-width/without-variances",
        "no-root/without-variances", "times/without-variances", "columns", "no-softmax", "keys-as-values", "transposed-scores",
        "all-at-once",
        "unnormalised", "key-count/without-variances", "query-count", "query-count/without-variances", "measured", "measured/scores",
        "variances-multiplied", "variances-multiplied/plain", "fourth-root", "hard", "hard/last", "negated",
        "d-unrooted", "one-root-missing", "one-root-missing/q", "variances-added/mean", "variances-added/roots",
        "variances-added/unrooted", "width-missing", "width-missing/no-root", "one-variance/q-twice", "one-variance/k-twice",
        "one-variance/no-root", "one-variance/no-root-k", "times/no-root", "times/width", "times/root-of-width", "squared",
        "variance-ratio", "variance-ratio/inverted", "both-widths", "one-less", "no-root/value-width", "no-root/keys", "keepdims-lost",
        "keepdims-lost/max", "keepdims-lost/both", "uniform", "one-in-sum", "component-missing", "queries-as-keys", "weights-transposed",
        "twice", "base-2", "sigmoid",
        "scale-twice", "scale-inverted", "scale-rooted", "scale-halved", "returned-root-only", "relu-scores", "out-overwritten",
    ],
    hints: ["What is the variance of a sum of d products?", "It is d var_q var_k.", "Divide by its root, before the softmax."],
    idea: "A sum of d independent products has variance d var_q var_k. Dividing by its root keeps the softmax awake at any width.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(scaled_attention), session: session!(plain) },
    custom: None,
    files: files!(),
};

fn chosen<T: Real>(how: &How, [n, m, d, dv]: [usize; 4], var_q: T, var_k: T) -> T {
    let one = T::of(1.0);
    let [n, m, d, dv] = [n, m, d, dv].map(|x| T::of(x as f64));
    let right = one / (d * var_q * var_k).sqrt();
    let root = |x: T| x.sqrt();
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
        () if how.is("key-count/without-variances") => one / m.sqrt(),
        () if how.is("query-count") => one / (n * var_q * var_k).sqrt(),
        () if how.is("query-count/without-variances") => one / n.sqrt(),
        () if how.is("variances-multiplied") => (var_q * var_k).sqrt() / d.sqrt(),
        () if how.is("variances-multiplied/plain") => var_q * var_k / d.sqrt(),
        () if how.is("d-unrooted") => T::of(1.0) / (d * root(var_q * var_k)),
        () if how.is("one-root-missing") => T::of(1.0) / (root(d) * root(var_q) * var_k),
        () if how.is("one-root-missing/q") => T::of(1.0) / (root(d) * var_q * root(var_k)),
        () if how.is("variances-added/mean") => T::of(1.0) / root(d * (var_q + var_k) / T::of(2.0)),
        () if how.is("variances-added/roots") => T::of(1.0) / (root(d) * (root(var_q) + root(var_k))),
        () if how.is("variances-added/unrooted") => T::of(1.0) / (root(d) * (var_q + var_k)),
        () if how.is("width-missing") => T::of(1.0) / root(var_q * var_k),
        () if how.is("width-missing/no-root") => T::of(1.0) / (var_q * var_k),
        () if how.is("one-variance/q-twice") => T::of(1.0) / (root(d) * var_q),
        () if how.is("one-variance/k-twice") => T::of(1.0) / (root(d) * var_k),
        () if how.is("one-variance/no-root") => T::of(1.0) / (d * var_q),
        () if how.is("one-variance/no-root-k") => T::of(1.0) / (d * var_k),
        () if how.is("times/no-root") => d * var_q * var_k,
        () if how.is("times/width") => d,
        () if how.is("times/root-of-width") => root(d) / root(var_q * var_k),
        () if how.is("squared") => T::of(1.0) / (d * d * var_q * var_k),
        () if how.is("variance-ratio") => root(var_q / var_k) / root(d),
        () if how.is("variance-ratio/inverted") => root(var_k / var_q) / root(d),
        () if how.is("both-widths") => T::of(1.0) / root(T::of(2.0) * d * var_q * var_k),
        () if how.is("one-less") => T::of(1.0) / root((d + T::of(1.0)) * var_q * var_k),
        () if how.is("no-root/value-width") => T::of(1.0) / (dv * var_q * var_k),
        () if how.is("no-root/keys") => T::of(1.0) / m,
        () if how.is("fourth-root") => one / (d * var_q * var_k).sqrt().sqrt(),
        () => right,
    }
}

fn variance<T: Real>(how: &How, x: &[T]) -> T {
    let count = T::of(x.len() as f64);
    let mean = sum(how, x.len(), |i| x[i]) / count;
    sum(how, x.len(), |i| (x[i] - mean) * (x[i] - mean)) / count
}

fn scaled_attention<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v] = [&call.args[0], &call.args[1], &call.args[2]];
    let sizes = [q.rows(), k.rows(), q.width(), v.width()];
    let scale = match () {
        () if how.is("measured") => chosen(how, sizes, variance(how, &q.data), variance(how, &k.data)),
        () if how.is("measured/scores") => T::of(1.0) / variance(how, &scores(&How::default(), q, k, T::of(1.0))?.data).sqrt(),
        () => chosen(how, sizes, call.args[3].scalar(), call.args[4].scalar()),
    };
    let applied = if how.is("scale-unused") { T::of(1.0) } else { scale };
    let (mut out, _) = attend(how, [q, k, v], applied, &vec![true; q.rows() * k.rows()])?;
    out.zeros.clear();
    let said = match () {
        () if how.is("root-returned") => T::of(1.0) / scale,
        () if how.is("returned-root-only") => crate::formula::root_scale(q.width()),
        () => scale,
    };
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
    let sizes = [(1, 4.0, 0.25), (8, 4.0, 1.0), (8, 1.0, 4.0), (16, 0.25, 2.0), (64, 3.0, 0.5), (256, 0.1, 5.0), (32, 4.0, 9.0)];
    for (d, var_q, var_k) in sizes {
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
    add(rng, "large", [67, 71, 18, 33], 2.0, 0.7);
    strided(cases)
}
