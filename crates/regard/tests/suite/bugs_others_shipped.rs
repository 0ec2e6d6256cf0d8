//! What went wrong in other attention kernels, one test for each.
//! Hidden NaN, empty dimensions and strides have modules of their own. Those of the backward pass are in [`crate::gradient_bugs`].

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, check, levels, oracle, textbook, to, wide};
use half::{bf16, f16};
use ndarray::{Array3, Array4, s};
use regard::{Attention, Bias, Error, Mask, Scale, alibi_slopes, merge};

fn drawing(a: &Attention<'_>, n: usize, m: usize) -> Vec<String> {
    let (q, k) = (Array4::<f32>::zeros((1, 1, n, 2)), Array4::<f32>::zeros((1, 1, m, 2)));
    let mut found: Vec<Vec<String>> = Vec::new();
    for level in levels() {
        let w = a.clone().level(level).weights(&q, &k).expect("fits");
        let row = |i: usize| (0..m).map(|j| if w[[0, 0, i, j]] > 0.0 { '#' } else { '.' }).collect();
        found.push((0..n).map(row).collect());
        // The values say the same: each key's is a power of two of its own.
        let v = Array4::from_shape_fn((1, 1, m, 1), |(_, _, j, _)| (1u32 << j) as f32);
        let out = a.clone().level(level).forward(&q, &k, &v).expect("fits").out;
        for (i, row) in found[found.len() - 1].iter().enumerate() {
            let seen: Vec<usize> = row.chars().enumerate().filter(|&(_, c)| c == '#').map(|(j, _)| j).collect();
            let sum: u32 = seen.iter().map(|&j| 1 << j).sum();
            assert!((f64::from(out[[0, 0, i, 0]]) * seen.len() as f64 - f64::from(sum)).abs() < 1e-3 * f64::from(sum.max(1)));
        }
    }
    assert!(found.windows(2).all(|w| w[0] == w[1]));
    found.swap_remove(0)
}

#[test]
fn fully_masked_row_is_zero_not_nan() {
    let x = Inputs::<f32>::normal(Shape::new(6, 6, 8), 1);
    let mut table = Array4::from_elem([1, 1, 6, 6], true);
    table.slice_mut(s![.., .., 2, ..]).fill(false);
    for level in levels() {
        let got = Attention::new().mask(Mask::dense(&table)).level(level).forward(&x.q, &x.k, &x.v).expect("fits");
        assert!(got.out.slice(s![.., .., 2, ..]).iter().all(|&x| x == 0.0));
        assert!(got.lse.slice(s![.., .., 2]).iter().all(|&x| x == f32::NEG_INFINITY));
        assert!(got.out.iter().all(|x| x.is_finite()));
    }
}

/// The most negative number is a number: what has nothing else attends evenly to it.
#[test]
fn a_mask_of_the_most_negative_number_is_added_like_any_number() {
    for n in [3, 40] {
        let x = Inputs::<f32>::normal(Shape::new(n, 30, 8), 1);
        let mut bias = Array4::from_elem([1, 1, n, 30], 0f32);
        bias.slice_mut(s![.., .., 0, ..]).fill(f32::MIN);
        bias.slice_mut(s![.., .., 1, 5..]).fill(f32::MIN);
        check("finfo.min", &Recipe::new().with(|a| a.bias(oracle::Bias::Dense(bias.clone()))), &x);
        for level in levels() {
            let a = Attention::new().bias(Bias::Dense(bias.view().into())).level(level);
            let w = a.weights(&x.q, &x.k).expect("fits");
            assert!(w.slice(s![.., .., 0, ..]).iter().all(|&w| (w - 1.0 / 30.0).abs() < 1e-6));
            assert!(w.slice(s![.., .., 1, 5..]).iter().all(|&w| w == 0.0));
            assert!(a.forward(&x.q, &x.k, &x.v).expect("fits").out.iter().all(|x| x.is_finite()));
        }
    }
}

#[test]
fn a_first_tile_without_visible_keys_does_not_spoil_later_ones() {
    for n in [3, 40] {
        for first in [1, 127, 128, 129, 256, 2048, 2100] {
            let m = first + 70;
            let shape = Shape::single(n, m, 8);
            let x = Inputs::<f32>::normal(shape, 1);
            check(&format!("mask, {first} hidden"), &Recipe::new().with(|a| a.mask(!oracle::Mask::FirstKeys(first))), &x);
            let bias = Array4::from_shape_fn([1, 1, 1, m], |(_, _, _, j)| if j < first { f32::NEG_INFINITY } else { 0.5 });
            check(&format!("bias, {first} hidden"), &Recipe::new().with(|a| a.bias(oracle::Bias::Dense(bias))), &x);
            let table = Array4::from_shape_fn([1, 1, n, m], |(_, _, i, j)| j >= first || i == 1);
            check(&format!("dense, {first} hidden"), &Recipe::new().with(|a| a.mask(oracle::Mask::Dense(table))), &x);
        }
    }
}

#[test]
fn keys_and_values_of_different_length_are_refused() {
    let (q, k, v) = (Array4::<f32>::zeros((1, 1, 4, 8)), Array4::<f32>::zeros((1, 1, 9, 8)), Array4::<f32>::zeros((1, 1, 7, 8)));
    assert!(matches!(Attention::new().forward(&q, &k, &v), Err(Error::KeyValueLength { .. })));
    assert!(matches!(Attention::new().forward(&q, &v, &k), Err(Error::KeyValueLength { .. })));
}

#[test]
fn a_mask_broadcast_over_the_batch_serves_every_entry() {
    let s = Shape::new(9, 20, 8).batch(5);
    let x = Inputs::<f32>::normal(s, 1);
    let table = crate::common::random_bools([1, 1, 9, 20], 7);
    check("broadcast mask", &Recipe::new().with(|a| a.mask(oracle::Mask::Dense(table))), &x);
}

#[test]
fn causal_is_top_left_unless_asked_otherwise() {
    assert_eq!(drawing(&Attention::new().causal(), 3, 5), ["#....", "##...", "###.."]);
    assert_eq!(drawing(&Attention::new().causal(), 5, 3), ["#..", "##.", "###", "###", "###"]);
    assert_eq!(drawing(&Attention::new().causal_bottom_right(), 3, 5), ["###..", "####.", "#####"]);
    assert_eq!(drawing(&Attention::new().causal().q_offset(1), 3, 5), ["##...", "###..", "####."]);
    assert_eq!(drawing(&Attention::new().causal_bottom_right().key_lengths(vec![4]), 3, 5), ["##...", "###..", "####."]);
}

#[test]
fn more_queries_than_keys_bottom_right_leaves_the_first_rows_empty() {
    assert_eq!(drawing(&Attention::new().causal_bottom_right(), 5, 3), ["...", "...", "#..", "##.", "###"]);
    let x = Inputs::<f32>::normal(Shape::new(150, 70, 8), 1);
    check("150 x 70", &Recipe::new().with(|a| a.causal_bottom_right()), &x);
    for level in levels() {
        let got = Attention::new().causal_bottom_right().level(level).forward(&x.q, &x.k, &x.v).expect("fits");
        assert!(got.out.slice(s![.., .., ..80, ..]).iter().all(|&x| x == 0.0));
        assert!(got.out.slice(s![.., .., 80.., ..]).iter().all(|&x| x != 0.0));
    }
}

#[test]
fn reverse_and_strictly_future_are_what_they_say() {
    assert_eq!(drawing(&Attention::new().reverse(), 3, 4), ["####", ".###", "..##"]);
    assert_eq!(drawing(&Attention::new().strictly_future(), 3, 3), [".##", "..#", "..."]);
}

/// The keys come in chunks, each with the whole past: the bits of one long call.
#[test]
fn chunked_prefill_equals_the_whole() {
    let x = Inputs::<f32>::normal(Shape::new(300, 300, 16), 1);
    for level in levels() {
        let whole = Attention::new().causal().level(level).forward(&x.q, &x.k, &x.v).expect("fits");
        for chunk in [1, 13, 64, 100, 129] {
            for start in (0..300).step_by(chunk) {
                let end = 300.min(start + chunk);
                let q = x.q.slice(s![.., .., start..end, ..]);
                let a = Attention::new().causal().q_offset(start as i64).level(level);
                let part = a.forward(q, x.k.view(), x.v.view()).expect("fits");
                assert_same_bits(&format!("rows {start}..{end}"), &part.out, &whole.out.slice(s![.., .., start..end, ..]).to_owned());
                // The keys that come later need not be there.
                let (k, v) = (x.k.slice(s![.., .., ..end, ..]), x.v.slice(s![.., .., ..end, ..]));
                let part = a.forward(q, k, v).expect("fits");
                assert_same_bits(&format!("rows {start}..{end}"), &part.out, &whole.out.slice(s![.., .., start..end, ..]).to_owned());
            }
        }
    }
}

#[test]
fn window_is_not_off_by_one() {
    assert_eq!(drawing(&Attention::new().window(1, 0), 4, 4), ["#...", "##..", ".##.", "..##"]);
    assert_eq!(drawing(&Attention::new().window(0, 0), 3, 3), ["#..", ".#.", "..#"]);
    assert_eq!(drawing(&Attention::new().window(0, 2), 3, 4), ["###.", ".###", "..##"]);
    assert_eq!(drawing(&Attention::new().window(2, 1).q_offset(2), 3, 6), ["####..", ".####.", "..####"]);
    assert_eq!(drawing(&Attention::new().mask(Mask::window(Some(1), None)), 3, 4), ["####", "####", ".###"]);
    assert_eq!(drawing(&Attention::new().mask(Mask::window(None, Some(1))), 3, 4), ["##..", "###.", "####"]);
    // As wide as can be.
    assert_eq!(drawing(&Attention::new().window(usize::MAX, usize::MAX), 2, 3), ["###", "###"]);
    assert_eq!(drawing(&Attention::new().window(usize::MAX, 0), 2, 3), ["#..", "##."]);
}

#[test]
fn window_holds_without_any_other_mask() {
    for n in [3, 300] {
        let x = Inputs::<f32>::normal(Shape::single(n, 300, 8), 1);
        for (left, right) in [(0, 0), (7, 0), (0, 7), (127, 128), (64, 64)] {
            check(&format!("{n}, window {left} {right}"), &Recipe::new().with(|a| a.window(left, right).align_end()), &x);
        }
    }
}

/// After the mask, the softcap would make a finite score of minus infinity, and the hidden keys would be seen.
#[test]
fn softcap_comes_before_the_mask() {
    let x = Inputs::<f32>::normal(Shape::new(20, 20, 8), 1);
    for level in levels() {
        let w = Attention::new().softcap(0.1).causal().level(level).weights(&x.q, &x.k).expect("fits");
        for ((_, _, i, j), &w) in w.indexed_iter() {
            assert_eq!(w == 0.0, j > i);
        }
    }
    check("softcap", &Recipe::new().softcap(0.1).with(|a| a.causal()), &x);
}

/// Before the bias too: a bias may lift a score over the cap.
#[test]
fn softcap_comes_before_the_bias() {
    let x = Inputs::<f32>::normal(Shape::new(20, 20, 8), 1);
    check("softcap", &Recipe::new().softcap(0.5).with(|a| a.bias(oracle::Bias::Alibi(vec![0.5; 4]))), &x);
}

#[test]
fn more_than_65536_keys_are_right() {
    const KEYS: usize = 70_000;
    for n in [1, 20] {
        let x = Inputs::<f32>::normal(Shape::single(n, KEYS, 4), 1);
        check("70,000 keys", &Recipe::new().with(|a| a.causal_bottom_right()), &x);
        // One key stands out, behind all the numbers of 16 bits.
        let mut far = x.clone();
        far.k.fill(0.0);
        far.k.slice_mut(s![.., .., 69_000, ..]).fill(100.0);
        far.q.fill(1.0);
        for level in levels() {
            let a = Attention::new().scale(Scale::Off).level(level);
            let got = a.forward(&far.q, &far.k, &far.v).expect("fits");
            let row = far.v.slice(s![0, 0, 69_000, ..]);
            assert!(got.out.slice(s![0, 0, .., ..]).outer_iter().all(|r| r == row));
        }
    }
}

#[test]
fn more_than_65536_queries_are_right() {
    const QUERIES: usize = 66_000;
    let x = Inputs::<f32>::normal(Shape::single(QUERIES, QUERIES, 2), 1);
    for level in levels() {
        let got = Attention::new().window(2, 0).level(level).forward(&x.q, &x.k, &x.v).expect("fits");
        let last = s![.., .., QUERIES - 50.., ..];
        let a = Attention::new().window(2, 0).q_offset(48).level(level);
        let tail = s![.., .., QUERIES - 98.., ..];
        let part = a.forward(x.q.slice(last), x.k.slice(tail), x.v.slice(tail)).expect("fits");
        let error = (&part.out - &got.out.slice(last)).iter().fold(0f32, |m, x| x.abs().max(m));
        assert!(error < 1e-5, "{error}");
    }
}

/// Whole numbers, so that scores are exact: the softmax of differences, whatever the size.
#[test]
fn huge_scores_do_not_overflow() {
    for n in [3, 40] {
        let q = Array4::from_elem((1, 1, n, 2), 1000f32);
        let k = Array4::from_shape_fn((1, 1, 140, 2), |(_, _, j, _)| 500.0 + j as f32);
        let v = Array4::from_shape_fn((1, 1, 140, 1), |(_, _, j, _)| j as f32);
        for level in levels() {
            for (scale, winner) in [(1.0, 139.0), (-1.0, 0.0), (1e20, 139.0), (-1e20, 0.0)] {
                let got = Attention::new().scale(Scale::By(scale)).level(level).forward(&q, &k, &v).expect("fits");
                assert!(got.out.iter().all(|&x| x == winner), "{scale}: {:?}", got.out);
                assert!(got.lse.iter().all(|x| x.is_finite()));
            }
        }
        // A thousandth of it: neighbours are two apart.
        check("differences", &Recipe::new().scale(Scale::By(1.0 / 1024.0)), &Inputs { q, k, v });
    }
}

#[test]
fn a_negative_or_zero_scale_is_right() {
    let x = Inputs::<f32>::normal(Shape::new(20, 50, 8), 1);
    for scale in [-3.0, -0.125, 0.0, -0.0] {
        check("scale", &Recipe::new().scale(Scale::By(scale)).with(|a| a.causal()), &x);
    }
}

#[test]
fn merging_empty_states_stays_empty() {
    let nothing = (Array4::<f32>::zeros((1, 2, 3, 4)), Array3::from_elem((1, 2, 3), f32::NEG_INFINITY));
    let x = Inputs::<f32>::normal(Shape::new(3, 5, 4).batch(1).heads(2, 2), 1);
    let some = Attention::new().forward(&x.q, &x.k, &x.v).expect("fits");
    let join = |a: (&Array4<f32>, &Array3<f32>), b: (&Array4<f32>, &Array3<f32>)| {
        merge(a.0.view(), a.1.view(), b.0.view(), b.1.view()).expect("shapes agree")
    };
    let (out, lse) = join((&nothing.0, &nothing.1), (&nothing.0, &nothing.1));
    assert_eq!((&out, &lse), (&nothing.0, &nothing.1));
    for (out, lse) in [join((&some.out, &some.lse), (&nothing.0, &nothing.1)), join((&nothing.0, &nothing.1), (&some.out, &some.lse))] {
        assert_eq!((out, lse), (some.out.clone(), some.lse.clone()));
    }
}

/// A side whose weight underflows to zero has a NaN all the same; which side is which does not matter.
#[test]
fn merging_is_symmetric_and_keeps_a_nan() {
    let sides = [0.5f32, -3.0, f32::NAN, f32::INFINITY, 0.0, -0.0];
    let logs = [0.0f32, 1.0, -1000.0, 1000.0, f32::NEG_INFINITY, f32::NAN, f32::INFINITY];
    let bits = |x: f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
    for (out_a, out_b) in sides.iter().flat_map(|&a| sides.map(|b| (a, b))) {
        for (lse_a, lse_b) in logs.iter().flat_map(|&a| logs.map(|b| (a, b))) {
            let out = |x: f32| Array4::from_elem((1, 1, 1, 1), x);
            let lse = |x: f32| Array3::from_elem((1, 1, 1), x);
            let join = |(out_a, lse_a), (out_b, lse_b)| {
                let (out, lse) = merge(out(out_a).view(), lse(lse_a).view(), out(out_b).view(), lse(lse_b).view()).expect("one number");
                (out[[0, 0, 0, 0]], lse[[0, 0, 0]])
            };
            let (got, turned) = (join((out_a, lse_a), (out_b, lse_b)), join((out_b, lse_b), (out_a, lse_a)));
            let what = format!("({out_a}, {lse_a}) and ({out_b}, {lse_b}): {got:?} and {turned:?}");
            assert_eq!((bits(got.0), bits(got.1)), (bits(turned.0), bits(turned.1)), "{what}");
            let seen = |out: f32, lse: f32| lse != f32::NEG_INFINITY && out.is_nan();
            assert!(!(seen(out_a, lse_a) || seen(out_b, lse_b)) || got.0.is_nan(), "{what}");
            assert!(!(lse_a.is_nan() || lse_b.is_nan()) || got.1.is_nan(), "{what}");
        }
    }
}

#[test]
fn lse_is_a_natural_logarithm() {
    let (q, k) = (Array4::<f64>::zeros((1, 1, 3, 4)), Array4::<f64>::zeros((1, 1, 7, 4)));
    for level in levels() {
        let lse = Attention::new().level(level).forward(&q, &k, &k).expect("fits").lse;
        assert!(lse.iter().all(|x| (x - 7f64.ln()).abs() < 1e-15), "{lse:?}");
    }
}

#[test]
fn half_precision_scores_do_not_overflow() {
    for n in [2, 40] {
        // 64 * 200 * 200 is far beyond 65,504.
        let mut q = Array4::from_elem((1, 1, n, 64), to::<f16>(200.0));
        let k = Array4::from_shape_fn((1, 1, 50, 64), |(_, _, j, _)| to::<f16>(150.0 + j as f64));
        let v = Array4::from_shape_fn((1, 1, 50, 3), |(_, _, j, _)| to::<f16>(j as f64));
        for level in levels() {
            let a = Attention::new().scale(Scale::Off).level(level);
            let got = a.forward(&q, &k, &v).expect("fits");
            assert!(got.out.iter().all(|&x| wide(x) == 49.0), "{:?}", got.out);
            assert!(got.lse.iter().all(|&x| x == 64.0 * 200.0 * 199.0));
        }
        q.fill(to(0.02));
        check("small", &Recipe::new(), &Inputs { q, k, v });
    }
    let x = Inputs::<bf16>::normal(Shape::new(20, 30, 8), 1);
    check("bf16", &Recipe::new().scale(Scale::By(5.0)), &x);
}

/// Six heads: those of four, then every second one of eight. (The paper's own code.)
#[test]
fn alibi_slopes_are_those_of_the_paper_for_any_number_of_heads() {
    assert!(alibi_slopes(0).is_empty());
    assert_eq!(alibi_slopes(1), [2f64.powi(-8)]);
    assert_eq!(alibi_slopes(8), [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]);
    assert_eq!(alibi_slopes(3), [0.0625, 0.00390625, 0.25]);
    let twelve = alibi_slopes(12);
    assert_eq!(twelve[..8], alibi_slopes(8));
    assert!(twelve[8..].iter().zip([0.5f64, 1.5, 2.5, 3.5]).all(|(&slope, n)| (slope - 0.5f64.powf(n)).abs() < 1e-15));
    for heads in [1, 3, 6, 12] {
        let x = Inputs::<f32>::normal(Shape::new(20, 30, 8).heads(heads, 1), 1);
        let recipe = Recipe::new().with(|a| a.bias(oracle::Bias::Alibi(alibi_slopes(heads))).causal());
        let plain = textbook(&recipe.options, &x);
        let last = heads - 1;
        let slope = alibi_slopes(heads)[last];
        assert!((plain.scores[[0, last, 9, 4]] - plain.raw[[0, last, 9, 4]] + 5.0 * slope).abs() < 1e-12);
        check("alibi", &recipe, &x);
    }
}
