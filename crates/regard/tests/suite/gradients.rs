//! Gradients against the textbook in f64: at most three times as far off as plain loops of the same precision.

use crate::common::{
    Inputs, Normal, Recipe, Shape, assert_within, bias_numbers, check_gradients, d_out_for, gradients, levels, masks, naive,
    naive_backward, oracle, textbook, textbook_backward,
};
use half::{bf16, f16};
use ndarray::{Array1, Array2};
use regard::{Element, Real, Scale, alibi_slopes};

/// 0, 1, and the neighbours of the sizes at which kernels change: vectors, panels, tiles, spans.
const SIZES: [usize; 13] = [0, 1, 7, 8, 9, 15, 16, 17, 63, 65, 128, 129, 257];

fn every_mask_is_right(shape: Shape, seed: usize) {
    let x = Inputs::<f32>::normal(shape, seed as u64);
    for (name, recipe) in masks(&shape) {
        check_gradients(&format!("{name}, {shape:?}"), &recipe, &x, 1);
    }
}

#[test]
fn every_mask_is_right_at_every_size_of_queries() {
    SIZES.into_iter().for_each(|n| every_mask_is_right(Shape::single(n, 150, 5).heads(2, 1), n));
}

#[test]
fn every_mask_is_right_at_every_size_of_keys() {
    SIZES.into_iter().for_each(|m| every_mask_is_right(Shape::new(35, m, 5).heads(2, 1), m));
}

/// Everything that a call can ask for, alone and together.
fn options(s: &Shape) -> Vec<(&'static str, Recipe)> {
    vec![
        ("softcap", Recipe::new().softcap(1.5)),
        ("smallest softcap", Recipe::new().softcap(1e-30)),
        ("largest softcap", Recipe::new().softcap(1e30)),
        ("sink", Recipe::new().some_sink(s)),
        ("dropout", Recipe::new().with(|a| a.dropout(0.3, 7))),
        ("bias", Recipe::new().dense_bias(s.scores(), 3)),
        ("bias for all", Recipe::new().dense_bias([1, 1, s.seq_q, s.seq_kv], 3)),
        ("bias of the keys", Recipe::new().dense_bias([s.batch, 1, 1, s.seq_kv], 3)),
        ("bias of the queries", Recipe::new().dense_bias([1, s.heads_q, s.seq_q, 1], 3)),
        ("top k", Recipe::new().with(|a| a.top_k(5))),
        ("sharp", Recipe::new().scale(Scale::By(3.0))),
        ("negative", Recipe::new().scale(Scale::By(-0.7))),
        ("zero", Recipe::new().scale(Scale::By(0.0))),
        (
            "all",
            Recipe::new().softcap(2.0).some_sink(s).dense_bias(s.scores(), 3).with(|a| a.dropout(0.2, 9).causal_bottom_right().top_k(20)),
        ),
    ]
}

fn every_mask_and_option_for<E: Element>() {
    for s in [Shape::new(37, 141, 16).values(9), Shape::new(2, 300, 17).values(24), Shape::single(70, 530, 8)] {
        let x = Inputs::<E>::normal(s, 5);
        for (name, recipe) in masks(&s).into_iter().chain(options(&s)) {
            check_gradients(&format!("{name}, {s:?}"), &recipe, &x, 2);
        }
    }
}

#[test]
fn every_mask_and_option_is_right_in_f32() {
    every_mask_and_option_for::<f32>();
}

#[test]
fn every_mask_and_option_is_right_in_f64() {
    every_mask_and_option_for::<f64>();
}

#[test]
fn every_mask_and_option_is_right_in_f16() {
    every_mask_and_option_for::<f16>();
}

#[test]
fn every_mask_and_option_is_right_in_bf16() {
    every_mask_and_option_for::<bf16>();
}

fn every_dim_for<E: Element>() {
    for head_dim in [0, 1, 3, 8, 16, 33, 65] {
        for value_dim in [0, 1, 3, 8, 24, 65] {
            for n in [3, 20] {
                let s = Shape::single(n, 40, head_dim).heads(2, 1).values(value_dim);
                check_gradients(&format!("{s:?}"), &Recipe::new().with(|a| a.causal_bottom_right()), &Inputs::<E>::normal(s, 9), 1);
            }
        }
    }
}

#[test]
fn every_head_dim_and_value_dim_is_right() {
    for_every_type!(every_dim_for);
}

#[test]
fn dk_and_dv_are_summed_over_the_group() {
    for (heads_q, heads_kv) in [(1, 1), (6, 6), (6, 3), (6, 2), (6, 1), (16, 2), (40, 1)] {
        for n in [1, 3, 20, 70] {
            let s = Shape::new(n, 75, 8).heads(heads_q, heads_kv);
            check_gradients(&format!("{s:?}"), &Recipe::new().with(|a| a.causal_bottom_right()), &Inputs::<f32>::normal(s, 3), 4);
        }
    }
}

/// One more softmax is one more chance to hide something: panels that see nothing, between others that do.
#[test]
fn rows_that_see_nothing_between_rows_that_do_add_nothing() {
    for s in [Shape::single(64, 150, 8), Shape::single(130, 300, 8).heads(2, 1)] {
        let x = Inputs::<f32>::normal(s, 3);
        for (first, last) in [(16, 32), (8, 24), (32, 48), (0, 16), (16, 17), (20, 60)] {
            for (from, to) in [(0, s.seq_kv), (0, 100), (60, s.seq_kv), (128, s.seq_kv)] {
                let hidden = |i: usize, j: usize| (first..last).contains(&i) && (from..to).contains(&j);
                let table = ndarray::Array4::from_shape_fn([1, 1, s.seq_q, s.seq_kv], |(_, _, i, j)| !hidden(i, j));
                let recipe = Recipe::new().with(|a| a.mask(oracle::Mask::Dense(table.clone())));
                check_gradients(&format!("rows {first}..{last} do not see {from}..{to}, {s:?}"), &recipe, &x, 4);
                let recipe = Recipe::new().with(|a| a.mask(oracle::Mask::Dense(table)).dropout(0.1, 1));
                check_gradients(&format!("dropout, rows {first}..{last} do not see {from}..{to}, {s:?}"), &recipe, &x, 4);
            }
        }
    }
}

#[test]
fn a_dense_bias_of_any_broadcast_shape_has_its_gradient() {
    for (n, m) in [(1, 140), (21, 270), (70, 20)] {
        let s = Shape::new(n, m, 8);
        let x = Inputs::<f32>::normal(s, 4);
        for bits in 0..16 {
            let full = s.scores();
            let shape = std::array::from_fn(|a| if bits >> a & 1 == 1 { full[a] } else { 1 });
            let recipe = Recipe::new().dense_bias(shape, 70 + bits).with(|a| a.causal_bottom_right());
            check_gradients(&format!("bias {shape:?} on {s:?}"), &recipe, &x, 5);
        }
    }
}

/// The bias by its distance, spelled out: `d_bias[place] = sum of d_scores * (what the score has of it)`.
#[test]
fn biases_of_the_distance_have_their_gradients() {
    for (n, m) in [(1, 40), (40, 40), (70, 300)] {
        let s = Shape::new(n, m, 8).heads(6, 2);
        let x = Inputs::<f32>::normal(s, 4);
        let d_out = d_out_for(&x, 1);
        let mut numbers = Normal::new(8);
        let mut table = |rows| Array2::from_shape_simple_fn((rows, 13), || numbers.number() as f32);
        for (name, bias, per_head, places) in [
            ("alibi", oracle::Bias::Alibi(alibi_slopes(6)), true, 1),
            ("relative", oracle::Bias::Relative(table(6)), true, 13),
            ("relative for all", oracle::Bias::Relative(table(1)), false, 13),
        ] {
            let recipe = Recipe::new().with(|a| a.bias(bias).causal().q_offsets(vec![(m - n) as i64, -3]));
            let sums = |d_scores: &dyn Fn([usize; 4]) -> f64| {
                let mut sums = Array1::zeros(if per_head { 6 * places } else { places });
                for (b, offset) in [(m - n) as i64, -3].into_iter().enumerate() {
                    for h in 0..6 {
                        for (i, j) in (0..n).flat_map(|i| (0..m).map(move |j| (i, j))) {
                            let distance = j as i64 - (i as i64 + offset);
                            let (place, by) =
                                if places == 1 { (0, -(distance.abs() as f64)) } else { ((distance.clamp(-6, 6) + 6) as usize, 1.0) };
                            sums[if per_head { h * places } else { 0 } + place] += by * d_scores([b, h, i, j]);
                        }
                    }
                }
                sums
            };
            let forward = textbook(&recipe.options, &x);
            let exact = textbook_backward(&recipe.options, &x, &d_out);
            let plain = naive_backward(&recipe, &x, &d_out, &forward, &naive(&recipe, &x, &forward));
            let (exact, naive) = (sums(&|at| exact.d_scores[at]), sums(&|at| plain.d_scores[at].to_f64()));
            for level in levels() {
                let got = bias_numbers(&gradients(&recipe.attention().level(level), &x, &d_out));
                let floor = 4.0 * f64::from(f32::EPSILON) * plain.sizes[3] * if places == 1 { m as f64 } else { 1.0 };
                assert_within(&format!("{name}, {s:?}, {}", level.name()), 3.0, &got, &naive, &exact, floor);
            }
        }
    }
}

/// What dominates a row is the sink, whatever its size.
#[test]
fn a_sink_of_any_size_has_its_gradient() {
    for n in [5, 40] {
        let s = Shape::new(n, 20, 8);
        for logits in [
            vec![f64::NEG_INFINITY; 4],
            vec![-1e4, 0.0, 1.5, 3.0],
            vec![f64::NEG_INFINITY, 2.0, f64::NEG_INFINITY, 2.0],
            vec![0.1, 10_000.3, -1000.7, 0.3],
        ] {
            for (name, recipe) in masks(&s).into_iter().step_by(3) {
                let recipe = recipe.sink(logits.clone());
                check_gradients(&format!("{name}, sink {logits:?}"), &recipe, &Inputs::<f32>::normal(s, 3), 1);
                check_gradients(&format!("{name}, sink {logits:?}"), &recipe, &Inputs::<f64>::normal(s, 3), 1);
            }
        }
    }
}

#[test]
fn the_gradient_of_a_bias_can_be_left_out() {
    let s = Shape::new(20, 30, 8);
    let x = Inputs::<f32>::normal(s, 3);
    let d_out = d_out_for(&x, 1);
    let recipe = Recipe::new().dense_bias(s.scores(), 3);
    let with = gradients(&recipe.attention(), &x, &d_out);
    let without = gradients(&recipe.attention().bias_gradient(false), &x, &d_out);
    assert!(!with.d_biases.is_empty() && without.d_biases.is_empty());
    assert_eq!((with.dq, with.dk, with.dv), (without.dq, without.dk, without.dv));
}

/// Rows longer than a span of keys, in f32 and in half precision, where they are split and where they are not.
#[test]
fn rows_of_many_spans_are_right() {
    for (n, m) in [(3, 1100), (70, 769)] {
        let s = Shape::single(n, m, 8).heads(2, 1);
        for recipe in [Recipe::new(), Recipe::new().with(|a| a.causal_bottom_right().window(300, 0)), Recipe::new().with(|a| a.top_k(9))] {
            for threads in [1, 3] {
                let recipe = recipe.clone().with(|a| a.threads(threads));
                check_gradients(&format!("{s:?}, {threads} threads"), &recipe, &Inputs::<f32>::normal(s, 1), 2);
                check_gradients(&format!("{s:?}, {threads} threads"), &recipe, &Inputs::<f16>::normal(s, 1), 2);
            }
        }
    }
}
