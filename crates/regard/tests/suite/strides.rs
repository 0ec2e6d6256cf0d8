//! Any layout in, any layout out: the bits are those of the plain layout. What lies around a view is never read.

use crate::common::{Inputs, Shape, assert_same_bits, assert_same_gradients, d_out_for, gradients, levels, normal, to};
use half::{bf16, f16};
use ndarray::{Array, Array2, Array4, Array5, ArrayView4, Axis, s};
use regard::{Attention, Bias, Element, Forward, Mask, StatsOptions};

/// A name, the numbers as they are stored, and how they are seen.
type Layout<E> = (&'static str, Array4<E>, fn(&Array4<E>) -> ArrayView4<'_, E>);

/// The same numbers in other layouts. Everything that does not belong to the view is NaN.
fn layouts<E: Element>(x: &Array4<E>) -> Vec<Layout<E>> {
    let (b, h, n, d) = x.dim();
    let nan = to::<E>(f64::NAN);
    let mut all: Vec<Layout<E>> = Vec::new();
    let mut add = |name, mut storage: Array4<E>, view: fn(&Array4<E>) -> ArrayView4<'_, E>| {
        // Write through a view of the same strides.
        let seen = view(&storage);
        let (strides, offset) = (seen.strides().to_vec(), (seen.as_ptr() as isize - storage.as_ptr() as isize) / size_of::<E>() as isize);
        let slice = storage.as_slice_mut().expect("the storage is plain");
        for ((b, h, n, d), &x) in x.indexed_iter() {
            let at = [b, h, n, d].iter().zip(&strides).map(|(&i, &s)| i as isize * s).sum::<isize>() + offset;
            slice[at as usize] = x;
        }
        all.push((name, storage, view));
    };
    let filled = |shape: [usize; 4]| Array4::from_elem(shape, nan);
    add("plain", filled([b, h, n, d]), |x| x.view());
    add("sequence before heads", filled([b, n, h, d]), |x| x.view().permuted_axes([0, 2, 1, 3]));
    add("padded rows", filled([b, h, n, d + 3]), |x| x.slice_move_view(s![.., .., .., ..-3]));
    add("every second row", filled([b, h, 2 * n, d]), |x| x.slice_move_view(s![.., .., ..;2, ..]));
    add("every second number", filled([b, h, n, 2 * d]), |x| x.slice_move_view(s![.., .., .., ..;2]));
    add("numbers before rows", filled([b, h, d, n]), |x| x.view().permuted_axes([0, 1, 3, 2]));
    add("rows backwards", filled([b, h, n, d]), |x| x.slice_move_view(s![.., .., ..;-1, ..]));
    add("numbers backwards", filled([b, h, n, d]), |x| x.slice_move_view(s![.., .., .., ..;-1]));
    add("all backwards", filled([b, h, n, d]), |x| x.slice_move_view(s![..;-1, ..;-1, ..;-1, ..;-1]));
    add("batch last", filled([h, n, d, b]), |x| x.view().permuted_axes([3, 0, 1, 2]));
    add("rows beyond the end", filled([b, h, n + 9, d]), |x| x.slice_move_view(s![.., .., ..-9, ..]));
    all
}

/// A slice of a view, for function pointers.
trait SliceView<E> {
    fn slice_move_view<I: ndarray::SliceArg<ndarray::Ix4, OutDim = ndarray::Ix4>>(&self, info: I) -> ArrayView4<'_, E>;
}

impl<E> SliceView<E> for Array4<E> {
    fn slice_move_view<I: ndarray::SliceArg<ndarray::Ix4, OutDim = ndarray::Ix4>>(&self, info: I) -> ArrayView4<'_, E> {
        self.view().slice_move(info)
    }
}

#[track_caller]
fn assert_same<E: Element>(what: &str, a: &Forward<E>, b: &Forward<E>) {
    assert_same_bits(&format!("out, {what}"), &a.out, &b.out);
    assert_same_bits(&format!("lse, {what}"), &a.lse, &b.lse);
}

fn any_layout<E: Element>() {
    for (n, m, d) in [(3, 45, 17), (37, 45, 17), (20, 140, 8)] {
        let x = Inputs::<E>::normal(Shape::new(n, m, d), 3);
        for level in levels() {
            let a = Attention::new().causal_bottom_right().level(level);
            let plain = a.forward(&x.q, &x.k, &x.v).expect("fits");
            let (q, k, v) = (layouts(&x.q), layouts(&x.k), layouts(&x.v));
            for i in 0..q.len() {
                // All in one layout, and each in another.
                for (iq, ik, iv) in [(i, i, i), (i, (i + 3) % q.len(), (i + 7) % q.len())] {
                    let got = a.forward((q[iq].2)(&q[iq].1), (k[ik].2)(&k[ik].1), (v[iv].2)(&v[iv].1)).expect("fits");
                    assert_same(&format!("q {}, k {}, v {}, {n} x {m}, {}", q[iq].0, k[ik].0, v[iv].0, level.name()), &plain, &got);
                }
                let rows = a.weights((q[i].2)(&q[i].1), (k[i].2)(&k[i].1)).expect("fits");
                assert_same_bits(q[i].0, &rows, &a.weights(&x.q, &x.k).expect("fits"));
            }
        }
    }
}

#[test]
fn any_strides_give_the_same_bits_in_f32() {
    any_layout::<f32>();
}

#[test]
fn any_strides_give_the_same_bits_in_f64() {
    any_layout::<f64>();
}

#[test]
fn any_strides_give_the_same_bits_in_f16() {
    any_layout::<f16>();
}

#[test]
fn any_strides_give_the_same_bits_in_bf16() {
    any_layout::<bf16>();
}

/// `[batch, seq, 3, heads, dim]`, as one matrix product makes them.
#[test]
fn views_into_a_fused_qkv_are_right() {
    for n in [5, 70] {
        let mut numbers = crate::common::Normal::new(1);
        let fused = Array5::from_shape_simple_fn([2, n, 3, 4, 16], || numbers.number() as f32);
        let part = |i: usize| fused.index_axis(Axis(2), i).permuted_axes([0, 2, 1, 3]);
        for level in levels() {
            let a = Attention::new().causal().level(level);
            let views = a.forward(part(0), part(1), part(2)).expect("fits");
            let copy = |i: usize| part(i).as_standard_layout().into_owned();
            assert_same("fused", &views, &a.forward(&copy(0), &copy(1), &copy(2)).expect("fits"));
        }
    }
}

#[test]
fn keys_and_values_with_a_stride_of_zero_are_right() {
    for n in [3, 40] {
        let x = Inputs::<f32>::normal(Shape::new(n, 50, 8).batch(1), 3);
        let one_key = x.k.slice(s![.., .., ..1, ..]);
        let copy = |view: ArrayView4<'_, f32>| view.as_standard_layout().into_owned();
        for level in levels() {
            let a = Attention::new().causal().level(level);
            // One batch entry for three, one key for fifty, one number for eight.
            let q = x.q.broadcast([3, 4, n, 8]).expect("broadcasts");
            let (k, v) = (x.k.broadcast([3, 2, 50, 8]).expect("broadcasts"), x.v.broadcast([3, 2, 50, 8]).expect("broadcasts"));
            assert_same("batch", &a.forward(q, k, v).expect("fits"), &a.forward(&copy(q), &copy(k), &copy(v)).expect("fits"));
            let k = one_key.broadcast([1, 2, 50, 8]).expect("broadcasts");
            assert_same("keys", &a.forward(&x.q, k, &x.v).expect("fits"), &a.forward(&x.q, &copy(k), &x.v).expect("fits"));
            assert_same("values", &a.forward(&x.q, &x.k, k).expect("fits"), &a.forward(&x.q, &x.k, &copy(k)).expect("fits"));
            let one = x.v.slice(s![.., .., .., ..1]);
            let v = one.broadcast([1, 2, 50, 8]).expect("broadcasts");
            assert_same("numbers", &a.forward(&x.q, v, v).expect("fits"), &a.forward(&x.q, &copy(v), &copy(v)).expect("fits"));
        }
    }
}

#[test]
fn results_may_be_written_to_any_layout() {
    for n in [3, 40] {
        let x = Inputs::<f32>::normal(Shape::new(n, 50, 8).values(5), 3);
        for level in levels() {
            let a = Attention::new().causal().level(level);
            let plain = a.forward(&x.q, &x.k, &x.v).expect("fits");
            let mut storage = Array4::from_elem([2, n, 4, 11], 77.0);
            let mut lse = ndarray::Array3::from_elem([n, 2, 4], 77.0);
            let out = storage.slice_mut(s![.., ..;-1, .., ..10;2]).permuted_axes([0, 2, 1, 3]);
            a.forward_into(&x.q, &x.k, &x.v, out, Some(lse.view_mut().permuted_axes([1, 2, 0]))).expect("fits");
            let out = storage.slice(s![.., ..;-1, .., ..10;2]).permuted_axes([0, 2, 1, 3]).to_owned();
            assert_same_bits("out", &out, &plain.out);
            assert_same_bits("lse", &lse.permuted_axes([1, 2, 0]).to_owned(), &plain.lse);
            assert!(storage.slice(s![.., .., .., 1..;2]).iter().all(|&x| x == 77.0), "wrote beside the view");
        }
    }
}

#[test]
fn masks_and_biases_may_have_any_strides() {
    for n in [3, 40] {
        let shape = Shape::new(n, 50, 8);
        let x = Inputs::<f32>::normal(shape, 3);
        let table = crate::common::random_bools([2, 4, n, 50], 4);
        let odd = crate::common::random_bools([50, n, 4, 2], 5);
        let mut numbers = crate::common::Normal::new(1);
        let bias = Array::from_shape_simple_fn([2, 50, 4, 2 * n], || numbers.number() as f32);
        let ids = Array2::from_shape_fn((100, 2), |(i, b)| ((i + b) / 9) as u32);
        let plain = |view: ArrayView4<'_, bool>| view.as_standard_layout().into_owned();
        for level in levels() {
            let a = Attention::new().level(level);
            let go = |a: Attention<'_>| a.forward(&x.q, &x.k, &x.v).expect("fits");
            for view in [
                table.slice(s![..;-1, .., .., ..]),
                table.slice(s![.., ..;-1, ..;-1, ..;-1]),
                odd.view().permuted_axes([3, 2, 1, 0]),
                table.slice(s![.., 1..2, .., ..]),
                table.slice(s![..1, .., .., 7..8]),
                table.slice(s![..1, ..1, .., 7..8]).broadcast([2, 4, n, 50]).expect("broadcasts"),
            ] {
                let copy = plain(view);
                assert_same("mask", &go(a.clone().mask(Mask::dense(view))), &go(a.clone().mask(Mask::dense(copy))));
            }
            let view = bias.slice(s![.., .., .., ..;-2]).permuted_axes([0, 2, 3, 1]);
            let copy = view.as_standard_layout().into_owned();
            assert_same("bias", &go(a.clone().bias(Bias::Dense(view.into()))), &go(a.clone().bias(Bias::Dense(copy.into()))));
            let (q_ids, k_ids) = (ids.slice(s![..2 * n;2, ..]).reversed_axes(), ids.slice(s![..;-2, ..]).reversed_axes());
            if 2 * n <= 100 {
                let copy = |view: ndarray::ArrayView2<'_, u32>| view.as_standard_layout().into_owned();
                let strided = go(a.clone().mask(Mask::documents(q_ids, k_ids)));
                assert_same("documents", &strided, &go(a.clone().mask(Mask::documents(copy(q_ids), copy(k_ids)))));
            }
        }
    }
}

#[test]
fn statistics_do_not_depend_on_the_layout() {
    let x = Inputs::<f32>::normal(Shape::new(20, 50, 8), 3);
    let options = StatsOptions { local_window: 4, top_keys: 3 };
    for level in levels() {
        let a = Attention::new().causal_bottom_right().level(level);
        let (_, plain) = a.forward_with_stats(&x.q, &x.k, &x.v, options).expect("fits");
        for ((_, q, fq), (name, k, fk)) in layouts(&x.q).iter().zip(&layouts(&x.k)) {
            let (_, got) = a.forward_with_stats(fq(q), fk(k), x.v.view(), options).expect("fits");
            assert_same_bits(name, &plain.entropy, &got.entropy);
            assert_same_bits(name, &plain.mean_distance, &got.mean_distance);
            assert_eq!(plain.top_keys, got.top_keys, "{name}");
            let sums = a.column_sums(fq(q), fk(k)).expect("fits");
            assert_same_bits(name, &sums, &a.column_sums(&x.q, &x.k).expect("fits"));
        }
    }
}

/// q, k, v and d_out in any layout, the last in another one than the result's.
fn any_layout_backward<E: Element>() {
    for (n, m, d) in [(3, 45, 17), (37, 45, 17), (20, 140, 8)] {
        let x = Inputs::<E>::normal(Shape::new(n, m, d).values(d + 2), 3);
        let d_out = d_out_for(&x, 4);
        for level in levels() {
            let a = Attention::new().causal_bottom_right().level(level);
            let plain = gradients(&a, &x, &d_out);
            let (q, k, v, o) = (layouts(&x.q), layouts(&x.k), layouts(&x.v), layouts(&d_out));
            for i in 0..q.len() {
                // All in one layout, and each in another.
                for (iq, ik, iv, io) in [(i, i, i, i), (i, (i + 3) % q.len(), (i + 7) % q.len(), (i + 5) % q.len())] {
                    let (q, k, v, o) = ((q[iq].2)(&q[iq].1), (k[ik].2)(&k[ik].1), (v[iv].2)(&v[iv].1), (o[io].2)(&o[io].1));
                    let saved = a.forward_saved(q, k, v).expect("fits");
                    let got = a.backward(q, k, v, &saved, o).expect("fits");
                    assert_same_gradients(&format!("layouts {iq} {ik} {iv} {io}, {n} x {m}, {}", level.name()), &plain, &got);
                }
            }
        }
    }
}

#[test]
fn any_strides_give_the_same_gradients_in_f32() {
    any_layout_backward::<f32>();
}

#[test]
fn any_strides_give_the_same_gradients_in_f64() {
    any_layout_backward::<f64>();
}

#[test]
fn any_strides_give_the_same_gradients_in_half_precision() {
    any_layout_backward::<f16>();
    any_layout_backward::<bf16>();
}

#[test]
fn gradients_of_views_into_a_fused_qkv_are_right() {
    for n in [5, 70] {
        let mut numbers = crate::common::Normal::new(1);
        let fused = Array5::from_shape_simple_fn([2, n, 3, 4, 16], || numbers.number() as f32);
        let part = |i: usize| fused.index_axis(Axis(2), i).permuted_axes([0, 2, 1, 3]);
        let copy = |i: usize| part(i).as_standard_layout().into_owned();
        let x = Inputs { q: copy(0), k: copy(1), v: copy(2) };
        let d_out = d_out_for(&x, 1);
        for level in levels() {
            let a = Attention::new().causal().level(level);
            let saved = a.forward_saved(part(0), part(1), part(2)).expect("fits");
            let got = a.backward(part(0), part(1), part(2), &saved, d_out.view()).expect("fits");
            assert_same_gradients("fused", &got, &gradients(&a, &x, &d_out));
        }
    }
}

/// A loss that is a sum has a d_out of one number with strides of zero.
#[test]
fn gradients_of_operands_with_a_stride_of_zero_are_right() {
    for n in [3, 40] {
        let x = Inputs::<f32>::normal(Shape::new(n, 50, 8).batch(1), 3);
        let copy = |view: ArrayView4<'_, f32>| view.as_standard_layout().into_owned();
        let one = Array4::from_elem([1, 1, 1, 1], 0.5f32);
        let d_out = one.broadcast([3, 4, n, 8]).expect("broadcasts");
        let q = x.q.broadcast([3, 4, n, 8]).expect("broadcasts");
        let entry = [x.k.broadcast([3, 2, 50, 8]).expect("broadcasts"), x.v.broadcast([3, 2, 50, 8]).expect("broadcasts")];
        let (one_key, one_value) = (x.k.slice(s![.., .., ..1, ..]), x.v.slice(s![.., .., .., ..1]));
        let row = [one_key.broadcast([3, 2, 50, 8]).expect("broadcasts"), one_value.broadcast([3, 2, 50, 8]).expect("broadcasts")];
        for level in levels() {
            let a = Attention::new().causal().level(level);
            for [k, v] in [entry, row, [row[1], row[0]]] {
                let saved = a.forward_saved(q, k, v).expect("fits");
                let got = a.backward(q, k, v, &saved, d_out).expect("fits");
                let plain = gradients(&a, &Inputs { q: copy(q), k: copy(k), v: copy(v) }, &copy(d_out));
                assert_same_gradients(&format!("{n}, {}", level.name()), &got, &plain);
            }
        }
    }
}

/// What was saved may come back in another layout.
#[test]
fn a_saved_result_may_have_any_strides() {
    let x = Inputs::<f64>::normal(Shape::new(37, 45, 17), 3);
    let d_out = d_out_for(&x, 4);
    for level in levels() {
        let a = Attention::new().causal_bottom_right().level(level);
        let plain = gradients(&a, &x, &d_out);
        let mut saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
        let turned = saved.out.view().permuted_axes([0, 1, 3, 2]).as_standard_layout().into_owned();
        saved.out = turned.permuted_axes([0, 1, 3, 2]);
        saved.row_max = saved.row_max.clone().reversed_axes().as_standard_layout().into_owned().reversed_axes();
        let got = a.backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
        for (got, plain) in [(&got.dq, &plain.dq), (&got.dk, &plain.dk), (&got.dv, &plain.dv)] {
            assert!(got.iter().zip(plain).all(|(x, y)| (x - y).abs() < 1e-12));
        }
    }
}

/// The gradient of a bias has its shape, whatever its strides.
#[test]
fn the_gradient_of_a_bias_does_not_depend_on_its_strides() {
    for n in [3, 40] {
        let x = Inputs::<f32>::normal(Shape::new(n, 50, 8), 3);
        let d_out = d_out_for(&x, 4);
        let mut numbers = crate::common::Normal::new(1);
        let bias = Array::from_shape_simple_fn([2, 50, 4, 2 * n], || numbers.number() as f32);
        let view = bias.slice(s![.., .., .., ..;-2]).permuted_axes([0, 2, 3, 1]);
        let broadcast = view.slice(s![..1, ..1, .., ..]).broadcast([2, 4, n, 50]).expect("broadcasts").to_owned();
        for level in levels() {
            let go = |bias: Bias<'_>| gradients(&Attention::new().level(level).bias(bias), &x, &d_out);
            let copy = view.as_standard_layout().into_owned();
            assert_same_gradients("strides", &go(Bias::Dense(view.into())), &go(Bias::Dense(copy.into())));
            let zero = view.slice(s![..1, ..1, .., ..]);
            let zero = zero.broadcast([2, 4, n, 50]).expect("broadcasts");
            assert_same_gradients("stride of zero", &go(Bias::Dense(zero.into())), &go(Bias::Dense(broadcast.view().into())));
        }
    }
}

/// One row of numbers for all queries, its keys stored from the last to the first.
#[test]
fn a_bias_row_that_lies_backwards_is_the_row() {
    let (q, k) = (normal::<f32>([1, 2, 40, 8], 1), normal::<f32>([1, 2, 150, 8], 2));
    let numbers = normal::<f32>([1, 2, 1, 150], 3);
    let backwards = numbers.slice(s![.., .., .., ..;-1]).as_standard_layout().into_owned();
    let turned = backwards.slice(s![.., .., .., ..;-1]);
    for level in levels() {
        let out = |bias: Bias<'_>| Attention::new().bias(bias).level(level).forward(&q, &k, &k).expect("fits").out;
        assert_same_bits(level.name(), &out(Bias::Dense(turned.into())), &out(Bias::Dense(numbers.view().into())));
    }
}
