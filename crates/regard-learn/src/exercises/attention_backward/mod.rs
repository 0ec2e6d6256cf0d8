//! 08: gradients of masked attention.

use super::{different, normal, strided, whole};
use crate::exercise::{self, Custom, Exercise, Judging, Kind, Mistake, input, param};
use crate::formula::{How, dot, root_scale, scores, softmax, sum};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value, flags};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 8,
    name: "attention_backward",
    title: "gradients, line by line backwards",
    dims: &["n", "m", "d", "dv"],
    params: &[
        input("q", &["n", "d"]),
        input("k", &["m", "d"]),
        input("v", &["m", "dv"]),
        input("d_out", &["n", "dv"]),
        param("mask", Kind::Flags, &["n", "m"]),
    ],
    results: &[("dq", &["n", "d"]), ("dk", &["m", "d"]), ("dv", &["m", "dv"])],
    inputs: &[],
    judged: &[],
    mistakes: &[
        Mistake { id: "no-scale", text: "dq and dk lack the factor 1/sqrt(d)" },
        Mistake { id: "dq-unscaled", text: "dq lacks the factor 1/sqrt(d)" },
        Mistake { id: "delta-columns", text: "delta is summed over queries: it is one number per query, summed over keys" },
        Mistake { id: "dv-untransposed", text: "dv is weights d_out: it must be weights^T d_out" },
        Mistake { id: "swapped", text: "dq and dk are exchanged" },
        Mistake { id: "delta-added", text: "delta is added: subtract from d_weights its weighted mean" },
        Mistake { id: "delta-missing", text: "the softmax's gradient lacks delta: the weights of a row compete" },
        Mistake { id: "unnormalised", text: "the weights are exp without its sum" },
        Mistake { id: "empty-nan", text: "a row that sees no key divides 0 by 0: its gradients are exactly 0" },
        Mistake { id: "dv-overwritten", text: "dv is overwritten in its loop, and only the last query that sees a key counts: add them \
            up" },
        Mistake { id: "dk-overwritten", text: "dk is overwritten in its loop, and only the last query that sees a key counts: add them \
            up" },
        Mistake { id: "forward-unscaled", text: "the weights are made of scores without the scale" },
        Mistake { id: "scale-twice", text: "dq and dk have the scale twice" },
        Mistake { id: "softmax-skipped", text: "d_scores is d_weights: the softmax is not differentiated" },
        Mistake { id: "kv-exchanged", text: "dk and dv are exchanged" },
        Mistake { id: "order-reversed", text: "the results are dv, dk, dq: return dq, dk, dv" },
        Mistake { id: "diagonal-only", text: "only the diagonal of the softmax's Jacobian is used, w (1 - w): the weights of a row \
            compete" },
        Mistake { id: "delta-unweighted", text: "delta sums d_weights without the weights: it is their weighted mean" },
        Mistake { id: "delta-mean", text: "delta is the plain mean of d_weights: it is the mean weighted by the weights" },
        Mistake { id: "sign", text: "dq and dk have the wrong sign" },
        Mistake { id: "dv-scaled", text: "dv has the factor 1/sqrt(d): only dq and dk have it" },
        Mistake { id: "width-scale", text: "the factor is 1/d: it is 1/sqrt(d)" },
        Mistake { id: "delta-outside", text: "d_scores is w d_weights - delta: delta is subtracted before the weights multiply" },
        Mistake { id: "dq-scaled-twice", text: "dq has the factor 1/sqrt(d) twice" },
        Mistake { id: "dk-scaled-twice", text: "dk has the factor 1/sqrt(d) twice" },
        Mistake {
            id: "empty-mean/masked",
            text: "a finite number such as -1e9 is not -inf: a row that sees no key averages all the same, and dv is not 0 there",
        },
        Mistake {
            id: "empty-mean/lowest-masked",
            text: "the smallest float is not -inf: a row that sees no key averages all the same, and dv is not 0 there",
        },
        Mistake { id: "no-mask/forward", text: "the weights are made without the mask: it hides d_scores only" },
        Mistake { id: "ds-transposed", text: "d_scores is transposed: dq is d_scores k, dk is d_scores^T q" },
        Mistake { id: "delta-keepdims", text: "the deltas of rows are taken for a row of numbers, one for each column: use keepdims=True" },
        Mistake { id: "delta-unmasked", text: "delta sums w^2 d_weights: it is the sum of w d_weights" },
        Mistake { id: "weights-twice", text: "d_scores is multiplied by the weights twice: once is enough" },
        Mistake { id: "weights-missing", text: "d_scores is d_weights - delta: multiply by the weights" },
        Mistake { id: "dv-d-weights", text: "dv is d_weights^T d_out: it must be weights^T d_out" },
        Mistake { id: "dv-values", text: "dv is weights^T v: it must be weights^T d_out" },
        Mistake { id: "dk-keys", text: "dk is d_scores^T k: it must be d_scores^T q" },
        Mistake { id: "dq-queries", text: "dq is d_scores q: it must be d_scores k" },
        Mistake { id: "dv-untransposed/flat", text: "dv reads the weights as [m, n]: it must be weights^T d_out" },
    ],
    mutants: &[
        "no-scale", "dk-unscaled", "delta-columns", "dv-untransposed", "dv-untransposed/flat", "swapped", "delta-added", "unnormalised",
        "empty-nan",
        "dq-unscaled", "delta-missing", "forward-unscaled", "scale-twice", "softmax-skipped", "no-mask", "kv-exchanged", "no-max",
        "columns",
        "empty-mean", "empty-mean/lowest", "order-reversed", "diagonal-only", "delta-unweighted", "delta-mean", "sign", "dv-scaled",
        "width-scale",
        "delta-outside", "dk-keys", "dq-queries", "one-max", "all-at-once",
        "dq-scaled-twice", "dk-scaled-twice", "empty-mean/masked", "empty-mean/lowest-masked", "no-mask/forward", "ds-transposed",
        "delta-keepdims",
        "delta-unmasked", "weights-twice", "weights-missing", "dv-d-weights", "dv-values", "zero-scores", "mask-after",
        "base-2", "uniform", "scale-inverted/root",
        "dv-overwritten", "dk-overwritten",
    ],
    hints: ["dv and d_weights come first.", "Derive the softmax for two keys.", "Subtract from d_weights its weighted mean, then \
        multiply by the weights."],
    idea: "The weights of a row compete: what one gains the others lose, which is what delta subtracts.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(attention_backward), session: session!(exercise::plain) },
    custom: Some(Custom { class: "Attention", d_out: 3, leaves: 3, forward: formula!(output) }),
    files: files!(),
};

/// Weights of the forward pass.
fn forward<T: Real>(how: &How, [q, k]: [&Value<T>; 2], sees: &[bool]) -> Result<Value<T>, Trouble> {
    let scale = match () {
        () if how.is("forward-unscaled") => T::of(1.0),
        () if how.is("width-scale") => T::of(1.0) / T::of(q.width() as f64),
        () if how.is("scale-inverted/root") => T::of(1.0) / root_scale(q.width()),
        () => root_scale(q.width()),
    };
    let mut s = scores(&How { wrong: Vec::new(), ..how.clone() }, q, k, scale)?;
    let mut taken = sees.to_vec();
    if how.wrong.iter().any(|wrong| wrong.starts_with("empty-mean")) {
        let low = if how.is("empty-mean") || how.is("empty-mean/masked") { -1e9 } else { f64::from(f32::MIN) };
        (0..sees.len()).filter(|&at| !sees[at]).for_each(|at| s.data[at] = T::of(low));
        taken.fill(true);
    }
    if how.is("zero-scores") {
        (0..sees.len()).filter(|&at| !sees[at]).for_each(|at| s.data[at] = T::of(0.0));
    }
    if ["no-mask", "no-mask/forward", "zero-scores", "mask-after"].iter().any(|wrong| how.is(wrong)) {
        taken.fill(true);
    }
    let mut weights = softmax(how, &s, &taken);
    if how.is("mask-after") {
        (0..sees.len()).filter(|&at| !sees[at]).for_each(|at| weights.data[at] = T::of(0.0));
    }
    Ok(weights)
}

/// What the forward pass returns.
fn output<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v, mask] = [0, 1, 2, 4].map(|at| &call.args[at]);
    let sees: Vec<bool> = (0..mask.data.len()).map(|at| mask.flag(at)).collect();
    Ok(vec![crate::formula::attention(how, [q, k, v], root_scale(q.width()), &sees)?.0])
}

fn attention_backward<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v, d_out, mask] = [0, 1, 2, 3, 4].map(|at| &call.args[at]);
    let [n, m, d, dv] = call.dims[..] else { return Err(Trouble::Shapes) };
    let sees: Vec<bool> = (0..n * m).map(|at| mask.flag(at)).collect();
    let p = forward(how, [q, k], &sees)?;
    let weight = |i: usize, j: usize| p.data[i * m + j];
    let d_weight = |i: usize, j: usize| dot(how, d_out.row(i), v.row(j));
    // delta_i = sum over j of p_ij d_p_ij
    let of_row = |i: usize| sum(how, m, |j| weight(i, j) * d_weight(i, j));
    let of_column = |j: usize| sum(how, n, |i| weight(i, j) * d_weight(i, j));
    let plain = |i: usize| sum(how, m, |j| d_weight(i, j));
    let rows: Vec<T> = (0..n).map(of_row).collect();
    let columns: Vec<T> = (0..m).map(of_column).collect();
    let d_score = |i: usize, j: usize| {
        let delta = match () {
            () if how.is("delta-columns") => columns[j],
            () if how.is("delta-keepdims") => rows[if n == 1 { 0 } else { j }],
            () if how.is("delta-unmasked") => sum(how, m, |j| weight(i, j) * weight(i, j) * d_weight(i, j)),
            () => rows[i],
        };
        let hidden = !sees[i * m + j] && ["empty-mean/masked", "empty-mean/lowest-masked", "no-mask/forward"].iter().any(|w| how.is(w));
        match () {
            () if hidden => T::of(0.0),
            () if how.is("weights-twice") => weight(i, j) * weight(i, j) * (d_weight(i, j) - delta),
            () if how.is("weights-missing") => d_weight(i, j) - delta,
            () if how.is("softmax-skipped") => d_weight(i, j),
            () if how.is("delta-missing") => weight(i, j) * d_weight(i, j),
            () if how.is("delta-added") => weight(i, j) * (d_weight(i, j) + delta),
            () if how.is("diagonal-only") => weight(i, j) * (T::of(1.0) - weight(i, j)) * d_weight(i, j),
            () if how.is("delta-unweighted") => weight(i, j) * (d_weight(i, j) - plain(i)),
            () if how.is("delta-mean") => weight(i, j) * (d_weight(i, j) - plain(i) / T::of(m as f64)),
            () if how.is("delta-outside") => weight(i, j) * d_weight(i, j) - delta,
            () if how.is("sign") => -(weight(i, j) * (d_weight(i, j) - delta)),
            () => weight(i, j) * (d_weight(i, j) - delta),
        }
    };
    if (how.is("delta-keepdims") && n != m && n != 1) || (how.is("ds-transposed") && n != m) {
        return Err(Trouble::Shapes);
    }
    let mut ds: Vec<T> = (0..n * m).map(|at| d_score(at / m, at % m)).collect();
    if how.is("ds-transposed") {
        ds = Value::new(&[n, m], ds).transposed().data;
    }
    let (one, scale) = (T::of(1.0), root_scale::<T>(d));
    let zero = T::of(0.0);
    let last = |j: usize| (0..n).rev().find(|i| sees[i * m + j]);
    let in_dk = |i: usize, j: usize| !how.is("dk-overwritten") || last(j) == Some(i);
    let in_dv = |i: usize, j: usize| !how.is("dv-overwritten") || last(j) == Some(i);
    let scale = if how.is("scale-twice") || how.is("width-scale") { scale * scale } else { scale };
    if (how.is("dk-keys") || how.is("dq-queries")) && n != m {
        return Err(Trouble::Shapes);
    }
    let (for_dq, for_dk) = (if how.is("dq-queries") { q } else { k }, if how.is("dk-keys") { k } else { q });
    let q_scale = if how.is("no-scale") || how.is("dq-unscaled") { one } else { scale };
    let k_scale = if how.is("no-scale") || how.is("dk-unscaled") { one } else { scale };
    let q_scale = if how.is("dq-scaled-twice") { scale * scale } else { q_scale };
    let k_scale = if how.is("dk-scaled-twice") { scale * scale } else { k_scale };
    let dq_at = |at: usize| sum(how, m, |j| ds[at / d * m + j] * for_dq.data[j * d + at % d]) * q_scale;
    let dq = Value::new(&[n, d], (0..n * d).map(dq_at).collect());
    let to_dk = |i: usize, at: usize| if in_dk(i, at / d) { ds[i * m + at / d] * for_dk.data[i * d + at % d] } else { zero };
    let dk = Value::new(&[m, d], (0..m * d).map(|at| sum(how, n, |i| to_dk(i, at)) * k_scale).collect());
    let value_scale = if how.is("dv-scaled") { scale } else { one };
    if how.is("dv-values") && n != m {
        return Err(Trouble::Shapes);
    }
    let of_value = |j: usize, c: usize| match () {
        () if how.is("dv-d-weights") => sum(how, n, |i| d_weight(i, j) * d_out.data[i * dv + c]),
        () if how.is("dv-values") => sum(how, n, |i| weight(i, j) * v.data[i * dv + c]),
        () => sum(how, n, |i| if in_dv(i, j) { weight(i, j) * d_out.data[i * dv + c] } else { zero }) * value_scale,
    };
    let mut d_v = Value::new(&[m, dv], (0..m * dv).map(|at| of_value(at / dv, at % dv)).collect());
    if how.is("dv-untransposed") || how.is("dv-untransposed/flat") {
        let in_range = how.is("dv-untransposed/flat") && (m - 1) * m + n <= n * m;
        if n != m && !in_range {
            return Err(Trouble::Shapes);
        }
        let flat = |j: usize, c: usize| sum(how, n, |i| p.data[j * m + i] * d_out.data[i * dv + c]);
        d_v = Value::new(&[m, dv], (0..m * dv).map(|at| flat(at / dv, at % dv)).collect());
    }
    let blind: Vec<bool> = (0..n).map(|i| !sees[i * m..(i + 1) * m].contains(&true)).collect();
    let unseen: Vec<bool> = (0..m).map(|j| (0..n).all(|i| !sees[i * m + j])).collect();
    let zeros = |rows: &[bool], width: usize| (0..rows.len() * width).map(|at| rows[at / width]).collect::<Vec<bool>>();
    let (dq, dk, d_v) = (dq.with_zeros(zeros(&blind, d)), dk.with_zeros(zeros(&unseen, d)), d_v.with_zeros(zeros(&unseen, dv)));
    Ok(match () {
        () if how.is("swapped") => vec![dk, dq, d_v],
        () if how.is("kv-exchanged") => vec![dq, d_v, dk],
        () if how.is("order-reversed") => vec![d_v, dk, dq],
        () => vec![dq, dk, d_v],
    })
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [n, m, d, dv]: [usize; 4], share: f64, unit: Option<f32>| {
        let (q, k) = match unit {
            Some(unit) => (whole(rng, &[n, d], 4, unit), whole(rng, &[m, d], 4, unit)),
            None => (normal(rng, &[n, d]), normal(rng, &[m, d])),
        };
        let mut mask: Vec<bool> = (0..n * m).map(|_| rng.chance(share)).collect();
        if label.contains("sees nothing") {
            mask[..m].fill(false);
        }
        if label.contains("no query sees") {
            (0..n).for_each(|i| mask[i * m] = false);
        }
        let args = vec![q, k, normal(rng, &[m, dv]), normal(rng, &[n, dv]), flags(&[n, m], mask)];
        cases.push(Case::new(label, &[n, m, d, dv], args));
    };
    add(rng, "one of everything", [1, 1, 1, 1], 1.0, None);
    add(rng, "one key: dq and dk are 0", [3, 1, 2, 4], 1.0, None);
    add(rng, "one query", [1, 4, 3, 2], 1.0, None);
    add(rng, "two keys", [1, 2, 1, 1], 1.0, None);
    add(rng, "everything is visible", [3, 4, 5, 2], 1.0, None);
    add(rng, "row 0 sees nothing", [3, 4, 2, 5], 0.7, None);
    add(rng, "row 0 sees nothing, square", [3, 3, 3, 3], 0.8, None);
    add(rng, "a key that no query sees", [4, 3, 5, 2], 0.7, None);
    add(rng, "nothing is visible", [2, 3, 4, 5], 0.0, None);
    for _ in 0..7 {
        let sizes = different(rng, 2, 7);
        add(rng, "random", sizes, 1.0, None);
    }
    for _ in 0..5 {
        let sizes = different(rng, 2, 7);
        add(rng, "random mask", sizes, 0.6, None);
    }
    for size in [2, 3, 4] {
        add(rng, "square", [size; 4], 0.8, None);
    }
    for sizes in [[3, 4, 4, 2], [4, 3, 4, 5], [4, 4, 4, 4]] {
        add(rng, "scores of 1e4", sizes, 0.8, Some(64.0));
        add(rng, "scores of 10", sizes, 0.9, Some(2.0));
    }
    add(rng, "large", [67, 71, 33, 31], 0.8, None);
    strided(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formula::attention;

    /// `sum of out * d_out`
    fn loss(args: &[Value<f64>]) -> f64 {
        let mask: Vec<bool> = args[4].data.iter().map(|x| *x != 0.0).collect();
        let scale = root_scale(args[0].width());
        let (out, _) = attention(&How::default(), [&args[0], &args[1], &args[2]], scale, &mask).expect("shapes fit");
        out.data.iter().zip(&args[3].data).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn the_oracle_agrees_with_finite_differences() {
        let mut checked = 0;
        for case in cases(&mut Rng::new(1, "test")).iter().filter(|case| !case.label.contains("scores of") && case.label != "large") {
            let gradients = attention_backward(&case.call, &How::default()).expect("the oracle");
            for (which, gradient) in gradients.iter().enumerate() {
                for at in 0..gradient.data.len() {
                    let step = 1e-5;
                    let moved = |by: f64| {
                        let mut args = case.call.args.clone();
                        args[which].data[at] += by;
                        loss(&args)
                    };
                    let slope = (moved(step) - moved(-step)) / (2.0 * step);
                    assert!((slope - gradient.data[at]).abs() < 1e-8 * (1.0 + slope.abs()), "{} {which} {at}: {slope} \
                        {}", case.label, gradient.data[at]);
                    checked += 1;
                }
            }
        }
        assert!(checked > 500, "{checked}");
    }
}
