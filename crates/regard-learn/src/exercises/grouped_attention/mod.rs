//! 10: neighbouring query heads share a key/value head.

use super::{normal, strided};
use crate::exercise::{Exercise, Judging, Mistake, input, plain};
use crate::formula::{How, attention as attend, root_scale, sum, usual_scale};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 10,
    name: "grouped_attention",
    title: "query heads that share keys",
    dims: &["h", "hk", "n", "m", "d", "dv"],
    params: &[input("q", &["h", "n", "d"]), input("k", &["hk", "m", "d"]), input("v", &["hk", "m", "dv"])],
    results: &[("out", &["h", "n", "dv"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "first-for-all", text: "every query head reads key/value head 0" },
        Mistake { id: "queries-averaged", text: "the query heads of a group are averaged before attending: each attends for itself" },
        Mistake { id: "divided-by-hk", text: "query head i reads head i // hk: divide by the size of a group, h/hk" },
        Mistake { id: "few-heads", text: "there are hk results: each of the h query heads has its own" },
        Mistake { id: "backwards", text: "the groups read the key/value heads in reverse order" },
        Mistake { id: "modulo", text: "query head i reads head i % hk: neighbours share, so it is i // (h/hk)" },
        Mistake { id: "few-heads/first", text: "there are hk results, of the first hk query heads: each of the h query heads has its own" },
        Mistake { id: "few-heads/mean", text: "there are hk results, of the mean of each group's queries: each of the h query heads has \
            its own" },
        Mistake { id: "few-heads/sum", text: "there are hk results, of the sum of each group's queries: each of the h query heads has \
            its own" },
        Mistake { id: "heads-averaged", text: "all key/value heads are averaged into one: each group reads its own" },
        Mistake { id: "last-for-all", text: "every query head reads the last key/value head" },
        Mistake { id: "own-index", text: "query head i reads head min(i, hk - 1): neighbours share, so it is i // (h/hk)" },
        Mistake { id: "keys-modulo", text: "query head i reads the keys of head i % hk: neighbours share, so it is i // (h/hk), as for \
            the values" },
        Mistake { id: "values-modulo", text: "query head i reads the values of head i % hk: neighbours share, so it is i // (h/hk), as \
            for the keys" },
        Mistake { id: "order-exchanged", text: "the results stand in the order [group, hk]: they belong in that of the queries, [hk, \
            group]" },
        Mistake { id: "one-late", text: "query head i reads head (i + 1) // (h/hk): it is i // (h/hk)" },
        Mistake { id: "divided-by-hk/clipped", text: "query head i reads head min(i // hk, hk - 1): divide by the size of a group, h/hk" },
        Mistake { id: "group-first", text: "the result of the first query head of a group is repeated: each query head has its own" },
        Mistake { id: "group-first/front", text: "only the first hk query heads attend, and their results are repeated: each query head \
            has its own" },
        Mistake { id: "group-scale", text: "the scale is 1/sqrt(h/hk): it is 1/sqrt(d)" },
        Mistake { id: "group-averaged", text: "the results of a group are averaged: each query head keeps its own" },
    ],
    mutants: &[
        "first-for-all", "queries-averaged", "divided-by-hk", "no-scale", "few-heads", "few-heads/first", "few-heads/mean",
        "few-heads/sum", "backwards", "modulo",
        "value-width", "group-averaged", "width-scale", "columns", "keys-as-values", "no-softmax", "all-at-once", "transposed-scores",
        "heads-averaged", "last-for-all", "own-index", "group-scale", "hard", "hard/last", "base-2", "unnormalised", "negated", "twice",
        "weights-transposed", "scale-inverted/root", "scale-after", "queries-as-keys", "sigmoid",
        "keys-modulo", "values-modulo", "order-exchanged", "one-late", "uniform", "keepdims-lost", "one-in-sum", "component-missing",
        "column-max",
        "column-sum", "one-sum", "scale-after/out", "values-as-keys", "added-epsilon/1e-3",
        "divided-by-hk/clipped", "group-first", "group-first/front", "out-overwritten", "relu-scores",
    ],
    hints: ["How many query heads are there per key head?", "What does head 3 of 6 read when hk = 2?", "q as [hk, group, n, d]."],
    idea: "The cache holds hk heads instead of h: the same attention, a fraction of the memory.",
    floor: 0.0,
    cases,
    possible: |dims| dims[0].is_multiple_of(dims[1]),
    judging: Judging::Numbers { formula: formula!(grouped_attention), session: session!(plain) },
    custom: None,
    files: files!(),
};

/// Which key/value head a query head reads.
fn reads(how: &How, i: usize, h: usize, hk: usize) -> usize {
    let group = h / hk;
    match () {
        () if how.is("first-for-all") => 0,
        () if how.is("divided-by-hk") => i / hk,
        () if how.is("divided-by-hk/clipped") => (i / hk).min(hk - 1),
        () if how.is("backwards") => hk - 1 - i / group,
        () if how.is("modulo") => i % hk,
        () if how.is("last-for-all") => hk - 1,
        () if how.is("one-late") => (i + 1) / group,
        () if how.is("own-index") => i.min(hk - 1),
        () => i / group,
    }
}

fn grouped_attention<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v] = [0, 1, 2].map(|at| &call.args[at]);
    let [h, hk, n, m, d, dv] = call.dims[..] else { return Err(Trouble::Shapes) };
    let group = h / hk;
    let scale = if how.is("group-scale") { root_scale(group) } else { usual_scale(how, d, dv) };
    let mean_of = |heads: std::ops::Range<usize>, of: &dyn Fn(usize) -> Value<T>, divide: bool| {
        let parts: Vec<Value<T>> = heads.map(of).collect();
        let by = T::of(if divide { parts.len() } else { 1 } as f64);
        Value::new(&parts[0].shape, (0..parts[0].data.len()).map(|at| sum(how, parts.len(), |p| parts[p].data[at]) / by).collect())
    };
    let attended = |query: &Value<T>, head: usize, i: usize| -> Result<Value<T>, Trouble> {
        if head >= hk {
            return Err(Trouble::Shapes);
        }
        let read = |x: &Value<T>, modulo: bool| match () {
            () if how.is("heads-averaged") => mean_of(0..hk, &|i| x.part(i), true),
            () if modulo => x.part(i % hk),
            () => x.part(head),
        };
        let (out, _) = attend(how, [query, &read(k, how.is("keys-modulo")), &read(v, how.is("values-modulo"))], scale, &vec![true; n * m])?;
        Ok(Value { zeros: Vec::new(), ..out })
    };
    let mut outs = Vec::new();
    if how.wrong.iter().any(|wrong| wrong.starts_with("few-heads")) {
        for head in 0..hk {
            let query = match () {
                () if how.is("few-heads/first") => q.part(head),
                () if how.is("few-heads") => q.part(head * group),
                () => mean_of(head * group..(head + 1) * group, &|i| q.part(i), how.is("few-heads/mean")),
            };
            outs.push(attended(&query, head, head)?);
        }
        return Ok(vec![Value::stack(&outs)]);
    }
    for i in 0..h {
        let start = i / group * group;
        let query = match () {
            () if how.is("queries-averaged") => mean_of(start..start + group, &|i| q.part(i), true),
            () if how.is("group-first") => q.part(start),
            () if how.is("group-first/front") => q.part(i / group),
            () => q.part(i),
        };
        outs.push(attended(&query, reads(how, i, h, hk), i)?);
    }
    if how.is("group-averaged") {
        outs = (0..h).map(|i| mean_of(i / group * group..(i / group + 1) * group, &|i| outs[i].clone(), true)).collect();
    }
    if how.is("order-exchanged") {
        outs = (0..h).map(|i| outs[i % hk * group + i / hk].clone()).collect();
    }
    Ok(vec![Value::stack(&outs)])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, dims: [usize; 6]| {
        let [h, hk, n, m, d, dv] = dims;
        cases.push(Case::new(label, &dims, vec![normal(rng, &[h, n, d]), normal(rng, &[hk, m, d]), normal(rng, &[hk, m, dv])]));
    };
    add(rng, "one head", [1, 1, 3, 4, 5, 2]);
    for dims in [[4, 1, 3, 5, 2, 4], [3, 1, 2, 4, 3, 5]] {
        add(rng, "hk = 1", dims);
    }
    for dims in [[3, 3, 4, 2, 5, 3], [4, 4, 2, 3, 4, 5]] {
        add(rng, "hk = h", dims);
    }
    for dims in [[6, 2, 3, 4, 5, 2], [6, 2, 4, 3, 2, 5], [6, 2, 1, 5, 4, 3]] {
        add(rng, "6 heads on 2", dims);
    }
    for dims in [[6, 3, 3, 5, 4, 2], [6, 3, 2, 4, 3, 5], [6, 3, 4, 1, 2, 3]] {
        add(rng, "6 heads on 3", dims);
    }
    for dims in [[4, 2, 3, 5, 2, 6], [8, 2, 2, 3, 4, 5], [9, 3, 2, 4, 3, 2], [8, 4, 3, 2, 5, 4]] {
        add(rng, "other groups", dims);
    }
    for _ in 0..8 {
        let (hk, group) = (rng.size(1, 3), rng.size(1, 4));
        let [n, m, d, dv] = super::different(rng, 2, 7);
        add(rng, "random", [hk * group, hk, n, m, d, dv]);
    }
    for size in [2, 4] {
        add(rng, "square", [4, 2, size, size, size, size]);
    }
    add(rng, "large", [6, 3, 29, 31, 18, 17]);
    strided(cases)
}
