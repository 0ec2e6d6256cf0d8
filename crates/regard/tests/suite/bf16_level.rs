//! The levels that multiply bf16 in pairs or tiles: bits of their own for bf16, those of AVX-512 for everything else.

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, assert_same_gradients, d_out_for, gradients, masks, skip};
use half::{bf16, f16};
use ndarray::{Array4, s};
use regard::{Attention, Element, Forward, Level, Stage, StatsOptions};

/// Those of the levels that this CPU has.
fn present() -> impl Iterator<Item = Level> {
    let is_present = |level: &Level| {
        if !level.is_available() {
            skip(&format!("this CPU has no {}", level.name()));
        }
        level.is_available()
    };
    [Level::Avx512Bf16, Level::Amx].into_iter().filter(is_present)
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
    fn compare<E: Element>(level: Level) {
        for s in [Shape::new(1, 200, 17), Shape::new(70, 200, 32)] {
            let x = Inputs::<E>::normal(s, 1);
            let d_out = d_out_for(&x, 2);
            for (name, recipe) in options(&s) {
                let [a, b] = [level, Level::Avx512].map(|level| recipe.attention().level(level));
                let forward = |a: &Attention<'_>| a.forward(&x.q, &x.k, &x.v).expect("fits");
                assert_same(&format!("{name}, {s:?}"), &forward(&a), &forward(&b));
                assert_same_gradients(&format!("{name}, {s:?}"), &gradients(&a, &x, &d_out), &gradients(&b, &x, &d_out));
            }
        }
    }
    for level in present() {
        compare::<f32>(level);
        compare::<f64>(level);
        compare::<f16>(level);
    }
}

/// Otherwise the tests of this module would test the level below.
#[test]
fn bf16_has_bits_of_its_own() {
    for level in present() {
        let x = Inputs::<bf16>::normal(Shape::new(70, 200, 64), 1);
        let scores = |level| Attention::new().level(level).scores(&x.q, &x.k, Stage::Raw).expect("fits");
        let out =
            |level| Attention::new().level(level).forward_saved(&x.q, &x.k, &x.v).expect("fits").out_unrounded.expect("bf16 is rounded");
        for below in Level::available().filter(|&below| below < level) {
            for (what, [here, below]) in [("scores", [level, below].map(scores)), ("out", [level, below].map(out))] {
                assert!(here.iter().zip(&below).any(|(a, b)| a.to_bits() != b.to_bits()), "{what}, {level:?}");
                assert!(here.iter().zip(&below).all(|(a, b)| (a - b).abs() <= 2e-5), "{what}, {level:?}");
            }
        }
    }
}

#[test]
fn neither_threads_nor_statistics_nor_the_batch_change_a_bit() {
    for (level, s) in present().flat_map(|level| {
        [Shape::new(70, 150, 33).values(17), Shape::new(150, 130, 32), Shape::single(3, 4300, 16), Shape::single(2, 4300, 7)]
            .map(|s| (level, s))
    }) {
        let x = Inputs::<bf16>::normal(s, 1);
        let d_out = d_out_for(&x, 2);
        for (name, recipe) in options(&s) {
            let a = recipe.attention().level(level);
            let go = |threads| a.clone().threads(threads).forward(&x.q, &x.k, &x.v).expect("fits");
            let one = go(1);
            assert_same(&format!("threads, {name}, {s:?}, {level:?}"), &one, &go(3));
            let stats = StatsOptions { local_window: 3, top_keys: 2 };
            let (got, _) = a.forward_with_stats(&x.q, &x.k, &x.v, stats).expect("fits");
            assert_same(&format!("statistics, {name}, {s:?}, {level:?}"), &one, &got);
            let [one, three] = [1, 3].map(|threads| gradients(&a.clone().threads(threads), &x, &d_out));
            assert_same_gradients(&format!("threads, {name}, {s:?}, {level:?}"), &one, &three);
        }
        let a = Attention::new().causal_bottom_right().level(level);
        let whole = a.forward(&x.q, &x.k, &x.v).expect("fits");
        for b in 0..s.batch {
            let one = s![b..b + 1, .., .., ..];
            let alone = a.forward(x.q.slice(one), x.k.slice(one), x.v.slice(one)).expect("fits");
            assert_same_bits(&format!("entry {b}, {s:?}, {level:?}"), &alone.out, &whole.out.slice(one).to_owned());
        }
    }
}

/// Rows whose elements do not lie in pairs are copied, and so are the few keys at an end: other memory, the same bits.
#[test]
fn where_pairs_lie_does_not_change_a_bit() {
    for (level, dim) in present().flat_map(|level| [1, 2, 7, 31, 32, 64].map(|dim| (level, dim))) {
        let s = Shape::new(40, 140, dim).values(dim + 1);
        let x = Inputs::<bf16>::normal(s, 1);
        let a = Attention::new().causal_bottom_right().level(level);
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
            assert_same(&format!("{dim} elements, steps of {step}, {more} more, {level:?}"), &plain, &got);
        }
    }
}

/// With at most four rows, vectors run along the keys, with many rows along the rows.
#[test]
fn few_rows_have_the_bits_of_many() {
    for (level, dim) in present().flat_map(|level| [1, 2, 7, 31, 40, 64, 128].map(|dim| (level, dim))) {
        for (group, queries, keys) in [(4, 1, 200), (2, 1, 17), (2, 2, 150), (1, 1, 16), (1, 2, 15), (1, 3, 40), (1, 4, 3)] {
            let s = Shape { batch: 2, heads_q: 2 * group, heads_kv: 2, ..Shape::new(40, keys, dim) };
            let x = Inputs::<bf16>::normal(s, 1);
            let a = Attention::new().softcap(5.0).key_lengths(vec![keys, keys - 1]).level(level);
            let whole = a.forward(&x.q, &x.k, &x.v).expect("fits");
            for first in [0, 7, 40 - queries] {
                let rows = s![.., .., first..first + queries, ..];
                let few = a.forward(x.q.slice(rows), x.k.view(), x.v.view()).expect("fits");
                let what = format!("rows from {first} of {s:?}, {level:?}");
                assert_same_bits(&what, &few.out, &whole.out.slice(rows).to_owned());
                assert_same_bits(&what, &few.lse, &whole.lse.slice(s![.., .., first..first + queries]).to_owned());
            }
        }
    }
}

/// Tiles take 32 keys and 32 rows at a time: those that a row does not see, before and after, add nothing to its sums.
#[test]
fn neighbours_in_a_tile_do_not_change_a_bit() {
    for level in present() {
        let s = Shape::single(50, 300, 40);
        let x = Inputs::<bf16>::normal(s, 1);
        let d_out = d_out_for(&x, 2);
        for (first, keys) in [(0, 5), (0, 31), (3, 40), (100, 60), (130, 17), (250, 50)] {
            let last = first + keys;
            // Keys outside are hidden, or not there at all; where they begin within a tile, they are hidden before.
            let hidden = |key: usize| key < first || key >= last;
            let table = ndarray::Array4::from_shape_fn((1, 1, 1, 300), |(.., key)| !hidden(key));
            let masked = Attention::new().mask(regard::Mask::dense(&table)).level(level);
            let mut poisoned = x.clone();
            for key in (0..300).filter(|&key| hidden(key)) {
                poisoned.k.slice_mut(s![.., .., key, ..]).fill(bf16::NAN);
                poisoned.v.slice_mut(s![.., .., key, ..]).fill(bf16::INFINITY);
            }
            let what = format!("keys {first}..{last}, {level:?}");
            let whole = masked.forward(&x.q, &x.k, &x.v).expect("fits");
            assert_same(&what, &whole, &masked.forward(&x.q, &poisoned.k, &poisoned.v).expect("fits"));
            let [plain, poisoned] = [&x, &poisoned].map(|x| gradients(&masked, x, &d_out));
            let seen = s![.., .., first..last, ..];
            assert_same_bits(&format!("dq, {what}"), &plain.dq, &poisoned.dq);
            for (name, a, b) in [("dk", &plain.dk, &poisoned.dk), ("dv", &plain.dv, &poisoned.dv)] {
                assert_same_bits(&format!("{name}, {what}"), &a.slice(seen).to_owned(), &b.slice(seen).to_owned());
            }
            if first == 0 {
                let cut = Attention::new().level(level).forward(x.q.view(), x.k.slice(seen), x.v.slice(seen)).expect("fits");
                assert_same(&what, &whole, &cut);
            }
            // Other rows of the query tile.
            for rows in [0..1, 3..20, 33..50] {
                let rows = s![.., .., rows, ..];
                let alone = masked.forward(x.q.slice(rows), x.k.view(), x.v.view()).expect("fits");
                assert_same_bits(&what, &alone.out, &whole.out.slice(rows).to_owned());
            }
        }
    }
}

/// A weight is two parts where tiles are multiplied: an infinity that every row sees must not meet the zero of the second.
#[test]
fn visible_infinities_come_out_as_infinities() {
    for level in present() {
        let s = Shape::single(40, 50, 16);
        let mut x = Inputs::<bf16>::normal(s, 1);
        x.v[[0, 0, 7, 3]] = bf16::INFINITY;
        x.v[[0, 0, 9, 4]] = bf16::NEG_INFINITY;
        let out = Attention::new().level(level).forward(&x.q, &x.k, &x.v).expect("fits").out;
        for ((.., col), value) in out.indexed_iter().map(|((_, _, row, col), value)| ((row, col), value)) {
            match col {
                3 => assert_eq!(*value, bf16::INFINITY),
                4 => assert_eq!(*value, bf16::NEG_INFINITY),
                _ => assert!(value.is_finite()),
            }
        }
        // A row that sees one key alone: its weight is 1, of which nothing is left.
        let one = Attention::new().key_lengths(vec![1]).level(level);
        let mut first = x.clone();
        first.v[[0, 0, 0, 2]] = bf16::INFINITY;
        let mut expected = first.v.slice(s![0, 0, 0, ..]).to_owned();
        expected[2] = bf16::INFINITY;
        let got = one.forward(&first.q, &first.k, &first.v).expect("fits").out;
        assert!(got.rows().into_iter().all(|row| row == expected));
        let mut d_out = d_out_for(&x, 2);
        d_out[[0, 0, 5, 1]] = bf16::INFINITY;
        let dv = gradients(&one, &x, &d_out).dv;
        assert_eq!(dv[[0, 0, 0, 1]], bf16::INFINITY);
        assert!(dv.slice(s![.., .., .., 2..]).iter().all(|x| x.is_finite()));
    }
}

/// `vdpbf16ps` and `tdpbf16ps` take subnormal factors and results as zero. The former makes only products of two inputs: q with k, v with
/// d_out.
#[test]
fn subnormal_keys_count_as_zeros_and_subnormal_values_where_tiles_are_multiplied() {
    for level in present() {
        let s = Shape::new(20, 50, 16);
        let mut x = Inputs::<bf16>::normal(s, 1);
        let huge = bf16::from_f32(1e38);
        let tiny = bf16::from_bits(0x0040);
        assert!(tiny.to_f32() > 0.0 && !tiny.to_f32().is_normal());
        x.q.slice_mut(s![.., .., .., 3]).fill(huge);
        x.k.slice_mut(s![.., .., .., 3]).fill(bf16::ZERO);
        let scores = |k: &Array4<bf16>, level| Attention::new().level(level).scores(&x.q, k, Stage::Raw).expect("fits");
        let zeros = scores(&x.k, level);
        let mut subnormal = x.k.clone();
        subnormal.slice_mut(s![.., .., .., 3]).fill(tiny);
        assert_same_bits("subnormal keys", &zeros, &scores(&subnormal, level));
        assert!(scores(&subnormal, Level::Avx512).iter().zip(&zeros).all(|(a, b)| (a - b).abs() > 0.1));
        // A score that is itself subnormal.
        let small = Array4::from_elem((1, 1, 1, 2), bf16::from_f32(1e-20));
        let score =
            |level| Attention::new().scale(regard::Scale::Off).level(level).scores(&small, &small, Stage::Raw).expect("fits")[[0, 0, 0, 0]];
        assert_eq!(score(level).to_bits(), 0);
        assert!(score(Level::Avx512) > 0.0);
        // Weights in pairs are f32, and so are their products with the values; in tiles both are bf16.
        let v = Array4::from_elem(x.v.dim(), tiny);
        let out = Attention::new().level(level).forward(&small, &small, &Array4::from_elem((1, 1, 1, 2), tiny)).expect("fits").out;
        let expected = if level == Level::Amx { bf16::ZERO } else { tiny };
        assert!(out.iter().all(|&x| x == expected), "{level:?}");
        let [here, below] = [level, Level::Avx512].map(|level| Attention::new().level(level).forward(&x.q, &x.k, &v).expect("fits").out);
        assert!(below.iter().all(|x| x.to_f32() > 0.0));
        assert!(here.iter().all(|x| (x.to_f32() > 0.0) == (level != Level::Amx)), "{level:?}");
    }
}
