//! Gradients: what is asked of them, and their bits.

use super::{
    Inputs, Recipe, assert_same_bits, assert_within, largest, levels, naive, naive_backward, normal, textbook, textbook_backward, unit,
    wide,
};
use ndarray::{Array1, Array4, Dimension};
use regard::{Attention, BiasGradient, Element, Gradients, Real};

/// Gradients may be off by this multiple of the error of the plain loop.
const FACTOR: f64 = 3.0;

/// Some numbers in the shape of the result.
pub fn d_out_for<E: Element>(x: &Inputs<E>, seed: u64) -> Array4<E> {
    normal([x.q.dim().0, x.q.dim().1, x.q.dim().2, x.v.dim().3], seed ^ 0x77)
}

/// Forward and backward.
#[track_caller]
pub fn gradients<E: Element>(a: &Attention<'_>, x: &Inputs<E>, d_out: &Array4<E>) -> Gradients<E> {
    let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("it fits");
    a.backward(&x.q, &x.k, &x.v, &saved, d_out).expect("it fits")
}

/// `d_scores`, summed over every axis of which `shape` has one.
pub fn summed_to<T: Real>(d_scores: &Array4<T>, shape: [usize; 4]) -> Array4<T> {
    let mut sums = Array4::from_elem(shape, T::ZERO);
    for ((b, h, i, j), &x) in d_scores.indexed_iter() {
        let at = |index: usize, axis: usize| if shape[axis] == 1 { 0 } else { index };
        sums[[at(b, 0), at(h, 1), at(i, 2), at(j, 3)]] += x;
    }
    sums
}

/// The distance of two neighbours in the type that numbers are stored in, near 1.
fn storage_unit<E: Element>() -> f64 {
    let next = |x: f64| wide(E::from_real(E::Real::from_f64(x)));
    // Half a step up from 1 goes back to 1, more does not.
    let mut step = 1.0;
    while next(1.0 + step / 2.0) > 1.0 {
        step /= 2.0;
    }
    step
}

/// Gradients of every level against the textbook's: at most three times as far off as the plain loop, and a few roundings.
#[track_caller]
pub fn check_gradients<E: Element>(what: &str, recipe: &Recipe, x: &Inputs<E>, seed: u64) {
    let d_out = d_out_for(x, seed);
    let exact = textbook_backward(&recipe.options, x, &d_out);
    let forward = textbook(&recipe.options, x);
    let plain = naive_backward(recipe, x, &d_out, &forward, &naive(recipe, x, &forward));
    // In f64 the plain loop is the textbook itself: what rounding a score costs.
    let roundings = if size_of::<E::Real>() == 8 { 16.0 * (1.0 + largest(&forward.raw)) } else { 4.0 };
    let arithmetic = roundings * unit::<E>();
    // Half precision: gradients are rounded to it, and so is the saved result, of which delta is made.
    let storage = if size_of::<E>() == size_of::<E::Real>() { 0.0 } else { storage_unit::<E>() };
    let [dq_size, dk_size, dv_size, ds_size] = plain.sizes;
    for level in levels() {
        let what = format!("{what}, {} {}", std::any::type_name::<E>(), level.name());
        let got = gradients(&recipe.attention().level(level), x, &d_out);
        for (name, got, plain, exact, size) in [
            ("dq", &got.dq, &plain.dq, &exact.dq, dq_size),
            ("dk", &got.dk, &plain.dk, &exact.dk, dk_size),
            ("dv", &got.dv, &plain.dv, &exact.dv, dv_size),
        ] {
            assert_within(
                &format!("{name} of {what}"),
                FACTOR,
                got,
                plain,
                exact,
                (arithmetic + storage) * size + storage * largest(exact),
            );
        }
        if let Some(shape) = recipe.bias_shape() {
            let Some(BiasGradient::Dense(got)) = got.d_biases.first() else { panic!("no gradient of the bias, {what}") };
            let (plain, exact) = (summed_to(&plain.d_scores, shape).mapv(|x| x.to_f64() as f32), summed_to(&exact.d_scores, shape));
            let floor =
                (arithmetic + storage + f64::from(f32::EPSILON)) * ds_size * (forward.scores.len() as f64 / exact.len() as f64).sqrt();
            assert_within(&format!("d_bias of {what}"), FACTOR, got, &plain, &exact, floor);
        } else {
            assert!(got.d_biases.is_empty());
        }
        assert_eq!(got.d_sink.is_some(), recipe.has_sink(), "{what}");
        if let Some(got) = got.d_sink {
            let rows = forward.lse.len() as f64 / got.len() as f64;
            let floor = (arithmetic + storage) * ds_size.max(largest(&exact.d_sink)) * rows.sqrt();
            let [got, plain, exact] = [got, plain.d_sink.clone(), exact.d_sink.clone()].map(Array1::from_vec);
            assert_within(&format!("d_sink of {what}"), FACTOR, &got, &plain, &exact, floor);
        }
    }
}

/// All bits of all gradients are the same.
#[track_caller]
pub fn assert_same_gradients<E: Element>(what: &str, a: &Gradients<E>, b: &Gradients<E>) {
    assert_same_bits(&format!("dq, {what}"), &a.dq, &b.dq);
    assert_same_bits(&format!("dk, {what}"), &a.dk, &b.dk);
    assert_same_bits(&format!("dv, {what}"), &a.dv, &b.dv);
    assert_same_bits(&format!("d_bias, {what}"), &bias_numbers(a), &bias_numbers(b));
    assert_same_bits(&format!("d_sink, {what}"), &sink_numbers(a), &sink_numbers(b));
    assert_eq!(a.d_scale.map(f64::to_bits), b.d_scale.map(f64::to_bits), "d_scale, {what}");
}

fn sink_numbers<E: Element>(g: &Gradients<E>) -> Array1<f64> {
    g.d_sink.clone().unwrap_or_default().into()
}

/// The gradient of any kind of bias, in a row.
pub fn bias_numbers<E: Element>(g: &Gradients<E>) -> Array1<f64> {
    fn wide32<D: Dimension>(x: &ndarray::Array<f32, D>) -> Array1<f64> {
        x.iter().map(|&x| f64::from(x)).collect()
    }
    match g.d_biases.first() {
        None => Array1::zeros(0),
        Some(BiasGradient::Dense(x)) => wide32(x),
        Some(BiasGradient::Dense64(x)) => x.iter().copied().collect(),
        Some(BiasGradient::Alibi(x)) => x.clone().into(),
        Some(BiasGradient::Relative(x)) => wide32(x),
        Some(other) => panic!("a kind of bias that is not known here: {other:?}"),
    }
}
