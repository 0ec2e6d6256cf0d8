//! Several ranks have the bits of one process: results, statistics and gradients, and nothing else on the wire than was said.

mod common;

use common::{assert_bits, random};
use half::bf16;
use ndarray::{Array, Array2, Array3, Array4, Dimension, s};
use regard::{Attention, Bias, Gradients, HeadPosition, Mask, MaskRule, RowStats, Saved, Scale, StatsOptions, Storage, alibi_slopes};
use regard_dist::{Block, Distributed, Error, Faults, InPieces, Local, Partition, WireElement};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The most bytes of the text by which two ranks compare a call.
const AGREEMENT_BYTES: usize = 400;

const STATS: StatsOptions = StatsOptions { local_window: 5, top_keys: 2 };

/// Tensors of all tokens.
struct Whole<E> {
    q: Array4<E>,
    k: Array4<E>,
    v: Array4<E>,
    d_out: Array4<E>,
}

impl<E: Storage> Whole<E> {
    /// Batch entries, query heads, key/value heads; tokens, dimensions of heads and of values.
    fn new([b, h, g]: [usize; 3], [n, d, e]: [usize; 3]) -> Self {
        Self { q: random([b, h, n, d], 1), k: random([b, g, n, d], 2), v: random([b, g, n, e], 3), d_out: random([b, h, n, e], 4) }
    }
}

type Results<E> = (Saved<E>, RowStats<<E as Storage>::Real>, Gradients<E>);

fn one_process<E: WireElement>(a: &Attention<'_>, x: &Whole<E>) -> Results<E> {
    let saved = a.forward_saved(&x.q, &x.k, &x.v).expect("fits");
    let (_, stats) = a.forward_with_stats(&x.q, &x.k, &x.v, STATS).expect("fits");
    let gradients = a.backward(&x.q, &x.k, &x.v, &saved, &x.d_out).expect("fits");
    (saved, stats, gradients)
}

fn one_rank<E: WireElement>(a: &Attention<'_>, x: &Whole<E>, exchange: &Local, partition: &Partition) -> Result<Results<E>, Error> {
    let mine = |x: &Array4<E>| partition.shard(exchange.rank(), x.view());
    let (q, k, v, d_out) = (mine(&x.q), mine(&x.k), mine(&x.v), mine(&x.d_out));
    let ranks = Distributed::new(a, exchange, partition);
    let plain = ranks.forward_saved(q.view(), k.view(), v.view())?;
    let (saved, stats) = ranks.forward_with_stats(q.view(), k.view(), v.view(), STATS)?;
    assert_bits("with statistics and without", &plain.out, &saved.out);
    let gradients = ranks.backward(q.view(), k.view(), v.view(), &saved, d_out.view())?;
    Ok((saved, stats, gradients))
}

fn compare<E: WireElement>(what: &str, a: &Attention<'_>, x: &Whole<E>, partition: &Partition) {
    let (saved, stats, gradients) = one_process(a, x);
    let parts = Local::run(partition.ranks(), |exchange| one_rank(a, x, &exchange, partition));
    for (rank, part) in parts.into_iter().enumerate() {
        let what = format!("{what}, rank {rank} of {partition:?}");
        let (part, part_stats, part_gradients) = part.unwrap_or_else(|error| panic!("{what}: {error}"));
        let mine = |x: &Array4<E>| partition.shard(rank, x.view());
        let rows = |x: &Array3<E::Real>| partition.shard(rank, x.view().insert_axis(ndarray::Axis(3))).remove_axis(ndarray::Axis(3));
        assert_bits(&format!("out, {what}"), &mine(&saved.out), &part.out);
        assert_bits(&format!("row_max, {what}"), &rows(&saved.row_max), &part.row_max);
        assert_bits(&format!("row_sum, {what}"), &rows(&saved.row_sum), &part.row_sum);
        let out_unrounded = saved.out_unrounded.as_ref().map(|x| partition.shard(rank, x.view()));
        out_unrounded.iter().zip(&part.out_unrounded).for_each(|(a, b)| assert_bits(&format!("out_unrounded, {what}"), a, b));
        assert_eq!(out_unrounded.is_some(), part.out_unrounded.is_some(), "{what}");
        assert_bits(&format!("entropy, {what}"), &rows(&stats.entropy), &part_stats.entropy);
        assert_bits(&format!("distance, {what}"), &rows(&stats.mean_distance), &part_stats.mean_distance);
        assert_bits(&format!("local, {what}"), &rows(&stats.local_mass), &part_stats.local_mass);
        assert_bits(&format!("squares, {what}"), &rows(&stats.sum_of_squares), &part_stats.sum_of_squares);
        assert_eq!(partition.shard(rank, stats.top_keys.view()), part_stats.top_keys, "{what}");
        assert_bits(&format!("top weights, {what}"), &partition.shard(rank, stats.top_weights.view()), &part_stats.top_weights);
        assert_bits(&format!("dq, {what}"), &mine(&gradients.dq), &part_gradients.dq);
        assert_bits(&format!("dk, {what}"), &mine(&gradients.dk), &part_gradients.dk);
        assert_bits(&format!("dv, {what}"), &mine(&gradients.dv), &part_gradients.dv);
        let sinks = |x: Option<Vec<f64>>| x.map(Array::from_vec);
        let (whole, part) = (sinks(gradients.d_sink.clone()), sinks(part_gradients.d_sink));
        assert_eq!(whole.is_some(), part.is_some(), "{what}");
        whole.iter().zip(&part).for_each(|(a, b)| assert_bits(&format!("d_sink, {what}"), a, b));
        assert_eq!(gradients.d_scale.map(f64::to_bits), part_gradients.d_scale.map(f64::to_bits), "d_scale, {what}");
    }
}

struct Dilated;

impl MaskRule for Dilated {
    fn visible(&self, _: &HeadPosition, query: usize, key: usize) -> bool {
        key <= query && (query - key).is_multiple_of(3)
    }
}

fn bools<D: Dimension, S: ndarray::ShapeBuilder<Dim = D>>(shape: S) -> Array<bool, D> {
    let mut i = 0u32;
    Array::from_shape_simple_fn(shape, || {
        i = i.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        i >> 30 != 0
    })
}

/// Every kind of mask, and some together.
fn masks(b: usize, n: usize) -> Vec<(&'static str, Attention<'static>)> {
    let a = || Attention::new().bias_gradient(false);
    let documents = Array2::from_shape_fn((1, n), |(_, i)| (i / 190) as u32);
    let ids = || Mask::documents(documents.clone(), documents.clone());
    vec![
        ("everything", a()),
        ("causal", a().causal()),
        ("reverse", a().reverse()),
        ("strictly future", a().strictly_future()),
        ("window", a().window(150, 20)),
        ("sinks or window", a().mask(Mask::first_keys(4) | Mask::window(Some(90), Some(0)))),
        ("key lengths", a().key_lengths((0..b).map(|b| n * (b + 1) / (b + 2)).collect::<Vec<_>>())),
        ("key lengths, aligned to the end", a().key_lengths((0..b).map(|b| n - 100 * b).collect::<Vec<_>>()).causal_bottom_right()),
        ("documents", a().mask(ids())),
        ("causal documents", a().causal().mask(ids())),
        ("dense", a().mask(Mask::dense(bools((b, 1, n, n))))),
        ("blocks", a().mask(Mask::blocks(bools((1, n.div_ceil(70), n.div_ceil(90))), 70, 90))),
        ("custom", a().mask(Mask::custom(&Dilated))),
        ("not", a().mask(!Mask::window(Some(200), Some(3)))),
        ("a mixture", a().mask((Mask::causal() & !ids()) | Mask::first_keys(2))),
        ("offsets", a().causal().q_offsets((0..b).map(|b| 30 * b as i64 - 40).collect::<Vec<_>>())),
        // The first 300 rows, and so a whole rank, see nothing.
        ("rows without keys", a().causal().q_offset(-300)),
        ("nothing", a().mask(!Mask::everything())),
    ]
}

#[test]
fn masks_have_the_bits_of_one_process() {
    let x = Whole::<f32>::new([2, 2, 1], [601, 8, 8]);
    for (i, (name, a)) in masks(2, 601).into_iter().enumerate() {
        let ranks = [2, 3, 1][i % 3];
        let partition = if i % 2 == 0 { Partition::snake(601, ranks, 256) } else { Partition::contiguous(601, ranks) };
        compare(name, &a, &x, &partition.expect("fits"));
    }
}

#[test]
fn any_number_of_ranks_has_the_bits_of_one_process() {
    let x = Whole::<f32>::new([1, 2, 2], [1700, 8, 8]);
    let a = Attention::new().causal().sink(vec![0.5, -1.0]);
    for ranks in [1, 2, 3, 4, 5, 7] {
        compare("contiguous", &a, &x, &Partition::contiguous(1700, ranks).expect("fits"));
        compare("snake", &a, &x, &Partition::snake(1700, ranks, 256).expect("fits"));
    }
    compare("snake of 512", &a, &x, &Partition::snake(1700, 2, 512).expect("fits"));
}

/// Keys of several spans of the softmax, whose states are joined.
#[test]
fn long_rows_have_the_bits_of_one_process() {
    let x = Whole::<f32>::new([1, 1, 1], [4399, 4, 4]);
    for (name, a) in [
        ("everything", Attention::new()),
        ("causal", Attention::new().causal()),
        ("window", Attention::new().window(2500, 0)),
        // Rows that see the first split and the last, and nothing of a piece that a split ends with.
        ("first keys or window", Attention::new().mask(Mask::first_keys(4) | Mask::window(Some(90), Some(0)))),
    ] {
        compare(name, &a, &x, &Partition::snake(4399, 3, 768).expect("fits"));
        compare(name, &a, &x, &Partition::snake(4399, 2, 512).expect("fits"));
    }
}

#[test]
fn types_heads_and_options_have_the_bits_of_one_process() {
    let snake = |n: usize| Partition::snake(n, 3, 256).expect("fits");
    let options = |heads: usize| {
        let sink: Vec<f64> = (0..heads).map(|h| h as f64 - 0.5).collect();
        vec![
            ("softcap, sink and dropout", Attention::new().causal().softcap(3.0).sink(sink).dropout(0.2, 5)),
            ("alibi", Attention::new().causal().bias(Bias::Alibi(alibi_slopes(heads))).bias_gradient(false)),
            ("scale and its gradient", Attention::new().scale(Scale::By(-0.3)).scale_gradient(true).threads(2)),
            ("causal, gradient on the scale", Attention::new().causal().scale_gradient(true)),
        ]
    };
    for heads in [[1, 4, 4], [2, 4, 2], [1, 4, 1]] {
        for (name, a) in options(4) {
            compare(&format!("f32, {name}, {heads:?}"), &a, &Whole::<f32>::new(heads, [531, 6, 10]), &snake(531));
            compare(&format!("f64, {name}, {heads:?}"), &a, &Whole::<f64>::new(heads, [531, 6, 10]), &snake(531));
            compare(&format!("bf16, {name}, {heads:?}"), &a, &Whole::<bf16>::new(heads, [531, 6, 10]), &snake(531));
        }
    }
    let table = Array2::from_shape_fn((1, 9), |(_, i)| i as f32 / 4.0);
    let dense = Array4::from_shape_fn((1, 1, 531, 531), |(_, _, i, j)| ((i * 7 + j) % 11) as f32 / 8.0);
    for bias in [Bias::Relative(table.into()), Bias::Dense(dense.into())] {
        compare("bias", &Attention::new().bias(bias).bias_gradient(false), &Whole::<f32>::new([1, 2, 1], [531, 8, 8]), &snake(531));
    }
}

/// Short wholes are one block, and some ranks have nothing.
#[test]
fn ranks_without_rows_have_no_result_and_do_no_harm() {
    for n in [0, 1, 20, 65, 256, 257] {
        for (name, a) in [("causal", Attention::new().causal().sink(vec![0.1, 0.2])), ("everything", Attention::new())] {
            let x = Whole::<f32>::new([2, 2, 1], [n, 8, 8]);
            compare(&format!("{name}, {n} tokens"), &a, &x, &Partition::contiguous(n, 3).expect("fits"));
            compare(&format!("{name}, {n} tokens"), &a, &x, &Partition::snake(n, 2, 256).expect("fits"));
        }
    }
}

#[test]
fn what_is_not_finite_has_the_bits_of_one_process() {
    let mut x = Whole::<f32>::new([1, 2, 1], [700, 8, 8]);
    x.k[[0, 0, 600, 1]] = f32::NAN;
    x.v[[0, 0, 300, 2]] = f32::INFINITY;
    x.d_out[[0, 1, 10, 3]] = f32::NEG_INFINITY;
    x.q[[0, 0, 400, 0]] = f32::NAN;
    for (name, a) in [("causal", Attention::new().causal().sink(vec![0.1, 0.2])), ("everything", Attention::new())] {
        compare(name, &a, &x, &Partition::snake(700, 2, 256).expect("fits"));
    }
}

/// Forward, each rank receives the keys and values that it sees any of and does not have, once. Backward, a block goes to the first queries
/// that see any of it, through all of those with its sums, and its sums go home.
#[test]
fn bytes_on_the_wire_are_those_of_the_formula() {
    let ([b, h, g], [n, d, e]) = ([1, 4, 2], [2000, 8, 12]);
    let x = Whole::<bf16>::new([b, h, g], [n, d, e]);
    let full = |_: usize, _: usize| true;
    let causal = |query: usize, key: usize| key <= query;
    let local = |query: usize, key: usize| key < 4 || (key <= query && query - key <= 300);
    let masks: [(_, &dyn Fn(usize, usize) -> bool); 3] = [
        (Attention::new(), &full),
        (Attention::new().causal(), &causal),
        (Attention::new().mask(Mask::first_keys(4) | Mask::window(Some(300), Some(0))), &local),
    ];
    for ((a, visible), partition) in masks.iter().flat_map(|mask| {
        [Partition::contiguous(n, 4), Partition::snake(n, 4, 256), Partition::contiguous(n, 7)]
            .map(|partition| (mask, partition.expect("fits")))
    }) {
        let counts = Local::run(partition.ranks(), |exchange| {
            let mine = |x: &Array4<bf16>| partition.shard(exchange.rank(), x.view());
            let (q, k, v, d_out) = (mine(&x.q), mine(&x.k), mine(&x.v), mine(&x.d_out));
            let ranks = Distributed::new(a, &exchange, &partition);
            let saved = ranks.forward_saved(q.view(), k.view(), v.view()).expect("all ranks answer");
            let forward = exchange.bytes_received();
            ranks.backward(q.view(), k.view(), v.view(), &saved, d_out.view()).expect("all ranks answer");
            (forward, exchange.bytes_received() - forward, exchange.most_bytes_pending())
        });
        // Greetings, of less than 200 bytes each, one from each other rank.
        let texts = AGREEMENT_BYTES * (partition.ranks() - 1);
        let near = |what: &str, got: u64, expected: usize| {
            let got = got as usize;
            assert!(got >= expected && got < expected + texts, "{what}: {got} bytes, {expected} by the formula, {partition:?}");
        };
        let blocks = partition.blocks();
        let sees = |queries: &Range<usize>, keys: &Range<usize>| queries.clone().any(|query| keys.clone().any(|key| visible(query, key)));
        let row = b * g * (d + e);
        for (rank, &(forward, backward, pending)) in counts.iter().enumerate() {
            let needed = |keys: &Range<usize>| partition.blocks_of_rank(rank).any(|queries| sees(&queries, keys));
            let others = blocks.iter().filter(|block| block.rank != rank && needed(&block.tokens));
            near("forward", forward, others.map(|block| block.tokens.len()).sum::<usize>() * row * 2);
            let mut expected = 0;
            for Block { tokens: keys, rank: owner } in blocks {
                let route: Vec<_> = blocks.iter().filter(|block| sees(&block.tokens, keys)).map(|block| block.rank).collect();
                let first = usize::from(route[0] == rank && *owner != rank);
                let through = route.windows(2).filter(|pair| pair[1] == rank && pair[0] != rank).count();
                let back = usize::from(*owner == rank && route[route.len() - 1] != rank);
                expected += keys.len() * row * (2 * first + (2 + 4) * through + 4 * back);
            }
            near("backward", backward, expected);
            // At most two blocks of each neighbour, and the gradients of the rank's keys.
            let block = blocks[0].tokens.len() * row * 6;
            let most = 3 * 2 * block + partition.count(rank) * row * 4 + texts;
            assert!(pending as usize <= most, "{pending} bytes were pending, {most} at the most, {partition:?}");
        }
    }
}

fn forward_and_backward(
    a: &Attention<'_>,
    x: &Whole<f32>,
    faults: Faults,
    partition: &Partition,
) -> (Vec<Result<Results<f32>, Error>>, Duration) {
    let begun = Instant::now();
    let results = Local::run_with(partition.ranks(), faults, |exchange| one_rank(a, x, &exchange, partition));
    (results, begun.elapsed())
}

#[test]
fn delays_and_slow_ranks_change_no_bit() {
    let (a, x) = (Attention::new().causal(), Whole::<f32>::new([1, 1, 1], [1100, 4, 4]));
    let (saved, _, gradients) = one_process(&a, &x);
    let partition = Partition::snake(1100, 3, 256).expect("fits");
    for faults in [
        Faults { delay: Duration::from_millis(7), ..Faults::default() },
        Faults { slow: Some((1, Duration::from_millis(5))), ..Faults::default() },
    ] {
        let parts = forward_and_backward(&a, &x, faults, &partition).0;
        let parts: Vec<_> = parts.into_iter().map(|part| part.expect("late is not never")).collect();
        assert_bits("out", &saved.out, &partition.join(&parts.iter().map(|(part, ..)| part.out.view()).collect::<Vec<_>>()));
        assert_bits("dk", &gradients.dk, &partition.join(&parts.iter().map(|(.., part)| part.dk.view()).collect::<Vec<_>>()));
    }
}

/// All ranks end soon, whenever one disconnects, and name it.
#[test]
fn a_lost_rank_ends_all_others_with_its_number_and_the_keys() {
    let (a, x) = (Attention::new().causal(), Whole::<f32>::new([1, 1, 1], [1100, 4, 4]));
    let partition = Partition::snake(1100, 3, 256).expect("fits");
    let mut with_keys = 0;
    for after in 0..40 {
        let (results, took) = forward_and_backward(&a, &x, Faults { lost: Some((1, after)), ..Faults::default() }, &partition);
        if results.iter().all(Result::is_ok) {
            assert!(after > 20, "rank 1 sends more than {after} messages");
            continue;
        }
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert!(results[1].is_err());
        for (rank, result) in results.iter().enumerate().filter(|(rank, _)| *rank != 1) {
            // Who had everything from rank 1 may be through; who is not names a rank that went before it.
            if let Err(error) = result {
                assert!(matches!(error, Error::Disconnected { rank: mine, .. } if *mine == rank), "{error}");
                with_keys += usize::from(error.to_string().contains("keys "));
            }
        }
    }
    assert!(with_keys > 8, "only {with_keys} errors name keys");
}

#[test]
fn a_silent_rank_is_noticed_by_the_watchdog() {
    let (a, x) = (Attention::new(), Whole::<f32>::new([1, 1, 1], [600, 4, 4]));
    let partition = Partition::contiguous(600, 2).expect("fits");
    let timeout = Duration::from_millis(300);
    let results = Local::run_with(2, Faults { timeout, ..Faults::default() }, |exchange| {
        if exchange.rank() == 1 {
            std::thread::sleep(Duration::from_millis(900));
            return None;
        }
        let begun = Instant::now();
        let result = one_rank(&a, &x, &exchange, &partition).map(|_| ());
        assert!(begun.elapsed() < Duration::from_millis(850));
        Some(result)
    });
    let error = results[0].clone().expect("it returned").expect_err("rank 1 says nothing");
    assert_eq!(error, Error::Timeout { rank: 0, from: 1, what: "its options of the call".to_owned(), waited: timeout });
    assert!(error.to_string().contains("rank 0 waited 0.3 s for its options of the call of rank 1"), "{error}");
}

/// No rank waits for ever for one that panicked.
#[test]
fn a_panic_of_a_rank_ends_all_others() {
    let (a, x) = (Attention::new().causal(), Whole::<f32>::new([1, 1, 1], [1100, 4, 4]));
    let partition = Partition::snake(1100, 3, 256).expect("fits");
    let begun = Instant::now();
    let results = Local::run_to_the_end(3, Faults::default(), |exchange| {
        if exchange.rank() == 2 {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        one_rank(&a, &x, &exchange, &partition).map(|_| ())
    });
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(results[2].is_err(), "the panic is told");
    for rank in [0, 1] {
        let error = results[rank].as_ref().expect("no panic").clone().expect_err("rank 2 is gone");
        assert!(matches!(error, Error::Disconnected { rank: mine, .. } if mine == rank), "{error}");
    }
}

/// A cut link, between any ranks and at any time: all ranks time out, and name the ranks and the keys.
#[test]
fn a_cut_link_is_noticed_by_the_watchdog() {
    let (a, x) = (Attention::new().causal(), Whole::<f32>::new([1, 1, 1], [1100, 4, 4]));
    let partition = Partition::snake(1100, 3, 256).expect("fits");
    let timeout = Duration::from_millis(400);
    let (mut waited, mut with_keys) = (0, 0);
    for (way, after) in [([0, 1], 0), ([0, 1], 3), ([1, 2], 5), ([2, 0], 8), ([1, 0], 12), ([2, 1], 16)] {
        let faults = Faults { cut: Some((way, after)), timeout, ..Faults::default() };
        let (results, took) = forward_and_backward(&a, &x, faults, &partition);
        assert!(took < 4 * timeout, "{took:?}, {way:?} after {after}");
        let errors: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert!(!errors.is_empty(), "{way:?} after {after}");
        let first = errors.iter().filter(|error| matches!(error, Error::Timeout { .. }));
        for error in first {
            let Error::Timeout { rank, from, waited: for_so_long, .. } = error else { unreachable!() };
            assert!(rank != from && *for_so_long == timeout, "{error}");
            waited += 1;
            with_keys += usize::from(error.to_string().contains("keys "));
        }
    }
    assert!(waited >= 6 && with_keys >= 4, "{waited} errors of the watchdog, {with_keys} with keys");
}

#[test]
fn ranks_that_do_not_agree_refuse_the_call() {
    let partitions = [Partition::snake(1000, 2, 256), Partition::contiguous(1000, 2)].map(|partition| partition.expect("fits"));
    let x = random::<f32>([1, 1, 1000, 4], 1);
    let errors = Local::run(2, |exchange| {
        let partition = &partitions[exchange.rank()];
        let mine = partition.shard(exchange.rank(), x.view());
        Distributed::new(&Attention::new(), &exchange, partition).forward_saved(mine.view(), mine.view(), mine.view()).map(|_| ())
    });
    assert!(errors.iter().all(|error| matches!(error, Err(Error::Mismatch { .. }))), "{errors:?}");
    let errors = Local::run(2, |exchange| {
        let mine = x.slice(s![.., .., ..10, ..]);
        Distributed::new(&Attention::new(), &exchange, &partitions[0]).forward_saved(mine, mine, mine).map(|_| ())
    });
    assert!(errors.iter().all(|error| matches!(error, Err(Error::Tokens { operand: "q", .. }))), "{errors:?}");
}

/// Options of another rank: every rank gets an error that names the option, before any keys travel.
#[test]
fn ranks_with_different_options_refuse_the_call() {
    struct Every(usize);
    impl MaskRule for Every {
        fn visible(&self, _: &HeadPosition, query: usize, key: usize) -> bool {
            (query + key).is_multiple_of(self.0)
        }
    }
    const N: usize = 600;
    let partition = Partition::snake(N, 3, 256).expect("fits");
    let x = Whole::<f32>::new([1, 2, 1], [N, 4, 4]);
    let rules = [Every(2), Every(3)];
    let dense = |odd: bool| {
        let mut mask = Array4::from_elem((1, 1, N, N), true);
        mask[[0, 0, 17, 3]] = !odd;
        mask
    };
    let ids = |odd: bool| Array2::from_shape_fn((1, N), |(_, i)| (i / 190 + usize::from(odd && i == 100)) as u32);
    let a = || Attention::new().bias_gradient(false);
    // The last rank is the odd one.
    let option = |name: &str, odd: bool| match name {
        "dropout" => a().dropout(0.1, u64::from(odd)),
        "dense" => a().mask(Mask::dense(dense(odd))),
        "documents" => a().mask(Mask::documents(ids(odd), ids(false))),
        "blocks" => a().mask(Mask::blocks(Array3::from_elem((1, 3, 3), !odd), 256, 256)),
        "key_lengths" => a().key_lengths(vec![N - usize::from(odd)]),
        "custom" => a().mask(Mask::custom(&rules[usize::from(odd)])),
        "scale" => a().scale(Scale::By(if odd { 0.5 } else { 0.25 })),
        "softcap" => a().softcap(if odd { 20.0 } else { 30.0 }),
        "sink" => a().sink(vec![0.0, if odd { 1.0 } else { 0.0 }]),
        "alibi" => a().bias(Bias::Alibi(vec![0.5, if odd { 0.5 } else { 0.25 }])),
        "dense f32" => a().bias(Bias::Dense(Array4::from_elem((1, 1, 1, N), f32::from(odd)).into())),
        "relative" => a().bias(Bias::Relative(Array2::from_elem((1, 3), f32::from(odd)).into())),
        "q_offset" => a().causal().q_offset(i64::from(odd)),
        "level" => a().level(if odd { regard::Level::Portable } else { regard::Level::preferred().expect("one") }),
        "no bias gradient" => Attention::new().bias_gradient(!odd),
        "scale gradient" => a().scale_gradient(odd),
        _ => unreachable!("{name}"),
    };
    let mut options = vec![
        "dropout",
        "dense",
        "documents",
        "blocks",
        "key_lengths",
        "custom",
        "scale",
        "softcap",
        "sink",
        "alibi",
        "dense f32",
        "relative",
        "q_offset",
        "no bias gradient",
        "scale gradient",
    ];
    if regard::Level::preferred() != Ok(regard::Level::Portable) {
        options.push("level");
    }
    for name in options {
        let errors = Local::run(3, |exchange| {
            let rank = exchange.rank();
            let mine = |x: &Array4<f32>| partition.shard(rank, x.view());
            let (q, k, v, d_out) = (mine(&x.q), mine(&x.k), mine(&x.v), mine(&x.d_out));
            let (same, own) = (option(name, false), option(name, rank == 2));
            let saved =
                Distributed::new(&same, &exchange, &partition).forward_saved(q.view(), k.view(), v.view()).expect("the same options");
            let ranks = Distributed::new(&own, &exchange, &partition);
            let forward = ranks.forward_saved(q.view(), k.view(), v.view()).map(|_| ());
            let backward = ranks.backward(q.view(), k.view(), v.view(), &saved, d_out.view()).map(|_| ());
            [forward, backward, ranks.decode(x.q.slice(s![.., .., ..1, ..]), k.view(), v.view()).map(|_| ())]
        });
        for (rank, error) in errors.iter().enumerate().flat_map(|(rank, errors)| errors[..2].iter().map(move |error| (rank, error))) {
            let Err(Error::Mismatch { rank: named, from, mine, theirs }) = error else { panic!("{name}, rank {rank}: {error:?}") };
            assert_eq!((*named, *from), if rank == 2 { (2, 0) } else { (rank, 2) });
            assert!([mine, theirs].iter().any(|text| text.contains(name.trim_start_matches("no "))), "{name}: {mine} | {theirs}");
            assert!(!mine.contains("tokens in") && !mine.contains("version"), "{name}: only what differs: {mine}");
        }
    }
    // The number of threads changes no result.
    let done = Local::run(3, |exchange| {
        let mine = partition.shard(exchange.rank(), x.q.view());
        Distributed::new(&Attention::new().threads(1 + exchange.rank()), &exchange, &partition)
            .forward_saved(mine.view(), mine.view(), mine.view())
            .map(|_| ())
    });
    assert!(done.iter().all(Result::is_ok), "{done:?}");
}

/// Saved results of other rows on one rank: an error on all of them at once, and no panic.
#[test]
fn saved_results_that_do_not_fit_refuse_the_call_on_all_ranks() {
    let partition = Partition::contiguous(700, 2).expect("fits");
    let x = Whole::<bf16>::new([1, 2, 1], [700, 4, 4]);
    type Damage = fn(&mut Saved<bf16>);
    let damages: [(&str, Damage); 4] = [
        ("saved.out", |saved| saved.out = Array4::from_elem((1, 2, 3, 4), bf16::ZERO)),
        ("saved.out_unrounded", |saved| saved.out_unrounded = Some(Array4::zeros((1, 1, 1, 1)))),
        ("saved.row_max", |saved| saved.row_max = Array3::zeros((1, 2, 0))),
        ("saved.row_sum", |saved| saved.row_sum = Array3::zeros((2, 2, 3))),
    ];
    for (operand, damage) in damages {
        let begun = Instant::now();
        let errors = Local::run(2, |exchange| {
            let mine = |x: &Array4<bf16>| partition.shard(exchange.rank(), x.view());
            let (q, k, v, d_out) = (mine(&x.q), mine(&x.k), mine(&x.v), mine(&x.d_out));
            let attention = Attention::new();
            let ranks = Distributed::new(&attention, &exchange, &partition);
            let mut saved = ranks.forward_saved(q.view(), k.view(), v.view()).expect("fits");
            if exchange.rank() == 1 {
                damage(&mut saved);
            }
            ranks.backward(q.view(), k.view(), v.view(), &saved, d_out.view()).map(|_| ())
        });
        assert!(matches!(&errors[1], Err(Error::Operand { operand: named, rank: 1, .. }) if *named == operand), "{errors:?}");
        assert!(matches!(&errors[0], Err(Error::Refused { rank: 0, from: 1, reason }) if reason.contains(operand)), "{errors:?}");
        assert!(begun.elapsed() < Duration::from_secs(20), "a rank waited");
    }
}

#[test]
fn what_several_ranks_cannot_do_is_refused() {
    let partition = Partition::contiguous(600, 2).expect("fits");
    let x = Whole::<f32>::new([1, 1, 1], [600, 4, 4]);
    let zeros = Array4::<f32>::zeros((1, 1, 600, 600));
    for (forward_too, a) in [
        (true, Attention::new().top_k(3)),
        (false, Attention::new().bias(Bias::Dense(zeros.into()))),
        (false, Attention::new().bias(Bias::Alibi(vec![0.5]))),
        (false, Attention::new().scale(Scale::By(9.0))),
    ] {
        let errors = Local::run(2, |exchange| {
            let mine = |x: &Array4<f32>| partition.shard(exchange.rank(), x.view());
            let (q, k, v, d_out) = (mine(&x.q), mine(&x.k), mine(&x.v), mine(&x.d_out));
            let ranks = Distributed::new(&a, &exchange, &partition);
            let saved = ranks.forward_saved(q.view(), k.view(), v.view());
            assert_eq!(saved.is_err(), forward_too);
            match saved {
                Err(error) => error,
                Ok(saved) => ranks.backward(q.view(), k.view(), v.view(), &saved, d_out.view()).expect_err("it cannot"),
            }
        });
        for error in errors {
            assert!(matches!(error, Error::Attention(regard::Error::Unsupported { .. })), "{error}");
        }
    }
    assert!(matches!(Partition::snake(1000, 2, 100), Err(Error::Partition { got: 100, .. })));
    assert!(matches!(Partition::contiguous(1000, 0), Err(Error::Partition { got: 0, .. })));
}

#[test]
fn partitions_share_out_every_token_once() {
    for n in [0, 1, 255, 256, 257, 5000] {
        for ranks in [1, 2, 3, 7] {
            for partition in [Partition::contiguous(n, ranks), Partition::snake(n, ranks, 256), Partition::snake(n, ranks, 512)] {
                let partition = partition.expect("fits");
                let mut all: Vec<_> = (0..ranks).flat_map(|rank| partition.positions(rank)).collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..n));
                let x = random::<f32>([1, 2, n, 3], 1);
                let parts: Vec<_> = (0..ranks).map(|rank| partition.shard(rank, x.view())).collect();
                assert_eq!(partition.join(&parts.iter().map(|part| part.view()).collect::<Vec<_>>()), x);
                assert!(parts.iter().enumerate().all(|(rank, part)| part.shape()[2] == partition.count(rank)));
            }
        }
    }
    let snake = Partition::snake(2048, 3, 256).expect("fits");
    assert_eq!(snake.blocks().iter().map(|block| block.rank).collect::<Vec<_>>(), [0, 1, 2, 2, 1, 0, 0, 1]);
}

#[test]
fn keys_come_in_order_and_once() {
    let x = random::<f32>([1, 1, 700, 4], 1);
    let piece = |keys: std::ops::Range<usize>| x.slice(s![.., .., keys, ..]);
    let a = Attention::new();
    let begin = || a.begin(x.slice(s![.., .., ..5, ..]), 0, [1, 1, 700, 700]);
    let mut rows = begin();
    rows.absorb(0, piece(0..512), piece(0..512)).expect("the first piece");
    assert!(matches!(rows.absorb(0, piece(0..512), piece(0..512)), Err(regard::Error::Piece { start: 0, end: 512, .. })));
    assert!(rows.absorb(512, piece(512..700), piece(512..700)).is_err(), "after an error there is no next piece");
    assert!(rows.finish().is_err(), "nor a result");
    let mut early = begin();
    early.absorb(0, piece(0..512), piece(0..512)).expect("the first piece");
    assert_eq!(early.finish().err(), Some(regard::Error::Piece { operand: "keys", start: 512, end: 700, len: 700 }));
    let mut other = begin();
    other.absorb(0, piece(0..512), piece(0..512)).expect("the first piece");
    assert!(other.absorb(512, piece(512..700), x.slice(s![.., .., 512..700, ..2])).is_err(), "values of another size");
}
