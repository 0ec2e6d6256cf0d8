//! Packed sequences have the bits that each of them has alone.

use crate::common::{assert_same_bits, levels, normal};
use half::bf16;
use ndarray::{Array4, s};
use regard::{Attention, Bias, CuSeqlens, Element, Error};

const QUERIES: [usize; 6] = [0, 5, 5, 75, 76, 206];
const KEYS: [usize; 6] = [0, 7, 17, 280, 281, 411];
const LENGTHS: [usize; 5] = [3, 10, 200, 0, 130];

fn check<E: Element>(what: &str, attention: &dyn Fn(Option<usize>) -> Attention<'static>) {
    let (q, k, v) = (normal::<E>([1, 4, 206, 24], 1), normal::<E>([1, 2, 411, 24], 2), normal::<E>([1, 2, 411, 16], 3));
    let d_out = normal::<E>([1, 4, 206, 16], 4);
    let packed = CuSeqlens::new(&QUERIES[..], &KEYS[..]);
    for level in levels() {
        for threads in [1, 2] {
            let all = attention(None).level(level).threads(threads);
            let result = all.forward_packed(&q, &k, &v, &packed).expect("fits");
            let saved = all.forward_saved_packed(&q, &k, &v, &packed).expect("fits");
            let gradients = all.backward_packed(&q, &k, &v, &saved, &d_out, &packed).expect("fits");
            for i in 0..LENGTHS.len() {
                let (rows, keys) = (s![.., .., QUERIES[i]..QUERIES[i + 1], ..], s![.., .., KEYS[i]..KEYS[i + 1], ..]);
                let (q, k, v, d_out) = (q.slice(rows), k.slice(keys), v.slice(keys), d_out.slice(rows));
                let one = attention(Some(i)).level(level).threads(threads);
                let alone = one.forward(q, k, v).expect("fits");
                let what = format!("{what}, sequence {i}, {threads} threads, {}", level.name());
                let part = |x: &Array4<E>| x.slice(rows).to_owned();
                assert_same_bits(&format!("out, {what}"), &part(&result.out), &alone.out);
                assert_same_bits(&format!("saved out, {what}"), &part(&saved.out), &alone.out);
                let kept = one.forward_saved(q, k, v).expect("fits");
                let exact = one.backward(q, k, v, &kept, d_out).expect("fits");
                assert_same_bits(&format!("dq, {what}"), &part(&gradients.dq), &exact.dq);
                assert_same_bits(&format!("dk, {what}"), &gradients.dk.slice(keys).to_owned(), &exact.dk);
                assert_same_bits(&format!("dv, {what}"), &gradients.dv.slice(keys).to_owned(), &exact.dv);
            }
        }
    }
}

#[test]
fn a_packed_sequence_has_the_bits_that_it_has_alone() {
    fn every<E: Element>() {
        check::<E>("plain", &|_| Attention::new());
        check::<E>("causal at the end", &|_| Attention::new().causal_bottom_right());
        check::<E>("window", &|_| Attention::new().window(9, 3));
        check::<E>("ALiBi and sinks", &|_| Attention::new().bias(Bias::Alibi(regard::alibi_slopes(4))).sink(vec![0.5; 4]));
        check::<E>("lengths", &|one| Attention::new().key_lengths(one.map_or(LENGTHS.to_vec(), |i| vec![LENGTHS[i]])));
    }
    every::<f32>();
    every::<f64>();
    every::<bf16>();
}

#[test]
fn sequences_that_are_not_all_of_the_tokens_are_refused() {
    let x = normal::<f32>([1, 1, 8, 4], 1);
    for wrong in [&[][..], &[1, 8], &[0, 5, 4, 8], &[0, 7], &[0, 9]] {
        let packed = CuSeqlens::new(wrong, &[0, 8][..]);
        let error = Attention::new().forward_packed(&x, &x, &x, &packed).expect_err("not all of the tokens");
        assert!(matches!(error, Error::CumulativeLengths { operand: "cu_seqlens_q", .. }), "{error}");
    }
    let packed = CuSeqlens::new(&[0, 3, 8][..], &[0, 8][..]);
    assert!(matches!(Attention::new().forward_packed(&x, &x, &x, &packed), Err(Error::Length { .. })));
}
