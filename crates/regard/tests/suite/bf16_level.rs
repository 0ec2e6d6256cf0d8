//! The level that multiplies pairs of bf16: bits of its own for bf16, those of AVX-512 for everything else.

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, assert_same_gradients, d_out_for, gradients, masks, skip};
use half::{bf16, f16};
use ndarray::{Array4, s};
use regard::{Attention, Element, Forward, Level, Stage, StatsOptions};

const LEVEL: Level = Level::Avx512Bf16;

fn is_missing() -> bool {
    if !LEVEL.is_available() {
        skip("this CPU has no AVX512_BF16");
    }
    !LEVEL.is_available()
}

#[track_caller]
fn assert_same<E: Element>(what: &str, a: &Forward<E>, b: &Forward<E>) {
    assert_same_bits(&format!("out, {what}"), &a.out, &b.out);
    assert_same_bits(&format!("lse, {what}"), &a.lse, &b.lse);
}

fn options(s: &Shape) -> Vec<(&'static str, Recipe)> {
    let more = [
        ("softcap and sink", Recipe::new().softcap(3.0).some_sink(s)),
        ("top k", Recipe::new().with(|a| a.causal_bottom_right().top_k(9))),
        ("bias", Recipe::new().dense_bias(s.scores(), 3)),
        ("dropout", Recipe::new().with(|a| a.causal_bottom_right().dropout(0.2, 5))),
    ];
    masks(s).into_iter().chain(more).collect()
}

#[test]
fn other_elements_have_the_bits_of_avx512() {
    if is_missing() {
        return;
    }
    fn compare<E: Element>() {
        for s in [Shape::new(1, 200, 17), Shape::new(70, 200, 32)] {
            let x = Inputs::<E>::normal(s, 1);
            let d_out = d_out_for(&x, 2);
            for (name, recipe) in options(&s) {
                let [a, b] = [LEVEL, Level::Avx512].map(|level| recipe.attention().level(level));
                let forward = |a: &Attention<'_>| a.forward(&x.q, &x.k, &x.v).expect("fits");
                assert_same(&format!("{name}, {s:?}"), &forward(&a), &forward(&b));
                assert_same_gradients(&format!("{name}, {s:?}"), &gradients(&a, &x, &d_out), &gradients(&b, &x, &d_out));
            }
        }
    }
    compare::<f32>();
    compare::<f64>();
    compare::<f16>();
}

/// Otherwise the tests of this module would test the level below.
#[test]
fn bf16_has_bits_of_its_own() {
    if is_missing() {
        return;
    }
    let x = Inputs::<bf16>::normal(Shape::new(70, 200, 64), 1);
    let scores = |level| Attention::new().level(level).scores(&x.q, &x.k, Stage::Raw).expect("fits");
    let (here, below) = (scores(LEVEL), scores(Level::Avx512));
    assert!(here.iter().zip(&below).any(|(a, b)| a.to_bits() != b.to_bits()));
    assert!(here.iter().zip(&below).all(|(a, b)| (a - b).abs() <= 1e-5));
}

#[test]
fn neither_threads_nor_statistics_nor_the_batch_change_a_bit() {
    if is_missing() {
        return;
    }
    for s in [Shape::new(70, 150, 33).values(17), Shape::new(150, 130, 32), Shape::single(3, 4300, 16), Shape::single(2, 4300, 7)] {
        let x = Inputs::<bf16>::normal(s, 1);
        let d_out = d_out_for(&x, 2);
        for (name, recipe) in options(&s) {
            let a = recipe.attention().level(LEVEL);
            let go = |threads| a.clone().threads(threads).forward(&x.q, &x.k, &x.v).expect("fits");
            let one = go(1);
            assert_same(&format!("threads, {name}, {s:?}"), &one, &go(3));
            let stats = StatsOptions { local_window: 3, top_keys: 2 };
            let (got, _) = a.forward_with_stats(&x.q, &x.k, &x.v, stats).expect("fits");
            assert_same(&format!("statistics, {name}, {s:?}"), &one, &got);
            let [one, three] = [1, 3].map(|threads| gradients(&a.clone().threads(threads), &x, &d_out));
            assert_same_gradients(&format!("threads, {name}, {s:?}"), &one, &three);
        }
        let a = Attention::new().causal_bottom_right().level(LEVEL);
        let whole = a.forward(&x.q, &x.k, &x.v).expect("fits");
        for b in 0..s.batch {
            let one = s![b..b + 1, .., .., ..];
            let alone = a.forward(x.q.slice(one), x.k.slice(one), x.v.slice(one)).expect("fits");
            assert_same_bits(&format!("entry {b}, {s:?}"), &alone.out, &whole.out.slice(one).to_owned());
        }
    }
}

/// Rows whose elements do not lie in pairs are copied: other memory, the same bits.
#[test]
fn where_pairs_lie_does_not_change_a_bit() {
    if is_missing() {
        return;
    }
    for dim in [1, 2, 7, 64] {
        let s = Shape::new(40, 140, dim).values(dim + 1);
        let x = Inputs::<bf16>::normal(s, 1);
        let a = Attention::new().causal_bottom_right().level(LEVEL);
        let plain = a.forward(&x.q, &x.k, &x.v).expect("fits");
        // Rows an odd number of elements apart; elements in every other place.
        let apart = |x: &Array4<bf16>, step: usize, more: usize| {
            let (b, h, n, d) = x.dim();
            let mut wide = Array4::from_elem((b, h, n, d * step + more), bf16::NAN);
            wide.slice_mut(s![.., .., .., ..d * step;step]).assign(x);
            wide
        };
        for (step, more) in [(1, 1), (1, 2), (2, 1)] {
            let [q, k, v] = [&x.q, &x.k, &x.v].map(|x| apart(x, step, more));
            let view = |x: &Array4<bf16>, d: usize| x.clone().slice_move(s![.., .., .., ..d * step;step]);
            let (q, k, v) = (view(&q, dim), view(&k, dim), view(&v, dim + 1));
            let got = a.forward(q.view(), k.view(), v.view()).expect("fits");
            assert_same(&format!("{dim} elements, steps of {step}, {more} more"), &plain, &got);
        }
    }
}

/// `vdpbf16ps` takes subnormal factors and results as zero. Only products of two inputs are made by it: q with k, v with d_out.
#[test]
fn subnormal_keys_count_as_zeros_and_subnormal_values_stay() {
    if is_missing() {
        return;
    }
    let s = Shape::new(20, 50, 16);
    let mut x = Inputs::<bf16>::normal(s, 1);
    let huge = bf16::from_f32(1e38);
    let tiny = bf16::from_bits(0x0040);
    assert!(tiny.to_f32() > 0.0 && !tiny.to_f32().is_normal());
    x.q.slice_mut(s![.., .., .., 3]).fill(huge);
    x.k.slice_mut(s![.., .., .., 3]).fill(bf16::ZERO);
    let scores = |k: &Array4<bf16>, level| Attention::new().level(level).scores(&x.q, k, Stage::Raw).expect("fits");
    let zeros = scores(&x.k, LEVEL);
    let mut subnormal = x.k.clone();
    subnormal.slice_mut(s![.., .., .., 3]).fill(tiny);
    assert_same_bits("subnormal keys", &zeros, &scores(&subnormal, LEVEL));
    assert!(scores(&subnormal, Level::Avx512).iter().zip(&zeros).all(|(a, b)| (a - b).abs() > 0.1));
    // A score that is itself subnormal.
    let small = Array4::from_elem((1, 1, 1, 2), bf16::from_f32(1e-20));
    let score =
        |level| Attention::new().scale(regard::Scale::Off).level(level).scores(&small, &small, Stage::Raw).expect("fits")[[0, 0, 0, 0]];
    assert_eq!(score(LEVEL).to_bits(), 0);
    assert!(score(Level::Avx512) > 0.0);
    // Weights are f32, and so are their products with the values.
    let v = Array4::from_elem(x.v.dim(), tiny);
    let out = Attention::new().level(LEVEL).forward(&small, &small, &Array4::from_elem((1, 1, 1, 2), tiny)).expect("fits").out;
    assert!(out.iter().all(|&x| x == tiny));
    let [here, below] = [LEVEL, Level::Avx512].map(|level| Attention::new().level(level).forward(&x.q, &x.k, &v).expect("fits"));
    assert!(here.out.iter().chain(&below.out).all(|x| x.to_f32() > 0.0));
}
