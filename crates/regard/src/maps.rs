//! Pictures and comparisons of patterns that are too large to lay out: pooled heat maps, column sums, and how alike the
//! heads are. Each is a second pass over the tiles, in linear memory.

use crate::attention::Attention;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::forward::{blocks, for_tasks};
use crate::score::{KV_TILE, RowBlock, SPAN};
use crate::simd::{Lanes, Operation, Real};
use crate::weights::{BlockWeights, Denominators, TakeTile, denominators, each_weights, full_scorer};
use ndarray::{Array3, Array4, ArrayView4};
use std::ops::Range;

/// A pattern pooled into cells, each `[batch, heads_q, rows, cols]`. Cell `r` of the rows stands for the queries from
/// `r * seq_q / rows` up to the next cell's, and likewise for the keys.
#[derive(Debug, Clone)]
pub struct HeatMap<T> {
    /// Mean weight of the pairs of a cell, hidden ones counting as 0.
    pub mean: Array4<T>,
    /// Largest weight in a cell.
    pub max: Array4<T>,
}

/// How alike the heads of a batch entry are, each `[batch, heads_q, heads_q]`.
#[derive(Debug, Clone)]
pub struct HeadSimilarity {
    /// Correlation of the weights of two heads, over the pairs that either may see: 1 for equal maps, about 0 for
    /// unrelated ones. (The cosine without centring measures how sharp the maps are, not how alike.)
    pub centred_cosine: Array3<f64>,
    /// Jensen-Shannon divergence of two heads' rows in nats, averaged over the rows: 0 for equal, ln 2 for disjoint.
    pub jensen_shannon: Array3<f64>,
}

impl Attention<'_> {
    /// The pattern as a picture of at most `rows x cols` cells (never more than there are queries and keys), however
    /// long the sequence.
    ///
    /// ```
    /// let x = ndarray::Array4::<f32>::ones((1, 1, 1000, 8));
    /// let map = regard::Attention::new().causal().heat_map(&x, &x, 10, 10)?;
    /// assert_eq!(map.mean.shape(), [1, 1, 10, 10]);
    /// assert_eq!(map.mean[[0, 0, 0, 9]], 0.0);
    /// assert_eq!(map.max[[0, 0, 0, 0]], 1.0);
    /// # Ok::<(), regard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward`], and [`Error::Zero`] for no rows or columns.
    pub fn heat_map<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
        rows: usize,
        cols: usize,
    ) -> Result<HeatMap<E::Real>> {
        E::heat_map(self, q.into(), k.into(), rows, cols)
    }

    pub(crate) fn compute_heat_map<E: Element>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        rows: usize,
        cols: usize,
    ) -> Result<HeatMap<E::Real>> {
        let plan = self.plan(&q, &k, None)?;
        for (name, n) in [("rows", rows), ("cols", cols)] {
            if n == 0 {
                return Err(Error::Zero { name });
            }
        }
        let d = plan.dims;
        let (rows, cols) = (rows.min(d.seq_q), cols.min(d.seq_kv));
        let shape = [d.batch, d.heads_q, rows, cols];
        let mut sums = Array4::<f64>::zeros(shape);
        let mut max = Array4::from_elem(shape, E::Real::ZERO);
        if rows * cols == 0 {
            return Ok(HeatMap { mean: max.clone(), max });
        }
        let pooled = for_tasks(&plan, blocks(&plan), |block| {
            let scorer = full_scorer(&plan, &q, &k, block);
            let lanes = block.rows() + 64;
            let to = Pool { keys: d.seq_kv, cols, lanes, sums: vec![E::Real::ZERO; cols * lanes], max: vec![E::Real::ZERO; cols * lanes] };
            let pool = E::Real::dispatch(plan.level, BlockWeights { scorer: &scorer, to });
            pool.rows(&block, d.seq_q, rows)
        })?;
        for (block, cells) in blocks(&plan).into_iter().zip(pooled) {
            for (head, row, line) in cells {
                for (col, (sum, top)) in line.into_iter().enumerate() {
                    let at = [block.batch, head, row, col];
                    sums[at] += sum;
                    if replaces(max[at], top) {
                        max[at] = top;
                    }
                }
            }
        }
        let mean = Array4::from_shape_fn(shape, |(b, h, r, c)| {
            let area = cell(r, d.seq_q, rows).len() * cell(c, d.seq_kv, cols).len();
            E::Real::from_f64(sums[[b, h, r, c]] / area as f64)
        });
        Ok(HeatMap { mean, max })
    }

    /// How much weight each key receives from all queries, `[batch, heads_q, seq_kv]`.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn column_sums<'x, E: Element>(&self, q: impl Into<ArrayView4<'x, E>>, k: impl Into<ArrayView4<'x, E>>) -> Result<Array3<E::Real>> {
        E::column_sums(self, q.into(), k.into())
    }

    pub(crate) fn compute_column_sums<E: Element>(&self, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>) -> Result<Array3<E::Real>> {
        let plan = self.plan(&q, &k, None)?;
        let d = plan.dims;
        let blocks = blocks(&plan);
        let rows = for_tasks(&plan, blocks.clone(), |block| {
            let scorer = full_scorer(&plan, &q, &k, block);
            E::Real::dispatch(plan.level, FindDenominators { scorer: &scorer })
        })?;
        // Each task owns some keys of some heads, and goes through all of their rows in order.
        let owners: Vec<(usize, usize)> = blocks.iter().map(|b| (b.batch, b.head)).fold(Vec::new(), |mut all, b| {
            if all.last() != Some(&b) {
                all.push(b);
            }
            all
        });
        let tasks: Vec<_> = owners.into_iter().flat_map(|o| (0..d.seq_kv).step_by(SPAN).map(move |s| (o, s))).collect();
        let sums = for_tasks(&plan, tasks.clone(), |((batch, head), start)| {
            let keys = start..d.seq_kv.min(start + SPAN);
            let mine = blocks.iter().zip(&rows).filter(|(b, _)| (b.batch, b.head) == (batch, head));
            let heads = blocks.iter().find(|b| (b.batch, b.head) == (batch, head)).map_or(1, |b| b.heads);
            let mut to = Columns { first: start, queries: 0, sums: vec![vec![0.0; keys.len()]; heads] };
            for (block, denominators) in mine {
                to.queries = block.queries;
                let scorer = full_scorer(&plan, &q, &k, *block);
                E::Real::dispatch(plan.level, AddColumns { scorer: &scorer, keys: keys.clone(), denominators, to: &mut to });
            }
            to.sums
        })?;
        let mut columns = Array3::from_elem([d.batch, d.heads_q, d.seq_kv], E::Real::ZERO);
        for (((batch, head), start), sums) in tasks.into_iter().zip(sums) {
            for (h, sums) in sums.into_iter().enumerate() {
                for (i, x) in sums.into_iter().enumerate() {
                    columns[[batch, head + h, start + i]] = E::Real::from_f64(x);
                }
            }
        }
        Ok(columns)
    }

    /// How alike the heads are, for every pair of query heads.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn head_similarity<'x, E: Element>(
        &self,
        q: impl Into<ArrayView4<'x, E>>,
        k: impl Into<ArrayView4<'x, E>>,
    ) -> Result<HeadSimilarity> {
        E::head_similarity(self, q.into(), k.into())
    }

    pub(crate) fn compute_head_similarity<E: Element>(&self, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>) -> Result<HeadSimilarity> {
        let plan = self.plan(&q, &k, None)?;
        let d = plan.dims;
        let heads = d.heads_q;
        let tasks: Vec<_> = (0..d.batch).flat_map(|b| (0..d.seq_q).step_by(16).map(move |first| (b, first))).collect();
        let parts = for_tasks(&plan, tasks.clone(), |(batch, first)| {
            let queries = 16.min(d.seq_q - first);
            let mut pairs = vec![PairSums::default(); heads * heads];
            let scorers: Vec<_> =
                (0..heads).map(|head| full_scorer(&plan, &q, &k, RowBlock { batch, head, heads: 1, first, queries })).collect();
            let rows: Vec<_> = scorers.iter().map(|scorer| E::Real::dispatch(plan.level, FindDenominators { scorer })).collect();
            let mut maps = vec![0.0; heads * queries * KV_TILE];
            for start in (0..d.seq_kv).step_by(KV_TILE) {
                let keys = start..d.seq_kv.min(start + KV_TILE);
                for (head, (scorer, denominators)) in scorers.iter().zip(&rows).enumerate() {
                    let map = &mut maps[head * queries * KV_TILE..][..queries * KV_TILE];
                    // Minus one is hidden.
                    map.fill(-1.0);
                    let place = plan.place(batch, head);
                    let to = Rowwise { first: start, map, visible: &|query, key| plan.mask().visible(&place, first + query, key) };
                    E::Real::dispatch(plan.level, FillRows { scorer, keys: keys.clone(), denominators, to });
                }
                for a in 0..heads {
                    for b in a + 1..heads {
                        let of = |head: usize| &maps[head * queries * KV_TILE..][..queries * KV_TILE];
                        pairs[a * heads + b].add(of(a), of(b));
                    }
                }
            }
            pairs
        })?;
        let mut sums = vec![PairSums::default(); d.batch * heads * heads];
        for ((batch, _), pairs) in tasks.into_iter().zip(parts) {
            for (sum, part) in sums[batch * heads * heads..].iter_mut().zip(pairs) {
                sum.merge(&part);
            }
        }
        let pair = |b: usize, i: usize, j: usize| &sums[(b * heads + i.min(j)) * heads + i.max(j)];
        let shape = [d.batch, heads, heads];
        Ok(HeadSimilarity {
            centred_cosine: Array3::from_shape_fn(shape, |(b, i, j)| if i == j { 1.0 } else { pair(b, i, j).correlation() }),
            jensen_shannon: Array3::from_shape_fn(shape, |(b, i, j)| {
                if i == j { 0.0 } else { (pair(b, i, j).divergence / d.seq_q.max(1) as f64).max(0.0) }
            }),
        })
    }
}

/// The indices that a cell stands for.
fn cell(i: usize, len: usize, cells: usize) -> Range<usize> {
    let bound = |i: usize| (i as u128 * len as u128).div_ceil(cells as u128) as usize;
    bound(i)..bound(i + 1)
}

/// The cell that an index belongs to.
fn cell_of(index: usize, len: usize, cells: usize) -> usize {
    (index as u128 * cells as u128 / len as u128) as usize
}

/// A head, a row of its cells, and the sum and maximum of each cell.
type CellRow<T> = (usize, usize, Vec<(f64, T)>);

/// Is `new` the maximum of the two? NaN counts as one, so that it shows.
fn replaces<T: Real>(old: T, new: T) -> bool {
    old < new || new.to_f64().is_nan()
}

/// Sums and maxima over the keys of each column cell, one lane per row: `[col][lane]`.
struct Pool<T> {
    keys: usize,
    cols: usize,
    lanes: usize,
    sums: Vec<T>,
    max: Vec<T>,
}

impl<T: Real> Pool<T> {
    /// Pool the rows as well: (head, cell row, (sum, max) of each column), for the cell rows that the block touches.
    fn rows(self, block: &RowBlock, seq_q: usize, rows: usize) -> Vec<CellRow<T>> {
        let mut cells: Vec<CellRow<T>> = Vec::new();
        for r in 0..block.rows() {
            let (head, query) = block.row(r);
            let row = cell_of(query, seq_q, rows);
            if cells.last().is_none_or(|c| (c.0, c.1) != (head, row)) {
                cells.push((head, row, vec![(0.0, T::ZERO); self.cols]));
            }
            if let Some((_, _, line)) = cells.last_mut() {
                for (col, (sum, max)) in line.iter_mut().enumerate() {
                    let at = col * self.lanes + r;
                    *sum += self.sums[at].to_f64();
                    if replaces(*max, self.max[at]) {
                        *max = self.max[at];
                    }
                }
            }
        }
        cells
    }
}

impl<T: Real> TakeTile<T> for Pool<T> {
    fn take<S: Lanes<T = T>>(&mut self, simd: S, panel: &Range<usize>, keys: &Range<usize>, width: usize, values: &mut [T]) {
        let mut key = keys.start;
        while key < keys.end {
            let col = cell_of(key, self.keys, self.cols);
            let end = cell(col, self.keys, self.cols).end.min(keys.end);
            let at = col * self.lanes + panel.start;
            let values = &values[(key - keys.start) * width..(end - keys.start) * width];
            simd.call(PoolKeys { values, sums: &mut self.sums[at..at + width], max: &mut self.max[at..at + width] });
            key = end;
        }
    }
}

/// Add up some keys, lane by lane.
struct PoolKeys<'k, T> {
    values: &'k [T],
    sums: &'k mut [T],
    max: &'k mut [T],
}

impl<T: Real> Operation<T> for PoolKeys<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { values, sums, max } = self;
        let width = sums.len();
        assert!(max.len() == width && width % S::LANES == 0);
        for n in (0..width).step_by(S::LANES) {
            // SAFETY: n is the start of a whole vector of sums, max and each line, which are equally long.
            unsafe {
                let (mut sum, mut top) = (simd.load(sums.as_ptr().add(n)), simd.load(max.as_ptr().add(n)));
                for line in values.chunks_exact(width) {
                    let w = simd.load(line.as_ptr().add(n));
                    sum = simd.add(sum, w);
                    top = simd.max(top, w);
                }
                simd.store(sums.as_mut_ptr().add(n), sum);
                simd.store(max.as_mut_ptr().add(n), top);
            }
        }
    }
}

struct FindDenominators<'s, 'a, E: Element> {
    scorer: &'s crate::score::Scorer<'a, E>,
}

impl<E: Element> Operation<E::Real> for FindDenominators<'_, '_, E> {
    type Output = Denominators<E::Real>;
    fn run<S: Lanes<T = E::Real>>(self, simd: S) -> Self::Output {
        denominators(simd, self.scorer)
    }
}

/// Sums over the rows, one per key and head.
struct Columns {
    first: usize,
    queries: usize,
    sums: Vec<Vec<f64>>,
}

impl<T: Real> TakeTile<T> for &mut Columns {
    fn take<S: Lanes<T = T>>(&mut self, _: S, panel: &Range<usize>, keys: &Range<usize>, width: usize, values: &mut [T]) {
        for (key, line) in keys.clone().zip(values.chunks_exact(width)) {
            for (r, &w) in panel.clone().zip(line) {
                self.sums[r / self.queries][key - self.first] += w.to_f64();
            }
        }
    }
}

struct AddColumns<'s, 'a, E: Element> {
    scorer: &'s crate::score::Scorer<'a, E>,
    keys: Range<usize>,
    denominators: &'s Denominators<E::Real>,
    to: &'s mut Columns,
}

impl<E: Element> Operation<E::Real> for AddColumns<'_, '_, E> {
    type Output = ();
    fn run<S: Lanes<T = E::Real>>(mut self, simd: S) {
        each_weights(simd, self.scorer, self.keys, self.denominators, &mut self.to);
    }
}

/// Weights of one tile, `[query][key]`, hidden pairs left as they are.
struct Rowwise<'m> {
    first: usize,
    map: &'m mut [f64],
    visible: &'m dyn Fn(usize, usize) -> bool,
}

impl<T: Real> TakeTile<T> for Rowwise<'_> {
    fn take<S: Lanes<T = T>>(&mut self, _: S, panel: &Range<usize>, keys: &Range<usize>, width: usize, values: &mut [T]) {
        for (key, line) in keys.clone().zip(values.chunks_exact(width)) {
            for (r, &w) in panel.clone().zip(line) {
                if (self.visible)(r, key) {
                    self.map[r * KV_TILE + key - self.first] = w.to_f64();
                }
            }
        }
    }
}

struct FillRows<'s, 'a, E: Element> {
    scorer: &'s crate::score::Scorer<'a, E>,
    keys: Range<usize>,
    denominators: &'s Denominators<E::Real>,
    to: Rowwise<'s>,
}

impl<E: Element> Operation<E::Real> for FillRows<'_, '_, E> {
    type Output = ();
    fn run<S: Lanes<T = E::Real>>(mut self, simd: S) {
        each_weights(simd, self.scorer, self.keys, self.denominators, &mut self.to);
    }
}

/// Running sums over the pairs of two heads.
#[derive(Debug, Clone, Default)]
struct PairSums {
    count: f64,
    a: f64,
    b: f64,
    aa: f64,
    bb: f64,
    ab: f64,
    /// Sum of the rows' Jensen-Shannon divergences.
    divergence: f64,
}

impl PairSums {
    fn add(&mut self, a: &[f64], b: &[f64]) {
        // x ln x, 0 at 0
        let xlnx = |x: f64| if x > 0.0 { x * x.ln() } else { 0.0 };
        for (&a, &b) in a.iter().zip(b) {
            if a < 0.0 && b < 0.0 {
                continue;
            }
            let (a, b) = (a.max(0.0), b.max(0.0));
            self.count += 1.0;
            self.a += a;
            self.b += b;
            self.aa += a * a;
            self.bb += b * b;
            self.ab += a * b;
            self.divergence += (xlnx(a) + xlnx(b)) / 2.0 - xlnx(f64::midpoint(a, b));
        }
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.a += other.a;
        self.b += other.b;
        self.aa += other.aa;
        self.bb += other.bb;
        self.ab += other.ab;
        self.divergence += other.divergence;
    }

    /// 0 where one of the maps does not vary.
    fn correlation(&self) -> f64 {
        let n = self.count.max(1.0);
        let (va, vb) = (self.aa - self.a * self.a / n, self.bb - self.b * self.b / n);
        // What rounding leaves of a constant map is no variation.
        let flat = |variance: f64, squares: f64| variance <= 1e-13 * squares;
        if flat(va, self.aa) || flat(vb, self.bb) { 0.0 } else { (self.ab - self.a * self.b / n) / (va * vb).sqrt() }
    }
}
