//! Calls that the other modules do not make: parts of the weights and of the map, buffers of the caller's, biases in half precision, the
//! gradient on the scale.

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, d_out_for, gradients, levels, masks, normal, textbook_backward, to, unit};
use half::{bf16, f16};
use ndarray::{Array3, Array4, s};
use regard::{
    Attention, Bias, BiasGradient, Element, Error, GradientsViewMut, Real, Rectangle, SavedViewMut, SoftmaxDenominators, alibi_slopes,
};

fn of(rows: std::ops::Range<usize>, keys: std::ops::Range<usize>) -> Rectangle {
    Rectangle { rows, keys }
}

#[test]
fn weights_and_map_of_a_rectangle_are_those_of_the_whole() {
    fn check<E: Element>() {
        let s = Shape::new(70, 300, 8);
        let x = Inputs::<E>::normal(s, 1);
        for (name, recipe) in masks(&s).into_iter().chain([("top k", Recipe::new().with(|a| a.causal_bottom_right().top_k(9)))]) {
            let a = recipe.attention();
            let (weights, states) = (a.weights(&x.q, &x.k).expect("fits"), a.row_states(&x.q, &x.k).expect("fits"));
            for part in [of(0..70, 0..300), of(3..4, 5..6), of(17..69, 120..260), of(0..1, 299..300), of(5..5, 7..9), of(5..6, 7..7)] {
                let what = format!("{name}, {part:?}, {}", std::any::type_name::<E>());
                let got = a.weights_of(&x.q, &x.k, &states, part.clone()).expect(&what);
                let expected = weights.slice(s![.., .., part.rows.clone(), part.keys.clone()]).to_owned();
                assert_same_bits(&what, &expected, &got);
                let map = a.heat_map_of(&x.q, &x.k, &states, part.clone(), [3, 4]).expect(&what);
                let (rows, cols) = (part.rows.len().min(3), part.keys.len().min(4));
                assert_eq!(map.mean.shape(), [s.batch, s.heads_q, rows, cols], "{what}");
                for (at, &mean) in map.mean.indexed_iter() {
                    let inside = |i: usize, len: usize, cells: usize, cell: usize| i * cells / len == cell;
                    let cell: Vec<f64> = expected
                        .slice(s![at.0, at.1, .., ..])
                        .indexed_iter()
                        .filter(|((i, j), _)| inside(*i, part.rows.len(), rows, at.2) && inside(*j, part.keys.len(), cols, at.3))
                        .map(|(_, x)| x.to_f64())
                        .collect();
                    let exact = cell.iter().sum::<f64>() / cell.len() as f64;
                    assert!((mean.to_f64() - exact).abs() <= 64.0 * unit::<E>() * exact.abs() + 1e-30, "{what}: {mean:?} for {exact}");
                    assert_eq!(map.max[at].to_f64(), cell.iter().fold(0.0, |max, &x| x.max(max)), "{what}");
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<bf16>();
}

#[test]
fn rectangles_and_states_that_do_not_fit_are_refused() {
    let x = Inputs::<f32>::normal(Shape::single(5, 9, 4), 1);
    let (a, states) = (Attention::new(), Attention::new().row_states(&x.q, &x.k).expect("fits"));
    let both = |states: &SoftmaxDenominators<f32>, part: Rectangle| {
        let weights = a.weights_of(&x.q, &x.k, states, part.clone()).map(|_| ());
        assert_eq!(a.heat_map_of(&x.q, &x.k, states, part, [2, 2]).map(|_| ()), weights);
        weights
    };
    assert_eq!(both(&states, of(0..6, 0..9)), Err(Error::Range { operand: "rows", start: 0, end: 6, len: 5 }));
    assert_eq!(both(&states, of(0..5, 3..10)), Err(Error::Range { operand: "keys", start: 3, end: 10, len: 9 }));
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let backwards = of(3..2, 0..9);
    assert_eq!(both(&states, backwards), Err(Error::Range { operand: "rows", start: 3, end: 2, len: 5 }));
    let other = SoftmaxDenominators { row_max: Array3::zeros((1, 1, 4)), ..states };
    assert!(matches!(both(&other, of(0..5, 0..9)), Err(Error::OutputShape { operand: "row_max", .. })));
    assert_eq!(a.heat_map_of(&x.q, &x.k, &other, of(0..5, 0..9), [0, 2]).map(|_| ()), both(&other, of(0..5, 0..9)));
}

/// Buffers of the caller's, side by side and not, of every type.
#[test]
fn results_and_gradients_in_buffers_of_the_caller_have_the_same_bits() {
    fn check<E: Element>() {
        for s in [Shape::new(70, 300, 16), Shape::new(7, 40, 5), Shape::single(3, 600, 16)] {
            let (x, a) =
                (Inputs::<E>::normal(s, 1), Attention::new().causal_bottom_right().sink(vec![0.5; s.heads_q]).scale_gradient(true));
            let d_out = d_out_for(&x, 2);
            let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
            let expected = a.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
            for spread in [1, 2] {
                let what = format!("{s:?}, every number {spread}, {}", std::any::type_name::<E>());
                let room =
                    |like: &Array4<E>| Array4::from_elem((like.dim().0, like.dim().1, like.dim().2, spread * like.dim().3), to::<E>(77.0));
                let mut out = room(&saved.out);
                let mut out_unrounded = saved.out_unrounded.as_ref().map(|x| Array4::from_elem(x.raw_dim(), E::Real::ZERO));
                let (mut row_max, mut row_sum) = (saved.row_max.clone(), saved.row_sum.clone());
                row_max.fill(E::Real::ZERO);
                row_sum.fill(E::Real::ZERO);
                let step = spread as isize;
                let to = SavedViewMut {
                    out: out.slice_mut(s![.., .., .., ..;step]),
                    out_unrounded: out_unrounded.as_mut().map(|x| x.view_mut()),
                    row_max: row_max.view_mut(),
                    row_sum: row_sum.view_mut(),
                };
                a.forward_saved_into(&x.q, &x.k, &x.v, to).expect("fits");
                assert_same_bits(&what, &saved.out, &out.slice(s![.., .., .., ..;step]).to_owned());
                assert_same_bits(&what, &saved.row_max, &row_max);
                assert_same_bits(&what, &saved.row_sum, &row_sum);
                assert_eq!(saved.out_unrounded.is_some(), out_unrounded.is_some());
                saved.out_unrounded.iter().zip(&out_unrounded).for_each(|(a, b)| assert_same_bits(&what, a, b));
                let [mut dq, mut dk, mut dv] = [&x.q, &x.k, &x.v].map(room);
                let to = GradientsViewMut {
                    dq: dq.slice_mut(s![.., .., .., ..;step]),
                    dk: dk.slice_mut(s![.., .., .., ..;step]),
                    dv: dv.slice_mut(s![.., .., .., ..;step]),
                };
                let options = a.backward_into(&x.q, &x.k, &x.v, &saved, &d_out, to).expect("fits");
                for (got, expected) in [(&dq, &expected.dq), (&dk, &expected.dk), (&dv, &expected.dv)] {
                    assert_same_bits(&what, expected, &got.slice(s![.., .., .., ..;step]).to_owned());
                    let untouched = got.iter().enumerate().filter(|(i, _)| i % spread != 0);
                    assert!(untouched.into_iter().all(|(_, &x)| crate::common::wide(x) == 77.0), "{what}");
                }
                assert_eq!((options.d_sink, options.d_scale), (expected.d_sink.clone(), expected.d_scale), "{what}");
            }
        }
    }
    for_every_type!(check);
}

/// A bias in half precision is the bias of its numbers; its gradient is in f32.
#[test]
fn a_bias_in_half_precision_is_that_of_its_numbers() {
    fn check<E: Element>() {
        for s in [Shape::new(7, 150, 8), Shape::new(40, 150, 8), Shape::single(2, 40, 8)] {
            for shape in [s.scores(), [1, 1, s.seq_q, s.seq_kv], [s.batch, 1, 1, s.seq_kv], [1, s.heads_q, s.seq_q, 1]] {
                let (x, mut numbers) = (Inputs::<E>::normal(s, 1), normal::<f16>(shape, 5));
                numbers.iter_mut().step_by(7).for_each(|x| *x = f16::NEG_INFINITY);
                let wide = numbers.mapv(f32::from);
                let brain = wide.mapv(bf16::from_f32);
                let d_out = d_out_for(&x, 2);
                for (name, half, plain) in [
                    ("f16", Bias::DenseF16(numbers.view().into()), Bias::Dense(wide.view().into())),
                    ("bf16", Bias::DenseBf16(brain.view().into()), Bias::Dense(brain.mapv(f32::from).into())),
                ] {
                    for level in levels() {
                        let what = format!("{name}, {shape:?}, {}", level.name());
                        let [half, plain] = [&half, &plain].map(|bias| Attention::new().bias(bias.clone()).level(level));
                        let results = [&half, &plain].map(|a| a.forward(&x.q, &x.k, &x.v).expect("fits"));
                        assert_same_bits(&what, &results[0].out, &results[1].out);
                        assert_same_bits(&what, &results[0].lse, &results[1].lse);
                        let [half, plain] = [half, plain].map(|a| gradients(&a, &x, &d_out));
                        assert_same_bits(&what, &half.dq, &plain.dq);
                        let (BiasGradient::Dense(half), BiasGradient::Dense(plain)) = (&half.d_biases[0], &plain.d_biases[0]) else {
                            panic!("{what}: {:?}", half.d_biases)
                        };
                        assert_same_bits(&what, half, plain);
                    }
                }
            }
        }
    }
    check::<f32>();
    check::<f64>();
    check::<bf16>();
}

/// Three biases, one of which all heads share, one all queries: results and every gradient, on any number of threads.
#[test]
fn several_biases_have_the_same_bits_on_any_number_of_threads() {
    for s in [Shape::new(70, 600, 8), Shape::single(3, 5000, 8), Shape::single(130, 700, 16).heads(3, 1)] {
        let (x, shared) = (Inputs::<f32>::normal(s, 1), normal::<f32>([1, 1, s.seq_q, s.seq_kv], 5));
        let keys = normal::<f64>([s.batch, s.heads_q, 1, s.seq_kv], 6);
        let biases = [Bias::Dense(shared.view().into()), Bias::Alibi(alibi_slopes(s.heads_q)), Bias::Dense64(keys.view().into())];
        let d_out = d_out_for(&x, 2);
        for level in levels() {
            let a = biases.iter().fold(Attention::new().causal_bottom_right().level(level), |a, bias| a.bias(bias.clone()));
            let go = |threads: usize| {
                let a = a.clone().threads(threads).scale_gradient(true);
                (a.forward(&x.q, &x.k, &x.v).expect("fits"), gradients(&a, &x, &d_out))
            };
            let (one, one_gradients) = go(1);
            assert_eq!(one_gradients.d_biases.len(), 3);
            for threads in [2, 3, 5] {
                let what = format!("{threads} threads, {s:?}, {}", level.name());
                let (many, many_gradients) = go(threads);
                assert_same_bits(&what, &one.out, &many.out);
                crate::common::assert_same_gradients(&what, &one_gradients, &many_gradients);
                let bits = |g: &BiasGradient| -> Vec<u64> {
                    match g {
                        BiasGradient::Dense(x) => x.iter().map(|x| u64::from(x.to_bits())).collect(),
                        BiasGradient::Dense64(x) => x.iter().map(|x| x.to_bits()).collect(),
                        BiasGradient::Alibi(x) => x.iter().map(|x| x.to_bits()).collect(),
                        other => panic!("{other:?}"),
                    }
                };
                for (one, many) in one_gradients.d_biases.iter().zip(&many_gradients.d_biases) {
                    assert_eq!(bits(one), bits(many), "{what}");
                }
            }
        }
    }
}

/// Against the judge, within a few roundings of what it is the sum of; and the same bits on any number of threads, of which some share out
/// the keys.
#[test]
fn the_gradient_on_the_scale_is_right() {
    fn check<E: Element>(tolerance: f64) {
        for s in [Shape::new(40, 150, 8), Shape::single(20, 700, 16), Shape::new(7, 40, 5)] {
            let x = Inputs::<E>::normal(s, 1);
            let d_out = d_out_for(&x, 2);
            for (name, recipe) in [
                ("full", Recipe::new()),
                ("causal", Recipe::new().with(|a| a.causal_bottom_right())),
                ("softcap, sink and dropout", Recipe::new().softcap(1.5).some_sink(&s).with(|a| a.dropout(0.2, 5))),
                ("scale", Recipe::new().scale(regard::Scale::By(-0.7))),
                ("no scale at all", Recipe::new().scale(regard::Scale::By(0.0))),
            ] {
                let exact = textbook_backward(&recipe.options, &x, &d_out);
                for level in levels() {
                    let go =
                        |threads| gradients(&recipe.attention().level(level).threads(threads).scale_gradient(true), &x, &d_out).d_scale;
                    let (got, what) = (go(1).expect("it was asked for"), format!("{name}, {s:?}, {}", level.name()));
                    let off = (got - exact.d_scale).abs();
                    assert!(off <= tolerance * exact.d_scale_size, "{what}: {got} instead of {}, {off:e}", exact.d_scale);
                    assert!(exact.d_scale.abs() > 1e-3, "{what}: it is nothing");
                    assert_eq!([2, 3].map(|threads| go(threads).map(f64::to_bits)), [Some(got.to_bits()); 2], "{what}");
                }
                assert_eq!(gradients(&recipe.attention(), &x, &d_out).d_scale, None);
            }
        }
    }
    check::<f64>(32.0 * f64::EPSILON);
    check::<f32>(32.0 * f64::from(f32::EPSILON));
    check::<f16>(32.0 * f64::from(f32::EPSILON));
    check::<bf16>(32.0 * f64::from(f32::EPSILON));
}

/// Distances of 2^50, and gradients of the scores that cancel in every row. All numbers but partial sums are exact: what is lost in these
/// must not be lost.
#[test]
fn the_gradient_on_slopes_is_summed_without_loss() {
    let (q, k) = (Array4::<f64>::zeros([1, 1, 3, 1]), Array4::zeros([1, 1, 128, 1]));
    // Weights are 1/128 and the result is zero: the gradient of a score is its value / 128.
    let v = Array4::from_shape_fn([1, 1, 128, 1], |(_, _, j, _)| if j < 64 { 3.0 } else { -3.0 });
    let offset = 1i64 << 50;
    let shares = (0..3).flat_map(|i| (0..128).map(move |j| i128::from(offset + i - j) * if j < 64 { 3 } else { -3 }));
    let expected = -(shares.sum::<i128>() as f64) / 128.0;
    for level in levels() {
        let a = Attention::new().bias(Bias::Alibi(vec![0.0])).q_offset(offset).level(level);
        let x = Inputs { q: q.clone(), k: k.clone(), v: v.clone() };
        let got = gradients(&a, &x, &Array4::ones([1, 1, 3, 1]));
        let Some(BiasGradient::Alibi(got)) = got.d_biases.first() else { panic!("no gradient of the slopes") };
        assert_eq!(got[..], [expected], "{}", level.name());
    }
}
