//! Gradients against the textbook in f64, and against finite differences.

use crate::common::{Inputs, Recipe, Shape, levels, masks, normal, unit, wide};
use half::{bf16, f16};
use ndarray::Array4;
use regard::{Element, Real, reference};

fn largest(x: &Array4<f64>) -> f64 {
    x.iter().filter(|x| x.is_finite()).fold(0.0, |m, x| x.abs().max(m))
}

/// Gradients of every level against the textbook's.
#[track_caller]
fn check<E: Element>(what: &str, recipe: &Recipe<'_>, x: &Inputs<E>, seed: u64) {
    let shape = [x.q.dim().0, x.q.dim().1, x.q.dim().2, x.v.dim().3];
    let d_out: Array4<E> = normal(shape, seed ^ 0x77);
    let exact = reference::backward(&recipe.attention, &x.q, &x.k, &x.v, &d_out).expect(what);
    // The rounding of the storage, and a few dozen roundings of the arithmetic.
    let storage = wide(E::from_real(E::Real::from_f64(1.0 + 1.0 / 128.0 / 3.0))) - 1.0 - 1.0 / 128.0 / 3.0;
    for level in levels() {
        let what = format!("{what}, {} {}", std::any::type_name::<E>(), level.name());
        let a = recipe.attention.clone().level(level);
        let saved = a.forward_saved(&x.q, &x.k, &x.v).expect(&what);
        let got = a.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect(&what);
        for (name, got, exact) in [("dq", &got.dq, &exact.dq), ("dk", &got.dk, &exact.dk), ("dv", &got.dv, &exact.dv)] {
            assert_eq!(got.shape(), exact.shape(), "{name} of {what}");
            let tolerance = (200.0 * unit::<E>() + 8.0 * storage.abs()) * (1.0 + largest(exact));
            for ((at, &x), &y) in got.indexed_iter().zip(exact) {
                let e = (wide(x) - y).abs();
                assert!(e <= tolerance, "{name} of {what}: {x:?} for {y:?} at {at:?} of {:?}: error {e:e}", got.shape());
            }
        }
    }
}

const SIZES: [usize; 12] = [0, 1, 7, 9, 15, 16, 17, 63, 65, 128, 129, 257];

#[test]
fn every_mask_is_right_at_every_size() {
    for n in SIZES {
        for shape in [Shape::new(n, 150, 5).heads(2, 1), Shape::new(35, n, 5).heads(2, 1)] {
            let x = Inputs::<f32>::normal(shape, n as u64);
            for (name, recipe) in masks(&shape) {
                check(&format!("{name}, {shape:?}"), &recipe, &x, 1);
            }
        }
    }
}

fn every_option_for<E: Element>() {
    for shape in [Shape::new(37, 141, 16).values(9), Shape::new(2, 300, 17).values(24), Shape::single(70, 700, 8)] {
        let x = Inputs::<E>::normal(shape, 5);
        for (name, recipe) in masks(&shape) {
            check(&format!("{name}, {shape:?}"), &recipe, &x, 2);
        }
        let all = [
            ("softcap", Recipe::new().softcap(1.5)),
            ("sink", Recipe::new().some_sink(&shape)),
            ("dropout", Recipe::new().with(|a| a.dropout(0.3, 7))),
            ("bias", Recipe::new().dense_bias(shape.scores(), 3)),
            ("top k", Recipe::new().with(|a| a.top_k(5))),
            (
                "all",
                Recipe::new()
                    .softcap(2.0)
                    .some_sink(&shape)
                    .dense_bias(shape.scores(), 3)
                    .with(|a| a.dropout(0.2, 9).causal_bottom_right()),
            ),
        ];
        for (name, recipe) in all {
            check(&format!("{name}, {shape:?}"), &recipe, &x, 3);
        }
    }
}

#[test]
fn every_option_is_right_in_f32() {
    every_option_for::<f32>();
}

#[test]
fn every_option_is_right_in_f64() {
    every_option_for::<f64>();
}

#[test]
fn every_option_is_right_in_half_precision() {
    every_option_for::<f16>();
    every_option_for::<bf16>();
}
