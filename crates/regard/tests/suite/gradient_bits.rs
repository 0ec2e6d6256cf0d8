//! Bits of gradients that do not move: the same for any number of threads, with statistics or without, alone or in a batch.

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, assert_same_gradients, d_out_for, gradients, levels, masks, oracle, skip};
use half::f16;
use ndarray::{Array2, Array4, s};
use regard::{Attention, Element, Level, alibi_slopes};

/// Options that change what is computed. Among them biases that several heads and batch entries add to.
fn options(s: &Shape) -> Vec<(&'static str, Recipe)> {
    let (n, m) = (s.seq_q, s.seq_kv);
    let table = Array2::from_shape_fn((1, 9), |(_, c)| c as f32 / 4.0);
    vec![
        ("full", Recipe::new()),
        ("causal", Recipe::new().with(|a| a.causal_bottom_right())),
        ("window", Recipe::new().with(|a| a.window(300, 3).align_end())),
        ("softcap, sink and dropout", Recipe::new().softcap(3.0).some_sink(s).with(|a| a.dropout(0.2, 5))),
        ("top k", Recipe::new().with(|a| a.causal_bottom_right().top_k(9))),
        ("bias", Recipe::new().dense_bias(s.scores(), 3)),
        ("bias of all pairs", Recipe::new().dense_bias([1, 1, n, m], 3)),
        ("bias of the keys", Recipe::new().dense_bias([1, 1, 1, m], 3)),
        ("bias of the keys of each head", Recipe::new().dense_bias([1, s.heads_q, 1, m], 3)),
        ("bias of the queries of each entry", Recipe::new().dense_bias([s.batch, 1, n, 1], 3)),
        ("one bias", Recipe::new().dense_bias([1, 1, 1, 1], 4)),
        ("alibi", Recipe::new().with(|a| a.bias(oracle::Bias::Alibi(alibi_slopes(s.heads_q))))),
        ("relative", Recipe::new().with(|a| a.bias(oracle::Bias::Relative(table)))),
    ]
}

fn threads_change_nothing<E: Element>(s: Shape, every: usize) {
    let x = Inputs::<E>::normal(s, 1);
    let d_out = d_out_for(&x, 2);
    for level in levels() {
        for (name, recipe) in options(&s).into_iter().step_by(if level == Level::Portable { 2 * every } else { every }) {
            let a = recipe.attention().level(level).scale_gradient(true);
            let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
            let go = |threads| a.clone().threads(threads).backward_with_stats(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
            let (one, one_stats) = go(1);
            let plain = a.clone().threads(1).backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
            assert_same_gradients(&format!("statistics, {name}, {s:?}, {}", level.name()), &one, &plain);
            for threads in [2, 3, 5] {
                let what = format!("{threads} threads, {name}, {s:?}, {}", level.name());
                let (got, stats) = go(threads);
                assert_same_gradients(&what, &one, &got);
                assert_eq!(one_stats, stats, "{what}");
                let plain = a.clone().threads(threads).backward(&x.q, &x.k, &x.v, &saved, &d_out).expect("fits");
                assert_same_gradients(&what, &one, &plain);
            }
        }
    }
}

/// One head, so that spans of keys are shared out.
#[test]
fn threads_do_not_change_the_gradients_of_one_head() {
    threads_change_nothing::<f32>(Shape::single(70, 1100, 16), 1);
    threads_change_nothing::<f32>(Shape::single(3, 2100, 16).heads(4, 1), 1);
    threads_change_nothing::<f64>(Shape::single(40, 600, 9), 2);
    threads_change_nothing::<f16>(Shape::single(40, 600, 9), 2);
}

#[test]
fn threads_do_not_change_the_gradients_of_many_heads() {
    threads_change_nothing::<f32>(Shape::new(40, 300, 16).heads(12, 12), 1);
    threads_change_nothing::<f32>(Shape::new(20, 300, 16).heads(8, 2).batch(3), 1);
}

/// So wide that dq of the spans is kept apart for some of the queries at a time: heads of a group, and units that share a bias, take turns.
#[test]
fn threads_do_not_change_the_gradients_of_many_queries() {
    for s in [Shape::single(140, 300, 1024).heads(8, 2).values(8), Shape::single(140, 300, 1024).values(8).batch(8)] {
        let x = Inputs::<f32>::normal(s, 1);
        let d_out = d_out_for(&x, 2);
        for shape in [s.scores(), [1, 1, 1, s.seq_kv], [1, 1, 1, 1]] {
            let recipe = Recipe::new().dense_bias(shape, 5);
            let a = recipe.attention();
            let go = |threads| gradients(&a.clone().threads(threads), &x, &d_out);
            assert_same_gradients(&format!("bias {shape:?}, {s:?}"), &go(1), &go(2));
        }
    }
}

#[test]
fn the_pool_of_the_caller_does_not_change_the_gradients() {
    let x = Inputs::<f32>::normal(Shape::single(30, 1100, 16), 1);
    let d_out = d_out_for(&x, 2);
    let one = gradients(&Attention::new().threads(1), &x, &d_out);
    for threads in [1, 4] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start");
        assert_same_gradients(&format!("pool of {threads}"), &one, &pool.install(|| gradients(&Attention::new(), &x, &d_out)));
    }
}

#[test]
fn what_else_is_in_the_batch_does_not_change_the_gradients_of_an_entry() {
    for s in [Shape::new(20, 300, 16).batch(3), Shape::new(1, 300, 16).batch(3), Shape::new(70, 150, 16).batch(3)] {
        let x = Inputs::<f32>::normal(s, 1);
        let d_out = d_out_for(&x, 2);
        for level in levels() {
            for a in [Attention::new().causal_bottom_right(), Attention::new().softcap(2.0).top_k(40)] {
                let a = a.level(level);
                let whole = gradients(&a, &x, &d_out);
                for b in 0..s.batch {
                    let one = s![b..b + 1, .., .., ..];
                    let part = |x: &Array4<f32>| x.slice(one).to_owned();
                    let alone = gradients(&a, &Inputs { q: part(&x.q), k: part(&x.k), v: part(&x.v) }, &part(&d_out));
                    for (name, alone, whole) in [("dq", &alone.dq, &whole.dq), ("dk", &alone.dk, &whole.dk), ("dv", &alone.dv, &whole.dv)] {
                        assert_same_bits(&format!("{name} of entry {b}, {s:?}"), alone, &part(whole));
                    }
                }
            }
        }
    }
}

/// A key/value head with its queries, alone.
#[test]
fn other_heads_do_not_change_the_gradients_of_a_head() {
    let s = Shape::new(30, 300, 16).heads(6, 3);
    let x = Inputs::<f32>::normal(s, 1);
    let d_out = d_out_for(&x, 2);
    for level in levels() {
        let a = Attention::new().causal_bottom_right().level(level);
        let whole = gradients(&a, &x, &d_out);
        for kv in 0..3 {
            let (q, kv) = (s![.., 2 * kv..2 * kv + 2, .., ..], s![.., kv..kv + 1, .., ..]);
            let cut = Inputs { q: x.q.slice(q).to_owned(), k: x.k.slice(kv).to_owned(), v: x.v.slice(kv).to_owned() };
            let alone = gradients(&a, &cut, &d_out.slice(q).to_owned());
            assert_same_bits("dq", &alone.dq, &whole.dq.slice(q).to_owned());
            assert_same_bits("dk", &alone.dk, &whole.dk.slice(kv).to_owned());
            assert_same_bits("dv", &alone.dv, &whole.dv.slice(kv).to_owned());
        }
    }
}

/// dq of a row depends on the row, like its result.
#[test]
fn other_queries_do_not_change_dq_of_a_row() {
    let s = Shape::new(150, 300, 16);
    let x = Inputs::<f32>::normal(s, 1);
    let d_out = d_out_for(&x, 2);
    for level in levels() {
        for a in [Attention::new().causal(), Attention::new().causal().top_k(20)] {
            let whole = gradients(&a.clone().q_offset(150).level(level), &x, &d_out);
            for rows in [0..1, 3..8, 60..70, 149..150] {
                let part = s![.., .., rows.clone(), ..];
                let cut = Inputs { q: x.q.slice(part).to_owned(), ..x.clone() };
                let a = a.clone().q_offset(150 + rows.start as i64).level(level);
                let alone = gradients(&a, &cut, &d_out.slice(part).to_owned());
                assert_same_bits(&format!("rows {rows:?}, {}", level.name()), &alone.dq, &whole.dq.slice(part).to_owned());
            }
        }
    }
}

/// Keys that no query sees do not change the result; their own gradients are zero.
#[test]
fn padding_does_not_change_the_gradients() {
    for n in [1, 20] {
        let x = Inputs::<f32>::normal(Shape::new(n, 600, 16), 1);
        let d_out = d_out_for(&x, 2);
        for level in levels() {
            for length in [1, 100, 128, 150, 256, 300] {
                let kv = s![.., .., ..length, ..];
                let padded = gradients(&Attention::new().key_lengths(vec![length; 2]).level(level), &x, &d_out);
                let cut = Inputs { q: x.q.clone(), k: x.k.slice(kv).to_owned(), v: x.v.slice(kv).to_owned() };
                let cut = gradients(&Attention::new().level(level), &cut, &d_out);
                let what = format!("{length} keys, {n} queries, {}", level.name());
                assert_same_bits(&format!("dq, {what}"), &padded.dq, &cut.dq);
                assert_same_bits(&format!("dk, {what}"), &padded.dk.slice(kv).to_owned(), &cut.dk);
                assert_same_bits(&format!("dv, {what}"), &padded.dv.slice(kv).to_owned(), &cut.dv);
                let rest = s![.., .., length.., ..];
                assert!(padded.dk.slice(rest).iter().chain(&padded.dv.slice(rest)).all(|&x| x.to_bits() == 0), "{what}");
            }
        }
    }
}

#[test]
fn levels_with_fused_multiply_add_give_the_same_gradients() {
    if !(Level::Avx2.is_available() && Level::Avx512.is_available()) {
        return skip(&format!("AVX2 and AVX-512 cannot be compared, this CPU has only {:?}", levels()));
    }
    fn compare<E: Element>() {
        for s in [Shape::new(1, 200, 17), Shape::new(7, 200, 17), Shape::new(70, 200, 33), Shape::single(3, 1100, 8)] {
            let x = Inputs::<E>::normal(s, 1);
            let d_out = d_out_for(&x, 2);
            for (name, recipe) in masks(&s).into_iter().chain(options(&s)) {
                let go = |level| gradients(&recipe.attention().level(level), &x, &d_out);
                assert_same_gradients(&format!("{name}, {s:?}"), &go(Level::Avx2), &go(Level::Avx512));
            }
        }
    }
    compare::<f32>();
    compare::<f64>();
    compare::<f16>();
}

#[test]
fn the_same_call_gives_the_same_gradients_again() {
    let x = Inputs::<f32>::normal(Shape::new(70, 300, 32), 1);
    let d_out = d_out_for(&x, 2);
    let first = gradients(&Attention::new().causal(), &x, &d_out);
    for _ in 0..5 {
        // Other work in between leaves other numbers in the working memory.
        let other = Inputs::<f64>::normal(Shape::new(9, 33, 5), 2);
        gradients(&Attention::new().top_k(3), &other, &d_out_for(&other, 1));
        assert_same_gradients("again", &first, &gradients(&Attention::new().causal(), &x, &d_out));
    }
}
