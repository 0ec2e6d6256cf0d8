//! Statistics of gradients against the textbook's norms.

use crate::common::{Inputs, Recipe, Shape, d_out_for, levels, masks, naive, naive_backward, textbook, textbook_backward, unit};
use half::f16;
use ndarray::{Array3, Array4, Axis};
use regard::{Attention, Element, GradientStats, Real, Scale};

fn row_norms(x: &Array4<f64>) -> Array3<f64> {
    x.map_axis(Axis(3), |row| row.dot(&row).sqrt())
}

fn norm(x: &Array4<f64>) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[track_caller]
fn check<E: Element>(what: &str, recipe: &Recipe, x: &Inputs<E>) {
    let d_out = d_out_for(x, 1);
    let exact = textbook_backward(&recipe.options, x, &d_out);
    let forward = textbook(&recipe.options, x);
    let plain = naive_backward(recipe, x, &d_out, &forward, &naive(recipe, x, &forward));
    let (dq, ds) = (row_norms(&exact.dq), row_norms(&exact.d_scores));
    // Norms are no further off than the numbers in them, and the plain loop's are off by so much.
    let far = |plain: &Array4<f64>, exact: &Array4<f64>| plain.iter().zip(exact).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    let wide = |x: &Array4<E>| x.mapv(|x| x.to_real().to_f64());
    let columns = |n: usize| (n as f64).sqrt();
    let ds_error =
        3.0 * columns(x.k.dim().2) * (far(&plain.d_scores.mapv(Real::to_f64), &exact.d_scores) + 4.0 * unit::<E>() * plain.sizes[3]);
    let dq_error = 3.0 * columns(x.q.dim().3) * (far(&wide(&plain.dq), &exact.dq) + 4.0 * unit::<E>() * plain.sizes[0]);
    for level in levels() {
        let what = format!("{what}, {} {}", std::any::type_name::<E>(), level.name());
        let a = recipe.attention().level(level);
        let saved = a.forward_saved(&x.q, &x.k, &x.v).expect(&what);
        let (got, stats) = a.backward_with_stats(&x.q, &x.k, &x.v, &saved, &d_out).expect(&what);
        for (name, got, exact, error) in
            [("dq rows", &stats.dq_rows, &dq, dq_error), ("d_scores rows", &stats.d_scores_rows, &ds, ds_error)]
        {
            assert_eq!(got.shape(), exact.shape(), "{name}, {what}");
            for ((at, x), y) in got.indexed_iter().zip(exact) {
                assert!((x - y).abs() <= error, "{name}, {what}: {x} instead of {y} at {at:?}, allowed {error:e}");
            }
        }
        // Those of whole arrays are of what was returned.
        for (name, norm_of, array) in [("dq", stats.dq, &got.dq), ("dk", stats.dk, &got.dk), ("dv", stats.dv, &got.dv)] {
            let expected = norm(&wide(array));
            assert!((norm_of - expected).abs() <= 1e-12 * expected, "{name}, {what}: {norm_of} instead of {expected}");
        }
        for (name, rows, array) in [("dq", &stats.dq_rows, &got.dq), ("dk", &stats.dk_rows, &got.dk), ("dv", &stats.dv_rows, &got.dv)] {
            assert_eq!(rows.shape(), &array.shape()[..3], "{name}, {what}");
            let expected = row_norms(&wide(array));
            assert!(expected.iter().zip(rows).all(|(x, y)| (x - y).abs() <= 1e-12 * x), "{name}, {what}");
        }
    }
}

#[test]
fn norms_of_gradients_are_those_of_the_textbook() {
    for s in [Shape::new(3, 140, 8), Shape::new(40, 300, 8)] {
        let x = Inputs::<f32>::normal(s, 1);
        for (name, recipe) in masks(&s).into_iter().step_by(2) {
            check(&format!("{name}, {s:?}"), &recipe, &x);
        }
        for (name, recipe) in [
            ("softcap", Recipe::new().softcap(1.5)),
            ("sink", Recipe::new().some_sink(&s)),
            ("dropout", Recipe::new().with(|a| a.dropout(0.3, 7))),
            ("bias", Recipe::new().dense_bias(s.scores(), 3)),
            ("top k", Recipe::new().with(|a| a.top_k(5))),
            ("sharp", Recipe::new().scale(Scale::By(20.0))),
        ] {
            check(&format!("{name}, {s:?}"), &recipe, &x);
        }
    }
    check("f64", &Recipe::new().softcap(2.0), &Inputs::<f64>::normal(Shape::new(20, 300, 9), 1));
    check("f16", &Recipe::new().softcap(2.0), &Inputs::<f16>::normal(Shape::new(20, 300, 9), 1));
    check("spans over threads", &Recipe::new().with(|a| a.threads(3)), &Inputs::<f32>::normal(Shape::single(30, 700, 9), 1));
}

/// `d_scores` is what enters the softmax: after the softcap, in front of the scale.
#[test]
fn the_norm_of_d_scores_does_not_know_of_scale_and_softcap_slopes() {
    // Scores far beyond the cap: their slope is nothing, and dq is nothing; d_scores is not.
    let x = Inputs::<f64>::normal(Shape::single(9, 12, 4), 1);
    let d_out = d_out_for(&x, 1);
    for level in levels() {
        let a = Attention::new().scale(Scale::By(1e4)).softcap(1.0).level(level);
        let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
        let (_, stats) = a.backward_with_stats(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
        assert!(stats.dq_rows.iter().all(|&x| x < 1e-6), "{:?}", stats.dq_rows);
        assert!(stats.d_scores_rows.iter().all(|&x| x > 1e-2), "{:?}", stats.d_scores_rows);
    }
}

#[test]
fn the_share_of_rows_below_a_threshold_is_counted() {
    let rows = Array3::from_shape_vec((1, 2, 4), vec![0.0, 1e-9, 1e-8, 0.5, 1.0, 2.0, f64::NAN, f64::INFINITY]).expect("eight");
    for (threshold, share) in [(0.0, 0.0), (1e-12, 0.125), (1e-8, 0.25), (1e-7, 0.375), (1.0, 0.5), (f64::INFINITY, 0.75)] {
        assert_eq!(GradientStats::share_below(&rows, threshold), share, "{threshold}");
    }
    assert!(GradientStats::share_below(&Array3::zeros((0, 2, 4)), 1.0).is_nan());
}

/// The median row vanishes at a large scale, the norm of the whole does not.
#[test]
fn sharp_rows_vanish_while_the_whole_does_not() {
    let x = Inputs::<f32>::normal(Shape::single(200, 200, 64), 1);
    let d_out = d_out_for(&x, 1);
    for level in levels() {
        let share = |scale: f64| {
            let a = Attention::new().scale(Scale::By(scale)).level(level);
            let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
            let (_, stats) = a.backward_with_stats(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
            (GradientStats::share_below(&stats.d_scores_rows, 1e-6), stats.dq)
        };
        let ((soft, _), (sharp, norm)) = (share(0.125), share(20.0));
        assert!(soft == 0.0 && sharp > 0.5 && norm > 1.0, "{soft} {sharp} {norm}");
    }
}
