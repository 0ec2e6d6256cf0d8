//! The judge's backward pass: each line is the one of the forward pass that it differentiates, from the last to the first.

use super::forward::{Answer, add, dot, row};
use super::options::Options;
use ndarray::Array4;

/// Gradients of a loss whose gradient on `out` is known.
#[derive(Debug, Clone)]
pub struct BackwardAnswer {
    pub dq: Array4<f64>,
    pub dk: Array4<f64>,
    pub dv: Array4<f64>,
    /// On the scores as they enter the softmax; 0 for hidden pairs.
    pub d_scores: Array4<f64>,
    /// One per bias, flat, in its own shape.
    pub d_biases: Vec<Vec<f64>>,
    /// One per query head.
    pub d_sink: Vec<f64>,
    pub d_scale: f64,
    /// The sizes of what `d_scale` is the sum of.
    pub d_scale_size: f64,
}

pub fn backward(
    options: &Options,
    answer: &Answer,
    q: &Array4<f64>,
    k: &Array4<f64>,
    v: &Array4<f64>,
    d_out: &Array4<f64>,
) -> BackwardAnswer {
    let dims = answer.dims;
    let mut to = BackwardAnswer {
        dq: Array4::zeros(q.raw_dim()),
        dk: Array4::zeros(k.raw_dim()),
        dv: Array4::zeros(v.raw_dim()),
        d_scores: Array4::zeros(dims.scores()),
        d_biases: options.biases.iter().map(|bias| vec![0.0; bias.len()]).collect(),
        d_sink: vec![0.0; dims.heads_q],
        d_scale: 0.0,
        d_scale_size: 0.0,
    };
    for b in 0..dims.batch {
        for h in 0..dims.heads_q {
            for i in 0..dims.seq_q {
                differentiate(options, answer, [b, h, i], [q, k, v, d_out], &mut to);
            }
        }
    }
    to
}

/// What one query adds.
fn differentiate(options: &Options, answer: &Answer, [b, h, i]: [usize; 3], [q, k, v, d_out]: [&Array4<f64>; 4], to: &mut BackwardAnswer) {
    let dims = answer.dims;
    let kv = dims.kv_head(h);
    let seen: Vec<usize> = (0..dims.seq_kv).filter(|&j| answer.visible[[b, h, i, j]]).collect();
    let kept = |j: usize| options.dropout.map_or(1.0, |dropout| dropout.factor(&answer.pair([b, h, i, j])));
    let d_weights: Vec<f64> = seen.iter().map(|&j| kept(j) * dot(row(d_out, [b, h, i]), row(v, [b, kv, j]))).collect();
    // The softmax: every weight has a part in the sum that all are divided by.
    let delta: f64 = seen.iter().zip(&d_weights).map(|(&j, d)| answer.weights[[b, h, i, j]] * d).sum();
    if let Some(sink) = options.sink.as_ref().map(|logits| logits[h])
        && sink > f64::NEG_INFINITY
        && !seen.is_empty()
    {
        to.d_sink[h] -= (sink - answer.row_max[[b, h, i]]).exp() / answer.row_sum[[b, h, i]] * delta;
    }
    for (&j, d_weight) in seen.iter().zip(&d_weights) {
        let at = [b, h, i, j];
        add(&mut to.dv, [b, kv, j], answer.applied[at], row(d_out, [b, h, i]));
        let d_score = answer.weights[at] * (d_weight - delta);
        to.d_scores[at] = d_score;
        for (bias, gradient) in options.biases.iter().zip(&mut to.d_biases) {
            let (place, factor) = bias.place(&answer.pair(at));
            gradient[place] += factor * d_score;
        }
        let slope = options.softcap.map_or(1.0, |cap| 1.0 - (answer.capped[at] / cap).powi(2));
        let share = d_score * slope * dot(row(q, [b, h, i]), row(k, [b, kv, j]));
        to.d_scale += share;
        to.d_scale_size += share.abs();
        let d_dot = d_score * slope * options.factor(&dims);
        add(&mut to.dq, [b, h, i], d_dot, row(k, [b, kv, j]));
        add(&mut to.dk, [b, kv, j], d_dot, row(q, [b, h, i]));
    }
}

/// By central differences of the judge's own forward pass, every option at once.
#[test]
fn gradients_are_the_slopes_of_the_forward_pass() {
    use super::options::Bias;
    use ndarray::Array2;
    let number = |seed: usize, i: usize| ((i * 7919 + seed * 104_729 + i * i) as f64).sin();
    let array = |shape: [usize; 4], seed| {
        let mut i = 0;
        Array4::from_shape_simple_fn(shape, || {
            i += 1;
            number(seed, i)
        })
    };
    let operands = [array([2, 4, 3, 3], 1), array([2, 2, 5, 3], 2), array([2, 2, 5, 2], 3)];
    let d_out = array([2, 4, 3, 2], 4);
    let options = |dense: &Array4<f64>, slopes: &[f64], table: &Array2<f32>, sink: &[f64]| {
        let biased = Options::new().bias(Bias::Dense64(dense.clone())).bias(Bias::Alibi(slopes.to_vec()));
        let biased = biased.bias(Bias::Relative(table.clone()));
        biased.causal().q_offset(2).softcap(1.5).scale(0.8).top_k(4).dropout(0.3, 9).sink(sink)
    };
    let (dense, slopes, sink) = (array([1, 4, 1, 5], 5), vec![0.5, 0.25, 0.1, 0.3], vec![0.1, -0.4, 0.7, f64::NEG_INFINITY]);
    let table = Array2::from_shape_fn((1, 5), |(_, c)| c as f32 / 4.0);
    let loss = |options: &Options, x: &[Array4<f64>; 3]| (attention(options, &x[0], &x[1], &x[2]).out * &d_out).sum();
    let base = options(&dense, &slopes, &table, &sink);
    let answer = attention(&base, &operands[0], &operands[1], &operands[2]);
    let got = backward(&base, &answer, &operands[0], &operands[1], &operands[2], &d_out);
    let step = 1e-5;
    let slope = |change: &dyn Fn(f64) -> f64| (change(step) - change(-step)) / (2.0 * step);
    let near = |what: &str, x: f64, y: f64| assert!((x - y).abs() < 1e-8, "{what}: {x} instead of {y}");
    for (number, gradient) in [&got.dq, &got.dk, &got.dv].into_iter().enumerate() {
        for (at, &x) in gradient.indexed_iter() {
            let changed = |by: f64| {
                let mut operands = operands.clone();
                operands[number][at] += by;
                loss(&base, &operands)
            };
            near(&format!("operand {number} at {at:?}"), x, slope(&changed));
        }
    }
    for (place, &x) in got.d_biases[0].iter().enumerate() {
        let changed = |by: f64| {
            let mut dense = dense.clone();
            dense.as_slice_mut().expect("as it was made")[place] += by;
            loss(&options(&dense, &slopes, &table, &sink), &operands)
        };
        near("dense bias", x, slope(&changed));
    }
    for head in 0..4 {
        let changed = |by: f64| {
            let mut slopes = slopes.clone();
            slopes[head] += by;
            loss(&options(&dense, &slopes, &table, &sink), &operands)
        };
        near("slope", got.d_biases[1][head], slope(&changed));
        let changed = |by: f64| {
            let mut sink = sink.clone();
            sink[head] += by;
            loss(&options(&dense, &slopes, &table, &sink), &operands)
        };
        near("sink", got.d_sink[head], slope(&changed));
    }
    let scaled = |by: f64| loss(&Options { scale: Some(0.8 + by), ..base.clone() }, &operands);
    near("scale", got.d_scale, slope(&scaled));
    // The table is in f32: a step of 2^-8 is exact there, and its error of the third order is small.
    for column in 0..5 {
        let changed = |by: f64| {
            let mut table = table.clone();
            table[[0, column]] += (by / step) as f32 / 256.0;
            loss(&options(&dense, &slopes, &table, &sink), &operands)
        };
        let by_steps = (changed(step) - changed(-step)) * 128.0;
        assert!((got.d_biases[2][column] - by_steps).abs() < 1e-5, "table: {} {by_steps}", got.d_biases[2][column]);
    }
}

#[cfg(test)]
use super::forward::attention;
