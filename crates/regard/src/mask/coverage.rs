//! Coverage of tiles and key ranges.

use super::algebra::{HeadPosition, Mask, Rule, row};
use super::bits::DenseLines;
use ndarray::{CowArray, Ix2};
use std::ops::{Not, Range};

/// How much of a tile is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileCoverage {
    /// Nothing: the tile is skipped.
    Empty,
    /// Something: visibility is evaluated per pair.
    Partial,
    /// Everything: the fast path.
    Full,
}

impl TileCoverage {
    /// Coverage of the intersection, from the coverage of the parts.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Empty, _) | (_, Self::Empty) => Self::Empty,
            (Self::Full, Self::Full) => Self::Full,
            _ => Self::Partial,
        }
    }

    /// Coverage of the union, from the coverage of the parts.
    pub fn or(self, other: Self) -> Self {
        !(!self).and(!other)
    }

    /// Coverage of two adjacent tiles.
    pub(crate) fn beside(self, other: Self) -> Self {
        if self == other { self } else { Self::Partial }
    }
}

impl Not for TileCoverage {
    type Output = Self;
    fn not(self) -> Self {
        match self {
            Self::Empty => Self::Full,
            Self::Partial => Self::Partial,
            Self::Full => Self::Empty,
        }
    }
}

impl Mask<'_> {
    /// How much of a tile is visible.
    pub fn coverage(&self, at: &HeadPosition, queries: Range<usize>, keys: Range<usize>) -> TileCoverage {
        use TileCoverage::{Empty, Full, Partial};
        if queries.is_empty() || keys.is_empty() {
            return Empty;
        }
        let upto = |end: usize| match () {
            () if keys.end <= end => Full,
            () if end <= keys.start => Empty,
            () => Partial,
        };
        match &self.0 {
            Rule::Everything => Full,
            Rule::Band { low, high } => {
                let distance = |key: usize, query: usize| (key as i64).saturating_sub(at.position(query));
                let (least, most) = (distance(keys.start, queries.end - 1), distance(keys.end - 1, queries.start));
                if low.is_some_and(|l| most < l) || high.is_some_and(|h| h < least) {
                    Empty
                } else if low.is_none_or(|l| l <= least) && high.is_none_or(|h| most <= h) {
                    Full
                } else {
                    Partial
                }
            }
            Rule::FirstKeys(n) => upto(*n),
            Rule::KeyLengths(lengths) => upto(lengths[at.batch]),
            Rule::Documents { queries: q, keys: k } => {
                let span = |ids: &CowArray<'_, u32, Ix2>, range: &Range<usize>| {
                    let ids = ids.row(row(ids, at));
                    range.clone().map(|i| ids[i]).fold((u32::MAX, 0), |(a, b), id| (a.min(id), b.max(id)))
                };
                let ((q0, q1), (k0, k1)) = (span(q, &queries), span(k, &keys));
                match () {
                    () if q1 < k0 || k1 < q0 => Empty,
                    () if q0 == q1 && k0 == k1 => Full,
                    () => Partial,
                }
            }
            Rule::Dense(m) => DenseLines::new(m, at, &queries, &keys).coverage(),
            Rule::Blocks { table, q_block, kv_block } => {
                let head = if table.shape()[0] == 1 { 0 } else { at.head };
                let (mut some, mut all) = (false, true);
                for i in queries.start / q_block..=(queries.end - 1) / q_block {
                    for j in keys.start / kv_block..=(keys.end - 1) / kv_block {
                        some |= table[[head, i, j]];
                        all &= table[[head, i, j]];
                    }
                }
                if all {
                    Full
                } else if some {
                    Partial
                } else {
                    Empty
                }
            }
            Rule::Custom(rule) => rule.coverage(at, queries, keys),
            Rule::All(masks) => masks.iter().fold(Full, |c, m| c.and(m.coverage(at, queries.clone(), keys.clone()))),
            Rule::Any(masks) => masks.iter().fold(Empty, |c, m| c.or(m.coverage(at, queries.clone(), keys.clone()))),
            Rule::Not(mask) => !mask.coverage(at, queries, keys),
        }
    }

    /// A part of `keys` outside which none of the queries sees anything.
    pub fn key_range(&self, at: &HeadPosition, queries: Range<usize>, keys: Range<usize>) -> Range<usize> {
        if queries.is_empty() || keys.is_empty() {
            return keys.start..keys.start;
        }
        let found = match &self.0 {
            Rule::Band { low, high } => {
                let start = low.map_or(keys.start as i64, |l| at.position(queries.start).saturating_add(l));
                let end = high.map_or(keys.end as i64, |h| at.position(queries.end - 1).saturating_add(h).saturating_add(1));
                index(start)..index(end)
            }
            Rule::FirstKeys(n) => 0..*n,
            Rule::KeyLengths(lengths) => 0..lengths[at.batch],
            Rule::Custom(rule) => rule.key_range(at, queries, keys.clone()),
            Rule::All(masks) => masks.iter().fold(keys.clone(), |r, m| m.key_range(at, queries.clone(), r)),
            Rule::Any(masks) => masks
                .iter()
                .map(|m| m.key_range(at, queries.clone(), keys.clone()))
                .filter(|r| !r.is_empty())
                .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
                .unwrap_or(keys.start..keys.start),
            _ => keys.clone(),
        };
        let start = found.start.clamp(keys.start, keys.end);
        start..found.end.clamp(start, keys.end)
    }

    /// Whether `coverage` is cheap: it does not look at every pair.
    pub(crate) fn has_cheap_coverage(&self) -> bool {
        match &self.0 {
            Rule::Dense(_) | Rule::Documents { .. } | Rule::Custom(_) => false,
            Rule::All(masks) | Rule::Any(masks) => masks.iter().all(Self::has_cheap_coverage),
            Rule::Not(mask) => mask.has_cheap_coverage(),
            _ => true,
        }
    }
}

fn index(position: i64) -> usize {
    usize::try_from(position).unwrap_or(0)
}
