//! A heat map of tokens that several ranks share, with the bits of one process.
//!
//! Queries stay on their rank, and keys arrive in key order, as in the forward pass; values are not sent. A cell is the sum of the
//! contributions of query tiles, in their order: a row of cells whose queries lie on several ranks is passed from one to the next. Finished
//! rows go to rank 0.

use crate::distributed::{Distributed, LocalBlock, tokens};
use crate::error::Result;
use crate::exchange::{Exchange, Kind, WireElement, get, put};
use crate::partition::Block;
use bytemuck::Pod;
use ndarray::{Array3, Array4, ArrayView4, Axis, s};
use regard::{GlobalOffset, HeatMap, HeatMapCells, HeatMapState, Real, SoftmaxDenominators};
use std::ops::Range;

impl<X: Exchange> Distributed<'_, X> {
    /// [`regard::Attention::heat_map`] of all tokens: the map on rank 0, `None` on all others. `states` are those of this rank's rows, from
    /// [`Distributed::forward_saved`]. Memory: the cells of each query tile of the rank, and on rank 0 the map.
    ///
    /// ```
    /// use ndarray::Array4;
    /// use regard::{Attention, SoftmaxDenominators};
    /// use regard_dist::{Distributed, Local, Partition};
    ///
    /// let x = Array4::from_shape_fn((1, 2, 700, 8), |(_, h, i, d)| ((h + i * d) as f32).sin());
    /// let attention = Attention::new().causal();
    /// let partition = Partition::snake(700, 2, 256)?;
    /// let maps = Local::run(2, |exchange| {
    ///     let mine = partition.shard(exchange.rank(), x.view());
    ///     let ranks = Distributed::new(&attention, &exchange, &partition);
    ///     let saved = ranks.forward_saved(mine.view(), mine.view(), mine.view())?;
    ///     ranks.heat_map(mine.view(), mine.view(), &SoftmaxDenominators::from(&saved), [10, 12])
    /// });
    /// let maps = maps.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(maps[0].as_ref().unwrap().mean, attention.heat_map(&x, &x, 10, 12)?.mean);
    /// assert!(maps[1].is_none());
    /// # Ok::<(), regard_dist::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Distributed::forward_saved`] and [`regard::Attention::heat_map`].
    pub fn heat_map<E: WireElement>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        states: &SoftmaxDenominators<E::Real>,
        cells: [usize; 2],
    ) -> Result<Option<HeatMap<E::Real>>> {
        let row = [q.len_of(Axis(0)), q.len_of(Axis(1)), self.partition.count(self.comm.rank())];
        let states_fit = self.check_operand("row_max", states.row_max.shape(), &row);
        let states_fit = states_fit.and_then(|()| self.check_operand("row_sum", states.row_sum.shape(), &row));
        // Values without dimensions: none are sent.
        let v = Array4::from_elem([k.len_of(Axis(0)), k.len_of(Axis(1)), k.len_of(Axis(2)), 0], E::zeroed());
        let scores = self.check([&q, &k, &v.view()], states_fit, &format!("a heat map of {cells:?} cells"))?;
        let [batch, heads, n, _] = scores;
        let attend =
            |query: usize, key: usize, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>, states: &SoftmaxDenominators<E::Real>, map: &mut _| {
                self.attention.heat_map_part(GlobalOffset { batch: 0, query, key, whole: scores }, q, k, states, cells, map)
            };
        // What the library refuses, it refuses on every rank before any waits.
        let no_rows = Array3::from_elem([batch, heads, 0], E::Real::default());
        let no_rows = SoftmaxDenominators { row_max: no_rows.clone(), row_sum: no_rows };
        attend(0, 0, tokens(&q, &(0..0)), tokens(&k, &(0..0)), &no_rows, &mut HeatMapState::default())?;
        let mut blocks: Vec<_> = self
            .local_blocks()
            .into_iter()
            .map(|block| {
                let of = |rows: &Array3<E::Real>| rows.slice(s![.., .., block.local.clone()]).to_owned();
                let states = SoftmaxDenominators { row_max: of(&states.row_max), row_sum: of(&states.row_sum) };
                (block, states, HeatMapState::default())
            })
            .collect();
        if !blocks.is_empty() {
            self.for_each_piece(scores, &k, &v.view(), |first_key, k, _| {
                let mut each = blocks.iter_mut();
                Ok(each
                    .try_for_each(|(block, states, map)| attend(block.range.start, first_key, tokens(&q, &block.local), k, states, map))?)
            })?;
        }
        let map = Map { ranks: self, shape: [batch, heads, cells[0].min(n), cells[1].min(n)], queries: n };
        let cells = map.gather(blocks.into_iter().map(|(block, _, map)| (block, map)))?;
        Ok(cells.map(|cells| cells.finish([n, n])))
    }
}

/// Rows of cells that a block of queries contributes to.
struct CellRows {
    rows: Range<usize>,
    /// Queries before the block contribute to the first row.
    continues_first: bool,
    /// Queries after the block contribute to the last row.
    leaves_last: bool,
}

struct Map<'a, 'd, X> {
    ranks: &'a Distributed<'d, X>,
    /// `[batch, heads_q, rows, cols]`
    shape: [usize; 4],
    queries: usize,
}

impl<X: Exchange> Map<'_, '_, X> {
    /// The rows of cells that a block of queries contributes to.
    fn cell_rows(&self, queries: &Range<usize>) -> CellRows {
        let (all, rows) = (self.queries, self.shape[2]);
        let [first, last] = [queries.start, queries.end - 1].map(|query| HeatMapCells::<f64>::of(query, all, rows));
        let [begin, end] = [HeatMapCells::<f64>::range(first, all, rows).start, HeatMapCells::<f64>::range(last, all, rows).end];
        CellRows { rows: first..last + 1, continues_first: begin < queries.start, leaves_last: end > queries.end }
    }

    /// Add one block after the other, in the order of queries; all cells on rank 0, `None` on the others.
    fn gather<T: Real + Pod>(&self, blocks: impl Iterator<Item = (LocalBlock, HeatMapState<T>)>) -> Result<Option<HeatMapCells<T>>> {
        let ([batch, heads, _, cols], comm) = (self.shape, &self.ranks.comm);
        let (rank, all) = (comm.rank(), self.ranks.partition.blocks());
        let mut whole = if rank == 0 { Some(HeatMapCells::new(0, self.shape)?) } else { None };
        let mut carried = Vec::new();
        for (LocalBlock { index, range, .. }, map) in blocks {
            let CellRows { rows, continues_first, leaves_last } = self.cell_rows(&range);
            let mut cells = HeatMapCells::new(rows.start, [batch, heads, rows.len(), cols])?;
            if continues_first {
                let before = &all[index - 1];
                if before.rank != rank {
                    let what = || cells_of(&before.tokens);
                    carried = comm.receive_exactly(before.rank, (Kind::States, index as u32), self.bytes::<T>(1), what)?;
                }
                read(&mut cells, 0..1, &carried);
            }
            cells.add(&map)?;
            drop(map);
            let done = 0..rows.len() - usize::from(leaves_last);
            if leaves_last {
                carried = written(&cells, done.end..rows.len());
                let to = all[index + 1].rank;
                if to != rank {
                    comm.send(to, (Kind::States, index as u32 + 1), std::mem::take(&mut carried), || credit_for(&range))?;
                }
            }
            match &mut whole {
                Some(whole) => read(whole, rows.start..rows.start + done.len(), &written(&cells, done)),
                None if done.is_empty() => {}
                None => comm.send(0, (Kind::Partials, index as u32), written(&cells, done), || credit_for(&range))?,
            }
        }
        let Some(mut whole) = whole else { return Ok(None) };
        for (index, Block { tokens: range, rank: owner }) in all.iter().enumerate().filter(|(_, block)| block.rank != 0) {
            let CellRows { rows, leaves_last, .. } = self.cell_rows(range);
            let done = rows.start..rows.end - usize::from(leaves_last);
            if !done.is_empty() {
                let bytes =
                    comm.receive_exactly(*owner, (Kind::Partials, index as u32), self.bytes::<T>(done.len()), || cells_of(range))?;
                read(&mut whole, done, &bytes);
            }
        }
        Ok(Some(whole))
    }

    /// Bytes of rows of cells.
    fn bytes<T>(&self, rows: usize) -> usize {
        self.shape[0] * self.shape[1] * rows * self.shape[3] * (size_of::<f64>() + size_of::<T>())
    }
}

fn cells_of(queries: &Range<usize>) -> String {
    format!("the cells of queries {queries:?}")
}

fn credit_for(queries: &Range<usize>) -> String {
    format!("credit for {}", cells_of(queries))
}

/// Sums and maxima of rows of cells.
fn written<T: Pod>(cells: &HeatMapCells<T>, rows: Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, &tokens(&cells.sums.view(), &rows));
    put(&mut bytes, &tokens(&cells.max.view(), &rows));
    bytes
}

/// Replace rows of cells by sums and maxima that another rank has written.
fn read<T: Pod>(cells: &mut HeatMapCells<T>, rows: Range<usize>, mut bytes: &[u8]) {
    let (batch, heads, _, cols) = cells.sums.dim();
    let shape = [batch, heads, rows.len(), cols];
    cells.sums.slice_mut(s![.., .., rows.clone(), ..]).assign(&get::<f64>(&mut bytes, shape));
    cells.max.slice_mut(s![.., .., rows, ..]).assign(&get::<T>(&mut bytes, shape));
}
