//! Gradients where scores are large, and where they are small: against f64, at most three times as far off as plain loops in f32. The floor
//! does not grow with the scale: it is a few roundings of the gradients at scale 1.

use crate::common::oracle::{self, BackwardAnswer, Options};
use crate::common::{Inputs, Normal, Shape, d_out_for, gradients, levels, normal};
use ndarray::{Array4, s};
use regard::{Attention, Bias, Scale};

const SCALES: [f64; 8] = [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, -1e6];

/// The order in which a dot product is added up. All are plain f32; together they say how far off plain f32 is.
#[derive(Debug, Clone, Copy)]
enum Order {
    Forwards,
    Backwards,
    Halves,
    Fused,
}

const ORDERS: [Order; 4] = [Order::Forwards, Order::Backwards, Order::Halves, Order::Fused];

fn dot(x: &[f32], y: &[f32], order: Order) -> f32 {
    let half = x.len() / 2;
    match order {
        Order::Forwards => x.iter().zip(y).fold(0.0, |sum, (x, y)| sum + x * y),
        Order::Backwards => x.iter().zip(y).rev().fold(0.0, |sum, (x, y)| sum + x * y),
        Order::Halves => dot(&x[..half], &y[..half], Order::Forwards) + dot(&x[half..], &y[half..], Order::Forwards),
        Order::Fused => x.iter().zip(y).fold(0.0, |sum: f32, (x, y)| x.mul_add(*y, sum)),
    }
}

/// One query in f32, the textbook's way: weights with the row's maximum subtracted, and the gradient on its scores, `delta` being the sum
/// of the weights times theirs.
fn plain_row(q: &[f32], k: &[&[f32]], v: &[&[f32]], d_out: &[f32], scale: f32, order: Order) -> (Vec<f32>, Vec<f32>) {
    let scores: Vec<f32> = k.iter().map(|k| dot(q, k, order) * scale).collect();
    let max = scores.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let sum: f32 = scores.iter().map(|x| (x - max).exp()).sum();
    let weights: Vec<f32> = scores.iter().map(|x| (x - max).exp() / sum).collect();
    let d_weights: Vec<f32> = v.iter().map(|v| dot(d_out, v, order)).collect();
    let delta: f32 = weights.iter().zip(&d_weights).map(|(w, d)| w * d).sum();
    let d_scores = weights.iter().zip(&d_weights).map(|(w, d)| w * (d - delta)).collect();
    (weights, d_scores)
}

/// Rows of a contiguous array.
fn rows(x: &Array4<f32>, b: usize, h: usize) -> Vec<&[f32]> {
    let (_, heads, n, d) = x.dim();
    x.as_slice().expect("as it was made")[(b * heads + h) * n * d..][..n * d].chunks_exact(d).collect()
}

/// dq, dk, dv by plain loops in f32. Every query head has its own keys.
fn plain(x: &Inputs<f32>, d_out: &Array4<f32>, scale: f32, causal: bool, order: Order) -> [Array4<f32>; 3] {
    let (batch, heads, n, _) = x.q.dim();
    let [mut dq, mut dk, mut dv] = [&x.q, &x.k, &x.v].map(|x| Array4::<f32>::zeros(x.raw_dim()));
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        let [q, k, v, d_out] = [&x.q, &x.k, &x.v, d_out].map(|x| rows(x, b, h));
        for i in 0..n {
            let seen = if causal { k.len() - n + i + 1 } else { k.len() };
            let (weights, d_scores) = plain_row(q[i], &k[..seen], &v[..seen], d_out[i], scale, order);
            for j in 0..seen {
                let ds = d_scores[j] * scale;
                (0..q[i].len()).for_each(|d| dq[[b, h, i, d]] += ds * k[j][d]);
                (0..q[i].len()).for_each(|d| dk[[b, h, j, d]] += ds * q[i][d]);
                (0..v[j].len()).for_each(|e| dv[[b, h, j, e]] += weights[j] * d_out[i][e]);
            }
        }
    }
    [dq, dk, dv]
}

/// NaN is farther off than anything.
fn farthest(got: &Array4<f32>, exact: &Array4<f64>) -> f64 {
    let far = |(&x, &y): (&f32, &f64)| Some((f64::from(x) - y).abs()).filter(|e| !e.is_nan()).unwrap_or(f64::INFINITY);
    got.iter().zip(exact).map(far).fold(0.0, f64::max)
}

fn exact(x: &Inputs<f32>, d_out: &Array4<f32>, options: &Options) -> BackwardAnswer {
    let [q, k, v, d_out] = [&x.q, &x.k, &x.v, d_out].map(|x| oracle::widened(x.view()));
    oracle::backward(options, &oracle::attention(options, &q, &k, &v), &q, &k, &v, &d_out)
}

fn largest(x: &Array4<f64>) -> f64 {
    x.iter().fold(0.0, |m: f64, x| m.max(x.abs()))
}

fn options(scale: f64, causal: bool) -> Options {
    let options = Options::new().scale(scale);
    if causal { options.causal_bottom_right() } else { options }
}

/// Sixteen roundings of the largest gradients at scale 1.
fn floors(x: &Inputs<f32>, d_out: &Array4<f32>, causal: bool) -> [f64; 3] {
    let one = exact(x, d_out, &options(1.0, causal));
    [&one.dq, &one.dk, &one.dv].map(|x| 16.0 * f64::from(f32::EPSILON) * largest(x))
}

/// Every level, within three times the error of plain f32 (the worst of four orders of adding) and the floor.
fn check(what: &str, x: &Inputs<f32>, d_out: &Array4<f32>, scale: f64, causal: bool) {
    let options = options(scale, causal);
    let truth = exact(x, d_out, &options);
    let floors = floors(x, d_out, causal);
    let plain: Vec<[Array4<f32>; 3]> = ORDERS.iter().map(|&order| plain(x, d_out, scale as f32, causal, order)).collect();
    for level in levels() {
        let got = gradients(&options.attention().level(level), x, d_out);
        for (n, (name, got, truth)) in
            [("dq", &got.dq, &truth.dq), ("dk", &got.dk, &truth.dk), ("dv", &got.dv, &truth.dv)].into_iter().enumerate()
        {
            let naive = plain.iter().map(|plain| farthest(&plain[n], truth)).fold(0.0, f64::max);
            let error = farthest(got, truth);
            assert!(
                error <= 3.0 * naive + floors[n],
                "{name} of {what}, scale {scale:e}, causal {causal}, {}: off by {error:e}, plain f32 by {naive:e}, floor {:e}",
                level.name(),
                floors[n]
            );
        }
    }
}

#[test]
fn gradients_are_as_near_as_plain_f32_at_every_scale() {
    for s in
        [Shape::single(96, 96, 16).heads(2, 2), Shape::single(40, 300, 16), Shape::new(9, 140, 16).heads(2, 2), Shape::single(2, 200, 8)]
    {
        for seed in 0..2 {
            let x = Inputs::<f32>::normal(s, seed);
            let d_out = d_out_for(&x, seed);
            for scale in SCALES {
                for causal in [false, true] {
                    check(&format!("seed {seed}, {s:?}"), &x, &d_out, scale, causal);
                }
            }
        }
    }
}

/// Where one key has all of the weight in every row, dq and dk are nothing at all, and plain f32 says so: nothing may be left for the scale
/// to multiply.
#[test]
fn saturated_rows_have_no_gradient_left_however_large_the_scale() {
    let s = Shape::single(96, 96, 16).heads(2, 2);
    for scale in [1e4, 1e6] {
        let mut saturated = 0;
        for seed in 0..16 {
            let x = Inputs::<f32>::normal(s, seed);
            let d_out = d_out_for(&x, seed);
            let truth = exact(&x, &d_out, &options(scale, false));
            let [dq_floor, dk_floor, _] = floors(&x, &d_out, false);
            let [dq, dk, _] = plain(&x, &d_out, scale as f32, false, Order::Forwards);
            if largest(&truth.dq).max(largest(&truth.dk)) > 1e-20 {
                // Some row has two keys of nearly the same score.
                continue;
            }
            assert!(farthest(&dq, &truth.dq) < 1e-20 && farthest(&dk, &truth.dk) < 1e-20, "plain f32 is exact here");
            saturated += 1;
            for level in levels() {
                let got = gradients(&Attention::new().scale(Scale::By(scale)).level(level), &x, &d_out);
                let (dq, dk) = (farthest(&got.dq, &truth.dq), farthest(&got.dk, &truth.dk));
                let what = format!("seed {seed}, scale {scale:e}, {}", level.name());
                assert!(dq <= dq_floor, "dq is off by {dq:e}, floor {dq_floor:e}, {what}");
                assert!(dk <= dk_floor, "dk is off by {dk:e}, floor {dk_floor:e}, {what}");
            }
        }
        assert!(saturated >= 3, "only {saturated} of 16 seeds are of use at scale {scale:e}");
    }
}

/// Whole numbers: scores are exact, many keys share the highest one, and only the softmax and the sums round.
#[test]
fn gradients_of_tied_scores_are_as_near_as_plain_f32() {
    for scale in [1.0, 128.0, 16_384.0, 1_048_576.0] {
        let mut numbers = Normal::new(5);
        let mut small = |n, d| Array4::from_shape_simple_fn([1, 2, n, d], || numbers.below(3) as f32 - 1.0);
        let x = Inputs { q: small(35, 4), k: small(280, 4), v: small(280, 8) };
        check("whole numbers", &x, &d_out_for(&x, 1), scale, false);
    }
}

/// The sum of `d_scores` over a row is 0, so a bias that is one number for all has no gradient; and one per key has the sum over the
/// queries.
#[test]
fn the_gradient_of_a_bias_that_many_pairs_share_is_added_up_well() {
    let s = Shape::single(512, 512, 16).heads(8, 8).batch(4);
    let x = Inputs::<f32>::normal(s, 1);
    let d_out = d_out_for(&x, 2);
    let (mut one, mut keys, mut squares) = (0.0, vec![0.0; 512], 0.0);
    let mut exact_keys = vec![0.0; 512];
    for (b, h) in (0..4).flat_map(|b| (0..8).map(move |h| (b, h))) {
        let [q, k, v, d_out] = [&x.q, &x.k, &x.v, &d_out].map(|x| rows(x, b, h));
        for i in 0..512 {
            // f32 per pair; the sum itself is without error.
            let (_, d_scores) = plain_row(q[i], &k, &v, d_out[i], 0.25, Order::Forwards);
            for (j, ds) in d_scores.iter().map(|&ds| f64::from(ds)).enumerate() {
                one += ds;
                keys[j] += ds;
                squares += ds * ds;
            }
            for (j, ds) in exact_row(q[i], &k, &v, d_out[i], 0.25).into_iter().enumerate() {
                exact_keys[j] += ds;
            }
        }
    }
    // What rounding each d_score once leaves of the sum, three times over.
    let size = f64::sqrt(squares / (32.0 * 512.0 * 512.0));
    let floor = |pairs: f64| 3.0 * f64::from(f32::EPSILON) * size * pairs.sqrt();
    let far = |keys: &[f64]| keys.iter().zip(&exact_keys).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    for level in levels() {
        let bias_gradient = |shape: [usize; 4]| {
            let a = Attention::new().bias(Bias::Dense(Array4::zeros(shape).into())).level(level);
            oracle::bias_gradients(&gradients(&a, &x, &d_out)).concat()
        };
        let got = bias_gradient([1, 1, 1, 1])[0];
        let allowed = 3.0 * f64::abs(one) + floor(32.0 * 512.0 * 512.0);
        assert!(got.abs() <= allowed, "one number for all: {got:e} instead of 0, allowed {allowed:e}, {}", level.name());
        let (error, allowed) = (far(&bias_gradient([1, 1, 1, 512])), 3.0 * far(&keys) + floor(32.0 * 512.0));
        assert!(error <= allowed, "one number per key: off by {error:e}, allowed {allowed:e}, {}", level.name());
    }
}

/// [`plain_row`] in f64: the gradient on the scores.
fn exact_row(q: &[f32], k: &[&[f32]], v: &[&[f32]], d_out: &[f32], scale: f64) -> Vec<f64> {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    let scores: Vec<f64> = k.iter().map(|k| dot(q, k) * scale).collect();
    let max = scores.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x));
    let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
    let weights: Vec<f64> = scores.iter().map(|x| (x - max).exp() / sum).collect();
    let d_weights: Vec<f64> = v.iter().map(|v| dot(d_out, v)).collect();
    let delta: f64 = weights.iter().zip(&d_weights).map(|(w, d)| w * d).sum();
    weights.iter().zip(&d_weights).map(|(w, d)| w * (d - delta)).collect()
}

/// Gradients are linear in d_out, and so are their norms: times 2^-83, which is about 1e-25 and whose square is no number of f32.
#[test]
fn norms_of_tiny_gradients_are_not_lost() {
    for s in [Shape::single(3, 140, 8), Shape::single(40, 300, 8), Shape::new(20, 30, 8)] {
        let x = Inputs::<f32>::normal(s, 1);
        let d_out = d_out_for(&x, 2);
        let tiny = 2f32.powi(-83);
        let small = d_out.mapv(|x| x * tiny);
        for level in levels() {
            let a = Attention::new().causal_bottom_right().level(level);
            let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
            let stats = |d_out: &Array4<f32>| a.backward_with_stats(&x.q, &x.k, &x.v, &saved, d_out).expect("fits").1;
            let (large, small) = (stats(&d_out), stats(&small));
            for (name, large, small) in [
                ("dq", &large.dq_rows, &small.dq_rows),
                ("dk", &large.dk_rows, &small.dk_rows),
                ("dv", &large.dv_rows, &small.dv_rows),
                ("d_scores", &large.d_scores_rows, &small.d_scores_rows),
            ] {
                for ((at, &x), &y) in large.indexed_iter().zip(small) {
                    let expected = x * f64::from(tiny);
                    let what = format!("{name} at {at:?}: {y:e} instead of {expected:e}, {s:?}, {}", level.name());
                    assert!((y - expected).abs() <= 1e-5 * expected + 1e-40, "{what}");
                }
            }
        }
    }
}

/// The plain loops are right: scale 1, against f64.
#[test]
fn plain_loops_are_near_the_textbook() {
    let x = Inputs::<f32>::normal(Shape::single(20, 50, 8).heads(2, 2), 4);
    let d_out = normal::<f32>([1, 2, 20, 8], 5);
    for causal in [false, true] {
        let truth = exact(&x, &d_out, &options(0.5, causal));
        for order in ORDERS {
            let [dq, dk, dv] = plain(&x, &d_out, 0.5, causal, order);
            let far = farthest(&dq, &truth.dq).max(farthest(&dk, &truth.dk)).max(farthest(&dv, &truth.dv));
            assert!(far < 1e-5, "{order:?}: {far}");
        }
    }
    let first = exact_row(rows(&x.q, 0, 1)[3], &rows(&x.k, 0, 1), &rows(&x.v, 0, 1), rows(&d_out, 0, 1)[3], 0.5);
    let truth = exact(&x, &d_out, &options(0.5, false));
    let far = truth.d_scores.slice(s![0, 1, 3, ..]).iter().zip(&first).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    assert!(far < 1e-15, "{far}");
}
