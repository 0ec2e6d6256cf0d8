//! Hidden means hidden: a masked key never contributes, whatever it holds. A row without any visible key is zero.
//! Empty dimensions are legal.

use crate::common::oracle::Options;
use crate::common::{Inputs, Recipe, Shape, bits, levels, masks, oracle, textbook, to, wide};
use half::{bf16, f16};
use ndarray::{Array4, s};
use regard::{Attention, Bias, Element, Mask, StatsOptions};

/// What the poison is put into.
#[derive(Debug, Clone, Copy)]
enum Where {
    K,
    V,
}

/// Poison one key. Rows that do not see it keep their bits; rows that do are what the textbook says: NaN or infinite.
fn poison<E: Element>(recipe: &Recipe, what: &str, x: &Inputs<E>, key: usize, number: f64, place: Where) {
    let clean = textbook(&recipe.options, x);
    let mut bad = x.clone();
    match place {
        Where::K => bad.k.slice_mut(s![.., .., key, ..]).fill(to(number)),
        Where::V => bad.v.slice_mut(s![.., .., key, 0]).fill(to(number)),
    }
    let exact = textbook(&recipe.options, &bad);
    for level in levels() {
        let what = format!("{what}: {number} in {place:?} at {key}, {} {}", std::any::type_name::<E>(), level.name());
        let a = recipe.attention().level(level);
        let before = a.forward(&x.q, &x.k, &x.v).expect(&what);
        let after = a.forward(&bad.q, &bad.k, &bad.v).expect(&what);
        for ((at, &x), &y) in before.out.indexed_iter().zip(&after.out) {
            let (b, h, i, d) = at;
            if !clean.visible[[b, h, i, key]] {
                assert!(bits(x) == bits(y), "{what}: a hidden key changed {x:?} to {y:?} at {at:?}");
                assert!(bits(before.lse[[b, h, i]]) == bits(after.lse[[b, h, i]]), "{what}: lse at {at:?}");
            } else {
                let z = exact.out[[b, h, i, d]];
                let same = if z.is_finite() { (wide(y) - z).abs() < 0.05 } else { bits(to::<E>(z)) == bits(y) };
                assert!(same, "{what}: a visible key gave {y:?} instead of {z} at {at:?}");
            }
        }
    }
}

#[test]
fn a_hidden_key_never_contributes_even_if_it_is_nan() {
    // Few rows, a panel and a part of one, and several panels to a tile, some of which see all of it.
    for s in [Shape::new(3, 140, 8), Shape::new(40, 140, 8).heads(2, 1), Shape::single(70, 300, 8)] {
        let x = Inputs::<f32>::normal(s, 3);
        for (name, recipe) in masks(&s) {
            for key in [0, 20, 139] {
                poison(&recipe, name, &x, key, f64::NAN, Where::K);
                for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    poison(&recipe, name, &x, key, number, Where::V);
                }
            }
        }
    }
}

#[test]
fn a_hidden_nan_stays_hidden_in_every_element_type() {
    fn all<E: Element>() {
        for s in [Shape::new(3, 40, 8), Shape::new(40, 40, 8), Shape::single(70, 140, 8)] {
            let x = Inputs::<E>::normal(s, 3);
            for (name, recipe) in [
                ("causal", Recipe::new().with(|a| a.causal())),
                // Every panel sees the first keys, the later ones all of the tile.
                ("causal, further on", Recipe::new().with(|a| a.causal().q_offset(30))),
                // The first panels see key 20, the later ones do not.
                ("open window", Recipe::new().with(|a| a.mask(oracle::Mask::Window(Some(9), None)))),
                ("bias", Recipe::new().dense_bias(s.scores(), 5)),
            ] {
                for number in [f64::NAN, f64::INFINITY] {
                    poison(&recipe, name, &x, 20, number, Where::V);
                }
                poison(&recipe, name, &x, 20, f64::NAN, Where::K);
            }
        }
    }
    all::<f64>();
    all::<f16>();
    all::<bf16>();
}

#[test]
fn a_bias_of_minus_infinity_hides_a_nan() {
    for n in [1, 40] {
        let shape = Shape::new(n, 140, 8);
        let x = Inputs::<f32>::normal(shape, 3);
        for seed in 0..3 {
            let recipe = Recipe::new().dense_bias(shape.scores(), seed);
            for key in [0, 139] {
                poison(&recipe, "bias", &x, key, f64::NAN, Where::K);
                poison(&recipe, "bias", &x, key, f64::NAN, Where::V);
            }
        }
    }
}

#[test]
fn a_value_that_top_k_leaves_out_may_be_nan() {
    for n in [1, 40] {
        let x = Inputs::<f32>::normal(Shape::new(n, 140, 8), 3);
        for key in 0..5 {
            poison(&Recipe::new().with(|a| a.top_k(30)), "top k", &x, key, f64::NAN, Where::V);
        }
    }
}

#[test]
fn a_nan_in_a_later_span_stays_where_it_is_seen() {
    for n in [2, 40] {
        let shape = Shape::single(n, 4300, 8);
        let x = Inputs::<f32>::normal(shape, 3);
        for (name, recipe) in [
            ("bottom right", Recipe::new().with(|a| a.causal_bottom_right())),
            ("lengths", Recipe::new().with(|a| a.key_lengths(vec![2100]))),
        ] {
            for key in [5, 2099, 4299] {
                poison(&recipe, name, &x, key, f64::NAN, Where::K);
                poison(&recipe, name, &x, key, f64::NAN, Where::V);
            }
        }
    }
}

#[test]
fn an_infinite_key_follows_the_rules_of_ieee() {
    for n in [1, 33] {
        let x = Inputs::<f64>::normal(Shape::new(n, 40, 1), 3);
        poison(&Recipe::new(), "full", &x, 7, f64::INFINITY, Where::K);
    }
}

#[test]
fn a_nan_query_gives_a_nan_row_and_no_other() {
    for (n, m) in [(3, 40), (40, 40), (3, 2100)] {
        let shape = Shape::new(n, m, 8);
        let x = Inputs::<f32>::normal(shape, 3);
        let mut bad = x.clone();
        bad.q[[1, 2, n - 2, 3]] = f32::NAN;
        for level in levels() {
            for a in [Attention::new(), Attention::new().causal_bottom_right(), Attention::new().softcap(2.0)] {
                let a = a.level(level);
                let (before, after) = (a.forward(&x.q, &x.k, &x.v).expect("fits"), a.forward(&bad.q, &bad.k, &bad.v).expect("fits"));
                for ((at, &x), &y) in before.out.indexed_iter().zip(&after.out) {
                    let poisoned = (at.0, at.1, at.2) == (1, 2, n - 2);
                    assert!(if poisoned { y.is_nan() } else { bits(x) == bits(y) }, "{y} at {at:?}, {n} x {m}, {}", level.name());
                }
                assert!(after.lse[[1, 2, n - 2]].is_nan());
            }
        }
    }
}

#[test]
fn a_row_without_any_visible_key_is_zero() {
    for (n, m) in [(1, 20), (9, 20), (40, 20), (20, 300), (2, 4200)] {
        let shape = Shape::new(n, m, 8);
        let x = Inputs::<f32>::normal(shape, 3);
        let dense = Array4::from_elem([1, 1, 1, 1], f32::NEG_INFINITY);
        let lengths = vec![0, m];
        for (name, a) in [
            ("mask", Attention::new().mask(!Mask::everything())),
            ("lengths", Attention::new().key_lengths(lengths)),
            ("bias", Attention::new().bias(Bias::Dense(dense.into()))),
            ("far away", Attention::new().causal().q_offset(-1_000_000)),
            ("window far away", Attention::new().window(3, 3).q_offset(1_000_000)),
            ("top k of nothing", Attention::new().mask(!Mask::everything()).top_k(2)),
        ] {
            for level in levels() {
                let a = a.clone().level(level);
                let (got, stats) = a.forward_with_stats(&x.q, &x.k, &x.v, StatsOptions { local_window: 2, top_keys: 2 }).expect(name);
                assert!(got.out.slice(s![0, .., .., ..]).iter().all(|&x| x.to_bits() == 0), "{name} {n} x {m}");
                assert!(got.lse.slice(s![0, .., ..]).iter().all(|&x| x == f32::NEG_INFINITY), "{name} {n} x {m}");
                assert!(a.weights(&x.q, &x.k).expect(name).slice(s![0, .., .., ..]).iter().all(|&w| w == 0.0));
                assert!(stats.argmax.slice(s![0, .., ..]).iter().all(|&key| key == -1));
                assert!(stats.entropy.slice(s![0, .., ..]).iter().all(|&x| x == 0.0));
                assert!(stats.top_keys.slice(s![0, .., .., ..]).iter().all(|&key| key == -1));
            }
        }
    }
}

#[test]
fn a_row_that_sees_only_a_sink_is_zero_with_the_sink_as_its_lse() {
    for m in [0, 20, 2100] {
        for n in [1, 20] {
            let shape = Shape::new(n, m, 8);
            let x = Inputs::<f32>::normal(shape, 3);
            for level in levels() {
                let a = Attention::new().mask(!Mask::everything()).sink(vec![1.5, -2.0, f64::NEG_INFINITY, 0.0]).level(level);
                let got = a.forward(&x.q, &x.k, &x.v).expect("fits");
                assert!(got.out.iter().all(|&x| x == 0.0), "{n} x {m}");
                for (head, lse) in [1.5, -2.0, f32::NEG_INFINITY, 0.0].into_iter().enumerate() {
                    assert!(got.lse.slice(s![.., head, ..]).iter().all(|&x| x == lse), "{n} x {m}: {:?}", got.lse);
                }
            }
        }
    }
}

/// Through every door.
#[test]
fn empty_dimensions_are_legal() {
    for shape in Shape::with_empty_sizes() {
        let x = Inputs::<f32>::normal(shape, 1);
        for level in levels() {
            for options in [Options::new(), Options::new().causal(), Options::new().top_k(2), Options::new().causal_bottom_right()] {
                let a = options.attention().level(level);
                let what = format!("{shape:?}");
                let got = a.forward(&x.q, &x.k, &x.v).expect(&what);
                let exact = textbook(&options, &x);
                assert_eq!(got.out.shape(), exact.out.shape());
                assert!(got.out.iter().zip(&exact.out).all(|(&x, &y)| (f64::from(x) - y).abs() < 1e-5), "{what}");
                assert!(got.lse.iter().zip(&exact.lse).all(|(&x, &y)| f64::from(x) == y || (f64::from(x) - y).abs() < 1e-5), "{what}");
                assert_eq!(a.weights(&x.q, &x.k).expect(&what).shape(), shape.scores());
                let sums = a.column_sums(&x.q, &x.k).expect(&what);
                assert_eq!(sums.shape(), [shape.batch, shape.heads_q, shape.seq_kv]);
                let map = a.heat_map(&x.q, &x.k, 2, 2).expect(&what);
                assert_eq!(map.mean.shape(), [shape.batch, shape.heads_q, shape.seq_q.min(2), shape.seq_kv.min(2)]);
                let alike = a.head_similarity(&x.q, &x.k).expect(&what);
                assert_eq!(alike.jensen_shannon.shape(), [shape.batch, shape.heads_q, shape.heads_q]);
                let (_, stats) = a.forward_with_stats(&x.q, &x.k, &x.v, StatsOptions::default()).expect(&what);
                assert_eq!(stats.heads().entropy.shape(), [shape.batch, shape.heads_q]);
            }
        }
    }
}
