//! Forward, log-sum-exp, weights and scores against the textbook in f64.

use crate::common::{
    Inputs, Normal, Recipe, Shape, assert_as_good_as_naive, check, levels, masks, naive, oracle, score_floor, textbook, to, unit,
};
use half::{bf16, f16};
use ndarray::{Array2, Array4};
use regard::{Element, Scale, Stage, alibi_slopes};

/// 0, 1, and the neighbours of the sizes at which kernels change: vectors, panels, tiles.
const SIZES: [usize; 16] = [0, 1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 257];

fn every_mask_is_right(shape: Shape, seed: usize) {
    let x = Inputs::<f32>::normal(shape, seed as u64);
    for (name, recipe) in masks(&shape) {
        check(&format!("{name}, {shape:?}"), &recipe, &x);
    }
}

#[test]
fn every_mask_is_right_at_every_size_of_queries() {
    SIZES.into_iter().for_each(|n| every_mask_is_right(Shape::new(n, 150, 5).heads(2, 1), n));
}

#[test]
fn every_mask_is_right_at_every_size_of_keys() {
    SIZES.into_iter().for_each(|m| every_mask_is_right(Shape::new(35, m, 5).heads(2, 1), m));
}

#[test]
fn every_mask_is_right_for_few_queries() {
    [1, 2, 3, 5].into_iter().for_each(|n| every_mask_is_right(Shape::new(n, 300, 8), n));
}

fn every_mask_for<E: Element>() {
    for shape in [Shape::new(37, 141, 16).values(9), Shape::new(2, 141, 17).values(24)] {
        let x = Inputs::<E>::normal(shape, 5);
        for (name, recipe) in masks(&shape) {
            check(&format!("{name}, {shape:?}"), &recipe, &x);
            check(&format!("{name} with sink, {shape:?}"), &recipe.some_sink(&shape), &x);
        }
    }
}

#[test]
fn every_mask_is_right_in_f32() {
    every_mask_for::<f32>();
}

#[test]
fn every_mask_is_right_in_f64() {
    every_mask_for::<f64>();
}

#[test]
fn every_mask_is_right_in_f16() {
    every_mask_for::<f16>();
}

#[test]
fn every_mask_is_right_in_bf16() {
    every_mask_for::<bf16>();
}

fn every_dim_for<E: Element>() {
    for head_dim in [0, 1, 3, 8, 16, 64, 65] {
        for value_dim in [0, 1, 3, 8, 24, 64, 65] {
            for n in [3, 20] {
                let shape = Shape::single(n, 40, head_dim).values(value_dim);
                check(&format!("{shape:?}"), &Recipe::new().with(|a| a.causal_bottom_right()), &Inputs::<E>::normal(shape, 9));
            }
        }
    }
}

#[test]
fn every_head_dim_and_value_dim_is_right() {
    for_every_type!(every_dim_for);
}

#[test]
fn query_heads_read_the_keys_of_their_group() {
    for (heads_q, heads_kv) in [(1, 1), (6, 6), (6, 3), (6, 2), (6, 1), (16, 2), (40, 1)] {
        for n in [1, 3, 20, 70] {
            let shape = Shape::new(n, 75, 8).heads(heads_q, heads_kv);
            check(&format!("{shape:?}"), &Recipe::new().with(|a| a.causal_bottom_right()), &Inputs::<f32>::normal(shape, 3));
        }
    }
}

#[test]
fn rows_longer_than_a_span_are_merged_right() {
    for m in [2047, 2048, 2049, 4097, 6200] {
        let tile = if [2049, 6200].contains(&m) { 70 } else { 9 };
        for n in [1, 3, tile] {
            let shape = Shape::single(n, m, 8).heads(2, 1);
            let x = Inputs::<f32>::normal(shape, m as u64);
            let bottom = Recipe::new().with(|a| a.causal_bottom_right());
            for (name, recipe) in [
                ("full", Recipe::new()),
                ("sharp", Recipe::new().scale(Scale::By(3.0))),
                ("bottom right", bottom.clone()),
                ("sink", bottom.clone().some_sink(&shape)),
                ("top left", Recipe::new().with(|a| a.causal())),
                ("window", bottom.clone().with(|a| a.window(2100, 0))),
                ("the last keys", Recipe::new().with(|a| a.mask(!oracle::Mask::FirstKeys(m - 30)))),
                ("both ends", Recipe::new().with(|a| a.mask(oracle::Mask::FirstKeys(3) | !oracle::Mask::FirstKeys(m - 30)))),
                ("top k", bottom.with(|a| a.top_k(100))),
                ("softcap", Recipe::new().softcap(2.0)),
            ] {
                check(&format!("{name}, {shape:?}"), &recipe, &x);
            }
        }
    }
    let shape = Shape::single(9, 4200, 20);
    check("f64", &Recipe::new(), &Inputs::<f64>::normal(shape, 1));
    check("f16", &Recipe::new(), &Inputs::<f16>::normal(shape, 2));
}

#[test]
fn a_dense_bias_of_any_broadcast_shape_is_added() {
    for (n, m) in [(1, 140), (33, 140), (70, 20)] {
        let s = Shape::new(n, m, 8);
        let x = Inputs::<f32>::normal(s, 4);
        for bits in 0..16 {
            let full = s.scores();
            let shape = std::array::from_fn(|a| if bits >> a & 1 == 1 { full[a] } else { 1 });
            check(&format!("bias {shape:?} on {s:?}"), &Recipe::new().dense_bias(shape, 7 + bits), &x);
            check(&format!("causal, bias {shape:?} on {s:?}"), &Recipe::new().dense_bias(shape, 70 + bits).with(|a| a.causal()), &x);
        }
    }
}

#[test]
fn a_bias_in_f64_is_added_in_full() {
    let s = Shape::new(19, 33, 8);
    let mut numbers = Normal::new(8);
    let bias = Array4::from_shape_simple_fn(s.scores(), || numbers.number());
    let recipe = || Recipe::new().with(|a| a.bias(oracle::Bias::Dense64(bias.clone())));
    check("f64", &recipe(), &Inputs::<f64>::normal(s, 2));
    check("f32", &recipe(), &Inputs::<f32>::normal(s, 2));
}

#[test]
fn biases_of_the_distance_are_added() {
    for (n, m) in [(1, 40), (5, 40), (40, 40), (70, 150)] {
        let s = Shape::new(n, m, 8).heads(6, 2);
        let x = Inputs::<f32>::normal(s, 4);
        let mut numbers = Normal::new(8);
        let mut table = |rows| Array2::from_shape_simple_fn((rows, 13), || numbers.number() as f32);
        for (name, bias) in [
            ("alibi", oracle::Bias::Alibi(alibi_slopes(6))),
            ("relative", oracle::Bias::Relative(table(6))),
            ("relative for all", oracle::Bias::Relative(table(1))),
        ] {
            let recipe = Recipe::new().with(|a| a.bias(bias));
            check(&format!("{name} {s:?}"), &recipe, &x);
            check(&format!("{name} at the end {s:?}"), &recipe.clone().with(|a| a.causal_bottom_right()), &x);
            check(&format!("{name}, offsets, {s:?}"), &recipe.with(|a| a.causal().q_offsets(vec![7, -3])), &x);
        }
    }
}

#[test]
fn every_scale_softcap_and_sink_is_right() {
    let s = Shape::new(21, 140, 12);
    let x = Inputs::<f32>::normal(s, 11);
    let x64 = Inputs::<f64>::normal(s, 11);
    for scale in [Scale::InvSqrtDim, Scale::Off, Scale::By(-0.7), Scale::By(0.0), Scale::By(30.0), Scale::By(1e-30)] {
        for softcap in [None, Some(0.5), Some(20.0)] {
            for sink in [false, true] {
                let mut recipe = Recipe::new().scale(scale).with(|a| a.causal_bottom_right());
                if let Some(cap) = softcap {
                    recipe = recipe.softcap(cap);
                }
                if sink {
                    recipe = recipe.some_sink(&s);
                }
                let what = format!("{scale:?} {softcap:?} {sink}");
                check(&what, &recipe, &x);
                check(&what, &recipe, &x64);
            }
        }
    }
}

#[test]
fn a_sink_of_any_size_takes_its_share() {
    let s = Shape::new(5, 20, 8);
    let x = Inputs::<f32>::normal(s, 3);
    for logits in [vec![f64::NEG_INFINITY; 4], vec![-1e4, 0.0, 40.0, 1e4], vec![f64::NEG_INFINITY, 2.0, f64::NEG_INFINITY, 2.0]] {
        for (name, recipe) in masks(&s) {
            check(&format!("{name}, sink {logits:?}"), &recipe.sink(logits.clone()), &x);
        }
    }
}

#[test]
fn top_k_keeps_the_highest_scores() {
    for (n, m) in [(1, 300), (40, 300), (70, 130)] {
        let s = Shape::new(n, m, 8);
        let x = Inputs::<f32>::normal(s, 13);
        for k in [1, 2, 7, 129, 10_000] {
            for (name, recipe) in masks(&s) {
                check(&format!("top {k}, {name}, {s:?}"), &recipe.with(|a| a.top_k(k)), &x);
            }
        }
        check("top 5 with bias", &Recipe::new().dense_bias(s.scores(), 3).with(|a| a.top_k(5)), &x);
    }
}

/// Small whole numbers: every score is exact, and most of them are tied.
#[test]
fn ties_of_top_k_go_to_the_lower_key() {
    let mut numbers = Normal::new(5);
    for (n, m) in [(1, 200), (30, 200), (3, 2100)] {
        let mut small = |n, d| Array4::from_shape_simple_fn([1, 2, n, d], || numbers.below(3) as f32 - 1.0);
        let x = Inputs { q: small(n, 4), k: small(m, 4), v: small(m, 8) };
        for k in [1, 3, 17, 100] {
            check(&format!("{n} x {m}, top {k}"), &Recipe::new().with(|a| a.top_k(k)), &x);
            check(&format!("{n} x {m}, top {k}, causal"), &Recipe::new().with(|a| a.top_k(k).causal_bottom_right()), &x);
        }
    }
}

fn stages_for<E: Element>() {
    for s in [Shape::new(3, 140, 9), Shape::new(40, 140, 9), Shape::new(70, 0, 9), Shape::new(0, 9, 9)] {
        let x = Inputs::<E>::normal(s, 17);
        for (name, recipe) in masks(&s) {
            let recipe = recipe.softcap(1.5).dense_bias([1, s.heads_q, s.seq_q, 1], 6).some_sink(&s);
            let exact = textbook(&recipe.options, &x);
            let plain = naive(&recipe, &x, &exact);
            let floor = score_floor::<E>(&exact);
            for level in levels() {
                let a = recipe.attention().level(level);
                let what = format!("{name}, {s:?}, {}", level.name());
                for (stage, plain, exact) in [
                    (Stage::Raw, &plain.raw, &exact.raw),
                    (Stage::Softcap, &plain.capped, &exact.capped),
                    (Stage::Masked, &plain.scores, &exact.scores),
                ] {
                    let got = a.scores(&x.q, &x.k, stage).expect(&what);
                    assert_as_good_as_naive(&format!("{stage:?} of {what}"), &got, plain, exact, floor);
                }
                let got = a.weights(&x.q, &x.k).expect(&what);
                assert_as_good_as_naive(&format!("weights of {what}"), &got, &plain.weights, &exact.weights, 8.0 * unit::<E>());
            }
        }
    }
}

#[test]
fn scores_of_every_stage_and_weights_are_right() {
    stages_for::<f32>();
    stages_for::<f64>();
    stages_for::<bf16>();
}

#[test]
fn weights_of_long_rows_and_of_top_k_are_right() {
    for (n, m, k) in [(3, 4200, None), (20, 2300, None), (3, 4200, Some(9)), (20, 300, Some(50))] {
        let s = Shape::single(n, m, 8).heads(2, 1);
        let x = Inputs::<f32>::normal(s, 1);
        let recipe = Recipe::new().some_sink(&s).with(|a| if let Some(k) = k { a.top_k(k) } else { a });
        let exact = textbook(&recipe.options, &x);
        let plain = naive(&recipe, &x, &exact);
        for level in levels() {
            let got = recipe.attention().level(level).weights(&x.q, &x.k).expect("fits");
            assert_as_good_as_naive(&format!("{s:?} {k:?}"), &got, &plain.weights, &exact.weights, 4.0 * unit::<f32>());
        }
    }
}

/// All queries alike, all keys alike: the mean of the values.
#[test]
fn equal_scores_give_the_mean_of_the_visible_values() {
    let (q, k) = (Array4::<f64>::ones((1, 1, 50, 4)), Array4::<f64>::ones((1, 1, 50, 4)));
    let v = Array4::from_shape_fn((1, 1, 50, 1), |(_, _, j, _)| j as f64);
    for level in levels() {
        let got = regard::Attention::new().causal().level(level).forward(&q, &k, &v).expect("fits");
        for i in 0..50 {
            assert!((got.out[[0, 0, i, 0]] - i as f64 / 2.0).abs() < 1e-12);
            assert!((got.lse[[0, 0, i]] - (2.0 + (i as f64 + 1.0).ln())).abs() < 1e-12);
        }
    }
}

#[test]
fn forward_into_gives_the_same_as_forward() {
    let s = Shape::new(20, 30, 8);
    let x = Inputs::<f16>::normal(s, 3);
    let a = regard::Attention::new().causal();
    let whole = a.forward(&x.q, &x.k, &x.v).expect("fits");
    let mut out = Array4::from_elem(whole.out.raw_dim(), to::<f16>(f64::NAN));
    let mut lse = ndarray::Array3::from_elem(whole.lse.raw_dim(), f32::NAN);
    a.forward_into(&x.q, &x.k, &x.v, out.view_mut(), None).expect("fits");
    assert_eq!(out, whole.out);
    out.fill(to(f64::NAN));
    a.forward_into(&x.q, &x.k, &x.v, out.view_mut(), Some(lse.view_mut())).expect("fits");
    assert_eq!((out, lse), (whole.out, whole.lse));
}
