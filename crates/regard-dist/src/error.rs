//! What can go wrong between ranks, with the rank and the keys in every message.

use std::path::PathBuf;
use std::time::Duration;

/// Why a message did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The other rank is gone.
    Lost,
    /// Nothing came for so long: the watchdog of the exchange.
    Waited(Duration),
}

/// Why a call over several ranks ended.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of a variant says what its fields are")]
pub enum Error {
    /// The library refused the call.
    #[error(transparent)]
    Attention(#[from] regard::Error),
    /// A rank is gone.
    #[error("rank {rank} needs {what} of rank {from}, which is gone; start the job again")]
    Lost { rank: usize, from: usize, what: String },
    /// A rank says nothing any more.
    #[error("rank {rank} waited {} s for {what} of rank {from}; it may have stopped, or the network is cut", .waited.as_secs_f64())]
    Waited { rank: usize, from: usize, what: String, waited: Duration },
    /// Ranks that do not compute the same.
    #[error("rank {rank} has {mine}, and rank {from} has {theirs}; all ranks need the same shapes, partition, program and CPU level")]
    Differ { rank: usize, from: usize, mine: String, theirs: String },
    /// A message that is not what it should be.
    #[error("rank {rank} got {got} bytes for {what} of rank {from}, and expected {expected}")]
    Length { rank: usize, from: usize, what: String, got: usize, expected: usize },
    /// A state of rows that this rank cannot go on with.
    #[error("rank {rank} cannot go on from {what} of rank {from}: {reason}")]
    State { rank: usize, from: usize, what: String, reason: Box<regard::Error> },
    /// A partition that cannot be.
    #[error("{what} is {got}; it must be {requirement}")]
    Partition { what: &'static str, got: usize, requirement: &'static str },
    /// A plan that would take too long.
    #[error(
        "{pieces} pieces of keys for {ranks} ranks in a group of heads are too many to be played through: plan larger blocks, more groups of heads, or fewer tokens"
    )]
    Plan { pieces: usize, ranks: usize },
    /// A file that cannot be used.
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// A file that cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write { path: PathBuf, reason: String },
    /// Something is at the place of the results that was not there when the job began.
    #[error("{}: it appeared meanwhile, and is left alone; the results are in {}", path.display(), kept.display())]
    Appeared { path: PathBuf, kept: PathBuf },
    /// Files of q, k and v that do not belong together.
    #[error("q {q:?}, k {k:?} and v {v:?} do not fit: {problem}")]
    Shapes { q: [usize; 4], k: [usize; 4], v: [usize; 4], problem: &'static str },
    /// Results that nobody can want.
    #[error("results of shape {shape:?} would take {bytes:.3e} bytes, and q, k and v have {inputs}: are their shapes right?")]
    Results { shape: [usize; 4], bytes: f64, inputs: usize },
    /// Heads that cannot be shared so.
    #[error("{groups} groups of heads do not fit {ranks} ranks and {heads} heads of keys; the number of groups must divide both")]
    Mesh { groups: usize, ranks: usize, heads: usize },
    /// Queries and keys that are not the same tokens.
    #[error(
        "{queries} queries and {keys} keys: several ranks share tokens, of which there must be as many; use one rank, or more groups of heads"
    )]
    Lengths { queries: usize, keys: usize },
    /// A tensor that is not this rank's part.
    #[error("{operand} of rank {rank} has shape {got:?}; its tokens (axis 2) must be the {expected} that the partition gives it")]
    Tokens { operand: &'static str, rank: usize, got: Vec<usize>, expected: usize },
}

impl Error {
    pub(crate) fn write(path: &std::path::Path, reason: impl ToString) -> Self {
        Self::Write { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
