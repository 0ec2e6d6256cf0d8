//! A pattern that is too large to lay out, as a picture: weights pooled into cells, in linear memory.

use super::weights::{Consumer, each_weight};
use super::{Rectangle, RowStates};
use crate::arrays::filled;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::walk::scores::Scorer;
use crate::walk::tiling::{KV_TILE, MAX_PANEL, Need, QueryTile, query_tiles};
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

pub(crate) fn heat_map<E: Storage>(
    plan: &Plan<'_>,
    q: ArrayView4<'_, E>,
    k: ArrayView4<'_, E>,
    states: &RowStates<E::Real>,
    of: Rectangle,
    [rows, cols]: [usize; 2],
) -> Result<HeatMap<E::Real>> {
    for (name, n) in [("rows", rows), ("cols", cols)] {
        if n == 0 {
            return Err(Error::Zero { name });
        }
    }
    let d = plan.dims;
    let (rows, cols) = (rows.min(of.rows.len()), cols.min(of.keys.len()));
    let shape = [d.batch, d.heads_q, rows, cols];
    let (mut sums, mut max) = (filled("a heat map", shape, 0.0f64)?, filled("a heat map", shape, E::Real::ZERO)?);
    if rows * cols == 0 {
        return Ok(HeatMap { mean: max.clone(), max });
    }
    let tiles = query_tiles(plan, of.rows.clone());
    let pooled = plan.for_tasks(tiles.clone(), |tile| {
        let scorer = Scorer::new(plan, &q, &k, tile).with_cutoffs();
        let lanes = tile.rows() + MAX_PANEL;
        let mut pool = Pool { keys: of.keys.clone(), cols, lanes, sums: vec![0.0; cols * lanes], max: vec![E::Real::ZERO; cols * lanes] };
        each_weight(&scorer, of.keys.clone(), states, &mut pool);
        pool.rows(plan, &tile, &of.rows, rows)
    })?;
    for (tile, cells) in tiles.into_iter().zip(pooled) {
        for (head, row, line) in cells {
            for (col, (sum, top)) in line.into_iter().enumerate() {
                let at = [tile.batch - plan.part.batch, head, row, col];
                sums[at] += sum;
                if max[at] < top {
                    max[at] = top;
                }
            }
        }
    }
    let mean = Array4::from_shape_fn(shape, |(b, h, r, c)| {
        let area = cell(r, of.rows.len(), rows).len() * cell(c, of.keys.len(), cols).len();
        E::Real::from_f64(sums[[b, h, r, c]] / area as f64)
    });
    // A NaN is in every sum that it is part of, and in no maximum.
    max.zip_mut_with(&mean, |max, &mean| {
        if mean.to_f64().is_nan() {
            *max = mean
        }
    });
    Ok(HeatMap { mean, max })
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

/// Sums and maxima over the keys of each column cell, one lane per row: `[col][lane]`.
struct Pool<T> {
    keys: Range<usize>,
    cols: usize,
    lanes: usize,
    sums: Vec<f64>,
    max: Vec<T>,
}

impl<T: Real> Pool<T> {
    /// Pool the rows as well: (head, cell row, (sum, max) of each column), for the cell rows that the tile touches.
    fn rows(self, plan: &Plan<'_>, tile: &QueryTile, of: &Range<usize>, rows: usize) -> Vec<CellRow<T>> {
        let mut cells: Vec<CellRow<T>> = Vec::new();
        for r in 0..tile.rows() {
            let [_, head, query] = tile.place(plan, r);
            let row = cell_of(query - of.start, of.len(), rows);
            if cells.last().is_none_or(|c| (c.0, c.1) != (head, row)) {
                cells.push((head, row, vec![(0.0, T::ZERO); self.cols]));
            }
            if let Some((_, _, line)) = cells.last_mut() {
                for (col, (sum, max)) in line.iter_mut().enumerate() {
                    let at = col * self.lanes + r;
                    *sum += self.sums[at];
                    if *max < self.max[at] {
                        *max = self.max[at];
                    }
                }
            }
        }
        cells
    }
}

impl<T: Real> Consumer<T> for Pool<T> {
    fn take<S: Simd<T = T>>(&mut self, simd: S, need: &Need, values: &[T], _: Option<&[u32; KV_TILE]>) {
        let (first, len) = (self.keys.start, self.keys.len());
        let mut key = need.keys.start;
        while key < need.keys.end {
            let col = cell_of(key - first, len, self.cols);
            let end = (first + cell(col, len, self.cols).end).min(need.keys.end);
            let at = col * self.lanes + need.panel.start;
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
