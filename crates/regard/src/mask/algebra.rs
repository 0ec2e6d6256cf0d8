//! Masks: which keys each query attends to. True means "may attend".
//!
//! A mask is a small expression: leaves joined by `&`, `|` and `!`. It is never expanded to a matrix: per tile it
//! gives a range of keys outside which nothing is visible, a [`TileCoverage`] (an empty tile is skipped, a full one takes the
//! path without masks), and, for partial tiles, one bit per query and key.
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

use super::coverage::TileCoverage;
use crate::arrays::CowBase;
use crate::error::{Error, Result, Shape4, check_length};
use ndarray::{CowArray, Ix2, Ix3, Ix4};
use std::borrow::Cow;
use std::ops::{BitAnd, BitOr, Not, Range};

/// A batch entry and a query head, with the position of its first query.
#[derive(Debug, Clone, Copy)]
pub struct HeadPosition {
    /// The batch entry.
    pub batch: usize,
    /// The query head.
    pub head: usize,
    /// The position of query 0 on the key axis.
    pub q_offset: i64,
}

impl HeadPosition {
    /// The position of a query on the key axis.
    pub fn position(&self, query: usize) -> i64 {
        self.q_offset.saturating_add(query as i64)
    }
}

/// A user-defined mask.
///
/// `visible` decides; `coverage` and `key_range` may be conservative. If they are wrong the result is wrong, but memory stays safe.
///
/// ```
/// use regard::{Attention, Mask, MaskRule, HeadPosition};
///
/// /// Every second key, looking back.
/// struct Dilated;
/// impl MaskRule for Dilated {
///     fn visible(&self, _: &HeadPosition, query: usize, key: usize) -> bool {
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
    fn visible(&self, at: &HeadPosition, query: usize, key: usize) -> bool;

    /// How much of a tile is visible; "partial" is always a correct answer.
    fn coverage(&self, at: &HeadPosition, queries: Range<usize>, keys: Range<usize>) -> TileCoverage {
        let _ = (at, queries, keys);
        TileCoverage::Partial
    }

    /// A part of `keys` outside which none of the queries sees anything; all of `keys` is always a correct answer.
    fn key_range(&self, at: &HeadPosition, queries: Range<usize>, keys: Range<usize>) -> Range<usize> {
        let _ = (at, queries);
        keys
    }
}

/// Which keys each query may attend to. See the module documentation.
#[derive(Debug, Clone, Default)]
pub struct Mask<'a>(pub(super) Rule<'a>);

#[derive(Debug, Clone, Default)]
pub(super) enum Rule<'a> {
    #[default]
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

impl<'a> Mask<'a> {
    /// Everything is visible.
    pub const fn everything() -> Self {
        Self(Rule::Everything)
    }

    /// No key after the query's own position.
    pub const fn causal() -> Self {
        Self(Rule::Band { low: None, high: Some(0) })
    }

    /// Anti-causal: no key before the query's own position.
    pub const fn anti_causal() -> Self {
        Self(Rule::Band { low: Some(0), high: None })
    }

    /// [`Mask::anti_causal`] by another name.
    pub const fn reverse() -> Self {
        Self::anti_causal()
    }

    /// Only keys after the query's own position; the last row is empty.
    pub const fn strictly_future() -> Self {
        Self(Rule::Band { low: Some(1), high: None })
    }

    /// At most `left` keys before and `right` keys after the query's own position; `None` is unbounded.
    pub fn window(left: Option<usize>, right: Option<usize>) -> Self {
        // More than any distance is unbounded.
        let reach = |n: usize| i64::try_from(n).ok();
        Self(Rule::Band { low: left.and_then(reach).map(|n| -n), high: right.and_then(reach) })
    }

    /// The first `count` keys ("sinks").
    pub const fn first_keys(count: usize) -> Self {
        Self(Rule::FirstKeys(count))
    }

    /// The first `lengths[b]` keys of batch entry `b`.
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

    /// A user-defined rule.
    pub fn custom(rule: &'a dyn MaskRule) -> Self {
        Self(Rule::Custom(rule))
    }

    /// May query `query` attend to key `key`?
    pub fn visible(&self, at: &HeadPosition, query: usize, key: usize) -> bool {
        match &self.0 {
            Rule::Everything => true,
            Rule::Band { low, high } => {
                let d = (key as i64).saturating_sub(at.position(query));
                low.is_none_or(|l| l <= d) && high.is_none_or(|h| d <= h)
            }
            Rule::FirstKeys(n) => key < *n,
            Rule::KeyLengths(lengths) => key < lengths[at.batch],
            Rule::Documents { queries, keys } => queries[[row(queries, at), query]] == keys[[row(keys, at), key]],
            Rule::Dense(m) => m[broadcast_index(m.shape(), [at.batch, at.head, query, key])],
            Rule::Blocks { table, q_block, kv_block } => {
                let head = if table.shape()[0] == 1 { 0 } else { at.head };
                table[[head, query / q_block, key / kv_block]]
            }
            Rule::Custom(rule) => rule.visible(at, query, key),
            Rule::All(masks) => masks.iter().all(|m| m.visible(at, query, key)),
            Rule::Any(masks) => masks.iter().any(|m| m.visible(at, query, key)),
            Rule::Not(mask) => !mask.visible(at, query, key),
        }
    }

    /// Check that all indices of the other methods are in range for the batch entries `entries`; lengths of other entries may
    /// belong to longer sequences.
    pub(crate) fn validate(&self, scores: [usize; 4], entries: &Range<usize>) -> Result<()> {
        let [batch, heads, seq_q, seq_kv] = scores;
        match &self.0 {
            Rule::Everything | Rule::Band { .. } | Rule::FirstKeys(_) | Rule::Custom(_) => Ok(()),
            Rule::KeyLengths(lengths) => {
                check_length("key_lengths", lengths.len(), batch, "one per batch entry")?;
                match lengths.iter().enumerate().find(|&(b, &n)| entries.contains(&b) && n > seq_kv) {
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
            Rule::All(masks) | Rule::Any(masks) => masks.iter().try_for_each(|m| m.validate(scores, entries)),
            Rule::Not(mask) => mask.validate(scores, entries),
        }
    }

    pub(crate) const fn is_everything(&self) -> bool {
        matches!(self.0, Rule::Everything)
    }
}

impl std::fmt::Debug for dyn MaskRule + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a rule of the user's")
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

pub(super) fn row(ids: &CowArray<'_, u32, Ix2>, at: &HeadPosition) -> usize {
    if ids.nrows() == 1 { 0 } else { at.batch }
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
