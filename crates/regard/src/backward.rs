//! The backward pass: gradients in linear memory, the scores recomputed tile by tile.
//!
//! A *unit* of work is the query heads that share one key/value head of one batch entry, against some spans of keys: it alone adds to
//! dk and dv there (see [`crate::gradient`]). Where there are few heads, each span of keys is a unit, and its share of dq is kept apart, for a
//! chunk of queries at a time, and added up in the order of the keys.
//!
//! Every sum has a fixed order: dq over tiles of keys within a span, then over spans; dk and dv over blocks of queries; so that bits depend neither
//! on threads nor on what else is in the batch.

use crate::attention::{Attention, Dims, Plan};
use crate::bias_gradient::{BiasGradient, BiasSums, BiasTotals, Sums};
use crate::element::Element;
use crate::error::Result;
use crate::forward::{SavedView, WORTH_A_THREAD, block_cutoffs, block_scorer, block_shape, blocks, check_shape, checked_len, for_tasks};
use crate::gradient::{GRADIENT_SPAN, Inputs, Unit, padded};
use crate::gradient_kernels::RowSquares;
use crate::score::KV_TILE;
use crate::simd::{Kernel, Level, Real};
use ndarray::{Array2, Array3, Array4, ArrayView4, ArrayViewMut4, Axis};
use std::any::Any;
use std::mem::MaybeUninit;
use std::ops::Range;

/// The gradients of a loss, given its gradient on `out`.
#[derive(Debug, Clone)]
pub struct Gradients<E: Element> {
    /// On q, in its shape.
    pub dq: Array4<E>,
    /// On k, in its shape: summed over the query heads that share it.
    pub dk: Array4<E>,
    /// On v, in its shape.
    pub dv: Array4<E>,
    /// On the bias, in its own shape, if there is one.
    pub d_bias: Option<BiasGradient>,
    /// On the sink logits, one per query head, if there are any.
    pub d_sink: Option<Vec<f64>>,
}

/// What the gradients did, row by row. Norms are Euclidean.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientStats {
    /// Norm of each row of dq, `[batch, heads_q, seq_q]`.
    pub dq_rows: Array3<f64>,
    /// Norm of each row of dk, `[batch, heads_kv, seq_kv]`.
    pub dk_rows: Array3<f64>,
    /// Norm of each row of dv, `[batch, heads_kv, seq_kv]`.
    pub dv_rows: Array3<f64>,
    /// Norm of each row of the gradient on the scores as they enter the softmax, `[batch, heads_q, seq_q]`.
    pub d_scores_rows: Array3<f64>,
    /// Norm of all of dq.
    pub dq: f64,
    /// Norm of all of dk.
    pub dk: f64,
    /// Norm of all of dv.
    pub dv: f64,
}

impl GradientStats {
    /// The share of rows whose norm is below a threshold: `stats.share_below(&stats.dq_rows, 1e-8)`. NaN when there are no rows.
    pub fn share_below(rows: &Array3<f64>, threshold: f64) -> f64 {
        rows.iter().filter(|&&x| x < threshold).count() as f64 / rows.len() as f64
    }
}

impl Attention<'_> {
    /// The gradients on q, k and v (and on a bias and on sinks), given the gradient on the result. `saved` is what
    /// [`Attention::forward_saved`] returned for the same options and tensors, by reference or as a [`SavedView`]. Linear in memory.
    ///
    /// ```
    /// use ndarray::Array4;
    /// use regard::Attention;
    /// let x = Array4::from_shape_fn((1, 2, 5, 8), |(_, h, i, d)| ((h + i * d) as f64).sin());
    /// let attention = Attention::new().causal();
    /// let saved = attention.forward_saved(&x, &x, &x)?;
    /// // The loss is the sum of the result, so its gradient on the result is one everywhere.
    /// let ones = Array4::ones(saved.out.raw_dim());
    /// let gradients = attention.backward(&x, &x, &x, &saved, &ones)?;
    /// // Rows of weights sum to one: each value is handed on whole, by all the rows together.
    /// assert!((gradients.dv.sum() - ones.sum()).abs() < 1e-12);
    /// # Ok::<(), regard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward`], and when `saved` or `d_out` do not have the shape of the result.
    pub fn backward<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
        v: impl Into<ArrayView4<'x, E>>,
        saved: impl Into<SavedView<'x, E>>,
        d_out: impl Into<ArrayView4<'x, E>>,
    ) -> Result<Gradients<E>> {
        Ok(E::gradients(self, q.into(), k.into(), v.into(), saved.into(), d_out.into(), false)?.0)
    }

    /// The same, and what the gradients did: norms, row by row. Linear in memory.
    ///
    /// # Errors
    /// As [`Attention::backward`].
    pub fn backward_with_stats<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
        v: impl Into<ArrayView4<'x, E>>,
        saved: impl Into<SavedView<'x, E>>,
        d_out: impl Into<ArrayView4<'x, E>>,
    ) -> Result<(Gradients<E>, GradientStats)> {
        let (gradients, squares) = E::gradients(self, q.into(), k.into(), v.into(), saved.into(), d_out.into(), true)?;
        let level = self.chosen_level()?;
        let [(dq_rows, dq), (dk_rows, dk), (dv_rows, dv)] = [&gradients.dq, &gradients.dk, &gradients.dv].map(|x| norms(level, x));
        let d_scores_rows = squares.expect("they were asked for").mapv(|x| x.to_f64().sqrt());
        Ok((gradients, GradientStats { dq_rows, dk_rows, dv_rows, d_scores_rows, dq, dk, dv }))
    }

    pub(crate) fn compute_gradients<'x, E: Element>(
        &self,
        q: ArrayView4<'x, E>,
        k: ArrayView4<'x, E>,
        v: ArrayView4<'x, E>,
        saved: SavedView<'x, E>,
        d_out: ArrayView4<'x, E>,
        stats: bool,
    ) -> Result<WithSquares<E>> {
        let plan = self.plan(&q, &k, Some(&v))?;
        let d = plan.dims;
        let expected = [d.batch, d.heads_q, d.seq_q, d.value_dim];
        check_shape("d_out", d_out.shape(), &expected)?;
        check_shape("saved.out", saved.out.shape(), &expected)?;
        check_shape("saved.row_max", saved.row_max.shape(), &expected[..3])?;
        check_shape("saved.row_sum", saved.row_sum.shape(), &expected[..3])?;
        checked_len("dq", shape4(q.shape()))?;
        checked_len("dk", [d.batch, d.heads_kv, d.seq_kv, padded::<E::Real>(d.head_dim)])?;
        checked_len("dv", [d.batch, d.heads_kv, d.seq_kv, padded::<E::Real>(d.value_dim)])?;
        let d_sink = plan.has_sink().then(|| sink_gradient(&plan, &saved, &d_out));
        let saved = saved.reborrow();
        let mut inputs = Inputs { plan: &plan, q, k, v, d_out, saved, cutoffs: None };
        if plan.top_k().is_some() {
            let all =
                for_tasks(&plan, blocks(&plan), |block| block_cutoffs(&plan, &block_scorer(&plan, &inputs.q, &inputs.k, block, None)))?;
            inputs.cutoffs = all.into_iter().collect();
        }
        let Totals { dq, dk, dv, bias, squares } = totals(&inputs, stats)?;
        let d_bias = bias.zip(plan.bias()).map(|(totals, bias)| totals.finish(bias));
        Ok((Gradients { dq, dk: as_stored(dk, d.head_dim), dv: as_stored(dv, d.value_dim), d_bias, d_sink }, squares))
    }
}

/// Gradients, and the sums of the squares of `d_scores` over the keys, if they were asked for.
pub(crate) type WithSquares<E> = (Gradients<E>, Option<Array3<<E as Element>::Real>>);

/// Of each row, and of all.
fn norms<E: Element>(level: Level, x: &Array4<E>) -> (Array3<f64>, f64) {
    let [b, h, n, dims] = shape4(x.shape());
    let mut rows = vec![0.0; b * h * n];
    let numbers = x.as_standard_layout();
    let squares = RowSquares { rows: numbers.as_slice().expect("it is the standard layout"), dims, to: &mut rows };
    E::Real::dispatch(level, Kernel(squares));
    let whole = rows.iter().sum::<f64>().sqrt();
    rows.iter_mut().for_each(|x| *x = x.sqrt());
    (Array3::from_shape_vec([b, h, n], rows).expect("one number per row"), whole)
}

/// Padded sums as rounded elements.
fn as_stored<E: Element>(sums: Array4<E::Real>, dims: usize) -> Array4<E> {
    if sums.len_of(Axis(3)) == dims {
        let sums: Box<dyn Any> = Box::new(sums);
        // Where elements are stored as what they are computed in, the sums are the result.
        return match sums.downcast::<Array4<E>>() {
            Ok(sums) => *sums,
            Err(sums) => rounded(&sums.downcast_ref::<Array4<E::Real>>().expect("it is what it was").view()),
        };
    }
    rounded(&sums.slice(ndarray::s![.., .., .., ..dims]))
}

fn rounded<E: Element>(sums: &ArrayView4<'_, E::Real>) -> Array4<E> {
    sums.mapv(E::from_real)
}

/// Forward, a sink takes the share `exp(logit - row_max) / row_sum` and hands nothing on: its gradient is minus that share of delta.
fn sink_gradient<E: Element>(plan: &Plan<'_>, saved: &SavedView<'_, E>, d_out: &ArrayView4<'_, E>) -> Vec<f64> {
    let d = &plan.dims;
    let row = |x: &ArrayView4<'_, E>, [b, h, i]: [usize; 3]| x.slice(ndarray::s![b, h, i, ..]).mapv(|x| x.to_real().to_f64());
    let one = |at: [usize; 3], sink: f64| {
        let (max, sum) = (saved.row_max[at].to_f64(), saved.row_sum[at].to_f64());
        let delta = row(d_out, at).dot(&row(&saved.out, at));
        if sum == 0.0 || sink == f64::NEG_INFINITY { 0.0 } else { -(sink - max).exp() / sum * delta }
    };
    let mut gradient = vec![0.0; d.heads_q];
    for (h, to) in gradient.iter_mut().enumerate() {
        let sink = plan.sink(h).unwrap_or(f64::NEG_INFINITY);
        for b in 0..d.batch {
            *to += (0..d.seq_q).map(|i| one([b, h, i], sink)).sum::<f64>();
        }
    }
    gradient
}

/// Numbers of dq that are kept apart at a time, where keys are shared out over threads: 8 MiB of f32.
const APART: usize = 1 << 21;

/// The sums of a whole call.
struct Totals<E: Element> {
    dq: Array4<E>,
    dk: Array4<E::Real>,
    dv: Array4<E::Real>,
    bias: Option<BiasTotals<E::Real>>,
    squares: Option<Array3<E::Real>>,
}

/// How a call is cut into tasks.
#[derive(Clone, Copy)]
struct Pieces {
    /// Batch entries and key/value heads of a task; more than one where they share a bias, whose gradient they add to in order.
    batches: usize,
    kv_heads: usize,
    /// Spans of keys, all in all and of a task.
    spans: usize,
    spans_each: usize,
    /// Queries that are worked on before the next ones are begun.
    chunk: usize,
}

impl Pieces {
    fn new<T: Real>(plan: &Plan<'_>, bias: Option<&BiasTotals<T>>) -> Self {
        let d = plan.dims;
        let (batch_apart, heads_apart) = bias.map_or((true, true), |b| b.apart(plan));
        let batches = match bias {
            Some(_) if batch_apart => 1,
            Some(_) => d.batch,
            // Short sequences: several to a task, so that the task is worth its making.
            None => (WORTH_A_THREAD / Dims { batch: 1, ..d }.work().max(1)).clamp(1, d.batch.max(1)),
        };
        let kv_heads = if heads_apart { 1 } else { d.heads_kv };
        let spans = d.seq_kv.div_ceil(GRADIENT_SPAN);
        let units = d.batch.div_ceil(batches) * (d.heads_kv / kv_heads);
        let threads = plan.threads().unwrap_or_else(rayon::current_num_threads);
        if spans == 1 || threads == 1 || units >= 4 * threads {
            return Self { batches, kv_heads, spans, spans_each: spans, chunk: d.seq_q };
        }
        let (_, block) = block_shape(plan);
        let per_query = spans * d.batch * d.heads_q * d.head_dim.max(1);
        let chunk = (APART / per_query / block).max(1) * block;
        Self { batches, kv_heads, spans, spans_each: 1, chunk }
    }

    /// The part of every unit of work, in order of batch and head; `heads` of them go with one key/value head.
    fn units<'v, T>(&self, view: ArrayViewMut4<'v, T>, heads: usize) -> impl Iterator<Item = ArrayViewMut4<'v, T>> {
        let kv_heads = self.kv_heads * heads;
        cut(view, 0, self.batches).into_iter().flat_map(move |view| cut(view, 1, kv_heads))
    }
}

/// Pieces of so many along an axis; one piece where it has no more.
fn cut<T>(view: ArrayViewMut4<'_, T>, axis: usize, size: usize) -> Vec<ArrayViewMut4<'_, T>> {
    let (mut pieces, mut rest) = (Vec::new(), view);
    while rest.len_of(Axis(axis)) > size {
        let (piece, after) = rest.split_at(Axis(axis), size);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

fn totals<E: Element>(inputs: &Inputs<'_, E>, stats: bool) -> Result<Totals<E>> {
    let plan = inputs.plan;
    let d = plan.dims;
    let room = |dims: usize| Array4::<E::Real>::uninit([d.batch, d.heads_kv, d.seq_kv, padded::<E::Real>(dims)]);
    let (mut dk, mut dv) = (room(d.head_dim), room(d.value_dim));
    let spans = d.seq_kv.div_ceil(GRADIENT_SPAN);
    let mut bias = plan.bias().filter(|_| plan.bias_gradient()).map(|bias| BiasTotals::new(bias, plan, spans));
    let rows = [d.batch, d.heads_q, d.seq_q, 1];
    let mut squares = stats.then(|| Array4::from_elem(rows, E::Real::ZERO));
    let q_shape = shape4(inputs.q.shape());
    if d.batch == 0 || d.heads_q == 0 || d.seq_q == 0 || d.seq_kv == 0 {
        let squares = squares.map(|s| s.remove_axis(Axis(3)));
        let zeros = |x: Array4<MaybeUninit<E::Real>>| Array4::from_elem(x.raw_dim(), E::Real::ZERO);
        return Ok(Totals { dq: Array4::from_elem(q_shape, E::STORED_ZERO), dk: zeros(dk), dv: zeros(dv), bias, squares });
    }
    let pieces = Pieces::new(plan, bias.as_ref());
    let scale = E::Real::from_f64(plan.scale);
    let mut dq = Array4::<E>::uninit(q_shape);
    let mut sums = KeySums { dk: dk.view_mut(), dv: dv.view_mut(), bias: bias.as_mut() };
    if pieces.spans_each == pieces.spans {
        let squares = squares.as_mut().map(|s| s.view_mut());
        run_tasks(inputs, pieces, 0..d.seq_q, &mut sums, vec![(dq.view_mut(), squares)], scale)?;
    } else {
        let shape = |last: usize| [d.batch, d.heads_q, pieces.chunk.min(d.seq_q), last];
        let mut apart: Vec<_> = (0..pieces.spans)
            .map(|_| (Array4::<E::Real>::uninit(shape(d.head_dim)), stats.then(|| Array4::from_elem(shape(1), E::Real::ZERO))))
            .collect();
        for first in (0..d.seq_q).step_by(pieces.chunk) {
            let queries = first..d.seq_q.min(first + pieces.chunk);
            let here = ndarray::s![.., .., ..queries.len(), ..];
            let views = apart.iter_mut().map(|(dq, squares)| (dq.slice_mut(here), squares.as_mut().map(|s| s.slice_mut(here)))).collect();
            run_tasks(inputs, pieces, queries.clone(), &mut sums, views, E::Real::ONE)?;
            let to = ndarray::s![.., .., queries.clone(), ..];
            add_up(plan, apart.iter().map(|(dq, _)| dq.slice(here)).collect(), scale, dq.slice_mut(to))?;
            if let Some(squares) = &mut squares {
                let mut to = squares.slice_mut(to);
                apart.iter().filter_map(|(_, s)| s.as_ref()).for_each(|s| to.zip_mut_with(&s.slice(here), |t, &x| *t += x));
            }
        }
    }
    let squares = squares.map(|s| s.remove_axis(Axis(3)));
    // SAFETY: every unit writes all of its rows, and the units (or `add_up`, chunk after chunk) are all of dq. For the first chunk of
    // queries every unit begins its part of dk and dv with zeros, or with sums for every key; and the units are all of them.
    Ok(unsafe { Totals { dq: dq.assume_init(), dk: dk.assume_init(), dv: dv.assume_init(), bias, squares } })
}

fn shape4(shape: &[usize]) -> [usize; 4] {
    [shape[0], shape[1], shape[2], shape[3]]
}

/// Where the sums over queries go.
struct KeySums<'s, T> {
    dk: ArrayViewMut4<'s, MaybeUninit<T>>,
    dv: ArrayViewMut4<'s, MaybeUninit<T>>,
    bias: Option<&'s mut BiasTotals<T>>,
}

/// Where the sums over keys go: dq and the squares of `d_scores`, of some queries.
type RowSums<'s, X, T> = (ArrayViewMut4<'s, MaybeUninit<X>>, Option<ArrayViewMut4<'s, T>>);

/// Some batch entries and heads, and some spans of keys.
struct Task<'t, X, T> {
    batches: Range<usize>,
    kv_heads: Range<usize>,
    spans: Range<usize>,
    dk: ArrayViewMut4<'t, MaybeUninit<T>>,
    dv: ArrayViewMut4<'t, MaybeUninit<T>>,
    bias: Option<BiasSums<'t, T>>,
    rows: RowSums<'t, X, T>,
}

/// Some queries against all keys. `rows` has one entry per piece of spans.
fn run_tasks<E: Element, X: Element<Real = E::Real>>(
    inputs: &Inputs<'_, E>,
    pieces: Pieces,
    queries: Range<usize>,
    sums: &mut KeySums<'_, E::Real>,
    rows: Vec<RowSums<'_, X, E::Real>>,
    dq_scale: E::Real,
) -> Result<()> {
    let plan = inputs.plan;
    let (d, group) = (plan.dims, plan.dims.group());
    let keys = pieces.spans_each * GRADIENT_SPAN;
    let by_span = |view| -> Vec<_> { pieces.units(view, 1).map(|unit| cut(unit, 2, keys)).collect() };
    let (dk, dv) = (by_span(sums.dk.view_mut()), by_span(sums.dv.view_mut()));
    let mut bias = bias_pieces(plan, pieces, sums.bias.as_deref_mut());
    // Of every piece of spans, of every unit.
    let mut rows: Vec<_> =
        rows.into_iter().map(|(dq, squares)| (pieces.units(dq, group), squares.map(|squares| pieces.units(squares, group)))).collect();
    let mut tasks = Vec::new();
    let mut keys = dk.into_iter().zip(dv);
    for batch in (0..d.batch).step_by(pieces.batches) {
        for kv_head in (0..d.heads_kv).step_by(pieces.kv_heads) {
            let (dk, dv) = keys.next().expect("one per unit");
            for (piece, (dk, dv)) in dk.into_iter().zip(dv).enumerate() {
                let (dq, squares) = &mut rows[piece];
                let rows = (dq.next().expect("one per unit"), squares.as_mut().map(|s| s.next().expect("one per unit")));
                let span = piece * pieces.spans_each;
                let bias =
                    bias.as_mut().map(|all| BiasSums { sums: all.next().expect("one per task"), batch, head: kv_head * group, span });
                let batches = batch..d.batch.min(batch + pieces.batches);
                let kv_heads = kv_head..kv_head + pieces.kv_heads;
                tasks.push(Task { batches, kv_heads, spans: span..pieces.spans.min(span + pieces.spans_each), dk, dv, bias, rows });
            }
        }
    }
    for_tasks(plan, tasks, |task| run_task(inputs, task, &queries, dq_scale))?;
    Ok(())
}

/// The part of a bias's gradient that each task adds to, in the order of the tasks.
fn bias_pieces<'s, T: Real>(
    plan: &Plan<'_>,
    pieces: Pieces,
    totals: Option<&'s mut BiasTotals<T>>,
) -> Option<std::vec::IntoIter<Sums<'s, T>>> {
    let group = plan.dims.group();
    let all: Vec<_> = match totals? {
        BiasTotals::Dense { sums, per_key } => {
            let size = pieces.spans_each * if *per_key { GRADIENT_SPAN } else { 1 };
            let units = pieces.units(sums.view_mut(), group);
            units.flat_map(|unit| cut(unit, 3, size)).map(|view| Sums::Dense { view, per_key: *per_key }).collect()
        }
        BiasTotals::Table(sums) => {
            pieces.units(sums.view_mut(), group).flat_map(|unit| cut(unit, 2, pieces.spans_each)).map(Sums::Table).collect()
        }
    };
    Some(all.into_iter())
}

fn run_task<E: Element, X: Element<Real = E::Real>>(
    inputs: &Inputs<'_, E>,
    mut task: Task<'_, X, E::Real>,
    queries: &Range<usize>,
    dq_scale: E::Real,
) {
    let plan = inputs.plan;
    if queries.start == 0
        && let Some(BiasSums { sums: Sums::Dense { view, .. }, .. }) = &mut task.bias
    {
        // It is zero. But memory that was never written to is given twice, when it is first read and when it is first written.
        view.fill(E::Real::ZERO);
    }
    // Where several units add to the same numbers of a bias for all queries, they take turns after every block of queries: an order that does
    // not depend on how many queries there are at a time.
    let several = task.batches.len() * task.kv_heads.len() > 1;
    let in_turns = several && matches!(&task.bias, Some(BiasSums { sums: Sums::Dense { view, .. }, .. }) if view.len_of(Axis(2)) == 1);
    let step = if in_turns { block_shape(plan).1 } else { queries.len() };
    for first in queries.clone().step_by(step) {
        run_units(inputs, &mut task, first..queries.end.min(first + step), queries.start, dq_scale);
    }
}

/// All units of a task, for some of the task's queries, which start with `start`.
fn run_units<E: Element, X: Element<Real = E::Real>>(
    inputs: &Inputs<'_, E>,
    task: &mut Task<'_, X, E::Real>,
    queries: Range<usize>,
    start: usize,
    dq_scale: E::Real,
) {
    let plan = inputs.plan;
    let group = plan.dims.group();
    let first = queries.start == 0;
    // The first queries write all sums where they see all keys and rows have no padding; else they add to zeros.
    let writes = !plan.may_hide() && [plan.dims.head_dim, plan.dims.value_dim].iter().all(|&dims| dims == padded::<E::Real>(dims));
    let here = queries.start - start..queries.end - start;
    for (b, batch) in task.batches.clone().enumerate() {
        for (h, kv_head) in task.kv_heads.clone().enumerate() {
            let heads = h * group..(h + 1) * group;
            let [dk, dv] = [&mut task.dk, &mut task.dv].map(|sums| {
                let sums = sums.slice_mut(ndarray::s![b, h, .., ..]).into_slice().expect("whole rows");
                if first && !writes {
                    sums.fill(MaybeUninit::new(E::Real::ZERO));
                }
                sums
            });
            let (dq, squares) = &mut task.rows;
            let unit = Unit {
                inputs,
                batch,
                kv_head,
                queries: queries.clone(),
                spans: task.spans.clone(),
                dk,
                dv,
                begun: !(first && writes),
                dq: dq.slice_mut(ndarray::s![b, heads.clone(), here.clone(), ..]),
                dq_scale,
                squares: squares.as_mut().map(|s| s.slice_mut(ndarray::s![b, heads, here.clone(), 0])),
                bias: task.bias.as_mut(),
                finite_keys: vec![None; task.spans.len() * GRADIENT_SPAN.div_ceil(KV_TILE)],
            };
            E::Real::dispatch(plan.level, unit);
        }
    }
}

/// `to = (apart[0] + apart[1] + ...) * scale`
fn add_up<E: Element>(
    plan: &Plan<'_>,
    apart: Vec<ArrayView4<'_, MaybeUninit<E::Real>>>,
    scale: E::Real,
    mut to: ArrayViewMut4<'_, MaybeUninit<E>>,
) -> Result<()> {
    let heads = cut(to.view_mut(), 0, 1).into_iter().enumerate();
    let heads = heads.flat_map(|(b, batch)| cut(batch, 1, 1).into_iter().enumerate().map(move |(h, head)| (b, h, head))).collect();
    for_tasks(plan, heads, |(b, h, mut to): (usize, usize, ArrayViewMut4<'_, _>)| {
        let mut sum = Array2::from_elem([to.len_of(Axis(2)), to.len_of(Axis(3))], E::Real::ZERO);
        for span in &apart {
            // SAFETY: the units of this span have written all of their rows.
            sum.zip_mut_with(&span.slice(ndarray::s![b, h, .., ..]), |sum, x| *sum += unsafe { x.assume_init() });
        }
        to.slice_mut(ndarray::s![0, 0, .., ..]).zip_mut_with(&sum, |to, &sum| *to = MaybeUninit::new(E::from_real(sum * scale)));
    })?;
    Ok(())
}
