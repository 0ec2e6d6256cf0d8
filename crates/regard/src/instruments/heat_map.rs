//! Heat maps: weights pooled into cells, in linear memory.
//!
//! ```text
//! each query tile   keys in order: sums of a column of cells, one to a row; after its last key, the rows that share a cell are added
//! the map           tiles in order: what each has in a cell is added
//! ```

use super::weights::{Consumer, each_weight};
use super::{Rectangle, SoftmaxDenominators};
use crate::arrays::filled;
use crate::error::{Error, Result};
use crate::mainloop::scores::Scorer;
use crate::mainloop::tiling::{KV_TILE, MAX_PANEL, Need, QueryTile, query_tiles};
use crate::plan::{Plan, Progress};
use ndarray::{Array4, ArrayView4};
use regard_simd::{Kernel, Real, Simd, Storage};
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

/// Some rows of the cells of a map, as they are added up, each `[batch, heads_q, rows, cols]`.
#[derive(Debug, Clone)]
pub struct HeatMapCells<T> {
    /// Which row of the map is the first one.
    pub first_row: usize,
    /// Sums of weights.
    pub sums: Array4<f64>,
    /// Largest weights.
    pub max: Array4<T>,
}

impl<T: Real> HeatMapCells<T> {
    /// Nothing yet, of rows from the first one on.
    ///
    /// # Errors
    /// [`Error::TooLarge`] and [`Error::OutOfMemory`].
    pub fn new(first_row: usize, shape: [usize; 4]) -> Result<Self> {
        Ok(Self { first_row, sums: filled("a heat map", shape, 0.0)?, max: filled("a heat map", shape, T::ZERO)? })
    }

    /// The range of queries (or keys) of a cell, for an axis of `len` elements in `cells` cells.
    pub fn range(cell: usize, len: usize, cells: usize) -> Range<usize> {
        let bound = |i: usize| (i as u128 * len as u128).div_ceil(cells as u128) as usize;
        bound(cell)..bound(cell + 1)
    }

    /// The cell that a query or a key belongs to.
    pub fn of(index: usize, len: usize, cells: usize) -> usize {
        (index as u128 * cells as u128 / len as u128) as usize
    }

    /// Add the cells of some queries after their last keys. Queries come in order.
    ///
    /// # Errors
    /// [`Error::PieceOrder`] before the last piece of keys.
    pub fn add(&mut self, queries: &HeatMapState<T>) -> Result<()> {
        if let Progress { next: Some(next), finished: false } = queries.progress {
            return Err(Error::PieceOrder { start: next.whole[3], end: next.whole[3], next: next.key, len: next.whole[3] });
        }
        self.add_tiles(&queries.tiles);
        Ok(())
    }

    fn add_tiles(&mut self, tiles: &[TileCells<T>]) {
        for CellRow { at: [batch, head, row], cells, .. } in tiles.iter().flat_map(|tile| &tile.rows) {
            for (col, &(sum, top)) in cells.iter().enumerate() {
                let at = [*batch, *head, row - self.first_row, col];
                self.sums[at] += sum;
                if self.max[at] < top {
                    self.max[at] = top;
                }
            }
        }
    }

    /// The finished map of `seq_q` queries and `seq_kv` keys.
    pub fn finish(self, [seq_q, seq_kv]: [usize; 2]) -> HeatMap<T> {
        let Self { sums, mut max, .. } = self;
        let (_, _, rows, cols) = sums.dim();
        let mean = Array4::from_shape_fn(sums.raw_dim(), |(b, h, r, c)| {
            let area = Self::range(r, seq_q, rows).len() * Self::range(c, seq_kv, cols).len();
            T::from_f64(sums[[b, h, r, c]] / area as f64)
        });
        // A NaN is in every sum that it is part of, and in no maximum.
        max.zip_mut_with(&mean, |max, &mean| {
            if mean.to_f64().is_nan() {
                *max = mean
            }
        });
        HeatMap { mean, max }
    }
}

/// Running sums of some queries in the cells of a map, after some of the keys. Starts as the default.
#[derive(Debug, Default)]
pub struct HeatMapState<T> {
    tiles: Vec<TileCells<T>>,
    pub(crate) progress: Progress,
}

/// The cells of a query tile.
#[derive(Debug)]
struct TileCells<T> {
    /// The unfinished column, one entry per row.
    open: Vec<(f64, T)>,
    /// The finished columns.
    rows: Vec<CellRow<T>>,
}

/// A row of cells, or what the tile has of it.
#[derive(Debug)]
struct CellRow<T> {
    /// Batch entry, head and row of the map.
    at: [usize; 3],
    /// Rows of the tile.
    rows: Range<usize>,
    /// The sum and maximum of each column.
    cells: Vec<(f64, T)>,
}

impl<T: Real> TileCells<T> {
    /// Empty cells of a query tile, for a map with `rows` rows of the queries `of`.
    fn new(plan: &Plan<'_>, tile: &QueryTile, of: &Range<usize>, rows: usize) -> Self {
        let mut all: Vec<CellRow<T>> = Vec::new();
        for r in 0..tile.rows() {
            let [batch, head, query] = tile.place(plan, r);
            let at = [batch, head, HeatMapCells::<T>::of(plan.part.query + query - of.start, of.len(), rows)];
            match all.last_mut().filter(|last| last.at == at) {
                Some(last) => last.rows.end = r + 1,
                None => all.push(CellRow { at, rows: r..r + 1, cells: Vec::new() }),
            }
        }
        Self { open: Vec::new(), rows: all }
    }
}

pub(crate) fn heat_map<E: Storage>(
    plan: &Plan<'_>,
    q: ArrayView4<'_, E>,
    k: ArrayView4<'_, E>,
    states: &SoftmaxDenominators<E::Real>,
    of: Rectangle,
    cells: [usize; 2],
) -> Result<HeatMap<E::Real>> {
    let [rows, cols] = check_cells(&of, cells)?;
    let (mut map, mut so_far) = (HeatMapCells::new(0, [plan.dims.batch, plan.dims.heads_q, rows, cols])?, HeatMapState::default());
    let lengths = [of.rows.len(), of.keys.len()];
    heat_map_part(plan, q, k, states, of, cells, &mut so_far)?;
    map.add_tiles(&so_far.tiles);
    Ok(map.finish(lengths))
}

/// At least one, and no more than there are queries and keys.
fn check_cells(of: &Rectangle, cells: [usize; 2]) -> Result<[usize; 2]> {
    let zero = ["rows", "cols"].into_iter().zip(cells).find(|(_, n)| *n == 0);
    zero.map_or(Ok(()), |(name, _)| Err(Error::Zero { name }))?;
    Ok([cells[0].min(of.rows.len()), cells[1].min(of.keys.len())])
}

/// Queries and keys of `of` are counted in the whole; keys come in order.
pub(crate) fn heat_map_part<E: Storage>(
    plan: &Plan<'_>,
    q: ArrayView4<'_, E>,
    k: ArrayView4<'_, E>,
    states: &SoftmaxDenominators<E::Real>,
    of: Rectangle,
    cells: [usize; 2],
    so_far: &mut HeatMapState<E::Real>,
) -> Result<()> {
    let [rows, cols] = check_cells(&of, cells)?;
    let (part, d) = (plan.part, plan.dims);
    let here =
        |range: &Range<usize>, first: usize, len: usize| range.start.max(first) - first..range.end.min(first + len).max(first) - first;
    let (queries, keys) = (here(&of.rows, part.query, d.seq_q), here(&of.keys, part.key, d.seq_kv));
    if queries.is_empty() || keys.is_empty() {
        return Ok(());
    }
    let column = |key: usize| HeatMapCells::<E::Real>::of(part.key + key - of.keys.start, of.keys.len(), cols);
    let columns = column(keys.start)..column(keys.end - 1) + 1;
    let is_done = of.keys.start + HeatMapCells::<E::Real>::range(columns.end - 1, of.keys.len(), cols).end <= part.key + keys.end;
    let done = columns.start..columns.end - usize::from(!is_done);
    let tiles = query_tiles(plan, queries);
    if tiles.is_empty() {
        return Ok(());
    }
    if so_far.tiles.is_empty() {
        so_far.tiles = tiles.iter().map(|tile| TileCells::new(plan, tile, &of.rows, rows)).collect();
    }
    let before = &so_far.tiles;
    for (what, got, expected) in
        [("query tiles", before.len(), tiles.len()), ("finished columns of cells", before[0].rows[0].cells.len(), columns.start)]
    {
        if got != expected {
            return Err(Error::State { what, got, expected });
        }
    }
    let found = plan.for_tasks(tiles.into_iter().zip(before).collect(), |(tile, cells)| {
        let scorer = Scorer::new(plan, &q, &k, tile).with_cutoffs();
        let lanes = tile.rows() + MAX_PANEL;
        let (sums, max) = (vec![0.0; columns.len() * lanes], vec![E::Real::ZERO; columns.len() * lanes]);
        let mut pool = Pool { keys: of.keys.clone(), cols, first: columns.start, lanes, sums, max };
        for (lane, &(sum, max)) in cells.open.iter().enumerate() {
            (pool.sums[lane], pool.max[lane]) = (sum, max);
        }
        each_weight(&scorer, keys.clone(), states, &mut pool);
        let finished: Vec<Vec<_>> = cells.rows.iter().map(|row| done.clone().map(|col| pool.sum_rows(col, &row.rows)).collect()).collect();
        let open = if is_done { 0 } else { tile.rows() };
        (finished, (0..open).map(|r| pool.sum_rows(columns.end - 1, &(r..r + 1))).collect())
    })?;
    for (tile, (finished, open)) in so_far.tiles.iter_mut().zip(found) {
        tile.rows.iter_mut().zip(finished).for_each(|(row, cells)| row.cells.extend(cells));
        tile.open = open;
    }
    Ok(())
}

/// Sums and maxima over the keys of each column of cells, one lane per row: `[col][lane]`.
struct Pool<T> {
    keys: Range<usize>,
    cols: usize,
    /// The first of the columns that are here.
    first: usize,
    lanes: usize,
    sums: Vec<f64>,
    max: Vec<T>,
}

impl<T: Real> Pool<T> {
    /// What some rows have in a column.
    fn sum_rows(&self, col: usize, rows: &Range<usize>) -> (f64, T) {
        let start = (col - self.first) * self.lanes;
        let mut all = (0.0, T::ZERO);
        for at in start + rows.start..start + rows.end {
            all.0 += self.sums[at];
            if all.1 < self.max[at] {
                all.1 = self.max[at];
            }
        }
        all
    }
}

impl<T: Real> Consumer<T> for Pool<T> {
    fn take<S: Simd<T = T>>(&mut self, simd: S, need: &Need, values: &[T], _: Option<&[u32; KV_TILE]>) {
        let (first, len) = (self.keys.start, self.keys.len());
        let mut key = need.keys.start;
        while key < need.keys.end {
            let col = HeatMapCells::<T>::of(key - first, len, self.cols);
            let end = (first + HeatMapCells::<T>::range(col, len, self.cols).end).min(need.keys.end);
            let at = (col - self.first) * self.lanes + need.panel.start;
            let at = at..at + need.panel.width;
            let width = need.panel.width;
            let values = &values[(key - need.keys.start) * width..(end - need.keys.start) * width];
            simd.call(PoolKeys { values, sums: &mut self.sums[at.clone()], max: &mut self.max[at] });
            key = end;
        }
    }
}

/// Add up some keys of a tile, lane by lane; what is added to is f64, so that a cell of any size is exact.
struct PoolKeys<'k, T> {
    values: &'k [T],
    sums: &'k mut [f64],
    max: &'k mut [T],
}

impl<T: Real> Kernel<T> for PoolKeys<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { values, sums, max } = self;
        let width = sums.len();
        assert!(max.len() == width && width.is_multiple_of(S::LANES));
        for n in (0..width).step_by(S::LANES) {
            let mut sum = simd.splat(T::ZERO);
            // SAFETY: n is the start of a whole vector of max and of each line, which are equally long.
            unsafe {
                let mut top = simd.load(max.as_ptr().add(n));
                for line in values.chunks_exact(width) {
                    let w = simd.load(line.as_ptr().add(n));
                    sum = simd.add(sum, w);
                    top = simd.max(w, top);
                }
                simd.store(max.as_mut_ptr().add(n), top);
            }
            for (to, x) in sums[n..n + S::LANES].iter_mut().zip(simd.to_array(sum)) {
                *to += x.to_f64();
            }
        }
    }
}
