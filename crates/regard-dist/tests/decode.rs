//! Few queries whose keys lie on several ranks have the bits of one process, on every rank; and nothing travels but the state of the rows
//! and the results.

mod common;

use common::{assert_bits, random};
use half::bf16;
use ndarray::{Array2, Array4, s};
use regard::{Attention, Bias, HeadPosition, Mask, MaskRule, Saved, Storage, alibi_slopes};
use regard_dist::{Distributed, Error, Exchange, Faults, Local, Partition, WireElement};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Queries, and the cache of all tokens.
struct Cache<E> {
    q: Array4<E>,
    k: Array4<E>,
    v: Array4<E>,
}

impl<E: Storage> Cache<E> {
    /// Batch entries, query heads, key/value heads; queries, keys; dimensions of heads and of values.
    fn new([b, h, g]: [usize; 3], [m, n]: [usize; 2], [d, e]: [usize; 2]) -> Self {
        Self { q: random([b, h, m, d], 1), k: random([b, g, n, d], 2), v: random([b, g, n, e], 3) }
    }
}

fn one_rank<E: WireElement>(a: &Attention<'_>, x: &Cache<E>, exchange: &Local, partition: &Partition) -> Result<Saved<E>, Error> {
    let mine = |x: &Array4<E>| partition.shard(exchange.rank(), x.view());
    Distributed::new(a, exchange, partition).decode(x.q.view(), mine(&x.k).view(), mine(&x.v).view())
}

fn compare<E: WireElement>(what: &str, a: &Attention<'_>, x: &Cache<E>, partition: &Partition) {
    let whole = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
    let ranks = partition.ranks();
    let results = Local::run(ranks, |exchange| one_rank(a, x, &exchange, partition));
    for (rank, result) in results.into_iter().enumerate() {
        let what = format!("{what}, rank {rank} of {ranks}, {} keys", partition.tokens());
        let result = result.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_bits(&format!("out, {what}"), &whole.out, &result.out);
        assert_bits(&format!("row_max, {what}"), &whole.row_max, &result.row_max);
        assert_bits(&format!("row_sum, {what}"), &whole.row_sum, &result.row_sum);
        assert_bits(&format!("lse, {what}"), &whole.lse(), &result.lse());
        assert_eq!(whole.out_unrounded.is_some(), result.out_unrounded.is_some(), "{what}");
        whole.out_unrounded.iter().zip(&result.out_unrounded).for_each(|(a, b)| assert_bits(&format!("out_unrounded, {what}"), a, b));
    }
}

/// Sees every third key, and says nothing of the others.
struct Dilated;

impl MaskRule for Dilated {
    fn visible(&self, at: &HeadPosition, query: usize, key: usize) -> bool {
        (at.position(query) - key as i64) % 3 == 0
    }
}

fn masks(b: usize, m: usize, n: usize) -> Vec<(&'static str, Attention<'static>)> {
    let a = || Attention::new();
    let ids = |n: usize| Array2::from_shape_fn((1, n), |(_, i)| (i / 1900) as u32);
    vec![
        ("everything", a()),
        ("causal", a().causal_bottom_right()),
        ("causal, from a query on", a().causal().q_offset(n as i64 / 2)),
        ("queries at other places", a().causal().q_offsets((0..b).map(|b| 2000 * b as i64 + 700).collect::<Vec<_>>())),
        ("window", a().causal_bottom_right().mask(Mask::window(Some(2600), Some(0)))),
        ("narrow window", a().causal_bottom_right().mask(Mask::window(Some(90), Some(0)))),
        ("first keys or window", a().causal_bottom_right().mask(Mask::first_keys(4) | Mask::window(Some(90), Some(0)))),
        ("key lengths", a().key_lengths((0..b).map(|b| n * (b + 1) / (b + 2)).collect::<Vec<_>>())),
        ("key lengths, aligned to the end", a().key_lengths((0..b).map(|b| n - n / 3 * b).collect::<Vec<_>>()).causal_bottom_right()),
        ("documents", a().mask(Mask::documents(Array2::from_elem((1, m), 1), ids(n)))),
        ("custom", a().mask(Mask::custom(&Dilated))),
        ("not", a().mask(!Mask::first_keys(2100))),
        // The first queries see no key; no query sees any.
        ("before all keys", a().causal().q_offset(-2)),
        ("nothing", a().mask(!Mask::everything())),
    ]
}

/// Cuts within splits of 2048 keys, and at their ends.
#[test]
fn masks_have_the_bits_of_one_process() {
    let (b, m) = (2, 3);
    for n in [5003, 8192] {
        let x = Cache::<f32>::new([b, 2, 1], [m, n], [8, 12]);
        for (i, (name, a)) in masks(b, m, n).into_iter().enumerate() {
            for ranks in [2 + i % 2, 4] {
                compare(name, &a.clone().threads(1 + i % 2), &x, &Partition::contiguous(n, ranks).expect("fits"));
            }
        }
    }
}

#[test]
fn any_number_of_ranks_and_queries_has_the_bits_of_one_process() {
    for (m, n) in [(1, 7001), (2, 4097), (3, 9000), (4, 2048), (5, 6400)] {
        let x = Cache::<f32>::new([1, 4, 2], [m, n], [16, 16]);
        let a = Attention::new().causal_bottom_right().sink(vec![0.5, -1.0, 0.1, 2.0]);
        for ranks in [1, 2, 3, 4, 5, 7] {
            compare(&format!("{m} queries"), &a, &x, &Partition::contiguous(n, ranks).expect("fits"));
        }
        // The state passes by each rank several times.
        compare("snake", &a, &x, &Partition::snake(n, 3, 768).expect("fits"));
        compare("snake", &a, &x, &Partition::snake(n, 2, 2048).expect("fits"));
    }
    // Several tiles of queries.
    let x = Cache::<f32>::new([1, 2, 1], [150, 5000], [8, 8]);
    compare("150 queries", &Attention::new().causal_bottom_right(), &x, &Partition::contiguous(5000, 3).expect("fits"));
}

#[test]
fn types_heads_and_options_have_the_bits_of_one_process() {
    let n = 4999;
    let partition = Partition::contiguous(n, 3).expect("fits");
    for heads in [[1, 4, 4], [2, 4, 2], [1, 4, 1]] {
        let sink: Vec<f64> = (0..4).map(|h| h as f64 - 0.5).collect();
        let a = || Attention::new().causal_bottom_right();
        let options = [
            ("softcap and sink", a().softcap(3.0).sink(sink)),
            ("dropout", a().dropout(0.2, 5)),
            ("alibi", a().bias(Bias::Alibi(alibi_slopes(4)))),
            ("scale", a().scale(regard::Scale::By(-0.3))),
        ];
        for (i, (name, a)) in options.into_iter().enumerate() {
            let m = 1 + i;
            compare(&format!("f32, {name}, {heads:?}"), &a, &Cache::<f32>::new(heads, [m, n], [6, 10]), &partition);
            compare(&format!("f64, {name}, {heads:?}"), &a, &Cache::<f64>::new(heads, [m, n], [6, 10]), &partition);
            compare(&format!("bf16, {name}, {heads:?}"), &a, &Cache::<bf16>::new(heads, [m, n], [6, 10]), &partition);
        }
    }
    let dense = Array4::from_shape_fn((1, 1, 2, n), |(_, _, i, j)| ((i * 7 + j) % 11) as f32 / 8.0);
    let x = Cache::<f32>::new([1, 2, 1], [2, n], [8, 8]);
    compare("a bias", &Attention::new().bias(Bias::Dense(dense.into())), &x, &partition);
}

#[test]
fn ranks_without_keys_get_the_results_too() {
    for n in [0, 1, 255, 257, 2049] {
        for (name, a) in [("causal", Attention::new().causal_bottom_right().sink(vec![0.1, 0.2])), ("everything", Attention::new())] {
            for m in [0, 1, 2] {
                let x = Cache::<f32>::new([2, 2, 1], [m, n], [8, 8]);
                compare(&format!("{name}, {m} queries"), &a, &x, &Partition::contiguous(n, 4).expect("fits"));
            }
        }
    }
}

#[test]
fn what_is_not_finite_and_the_sign_of_zero_have_the_bits_of_one_process() {
    let n = 5200;
    let mut x = Cache::<f32>::new([1, 4, 2], [3, n], [8, 8]);
    x.k[[0, 0, 3000, 1]] = f32::NAN;
    x.v[[0, 1, 700, 2]] = f32::INFINITY;
    x.v[[0, 1, 4100, 3]] = f32::NEG_INFINITY;
    x.q[[0, 3, 1, 0]] = f32::NAN;
    x.k[[0, 1, 5000, 0]] = f32::INFINITY;
    x.v.slice_mut(s![.., .., .., 5]).fill(-1e-45);
    for (name, a) in masks(1, 3, n) {
        for ranks in [2, 5] {
            compare(&format!("not finite, {name}"), &a, &x, &Partition::contiguous(n, ranks).expect("fits"));
        }
    }
}

/// A rank receives the state of the rows from whoever has the keys before, and the results once.
#[test]
fn bytes_on_the_wire_are_those_of_the_formula() {
    let ([b, h, g], [m, d, e]) = ([2, 8, 2], [1, 4, 16]);
    for (n, window) in [(8192, None), (20_000, None), (20_000, Some(3000))] {
        let x = Cache::<bf16>::new([b, h, g], [m, n], [d, e]);
        let a = Attention::new().causal_bottom_right();
        let a = window.map_or(a.clone(), |before| a.mask(Mask::window(Some(before), Some(0))));
        let first = window.map_or(0, |before| n - 1 - before);
        for ranks in [2, 4, 7] {
            let partition = Partition::contiguous(n, ranks).expect("fits");
            let counts = Local::run(ranks, |exchange| {
                one_rank(&a, &x, &exchange, &partition).expect("all ranks answer");
                (exchange.bytes_received(), exchange.most_bytes_pending())
            });
            let (rows, last) = (b * h * m, partition.blocks().last().expect("there are keys").rank);
            // Rows that share their keys are a tile: four heads of one query.
            let (tiles, state) = (b * g, rows * (2 + e) * 4);
            for (rank, (received, pending)) in counts.into_iter().enumerate() {
                let cut = partition.blocks_of_rank(rank).next().map(|keys: Range<usize>| keys.start).filter(|&start| start > first);
                // A sum of all splits before, and where one is cut, of that; neither where nothing was seen of it.
                let whole_splits = |cut: &usize| cut / 2048 > first / 2048;
                let sums = |cut: usize| usize::from(whole_splits(&cut)) + usize::from(!cut.is_multiple_of(2048));
                let numbers = cut.map_or(0, |cut| 16 + tiles * (12 + 2 * 4) + sums(cut) * state);
                let results = if rank == last { 0 } else { rows * (e * (2 + 4) + 2 * 4) };
                let (received, expected, texts) = (received as usize, numbers + results, 400 * (ranks - 1));
                assert!(
                    received >= expected && received < expected + texts,
                    "rank {rank} of {ranks}, {n} keys, {window:?}: {received} bytes, {expected} by the formula"
                );
                assert!((pending as usize) < expected + texts + 1, "{pending} bytes pending");
            }
        }
    }
}

#[test]
fn a_lost_rank_ends_all_others_with_its_number_and_the_keys() {
    let (a, x) = (Attention::new(), Cache::<f32>::new([1, 2, 1], [1, 3000], [4, 4]));
    let partition = Partition::contiguous(3000, 3).expect("fits");
    let mut errors = Vec::new();
    for after in 0..4 {
        let begun = Instant::now();
        let results =
            Local::run_with(3, Faults { lost: Some((1, after)), ..Faults::default() }, |exchange| one_rank(&a, &x, &exchange, &partition));
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        for (rank, result) in results.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
            if let Err(error) = result {
                assert!(matches!(error, Error::Disconnected { rank: mine, .. } if mine == rank), "{error}");
                errors.push(error.to_string());
            }
        }
    }
    let expected = "rank 2 needs the running state up to keys 1024..2048 of rank 1, which is disconnected; start the job again";
    assert!(errors.iter().any(|error| error == expected), "{errors:?}");
    let timeout = Duration::from_millis(400);
    let faults = Faults { cut: Some(([1, 2], 2)), timeout, ..Faults::default() };
    let results = Local::run_with(3, faults, |exchange| one_rank(&a, &x, &exchange, &partition));
    let error = results[2].as_ref().expect_err("it waits for rank 1");
    // Rank 1 waits for the results, as long, and may be gone before.
    assert!(matches!(error, Error::Timeout { rank: 2, from: 1, .. } | Error::Disconnected { rank: 2, from: 1, .. }), "{error}");
    assert!(error.to_string().contains("the running state up to keys 1024..2048 of rank 1"), "{error}");
}

#[test]
fn ranks_that_do_not_agree_refuse_the_call() {
    let partition = Partition::contiguous(1000, 2).expect("fits");
    let x = Cache::<f32>::new([1, 2, 1], [1, 1000], [4, 4]);
    let decode = |exchange: &Local, a: &Attention<'_>, q: &Array4<f32>, k: &Array4<f32>| {
        Distributed::new(a, exchange, &partition).decode(q.view(), k.view(), k.view()).map(|_| ())
    };
    let mine = |exchange: &Local| partition.shard(exchange.rank(), x.k.view());
    // Queries of another sequence.
    let errors =
        Local::run(2, |exchange| decode(&exchange, &Attention::new(), &random([1, 2, 1, 4], exchange.rank() as u64), &mine(&exchange)));
    assert!(errors.iter().all(|error| matches!(error, Err(Error::Mismatch { .. }))), "{errors:?}");
    let errors = Local::run(2, |exchange| decode(&exchange, &Attention::new(), &x.q, &x.k));
    assert!(errors.iter().all(|error| matches!(error, Err(Error::Tokens { operand: "k", .. }))), "{errors:?}");
    let errors = Local::run(2, |exchange| decode(&exchange, &Attention::new().top_k(3), &x.q, &mine(&exchange)));
    assert!(errors.iter().all(|error| matches!(error, Err(Error::Attention(regard::Error::Unsupported { .. })))), "{errors:?}");
}

/// A state that is none names the ranks and the keys.
#[test]
fn a_damaged_state_is_refused() {
    struct Damaged<'x>(&'x Local);
    impl Exchange for Damaged<'_> {
        fn rank(&self) -> usize {
            self.0.rank()
        }
        fn ranks(&self) -> usize {
            self.0.ranks()
        }
        fn send(&self, to: usize, tag: regard_dist::Tag, mut bytes: Vec<u8>) -> Result<(), regard_dist::Failure> {
            if tag.0 == regard_dist::Kind::States {
                bytes.pop();
            }
            self.0.send(to, tag, bytes)
        }
        fn receive(&self, from: usize, tag: regard_dist::Tag) -> Result<Vec<u8>, regard_dist::Failure> {
            self.0.receive(from, tag)
        }
    }
    let (a, x) = (Attention::new(), Cache::<f32>::new([1, 2, 1], [1, 700], [4, 4]));
    let partition = Partition::contiguous(700, 2).expect("fits");
    let errors = Local::run(2, |exchange| {
        let mine = |x: &Array4<f32>| partition.shard(exchange.rank(), x.view());
        Distributed::new(&a, &Damaged(&exchange), &partition).decode(x.q.view(), mine(&x.k).view(), mine(&x.v).view()).map(|_| ())
    });
    let error = errors[1].as_ref().expect_err("a byte is missing");
    assert!(matches!(error, Error::State { rank: 1, from: 0, .. }), "{error}");
    assert!(error.to_string().starts_with("rank 1 cannot continue from the running state up to keys 0..512 of rank 0: "), "{error}");
    assert!(matches!(errors[0], Err(Error::Disconnected { .. })), "{errors:?}");
}
