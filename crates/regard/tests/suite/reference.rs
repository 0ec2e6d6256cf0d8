//! The library's own textbook, which is its documentation, says what the judge says.

use crate::common::oracle::{Bias, Options};
use crate::common::{Inputs, Normal, Recipe, Shape, d_out_for, masks, textbook, textbook_backward};
use ndarray::{Array, Array2, Array4, Dimension};
use regard::reference;

#[track_caller]
fn assert_near<D: Dimension>(what: &str, got: &Array<f64, D>, exact: &Array<f64, D>) {
    assert_eq!(got.shape(), exact.shape(), "{what}");
    for ((at, &x), &y) in got.indexed_iter().zip(exact) {
        assert!(x == y || (x - y).abs() <= 1e-12 * (1.0 + y.abs()), "{what}: {x} instead of {y} at {at:?}");
    }
}

/// Everything that a call can ask for, beside masks.
fn options(s: &Shape) -> Vec<(&'static str, Recipe)> {
    let mut numbers = Normal::new(4);
    let table = Array2::from_shape_simple_fn((s.heads_q, 9), || numbers.number() as f32);
    let dense = Array4::from_shape_simple_fn([1, s.heads_q, 1, s.seq_kv], || numbers.number());
    let with = |options: Options| Recipe { options };
    vec![
        ("scale and softcap", with(Options::new().scale(-0.7).softcap(1.5))),
        ("sink", Recipe::new().some_sink(s)),
        ("dropout", with(Options::new().dropout(0.3, 1 << 40 | 7).causal())),
        ("top k", with(Options::new().top_k(5).causal_bottom_right())),
        ("bias", Recipe::new().dense_bias(s.scores(), 3)),
        ("bias in f64", with(Options::new().bias(Bias::Dense64(dense)))),
        ("alibi", with(Options::new().bias(Bias::Alibi(regard::alibi_slopes(s.heads_q))).q_offset(3))),
        ("relative", with(Options::new().bias(Bias::Relative(table)).align_end())),
    ]
}

#[test]
fn the_textbook_of_the_documentation_agrees_with_the_judge() {
    for s in [Shape::new(9, 20, 4), Shape::single(3, 40, 5).heads(6, 2).values(2)] {
        let x = Inputs::<f64>::normal(s, 1);
        let d_out = d_out_for(&x, 2);
        for (name, recipe) in masks(&s).into_iter().chain(options(&s)) {
            let a = recipe.attention();
            let (exact, gradients) = (textbook(&recipe.options, &x), textbook_backward(&recipe.options, &x, &d_out));
            let got = reference::attention(&a, &x.q, &x.k, &x.v).expect(name);
            assert_near(&format!("raw, {name}"), &got.raw, &exact.raw);
            assert_near(&format!("capped, {name}"), &got.capped, &exact.capped);
            assert_near(&format!("weights, {name}"), &got.weights, &exact.weights);
            assert_near(&format!("applied, {name}"), &got.applied, &exact.applied);
            assert_near(&format!("lse, {name}"), &got.lse, &exact.lse);
            assert_near(&format!("out, {name}"), &got.out, &exact.out);
            let seen = got.scores.mapv(|x| x > f64::NEG_INFINITY);
            assert_eq!(seen, exact.visible, "{name}");
            let got = reference::backward(&a, &x.q, &x.k, &x.v, &d_out).expect(name);
            assert_near(&format!("dq, {name}"), &got.dq, &gradients.dq);
            assert_near(&format!("dk, {name}"), &got.dk, &gradients.dk);
            assert_near(&format!("dv, {name}"), &got.dv, &gradients.dv);
            assert_near(&format!("d_scores, {name}"), &got.d_scores, &gradients.d_scores);
            assert_near(&format!("d_sink, {name}"), &ndarray::Array1::from(got.d_sink), &ndarray::Array1::from(gradients.d_sink));
        }
    }
}
