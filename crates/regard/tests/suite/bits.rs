//! Bits that do not move: the same for any number of threads, alone or in a batch, decoded or prefilled.

use crate::common::{Inputs, Recipe, Shape, assert_same_bits, levels, masks, skip};
use half::{bf16, f16};
use ndarray::{Axis, s};
use regard::{Attention, Bias, Element, Forward, Level, Mask, StatsOptions, alibi_slopes};

#[track_caller]
fn assert_same<E: Element>(what: &str, a: &Forward<E>, b: &Forward<E>) {
    assert_same_bits(&format!("out, {what}"), &a.out, &b.out);
    assert_same_bits(&format!("lse, {what}"), &a.lse, &b.lse);
}

/// Options that change what is computed, not how long it takes.
fn options(s: &Shape) -> Vec<(&'static str, Recipe)> {
    vec![
        ("full", Recipe::new()),
        ("causal", Recipe::new().with(|a| a.causal_bottom_right())),
        ("window", Recipe::new().with(|a| a.window(70, 3).align_end())),
        ("softcap and sink", Recipe::new().softcap(3.0).some_sink(s)),
        ("top k", Recipe::new().with(|a| a.causal_bottom_right().top_k(9))),
        ("bias", Recipe::new().dense_bias(s.scores(), 3)),
    ]
}

#[test]
fn threads_do_not_change_the_result() {
    for (s, many) in [
        (Shape::new(150, 150, 32), false),
        (Shape::single(3, 9000, 32), true),
        (Shape::single(1, 20_000, 16).heads(4, 1), true),
        (Shape::single(70, 5000, 16), true),
    ] {
        let x = Inputs::<f32>::normal(s, 1);
        for (name, recipe) in options(&s) {
            for level in levels() {
                let a = recipe.attention().level(level);
                let stats = StatsOptions { local_window: 3, top_keys: 2 };
                let go = |threads| a.clone().threads(threads).forward_with_stats(&x.q, &x.k, &x.v, stats).expect("fits");
                let (one, one_stats) = go(1);
                let plain = a.clone().threads(1).forward(&x.q, &x.k, &x.v).expect("fits");
                assert_same(&format!("statistics, {name}, {s:?}"), &one, &plain);
                for threads in [2, 3, 5] {
                    let what = format!("{threads} threads, {name}, {s:?}, {}", level.name());
                    let (got, stats) = go(threads);
                    assert_same(&what, &one, &got);
                    assert_same_bits(&what, &one_stats.entropy, &stats.entropy);
                    assert_same_bits(&what, &one_stats.mean_distance, &stats.mean_distance);
                    assert_same_bits(&what, &one_stats.local_mass, &stats.local_mass);
                    assert_same_bits(&what, &one_stats.top_weights, &stats.top_weights);
                    assert_eq!(one_stats.argmax, stats.argmax, "{what}");
                    assert_eq!(one_stats.top_keys, stats.top_keys, "{what}");
                    assert_same(&what, &one, &a.clone().threads(threads).forward(&x.q, &x.k, &x.v).expect("fits"));
                }
                if !many {
                    let maps = |threads| {
                        let a = a.clone().threads(threads);
                        let map = a.heat_map(&x.q, &x.k, 7, 9).expect("fits");
                        (a.weights(&x.q, &x.k).expect("fits"), a.column_sums(&x.q, &x.k).expect("fits"), map.mean, map.max)
                    };
                    assert_eq!(maps(1), maps(3), "{name}, {s:?}, {}", level.name());
                }
            }
        }
    }
}

#[test]
fn the_pool_of_the_caller_does_not_change_the_result() {
    let x = Inputs::<f32>::normal(Shape::single(3, 9000, 32), 1);
    let one = Attention::new().threads(1).forward(&x.q, &x.k, &x.v).expect("fits");
    for threads in [1, 4] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads start");
        let got = pool.install(|| Attention::new().forward(&x.q, &x.k, &x.v)).expect("fits");
        assert_same(&format!("pool of {threads}"), &one, &got);
    }
}

#[test]
fn what_else_is_in_the_batch_does_not_change_an_entry() {
    for s in [Shape::new(20, 150, 16).batch(4), Shape::new(1, 300, 16).batch(4), Shape::new(2, 2300, 16).batch(3)] {
        let x = Inputs::<f32>::normal(s, 1);
        for level in levels() {
            let a = Attention::new().causal_bottom_right().level(level);
            let whole = a.forward(&x.q, &x.k, &x.v).expect("fits");
            for b in 0..s.batch {
                let one = s![b..b + 1, .., .., ..];
                let alone = a.forward(x.q.slice(one), x.k.slice(one), x.v.slice(one)).expect("fits");
                assert_same_bits(&format!("entry {b}, {s:?}"), &alone.out, &whole.out.slice(one).to_owned());
                // One query head alone, too.
                for h in 0..s.heads_q {
                    let (q, kv) = (s![b..b + 1, h..h + 1, .., ..], s![b..b + 1, h / 2..h / 2 + 1, .., ..]);
                    let alone = a.forward(x.q.slice(q), x.k.slice(kv), x.v.slice(kv)).expect("fits");
                    assert_same_bits(&format!("head {h} of entry {b}, {s:?}"), &alone.out, &whole.out.slice(q).to_owned());
                }
            }
        }
    }
}

/// Keys that no query sees do not change the result.
#[test]
fn padding_does_not_change_the_result() {
    for n in [1, 20] {
        let s = Shape::new(n, 300, 16);
        let x = Inputs::<f32>::normal(s, 1);
        for level in levels() {
            for length in [1, 100, 128, 150] {
                let kv = s![.., .., ..length, ..];
                let padded = Attention::new().key_lengths(vec![length; 2]).level(level).forward(&x.q, &x.k, &x.v).expect("fits");
                let cut = Attention::new().level(level).forward(x.q.view(), x.k.slice(kv), x.v.slice(kv)).expect("fits");
                assert_same(&format!("{length} keys, {n} queries"), &padded, &cut);
            }
        }
    }
}

fn decoded_equals_prefilled<E: Element>(s: Shape, rows: &[usize]) {
    let x = Inputs::<E>::normal(s, 1);
    let past = (s.seq_kv - s.seq_q) as i64;
    for level in levels() {
        for (name, a) in [
            ("causal", Attention::new().causal()),
            ("window and sinks", Attention::new().mask(Mask::first_keys(4) | Mask::window(Some(90), Some(0)))),
            ("softcap", Attention::new().causal().softcap(2.0)),
            ("sink", Attention::new().causal().sink((0..s.heads_q).map(|h| h as f64).collect::<Vec<_>>())),
            ("alibi", Attention::new().causal().bias(Bias::Alibi(alibi_slopes(s.heads_q)))),
            ("top k", Attention::new().causal().top_k(20)),
        ] {
            let a = a.level(level);
            let whole = a.clone().q_offset(past).forward(&x.q, &x.k, &x.v).expect("fits");
            for &row in rows {
                // Several rows at once go through other kernels than one does.
                for count in [1, 2, 5] {
                    let end = s.seq_q.min(row + count);
                    let a = a.clone().q_offset(past + row as i64);
                    let rows = s![.., .., row..end, ..];
                    let alone = a.forward(x.q.slice(rows), x.k.view(), x.v.view()).expect("fits");
                    let what = format!("{name}, rows {row}..{end}, {s:?}, {} {}", std::any::type_name::<E>(), level.name());
                    assert_same_bits(&what, &alone.out, &whole.out.slice(rows).to_owned());
                    assert_same_bits(&what, &alone.lse, &whole.lse.slice(s![.., .., row..end]).to_owned());
                }
            }
        }
    }
}

#[test]
fn a_row_decoded_alone_has_the_bits_of_the_prefill() {
    let s = Shape::new(150, 170, 20).values(13);
    decoded_equals_prefilled::<f32>(s, &[0, 1, 63, 64, 100, 149]);
    decoded_equals_prefilled::<f64>(s, &[0, 100, 149]);
    decoded_equals_prefilled::<f16>(s, &[0, 100, 149]);
    decoded_equals_prefilled::<bf16>(s, &[0, 100, 149]);
}

#[test]
fn a_row_decoded_alone_has_the_bits_of_a_long_prefill() {
    decoded_equals_prefilled::<f32>(Shape::single(90, 4300, 8).heads(4, 1), &[0, 50, 89]);
    decoded_equals_prefilled::<f64>(Shape::single(30, 2300, 9).heads(2, 1), &[0, 29]);
}

#[test]
fn levels_with_fused_multiply_add_give_the_same_bits() {
    if !(Level::Avx2.is_available() && Level::Avx512.is_available()) {
        return skip(&format!("AVX2 and AVX-512 cannot be compared, this CPU has only {:?}", levels()));
    }
    fn compare<E: Element>() {
        for s in [Shape::new(1, 200, 17), Shape::new(7, 200, 17), Shape::new(70, 200, 64), Shape::single(3, 4300, 8)] {
            let x = Inputs::<E>::normal(s, 1);
            for (name, recipe) in masks(&s).into_iter().chain(options(&s)) {
                let go = |level| recipe.attention().level(level).forward(&x.q, &x.k, &x.v).expect("fits");
                assert_same(&format!("{name}, {s:?}"), &go(Level::Avx2), &go(Level::Avx512));
            }
        }
    }
    for_every_type!(compare);
}

#[test]
fn statistics_do_not_change_the_result() {
    for s in [Shape::new(3, 140, 8), Shape::new(40, 140, 8), Shape::single(2, 4300, 8)] {
        let x = Inputs::<f32>::normal(s, 1);
        for (name, recipe) in masks(&s) {
            for level in levels() {
                let a = recipe.attention().level(level);
                let plain = a.forward(&x.q, &x.k, &x.v).expect("fits");
                let (got, _) = a.forward_with_stats(&x.q, &x.k, &x.v, StatsOptions { local_window: 9, top_keys: 4 }).expect("fits");
                assert_same(&format!("{name}, {s:?}"), &plain, &got);
            }
        }
    }
}

#[test]
fn the_same_call_gives_the_same_bits_again() {
    let x = Inputs::<f32>::normal(Shape::new(150, 150, 32), 1);
    let first = Attention::new().causal().forward(&x.q, &x.k, &x.v).expect("fits");
    for _ in 0..5 {
        // Other work in between leaves other numbers in the working memory.
        let other = Inputs::<f64>::normal(Shape::new(9, 33, 5), 2);
        Attention::new().top_k(3).forward(&other.q, &other.k, &other.v).expect("fits");
        assert_same("again", &first, &Attention::new().causal().forward(&x.q, &x.k, &x.v).expect("fits"));
    }
}

/// A mask that says the same in other words.
#[test]
fn how_a_mask_is_written_does_not_change_the_result() {
    for n in [2, 150] {
        let x = Inputs::<f32>::normal(Shape::single(n, 150, 16), 1);
        let table = ndarray::Array2::from_shape_fn((n, 150), |(i, j)| j <= i + 150 - n);
        let table = table.insert_axis(Axis(0)).insert_axis(Axis(0));
        for level in levels() {
            let go = |mask: Mask<'_>| Attention::new().mask(mask).align_end().level(level).forward(&x.q, &x.k, &x.v).expect("fits");
            let causal = go(Mask::causal());
            assert_same("window", &causal, &go(Mask::window(None, Some(0))));
            assert_same("not future", &causal, &go(!Mask::strictly_future()));
            assert_same("dense", &causal, &go(Mask::dense(&table)));
            assert_same("twice", &causal, &go(Mask::causal() & Mask::causal()));
        }
    }
}
