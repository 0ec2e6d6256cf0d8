//! Attention from files to files, by one process or by several: keys are read in pieces, and every rank writes its own rows.

use crate::comm::Comm;
use crate::distributed::Distributed;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Kind, Tag, WireElement};
use crate::npy::{Npy, NpyWriter};
use crate::partition::{Partition, concatenate};
use crate::resumable::{InPieces, Rows};
use crate::sub_comm::SubComm;
use crate::temp_files::{Place, TempFiles, check_free, finish, job_id};
use half::f16;
use ndarray::{Array3, Array4, ArrayView3, ArrayView4, Axis};
use regard::tiling::{GRADIENT_SPLIT, KV_SPLIT};
use regard::{Attention, Finished, GlobalOffset, HeatMapCells, HeatMapState, SoftmaxDenominators, StatsOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of keys and values that a process reads at once where it reads all keys itself, about.
const PIECE_BYTES: usize = 16 << 20;

/// Bytes of the states of the rows that such a process computes at once, about.
const STATE_BYTES: usize = 256 << 20;

/// Tokens of a block by default, at least and at most: shorter blocks balance the work, longer ones are read faster.
const BLOCK: [usize; 2] = [GRADIENT_SPLIT, KV_SPLIT];

/// Blocks per rank by default, for causal attention.
const LAPS: usize = 8;

/// The message of rank 0 with the job's id, which is part of the names of temporary files.
const JOB_ID: Tag = (Kind::Agreement, 1);

/// Results may be 1024 times as large as the inputs, and 1 GB in any case.
const RESULTS: (f64, f64) = (1024.0, (1u64 << 30) as f64);

/// How ranks share the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// One range per rank.
    Contiguous,
    /// Blocks of this many tokens in snake order, or of a default size.
    Snake(Option<usize>),
}

/// Inputs, outputs and options of a job.
pub struct Job<'a> {
    /// The options.
    pub attention: &'a Attention<'a>,
    /// The files of q, k and v.
    pub inputs: [&'a Path; 3],
    /// The file of the results; statistics are written beside it.
    pub out: &'a Path,
    /// Replace existing results; inputs are never replaced.
    pub overwrite: bool,
    /// Write statistics.
    pub stats: Option<StatsOptions>,
    /// Write a heat map of this many rows and columns.
    pub heat_map: Option<[usize; 2]>,
    /// How ranks share the tokens.
    pub sharing: Sharing,
    /// Groups of heads, each with the same number of ranks; `None` makes as many as possible.
    pub head_groups: Option<usize>,
    /// Gets the temporary files.
    pub temp_files: TempFiles,
    /// Called with the keys that this rank has absorbed, and with their number in all passes.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Job<'_> {
    /// The files that will be written.
    pub fn files(&self) -> Vec<PathBuf> {
        let stats = self.stats.iter().flat_map(|_| STATISTICS.iter().map(|name| beside(self.out, name)));
        let map = self.heat_map.map(|_| beside(self.out, HEAT_MAP));
        std::iter::once(self.out.to_owned()).chain(stats).chain(map).collect()
    }

    /// No file is at their places that must not be replaced.
    fn check_files(&self) -> Result<()> {
        let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
        for path in self.files() {
            if self.inputs.iter().any(|input| same(input, &path)) {
                return Err(Error::File { path, reason: "this is one of the inputs; name another file for the results".to_owned() });
            }
            check_free(&path, self.overwrite)?;
        }
        Ok(())
    }
}

/// Summary of the work of a rank.
#[derive(Debug, Clone)]
pub struct Done {
    /// `[batch, heads_q, seq_q, value_dim]`
    pub shape: [usize; 4],
    /// Groups of heads.
    pub head_groups: usize,
    /// Rows of this rank, in all of its heads and batch entries.
    pub rows: usize,
    /// Time of the job, with reading and writing.
    pub took: Duration,
    /// Time of it in which the arithmetic waited for keys.
    pub waited: Duration,
    /// The files that were written.
    pub files: Vec<PathBuf>,
}

/// The name of the heat map's file: the mean weight of each cell, `[batch, head, row, column]`.
pub const HEAT_MAP: &str = "heat_map";

/// The statistics of rows that are written, each to a file of its own.
macro_rules! statistics {
    ($($name:ident),*) => {
        /// The names of the statistics that are written; the first is the log-sum-exp.
        pub const STATISTICS: &[&str] = &["lse", $(stringify!($name)),*];
        fn each_statistic<E: WireElement>(
            done: &Finished<E>,
            mut write: impl FnMut(usize, ArrayView3<'_, E::Real>) -> Result<()>,
        ) -> Result<()> {
            let Some(stats) = &done.1 else { return Ok(()) };
            write(0, done.0.lse().view())?;
            let mut i = 0;
            $(i += 1; write(i, stats.$name.view())?;)*
            let _ = i;
            Ok(())
        }
    };
}
statistics!(entropy, max_weight, sum_of_squares, diagonal_mass, previous_token_mass, first_token_mass, local_mass, mean_distance);

/// The file of a statistic or of the heat map.
pub fn beside(out: &Path, name: &str) -> PathBuf {
    let mut file = out.file_stem().unwrap_or_default().to_owned();
    file.push(format!(".{name}.npy"));
    out.with_file_name(file)
}

/// Run a job, as one of the ranks of an exchange. All ranks make the same call, and see the same files.
///
/// # Errors
/// As [`Distributed::forward_saved`]; [`Error::File`], [`Error::Changed`] and [`Error::Write`] for files that cannot be read or written,
/// [`Error::Mesh`] where ranks and heads do not fit.
pub fn attend<X: Exchange>(job: &Job<'_>, exchange: &X) -> Result<Done> {
    let inputs = Inputs { q: Npy::open(job.inputs[0])?, k: Npy::open(job.inputs[1])?, v: Npy::open(job.inputs[2])? };
    inputs.check(job.stats.is_some())?;
    if exchange.rank() == 0 {
        job.check_files()?;
    }
    let done = match inputs.q.descr.as_str() {
        "<f2" => attend_as::<f16, X>(job, exchange, &inputs),
        "<f4" => attend_as::<f32, X>(job, exchange, &inputs),
        _ => attend_as::<f64, X>(job, exchange, &inputs),
    };
    if done.is_err() {
        job.temp_files.remove();
    }
    done
}

/// The files of a job.
struct Inputs {
    q: Npy,
    k: Npy,
    v: Npy,
}

/// The heads of a rank.
struct Slice {
    heads_q: Range<usize>,
    heads_kv: Range<usize>,
}

impl Inputs {
    fn all(&self) -> [&Npy; 3] {
        [&self.q, &self.k, &self.v]
    }

    /// The shapes fit, and the results are not implausibly large.
    fn check(&self, stats: bool) -> Result<()> {
        let [q, k, v] = self.all().map(|input| input.shape);
        let problem = if q[0] != k[0] || q[0] != v[0] {
            "the batches differ (axis 0 of four)"
        } else if k[1] != v[1] {
            "k and v differ in heads (axis 1 of four)"
        } else if k[2] != v[2] {
            "k and v differ in tokens (axis 2 of four), and every key needs one value"
        } else if q[3] != k[3] {
            "q and k differ in the dimensions of a head (the last axis)"
        } else if !q[1].is_multiple_of(k[1]) {
            "the heads of q (axis 1 of four) are not a multiple of those of k"
        } else {
            let size = self.q.size();
            let rows: f64 = q[..3].iter().map(|&axis| axis as f64).product();
            let bytes = rows * (v[3] as f64 * size as f64 + if stats { (STATISTICS.len() * size.max(4)) as f64 } else { 0.0 });
            let inputs: usize = self.all().into_iter().map(Npy::bytes).sum();
            if bytes > (RESULTS.0 * inputs as f64).max(RESULTS.1) {
                return Err(Error::Results { shape: [q[0], q[1], q[2], v[3]], bytes, inputs });
            }
            return Ok(());
        };
        Err(Error::Shapes { q, k, v, problem })
    }

    /// q of some tokens.
    fn queries<E: WireElement>(&self, slice: &Slice, tokens: &[Range<usize>]) -> Result<Array4<E>> {
        self.q.read(&slice.heads_q, tokens)
    }

    /// k and v of some tokens.
    fn keys<E: WireElement>(&self, slice: &Slice, tokens: &[Range<usize>]) -> Result<[Array4<E>; 2]> {
        Ok([self.k.read(&slice.heads_kv, tokens)?, self.v.read(&slice.heads_kv, tokens)?])
    }
}

/// Ranks in groups, each of which has some of the heads.
struct Mesh {
    groups: usize,
    ranks_per_group: usize,
}

impl Mesh {
    fn new(groups: Option<usize>, ranks: usize, [heads_q, heads_kv]: [usize; 2]) -> Result<Self> {
        let groups = groups.unwrap_or_else(|| greatest_divisor(ranks, heads_kv));
        if groups == 0 || ![ranks, heads_q, heads_kv].iter().all(|count| count.is_multiple_of(groups)) {
            return Err(Error::Mesh { groups, ranks, heads: heads_kv });
        }
        Ok(Self { groups, ranks_per_group: ranks / groups })
    }

    fn slice(&self, rank: usize, [heads_q, heads_kv]: [usize; 2]) -> Slice {
        let group = rank / self.ranks_per_group;
        let of = |heads: usize| group * (heads / self.groups)..(group + 1) * (heads / self.groups);
        Slice { heads_q: of(heads_q), heads_kv: of(heads_kv) }
    }

    /// The ranks of a rank's group.
    fn members(&self, rank: usize) -> Range<usize> {
        let first = rank / self.ranks_per_group * self.ranks_per_group;
        first..first + self.ranks_per_group
    }
}

/// What a rank works on.
struct Work<'w, 'j> {
    job: &'w Job<'j>,
    inputs: &'w Inputs,
    slice: Slice,
    /// The shape of the scores of this rank's heads.
    scores: [usize; 4],
}

fn attend_as<E: WireElement<Real: WireElement>, X: Exchange>(job: &Job<'_>, exchange: &X, inputs: &Inputs) -> Result<Done> {
    let begun = Instant::now();
    inputs.all().into_iter().try_for_each(|input| input.check_type::<E>())?;
    let ([batch, heads_q, tokens, _], [_, heads_kv, keys, _]) = (inputs.q.shape, inputs.k.shape);
    let shape = [batch, heads_q, tokens, inputs.v.shape[3]];
    let (rank, ranks, comm) = (exchange.rank(), exchange.ranks(), Comm::new(exchange));
    let mesh = Mesh::new(job.head_groups, ranks, [heads_q, heads_kv])?;
    if mesh.ranks_per_group > 1 && keys != tokens {
        return Err(Error::Lengths { queries: tokens, keys });
    }
    // A block that is not possible is refused also where it is not needed.
    job.sharing.partition(0, 1)?;
    let slice = mesh.slice(rank, [heads_q, heads_kv]);
    let scores = [batch, slice.heads_q.len(), tokens, keys];
    let work = Work { job, inputs, slice, scores };
    // Rank 0 creates the files, of a call that the library accepts; the others open them.
    let what = || "the names of the files".to_owned();
    let mut writers = if rank == 0 {
        let ([k, v], q) = (inputs.keys::<E>(&work.slice, &[])?, inputs.queries::<E>(&work.slice, &[])?);
        job.attention.begin(&q, 0, scores).absorb(0, &k, &v)?;
        let id = job_id();
        let writers = Writers::<E>::open(job, shape, keys, &id, true)?;
        (1..ranks).try_for_each(|other| comm.send(other, JOB_ID, id.clone().into_bytes(), what))?;
        writers
    } else {
        let id = comm.receive(0, JOB_ID, what)?;
        Writers::<E>::open(job, shape, keys, &String::from_utf8_lossy(&id), false)?
    };
    let options = job.attention.fingerprint::<E>(scores).map_err(Error::from);
    comm.agree_or_refuse(options.map(|options| format!("files with results of shape {shape:?}; {options}")))?;
    let (rows, waited) = if mesh.ranks_per_group == 1 {
        work.all_tokens(&mut writers)?
    } else {
        let group = SubComm::new(exchange, mesh.members(rank).collect()).expect("a rank is in its group");
        work.shared_tokens(&group, &mut writers)?
    };
    writers.all().try_for_each(|writer| writer.sync())?;
    comm.agree("files that are written")?;
    // The results last: where they are, the statistics are.
    let mut places: Vec<_> = writers.all().map(|writer| writer.place().clone()).collect();
    places.reverse();
    if rank == 0 {
        finish(&places, job.overwrite, &job.temp_files)?
    } else {
        job.temp_files.forget()
    }
    Ok(Done { shape, head_groups: mesh.groups, rows, took: begun.elapsed(), waited, files: job.files() })
}

impl Work<'_, '_> {
    /// All tokens of this rank's heads: some rows at a time, with all keys. Returned are the rows, and how long they waited for other
    /// ranks.
    fn all_tokens<E: WireElement<Real: WireElement>>(&self, writers: &mut Writers<E>) -> Result<(usize, Duration)> {
        let Self { job, inputs, slice, scores } = self;
        let [batch, heads, tokens, keys] = *scores;
        let dims = [inputs.k.shape[3], inputs.v.shape[3]];
        let chunk = rows_at_once(batch * heads, dims, size_of::<E::Real>());
        let piece = keys_at_once(batch * slice.heads_kv.len(), dims, size_of::<E>());
        let passes = tokens.div_ceil(chunk) * (1 + usize::from(job.heat_map.is_some()));
        let mut absorbed = 0;
        let mut for_each_piece = |absorb: &mut dyn FnMut(Range<usize>) -> Result<()>| -> Result<()> {
            (0..keys.max(1)).step_by(piece).try_for_each(|key| {
                absorb(key..keys.min(key + piece))?;
                absorbed += piece.min(keys.max(1) - key);
                (job.progress)(absorbed, passes * keys.max(1));
                Ok(())
            })
        };
        let mut map = match job.heat_map {
            Some([rows, cols]) => Some(HeatMapCells::new(0, [batch, heads, rows.min(tokens), cols.min(keys)])?),
            None => None,
        };
        for first in (0..tokens).step_by(chunk) {
            let range = first..tokens.min(first + chunk);
            let q = inputs.queries::<E>(slice, std::slice::from_ref(&range))?;
            let mut rows = job.stats.into_iter().fold(job.attention.begin(&q, first, *scores), Rows::with_stats);
            for_each_piece(&mut |keys| {
                let [k, v] = inputs.keys::<E>(slice, std::slice::from_ref(&keys))?;
                Ok(rows.absorb(keys.start, &k, &v)?)
            })?;
            let done = rows.finish_with_stats()?;
            writers.write(slice.heads_q.start, &range, &done)?;
            if let (Some(map), Some(cells)) = (&mut map, job.heat_map) {
                let (states, mut part_of_map) = (SoftmaxDenominators::from(&done.0), HeatMapState::default());
                for_each_piece(&mut |keys| {
                    let part = GlobalOffset { batch: 0, query: first, key: keys.start, whole: *scores };
                    let k = inputs.k.read::<E>(&slice.heads_kv, &[keys])?;
                    Ok(job.attention.heat_map_part(part, &q, &k, &states, cells, &mut part_of_map)?)
                })?;
                map.add(&part_of_map)?;
            }
        }
        map.into_iter().try_for_each(|map| writers.write_map(slice.heads_q.start, &map.finish([tokens, keys]).mean.view()))?;
        Ok((batch * heads * tokens, Duration::ZERO))
    }

    /// The tokens that the partition gives this rank of a group.
    fn shared_tokens<E: WireElement<Real: WireElement>, X: Exchange>(
        &self,
        group: &X,
        writers: &mut Writers<E>,
    ) -> Result<(usize, Duration)> {
        let Self { job, inputs, slice, scores } = self;
        let [batch, heads, tokens, _] = *scores;
        let partition = job.sharing.partition(tokens, group.ranks())?;
        let ranges: Vec<_> = partition.blocks_of_rank(group.rank()).collect();
        let (q, [k, v]) = (inputs.queries::<E>(slice, &ranges)?, inputs.keys::<E>(slice, &ranges)?);
        let progress = |absorbed: usize| (job.progress)(absorbed, tokens);
        let ranks = Distributed::new(job.attention, group, &partition).with_progress(&progress);
        let blocks = ranks.forward_blocks(q.view(), k.view(), v.view(), job.stats)?;
        drop(v);
        ranges.iter().zip(&blocks).try_for_each(|(range, result)| writers.write(slice.heads_q.start, range, result))?;
        if let Some(cells) = job.heat_map {
            let no_rows = Array3::from_elem([batch, heads, 0], E::Real::default());
            let of = |rows: fn(&Finished<E>) -> &Array3<E::Real>| {
                concatenate(&std::iter::once(&no_rows).chain(blocks.iter().map(rows)).map(|rows| rows.view()).collect::<Vec<_>>())
            };
            let states = SoftmaxDenominators { row_max: of(|done| &done.0.row_max), row_sum: of(|done| &done.0.row_sum) };
            drop(blocks);
            let map = ranks.heat_map(q.view(), k.view(), &states, cells)?;
            map.into_iter().try_for_each(|map| writers.write_map(slice.heads_q.start, &map.mean.view()))?;
        }
        Ok((batch * heads * partition.count(group.rank()), ranks.waited()))
    }
}

/// Rows that a process computes at once where it reads all keys itself: whole query tiles, which the cells of a heat map are made of.
pub(crate) fn rows_at_once(heads: usize, [dim, value_dim]: [usize; 2], real: usize) -> usize {
    let per_row = heads * (dim + 3 * value_dim + 8) * real;
    ((STATE_BYTES / per_row.max(1)) / GRADIENT_SPLIT * GRADIENT_SPLIT).max(GRADIENT_SPLIT)
}

/// Keys that such a process reads at once: one to four splits.
pub(crate) fn keys_at_once(heads: usize, [dim, value_dim]: [usize; 2], size: usize) -> usize {
    let per_key = (heads * (dim + value_dim) * size).max(1);
    (PIECE_BYTES / per_key / KV_SPLIT).clamp(1, 4) * KV_SPLIT
}

/// The most groups of heads that divide ranks and heads.
pub(crate) fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { greatest_divisor(b, a % b) }
}

impl Sharing {
    /// Tokens of a block.
    fn block(self, tokens: usize, ranks: usize) -> usize {
        match self {
            Self::Contiguous => tokens.div_ceil(ranks.max(1)),
            Self::Snake(Some(block)) => block,
            Self::Snake(None) => (tokens / (LAPS * ranks.max(1))).next_multiple_of(BLOCK[0]).clamp(BLOCK[0], BLOCK[1]),
        }
    }

    /// The partition of these tokens.
    ///
    /// # Errors
    /// As [`Partition::snake`].
    pub fn partition(self, tokens: usize, ranks: usize) -> Result<Partition> {
        match self {
            Self::Contiguous => Partition::contiguous(tokens, ranks),
            Self::Snake(_) => Partition::snake(tokens, ranks, self.block(tokens, ranks)),
        }
    }

    /// The number of its blocks, and about that of their pieces.
    pub(crate) fn counts(self, tokens: usize, ranks: usize) -> (usize, usize) {
        let block = self.block(tokens, ranks).clamp(1, tokens.max(1));
        let blocks = tokens.div_ceil(block);
        (blocks, blocks.saturating_mul(block.div_ceil(KV_SPLIT)))
    }
}

/// The files of results, statistics and heat map.
struct Writers<E> {
    out: NpyWriter,
    stats: Vec<NpyWriter>,
    map: Option<NpyWriter>,
    element: std::marker::PhantomData<E>,
}

impl<E: WireElement<Real: WireElement>> Writers<E> {
    fn open(job: &Job<'_>, shape: [usize; 4], keys: usize, job_id: &str, creates: bool) -> Result<Self> {
        let place = |path: PathBuf| Place::new(path, job_id);
        let out = NpyWriter::open::<E>(place(job.out.to_owned()), shape, false, creates, &job.temp_files)?;
        let [batch, heads, tokens, _] = shape;
        let of = |name: &&str| {
            NpyWriter::open::<E::Real>(place(beside(job.out, name)), [batch, heads, tokens, 1], true, creates, &job.temp_files)
        };
        let stats = job.stats.iter().flat_map(|_| STATISTICS.iter().map(of)).collect::<Result<_>>()?;
        let cells = |[rows, cols]: [usize; 2]| [batch, heads, rows.min(tokens), cols.min(keys)];
        let open_map = |map| NpyWriter::open::<E::Real>(place(beside(job.out, HEAT_MAP)), cells(map), false, creates, &job.temp_files);
        let map = job.heat_map.map(open_map).transpose()?;
        Ok(Self { out, stats, map, element: std::marker::PhantomData })
    }

    /// Write the results of rows, from this head on.
    fn write(&mut self, head: usize, range: &Range<usize>, result: &Finished<E>) -> Result<()> {
        self.out.write(head, range.start, &result.0.out.view())?;
        each_statistic::<E>(result, |i, rows| self.stats[i].write(head, range.start, &rows.insert_axis(Axis(3))))
    }

    /// Write the heat maps of heads, from this one on.
    fn write_map(&mut self, head: usize, cells: &ArrayView4<'_, E::Real>) -> Result<()> {
        self.map.iter_mut().try_for_each(|map| map.write(head, 0, cells))
    }

    fn all(&self) -> impl Iterator<Item = &NpyWriter> {
        std::iter::once(&self.out).chain(&self.stats).chain(&self.map)
    }
}
