//! 12: the running softmax: a tile of keys at a time.

use super::normal;
use crate::exercise::{Callee, Exercise, Judging, Kind, Mistake, input, param};
use crate::formula::{How, sum};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 12,
    name: "absorb",
    title: "softmax over tiles that come one by one",
    dims: &["n", "t", "dv"],
    params: &[
        param("row_max", Kind::State, &["n"]),
        param("row_sum", Kind::State, &["n"]),
        param("acc", Kind::State, &["n", "dv"]),
        input("scores", &["n", "t"]),
        input("v", &["t", "dv"]),
    ],
    results: &[("row_max", &["n"]), ("row_sum", &["n"]), ("acc", &["n", "dv"])],
    inputs: &[input("scores", &["n", "t"]), input("v", &["t", "dv"])],
    judged: &["row_max after each tile", "acc / row_sum"],
    mistakes: &[
        Mistake { id: "sum-not-rescaled", text: "the older sum is not shrunk when the maximum rises: it needs exp(old - new) like acc" },
        Mistake { id: "acc-not-rescaled", text: "the older acc is not shrunk when the maximum rises: it needs exp(old - new) like the \
            sum" },
        Mistake { id: "alpha-inverted", text: "older sums grow by exp(new - old): they shrink by exp(old - new)" },
        Mistake { id: "hidden-nan", text: "a row that has seen nothing has -inf - -inf, which is NaN: skip it while its maximum is -inf" },
        Mistake { id: "normalised-each-time", text: "acc is divided by the sum in each call: the judge divides once, at the end" },
        Mistake { id: "one-max", text: "rows share one maximum: each has its own" },
        Mistake { id: "alpha-on-the-new", text: "the factor exp(old - new) is on the new tile: it belongs on the older sums" },
        Mistake { id: "never-rescaled", text: "older sums are not shrunk when the maximum rises: multiply them by exp(old - new)" },
        Mistake { id: "tile-max", text: "the maximum is that of the tile alone: it is that of all tiles so far" },
        Mistake { id: "forgets", text: "the older tiles are forgotten: add to what was there" },
        Mistake { id: "old-max", text: "the new tile is shifted by the old maximum: use the newer one" },
        Mistake { id: "max-kept", text: "row_max is returned as it came: return the maximum so far" },
        Mistake { id: "sum-forgets", text: "the older sum is forgotten: add to what was there" },
        Mistake { id: "acc-forgets", text: "the older acc is forgotten: add to what was there" },
        Mistake { id: "max-from-zero", text: "the maximum never falls below 0: it starts from -inf" },
        Mistake { id: "rescaled-twice", text: "older sums are shrunk by exp(old - new) twice" },
        Mistake { id: "acc-unweighted", text: "acc gets the plain sum of the rows of v: weight them by exp(score - maximum)" },
        Mistake { id: "sum-counts", text: "row_sum counts keys: it is the sum of exp(score - maximum)" },
        Mistake { id: "base-2", text: "powers of 2 instead of e" },
        Mistake { id: "acc-normalised", text: "acc is kept divided by row_sum: keep the plain sum, the judge divides once, at the end" },
        Mistake { id: "tile-max/guarded", text: "the maximum is that of the tile alone, also if the tile is hidden: it is that of all \
            tiles so far" },
        Mistake { id: "tile-shift", text: "the new tile is shifted by its own maximum, not by the maximum so far" },
        Mistake { id: "sum-not-rescaled/by-key", text: "the older sum is not shrunk when a key raises the maximum: it needs exp(old - \
            new) like acc" },
        Mistake { id: "acc-not-rescaled/by-key", text: "the older acc is not shrunk when a key raises the maximum: it needs exp(old - \
            new) like the sum" },
        Mistake { id: "never-rescaled/by-key", text: "older sums are not shrunk when a key raises the maximum: multiply them by exp(old \
            - new)" },
        Mistake { id: "acc-mean", text: "acc gets the tile's weighted mean of v: it must get the plain sum of exp(score - maximum) v" },
        Mistake { id: "sum-mean", text: "row_sum gets the mean of exp over the tile: it must get their sum" },
        Mistake { id: "last-key-missing", text: "the last key of a tile is left out: all t keys enter" },
        Mistake { id: "no-max", text: "exp of the plain scores overflows at 1e4: subtract the maximum so far" },
    ],
    mutants: &[
        "sum-not-rescaled", "alpha-inverted", "hidden-nan", "normalised-each-time", "one-max", "alpha-on-the-new", "acc-not-rescaled",
        "never-rescaled",
        "tile-max", "forgets", "no-max", "old-max", "max-kept", "sum-forgets", "acc-forgets", "max-from-zero", "rescaled-twice",
        "acc-unweighted",
        "sum-counts", "base-2", "acc-normalised", "tile-shift", "sum-not-rescaled/by-key", "acc-not-rescaled/by-key",
        "never-rescaled/by-key",
        "acc-mean", "sum-mean", "last-key-missing", "tile-max/guarded",
    ],
    hints: ["What if the maximum rises?", "Older sums shrink by exp(old - new).", "Skip a row while its maximum is -inf."],
    idea: "row_max, row_sum and acc, and a tile at a time: softmax over any number of keys without ever holding its scores.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(absorb), session: session!(tiles) },
    custom: None,
    files: files!(),
};

fn absorb<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let by_key = ["sum-not-rescaled", "acc-not-rescaled", "never-rescaled"].into_iter().find(|id| how.is(&format!("{id}/by-key")));
    let Some(id) = by_key else { return absorb_tile(call, how) };
    // The same mistake in a loop that takes each key for a tile.
    let [n, t, dv] = call.dims[..] else { return Err(Trouble::Shapes) };
    let how = How { wrong: how.wrong.iter().copied().filter(|wrong| !wrong.ends_with("/by-key")).chain([id]).collect(), ..how.clone() };
    let mut state = call.args[..3].to_vec();
    for j in 0..t {
        let mut args = state;
        args.push(Value::new(&[n, 1], (0..n).map(|i| call.args[3].data[i * t + j]).collect()));
        args.push(call.args[4].slice(j, j + 1));
        state = absorb_tile(&Call { dims: vec![n, 1, dv], args }, &how)?;
    }
    Ok(state)
}

fn absorb_tile<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [row_max, row_sum, acc, scores, v] = [0, 1, 2, 3, 4].map(|at| &call.args[at]);
    let [n, t, dv] = call.dims[..] else { return Err(Trouble::Shapes) };
    let (mut row_max, mut row_sum, mut acc) = (row_max.clone(), row_sum.clone(), acc.clone());
    let low = T::of(f64::NEG_INFINITY);
    let tops: Vec<T> = (0..n).map(|i| scores.row(i).iter().fold(low, |top, s| how.max(top, *s))).collect();
    let highest = tops.iter().chain(&row_max.data).fold(low, |top, x| how.max(top, *x));
    for (i, top) in tops.iter().enumerate() {
        let old = row_max.data[i];
        let new = match () {
            () if how.is("one-max") => highest,
            () if how.is("tile-max") || how.is("tile-max/guarded") => *top,
            () if how.is("max-from-zero") => how.max(how.max(old, *top), T::of(0.0)),
            () => how.max(old, *top),
        };
        let blind = new.value() == f64::NEG_INFINITY;
        if blind && !how.is("hidden-nan") && !how.is("tile-max/guarded") {
            continue;
        }
        let shift = match () {
            () if how.is("no-max") => T::of(0.0),
            () if how.is("old-max") => old,
            () if blind && how.is("tile-max/guarded") => T::of(0.0),
            () if how.is("tile-shift") => if top.value() == f64::NEG_INFINITY { T::of(0.0) } else { *top },
            () => new,
        };
        let power = |x: T| if how.is("base-2") { (x * T::of(std::f64::consts::LN_2)).exp() } else { x.exp() };
        let alpha = match () {
            () if how.is("alpha-inverted") => power(new - old),
            () if how.is("tile-max/guarded") => power(old - shift),
            () => power(old - new),
        };
        let alpha = if how.is("rescaled-twice") { alpha * alpha } else { alpha };
        let alpha = if how.is("forgets") { T::of(0.0) } else if how.is("no-max") { T::of(1.0) } else { alpha };
        let fresh = if how.is("alpha-on-the-new") { alpha } else { T::of(1.0) };
        let kept = |apart: bool| if apart || how.is("alpha-on-the-new") || how.is("never-rescaled") { T::of(1.0) } else { alpha };
        let p = |j: usize| power(scores.data[i * t + j] - shift) * fresh;
        let one = T::of(1.0);
        let older = if how.is("sum-forgets") { T::of(0.0) } else { row_sum.data[i] * kept(how.is("sum-not-rescaled")) };
        let fully = if how.is("last-key-missing") { t - 1 } else { t };
        let fresh_sum = sum(how, fully, p);
        let before = row_sum.data[i];
        row_sum.data[i] = older
            + match () {
                () if how.is("sum-counts") => T::of(t as f64),
                () if how.is("sum-mean") => fresh_sum / T::of(t as f64),
                () => fresh_sum,
            };
        for c in 0..dv {
            let at = i * dv + c;
            let older = if how.is("acc-forgets") { T::of(0.0) } else { acc.data[at] * kept(how.is("acc-not-rescaled")) };
            let weight = |j: usize| if how.is("acc-unweighted") { one } else { p(j) };
            let older = if how.is("acc-normalised") { older * before } else { older };
            let mixed = sum(how, fully, |j| weight(j) * v.data[j * dv + c]);
            acc.data[at] = older + if how.is("acc-mean") { mixed / fresh_sum } else { mixed };
            if how.is("acc-normalised") && row_sum.data[i].value() != 0.0 {
                acc.data[at] = acc.data[at] / row_sum.data[i];
            }
            if how.is("normalised-each-time") {
                acc.data[at] = acc.data[at] / row_sum.data[i];
            }
        }
        row_max.data[i] = if how.is("max-kept") { old } else { new };
    }
    Ok(vec![row_max, row_sum, acc])
}

/// Feeds the tiles, from -inf, 0, 0.
fn tiles<T: Real>(case: &Case, callee: Callee<'_, T>) -> Reply<T> {
    let call = case.call.to::<T>();
    let [n, t, dv] = call.dims[..] else { return Err(Trouble::Shapes) };
    let (scores, v) = (&call.args[0], &call.args[1]);
    let mut state = vec![Value::new(&[n], vec![T::of(f64::NEG_INFINITY); n]), Value::zero(&[n]), Value::zero(&[n, dv])];
    let (mut maxima, mut from) = (Vec::new(), 0);
    for count in case.tiles(t) {
        let tile = Value::new(&[n, count], (0..n * count).map(|at| scores.data[at / count * t + from + at % count]).collect());
        let mut args = state.clone();
        args.extend([tile, v.slice(from, from + count)]);
        state = callee(&Call { dims: vec![n, count, dv], args })?;
        if state.len() != 3 {
            return Err(Trouble::Shapes);
        }
        maxima.push(state[0].clone());
        from += count;
    }
    let ratio = |at: usize| {
        let total = state[1].data[at / dv];
        if total.value() == 0.0 { state[2].data[at] } else { state[2].data[at] / total }
    };
    let blind = |at: usize| scores.row(at / dv).iter().all(|s| s.value() == f64::NEG_INFINITY);
    let out = Value::new(&[n, dv], (0..n * dv).map(ratio).collect());
    Ok(vec![Value::stack(&maxima), out.with_zeros((0..n * dv).map(blind).collect())])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [n, t, dv]: [usize; 3], pieces: &[usize], change: &dyn Fn(usize, usize, f64) -> f64| {
        let mut scores = normal(rng, &[n, t]);
        scores.data.iter_mut().enumerate().for_each(|(at, s)| *s = f64::from(change(at / t, at % t, *s) as f32));
        cases.push(Case::new(label, &[n, t, dv], vec![scores, normal(rng, &[t, dv])]).cut(pieces));
    };
    let as_is = |_: usize, _: usize, s: f64| s;
    add(rng, "one tile", [3, 4, 2], &[4], &as_is);
    add(rng, "one key", [2, 1, 3], &[1], &as_is);
    add(rng, "tiles of one key", [3, 5, 2], &[1; 5], &as_is);
    add(rng, "two tiles", [4, 6, 3], &[3, 3], &as_is);
    add(rng, "tiles of different sizes", [3, 9, 4], &[2, 4, 1, 2], &as_is);
    let hidden = f64::NEG_INFINITY;
    let at_level = |s: f64, level: f64| (s * 8.0).round() / 8.0 + level;
    add(rng, "the first tile is hidden", [3, 6, 2], &[2, 2, 2], &|_, j, s| if j < 2 { hidden } else { s });
    add(rng, "the first tile is hidden from one row", [3, 6, 2], &[3, 3], &|i, j, s| if i == 1 && j < 3 { hidden } else { s });
    add(rng, "the last tile is hidden", [3, 6, 2], &[2, 2, 2], &|_, j, s| if j >= 4 { hidden } else { s });
    add(rng, "everything is hidden", [2, 4, 3], &[2, 2], &|_, _, _| hidden);
    add(rng, "one row is hidden", [3, 4, 2], &[2, 2], &|i, _, s| if i == 0 { hidden } else { s });
    add(rng, "some keys are hidden", [4, 8, 3], &[3, 3, 2], &|i, j, s| if (i + j) % 3 == 0 { hidden } else { s });
    add(rng, "scores of 1e4, rising", [3, 6, 2], &[2, 2, 2], &|_, j, s| at_level(s, 4096.0 * (j / 2) as f64));
    add(rng, "scores of 1e4, falling", [3, 6, 2], &[2, 2, 2], &|_, j, s| at_level(s, 8192.0 - 4096.0 * (j / 2) as f64));
    add(rng, "scores of -1e4, rising", [3, 6, 2], &[3, 3], &|_, j, s| at_level(s, -8192.0 + 2.0 * (j / 3) as f64));
    add(rng, "rows at different levels", [4, 6, 3], &[2, 4], &|i, _, s| at_level(s, [0.0, 8192.0, -8192.0, 256.0][i]));
    add(rng, "the maximum rises by 2 a tile", [3, 8, 2], &[2, 2, 2, 2], &|_, j, s| at_level(s, 2.0 * (j / 2) as f64));
    add(rng, "the maximum stays", [3, 6, 2], &[2, 2, 2], &|_, j, s| if j == 0 { 4.0 } else { s.min(3.0) });
    for _ in 0..8 {
        let tiles: Vec<usize> = (0..rng.size(1, 4)).map(|_| rng.size(1, 4)).collect();
        let sizes = [rng.size(2, 5), tiles.iter().sum(), rng.size(2, 5)];
        add(rng, "random", sizes, &tiles, &|_, _, s| 2.0 * s);
    }
    add(rng, "large", [1100, 12, 3], &[5, 7], &|_, _, s| 2.0 * s);
    cases
}
