//! Heat maps of several ranks have the bits of one process.

mod common;

use common::{assert_bits, random};
use half::bf16;
use ndarray::Array4;
use regard::{Attention, HeatMap, Mask, Real, SoftmaxDenominators, Storage};
use regard_dist::{Block, Distributed, Error, Local, Partition, WireElement};

/// A map, where a rank has it, and how many bytes came for it.
type Map<E> = (Option<HeatMap<<E as Storage>::Real>>, u64);

fn one_rank<E: WireElement>(
    a: &Attention<'_>,
    [q, k]: [&Array4<E>; 2],
    exchange: &Local,
    partition: &Partition,
    cells: [usize; 2],
) -> Result<Map<E>, Error> {
    let mine = |x: &Array4<E>| partition.shard(exchange.rank(), x.view());
    let (q, k) = (mine(q), mine(k));
    let ranks = Distributed::new(a, exchange, partition);
    let saved = ranks.forward_saved(q.view(), k.view(), k.view())?;
    let before = exchange.bytes_received();
    let map = ranks.heat_map(q.view(), k.view(), &SoftmaxDenominators::from(&saved), cells)?;
    Ok((map, exchange.bytes_received() - before))
}

fn compare<E: WireElement>(what: &str, a: &Attention<'_>, q: &Array4<E>, k: &Array4<E>, partition: &Partition, cells: [usize; 2]) {
    let whole = a.heat_map(q, k, cells[0], cells[1]).expect("fits");
    let maps = Local::run(partition.ranks(), |exchange| one_rank(a, [q, k], &exchange, partition, cells));
    for (rank, map) in maps.into_iter().enumerate() {
        let what = format!("{what}, {cells:?} cells, rank {rank} of {}, {} tokens", partition.ranks(), partition.tokens());
        let map = map.unwrap_or_else(|error| panic!("{what}: {error}")).0;
        assert_eq!(map.is_some(), rank == 0, "{what}");
        if let Some(map) = map {
            assert_bits(&format!("mean, {what}"), &whole.mean, &map.mean);
            assert_bits(&format!("max, {what}"), &whole.max, &map.max);
        }
    }
}

#[test]
fn maps_have_the_bits_of_one_process() {
    let n = 1111;
    let (q, k) = (random::<f32>([2, 2, n, 4], 1), random::<f32>([2, 1, n, 4], 2));
    let masks = [
        ("everything", Attention::new()),
        ("causal, sink and softcap", Attention::new().causal().sink(vec![0.5, -1.0]).softcap(4.0)),
        ("window", Attention::new().window(150, 20)),
        ("first keys or window", Attention::new().mask(Mask::first_keys(4) | Mask::window(Some(90), Some(0)))),
        ("key lengths", Attention::new().key_lengths(vec![700, 1111])),
        ("dropout", Attention::new().causal().dropout(0.3, 4)),
        ("rows without keys", Attention::new().causal().q_offset(-600)),
    ];
    for (i, (name, a)) in masks.into_iter().enumerate() {
        let cells = [[10, 12], [7, 1111], [400, 3], [1, 1], [1111, 50], [64, 64]][i % 6];
        for partition in [Partition::snake(n, 2 + i % 2, 256), Partition::contiguous(n, 4), Partition::snake(n, 3, 512)] {
            compare(name, &a, &q, &k, &partition.expect("fits"), cells);
        }
    }
}

#[test]
fn any_number_of_ranks_and_cells_has_the_bits_of_one_process() {
    let (n, a) = (1300, Attention::new().causal());
    let (q, k) = (random::<f32>([1, 2, n, 4], 1), random::<f32>([1, 1, n, 4], 2));
    for (ranks, cells) in [(1, [9, 9]), (2, [3, 5]), (3, [5000, 5000]), (4, [2, 1300]), (5, [100, 100]), (7, [33, 7])] {
        compare("contiguous", &a, &q, &k, &Partition::contiguous(n, ranks).expect("fits"), cells);
        compare("snake", &a, &q, &k, &Partition::snake(n, ranks, 256).expect("fits"), cells);
    }
    for n in [0, 1, 20, 65, 257] {
        let (q, k) = (random::<f32>([2, 2, n, 4], 1), random::<f32>([2, 1, n, 4], 2));
        compare("short", &a, &q, &k, &Partition::contiguous(n, 3).expect("fits"), [5, 6]);
    }
}

fn of_type<E: WireElement>(what: &str) {
    let n = 900;
    let (mut q, mut k) = (random::<E>([1, 2, n, 6], 1), random::<E>([1, 2, n, 6], 2));
    let not_finite = |x: f64| E::from_real(E::Real::from_f64(x));
    let partition = Partition::snake(n, 2, 256).expect("fits");
    compare(what, &Attention::new().causal(), &q, &k, &partition, [11, 13]);
    k[[0, 0, 600, 1]] = not_finite(f64::NAN);
    q[[0, 1, 400, 0]] = not_finite(f64::INFINITY);
    compare(&format!("not finite, {what}"), &Attention::new().causal(), &q, &k, &partition, [11, 13]);
}

#[test]
fn types_and_what_is_not_finite_have_the_bits_of_one_process() {
    of_type::<f32>("f32");
    of_type::<f64>("f64");
    of_type::<bf16>("bf16");
}

/// Keys travel, and values do not; and one row of cells at each border of two blocks.
#[test]
fn bytes_on_the_wire_are_those_of_the_formula() {
    let ([b, h, g, d], n, cells) = ([1, 4, 2, 16], 2000, [5, 40]);
    let (q, k) = (random::<f32>([b, h, n, d], 1), random::<f32>([b, g, n, d], 2));
    for partition in [Partition::contiguous(n, 4), Partition::snake(n, 3, 256)].map(|partition| partition.expect("fits")) {
        let counts = Local::run(partition.ranks(), |exchange| {
            one_rank(&Attention::new(), [&q, &k], &exchange, &partition, cells).expect("all ranks answer").1
        });
        let row = b * h * cells[1] * 12;
        for (rank, received) in counts.into_iter().enumerate() {
            let mut expected = (n - partition.count(rank)) * b * g * d * 4;
            for (i, Block { tokens: keys, rank: owner }) in partition.blocks().iter().enumerate() {
                // Cells of 400 queries.
                let begun = !keys.start.is_multiple_of(400);
                expected += if begun && *owner == rank && partition.blocks()[i - 1].rank != rank { row } else { 0 };
                let finished = keys.end / 400 - keys.start / 400;
                expected += if rank == 0 && *owner != 0 { finished * row } else { 0 };
            }
            let texts = 400 * (partition.ranks() - 1);
            let received = received as usize;
            assert!(
                received >= expected && received < expected + texts,
                "rank {rank}: {received} bytes, {expected} by the formula, {partition:?}"
            );
        }
    }
}

#[test]
fn all_ranks_refuse_what_is_not_possible() {
    let partition = Partition::contiguous(600, 2).expect("fits");
    let x = random::<f32>([1, 1, 600, 4], 1);
    let errors = Local::run(2, |exchange| one_rank(&Attention::new(), [&x, &x], &exchange, &partition, [0, 3]).map(|_| ()));
    assert!(errors.iter().all(|error| matches!(error, Err(Error::Attention(regard::Error::Zero { name: "rows" })))), "{errors:?}");
    let errors = Local::run(2, |exchange| {
        let (a, mine) = (Attention::new(), partition.shard(exchange.rank(), x.view()));
        let states = a.row_states(&x, &x).expect("fits");
        Distributed::new(&a, &exchange, &partition).heat_map(mine.view(), mine.view(), &states, [3, 3]).map(|_| ())
    });
    assert!(errors.iter().all(|error| matches!(error, Err(Error::Operand { operand: "row_max", .. }))), "{errors:?}");
}
