//! 16: an attention layer whose weights are read from a file; two layers of the built-in model are among the cases.

use super::block::norm;
use super::decode::turned;
use super::{normal, strided};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, attention as attend, matmul, root_scale};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value};
use crate::{files, formula, session};

/// The attention layers 0 and 1 of the built-in model of `regard-model`, as they are in its file.
pub const REAL: &[u8] = include_bytes!("layers.safetensors");
/// Heads of the built-in model.
const REAL_HEADS: usize = 4;

pub(super) static EXERCISE: Exercise = Exercise {
    number: 16,
    name: "checkpoint",
    title: "a layer of a real checkpoint",
    dims: &["t", "e", "heads", "layer"],
    params: &[
        param("path", Kind::File, &[]),
        input("x", &["t", "e"]),
        param("heads", Kind::Count, &[]),
        param("layer", Kind::Count, &[]),
    ],
    results: &[("out", &["t", "e"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "offsets-from-start", text: "data_offsets are counted from the start of the file: count from the end of the header" },
        Mistake { id: "offsets-without-length", text: "the data begin 8 bytes too early: 8 bytes of length stand before the header" },
        Mistake { id: "file-order", text: "tensors are taken in the order of the file: find them by name" },
        Mistake { id: "first-layer", text: "layer 0 is read whatever `layer` is" },
        Mistake { id: "next-layer", text: "the layer after the right one is read: layers count from 0" },
        Mistake { id: "big-endian", text: "the bytes of each number are exchanged: F16 numbers are little-endian here" },
        Mistake { id: "bfloat16", text: "the numbers are read as BF16: they are F16, with 5 bits of exponent and 10 of fraction" },
        Mistake { id: "out-transposed", text: "out.weight is transposed: joined @ out.weight" },
        Mistake { id: "qkv-by-heads", text: "the columns are taken as q, k, v of head 0, then of head 1: all queries come first" },
        Mistake { id: "kv-exchanged", text: "the keys and the values of qkv.weight are exchanged: queries, keys, values" },
        Mistake { id: "qk-exchanged", text: "the queries and the keys of qkv.weight are exchanged: queries, keys, values" },
        Mistake { id: "split-untransposed", text: "[t, e] is reshaped to [heads, t, d], which mixes tokens: reshape to [t, heads, d]" },
        Mistake { id: "join-untransposed", text: "[heads, t, d] is reshaped to [t, e], which mixes heads and tokens: exchange axes first" },
        Mistake { id: "unturned", text: "neither queries nor keys are turned" },
        Mistake { id: "queries-unturned", text: "the queries are not turned" },
        Mistake { id: "keys-unturned", text: "the keys are not turned" },
        Mistake { id: "values-turned", text: "the values are turned too: only q and k are" },
        Mistake { id: "turned-whole", text: "all e columns are turned as one row: each head has its own pairs (i, i + d/2)" },
        Mistake { id: "neighbours-paired", text: "the pairs are (2i, 2i+1): they are (i, i + d/2)" },
        Mistake { id: "turned-backwards", text: "the turn has the wrong sign: (a cos - b sin, a sin + b cos)" },
        Mistake { id: "half-speed", text: "the angle is position / base^(i/d): the power is 2i/d" },
        Mistake { id: "one-speed", text: "all pairs are turned by the angle position: pair i has position / base^(2i/d)" },
        Mistake { id: "base-other", text: "the base is 500000: here it is 10000" },
        Mistake { id: "degrees", text: "the angles are taken for degrees: sine and cosine take radians" },
        Mistake { id: "no-residual", text: "x is not added to what attention returns" },
        Mistake { id: "norm-in-residual", text: "the norm is part of the residual: add to x as it was before the norm" },
        Mistake { id: "no-norm", text: "attention reads x without the norm" },
        Mistake { id: "layer-norm", text: "the mean is subtracted: this norm divides by the root of the mean square, no more" },
        Mistake { id: "no-root", text: "the norm divides by the mean square: divide by its root" },
        Mistake { id: "sum-of-squares", text: "the norm divides by the length of the row: the root of the mean square, not of the sum" },
        Mistake { id: "over-tokens", text: "the mean square is taken over the tokens: each row has its own" },
        Mistake { id: "over-all", text: "one mean square for all rows: each row has its own" },
        Mistake { id: "gains-unused", text: "the gain is not used" },
        Mistake { id: "epsilon-missing", text: "1e-5 is not added to the mean square: short rows come out too large" },
        Mistake { id: "epsilon-outside", text: "1e-5 is added to the root: add it to the mean square, under the root" },
        Mistake { id: "epsilon-other", text: "another number than 1e-5 is added to the mean square: 1e-6" },
        Mistake { id: "no-mask", text: "a token sees later ones: token i sees token j if j <= i" },
        Mistake { id: "self-unseen", text: "a token does not see itself: j <= i, not j < i" },
        Mistake { id: "no-output-matrix", text: "out.weight is not used" },
        Mistake { id: "model-width", text: "the scale is 1/sqrt(e): it is 1/sqrt(d), the width of a head" },
        Mistake { id: "one-head", text: "there is one head of width e: there are several" },
        Mistake { id: "no-scale", text: "the scores lack the factor 1/sqrt(d)" },
    ],
    mutants: &[
        "offsets-from-start", "offsets-without-length", "file-order", "first-layer", "next-layer", "big-endian", "bfloat16",
        "out-transposed", "qkv-by-heads", "kv-exchanged", "qk-exchanged", "unturned", "neighbours-paired", "turned-backwards",
        "no-residual", "no-norm", "no-mask", "no-scale", "model-width", "one-head", "layer-norm", "gains-unused", "epsilon-missing",
        "split-untransposed", "join-untransposed", "queries-unturned", "keys-unturned", "values-turned", "turned-whole", "half-speed",
        "one-speed", "base-other", "degrees", "norm-in-residual", "no-root", "sum-of-squares", "over-tokens", "over-all",
        "epsilon-outside", "epsilon-other", "self-unseen", "no-output-matrix", "columns", "scale-after", "queries-as-keys",
        "keys-as-values", "uniform", "hard", "base-2",
    ],
    hints: [
        "Print the header first: names, shapes, offsets.",
        "In Python json.loads reads the header; in Rust find the name, then data_offsets behind it, then the two numbers.",
        "q, k, v are columns 0 to e, e to 2e, 2e to 3e of norm(x) @ qkv.weight; turn q and k after the split into heads.",
    ],
    idea: "A checkpoint is a list of names, shapes and numbers: what they mean is a convention, and a wrong convention still computes.",
    floor: 0.0,
    cases,
    possible: |dims| dims[2] > 0 && dims[1].is_multiple_of(2 * dims[2]),
    judging: Judging::Numbers { formula: formula!(checkpoint), session: session!(plain) },
    custom: None,
    files: files!(),
};

/// A number from the two bytes of F16, or of BF16.
fn half(bytes: [u8; 2], bfloat: bool) -> f64 {
    let bits = u16::from_le_bytes(bytes);
    if bfloat {
        return f64::from(f32::from_bits(u32::from(bits) << 16));
    }
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -size } else { size }
}

/// The nearest F16 number.
fn to_half(x: f64) -> u16 {
    let sign = if x < 0.0 { 0x8000 } else { 0 };
    let exponent = x.abs().log2().floor().clamp(-14.0, 15.0) as i32;
    let steps = (x.abs() * 2f64.powi(10 - exponent)).round_ties_even() as u16;
    // A fraction that rounds up to 2048 steps is the next exponent, and below 1024 steps the number is subnormal.
    sign | (steps + ((exponent + 14) << 10) as u16)
}

/// A file with these tensors, in this order.
fn file(tensors: &[(String, Vec<usize>, Vec<f64>)], metadata: bool) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    if metadata {
        entries.push("\"__metadata__\":{\"format\":\"pt\"}".to_owned());
    }
    for (name, shape, numbers) in tensors {
        let start = data.len();
        data.extend(numbers.iter().flat_map(|x| to_half(*x).to_le_bytes()));
        entries.push(format!("\"{name}\":{{\"dtype\":\"F16\",\"shape\":{shape:?},\"data_offsets\":[{start},{}]}}", data.len()));
    }
    let mut header = format!("{{{}}}", entries.join(","));
    header += &" ".repeat(header.len().next_multiple_of(8) - header.len());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// The tensor at a place in the order of gain, qkv, out.
fn tensor<T: Real>(how: &How, bytes: &[u8], layer: usize, place: usize) -> Option<Value<T>> {
    let size = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?) as usize;
    let header: serde_json::Value = serde_json::from_slice(bytes.get(8..8 + size)?).ok()?;
    let layer = match () {
        () if how.is("first-layer") => 0,
        () if how.is("next-layer") => layer + 1,
        () => layer,
    };
    let name = format!("blocks.{layer}.attention.{}", ["norm.gain", "qkv.weight", "out.weight"][place]);
    let range = |one: &serde_json::Value| -> Option<[usize; 2]> {
        let end = |at: usize| one["data_offsets"][at].as_u64().map(|end| end as usize);
        Some([end(0)?, end(1)?])
    };
    let shape: Vec<usize> = header[&name]["shape"].as_array()?.iter().filter_map(|size| size.as_u64()).map(|size| size as usize).collect();
    let mut ends = range(&header[&name])?;
    if how.is("file-order") {
        let mut all: Vec<[usize; 2]> = header.as_object()?.values().filter_map(range).collect();
        all.sort_unstable();
        let start = all.get(3 * layer + place)?[0];
        ends = [start, start + ends[1] - ends[0]];
    }
    let base = match () {
        () if how.is("offsets-from-start") => 0,
        () if how.is("offsets-without-length") => size,
        () => 8 + size,
    };
    let number = |pair: &[u8]| {
        let pair = if how.is("big-endian") { [pair[1], pair[0]] } else { [pair[0], pair[1]] };
        T::of(half(pair, how.is("bfloat16")))
    };
    let data: Vec<T> = bytes.get(base + ends[0]..base + ends[1])?.chunks_exact(2).map(number).collect();
    (shape.iter().product::<usize>() == data.len()).then(|| Value::new(&shape, data))
}

fn checkpoint<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [t, e, heads, layer] = call.dims[..] else { return Err(Trouble::Shapes) };
    let bytes: Vec<u8> = call.args[0].data.iter().map(|byte| byte.value() as u8).collect();
    let x = &call.args[1];
    let read = |place: usize| tensor::<T>(how, &bytes, layer, place).ok_or(Trouble::Shapes);
    let (gain, w_qkv, w_out) = (read(0)?, read(1)?, read(2)?);
    if gain.shape != [e] || w_qkv.shape != [e, 3 * e] || w_out.shape != [e, e] {
        return Err(Trouble::Shapes);
    }
    let heads = if how.is("one-head") { 1 } else { heads };
    let d = e / heads;
    let y = if how.is("no-norm") { x.clone() } else { norm(how, x, &gain) };
    let qkv = matmul(how, &y, &w_qkv);
    let columns = |x: &Value<T>, from: usize, width: usize| {
        Value::new(&[t, width], (0..t).flat_map(|i| x.row(i)[from..from + width].to_vec()).collect())
    };
    let order = match () {
        () if how.is("kv-exchanged") => [0, 2, 1],
        () if how.is("qk-exchanged") => [1, 0, 2],
        () => [0, 1, 2],
    };
    let skipped = ["queries-unturned", "keys-unturned"];
    let turns = |part: usize| match part {
        2 => how.is("values-turned"),
        _ => !how.is("unturned") && !how.is(skipped[part]),
    };
    let turn = |part: usize, rows: Value<T>| {
        let base = if how.is("base-other") { 500_000.0 } else { 10_000.0 };
        if turns(part) { turned(how, &rows, 0, T::of(base)) } else { rows }
    };
    let part = |part: usize, h: usize| {
        if how.is("qkv-by-heads") {
            return turn(part, columns(&qkv, (3 * h + order[part]) * d, d));
        }
        let all = columns(&qkv, order[part] * e, e);
        if how.is("turned-whole") {
            return columns(&turn(part, all), h * d, d);
        }
        let rows = if how.is("split-untransposed") {
            Value::new(&[t, d], all.data[h * t * d..(h + 1) * t * d].to_vec())
        } else {
            columns(&all, h * d, d)
        };
        turn(part, rows)
    };
    let visible = |at: usize| match () {
        () if how.is("no-mask") => true,
        () if how.is("self-unseen") => at % t < at / t,
        () => at % t <= at / t,
    };
    let sees: Vec<bool> = (0..t * t).map(visible).collect();
    let scale = if how.is("model-width") { root_scale(e) } else { root_scale(d) };
    let mut joined = vec![T::of(0.0); t * e];
    for h in 0..heads {
        let (out, _) = attend(how, [&part(0, h), &part(1, h), &part(2, h)], scale, &sees)?;
        for (at, x) in out.data.into_iter().enumerate() {
            let place = if how.is("join-untransposed") { h * t * d + at } else { at / d * e + h * d + at % d };
            joined[place] = x;
        }
    }
    let joined = Value::new(&[t, e], joined);
    let added = match () {
        () if how.is("no-output-matrix") => joined,
        () if how.is("out-transposed") => matmul(how, &joined, &w_out.transposed()),
        () => matmul(how, &joined, &w_out),
    };
    let residual = if how.is("norm-in-residual") { &y } else { x };
    let sum = residual.data.iter().zip(&added.data).map(|(a, b)| *a + *b).collect();
    Ok(vec![if how.is("no-residual") { added } else { Value::new(&[t, e], sum) }])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, dims: [usize; 4], bytes: &[u8], size: f64| {
        let [t, e, heads, layer] = dims;
        let mut x = normal(rng, &[t, e]);
        x.data.iter_mut().for_each(|x| *x = f64::from((*x * size) as f32));
        let bytes = Value::new(&[bytes.len()], bytes.iter().map(|byte| f64::from(*byte)).collect());
        let args = vec![bytes, x, Value::number(heads as f64), Value::number(layer as f64)];
        cases.push(Case::new(label, &dims, args));
    };
    // Files of three layers; in some the tensors stand in another order, with one that is not asked for.
    let made = |rng: &mut Rng, e: usize, mixed: bool| {
        let mut tensors = Vec::new();
        for layer in 0..3 {
            for (name, shape, size) in
                [("norm.gain", vec![e], 0.25), ("qkv.weight", vec![e, 3 * e], 1.2), ("out.weight", vec![e, e], 1.2)]
            {
                let gain = shape.len() == 1;
                let factor = if gain { size } else { size / (e as f64).sqrt() };
                let numbers = rng.normals(shape.iter().product()).into_iter().map(|x| f64::from(x) * factor + f64::from(u8::from(gain)));
                tensors.push((format!("blocks.{layer}.attention.{name}"), shape.clone(), numbers.collect()));
            }
        }
        if mixed {
            tensors.insert(4, ("blocks.0.mlp.norm.gain".to_owned(), vec![e], vec![1.0; e]));
            for at in (1..tensors.len()).rev() {
                tensors.swap(at, rng.size(0, at));
            }
        }
        file(&tensors, mixed)
    };
    for (label, dims, mixed, size) in [
        ("one token", [1, 2, 1, 0], false, 1.0),
        ("two tokens", [2, 4, 1, 0], false, 1.0),
        ("two heads", [3, 4, 2, 0], false, 1.0),
        ("layer 1", [3, 4, 2, 1], false, 1.0),
        ("tensors in another order", [3, 4, 1, 0], true, 1.0),
        ("layer 1, tensors in another order", [3, 8, 2, 1], true, 1.0),
        ("short rows", [4, 8, 2, 1], false, 2f64.powi(-8)),
        ("long rows", [3, 8, 2, 0], true, 16.0),
    ] {
        let bytes = made(rng, dims[1], mixed);
        add(rng, label, dims, &bytes, size);
    }
    for at in 0..6 {
        let heads = rng.size(1, 3);
        let dims = [rng.size(2, 6), heads * 2 * rng.size(1, 2), heads, rng.size(0, 1)];
        let bytes = made(rng, dims[1], at % 2 == 1);
        add(rng, "random", dims, &bytes, 1.0);
    }
    let e = 64;
    for (label, t, layer) in
        [("the language model, layer 0", 6, 0), ("the language model, layer 1", 4, 1), ("the language model, 24 tokens", 24, 0)]
    {
        add(rng, label, [t, e, REAL_HEADS, layer], REAL, 1.0);
    }
    strided(cases)
}
