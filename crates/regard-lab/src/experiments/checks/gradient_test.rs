//! A test that is often given for the scale: "the gradient on the input is above 1e-8". Here it is run on attention without the scale.
//!
//! `out = attention(x Wq + bq, x Wk + bk, x Wv + bv)` with the usual initialisation (uniform within 1/sqrt(d)), loss `sum(out)`.

use crate::error::Result;
use crate::rows::{self, Row};
use crate::statistics::draws::{Draw, Purpose};
use crate::statistics::estimate::Estimate;
use ndarray::{Array1, Array2, Array4};
use rayon::prelude::*;
use regard::{Attention, Scale};
use regard_plot::Table;

const BATCH: usize = 2;
const SEQ: usize = 5;
const STARTS: usize = 10;
/// Threshold of the test.
const THRESHOLD: f64 = 1e-8;

/// The largest entry of the gradient on x, and of its part that goes through Q and K alone.
fn largest_gradients(seed: u64, d: usize, start: usize, scaled: bool) -> Result<[f64; 2]> {
    let mut numbers = Draw::new(seed, Purpose::Module, [SEQ, d], start as u64);
    let bound = 1.0 / (d as f64).sqrt();
    let mut layers = Vec::new();
    for _ in 0..3 {
        let (mut w, mut b) = (vec![0.0; d * d], vec![0.0; d]);
        numbers.uniform(&mut w);
        numbers.uniform(&mut b);
        let w = Array2::from_shape_vec((d, d), w).expect("the length matches the shape") * bound;
        layers.push((w, Array1::from(b) * bound));
    }
    let mut x = vec![0.0; BATCH * SEQ * d];
    numbers.normal(&mut x);
    let x = Array2::from_shape_vec((BATCH * SEQ, d), x).expect("the length matches the shape");
    let [q, k, v]: [Array4<f64>; 3] = std::array::from_fn(|i| {
        let (w, b) = &layers[i];
        (x.dot(w) + b).into_shape_with_order((BATCH, 1, SEQ, d)).expect("one head")
    });
    let attention = Attention::new().threads(1).scale(if scaled { Scale::InvSqrtDim } else { Scale::Off });
    let saved = attention.forward_saved(&q, &k, &v)?;
    let gradients = attention.backward(&q, &k, &v, &saved, &Array4::ones(saved.out.raw_dim()))?;
    let back = |gradient: &Array4<f64>, layer: usize| {
        let flat = gradient.view().into_shape_with_order((BATCH * SEQ, d)).expect("one head");
        flat.dot(&layers[layer].0.t())
    };
    let through_scores = back(&gradients.dq, 0) + back(&gradients.dk, 1);
    let all = &through_scores + &back(&gradients.dv, 2);
    let largest = |x: &Array2<f64>| x.fold(0.0, |a: f64, x| a.max(x.abs()));
    Ok([largest(&all), largest(&through_scores)])
}

/// `check_gradient_test`.
pub(super) fn gradients(seed: u64) -> Result<Table> {
    let columns = [
        ("d", "width"),
        ("scaled", "scaled"),
        ("starts", "starts"),
        ("smallest", "largest entry of the gradient on x, smallest over the starts"),
        ("~mean", "mean over the starts"),
        ("scores_only", "the same through Q and K alone, smallest"),
        ("passes", "passes the test"),
    ];
    let caption = format!("\"max |x.grad| > 1e-8\" as a test: {STARTS} starts, {BATCH} x {SEQ} tokens, loss sum(out)");
    let mut table = rows::table("check_gradient_test", &caption, &columns);
    for d in [64, 256, 512, 1024] {
        for scaled in [false, true] {
            let starts: Vec<_> = (0..STARTS).into_par_iter().map(|start| largest_gradients(seed, d, start, scaled)).collect();
            let starts = starts.into_iter().collect::<Result<Vec<_>>>()?;
            let least = |which: usize| starts.iter().map(|s| s[which]).fold(f64::INFINITY, f64::min);
            let row = Row::default().of(d).of(scaled).of(STARTS).of(least(0));
            let row = row.estimate(Estimate::of_mean(&starts.iter().map(|s| s[0]).collect::<Vec<_>>()));
            row.of(least(1)).of(least(0) > THRESHOLD).put(&mut table);
        }
    }
    Ok(table)
}
