//! 09: several heads, with their projections.

use super::{normal, strided};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, attention as attend, matmul, root_scale};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 9,
    name: "multi_head",
    title: "several heads side by side",
    dims: &["n", "m", "e", "heads"],
    params: &[
        input("x", &["n", "e"]),
        input("y", &["m", "e"]),
        input("w_q", &["e", "e"]),
        input("w_k", &["e", "e"]),
        input("w_v", &["e", "e"]),
        input("w_o", &["e", "e"]),
        param("heads", Kind::Count, &[]),
    ],
    results: &[("out", &["n", "e"]), ("weights", &["heads", "n", "m"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "split-untransposed", text: "[n, e] is reshaped to [heads, n, d], which mixes tokens: reshape to [n, heads, d], \
            then exchange two axes" },
        Mistake { id: "join-untransposed", text: "[heads, n, d] is reshaped to [n, e], which mixes heads and tokens: exchange two axes \
            first" },
        Mistake { id: "interleaved", text: "head h has the columns h, h + heads, ..: it has the d columns from h d on" },
        Mistake { id: "model-width", text: "the scale is 1/sqrt(e): a head has width d = e/heads" },
        Mistake { id: "no-output-matrix", text: "the joined heads are not multiplied by w_o" },
        Mistake { id: "averaged", text: "the heads are averaged: join them side by side" },
        Mistake { id: "added", text: "the heads are added up: join them side by side" },
        Mistake { id: "self-only", text: "keys and values come from x: they must come from y" },
        Mistake { id: "exchanged", text: "queries come from y and keys from x: it is the other way round" },
        Mistake { id: "matrices-transposed", text: "x w^T is computed: it is x w" },
        Mistake { id: "one-head", text: "the heads are not split: there is one softmax for all" },
        Mistake { id: "matrices-transposed/inputs", text: "x w_q^T, y w_k^T and y w_v^T are computed: it is x w_q, y w_k, y w_v" },
        Mistake { id: "matrices-transposed/output", text: "joined w_o^T is computed: it is joined w_o" },
        Mistake { id: "split-untransposed/joined", text: "[n, e] is reshaped to [heads, n, d], which mixes tokens: reshape to [n, heads, \
            d], then exchange two axes" },
        Mistake { id: "interleaved/joined", text: "head h has the columns h, h + heads, ..: it has the d columns from h d on" },
        Mistake { id: "values-unprojected", text: "the values are y itself: multiply by w_v" },
        Mistake { id: "keys-unprojected", text: "the keys are y itself: multiply by w_k" },
        Mistake { id: "queries-unprojected", text: "the queries are x itself: multiply by w_q" },
        Mistake { id: "output-first", text: "w_o multiplies the values before attention: it comes after the heads are joined" },
        Mistake { id: "first-head-only", text: "every head has the columns of head 0" },
        Mistake { id: "keys-from-x", text: "keys come from x: they must come from y, like the values" },
        Mistake { id: "values-from-x", text: "values come from x: they must come from y, like the keys" },
        Mistake { id: "heads-for-width", text: "head h has the columns from h heads to (h + 1) heads: its width is d = e/heads" },
        Mistake { id: "heads-softmax", text: "the softmax runs over the heads: it runs over the keys of each head" },
        Mistake { id: "output-blocks", text: "each head is multiplied by its own block of w_o: join the heads first, w_o mixes them" },
        Mistake { id: "input-blocks", text: "a head takes its columns of x and y and a block of the matrices: project all columns first, \
            then split" },
        Mistake { id: "kv-exchanged", text: "w_k and w_v are exchanged" },
        Mistake { id: "qk-exchanged", text: "w_q and w_k are exchanged" },
        Mistake { id: "qv-exchanged", text: "w_q and w_v are exchanged" },
        Mistake { id: "weights-averaged", text: "the weights are averaged over the heads: return those of each head" },
        Mistake { id: "weights-axes", text: "the weights are [n, heads, m]: return [heads, n, m]" },
        Mistake { id: "residual-added", text: "x is added to the result: that belongs to the block around it" },
        Mistake { id: "heads-scale", text: "the scale is 1/sqrt(heads): it is 1/sqrt(d), with d = e/heads" },
    ],
    mutants: &[
        "split-untransposed", "split-untransposed/joined", "interleaved", "interleaved/joined", "model-width", "no-output-matrix",
        "averaged", "averaged/first",
        "averaged/tiled", "averaged/bare", "averaged/bare-width", "self-only", "join-untransposed", "added", "exchanged",
        "matrices-transposed", "matrices-transposed/inputs", "no-scale",
        "heads-scale", "columns", "keys-as-values", "no-softmax", "one-head", "matrices-transposed/output", "values-unprojected",
        "keys-unprojected",
        "queries-unprojected", "output-first", "first-head-only", "keys-from-x", "values-from-x", "width-scale", "scale-inverted/root",
        "hard",
        "hard/last", "unnormalised", "all-at-once", "negated", "weights-transposed", "transposed-scores", "results-swapped", "twice",
        "heads-softmax", "output-blocks", "input-blocks", "kv-exchanged", "qk-exchanged", "qv-exchanged", "weights-averaged",
        "weights-axes",
        "residual-added", "scores-returned", "exp-returned", "uniform", "queries-as-keys", "sigmoid", "base-2", "scale-after",
        "heads-for-width", "out-overwritten",
    ],
    hints: ["One head by slicing columns.", "Reshape to [n, heads, d], then exchange two axes.", "Exchange back, join, multiply by w_o."],
    idea: "A head is a slice of columns with a softmax of its own; w_o lets the heads talk to each other afterwards.",
    floor: 0.0,
    cases,
    possible: |dims| dims[2].is_multiple_of(dims[3]),
    judging: Judging::Numbers { formula: formula!(multi_head), session: session!(plain) },
    custom: None,
    files: files!(),
};

/// Head `h` of `x [n, e]`: `[n, d]`.
fn split<T: Real>(how: &How, x: &Value<T>, h: usize, heads: usize) -> Value<T> {
    let (n, e) = (x.rows(), x.width());
    let d = e / heads;
    let at = |i: usize, c: usize| match () {
        () if how.is("split-untransposed") || how.is("split-untransposed/joined") => (h * n + i) * d + c,
        () if how.is("interleaved") || how.is("interleaved/joined") => i * e + c * heads + h,
        () if how.is("first-head-only") => i * e + c,
        () => i * e + h * d + c,
    };
    Value::new(&[n, d], (0..n * d).map(|place| x.data[at(place / d, place % d)]).collect())
}

/// Heads `[n, d]` side by side: `[n, e]`.
fn join<T: Real>(how: &How, heads: &[Value<T>]) -> Value<T> {
    let (count, n, d) = (heads.len(), heads[0].rows(), heads[0].width());
    let e = count * d;
    let mut all = Value::zero(&[n, e]);
    for (h, head) in heads.iter().enumerate() {
        for place in 0..n * d {
            let (i, c) = (place / d, place % d);
            let at = match () {
                () if how.is("split-untransposed") || how.is("join-untransposed") => (h * n + i) * d + c,
                () if how.is("interleaved") => i * e + c * count + h,
                () => i * e + h * d + c,
            };
            all.data[at] = head.data[place];
        }
    }
    all
}

fn combined<T: Real>(how: &How, mixed: &[Value<T>], w_o: &Value<T>) -> Reply<T> {
    let (heads, n, d, e) = (mixed.len(), mixed[0].rows(), mixed[0].width(), w_o.width());
    let total = |place: usize| crate::formula::sum(how, heads, |h| mixed[h].data[place]);
    let sum = Value::new(&[n, d], (0..n * d).map(total).collect());
    let mean = Value::new(&[n, d], sum.data.iter().map(|x| *x / T::of(heads as f64)).collect());
    let first = w_o.slice(0, d);
    Ok(vec![match () {
        () if how.is("averaged") && heads > 1 => return Err(Trouble::Shapes),
        () if how.is("averaged/first") => matmul(how, &mean, &first),
        () if how.is("averaged/tiled") => matmul(how, &join(how, &vec![mean; heads]), w_o),
        () if how.is("averaged/bare") => join(how, &vec![mean; heads]),
        () if how.is("averaged/bare-width") => mean,
        () if how.is("added") && d == e => matmul(how, &sum, w_o),
        () if how.is("added") => matmul(how, &sum, &first),
        () if how.is("no-output-matrix") || how.is("output-first") => join(how, mixed),
        () => matmul(how, &join(how, mixed), w_o),
    }])
}

/// The softmax over the heads of each score.
fn over_heads<T: Real>(
    how: &How,
    [q, k, v]: [&Value<T>; 3],
    scale: T,
    heads: usize,
    mixed: &mut [Value<T>],
    all: &mut [Value<T>],
) -> Result<(), Trouble> {
    let (n, m) = (q.rows(), k.rows());
    let of_head = |h: usize| crate::formula::scores(how, &split(how, q, h, heads), &split(how, k, h, heads), scale);
    let scores = (0..heads).map(of_head).collect::<Result<Vec<_>, Trouble>>()?;
    for at in 0..n * m {
        let row: Vec<T> = scores.iter().map(|s| s.data[at]).collect();
        let weights = crate::formula::softmax_row(&How::default(), &row, &vec![true; heads]);
        (0..heads).for_each(|h| all[h].data[at] = weights[h]);
    }
    for h in 0..heads {
        mixed[h] = crate::formula::mix(how, &all[h], &split(how, v, h, heads), &vec![true; n * m])?;
    }
    Ok(())
}

fn multi_head<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [x, y, w_q, w_k, w_v, w_o] = [0, 1, 2, 3, 4, 5].map(|at| call.args[at].clone());
    let heads = if how.is("one-head") { 1 } else { call.dims[3] };
    let y = if how.is("self-only") { x.clone() } else { y };
    let (x, y) = if how.is("exchanged") { (y, x) } else { (x, y) };
    let turned = |w: Value<T>| if how.is("matrices-transposed") { w.transposed() } else { w };
    let input = |w: Value<T>| if how.is("matrices-transposed/inputs") { w.transposed() } else { turned(w) };
    let [mut w_q, mut w_k, mut w_v] = [w_q, w_k, w_v].map(input);
    if how.is("kv-exchanged") {
        std::mem::swap(&mut w_k, &mut w_v);
    }
    if how.is("qk-exchanged") {
        std::mem::swap(&mut w_q, &mut w_k);
    }
    if how.is("qv-exchanged") {
        std::mem::swap(&mut w_q, &mut w_v);
    }
    let in_block = |at: usize, e: usize| at / e / (e / heads) == at % e / (e / heads);
    if how.is("input-blocks") {
        for w in [&mut w_q, &mut w_k, &mut w_v] {
            let e = w.width();
            (0..e * e).filter(|&at| !in_block(at, e)).for_each(|at| w.data[at] = T::of(0.0));
        }
    }
    let mut w_o = if how.is("matrices-transposed/output") { w_o.transposed() } else { turned(w_o) };
    if how.is("output-blocks") {
        let e = w_o.width();
        (0..e * e).filter(|&at| !in_block(at, e)).for_each(|at| w_o.data[at] = T::of(0.0));
    }
    if (how.is("keys-from-x") || how.is("values-from-x")) && x.rows() != y.rows() {
        return Err(Trouble::Shapes);
    }
    let (of_keys, of_values) = (if how.is("keys-from-x") { &x } else { &y }, if how.is("values-from-x") { &x } else { &y });
    let q = if how.is("queries-unprojected") { x.clone() } else { matmul(how, &x, &w_q) };
    let k = if how.is("keys-unprojected") { y.clone() } else { matmul(how, of_keys, &w_k) };
    let v = if how.is("values-unprojected") { y.clone() } else { matmul(how, of_values, &w_v) };
    let v = if how.is("output-first") { matmul(how, &v, &w_o) } else { v };
    let d = q.width() / heads;
    let scale = match () {
        () if how.is("model-width") => root_scale(q.width()),
        () if how.is("heads-scale") => root_scale(heads),
        () if how.is("width-scale") => T::of(1.0) / T::of(d as f64),
        () => root_scale(d),
    };
    let (mut mixed, mut all) = (Vec::new(), Vec::new());
    for h in 0..heads {
        if how.is("heads-for-width") {
            let (from, to) = ((h * heads).min(q.width()), ((h + 1) * heads).min(q.width()));
            let columns = |x: &Value<T>| {
                let data = (0..x.rows()).flat_map(|i| x.row(i)[from..to].to_vec()).collect();
                Value::new(&[x.rows(), to - from], data)
            };
            let (out, mut weights) = attend(how, [&columns(&q), &columns(&k), &columns(&v)], scale, &vec![true; q.rows() * k.rows()])?;
            weights.zeros.clear();
            mixed.push(Value { zeros: Vec::new(), ..out });
            all.push(weights);
            continue;
        }
        let parts = [split(how, &q, h, heads), split(how, &k, h, heads), split(how, &v, h, heads)];
        let (out, mut weights) = attend(how, [&parts[0], &parts[1], &parts[2]], scale, &vec![true; q.rows() * k.rows()])?;
        weights.zeros.clear();
        mixed.push(Value { zeros: Vec::new(), ..out });
        all.push(weights);
    }
    if how.is("heads-for-width") {
        let (n, e) = (q.rows(), q.width());
        if heads * heads < e {
            return Err(Trouble::Shapes);
        }
        let joined = (0..n).flat_map(|i| mixed.iter().flat_map(move |head| head.row(i).to_vec())).collect();
        return Ok(vec![matmul(how, &Value::new(&[n, e], joined), &w_o), Value::stack(&all)]);
    }
    if how.is("heads-softmax") {
        over_heads(how, [&q, &k, &v], scale, heads, &mut mixed, &mut all)?;
    }
    let mut results = combined(how, &mixed, &w_o)?;
    if how.is("residual-added") {
        results[0].data.iter_mut().zip(&x.data).for_each(|(out, x)| *out = *out + *x);
    }
    let (n, m) = (q.rows(), k.rows());
    results.push(match () {
        () if how.is("weights-averaged") => {
            let mean = |at: usize| crate::formula::sum(how, heads, |h| all[h].data[at]) / T::of(heads as f64);
            Value::new(&[n, m], (0..n * m).map(mean).collect())
        }
        () if how.is("weights-axes") => {
            let at = |place: usize| all[place / m % heads].data[place / (heads * m) * m + place % m];
            Value::new(&[n, heads, m], (0..n * heads * m).map(at).collect())
        }
        () => Value::stack(&all),
    });
    if how.is("results-swapped") {
        results.swap(0, 1);
    }
    Ok(results)
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [n, m, e, heads]: [usize; 4]| {
        let spread = |mut x: Value<f64>| {
            x.data.iter_mut().for_each(|x| *x = f64::from((*x * 1.5 / (e as f64).sqrt()) as f32));
            x
        };
        let x = normal(rng, &[n, e]);
        let y = if label.contains("x = y") { x.clone() } else { normal(rng, &[m, e]) };
        let mut args = vec![x, y];
        (0..4).for_each(|_| args.push(spread(normal(rng, &[e, e]))));
        args.push(Value::number(heads as f64));
        cases.push(Case::new(label, &[n, m, e, heads], args));
    };
    for sizes in [[3, 4, 6, 1], [4, 3, 5, 1], [1, 1, 4, 1]] {
        add(rng, "one head", sizes);
    }
    for sizes in [[3, 4, 6, 6], [4, 3, 2, 2]] {
        add(rng, "heads of width 1", sizes);
    }
    for sizes in [[4, 4, 6, 2], [3, 3, 6, 3], [5, 5, 8, 4]] {
        add(rng, "x = y", sizes);
    }
    for sizes in [[1, 4, 6, 2], [3, 1, 6, 3]] {
        add(rng, "one query or one key", sizes);
    }
    for _ in 0..9 {
        let heads = rng.size(2, 4);
        let (n, m, e) = (rng.size(2, 6), rng.size(2, 6), heads * rng.size(2, 3));
        let m = if n == m { m + 1 } else { m };
        add(rng, "random", [n, m, e, heads]);
    }
    for (size, heads) in [(4, 2), (6, 3), (6, 2)] {
        add(rng, "square", [size, size, size, heads]);
    }
    add(rng, "large", [61, 47, 36, 4]);
    strided(cases)
}
