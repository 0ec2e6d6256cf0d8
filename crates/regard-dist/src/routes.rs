//! The ranks that each piece of keys is sent to: those with queries that see any of it.

use crate::error::Result;
use crate::partition::{Block, Partition};
use regard::Attention;
use std::ops::Range;

/// Pieces of keys, and the ranks that need them.
pub(crate) struct Routes {
    pieces: Vec<Block>,
    /// By piece and rank.
    needs: Vec<Vec<bool>>,
}

impl Routes {
    /// For scores of this shape.
    pub(crate) fn new(attention: &Attention<'_>, scores: [usize; 4], partition: &Partition) -> Result<Self> {
        let pieces = partition.pieces();
        let key_range = attention.key_ranges(scores)?;
        let mut needs = vec![vec![false; partition.ranks()]; pieces.len()];
        let keys: Vec<_> = pieces.iter().map(|piece| piece.tokens.clone()).collect();
        for rank in 0..partition.ranks() {
            let mut marks: Vec<bool> = pieces.iter().map(|piece| piece.rank == rank).collect();
            let blocks: Vec<_> = partition.blocks_of_rank(rank).collect();
            // Backwards: where later queries see more, the last block marks all pieces, and the others return at once.
            for queries in blocks.into_iter().rev() {
                mark_visible(&key_range, &queries, &keys, &mut marks);
            }
            needs.iter_mut().zip(marks).for_each(|(needs, mark)| needs[rank] = mark);
        }
        Ok(Self { pieces, needs })
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Its keys, and the rank that has them.
    pub(crate) fn piece(&self, i: usize) -> &Block {
        &self.pieces[i]
    }

    pub(crate) fn needs(&self, i: usize, rank: usize) -> bool {
        self.needs[i][rank]
    }

    /// The route of a piece: a binary tree, in which the rank at index `p` sends to those at `2 p + 1` and `2 p + 2` (see [`parent`] and
    /// [`children`]). The owner is first; next comes the owner of the next piece, which waits for it.
    pub(crate) fn route(&self, i: usize) -> Vec<usize> {
        let (owner, ranks) = (self.pieces[i].rank, self.needs[i].len());
        let next = self.pieces[i..].iter().map(|piece| piece.rank).find(|&other| other != owner);
        let ascending = next.is_none_or(|next| next > owner);
        let at = |hops: usize| if ascending { (owner + hops) % ranks } else { (owner + ranks - hops) % ranks };
        (0..ranks).map(at).filter(|&rank| self.needs[i][rank]).collect()
    }
}

/// The index on a route that sends to this one.
pub(crate) fn parent(index: usize) -> Option<usize> {
    index.checked_sub(1).map(|index| index / 2)
}

/// The indices on a route of `len` ranks that this one sends to.
pub(crate) fn children(index: usize, len: usize) -> Range<usize> {
    (2 * index + 1).min(len)..(2 * index + 3).min(len)
}

/// Mark the pieces of keys, which are adjacent, that any of the queries sees.
pub(crate) fn mark_visible(
    key_range: &impl Fn(Range<usize>, Range<usize>) -> Range<usize>,
    queries: &Range<usize>,
    keys: &[Range<usize>],
    marks: &mut [bool],
) {
    let Some(from) = marks.iter().position(|mark| !mark) else { return };
    let to = marks.iter().rposition(|mark| !mark).map_or(from, |last| last + 1);
    let visible = key_range(queries.clone(), keys[from].start..keys[to - 1].end);
    if visible.is_empty() {
        return;
    }
    let from = from + keys[from..to].partition_point(|keys| keys.end <= visible.start);
    let to = from + keys[from..to].partition_point(|keys| keys.start < visible.end);
    if to - from == 1 {
        marks[from] = true;
        return;
    }
    let middle = from.midpoint(to);
    for part in [from..middle, middle..to] {
        mark_visible(key_range, queries, &keys[part.clone()], &mut marks[part]);
    }
}
