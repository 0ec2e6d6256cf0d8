//! `regard attend`: attention from files to files, by one process or by the ranks of an MPI job.

use crate::common::{Common, Outcome, Unusable};
use crate::ranks::{Ranks, process_costs};
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use ndarray::Axis;
use regard::{Attention, Mask, Real, Scale, StatsOptions};
use regard_dist::files::{Done, HEAT_MAP, Job, STATISTICS, Sharing, attend, beside};
use regard_dist::{Exchange, Kind, Npy, Number, Talk, Unfinished};
use regard_lab::experiments::Progress;
use regard_lab::figure::{Figure, HeatPlot, Norm, Theme};
use regard_lab::{Table, Value};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SharingArg {
    /// Blocks go round the ranks, forwards and backwards in turn: shares causal work evenly
    Snake,
    /// One range of tokens to each rank
    Contiguous,
}

/// Keys before the query, and after it.
#[derive(Debug, Clone, Copy)]
struct Window(usize, usize);

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is not a number of keys; give 512, or 512,64"));
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
        let wrong = || format!("{text:?} are no cells; give rows and columns, each at least 1: 512x512");
        let (rows, cols) = text.split_once('x').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse().ok().filter(|&n: &usize| n > 0).ok_or_else(wrong);
        Ok(Self([number(rows)?, number(cols)?]))
    }
}

/// Attend from files to a file, which may be larger than memory, on one machine or on many
///
/// Q, K and V are .npy files of float16, float32 or float64: [token, dim], [head, token, dim] or [batch, head, token, dim], with fewer heads of K and V if need be. They
/// are mapped, and keys are taken in pieces, so memory is needed for some rows only. The bytes that are written are the same on any number of ranks.
///
/// With --stats, what attention did is written beside the results, a number for each row (out.entropy.npy and others), and the mean of each head is shown.
/// With --heat-map, the weights are pooled into that many cells, by a second pass over the keys: out.heat_map.npy has the mean of each cell, [batch, head, row, column], and out.heat_map.png is its picture.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard attend q.npy k.npy v.npy --causal --out out.npy --stats
  mpirun --bind-to none -n 8 regard attend q.npy k.npy v.npy --causal --out out.npy
  regard attend q.npy k.npy v.npy --causal --heat-map 512x512
Several ranks need a program with MPI (cargo build --release -p regard-cli --features mpi) and a file system that all of them see; see docs/cluster.md.")]
pub(crate) struct Attend {
    /// The queries
    q: PathBuf,
    /// The keys
    k: PathBuf,
    /// The values
    v: PathBuf,
    /// The file to be written
    #[arg(long, value_name = "FILE", default_value = "out.npy")]
    out: PathBuf,
    /// Replace results that are there already
    #[arg(long)]
    overwrite: bool,
    /// Keys after the query are hidden
    #[arg(long)]
    causal: bool,
    /// With --causal: the last query stands at the last key
    #[arg(long, requires = "causal")]
    align_end: bool,
    /// Only so many keys before the query are visible, and so many after it
    #[arg(long, value_name = "LEFT[,RIGHT]")]
    window: Option<Window>,
    /// With --window: the first keys are visible to all
    #[arg(long, value_name = "N", requires = "window")]
    first_keys: Option<usize>,
    /// What scores are multiplied with [default: 1 / sqrt(dim)]
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    scale: Option<f64>,
    /// Scores are X tanh(score / X)
    #[arg(long, value_name = "X")]
    softcap: Option<f64>,
    /// Write statistics of every row too
    #[arg(long)]
    stats: bool,
    /// Write a picture of the weights, pooled into so many cells, and their means
    #[arg(long, value_name = "ROWSxCOLS")]
    heat_map: Option<Cells>,
    /// How ranks share the tokens: never a choice of results
    #[arg(long, value_enum, default_value = "snake")]
    partition: SharingArg,
    /// Tokens of a block, a multiple of 256 [default: about eight blocks to each rank]
    #[arg(long, value_name = "N")]
    block: Option<usize>,
    /// Groups of heads, each with its share of the ranks [default: as many as fit]
    #[arg(long, value_name = "N")]
    head_groups: Option<usize>,
    /// Give up after waiting so many seconds for another rank
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    watchdog: f64,
    #[command(flatten)]
    common: Common,
}

/// What a rank tells the first one.
const NUMBERS: usize = 6;

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
                return Err(Unusable("--block is for --partition snake: leave one of them out".to_owned()).into());
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
            unfinished: Unfinished::default(),
            progress: &progress,
        };
        let unfinished = job.unfinished.clone();
        ctrlc::set_handler(move || {
            unfinished.remove();
            std::process::exit(i32::from(crate::INTERRUPTED));
        })
        .context("cannot wait for Ctrl-C")?;
        let picture = self.heat_map.map(|_| beside(&self.out, HEAT_MAP).with_extension("png"));
        if let Some(path) = picture.iter().find(|path| ranks.rank() == 0 && !self.overwrite && path.exists()) {
            return Err(Unusable(format!("{}: it is there already; name another file, or give --overwrite", path.display())).into());
        }
        let mut done = attend(&job, ranks).map_err(unusable)?;
        drop(bar);
        let mut tables = self.collect(&done, ranks)?;
        if ranks.rank() > 0 {
            return Ok(Outcome::Done);
        }
        if self.stats {
            tables.push(heads(&self.out)?);
        }
        if let Some(path) = picture {
            regard_lab::write_atomic(&path, &self.picture(&done)?)?;
            done.files.push(path);
        }
        common.show(&tables)?;
        if !common.quiet {
            let names: Vec<_> = done.files.iter().map(|path| path.display().to_string()).collect();
            crate::output::note(format_args!("wrote {}", names.join(", ")));
        }
        Ok(Outcome::Done)
    }

    /// The heat maps of the first batch entry, out of the file.
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
        let mut caption =
            format!("Row: the query. Column: the key it looks at. {queries} queries, {keys} keys, pooled to {rows} x {cols} cells.");
        if maps.len() < heads {
            caption.push_str(&format!(" The first {} of {heads} heads.", maps.len()));
        }
        Ok(Figure::grid("heat_map", "Attention by head", maps, columns).caption(caption).png(Theme::Light)?)
    }

    /// What every rank did, in a table of the first one.
    fn collect(&self, done: &Done, ranks: &Ranks) -> Result<Vec<Table>> {
        let [peak, cpu] = process_costs();
        let mine: [f64; NUMBERS] =
            [done.rows as f64, done.took.as_secs_f64(), done.waited.as_secs_f64(), cpu, ranks.bytes_received() as f64, peak];
        let (talk, what) = (Talk::new(ranks), || "what it did".to_owned());
        let mut table = Table::new(
            "ranks",
            "What each rank did",
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
        if ranks.rank() > 0 {
            let bytes = mine.iter().flat_map(|x| x.to_le_bytes()).collect();
            talk.send(0, (Kind::Tiles, 2), bytes, what)?;
            return Ok(Vec::new());
        }
        for rank in 0..ranks.ranks() {
            let numbers = if rank == 0 {
                mine.to_vec()
            } else {
                let bytes = talk.receive_exactly(rank, (Kind::Tiles, 2), 8 * NUMBERS, what)?;
                bytes.as_chunks::<8>().0.iter().map(|word| f64::from_le_bytes(*word)).collect()
            };
            let whole = |x: f64| if x.is_nan() { Value::Missing } else { Value::Integer(x as i64) };
            let real = |x: f64| if x.is_nan() { Value::Missing } else { Value::Number(x) };
            table.push(vec![
                rank.into(),
                whole(numbers[0]),
                real(numbers[1]),
                real(numbers[2]),
                real(numbers[3]),
                whole(numbers[4]),
                whole(numbers[5]),
            ]);
        }
        Ok(vec![table])
    }
}

/// Files and options that cannot be used are the arguments' fault; ranks that are lost and a disk that is full are not.
fn unusable(error: regard_dist::Error) -> anyhow::Error {
    use regard_dist::Error;
    match error {
        Error::Lost { .. } | Error::Waited { .. } | Error::Length { .. } | Error::Write { .. } | Error::Appeared { .. } => error.into(),
        error => Unusable(error.to_string()).into(),
    }
}

/// Heads that are drawn, at the most.
const DRAWN: usize = 16;

/// The cells of each head of the first batch entry.
fn maps<T: Real + Number>(file: &Npy) -> Result<Vec<Vec<f64>>> {
    let view = file.view::<T>().map_err(unusable)?;
    let heads =
        view.outer_iter().next().map(|entry| entry.outer_iter().take(DRAWN).map(|map| map.iter().map(|x| x.to_f64()).collect()).collect());
    Ok(heads.unwrap_or_default())
}

/// The means of each head over the rows that see any key, out of the files.
fn heads(out: &Path) -> Result<Table> {
    let files =
        STATISTICS.iter().map(|name| Npy::open(&beside(out, name))).collect::<std::result::Result<Vec<_>, _>>().map_err(unusable)?;
    let means = if files[0].descr == "<f8" { means::<f64>(&files) } else { means::<f32>(&files) }?;
    let columns: Vec<_> = ["batch", "head"].iter().chain(&STATISTICS[1..]).map(|&name| (name, name)).collect();
    let mut table = Table::new("heads", "What the rows of each head did: means over those that see any key", &columns);
    means.into_iter().for_each(|row| table.push(row));
    Ok(table)
}

fn means<T: Real + Number>(files: &[Npy]) -> Result<Vec<Vec<Value>>> {
    // A file of [batch, head, token] is read as one of [1, batch, head, token].
    let views = files.iter().map(|file| Ok(file.view::<T>().map_err(unusable)?.index_axis_move(Axis(0), 0))).collect::<Result<Vec<_>>>()?;
    let [batches, heads, _] = [0, 1, 2].map(|axis| views[0].len_of(Axis(axis)));
    let places = (0..batches).flat_map(|b| (0..heads).map(move |h| (b, h)));
    Ok(places
        .map(|(b, h)| {
            let of =
                |i: usize| views[i].index_axis(Axis(0), b).index_axis_move(Axis(0), h).iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
            let seen: Vec<bool> = of(0).iter().map(|&lse| lse != f64::NEG_INFINITY).collect();
            let count = seen.iter().filter(|&&seen| seen).count().max(1) as f64;
            let mean = |i: usize| of(i).iter().zip(&seen).filter(|(_, seen)| **seen).map(|(x, _)| x).sum::<f64>() / count;
            [Value::from(b), Value::from(h)].into_iter().chain((1..views.len()).map(|i| Value::Number(mean(i)))).collect()
        })
        .collect())
}
