//! The ranks that share a training, and their messages.

use crate::error::{Error, Result};
use crate::layers::loss::Loss;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The ranks that share a training. Messages between two of them arrive in the order in which they were sent.
pub trait Ranks {
    /// This rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// Send, without waiting for the receiver. `what` is what this rank needs of the other, such as credit for the data.
    ///
    /// # Errors
    /// [`Error::Ranks`] when the other rank has disconnected.
    fn send(&self, to: usize, bytes: Vec<u8>, what: &dyn Fn() -> String) -> Result<()>;

    /// Wait for the next message.
    ///
    /// # Errors
    /// [`Error::Ranks`] when the other rank has disconnected, or sends nothing within the timeout of the transport.
    fn receive(&self, from: usize, what: &dyn Fn() -> String) -> Result<Vec<u8>>;
}

/// A training by one rank.
#[derive(Debug, Clone, Copy)]
pub struct SingleRank;

impl Ranks for SingleRank {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn send(&self, _: usize, _: Vec<u8>, what: &dyn Fn() -> String) -> Result<()> {
        Err(Error::Ranks { problem: format!("there is no other rank for {}", what()) })
    }

    fn receive(&self, _: usize, what: &dyn Fn() -> String) -> Result<Vec<u8>> {
        Err(Error::Ranks { problem: format!("there is no other rank for {}", what()) })
    }
}

/// A rank that is a thread of this process.
#[derive(Debug)]
pub struct Worker {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl Worker {
    /// `count` connected workers.
    pub fn team(count: usize) -> Vec<Self> {
        let mut team: Vec<_> = (0..count).map(|rank| Self { rank, to: Vec::new(), from: Vec::new() }).collect();
        for from in 0..count {
            for to in 0..count {
                let (sender, receiver) = channel();
                team[from].to.push(sender);
                team[to].from.push(receiver);
            }
        }
        team
    }

    fn lost(&self, other: usize, what: &dyn Fn() -> String) -> Error {
        Error::Ranks { problem: format!("rank {} needs {} of rank {other}, which is disconnected", self.rank, what()) }
    }
}

impl Ranks for Worker {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.to.len()
    }

    fn send(&self, to: usize, bytes: Vec<u8>, what: &dyn Fn() -> String) -> Result<()> {
        self.to[to].send(bytes).map_err(|_| self.lost(to, what))
    }

    fn receive(&self, from: usize, what: &dyn Fn() -> String) -> Result<Vec<u8>> {
        self.from[from].recv().map_err(|_| self.lost(from, what))
    }
}

/// All other ranks.
pub(crate) fn others(ranks: &dyn Ranks) -> impl Iterator<Item = usize> + use<> {
    let rank = ranks.rank();
    (0..ranks.ranks()).filter(move |&other| other != rank)
}

/// What a message contains.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    /// A text that has to be the same on all ranks.
    Agreement,
    /// The sum of some parts.
    Gradient,
    /// Sums of its squares, and whether a rank stops the training.
    Squares,
    /// New weights.
    Weights,
    /// The optimiser's state.
    Moments,
    /// All that a rank needs for the first step.
    Bootstrap,
    /// Rank 0 is still preparing.
    Heartbeat,
}

/// Bytes of a message's header: step and stage.
pub(crate) const HEAD: usize = 8;
/// Bytes of a loss.
pub(crate) const LOSS: usize = 24;

/// A message to send.
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn new(step: u64, stage: Stage) -> Self {
        Self(head(step, stage).to_vec())
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn floats(self, floats: &[f32]) -> Self {
        self.bytes(bytemuck::cast_slice(floats))
    }

    pub(crate) fn losses(self, losses: &[Loss]) -> Self {
        let words = losses.iter().flat_map(|loss| [loss.sum.to_bits(), loss.rows as u64, loss.correct as u64]);
        words.fold(self, |message, word| message.bytes(&word.to_le_bytes()))
    }

    pub(crate) fn send(self, ranks: &dyn Ranks, to: usize, what: &dyn Fn() -> String) -> Result<()> {
        ranks.send(to, self.0, what)
    }
}

fn head(step: u64, stage: Stage) -> [u8; HEAD] {
    (step << 3 | stage as u64).to_le_bytes()
}

/// Whether a message is of this step and stage.
pub(crate) fn is_about(bytes: &[u8], step: u64, stage: Stage) -> bool {
    bytes.get(..HEAD) == Some(&head(step, stage)[..])
}

/// Receive a message of this step and stage, of `expected` bytes if that is known.
pub(crate) fn receive(
    ranks: &dyn Ranks,
    from: usize,
    (step, stage): (u64, Stage),
    expected: Option<usize>,
    what: &dyn Fn() -> String,
) -> Result<Vec<u8>> {
    let mut bytes = ranks.receive(from, what)?;
    if !is_about(&bytes, step, stage) || expected.is_some_and(|expected| bytes.len() != HEAD + expected) {
        let problem = format!(
            "rank {} needs {} of rank {from}, which sent another message; start all ranks with the same program",
            ranks.rank(),
            what()
        );
        return Err(Error::Ranks { problem });
    }
    bytes.drain(..HEAD);
    Ok(bytes)
}

pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

pub(crate) fn copy_floats(bytes: &[u8], to: &mut [f32]) {
    bytes.as_chunks().0.iter().zip(to).for_each(|(x, to)| *to = f32::from_le_bytes(*x));
}

pub(crate) fn copy_losses(bytes: &[u8], to: &mut [Loss]) {
    for (bytes, loss) in bytes.chunks_exact(LOSS).zip(to) {
        let mut words = words(bytes);
        let mut word = || words.next().unwrap_or_default();
        *loss = Loss { sum: f64::from_bits(word()), rows: word() as usize, correct: word() as usize };
    }
}

/// Compare a text with those of all other ranks.
pub(crate) fn agree(ranks: &dyn Ranks, step: u64, mine: &str) -> Result<()> {
    let what = || "its settings".to_owned();
    for to in others(ranks) {
        Message::new(step, Stage::Agreement).bytes(mine.as_bytes()).send(ranks, to, &what)?;
    }
    for from in others(ranks) {
        let bytes = receive(ranks, from, (step, Stage::Agreement), None, &what)?;
        if bytes != mine.as_bytes() {
            let (rank, theirs) = (ranks.rank(), String::from_utf8_lossy(&bytes).into_owned());
            let problem = format!(
                "rank {rank} has {mine}, and rank {from} has {theirs}; all ranks need the same settings, text, checkpoint, program and \
                    kind of CPU"
            );
            return Err(Error::Ranks { problem });
        }
    }
    Ok(())
}
