//! Exchanges of some ranks, and of one.

use crate::error::Failure;
use crate::exchange::{Exchange, Tag};

/// Some ranks of an exchange, such as those of one group of heads, counted from 0. Errors name them as the exchange does.
pub struct SubComm<'x, X> {
    exchange: &'x X,
    members: Vec<usize>,
    rank: usize,
}

impl<'x, X: Exchange> SubComm<'x, X> {
    /// These ranks, in this order; `None` when this rank is not one of them.
    pub fn new(exchange: &'x X, members: Vec<usize>) -> Option<Self> {
        let rank = members.iter().position(|&rank| rank == exchange.rank())?;
        Some(Self { exchange, members, rank })
    }
}

impl<X: Exchange> Exchange for SubComm<'_, X> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn name(&self, rank: usize) -> usize {
        self.exchange.name(self.members[rank])
    }

    fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> Result<(), Failure> {
        self.exchange.send(self.members[to], tag, bytes)
    }

    fn receive(&self, from: usize, tag: Tag) -> Result<Vec<u8>, Failure> {
        self.exchange.receive(self.members[from], tag)
    }
}

/// The exchange of a job with one rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleRank;

impl Exchange for SingleRank {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn send(&self, _: usize, _: Tag, _: Vec<u8>) -> Result<(), Failure> {
        Err(Failure::Disconnected)
    }

    fn receive(&self, _: usize, _: Tag) -> Result<Vec<u8>, Failure> {
        Err(Failure::Disconnected)
    }
}
