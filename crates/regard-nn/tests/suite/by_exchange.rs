//! The ranks of a training as those of an exchange, whose faults tests choose.

use regard_dist::{Comm, Exchange, Kind, Tag};
use regard_nn::training::ranks::Ranks;
use regard_nn::{Error, Result};

pub(crate) struct ByExchange<'x, X>(pub(crate) &'x X);

const TRAINING: Tag = (Kind::Training, 0);

fn ranks_error(error: regard_dist::Error) -> Error {
    Error::Ranks { problem: error.to_string() }
}

impl<X: Exchange> Ranks for ByExchange<'_, X> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn send(&self, to: usize, bytes: Vec<u8>, what: &dyn Fn() -> String) -> Result<()> {
        Comm::new(self.0).send(to, TRAINING, bytes, what).map_err(ranks_error)
    }

    fn receive(&self, from: usize, what: &dyn Fn() -> String) -> Result<Vec<u8>> {
        Comm::new(self.0).receive(from, TRAINING, what).map_err(ranks_error)
    }
}
