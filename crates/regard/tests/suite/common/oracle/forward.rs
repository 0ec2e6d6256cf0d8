//! The judge's forward pass.

use super::mask::Pair;
use super::options::{Options, Shape};
use ndarray::{Array3, Array4};

/// What a visible pair whose own score is minus infinity is. An infinite key makes such scores. IEEE says: visible, of weight 0; the
/// library may say so, or count the pair as hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinusInfinity {
    Visible,
    Hidden,
}

/// Everything that is computed on the way; arrays are `[batch, heads_q, seq_q, ..]`.
#[derive(Debug, Clone)]
pub struct Answer {
    pub dims: Shape,
    /// `q k^T * scale`, of every pair.
    pub raw: Array4<f64>,
    /// After the softcap, of every pair.
    pub capped: Array4<f64>,
    /// After the biases; `-inf` where mask or bias hide. Top-k comes after.
    pub scores: Array4<f64>,
    /// Is left by mask and biases.
    pub candidate: Array4<bool>,
    /// Is left by top-k too.
    pub visible: Array4<bool>,
    pub weights: Array4<f64>,
    /// Weights after dropout.
    pub applied: Array4<f64>,
    pub row_max: Array3<f64>,
    pub row_sum: Array3<f64>,
    pub lse: Array3<f64>,
    pub out: Array4<f64>,
    /// Position of query 0 of each batch entry.
    pub offsets: Vec<i128>,
}

impl Answer {
    pub fn pair(&self, [batch, head, query, key]: [usize; 4]) -> Pair {
        Pair { batch, head, query, key, position: self.offsets[batch] + query as i128 }
    }
}

/// Attention of operands that fit, standard layout.
pub fn attention(options: &Options, q: &Array4<f64>, k: &Array4<f64>, v: &Array4<f64>) -> Answer {
    attention_with(options, MinusInfinity::Hidden, q, k, v)
}

/// The same, and what a score of minus infinity means.
pub fn attention_with(options: &Options, minus_infinity: MinusInfinity, q: &Array4<f64>, k: &Array4<f64>, v: &Array4<f64>) -> Answer {
    let dims = Shape::of(q.shape(), k.shape(), v.shape());
    let shape = dims.scores();
    let rows = [shape[0], shape[1], shape[2]];
    let matrix = || Array4::zeros(shape);
    let mut answer = Answer {
        dims,
        raw: matrix(),
        capped: matrix(),
        scores: Array4::from_elem(shape, f64::NEG_INFINITY),
        candidate: Array4::from_elem(shape, false),
        visible: Array4::from_elem(shape, false),
        weights: matrix(),
        applied: matrix(),
        row_max: Array3::from_elem(rows, f64::NEG_INFINITY),
        row_sum: Array3::zeros(rows),
        lse: Array3::from_elem(rows, f64::NEG_INFINITY),
        out: Array4::zeros([shape[0], shape[1], shape[2], dims.value_dim]),
        offsets: (0..dims.batch).map(|b| options.q_offset_of(b, &dims)).collect(),
    };
    for b in 0..dims.batch {
        for h in 0..dims.heads_q {
            for i in 0..dims.seq_q {
                score_row(options, minus_infinity, &mut answer, [b, h, i], q, k);
                weigh_row(options, &mut answer, [b, h, i], v);
            }
        }
    }
    answer
}

/// One row of a tensor in standard layout.
pub(super) fn row(x: &Array4<f64>, [b, h, i]: [usize; 3]) -> &[f64] {
    let (_, heads, rows, dims) = x.dim();
    &x.as_slice().expect("standard layout")[((b * heads + h) * rows + i) * dims..][..dims]
}

/// `to += by * x`, row by row.
pub(super) fn add(to: &mut Array4<f64>, [b, h, i]: [usize; 3], by: f64, x: &[f64]) {
    let (_, heads, rows, dims) = to.dim();
    let to = &mut to.as_slice_mut().expect("standard layout")[((b * heads + h) * rows + i) * dims..][..dims];
    to.iter_mut().zip(x).for_each(|(to, x)| *to += by * x);
}

/// Two rows multiplied.
pub(super) fn dot(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

/// Scores of one query, and which of its keys are visible.
fn score_row(
    options: &Options,
    minus_infinity: MinusInfinity,
    answer: &mut Answer,
    [b, h, i]: [usize; 3],
    q: &Array4<f64>,
    k: &Array4<f64>,
) {
    let dims = answer.dims;
    let (scale, kv) = (options.factor(&dims), dims.kv_head(h));
    let mut order = Vec::new();
    for j in 0..dims.seq_kv {
        let at = [b, h, i, j];
        let pair = answer.pair(at);
        let raw = dot(row(q, [b, h, i]), row(k, [b, kv, j])) * scale;
        let capped = options.softcap.map_or(raw, |cap| cap * (raw / cap).tanh());
        (answer.raw[at], answer.capped[at]) = (raw, capped);
        let biases = || options.biases.iter().map(|bias| bias.at(&pair));
        let score = biases().fold(capped, |score, bias| score + bias);
        let shown = options.shows(&pair) && biases().all(|bias| bias != f64::NEG_INFINITY);
        if shown && (score != f64::NEG_INFINITY || minus_infinity == MinusInfinity::Visible) {
            answer.scores[at] = score;
            answer.candidate[at] = true;
            order.push(j);
        }
    }
    if let Some(top) = options.top_k {
        // Ties go to the lower key. Where NaN goes is not promised; here it is kept.
        let rank = |j: usize| Some(answer.scores[[b, h, i, j]]).filter(|x| !x.is_nan()).unwrap_or(f64::INFINITY);
        order.sort_by(|&x, &y| (rank(y) + 0.0).total_cmp(&(rank(x) + 0.0)).then(x.cmp(&y)));
        order.truncate(top);
    }
    for j in order {
        answer.visible[[b, h, i, j]] = true;
    }
    // What top-k leaves out does not go into the softmax.
    for j in (0..dims.seq_kv).filter(|&j| !answer.visible[[b, h, i, j]]) {
        answer.scores[[b, h, i, j]] = f64::NEG_INFINITY;
    }
}

/// The softmax of one query's visible keys and its sink, and the sum of their values.
fn weigh_row(options: &Options, answer: &mut Answer, [b, h, i]: [usize; 3], v: &Array4<f64>) {
    let dims = answer.dims;
    let seen: Vec<usize> = (0..dims.seq_kv).filter(|&j| answer.visible[[b, h, i, j]]).collect();
    let sink = options.sink.as_ref().map(|logits| logits[h]).filter(|&logit| logit > f64::NEG_INFINITY);
    if seen.is_empty() && sink.is_none() {
        return;
    }
    let logits = || seen.iter().map(|&j| answer.scores[[b, h, i, j]]).chain(sink);
    // NaN is never the larger one; it comes back in the sum.
    let max = logits().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits().map(|x| (x - max).exp()).sum();
    (answer.row_max[[b, h, i]], answer.row_sum[[b, h, i]], answer.lse[[b, h, i]]) = (max, sum, max + sum.ln());
    for &j in &seen {
        let at = [b, h, i, j];
        let weight = (answer.scores[at] - max).exp() / sum;
        let applied = weight * options.dropout.map_or(1.0, |dropout| dropout.factor(&answer.pair(at)));
        (answer.weights[at], answer.applied[at]) = (weight, applied);
        add(&mut answer.out, [b, h, i], applied, row(v, [b, dims.kv_head(h), j]));
    }
}

/// Two keys, by hand: scores 0 and ln 3, so that weights are 1/4 and 3/4.
#[test]
fn two_keys_are_weighed_as_by_hand() {
    let q = Array4::from_elem([1, 1, 2, 1], 1.0);
    let k = Array4::from_shape_vec([1, 1, 2, 1], vec![0.0, 3f64.ln()]).expect("two");
    let v = Array4::from_shape_vec([1, 1, 2, 2], vec![4.0, 8.0, 0.0, 16.0]).expect("four");
    let near = |x: f64, y: f64| assert!((x - y).abs() < 1e-14, "{x} instead of {y}");
    let full = attention(&Options::new(), &q, &k, &v);
    near(full.weights[[0, 0, 0, 0]], 0.25);
    near(full.out[[0, 0, 0, 0]], 1.0);
    near(full.out[[0, 0, 0, 1]], 14.0);
    near(full.lse[[0, 0, 0]], 4f64.ln());
    // A sink of ln 4 takes half.
    let sunk = attention(&Options::new().sink([4f64.ln()]), &q, &k, &v);
    near(sunk.weights[[0, 0, 1, 1]], 0.375);
    near(sunk.lse[[0, 0, 1]], 8f64.ln());
    let causal = attention(&Options::new().causal(), &q, &k, &v);
    near(causal.out[[0, 0, 0, 1]], 8.0);
    near(causal.out[[0, 0, 1, 1]], 14.0);
    assert_eq!(causal.scores[[0, 0, 0, 1]], f64::NEG_INFINITY);
    let none = attention(&Options::new().strictly_future(), &q, &k, &v);
    assert!(none.out[[0, 0, 1, 0]] == 0.0 && none.lse[[0, 0, 1]] == f64::NEG_INFINITY && !none.visible[[0, 0, 1, 1]]);
    let top = attention(&Options::new().top_k(1), &q, &k, &v);
    assert_eq!((top.weights[[0, 0, 0, 0]], top.weights[[0, 0, 0, 1]], top.candidate[[0, 0, 0, 0]]), (0.0, 1.0, true));
    // Twice the score, capped: ln 3 * tanh(2) weighs exp(that).
    let capped = attention(&Options::new().scale(2.0).softcap(3f64.ln()), &q, &k, &v);
    near(capped.scores[[0, 0, 0, 1]], 3f64.ln() * 2f64.tanh());
}

/// Equal scores tie; a bias of minus infinity hides even a NaN, and what it hides is no candidate.
#[test]
fn ties_go_to_the_lower_key_and_a_bias_hides_nan() {
    use super::options::Bias;
    let (q, mut k, v) = (Array4::ones([1, 1, 1, 1]), Array4::ones([1, 1, 4, 1]), Array4::ones([1, 1, 4, 1]));
    let top = attention(&Options::new().top_k(2), &q, &k, &v);
    assert_eq!(top.visible.iter().copied().collect::<Vec<_>>(), [true, true, false, false]);
    k[[0, 0, 1, 0]] = f64::NAN;
    let bias = Bias::Dense(Array4::from_shape_vec([1, 1, 1, 4], vec![0.0, f32::NEG_INFINITY, 1.0, 0.0]).expect("four"));
    let hidden = attention(&Options::new().bias(bias), &q, &k, &v);
    assert_eq!(hidden.candidate.iter().copied().collect::<Vec<_>>(), [true, false, true, true]);
    assert!((hidden.weights[[0, 0, 0, 2]] - 1.0 / (1.0 + 2.0 / 1f64.exp())).abs() < 1e-15);
    assert!(attention(&Options::new(), &q, &k, &v).weights.iter().all(|w| w.is_nan()));
}
