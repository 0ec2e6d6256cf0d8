//! 15: a transformer of one block, judged by its logits.

use super::{normal, strided};
use crate::exercise::{Exercise, Judging, Kind, Mistake, input, param, plain};
use crate::formula::{How, attention as attend, matmul, root_scale, sum};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 15,
    name: "block",
    title: "a transformer block of your own parts",
    dims: &["t", "vocab", "e", "f", "heads"],
    params: &[
        param("tokens", Kind::Lengths, &["t"]),
        input("embed", &["vocab", "e"]),
        input("w_q", &["e", "e"]),
        input("w_k", &["e", "e"]),
        input("w_v", &["e", "e"]),
        input("w_o", &["e", "e"]),
        input("w_in", &["e", "f"]),
        input("w_out", &["f", "e"]),
        input("gain_1", &["e"]),
        input("gain_2", &["e"]),
        input("gain_3", &["e"]),
        param("heads", Kind::Count, &[]),
    ],
    results: &[("logits", &["t", "vocab"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "post-norm", text: "the norm stands after the residual is added: it belongs before attention and before the MLP" },
        Mistake { id: "no-residual", text: "x is replaced by what attention and the MLP return: add it to x" },
        Mistake { id: "no-residual/attention", text: "x is replaced by what attention returns: add it to x" },
        Mistake { id: "no-residual/mlp", text: "x is replaced by what the MLP returns: add it to x" },
        Mistake { id: "norm-in-residual", text: "the norm is part of the residual: add to x as it was before the norm" },
        Mistake { id: "no-norm", text: "nothing is normalised" },
        Mistake { id: "no-norm/final", text: "the last norm, before the logits, is missing" },
        Mistake { id: "no-norm/attention", text: "attention reads x without the norm" },
        Mistake { id: "no-norm/mlp", text: "the MLP reads x without the norm" },
        Mistake { id: "layer-norm", text: "the mean is subtracted: this norm divides by the root of the mean square, no more" },
        Mistake { id: "no-root", text: "the norm divides by the mean square: divide by its root" },
        Mistake { id: "sum-of-squares", text: "the norm divides by the length of the row: the root of the mean square, not of the sum" },
        Mistake { id: "over-tokens", text: "the mean square is taken over the tokens: each row has its own" },
        Mistake { id: "over-all", text: "one mean square for all rows: each row has its own" },
        Mistake { id: "gains-unused", text: "the gains are not used" },
        Mistake { id: "one-gain", text: "gain_1 is used in all norms: each norm has its own gain" },
        Mistake { id: "one-gain/second", text: "gain_1 is used before the MLP, too: that norm has gain_2" },
        Mistake { id: "epsilon-missing", text: "1e-5 is not added to the mean square: short rows come out too large" },
        Mistake { id: "epsilon-outside", text: "1e-5 is added to the root: add it to the mean square, under the root" },
        Mistake { id: "epsilon-other", text: "another number than 1e-5 is added to the mean square: 1e-6" },
        Mistake { id: "epsilon-other/1e-8", text: "another number than 1e-5 is added to the mean square: 1e-8" },
        Mistake { id: "no-mask", text: "a token sees later ones: token i sees token j if j <= i" },
        Mistake { id: "self-unseen", text: "a token does not see itself: j <= i, not j < i" },
        Mistake { id: "parallel", text: "the MLP reads x as it was before attention: it reads x with attention's part added" },
        Mistake { id: "mlp-first", text: "the MLP stands before attention: attention first" },
        Mistake { id: "no-activation", text: "the MLP has no max(0, .): two matrices in a row are one" },
        Mistake { id: "activation-last", text: "max(0, .) stands after w_out: it belongs between the matrices" },
        Mistake { id: "no-mlp", text: "the MLP is missing" },
        Mistake { id: "no-attention", text: "attention is missing" },
        Mistake { id: "no-output-matrix", text: "the matrix w_o is not used" },
        Mistake { id: "model-width", text: "the scale is 1/sqrt(e): it is 1/sqrt(d), the width of a head" },
        Mistake { id: "one-head", text: "there is one head of width e: there are several" },
        Mistake { id: "no-scale", text: "the scores lack the factor 1/sqrt(d)" },
        Mistake { id: "softmaxed", text: "the result is probabilities: return the logits" },
    ],
    mutants: &[
        "post-norm", "no-residual", "no-residual/attention", "no-residual/mlp", "norm-in-residual", "no-norm", "no-norm/final",
        "no-norm/attention", "no-norm/mlp", "layer-norm", "no-mask", "no-scale", "model-width", "one-head", "no-activation",
        "parallel", "gains-unused", "epsilon-missing", "epsilon-outside", "epsilon-other", "epsilon-other/1e-8", "no-root",
        "sum-of-squares", "over-tokens", "over-all", "one-gain", "self-unseen", "mlp-first", "activation-last", "no-mlp",
        "no-attention", "no-output-matrix", "softmaxed", "one-gain/second",
    ],
    hints: [
        "Write the parts as functions first: norm, attention, mlp.",
        "x = x + attention(norm(x, gain_1)), then x = x + mlp(norm(x, gain_2)).",
        "logits = norm(x, gain_3) @ embed.T; attention is exercise 09 with the mask of exercise 06.",
    ],
    idea: "A block only ever adds to x: what attention and the MLP read is normalised, what they write to is not.",
    floor: 0.0,
    cases,
    possible: |dims| dims[2].is_multiple_of(dims[4]),
    judging: Judging::Numbers { formula: formula!(block), session: session!(plain) },
    custom: None,
    files: files!(),
};

/// Rows over the root of their mean square, times the gain.
pub(super) fn norm<T: Real>(how: &How, x: &Value<T>, gain: &Value<T>) -> Value<T> {
    let (n, e) = (x.rows(), x.width());
    let square = |at: usize| x.data[at] * x.data[at];
    let all = sum(how, n * e, square) / T::of((n * e) as f64);
    let of_row = |i: usize| sum(how, e, |c| square(i * e + c));
    let of_column = |c: usize| sum(how, n, |i| square(i * e + c)) / T::of(n as f64);
    let epsilon = match () {
        () if how.is("epsilon-missing") || how.is("epsilon-outside") => 0.0,
        () if how.is("epsilon-other") => 1e-6,
        () if how.is("epsilon-other/1e-8") => 1e-8,
        () => 1e-5,
    };
    let mut data = Vec::with_capacity(n * e);
    for i in 0..n {
        let mean = sum(how, e, |c| x.data[i * e + c]) / T::of(e as f64);
        let own = of_row(i) / T::of(e as f64);
        let own = if how.is("layer-norm") { own - mean * mean } else { own };
        for c in 0..e {
            let square = match () {
                () if how.is("sum-of-squares") => of_row(i),
                () if how.is("over-tokens") => of_column(c),
                () if how.is("over-all") => all,
                () => own,
            };
            let square = square + T::of(epsilon);
            let root = if how.is("no-root") { square } else { square.sqrt() };
            let root = if how.is("epsilon-outside") { root + T::of(1e-5) } else { root };
            let y = if how.is("layer-norm") { x.data[i * e + c] - mean } else { x.data[i * e + c] };
            let scaled = y / root;
            data.push(if how.is("gains-unused") { scaled } else { scaled * gain.data[c] });
        }
    }
    Value::new(&[n, e], data)
}

/// Causal attention of several heads over x.
fn mix<T: Real>(how: &How, x: &Value<T>, [w_q, w_k, w_v, w_o]: [&Value<T>; 4], heads: usize) -> Result<Value<T>, Trouble> {
    let (n, e) = (x.rows(), x.width());
    let heads = if how.is("one-head") { 1 } else { heads };
    let d = e / heads;
    let [q, k, v] = [w_q, w_k, w_v].map(|w| matmul(how, x, w));
    let visible = |at: usize| match () {
        () if how.is("no-mask") => true,
        () if how.is("self-unseen") => at % n < at / n,
        () => at % n <= at / n,
    };
    let sees: Vec<bool> = (0..n * n).map(visible).collect();
    let scale = if how.is("model-width") { root_scale(e) } else { root_scale(d) };
    let columns = |x: &Value<T>, h: usize| Value::new(&[n, d], (0..n).flat_map(|i| x.row(i)[h * d..(h + 1) * d].to_vec()).collect());
    let mut joined = vec![T::of(0.0); n * e];
    for h in 0..heads {
        let (out, _) = attend(how, [&columns(&q, h), &columns(&k, h), &columns(&v, h)], scale, &sees)?;
        for i in 0..n {
            joined[i * e + h * d..i * e + (h + 1) * d].copy_from_slice(out.row(i));
        }
    }
    let joined = Value::new(&[n, e], joined);
    Ok(if how.is("no-output-matrix") { joined } else { matmul(how, &joined, w_o) })
}

fn mlp<T: Real>(how: &How, x: &Value<T>, w_in: &Value<T>, w_out: &Value<T>) -> Value<T> {
    let positive = |mut x: Value<T>| {
        x.data.iter_mut().filter(|x| x.value() < 0.0).for_each(|x| *x = T::of(0.0));
        x
    };
    let inner = matmul(how, x, w_in);
    let inner = if how.is("no-activation") || how.is("activation-last") { inner } else { positive(inner) };
    let out = matmul(how, &inner, w_out);
    if how.is("activation-last") { positive(out) } else { out }
}

fn added<T: Real>(a: &Value<T>, b: &Value<T>) -> Value<T> {
    Value::new(&a.shape, a.data.iter().zip(&b.data).map(|(a, b)| *a + *b).collect())
}

fn block<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let arg = |at: usize| &call.args[at];
    let [n, vocab, e, _, heads] = call.dims[..] else { return Err(Trouble::Shapes) };
    let rows = arg(0).data.iter().flat_map(|token| arg(1).row(token.value() as usize).to_vec()).collect();
    let gain = |at: usize| if how.is("one-gain") { arg(8) } else { arg(at) };
    let mut x = Value::new(&[n, e], rows);
    // One half of the block: reads x, adds to x.
    let half = |x: &Value<T>, read: &Value<T>, attention: bool| -> Result<Value<T>, Trouble> {
        let skipped = if attention { "no-attention" } else { "no-mlp" };
        if how.is(skipped) {
            return Ok(x.clone());
        }
        let gain = gain(if attention || how.is("one-gain/second") { 8 } else { 9 });
        let bare = how.is("no-norm") || how.is("post-norm") || how.is(if attention { "no-norm/attention" } else { "no-norm/mlp" });
        let normed = if bare { read.clone() } else { norm(how, read, gain) };
        let out = if attention { mix(how, &normed, [arg(2), arg(3), arg(4), arg(5)], heads)? } else { mlp(how, &normed, arg(6), arg(7)) };
        let replaced = how.is("no-residual") || how.is(if attention { "no-residual/attention" } else { "no-residual/mlp" });
        Ok(match () {
            () if replaced => out,
            () if how.is("norm-in-residual") => added(&normed, &out),
            () if how.is("post-norm") => norm(how, &added(x, &out), gain),
            () => added(x, &out),
        })
    };
    let before = x.clone();
    for step in 0..2 {
        let attention = (step == 0) != how.is("mlp-first");
        x = half(&x, if how.is("parallel") { &before } else { &x }, attention)?;
    }
    let last = if how.is("no-norm") || how.is("no-norm/final") { x } else { norm(how, &x, gain(10)) };
    let logits = matmul(how, &last, &arg(1).transposed());
    if how.is("softmaxed") {
        let sees = vec![true; n * vocab];
        return Ok(vec![crate::formula::softmax(how, &logits, &sees)]);
    }
    Ok(vec![logits])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [t, vocab, e, f, heads]: [usize; 5], size: f64| {
        let scaled = |mut x: Value<f64>, factor: f64| {
            x.data.iter_mut().for_each(|x| *x = f64::from((*x * factor) as f32));
            x
        };
        let tokens = (0..t).map(|_| rng.size(0, vocab - 1) as f64).collect();
        let mut args = vec![Value::new(&[t], tokens), scaled(normal(rng, &[vocab, e]), size)];
        for shape in [[e, e], [e, e], [e, e], [e, e], [e, f], [f, e]] {
            args.push(scaled(normal(rng, &shape), 1.2 / (shape[0] as f64).sqrt()));
        }
        for _ in 0..3 {
            let mut gain = scaled(normal(rng, &[e]), 0.25);
            gain.data.iter_mut().for_each(|x| *x = f64::from((*x + 1.0) as f32));
            args.push(gain);
        }
        args.push(Value::number(heads as f64));
        cases.push(Case::new(label, &[t, vocab, e, f, heads], args));
    };
    add(rng, "one token", [1, 3, 4, 5, 1], 1.0);
    add(rng, "two tokens", [2, 4, 4, 6, 2], 1.0);
    add(rng, "one head", [4, 5, 6, 7, 1], 1.0);
    add(rng, "heads of width 1", [3, 5, 4, 6, 4], 1.0);
    add(rng, "short rows", [4, 6, 6, 8, 2], 2f64.powi(-8));
    add(rng, "very short rows", [3, 5, 4, 6, 2], 2f64.powi(-12));
    add(rng, "long rows", [3, 5, 6, 4, 3], 16.0);
    for _ in 0..8 {
        let heads = rng.size(1, 3);
        let sizes = [rng.size(2, 6), rng.size(4, 9), heads * rng.size(2, 4), rng.size(3, 9), heads];
        add(rng, "random", sizes, 1.0);
    }
    add(rng, "square", [6, 6, 6, 6, 2], 1.0);
    add(rng, "large", [24, 61, 16, 40, 4], 1.0);
    strided(cases)
}
