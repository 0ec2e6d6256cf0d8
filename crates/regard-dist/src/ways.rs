//! Which way keys go through the ranks: only to those that have queries that see any of them.

use crate::error::Result;
use crate::partition::Partition;
use regard::Attention;
use std::ops::Range;

/// Of each piece of keys, the ranks that need it.
pub(crate) struct Ways {
    pieces: Vec<(Range<usize>, usize)>,
    /// By piece and rank.
    needs: Vec<Vec<bool>>,
}

impl Ways {
    /// For the tokens of this partition, with scores of this shape.
    pub(crate) fn new(attention: &Attention<'_>, scores: [usize; 4], partition: &Partition) -> Result<Self> {
        let pieces = partition.pieces();
        let seen = attention.key_ranges(scores)?;
        let mut needs = vec![vec![false; partition.ranks()]; pieces.len()];
        let keys: Vec<_> = pieces.iter().map(|(keys, _)| keys.clone()).collect();
        for rank in 0..partition.ranks() {
            let mut marks: Vec<bool> = pieces.iter().map(|(_, owner)| *owner == rank).collect();
            let blocks: Vec<_> = partition.blocks_of_rank(rank).collect();
            // Where later queries see more, the last block has seen it all.
            for queries in blocks.into_iter().rev() {
                mark(&seen, &queries, &keys, &mut marks);
            }
            needs.iter_mut().zip(marks).for_each(|(needs, mark)| needs[rank] = mark);
        }
        Ok(Self { pieces, needs })
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Its keys, and the rank that has them.
    pub(crate) fn piece(&self, i: usize) -> (Range<usize>, usize) {
        self.pieces[i].clone()
    }

    pub(crate) fn needs(&self, i: usize, rank: usize) -> bool {
        self.needs[i][rank]
    }

    /// The way of a piece: whoever has it, and those that need it. It is handed on from place `p` to places `2 p + 1` and `2 p + 2`, so that the last ones have
    /// it soon. The first to get it is whoever sends next: that one waits for it.
    pub(crate) fn way(&self, i: usize) -> Vec<usize> {
        let (owner, ranks) = (self.pieces[i].1, self.needs[i].len());
        let next = self.pieces[i..].iter().map(|(_, owner)| *owner).find(|&other| other != owner);
        let forwards = next.is_none_or(|next| next > owner);
        let at = |hops: usize| if forwards { (owner + hops) % ranks } else { (owner + ranks - hops) % ranks };
        (0..ranks).map(at).filter(|&rank| self.needs[i][rank]).collect()
    }
}

/// Of the place on a way: who hands on to it, and to whom it hands on.
pub(crate) fn before(place: usize) -> Option<usize> {
    place.checked_sub(1).map(|place| place / 2)
}

pub(crate) fn after(place: usize, of: usize) -> Range<usize> {
    (2 * place + 1).min(of)..(2 * place + 3).min(of)
}

/// Mark the pieces of keys, which follow on each other, that any of the queries sees.
pub(crate) fn mark(
    seen: &impl Fn(Range<usize>, Range<usize>) -> Range<usize>,
    queries: &Range<usize>,
    keys: &[Range<usize>],
    marks: &mut [bool],
) {
    let Some(from) = marks.iter().position(|mark| !mark) else { return };
    let to = marks.iter().rposition(|mark| !mark).map_or(from, |last| last + 1);
    let sight = seen(queries.clone(), keys[from].start..keys[to - 1].end);
    if sight.is_empty() {
        return;
    }
    let from = from + keys[from..to].partition_point(|keys| keys.end <= sight.start);
    let to = from + keys[from..to].partition_point(|keys| keys.start < sight.end);
    if to - from == 1 {
        marks[from] = true;
        return;
    }
    let middle = from.midpoint(to);
    for part in [from..middle, middle..to] {
        mark(seen, queries, &keys[part.clone()], &mut marks[part]);
    }
}
