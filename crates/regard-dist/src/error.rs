//! Errors, which name the rank and the data.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a message was not sent or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The other rank has disconnected.
    Disconnected,
    /// Nothing arrived within this time.
    Timeout(Duration),
}

/// Why a call over several ranks failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of a variant describes its fields")]
pub enum Error {
    /// The library refused the call.
    #[error(transparent)]
    Attention(#[from] regard::Error),
    /// A rank has disconnected.
    #[error("rank {rank} needs {what} of rank {from}, which is disconnected; start the job again")]
    Disconnected { rank: usize, from: usize, what: String },
    /// A rank sent nothing within the timeout.
    #[error("rank {rank} waited {} s for {what} of rank {from}; that rank has stopped, or the network is down", .waited.as_secs_f64())]
    Timeout { rank: usize, from: usize, what: String, waited: Duration },
    /// Ranks whose calls differ.
    #[error(
        "rank {rank} has {mine}, and rank {from} has {theirs}; give all ranks the same shapes, options, partition, program and CPU level"
    )]
    Mismatch { rank: usize, from: usize, mine: String, theirs: String },
    /// Another rank refuses the call; this one could do its part.
    #[error("rank {rank} stops, because rank {from} refuses the call: {reason}")]
    Refused { rank: usize, from: usize, reason: String },
    /// A thread that the system does not start.
    #[error("cannot start a thread for {purpose}: {reason}; allow this user more processes (ulimit -u)")]
    Thread { purpose: &'static str, reason: String },
    /// A message of the wrong length.
    #[error("rank {rank} received {got} bytes for {what} of rank {from}, and expected {expected}")]
    Length { rank: usize, from: usize, what: String, got: usize, expected: usize },
    /// A running state that this rank cannot continue.
    #[error("rank {rank} cannot continue from {what} of rank {from}: {reason}")]
    State { rank: usize, from: usize, what: String, reason: Box<regard::Error> },
    /// A partition that is not possible.
    #[error("{what} is {got}; it must be {requirement}")]
    Partition { what: &'static str, got: usize, requirement: &'static str },
    /// A plan whose simulation takes too long.
    #[error(
        "{pieces} pieces of keys for {ranks} ranks in a group of heads are too many to simulate; plan larger blocks, more groups of \
            heads, or fewer tokens"
    )]
    Plan { pieces: usize, ranks: usize },
    /// A file that cannot be used.
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// An input that another program wrote to during the job.
    #[error("{}: it changed while it was read ({before} bytes before, {after} bytes now); start again when it is complete", path.display())]
    Changed { path: PathBuf, before: u64, after: u64 },
    /// A file that cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Write { path: PathBuf, reason: String },
    /// A file at the place of the results that was not there when the job began.
    #[error("{}: this file was created during the job, and is not replaced; the results are in {}", path.display(), kept.display())]
    Appeared { path: PathBuf, kept: PathBuf },
    /// Files of q, k and v whose shapes do not fit.
    #[error("q {q:?}, k {k:?} and v {v:?} do not fit: {problem}")]
    Shapes { q: [usize; 4], k: [usize; 4], v: [usize; 4], problem: &'static str },
    /// Results that are implausibly large.
    #[error("results of shape {shape:?} would take {bytes:.3e} bytes, and q, k and v have {inputs}; check their shapes")]
    Results { shape: [usize; 4], bytes: f64, inputs: usize },
    /// Groups of heads that do not divide ranks and heads.
    #[error("{groups} groups of heads do not fit {ranks} ranks and {heads} heads of keys; the number of groups must divide both")]
    Mesh { groups: usize, ranks: usize, heads: usize },
    /// Queries and keys that are not the same tokens.
    #[error("{queries} queries and {keys} keys: several ranks need as many queries as keys; use one rank, or more groups of heads")]
    Lengths { queries: usize, keys: usize },
    /// A tensor that does not have this rank's tokens.
    #[error("{operand} of rank {rank} has shape {got:?}; its tokens (axis 2) must be the {expected} that the partition gives it")]
    Tokens { operand: &'static str, rank: usize, got: Vec<usize>, expected: usize },
    /// Another operand whose shape does not fit this rank's tokens.
    #[error("{operand} of rank {rank} has shape {got:?}; it must be {expected:?}")]
    Operand { operand: &'static str, rank: usize, got: Vec<usize>, expected: Vec<usize> },
}

impl Error {
    pub(crate) fn write(path: &Path, reason: impl ToString) -> Self {
        Self::Write { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
