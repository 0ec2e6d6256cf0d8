//! Errors. Everything that can be checked is checked once, before any work.

use std::fmt;

/// A shape, printed as `[2, 8, 128, 64]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape4(pub [usize; 4]);

impl fmt::Display for Shape4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl From<&[usize]> for Shape4 {
    fn from(s: &[usize]) -> Self {
        Self([s[0], s[1], s[2], s[3]])
    }
}

/// Why a call failed. All but [`Error::Interrupted`], [`Error::Threads`] and [`Error::OutOfMemory`] are found before any work: buffers of
/// the caller's are then as they were. After these three, buffers that were given to an `*_into` call or to `backward_part` hold
/// unspecified values; states of pieces are as they were after any error.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    /// The batch dimensions of two operands differ.
    #[error("{operand} {shape} and q {q} differ in batch; broadcast with a stride of 0 where one entry serves all")]
    Batch { operand: &'static str, shape: Shape4, q: Shape4 },
    /// k and v have different numbers of heads.
    #[error("k {k} and v {v} differ in heads; both need heads_kv")]
    KeyValueHeads { k: Shape4, v: Shape4 },
    /// heads_q is not a multiple of heads_kv.
    #[error("q {q} has {heads_q} heads and k {k} has {heads_kv}; heads_q must be a multiple of heads_kv")]
    HeadGroups { q: Shape4, k: Shape4, heads_q: usize, heads_kv: usize },
    /// q and k have different head dimensions.
    #[error("q {q} and k {k} differ in head_dim (the last axis)")]
    HeadDim { q: Shape4, k: Shape4 },
    /// k and v have different lengths.
    #[error("k {k} and v {v} differ in length (axis 2); every key needs one value")]
    KeyValueLength { k: Shape4, v: Shape4 },
    /// A buffer handed in for results has the wrong shape.
    #[error("{operand} has shape {got:?}, expected {expected:?}")]
    OutputShape { operand: &'static str, got: Vec<usize>, expected: Vec<usize> },
    /// A mask or bias cannot be broadcast to the scores.
    #[error("{operand} {shape} cannot be broadcast to the scores {scores} (batch, heads_q, seq_q, seq_kv); each axis must be 1 or equal")]
    Broadcast { operand: &'static str, shape: Shape4, scores: Shape4 },
    /// A per-batch, per-head or per-token list has the wrong length.
    #[error("{operand} has {got} entries, expected {expected} ({per})")]
    Length { operand: &'static str, got: usize, expected: usize, per: &'static str },
    /// A key length is longer than the keys there are.
    #[error("key_lengths[{batch}] is {length}, but k has only {seq_kv} keys")]
    KeyLength { batch: usize, length: usize, seq_kv: usize },
    /// A number that must be finite (or positive) is not.
    #[error("{name} is {value}; it must be {requirement}")]
    Number { name: &'static str, value: f64, requirement: &'static str },
    /// A count that must be at least one is zero.
    #[error("{name} is 0; it must be at least 1")]
    Zero { name: &'static str },
    /// A SIMD level was forced that this CPU does not have.
    #[error("SIMD level not available: {asked}; this CPU has {available}")]
    Level { asked: String, available: String },
    /// Worker threads could not be started.
    #[error("could not start {threads} threads: {reason}")]
    Threads { threads: usize, reason: String },
    /// Two settings of one option contradict each other.
    #[error("{option} was given twice, as {first} and as {second}; give it once")]
    Conflict { option: &'static str, first: String, second: String },
    /// Memory for a result could not be allocated.
    #[error("no memory for {what}: {bytes} bytes")]
    OutOfMemory { what: &'static str, bytes: usize },
    /// The flag of [`crate::Attention::interrupt`] was raised.
    #[error("interrupted; output buffers may be partly written")]
    Interrupted,
    /// Cumulative lengths that do not start with 0, fall, or end at another length.
    #[error("{operand}[{index}] is {value}; cumulative lengths start with 0, do not fall and end with the number of tokens, {tokens}")]
    CumulativeLengths { operand: &'static str, index: usize, value: usize, tokens: usize },
    /// A combination of options that is not supported.
    #[error("not supported: {what}")]
    Unsupported { what: &'static str },
    /// A range outside of its axis.
    #[error("{operand} {start}..{end} is not inside 0..{len}")]
    Range { operand: &'static str, start: usize, end: usize, len: usize },
    /// A piece with bounds that would change the order of sums.
    #[error("{operand} {start}..{end} of {len} are not a valid piece; pieces are contiguous, with bounds that are multiples of 256")]
    Piece { operand: &'static str, start: usize, end: usize, len: usize },
    /// A piece of keys that comes again, too early, or after the last one.
    #[error(
        "keys {start}..{end} of {len} are out of order: the state has absorbed the keys up to {next}; give each piece once, in key order"
    )]
    PieceOrder { start: usize, end: usize, next: usize, len: usize },
    /// A running state of another call, or bytes that are not a state.
    #[error("the running state has {got} {what}, expected {expected}; continue with the same rows and the next keys")]
    State { what: &'static str, got: usize, expected: usize },
    /// A result would have more elements than memory can address.
    #[error("{what} of shape {shape} is too large to address")]
    TooLarge { what: &'static str, shape: Shape4 },
}

impl From<regard_simd::MissingLevel> for Error {
    fn from(regard_simd::MissingLevel { asked, available }: regard_simd::MissingLevel) -> Self {
        Self::Level { asked, available }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn check_length(operand: &'static str, got: usize, expected: usize, per: &'static str) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::Length { operand, got, expected, per }) }
}

pub(crate) fn check_shape(operand: &'static str, got: &[usize], expected: &[usize]) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::OutputShape { operand, got: got.to_vec(), expected: expected.to_vec() }) }
}

/// Elements of eight bytes that a process can address: 2^44, or 2^28 with addresses of 32 bits.
const MOST_ELEMENTS: usize = isize::MAX as usize >> if usize::BITS == 64 { 19 } else { 3 };

/// The number of elements, if memory can be addressed for them.
pub(crate) fn checked_len(what: &'static str, shape: [usize; 4]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .filter(|&n| n <= MOST_ELEMENTS)
        .ok_or(Error::TooLarge { what, shape: Shape4(shape) })
}
