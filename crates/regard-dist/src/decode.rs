//! Few queries, whose keys and values lie on all ranks: a cache that is longer than a machine's memory.
//!
//! ```text
//! every rank        the sums of its splits of 2048 keys, before it knows anything of the others
//! rank to rank      the running state of the rows, in key order: each takes its sums in
//! from the last     the results, to everybody
//! ```
//!
//! Keys stay where they are. What travels is the state, `value_dim + 2` numbers for each row; where a split is cut between two ranks, the second goes on from the sum of the first, and that
//! travels too.

use crate::error::{Error, Result};
use crate::exchange::{Exchange, Kind, Number, get, put};
use crate::forward::{Distributed, digest, tokens};
use crate::ways::{after, before};
use ndarray::{Array4, ArrayView4, Axis};
use regard::{Part, RowsSoFar, Saved};
use std::ops::Range;

/// So many queries are asked about together, in the library too: what they see as a whole is what each tile of them does.
const FEW: usize = 64;

impl<X: Exchange> Distributed<'_, X> {
    /// [`regard::Attention::forward_saved`] of queries that all ranks have, for keys and values that they share as the partition says: one or a few queries that follow a long
    /// text. All ranks get the results. The partition has the tokens of the keys; where the queries stand among them is what the options say, as
    /// [`causal_bottom_right`](regard::Attention::causal_bottom_right) does.
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
    /// As [`Distributed::forward_saved`]; [`Error::Differ`] too where ranks have other queries.
    pub fn decode<E: Number>(&self, q: ArrayView4<'_, E>, k: ArrayView4<'_, E>, v: ArrayView4<'_, E>) -> Result<Saved<E>> {
        let (rank, queries) = (self.talk.rank(), q.len_of(Axis(2)));
        self.check_tokens([("k", &k), ("v", &v)])?;
        let mut bytes = Vec::new();
        put(&mut bytes, &q);
        self.agree([&q, &k, &v], &format!("decoding of {queries} queries ({:016x})", digest(&bytes)))?;
        let whole = [q.len_of(Axis(0)), q.len_of(Axis(1)), queries, self.partition.tokens()];
        let part = |keys: &Range<usize>| Part { batch: 0, query: 0, key: keys.start, whole };
        // What cannot be done is refused before anybody waits for anybody; without keys there is nothing else to do.
        let none = [tokens(&k, &(0..0)), tokens(&v, &(0..0))];
        if let Some((saved, _)) = self.attention.forward_part(part(&(0..0)), q, none[0], none[1], &mut RowsSoFar::default())? {
            return Ok(saved);
        }
        let way = self.way_of_states(whole)?;
        let mut known = Vec::new();
        for mine in self.mine().iter().filter(|mine| way.iter().any(|(_, block)| *block == mine.block)) {
            let (mut so_far, k, v) = (RowsSoFar::default(), tokens(&k, &mine.here), tokens(&v, &mine.here));
            self.attention.forward_ahead(part(&mine.range), q, k, v, &mut so_far)?;
            known.push((mine.clone(), so_far));
        }
        let owner = |place: usize| way[place].0;
        let root = owner(way.len() - 1);
        let mut result = None;
        let mut carried = Vec::new();
        for (mine, mut so_far) in known {
            let place = way.iter().position(|(_, block)| *block == mine.block).expect("it is one of them");
            let tag = |block: usize| (Kind::States, block as u32);
            if place > 0 {
                let (from, block) = way[place - 1];
                let what = || format!("what the queries have seen up to keys {:?}", self.partition.blocks()[block].0);
                if from != rank {
                    carried = self.talk.receive(from, tag(mine.block), what)?;
                }
                let [rank, from] = [rank, from].map(|rank| self.talk.exchange.name(rank));
                so_far.read_bytes(&carried).map_err(|reason| Error::State { rank, from, what: what(), reason: Box::new(reason) })?;
            }
            let (k, v) = (tokens(&k, &mine.here), tokens(&v, &mine.here));
            result = self.attention.forward_part(part(&mine.range), q, k, v, &mut so_far)?;
            if let Some(&(to, block)) = way.get(place + 1) {
                carried = so_far.to_bytes()?;
                if to != rank {
                    self.talk.send(to, tag(block), std::mem::take(&mut carried), || {
                        format!("room for what the queries have seen up to keys {:?}", mine.range)
                    })?;
                }
            }
        }
        self.tell_results(root, result.map(|(saved, _)| saved), [whole[0], whole[1], queries, v.len_of(Axis(3))])
    }

    /// The ranks and blocks that the state of the rows goes through: from the first keys that any of them sees to the last, and to the end of all keys.
    fn way_of_states(&self, whole: [usize; 4]) -> Result<Vec<(usize, usize)>> {
        let blocks = self.partition.blocks();
        let seen = if whole[2] <= FEW { self.attention.key_ranges(whole)?(0..whole[2], 0..whole[3]) } else { 0..whole[3] };
        let meets = |keys: &Range<usize>| keys.start < seen.end && seen.start < keys.end;
        let way = blocks.iter().enumerate().filter(|(i, (keys, _))| meets(keys) || i + 1 == blocks.len());
        Ok(way.map(|(i, (_, owner))| (*owner, i)).collect())
    }

    /// From the rank that has them to all others, each of which hands on to two.
    fn tell_results<E: Number>(&self, root: usize, saved: Option<Saved<E>>, shape: [usize; 4]) -> Result<Saved<E>> {
        let (rank, ranks) = (self.talk.rank(), self.partition.ranks());
        let at = |place: usize| (root + place) % ranks;
        let place = (rank + ranks - root) % ranks;
        let (tag, what) = ((Kind::Results, 0), || format!("the results of {} queries", shape[2]));
        let [batch, heads, queries, _] = shape;
        let (numbers, rows) = (shape.iter().product::<usize>(), batch * heads * queries);
        let exact = if E::IS_REAL { 0 } else { numbers };
        let (bytes, saved) = match (saved, before(place)) {
            (Some(saved), _) => {
                let mut bytes = Vec::new();
                put(&mut bytes, &saved.out.view());
                saved.exact.iter().for_each(|exact| put(&mut bytes, &exact.view()));
                [&saved.row_max, &saved.row_sum].into_iter().for_each(|rows| put(&mut bytes, &rows.view().insert_axis(Axis(3))));
                (bytes, saved)
            }
            (None, from) => {
                let from = from.map_or(root, at);
                let expected = numbers * size_of::<E>() + (exact + 2 * rows) * size_of::<E::Real>();
                let bytes = self.talk.receive_exactly(from, tag, expected, what)?;
                let mut rest = &bytes[..];
                let out = get(&mut rest, shape);
                let exact = (!E::IS_REAL).then(|| get(&mut rest, shape));
                let mut row = || -> Array4<E::Real> { get(&mut rest, [batch, heads, queries, 1]) };
                let [row_max, row_sum] = [row(), row()].map(|rows| rows.remove_axis(Axis(3)));
                (bytes, Saved { out, exact, row_max, row_sum })
            }
        };
        for to in after(place, ranks).map(at) {
            self.talk.send(to, tag, bytes.clone(), || format!("room for {}", what()))?;
        }
        Ok(saved)
    }
}
