//! The textbook, in f64: every matrix laid out, every step on its own. The oracle of all tests, and a readable
//! definition of what the fast path computes.
//!
//! ```text
//! scores  = q k^T * scale
//! scores  = cap * tanh(scores / cap)          with a softcap
//! scores  = scores + bias                     a bias of -inf hides
//! scores  = -inf where the mask hides, or where the score is not among the row's k highest
//! weights = softmax(scores), a sink logit taking its share; 0 in a row without any visible key
//! applied = weights * dropout
//! out     = applied v, hidden keys left out of the sum
//! ```
//!
//! and backwards, each line the one that it differentiates:
//!
//! ```text
//! dv        = applied^T d_out
//! d_applied = d_out v^T
//! d_weights = d_applied * dropout
//! d_scores  = weights * (d_weights - rowsum(weights * d_weights)),   0 for hidden keys
//! d_sink    = -weight of the sink * rowsum(weights * d_weights), summed over rows
//! d_capped  = d_scores                                               the gradient on a bias, too
//! d_raw     = d_capped * (1 - (capped / cap)^2)
//! dq        = d_raw k * scale
//! dk        = d_raw^T q * scale
//! ```

use crate::error::{Result, check_shape};
use crate::plan::Attention;

use ndarray::{Array3, Array4, ArrayView4};
use regard_simd::{Real, Storage};

/// Everything that the textbook computes on the way.
#[derive(Debug, Clone)]
pub struct Reference {
    /// `q k^T * scale`.
    pub raw: Array4<f64>,
    /// After the softcap.
    pub capped: Array4<f64>,
    /// After bias and masks; `-inf` is hidden.
    pub scores: Array4<f64>,
    /// After the softmax.
    pub weights: Array4<f64>,
    /// After dropout: what the values are weighed with.
    pub applied: Array4<f64>,
    /// `ln(sum(exp(scores)))` of each row, the sink included.
    pub lse: Array3<f64>,
    /// `applied v`.
    pub out: Array4<f64>,
}

/// Attention by the textbook, in f64. Needs room for several `[batch, heads_q, seq_q, seq_kv]`.
///
/// # Errors
/// The same as [`Attention::forward`].
pub fn attention<'x, E: Storage>(
    options: &Attention<'_>,
    q: impl Into<ArrayView4<'x, E>>,
    k: impl Into<ArrayView4<'x, E>>,
    v: impl Into<ArrayView4<'x, E>>,
) -> Result<Reference> {
    let (q, k, v) = (q.into(), k.into(), v.into());
    let plan = options.plan(&q, &k, Some(&v))?;
    let dims = plan.dims;
    let f = |x: &E| x.to_real().to_f64();
    let shape = dims.scores();
    let mut raw = Array4::zeros(shape);
    let mut capped = Array4::zeros(shape);
    let mut scores = Array4::zeros(shape);
    let mut weights = Array4::zeros(shape);
    let mut applied = Array4::zeros(shape);
    let mut lse = Array3::zeros([shape[0], shape[1], shape[2]]);
    let mut out = Array4::zeros([shape[0], shape[1], shape[2], dims.value_dim]);
    for b in 0..dims.batch {
        for h in 0..dims.heads_q {
            let kv_head = h / dims.group();
            let place = plan.position(b, h);
            for i in 0..dims.seq_q {
                for j in 0..dims.seq_kv {
                    let at = [b, h, i, j];
                    let dot: f64 = (0..dims.head_dim).map(|d| f(&q[[b, h, i, d]]) * f(&k[[b, kv_head, j, d]])).sum();
                    raw[at] = dot * plan.scale;
                    capped[at] = plan.softcap().map_or(raw[at], |cap| cap * (raw[at] / cap).tanh());
                    let biases: Vec<f64> = plan.biases().iter().map(|bias| bias.at(&place, i, j)).collect();
                    let hidden = biases.contains(&f64::NEG_INFINITY) || !plan.mask().visible(&place, i, j);
                    scores[at] = if hidden { f64::NEG_INFINITY } else { biases.iter().fold(capped[at], |score, bias| score + bias) };
                }
                let mut row = scores.slice_mut(ndarray::s![b, h, i, ..]);
                if let Some(k) = plan.top_k() {
                    let mut order: Vec<usize> = (0..dims.seq_kv).collect();
                    // Ties, +0 and -0 among them, go to the lower index.
                    order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b)));
                    for &j in &order[k..] {
                        if !row[j].is_nan() {
                            row[j] = f64::NEG_INFINITY;
                        }
                    }
                }
                let sink = plan.sink(h).unwrap_or(f64::NEG_INFINITY);
                let max = row.iter().fold(sink, |m, &s| if s > m { s } else { m });
                let shift = if max == f64::NEG_INFINITY { 0.0 } else { max };
                let sum: f64 = row.iter().map(|&s| (s - shift).exp()).sum::<f64>() + (sink - shift).exp();
                lse[[b, h, i]] = if max == f64::NEG_INFINITY && !sum.is_nan() { max } else { shift + sum.ln() };
                for j in 0..dims.seq_kv {
                    if scores[[b, h, i, j]] == f64::NEG_INFINITY {
                        continue;
                    }
                    let w = (scores[[b, h, i, j]] - shift).exp() / sum;
                    weights[[b, h, i, j]] = w;
                    let w = w * plan.dropout().map_or(1.0, |dropout| dropout.at([b, h, i, j]));
                    applied[[b, h, i, j]] = w;
                    for d in 0..dims.value_dim {
                        out[[b, h, i, d]] += w * f(&v[[b, kv_head, j, d]]);
                    }
                }
            }
        }
    }
    Ok(Reference { raw, capped, scores, weights, applied, lse, out })
}

/// What the textbook computes on the way back.
#[derive(Debug, Clone)]
pub struct ReferenceGradients {
    /// On q.
    pub dq: Array4<f64>,
    /// On k.
    pub dk: Array4<f64>,
    /// On v.
    pub dv: Array4<f64>,
    /// On the scores as they enter the softmax, `[batch, heads_q, seq_q, seq_kv]`. The gradient on a bias is its sum over whatever the
    /// bias is the same for.
    pub d_scores: Array4<f64>,
    /// On the sink logits, one per query head; zeros where there are none.
    pub d_sink: Vec<f64>,
}

/// Gradients by the textbook, in f64. Needs room for several `[batch, heads_q, seq_q, seq_kv]`.
///
/// # Errors
/// The same as [`Attention::forward`], and when `d_out` does not have the shape of the result.
pub fn backward<'x, E: Storage>(
    options: &Attention<'_>,
    q: impl Into<ArrayView4<'x, E>>,
    k: impl Into<ArrayView4<'x, E>>,
    v: impl Into<ArrayView4<'x, E>>,
    d_out: impl Into<ArrayView4<'x, E>>,
) -> Result<ReferenceGradients> {
    let (q, k, v, d_out) = (q.into(), k.into(), v.into(), d_out.into());
    let Reference { capped, scores, weights, applied, lse, out, .. } = attention(options, q, k, v)?;
    check_shape("d_out", d_out.shape(), out.shape())?;
    let plan = options.plan(&q, &k, Some(&v))?;
    let d = plan.dims;
    let f = |x: &E| x.to_real().to_f64();
    let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|x| Array4::zeros(x.raw_dim()));
    let mut d_scores = Array4::zeros(scores.raw_dim());
    let mut d_sink = vec![0.0; d.heads_q];
    for b in 0..d.batch {
        for h in 0..d.heads_q {
            let kv_head = h / d.group();
            for i in 0..d.seq_q {
                let visible = |j: &usize| scores[[b, h, i, *j]] != f64::NEG_INFINITY;
                let d_weights: Vec<f64> = (0..d.seq_kv)
                    .map(|j| {
                        let dot: f64 = (0..d.value_dim).map(|e| f(&d_out[[b, h, i, e]]) * f(&v[[b, kv_head, j, e]])).sum();
                        dot * plan.dropout().map_or(1.0, |dropout| dropout.at([b, h, i, j]))
                    })
                    .collect();
                let delta: f64 = (0..d.seq_kv).filter(visible).map(|j| weights[[b, h, i, j]] * d_weights[j]).sum();
                if let Some(sink) = plan.sink(h)
                    && sink > f64::NEG_INFINITY
                {
                    d_sink[h] -= (sink - lse[[b, h, i]]).exp() * delta;
                }
                for j in (0..d.seq_kv).filter(visible) {
                    let at = [b, h, i, j];
                    for e in 0..d.value_dim {
                        dv[[b, kv_head, j, e]] += applied[at] * f(&d_out[[b, h, i, e]]);
                    }
                    d_scores[at] = weights[at] * (d_weights[j] - delta);
                    let slope = plan.softcap().map_or(1.0, |cap| 1.0 - (capped[at] / cap).powi(2));
                    let d_raw = d_scores[at] * slope * plan.scale;
                    for e in 0..d.head_dim {
                        dq[[b, h, i, e]] += d_raw * f(&k[[b, kv_head, j, e]]);
                        dk[[b, kv_head, j, e]] += d_raw * f(&q[[b, h, i, e]]);
                    }
                }
            }
        }
    }
    Ok(ReferenceGradients { dq, dk, dv, d_scores, d_sink })
}
