//! Single calls that were once wrong, each small enough to be checked by thought.

use crate::common::oracle::{Number, Poison};
use crate::common::{Inputs, Shape, bits, levels, normal};
use half::{bf16, f16};
use ndarray::{Array4, ArrayView4, Axis, s};
use regard::{Attention, Bias, Mask, StatsOptions};

/// The same numbers, stored with the last two axes exchanged.
fn transposed<E: Number>(x: &Array4<E>) -> Array4<E> {
    x.view().permuted_axes([0, 1, 3, 2]).as_standard_layout().to_owned().permuted_axes([0, 1, 3, 2])
}

/// Value 0 becomes `poison`; rows that see it are not finite, and the others keep their bits.
fn value_zero<E: Number>(a: &Attention<'_>, poison: Poison, sees: impl Fn(usize) -> bool) {
    let x = Inputs::<E>::normal(Shape::single(64, 128, 8), 3);
    for stored in [x.v.clone(), transposed(&x.v)] {
        let mut bad = stored.clone();
        bad.slice_mut(s![0, 0, 0, ..]).fill(E::poison(poison));
        for level in levels() {
            let a = a.clone().level(level);
            let before = a.forward(&x.q, &x.k, &stored).expect("fits").out;
            let after = a.forward(&x.q, &x.k, &bad).expect("fits").out;
            for i in 0..64 {
                for e in 0..8 {
                    let (clean, got) = (before[[0, 0, i, e]], after[[0, 0, i, e]]);
                    let right = if sees(i) { !got.wide().is_finite() } else { bits(clean) == bits(got) };
                    let strides = stored.strides();
                    assert!(right, "row {i}: {clean:?} became {got:?}, strides {strides:?}, {}", level.name());
                }
            }
        }
    }
}

/// A tile of values serves several panels: what one of them must not see, another may not see either, and a third does.
#[test]
fn a_nan_value_behind_a_window_does_not_reach_the_rows_past_it() {
    let a = Attention::new().mask(Mask::window(Some(20), None));
    for poison in [Poison::Nan, Poison::Payload, Poison::Infinity] {
        value_zero::<bf16>(&a, poison, |i| i <= 20);
        value_zero::<f16>(&a, poison, |i| i <= 20);
        value_zero::<f32>(&a, poison, |i| i <= 20);
        value_zero::<f64>(&a, poison, |i| i <= 20);
    }
}

#[test]
fn an_infinite_value_reaches_every_row_that_sees_it() {
    let a = Attention::new().causal().q_offset(120);
    for poison in [Poison::Nan, Poison::Infinity, Poison::MinusInfinity] {
        value_zero::<bf16>(&a, poison, |_| true);
        value_zero::<f16>(&a, poison, |_| true);
        value_zero::<f32>(&a, poison, |_| true);
        value_zero::<f64>(&a, poison, |_| true);
    }
}

/// Keys of ones with one key of NaN, in a sequence of any length: every row is NaN.
#[test]
fn every_nan_of_a_visible_key_spoils_its_rows_whatever_its_bits() {
    fn all<E: Number>() {
        for (n, m) in [(1, 5), (3, 140), (20, 20), (70, 300)] {
            for poison in [Poison::Nan, Poison::Payload, Poison::AllOnes, Poison::Missing] {
                for key in [0, m / 2, m - 1] {
                    let (q, v) = (Array4::from_elem([1, 1, n, 8], E::narrow(1.0)), normal::<E>([1, 1, m, 4], 1));
                    let mut k = Array4::from_elem([1, 1, m, 8], E::narrow(1.0));
                    k.slice_mut(s![0, 0, key, ..]).fill(E::poison(poison));
                    for level in levels() {
                        let got = Attention::new().level(level).forward(&q, &k, &v).expect("fits");
                        let what = format!("{poison:?} at key {key} of {m}, {n} rows, {} {}", std::any::type_name::<E>(), level.name());
                        assert!(got.out.iter().all(|x| x.wide().is_nan()), "{what}: out");
                    }
                }
            }
        }
    }
    for_every_type!(all);
}

/// Causal, key 0 NaN: every row is spoiled, and no row sees the keys after it.
#[test]
fn hidden_keys_of_a_spoiled_row_weigh_nothing() {
    for n in [3, 40, 150] {
        let x = Inputs::<f32>::normal(Shape::single(n, n, 8).heads(2, 1), 3);
        let mut k = x.k.clone();
        k[[0, 0, 0, 3]] = f32::NAN;
        for level in levels() {
            let a = Attention::new().causal().level(level);
            let weights = a.weights(&x.q, &k).expect("fits");
            for ((_, _, i, j), &w) in weights.indexed_iter() {
                assert!(if j <= i { w.is_nan() } else { w.to_bits() == 0 }, "weight {w} of key {j} in row {i} of {n}, {}", level.name());
            }
            // As many cells as there are pairs.
            let map = a.heat_map(&x.q, &k, n, n).expect("fits");
            for ((_, _, i, j), &w) in map.mean.indexed_iter().chain(map.max.indexed_iter()) {
                assert!(if j <= i { w.is_nan() } else { w == 0.0 }, "cell {w} of key {j} in row {i} of {n}, {}", level.name());
            }
        }
    }
}

/// One row of many is spoiled: the sums of keys that only other rows see stay numbers.
#[test]
fn a_spoiled_row_reaches_the_sums_of_the_keys_it_sees_and_no_others() {
    for n in [20, 150] {
        let x = Inputs::<f32>::normal(Shape::single(n, n, 8), 3);
        let mut q = x.q.clone();
        q[[0, 0, 7, 0]] = f32::NAN;
        for level in levels() {
            let a = Attention::new().causal().level(level);
            let (clean, got) = (a.column_sums(&x.q, &x.k).expect("fits"), a.column_sums(&q, &x.k).expect("fits"));
            for j in 0..n {
                let (x, y) = (clean[[0, 0, j]], got[[0, 0, j]]);
                assert!(if j <= 7 { y.is_nan() } else { bits(x) == bits(y) }, "sum of key {j} of {n}: {x} became {y}, {}", level.name());
            }
        }
    }
}

/// A row of NaN is neither certain nor empty.
#[test]
fn the_statistics_of_a_spoiled_row_are_not_numbers() {
    for (n, m) in [(1, 20), (3, 140), (40, 140), (70, 2100)] {
        let x = Inputs::<f32>::normal(Shape::single(n, m, 8), 3);
        for (name, key) in [("one NaN key", Some(5)), ("a NaN query", None)] {
            let (mut q, mut k) = (x.q.clone(), x.k.clone());
            match key {
                Some(key) => k[[0, 0, key, 0]] = f32::NAN,
                None => q[[0, 0, n - 1, 0]] = f32::NAN,
            }
            for level in levels() {
                let a = Attention::new().level(level);
                let options = StatsOptions { local_window: m, top_keys: 2 };
                let (got, stats) = a.forward_with_stats(&q, &k, &x.v, options).expect("fits");
                let row = [0, 0, n - 1];
                let what = format!("{name}, {n} x {m}, {}", level.name());
                assert!(got.lse[row].is_nan(), "lse, {what}");
                for (statistic, x) in [
                    ("entropy", stats.entropy[row]),
                    ("max_weight", stats.max_weight[row]),
                    ("sum_of_squares", stats.sum_of_squares[row]),
                    ("mean_distance", stats.mean_distance[row]),
                    ("local_mass", stats.local_mass[row]),
                    ("first_token_mass", stats.first_token_mass[row]),
                ] {
                    assert!(x.is_nan(), "{statistic} is {x}, {what}");
                }
                assert!(stats.argmax[row] >= 0, "the row is said to be empty, {what}");
                assert!(stats.heads().entropy[[0, 0]].is_nan(), "mean entropy, {what}");
            }
        }
    }
}

#[test]
fn a_spoiled_head_is_like_no_other() {
    let x = Inputs::<f32>::normal(Shape::single(30, 40, 8).heads(3, 3), 3);
    let mut k = x.k.clone();
    k[[0, 1, 4, 0]] = f32::NAN;
    for level in levels() {
        let a = Attention::new().causal().level(level);
        let (clean, got) = (a.head_similarity(&x.q, &x.k).expect("fits"), a.head_similarity(&x.q, &k).expect("fits"));
        for (f, g) in [(0, 1), (1, 0), (1, 2), (2, 1)] {
            assert!(got.centred_cosine[[0, f, g]].is_nan(), "cosine of {f} and {g}: {}", got.centred_cosine[[0, f, g]]);
            assert!(got.jensen_shannon[[0, f, g]].is_nan(), "divergence of {f} and {g}: {}", got.jensen_shannon[[0, f, g]]);
        }
        assert_eq!(clean.centred_cosine[[0, 0, 2]].to_bits(), got.centred_cosine[[0, 0, 2]].to_bits());
        assert_eq!(clean.jensen_shannon[[0, 0, 2]].to_bits(), got.jensen_shannon[[0, 0, 2]].to_bits());
    }
}

/// An infinite key that everybody sees: what hides one pair of another row does not change what dq of a row is.
#[test]
fn dq_of_a_row_does_not_depend_on_the_masks_of_others() {
    for (n, m) in [(2, 40), (40, 140), (70, 300)] {
        let x = Inputs::<f32>::normal(Shape::single(n, m, 4), 3);
        let mut k = x.k.clone();
        k[[0, 0, 9, 1]] = f32::INFINITY;
        let d_out = normal::<f32>([1, 1, n, 4], 8);
        // The last row does not see key 20; all others see everything.
        let table = Array4::from_shape_fn([1, 1, n, m], |(_, _, i, j)| (i, j) != (n - 1, 20));
        for level in levels() {
            let dq = |a: Attention<'_>| {
                let a = a.level(level);
                let saved = a.forward_saved(&x.q, &k, &x.v).expect("fits");
                a.backward(&x.q, &k, &x.v, &saved, &d_out).expect("fits").dq
            };
            let (plain, masked) = (dq(Attention::new()), dq(Attention::new().mask(Mask::dense(&table))));
            for i in 0..n - 1 {
                for e in 0..4 {
                    let (x, y) = (plain[[0, 0, i, e]], masked[[0, 0, i, e]]);
                    assert!(bits(x) == bits(y), "dq of row {i}: {x} without, {y} with another row's mask, {n} x {m}, {}", level.name());
                }
            }
        }
    }
}

/// Such a row hands nothing on, so its gradient says nothing about the sink, whatever it holds.
#[test]
fn a_row_that_sees_only_the_sink_has_no_part_in_its_gradient() {
    for n in [3, 40] {
        let x = Inputs::<f32>::normal(Shape::single(n, 20, 4), 3);
        let clean = normal::<f32>([1, 1, n, 4], 8);
        for number in [f32::NAN, f32::INFINITY] {
            let mut d_out = clean.clone();
            d_out[[0, 0, 0, 0]] = number;
            for level in levels() {
                // Row 0 sees nothing, row 1 the first key, and so on.
                let a = Attention::new().causal().q_offset(-1).sink(vec![0.5]).level(level);
                let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
                let sink = |d_out: &Array4<f32>| a.backward(&x.q, &x.k, &x.v, &saved, d_out).expect("fits").d_sink.expect("a sink")[0];
                let (before, after) = (sink(&clean), sink(&d_out));
                assert!(before.to_bits() == after.to_bits(), "{before} became {after}, {n} rows, {}", level.name());
            }
        }
    }
}

/// A view whose last axis is not the innermost, and one that runs backwards: the same promise.
#[test]
fn a_hidden_nan_stays_hidden_in_a_bias_and_under_every_stride() {
    let x = Inputs::<f32>::normal(Shape::single(70, 200, 5), 3);
    let bias = Array4::from_shape_fn([1, 1, 1, 200], |(_, _, _, j)| if j % 3 == 0 { f32::NEG_INFINITY } else { 0.25 });
    let backwards = |x: &Array4<f32>| {
        let mut stored = x.clone();
        stored.invert_axis(Axis(2));
        let mut stored = stored.as_standard_layout().to_owned();
        stored.invert_axis(Axis(2));
        stored
    };
    for store in [transposed::<f32> as fn(&Array4<f32>) -> Array4<f32>, backwards] {
        let (mut k, mut v) = (store(&x.k), store(&x.v));
        let run = |k: ArrayView4<'_, f32>, v: ArrayView4<'_, f32>, level| {
            let a = Attention::new().bias(Bias::Dense(bias.view().into())).level(level);
            a.forward(&x.q, k, v).expect("fits").out
        };
        let clean: Vec<_> = levels().into_iter().map(|level| run(k.view(), v.view(), level)).collect();
        for key in (0..200).step_by(3) {
            k.slice_mut(s![0, 0, key, ..]).fill(f32::poison(Poison::Payload));
            v.slice_mut(s![0, 0, key, ..]).fill(f32::NAN);
        }
        for (level, clean) in levels().into_iter().zip(clean) {
            let got = run(k.view(), v.view(), level);
            assert!(clean.iter().zip(&got).all(|(&x, &y)| bits(x) == bits(y)), "{}", level.name());
        }
    }
}

/// The poisons are what they are called.
#[test]
fn poisons_are_nan_or_infinite_in_every_element_type() {
    fn all<E: Number>() {
        assert!(Poison::ALL.iter().take(4).all(|&p| E::poison(p).wide().is_nan()
            && <E as regard::Storage>::to_real(E::poison(p)) != <E as regard::Storage>::to_real(E::poison(p))));
        assert_eq!((E::poison(Poison::Infinity).wide(), E::poison(Poison::MinusInfinity).wide()), (f64::INFINITY, f64::NEG_INFINITY));
        assert_eq!(E::narrow(-1.5).wide(), -1.5);
    }
    for_every_type!(all);
}
