//! What forward and backward passes by all ranks cost: CPU seconds, bytes, memory. One rank makes the calls of one process.
//!
//! ```sh
//! mpirun --bind-to none -n 2 target/release/examples/mpi_costs [tokens] [heads] [dims]
//! ```

use ndarray::Array4;
use regard::Attention;
use regard_dist::{Distributed, Error, Exchange, Mpi, Partition};
use std::time::{Duration, Instant};

/// Of this rank's tokens, by their places in the whole.
fn numbers(partition: &Partition, rank: usize, [heads, dims]: [usize; 2], seed: u64) -> Array4<f32> {
    let places = partition.positions(rank);
    Array4::from_shape_fn((1, heads, places.len(), dims), |(_, h, i, d)| {
        let mut z = (((places[i] * heads + h) * dims + d) as u64 + (seed << 40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}

/// Seconds of all threads of this process, so far.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |i: usize| fields.get(i).and_then(|text: &&str| text.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

fn main() -> Result<(), Error> {
    let number = |i: usize, default: usize| std::env::args().nth(i).and_then(|word| word.parse().ok()).unwrap_or(default);
    let (tokens, heads, dims) = (number(1, 16384), number(2, 8), number(3, 64));
    let mpi = Mpi::start(Duration::from_secs(300)).expect("MPI starts once");
    Mpi::abort_on_panic();
    let (rank, attention) = (mpi.rank(), Attention::new().causal());
    let block = (tokens / (8 * mpi.ranks())).next_multiple_of(256).clamp(256, 2048);
    let partition = Partition::snake(tokens, mpi.ranks(), block)?;
    let [q, k, v, d_out] = [1, 2, 3, 4].map(|seed| numbers(&partition, rank, [heads, dims], seed));
    let begun = (Instant::now(), cpu());
    let spent = |(wall, before): (Instant, f64)| (cpu() - before, wall.elapsed().as_secs_f64());
    let ranks = Distributed::new(&attention, &mpi, &partition);
    let saved = if mpi.ranks() == 1 { attention.forward_saved(&q, &k, &v)? } else { ranks.forward_saved(q.view(), k.view(), v.view())? };
    let (forward, middle, received) = (spent(begun), (Instant::now(), cpu()), mpi.bytes_received());
    let gradients = if mpi.ranks() == 1 {
        attention.backward(&q, &k, &v, &saved, &d_out)?
    } else {
        ranks.backward(q.view(), k.view(), v.view(), &saved, d_out.view())?
    };
    let backward = spent(middle);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default().trim();
    println!(
        "rank {rank}: forward {:.2} CPU s, {:.2} s, waited {:.2} s, {received} bytes; backward {:.2} CPU s, {:.2} s, {} bytes; peak \
            {peak}; dq[0] {:e}",
        forward.0,
        forward.1,
        ranks.waited().as_secs_f64(),
        backward.0,
        backward.1,
        mpi.bytes_received() - received,
        gradients.dq.first().copied().unwrap_or_default(),
    );
    Ok(())
}
