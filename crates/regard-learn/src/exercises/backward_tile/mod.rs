//! 13: the backward pass of one tile of keys, with dropout.

use super::{normal, strided, whole};
use crate::exercise::{Callee, Custom, Exercise, Judging, Kind, Mistake, input, param};
use crate::formula::{How, dot, root_scale, sum};
use crate::real::Real;
use crate::rng::Rng;
use crate::value::{Call, Case, Reply, Trouble, Value, flags, number};
use crate::{files, formula, session};

pub(super) static EXERCISE: Exercise = Exercise {
    number: 13,
    name: "backward_tile",
    title: "gradients of a tile, with dropout",
    dims: &["n", "t", "d", "dv"],
    params: &[
        input("q", &["n", "d"]),
        input("k", &["t", "d"]),
        input("v", &["t", "dv"]),
        input("d_out", &["n", "dv"]),
        input("out", &["n", "dv"]),
        input("row_max", &["n"]),
        input("row_sum", &["n"]),
        param("keep", Kind::Flags, &["n", "t"]),
        param("p", Kind::Number, &[]),
    ],
    results: &[("dq", &["n", "d"]), ("dk", &["t", "d"]), ("dv", &["t", "dv"])],
    inputs: &[
        input("q", &["n", "d"]),
        input("k", &["t", "d"]),
        input("v", &["t", "dv"]),
        input("d_out", &["n", "dv"]),
        param("keep", Kind::Flags, &["n", "t"]),
        param("p", Kind::Number, &[]),
    ],
    judged: &["dq, added over tiles", "dk", "dv"],
    mistakes: &[
        Mistake { id: "tile-delta", text: "delta is summed over this tile alone: it belongs to the whole row, and is d_out . out" },
        Mistake { id: "dv-undropped", text: "dv uses the weights before dropout: use the dropped ones" },
        Mistake { id: "ds-dropped", text: "dropout is applied twice: d_weights is dropped, the weights in front of it are not" },
        Mistake { id: "divided-by-p", text: "kept weights are divided by p: divide by 1 - p" },
        Mistake { id: "max-forgotten", text: "the weights are made without row_max: exp(score - row_max) / row_sum" },
        Mistake { id: "sum-forgotten", text: "the weights are not divided by row_sum" },
        Mistake { id: "unscaled-dropout", text: "kept weights are not multiplied by 1/(1-p)" },
        Mistake { id: "dp-undropped", text: "d_weights is not dropped: it must be dropped as the weights were" },
        Mistake { id: "delta-missing", text: "delta is missing: the weights of a row compete" },
        Mistake { id: "delta-added", text: "delta is added: subtract it" },
        Mistake { id: "keep-inverted", text: "kept weights are dropped, and dropped ones kept" },
        Mistake { id: "no-dropout", text: "keep and p are not used" },
        Mistake { id: "no-scale", text: "dq and dk lack the factor 1/sqrt(d)" },
        Mistake { id: "multiplied-by-keep", text: "kept weights are multiplied by 1 - p: divide by it" },
        Mistake { id: "dp-unscaled", text: "d_weights lacks the factor 1/(1-p) of kept weights" },
        Mistake { id: "dv-unscaled", text: "dv lacks the factor 1/(1-p) of kept weights" },
        Mistake { id: "dq-unscaled", text: "dq lacks the factor 1/sqrt(d)" },
        Mistake { id: "scale-twice", text: "dq and dk have the scale twice" },
        Mistake { id: "swapped", text: "dq and dk are exchanged" },
        Mistake { id: "diagonal-only", text: "only the diagonal of the softmax's Jacobian is used, w (1 - w): the weights of a row \
            compete" },
        Mistake { id: "sign", text: "dq and dk have the wrong sign" },
        Mistake { id: "softmax-skipped", text: "d_scores is d_weights: the softmax is not differentiated" },
        Mistake { id: "width-scale", text: "the factor is 1/d: it is 1/sqrt(d)" },
        Mistake { id: "divided-by-p/raises", text: "kept weights are divided by p, which fails for p = 0: divide by 1 - p" },
        Mistake { id: "tile-softmax", text: "the weights are a softmax over this tile alone: exp(score - row_max) / row_sum, of the \
            whole row" },
        Mistake { id: "delta-scaled", text: "delta is multiplied by 1 - p: d_out . out is already that of the dropped forward pass" },
        Mistake { id: "delta-unscaled", text: "delta is divided by 1 - p: d_out . out is already that of the dropped forward pass" },
        Mistake { id: "delta-outside", text: "d_scores is w d_weights - delta: delta is subtracted before the weights multiply" },
        Mistake { id: "delta-dropped", text: "delta is dropped, too: it is subtracted for dropped keys as well" },
        Mistake { id: "dq-scaled-twice", text: "dq has the factor 1/sqrt(d) twice" },
        Mistake { id: "dk-scaled-twice", text: "dk has the factor 1/sqrt(d) twice" },
        Mistake { id: "dv-values", text: "dv is weights^T out: it must be weights^T d_out" },
        Mistake { id: "dv-scaled", text: "dv has the factor 1/sqrt(d): only dq and dk have it" },
        Mistake { id: "dv-overwritten", text: "dv is overwritten in its loop, and only the last query counts: add them up" },
        Mistake { id: "dk-overwritten", text: "dk is overwritten in its loop, and only the last query counts: add them up" },
        Mistake { id: "forward-unscaled", text: "the weights are made of scores without the scale" },
    ],
    mutants: &[
        "tile-delta", "dv-undropped", "ds-dropped", "dk-unscaled", "divided-by-p", "divided-by-p/raises", "max-forgotten", "sum-forgotten",
        "unscaled-dropout", "dp-undropped", "delta-missing", "delta-added", "keep-inverted", "no-dropout", "no-scale", "forward-unscaled",
        "multiplied-by-keep", "dp-unscaled", "dv-unscaled", "dq-unscaled", "scale-twice", "swapped", "diagonal-only", "sign",
        "softmax-skipped",
        "width-scale", "tile-softmax", "delta-scaled", "delta-unscaled", "delta-outside", "delta-dropped", "dq-scaled-twice",
        "dk-scaled-twice",
        "dv-values", "dv-scaled",
        "dv-overwritten", "dk-overwritten",
    ],
    hints: ["Make the weights again from the scores, row_max and row_sum.", "The delta of a row hides in d_out and out.", "Drop \
        d_weights as the weights were dropped."],
    idea: "Nothing n x n is kept: weights are made again tile by tile, and delta = d_out . out knows the whole row.",
    floor: 0.0,
    cases,
    possible: |_| true,
    judging: Judging::Numbers { formula: formula!(backward_tile), session: session!(tiles) },
    custom: Some(Custom { class: "AttentionTile", d_out: 3, leaves: 3, forward: formula!(part) }),
    files: files!(),
};

/// What the tile adds to the output.
fn part<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v, _, _, row_max, row_sum, keep] = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| &call.args[at]);
    let [n, t, d, dv] = call.dims[..] else { return Err(Trouble::Shapes) };
    let scale = root_scale::<T>(d);
    let factor = T::of(1.0) / (T::of(1.0) - call.args[8].scalar());
    let weight = |i: usize, j: usize| (dot(how, q.row(i), k.row(j)) * scale - row_max.data[i]).exp() / row_sum.data[i] * factor;
    let term = |i: usize, j: usize, c: usize| if keep.flag(i * t + j) { weight(i, j) * v.data[j * dv + c] } else { T::of(0.0) };
    let data = (0..n * dv).map(|at| sum(how, t, |j| term(at / dv, j, at % dv))).collect();
    Ok(vec![Value::new(&[n, dv], data)])
}

fn backward_tile<T: Real>(call: &Call<T>, how: &How) -> Reply<T> {
    let [q, k, v, d_out, out, row_max, row_sum, keep] = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| &call.args[at]);
    let [n, t, d, dv] = call.dims[..] else { return Err(Trouble::Shapes) };
    let (one, zero, p) = (T::of(1.0), T::of(0.0), call.args[8].scalar());
    if how.is("divided-by-p/raises") && p.value() == 0.0 {
        return Err(Trouble::Shapes);
    }
    let scale = if how.is("width-scale") { one / T::of(d as f64) } else { root_scale::<T>(d) };
    let score = |i: usize, j: usize| {
        let scaled: Vec<T> = q.row(i).iter().map(|x| *x * scale).collect();
        match () {
            () if how.is("forward-unscaled") => dot(how, q.row(i), k.row(j)),
            () if how.scale_first => dot(how, &scaled, k.row(j)),
            () => dot(how, q.row(i), k.row(j)) * scale,
        }
    };
    let weight = |i: usize, j: usize| {
        let top = if how.is("max-forgotten") { zero } else { row_max.data[i] };
        let e = (score(i, j) - top).exp();
        if how.is("sum-forgotten") { e } else { e / row_sum.data[i] }
    };
    let factor = |i: usize, j: usize| {
        let kept = keep.flag(i * t + j) != how.is("keep-inverted");
        match () {
            () if how.is("no-dropout") => one,
            // As code has it that multiplies by keep: 0 times 1/0 is NaN.
            () if how.is("divided-by-p") || how.is("divided-by-p/raises") => (if kept { one } else { zero }) * (one / p),
            () if !kept => zero,
            () if how.is("unscaled-dropout") => one,
            () if how.is("multiplied-by-keep") => one - p,
            () => one / (one - p),
        }
    };
    let mut weights: Vec<T> = (0..n * t).map(|at| weight(at / t, at % t)).collect();
    if how.is("tile-softmax") {
        let scores = Value::new(&[n, t], (0..n * t).map(|at| score(at / t, at % t)).collect());
        weights = crate::formula::softmax(&How::default(), &scores, &vec![true; n * t]).data;
    }
    let weights = weights;
    let factors: Vec<T> = (0..n * t).map(|at| factor(at / t, at % t)).collect();
    let d_weight = |i: usize, j: usize| {
        let plain = dot(how, d_out.row(i), v.row(j));
        match () {
            () if how.is("dp-undropped") => plain,
            () if how.is("dp-unscaled") => if keep.flag(i * t + j) { plain } else { zero },
            () => plain * factors[i * t + j],
        }
    };
    let delta = |i: usize| match () {
        () if how.is("tile-delta") => sum(how, t, |j| weights[i * t + j] * d_weight(i, j)),
        () if how.is("delta-missing") => zero,
        () if how.is("delta-scaled") => dot(how, d_out.row(i), out.row(i)) * (one - p),
        () if how.is("delta-unscaled") => dot(how, d_out.row(i), out.row(i)) / (one - p),
        () if how.is("delta-added") => -dot(how, d_out.row(i), out.row(i)),
        () => dot(how, d_out.row(i), out.row(i)),
    };
    let deltas: Vec<T> = (0..n).map(delta).collect();
    let d_score = |i: usize, j: usize| {
        let weight = weights[i * t + j];
        let plain = weight * (d_weight(i, j) - deltas[i]);
        match () {
            () if how.is("ds-dropped") => plain * factors[i * t + j],
            () if how.is("delta-outside") => weight * d_weight(i, j) - deltas[i],
            () if how.is("delta-dropped") => if keep.flag(i * t + j) { plain } else { zero },
            () if how.is("diagonal-only") => weight * (one - weight) * d_weight(i, j),
            () if how.is("sign") => -plain,
            () if how.is("softmax-skipped") => d_weight(i, j),
            () => plain,
        }
    };
    let ds: Vec<T> = (0..n * t).map(|at| d_score(at / t, at % t)).collect();
    let scale = if how.is("scale-twice") { scale * scale } else { scale };
    let q_scale = if how.is("no-scale") || how.is("dq-unscaled") { one } else { scale };
    let k_scale = if how.is("no-scale") || how.is("dk-unscaled") { one } else { scale };
    let q_scale = if how.is("dq-scaled-twice") { scale * scale } else { q_scale };
    let k_scale = if how.is("dk-scaled-twice") { scale * scale } else { k_scale };
    let v_scale = if how.is("dv-scaled") { scale } else { one };
    let of_values = if how.is("dv-values") { out } else { d_out };
    let (dk_from, dv_from) = (if how.is("dk-overwritten") { n - 1 } else { 0 }, if how.is("dv-overwritten") { n - 1 } else { 0 });
    let dropped = |at: usize| match () {
        () if how.is("dv-undropped") => weights[at],
        () if how.is("dv-unscaled") => if keep.flag(at) { weights[at] } else { zero },
        () => weights[at] * factors[at],
    };
    let dq = (0..n * d).map(|at| sum(how, t, |j| ds[at / d * t + j] * k.data[j * d + at % d]) * q_scale).collect();
    let to_dk = |i: usize, at: usize| ds[i * t + at / d] * q.data[i * d + at % d];
    let dk = (0..t * d).map(|at| sum(how, n - dk_from, |i| to_dk(dk_from + i, at)) * k_scale).collect();
    let to_dv = |i: usize, at: usize| dropped(i * t + at / dv) * of_values.data[i * dv + at % dv];
    let d_v = (0..t * dv).map(|at| sum(how, n - dv_from, |i| to_dv(dv_from + i, at)) * v_scale).collect();
    let (dq, dk, d_v) = (Value::new(&[n, d], dq), Value::new(&[t, d], dk), Value::new(&[t, dv], d_v));
    if how.is("swapped") {
        // The judge adds up dq: other shapes end the session.
        return if n == t { Ok(vec![dk, dq, d_v]) } else { Err(Trouble::Shapes) };
    }
    Ok(vec![dq, dk, d_v])
}

/// What the forward pass leaves behind: out after dropout, row_max, row_sum.
fn forward<T: Real>(call: &Call<T>) -> [Value<T>; 3] {
    let [q, k, v, _, keep, p] = [0, 1, 2, 3, 4, 5].map(|at| &call.args[at]);
    let how = How::default();
    let (n, t, dv) = (q.rows(), k.rows(), v.width());
    let (mut out, mut maxima, mut sums) = (Value::zero(&[n, dv]), Vec::new(), Vec::new());
    for i in 0..n {
        let scores: Vec<T> = (0..t).map(|j| dot(&how, q.row(i), k.row(j)) * root_scale(q.width())).collect();
        let top = scores.iter().fold(T::of(f64::NEG_INFINITY), |top, s| top.max(*s));
        let e: Vec<T> = scores.iter().map(|s| (*s - top).exp()).collect();
        let total = sum(&how, t, |j| e[j]);
        let factor = |j: usize| T::of(if keep.flag(i * t + j) { 1.0 } else { 0.0 }) / (T::of(1.0) - p.scalar());
        for c in 0..dv {
            out.data[i * dv + c] = sum(&how, t, |j| e[j] / total * factor(j) * v.data[j * dv + c]);
        }
        maxima.push(top);
        sums.push(total);
    }
    [out, Value::new(&[n], maxima), Value::new(&[n], sums)]
}

/// Feeds the tiles and adds dq.
fn tiles<T: Real>(case: &Case, callee: Callee<'_, T>) -> Reply<T> {
    let call = case.call.to::<T>();
    let [n, t, d, dv] = call.dims[..] else { return Err(Trouble::Shapes) };
    let [out, row_max, row_sum] = forward(&case.call).map(|value| value.to::<f32>().to::<T>());
    let keep = &call.args[4];
    let mut dq = Value::zero(&[n, d]);
    let (mut dks, mut dvs, mut from) = (Vec::new(), Vec::new(), 0);
    for count in case.tiles(t) {
        let kept = Value::new(&[n, count], (0..n * count).map(|at| keep.data[at / count * t + from + at % count]).collect());
        let part = |at: usize| call.args[at].slice(from, from + count);
        let state = [out.clone(), row_max.clone(), row_sum.clone()];
        let [out, row_max, row_sum] = state;
        let args = vec![call.args[0].clone(), part(1), part(2), call.args[3].clone(), out, row_max, row_sum, kept, call.args[5].clone()];
        let mut results = callee(&Call { dims: vec![n, count, d, dv], args })?.into_iter();
        let [Some(one), Some(two), Some(three)] = [results.next(), results.next(), results.next()] else { return Err(Trouble::Shapes) };
        dq.data.iter_mut().zip(&one.data).for_each(|(sum, x)| *sum = *sum + *x);
        dks.push(two);
        dvs.push(three);
        from += count;
    }
    Ok(vec![dq, Value::join(&dks), Value::join(&dvs)])
}

fn cases(rng: &mut Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |rng: &mut Rng, label: &str, [n, t, d, dv]: [usize; 4], p: f64, pieces: &[usize], unit: Option<f32>| {
        let (q, k) = match unit {
            Some(unit) => (whole(rng, &[n, d], 4, unit), whole(rng, &[t, d], 4, unit)),
            None => (normal(rng, &[n, d]), normal(rng, &[t, d])),
        };
        let keep = (0..n * t).map(|_| !rng.chance(p)).collect();
        let args = vec![q, k, normal(rng, &[t, dv]), normal(rng, &[n, dv]), flags(&[n, t], keep), number(p)];
        cases.push(Case::new(label, &[n, t, d, dv], args).cut(pieces));
    };
    add(rng, "p = 0, one tile", [3, 4, 5, 2], 0.0, &[4], None);
    add(rng, "p = 0, one tile, square", [3, 3, 3, 3], 0.0, &[3], None);
    add(rng, "p = 0, two tiles", [3, 6, 2, 4], 0.0, &[3, 3], None);
    add(rng, "p = 0, tiles of one key", [2, 4, 3, 5], 0.0, &[1; 4], None);
    add(rng, "one query", [1, 5, 3, 2], 0.2, &[2, 3], None);
    add(rng, "one key", [4, 1, 2, 3], 0.3, &[1], None);
    add(rng, "tiles of one key", [3, 4, 2, 5], 0.3, &[1; 4], None);
    add(rng, "p = 1/2", [4, 6, 3, 2], 0.5, &[3, 3], None);
    add(rng, "p = 3/4", [3, 5, 4, 2], 0.75, &[2, 3], None);
    add(rng, "p = 0.1", [5, 8, 4, 3], 0.1, &[4, 2, 2], None);
    for sizes in [[3, 4, 4, 2], [4, 6, 4, 3]] {
        add(rng, "scores of 1e4, p = 0", sizes, 0.0, &[2, sizes[1] - 2], Some(64.0));
        add(rng, "scores of 1e4", sizes, 0.3, &[2, sizes[1] - 2], Some(64.0));
        add(rng, "scores of 100", sizes, 0.2, &[sizes[1] - 2, 2], Some(8.0));
    }
    for _ in 0..8 {
        let tiles: Vec<usize> = (0..rng.size(1, 3)).map(|_| rng.size(1, 4)).collect();
        let sizes = [rng.size(2, 5), tiles.iter().sum(), rng.size(2, 5), rng.size(2, 5)];
        add(rng, "random", sizes, 0.25, &tiles, None);
    }
    add(rng, "large", [67, 80, 33, 31], 0.2, &[42, 38], None);
    strided(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sum of out * d_out`, with out after dropout.
    fn loss(call: &Call<f64>) -> f64 {
        forward(call)[0].data.iter().zip(&call.args[3].data).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn the_oracle_agrees_with_finite_differences_with_dropout_too() {
        let mut checked = 0;
        for case in cases(&mut Rng::new(1, "test")).iter().filter(|case| !case.label.contains("scores of") && case.label != "large") {
            let gradients = tiles::<f64>(case, &mut |call| backward_tile(call, &How::default())).expect("the oracle");
            for (which, gradient) in gradients.iter().enumerate() {
                for at in 0..gradient.data.len() {
                    let moved = |by: f64| {
                        let mut call = case.call.clone();
                        call.args[which].data[at] += by;
                        loss(&call)
                    };
                    let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    // row_max, row_sum and out are rounded to f32 on their way.
                    assert!((slope - gradient.data[at]).abs() < 3e-6 * (1.0 + slope.abs()), "{} {which} {at}: {slope} \
                        {}", case.label, gradient.data[at]);
                    checked += 1;
                }
            }
        }
        assert!(checked > 500, "{checked}");
    }
}
