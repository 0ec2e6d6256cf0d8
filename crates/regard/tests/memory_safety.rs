//! A short tour over odd shapes, layouts, element types and levels, for AddressSanitizer and valgrind: every operand is an
//! allocation of exactly its own size, so that a read past an end is seen.

#[allow(dead_code, unused_imports)] // Of the other tests' helpers it needs a few.
#[path = "suite/common/mod.rs"]
mod common;

use common::{Normal, Shape, masks, normal, to};
use half::{bf16, f16};
use ndarray::{Array2, Array3, Array4, ArrayView4, Axis, s};
use regard::matmul::{PackedMatrix, Write, matmul};
use regard::{Attention, Bias, Element, Level, Mask, Real, Stage, StatsOptions};

/// The level that `REGARD_SIMD` or the CPU says, and every level of the CPU.
fn levels() -> Vec<Option<Level>> {
    let preferred = Level::preferred().expect("REGARD_SIMD names a level of this CPU");
    // Where one is asked for, the other levels may not even run (valgrind knows no AVX-512).
    let forced = std::env::var_os("REGARD_SIMD").is_some_and(|x| !x.is_empty());
    let others = Level::available().filter(|&l| l != preferred && !forced).map(Some);
    std::iter::once(None).chain(others).collect()
}

fn with_level(a: Attention<'_>, level: Option<Level>) -> Attention<'_> {
    match level {
        Some(level) => a.level(level),
        None => a,
    }
}

/// Numbers without a single place to spare.
fn exact<E: regard::Storage>(shape: [usize; 4], seed: u64) -> Array4<E> {
    let boxed: Box<[E]> = normal::<E>(shape, seed).into_raw_vec_and_offset().0.into_boxed_slice();
    Array4::from_shape_vec(shape, boxed.into_vec()).expect("the shape fits")
}

/// The whole allocation, seen in one of several ways.
fn view<E: Element>(x: &Array4<E>, way: usize) -> ArrayView4<'_, E> {
    let mut view = x.view();
    match way {
        0 => {}
        1 => view.invert_axis(Axis(2)),
        2 => view.invert_axis(Axis(3)),
        _ => (0..4).for_each(|axis| view.invert_axis(Axis(axis))),
    }
    view
}

fn tour<E: Element>() {
    let mut ways = 0;
    for (n, m, d, e) in [(1, 1, 1, 1), (1, 131, 9, 17), (3, 7, 65, 3), (9, 140, 8, 8), (17, 33, 5, 31), (65, 129, 3, 1), (2, 2050, 2, 2)] {
        let s = Shape::single(n, m, d).heads(2, 1).values(e);
        // Each stored as it is, or with its last two axes exchanged: an inner stride other than 1.
        for turned in [false, true] {
            let make = |heads, rows, cols, seed| {
                if turned { exact::<E>([1, heads, cols, rows], seed) } else { exact::<E>([1, heads, rows, cols], seed) }
            };
            let (q, k, v, d_out) = (make(2, n, d, 1), make(1, m, d, 2), make(1, m, e, 3), make(2, n, e, 4));
            ways += 1;
            let seen = |x| {
                let x: ArrayView4<'_, E> = view(x, ways % 4);
                if turned { x.permuted_axes([0, 1, 3, 2]) } else { x }
            };
            for level in levels() {
                for (_, recipe) in masks(&s).into_iter().step_by(3) {
                    let a = with_level(recipe.attention(), level).threads(1);
                    a.forward(seen(&q), seen(&k), seen(&v)).expect("fits");
                }
                let a = with_level(Attention::new().causal_bottom_right().top_k(3).softcap(2.0).sink(vec![0.0; 2]), level).threads(1);
                a.forward_with_stats(seen(&q), seen(&k), seen(&v), StatsOptions { local_window: 2, top_keys: 3 }).expect("fits");
                a.weights(seen(&q), seen(&k)).expect("fits");
                a.scores(seen(&q), seen(&k), Stage::Masked).expect("fits");
                a.heat_map(seen(&q), seen(&k), 3, 5).expect("fits");
                a.column_sums(seen(&q), seen(&k)).expect("fits");
                a.head_similarity(seen(&q), seen(&k)).expect("fits");
                let bias = exact::<f32>([1, 2, n, m], 5);
                for a in [a.clone(), a.dropout(0.5, 1).bias(Bias::Dense(bias.into()))] {
                    let saved = a.forward_saved(seen(&q), seen(&k), seen(&v)).expect("fits");
                    a.backward_with_stats(seen(&q), seen(&k), seen(&v), &saved, seen(&d_out)).expect("fits");
                }
            }
        }
    }
}

#[test]
fn nothing_outside_of_f32_operands_is_touched() {
    tour::<f32>();
}

#[test]
fn nothing_outside_of_f64_operands_is_touched() {
    tour::<f64>();
}

#[test]
fn nothing_outside_of_f16_operands_is_touched() {
    tour::<f16>();
}

#[test]
fn nothing_outside_of_bf16_operands_is_touched() {
    tour::<bf16>();
}

#[test]
fn nothing_outside_of_broadcast_operands_is_touched() {
    for n in [2, 20] {
        let one = exact::<f32>([1, 1, 1, 1], 1);
        let row = exact::<f32>([1, 1, 1, 9], 2);
        let q = one.broadcast([2, 4, n, 9]).expect("broadcasts");
        let k = row.broadcast([2, 2, 150, 9]).expect("broadcasts");
        let v = one.broadcast([2, 2, 150, 13]).expect("broadcasts");
        for level in levels() {
            let out = with_level(Attention::new().causal(), level).threads(2).forward(q, k, v).expect("fits").out;
            assert!(out.iter().all(|x| (x - one[[0, 0, 0, 0]]).abs() < 1e-6));
        }
    }
}

#[test]
fn nothing_outside_of_masks_and_biases_is_touched() {
    let mut numbers = Normal::new(1);
    for (n, m) in [(1, 131), (20, 131), (3, 5)] {
        let (q, kv) = (exact::<f32>([2, 2, n, 4], 1), exact::<f32>([2, 1, m, 4], 2));
        for bits in 0..16 {
            let full = [2, 2, n, m];
            let shape: [usize; 4] = std::array::from_fn(|a| if bits >> a & 1 == 1 { full[a] } else { 1 });
            let table = Array4::from_shape_simple_fn(shape, || numbers.below(2) == 0);
            let bias = exact::<f32>(shape, 3);
            for level in levels() {
                let a = with_level(Attention::new().mask(Mask::dense(&table)).bias(Bias::Dense(bias.view().into())), level).threads(1);
                let saved = a.forward_saved(&q, &kv, &kv).expect("fits");
                a.backward(&q, &kv, &kv, &saved, &q).expect("fits");
                let a = with_level(Attention::new().mask(Mask::dense(table.slice(s![..;-1, .., ..;-1, ..;-1]))), level).threads(1);
                a.forward(&q, &kv, &kv).expect("fits");
            }
        }
    }
}

/// Results go into a view of a larger array: the view is written whole, with what a call of its own gives, and nothing around it.
#[test]
fn nothing_outside_of_the_results_is_written() {
    for (n, e) in [(1, 1), (3, 5), (20, 9), (33, 16)] {
        let (q, k, v) = (exact::<f16>([1, 2, n, 3], 1), exact::<f16>([1, 1, 40, 3], 2), exact::<f16>([1, 1, 40, e], 3));
        // No result is as large: every value is below 6, and the sum of the weights is 1.
        let (mark, lse_mark) = (to::<f16>(1000.0), 1e30f32);
        for level in levels() {
            let a = with_level(Attention::new(), level).threads(1);
            let whole = a.forward(&q, &k, &v).expect("fits");
            let mut out = Array4::from_elem([1, n + 2, 4, e + 3], mark);
            let mut lse = Array3::from_elem((1, 2, 2 * n + 1), lse_mark);
            // Heads inside, every second of them, the last axis backwards, and a border on all sides.
            let mut to_out = out.slice_mut(s![.., 1..=n, ..;2, 2..e + 2;-1]).permuted_axes([0, 2, 1, 3]);
            let mut to_lse = lse.slice_mut(s![.., .., 1..;2]);
            a.forward_into(&q, &k, &v, to_out.view_mut(), Some(to_lse.view_mut())).expect("fits");
            assert_eq!(to_out, whole.out);
            assert_eq!(to_lse, whole.lse);
            to_out.fill(mark);
            to_lse.fill(lse_mark);
            assert!(out.iter().all(|&x| x == mark) && lse.iter().all(|&x| x == lse_mark), "something around the results was written");
        }
    }
}

/// A matrix without a place to spare, as it is or the transposed of what is stored.
fn matrix<E: regard::Storage>(rows: usize, cols: usize, turned: bool, seed: u64) -> Array2<E> {
    let (rows, cols) = if turned { (cols, rows) } else { (rows, cols) };
    let numbers = exact::<E>([1, 1, rows, cols], seed).into_shape_with_order((rows, cols)).expect("the same numbers");
    if turned { numbers.reversed_axes() } else { numbers }
}

fn products<E: Real>() {
    for (m, k, n) in [(1, 1, 1), (5, 3, 17), (13, 530, 9), (97, 7, 33), (6, 8, 16), (100, 2, 2050)] {
        for way in 0..8 {
            let (lhs, rhs) = (matrix::<E>(m, k, way & 1 > 0, 1), matrix::<E>(k, n, way & 2 > 0, 2));
            let mut dst = matrix::<E>(m, n, way & 4 > 0, 3);
            let mut again = Array2::from_shape_fn((m, n), |at| dst[at]);
            matmul(dst.view_mut(), Write::Add, lhs.view(), rhs.view());
            let mut packed = PackedMatrix::default();
            packed.pack(rhs.view());
            packed.clone().matmul(again.view_mut(), Write::Add, lhs.view());
            assert_eq!(dst, again);
        }
    }
}

#[test]
fn nothing_outside_of_matrices_is_touched() {
    products::<f32>();
    products::<f64>();
}
