//! Some of the ranks, as ranks of their own.

use crate::error::Failure;
use crate::exchange::{Exchange, Tag};

/// Some of the ranks of an exchange: a row of a mesh of heads and tokens, for instance. They count from 0 among themselves; errors name them as the whole does.
pub struct Members<'x, X> {
    exchange: &'x X,
    members: Vec<usize>,
    place: usize,
}

impl<'x, X: Exchange> Members<'x, X> {
    /// These ranks, in this order; `None` when this rank is not one of them.
    pub fn new(exchange: &'x X, members: Vec<usize>) -> Option<Self> {
        let place = members.iter().position(|&rank| rank == exchange.rank())?;
        Some(Self { exchange, members, place })
    }
}

impl<X: Exchange> Exchange for Members<'_, X> {
    fn rank(&self) -> usize {
        self.place
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

/// The one rank of a process by itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Exchange for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        1
    }

    fn send(&self, _: usize, _: Tag, _: Vec<u8>) -> Result<(), Failure> {
        Err(Failure::Lost)
    }

    fn receive(&self, _: usize, _: Tag) -> Result<Vec<u8>, Failure> {
        Err(Failure::Lost)
    }
}
