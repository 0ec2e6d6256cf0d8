//! A whole in pieces has the bits of one call: keys that come one after the other, rectangles of the gradients, on any cut that is allowed.

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, d_out_for, levels, masks, oracle};
use half::bf16;
use ndarray::{Array2, Array4, ArrayView4, s};
use regard::{
    Attention, Element, Error, GlobalOffset, HeadPosition, HeatMapCells, HeatMapState, Mask, MaskRule, PartInputs, PartSums, Real,
    RowStats, RunningAttention, SoftmaxDenominators, StatsOptions, alibi_slopes,
};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

fn tokens<'x, T>(x: &'x Array4<T>, range: &Range<usize>) -> ArrayView4<'x, T> {
    x.slice(s![.., .., range.clone(), ..])
}

/// From multiple of `step` to multiple of `step`, and to the end.
fn cut(n: usize, step: usize) -> Vec<Range<usize>> {
    (0..n).step_by(step).map(|first| first..n.min(first + step)).collect()
}

fn part(query: usize, key: usize, whole: [usize; 4]) -> GlobalOffset {
    GlobalOffset { batch: 0, query, key, whole }
}

const STATS: StatsOptions = StatsOptions { local_window: 5, top_keys: 3 };

fn assert_same_stats<T: Real>(what: &str, a: &RowStats<T>, b: &RowStats<T>, rows: &Range<usize>) {
    let part = |x: &ndarray::Array3<T>| x.slice(s![.., .., rows.clone()]).to_owned();
    let fields = |x: &RowStats<T>| {
        [
            &x.entropy,
            &x.max_weight,
            &x.sum_of_squares,
            &x.diagonal_mass,
            &x.previous_token_mass,
            &x.first_token_mass,
            &x.local_mass,
            &x.mean_distance,
        ]
        .map(Clone::clone)
    };
    fields(a).into_iter().zip(fields(b)).for_each(|(a, b)| assert_same_bits(what, &part(&a), &b));
    assert_eq!(a.argmax.slice(s![.., .., rows.clone()]), b.argmax, "{what}");
    assert_eq!(a.top_keys.slice(s![.., .., rows.clone(), ..]), b.top_keys, "{what}");
    assert_same_bits(what, &tokens(&a.top_weights, rows).to_owned(), &b.top_weights);
}

/// Rows of every part, keys in pieces of every size.
fn check_forward<E: Element>(what: &str, attention: &Attention<'_>, x: &Inputs<E>, rows: &[[usize; 2]], steps: &[usize]) {
    let whole = attention.forward_saved(&x.q, &x.k, &x.v).expect("fits");
    let (_, stats) = attention.forward_with_stats(&x.q, &x.k, &x.v, STATS).expect("fits");
    let scores = [x.q.shape()[0], x.q.shape()[1], x.q.shape()[2], x.k.shape()[2]];
    for (rows, &step) in rows.iter().flat_map(|&[start, end]| steps.iter().map(move |step| (start..end, step))) {
        let what = format!("{what}, rows {rows:?}, {step} keys at a time");
        for wanted in [None, Some(STATS)] {
            let mut so_far = RunningAttention::default();
            so_far.stats = wanted;
            let mut result = None;
            for keys in cut(scores[3], step) {
                assert!(result.is_none(), "a result before the last keys, {what}");
                let place = part(rows.start, keys.start, scores);
                let (k, v) = (tokens(&x.k, &keys), tokens(&x.v, &keys));
                result = attention.forward_part(place, tokens(&x.q, &rows), k, v, &mut so_far).expect("the next piece");
            }
            let (saved, row_stats) = result.expect("all keys were there");
            assert_same_bits(&what, &tokens(&whole.out, &rows).to_owned(), &saved.out);
            assert_same_bits(&what, &whole.row_max.slice(s![.., .., rows.clone()]).to_owned(), &saved.row_max);
            assert_same_bits(&what, &whole.row_sum.slice(s![.., .., rows.clone()]).to_owned(), &saved.row_sum);
            let out_unrounded =
                |x: &Option<Array4<E::Real>>| x.as_ref().map(|x| x.iter().map(|x| x.to_f64().to_bits()).collect::<Vec<_>>());
            assert_eq!(
                out_unrounded(&whole.out_unrounded.as_ref().map(|x| tokens(x, &rows).to_owned())),
                out_unrounded(&saved.out_unrounded),
                "{what}"
            );
            assert_eq!(row_stats.is_some(), wanted.is_some());
            row_stats.into_iter().for_each(|row_stats| assert_same_stats(&what, &stats, &row_stats, &rows));
        }
    }
}

/// Each piece in a process of its own, which knows what can be known before the state of the rows comes to it as bytes.
fn check_handed_on<E: Element>(what: &str, attention: &Attention<'_>, x: &Inputs<E>, step: usize) {
    let whole = attention.forward_saved(&x.q, &x.k, &x.v).expect("fits");
    let scores = [x.q.shape()[0], x.q.shape()[1], x.q.shape()[2], x.k.shape()[2]];
    let (mut carried, mut result) = (RunningAttention::<E::Real>::default().to_bytes().expect("no statistics"), None);
    for keys in cut(scores[3], step) {
        let (place, k, v) = (part(0, keys.start, scores), tokens(&x.k, &keys), tokens(&x.v, &keys));
        let mut so_far = RunningAttention::default();
        attention.precompute_splits(place, &x.q, k, v, &mut so_far).expect("a piece");
        so_far.read_bytes(&carried).expect("a state");
        result = attention.forward_part(place, &x.q, k, v, &mut so_far).expect("the next piece");
        carried = so_far.to_bytes().expect("no statistics");
    }
    let (saved, _) = result.expect("all keys were there");
    assert_same_bits(what, &whole.out, &saved.out);
    assert_same_bits(what, &whole.row_max, &saved.row_max);
    assert_same_bits(what, &whole.row_sum, &saved.row_sum);
}

/// Every rectangle of queries and spans of keys, in an order that is neither that of the queries nor that of the keys.
fn check_backward<E: Element>(what: &str, attention: &Attention<'_>, x: &Inputs<E>, chunk: usize) {
    let d_out = d_out_for(x, 7);
    let saved = attention.forward_saved(&x.q, &x.k, &x.v).expect("fits");
    let whole = attention.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
    let scores = [x.q.shape()[0], x.q.shape()[1], x.q.shape()[2], x.k.shape()[2]];
    let zeros = |x: &Array4<E>| Array4::from_elem(x.raw_dim(), E::Real::ZERO);
    let (mut dq, mut dk, mut dv) = (zeros(&x.q), zeros(&x.k), zeros(&x.v));
    let (chunks, blocks) = (cut(scores[2], chunk), cut(scores[3], 256));
    let mut tasks: Vec<_> = (0..chunks.len()).flat_map(|c| (0..blocks.len()).map(move |j| (c, j))).collect();
    tasks.sort_by_key(|&(c, j)| (c + j, j));
    for (c, j) in tasks {
        let (queries, keys) = (&chunks[c], &blocks[j]);
        let rows = |x: &ndarray::Array3<E::Real>| x.slice(s![.., .., queries.clone()]).to_owned();
        let out_unrounded = saved.out_unrounded.as_ref().map(|x| tokens(x, queries).to_owned());
        let saved = regard::Saved {
            out: tokens(&saved.out, queries).to_owned(),
            out_unrounded,
            row_max: rows(&saved.row_max),
            row_sum: rows(&saved.row_sum),
        };
        let (q, k, v) = (tokens(&x.q, queries), tokens(&x.k, keys), tokens(&x.v, keys));
        // What is in it does not matter: it is written.
        let mut share = Array4::from_elem(q.raw_dim(), E::Real::ONE);
        let here = s![.., .., keys.clone(), ..];
        let sums = PartSums { dq: &mut share.view_mut(), dk: &mut dk.slice_mut(here), dv: &mut dv.slice_mut(here) };
        let place = part(queries.start, keys.start, scores);
        attention.backward_part(place, PartInputs { q, k, v, d_out: tokens(&d_out, queries) }, &saved, sums).expect("a part");
        let mut to = dq.slice_mut(s![.., .., queries.clone(), ..]);
        // One span is its own sum.
        if blocks.len() == 1 { to.assign(&share) } else { to.zip_mut_with(&share, |to, &x| *to += x) }
    }
    let scale = E::Real::from_f64(attention.scale_of(x.q.shape()[3]));
    assert_same_bits(&format!("dq, {what}"), &whole.dq, &dq.mapv(|x| E::from_real(x * scale)));
    assert_same_bits(&format!("dk, {what}"), &whole.dk, &dk.mapv(E::from_real));
    assert_same_bits(&format!("dv, {what}"), &whole.dv, &dv.mapv(E::from_real));
}

/// Options that masks are not.
fn options(s: &Shape) -> Vec<(&'static str, Recipe)> {
    vec![
        ("full", Recipe::new()),
        ("end", Recipe::new().with(|a| a.causal_bottom_right())),
        ("softcap, sink and dropout", Recipe::new().softcap(3.0).some_sink(s).with(|a| a.causal_bottom_right().dropout(0.2, 5))),
        ("alibi", Recipe::new().with(|a| a.bias(oracle::Bias::Alibi(alibi_slopes(s.heads_q))))),
        ("dense bias", Recipe::new().dense_bias(s.scores(), 3)),
    ]
}

#[test]
fn keys_in_pieces_have_the_bits_of_one_call() {
    for (s, rows, steps) in [
        (Shape::single(70, 4400, 16).heads(2, 1), vec![[0, 70], [17, 20], [5, 5]], vec![768, 2304]),
        (Shape::new(3, 2300, 9), vec![[0, 3], [1, 2]], vec![512]),
        (Shape::new(130, 130, 8), vec![[64, 130]], vec![1 << 20]),
    ] {
        let x = Inputs::<f32>::normal(s, 1);
        for (i, (name, recipe)) in masks(&s).into_iter().chain(options(&s)).enumerate() {
            check_forward(&format!("{name}, {s:?}"), &recipe.attention().threads(1 + i % 2), &x, &rows, &steps);
        }
    }
}

#[test]
fn keys_in_pieces_of_other_types_and_levels() {
    let s = Shape::single(70, 2400, 12).heads(2, 2);
    for (name, recipe) in options(&s) {
        for level in levels() {
            let a = recipe.attention().level(level);
            check_forward(&format!("f64, {name}"), &a, &Inputs::<f64>::normal(s, 2), &[[3, 70]], &[256, 2048]);
            check_forward(&format!("bf16, {name}"), &a, &Inputs::<bf16>::normal(s, 3), &[[3, 70]], &[256, 2048]);
        }
    }
}

/// A row that a NaN spoils, and sums that underflow to minus zero.
#[test]
fn pieces_keep_what_is_not_finite_and_the_sign_of_zero() {
    let s = Shape::single(70, 4300, 8);
    let mut x = Inputs::<f32>::normal(s, 4);
    x.k[[0, 0, 3000, 1]] = f32::NAN;
    x.v[[0, 0, 700, 2]] = f32::INFINITY;
    x.v.slice_mut(s![.., .., .., 5]).fill(-1e-45);
    for (name, recipe) in masks(&s) {
        check_forward(&format!("wild, {name}"), &recipe.attention(), &x, &[[0, 70]], &[256, 2048]);
    }
}

#[test]
fn what_is_known_ahead_and_handed_on_as_bytes_has_the_bits_of_one_call() {
    for (s, steps) in [
        (Shape::single(1, 6500, 16).heads(2, 1), [768, 2048]),
        (Shape::new(5, 4400, 9), [1280, 4096]),
        (Shape::single(70, 4400, 8).heads(2, 1), [768, 2304]),
    ] {
        let mut x = Inputs::<f32>::normal(s, 1);
        x.k[[0, 0, 3000, 1]] = f32::NAN;
        x.v[[0, 0, 700, 2]] = f32::INFINITY;
        x.v.slice_mut(s![.., .., .., 5]).fill(-1e-45);
        let wide = Inputs::<f64>::normal(s, 2);
        for (i, (name, recipe)) in masks(&s).into_iter().chain(options(&s)).enumerate() {
            let (a, step) = (recipe.attention().threads(1 + i % 2), steps[i % 2]);
            check_handed_on(&format!("{name}, {s:?}, {step} keys at a time"), &a, &x, step);
            check_handed_on(&format!("f64, {name}, {s:?}, {step} keys at a time"), &a, &wide, step);
        }
        for level in levels() {
            check_handed_on(&format!("{s:?}, {}", level.name()), &Attention::new().level(level), &x, 768);
        }
    }
}

#[test]
fn a_state_that_is_none_is_refused() {
    let s = Shape::single(3, 4400, 8).heads(2, 1);
    let (x, a) = (Inputs::<f32>::normal(s, 1), Attention::new());
    let go_on = |a: &Attention<'_>, x: &Inputs<f32>, bytes: &[u8]| {
        let (shape, mut so_far) = ([1, x.q.shape()[1], x.q.shape()[2], 4400], RunningAttention::default());
        so_far.read_bytes(bytes)?;
        let keys = 2304..4400;
        a.forward_part(part(0, 2304, shape), &x.q, tokens(&x.k, &keys), tokens(&x.v, &keys), &mut so_far).map(|_| ())
    };
    let mut so_far = RunningAttention::default();
    let keys = 0..2304;
    a.forward_part(part(0, 0, s.scores()), &x.q, tokens(&x.k, &keys), tokens(&x.v, &keys), &mut so_far).expect("a piece");
    let bytes = so_far.to_bytes().expect("no statistics");
    // The place, then one tile of six rows, with two sums.
    let first = 8 + 8 * 8;
    assert_eq!(bytes.len(), first + 8 + 12 + 2 * (4 + 6 * (2 + s.value_dim) * 4));
    assert_eq!(go_on(&a, &x, &bytes), Ok(()));
    let is_refused = |what: &str, result: Result<(), Error>| assert!(matches!(result, Err(Error::State { .. })), "{what}: {result:?}");
    for short in 0..bytes.len() {
        is_refused("cut short", go_on(&a, &x, &bytes[..short]));
    }
    is_refused("a byte more", go_on(&a, &x, &[&bytes[..], &[0]].concat()));
    is_refused("other numbers", RunningAttention::<f64>::default().read_bytes(&bytes));
    let state = first + 24;
    let last = state + 6 * (2 + s.value_dim) * 4;
    for at in (0..state).chain(last - 4..last) {
        let mut other = bytes.clone();
        other[at] = 255;
        let result = go_on(&a, &x, &other);
        let refused = matches!(result, Err(Error::State { .. } | Error::PieceOrder { .. }));
        assert!(at >= state || refused, "byte {at}: {result:?}");
    }
    let other = Inputs::<f32>::normal(Shape::single(2, 4400, 8).heads(2, 1), 1);
    is_refused("other rows", go_on(&a, &other, &bytes));
    let other = Inputs::<f32>::normal(Shape::single(130, 4400, 8).heads(2, 1), 1);
    is_refused("more tiles", go_on(&a, &other, &bytes));
    let wider = Inputs { q: x.q.clone(), k: x.k.clone(), v: Array4::zeros([1, 1, 4400, 11]) };
    is_refused("values of another size", go_on(&a, &wider, &bytes));
    is_refused("rows that see one split", go_on(&Attention::new().mask(Mask::first_keys(100)), &x, &bytes));
    // What was found ahead belongs to one call.
    let mut so_far = RunningAttention::default();
    a.precompute_splits(part(0, 0, s.scores()), &x.q, tokens(&x.k, &keys), tokens(&x.v, &keys), &mut so_far).expect("a piece");
    let less = 0..2048;
    is_refused("ahead", a.forward_part(part(0, 0, s.scores()), &x.q, tokens(&x.k, &less), tokens(&x.v, &less), &mut so_far).map(|_| ()));
    so_far.stats = Some(STATS);
    assert!(matches!(so_far.to_bytes(), Err(Error::Unsupported { .. })));
    let refused = a.precompute_splits(part(0, 0, s.scores()), &x.q, tokens(&x.k, &keys), tokens(&x.v, &keys), &mut so_far);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
}

#[test]
fn gradients_in_parts_have_the_bits_of_one_call() {
    for s in [
        Shape::single(600, 700, 16).heads(2, 1),
        Shape::single(577, 577, 9).batch(2),
        Shape::new(65, 130, 16),
        Shape::new(20, 600, 8).heads(4, 1),
    ] {
        let x = Inputs::<f32>::normal(s, 1);
        for (i, (name, recipe)) in masks(&s).into_iter().chain(options(&s)).enumerate() {
            let (threads, chunk) = [(1, 256), (2, 512), (3, 1024)][i % 3];
            let a = recipe.attention().threads(threads).bias_gradient(false);
            check_backward(&format!("{name}, {s:?}, {threads} threads, {chunk} queries"), &a, &x, chunk);
        }
    }
}

#[test]
fn gradients_in_parts_of_other_types_and_levels() {
    let s = Shape::single(330, 520, 12).heads(2, 1);
    for (name, recipe) in options(&s) {
        for level in levels() {
            let a = recipe.attention().level(level).bias_gradient(false);
            check_backward(&format!("f64, {name}"), &a, &Inputs::<f64>::normal(s, 2), 256);
            check_backward(&format!("bf16, {name}"), &a, &Inputs::<bf16>::normal(s, 3), 256);
        }
    }
}

/// The gradient on sinks, of rows and no keys: parts of it add up in the order of the rows.
#[test]
fn rows_without_keys_have_the_gradient_on_their_sinks() {
    let s = Shape::single(300, 300, 8).heads(2, 1);
    let (x, recipe) = (Inputs::<f32>::normal(s, 1), Recipe::new().some_sink(&s));
    let (a, d_out) = (recipe.attention(), d_out_for(&x, 2));
    let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
    let whole = a.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits").d_sink.expect("there are sinks");
    let (mut dq, none) = (x.q.clone(), Array4::<f32>::zeros([1, 1, 0, 8]));
    let (mut dk, mut dv) = (none.clone(), none.clone());
    let sums = PartSums { dq: &mut dq.view_mut(), dk: &mut dk.view_mut(), dv: &mut dv.view_mut() };
    let inputs = PartInputs { q: x.q.view(), k: none.view(), v: none.view(), d_out: d_out.view() };
    let got = a.backward_part(part(0, 0, s.scores()), inputs, &saved, sums).expect("a part");
    assert_eq!(got, Some(whole));
}

#[test]
fn pieces_that_are_none_are_refused() {
    let s = Shape::single(300, 700, 8);
    let x = Inputs::<f32>::normal(s, 1);
    let absorb = |a: &Attention<'_>, query: usize, first: usize, keys: Range<usize>| {
        let place = part(query, first, s.scores());
        a.forward_part(place, &x.q, tokens(&x.k, &keys), tokens(&x.v, &keys), &mut RunningAttention::default()).map(|_| ())
    };
    let a = Attention::new();
    assert_eq!(absorb(&a, 0, 0, 0..256), Ok(()));
    assert_eq!(absorb(&a, 0, 512, 512..700), Err(Error::PieceOrder { start: 512, end: 700, next: 0, len: 700 }));
    for (first, keys) in [(0, 0..100), (100, 0..600), (512, 0..512)] {
        let end = first + keys.len();
        assert_eq!(absorb(&a, 0, first, keys), Err(Error::Piece { operand: "keys", start: first, end, len: 700 }));
    }
    assert_eq!(absorb(&a, 1, 0, 0..256), Err(Error::Piece { operand: "queries", start: 1, end: 301, len: 300 }));
    assert!(matches!(absorb(&Attention::new().top_k(3), 0, 0, 0..256), Err(Error::Unsupported { .. })));
    let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
    let (mut dq, mut dk, mut dv) = (x.q.clone(), x.k.clone(), x.v.clone());
    let mut gradient = |a: &Attention<'_>, query: usize, keys: Range<usize>| {
        let place = part(query, keys.start, [1, 1, 900, 700]);
        let here = s![.., .., keys.clone(), ..];
        let sums = PartSums { dq: &mut dq.view_mut(), dk: &mut dk.slice_mut(here), dv: &mut dv.slice_mut(here) };
        let inputs = PartInputs { q: x.q.view(), k: tokens(&x.k, &keys), v: tokens(&x.v, &keys), d_out: saved.out.view() };
        a.backward_part(place, inputs, &saved, sums)
    };
    assert_eq!(gradient(&a, 256, 0..256), Err(Error::Piece { operand: "queries", start: 256, end: 556, len: 900 }));
    assert_eq!(gradient(&a, 600, 0..256), Err(Error::Piece { operand: "queries", start: 600, end: 900, len: 900 }));
    assert_eq!(gradient(&a, 768, 0..256), Err(Error::Piece { operand: "queries", start: 768, end: 1068, len: 900 }));
    let place = part(0, 0, [1, 1, 300, 700]);
    let (mut dq, mut dk, mut dv) = (x.q.clone(), x.k.clone(), x.v.clone());
    let sums = PartSums { dq: &mut dq.view_mut(), dk: &mut dk.view_mut(), dv: &mut dv.view_mut() };
    let inputs = PartInputs { q: x.q.view(), k: x.k.view(), v: x.v.view(), d_out: saved.out.view() };
    let all = a.backward_part(place, inputs, &saved, sums);
    assert_eq!(all, Err(Error::Piece { operand: "keys", start: 0, end: 700, len: 700 }));
    for a in [Attention::new().scale(regard::Scale::By(5.0)), Attention::new().bias(regard::Bias::Alibi(vec![1.0]))] {
        let mut share = Array4::zeros(x.q.raw_dim());
        let (mut dk, mut dv) = (Array4::zeros([1, 1, 256, 8]), Array4::zeros([1, 1, 256, 8]));
        let sums = PartSums { dq: &mut share.view_mut(), dk: &mut dk.view_mut(), dv: &mut dv.view_mut() };
        let keys = 0..256;
        let inputs = PartInputs { q: x.q.view(), k: tokens(&x.k, &keys), v: tokens(&x.v, &keys), d_out: saved.out.view() };
        let refused = a.backward_part(part(0, 0, s.scores()), inputs, &saved, sums);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    }
}

/// Cells that end within tiles of queries and of keys, of one pair, and of many pieces.
#[test]
fn a_heat_map_in_pieces_has_the_bits_of_one_call() {
    for (s, step) in [(Shape::single(600, 1700, 8).heads(2, 1), 256), (Shape::new(70, 900, 9), 512), (Shape::single(300, 300, 4), 768)] {
        let mut x = Inputs::<f32>::normal(s, 1);
        x.k[[0, 0, 200, 1]] = f32::NAN;
        for (i, (name, recipe)) in masks(&s).into_iter().chain(options(&s)).enumerate() {
            let (a, cells) = (recipe.attention(), [[7, 9], [1, 1], [600, 1700], [3, 150], [33, 2]][i % 5]);
            let (whole, states) = (a.heat_map(&x.q, &x.k, cells[0], cells[1]).expect("fits"), a.row_states(&x.q, &x.k).expect("fits"));
            let (_, _, rows, cols) = whole.mean.dim();
            let mut map = HeatMapCells::new(0, [s.batch, s.heads_q, rows, cols]).expect("there is memory");
            for queries in cut(s.seq_q, 256) {
                let of = |rows: &ndarray::Array3<f32>| rows.slice(s![.., .., queries.clone()]).to_owned();
                let states = SoftmaxDenominators { row_max: of(&states.row_max), row_sum: of(&states.row_sum) };
                let mut so_far = HeatMapState::default();
                for keys in cut(s.seq_kv, step) {
                    let (place, q, k) = (part(queries.start, keys.start, s.scores()), tokens(&x.q, &queries), tokens(&x.k, &keys));
                    a.heat_map_part(place, q, k, &states, cells, &mut so_far).expect("the next piece");
                }
                map.add(&so_far).expect("all keys were there");
            }
            let map = map.finish([s.seq_q, s.seq_kv]);
            assert_same_bits(&format!("mean, {name}, {s:?}, {cells:?} cells"), &whole.mean, &map.mean);
            assert_same_bits(&format!("max, {name}, {s:?}, {cells:?} cells"), &whole.max, &map.max);
        }
    }
}

#[test]
fn pieces_of_a_heat_map_that_are_none_are_refused() {
    let s = Shape::single(300, 700, 8);
    let (x, a) = (Inputs::<f32>::normal(s, 1), Attention::new());
    let states = a.row_states(&x.q, &x.k).expect("fits");
    let mut so_far = HeatMapState::default();
    let mut absorb = |a: &Attention<'_>, keys: Range<usize>, cells: [usize; 2]| {
        a.heat_map_part(part(0, keys.start, s.scores()), &x.q, tokens(&x.k, &keys), &states, cells, &mut so_far)
    };
    assert_eq!(absorb(&a, 0..256, [0, 5]), Err(Error::Zero { name: "rows" }));
    assert!(matches!(absorb(&a, 0..100, [5, 5]), Err(Error::Piece { .. })));
    assert!(matches!(absorb(&a.clone().top_k(3), 0..256, [5, 5]), Err(Error::Unsupported { .. })));
    assert_eq!(absorb(&a, 512..700, [5, 5]), Err(Error::PieceOrder { start: 512, end: 700, next: 0, len: 700 }));
    assert_eq!(absorb(&a, 0..256, [5, 5]), Ok(()));
    for keys in [0..256, 512..700] {
        let (start, end) = (keys.start, keys.end);
        assert_eq!(absorb(&a, keys, [5, 5]), Err(Error::PieceOrder { start, end, next: 256, len: 700 }));
    }
    // Columns of 140 keys: one is finished.
    assert_eq!(absorb(&a, 256..512, [5, 40]), Err(Error::State { what: "finished columns of cells", got: 1, expected: 14 }));
    let mut map = HeatMapCells::new(0, [1, 1, 5, 5]).expect("there is memory");
    assert_eq!(map.add(&so_far), Err(Error::PieceOrder { start: 700, end: 700, next: 256, len: 700 }));
}

/// A piece again, one too early, the last one alone, one after the last: each is refused, and the state goes on as if it had not been
/// given.
#[test]
fn pieces_out_of_order_are_refused_and_leave_the_state_as_it_was() {
    let s = Shape::single(200, 2900, 8).heads(2, 1);
    let x = Inputs::<f32>::normal(s, 1);
    for (name, a, stats) in [
        ("plain", Attention::new(), None),
        ("statistics", Attention::new().causal_bottom_right(), Some(STATS)),
        ("documents", Attention::new().mask(Mask::documents(Array2::zeros((1, 200)), Array2::zeros((1, 2900)))), None),
    ] {
        let whole = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
        let mut so_far = RunningAttention::default();
        so_far.stats = stats;
        let give = |keys: Range<usize>, so_far: &mut RunningAttention<f32>| {
            a.forward_part(part(0, keys.start, s.scores()), &x.q, tokens(&x.k, &keys), tokens(&x.v, &keys), so_far)
        };
        let refuse = |keys: Range<usize>, so_far: &mut RunningAttention<f32>| {
            let result = give(keys.clone(), so_far).map(|done| done.is_some());
            assert!(matches!(result, Err(Error::PieceOrder { .. })), "{name}, {keys:?}: {result:?}");
        };
        refuse(2304..2900, &mut so_far);
        refuse(256..512, &mut so_far);
        let pieces = [0..768, 768..2304, 2304..2816, 2816..2900];
        let mut result = None;
        for (i, keys) in pieces.iter().enumerate() {
            result = give(keys.clone(), &mut so_far).expect("the next piece");
            refuse(keys.clone(), &mut so_far);
            pieces[i + 1..].iter().skip(1).for_each(|later| refuse(later.clone(), &mut so_far));
        }
        assert!(give(2900..2900, &mut so_far).is_err(), "{name}: there are no keys after the last one");
        let (saved, _) = result.expect("all keys were there");
        assert_same_bits(name, &whole.out, &saved.out);
        assert_same_bits(name, &whole.row_sum, &saved.row_sum);
    }
    // Another whole, or other rows of it.
    let (a, mut so_far, keys) = (Attention::new(), RunningAttention::default(), 256..512);
    let first = 0..256;
    a.forward_part(part(0, 0, s.scores()), &x.q, tokens(&x.k, &first), tokens(&x.v, &first), &mut so_far).expect("a piece");
    for place in [part(0, 256, [1, 2, 200, 3000]), part(64, 256, [1, 2, 400, 2900]), part(0, 256, [1, 2, 300, 2900])] {
        let result = a.forward_part(place, &x.q, tokens(&x.k, &keys), tokens(&x.v, &keys), &mut so_far).map(|_| ());
        assert!(matches!(result, Err(Error::State { .. })), "{place:?}: {result:?}");
    }
}

#[test]
fn pieces_outside_of_what_the_rows_see_may_be_left_out() {
    let s = Shape::single(100, 3000, 8);
    let (x, a) = (Inputs::<f32>::normal(s, 1), Attention::new().mask(Mask::window(Some(300), Some(0))).q_offset(1500));
    let whole = a.forward(&x.q, &x.k, &x.v).expect("fits").out;
    let mut so_far = RunningAttention::default();
    let mut give = |keys: Range<usize>| {
        let place = part(0, keys.start, s.scores());
        a.forward_part(place, &x.q, tokens(&x.k, &keys), tokens(&x.v, &keys), &mut so_far).map(|done| done.map(|(saved, _)| saved.out))
    };
    // Keys 1200..1600 are seen.
    assert!(matches!(give(1280..1536), Err(Error::PieceOrder { .. })));
    assert_eq!(give(1024..1536).expect("the first that is seen"), None);
    assert!(matches!(give(2816..3000), Err(Error::PieceOrder { .. })));
    assert_eq!(give(1536..1792).expect("the next one"), None);
    assert_same_bits("window", &whole, &give(2816..3000).expect("the last one").expect("results"));
}

/// Raises the flag of a call in the middle of it, once it is armed.
struct Raise<'f> {
    flag: &'f AtomicBool,
    armed: AtomicBool,
}

impl MaskRule for Raise<'_> {
    fn visible(&self, _: &HeadPosition, _: usize, _: usize) -> bool {
        if self.armed.swap(false, Relaxed) {
            self.flag.store(true, Relaxed);
        }
        true
    }
}

/// The first of several tiles of queries is finished when the piece is given up: given again, it does not count twice.
#[test]
fn an_interrupted_piece_leaves_the_state_as_it_was() {
    let s = Shape::single(200, 2900, 8).heads(2, 1);
    let (x, flag) = (Inputs::<f32>::normal(s, 1), AtomicBool::new(false));
    let rule = Raise { flag: &flag, armed: AtomicBool::new(false) };
    let a = Attention::new().mask(Mask::custom(&rule)).interrupt(&flag).threads(1);
    let whole = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
    let interrupt = |call: &mut dyn FnMut() -> Result<(), Error>| {
        rule.armed.store(true, Relaxed);
        assert_eq!(call(), Err(Error::Interrupted));
        assert!(!rule.armed.load(Relaxed), "it was in the middle of it");
        flag.store(false, Relaxed);
    };
    for (stats, ahead) in [(None, false), (None, true), (Some(STATS), false)] {
        let (mut so_far, mut result) = (RunningAttention::default(), None);
        so_far.stats = stats;
        for keys in cut(2900, 768) {
            let (place, k, v) = (part(0, keys.start, s.scores()), tokens(&x.k, &keys), tokens(&x.v, &keys));
            // Where a split begins there is something to find.
            if ahead && (keys.start == 0 || keys.contains(&2048)) {
                interrupt(&mut || a.precompute_splits(place, &x.q, k, v, &mut so_far));
            }
            if ahead {
                a.precompute_splits(place, &x.q, k, v, &mut so_far).expect("a piece");
            }
            if !ahead || keys.start % 2048 != 0 {
                interrupt(&mut || a.forward_part(place, &x.q, k, v, &mut so_far).map(|_| ()));
            }
            result = a.forward_part(place, &x.q, k, v, &mut so_far).expect("the same piece again");
        }
        let (saved, _) = result.expect("all keys were there");
        assert_same_bits("out", &whole.out, &saved.out);
        assert_same_bits("row_sum", &whole.row_sum, &saved.row_sum);
    }
    let (states, mut so_far) = (SoftmaxDenominators::from(&whole), HeatMapState::default());
    for keys in cut(2900, 768) {
        let (place, k) = (part(0, keys.start, s.scores()), tokens(&x.k, &keys));
        interrupt(&mut || a.heat_map_part(place, &x.q, k, &states, [7, 9], &mut so_far));
        a.heat_map_part(place, &x.q, k, &states, [7, 9], &mut so_far).expect("the same piece again");
    }
    let mut map = HeatMapCells::new(0, [1, 2, 7, 9]).expect("there is memory");
    map.add(&so_far).expect("all keys were there");
    assert_same_bits("map", &a.heat_map(&x.q, &x.k, 7, 9).expect("fits").mean, &map.finish([200, 2900]).mean);
}

/// Whoever sends keys to those that need them must not forget any, and should not send any for nothing.
#[test]
fn key_ranges_hold_what_is_seen_in_any_entry_and_head() {
    let ids = Array2::from_shape_fn((1, 40), |(_, i)| (i / 9) as u32);
    let masks = [
        ("everything", Mask::everything()),
        ("causal", Mask::causal()),
        ("window", Mask::window(Some(5), Some(2))),
        ("two ends", Mask::first_keys(3) | Mask::window(Some(4), Some(0))),
        ("lengths", Mask::key_lengths(vec![7, 31])),
        ("documents", Mask::documents(ids.clone(), ids)),
        ("nothing", !Mask::everything()),
    ];
    for (name, mask) in masks {
        let attention = Attention::new().mask(mask.clone());
        let range = attention.key_ranges([2, 3, 40, 40]).expect("fits");
        for (queries, keys) in
            [(0..40, 0..40), (0..1, 0..40), (10..20, 0..40), (10..20, 12..15), (30..40, 0..8), (5..9, 20..40), (3..3, 0..40)]
        {
            let sees = |key: usize| {
                let at = |batch, head| HeadPosition { batch, head, q_offset: 0 };
                (0..6).any(|i| queries.clone().any(|query| mask.visible(&at(i / 3, i % 3), query, key)))
            };
            let got = range(queries.clone(), keys.clone());
            let seen: Vec<_> = keys.clone().filter(|&key| sees(key)).collect();
            assert!(seen.iter().all(|key| got.contains(key)), "{name}, {queries:?}, {keys:?}: {got:?}");
            assert!(got.is_empty() || (got.start >= keys.start && got.end <= keys.end), "{name}, {queries:?}, {keys:?}: {got:?}");
            // Of some it is not known before it is looked at.
            assert!(
                got.is_empty() == seen.is_empty() || ["documents", "nothing"].contains(&name),
                "{name}, {queries:?}, {keys:?}: {got:?}"
            );
        }
    }
    assert!(Attention::new().key_lengths(vec![1]).key_ranges([2, 1, 4, 4]).is_err(), "options are checked");
}
