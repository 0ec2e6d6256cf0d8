//! How long the sweep takes, without files and figures: one line of JSON. `bench/sweep.py` puts it beside NumPy and PyTorch.
//!
//! ```text
//! cargo run --release -p regard-lab --example time_sweep -- THREADS SEEDS ROUNDS D_K...
//! ```

use regard_lab::experiments::{Loss, Numbers, SweepConfig, Unwatched};
use std::time::Instant;

#[global_allocator]
static MEMORY: regard::CachingAllocator = regard::CachingAllocator::new();

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<Vec<usize>, _>>()?;
    let [threads, seeds, rounds, d_k @ ..] = &numbers[..] else {
        return Err("usage: time_sweep THREADS SEEDS ROUNDS D_K...".into());
    };
    rayon::ThreadPoolBuilder::new().num_threads(*threads).build_global()?;
    let config = SweepConfig { d_k: d_k.to_vec(), seeds: *seeds, numbers: Numbers::Regard, loss: Loss::Unit, ..SweepConfig::default() };
    // First calls are not the sweep.
    SweepConfig { d_k: d_k[..d_k.len().min(1)].to_vec(), seeds: 8, ..config.clone() }.run(&Unwatched)?;
    let mut seconds = Vec::new();
    let mut norms = Vec::new();
    for _ in 0..*rounds {
        let start = Instant::now();
        let tables = config.run(&Unwatched)?;
        seconds.push(start.elapsed().as_secs_f64());
        let table = &tables[0];
        norms = table.rows.iter().map(|row| table.number(row, "grad_norm_q")).collect();
    }
    println!("{{\"seconds\": {seconds:?}, \"grad_norm_q\": {norms:?}}}");
    Ok(())
}
