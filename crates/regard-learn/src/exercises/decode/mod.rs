//! 11: decoding with a cache and rotary positions.

use super::{normal, strided};
use crate::exercise::{Callee, Exercise, Judging, Kind, Mistake, input, param};
use crate::formula::{How, attention as attend, usual_scale};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value, number};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 11,
    name: "decode",
    title: "a cache of turned keys",
    dims: &["t", "p", "d", "dv"],
    params: &[
        input("q", &["t", "d"]),
        input("k", &["t", "d"]),
        input("v", &["t", "dv"]),
        input("past_k", &["p", "d"]),
        input("past_v", &["p", "dv"]),
        param("base", Kind::Number, &[]),
    ],
    results: &[("out", &["t", "dv"]), ("keys", &["p+t", "d"]), ("values", &["p+t", "dv"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "values-turned", text: "the values are turned too: only q and k are" },
        Mistake { id: "restart", text: "positions start from 0 in each call: new tokens stand at p, p+1, .." },
        Mistake { id: "past-turned-again", text: "the past keys are turned again: the cache holds turned keys already" },
        Mistake { id: "half-speed", text: "the angle is position / base^(i/d): the power is 2i/d" },
        Mistake { id: "no-triangle", text: "new tokens see later ones: j <= p + i" },
        Mistake { id: "cache-unturned", text: "the cache gets the new keys unturned" },
        Mistake { id: "new-first", text: "the new keys stand before the past: past first" },
        Mistake { id: "queries-unturned", text: "the queries are not turned" },
        Mistake { id: "keys-unturned", text: "the new keys are not turned" },
        Mistake { id: "neighbours-paired", text: "the pairs are (2i, 2i+1): they are (i, i + d/2)" },
        Mistake { id: "turned-backwards", text: "the turn has the wrong sign: (a cos - b sin, a sin + b cos)" },
        Mistake { id: "one-late", text: "positions are one too large: the first new token stands at p" },
        Mistake { id: "base-ignored", text: "the base is 10000 whatever it is given as" },
        Mistake { id: "past-unused", text: "the new tokens do not see the past" },
        Mistake { id: "past-uncounted", text: "the triangle forgets the past: j <= p + i, not j <= i" },
        Mistake { id: "keys-restart", text: "the positions of new keys start from 0: new tokens stand at p, p+1, .." },
        Mistake { id: "queries-restart", text: "the positions of queries start from 0: new tokens stand at p, p+1, .." },
        Mistake { id: "speed-inverted", text: "the angle is position * base^(2i/d): divide by that power" },
        Mistake { id: "sin-cos-exchanged", text: "sine and cosine are exchanged: (a cos - b sin, a sin + b cos)" },
        Mistake { id: "self-unseen", text: "a new token does not see itself: j <= p + i, not j < p + i" },
        Mistake { id: "one-ahead", text: "a new token sees the one after it: j <= p + i" },
        Mistake { id: "one-early", text: "positions are one too small: the first new token stands at p" },
        Mistake { id: "all-at-p", text: "every new token is turned as if it stood at p: they stand at p, p+1, .." },
        Mistake { id: "queries-at-p", text: "every new query is turned as if it stood at p: they stand at p, p+1, .." },
        Mistake { id: "one-speed", text: "all pairs are turned by the angle position: pair i has position / base^(2i/d)" },
        Mistake { id: "unturned", text: "neither queries nor keys are turned" },
        Mistake { id: "cache-unturned/all", text: "the cache keeps keys unturned, and turns all of them in each call: past keys come \
            turned, and new ones are kept turned" },
        Mistake { id: "halves-mixed", text: "the second half is a cos + b sin: it is a sin + b cos" },
        Mistake { id: "first-half-sign", text: "the first half is a cos + b sin: it is a cos - b sin" },
        Mistake { id: "second-half-sign", text: "the second half is b cos - a sin: it is a sin + b cos" },
        Mistake { id: "degrees", text: "the angles are taken for degrees: sine and cosine take radians" },
        Mistake { id: "output-turned", text: "out is turned, too: only q and k are" },
        Mistake { id: "value-past-first", text: "the new values stand before the past ones: past first, like the keys" },
        Mistake { id: "speed-from-one", text: "pair i has the speed of pair i + 1: i starts from 0" },
        Mistake { id: "double-speed", text: "the angle is position / base^(4i/d): i runs over d/2 pairs, and the power is 2i/d" },
    ],
    mutants: &[
        "values-turned", "restart", "past-turned-again", "half-speed", "no-triangle", "cache-unturned", "new-first", "queries-unturned",
        "keys-unturned", "neighbours-paired", "turned-backwards", "one-late", "base-ignored", "past-unused", "past-uncounted",
        "double-speed", "no-scale", "width-scale", "value-width", "columns",
        "keys-as-values", "keys-restart", "queries-restart", "speed-inverted", "sin-cos-exchanged", "self-unseen", "one-ahead",
        "one-early", "all-at-p",
        "one-speed", "unturned", "scale-inverted/root", "hard", "hard/last", "unnormalised", "zero-scores", "mask-after",
        "halves-mixed", "first-half-sign", "second-half-sign", "degrees", "value-past-first", "speed-from-one", "uniform", "no-softmax",
        "queries-as-keys", "scale-after", "base-2", "negated", "all-at-once", "output-turned", "component-missing",
        "cache-unturned/all", "relu-scores", "out-overwritten", "queries-at-p",
    ],
    hints: ["Which rows are new?", "Turn, append, attend.", "Key j is visible to new token i iff j <= p + i."],
    idea: "A turned key knows where it stands, so the past is never touched again: decoding token by token gives what a prefill gives.",
    floor: 0.0,
    cases,
    possible: |dims| dims[2].is_multiple_of(2) && dims[3].is_multiple_of(2),
    judging: Judging::Numbers { formula: formula!(decode), session: session!(pieces) },
    custom: None,
    files: files!(),
};

/// Each pair of a row is turned by its position.
pub(super) fn turned<T: Real>(how: &How, x: &Value<T>, first: usize, base: T) -> Value<T> {
    let (rows, d) = (x.rows(), x.width());
    let half = d / 2;
    let base = if how.is("base-ignored") { T::of(10_000.0) } else { base };
    let speed = match () {
        () if how.is("half-speed") => 1.0,
        () if how.is("double-speed") => 4.0,
        () if how.is("speed-inverted") => -2.0,
        () if how.is("one-speed") => 0.0,
        () => 2.0,
    };
    let mut result = x.clone();
    for row in 0..rows {
        let row_position = if how.is("all-at-p") { first } else { first + row } as f64;
        let position = match () {
            () if how.is("one-late") => T::of(row_position + 1.0),
            () if how.is("one-early") => T::of(row_position - 1.0),
            () => T::of(row_position),
        };
        for i in 0..half {
            let pair = if how.is("speed-from-one") { i + 1 } else { i } as f64;
            let angle = position / base.powf(T::of(speed * pair / d as f64));
            let angle = if how.is("degrees") { angle * T::of(std::f64::consts::PI / 180.0) } else { angle };
            let (one, two) = if how.is("neighbours-paired") { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (a, b) = (x.data[row * d + one], x.data[row * d + two]);
            let angle = if how.is("sin-cos-exchanged") { T::of(std::f64::consts::FRAC_PI_2) - angle } else { angle };
            let (cos, sin) = (angle.cos(), if how.is("turned-backwards") { -angle.sin() } else { angle.sin() });
            result.data[row * d + one] = if how.is("first-half-sign") { a * cos + b * sin } else { a * cos - b * sin };
            result.data[row * d + two] = match () {
                () if how.is("halves-mixed") => a * cos + b * sin,
                () if how.is("second-half-sign") => b * cos - a * sin,
                () => a * sin + b * cos,
            };
        }
    }
    result
}

fn decode<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v, past_k, past_v] = [0, 1, 2, 3, 4].map(|at| &call.args[at]);
    let base = call.args[5].scalar();
    let [t, p, d, _] = call.dims[..] else { return Err(Trouble::Shapes) };
    let first = if how.is("restart") { 0 } else { p };
    let query_first = if how.is("queries-restart") { 0 } else { first };
    let key_first = if how.is("keys-restart") { 0 } else { first };
    let query_how = if how.is("queries-at-p") { how.and("all-at-p") } else { how.clone() };
    let query = if how.is("queries-unturned") || how.is("unturned") { q.clone() } else { turned(&query_how, q, query_first, base) };
    let key = if how.is("keys-unturned") || how.is("unturned") { k.clone() } else { turned(how, k, key_first, base) };
    let value = if how.is("values-turned") { turned(how, v, first, base) } else { v.clone() };
    let past = if how.is("past-turned-again") || how.is("cache-unturned/all") { turned(how, past_k, 0, base) } else { past_k.clone() };
    let joined = |past: &Value<T>, new: &Value<T>| {
        if how.is("new-first") { Value::join(&[new.clone(), past.clone()]) } else { Value::join(&[past.clone(), new.clone()]) }
    };
    let (keys, values) = (joined(&past, &key), joined(past_v, &value));
    let values = if how.is("value-past-first") { Value::join(&[value.clone(), past_v.clone()]) } else { values };
    let triangle = |i: usize, j: usize| match () {
        () if how.is("no-triangle") => true,
        () if how.is("past-uncounted") => j <= i,
        () if how.is("self-unseen") => j < p + i,
        () if how.is("one-ahead") => j <= p + i + 1,
        () => j <= p + i,
    };
    let sees = |i: usize, j: usize| triangle(i, j) && !(how.is("past-unused") && j < p);
    let visible: Vec<bool> = (0..t * (p + t)).map(|at| sees(at / (p + t), at % (p + t))).collect();
    let (out, _) = attend(how, [&query, &keys, &values], usual_scale(how, d, v.width()), &visible)?;
    let kept = match () {
        () if how.is("cache-unturned") => joined(&past, k),
        () if how.is("cache-unturned/all") => joined(past_k, k),
        () => keys,
    };
    let out = if how.is("output-turned") { turned(how, &out, first, base) } else { out };
    Ok(vec![Value { zeros: Vec::new(), ..out }, kept, values])
}

/// The new tokens in pieces, each with the cache that the one before returned.
fn pieces<T: Real>(case: &Case, callee: Callee<'_, T>) -> Reply<T> {
    if case.pieces.is_empty() {
        return callee(&case.call.to());
    }
    let call = case.call.to::<T>();
    let (mut keys, mut values) = (call.args[3].clone(), call.args[4].clone());
    let (mut outs, mut from) = (Vec::new(), 0);
    for &count in &case.pieces {
        let part = |at: usize| call.args[at].slice(from, from + count);
        let args = vec![part(0), part(1), part(2), keys.clone(), values.clone(), call.args[5].clone()];
        let dims = vec![count, keys.shape[0], call.dims[2], call.dims[3]];
        let mut results = callee(&Call { dims, args })?.into_iter();
        let [Some(out), Some(new_keys), Some(new_values)] = [results.next(), results.next(), results.next()] else {
            return Err(Trouble::Shapes);
        };
        outs.push(out);
        (keys, values) = (new_keys, new_values);
        from += count;
    }
    let strip = |value: Value<T>| Value { zeros: Vec::new(), ..value };
    Ok(vec![Value::join(&outs), strip(keys), strip(values)])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [t, p, d, dv]: [usize; 4], base: f64, pieces: &[usize]| {
        let args = vec![
            normal(rng, &[t, d]), normal(rng, &[t, d]), normal(rng, &[t, dv]), normal(rng, &[p, d]), normal(rng, &[p, dv]), number(base),
        ];
        cases.push(Case::new(label, &[t, p, d, dv], args).cut(pieces));
    };
    add(rng, "no past", [4, 0, 6, 2], 10_000.0, &[]);
    add(rng, "no past, one token", [1, 0, 4, 2], 10_000.0, &[]);
    add(rng, "one new token", [1, 5, 4, 6], 10_000.0, &[]);
    add(rng, "some past", [3, 4, 6, 2], 10_000.0, &[]);
    add(rng, "d = 2", [3, 2, 2, 4], 10_000.0, &[]);
    add(rng, "base 100", [3, 4, 8, 2], 100.0, &[]);
    add(rng, "base 4", [4, 3, 6, 4], 4.0, &[]);
    add(rng, "base 500000", [2, 5, 8, 4], 500_000.0, &[]);
    add(rng, "token by token", [5, 0, 6, 4], 10_000.0, &[1, 1, 1, 1, 1]);
    add(rng, "token by token after a past", [4, 3, 4, 2], 100.0, &[1, 1, 1, 1]);
    add(rng, "prefill, then tokens", [6, 0, 4, 6], 10_000.0, &[4, 1, 1]);
    add(rng, "chunks", [6, 2, 8, 2], 50.0, &[2, 3, 1]);
    for _ in 0..8 {
        let sizes = [rng.size(1, 5), rng.size(0, 5), 2 * rng.size(1, 4), 2 * rng.size(1, 4)];
        let base = if rng.chance(0.5) { 10_000.0 } else { 10.0 };
        add(rng, "random", sizes, base, &[]);
    }
    for size in [2, 4] {
        add(rng, "square", [size, size, size, size], 10_000.0, &[]);
    }
    add(rng, "large", [50, 20, 42, 44], 10_000.0, &[]);
    strided(cases)
}
