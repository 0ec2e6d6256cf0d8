//! Keys and values in f16, bf16 and q8_0: the bits of the f32 path over the widened elements, which are widened here by hand.

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, levels, masks, normal};
use half::{bf16, f16};
use ndarray::{Array4, ArrayView4, Axis, s};
use regard::{Attention, CacheView, Element, Error, Forward, Mask, Q8Block, Real, q8_blocks};

#[derive(Debug, Clone, Copy)]
enum Kind {
    F16,
    Bf16,
    Q8,
}

const KINDS: [Kind; 3] = [Kind::F16, Kind::Bf16, Kind::Q8];

/// Rows as they are stored, and the elements that they stand for.
enum Stored {
    F16(Array4<f16>),
    Bf16(Array4<bf16>),
    Q8(Array4<Q8Block>, usize),
}

impl Stored {
    fn new<T: Real>(kind: Kind, x: &Array4<T>) -> Self {
        let narrow = |x: &T| x.to_f64() as f32;
        match kind {
            Kind::F16 => Self::F16(x.map(|x| f16::from_f32(narrow(x)))),
            Kind::Bf16 => Self::Bf16(x.map(|x| bf16::from_f32(narrow(x)))),
            Kind::Q8 => {
                let (batch, heads, seq, dim) = x.dim();
                let row = |b, h, t, block: usize| x.slice(s![b, h, t, 32 * block..dim.min(32 * block + 32)]).to_vec();
                let blocks = |(b, h, t, block)| Q8Block::quantise(&row(b, h, t, block));
                Self::Q8(Array4::from_shape_fn((batch, heads, seq, q8_blocks(dim)), blocks), dim)
            }
        }
    }

    fn view(&self) -> CacheView<'_> {
        match self {
            Self::F16(x) => x.view().into(),
            Self::Bf16(x) => x.view().into(),
            Self::Q8(x, dim) => CacheView::q8_0(x.view(), *dim).expect("as many blocks"),
        }
    }

    fn widened<T: Real>(&self) -> Array4<T> {
        match self {
            Self::F16(x) => x.mapv(|x| T::from_f64(x.to_f64())),
            Self::Bf16(x) => x.mapv(|x| T::from_f64(x.to_f64())),
            Self::Q8(x, dim) => {
                let (batch, heads, seq, _) = x.dim();
                let element = |(b, h, t, d): (usize, usize, usize, usize)| {
                    let block = x[[b, h, t, d / 32]];
                    T::from_f64(block.scale.to_f64() * f64::from(block.values[d % 32]))
                };
                Array4::from_shape_fn((batch, heads, seq, *dim), element)
            }
        }
    }
}

#[track_caller]
fn assert_same<T: Element>(what: &str, a: &Forward<T>, b: &Forward<T>) {
    assert_same_bits(&format!("out, {what}"), &a.out, &b.out);
    assert_same_bits(&format!("lse, {what}"), &a.lse, &b.lse);
}

/// Both ways, on every level.
#[track_caller]
fn check<T: Element + Real>(what: &str, attention: &Attention<'_>, x: &Inputs<T>, kind: Kind) {
    let (k, v) = (Stored::new(kind, &x.k), Stored::new(kind, &x.v));
    let (wide_k, wide_v) = (k.widened::<T>(), v.widened::<T>());
    for level in levels() {
        let what = format!("{what}, {kind:?}, {}", level.name());
        let attention = attention.clone().level(level);
        let expected = attention.forward(&x.q, &wide_k, &wide_v).expect(&what);
        assert_same(&what, &attention.forward_with_cache(&x.q, k.view(), v.view()).expect(&what), &expected);
        let mut out = Array4::from_elem(expected.out.raw_dim(), T::from_f64(77.0));
        attention.forward_with_cache_into(&x.q, k.view(), v.view(), out.view_mut(), None).expect(&what);
        assert_same_bits(&what, &out, &expected.out);
    }
}

#[test]
fn results_are_those_of_the_widened_elements() {
    // Decoding, few and many queries; one key to several splits; grouped heads; rows of less than a block, of whole blocks and of a rest.
    for (queries, keys, dim, values, heads) in [
        (1, 1, 1, 1, (1, 1)),
        (1, 131, 64, 64, (9, 3)),
        (1, 4100, 32, 80, (2, 1)),
        (1, 257, 80, 31, (4, 4)),
        (3, 45, 33, 64, (2, 2)),
        (4, 300, 100, 7, (6, 2)),
        (5, 129, 64, 64, (4, 1)),
        (70, 141, 48, 65, (2, 1)),
        (130, 2100, 31, 32, (1, 1)),
    ] {
        let s = Shape::single(queries, keys, dim).heads(heads.0, heads.1).values(values).batch(if keys < 1000 { 2 } else { 1 });
        let attention = Attention::new().causal_bottom_right();
        for kind in KINDS {
            check::<f32>(&format!("{s:?}"), &attention, &Inputs::normal(s, 5), kind);
            check::<f64>(&format!("{s:?}"), &attention, &Inputs::normal(s, 6), kind);
        }
    }
}

#[test]
fn every_option_works_over_compressed_keys() {
    for queries in [1, 40] {
        let s = Shape::single(queries, 200, 40).heads(4, 2).batch(2);
        let x = Inputs::<f32>::normal(s, 7);
        let mut recipes = masks(&s);
        recipes.push(("softcap and sink", Recipe::new().softcap(3.0).some_sink(&s)));
        recipes.push(("top k", Recipe::new().with(|a| a.causal_bottom_right().top_k(9))));
        recipes.push(("bias", Recipe::new().dense_bias(s.scores(), 3)));
        for (name, recipe) in recipes {
            for kind in KINDS {
                check(&format!("{name}, {queries} queries"), &recipe.attention(), &x, kind);
                check(&format!("{name}, dropout"), &recipe.attention().dropout(0.3, 11), &x, kind);
            }
        }
    }
}

#[test]
fn threads_and_pieces_of_the_queries_change_nothing() {
    let s = Shape::single(6, 9000, 64).heads(6, 2);
    let x = Inputs::<f32>::normal(s, 8);
    for kind in KINDS {
        let (k, v) = (Stored::new(kind, &x.k), Stored::new(kind, &x.v));
        let go = |q: ArrayView4<'_, f32>, threads: usize, offset: i64| {
            Attention::new().causal().q_offset(8994 + offset).threads(threads).forward_with_cache(q, k.view(), v.view()).expect("fits")
        };
        let one = go(x.q.view(), 1, 0);
        for threads in [2, 3, 5] {
            assert_same(&format!("{kind:?}, {threads} threads"), &go(x.q.view(), threads, 0), &one);
        }
        for (row, out) in one.out.axis_iter(Axis(2)).enumerate() {
            let alone = go(x.q.slice(s![.., .., row..=row, ..]), 2, row as i64);
            assert_same_bits(&format!("{kind:?}, query {row} alone"), &alone.out.index_axis(Axis(2), 0).to_owned(), &out.to_owned());
        }
    }
}

#[test]
fn keys_and_values_may_be_of_different_types_and_strides() {
    let s = Shape::single(2, 150, 64).heads(4, 2).batch(2);
    let x = Inputs::<f32>::normal(s, 9);
    for (a, b) in [(Kind::Q8, Kind::Bf16), (Kind::F16, Kind::Q8)] {
        let (k, v) = (Stored::new(a, &x.k), Stored::new(b, &x.v));
        let expected = Attention::new().forward(&x.q, &k.widened::<f32>(), &v.widened::<f32>()).expect("fits");
        assert_same("two types", &Attention::new().forward_with_cache(&x.q, k.view(), v.view()).expect("fits"), &expected);
    }
    // A part of a larger allocation, backwards, one batch entry for all.
    let Stored::Q8(blocks, _) = Stored::new(Kind::Q8, &x.k) else { panic!("of blocks") };
    let Stored::Bf16(pairs) = Stored::new(Kind::Bf16, &x.v) else { panic!("of bf16") };
    let blocks = blocks.slice(s![..1, .., 20..;-1, ..]);
    let pairs = pairs.slice(s![..1, .., 20.., ..;-1]);
    let (two, shape) = (|x: ndarray::Dim<[usize; 4]>| ndarray::Dim([2, x[1], x[2], x[3]]), (2, 2, 130, 64));
    let (k, v) = (blocks.broadcast(two(blocks.raw_dim())).expect("one entry"), pairs.broadcast(two(pairs.raw_dim())).expect("one entry"));
    let wide_k = Array4::from_shape_fn(shape, |(b, h, t, d)| k[[b, h, t, d / 32]].widen()[d % 32]);
    let wide_v = v.mapv(|x| x.to_f32());
    let expected = Attention::new().window(90, 3).align_end().forward(&x.q, &wide_k, &wide_v).expect("fits");
    let k = CacheView::q8_0(k, 64).expect("two blocks");
    let got = Attention::new().window(90, 3).align_end().forward_with_cache(&x.q, k, v.into()).expect("fits");
    assert_same("strides", &got, &expected);
}

#[test]
fn what_is_not_finite_shows_where_it_is_visible_and_nowhere_else() {
    for queries in [1, 3, 50] {
        for kind in KINDS {
            for bad in [f32::NAN, f32::INFINITY] {
                let s = Shape::single(queries, 140, 64).heads(2, 1);
                let clean = Inputs::<f32>::normal(s, 10);
                let mut x = clean.clone();
                (x.k[[0, 0, 133, 40]], x.v[[0, 0, 133, 40]]) = (bad, bad);
                let go = |attention: &Attention<'_>, x: &Inputs<f32>| {
                    let (k, v) = (Stored::new(kind, &x.k), Stored::new(kind, &x.v));
                    attention.forward_with_cache(&x.q, k.view(), v.view()).expect("fits").out
                };
                let hidden = Attention::new().mask(!Mask::window(Some(0), Some(0))).q_offset(133 - queries as i64 + 1);
                let last = queries - 1;
                let (spoiled, right) = (go(&hidden, &x), go(&hidden, &clean));
                let row = |x: &Array4<f32>| x.slice(s![.., .., last, ..]).to_owned();
                assert_same_bits(&format!("hidden {bad}, {kind:?}, {queries} queries"), &row(&spoiled), &row(&right));
                let seen = go(&Attention::new(), &x);
                assert!(seen.iter().any(|x| x.is_nan()), "{bad} is not seen, {kind:?}, {queries} queries");
                if matches!(kind, Kind::Q8) {
                    assert!(seen.slice(s![.., .., .., 32..]).iter().all(|x| x.is_nan()), "a block is NaN as a whole");
                }
                check(&format!("{bad}"), &hidden, &x, kind);
                check(&format!("{bad}"), &Attention::new().causal_bottom_right(), &x, kind);
            }
        }
    }
}

#[test]
fn wrong_shapes_are_refused_before_anything_is_written() {
    let q = normal::<f32>([1, 2, 1, 64], 1);
    let blocks = Array4::from_elem((1, 1, 9, 2), Q8Block::ZERO);
    let said = CacheView::q8_0(blocks.view(), 65).expect_err("three blocks").to_string();
    assert!(said.contains("[1, 1, 9, 2]") && said.contains("[1, 1, 9, 3]"), "{said}");
    let cache = CacheView::q8_0(blocks.view(), 63).expect("two blocks");
    assert_eq!(cache.shape(), [1, 1, 9, 63]);
    let refused = |k, v| {
        let mut out = Array4::from_elem((1, 2, 1, 64), 77f32);
        let error = Attention::new().forward_with_cache_into(&q, k, v, out.view_mut(), None).expect_err("must be refused");
        assert!(out.iter().all(|x| *x == 77.0), "a refused call wrote to its buffer");
        error
    };
    let whole = CacheView::q8_0(blocks.view(), 64).expect("two blocks");
    assert!(matches!(refused(cache, cache), Error::HeadDim { .. }));
    assert!(matches!(refused(whole, cache), Error::OutputShape { .. }));
    let short = CacheView::q8_0(blocks.slice(s![.., .., 1.., ..]), 64).expect("two blocks");
    assert!(matches!(refused(whole, short), Error::KeyValueLength { .. }));
}
