//! The ends of ranges, and options that contradict each other: a right answer or an error, never a panic and never silence.

use crate::common::oracle::{self, Mask, Number, Options};
use crate::common::{Inputs, Shape, d_out_for, gradients, levels};
use half::{bf16, f16};
use ndarray::{Array2, Array4, s};
use regard::{Attention, Bias, Element, Error, Scale, Stage, StatsOptions};

#[track_caller]
fn assert_near<E: Number>(what: &str, got: &Array4<E>, exact: &Array4<f64>) {
    for ((at, x), y) in got.indexed_iter().zip(exact) {
        assert!((x.wide() - y).abs() <= 1e-4 * (1.0 + y.abs()), "{what}: {x:?} instead of {y} at {at:?}");
    }
}

/// Every pass, against the judge; statistics and maps need only come to an end with numbers.
fn check(what: &str, options: &Options, x: &Inputs<f32>) {
    let [q, k, v] = [&x.q, &x.k, &x.v].map(|x| oracle::widened(x.view()));
    let d_out = d_out_for(x, 3);
    let answer = oracle::attention(options, &q, &k, &v);
    let exact = oracle::backward(options, &answer, &q, &k, &v, &oracle::widened(d_out.view()));
    for level in levels() {
        let what = format!("{what}, {}", level.name());
        let a = options.attention().level(level);
        assert_near(&format!("out, {what}"), &a.forward(&x.q, &x.k, &x.v).expect(&what).out, &answer.out);
        assert_near(&format!("weights, {what}"), &a.weights(&x.q, &x.k).expect(&what), &answer.weights);
        let saved = a.forward_saved(&x.q, &x.k, &x.v).expect(&what);
        let got = a.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect(&what);
        for (name, got, exact) in [("dq", &got.dq, &exact.dq), ("dk", &got.dk, &exact.dk), ("dv", &got.dv, &exact.dv)] {
            assert_near(&format!("{name}, {what}"), got, exact);
        }
        let (_, stats) = a.forward_with_stats(&x.q, &x.k, &x.v, StatsOptions { local_window: 3, top_keys: 2 }).expect(&what);
        for ((b, h, i), entropy) in stats.entropy.indexed_iter() {
            let exact = oracle::row_statistics(&answer, [b, h, i], 3);
            assert!((f64::from(*entropy) - exact.entropy).abs() < 1e-4, "entropy, {what}");
            assert!((f64::from(stats.local_mass[[b, h, i]]) - exact.local_mass).abs() < 1e-4, "local mass, {what}");
            assert!((f64::from(stats.diagonal_mass[[b, h, i]]) - exact.diagonal_mass).abs() < 1e-4, "diagonal, {what}");
            assert!((f64::from(stats.previous_token_mass[[b, h, i]]) - exact.previous_token_mass).abs() < 1e-4, "previous, {what}");
            let distance = (f64::from(stats.mean_distance[[b, h, i]]) - exact.mean_distance).abs();
            assert!(distance <= 1e-4 * (1.0 + exact.mean_distance), "distance, {what}");
        }
        assert!(a.column_sums(&x.q, &x.k).expect(&what).iter().all(|x| x.is_finite()), "{what}");
        assert!(a.heat_map(&x.q, &x.k, 3, 3).expect(&what).mean.iter().all(|x| x.is_finite()), "{what}");
        a.head_similarity(&x.q, &x.k).expect(&what);
        a.scores(&x.q, &x.k, Stage::Masked).expect(&what);
    }
}

/// Positions at both ends of i64, where a difference of two of them is no number of i64.
#[test]
fn positions_at_the_ends_of_their_range_are_compared_right() {
    for s in [Shape::single(3, 20, 4), Shape::single(40, 150, 4)] {
        let x = Inputs::<f32>::normal(s, 1);
        for offset in [i64::MIN, i64::MIN + 1, -(1 << 62), i64::MAX - 1000, i64::MAX, 1 << 62] {
            for (name, mask) in [
                ("causal", Mask::Causal),
                ("reverse", Mask::Reverse),
                ("strictly future", Mask::StrictlyFuture),
                ("window", Mask::Window(Some(5), Some(5))),
                ("open to the right", Mask::Window(Some(5), None)),
                ("open to the left", Mask::Window(None, Some(5))),
                ("not a window", !Mask::Window(Some(5), Some(5))),
            ] {
                check(&format!("{name}, offset {offset}, {s:?}"), &Options::new().mask(mask).q_offset(offset), &x);
            }
        }
    }
}

/// As wide as a number can say is as wide as can be.
#[test]
fn the_widest_window_sees_everything() {
    let x = Inputs::<f32>::normal(Shape::single(20, 50, 4), 1);
    for offset in [0, 30, -30, 1 << 62, -(1 << 62)] {
        let options = Options::new().window(usize::MAX, usize::MAX).q_offset(offset);
        check(&format!("offset {offset}"), &options, &x);
        check(&format!("first keys, offset {offset}"), &Options::new().mask(Mask::FirstKeys(usize::MAX)).q_offset(offset), &x);
    }
}

/// f64 holds what f32 does not: a bias stays a number, the largest there is, and does not hide.
#[test]
fn a_finite_bias_beyond_f32_does_not_hide() {
    fn all<E: Element + Number>(n: usize) {
        let x = Inputs::<E>::normal(Shape::single(n, 6, 4), 1);
        let bias = |of: fn(usize) -> f64| Bias::Dense64(Array4::from_shape_fn([1, 1, 1, 6], |(_, _, _, j)| of(j)).into());
        for level in levels() {
            let weights = |bias: Bias<'_>| Attention::new().bias(bias).level(level).weights(&x.q, &x.k).expect("fits");
            // All keys alike far below: what they are apart is lost in the rounding.
            for &w in &weights(bias(|_| -1e39)) {
                assert!((regard::Real::to_f64(w) - 1.0 / 6.0).abs() < 1e-6, "{w:?} instead of a sixth, {}", level.name());
            }
            // Key 2 alone, far above; key 4 alone, far below.
            for (name, bias, heavy) in
                [("above", bias(|j| if j == 2 { 1e39 } else { 0.0 }), 1.0), ("below", bias(|j| if j == 2 { 0.0 } else { -1e300 }), 1.0)]
            {
                for i in 0..n {
                    let w = regard::Real::to_f64(weights(bias.clone())[[0, 0, i, 2]]);
                    assert!(w == heavy, "{name}: {w}, {}", level.name());
                }
            }
        }
    }
    for n in [1, 20] {
        all::<f32>(n);
        all::<f16>(n);
        all::<bf16>(n);
    }
}

/// Whether the call refuses a number with `Error::Number`.
fn refuses_number<E: Number>(a: &Attention<'_>) -> bool {
    let x = Inputs::<E>::normal(Shape::single(3, 5, 4), 1);
    let forward = a.forward(&x.q, &x.k, &x.v);
    let weights = a.weights(&x.q, &x.k);
    let refused = |error: Option<Error>| matches!(error, Some(Error::Number { .. }));
    assert_eq!(forward.is_err(), weights.is_err(), "every pass checks the same");
    if let Ok(forward) = &forward {
        assert!(forward.out.iter().all(|x| !x.wide().is_nan()), "accepted, and NaN came of it");
    }
    refused(forward.err()) && refused(weights.err())
}

#[test]
fn a_scale_that_is_not_finite_in_the_arithmetic_is_an_error() {
    for scale in [1e39, -1e39, 1e300] {
        let a = Attention::new().scale(Scale::By(scale));
        assert!(refuses_number::<f32>(&a) && refuses_number::<f16>(&a) && refuses_number::<bf16>(&a), "{scale:e}");
    }
    assert!(!refuses_number::<f64>(&Attention::new().scale(Scale::By(1e39))));
    assert!(!refuses_number::<f32>(&Attention::new().scale(Scale::By(1e30))));
    assert!(!refuses_number::<f32>(&Attention::new().scale(Scale::By(1e-300))));
}

#[test]
fn a_sink_that_is_not_finite_in_the_arithmetic_is_an_error() {
    for logit in [1e39, -1e39] {
        let a = Attention::new().sink(vec![logit]);
        assert!(refuses_number::<f32>(&a) && refuses_number::<f16>(&a) && refuses_number::<bf16>(&a), "{logit:e}");
        assert!(!refuses_number::<f64>(&a), "{logit:e}");
    }
    // Minus infinity itself is a sink that is not there.
    assert!(!refuses_number::<f32>(&Attention::new().sink(vec![f64::NEG_INFINITY])));
    assert!(!refuses_number::<f32>(&Attention::new().sink(vec![3e38])));
}

/// Every door refuses the call.
fn refused(a: &Attention<'_>) -> bool {
    let x = Inputs::<f32>::normal(Shape::new(3, 5, 4), 1);
    let answers = [a.forward(&x.q, &x.k, &x.v).is_err(), a.weights(&x.q, &x.k).is_err(), a.forward_saved(&x.q, &x.k, &x.v).is_err()];
    assert!(answers.iter().all(|&answer| answer == answers[0]), "{answers:?}");
    answers[0]
}

#[test]
fn two_different_offsets_are_an_error_in_either_order() {
    assert!(refused(&Attention::new().causal_bottom_right().q_offset(0)));
    assert!(refused(&Attention::new().q_offset(0).causal_bottom_right()));
    assert!(refused(&Attention::new().causal().q_offset(1).q_offset(2)));
    assert!(refused(&Attention::new().causal().q_offset(1).q_offsets(vec![1, 2])));
    assert!(refused(&Attention::new().causal().q_offsets(vec![1, 2]).q_offsets(vec![1, 3])));
    assert!(refused(&Attention::new().align_end().q_offsets(vec![2, 2])));
}

#[test]
fn the_same_offset_twice_is_one_offset() {
    assert!(!refused(&Attention::new().causal().q_offset(2).q_offset(2)));
    assert!(!refused(&Attention::new().causal_bottom_right().align_end()));
    assert!(!refused(&Attention::new().q_offsets(vec![1, 2]).q_offsets(vec![1, 2])));
}

#[test]
fn key_lengths_that_are_given_twice_both_hold() {
    let x = Inputs::<f32>::normal(Shape::new(3, 5, 4), 1);
    check("both lengths", &Options::new().key_lengths([2, 3]).key_lengths([3, 2]), &x);
    check("one length at the end", &Options::new().key_lengths([2, 3]).causal_bottom_right(), &x);
    check("both lengths at the end", &Options::new().key_lengths([2, 3]).key_lengths([3, 2]).causal_bottom_right(), &x);
}

/// Queries are aligned to the lengths of the call. A mask of lengths hides keys wherever it stands in an expression, and moves nothing.
#[test]
fn masks_of_key_lengths_are_idempotent_and_do_not_move_queries() {
    let x = Inputs::<f32>::normal(Shape::single(2, 6, 4), 1);
    let four = || regard::Mask::key_lengths(vec![4]);
    let rows = |a: &Attention<'_>| -> Vec<usize> {
        let weights = a.weights(&x.q, &x.k).expect("fits");
        (0..2).map(|i| (0..6).filter(|&j| weights[[0, 0, i, j]] > 0.0).count()).collect()
    };
    let with = |mask: regard::Mask<'static>| rows(&Attention::new().causal_bottom_right().mask(mask));
    assert_eq!(with(four()), [4, 4]);
    for (name, mask) in [
        ("L | L", four() | four()),
        ("L & L", four() & four()),
        ("!!L", !!four()),
        ("L & L2", four() & regard::Mask::key_lengths(vec![5])),
        ("L2 & L", regard::Mask::key_lengths(vec![5]) & four()),
        ("L & everything", four() & regard::Mask::everything()),
    ] {
        assert_eq!(with(mask), [4, 4], "{name}");
    }
    assert_eq!(rows(&Attention::new().causal_bottom_right().key_lengths(vec![4])), [3, 4]);
    assert_eq!(rows(&Attention::new().causal_bottom_right().key_lengths(vec![4]).key_lengths(vec![4])), [3, 4]);
    assert_eq!(rows(&Attention::new().causal_bottom_right().key_lengths(vec![4]).mask(regard::Mask::key_lengths(vec![3]))), [3, 3]);
}

/// One after the other, as masks do.
#[test]
fn biases_that_are_given_one_after_the_other_add_up() {
    for (n, m) in [(2, 20), (40, 150)] {
        let s = Shape::new(n, m, 4);
        let x = Inputs::<f32>::normal(s, 1);
        let keys = Array4::from_shape_fn([1, 1, 1, m], |(_, _, _, j)| if j % 5 == 3 { f32::NEG_INFINITY } else { (j as f32).sin() });
        let queries = Array4::from_shape_fn(s.scores(), |(_, h, i, j)| f64::cos((h + 3 * i + 7 * j) as f64));
        let slopes = regard::alibi_slopes(s.heads_q);
        let (a, b, c) = (oracle::Bias::Dense(keys), oracle::Bias::Dense64(queries), oracle::Bias::Alibi(slopes));
        check("two biases", &Options::new().bias(a.clone()).bias(b.clone()), &x);
        check("two biases, the other way round", &Options::new().bias(b.clone()).bias(a.clone()), &x);
        check("three biases", &Options::new().causal_bottom_right().bias(c.clone()).bias(a.clone()).bias(b.clone()), &x);
        check("the same bias twice", &Options::new().bias(b.clone()).bias(b), &x);
    }
}

#[test]
fn the_widest_local_window_counts_every_key() {
    for (n, m) in [(2, 20), (40, 150)] {
        let x = Inputs::<f32>::normal(Shape::single(n, m, 4), 1);
        for level in levels() {
            for local_window in [usize::MAX, usize::MAX / 2, usize::MAX / 2 + 1, m] {
                let options = StatsOptions { local_window, top_keys: 0 };
                let (_, stats) = Attention::new().level(level).forward_with_stats(&x.q, &x.k, &x.v, options).expect("fits");
                for &mass in &stats.local_mass {
                    assert!((mass - 1.0).abs() < 1e-5, "{mass} within {local_window}, {}", level.name());
                }
            }
        }
    }
}

/// More keys than there are: all of them, or an error; a caller's number is no reason to panic.
#[test]
fn any_number_of_top_keys_is_answered_or_refused() {
    for (n, m) in [(2, 20), (40, 150)] {
        let x = Inputs::<f32>::normal(Shape::single(n, m, 4), 1);
        for level in levels() {
            let a = Attention::new().level(level);
            let go = |top_keys| a.forward_with_stats(&x.q, &x.k, &x.v, StatsOptions { local_window: 1, top_keys });
            let (_, all) = go(m).expect("as many as there are");
            match go(usize::MAX) {
                Ok((_, stats)) => assert_eq!(stats.top_keys.slice(s![.., .., .., ..m]), all.top_keys),
                Err(error) => assert!(matches!(error, Error::TooLarge { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn any_number_of_cells_is_answered_or_refused() {
    let x = Inputs::<f32>::normal(Shape::single(7, 9, 4), 1);
    for level in levels() {
        let map = Attention::new().level(level).heat_map(&x.q, &x.k, usize::MAX, usize::MAX).expect("as many as there are pairs");
        assert_eq!(map.mean.shape(), [1, 1, 7, 9]);
    }
    // Two thousand million queries and as many keys, all of them one number: too many pairs for any memory.
    let one = Array4::<f32>::zeros([1, 1, 1, 1]);
    let many = one.broadcast([1, 1, 1 << 31, 1]).expect("a stride of 0");
    let error = Attention::new().heat_map(many, many, usize::MAX, usize::MAX).expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

/// d_biases are in the order in which the biases were given, each in its own shape.
#[test]
fn each_of_several_biases_has_its_gradient() {
    for (n, m) in [(2, 20), (40, 150), (20, 300)] {
        let s = Shape::new(n, m, 4);
        let x = Inputs::<f32>::normal(s, 1);
        let d_out = d_out_for(&x, 2);
        let keys = Array4::from_shape_fn([1, 1, 1, m], |(_, _, _, j)| if j % 5 == 3 { f32::NEG_INFINITY } else { (j as f32).sin() });
        let pairs = Array4::from_shape_fn(s.scores(), |(_, h, i, j)| f64::cos((h + 3 * i + 7 * j) as f64));
        let table = Array2::from_shape_fn((1, 9), |(_, c)| c as f32 / 8.0);
        let options = Options::new()
            .causal_bottom_right()
            .bias(oracle::Bias::Dense(keys))
            .bias(oracle::Bias::Alibi(regard::alibi_slopes(s.heads_q)))
            .bias(oracle::Bias::Dense64(pairs))
            .bias(oracle::Bias::Relative(table));
        let [q, k, v, wide_d_out] = [&x.q, &x.k, &x.v, &d_out].map(|x| oracle::widened(x.view()));
        let exact = oracle::backward(&options, &oracle::attention(&options, &q, &k, &v), &q, &k, &v, &wide_d_out);
        for level in levels() {
            let got = oracle::bias_gradients(&gradients(&options.attention().level(level), &x, &d_out));
            assert_eq!(got.len(), 4);
            for (number, (got, exact)) in got.iter().zip(&exact.d_biases).enumerate() {
                assert_eq!(got.len(), exact.len(), "bias {number}");
                let size = exact.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
                for (place, (x, y)) in got.iter().zip(exact).enumerate() {
                    assert!((x - y).abs() <= 1e-4 * size, "bias {number} at {place}: {x} instead of {y}, {n} x {m}, {}", level.name());
                }
            }
        }
    }
}

/// Left out, all of them.
#[test]
fn the_gradients_of_several_biases_can_be_left_out() {
    let s = Shape::new(20, 30, 8);
    let x = Inputs::<f32>::normal(s, 3);
    let bias = || regard::Bias::Dense(Array4::zeros([1, 1, 1, 30]).into());
    let a = Attention::new().bias(bias()).bias(bias());
    let d_out = d_out_for(&x, 1);
    let (with, without) = (gradients(&a, &x, &d_out), gradients(&a.clone().bias_gradient(false), &x, &d_out));
    assert_eq!((with.d_biases.len(), without.d_biases.len()), (2, 0));
    assert_eq!((with.dq, with.dk, with.dv), (without.dq, without.dk, without.dv));
}

/// Memory that no machine has: refused before anything is reserved. (Where it is not, the process is aborted, not only this test.)
#[test]
fn what_no_memory_holds_is_refused() {
    let one = Array4::<f32>::zeros([1, 1, 1, 1]);
    let many = one.broadcast([1, 1, 1 << 24, 1]).expect("a stride of 0");
    // 2^48 cells.
    let error = Attention::new().heat_map(many, many, usize::MAX, usize::MAX).expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

/// A window as far as the position is a bound, however far both are.
#[test]
fn a_window_that_reaches_as_far_as_the_offset_still_ends_somewhere() {
    let x = Inputs::<f32>::normal(Shape::single(19, 139, 11), 1);
    for offset in [i64::MAX / 3, i64::MAX / 2, 8_029_759_185_026_510_703, i64::MAX - 200] {
        for slack in [0, 100] {
            let options = Options::new().mask(Mask::Window(Some(offset as usize - slack), None)).q_offset(offset);
            check(&format!("window of {offset} - {slack}"), &options, &x);
        }
    }
}
