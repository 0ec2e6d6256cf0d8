//! What went wrong in the backward passes of other attention kernels, one test for each.
//! Hidden NaN and empty dimensions are in [`crate::gradient_hidden`], strides in [`crate::strides`], threads and batches in
//! [`crate::gradient_bits`].

use crate::common::{
    Inputs, Recipe, Shape, assert_same_bits, bias_numbers, check_gradients, d_out_for, gradients, levels, oracle, textbook_backward, to,
    wide,
};
use half::{bf16, f16};
use ndarray::{Array4, s};
use regard::{Attention, Bias, Element, Error, Mask, Scale, alibi_slopes};

#[test]
fn a_fully_masked_row_does_not_poison_the_gradients() {
    for n in [6, 40] {
        let x = Inputs::<f32>::normal(Shape::new(n, 30, 8), 1);
        let d_out = d_out_for(&x, 1);
        let mut table = Array4::from_elem([1, 1, n, 30], true);
        table.slice_mut(s![.., .., 2, ..]).fill(false);
        check_gradients("one row sees nothing", &Recipe::new().with(|a| a.mask(oracle::Mask::Dense(table.clone()))), &x, 1);
        for level in levels() {
            let got = gradients(&Attention::new().mask(Mask::dense(&table)).level(level), &x, &d_out);
            assert!(got.dq.slice(s![.., .., 2, ..]).iter().all(|&x| x == 0.0));
            assert!(got.dq.iter().chain(&got.dk).chain(&got.dv).all(|x| x.is_finite()));
        }
    }
}

#[test]
fn gradients_through_a_mask_of_the_most_negative_number_are_right() {
    for n in [3, 40] {
        let x = Inputs::<f32>::normal(Shape::new(n, 30, 8), 1);
        let d_out = d_out_for(&x, 1);
        let mut bias = Array4::from_elem([1, 1, n, 30], 0f32);
        bias.slice_mut(s![.., .., 0, ..]).fill(f32::MIN);
        bias.slice_mut(s![.., .., 1, 5..]).fill(f32::MIN);
        // A row of nothing else attends evenly in f32; in f64 the scores would still differ.
        let even = Array4::from_shape_fn([1, 1, n, 30], |(_, _, i, j)| if i == 1 && j >= 5 { f32::NEG_INFINITY } else { 0.0 });
        for level in levels() {
            let go = |bias: &Array4<f32>| gradients(&Attention::new().bias(Bias::Dense(bias.view().into())).level(level), &x, &d_out);
            let (got, other) = (go(&bias), go(&even));
            assert!(got.dq.iter().chain(&got.dk).chain(&got.dv).all(|x| x.is_finite()));
            let rest = s![.., .., 1.., ..];
            assert_same_bits("dq", &got.dq.slice(rest).to_owned(), &other.dq.slice(rest).to_owned());
            let ds = bias_numbers(&got);
            assert!(ds.iter().all(|x| x.is_finite()));
            assert!(ds.iter().skip(30 + 5).take(25).all(|&x| x == 0.0));
        }
    }
}

#[test]
fn a_first_tile_without_visible_keys_does_not_spoil_the_gradients() {
    for n in [3, 40] {
        for first in [1, 127, 128, 129, 256, 300] {
            let m = first + 70;
            let x = Inputs::<f32>::normal(Shape::single(n, m, 8), 1);
            check_gradients(&format!("mask, {first} hidden"), &Recipe::new().with(|a| a.mask(!oracle::Mask::FirstKeys(first))), &x, 1);
            let bias = Array4::from_shape_fn([1, 1, 1, m], |(_, _, _, j)| if j < first { f32::NEG_INFINITY } else { 0.5 });
            let recipe = Recipe::new().with(|a| a.bias(oracle::Bias::Dense(bias)).bias_gradient(false));
            check_gradients(&format!("bias, {first} hidden"), &recipe, &x, 1);
            let table = Array4::from_shape_fn([1, 1, n, m], |(_, _, i, j)| j >= first || i == 1);
            check_gradients(&format!("dense, {first} hidden"), &Recipe::new().with(|a| a.mask(oracle::Mask::Dense(table))), &x, 1);
        }
    }
}

#[test]
fn gradients_of_keys_and_values_of_different_length_are_refused() {
    let (q, k, v) = (Array4::<f32>::zeros((1, 1, 4, 8)), Array4::<f32>::zeros((1, 1, 9, 8)), Array4::<f32>::zeros((1, 1, 7, 8)));
    let saved = Attention::new().forward_saved(&q, &k, &k).expect("fits");
    assert!(matches!(Attention::new().backward(&q, &k, &v, &saved, &q), Err(Error::KeyValueLength { .. })));
    assert!(matches!(Attention::new().backward(&q, &v, &k, &saved, &q), Err(Error::KeyValueLength { .. })));
}

#[test]
fn gradients_through_a_mask_broadcast_over_the_batch_are_right() {
    let x = Inputs::<f32>::normal(Shape::new(9, 20, 8).batch(5), 1);
    let table = crate::common::random_bools([1, 1, 9, 20], 7);
    check_gradients("broadcast mask", &Recipe::new().with(|a| a.mask(oracle::Mask::Dense(table))), &x, 1);
    check_gradients("broadcast bias", &Recipe::new().dense_bias([1, 1, 9, 20], 3), &x, 1);
}

/// dv of one query says which keys it sees.
#[test]
fn gradients_are_aligned_like_the_result_when_queries_and_keys_differ() {
    for (n, m) in [(3, 5), (5, 3), (150, 70), (70, 150)] {
        let x = Inputs::<f32>::normal(Shape::single(n, m, 4), 1);
        for (name, recipe) in [
            ("causal", Recipe::new().with(|a| a.causal())),
            ("bottom right", Recipe::new().with(|a| a.causal_bottom_right())),
            ("offset", Recipe::new().with(|a| a.causal().q_offset(1))),
            ("window", Recipe::new().with(|a| a.window(2, 1).align_end())),
        ] {
            for level in levels() {
                let a = recipe.attention().level(level);
                let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
                let weights = a.weights(&x.q, &x.k).expect("fits");
                for i in [0, 1, n / 2, n - 1] {
                    let mut d_out = Array4::zeros(saved.out.raw_dim());
                    d_out.slice_mut(s![.., .., i, ..]).fill(1.0);
                    let got = a.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
                    for j in 0..m {
                        let seen = weights[[0, 0, i, j]] > 0.0;
                        assert_eq!(got.dv[[0, 0, j, 0]] != 0.0, seen, "{name}, {n} x {m}, query {i}, key {j}");
                        assert!(seen || got.dk.slice(s![0, 0, j, ..]).iter().all(|&x| x == 0.0), "{name}, query {i}, key {j}");
                    }
                }
            }
            check_gradients(&format!("{name}, {n} x {m}"), &recipe, &x, 1);
        }
    }
}

#[test]
fn gradients_of_empty_leading_rows_are_zero() {
    let x = Inputs::<f32>::normal(Shape::new(150, 70, 8), 1);
    let d_out = d_out_for(&x, 1);
    for level in levels() {
        let got = gradients(&Attention::new().causal_bottom_right().level(level), &x, &d_out);
        assert!(got.dq.slice(s![.., .., ..80, ..]).iter().all(|&x| x == 0.0));
        // The first row that sees anything sees one key: its weight is one, whatever the score.
        assert!(got.dq.slice(s![.., .., 81.., ..]).iter().all(|&x| x != 0.0));
        assert!(got.dv.iter().all(|&x| x != 0.0));
    }
}

/// Chunks of queries over the whole past: their gradients on the keys add up to those of one long call.
#[test]
fn gradients_of_a_chunked_prefill_add_up_to_the_whole() {
    let x = Inputs::<f64>::normal(Shape::new(300, 300, 8).batch(1), 1);
    let d_out = d_out_for(&x, 1);
    for level in levels() {
        let a = Attention::new().causal().level(level);
        let whole = gradients(&a, &x, &d_out);
        for chunk in [1, 64, 100, 129] {
            let (mut dk, mut dv) = (Array4::<f64>::zeros(x.k.raw_dim()), Array4::<f64>::zeros(x.v.raw_dim()));
            for start in (0..300).step_by(chunk) {
                let rows = s![.., .., start..300.min(start + chunk), ..];
                let part = Inputs { q: x.q.slice(rows).to_owned(), ..x.clone() };
                let got = gradients(&a.clone().q_offset(start as i64), &part, &d_out.slice(rows).to_owned());
                assert_same_bits(&format!("dq from {start}"), &got.dq, &whole.dq.slice(rows).to_owned());
                dk += &got.dk;
                dv += &got.dv;
            }
            for (sum, whole) in [(&dk, &whole.dk), (&dv, &whole.dv)] {
                assert!(sum.iter().zip(whole).all(|(x, y)| (x - y).abs() < 1e-12), "chunks of {chunk}");
            }
        }
    }
}

#[test]
fn gradients_of_a_window_hold_without_any_other_mask() {
    for n in [3, 300] {
        let x = Inputs::<f32>::normal(Shape::single(n, 300, 4), 1);
        for (left, right) in [(0, 0), (7, 0), (0, 7), (127, 128), (64, 64)] {
            check_gradients(&format!("{n}, window {left} {right}"), &Recipe::new().with(|a| a.window(left, right).align_end()), &x, 1);
        }
    }
}

/// The slope of the softcap is that of the score before the bias, and hidden keys have none.
#[test]
fn the_softcap_is_differentiated_before_bias_and_mask() {
    let x = Inputs::<f32>::normal(Shape::new(20, 20, 8), 1);
    check_gradients("mask", &Recipe::new().softcap(0.1).with(|a| a.causal()), &x, 1);
    let recipe = Recipe::new().softcap(0.5).with(|a| a.bias(oracle::Bias::Alibi(vec![0.5; 4])).bias_gradient(false));
    check_gradients("bias", &recipe, &x, 1);
}

/// Too many for 16 bits. Every key has the same weight but for a few; those of the last keys are looked at.
#[test]
fn gradients_of_more_than_65536_keys_are_right() {
    const KEYS: usize = 65_537;
    let s = Shape::single(3, KEYS, 2);
    let x = Inputs::<f32>::normal(s, 1);
    let d_out = d_out_for(&x, 1);
    for threads in [1, 2] {
        check_gradients("65,537 keys", &Recipe::new().with(|a| a.causal_bottom_right().threads(threads)), &x, 1);
    }
    // Dropout does not repeat itself.
    let options = oracle::Options::new().dropout(0.5, 1);
    let a = options.attention();
    let exact = textbook_backward(&options, &x, &d_out);
    for level in levels() {
        let got = gradients(&a.clone().level(level), &x, &d_out);
        assert!(got.dv.iter().zip(&exact.dv).all(|(&x, &y)| (f64::from(x) - y).abs() < 1e-8 + 1e-4 * y.abs()));
    }
}

#[test]
fn gradients_of_more_than_65536_queries_are_right() {
    const QUERIES: usize = 66_000;
    let x = Inputs::<f32>::normal(Shape::single(QUERIES, QUERIES, 2), 1);
    let d_out = d_out_for(&x, 1);
    for level in levels() {
        let a = Attention::new().window(2, 0).level(level);
        let got = gradients(&a, &x, &d_out);
        let last = s![.., .., QUERIES - 50.., ..];
        let tail = s![.., .., QUERIES - 98.., ..];
        let part = Inputs { q: x.q.slice(last).to_owned(), k: x.k.slice(tail).to_owned(), v: x.v.slice(tail).to_owned() };
        let part = gradients(&a.clone().q_offset(48), &part, &d_out.slice(last).to_owned());
        let error = |x: &Array4<f32>, y: ndarray::ArrayView4<'_, f32>| (x - &y).iter().fold(0f32, |m, x| x.abs().max(m));
        assert!(error(&part.dq, got.dq.slice(last)) < 1e-5);
        // Keys that only these queries see.
        let inner = s![.., .., 50.., ..];
        assert!(error(&part.dv.slice(inner).to_owned(), got.dv.slice(tail).slice(inner)) < 1e-5);
        assert!(error(&part.dk.slice(inner).to_owned(), got.dk.slice(tail).slice(inner)) < 1e-5);
    }
}

/// Weights of one and of zero: the gradient of the values is d_out itself, and the scores have none.
#[test]
fn gradients_at_huge_scores_do_not_overflow() {
    for n in [3, 40] {
        let q = Array4::from_elem((1, 1, n, 2), 1000f32);
        let k = Array4::from_shape_fn((1, 1, 140, 2), |(_, _, j, _)| 500.0 + j as f32);
        let v = Array4::from_shape_fn((1, 1, 140, 1), |(_, _, j, _)| j as f32);
        let x = Inputs { q, k, v };
        let d_out = Array4::ones((1, 1, n, 1));
        for level in levels() {
            for (scale, winner) in [(1.0, 139), (-1.0, 0), (1e20, 139), (-1e20, 0)] {
                let got = gradients(&Attention::new().scale(Scale::By(scale)).level(level), &x, &d_out);
                assert!(got.dq.iter().chain(&got.dk).all(|&x| x == 0.0), "{scale}");
                for ((_, _, j, _), &dv) in got.dv.indexed_iter() {
                    assert_eq!(dv, if j == winner { n as f32 } else { 0.0 }, "{scale}");
                }
            }
        }
    }
}

#[test]
fn gradients_at_a_negative_or_zero_scale_are_right() {
    let x = Inputs::<f32>::normal(Shape::new(20, 50, 8), 1);
    let d_out = d_out_for(&x, 1);
    for scale in [-3.0, -0.125, 0.0, -0.0] {
        check_gradients("scale", &Recipe::new().scale(Scale::By(scale)).with(|a| a.causal()), &x, 1);
    }
    for level in levels() {
        let got = gradients(&Attention::new().scale(Scale::By(0.0)).level(level), &x, &d_out);
        assert!(got.dq.iter().chain(&got.dk).all(|&x| x == 0.0));
    }
}

/// Nothing but the bias makes the scores: its gradient is there all the same, and that of q and k is zero.
#[test]
fn the_bias_alone_has_its_gradient() {
    let s = Shape::new(20, 40, 8);
    let mut x = Inputs::<f32>::normal(s, 1);
    x.q.fill(0.0);
    x.k.fill(0.0);
    let d_out = d_out_for(&x, 1);
    let recipe = Recipe::new().dense_bias(s.scores(), 3);
    check_gradients("bias", &recipe, &x, 1);
    for level in levels() {
        let got = gradients(&recipe.attention().level(level), &x, &d_out);
        assert!(got.dq.iter().chain(&got.dk).all(|&x| x == 0.0));
        assert!(bias_numbers(&got).iter().filter(|&&x| x != 0.0).count() > s.scores().iter().product::<usize>() / 2);
    }
}

/// Values of one: a dropped weight takes its share of the result with it, and the gradient of the values says how much.
#[test]
fn dropout_is_the_same_forward_and_backward() {
    for (n, m) in [(5, 300), (70, 130)] {
        let mut x = Inputs::<f64>::normal(Shape::new(n, m, 8).values(1), 1);
        x.v.fill(1.0);
        for level in levels() {
            let a = Attention::new().dropout(0.5, 3).level(level);
            let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
            let got = a.backward(&x.q, &x.k, &x.v, &saved, &Array4::ones(saved.out.raw_dim())).expect("fits");
            assert!((saved.out.sum() - got.dv.sum()).abs() < 1e-9);
            let entries =
                |b: usize, h: usize| (saved.out.slice(s![b, 2 * h..2 * h + 2, .., ..]).sum(), got.dv.slice(s![b, h, .., ..]).sum());
            for (b, h) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (out, dv) = entries(b, h);
                assert!((out - dv).abs() < 1e-10, "{out} forward, {dv} backward");
            }
        }
    }
}

#[test]
fn dq_is_the_same_every_time() {
    let x = Inputs::<f32>::normal(Shape::single(130, 1100, 16), 1);
    let d_out = d_out_for(&x, 1);
    let first = gradients(&Attention::new().threads(4), &x, &d_out);
    for _ in 0..10 {
        let again = gradients(&Attention::new().threads(4), &x, &d_out);
        assert_same_bits("dq", &first.dq, &again.dq);
        assert_same_bits("dk", &first.dk, &again.dk);
        assert_same_bits("dv", &first.dv, &again.dv);
    }
}

#[test]
fn half_precision_gradients_of_odd_sizes_are_right() {
    fn all<E: Element>() {
        for (n, m, d, e) in [(1, 1, 1, 1), (3, 5, 7, 3), (17, 33, 5, 31), (65, 129, 3, 1), (2, 257, 9, 17), (33, 7, 63, 65)] {
            let s = Shape::single(n, m, d).heads(3, 1).values(e);
            let x = Inputs::<E>::normal(s, 1);
            check_gradients(&format!("{s:?}"), &Recipe::new().with(|a| a.causal_bottom_right()), &x, 1);
        }
    }
    all::<f16>();
    all::<bf16>();
}

/// 64 * 200 * 200 is far beyond 65,504: the scores are, the gradients are not.
#[test]
fn half_precision_gradients_do_not_overflow() {
    for n in [2, 40] {
        let q = Array4::from_elem((1, 1, n, 64), to::<f16>(200.0));
        let k = Array4::from_shape_fn((1, 1, 50, 64), |(_, _, j, _)| to::<f16>(150.0 + j as f64));
        let v = Array4::from_shape_fn((1, 1, 50, 3), |(_, _, j, _)| to::<f16>(j as f64));
        let x = Inputs { q, k, v };
        let d_out = Array4::from_elem((1, 1, n, 3), to::<f16>(1.0));
        for level in levels() {
            let got = gradients(&Attention::new().scale(Scale::Off).level(level), &x, &d_out);
            assert!(got.dq.iter().chain(&got.dk).all(|&x| wide(x) == 0.0));
            for ((_, _, j, _), &dv) in got.dv.indexed_iter() {
                assert_eq!(wide(dv), if j == 49 { n as f64 } else { 0.0 });
            }
        }
    }
}

#[test]
fn alibi_slopes_of_any_number_of_heads_have_gradients() {
    for heads in [1, 3, 6, 12] {
        let x = Inputs::<f64>::normal(Shape::new(20, 30, 8).heads(heads, 1), 1);
        let d_out = d_out_for(&x, 1);
        let options = oracle::Options::new().bias(oracle::Bias::Alibi(alibi_slopes(heads))).causal();
        let a = options.attention();
        let exact = textbook_backward(&options, &x, &d_out);
        for level in levels() {
            let got = bias_numbers(&gradients(&a.clone().level(level), &x, &d_out));
            assert_eq!(got.len(), heads);
            for (h, &got) in got.iter().enumerate() {
                let of_head = exact.d_scores.slice(s![.., h, .., ..]);
                let sum: f64 = of_head.indexed_iter().map(|((_, i, j), &x)| -(i as f64 - j as f64).abs() * x).sum();
                assert!((got - sum).abs() < 1e-11, "head {h} of {heads}: {got} instead of {sum}");
            }
        }
    }
}

/// Whatever takes part in the result has a gradient, with every option in between.
#[test]
fn no_gradient_is_silently_cut_off() {
    let s = Shape::new(20, 40, 8);
    let x = Inputs::<f32>::normal(s, 1);
    let d_out = d_out_for(&x, 1);
    let bias = Array4::from_elem(s.scores(), 0.25f32);
    let all = Attention::new().softcap(3.0).bias(Bias::Dense(bias.into())).sink(vec![0.5; 4]).dropout(0.1, 2).top_k(30);
    for level in levels() {
        let got = gradients(&all.clone().level(level), &x, &d_out);
        assert!(got.dq.iter().chain(&got.dk).chain(&got.dv).all(|&x| x != 0.0 && x.is_finite()));
        assert!(got.d_sink.clone().expect("there are sinks").iter().all(|&x| x != 0.0));
        let d_bias = bias_numbers(&got);
        assert_eq!(d_bias.iter().filter(|&&x| x != 0.0).count(), d_bias.len() * 30 / 40);
    }
}
