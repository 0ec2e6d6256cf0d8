//! 06: causal attention with an offset.

use super::{different, normal, strided, whole};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, attention as attend, usual_scale};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Again, Call, Case, Reply, Trouble, Value};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 6,
    name: "causal_attention",
    title: "no query sees the future",
    dims: &["n", "m", "d", "dv"],
    params: &[input("q", &["n", "d"]), input("k", &["m", "d"]), input("v", &["m", "dv"]), param("offset", Kind::Offset, &[])],
    results: &[("out", &["n", "dv"]), ("weights", &["n", "m"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "reversed", text: "a query sees the future only (j >= i + offset): key j is visible if j <= i + offset" },
        Mistake { id: "reversed/strict", text: "a query sees the future only (j > i + offset): key j is visible if j <= i + offset" },
        Mistake { id: "reversed/transposed-raises", text: "the triangle has the shape [m, n]: rows are queries, columns keys" },
        Mistake { id: "ends-aligned/with-offset", text: "the triangle is aligned with the last key before the offset moves it: start \
            from j <= i" },
        Mistake { id: "one-ahead", text: "a query sees one key too many: j <= i + offset, not j <= i + offset + 1" },
        Mistake { id: "one-behind", text: "a query does not see its own key: j <= i + offset, not j < i + offset" },
        Mistake { id: "offset-negated", text: "the offset has the wrong sign: j <= i + offset" },
        Mistake { id: "offset-ignored", text: "the offset is not used" },
        Mistake { id: "ends-aligned", text: "the triangle is aligned with the last key: only offset moves it" },
        Mistake { id: "reversed/transposed", text: "the triangle is transposed: a query sees j >= i - offset, and must see j <= i + \
            offset" },
        Mistake { id: "two-ahead", text: "a query sees two keys too many: j <= i + offset" },
        Mistake { id: "empty-all", text: "a row that sees no key is given all of them: it must be exactly 0" },
        Mistake { id: "offset-clipped", text: "a negative offset counts as 0: it hides keys, and rows may see none" },
        Mistake { id: "negative-slice", text: "a negative end of a slice counts from the back: k[:-1] is not empty, and a row that sees \
            no key is given some" },
        Mistake { id: "offset-absolute", text: "the sign of the offset is lost: a negative one hides keys" },
        Mistake { id: "own-only", text: "a query sees the key j = i + offset alone: it sees all up to that one" },
        Mistake { id: "empty-first", text: "a row that sees no key is given key 0: it must be exactly 0" },
    ],
    mutants: &[
        "no-mask", "reversed", "reversed/strict", "one-ahead", "zero-scores", "offset-negated", "empty-nan", "empty-mean", "empty-mean/add",
        "empty-mean/lowest", "empty-mean/1e10", "empty-mean/1e6", "empty-mean/1e5", "empty-mean/1e4", "empty-mean/1e4-add",
        "empty-mean/1e3", "empty-mean/100",
        "one-behind", "offset-ignored", "ends-aligned", "ends-aligned/with-offset", "mask-after", "max-hidden", "no-scale", "width-scale",
        "value-width",
        "columns", "no-max", "no-softmax", "keys-as-values", "transposed-scores", "one-max", "all-at-once",
        "negative-slice", "offset-absolute", "own-only", "scores-returned",
        "results-swapped", "negated", "empty-first", "reversed/transposed", "reversed/transposed-raises", "two-ahead", "empty-all",
        "offset-clipped",
        "scale-inverted/root", "scale-after", "hard", "hard/last", "base-2", "unnormalised", "weights-transposed", "queries-as-keys",
        "sigmoid", "twice", "clipped",
        "keepdims-lost", "keepdims-lost/max", "keepdims-lost/both", "uniform", "one-in-sum", "component-missing", "exp-returned",
        "added-epsilon/1e-3",
        "added-epsilon/1e-5",
        "one-max/hidden", "relu-scores", "out-overwritten", "out-unnormalised",
    ],
    hints: ["Draw which query sees which key.", "Scores become -inf where hidden.", "A row without keys is a case of its own: zeros."],
    idea: "Hidden before the softmax, so that what is visible still sums to 1; a row without keys is exactly 0.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(causal_attention), session: session!(plain) },
    custom: None,
    files: files!(),
};

fn sees(how: &How, n: usize, m: usize, offset: i64) -> Vec<bool> {
    let ends = m as i64 - n as i64;
    let visible = |i: i64, j: i64| match () {
        () if how.is("reversed") => j >= i + offset,
        () if how.is("reversed/strict") => j > i + offset,
        () if how.is("reversed/transposed") || how.is("reversed/transposed-raises") => j >= i - offset,
        () if how.is("two-ahead") => j <= i + offset + 2,
        () if how.is("offset-clipped") => j <= i + offset.max(0),
        () if how.is("empty-all") => j <= i + offset || i + offset < 0,
        () if how.is("one-ahead") => j <= i + offset + 1,
        () if how.is("negative-slice") && i + offset + 1 < 0 => j < m as i64 + i + offset + 1,
        () if how.is("offset-absolute") => j <= i + offset.abs(),
        () if how.is("own-only") => j == i + offset,
        () if how.is("empty-first") => j <= (i + offset).max(0),
        () if how.is("one-behind") => j < i + offset,
        () if how.is("offset-negated") => j <= i - offset,
        () if how.is("offset-ignored") => j <= i,
        () if how.is("ends-aligned") => j <= i + ends,
        () if how.is("ends-aligned/with-offset") => j <= i + ends + offset,
        () => j <= i + offset,
    };
    (0..n * m).map(|at| visible((at / m) as i64, (at % m) as i64)).collect()
}

fn causal_attention<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v] = [&call.args[0], &call.args[1], &call.args[2]];
    if how.is("reversed/transposed-raises") && q.rows() != k.rows() {
        return Err(Trouble::Shapes);
    }
    let visible = sees(how, q.rows(), k.rows(), call.args[3].scalar().value() as i64);
    let scale = usual_scale(how, q.width(), v.width());
    let (out, weights) = attend(how, [q, k, v], scale, &visible)?;
    Ok(if how.is("results-swapped") { vec![weights, out] } else { vec![out, weights] })
}

/// Other keys and values at the end, which the first rows do not see.
fn again(rng: &mut Rng, case: &Case) -> Option<Again> {
    let [n, m, d, dv] = case.call.dims[..] else { return None };
    let offset = case.call.args[3].data[0] as i64;
    let from = (0..m).find(|&j| j as i64 > offset)?;
    let mut call = case.call.clone();
    for (arg, width) in [(1, d), (2, dv)] {
        let scale = case.call.args[arg].data.iter().fold(1.0, |top: f64, x| top.max(x.abs()));
        call.args[arg].data[from * width..].iter_mut().for_each(|x| *x = f64::from((scale * f64::from(rng.normal())) as f32));
    }
    let rows: Vec<bool> = (0..n).map(|i| (i as i64) + offset < from as i64).collect();
    let keep = |width: usize| (0..n * width).map(|at| rows[at / width]).collect();
    Some(Again { call, keeps: vec![keep(dv), keep(m)], what: format!("other keys and values from {from} on, which rows {:?} do not \
        see", shown(&rows)) })
}

fn shown(rows: &[bool]) -> Vec<usize> {
    (0..rows.len()).filter(|&i| rows[i]).collect()
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |label: &str, [n, m, d, dv]: [usize; 4], offset: i64, args: [Value<f64>; 3]| {
        let [q, k, v] = args;
        cases.push(Case::new(label, &[n, m, d, dv], vec![q, k, v, Value::number(offset as f64)]));
    };
    let random = |rng: &mut Rng, [n, m, d, dv]: [usize; 4]| [normal(rng, &[n, d]), normal(rng, &[m, d]), normal(rng, &[m, dv])];
    for (label, sizes, offset) in [
        ("one query", [1, 4, 3, 2], 0),
        ("one key", [4, 1, 2, 3], 0),
        ("more keys than queries", [3, 5, 4, 2], 0),
        ("more queries than keys", [5, 3, 2, 4], 0),
        ("offset 2", [3, 6, 4, 5], 2),
        ("offset 1, more queries than keys", [5, 3, 4, 2], 1),
        ("offset past the last key", [3, 4, 2, 5], 9),
        ("offset -1: row 0 sees nothing", [4, 5, 3, 2], -1),
        ("offset -2, square", [4, 4, 4, 4], -2),
        ("offset -3: most rows see nothing", [4, 3, 2, 5], -3),
        ("nothing is visible", [3, 4, 2, 5], -9),
    ] {
        add(label, sizes, offset, random(rng, sizes));
    }
    for offset in [0, 1, -1] {
        let sizes = [4, 5, 3, 2];
        let mut args = random(rng, sizes);
        args[0].data.fill(0.0);
        add("scores exactly 0", sizes, offset, args);
    }
    for (label, sizes, offset) in [("scores of 1e4", [3, 4, 4, 2], 0), ("scores of 1e4, offset 1", [4, 5, 4, 3], 1), ("scores of 1e4, \
        offset -1", [4, 4, 4, 2], -1)] {
        let [n, m, d, dv] = sizes;
        let args = [whole(rng, &[n, d], 4, 64.0), whole(rng, &[m, d], 4, 64.0), normal(rng, &[m, dv])];
        add(label, sizes, offset, args);
    }
    // The last key is hidden from all rows but the last and has a huge score; visible scores are far below 0.
    let mut args = [whole(rng, &[3, 4], 1, 1.0), whole(rng, &[4, 4], 1, 1.0), normal(rng, &[4, 2])];
    args[0].data.fill(64.0);
    args[1].data.iter_mut().enumerate().for_each(|(at, x)| *x += if at / 4 == 3 { 128.0 } else { -128.0 });
    add("a hidden score of 1e4", [3, 4, 4, 2], 0, args);
    for _ in 0..8 {
        let (sizes, offset) = (different(rng, 2, 7), rng.whole(-2, 3));
        add("random", sizes, offset, random(rng, sizes));
    }
    for size in [2, 3, 5] {
        let sizes = [size; 4];
        add("square", sizes, 0, random(rng, sizes));
    }
    let sizes = [67, 71, 18, 33];
    add("large", sizes, 3, random(rng, sizes));
    for case in cases.iter_mut().step_by(2) {
        case.again = again(rng, case);
    }
    strided(cases)
}
