//! Few queries, whose keys and values are spread over all ranks: a cache that is longer than a machine's memory.
//!
//! ```text
//! every rank        the sums of its splits of 2048 keys, without knowing those of the others
//! rank to rank      the running state of the rows, in key order: each rank combines it with its sums
//! last rank         sends the results to all others
//! ```
//!
//! Keys stay on their rank. The state has `value_dim + 2` elements per row; where a split is cut between two ranks, the second continues
//! the sum of the first, which is sent too.

use crate::distributed::{Distributed, fnv1a, tokens};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Kind, WireElement, get, put};
use crate::routes::{children, parent};
use ndarray::{Array4, ArrayView4, Axis};
use regard::tiling::Q_TILE;
use regard::{GlobalOffset, RunningAttention, Saved};
use std::ops::Range;

/// A block of keys that the running state passes through.
#[derive(Clone, Copy)]
struct Hop {
    rank: usize,
    block: usize,
}

impl<X: Exchange> Distributed<'_, X> {
    /// [`regard::Attention::forward_saved`] of queries that all ranks have, with keys and values that the partition shares out: one or a
    /// few queries after a long text. All ranks get the results. The partition is of the keys; options such as
    /// [`causal_bottom_right`](regard::Attention::causal_bottom_right) place the queries among them.
    ///
    /// ```
    /// use ndarray::{Array4, s};
    /// use regard::Attention;
    /// use regard_dist::{Distributed, Local, Partition};
    ///
    /// let cache = Array4::from_shape_fn((1, 2, 3000, 8), |(_, h, i, d)| ((h + i * d) as f32).sin());
    /// let q = cache.slice(s![.., .., 2999.., ..]);
    /// let attention = Attention::new().causal_bottom_right();
    /// let partition = Partition::contiguous(3000, 3)?;
    /// let results = Local::run(3, |exchange| {
    ///     let mine = partition.shard(exchange.rank(), cache.view());
    ///     Distributed::new(&attention, &exchange, &partition).decode(q, mine.view(), mine.view())
    /// });
    /// for result in results {
    ///     assert_eq!(result?.out, attention.forward(q, &cache, &cache)?.out);
    /// }
    /// # Ok::<(), regard_dist::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Distributed::forward_saved`]; [`Error::Mismatch`] too where queries differ between ranks.
    pub fn decode<E: WireElement>(&self, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>, v: ArrayView4<'_, E>) -> Result<Saved<E>> {
        let (rank, queries) = (self.comm.rank(), q.len_of(Axis(2)));
        let whole = [q.len_of(Axis(0)), q.len_of(Axis(1)), queries, self.partition.tokens()];
        let mut bytes = Vec::new();
        put(&mut bytes, &q);
        let call = format!("decoding of {queries} queries ({:016x})", fnv1a(&bytes));
        let checked = self.check_tokens([("k", &k), ("v", &v)]).and_then(|()| self.plan_text([&q, &k, &v], whole, &call));
        self.comm.agree_or_refuse(checked)?;
        let part = |keys: &Range<usize>| GlobalOffset { batch: 0, query: 0, key: keys.start, whole };
        // What the library refuses, it refuses on every rank before any waits; without keys this is the result.
        let none = [tokens(&k, &(0..0)), tokens(&v, &(0..0))];
        if let Some((saved, _)) = self.attention.forward_part(part(&(0..0)), q, none[0], none[1], &mut RunningAttention::default())? {
            return Ok(saved);
        }
        let hops = self.hops(whole)?;
        let mut states = Vec::new();
        for block in self.local_blocks() {
            let Some(index) = hops.iter().position(|hop| hop.block == block.index) else { continue };
            let (mut state, k, v) = (RunningAttention::default(), tokens(&k, &block.local), tokens(&v, &block.local));
            self.attention.precompute_splits(part(&block.range), q, k, v, &mut state)?;
            states.push((index, block, state));
        }
        let mut result = None;
        let mut carried = Vec::new();
        for (index, block, mut state) in states {
            let tag = |block: usize| (Kind::States, block as u32);
            if index > 0 {
                let Hop { rank: from, block: before } = hops[index - 1];
                let what = || format!("the running state up to keys {:?}", self.partition.blocks()[before].tokens);
                if from != rank {
                    carried = self.comm.receive(from, tag(block.index), what)?;
                }
                let [rank, from] = self.comm.names(from);
                state.read_bytes(&carried).map_err(|reason| Error::State { rank, from, what: what(), reason: Box::new(reason) })?;
            }
            let (k, v) = (tokens(&k, &block.local), tokens(&v, &block.local));
            result = self.attention.forward_part(part(&block.range), q, k, v, &mut state)?;
            if let Some(&Hop { rank: to, block: next }) = hops.get(index + 1) {
                carried = state.to_bytes()?;
                if to != rank {
                    let what = || format!("credit for the running state up to keys {:?}", block.range);
                    self.comm.send(to, tag(next), std::mem::take(&mut carried), what)?;
                }
            }
        }
        let root = hops.last().map_or(0, |hop| hop.rank);
        self.broadcast(root, result.map(|(saved, _)| saved), [whole[0], whole[1], queries, v.len_of(Axis(3))])
    }

    /// The blocks that the running state passes through: those with keys that any query sees, and the last one, which gives the results.
    fn hops(&self, whole: [usize; 4]) -> Result<Vec<Hop>> {
        let blocks = self.partition.blocks();
        // Queries of one tile are masked together, so that what they see as a whole is what the tile sees.
        let visible = if whole[2] <= Q_TILE { self.attention.key_ranges(whole)?(0..whole[2], 0..whole[3]) } else { 0..whole[3] };
        let meets = |keys: &Range<usize>| keys.start < visible.end && visible.start < keys.end;
        let passed = blocks.iter().enumerate().filter(|(i, block)| meets(&block.tokens) || i + 1 == blocks.len());
        Ok(passed.map(|(i, block)| Hop { rank: block.rank, block: i }).collect())
    }

    /// Send the results from the rank that has them to all others, along a binary tree.
    fn broadcast<E: WireElement>(&self, root: usize, saved: Option<Saved<E>>, shape: [usize; 4]) -> Result<Saved<E>> {
        let (rank, ranks) = (self.comm.rank(), self.partition.ranks());
        let at = |index: usize| (root + index) % ranks;
        let index = (rank + ranks - root) % ranks;
        let (tag, what) = ((Kind::Results, 0), || format!("the results of {} queries", shape[2]));
        let [batch, heads, queries, _] = shape;
        let (elements, rows) = (shape.iter().product::<usize>(), batch * heads * queries);
        let unrounded = if E::IS_REAL { 0 } else { elements };
        let (bytes, saved) = match (saved, parent(index)) {
            (Some(saved), _) => {
                let mut bytes = Vec::new();
                put(&mut bytes, &saved.out.view());
                saved.out_unrounded.iter().for_each(|x| put(&mut bytes, &x.view()));
                [&saved.row_max, &saved.row_sum].into_iter().for_each(|rows| put(&mut bytes, &rows.view().insert_axis(Axis(3))));
                (bytes, saved)
            }
            (None, from) => {
                let from = from.map_or(root, at);
                let expected = elements * size_of::<E>() + (unrounded + 2 * rows) * size_of::<E::Real>();
                let bytes = self.comm.receive_exactly(from, tag, expected, what)?;
                let mut rest = &bytes[..];
                let out = get(&mut rest, shape);
                let out_unrounded = (!E::IS_REAL).then(|| get(&mut rest, shape));
                let mut row = || -> Array4<E::Real> { get(&mut rest, [batch, heads, queries, 1]) };
                let [row_max, row_sum] = [row(), row()].map(|rows| rows.remove_axis(Axis(3)));
                (bytes, Saved { out, out_unrounded, row_max, row_sum })
            }
        };
        for to in children(index, ranks).map(at) {
            self.comm.send(to, tag, bytes.clone(), || format!("credit for {}", what()))?;
        }
        Ok(saved)
    }
}
