//! The forward pass: tiles of queries against tiles of keys, with the running softmax in between.
//!
//! ```text
//! for a block of up to Q_TILE query rows            a task; blocks are shared out over the threads
//!   for each span of keys                           its own running state; merged in order at the end
//!     for each tile of KV_TILE keys that any row sees
//!       for each panel (one or two vectors of rows)
//!         scores = K-tile . q, scale, softcap, bias, mask      score.rs, product.rs
//!         p, row_max, row_sum                                  online_softmax.rs
//!         acc = acc * alpha + V-tile^T . p                     product.rs
//!   out = acc / row_sum, lse = row_max + ln(row_sum)
//! ```
//!
//! What a row's bits depend on is the row: the order of every sum is fixed by the key numbers, so neither threads, nor the
//! batch, nor the other rows of the call change them.

use crate::attention::{Attention, Plan};
use crate::block::{Ends, Goal, Pass, Summaries, lse_of};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::rows::Rows;
use crate::score::{Cutoffs, Q_TILE, RowBlock, SPAN, Scorer};
use crate::simd::Real;
use crate::stats::{RowStats, StatsOptions};
use crate::{threads, top_k};
use ndarray::{Array3, Array4, ArrayView2, ArrayView3, ArrayView4, ArrayViewMut3, ArrayViewMut4, Axis};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// The result of attention.
#[derive(Debug, Clone)]
pub struct Forward<E: Element> {
    /// `[batch, heads_q, seq_q, value_dim]`.
    pub out: Array4<E>,
    /// `ln(sum(exp(scores)))` of each row, `[batch, heads_q, seq_q]`; `-inf` for a row without any visible key.
    pub lse: Array3<E::Real>,
}

/// What a forward pass keeps for the backward pass: linear in memory.
///
/// `row_max` and `row_sum` are kept apart: their log-sum-exp would round the sum away where scores are large, and the weights that
/// the backward pass makes of it would be off.
#[derive(Debug, Clone)]
pub struct Saved<E: Element> {
    /// The result, `[batch, heads_q, seq_q, value_dim]`. In half precision it is rounded, and gradients are off by so much.
    pub out: Array4<E>,
    /// The highest score of each row (a sink logit included), `[batch, heads_q, seq_q]`; `-inf` for a row without any visible key.
    pub row_max: Array3<E::Real>,
    /// `sum(exp(scores - row_max))` of each row; 0 for a row without any visible key.
    pub row_sum: Array3<E::Real>,
}

impl<E: Element> Saved<E> {
    /// `ln(sum(exp(scores)))` of each row, `[batch, heads_q, seq_q]`; `-inf` for a row without any visible key.
    pub fn lse(&self) -> Array3<E::Real> {
        ndarray::Zip::from(&self.row_max).and(&self.row_sum).map_collect(|&max, &sum| lse_of(max, sum))
    }
}

/// [`Saved`], kept by somebody else: what the door to another language hands back.
#[derive(Debug, Clone, Copy)]
pub struct SavedView<'a, E: Element> {
    /// See [`Saved::out`].
    pub out: ArrayView4<'a, E>,
    /// See [`Saved::row_max`].
    pub row_max: ArrayView3<'a, E::Real>,
    /// See [`Saved::row_sum`].
    pub row_sum: ArrayView3<'a, E::Real>,
}

impl<E: Element> SavedView<'_, E> {
    /// The same for a shorter time; the compiler does not see by itself that this is allowed.
    pub(crate) fn reborrow(&self) -> SavedView<'_, E> {
        SavedView { out: self.out.view(), row_max: self.row_max.view(), row_sum: self.row_sum.view() }
    }
}

impl<'a, E: Element> From<&'a Saved<E>> for SavedView<'a, E> {
    fn from(saved: &'a Saved<E>) -> Self {
        Self { out: saved.out.view(), row_max: saved.row_max.view(), row_sum: saved.row_sum.view() }
    }
}

impl Attention<'_> {
    /// Attend. q is `[batch, heads_q, seq_q, head_dim]`, k `[batch, heads_kv, seq_kv, head_dim]`,
    /// v `[batch, heads_kv, seq_kv, value_dim]`, with any strides; query head `h` reads key/value head
    /// `h / (heads_q / heads_kv)`.
    ///
    /// ```
    /// let x = ndarray::Array4::<f32>::ones((1, 2, 5, 8));
    /// let result = regard::Attention::new().causal().forward(&x, &x, &x)?;
    /// assert_eq!(result.out, x);
    /// # Ok::<(), regard::Error>(())
    /// ```
    ///
    /// # Errors
    /// When shapes or options do not fit, before anything is computed.
    pub fn forward<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
        v: impl Into<ArrayView4<'x, E>>,
    ) -> Result<Forward<E>> {
        let (q, k, v) = (q.into(), k.into(), v.into());
        let plan = self.plan(&q, &k, Some(&v))?;
        let (out, lse, _) = allocate_and_run(&plan, q, k, v, None)?;
        Ok(Forward { out, lse })
    }

    /// Attend, and keep what [`Attention::backward`] needs.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn forward_saved<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
        v: impl Into<ArrayView4<'x, E>>,
    ) -> Result<Saved<E>> {
        let (q, k, v) = (q.into(), k.into(), v.into());
        let plan = self.plan(&q, &k, Some(&v))?;
        let [b, h, n, _] = out_shape(&plan);
        let (mut row_max, mut row_sum) = (Array3::from_elem([b, h, n], E::Real::HIDDEN), Array3::from_elem([b, h, n], E::Real::ZERO));
        let mut out = uninit_out(&plan)?;
        E::run(&plan, q, k, v, out.view_mut(), EndsOf::Apart(row_max.view_mut(), row_sum.view_mut()), None)?;
        // SAFETY: `run` succeeded, so every row of every block was written, and the blocks are all of `out`.
        Ok(Saved { out: unsafe { out.assume_init() }, row_max, row_sum })
    }

    /// The same into buffers of the caller's; `lse` may be left out.
    ///
    /// # Errors
    /// As [`Attention::forward`], and when a buffer has another shape than the result; it is then untouched.
    pub fn forward_into<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
        v: impl Into<ArrayView4<'x, E>>,
        mut out: ArrayViewMut4<'_, E>,
        lse: Option<ndarray::ArrayViewMut3<'_, E::Real>>,
    ) -> Result<()> {
        let (q, k, v) = (q.into(), k.into(), v.into());
        let plan = self.plan(&q, &k, Some(&v))?;
        let expected = out_shape(&plan);
        check_shape("out", out.shape(), &expected)?;
        // SAFETY: a place for an element is a place that may be uninitialised, and only elements are written to it; the view
        // is exclusive for as long as `out` is borrowed.
        let out = unsafe { out.raw_view_mut().cast::<MaybeUninit<E>>().deref_into_view_mut() };
        match lse {
            Some(lse) => {
                check_shape("lse", lse.shape(), &expected[..3])?;
                E::run(&plan, q, k, v, out, EndsOf::Lse(lse), None)?;
            }
            None => {
                let mut lse = Array3::from_elem([expected[0], expected[1], expected[2]], E::Real::HIDDEN);
                E::run(&plan, q, k, v, out, EndsOf::Lse(lse.view_mut()), None)?;
            }
        }
        Ok(())
    }

    /// Attend, and say what the attention did, row by row: see [`crate::stats`]. Linear memory.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn forward_with_stats<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
        v: impl Into<ArrayView4<'x, E>>,
        options: StatsOptions,
    ) -> Result<(Forward<E>, RowStats<E::Real>)> {
        let (q, k, v) = (q.into(), k.into(), v.into());
        let plan = self.plan(&q, &k, Some(&v))?;
        let (out, lse, rows) = allocate_and_run(&plan, q, k, v, Some(options))?;
        let [b, h, n, _] = out_shape(&plan);
        let mut stats = RowStats::zeros([b, h, n], options.top_keys);
        let mut places = stats.places();
        for (block, rows) in rows {
            for (r, summary) in rows.iter().enumerate() {
                if let Some(summary) = summary {
                    let (head, query) = block.row(r);
                    places.set((block.batch * h + head) * n + query, summary);
                }
            }
        }
        Ok((Forward { out, lse }, stats))
    }
}

fn out_shape(plan: &Plan<'_>) -> [usize; 4] {
    let d = &plan.dims;
    [d.batch, d.heads_q, d.seq_q, d.value_dim]
}

pub(crate) fn check_shape(operand: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::OutputShape { operand, got: got.to_vec(), expected: expected.to_vec() }) }
}

type Results<E> = (Array4<E>, Array3<<E as Element>::Real>, Vec<(RowBlock, Summaries)>);

fn allocate_and_run<E: Element>(
    plan: &Plan<'_>,
    q: ArrayView4<'_, E>,
    k: ArrayView4<'_, E>,
    v: ArrayView4<'_, E>,
    stats: Option<StatsOptions>,
) -> Result<Results<E>> {
    let [b, h, n, _] = out_shape(plan);
    let mut out = uninit_out(plan)?;
    let mut lse = Array3::from_elem([b, h, n], E::Real::HIDDEN);
    let rows = E::run(plan, q, k, v, out.view_mut(), EndsOf::Lse(lse.view_mut()), stats)?;
    // SAFETY: `run` succeeded, so every row of every block was written, and the blocks are all of `out`.
    Ok((unsafe { out.assume_init() }, lse, rows))
}

fn uninit_out<E: Element>(plan: &Plan<'_>) -> Result<Array4<MaybeUninit<E>>> {
    let shape = out_shape(plan);
    checked_len("out", shape)?;
    Ok(Array4::uninit(shape))
}

/// Where the softmax denominators of a call go, `[batch, heads_q, seq_q]`: see [`Ends`].
pub(crate) enum EndsOf<'g, T> {
    Lse(ArrayViewMut3<'g, T>),
    Apart(ArrayViewMut3<'g, T>, ArrayViewMut3<'g, T>),
}

impl<'g, T: Real> EndsOf<'g, T> {
    /// One per batch entry.
    fn by_batch(&mut self) -> Vec<Ends<'_, T>> {
        match self {
            Self::Lse(lse) => lse.outer_iter_mut().map(Ends::Lse).collect(),
            Self::Apart(max, sum) => max.outer_iter_mut().zip(sum.outer_iter_mut()).map(|(max, sum)| Ends::Apart(max, sum)).collect(),
        }
    }

    /// Nothing was seen.
    fn fill_empty(&mut self) {
        match self {
            Self::Lse(lse) => lse.fill(T::HIDDEN),
            Self::Apart(max, sum) => {
                max.fill(T::HIDDEN);
                sum.fill(T::ZERO);
            }
        }
    }
}

/// The number of elements, if memory can be addressed for them.
pub(crate) fn checked_len(what: &'static str, shape: [usize; 4]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .filter(|&n| n <= isize::MAX as usize / 8)
        .ok_or(Error::TooLarge { what, shape: crate::error::Shape4(shape) })
}

/// One task: a block of rows, with the part of the results that is its own.
struct Task<'t, E: Element> {
    block: RowBlock,
    out: ArrayViewMut3<'t, MaybeUninit<E>>,
    ends: Ends<'t, E::Real>,
}

/// Cut the rows of a call into blocks. Neighbouring heads that read the same keys share a block where queries are few.
pub(crate) fn block_shape(plan: &Plan<'_>) -> (usize, usize) {
    let (n, group) = (plan.dims.seq_q, plan.dims.group());
    let fit = (Q_TILE / n.max(1)).clamp(1, group.max(1));
    let heads = if n < Q_TILE / 2 { (1..=fit).rev().find(|h| group % h == 0).unwrap_or(1) } else { 1 };
    let tiles = n.div_ceil(Q_TILE).max(1);
    (heads, n.div_ceil(tiles).next_multiple_of(16).clamp(1, n.max(1)))
}

/// All blocks of a call, in order of batch, head and query.
pub(crate) fn blocks(plan: &Plan<'_>) -> Vec<RowBlock> {
    let (heads, queries) = block_shape(plan);
    let d = plan.dims;
    let mut blocks = Vec::new();
    for batch in 0..d.batch {
        for head in (0..d.heads_q).step_by(heads) {
            for first in (0..d.seq_q).step_by(queries) {
                blocks.push(RowBlock { batch, head, heads, first, queries: queries.min(d.seq_q - first) });
            }
        }
    }
    blocks
}

/// Below so many multiply-adds the start of a thread costs more than it brings.
pub(crate) const WORTH_A_THREAD: usize = 1 << 18;

/// Run tasks, in parallel where that pays.
pub(crate) fn for_tasks<T: Send, R: Send>(plan: &Plan<'_>, tasks: Vec<T>, f: impl Fn(T) -> R + Send + Sync) -> Result<Vec<R>> {
    if tasks.len() <= 1 || plan.dims.work() < WORTH_A_THREAD || plan.threads() == Some(1) {
        return Ok(tasks.into_iter().map(f).collect());
    }
    threads::install(plan.threads(), || tasks.into_par_iter().with_max_len(1).map(f).collect())
}

/// The view of a block's queries.
pub(crate) fn block_queries<'a, E: Element>(q: &ArrayView4<'a, E>, block: &RowBlock) -> ArrayView3<'a, E> {
    let mut q = q.index_axis_move(Axis(0), block.batch);
    q.slice_axis_inplace(Axis(0), (block.head..block.head + block.heads).into());
    q.slice_axis_inplace(Axis(1), (block.first..block.first + block.queries).into());
    q
}

/// The keys (or values) that a block reads.
pub(crate) fn block_keys<'a, E: Element>(plan: &Plan<'_>, k: &ArrayView4<'a, E>, block: &RowBlock) -> ArrayView2<'a, E> {
    k.index_axis_move(Axis(0), block.batch).index_axis_move(Axis(0), block.head / plan.dims.group())
}

/// What makes the scores of a block.
pub(crate) fn block_scorer<'a, E: Element>(
    plan: &'a Plan<'a>,
    q: &ArrayView4<'a, E>,
    k: &ArrayView4<'a, E>,
    block: RowBlock,
    cutoffs: Option<Cutoffs<E::Real>>,
) -> Scorer<'a, E> {
    let scorer = Scorer::new(plan, block, block_queries(q, &block), &block_keys(plan, k, &block));
    Scorer { cutoffs, ..scorer }
}

/// Where top-k cuts the rows of a block off, if it does.
pub(crate) fn block_cutoffs<E: Element>(plan: &Plan<'_>, scorer: &Scorer<'_, E>) -> Option<Cutoffs<E::Real>> {
    plan.top_k().map(|k| E::Real::dispatch(plan.level, top_k::FindCutoffs { scorer, k }).into())
}

/// Plan made, room for the results made: compute. On success every element of `out` and `ends` has been written.
pub(crate) fn run<E: Element>(
    plan: &Plan<'_>,
    q: ArrayView4<'_, E>,
    k: ArrayView4<'_, E>,
    v: ArrayView4<'_, E>,
    mut out: ArrayViewMut4<'_, MaybeUninit<E>>,
    mut ends: EndsOf<'_, E::Real>,
    stats: Option<StatsOptions>,
) -> Result<Vec<(RowBlock, Summaries)>> {
    let d = plan.dims;
    if d.batch == 0 || d.heads_q == 0 || d.seq_q == 0 {
        return Ok(Vec::new());
    }
    if d.seq_kv == 0 && (0..d.heads_q).all(|h| plan.sink(h).is_none()) {
        out.fill(MaybeUninit::new(E::STORED_ZERO));
        ends.fill_empty();
        return Ok(Vec::new());
    }
    let (heads, queries) = block_shape(plan);
    let mut tasks = Vec::with_capacity(d.batch * (d.heads_q / heads) * d.seq_q.div_ceil(queries));
    for (batch, (out, ends)) in out.outer_iter_mut().zip(ends.by_batch()).enumerate() {
        let by_heads = heads_mut(out, ends, heads);
        for (h, (out, ends)) in by_heads.enumerate() {
            let mut first = 0;
            let (mut out, mut ends) = (out, ends);
            while first < d.seq_q {
                let count = queries.min(d.seq_q - first);
                let (out_here, out_rest) = out.split_at(Axis(1), count);
                let (ends_here, ends_rest) = ends.split_at(Axis(1), count);
                (out, ends) = (out_rest, ends_rest);
                let block = RowBlock { batch, head: h * heads, heads, first, queries: count };
                tasks.push(Task { block, out: out_here, ends: ends_here });
                first += count;
            }
        }
    }
    let scorer = |block: RowBlock, cutoffs| block_scorer(plan, &q, &k, block, cutoffs);
    let values = |block: &RowBlock| block_keys(plan, &v, block);
    let cutoffs = |block: RowBlock| block_cutoffs(plan, &scorer(block, None));

    let threads = plan.threads().unwrap_or_else(rayon::current_num_threads);
    let spans = d.seq_kv.div_ceil(SPAN);
    if spans > 1 && threads > 1 && tasks.len() < 2 * threads {
        return run_split(plan, tasks, spans, scorer, values, cutoffs, stats);
    }
    let summaries = for_tasks(plan, tasks, |task| {
        let v = Rows::new(&values(&task.block));
        let scorer = scorer(task.block, cutoffs(task.block));
        let pass = Pass { scorer: &scorer, v, stats, goal: Goal::Results(task.out, task.ends) };
        (task.block, E::Real::dispatch(plan.level, pass).1)
    })?;
    Ok(summaries)
}

/// Heads in chunks, of both results.
fn heads_mut<'t, E: Element>(
    out: ArrayViewMut3<'t, MaybeUninit<E>>,
    ends: Ends<'t, E::Real>,
    heads: usize,
) -> impl Iterator<Item = (ArrayViewMut3<'t, MaybeUninit<E>>, Ends<'t, E::Real>)> {
    let mut rest = Some((out, ends));
    std::iter::from_fn(move || {
        let (out, ends) = rest.take()?;
        if out.len_of(Axis(0)) == 0 {
            return None;
        }
        let (out, out_rest) = out.split_at(Axis(0), heads);
        let (ends, ends_rest) = ends.split_at(Axis(0), heads);
        rest = Some((out_rest, ends_rest));
        Some((out, ends))
    })
}

/// Fewer blocks than threads, but many keys: each span of keys is a task of its own; the states are merged in order.
fn run_split<'s, E: Element>(
    plan: &Plan<'_>,
    tasks: Vec<Task<'_, E>>,
    spans: usize,
    scorer: impl Fn(RowBlock, Option<Cutoffs<E::Real>>) -> Scorer<'s, E> + Send + Sync,
    values: impl Fn(&RowBlock) -> ArrayView2<'s, E> + Send + Sync,
    cutoffs: impl Fn(RowBlock) -> Option<Cutoffs<E::Real>> + Send + Sync,
    stats: Option<StatsOptions>,
) -> Result<Vec<(RowBlock, Summaries)>> {
    let found = for_tasks(plan, tasks.iter().map(|t| t.block).collect(), cutoffs)?;
    let pairs = (0..tasks.len()).flat_map(|t| (0..spans).map(move |s| (t, s))).collect();
    let states = for_tasks(plan, pairs, |(t, span): (usize, usize)| {
        let block = tasks[t].block;
        let v = Rows::new(&values(&block));
        let scorer = scorer(block, found[t].clone());
        let pass = Pass { scorer: &scorer, v, stats, goal: Goal::<E>::Span(span) };
        E::Real::dispatch(plan.level, pass).0
    })?;
    let mut states = states.into_iter();
    let tasks = tasks.into_iter().map(|t| (t, states.by_ref().take(spans).flatten().collect::<Vec<_>>())).collect();
    for_tasks(plan, tasks, |(task, states): (Task<'_, E>, Vec<_>)| {
        let scorer = scorer(task.block, None);
        let v = Rows::new(&values(&task.block));
        let pass = Pass { scorer: &scorer, v, stats, goal: Goal::Merge(states, task.out, task.ends) };
        (task.block, E::Real::dispatch(plan.level, pass).1)
    })
}
