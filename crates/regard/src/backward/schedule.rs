//! Backward scheduling: units of work over threads.
//!
//! A *unit* of work is the query heads that share one key/value head of one batch entry, against some splits of keys: it alone adds to
//! dk and dv there (see [`super::differentiate`]). Where there are few heads, each split of keys is a unit, and its share of dq is kept
//! apart, for a chunk of queries at a time, and added up in the order of the keys.

use super::deltas::TileDeltas;
use super::differentiate::{Given, RowSums, Unit, padded};
use super::{GradientOutputs, GradientSums};
use crate::arrays::{cut, filled, uninit};
use crate::bias::gradient::{BiasSums, BiasTotals, UnitSizes};
use crate::error::{Error, Result};
use crate::forward::{Inputs, SavedView, row_array};
use crate::mainloop::scores::Scorer;
use crate::mainloop::tiling::{GRADIENT_SPLIT, query_tiles, tile_shape};
use crate::plan::{Dims, Plan, WORTH_A_THREAD};
use ndarray::{Array2, Array3, Array4, ArrayView1, ArrayView4, ArrayViewMut4, Axis};
use regard_simd::{Real, Storage};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of dq that are kept apart at a time, where keys are shared out over threads.
const APART_BYTES: usize = 8 << 20;

/// Scales beyond it are an experiment, not a model's: what is left of `d_p - delta` is then worth a pass of its own.
const LARGE_SCALE: f64 = 4.0;

/// Compute. On success every element of the outputs has been written.
pub(crate) fn run<E: Storage, X: Storage<Real = E::Real>>(
    plan: &Plan<'_>,
    inputs: Inputs<'_, E>,
    saved: SavedView<'_, E>,
    d_out: ArrayView4<'_, E>,
    outputs: GradientOutputs<'_, X>,
    stats: bool,
) -> Result<GradientSums> {
    let (d, adds) = (plan.dims, outputs.adds);
    let over_all_keys = plan.top_k().is_some() || plan.scale.abs() > LARGE_SCALE;
    if adds && (over_all_keys || !plan.biases_with_gradient().is_empty()) {
        return Err(Error::Unsupported { what: "a gradient in parts with top-k, with a scale above 4, or of a bias" });
    }
    let inputs = Inputs { q: inputs.q.view(), k: inputs.k.view(), v: inputs.v.view() };
    let mut given = Given { plan, inputs: &inputs, saved: &saved.reborrow(), d_out: d_out.view(), cutoffs: None, deltas: None };
    let d_sink = plan.has_sink().then(|| sink_gradient(&given)).transpose()?;
    let mut biases = plan.biases_with_gradient().iter().map(|bias| BiasTotals::new(bias, d.scores())).collect::<Result<Vec<_>>>()?;
    let mut rows = row_sums([stats, plan.scale_gradient() && !adds], [d.batch, d.heads_q, d.seq_q, 1])?;
    if d.batch == 0 || d.heads_q == 0 || d.seq_q == 0 || d.seq_kv == 0 {
        let GradientOutputs { dq, dk, dv, .. } = outputs;
        [dq, dk, dv].into_iter().filter(|_| !adds).for_each(|mut x| x.fill(MaybeUninit::new(X::STORED_ZERO)));
    } else {
        if plan.top_k().is_some() {
            let cutoffs = plan.for_tasks(query_tiles(plan, 0..plan.dims.seq_q), |tile| {
                Scorer::new(plan, &inputs.q, &inputs.k, tile).with_cutoffs().cutoffs
            })?;
            given.cutoffs = cutoffs.into_iter().collect();
        }
        if plan.scale.abs() > LARGE_SCALE {
            given.deltas = Some(sum_deltas(&given)?);
        }
        let GradientOutputs { dq, mut dk, mut dv, .. } = outputs;
        let (mut dk, mut dv) = (PaddedSums::new(&mut dk, adds)?, PaddedSums::new(&mut dv, adds)?);
        let sums = KeySums { dk: dk.view(), dv: dv.view(), biases: &mut biases };
        let scale = if adds { E::Real::ONE } else { E::Real::from_f64(plan.scale) };
        run_units(&given, sums, dq, &mut rows, scale)?;
        dk.finish(plan)?;
        dv.finish(plan)?;
    }
    let d_biases = biases.into_iter().zip(plan.biases()).map(|(totals, bias)| totals.finish(bias)).collect();
    let [squares, scale] = rows;
    let options = super::OptionGradients { d_biases, d_sink, d_scale: scale.map(|rows| rows.iter().sum()) };
    Ok(GradientSums { options, squares: squares.map(|rows| rows.remove_axis(Axis(3))) })
}

/// See [`TileDeltas`].
fn sum_deltas<E: Storage>(given: &Given<'_, '_, E>) -> Result<Array3<E::Real>> {
    let plan = given.plan;
    let mut deltas = row_array(plan, E::Real::ZERO)?;
    let tiles =
        plan.for_tasks(query_tiles(plan, 0..plan.dims.seq_q), |tile| (tile, E::dispatch_stored(plan.level, TileDeltas { given, tile })))?;
    for (tile, rows) in tiles {
        rows.into_iter().enumerate().for_each(|(r, delta)| deltas[tile.place(plan, r)] = delta);
    }
    Ok(deltas)
}

/// Forward, a sink takes the share `exp(logit - row_max) / row_sum` and hands nothing on: its gradient is minus that share of delta.
fn sink_gradient<E: Storage>(given: &Given<'_, '_, E>) -> Result<Vec<f64>> {
    let Given { plan, saved, d_out, .. } = given;
    let tiles = plan.for_tasks(query_tiles(plan, 0..plan.dims.seq_q), |tile| {
        let mut by_head = vec![0.0; tile.heads];
        for r in 0..tile.rows() {
            let [b, h, i] = tile.place(plan, r);
            let sink = plan.sink(h).unwrap_or(f64::NEG_INFINITY);
            let (max, sum) = (saved.row_max[[b, h, i]].to_f64(), saved.row_sum[[b, h, i]].to_f64());
            if sum == 0.0 || sink == f64::NEG_INFINITY {
                continue;
            }
            let out = |e: usize| saved.out_unrounded.as_ref().map_or_else(|| saved.out[[b, h, i, e]].to_real(), |x| x[[b, h, i, e]]);
            let delta: f64 = (0..plan.dims.value_dim).map(|e| d_out[[b, h, i, e]].to_real().to_f64() * out(e).to_f64()).sum();
            // A row that sees no key hands nothing on, whatever d_out is.
            if delta.is_finite() || Scorer::<E>::row_sees_any(plan, &tile, r) {
                by_head[r / tile.queries] -= (sink - max).exp() / sum * delta;
            }
        }
        (tile.head, by_head)
    })?;
    let mut gradient = vec![0.0; plan.dims.heads_q];
    for (head, by_head) in tiles {
        gradient[head..].iter_mut().zip(by_head).for_each(|(to, x)| *to += x);
    }
    Ok(gradient)
}

/// The sums of rows that are wanted, `[batch, heads_q, seq_q, 1]`.
fn row_sums(wanted: [bool; 2], shape: [usize; 4]) -> Result<RowSums<Array4<f64>>> {
    let [squares, scale] = wanted.map(|wanted| wanted.then(|| filled("a number per row", shape, 0.0)).transpose());
    Ok([squares?, scale?])
}

/// Those of some queries.
fn of_queries(sums: &mut RowSums<Array4<f64>>, queries: Range<usize>) -> RowSums<ArrayViewMut4<'_, f64>> {
    sums.each_mut().map(|sums| sums.as_mut().map(|sums| sums.slice_mut(ndarray::s![.., .., queries.clone(), ..])))
}

/// Sums for dk or dv, rows padded to whole vectors: the result itself where that is how it lies.
enum PaddedSums<'o, 'v, E: Storage> {
    Direct(ArrayViewMut4<'o, MaybeUninit<E::Real>>),
    Apart(Array4<MaybeUninit<E::Real>>, &'o mut ArrayViewMut4<'v, MaybeUninit<E>>),
}

impl<'o, 'v, E: Storage> PaddedSums<'o, 'v, E> {
    fn new(to: &'o mut ArrayViewMut4<'v, MaybeUninit<E>>, adds: bool) -> Result<Self> {
        let (b, h, n, dims) = to.dim();
        let ld = padded::<E::Real>(dims);
        let shape = [b, h, n, ld];
        if dims != ld || !E::IS_REAL || to.as_slice_mut().is_none() {
            let mut sums = uninit("sums of gradients", shape)?;
            if adds {
                sums.fill(MaybeUninit::new(E::Real::ZERO));
                // SAFETY: the destination is initialised.
                let number = |x: &MaybeUninit<E>| MaybeUninit::new(unsafe { x.assume_init() }.to_real());
                sums.slice_mut(ndarray::s![.., .., .., ..dims]).zip_mut_with(to, |sum, x| *sum = number(x));
            }
            return Ok(Self::Apart(sums, to));
        }
        let numbers = to.as_slice_mut().and_then(E::as_real_mut).expect("both were just looked at");
        Ok(Self::Direct(ArrayViewMut4::from_shape(shape, numbers).expect("it has this shape")))
    }

    fn view(&mut self) -> ArrayViewMut4<'_, MaybeUninit<E::Real>> {
        match self {
            Self::Direct(sums) => sums.view_mut(),
            Self::Apart(sums, _) => sums.view_mut(),
        }
    }

    /// All sums were written: they become the result.
    fn finish(self, plan: &Plan<'_>) -> Result<()> {
        let Self::Apart(sums, to) = self else { return Ok(()) };
        let dims = to.len_of(Axis(3));
        let parts = cut(to.view_mut(), 0, 1).into_iter().flat_map(|part| cut(part, 1, 1)).collect::<Vec<_>>();
        let heads = sums.len_of(Axis(1)).max(1);
        let tasks = parts.into_iter().enumerate().collect();
        plan.for_tasks(tasks, |(i, mut to): (usize, ArrayViewMut4<'_, _>)| {
            let from = sums.slice(ndarray::s![i / heads..=i / heads, i % heads..=i % heads, .., ..dims]);
            // SAFETY: the units have written all sums.
            to.zip_mut_with(&from, |to, x| *to = MaybeUninit::new(E::from_real(unsafe { x.assume_init() })));
        })?;
        Ok(())
    }
}

/// How a call is cut into tasks.
#[derive(Clone, Copy)]
struct Pieces {
    /// Batch entries and key/value heads of a task; more than one where they share a bias, whose gradient they add to in order.
    batches: usize,
    kv_heads: usize,
    /// Keys of a task.
    keys: usize,
    /// Queries that are worked on before the next ones are begun.
    chunk: usize,
    /// Several units of a task add to the same elements of a bias for all queries: they alternate after every query tile, an order that
    /// does not depend on how many queries there are at a time.
    in_turns: bool,
}

impl Pieces {
    fn new<T: Real>(plan: &Plan<'_>, biases: &[BiasTotals<T>]) -> Self {
        let d = plan.dims;
        let [batches_apart, heads_apart, keys_apart] =
            biases.iter().map(|b| b.apart(d.scores())).fold([true; 3], |all, one| std::array::from_fn(|i| all[i] && one[i]));
        let batches = match () {
            () if !batches_apart => d.batch,
            () if !biases.is_empty() => 1,
            // Short sequences: several to a task, so that the task is worth its making.
            () => (WORTH_A_THREAD / Dims { batch: 1, ..d }.work().max(1)).clamp(1, d.batch.max(1)),
        };
        let kv_heads = if heads_apart { 1 } else { d.heads_kv };
        let in_turns = batches * kv_heads > 1 && biases.iter().any(BiasTotals::shares_queries);
        let splits = d.seq_kv.div_ceil(GRADIENT_SPLIT);
        let units = d.batch.div_ceil(batches) * (d.heads_kv / kv_heads);
        let threads = plan.threads();
        if splits == 1 || threads == 1 || units >= 4 * threads || !keys_apart {
            return Self { batches, kv_heads, keys: d.seq_kv, chunk: d.seq_q, in_turns };
        }
        let (_, tile) = tile_shape(plan);
        let per_query = splits.saturating_mul(d.batch * d.heads_q * d.head_dim.max(1) * size_of::<T>());
        let chunk = (APART_BYTES / per_query / tile).max(1) * tile;
        Self { batches, kv_heads, keys: GRADIENT_SPLIT, chunk, in_turns }
    }

    /// The part of every unit, in order of batch and head; `heads` of them go with one key/value head.
    fn units<'v, T>(&self, view: ArrayViewMut4<'v, T>, heads: usize) -> impl Iterator<Item = ArrayViewMut4<'v, T>> + use<'v, T> {
        let kv_heads = self.kv_heads * heads;
        cut(view, 0, self.batches).into_iter().flat_map(move |view| cut(view, 1, kv_heads))
    }
}

/// Where the sums over queries go.
struct KeySums<'s, T> {
    dk: ArrayViewMut4<'s, MaybeUninit<T>>,
    dv: ArrayViewMut4<'s, MaybeUninit<T>>,
    biases: &'s mut [BiasTotals<T>],
}

fn run_units<E: Storage, X: Storage<Real = E::Real>>(
    given: &Given<'_, '_, E>,
    mut sums: KeySums<'_, E::Real>,
    mut dq: ArrayViewMut4<'_, MaybeUninit<X>>,
    rows: &mut RowSums<Array4<f64>>,
    scale: E::Real,
) -> Result<()> {
    let plan = given.plan;
    let d = plan.dims;
    let pieces = Pieces::new(plan, sums.biases);
    if pieces.keys == d.seq_kv {
        return run_tasks(given, pieces, 0..d.seq_q, &mut sums, vec![(dq, of_queries(rows, 0..d.seq_q))], scale);
    }
    let shape = |last: usize| [d.batch, d.heads_q, pieces.chunk.min(d.seq_q), last];
    let mut apart = (0..d.seq_kv.div_ceil(pieces.keys))
        .map(|_| Ok((uninit::<E::Real>("dq of a split", shape(d.head_dim))?, row_sums([rows[0].is_some(), false], shape(1))?)))
        .collect::<Result<Vec<_>>>()?;
    for first in (0..d.seq_q).step_by(pieces.chunk) {
        let queries = first..d.seq_q.min(first + pieces.chunk);
        let here = ndarray::s![.., .., ..queries.len(), ..];
        let views = apart.iter_mut().map(|(dq, rows)| (dq.slice_mut(here), of_queries(rows, 0..queries.len()))).collect();
        run_tasks(given, pieces, queries.clone(), &mut sums, views, E::Real::ONE)?;
        let to = dq.slice_mut(ndarray::s![.., .., queries.clone(), ..]);
        let q = rows[1].as_ref().map(|_| given.inputs.q.slice(ndarray::s![.., .., queries.clone(), ..]));
        let products = reduce_splits(plan, apart.iter().map(|(dq, _)| dq.slice(here)).collect(), scale, to, q)?;
        let [squares, scales] = of_queries(rows, queries);
        squares.into_iter().for_each(|mut to| apart.iter().flat_map(|(_, [from, _])| from).for_each(|from| to += &from.slice(here)));
        scales.into_iter().for_each(|mut to| to.iter_mut().zip(&products).for_each(|(to, &product)| *to = product));
    }
    Ok(())
}

/// Some batch entries and heads, and some keys.
struct Task<'t, X, T> {
    batches: Range<usize>,
    kv_heads: Range<usize>,
    keys: Range<usize>,
    dk: ArrayViewMut4<'t, MaybeUninit<T>>,
    dv: ArrayViewMut4<'t, MaybeUninit<T>>,
    biases: Vec<BiasSums<'t, T>>,
    dq: ArrayViewMut4<'t, MaybeUninit<X>>,
    rows: RowSums<ArrayViewMut4<'t, f64>>,
}

/// dq, and the sums of rows.
type QuerySums<'s, X> = (ArrayViewMut4<'s, MaybeUninit<X>>, RowSums<ArrayViewMut4<'s, f64>>);

/// Some queries against all keys. `rows` has one entry per piece of keys: where dq and the sums of rows go.
fn run_tasks<E: Storage, X: Storage<Real = E::Real>>(
    given: &Given<'_, '_, E>,
    pieces: Pieces,
    queries: Range<usize>,
    sums: &mut KeySums<'_, E::Real>,
    rows: Vec<QuerySums<'_, X>>,
    dq_scale: E::Real,
) -> Result<()> {
    let plan = given.plan;
    let (d, group) = (plan.dims, plan.dims.group());
    let by_keys = |view| -> Vec<_> { pieces.units(view, 1).flat_map(|unit| cut(unit, 2, pieces.keys)).collect() };
    let mut keys = by_keys(sums.dk.view_mut()).into_iter().zip(by_keys(sums.dv.view_mut()));
    let sizes = UnitSizes { batches: pieces.batches, heads: pieces.kv_heads * group, keys: pieces.keys };
    let mut biases: Vec<_> = sums.biases.iter_mut().map(|totals| totals.parts(sizes).into_iter()).collect();
    // Of every piece of keys, of every unit.
    let mut rows: Vec<_> =
        rows.into_iter().map(|(dq, sums)| (pieces.units(dq, group), sums.map(|sums| sums.map(|sums| pieces.units(sums, group))))).collect();
    let mut tasks = Vec::new();
    for batch in (0..d.batch).step_by(pieces.batches) {
        for kv_head in (0..d.heads_kv).step_by(pieces.kv_heads) {
            for ((dq, sums), first) in rows.iter_mut().zip((0..d.seq_kv).step_by(pieces.keys)) {
                let (dk, dv) = keys.next().expect("one per task");
                tasks.push(Task {
                    batches: batch..d.batch.min(batch + pieces.batches),
                    kv_heads: kv_head..kv_head + pieces.kv_heads,
                    keys: first..d.seq_kv.min(first + pieces.keys),
                    dk,
                    dv,
                    biases: biases.iter_mut().map(|parts| parts.next().expect("one per task")).collect(),
                    dq: dq.next().expect("one per unit"),
                    rows: sums.each_mut().map(|sums| sums.as_mut().and_then(Iterator::next)),
                });
            }
        }
    }
    plan.for_tasks(tasks, |task| run_task(given, pieces, task, &queries, dq_scale))?;
    Ok(())
}

/// All units of a task.
fn run_task<E: Storage, X: Storage<Real = E::Real>>(
    given: &Given<'_, '_, E>,
    pieces: Pieces,
    mut task: Task<'_, X, E::Real>,
    all_queries: &Range<usize>,
    dq_scale: E::Real,
) {
    if all_queries.start == 0 {
        task.biases.iter_mut().for_each(BiasSums::touch);
    }
    let plan = given.plan;
    let (group, first_key) = (plan.dims.group(), plan.part.key);
    // The first queries write all sums where they see all keys and rows have no padding; else they add to zeros.
    let writes = !plan.may_hide() && [plan.dims.head_dim, plan.dims.value_dim].iter().all(|&dims| dims == padded::<E::Real>(dims));
    let step = if pieces.in_turns { tile_shape(plan).1 } else { all_queries.len() };
    for start in all_queries.clone().step_by(step) {
        let (first, queries) = (start + plan.part.query == 0, start..all_queries.end.min(start + step));
        let here = queries.start - all_queries.start..queries.end - all_queries.start;
        for (b, h) in (0..task.batches.len()).flat_map(|b| (0..task.kv_heads.len()).map(move |h| (b, h))) {
            let (batch, kv_head) = (task.batches.start + b, task.kv_heads.start + h);
            let heads = h * group..(h + 1) * group;
            let [dk, dv] = [&mut task.dk, &mut task.dv].map(|sums| {
                let sums = sums.slice_mut(ndarray::s![b, h, .., ..]).into_slice().expect("whole rows");
                if first && !writes {
                    sums.fill(MaybeUninit::new(E::Real::ZERO));
                }
                sums
            });
            let rows = ndarray::s![b, heads.clone(), here.clone(), 0];
            let unit = Unit {
                given,
                batch,
                kv_head,
                place: [b, h * group],
                queries: queries.clone(),
                keys: first_key + task.keys.start..first_key + task.keys.end,
                dk,
                dv,
                initialised: !(first && writes),
                dq: task.dq.slice_mut(ndarray::s![b, heads.clone(), here.clone(), ..]),
                dq_scale,
                rows: task.rows.each_mut().map(|sums| sums.as_mut().map(|sums| sums.slice_mut(rows))),
                biases: &mut task.biases,
            };
            E::dispatch_stored(plan.level, unit);
        }
    }
}

/// `to = (apart[0] + apart[1] + ...) * scale`; returned is the product of each sum with its row of q: its gradient on the scale
fn reduce_splits<E: Storage, X: Storage<Real = E::Real>>(
    plan: &Plan<'_>,
    apart: Vec<ArrayView4<'_, MaybeUninit<E::Real>>>,
    scale: E::Real,
    mut to: ArrayViewMut4<'_, MaybeUninit<X>>,
    q: Option<ArrayView4<'_, E>>,
) -> Result<Vec<f64>> {
    let heads = cut(to.view_mut(), 0, 1).into_iter().enumerate();
    let heads = heads.flat_map(|(b, batch)| cut(batch, 1, 1).into_iter().enumerate().map(move |(h, head)| (b, h, head))).collect();
    let products = plan.for_tasks(heads, |(b, h, mut to): (usize, usize, ArrayViewMut4<'_, _>)| {
        let mut sum = Array2::from_elem([to.len_of(Axis(2)), to.len_of(Axis(3))], E::Real::ZERO);
        for split in &apart {
            // SAFETY: the units of this split have written all of their rows.
            sum.zip_mut_with(&split.slice(ndarray::s![b, h, .., ..]), |sum, x| *sum += unsafe { x.assume_init() });
        }
        to.slice_mut(ndarray::s![0, 0, .., ..]).zip_mut_with(&sum, |to, &sum| *to = MaybeUninit::new(X::from_real(sum * scale)));
        let product =
            |(d, q): (ArrayView1<'_, E::Real>, ArrayView1<'_, E>)| d.iter().zip(q).map(|(d, q)| d.to_f64() * q.to_real().to_f64()).sum();
        let q = q.as_ref().map(|q| q.slice(ndarray::s![b, h, .., ..]));
        q.map_or(Vec::new(), |q| sum.rows().into_iter().zip(q.rows()).map(product).collect::<Vec<f64>>())
    })?;
    Ok(products.concat())
}
