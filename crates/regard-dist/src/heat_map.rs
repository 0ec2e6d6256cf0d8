//! A heat map of tokens that several ranks share, with the bits of one process.
//!
//! Queries stay where they are, and keys come in their order, as in the forward pass; values stay at home. A cell is the sum of what query tiles have in it, in their order: so a row of cells whose queries lie
//! on several ranks is carried from one to the next. Finished rows go to the first rank.

use crate::error::Result;
use crate::exchange::{Exchange, Kind, Number, get, put};
use crate::forward::{Distributed, Mine, tokens};
use bytemuck::Pod;
use ndarray::{Array3, Array4, ArrayView4, Axis, s};
use regard::{HeatMap, MapCells, MapSoFar, Part, Real, RowStates};
use std::ops::Range;

impl<X: Exchange> Distributed<'_, X> {
    /// [`regard::Attention::heat_map`] of all tokens: the map on the first rank, `None` on all others. `states` are those of this rank's rows, as [`Distributed::forward_saved`] has found
    /// them. Memory: what the tiles of 64 queries of a rank have in the cells of their rows, and on the first rank the map.
    ///
    /// ```
    /// use ndarray::Array4;
    /// use regard::{Attention, RowStates};
    /// use regard_dist::{Distributed, Local, Partition};
    ///
    /// let x = Array4::from_shape_fn((1, 2, 700, 8), |(_, h, i, d)| ((h + i * d) as f32).sin());
    /// let attention = Attention::new().causal();
    /// let partition = Partition::snake(700, 2, 256)?;
    /// let maps = Local::run(2, |exchange| {
    ///     let mine = partition.shard(exchange.rank(), x.view());
    ///     let ranks = Distributed::new(&attention, &exchange, &partition);
    ///     let saved = ranks.forward_saved(mine.view(), mine.view(), mine.view())?;
    ///     ranks.heat_map(mine.view(), mine.view(), &RowStates::from(&saved), [10, 12])
    /// });
    /// let maps = maps.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(maps[0].as_ref().unwrap().mean, attention.heat_map(&x, &x, 10, 12)?.mean);
    /// assert!(maps[1].is_none());
    /// # Ok::<(), regard_dist::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Distributed::forward_saved`] and [`regard::Attention::heat_map`].
    pub fn heat_map<E: Number>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        states: &RowStates<E::Real>,
        cells: [usize; 2],
    ) -> Result<Option<HeatMap<E::Real>>> {
        let [row_max, row_sum] = [&states.row_max, &states.row_sum].map(|rows| rows.view().insert_axis(Axis(3)));
        self.check_tokens([("row_max", &row_max), ("row_sum", &row_sum)])?;
        // Values that have no dimensions: nothing of them travels.
        let v = Array4::from_elem([k.len_of(Axis(0)), k.len_of(Axis(1)), k.len_of(Axis(2)), 0], E::zeroed());
        let scores = self.check([&q, &k, &v.view(), &q], &format!("a heat map of {cells:?} cells"))?;
        let [batch, heads, n, _] = scores;
        let attend = |query: usize, key: usize, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>, states: &RowStates<E::Real>, so_far: &mut _| {
            self.attention.heat_map_part(Part { batch: 0, query, key, whole: scores }, q, k, states, cells, so_far)
        };
        // What cannot be done is refused before anybody waits for anybody.
        let nobody = Array3::from_elem([batch, heads, 0], E::Real::default());
        let nobody = RowStates { row_max: nobody.clone(), row_sum: nobody };
        attend(0, 0, tokens(&q, &(0..0)), tokens(&k, &(0..0)), &nobody, &mut MapSoFar::default())?;
        let mut blocks: Vec<_> = self
            .mine()
            .into_iter()
            .map(|mine| {
                let of = |rows: &Array3<E::Real>| rows.slice(s![.., .., mine.here.clone()]).to_owned();
                let states = RowStates { row_max: of(&states.row_max), row_sum: of(&states.row_sum) };
                (mine, states, MapSoFar::default())
            })
            .collect();
        if !blocks.is_empty() {
            self.with_keys(scores, &k, &v.view(), |first_key, k, _| {
                let mut each = blocks.iter_mut();
                Ok(each.try_for_each(|(mine, states, so_far)| {
                    attend(mine.range.start, first_key, tokens(&q, &mine.here), k, states, so_far)
                })?)
            })?;
        }
        let map = Map { ranks: self, shape: [batch, heads, cells[0].min(n), cells[1].min(n)], queries: n };
        let cells = map.add_up(blocks.into_iter().map(|(mine, _, so_far)| (mine, so_far)))?;
        Ok(cells.map(|cells| cells.finish([n, n])))
    }
}

struct Map<'a, 'd, X> {
    ranks: &'a Distributed<'d, X>,
    /// `[batch, heads_q, rows, cols]`
    shape: [usize; 4],
    queries: usize,
}

impl<X: Exchange> Map<'_, '_, X> {
    /// The rows of cells that queries have a part in, and whether the first and the last of them are shared with queries before and after.
    fn rows_of(&self, queries: &Range<usize>) -> (Range<usize>, [bool; 2]) {
        let (all, rows) = (self.queries, self.shape[2]);
        let [first, last] = [queries.start, queries.end - 1].map(|query| MapCells::<f64>::of(query, all, rows));
        let [begins, ends] = [MapCells::<f64>::range(first, all, rows).start, MapCells::<f64>::range(last, all, rows).end];
        (first..last + 1, [begins < queries.start, ends > queries.end])
    }

    /// Block after block, in the order of the queries; all cells, on the first rank.
    fn add_up<T: Real + Pod>(&self, blocks: impl Iterator<Item = (Mine, MapSoFar<T>)>) -> Result<Option<MapCells<T>>> {
        let ([batch, heads, _, cols], talk) = (self.shape, &self.ranks.talk);
        let (rank, all) = (talk.rank(), self.ranks.partition.blocks());
        let mut whole = if rank == 0 { Some(MapCells::new(0, self.shape)?) } else { None };
        let mut carried = Vec::new();
        for (Mine { block, range, .. }, so_far) in blocks {
            let (own, [begun, goes_on]) = self.rows_of(&range);
            let mut cells = MapCells::new(own.start, [batch, heads, own.len(), cols])?;
            if begun {
                let from = all[block - 1].1;
                if from != rank {
                    carried =
                        talk.receive_exactly(from, (Kind::States, block as u32), self.bytes::<T>(1), || cells_of(&all[block - 1].0))?;
                }
                read(&mut cells, 0..1, &carried);
            }
            cells.add(&so_far);
            drop(so_far);
            let done = 0..own.len() - usize::from(goes_on);
            if goes_on {
                carried = written(&cells, done.end..own.len());
                let to = all[block + 1].1;
                if to != rank {
                    talk.send(to, (Kind::States, block as u32 + 1), std::mem::take(&mut carried), || {
                        format!("room for {}", cells_of(&range))
                    })?;
                }
            }
            match &mut whole {
                Some(whole) => read(whole, own.start..own.start + done.len(), &written(&cells, done)),
                None if done.is_empty() => {}
                None => talk.send(0, (Kind::Tiles, block as u32), written(&cells, done), || format!("room for {}", cells_of(&range)))?,
            }
        }
        let Some(mut whole) = whole else { return Ok(None) };
        for (block, (range, owner)) in all.iter().enumerate().filter(|(_, (_, owner))| *owner != 0) {
            let (own, [_, goes_on]) = self.rows_of(range);
            let done = own.start..own.end - usize::from(goes_on);
            if !done.is_empty() {
                let bytes = talk.receive_exactly(*owner, (Kind::Tiles, block as u32), self.bytes::<T>(done.len()), || cells_of(range))?;
                read(&mut whole, done, &bytes);
            }
        }
        Ok(Some(whole))
    }

    /// Of so many rows of cells.
    fn bytes<T>(&self, rows: usize) -> usize {
        self.shape[0] * self.shape[1] * rows * self.shape[3] * (size_of::<f64>() + size_of::<T>())
    }
}

fn cells_of(queries: &Range<usize>) -> String {
    format!("the cells of queries {queries:?}")
}

/// Sums and maxima of some rows of these cells.
fn written<T: Pod>(cells: &MapCells<T>, rows: Range<usize>) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, &tokens(&cells.sums.view(), &rows));
    put(&mut bytes, &tokens(&cells.max.view(), &rows));
    bytes
}

/// They are in place of what is there.
fn read<T: Pod>(cells: &mut MapCells<T>, rows: Range<usize>, mut bytes: &[u8]) {
    let (batch, heads, _, cols) = cells.sums.dim();
    let shape = [batch, heads, rows.len(), cols];
    cells.sums.slice_mut(s![.., .., rows.clone(), ..]).assign(&get::<f64>(&mut bytes, shape));
    cells.max.slice_mut(s![.., .., rows, ..]).assign(&get::<T>(&mut bytes, shape));
}
