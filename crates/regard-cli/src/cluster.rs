//! `regard cluster`: checks the ranks of a job, and forecasts its time and memory.

use crate::options::{Common, Outcome, Unusable};
use crate::ranks::Ranks;
use anyhow::Result;
use clap::{Args, Subcommand};
use ndarray::Array4;
use regard::{Attention, Level};
use regard_dist::files::Sharing;
use regard_dist::plan::{Cluster as Machines, Forecast, MOST_DIM, MOST_HEADS, MOST_TOKENS, Size, forecast};
use regard_dist::{Comm, Distributed, Exchange, InPieces, Kind, Partition, Tag};
use regard_lab::{Table, Value};
use std::str::FromStr;
use std::time::Instant;

/// Check the ranks of a job, or forecast its time and memory
#[derive(Args, Debug)]
pub(crate) struct Cluster {
    #[command(subcommand)]
    command: What,
}

#[derive(Subcommand, Debug)]
enum What {
    Check(Check),
    Plan(Plan),
}

impl Cluster {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self.command {
            What::Check(check) => check.run(),
            What::Plan(plan) => plan.run(),
        }
    }
}

/// Check every rank: host, threads, speed, network, and that its bits are those of one process
///
/// Rank 0 prints a table of all ranks, and names problems such as ranks that are bound to one core.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  mpirun --bind-to none -n 4 regard cluster check")]
struct Check {
    /// Head dimensions of the speed measurement
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    dim: u16,
    /// Timeout: stop after waiting this long for another rank
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    watchdog: f64,
    #[command(flatten)]
    common: Common,
}

/// Tokens of the comparison with one process.
const TOKENS: usize = 1500;

/// Bytes of the message that is timed.
const MESSAGE: usize = 32 << 20;

/// The message with a rank's report.
const REPORT: Tag = (Kind::Partials, 3);

impl Check {
    fn run(self) -> Result<Outcome> {
        let ranks = Ranks::start(self.watchdog)?;
        ranks.or_end(self.by(&ranks))
    }

    fn by(&self, ranks: &Ranks) -> Result<Outcome> {
        let mut common = self.common.clone();
        common.quiet |= ranks.rank() > 0;
        drop(common.start("check")?);
        let comm = Comm::new(ranks);
        let level = Level::preferred().map_or("unknown".to_owned(), |level| format!("{level:?}"));
        let (threads, cores) = (rayon::current_num_threads(), cores());
        // All ranks measure at the same time.
        comm.agree("a check of the speed")?;
        let rate = measured_rate(usize::from(self.dim));
        let network = if ranks.ranks() > 1 { measured_network(ranks)? } else { None };
        let differ = compared(ranks)?;
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mine = format!("{}\t{threads}\t{cores}\t{level}\t{rate}\t{differ}", host.trim());
        let what = || "its report".to_owned();
        if ranks.rank() > 0 {
            comm.send(0, REPORT, mine.into_bytes(), what)?;
            return Ok(Outcome::Done);
        }
        let columns = [
            ("rank", "rank"),
            ("host", "host"),
            ("threads", "threads"),
            ("cores", "cores"),
            ("level", "CPU level"),
            ("gflops", "GFLOP/s"),
            ("differing_elements", "elements that differ from one process"),
        ];
        let mut table = Table::new("check", "The ranks of this job", &columns);
        let mut wrong = false;
        for rank in 0..ranks.ranks() {
            let text = if rank == 0 { mine.clone() } else { String::from_utf8_lossy(&comm.receive(rank, REPORT, what)?).into_owned() };
            let fields: Vec<_> = text.split('\t').collect();
            let number = |i: usize| fields.get(i).and_then(|field| field.parse::<f64>().ok()).unwrap_or(f64::NAN);
            let word = |i: usize| Value::Text(fields.get(i).copied().unwrap_or_default().to_owned());
            wrong |= number(5) != 0.0;
            if number(1) < number(2) && !common.quiet {
                crate::output::note(format_args!(
                    "rank {rank} has {} threads on a machine with {} cores: start it with mpirun --bind-to none, unless \
                        RAYON_NUM_THREADS is set on purpose",
                    number(1),
                    number(2)
                ));
            }
            let whole = |x: f64| Value::Integer(x as i64);
            table.push(vec![rank.into(), word(0), whole(number(1)), whole(number(2)), word(3), Value::Number(number(4)), whole(number(5))]);
        }
        let mut tables = vec![table];
        if let Some(Network { latency, bandwidth }) = network {
            let mut table = Table::new(
                "network",
                "From rank 0 to rank 1 and back",
                &[("latency_us", "latency, us"), ("gigabytes_per_second", "GB/s each way")],
            );
            table.push(vec![Value::Number(latency * 1e6), Value::Number(bandwidth / 1e9)]);
            tables.push(table);
        }
        common.show(&tables)?;
        Ok(if wrong { Outcome::Disagrees } else { Outcome::Done })
    }
}

/// Cores of this machine, including those that this process may not use.
fn cores() -> usize {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let counted = text.lines().filter(|line| line.starts_with("processor")).count();
    if counted > 0 { counted } else { std::thread::available_parallelism().map_or(1, std::num::NonZero::get) }
}

/// GFLOP/s of attention with all threads, with keys in pieces: the mean of some passes after the first, as ranks may share cores.
fn measured_rate(dim: usize) -> f64 {
    const HEADS: usize = 4;
    const ROWS: usize = 2048;
    const PIECES: usize = 2;
    const PASSES: usize = 4;
    let x = Array4::from_shape_fn((1, HEADS, ROWS, dim), |(_, h, i, d)| ((h + i * d) as f32).sin());
    let attention = Attention::new();
    let pass = || -> Result<f64> {
        let begun = Instant::now();
        let mut rows = attention.begin(&x, 0, [1, HEADS, ROWS, PIECES * ROWS]);
        (0..PIECES).try_for_each(|piece| rows.absorb(piece * ROWS, &x, &x))?;
        rows.finish()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    let seconds: f64 = (0..=PASSES).map(|_| pass().unwrap_or(f64::NAN)).skip(1).sum();
    (4 * HEADS * ROWS * PIECES * ROWS * dim * PASSES) as f64 / seconds / 1e9
}

/// Speed of the network between ranks 0 and 1.
struct Network {
    /// Seconds: half the round trip of a short message.
    latency: f64,
    /// Bytes per second of a long one.
    bandwidth: f64,
}

/// `None` on other ranks.
fn measured_network(ranks: &Ranks) -> Result<Option<Network>> {
    let (comm, what) = (Comm::new(ranks), || "a reply".to_owned());
    comm.agree("a check of the network")?;
    if ranks.rank() > 1 {
        return Ok(None);
    }
    let other = 1 - ranks.rank();
    let round = |bytes: usize, tag: u32| -> Result<f64> {
        let begun = Instant::now();
        if ranks.rank() == 0 {
            comm.send(other, (Kind::Keys, tag), vec![0; bytes], what)?;
        }
        comm.receive_exactly(other, (Kind::Keys, tag), bytes, what)?;
        if ranks.rank() == 1 {
            comm.send(other, (Kind::Keys, tag), vec![0; bytes], what)?;
        }
        Ok(begun.elapsed().as_secs_f64())
    };
    let best = |bytes: usize, first: u32| (first..first + 5).map(|tag| round(bytes, tag)).collect::<Result<Vec<_>>>();
    let least = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    let (short, long) = (least(best(1, 0)?), least(best(MESSAGE, 10)?));
    Ok(Some(Network { latency: short / 2.0, bandwidth: 2.0 * MESSAGE as f64 / (long - short).max(1e-9) }))
}

/// The number of elements of this rank's results and gradients that differ from those of one process.
fn compared(ranks: &Ranks) -> Result<usize> {
    let x = Array4::from_shape_fn((1, 2, TOKENS, 16), |(_, h, i, d)| ((h + i * d) as f32).sin());
    let partition = Partition::snake(TOKENS, ranks.ranks(), 256)?;
    let mine = partition.shard(ranks.rank(), x.view());
    let attention = Attention::new().causal();
    let together = Distributed::new(&attention, ranks, &partition);
    let part = together.forward_saved(mine.view(), mine.view(), mine.view())?;
    let gradients = together.backward(mine.view(), mine.view(), mine.view(), &part, mine.view())?;
    let whole = attention.forward_saved(&x, &x, &x)?;
    let alone = attention.backward(&x, &x, &x, &whole, &x)?;
    let pairs = [(&whole.out, &part.out), (&alone.dq, &gradients.dq), (&alone.dk, &gradients.dk), (&alone.dv, &gradients.dv)];
    let differ = |(whole, part): (&Array4<f32>, &Array4<f32>)| {
        let whole = partition.shard(ranks.rank(), whole.view());
        whole.iter().zip(part).filter(|(a, b)| a.to_bits() != b.to_bits()).count()
    };
    Ok(pairs.into_iter().map(differ).sum())
}

/// Forecast attention over several machines: seconds, bytes, memory
///
/// The schedule is simulated piece by piece, with the speed of a rank and of its network. Without --rate, the speed of this machine is
/// measured.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  regard cluster plan --tokens 1M --heads 32/8 --dim 128 --ranks 64,256,1024 --net 10GbE --rate 2600")]
struct Plan {
    /// Tokens, such as 65536, 64K (of 1024) or 1M (of 1024 K); at most 4096M
    #[arg(long, value_name = "N", default_value = "1M")]
    tokens: Count,
    /// Query heads, and key/value heads if they are fewer
    #[arg(long, value_name = "Q[/KV]", default_value = "32/8")]
    heads: Heads,
    /// Dimensions of a head
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = dimensions)]
    dim: usize,
    /// Bytes of an element: 2, 4 or 8
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = element_bytes)]
    bytes: usize,
    /// Comma-separated numbers of ranks
    #[arg(long, value_name = "LIST", default_value = "64,256,1024")]
    ranks: crate::options::Sizes,
    /// The network of a rank: 1GbE, 10GbE, 25GbE, 100GbE, 400GbE, or gigabytes per second
    #[arg(long, value_name = "NET", default_value = "10GbE")]
    net: Net,
    /// Latency of a message in microseconds
    #[arg(long, value_name = "US", default_value_t = 20.0)]
    latency: f64,
    /// GFLOP/s of a rank, with all of its threads [default: measured on this machine]
    #[arg(long, value_name = "GFLOPS")]
    rate: Option<f64>,
    /// Full instead of causal attention
    #[arg(long)]
    full: bool,
    /// One range of tokens per rank, instead of blocks in snake order
    #[arg(long)]
    contiguous: bool,
    /// Tokens of a block, a multiple of 256 [default: about eight blocks per rank]
    #[arg(long, value_name = "N", conflicts_with = "contiguous")]
    block: Option<usize>,
    /// Groups of heads [default: as many as possible]
    #[arg(long, value_name = "N")]
    head_groups: Option<usize>,
    #[command(flatten)]
    common: Common,
}

fn element_bytes(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|bytes| [2, 4, 8].contains(bytes)).ok_or_else(|| format!("invalid element size: {text:?}; give 2, 4 or 8"))
}

fn dimensions(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().ok().filter(|dim| (1..=MOST_DIM).contains(dim));
    number.ok_or_else(|| format!("invalid number of dimensions: {text:?}; it must be from 1 to {MOST_DIM}"))
}

/// A number of tokens, with an optional suffix K or M.
#[derive(Debug, Clone, Copy)]
struct Count(usize);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let upper = text.trim().to_ascii_uppercase();
        let (digits, unit) = match (upper.strip_suffix('K'), upper.strip_suffix('M')) {
            (Some(digits), _) => (digits, 1 << 10),
            (_, Some(digits)) => (digits, 1 << 20),
            _ => (upper.as_str(), 1),
        };
        let count =
            digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit)).filter(|count| (1..=MOST_TOKENS).contains(count));
        count.map(Self).ok_or_else(|| {
            let most = MOST_TOKENS >> 20;
            format!("not a number of tokens from 1 to {most}M: {text:?}; give 65536, 64K or 1M, where K is 1024 and M is 1024 K")
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Heads(usize, usize);

impl FromStr for Heads {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|n| (1..=MOST_HEADS).contains(n));
        let (q, kv) = text.split_once('/').unwrap_or((text, text));
        match (number(q), number(kv)) {
            (Some(q), Some(kv)) if q.is_multiple_of(kv) => Ok(Self(q, kv)),
            _ => {
                Err(format!("not a number of heads from 1 to {MOST_HEADS}: {text:?}; give 32, or 32/8, where the second divides the first"))
            }
        }
    }
}

/// Bytes per second.
#[derive(Debug, Clone, Copy)]
struct Net(f64);

impl FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let gigabits = text.trim().to_ascii_lowercase().strip_suffix("gbe").and_then(|bits| bits.parse::<f64>().ok());
        let rate = gigabits.map(|bits| bits * 1e9 / 8.0).or_else(|| text.trim().parse::<f64>().ok().map(|bytes| bytes * 1e9));
        let rate = rate.filter(|rate| rate.is_finite() && *rate > 0.0);
        rate.map(Self).ok_or_else(|| format!("not a network: {text:?}; give 10GbE, or gigabytes per second such as 1.25"))
    }
}

impl Plan {
    fn run(self) -> Result<Outcome> {
        drop(self.common.start("plan")?);
        let positive = |name: &str, x: f64| {
            if x.is_finite() && x > 0.0 { Ok(()) } else { Err(Unusable(format!("invalid --{name}: {x}; give a number above 0"))) }
        };
        positive("latency", self.latency)?;
        self.rate.map_or(Ok(()), |rate| positive("rate", rate))?;
        if self.ranks.0.is_empty() || self.ranks.0.iter().any(|&ranks| ranks == 0 || ranks > 1 << 16) {
            return Err(Unusable("invalid --ranks; give numbers from 1 to 65536, such as 64,256".to_owned()).into());
        }
        let rate = self.rate.unwrap_or_else(|| measured_rate(self.dim.clamp(1, 4096)));
        let size = Size {
            tokens: self.tokens.0,
            heads_q: self.heads.0,
            heads_kv: self.heads.1,
            dim: self.dim,
            bytes: self.bytes,
            causal: !self.full,
        };
        let sharing = if self.contiguous { Sharing::Contiguous } else { Sharing::Snake(self.block) };
        let columns = [
            ("ranks", "ranks"),
            ("head_groups", "groups of heads"),
            ("seconds", "seconds"),
            ("efficiency", "efficiency"),
            ("link", "link in use"),
            ("received_gb", "received by a rank, GB"),
            ("memory_gb", "memory of a rank, GB"),
        ];
        let caption = format!(
            "Forecast of the forward pass of {} tokens, {}/{} heads of {} dimensions, at {rate:.0} GFLOP/s and {} GB/s for each rank",
            size.tokens,
            size.heads_q,
            size.heads_kv,
            size.dim,
            self.net.0 / 1e9
        );
        let mut table = Table::new("plan", &caption, &columns);
        for &ranks in &self.ranks.0 {
            let machines = Machines { ranks, rate: rate * 1e9, bandwidth: self.net.0, latency: self.latency * 1e-6 };
            let Forecast { head_groups, seconds, efficiency, received, link, memory } =
                forecast(&size, &machines, sharing, self.head_groups).map_err(|e| Unusable(e.to_string()))?;
            let real = Value::Number;
            table.push(vec![
                ranks.into(),
                head_groups.into(),
                real(seconds),
                real(efficiency),
                real(link),
                real(received / 1e9),
                real(memory / 1e9),
            ]);
        }
        self.common.show_whole(&[table])?;
        Ok(Outcome::Done)
    }
}
