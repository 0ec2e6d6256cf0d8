//! Masks: who may look at whom. True means "may attend".
//!
//! A mask is a small expression: leaves joined by `&`, `|` and `!`. It is never laid out as a matrix: the kernels ask it
//! about one tile at a time, and it answers with a range of keys outside which nothing is visible, with a
//! [`TileCoverage`] (an empty tile is skipped, a full one takes the path without masks), and, for the tiles in between,
//! with one bit per query and key.
//!
//! Positions: query `i` of batch entry `b` stands at `i + q_offset[b]` on the key axis. For 4 queries and 6 keys:
//!
//! ```text
//! causal, q_offset 0   causal, q_offset 2   window(1, 1)   first_keys(2) | window(1, 0)
//!     # . . . . .         # # # . . .       # # . . . .        # # . . . .
//!     # # . . . .         # # # # . .       # # # . . .        # # . . . .
//!     # # # . . .         # # # # # .       . # # # . .        # # # . . .
//!     # # # # . .         # # # # # #       . . # # # .        # # # # . .
//! ```

use crate::dense_mask::{AndLines, DenseLines};
use crate::error::{Error, Result, Shape4};
use crate::score::KV_TILE;
use crate::simd::Lanes;
use ndarray::{ArrayBase, ArrayView4, CowArray, CowRepr, Ix2, Ix3, Ix4};
use std::borrow::Cow;
use std::ops::{BitAnd, BitOr, Not, Range};

/// How much of a tile is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TileCoverage {
    /// Nothing: the tile is skipped.
    Empty,
    /// Something: every pair is asked for.
    Partial,
    /// Everything: the fast path.
    Full,
}

impl TileCoverage {
    /// Coverage of the intersection, as far as the coverage of the parts tells.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Empty, _) | (_, Self::Empty) => Self::Empty,
            (Self::Full, Self::Full) => Self::Full,
            _ => Self::Partial,
        }
    }

    /// Coverage of the union, as far as the coverage of the parts tells.
    pub fn or(self, other: Self) -> Self {
        !(!self).and(!other)
    }

    /// Coverage of two tiles side by side.
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

/// Where a mask is asked: a batch entry and a query head.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The batch entry.
    pub batch: usize,
    /// The query head.
    pub head: usize,
    /// The position of query 0 on the key axis.
    pub q_offset: i64,
}

impl Place {
    /// The position of a query on the key axis.
    pub fn position(&self, query: usize) -> i64 {
        self.q_offset.saturating_add(query as i64)
    }
}

/// A mask of the user's own.
///
/// `visible` decides; `coverage` and `key_range` may say less than they could, never more.
/// A wrong answer of these gives a wrong result, not an unsafe one.
///
/// ```
/// use regard::{Attention, Mask, MaskRule, Place};
///
/// /// Every second key, looking back.
/// struct Dilated;
/// impl MaskRule for Dilated {
///     fn visible(&self, _: &Place, query: usize, key: usize) -> bool {
///         key <= query && (query - key) % 2 == 0
///     }
/// }
/// let x = ndarray::Array4::<f32>::ones((1, 1, 5, 4));
/// let w = Attention::new().mask(Mask::custom(&Dilated)).weights(&x, &x)?;
/// assert_eq!(w[[0, 0, 4, 0]], 1.0 / 3.0);
/// assert_eq!(w[[0, 0, 4, 1]], 0.0);
/// # Ok::<(), regard::Error>(())
/// ```
pub trait MaskRule: Send + Sync {
    /// May this query attend to this key?
    fn visible(&self, place: &Place, query: usize, key: usize) -> bool;

    /// How much of a tile is visible; "partial" is always a correct answer.
    fn coverage(&self, place: &Place, queries: Range<usize>, keys: Range<usize>) -> TileCoverage {
        let _ = (place, queries, keys);
        TileCoverage::Partial
    }

    /// A part of `keys` outside which none of the queries sees anything; all of `keys` is always a correct answer.
    fn key_range(&self, place: &Place, queries: Range<usize>, keys: Range<usize>) -> Range<usize> {
        let _ = (place, queries);
        keys
    }
}

/// Which keys each query may attend to. See the module documentation.
#[derive(Clone)]
pub struct Mask<'a>(Rule<'a>);

/// A `CowArray` with its element type spelled out, without which it would not be covariant in its lifetime.
pub(crate) type CowBase<'a, A, D> = ArrayBase<CowRepr<'a, A>, D, A>;

#[derive(Clone)]
enum Rule<'a> {
    Everything,
    /// Visible iff `low <= key - position <= high`.
    Band {
        low: Option<i64>,
        high: Option<i64>,
    },
    FirstKeys(usize),
    KeyLengths(Cow<'a, [usize]>),
    Documents {
        queries: CowBase<'a, u32, Ix2>,
        keys: CowBase<'a, u32, Ix2>,
    },
    Dense(CowBase<'a, bool, Ix4>),
    Blocks {
        table: CowBase<'a, bool, Ix3>,
        q_block: usize,
        kv_block: usize,
    },
    Custom(&'a dyn MaskRule),
    All(Vec<Mask<'a>>),
    Any(Vec<Mask<'a>>),
    Not(Box<Mask<'a>>),
}

fn clamp(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

impl<'a> Mask<'a> {
    /// Everything is visible.
    pub const fn everything() -> Self {
        Self(Rule::Everything)
    }

    /// No key after the query's own position.
    pub const fn causal() -> Self {
        Self(Rule::Band { low: None, high: Some(0) })
    }

    /// No key before the query's own position: the wrong direction, on purpose.
    pub const fn reverse() -> Self {
        Self(Rule::Band { low: Some(0), high: None })
    }

    /// Only keys after the query's own position; the last row is empty.
    pub const fn strictly_future() -> Self {
        Self(Rule::Band { low: Some(1), high: None })
    }

    /// At most `left` keys before and `right` keys after the query's own position; `None` is unbounded.
    pub fn window(left: Option<usize>, right: Option<usize>) -> Self {
        Self(Rule::Band { low: left.map(|n| -clamp(n)), high: right.map(clamp) })
    }

    /// The first `count` keys ("sinks").
    pub const fn first_keys(count: usize) -> Self {
        Self(Rule::FirstKeys(count))
    }

    /// Only the first `lengths[b]` keys of batch entry `b` exist.
    pub fn key_lengths(lengths: impl Into<Cow<'a, [usize]>>) -> Self {
        Self(Rule::KeyLengths(lengths.into()))
    }

    /// Packed sequences: a query sees the keys with its own document id. Ids are `[batch, seq]`; a batch of 1 serves all.
    pub fn documents(queries: impl Into<CowArray<'a, u32, Ix2>>, keys: impl Into<CowArray<'a, u32, Ix2>>) -> Self {
        Self(Rule::Documents { queries: queries.into(), keys: keys.into() })
    }

    /// One truth value per pair, `[batch, heads_q, seq_q, seq_kv]`; an axis of length 1 is broadcast.
    pub fn dense(visible: impl Into<CowArray<'a, bool, Ix4>>) -> Self {
        Self(Rule::Dense(visible.into()))
    }

    /// One truth value per block of `q_block` queries and `kv_block` keys, `[heads or 1, q blocks, kv blocks]`.
    /// Queries count from 0, whatever `q_offset` is.
    pub fn blocks(table: impl Into<CowArray<'a, bool, Ix3>>, q_block: usize, kv_block: usize) -> Self {
        Self(Rule::Blocks { table: table.into(), q_block, kv_block })
    }

    /// A rule of the user's own.
    pub fn custom(rule: &'a dyn MaskRule) -> Self {
        Self(Rule::Custom(rule))
    }

    /// May query `query` attend to key `key`?
    pub fn visible(&self, place: &Place, query: usize, key: usize) -> bool {
        match &self.0 {
            Rule::Everything => true,
            Rule::Band { low, high } => {
                let d = key as i64 - place.position(query);
                low.is_none_or(|l| l <= d) && high.is_none_or(|h| d <= h)
            }
            Rule::FirstKeys(n) => key < *n,
            Rule::KeyLengths(lengths) => key < lengths[place.batch],
            Rule::Documents { queries, keys } => queries[[row(queries, place), query]] == keys[[row(keys, place), key]],
            Rule::Dense(m) => m[broadcast_index(m.shape(), [place.batch, place.head, query, key])],
            Rule::Blocks { table, q_block, kv_block } => {
                let head = if table.shape()[0] == 1 { 0 } else { place.head };
                table[[head, query / q_block, key / kv_block]]
            }
            Rule::Custom(rule) => rule.visible(place, query, key),
            Rule::All(masks) => masks.iter().all(|m| m.visible(place, query, key)),
            Rule::Any(masks) => masks.iter().any(|m| m.visible(place, query, key)),
            Rule::Not(mask) => !mask.visible(place, query, key),
        }
    }

    /// How much of a tile is visible.
    pub fn coverage(&self, place: &Place, queries: Range<usize>, keys: Range<usize>) -> TileCoverage {
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
                let (least, most) =
                    (keys.start as i64 - place.position(queries.end - 1), (keys.end - 1) as i64 - place.position(queries.start));
                if low.is_some_and(|l| most < l) || high.is_some_and(|h| h < least) {
                    Empty
                } else if low.is_none_or(|l| l <= least) && high.is_none_or(|h| most <= h) {
                    Full
                } else {
                    Partial
                }
            }
            Rule::FirstKeys(n) => upto(*n),
            Rule::KeyLengths(lengths) => upto(lengths[place.batch]),
            Rule::Documents { queries: q, keys: k } => {
                let span = |ids: &CowArray<'_, u32, Ix2>, range: &Range<usize>| {
                    let ids = ids.row(row(ids, place));
                    range.clone().map(|i| ids[i]).fold((u32::MAX, 0), |(a, b), id| (a.min(id), b.max(id)))
                };
                let ((q0, q1), (k0, k1)) = (span(q, &queries), span(k, &keys));
                match () {
                    () if q1 < k0 || k1 < q0 => Empty,
                    () if q0 == q1 && k0 == k1 => Full,
                    () => Partial,
                }
            }
            Rule::Dense(m) => DenseLines::new(m, place, &queries).map_or(Partial, |lines| lines.coverage(&keys)),
            Rule::Blocks { table, q_block, kv_block } => {
                let head = if table.shape()[0] == 1 { 0 } else { place.head };
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
            Rule::Custom(rule) => rule.coverage(place, queries, keys),
            Rule::All(masks) => masks.iter().fold(Full, |c, m| c.and(m.coverage(place, queries.clone(), keys.clone()))),
            Rule::Any(masks) => masks.iter().fold(Empty, |c, m| c.or(m.coverage(place, queries.clone(), keys.clone()))),
            Rule::Not(mask) => !mask.coverage(place, queries, keys),
        }
    }

    /// A part of `keys` outside which none of the queries sees anything.
    pub fn key_range(&self, place: &Place, queries: Range<usize>, keys: Range<usize>) -> Range<usize> {
        if queries.is_empty() || keys.is_empty() {
            return keys.start..keys.start;
        }
        let found = match &self.0 {
            Rule::Band { low, high } => {
                let start = low.map_or(keys.start as i64, |l| place.position(queries.start).saturating_add(l));
                let end = high.map_or(keys.end as i64, |h| place.position(queries.end - 1).saturating_add(h).saturating_add(1));
                index(start)..index(end)
            }
            Rule::FirstKeys(n) => 0..*n,
            Rule::KeyLengths(lengths) => 0..lengths[place.batch],
            Rule::Custom(rule) => rule.key_range(place, queries, keys.clone()),
            Rule::All(masks) => masks.iter().fold(keys.clone(), |r, m| m.key_range(place, queries.clone(), r)),
            Rule::Any(masks) => masks
                .iter()
                .map(|m| m.key_range(place, queries.clone(), keys.clone()))
                .filter(|r| !r.is_empty())
                .reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
                .unwrap_or(keys.start..keys.start),
            _ => keys.clone(),
        };
        let start = found.start.clamp(keys.start, keys.end);
        start..found.end.clamp(start, keys.end)
    }

    /// `bits[j]` loses bit `r` where query `queries.start + r` does not see key `keys.start + j`. At most 32 queries
    /// and a tile of keys.
    pub(crate) fn and_bits<S: Lanes>(&self, simd: S, place: &Place, queries: Range<usize>, keys: Range<usize>, bits: &mut [u32]) {
        debug_assert!(queries.len() <= 32 && bits.len() == keys.len());
        match &self.0 {
            Rule::Everything => {}
            Rule::Band { low, high } => {
                let first = place.position(queries.start);
                for (bits, key) in bits.iter_mut().zip(keys) {
                    let d = key as i64 - first;
                    // low <= d - r <= high
                    let from = high.map_or(0, |h| d.saturating_sub(h));
                    let to = low.map_or(32, |l| d.saturating_sub(l).saturating_add(1));
                    *bits &= below(to) & !below(from);
                }
            }
            Rule::FirstKeys(n) => hide_from(bits, keys.start, *n),
            Rule::KeyLengths(lengths) => hide_from(bits, keys.start, lengths[place.batch]),
            Rule::Dense(m) => match DenseLines::new(m, place, &queries) {
                Some(lines) => simd.call(AndLines { lines, keys, bits }),
                None => self.and_bits_one_by_one(place, queries, keys, bits),
            },
            Rule::All(masks) => {
                for m in masks {
                    m.and_bits(simd, place, queries.clone(), keys.clone(), bits);
                }
            }
            Rule::Any(masks) => {
                let (mut any, mut one) = ([0; KV_TILE], [0; KV_TILE]);
                let (any, one) = (&mut any[..bits.len()], &mut one[..bits.len()]);
                for m in masks {
                    one.fill(u32::MAX);
                    m.and_bits(simd, place, queries.clone(), keys.clone(), one);
                    any.iter_mut().zip(&*one).for_each(|(a, o)| *a |= o);
                }
                bits.iter_mut().zip(&*any).for_each(|(b, a)| *b &= a);
            }
            Rule::Not(mask) => {
                let mut inner = [u32::MAX; KV_TILE];
                let inner = &mut inner[..bits.len()];
                mask.and_bits(simd, place, queries, keys, inner);
                bits.iter_mut().zip(&*inner).for_each(|(b, i)| *b &= !i);
            }
            Rule::Documents { .. } | Rule::Blocks { .. } | Rule::Custom(_) => self.and_bits_one_by_one(place, queries, keys, bits),
        }
    }

    fn and_bits_one_by_one(&self, place: &Place, queries: Range<usize>, keys: Range<usize>, bits: &mut [u32]) {
        for (bits, key) in bits.iter_mut().zip(keys) {
            for (r, query) in queries.clone().enumerate() {
                *bits &= !(u32::from(!self.visible(place, query, key)) << r);
            }
        }
    }

    /// Everything that the other methods index with is in range.
    pub(crate) fn validate(&self, scores: [usize; 4]) -> Result<()> {
        let [batch, heads, seq_q, seq_kv] = scores;
        match &self.0 {
            Rule::Everything | Rule::Band { .. } | Rule::FirstKeys(_) | Rule::Custom(_) => Ok(()),
            Rule::KeyLengths(lengths) => {
                check_length("key_lengths", lengths.len(), batch, "one per batch entry")?;
                match lengths.iter().enumerate().find(|&(_, &n)| n > seq_kv) {
                    Some((batch, &length)) => Err(Error::KeyLength { batch, length, seq_kv }),
                    None => Ok(()),
                }
            }
            Rule::Documents { queries, keys } => {
                for (ids, name, n, per) in
                    [(queries, "query document ids", seq_q, "one per query"), (keys, "key document ids", seq_kv, "one per key")]
                {
                    check_length(name, ids.ncols(), n, per)?;
                    if ids.nrows() != 1 {
                        check_length(name, ids.nrows(), batch, "rows, one per batch entry, or one for all")?;
                    }
                }
                Ok(())
            }
            Rule::Dense(m) => check_broadcast("mask", m.shape(), scores),
            Rule::Blocks { table, q_block, kv_block } => {
                for (name, n) in [("q_block", *q_block), ("kv_block", *kv_block)] {
                    if n == 0 {
                        return Err(Error::Zero { name });
                    }
                }
                let shape = table.shape();
                if shape[0] != 1 {
                    check_length("block table", shape[0], heads, "heads, or one for all")?;
                }
                check_length("block table", shape[1], seq_q.div_ceil(*q_block), "one per query block")?;
                check_length("block table", shape[2], seq_kv.div_ceil(*kv_block), "one per key block")
            }
            Rule::All(masks) | Rule::Any(masks) => masks.iter().try_for_each(|m| m.validate(scores)),
            Rule::Not(mask) => mask.validate(scores),
        }
    }

    /// Whether `coverage` is answered without looking at every pair, so that it may be asked at a fine grain.
    pub(crate) fn has_cheap_coverage(&self) -> bool {
        match &self.0 {
            Rule::Dense(_) | Rule::Documents { .. } | Rule::Custom(_) => false,
            Rule::All(masks) | Rule::Any(masks) => masks.iter().all(Self::has_cheap_coverage),
            Rule::Not(mask) => mask.has_cheap_coverage(),
            _ => true,
        }
    }

    pub(crate) const fn is_everything(&self) -> bool {
        matches!(self.0, Rule::Everything)
    }

    /// The key lengths, where the mask demands them of every pair; for the alignment of queries to the end.
    pub(crate) fn lengths(&self) -> Option<&[usize]> {
        match &self.0 {
            Rule::KeyLengths(lengths) => Some(lengths),
            Rule::All(masks) => masks.iter().find_map(Self::lengths),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Mask<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Rule::Everything => write!(f, "everything"),
            Rule::Band { low, high } => write!(f, "band({low:?}..={high:?})"),
            Rule::FirstKeys(n) => write!(f, "first_keys({n})"),
            Rule::KeyLengths(l) => write!(f, "key_lengths({l:?})"),
            Rule::Documents { .. } => write!(f, "documents"),
            Rule::Dense(m) => write!(f, "dense{:?}", m.shape()),
            Rule::Blocks { q_block, kv_block, .. } => write!(f, "blocks({q_block}x{kv_block})"),
            Rule::Custom(_) => write!(f, "custom"),
            Rule::All(m) => f.debug_tuple("all").field(m).finish(),
            Rule::Any(m) => f.debug_tuple("any").field(m).finish(),
            Rule::Not(m) => f.debug_tuple("not").field(m).finish(),
        }
    }
}

impl BitAnd for Mask<'_> {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Rule::Everything, rule) | (rule, Rule::Everything) => Self(rule),
            (Rule::All(mut a), rule) => {
                a.push(Self(rule));
                Self(Rule::All(a))
            }
            (a, b) => Self(Rule::All(vec![Self(a), Self(b)])),
        }
    }
}

impl BitOr for Mask<'_> {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Rule::Any(mut a), rule) => {
                a.push(Self(rule));
                Self(Rule::Any(a))
            }
            (a, b) => Self(Rule::Any(vec![Self(a), Self(b)])),
        }
    }
}

impl Not for Mask<'_> {
    type Output = Self;
    fn not(self) -> Self {
        Self(Rule::Not(Box::new(self)))
    }
}

impl<'a> From<ArrayView4<'a, bool>> for Mask<'a> {
    fn from(visible: ArrayView4<'a, bool>) -> Self {
        Self::dense(visible)
    }
}

/// The lowest `n` bits.
fn below(n: i64) -> u32 {
    match n {
        ..=0 => 0,
        1..=31 => (1 << n) - 1,
        _ => u32::MAX,
    }
}

fn hide_from(bits: &mut [u32], first_key: usize, end: usize) {
    let visible = end.saturating_sub(first_key).min(bits.len());
    bits[visible..].fill(0);
}

fn index(position: i64) -> usize {
    usize::try_from(position).unwrap_or(0)
}

fn row(ids: &CowArray<'_, u32, Ix2>, place: &Place) -> usize {
    if ids.nrows() == 1 { 0 } else { place.batch }
}

pub(crate) fn broadcast_index(shape: &[usize], at: [usize; 4]) -> [usize; 4] {
    std::array::from_fn(|a| if shape[a] == 1 { 0 } else { at[a] })
}

pub(crate) fn check_broadcast(operand: &'static str, shape: &[usize], scores: [usize; 4]) -> Result<()> {
    if shape.iter().zip(scores).all(|(&n, want)| n == want || n == 1) {
        Ok(())
    } else {
        Err(Error::Broadcast { operand, shape: shape.into(), scores: Shape4(scores) })
    }
}

pub(crate) fn check_length(operand: &'static str, got: usize, expected: usize, per: &'static str) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::Length { operand, got, expected, per }) }
}
