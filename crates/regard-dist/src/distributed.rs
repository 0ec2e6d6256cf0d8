//! [`Distributed`]: a call that several ranks share, and the checks that all of them make before any waits.

use crate::comm::Comm;
use crate::error::{Error, Result};
use crate::exchange::{Exchange, WireElement};
use crate::partition::{Block, Partition};
use ndarray::{ArrayView4, Axis, s};
use regard::{Attention, GlobalOffset, RunningAttention};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Attention of tokens that several ranks share. Every rank makes the same calls, each with its own tokens: the blocks that the partition
/// gives it, one after the other.
pub struct Distributed<'a, X> {
    pub(crate) attention: &'a Attention<'a>,
    pub(crate) comm: Comm<'a, X>,
    pub(crate) partition: &'a Partition,
    pub(crate) progress: Option<&'a (dyn Fn(usize) + Sync)>,
    /// Nanoseconds.
    pub(crate) waited: AtomicU64,
}

/// The tokens of a range, axis 2.
pub(crate) fn tokens<'x, T>(x: &'x ArrayView4<'_, T>, range: &Range<usize>) -> ArrayView4<'x, T> {
    x.slice(s![.., .., range.clone(), ..])
}

/// The shape of a tensor, with another number of tokens.
pub(crate) fn shape_of<E>(x: &ArrayView4<'_, E>, tokens: usize) -> [usize; 4] {
    [x.len_of(Axis(0)), x.len_of(Axis(1)), tokens, x.len_of(Axis(3))]
}

/// A block of this rank.
#[derive(Debug, Clone)]
pub(crate) struct LocalBlock {
    /// Its index among all blocks.
    pub(crate) index: usize,
    /// Its tokens in the sequence.
    pub(crate) range: Range<usize>,
    /// Its tokens in this rank's tensors.
    pub(crate) local: Range<usize>,
}

impl<'a, X: Exchange> Distributed<'a, X> {
    /// Attention with these options, by ranks that share the tokens as the partition says.
    pub fn new(attention: &'a Attention<'a>, exchange: &'a X, partition: &'a Partition) -> Self {
        Self { attention, comm: Comm::new(exchange), partition, progress: None, waited: AtomicU64::new(0) }
    }

    /// Call back during a forward pass, with the number of keys that this rank has absorbed.
    #[must_use]
    pub fn with_progress(mut self, callback: &'a (dyn Fn(usize) + Sync)) -> Self {
        self.progress = Some(callback);
        self
    }

    /// How long forward passes have waited for keys.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let rank = self.comm.rank();
        (0..self.partition.ranks()).filter(move |&other| other != rank)
    }

    /// The blocks of this rank.
    pub(crate) fn local_blocks(&self) -> Vec<LocalBlock> {
        let blocks = self.partition.blocks().iter().enumerate().filter(|(_, block)| block.rank == self.comm.rank());
        let mut first = 0;
        let place = |(index, Block { tokens, .. }): (usize, &Block)| {
            let local = first..first + tokens.len();
            first = local.end;
            LocalBlock { index, range: tokens.clone(), local }
        };
        blocks.map(place).collect()
    }

    /// Check shapes and options on every rank before any of them waits for another. Returned is the shape of all scores. `more` are checks
    /// of this rank's other operands.
    pub(crate) fn check<E: WireElement>(&self, [q, k, v]: [&ArrayView4<'_, E>; 3], more: Result<()>, call: &str) -> Result<[usize; 4]> {
        let tokens = self.partition.tokens();
        let scores = [q.len_of(Axis(0)), q.len_of(Axis(1)), tokens, tokens];
        let checked = self.check_tokens([("q", q), ("k", k), ("v", v)]).and(more);
        self.comm.agree_or_refuse(checked.and_then(|()| self.plan_text([q, k, v], scores, call)))?;
        Ok(scores)
    }

    /// What the library refuses, it refuses on every rank before keys are sent.
    pub(crate) fn check_options<E: WireElement>(&self, [q, k, v]: [&ArrayView4<'_, E>; 3], scores: [usize; 4]) -> Result<()> {
        let start = GlobalOffset { batch: 0, query: 0, key: 0, whole: scores };
        let [q, k, v] = [q, k, v].map(|x| tokens(x, &(0..0)));
        self.attention.forward_part(start, q, k, v, &mut RunningAttention::default())?;
        Ok(())
    }

    /// Operands with the tokens of this rank.
    pub(crate) fn check_tokens<E, const N: usize>(&self, operands: [(&'static str, &ArrayView4<'_, E>); N]) -> Result<()> {
        let (rank, expected) = (self.comm.rank(), self.partition.count(self.comm.rank()));
        let wrong = operands.into_iter().find(|(_, x)| x.len_of(Axis(2)) != expected);
        wrong.map_or(Ok(()), |(operand, x)| Err(Error::Tokens { operand, rank, got: x.shape().to_vec(), expected }))
    }

    /// An operand of this shape.
    pub(crate) fn check_operand(&self, operand: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
        let rank = self.comm.exchange.name(self.comm.rank());
        if got == expected { Ok(()) } else { Err(Error::Operand { operand, rank, got: got.to_vec(), expected: expected.to_vec() }) }
    }

    /// All that has to be the same on all ranks: call, type, shapes, partition, options, program.
    pub(crate) fn plan_text<E: WireElement>(&self, [q, k, v]: [&ArrayView4<'_, E>; 3], scores: [usize; 4], call: &str) -> Result<String> {
        if self.partition.ranks() != self.comm.exchange.ranks() {
            let got = self.partition.ranks();
            return Err(Error::Partition { what: "the number of ranks of the partition", got, requirement: "that of the exchange" });
        }
        let shape = |x: &ArrayView4<'_, E>| format!("[{}, {}, _, {}]", x.len_of(Axis(0)), x.len_of(Axis(1)), x.len_of(Axis(3)));
        let (element, tokens, blocks) = (std::any::type_name::<E>(), self.partition.tokens(), self.partition.blocks());
        let owners: String = blocks.iter().map(|block| format!(" {}:{}", block.tokens.start, block.rank)).collect();
        Ok(format!(
            "{call} of {element}; q {}; k {}; v {}; {tokens} tokens in {} blocks ({:016x}); {}; version {}",
            shape(q),
            shape(k),
            shape(v),
            blocks.len(),
            fnv1a(owners.as_bytes()),
            self.attention.fingerprint::<E>(scores)?,
            env!("CARGO_PKG_VERSION")
        ))
    }
}

/// A 64-bit digest.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
