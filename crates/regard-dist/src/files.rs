//! Attention from files to files, by one process or by several: q, k and v are mapped, keys go by in pieces, and every rank writes its own rows.

use crate::error::{Error, Result};
use crate::exchange::{Exchange, Kind, Number, Tag, Talk};
use crate::forward::Distributed;
use crate::members::Members;
use crate::npy::{Npy, NpyWriter};
use crate::partition::{PIECE, Partition, side_by_side};
use crate::rows::{InPieces, Rows};
use crate::unfinished::{Place, Unfinished, check_free, finish, own_word};
use half::f16;
use ndarray::{Array3, ArrayView3, ArrayView4, Axis, s};
use regard::{Attention, MapCells, MapSoFar, Part, RowStates, RowsDone, StatsOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Keys that are taken at once, by a process that reads all of them itself.
const KEYS: usize = 8192;

/// Memory for the states of the rows that are worked at at once, about.
const STATE_BYTES: usize = 256 << 20;

/// Rows of a block, at the most and at the least: shorter ones share the work better, and longer ones are read faster.
const BLOCK: [usize; 2] = [256, 2048];

/// What the first rank tells the others: what the files are called while they are not whole.
const NAMES: Tag = (Kind::Greeting, 1);

/// Blocks of a rank that causal work is shared by.
const LAPS: usize = 8;

/// How tokens are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// One range to each rank.
    Contiguous,
    /// Blocks of so many tokens, forwards and backwards in turn; `None` chooses.
    Snake(Option<usize>),
}

/// What is to be done.
pub struct Job<'a> {
    /// The options.
    pub attention: &'a Attention<'a>,
    /// The files of q, k and v.
    pub inputs: [&'a Path; 3],
    /// The file of the results; statistics are written beside it.
    pub out: &'a Path,
    /// Files that are there already may be replaced; q, k and v never are.
    pub overwrite: bool,
    /// Statistics that are wanted.
    pub stats: Option<StatsOptions>,
    /// Rows and columns of a heat map that is wanted.
    pub heat_map: Option<[usize; 2]>,
    /// How tokens are shared.
    pub sharing: Sharing,
    /// Into how many groups heads are shared out, each of which has the same number of ranks; `None` takes as many as there can be.
    pub head_groups: Option<usize>,
    /// Gets the names of the files while they are not whole, for whoever ends the job early.
    pub unfinished: Unfinished,
    /// Told how many keys of how many this rank has been through, for all its rows.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Job<'_> {
    /// The files that will be written.
    pub fn files(&self) -> Vec<PathBuf> {
        let stats = self.stats.iter().flat_map(|_| STATISTICS.iter().map(|name| beside(self.out, name)));
        let map = self.heat_map.map(|_| beside(self.out, HEAT_MAP));
        std::iter::once(self.out.to_owned()).chain(stats).chain(map).collect()
    }

    /// Nothing of the user's is in their way.
    fn check_files(&self) -> Result<()> {
        let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
        for path in self.files() {
            if self.inputs.iter().any(|input| same(input, &path)) {
                let reason = "it is one of the inputs; name another file for the results".to_owned();
                return Err(Error::File { path, reason });
            }
            check_free(&path, self.overwrite)?;
        }
        Ok(())
    }
}

/// Results may be so much larger than what they are made of, and at least so many bytes.
const RESULTS: (f64, f64) = (1024.0, (1u64 << 30) as f64);

/// Three files that are attention together, with results that a disk can have.
fn check_inputs(inputs: &[Npy; 3], stats: bool) -> Result<()> {
    let [q, k, v] = inputs.each_ref().map(|input| input.shape);
    let problem = if q[0] != k[0] || q[0] != v[0] {
        "they differ in the batch (axis 0 of four)"
    } else if k[1] != v[1] {
        "k and v differ in heads (axis 1 of four)"
    } else if k[2] != v[2] {
        "k and v differ in tokens (axis 2 of four), and every key needs one value"
    } else if q[3] != k[3] {
        "q and k differ in the dimensions of a head (the last axis)"
    } else if !q[1].is_multiple_of(k[1]) {
        "the heads of q (axis 1 of four) are no multiple of those of k"
    } else {
        let size = inputs[0].size();
        let rows: f64 = q[..3].iter().map(|&axis| axis as f64).product();
        let bytes = rows * (v[3] as f64 * size as f64 + if stats { (STATISTICS.len() * size.max(4)) as f64 } else { 0.0 });
        let have: usize = inputs.iter().map(Npy::bytes).sum();
        if bytes > (RESULTS.0 * have as f64).max(RESULTS.1) {
            return Err(Error::Results { shape: [q[0], q[1], q[2], v[3]], bytes, inputs: have });
        }
        return Ok(());
    };
    Err(Error::Shapes { q, k, v, problem })
}

/// What a rank did.
#[derive(Debug, Clone)]
pub struct Done {
    /// `[batch, heads_q, seq_q, value_dim]`
    pub shape: [usize; 4],
    /// Groups of heads.
    pub head_groups: usize,
    /// Rows of this rank, over all of its heads and batch entries.
    pub rows: usize,
    /// How long it took, reading and writing included.
    pub took: Duration,
    /// How long the arithmetic waited for keys.
    pub waited: Duration,
    /// The files that were written.
    pub files: Vec<PathBuf>,
}

/// What the file of the heat map is called, beside that of the results: the mean weight of each cell, `[batch, head, row, column]`.
pub const HEAT_MAP: &str = "heat_map";

/// The statistics of rows that are written, each into a file of its own.
macro_rules! statistics {
    ($($name:ident),*) => {
        /// The names of the statistics that are written; the first is that of the log-sum-exp.
        pub const STATISTICS: &[&str] = &["lse", $(stringify!($name)),*];
        fn each_statistic<E: Number>(done: &RowsDone<E>, mut tell: impl FnMut(usize, ArrayView3<'_, E::Real>) -> Result<()>) -> Result<()> {
            let Some(stats) = &done.1 else { return Ok(()) };
            tell(0, done.0.lse().view())?;
            let mut i = 0;
            $(i += 1; tell(i, stats.$name.view())?;)*
            let _ = i;
            Ok(())
        }
    };
}
statistics!(entropy, max_weight, sum_of_squares, diagonal_mass, previous_token_mass, first_token_mass, local_mass, mean_distance);

/// Do it, as one of the ranks of an exchange: all of them make the same call, and reach the same files.
///
/// # Errors
/// As [`Distributed::forward_saved`]; [`Error::File`] for files that cannot be used or written, [`Error::Mesh`] where ranks and heads do not fit.
pub fn attend<X: Exchange>(job: &Job<'_>, exchange: &X) -> Result<Done> {
    let inputs = [Npy::open(job.inputs[0])?, Npy::open(job.inputs[1])?, Npy::open(job.inputs[2])?];
    check_inputs(&inputs, job.stats.is_some())?;
    if exchange.rank() == 0 {
        job.check_files()?;
    }
    let done = match inputs[0].descr.as_str() {
        "<f2" => attend_as::<f16, X>(job, exchange, &inputs),
        "<f4" => attend_as::<f32, X>(job, exchange, &inputs),
        _ => attend_as::<f64, X>(job, exchange, &inputs),
    };
    if done.is_err() {
        job.unfinished.remove();
    }
    done
}

/// The name of a statistic's file.
pub fn beside(out: &Path, name: &str) -> PathBuf {
    let mut file = out.file_stem().unwrap_or_default().to_owned();
    file.push(format!(".{name}.npy"));
    out.with_file_name(file)
}

fn attend_as<E: Number<Real: Number>, X: Exchange>(job: &Job<'_>, exchange: &X, inputs: &[Npy; 3]) -> Result<Done> {
    let begun = Instant::now();
    let [q, k, v] = [inputs[0].view::<E>()?, inputs[1].view::<E>()?, inputs[2].view::<E>()?];
    let ([batch, heads_q, tokens, _], [_, heads_kv, keys, _], value_dim) = (inputs[0].shape, inputs[1].shape, inputs[2].shape[3]);
    let shape = [batch, heads_q, tokens, value_dim];
    let (rank, ranks, talk) = (exchange.rank(), exchange.ranks(), Talk::new(exchange));
    let groups = job.head_groups.unwrap_or_else(|| greatest_divisor(ranks, heads_kv));
    if groups == 0 || ![ranks, heads_q, heads_kv].iter().all(|count| count.is_multiple_of(groups)) {
        return Err(Error::Mesh { groups, ranks, heads: heads_kv });
    }
    let in_group = ranks / groups;
    if in_group > 1 && keys != tokens {
        return Err(Error::Lengths { queries: tokens, keys });
    }
    // Heads of this rank.
    let group = rank / in_group;
    let of = |heads: usize| group * (heads / groups)..(group + 1) * (heads / groups);
    let (mine, kv) = (of(heads_q), of(heads_kv));
    let q = q.slice(s![.., mine.clone(), .., ..]);
    let [k, v] = [k.slice(s![.., kv.clone(), .., ..]), v.slice(s![.., kv.clone(), .., ..])];
    // A block that cannot be is refused whoever would have it.
    job.sharing.partition(0, 1)?;
    // The first rank makes the files, of a call that is in order, and tells the others what they are called; these open them.
    let what = || "the names of the files".to_owned();
    let mut writers = if rank == 0 {
        let mut rows = job.attention.begin(q.slice(s![.., .., ..0, ..]), 0, [batch, mine.len(), tokens, keys]);
        rows.absorb(0, k.slice(s![.., .., ..0, ..]), v.slice(s![.., .., ..0, ..]))?;
        let word = own_word();
        let writers = Writers::<E>::open(job, shape, keys, &word, true)?;
        (1..ranks).try_for_each(|other| talk.send(other, NAMES, word.clone().into_bytes(), what))?;
        writers
    } else {
        let word = talk.receive(0, NAMES, what)?;
        Writers::<E>::open(job, shape, keys, &String::from_utf8_lossy(&word), false)?
    };
    talk.agree(&format!("files with results of shape {shape:?}"))?;
    let mut done = Done { shape, head_groups: groups, rows: 0, took: Duration::ZERO, waited: Duration::ZERO, files: Vec::new() };
    if in_group == 1 {
        let chunk = rows_at_once(batch * mine.len(), [q.len_of(Axis(3)), value_dim], size_of::<E::Real>());
        let passes = tokens.div_ceil(chunk) * (1 + usize::from(job.heat_map.is_some()));
        let (all, mut through) = (passes * keys.max(1), 0);
        let mut map = match job.heat_map {
            Some([rows, cols]) => Some(MapCells::new(0, [batch, mine.len(), rows.min(tokens), cols.min(keys)])?),
            None => None,
        };
        for first in (0..tokens).step_by(chunk) {
            let range = first..tokens.min(first + chunk);
            let (q, whole) = (q.slice(s![.., .., range.clone(), ..]), [batch, mine.len(), tokens, keys]);
            let mut each_piece = |take: &mut dyn FnMut(Range<usize>) -> Result<()>| -> Result<()> {
                (0..keys.max(1)).step_by(KEYS).try_for_each(|key| {
                    take(key..keys.min(key + KEYS))?;
                    through += KEYS.min(keys.max(1) - key);
                    (job.progress)(through, all);
                    Ok(())
                })
            };
            let mut rows = job.stats.into_iter().fold(job.attention.begin(q, first, whole), Rows::with_stats);
            each_piece(&mut |keys| {
                let piece = s![.., .., keys.clone(), ..];
                Ok(rows.absorb(keys.start, k.slice(piece), v.slice(piece))?)
            })?;
            let done = rows.finish_with_stats()?;
            writers.write(mine.start, &range, &done)?;
            if let (Some(map), Some(cells)) = (&mut map, job.heat_map) {
                let (states, mut so_far) = (RowStates::from(&done.0), MapSoFar::default());
                each_piece(&mut |keys| {
                    let part = Part { batch: 0, query: first, key: keys.start, whole };
                    Ok(job.attention.heat_map_part(part, q, k.slice(s![.., .., keys, ..]), &states, cells, &mut so_far)?)
                })?;
                map.add(&so_far);
            }
        }
        map.into_iter().try_for_each(|map| writers.write_map(mine.start, &map.finish([tokens, keys]).mean.view()))?;
        done.rows = batch * mine.len() * tokens;
    } else {
        let members = Members::new(exchange, (group * in_group..(group + 1) * in_group).collect()).expect("it is one of its group");
        let place = rank % in_group;
        let partition = job.sharing.partition(tokens, in_group)?;
        let ranges: Vec<_> = partition.blocks_of_rank(place).collect();
        let [q, k, v] = [inputs[0].read::<E>(&mine, &ranges)?, inputs[1].read::<E>(&kv, &ranges)?, inputs[2].read::<E>(&kv, &ranges)?];
        let through = |through: usize| (job.progress)(through, tokens);
        let ranks = Distributed::new(job.attention, &members, &partition).with_progress(&through);
        let blocks = ranks.forward_blocks(q.view(), k.view(), v.view(), job.stats)?;
        drop(v);
        ranges.iter().zip(&blocks).try_for_each(|(range, result)| writers.write(mine.start, range, result))?;
        if let Some(cells) = job.heat_map {
            let nothing = Array3::from_elem([batch, mine.len(), 0], E::Real::default());
            let of = |rows: fn(&RowsDone<E>) -> &Array3<E::Real>| {
                side_by_side(&std::iter::once(&nothing).chain(blocks.iter().map(rows)).map(|rows| rows.view()).collect::<Vec<_>>())
            };
            let states = RowStates { row_max: of(|done| &done.0.row_max), row_sum: of(|done| &done.0.row_sum) };
            drop(blocks);
            let map = ranks.heat_map(q.view(), k.view(), &states, cells)?;
            map.into_iter().try_for_each(|map| writers.write_map(mine.start, &map.mean.view()))?;
        }
        (done.rows, done.waited) = (batch * mine.len() * partition.count(place), ranks.waited());
    }
    writers.all().try_for_each(|writer| writer.sync())?;
    talk.agree("files that are written")?;
    // The results last: where they are, the statistics are.
    let mut places: Vec<_> = writers.all().map(|writer| writer.place().clone()).collect();
    places.reverse();
    if rank == 0 {
        finish(&places, job.overwrite, &job.unfinished)?
    } else {
        job.unfinished.forget()
    }
    done.files = job.files();
    done.took = begun.elapsed();
    Ok(done)
}

/// Rows that a process works at at once which has all of their keys: of so many heads, with these dimensions of keys and values, and numbers of so many bytes.
pub(crate) fn rows_at_once(heads: usize, [dim, value_dim]: [usize; 2], real: usize) -> usize {
    let per_row = heads * (dim + 3 * value_dim + 8) * real;
    // Whole tiles of queries, of which the cells of a heat map are made.
    ((STATE_BYTES / per_row.max(1)) / 256 * 256).max(256)
}

/// As many groups of heads as ranks allow.
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

    /// These tokens, by so many ranks.
    ///
    /// # Errors
    /// As [`Partition::snake`].
    pub fn partition(self, tokens: usize, ranks: usize) -> Result<Partition> {
        match self {
            Self::Contiguous => Partition::contiguous(tokens, ranks),
            Self::Snake(_) => Partition::snake(tokens, ranks, self.block(tokens, ranks)),
        }
    }

    /// How many blocks that has, and pieces that travel; about.
    pub(crate) fn counts(self, tokens: usize, ranks: usize) -> (usize, usize) {
        let block = self.block(tokens, ranks).clamp(1, tokens.max(1));
        let blocks = tokens.div_ceil(block);
        (blocks, blocks.saturating_mul(block.div_ceil(PIECE)))
    }
}

/// The file of the results, those of the statistics, and that of the heat map.
struct Writers<E> {
    out: NpyWriter,
    stats: Vec<NpyWriter>,
    map: Option<NpyWriter>,
    element: std::marker::PhantomData<E>,
}

impl<E: Number<Real: Number>> Writers<E> {
    fn open(job: &Job<'_>, shape: [usize; 4], keys: usize, word: &str, makes: bool) -> Result<Self> {
        let place = |path: PathBuf| Place::new(path, word);
        let out = NpyWriter::open::<E>(place(job.out.to_owned()), shape, false, makes, &job.unfinished)?;
        let [batch, heads, tokens, _] = shape;
        let of =
            |name: &&str| NpyWriter::open::<E::Real>(place(beside(job.out, name)), [batch, heads, tokens, 1], true, makes, &job.unfinished);
        let stats = job.stats.iter().flat_map(|_| STATISTICS.iter().map(of)).collect::<Result<_>>()?;
        let cells = |[rows, cols]: [usize; 2]| [batch, heads, rows.min(tokens), cols.min(keys)];
        let open_map = |map| NpyWriter::open::<E::Real>(place(beside(job.out, HEAT_MAP)), cells(map), false, makes, &job.unfinished);
        let map = job.heat_map.map(open_map).transpose()?;
        Ok(Self { out, stats, map, element: std::marker::PhantomData })
    }

    /// The results of rows, which have these places in the whole.
    fn write(&mut self, head: usize, range: &Range<usize>, result: &RowsDone<E>) -> Result<()> {
        self.out.write(head, range.start, &result.0.out.view())?;
        each_statistic::<E>(result, |i, rows| self.stats[i].write(head, range.start, &rows.insert_axis(Axis(3))))
    }

    /// The map of some heads.
    fn write_map(&mut self, head: usize, cells: &ArrayView4<'_, E::Real>) -> Result<()> {
        self.map.iter_mut().try_for_each(|map| map.write(head, 0, cells))
    }

    fn all(&self) -> impl Iterator<Item = &NpyWriter> {
        std::iter::once(&self.out).chain(&self.stats).chain(&self.map)
    }
}
