//! Keys on their way through the ranks, in key order. Ranks are a ring: each gets a piece from the one before it and hands it on, so that nobody sends more than
//! it receives, and the last rank has a piece as many hops after the first as there are ranks.
//!
//! ```text
//! keys of rank 1:   1 -> 2 -> 3 -> 0          every rank meets all pieces in key order, its own among them
//! keys of rank 2:        2 -> 3 -> 0 -> 1
//! ```
//!
//! A thread of its own hands on, so that nobody waits for another's arithmetic. A piece is handed on when the one before the last was taken: what somebody waits for is
//! either the same piece at the rank before, or an earlier piece, so nobody waits for itself.

use crate::error::Result;
use crate::exchange::{Exchange, Kind, Number, get, put};
use crate::forward::{Distributed, tokens};
use ndarray::{Array4, ArrayView4, Axis};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

/// Pieces that a rank may send before the next one has taken the first of them.
pub(crate) const AHEAD: usize = 2;

/// Pieces that lie ready for the arithmetic.
pub(crate) const READY: usize = 1;

/// A piece, as the arithmetic gets it.
enum Keys<E> {
    /// Tokens of this rank.
    Mine(Range<usize>),
    Got([Array4<E>; 2]),
}

impl<X: Exchange> Distributed<'_, X> {
    /// Give all keys to `absorb`, in order, with the first one's place. For ranks that have tokens.
    pub(crate) fn with_keys<E: Number>(
        &self,
        k: &ArrayView4<'_, E>,
        v: &ArrayView4<'_, E>,
        mut absorb: impl FnMut(usize, ArrayView4<'_, E>, ArrayView4<'_, E>) -> Result<()>,
    ) -> Result<()> {
        std::thread::scope(|scope| {
            let (give, pieces) = sync_channel(READY);
            let relay = scope.spawn(move || self.relay(k, v, &give));
            let next = || {
                let begun = Instant::now();
                let piece = pieces.recv().ok();
                self.waited.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                piece
            };
            let absorbed = std::iter::from_fn(next).try_for_each(|(first, keys)| {
                let (absorbed, count) = match keys {
                    Keys::Mine(here) => (absorb(first, tokens(k, &here), tokens(v, &here)), here.len()),
                    Keys::Got([k, v]) => (absorb(first, k.view(), v.view()), k.len_of(Axis(2))),
                };
                self.progress.iter().for_each(|tell| tell(first + count));
                absorbed
            });
            drop(pieces);
            let relayed = relay.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // Its own error first: the relay may have ended because of it.
            absorbed.and(relayed)
        })
    }

    /// All keys through this rank: to the next one, and to `give`.
    fn relay<E: Number>(&self, k: &ArrayView4<'_, E>, v: &ArrayView4<'_, E>, give: &SyncSender<(usize, Keys<E>)>) -> Result<()> {
        let rank = self.talk.rank();
        let ring: Vec<_> = (0..self.partition.ranks()).filter(|&rank| self.partition.count(rank) > 0).collect();
        let place = ring.iter().position(|&other| other == rank).expect("it has tokens");
        let (before, next) = (ring[(place + ring.len() - 1) % ring.len()], ring[(place + 1) % ring.len()]);
        let pieces = self.partition.pieces();
        let mut to_come = pieces.iter().filter(|(_, owner)| *owner != rank).count();
        let (mut sent, mut own) = (0, 0);
        for (i, (keys, owner)) in pieces.into_iter().enumerate() {
            let (tag, first) = ((Kind::Keys, i as u32), keys.start);
            let mut bytes = Vec::new();
            let piece = if owner == rank {
                let here = own..own + keys.len();
                own = here.end;
                if ring.len() > 1 {
                    [k, v].iter().for_each(|x| put(&mut bytes, &tokens(x, &here)));
                }
                Keys::Mine(here)
            } else {
                let shapes = [k, v].map(|x| [x.len_of(Axis(0)), x.len_of(Axis(1)), keys.len(), x.len_of(Axis(3))]);
                let expected = shapes.iter().map(|shape| shape.iter().product::<usize>() * size_of::<E>()).sum();
                bytes = self.talk.receive_exactly(before, tag, expected, || format!("keys {keys:?}"))?;
                let mut rest = &bytes[..];
                Keys::Got(shapes.map(|shape| get(&mut rest, shape)))
            };
            // The owner has them, and so has a rank that is alone.
            if owner != next && ring.len() > 1 {
                if sent >= AHEAD {
                    self.talk.receive(next, (Kind::Credit, 0), || format!("the word that it has taken keys before {keys:?}"))?;
                }
                sent += 1;
                self.talk.send(next, tag, bytes, || format!("room for keys {keys:?}"))?;
            }
            if give.send((first, piece)).is_err() {
                // The arithmetic has ended with an error of its own.
                return Ok(());
            }
            if owner != rank {
                to_come -= 1;
                // No word that nobody waits for.
                if to_come >= AHEAD {
                    self.talk.send(before, (Kind::Credit, 0), Vec::new(), || format!("keys after {keys:?}"))?;
                }
            }
        }
        Ok(())
    }
}
