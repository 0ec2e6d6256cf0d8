//! Every way to be refused: the message names the operand and quotes the shapes, and buffers stay untouched.

use crate::common::{self, Inputs, assert_same_bits};
use ndarray::{Array2, Array3, Array4};
use regard::{Attention, Bias, Error, GradientsViewMut, HeadPosition, Level, Mask, MaskRule, Saved, SavedViewMut, Scale, merge};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

type Shape = (usize, usize, usize, usize);

fn zeros(shape: Shape) -> Array4<f32> {
    Array4::zeros(shape)
}

/// Every door refuses alike, and none writes anything.
#[track_caller]
fn refusal(a: &Attention<'_>, q: Shape, k: Shape, v: Shape) -> Error {
    let (q, k, v) = (zeros(q), zeros(k), zeros(v));
    let error = a.forward(&q, &k, &v).expect_err("must be refused");
    assert_eq!(a.forward_with_stats(&q, &k, &v, regard::StatsOptions::default()).expect_err("must be refused"), error);
    let shape = [q.dim().0, q.dim().1, q.dim().2, v.dim().3];
    assert_eq!(a.forward_saved(&q, &k, &v).expect_err("must be refused"), error);
    let rows = Array3::zeros([shape[0], shape[1], shape[2]]);
    let saved = Saved { out: Array4::zeros(shape), out_unrounded: None, row_max: rows.clone(), row_sum: rows };
    assert_eq!(a.backward(&q, &k, &v, &saved, &saved.out).expect_err("must be refused"), error);
    assert_eq!(a.backward_with_stats(&q, &k, &v, &saved, &saved.out).expect_err("must be refused"), error);
    let mut out = Array4::from_elem(shape, 77.0);
    let mut lse = Array3::from_elem([shape[0], shape[1], shape[2]], 77.0);
    assert_eq!(a.forward_into(&q, &k, &v, out.view_mut(), Some(lse.view_mut())).expect_err("must be refused"), error);
    let (mut row_max, mut row_sum) = (lse.clone(), lse.clone());
    let to = SavedViewMut { out: out.view_mut(), out_unrounded: None, row_max: row_max.view_mut(), row_sum: row_sum.view_mut() };
    assert_eq!(a.forward_saved_into(&q, &k, &v, to).expect_err("must be refused"), error);
    let [mut dq, mut dk, mut dv] = [&q, &k, &v].map(|x| Array4::from_elem(x.raw_dim(), 77.0));
    let to = GradientsViewMut { dq: dq.view_mut(), dk: dk.view_mut(), dv: dv.view_mut() };
    assert_eq!(a.backward_into(&q, &k, &v, &saved, &saved.out, to).expect_err("must be refused"), error);
    let written = [&out, &dq, &dk, &dv].into_iter().flatten().chain([&lse, &row_max, &row_sum].into_iter().flatten());
    assert!(written.copied().all(|x| x == 77.0), "a refused call wrote to its buffers");
    error
}

#[track_caller]
fn assert_says(error: &Error, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    assert!(!message.ends_with('.') && !message.starts_with(char::is_whitespace), "{message:?}");
}

const PLAIN: Shape = (2, 4, 5, 8);

#[test]
fn different_batches_are_refused() {
    let error = refusal(&Attention::new(), PLAIN, (3, 4, 6, 8), (3, 4, 6, 8));
    assert!(matches!(error, Error::Batch { operand: "k", .. }));
    assert_says(&error, &["k [3, 4, 6, 8]", "q [2, 4, 5, 8]", "batch"]);
    let error = refusal(&Attention::new(), PLAIN, (2, 4, 6, 8), (1, 4, 6, 8));
    assert!(matches!(error, Error::Batch { operand: "v", .. }));
    assert_says(&error, &["v [1, 4, 6, 8]", "q [2, 4, 5, 8]"]);
}

#[test]
fn different_heads_of_keys_and_values_are_refused() {
    let error = refusal(&Attention::new(), PLAIN, (2, 4, 6, 8), (2, 2, 6, 8));
    assert!(matches!(error, Error::KeyValueHeads { .. }));
    assert_says(&error, &["k [2, 4, 6, 8]", "v [2, 2, 6, 8]", "heads"]);
}

#[test]
fn heads_that_cannot_be_shared_out_are_refused() {
    for heads_kv in [3, 8, 0] {
        let error = refusal(&Attention::new(), PLAIN, (2, heads_kv, 6, 8), (2, heads_kv, 6, 8));
        assert!(matches!(error, Error::HeadGroups { heads_q: 4, .. }));
        assert_says(&error, &["q [2, 4, 5, 8]", &format!("k [2, {heads_kv}, 6, 8]"), "multiple"]);
    }
}

#[test]
fn different_head_dims_are_refused() {
    let error = refusal(&Attention::new(), PLAIN, (2, 4, 6, 7), (2, 4, 6, 8));
    assert!(matches!(error, Error::HeadDim { .. }));
    assert_says(&error, &["q [2, 4, 5, 8]", "k [2, 4, 6, 7]", "head_dim"]);
}

#[test]
fn different_lengths_of_keys_and_values_are_refused() {
    let error = refusal(&Attention::new(), PLAIN, (2, 4, 6, 8), (2, 4, 7, 8));
    assert!(matches!(error, Error::KeyValueLength { .. }));
    assert_says(&error, &["k [2, 4, 6, 8]", "v [2, 4, 7, 8]", "length"]);
}

#[test]
fn buffers_of_another_shape_are_refused() {
    let x = zeros(PLAIN);
    let mut out = Array4::from_elem((2, 4, 5, 7), 77.0);
    let mut lse = Array3::from_elem((2, 4, 5), 77.0);
    let error = Attention::new().forward_into(&x, &x, &x, out.view_mut(), Some(lse.view_mut())).expect_err("another shape");
    assert!(matches!(error, Error::OutputShape { operand: "out", .. }));
    assert_says(&error, &["out", "[2, 4, 5, 7]", "[2, 4, 5, 8]"]);
    let mut right = Array4::from_elem(PLAIN, 77.0);
    let mut wrong = Array3::from_elem((2, 5, 4), 77.0);
    let error = Attention::new().forward_into(&x, &x, &x, right.view_mut(), Some(wrong.view_mut())).expect_err("another shape");
    assert_says(&error, &["lse", "[2, 5, 4]", "[2, 4, 5]"]);
    assert!(out.iter().chain(&lse).chain(&right).chain(&wrong).all(|&x| x == 77.0));
}

#[test]
fn gradients_of_another_shape_are_refused() {
    let (q, k, v) = (zeros(PLAIN), zeros((2, 2, 6, 8)), zeros((2, 2, 6, 3)));
    let a = Attention::new();
    let saved = a.forward_saved(&q, &k, &v).expect("fits");
    let right = zeros((2, 4, 5, 3));
    assert!(a.backward(&q, &k, &v, &saved, &right).is_ok());
    for shape in [(2, 4, 5, 8), (2, 2, 5, 3), (1, 4, 5, 3), (2, 4, 6, 3), (2, 4, 5, 0)] {
        let wrong = zeros(shape);
        let error = a.backward(&q, &k, &v, &saved, &wrong).expect_err("another shape");
        assert!(matches!(error, Error::OutputShape { operand: "d_out", .. }));
        assert_says(&error, &["d_out", &format!("{:?}", wrong.shape()), "[2, 4, 5, 3]"]);
        assert_eq!(a.backward_with_stats(&q, &k, &v, &saved, &wrong).expect_err("another shape"), error);
    }
}

/// What another call saved does not fit.
#[test]
fn saved_results_of_another_shape_are_refused() {
    let (q, k, v) = (zeros(PLAIN), zeros((2, 2, 6, 8)), zeros((2, 2, 6, 3)));
    let a = Attention::new();
    let saved = a.forward_saved(&q, &k, &v).expect("fits");
    let d_out = saved.out.clone();
    for (wrong, operand, shape) in [
        (Saved { out: zeros((2, 4, 5, 8)), ..saved.clone() }, "saved.out", "[2, 4, 5, 8]"),
        (Saved { out: zeros((2, 4, 3, 5)), ..saved.clone() }, "saved.out", "[2, 4, 3, 5]"),
        (Saved { row_max: Array3::zeros((2, 5, 4)), ..saved.clone() }, "saved.row_max", "[2, 5, 4]"),
        (Saved { row_sum: Array3::zeros((2, 4, 6)), ..saved.clone() }, "saved.row_sum", "[2, 4, 6]"),
    ] {
        let error = a.backward(&q, &k, &v, &wrong, &d_out).expect_err("another shape");
        assert!(matches!(error, Error::OutputShape { .. }));
        assert_says(&error, &[operand, shape]);
    }
    let shorter = a.forward_saved(&zeros((2, 4, 4, 8)), &k, &v).expect("fits");
    assert!(matches!(a.backward(&q, &k, &v, &shorter, &d_out), Err(Error::OutputShape { operand: "saved.out", .. })));
}

#[test]
fn results_of_different_shapes_cannot_be_merged() {
    let (a, b) = (zeros(PLAIN), zeros((2, 4, 5, 9)));
    let (l, m) = (Array3::zeros((2, 4, 5)), Array3::zeros((2, 4, 6)));
    for (error, operand) in [
        (merge(a.view(), l.view(), b.view(), l.view()), "out_b"),
        (merge(a.view(), m.view(), a.view(), l.view()), "lse_a"),
        (merge(a.view(), l.view(), a.view(), m.view()), "lse_b"),
    ] {
        assert_says(&error.expect_err("another shape"), &[operand]);
    }
}

#[test]
fn masks_and_biases_that_cannot_be_broadcast_are_refused() {
    for shape in [(3, 4, 5, 6), (2, 2, 5, 6), (2, 4, 6, 6), (2, 4, 5, 5), (2, 4, 0, 6)] {
        let parts = ["[2, 4, 5, 6]".to_owned(), format!("[{}, {}, {}, {}]", shape.0, shape.1, shape.2, shape.3)];
        let go = |a: Attention<'_>, operand| {
            let error = refusal(&a, PLAIN, (2, 4, 6, 8), (2, 4, 6, 8));
            assert!(matches!(error, Error::Broadcast { .. }));
            assert_says(&error, &[operand, &parts[0], &parts[1]]);
        };
        go(Attention::new().mask(Mask::dense(Array4::from_elem(shape, true))), "mask");
        go(Attention::new().mask(Mask::causal() | !Mask::dense(Array4::from_elem(shape, true))), "mask");
        go(Attention::new().bias(Bias::Dense(Array4::zeros(shape).into())), "bias");
        go(Attention::new().bias(Bias::Dense64(Array4::zeros(shape).into())), "bias");
    }
}

#[test]
fn lists_of_another_length_are_refused() {
    let ids = |rows, n| Array2::<u32>::zeros((rows, n));
    let table = |h, n, m| Array3::from_elem((h, n, m), true);
    for (a, parts) in [
        (Attention::new().key_lengths(vec![1; 3]), ["key_lengths", "3", "2"]),
        (Attention::new().q_offsets(vec![0; 1]), ["q_offset", "1", "2"]),
        (Attention::new().sink(vec![0.0; 2]), ["sink", "2", "4"]),
        (Attention::new().bias(Bias::Alibi(vec![0.5; 5])), ["ALiBi", "5", "4"]),
        (Attention::new().bias(Bias::Relative(Array2::zeros((3, 5)).into())), ["relative bias", "3", "4"]),
        (Attention::new().bias(Bias::Relative(Array2::zeros((4, 6)).into())), ["relative bias", "6", "7"]),
        (Attention::new().mask(Mask::documents(ids(2, 4), ids(2, 6))), ["query document", "4", "5"]),
        (Attention::new().mask(Mask::documents(ids(2, 5), ids(2, 5))), ["key document", "5", "6"]),
        (Attention::new().mask(Mask::documents(ids(3, 5), ids(2, 6))), ["query document", "3", "2"]),
        (Attention::new().mask(Mask::blocks(table(3, 2, 2), 3, 3)), ["block table", "3", "4"]),
        (Attention::new().mask(Mask::blocks(table(1, 3, 2), 3, 3)), ["block table", "3", "2"]),
        (Attention::new().mask(Mask::blocks(table(1, 2, 3), 3, 3)), ["block table", "3", "2"]),
    ] {
        let error = refusal(&a, PLAIN, (2, 4, 6, 8), (2, 4, 6, 8));
        assert!(matches!(error, Error::Length { .. }), "{error:?}");
        assert_says(&error, &parts);
    }
}

#[test]
fn key_lengths_beyond_the_keys_are_refused() {
    let error = refusal(&Attention::new().key_lengths(vec![6, 7]), PLAIN, (2, 4, 6, 8), (2, 4, 6, 8));
    assert_eq!(error, Error::KeyLength { batch: 1, length: 7, seq_kv: 6 });
    assert_says(&error, &["key_lengths[1] is 7", "6 keys"]);
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let nan = f64::NAN;
    for (a, name) in [
        (Attention::new().scale(Scale::By(nan)), "scale is NaN"),
        (Attention::new().scale(Scale::By(f64::INFINITY)), "scale is inf"),
        (Attention::new().softcap(0.0), "softcap is 0"),
        (Attention::new().softcap(-1.0), "softcap is -1"),
        (Attention::new().softcap(1e-31), "it must be from 1e-30 to 1e30"),
        (Attention::new().softcap(1e31), "it must be from 1e-30 to 1e30"),
        (Attention::new().softcap(nan), "softcap is NaN"),
        (Attention::new().softcap(f64::INFINITY), "softcap is inf"),
        (Attention::new().sink(vec![0.0, nan, 0.0, 0.0]), "sink logit is NaN"),
        (Attention::new().sink(vec![0.0, f64::INFINITY, 0.0, 0.0]), "sink logit is inf"),
        (Attention::new().bias(Bias::Alibi(vec![0.0, nan, 0.0, 0.0])), "ALiBi slope is NaN"),
    ] {
        let (q, k, v) = (zeros(PLAIN), zeros((2, 4, 6, 8)), zeros((2, 4, 6, 8)));
        let error = a.forward(&q, &k, &v).expect_err("must be refused");
        assert!(matches!(error, Error::Number { .. }));
        assert_says(&error, &[name, "must be"]);
        // NaN is not equal to itself, and errors that hold one are not either.
        assert_eq!(a.weights(&q, &k).expect_err("must be refused").to_string(), error.to_string());
    }
}

#[test]
fn counts_of_zero_are_refused() {
    let table = || Array3::from_elem((1, 1, 1), true);
    for (a, name) in [
        (Attention::new().top_k(0), "top_k"),
        (Attention::new().threads(0), "threads"),
        (Attention::new().mask(Mask::blocks(table(), 0, 3)), "q_block"),
        (Attention::new().mask(Mask::blocks(table(), 3, 0)), "kv_block"),
    ] {
        let error = refusal(&a, PLAIN, (2, 4, 6, 8), (2, 4, 6, 8));
        assert_eq!(error, Error::Zero { name });
        assert_says(&error, &[name, "at least 1"]);
    }
    let x = zeros(PLAIN);
    for (rows, cols, name) in [(0, 3, "rows"), (3, 0, "cols")] {
        assert_eq!(Attention::new().heat_map(&x, &x, rows, cols).expect_err("no cells"), Error::Zero { name });
    }
}

#[test]
fn a_level_that_is_not_there_is_refused() {
    let error = Level::parse("abacus").expect_err("no such level");
    let error = Error::from(error);
    assert_says(&error, &["abacus", "portable"]);
    assert!(matches!(error, Error::Level { .. }));
    for level in Level::ALL {
        assert_eq!(Level::parse(level.name()), Ok(level));
        if !level.is_available() {
            let error = refusal(&Attention::new().level(level), PLAIN, PLAIN, PLAIN);
            assert_says(&error, &[level.name(), "this CPU has"]);
        }
    }
}

#[test]
fn more_threads_than_any_machine_has_are_refused() {
    let error = refusal(&Attention::new().threads(4097), PLAIN, PLAIN, PLAIN);
    assert!(matches!(error, Error::Threads { threads: 4097, .. }), "{error:?}");
    assert_says(&error, &["4097 threads", "at most 4096"]);
}

#[test]
fn results_beyond_memory_are_refused() {
    let one = zeros((1, 1, 1, 1));
    let q = one.broadcast((1 << 20, 1, 1 << 20, 1)).expect("broadcasts");
    let k = one.broadcast((1 << 20, 1, 1, 1)).expect("broadcasts");
    let v = one.broadcast((1 << 20, 1, 1, 1 << 30)).expect("broadcasts");
    let error = Attention::new().forward(q, k, v).expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }));
    assert_says(&error, &["out", "[1048576, 1, 1048576, 1073741824]"]);
    let long = one.broadcast((1, 1, 1 << 31, 1)).expect("broadcasts");
    assert!(matches!(Attention::new().weights(long, long), Err(Error::TooLarge { .. })));
    assert!(matches!(Attention::new().scores(long, long, regard::Stage::Raw), Err(Error::TooLarge { .. })));
}

/// Does not compile where an error is not a plain value that threads can share.
const _: fn() = || {
    fn is_error<T: std::error::Error + Send + Sync + Clone + PartialEq + 'static>() {}
    is_error::<Error>();
};

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

/// Calls into buffers say that they may have written to them, and have: the first of several tiles. Called again, they give what they would
/// have given.
#[test]
fn an_interrupted_call_may_have_written_to_its_buffers_and_says_so() {
    let s = common::Shape::single(200, 300, 16).heads(2, 1);
    let (x, flag) = (Inputs::<f32>::normal(s, 1), AtomicBool::new(false));
    let rule = Raise { flag: &flag, armed: AtomicBool::new(false) };
    let plain = Attention::new();
    let a = Attention::new().mask(Mask::custom(&rule)).interrupt(&flag).threads(1);
    let (whole, saved) = (plain.forward(&x.q, &x.k, &x.v).expect("fits"), plain.forward_saved(&x.q, &x.k, &x.v).expect("fits"));
    let gradients = plain.backward(&x.q, &x.k, &x.v, &saved, &whole.out).expect("fits");
    let touched = |x: &Array4<f32>| x.iter().filter(|&&x| x != 77.0).count();
    for raised_before in [true, false] {
        let begin = || {
            flag.store(raised_before, Relaxed);
            rule.armed.store(!raised_before, Relaxed);
        };
        let again = || {
            flag.store(false, Relaxed);
            rule.armed.store(false, Relaxed);
        };
        begin();
        assert_eq!(a.forward(&x.q, &x.k, &x.v).map(|_| ()), Err(Error::Interrupted));
        begin();
        let (mut out, mut lse) = (Array4::from_elem(whole.out.raw_dim(), 77.0), Array3::from_elem(whole.lse.raw_dim(), 77.0));
        let error = a.forward_into(&x.q, &x.k, &x.v, out.view_mut(), Some(lse.view_mut())).expect_err("interrupted");
        assert_says(&error, &["interrupted", "output buffers may be partly written"]);
        assert_eq!(touched(&out) > 0, !raised_before, "the words of the error are about this");
        assert!(touched(&out) < out.len());
        again();
        a.forward_into(&x.q, &x.k, &x.v, out.view_mut(), Some(lse.view_mut())).expect("fits");
        assert_same_bits("out", &out, &whole.out);
        assert_same_bits("lse", &lse, &whole.lse);
        begin();
        let (mut row_max, mut row_sum) = (lse.clone(), lse.clone());
        let to = |out: &mut Array4<f32>, row_max: &mut Array3<f32>, row_sum: &mut Array3<f32>| {
            let to = SavedViewMut { out: out.view_mut(), out_unrounded: None, row_max: row_max.view_mut(), row_sum: row_sum.view_mut() };
            a.forward_saved_into(&x.q, &x.k, &x.v, to)
        };
        out.fill(77.0);
        assert_eq!(to(&mut out, &mut row_max, &mut row_sum), Err(Error::Interrupted));
        again();
        to(&mut out, &mut row_max, &mut row_sum).expect("fits");
        assert_same_bits("out", &out, &saved.out);
        assert_same_bits("row_max", &row_max, &saved.row_max);
        assert_same_bits("row_sum", &row_sum, &saved.row_sum);
        let [mut dq, mut dk, mut dv] = [&x.q, &x.k, &x.v].map(|x| Array4::from_elem(x.raw_dim(), 77.0));
        let mut backward = || {
            let to = GradientsViewMut { dq: dq.view_mut(), dk: dk.view_mut(), dv: dv.view_mut() };
            a.backward_into(&x.q, &x.k, &x.v, &saved, &whole.out, to).map(|_| ())
        };
        begin();
        if raised_before {
            assert_eq!(backward(), Err(Error::Interrupted));
        }
        again();
        backward().expect("fits");
        for (name, got, expected) in [("dq", &dq, &gradients.dq), ("dk", &dk, &gradients.dk), ("dv", &dv, &gradients.dv)] {
            assert_same_bits(name, got, expected);
        }
    }
}
