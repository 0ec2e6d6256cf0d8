//! Dropout: which weights are dropped is a pure function of the seed and of (batch, head, query, key). Since the batch index is part of it,
//! an entry that is moved to another place in the batch loses other weights; what its neighbours hold does not matter.

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, assert_same_gradients, check, d_out_for, gradients, levels, masks, textbook};
use half::f16;
use ndarray::{Array4, s};
use regard::{Attention, Element, Error, Scale, StatsOptions};

/// Which pairs are kept: from weights that are all the same.
fn kept(p: f64, seed: u64, shape: [usize; 4]) -> Array4<bool> {
    let [b, h, n, m] = shape;
    let (q, k) = (Array4::<f32>::zeros([b, h, n, 1]), Array4::<f32>::zeros([b, h, m, 1]));
    Attention::new().dropout(p, seed).weights(&q, &k).expect("fits").mapv(|w| w > 0.0)
}

#[test]
fn the_textbook_agrees_with_every_mask() {
    for s in [Shape::new(37, 141, 9), Shape::new(3, 300, 9)] {
        let x = Inputs::<f32>::normal(s, 1);
        for (name, recipe) in masks(&s) {
            let recipe = recipe.with(|a| a.dropout(0.4, 3));
            let exact = textbook(&recipe.options, &x);
            let ends = textbook(&recipe.options.clone().dropout(0.0, 3), &x);
            assert_eq!(exact.weights, ends.weights, "dropout comes after the softmax");
            for level in levels() {
                let a = recipe.attention().level(level);
                let got = a.forward(&x.q, &x.k, &x.v).expect(name);
                let close = |x: f32, y: f64| f64::from(x) == y || (f64::from(x) - y).abs() < 2e-5 * (1.0 + y.abs());
                assert!(got.out.iter().zip(&exact.out).all(|(&x, &y)| close(x, y)), "out, {name}, {s:?}");
                assert!(got.lse.iter().zip(&exact.lse).all(|(&x, &y)| close(x, y)), "lse, {name}, {s:?}");
                let weights = a.weights(&x.q, &x.k).expect(name);
                for (&x, &y) in weights.iter().zip(&exact.applied) {
                    assert!(close(x, y) && (x == 0.0) == (y == 0.0), "weights, {name}, {s:?}: {x} instead of {y}");
                }
            }
        }
    }
}

/// The weights are laid out; the result and dv are made of the very same ones.
#[test]
fn forward_backward_and_weights_drop_the_same() {
    fn all<E: Element>(tolerance: f64) {
        for (n, m) in [(1, 40), (5, 300), (40, 300), (70, 130)] {
            let s = Shape::new(n, m, 9);
            // One value of one key at a time would be slow: the values are the unit vectors.
            let x = Inputs::<f64>::normal(s.values(m), 1);
            let unit = Array4::from_shape_fn(x.v.raw_dim(), |(_, _, j, d)| if j == d { 1.0 } else { 0.0 });
            let cast = |x: &Array4<f64>| x.mapv(crate::common::to::<E>);
            let x = Inputs { q: cast(&x.q), k: cast(&x.k), v: cast(&unit) };
            for level in levels() {
                let a = Attention::new().dropout(0.3, 5).causal_bottom_right().level(level);
                let weights = a.weights(&x.q, &x.k).expect("fits");
                let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
                for (&out, &w) in saved.out.iter().zip(&weights) {
                    let (out, w) = (crate::common::wide(out), crate::common::wide(w));
                    assert!((out - w).abs() <= tolerance && (out == 0.0) == (w == 0.0), "{out} of a weight {w}, {s:?}");
                }
                // d_out is one in one dimension of one query: dv there is the row of weights.
                for i in [0, n / 2, n - 1] {
                    let mut d_out = Array4::from_elem(saved.out.raw_dim(), crate::common::to::<E>(0.0));
                    d_out.slice_mut(s![.., ..;2, i, 0]).fill(crate::common::to(1.0));
                    let got = a.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
                    for ((b, h, j, _), &dv) in got.dv.slice(s![.., .., .., ..1]).indexed_iter() {
                        let (dv, w) = (crate::common::wide(dv), crate::common::wide(weights[[b, 2 * h, i, j]]));
                        assert!((dv - w).abs() <= tolerance && (dv == 0.0) == (w == 0.0), "dv {dv} of a weight {w}, {s:?}");
                    }
                }
            }
        }
    }
    all::<f32>(1e-6);
    all::<f64>(1e-14);
    all::<f16>(1e-3);
}

#[test]
fn threads_and_statistics_do_not_change_what_is_dropped() {
    for s in [Shape::new(70, 300, 16), Shape::single(3, 5000, 16), Shape::single(70, 2300, 16)] {
        let x = Inputs::<f32>::normal(s, 1);
        let d_out = d_out_for(&x, 1);
        for level in levels() {
            let a = Attention::new().dropout(0.25, 9).level(level);
            let one = a.clone().threads(1).forward(&x.q, &x.k, &x.v).expect("fits");
            let back = gradients(&a.clone().threads(1), &x, &d_out);
            for threads in [2, 3, 5] {
                let a = a.clone().threads(threads);
                let (got, _) = a.forward_with_stats(&x.q, &x.k, &x.v, StatsOptions::default()).expect("fits");
                assert_same_bits(&format!("{threads} threads, {s:?}"), &one.out, &got.out);
                assert_same_gradients(&format!("{threads} threads, {s:?}"), &back, &gradients(&a, &x, &d_out));
            }
        }
    }
}

/// Statistics are those of the weights before any were dropped.
#[test]
fn statistics_are_of_all_weights() {
    let x = Inputs::<f32>::normal(Shape::new(20, 50, 8), 1);
    for level in levels() {
        let go = |a: Attention<'_>| a.level(level).forward_with_stats(&x.q, &x.k, &x.v, StatsOptions::default()).expect("fits").1;
        let (plain, dropped) = (go(Attention::new()), go(Attention::new().dropout(0.5, 1)));
        assert_same_bits("entropy", &plain.entropy, &dropped.entropy);
        assert_same_bits("largest", &plain.max_weight, &dropped.max_weight);
    }
}

/// A query in the middle of a long call, and the same query in a call that starts there, are different queries.
/// But the query and the key decide, not the tile that they are in.
#[test]
fn tiles_do_not_change_what_is_dropped() {
    let whole = kept(0.5, 7, [2, 4, 150, 300]);
    for (n, m) in [(1, 300), (3, 300), (5, 13), (64, 128), (65, 129), (150, 7)] {
        let part = kept(0.5, 7, [2, 4, n, m]);
        assert_eq!(part, whole.slice(s![.., .., ..n, ..m]), "{n} x {m}");
    }
    // Heads that share keys are put into one block where queries are few.
    for heads in [1, 2, 3] {
        assert_eq!(kept(0.5, 7, [1, heads, 9, 40]), whole.slice(s![..1, ..heads, ..9, ..40]));
    }
}

#[test]
fn neighbours_in_the_batch_do_not_change_what_is_dropped() {
    let s = Shape::new(20, 50, 8).batch(3);
    let x = Inputs::<f32>::normal(s, 1);
    let d_out = d_out_for(&x, 1);
    let mut other = x.clone();
    for part in [&mut other.q, &mut other.k, &mut other.v] {
        part.slice_mut(s![1.., .., .., ..]).fill(0.5);
    }
    for level in levels() {
        let a = Attention::new().dropout(0.3, 3).level(level);
        let (one, two) = (gradients(&a, &x, &d_out), gradients(&a, &other, &d_out));
        let first = s![..1, .., .., ..];
        assert_eq!(one.dq.slice(first), two.dq.slice(first));
        assert_eq!(one.dk.slice(first), two.dk.slice(first));
        assert_eq!(one.dv.slice(first), two.dv.slice(first));
        // Entry 0 alone is entry 0.
        let part = |x: &Array4<f32>| x.slice(first).to_owned();
        let alone = gradients(&a, &Inputs { q: part(&x.q), k: part(&x.k), v: part(&x.v) }, &part(&d_out));
        assert_same_bits("dv of entry 0", &alone.dv, &part(&one.dv));
    }
}

/// The batch index, the head, the query, the key and the seed all matter.
#[test]
fn every_coordinate_and_both_halves_of_the_seed_matter() {
    let one = kept(0.5, 7, [3, 4, 40, 64]);
    let differ = |a: ndarray::ArrayView3<'_, bool>, b: ndarray::ArrayView3<'_, bool>| {
        a.iter().zip(&b).filter(|(a, b)| a != b).count() as f64 / a.len() as f64
    };
    let about_half = |share: f64| assert!((share - 0.5).abs() < 0.1, "{share}");
    for axis in 0..4 {
        for (a, b) in [(0, 1), (1, 2), (0, 2)] {
            about_half(differ(one.index_axis(ndarray::Axis(axis), a), one.index_axis(ndarray::Axis(axis), b)));
        }
    }
    for seed in [8, 7 + (1 << 32), 7 << 32, u64::MAX, 0] {
        let other = kept(0.5, seed, [3, 4, 40, 64]);
        about_half(one.iter().zip(&other).filter(|(a, b)| a != b).count() as f64 / one.len() as f64);
        assert_eq!(other, kept(0.5, seed, [3, 4, 40, 64]), "the same again");
    }
}

/// Within five standard deviations: in all, of every row, of every column.
#[test]
fn the_share_of_kept_weights_is_what_was_asked_for() {
    for p in [1e-3, 0.1, 0.5, 0.9, 0.999] {
        let all = kept(p, 42, [2, 3, 128, 512]);
        let check = |what: &str, numbers: &mut dyn Iterator<Item = &bool>| {
            let (mut count, mut n) = (0.0, 0.0);
            for &on in numbers {
                count += f64::from(u8::from(on));
                n += 1.0;
            }
            let (expected, sigma) = (n * (1.0 - p), (n * p * (1.0 - p)).sqrt());
            // A handful is not normal.
            assert!((count - expected).abs() <= 5.0 * sigma + 3.0, "{what}, p = {p}: {count} of {n} kept");
        };
        check("all", &mut all.iter());
        for row in all.lanes(ndarray::Axis(3)) {
            check("a row", &mut row.iter());
        }
        for column in all.lanes(ndarray::Axis(2)) {
            check("a column", &mut column.iter());
        }
        // Neighbours know nothing of each other.
        let pairs = all.lanes(ndarray::Axis(3)).into_iter().flat_map(|r| r.to_vec().windows(2).map(|w| w[0] && w[1]).collect::<Vec<_>>());
        let (n, both) = pairs.fold((0.0, 0.0), |(n, both), on| (n + 1.0, both + f64::from(u8::from(on))));
        let share = (1.0 - p) * (1.0 - p);
        assert!((both - n * share).abs() <= 8.0 * (n * share * (1.0 - share)).sqrt() + 3.0, "p = {p}: {both} of {n} pairs");
    }
}

#[test]
fn what_is_kept_is_multiplied_with_one_over_one_minus_p() {
    let (q, k) = (Array4::<f64>::zeros([1, 1, 8, 1]), Array4::<f64>::zeros([1, 1, 64, 1]));
    for level in levels() {
        for p in [0.1, 0.5, 0.875] {
            let w = Attention::new().dropout(p, 3).level(level).weights(&q, &k).expect("fits");
            let expected = 1.0 / 64.0 / (1.0 - p);
            assert!(w.iter().all(|&w| w == 0.0 || (w - expected).abs() < 1e-14));
            assert!(w.iter().any(|&w| w == 0.0) && w.iter().any(|&w| w > 0.0));
        }
    }
}

#[test]
fn a_probability_of_zero_is_the_plain_path() {
    for s in [Shape::new(3, 140, 8), Shape::new(40, 300, 8)] {
        let x = Inputs::<f32>::normal(s, 1);
        let d_out = d_out_for(&x, 1);
        for level in levels() {
            let (plain, zero) = (Attention::new().causal().level(level), Attention::new().causal().level(level).dropout(0.0, 3));
            assert_same_bits(
                "out",
                &plain.forward(&x.q, &x.k, &x.v).expect("fits").out,
                &zero.forward(&x.q, &x.k, &x.v).expect("fits").out,
            );
            assert_same_bits("weights", &plain.weights(&x.q, &x.k).expect("fits"), &zero.weights(&x.q, &x.k).expect("fits"));
            assert_same_gradients("zero", &gradients(&plain, &x, &d_out), &gradients(&zero, &x, &d_out));
        }
        check("zero", &Recipe::new().with(|a| a.dropout(0.0, 3)), &x);
    }
}

#[test]
fn a_probability_next_to_one_drops_almost_everything() {
    let x = Inputs::<f64>::normal(Shape::new(40, 50, 8), 1);
    let d_out = d_out_for(&x, 1);
    for level in levels() {
        let a = Attention::new().dropout(1.0 - 1e-12, 3).level(level);
        assert!(a.forward(&x.q, &x.k, &x.v).expect("fits").out.iter().all(|&x| x == 0.0));
        let got = gradients(&a, &x, &d_out);
        assert!(got.dq.iter().chain(&got.dk).chain(&got.dv).all(|&x| x == 0.0));
    }
}

#[test]
fn probabilities_outside_of_zero_to_one_are_refused() {
    let x = Inputs::<f32>::normal(Shape::new(3, 4, 8), 1);
    let saved = Attention::new().forward_saved(&x.q, &x.k, &x.v).expect("fits");
    for p in [1.0, 1.5, -0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let a = Attention::new().dropout(p, 3);
        for error in [
            a.forward(&x.q, &x.k, &x.v).err(),
            a.weights(&x.q, &x.k).err(),
            a.forward_saved(&x.q, &x.k, &x.v).err(),
            a.backward(&x.q, &x.k, &x.v, &saved, &saved.out).err(),
        ] {
            let error = error.expect("must be refused");
            assert!(matches!(error, Error::Number { name: "dropout", .. }), "{error:?}");
            assert!(error.to_string().contains("at least 0 and below 1"), "{error}");
        }
    }
    // Minus zero is zero.
    assert!(Attention::new().dropout(-0.0, 3).forward(&x.q, &x.k, &x.v).is_ok());
}

/// On average over seeds, nothing changes.
#[test]
fn the_mean_over_seeds_is_the_result_without_dropout() {
    let x = Inputs::<f64>::normal(Shape::single(5, 20, 8), 1);
    let plain = Attention::new().scale(Scale::Off).forward(&x.q, &x.k, &x.v).expect("fits").out;
    let (mut sum, mut squares) = (Array4::<f64>::zeros(plain.raw_dim()), Array4::<f64>::zeros(plain.raw_dim()));
    let seeds = 400;
    for seed in 0..seeds {
        let out = Attention::new().scale(Scale::Off).dropout(0.4, seed).forward(&x.q, &x.k, &x.v).expect("fits").out;
        squares += &(&out * &out);
        sum += &out;
    }
    for ((&sum, &squares), &plain) in sum.iter().zip(&squares).zip(&plain) {
        let n = seeds as f64;
        let mean = sum / n;
        let error = ((squares / n - mean * mean) / n).sqrt();
        assert!((mean - plain).abs() < 5.0 * error + 1e-12, "{mean} +- {error} instead of {plain}");
    }
}
