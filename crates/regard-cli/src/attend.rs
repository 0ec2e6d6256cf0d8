//! `regard attend`: attention from files to files, by one process or by the ranks of an MPI job.

use crate::options::{Common, Outcome, Unusable};
use crate::ranks::{Ranks, process_costs};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use regard::{Attention, Mask, Real, Scale, StatsOptions};
use regard_dist::files::{Done, HEAT_MAP, Job, STATISTICS, Sharing, attend, beside};
use regard_dist::{Comm, Exchange, Kind, Npy, Tag, TempFiles, WireElement};
use regard_files::Output;
use regard_lab::experiments::Progress;
use regard_lab::figure::{Figure, HeatPlot, Norm, Theme};
use regard_lab::{Table, Value};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SharingArg {
    /// Blocks are dealt to ranks 0, 1, 2, ..., 2, 1, 0: balances causal attention
    Snake,
    /// One range of tokens per rank
    Contiguous,
}

/// Visible keys before the query, and after it.
#[derive(Debug, Clone, Copy)]
struct Window(usize, usize);

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| text.trim().parse().map_err(|_| format!("not a number of keys: {text:?}; give 512, or 512,64"));
        let (left, right) = text.split_once(',').unwrap_or((text, "0"));
        Ok(Self(number(left)?, number(right)?))
    }
}

/// Rows and columns of a heat map.
#[derive(Debug, Clone, Copy)]
struct Cells([usize; 2]);

impl FromStr for Cells {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("not a number of cells: {text:?}; give rows and columns, each at least 1, such as 512x512");
        let (rows, cols) = text.split_once('x').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse().ok().filter(|&n: &usize| n > 0).ok_or_else(wrong);
        Ok(Self([number(rows)?, number(cols)?]))
    }
}

/// Compute attention from files to files that may be larger than memory, on one machine or on many
///
/// Q, K and V are .npy files of float16, float32 or float64: [token, dim], [head, token, dim] or [batch, head, token, dim]; K and V may
/// have fewer heads. They are read in pieces, so that memory is needed for some rows and keys only. The results have the same bytes on any
/// number of ranks.
///
/// With --stats, statistics of every row are written beside the results (out.entropy.npy and others), and the mean of each head is shown.
/// With --heat-map, a second pass over the keys pools the weights into cells: out.heat_map.npy has the mean of each cell,
/// [batch, head, row, column], and out.heat_map.png shows it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard attend q.npy k.npy v.npy --causal --out out.npy --stats
  mpirun --bind-to none -n 8 regard attend q.npy k.npy v.npy --causal --out out.npy
  regard attend q.npy k.npy v.npy --causal --heat-map 512x512
Several ranks need a program with MPI (cargo build --release -p regard-cli --features mpi) and a shared file system; see docs/cluster.md.")]
pub(crate) struct Attend {
    /// File of the queries
    q: PathBuf,
    /// File of the keys
    k: PathBuf,
    /// File of the values
    v: PathBuf,
    /// File of the results
    #[arg(long, value_name = "FILE", default_value = "out.npy")]
    out: PathBuf,
    /// Replace existing results
    #[arg(long)]
    overwrite: bool,
    /// Hide keys after the query
    #[arg(long)]
    causal: bool,
    /// With --causal: align the last query with the last key
    #[arg(long, requires = "causal")]
    align_end: bool,
    /// Sliding window: show LEFT keys before the query and RIGHT keys after it
    #[arg(long, value_name = "LEFT[,RIGHT]")]
    window: Option<Window>,
    /// With --window: also show the first N keys to every query
    #[arg(long, value_name = "N", requires = "window")]
    first_keys: Option<usize>,
    /// Factor of the scores [default: 1 / sqrt(dim)]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    scale: Option<f64>,
    /// Soft cap: scores become X tanh(score / X)
    #[arg(long, value_name = "X")]
    softcap: Option<f64>,
    /// Write statistics of every row
    #[arg(long)]
    stats: bool,
    /// Write a heat map of the weights with ROWS x COLS cells, as .npy and .png
    #[arg(long, value_name = "ROWSxCOLS")]
    heat_map: Option<Cells>,
    /// How ranks share the tokens; the results do not depend on it
    #[arg(long, value_enum, default_value = "snake")]
    partition: SharingArg,
    /// Tokens of a block, a multiple of 256 [default: about eight blocks per rank]
    #[arg(long, value_name = "N")]
    block: Option<usize>,
    /// Groups of heads, each with its share of the ranks [default: as many as possible]
    #[arg(long, value_name = "N")]
    head_groups: Option<usize>,
    /// Timeout: stop after waiting this long for another rank
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    watchdog: f64,
    #[command(flatten)]
    common: Common,
}

impl Attend {
    fn attention(&self) -> Attention<'static> {
        let mut attention = Attention::new();
        if self.align_end {
            attention = attention.causal_bottom_right();
        } else if self.causal {
            attention = attention.causal();
        }
        match (self.window, self.first_keys) {
            (Some(Window(left, right)), Some(first)) => {
                attention = attention.mask(Mask::first_keys(first) | Mask::window(Some(left), Some(right)));
            }
            (Some(Window(left, right)), None) => attention = attention.window(left, right),
            _ => {}
        }
        if let Some(scale) = self.scale {
            attention = attention.scale(Scale::By(scale));
        }
        match self.softcap {
            Some(cap) => attention.softcap(cap),
            None => attention,
        }
    }

    pub(crate) fn run(self) -> Result<Outcome> {
        let ranks = Ranks::start(self.watchdog)?;
        ranks.or_end(self.by(&ranks))
    }

    fn by(&self, ranks: &Ranks) -> Result<Outcome> {
        let mut common = self.common.clone();
        common.quiet |= ranks.rank() > 0;
        let bar = common.start("attend")?;
        let told = AtomicUsize::new(0);
        bar.expect(1000);
        let progress = |done: usize, all: usize| {
            let now = done * 1000 / all.max(1);
            bar.advance(now.saturating_sub(told.fetch_max(now, Ordering::Relaxed)) as u64);
        };
        let sharing = match (self.partition, self.block) {
            (SharingArg::Snake, block) => Sharing::Snake(block),
            (SharingArg::Contiguous, None) => Sharing::Contiguous,
            (SharingArg::Contiguous, Some(_)) => {
                return Err(Unusable("--block needs --partition snake; leave one of them out".to_owned()).into());
            }
        };
        let attention = self.attention();
        let job = Job {
            attention: &attention,
            inputs: [&self.q, &self.k, &self.v],
            out: &self.out,
            overwrite: self.overwrite,
            stats: self.stats.then_some(StatsOptions { top_keys: 0, ..StatsOptions::default() }),
            heat_map: self.heat_map.map(|Cells(cells)| cells),
            sharing,
            head_groups: self.head_groups,
            temp_files: TempFiles::default(),
            progress: &progress,
        };
        let temp_files = job.temp_files.clone();
        ctrlc::set_handler(move || {
            temp_files.remove();
            std::process::exit(i32::from(crate::INTERRUPTED));
        })
        .context("cannot start the handler of Ctrl-C")?;
        let picture = self.heat_map.map(|_| beside(&self.out, HEAT_MAP).with_extension("png"));
        if let Some(path) = picture.iter().find(|path| ranks.rank() == 0 && !self.overwrite && path.exists()) {
            return Err(Unusable(format!("{}: this file exists; name another one, or replace it with --overwrite", path.display())).into());
        }
        let picture = picture.filter(|_| ranks.rank() == 0).map(|path| Output::reserve_new(&path, self.overwrite)).transpose()?;
        let mut done = attend(&job, ranks).map_err(unusable)?;
        drop(bar);
        let mut tables = self.collect(&done, ranks)?;
        if ranks.rank() > 0 {
            return Ok(Outcome::Done);
        }
        if self.stats {
            tables.push(heads(&self.out)?);
        }
        if let Some(output) = picture {
            let path = output.path().to_owned();
            output.write(&self.picture(&done)?)?;
            done.files.push(path);
        }
        common.show(&tables)?;
        if !common.quiet {
            let names: Vec<_> = done.files.iter().map(|path| path.display().to_string()).collect();
            crate::output::note(format_args!("wrote {}", names.join(", ")));
        }
        Ok(Outcome::Done)
    }

    /// A figure of the heat maps of the first batch entry.
    fn picture(&self, done: &Done) -> Result<Vec<u8>> {
        let file = Npy::open(&beside(&self.out, HEAT_MAP)).map_err(unusable)?;
        let cells = if file.descr == "<f8" { maps::<f64>(&file) } else { maps::<f32>(&file) }?;
        let [_, heads, rows, cols] = file.shape;
        let (queries, keys) = (done.shape[2], Npy::open(&self.k).map_err(unusable)?.shape[2]);
        let one = |(head, cells): (usize, Vec<f64>)| {
            let map = HeatPlot::new(format!("head {head}"), rows, cols, cells)?.pooled(queries, keys).value_title("mean weight in a cell");
            Ok(map.norm(if keys > 1024 { Norm::Log } else { Norm::Linear }))
        };
        let maps = cells.into_iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
        let columns = if maps.len() <= 4 { maps.len().clamp(1, 2) } else { 4 };
        let mut caption = format!("Row: the query. Column: the key. {queries} queries, {keys} keys, pooled to {rows} x {cols} cells.");
        if maps.len() < heads {
            caption.push_str(&format!(" The first {} of {heads} heads.", maps.len()));
        }
        Ok(Figure::grid("heat_map", "Attention by head", maps, columns).caption(caption).png(Theme::Light)?)
    }

    /// On rank 0, a table with the summaries of all ranks.
    fn collect(&self, done: &Done, ranks: &Ranks) -> Result<Vec<Table>> {
        let costs = process_costs();
        let mine = Summary {
            rows: done.rows as f64,
            seconds: done.took.as_secs_f64(),
            waited: done.waited.as_secs_f64(),
            cpu: costs.cpu_seconds,
            received: ranks.bytes_received() as f64,
            peak: costs.peak_memory,
        };
        let (comm, what) = (Comm::new(ranks), || "its summary".to_owned());
        if ranks.rank() > 0 {
            comm.send(0, SUMMARY, mine.to_bytes(), what)?;
            return Ok(Vec::new());
        }
        let mut table = Table::new(
            "ranks",
            "Time, traffic and memory of each rank",
            &[
                ("rank", "rank"),
                ("rows", "rows"),
                ("seconds", "seconds"),
                ("waited_seconds", "waited for keys, s"),
                ("cpu_seconds", "CPU, s"),
                ("received_bytes", "received, bytes"),
                ("peak_memory_bytes", "peak memory, bytes"),
            ],
        );
        table.push(mine.row(0));
        for rank in 1..ranks.ranks() {
            let bytes = comm.receive_exactly(rank, SUMMARY, Summary::BYTES, what)?;
            table.push(Summary::from_bytes(&bytes).row(rank));
        }
        Ok(vec![table])
    }
}

/// The message with a rank's summary.
const SUMMARY: Tag = (Kind::Partials, 2);

/// Costs of a rank; NaN where the system does not report them.
struct Summary {
    rows: f64,
    seconds: f64,
    waited: f64,
    cpu: f64,
    received: f64,
    peak: f64,
}

impl Summary {
    const BYTES: usize = 6 * size_of::<f64>();

    fn to_bytes(&self) -> Vec<u8> {
        let Self { rows, seconds, waited, cpu, received, peak } = *self;
        [rows, seconds, waited, cpu, received, peak].iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| f64::from_le_bytes(*word));
        let mut next = || words.next().unwrap_or(f64::NAN);
        Self { rows: next(), seconds: next(), waited: next(), cpu: next(), received: next(), peak: next() }
    }

    fn row(&self, rank: usize) -> Vec<Value> {
        let whole = |x: f64| if x.is_nan() { Value::Missing } else { Value::Integer(x as i64) };
        let real = |x: f64| if x.is_nan() { Value::Missing } else { Value::Number(x) };
        vec![rank.into(), whole(self.rows), real(self.seconds), real(self.waited), real(self.cpu), whole(self.received), whole(self.peak)]
    }
}

/// Errors in files and options are errors in the arguments; lost ranks and full disks are not.
fn unusable(error: regard_dist::Error) -> anyhow::Error {
    use regard_dist::Error;
    match error {
        Error::Disconnected { .. }
        | Error::Timeout { .. }
        | Error::Length { .. }
        | Error::Thread { .. }
        | Error::Changed { .. }
        | Error::Write { .. }
        | Error::Appeared { .. } => error.into(),
        error => Unusable(error.to_string()).into(),
    }
}

/// The most heads of a figure.
const DRAWN: usize = 16;

/// The cells of each head of the first batch entry.
fn maps<T: Real + WireElement>(file: &Npy) -> Result<Vec<Vec<f64>>> {
    let [_, heads, rows, _] = file.shape;
    let cells = file.read_range::<T>(&(0..heads.min(DRAWN)), 0..rows).map_err(unusable)?;
    let heads = cells.outer_iter().next().map(|entry| entry.outer_iter().map(|map| map.iter().map(|x| x.to_f64()).collect()).collect());
    Ok(heads.unwrap_or_default())
}

/// The mean of each statistic and head over the rows that see any key.
fn heads(out: &Path) -> Result<Table> {
    let files =
        STATISTICS.iter().map(|name| Npy::open(&beside(out, name))).collect::<std::result::Result<Vec<_>, _>>().map_err(unusable)?;
    let means = if files[0].descr == "<f8" { means::<f64>(&files) } else { means::<f32>(&files) }?;
    let columns: Vec<_> = ["batch", "head"].iter().chain(&STATISTICS[1..]).map(|&name| (name, name)).collect();
    let mut table = Table::new("heads", "Means of each head over the rows that see any key", &columns);
    means.into_iter().for_each(|row| table.push(row));
    Ok(table)
}

fn means<T: Real + WireElement>(files: &[Npy]) -> Result<Vec<Vec<Value>>> {
    // A file of [batch, head, token] is read as one of [1, batch, head, token].
    let [_, batches, heads, _] = files[0].shape;
    let places = (0..batches).flat_map(|b| (0..heads).map(move |h| (b, h)));
    places
        .map(|(b, h)| {
            let of = |file: &Npy| -> Result<Vec<f64>> {
                let rows = file.read_range::<T>(&(b..b + 1), h..h + 1).map_err(unusable)?;
                Ok(rows.iter().map(|x| x.to_f64()).collect())
            };
            let seen: Vec<bool> = of(&files[0])?.iter().map(|&lse| lse != f64::NEG_INFINITY).collect();
            let count = seen.iter().filter(|&&seen| seen).count().max(1) as f64;
            let mean = |rows: Vec<f64>| rows.iter().zip(&seen).filter(|(_, seen)| **seen).map(|(x, _)| x).sum::<f64>() / count;
            let means = files[1..].iter().map(|file| Ok(Value::Number(mean(of(file)?)))).collect::<Result<Vec<_>>>()?;
            Ok([Value::from(b), Value::from(h)].into_iter().chain(means).collect())
        })
        .collect()
}
