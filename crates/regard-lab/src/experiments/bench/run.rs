//! Attention at the user's shape, against what this machine can do at best.

use super::Bench;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin};
use crate::memory;
use crate::statistics::draws::{Draw, Purpose};
use clap::{Args, ValueEnum};
use half::{bf16, f16};
use ndarray::Array4;
use rayon::prelude::*;
use regard::{Attention, Element, Real};
use regard_plot::Table;
use regard_simd::{Level, peak};
use serde::Serialize;
use std::time::Instant;

/// Time attention at your shape against the ceiling of this machine
///
/// Time, GFLOP/s, GB/s and memory. The ceilings are measured on the same threads, before and after: multiply-adds in registers (in pairs
/// for scores of bf16, where the CPU has AVX512_BF16), exponentials, and reading as many bytes as q, k, v and out have. The largest of the
/// three times is the bound. Other programs on the machine make all of these slower. Writes bench.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Examples:\n  regard bench --heads 32 --kv-heads 8 --seq 4096 --head-dim 128 --causal\n  regard bench --heads 32 \
         --seq-q 1 --seq-kv 32768 --head-dim 128      decoding")]
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
    /// Type of the elements; f16 is computed in f32, and bf16 where the CPU has neither AVX512_BF16 nor AMX
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    pub dtype: Dtype,
    /// How long to measure at least
    #[arg(long, default_value_t = 1.0, value_name = "S")]
    #[serde(skip)]
    pub seconds: f64,
}

/// Type of the elements of q, k, v and out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    F32,
    F64,
    F16,
    Bf16,
}

impl Dtype {
    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
        }
    }
}

/// Operations per second of all threads: those of the two products together, and exponentials.
#[derive(Debug, Clone, Copy)]
struct Ceilings {
    flops: f64,
    exponentials: f64,
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
        let size = self.dtype.size() as u128;
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
        let before = self.ceilings()?;
        progress.advance(1);
        let timing = match self.dtype {
            Dtype::F32 => self.time::<f32>()?,
            Dtype::F64 => self.time::<f64>()?,
            Dtype::F16 => self.time::<f16>()?,
            Dtype::Bf16 => self.time::<bf16>()?,
        };
        progress.advance(1);
        // Before the memory of the next measurement is allocated.
        let memory = peak_memory();
        let after = self.ceilings()?;
        let bandwidth_measured = read_bandwidth(timing.bytes as usize);
        progress.advance(1);
        let work = 4.0 * self.pairs() * self.head_dim as f64;
        let arithmetic = Rate::new(work / timing.best, before.flops.max(after.flops));
        let exponentials = Rate::new(self.pairs() / timing.best, before.exponentials.max(after.exponentials));
        let traffic = Rate::new(timing.bytes / timing.best, bandwidth_measured);
        let rates = [("arithmetic", "GFLOP/s", arithmetic), ("exponentials", "G/s", exponentials), ("memory traffic", "GB/s", traffic)];
        // Of the three it is the one whose share of its ceiling is largest.
        let (limit, _, nearest) = rates.into_iter().max_by(|a, b| a.2.share().total_cmp(&b.2.share())).expect("there are three");
        let bound = nearest.share() * timing.best;
        let columns = [
            ("quantity", "quantity"),
            ("value", "value"),
            ("unit", "unit"),
            ("ceiling", "ceiling of this machine"),
            ("share", "share of the ceiling (%)"),
        ];
        let shape = format!("{} x {} x {} over {} x {}", self.batch, self.heads, self.seq_q(), self.seq_kv(), self.head_dim);
        let mask = if self.causal { "causal" } else { "full" };
        let kind = self.dtype.name();
        let caption = format!("{mask} attention of {shape}, {kind}, {threads} threads, {} runs; bounded by {limit}", timing.runs);
        let mut table = Table::new("bench", &caption, &columns);
        let mut push = |quantity: &str, value: f64, unit: &str, ceiling: Option<f64>, share: Option<f64>| {
            table.push(vec![quantity.into(), value.into(), unit.into(), ceiling.into(), share.map(|s| 100.0 * s).into()]);
        };
        push("time, best", timing.best * 1e3, "ms", Some(bound * 1e3), Some((bound / timing.best).min(1.0)));
        push("time, median", timing.median * 1e3, "ms", None, None);
        for (quantity, unit, rate) in rates {
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

    /// At the level that calls use.
    fn ceilings(&self) -> Result<Ceilings> {
        let level = Level::preferred().map_err(regard::Error::from)?;
        let all = rayon::broadcast(|_| match self.dtype {
            Dtype::F64 => (peak::flops_f64(level), peak::exponentials_f64(level)),
            Dtype::Bf16 => {
                let scores = peak::flops_bf16(level);
                // In tiles, the values are multiplied with weights of two parts.
                let values = scores.filter(|_| level == Level::Amx).map_or_else(|| peak::flops_f32(level), |scores| scores / 2.0);
                // Half of the operations are those of the scores, half those of the values.
                (scores.map_or(values, |scores| 2.0 / (1.0 / scores + 1.0 / values)), peak::exponentials_f32(level))
            }
            Dtype::F32 | Dtype::F16 => (peak::flops_f32(level), peak::exponentials_f32(level)),
        });
        Ok(Ceilings { flops: all.iter().map(|one| one.0).sum(), exponentials: all.iter().map(|one| one.1).sum() })
    }

    fn weight_bytes(&self) -> f64 {
        // Of the type that they are computed in.
        let size = self.dtype.size().max(4) as f64;
        [self.batch, self.heads, self.seq_q(), self.seq_kv()].into_iter().fold(size, |bytes, n| bytes * n as f64)
    }

    fn time<E: Element>(&self) -> Result<Timing> {
        let tensor = |heads: usize, seq: usize, which: u64| {
            let mut x = Array4::<E>::from_elem((self.batch, heads, seq, self.head_dim), E::STORED_ZERO);
            let row = seq * self.head_dim;
            let numbers = x.as_slice_mut().expect("a new array is contiguous");
            numbers.par_chunks_mut(row).enumerate().for_each(|(part, to)| {
                let mut draw = Draw::new(0, Purpose::Bench, [which as usize, row], part as u64);
                let mut buffer = vec![0.0; row];
                draw.normal(&mut buffer);
                to.iter_mut().zip(buffer).for_each(|(to, x)| *to = E::from_real(E::Real::from_f64(x)));
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
        let bytes = (q.len() + k.len() + v.len() + out.len()) * std::mem::size_of::<E>();
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
