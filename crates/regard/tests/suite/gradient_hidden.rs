//! Hidden means hidden on the way back, too: what a row does not see, and a row that sees nothing, never reaches any other gradient. What
//! is seen propagates. Empty dimensions are legal.

use crate::common::oracle::BackwardAnswer;
use crate::common::{
    Inputs, Recipe, Shape, bits, check_gradients, d_out_for, gradients, levels, masks, oracle, textbook_backward, to, wide,
};
use half::{bf16, f16};
use ndarray::{Array4, s};
use regard::{Attention, Bias, BiasGradient, Element, Mask};

/// What the poison is put into.
#[derive(Debug, Clone, Copy)]
enum Where {
    K,
    V,
    Q,
    DOut,
}

/// All of a row, or one number of it.
#[derive(Debug, Clone, Copy)]
struct Poison {
    place: Where,
    row: usize,
    number: f64,
    whole: bool,
}

/// Poison one row of every head. Gradients that it has no part in keep their bits; the others are finite where the textbook's are.
#[track_caller]
fn poison<E: Element>(recipe: &Recipe, what: &str, x: &Inputs<E>, clean: &BackwardAnswer, poison: Poison) {
    let d_out = d_out_for(x, 5);
    let put = |number: f64| {
        let (mut bad, mut bad_out) = (x.clone(), d_out.clone());
        let target = match poison.place {
            Where::K => &mut bad.k,
            Where::V => &mut bad.v,
            Where::Q => &mut bad.q,
            Where::DOut => &mut bad_out,
        };
        let mut row = target.slice_mut(s![.., .., poison.row, ..]);
        if poison.whole {
            row.fill(to(number));
        } else {
            row.slice_mut(s![.., .., 1]).fill(to(number));
        }
        (bad, bad_out)
    };
    let textbook = |(x, d_out): &(Inputs<E>, Array4<E>)| textbook_backward(&recipe.options, x, d_out);
    let (bad, bad_out) = put(poison.number);
    // NaN shows what it has a part in; an infinite key may make a score of minus infinity, which is as good as hidden.
    let touched = textbook(&put(f64::NAN));
    let may_hide = poison.number.is_infinite() && matches!(poison.place, Where::K | Where::Q);
    let exact = if poison.number.is_nan() || may_hide { touched.clone() } else { textbook(&(bad.clone(), bad_out.clone())) };
    for level in levels() {
        let what = format!("{what}: {poison:?}, {} {}", std::any::type_name::<E>(), level.name());
        let a = recipe.attention().level(level);
        let (before, after) = (gradients(&a, x, &d_out), gradients(&a, &bad, &bad_out));
        for (name, before, after, clean, touched, exact) in [
            ("dq", &before.dq, &after.dq, &clean.dq, &touched.dq, &exact.dq),
            ("dk", &before.dk, &after.dk, &clean.dk, &touched.dk, &exact.dk),
            ("dv", &before.dv, &after.dv, &clean.dv, &touched.dv, &exact.dv),
        ] {
            for ((at, &x), &y) in before.indexed_iter().zip(after) {
                let (b, h, n, d) = at;
                let with = exact[[b, h, n, d]];
                if clean[[b, h, n, d]].to_bits() == touched[[b, h, n, d]].to_bits() {
                    assert!(bits(x) == bits(y), "{name} of {what}: what is hidden changed {x:?} to {y:?} at {at:?}");
                } else if !may_hide && with.is_finite() {
                    assert!((wide(y) - with).abs() < 0.05 * (1.0 + with.abs()), "{name} of {what}: {y:?} instead of {with} at {at:?}");
                } else if !may_hide {
                    assert!(!wide(y).is_finite(), "{name} of {what}: {y:?} instead of {with} at {at:?}");
                }
            }
        }
    }
}

/// The gradients without any poison.
fn clean<E: Element>(recipe: &Recipe, x: &Inputs<E>) -> BackwardAnswer {
    textbook_backward(&recipe.options, x, &d_out_for(x, 5))
}

fn all_places(recipe: &Recipe, what: &str, x: &Inputs<f32>) {
    let clean = clean(recipe, x);
    let (n, m) = (x.q.dim().2, x.k.dim().2);
    for number in [f64::NAN, f64::INFINITY] {
        for (place, rows) in
            [(Where::K, [0, m / 2, m - 1]), (Where::V, [0, m / 2, m - 1]), (Where::Q, [0, n / 2, n - 1]), (Where::DOut, [0, n / 2, n - 1])]
        {
            for row in rows {
                poison(recipe, what, x, &clean, Poison { place, row, number, whole: number.is_nan() });
            }
        }
    }
}

#[test]
fn what_a_mask_hides_never_reaches_a_gradient() {
    for s in [Shape::single(3, 140, 4).heads(2, 1), Shape::single(37, 140, 4)] {
        let x = Inputs::<f32>::normal(s, 3);
        for (name, recipe) in masks(&s) {
            all_places(&recipe, &format!("{name}, {s:?}"), &x);
        }
    }
}

#[test]
fn what_an_option_hides_never_reaches_a_gradient() {
    for s in [Shape::single(3, 140, 4).heads(2, 1), Shape::single(37, 140, 4)] {
        let x = Inputs::<f32>::normal(s, 3);
        for (name, recipe) in [
            ("bias", Recipe::new().dense_bias(s.scores(), 5)),
            ("bias and causal", Recipe::new().dense_bias(s.scores(), 5).with(|a| a.causal_bottom_right())),
            ("sink and causal", Recipe::new().some_sink(&s).with(|a| a.causal_bottom_right())),
            ("alibi and causal", Recipe::new().with(|a| a.bias(oracle::Bias::Alibi(vec![0.5; s.heads_q])).causal_bottom_right())),
        ] {
            all_places(&recipe, &format!("{name}, {s:?}"), &x);
        }
        // What a row keeps does not depend on the values.
        let top_k = Recipe::new().with(|a| a.top_k(30));
        let clean = clean(&top_k, &x);
        for row in [0, 9, 139] {
            for number in [f64::NAN, f64::INFINITY] {
                poison(&top_k, "top k", &x, &clean, Poison { place: Where::V, row, number, whole: true });
            }
        }
    }
}

#[test]
fn what_is_hidden_in_another_span_never_reaches_a_gradient() {
    let s = Shape::single(20, 700, 4);
    let x = Inputs::<f32>::normal(s, 3);
    for threads in [1, 3] {
        for (name, recipe) in [
            ("bottom right", Recipe::new().with(|a| a.causal_bottom_right().threads(threads))),
            ("window", Recipe::new().with(|a| a.window(3, 3).q_offset(250).threads(threads))),
            ("lengths", Recipe::new().with(|a| a.key_lengths(vec![300]).threads(threads))),
        ] {
            all_places(&recipe, &format!("{name}, {threads} threads"), &x);
        }
    }
}

#[test]
fn what_is_hidden_stays_hidden_in_every_element_type() {
    fn all<E: Element>() {
        let s = Shape::single(37, 40, 4);
        let x = Inputs::<E>::normal(s, 3);
        let recipe = Recipe::new().with(|a| a.causal());
        let clean = clean(&recipe, &x);
        for (place, row) in [(Where::K, 20), (Where::V, 20), (Where::Q, 20), (Where::DOut, 20)] {
            for number in [f64::NAN, f64::INFINITY] {
                poison(&recipe, "causal", &x, &clean, Poison { place, row, number, whole: number.is_nan() });
            }
        }
    }
    all::<f64>();
    all::<f16>();
    all::<bf16>();
}

/// The keys after a NaN query do not know of it, nor do the other queries.
#[test]
fn a_nan_query_reaches_the_keys_that_it_sees_and_no_others() {
    let s = Shape::single(40, 40, 4);
    let x = Inputs::<f32>::normal(s, 3);
    let d_out = d_out_for(&x, 1);
    let mut bad = x.clone();
    bad.q[[0, 0, 20, 1]] = f32::NAN;
    for level in levels() {
        let a = Attention::new().causal().level(level);
        let (before, after) = (gradients(&a, &x, &d_out), gradients(&a, &bad, &d_out));
        for (name, before, after) in [("dk", &before.dk, &after.dk), ("dv", &before.dv, &after.dv)] {
            for ((_, _, j, _), &y) in after.indexed_iter() {
                assert!(y.is_nan() == (j <= 20), "{name} of key {j}: {y}, {}", level.name());
            }
            let hidden = s![.., .., 21.., ..];
            assert_eq!(before.slice(hidden), after.slice(hidden), "{name}");
        }
        for ((_, _, i, _), &y) in after.dq.indexed_iter() {
            assert!(y.is_nan() == (i == 20), "dq of query {i}: {y}");
        }
    }
}

#[test]
fn a_row_without_any_visible_key_has_no_gradient_and_gives_none() {
    for (n, m) in [(1, 20), (9, 20), (40, 20), (70, 300)] {
        let s = Shape::new(n, m, 8);
        let x = Inputs::<f32>::normal(s, 3);
        let mut d_out = d_out_for(&x, 1);
        // No query sees it: its gradient is zero whatever d_out is.
        d_out.slice_mut(s![0, .., .., ..]).fill(f32::NAN);
        let dense = Array4::from_shape_fn([2, 1, 1, 1], |(b, ..)| if b == 0 { f32::NEG_INFINITY } else { 0.0 });
        for (name, a) in [
            ("lengths", Attention::new().key_lengths(vec![0, m])),
            ("bias", Attention::new().bias(Bias::Dense(dense.into()))),
            ("far away", Attention::new().causal().q_offsets(vec![-1000, 1000])),
            ("window far away", Attention::new().window(1000, 1000).q_offsets(vec![100_000, 0])),
            ("top k of nothing", Attention::new().key_lengths(vec![0, m]).top_k(2)),
        ] {
            for level in levels() {
                for a in [a.clone(), a.clone().dropout(0.5, 1), a.clone().softcap(2.0)] {
                    let got = gradients(&a.level(level), &x, &d_out);
                    for (what, got) in [("dq", &got.dq), ("dk", &got.dk), ("dv", &got.dv)] {
                        assert!(got.slice(s![0, .., .., ..]).iter().all(|&x| x == 0.0), "{what}, {name} {n} x {m}");
                        assert!(got.slice(s![1, .., .., ..]).iter().all(|x| x.is_finite()), "{what}, {name} {n} x {m}");
                        assert!(got.slice(s![1, .., .., ..]).iter().any(|&x| x != 0.0) || (m == 1 && what != "dv"));
                    }
                    if let Some(BiasGradient::Dense(d_bias)) = got.d_biases.first() {
                        assert!(d_bias.iter().all(|x| x.is_finite()), "{name}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_that_sees_only_a_sink_has_no_gradient() {
    for m in [0, 20, 300] {
        for n in [1, 20] {
            let x = Inputs::<f32>::normal(Shape::new(n, m, 8), 3);
            let d_out = d_out_for(&x, 1);
            for level in levels() {
                let a = Attention::new().mask(!Mask::everything()).sink(vec![1.5, -2.0, f64::NEG_INFINITY, 0.0]).level(level);
                let got = gradients(&a, &x, &d_out);
                assert!(got.dq.iter().chain(&got.dk).chain(&got.dv).all(|&x| x == 0.0), "{n} x {m}");
                assert!(got.d_sink.expect("there are sinks").iter().all(|&x| x == 0.0), "{n} x {m}");
            }
        }
    }
}

#[test]
fn empty_dimensions_have_empty_or_zero_gradients() {
    for s in Shape::with_empty_sizes() {
        let x = Inputs::<f32>::normal(s, 1);
        check_gradients(&format!("{s:?}"), &Recipe::new(), &x, 1);
        check_gradients(
            &format!("all, {s:?}"),
            &Recipe::new().softcap(2.0).some_sink(&s).with(|a| a.causal().top_k(2).dropout(0.5, 1)),
            &x,
            1,
        );
        for bias in 0..16 {
            let full = s.scores();
            let shape = std::array::from_fn(|a| if bias >> a & 1 == 1 { full[a] } else { 1 });
            check_gradients(&format!("bias {shape:?}, {s:?}"), &Recipe::new().dense_bias(shape, 1), &x, 1);
        }
        let d_out = d_out_for(&x, 1);
        let a = Attention::new();
        let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
        let (got, stats) = a.backward_with_stats(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
        assert_eq!((got.dq.shape(), got.dk.shape(), got.dv.shape()), (x.q.shape(), x.k.shape(), x.v.shape()));
        assert_eq!(stats.dq_rows.shape(), [s.batch, s.heads_q, s.seq_q]);
        assert_eq!(stats.d_scores_rows.shape(), [s.batch, s.heads_q, s.seq_q]);
    }
}

/// A weight may be zero because it is too small for the type: its key is visible all the same, and what is no number reaches its gradient.
#[test]
fn a_weight_of_zero_is_not_a_hidden_key() {
    let shape = Shape { batch: 1, heads_q: 1, heads_kv: 1, ..Shape::new(22, 254, 14) };
    let x = Inputs::<f32>::normal(shape, 31);
    let weights = |scale: f64| Attention::new().scale(regard::Scale::By(scale)).weights(&x.q, &x.k).expect("it is accepted");
    for scale in [9.0, -9.0, 3.0] {
        let attention = Attention::new().scale(regard::Scale::By(scale));
        let mut d_out = d_out_for(&x, 5);
        d_out[[0, 0, 7, 3]] = f32::NAN;
        let saved = attention.forward_saved(&x.q, &x.k, &x.v).expect("it is accepted");
        let gradients = attention.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("it is accepted");
        assert!(scale.abs() < 4.0 || weights(scale).slice(s![0, 0, 7, ..]).iter().any(|w| *w == 0.0), "no weight of zero to test with");
        assert!(gradients.dk.slice(s![0, 0, .., ..]).iter().all(|x| x.is_nan()), "scale {scale}: a NaN of d_out is lost");
        // A value that is no number, at a key that row 7 gives no weight to.
        if let Some(key) = weights(scale).slice(s![0, 0, 7, ..]).iter().position(|w| *w == 0.0) {
            let mut v = x.v.clone();
            v[[0, 0, key, 2]] = f32::NAN;
            let saved = attention.forward_saved(&x.q, &x.k, &v).expect("it is accepted");
            let gradients = attention.backward(&x.q, &x.k, &v, &saved, &d_out_for(&x, 5)).expect("it is accepted");
            assert!(saved.out.slice(s![0, 0, 7, 2]).iter().all(|x| x.is_nan()));
            assert!(gradients.dq.slice(s![0, 0, 7, ..]).iter().all(|x| x.is_nan()), "scale {scale}: a NaN of v is lost");
        }
    }
}
