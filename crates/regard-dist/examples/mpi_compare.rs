//! Every rank compares its part of attention by all ranks with one process: results, statistics and gradients, bit for bit.
//!
//! ```sh
//! mpirun --bind-to none -n 3 target/debug/examples/mpi_compare [fault]
//! ```
//!
//! With a fault (`panic`, `kill`, `stop`), rank 1 panics, is killed or stops after the first comparison.

use half::bf16;
use ndarray::{Array, Array1, Array2, Array4, Dimension};
use regard::{Attention, Bias, Mask, Real, Scale, StatsOptions, Storage, alibi_slopes};
use regard_dist::{Distributed, Error, Exchange, Mpi, Partition, WireElement};
use std::time::{Duration, SystemTime};

const STATS: StatsOptions = StatsOptions { local_window: 5, top_keys: 2 };

fn random<E: Storage>(shape: [usize; 4], seed: u64) -> Array4<E> {
    let mut state = seed;
    Array4::from_shape_simple_fn(shape, || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        E::from_real(E::Real::from_f64((state >> 11) as f64 / (1u64 << 52) as f64 * 4.0 - 4.0))
    })
}

/// One NaN is as good as another.
fn differing<E: Storage, D: Dimension>(a: &Array<E, D>, b: &Array<E, D>) -> usize {
    let bits = |x: &E| Some(x.to_real().to_f64()).filter(|x| !x.is_nan()).map(f64::to_bits);
    if a.shape() == b.shape() { a.iter().zip(b).filter(|(a, b)| bits(a) != bits(b)).count() } else { usize::MAX }
}

/// How many numbers differ, of how many.
fn compare<E: WireElement>(
    what: &str,
    a: &Attention<'_>,
    heads: [usize; 3],
    n: usize,
    partition: &Partition,
    mpi: &Mpi,
) -> Result<[usize; 2], Error> {
    let ([b, h, g], d) = (heads, 8);
    let (q, k, v, d_out) = (random::<E>([b, h, n, d], 1), random([b, g, n, d], 2), random([b, g, n, d], 3), random([b, h, n, d], 4));
    let mine = |x: &Array4<E>| partition.shard(mpi.rank(), x.view());
    let ranks = Distributed::new(a, mpi, partition);
    let (part, part_stats) = ranks.forward_with_stats(mine(&q).view(), mine(&k).view(), mine(&v).view(), STATS)?;
    let part_gradients = ranks.backward(mine(&q).view(), mine(&k).view(), mine(&v).view(), &part, mine(&d_out).view())?;
    let saved = a.forward_saved(&q, &k, &v)?;
    let (_, stats) = a.forward_with_stats(&q, &k, &v, STATS)?;
    let gradients = a.backward(&q, &k, &v, &saved, &d_out)?;
    let axis = ndarray::Axis(3);
    let rows = |x: &ndarray::Array3<E::Real>| partition.shard(mpi.rank(), x.view().insert_axis(axis)).remove_axis(axis);
    let mut count = [0usize; 2];
    let mut add = |name: &str, differ: usize, of: usize| {
        if differ > 0 {
            eprintln!("rank {}: {differ} of {of} numbers of {name} differ: {what}", mpi.rank());
        }
        count = [count[0].saturating_add(differ), count[1] + of];
    };
    let tensors = [
        ("out", &saved.out, &part.out),
        ("dq", &gradients.dq, &part_gradients.dq),
        ("dk", &gradients.dk, &part_gradients.dk),
        ("dv", &gradients.dv, &part_gradients.dv),
    ];
    for (name, whole, part) in tensors {
        add(name, differing(&mine(whole), part), part.len());
    }
    let numbers = [
        ("row_max", &saved.row_max, &part.row_max),
        ("row_sum", &saved.row_sum, &part.row_sum),
        ("entropy", &stats.entropy, &part_stats.entropy),
        ("mean_distance", &stats.mean_distance, &part_stats.mean_distance),
    ];
    for (name, whole, part) in numbers {
        add(name, differing(&rows(whole), part), part.len());
    }
    let few = |sink: Option<Vec<f64>>, scale: Option<f64>| sink.into_iter().flatten().chain(scale).collect::<Array1<f64>>();
    let (whole, part) = (few(gradients.d_sink, gradients.d_scale), few(part_gradients.d_sink, part_gradients.d_scale));
    add("gradients on options", differing(&whole, &part), part.len());
    Ok(count)
}

fn fault(name: &str) {
    if !name.is_empty() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        println!("fault at {now}");
    }
    match name {
        "panic" => panic!("on purpose"),
        "kill" | "stop" => {
            let signal = if name == "kill" { "-KILL" } else { "-STOP" };
            let _ = std::process::Command::new("kill").args([signal, &std::process::id().to_string()]).status();
            std::thread::sleep(Duration::from_secs(3600));
        }
        _ => {}
    }
}

fn run(mpi: &Mpi, wanted: &str) -> Result<[usize; 2], Error> {
    let a = || Attention::new().bias_gradient(false);
    let documents = |n: usize| Array2::from_shape_fn((1, n), |(_, i)| (i / 190) as u32);
    let ids = |n| Mask::documents(documents(n), documents(n));
    let mut all = [0usize; 2];
    let mut add = |[differ, of]: [usize; 2]| all = [all[0].saturating_add(differ), all[1] + of];
    for n in [601, 2500] {
        let partitions =
            [Partition::contiguous(n, mpi.ranks())?, Partition::snake(n, mpi.ranks(), 256)?, Partition::snake(n, mpi.ranks(), 512)?];
        let options = [
            ("everything", a()),
            ("causal", a().causal()),
            ("window", a().window(150, 20)),
            ("first keys or window", a().mask(Mask::first_keys(4) | Mask::window(Some(90), Some(0)))),
            ("causal documents", a().causal().mask(ids(n))),
            ("softcap, sink and dropout", a().causal().softcap(3.0).sink(vec![0.5, -0.5]).dropout(0.2, 5)),
            ("alibi", a().causal().bias(Bias::Alibi(alibi_slopes(2)))),
            ("scale and its gradient", a().scale(Scale::By(-0.3)).scale_gradient(true)),
        ];
        for (i, (partition, (name, a))) in partitions.iter().flat_map(|partition| options.iter().map(move |a| (partition, a))).enumerate() {
            let what = format!("{name}, {n} tokens in {} blocks", partition.blocks().len());
            add(compare::<f32>(&what, a, [2, 2, 1], n, partition, mpi)?);
            if n == 601 {
                add(compare::<f64>(&what, a, [1, 2, 2], n, partition, mpi)?);
                add(compare::<bf16>(&what, a, [1, 2, 1], n, partition, mpi)?);
            }
            if i == 0 && mpi.rank() == 1 {
                fault(wanted);
            }
        }
    }
    Ok(all)
}

fn main() {
    Mpi::abort_on_panic();
    let mut words = std::env::args().skip(1);
    let (wanted, timeout) = (words.next().unwrap_or_default(), words.next().and_then(|word| word.parse().ok()).unwrap_or(60));
    let mpi = Mpi::start(Duration::from_secs(timeout)).expect("MPI starts once");
    match run(&mpi, &wanted) {
        Ok([differ, of]) => {
            println!("rank {} of {}: {differ} of {of} numbers differ", mpi.rank(), mpi.ranks());
            if differ > 0 {
                mpi.abort();
            }
        }
        Err(error) => {
            eprintln!("error: {error}");
            mpi.abort();
        }
    }
}
