//! Attention at the user's shape, against what this machine can do at best.

use super::Bench;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin};
use crate::memory;
use crate::statistics::draws::{Draw, Purpose};
use clap::Args;
use ndarray::Array4;
use rayon::prelude::*;
use regard::{Attention, Real};
use regard_plot::Table;
use regard_simd::{Level, peak};
use serde::Serialize;
use std::time::Instant;

/// Time attention at your shape against the ceiling of this machine
///
/// Time, GFLOP/s, GB/s and memory. The ceilings are measured on the same threads, before and after: multiply-adds in registers, and reading as
/// many bytes as q, k, v and out have. The larger of the two times is the bound; the exponentials of the softmax come on top of it.
/// Other programs on the machine make all of these slower. Writes bench.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(
    after_help = "Example:\n  regard lab bench --heads 32 --kv-heads 8 --seq 4096 --head-dim 128 --causal\n  regard lab bench --heads 32 \
         --seq-q 1 --seq-kv 32768 --head-dim 128      # decoding"
)]
pub struct BenchConfig {
    /// Batch entries
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub batch: usize,
    /// Query heads
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub heads: usize,
    /// Key and value heads [default: as many as query heads]
    #[arg(long, value_name = "N")]
    pub kv_heads: Option<usize>,
    /// Queries and keys
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub seq: usize,
    /// Queries, if their number is another than --seq
    #[arg(long, value_name = "N")]
    pub seq_q: Option<usize>,
    /// Keys, if their number is another than --seq
    #[arg(long, value_name = "N")]
    pub seq_kv: Option<usize>,
    /// Width of a head
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub head_dim: usize,
    /// No query sees a later key
    #[arg(long)]
    pub causal: bool,
    /// Double precision
    #[arg(long)]
    pub double: bool,
    /// How long to measure at least
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    #[serde(skip)]
    pub seconds: f64,
}

impl Default for BenchConfig {
    fn default() -> Self {
        defaults()
    }
}

struct Timing {
    best: f64,
    median: f64,
    runs: usize,
    bytes: f64,
}

impl BenchConfig {
    fn kv_heads(&self) -> usize {
        self.kv_heads.unwrap_or(self.heads)
    }

    fn seq_q(&self) -> usize {
        self.seq_q.unwrap_or(self.seq)
    }

    fn seq_kv(&self) -> usize {
        self.seq_kv.unwrap_or(self.seq)
    }

    fn check(&self) -> Result<()> {
        for (name, value) in [
            ("batch", self.batch),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads()),
            ("seq_q", self.seq_q()),
            ("seq_kv", self.seq_kv()),
            ("head_dim", self.head_dim),
        ] {
            require(value > 0, name, value, "at least 1")?;
        }
        require(self.heads.is_multiple_of(self.kv_heads()), "kv_heads", self.kv_heads(), "a divisor of heads")?;
        require(self.seconds > 0.0 && self.seconds <= 600.0, "seconds", self.seconds, "above 0, at most 600")?;
        memory::check("q, k, v and out", self.tensor_bytes())
    }

    /// Bytes of q, k, v and out.
    fn tensor_bytes(&self) -> u128 {
        let rows = |heads: usize, seq: usize| heads as u128 * seq as u128;
        let size = if self.double { 8 } else { 4 };
        let rows = rows(self.heads, self.seq_q()).saturating_add(rows(self.kv_heads(), self.seq_kv())).saturating_mul(2);
        rows.saturating_mul(self.batch as u128).saturating_mul(self.head_dim as u128).saturating_mul(size)
    }

    /// Pairs of query and key that are visible, over all heads.
    fn pairs(&self) -> f64 {
        let (queries, keys) = (self.seq_q() as f64, self.seq_kv() as f64);
        // Under a causal mask the first queries see 1, 2, 3, ... keys, until they see all of them.
        let rising = queries.min(keys);
        let per_head = if self.causal { rising * (rising + 1.0) / 2.0 + (queries - rising) * keys } else { queries * keys };
        per_head * self.batch as f64 * self.heads as f64
    }

    /// `bench`: one row of time, speed and memory per line.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let threads = rayon::current_num_threads();
        let peak_before = self.peak_flops()?;
        progress.advance(1);
        let timing = if self.double { self.time::<f64>()? } else { self.time::<f32>()? };
        progress.advance(1);
        // Before the memory of the next measurement is allocated.
        let memory = peak_memory();
        let peak_measured = peak_before.max(self.peak_flops()?);
        let bandwidth_measured = read_bandwidth(timing.bytes as usize);
        progress.advance(1);
        let work = 4.0 * self.pairs() * self.head_dim as f64;
        let arithmetic = Rate::new(work / timing.best, peak_measured);
        let traffic = Rate::new(timing.bytes / timing.best, bandwidth_measured);
        let (limit, bound) = match (work / arithmetic.ceiling, timing.bytes / traffic.ceiling) {
            (arithmetic, traffic) if arithmetic >= traffic => ("arithmetic", arithmetic),
            (_, traffic) => ("memory traffic", traffic),
        };
        let columns = [
            ("quantity", "quantity"),
            ("value", "value"),
            ("unit", "unit"),
            ("ceiling", "ceiling of this machine"),
            ("share", "share of the ceiling (%)"),
        ];
        let shape = format!("{} x {} x {} over {} x {}", self.batch, self.heads, self.seq_q(), self.seq_kv(), self.head_dim);
        let mask = if self.causal { "causal" } else { "full" };
        let kind = if self.double { "float64" } else { "float32" };
        let caption = format!("{mask} attention of {shape}, {kind}, {threads} threads, {} runs; bounded by {limit}", timing.runs);
        let mut table = Table::new("bench", &caption, &columns);
        let mut push = |quantity: &str, value: f64, unit: &str, ceiling: Option<f64>, share: Option<f64>| {
            table.push(vec![quantity.into(), value.into(), unit.into(), ceiling.into(), share.map(|s| 100.0 * s).into()]);
        };
        push("time, best", timing.best * 1e3, "ms", Some(bound * 1e3), Some((bound / timing.best).min(1.0)));
        push("time, median", timing.median * 1e3, "ms", None, None);
        for (quantity, unit, rate) in [("arithmetic", "GFLOP/s", arithmetic), ("memory traffic", "GB/s", traffic)] {
            push(quantity, rate.reached / 1e9, unit, Some(rate.ceiling / 1e9), Some(rate.share()));
        }
        push("q, k, v and out", timing.bytes / 1e6, "MB", None, None);
        push("the weights, if they were laid out", self.weight_bytes() / 1e6, "MB", None, None);
        if let Some(peak) = memory {
            push("most memory that the process held", peak / 1e6, "MB", None, None);
        }
        table.origin = origin::<Bench>(self, 0, "differs from run to run: times")?;
        table.origin.push(("threads".to_owned(), threads.to_string()));
        Ok(vec![table])
    }

    /// Floating-point operations per second of all threads, at the level that calls use.
    fn peak_flops(&self) -> Result<f64> {
        let level = Level::preferred().map_err(regard::Error::from)?;
        let flops = if self.double { peak::flops_f64 } else { peak::flops_f32 };
        Ok(rayon::broadcast(|_| flops(level)).into_iter().sum())
    }

    fn weight_bytes(&self) -> f64 {
        let size = if self.double { 8.0 } else { 4.0 };
        [self.batch, self.heads, self.seq_q(), self.seq_kv()].into_iter().fold(size, |bytes, n| bytes * n as f64)
    }

    fn time<T: Real + regard::Element>(&self) -> Result<Timing> {
        let tensor = |heads: usize, seq: usize, which: u64| {
            let mut x = Array4::<T>::from_elem((self.batch, heads, seq, self.head_dim), T::ZERO);
            let row = seq * self.head_dim;
            let numbers = x.as_slice_mut().expect("a new array is contiguous");
            numbers.par_chunks_mut(row).enumerate().for_each(|(part, to)| {
                let mut draw = Draw::new(0, Purpose::Bench, [which as usize, row], part as u64);
                let mut buffer = vec![0.0; row];
                draw.normal(&mut buffer);
                to.iter_mut().zip(buffer).for_each(|(to, x)| *to = T::from_f64(x));
            });
            x
        };
        let (q, k, v) =
            (tensor(self.heads, self.seq_q(), 0), tensor(self.kv_heads(), self.seq_kv(), 1), tensor(self.kv_heads(), self.seq_kv(), 2));
        let attention = if self.causal { Attention::new().causal() } else { Attention::new() };
        let mut out = q.clone();
        let mut times = Vec::new();
        let begin = Instant::now();
        while times.len() < 3 || (begin.elapsed().as_secs_f64() < self.seconds && times.len() < 100_000) {
            let start = Instant::now();
            attention.forward_into(&q, &k, &v, out.view_mut(), None)?;
            times.push(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let bytes = (q.len() + k.len() + v.len() + out.len()) * std::mem::size_of::<T>();
        Ok(Timing { best: times[0], median: times[times.len() / 2], runs: times.len(), bytes: bytes as f64 })
    }
}

/// A rate that was reached, and the highest that this machine has shown.
#[derive(Debug, Clone, Copy)]
struct Rate {
    reached: f64,
    ceiling: f64,
}

impl Rate {
    /// A rate above the measured ceiling is itself the highest that the machine has shown: no share exceeds 1.
    fn new(reached: f64, measured: f64) -> Self {
        Self { reached, ceiling: measured.max(reached) }
    }

    fn share(self) -> f64 {
        self.reached / self.ceiling
    }
}

/// Bytes per second of reading an array of this size, in the cache that holds it or from memory, on all threads at once.
fn read_bandwidth(bytes: usize) -> f64 {
    let words = (bytes.clamp(1 << 12, 1 << 28) / rayon::current_num_threads()).max(1 << 10) / size_of::<u64>();
    let rates = rayon::broadcast(|_| {
        let data = vec![1u64; words];
        let passes = ((1 << 25) / size_of_val(&data[..])).max(1);
        let mut best: f64 = 0.0;
        for _ in 0..4 {
            let start = Instant::now();
            for _ in 0..passes {
                std::hint::black_box(peak::sum_words(std::hint::black_box(&data)));
            }
            best = best.max((passes * size_of_val(&data[..])) as f64 / start.elapsed().as_secs_f64());
        }
        best
    });
    rates.into_iter().sum()
}

/// Peak resident bytes of the process, where the system reports it.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<f64>().ok().map(|kilobytes| 1024.0 * kilobytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_share_exceeds_the_whole() {
        // A ceiling that was measured while other programs ran, or by slower code.
        let rate = Rate::new(289.0, 100.0);
        assert_eq!((rate.ceiling, rate.share()), (289.0, 1.0));
        assert_eq!(Rate::new(50.0, 100.0).share(), 0.5);
    }
}
