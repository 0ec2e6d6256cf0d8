//! Keys on their way through the ranks, in key order: along a binary tree from the owner to the ranks that see any of them (see
//! [`Routes`]).
//!
//! ```text
//! keys of rank 1, of 6 ranks:   1 -> 2, 3    2 -> 4, 5    3 -> 0          every rank gets its pieces in key order, its own among them
//! ```
//!
//! A separate thread relays, so that no rank waits for another's arithmetic. A rank sends flow-control credit for a piece when it has taken
//! the piece before the last. So a rank waits only for the same piece at a rank nearer to its owner, or for an earlier piece: the schedule
//! cannot deadlock.

use crate::distributed::{Distributed, shape_of, tokens};
use crate::error::{Error, Result};
use crate::exchange::{Exchange, Kind, WireElement, put};
use crate::partition::Block;
use crate::routes::{Routes, children, parent};
use ndarray::{Array4, ArrayView4};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

/// Pieces that a rank has credit out for.
pub(crate) const AHEAD: usize = 2;

/// Pieces that are queued for the arithmetic.
pub(crate) const READY: usize = 2;

/// A piece for the arithmetic.
enum Piece {
    /// Tokens of this rank.
    Local(Range<usize>),
    /// Keys and values as another rank sent them.
    Received(Vec<u8>),
}

impl<X: Exchange> Distributed<'_, X> {
    /// Call `absorb` with all keys and values in order, and the place of the first of them. For ranks that have tokens. Keys that none of
    /// the rank's queries sees are zeros.
    pub(crate) fn for_each_piece<E: WireElement>(
        &self,
        scores: [usize; 4],
        k: &ArrayView4<'_, E>,
        v: &ArrayView4<'_, E>,
        mut absorb: impl FnMut(usize, ArrayView4<'_, E>, ArrayView4<'_, E>) -> Result<()>,
    ) -> Result<()> {
        let routes = Routes::new(self.attention, scores, self.partition)?;
        let unseen = [k, v].map(|x| Array4::from_elem(shape_of(x, 1), E::zeroed()));
        std::thread::scope(|scope| {
            let (queue, pieces) = sync_channel(READY);
            let relay = std::thread::Builder::new()
                .spawn_scoped(scope, move || self.relay(&routes, k, v, &queue))
                .map_err(|e| Error::Thread { purpose: "keys of other ranks", reason: e.to_string() })?;
            let next = || {
                let begun = Instant::now();
                let piece = pieces.recv().ok();
                self.waited.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                piece
            };
            let mut due = 0;
            let absorbed = std::iter::from_fn(next).try_for_each(|(keys, piece): (Range<usize>, Piece)| {
                if due < keys.start {
                    let [k, v] = unseen.each_ref().map(|x| repeated(x, keys.start - due));
                    absorb(due, k, v)?;
                }
                match piece {
                    Piece::Local(local) => absorb(keys.start, tokens(k, &local), tokens(v, &local)),
                    Piece::Received(bytes) => {
                        let [of_k, of_v] = [k, v].map(|x| shape_of(x, keys.len()));
                        let elements = elements(&bytes);
                        let (k, v) = elements.split_at(of_k.iter().product());
                        let view = |shape, elements| ArrayView4::from_shape(shape, elements).expect("the length was checked");
                        absorb(keys.start, view(of_k, k), view(of_v, v))
                    }
                }?;
                due = keys.end;
                self.progress.iter().for_each(|callback| callback(due));
                Ok(())
            });
            drop(pieces);
            let relayed = relay.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // An error of the arithmetic first: the relay may have ended because of it.
            absorbed.and(relayed)?;
            if due < scores[3] {
                let [k, v] = unseen.each_ref().map(|x| repeated(x, scores[3] - due));
                absorb(due, k, v)?;
            }
            Ok(())
        })
    }

    /// Send the pieces that this rank needs to the next ranks on their routes, and queue them for the arithmetic.
    fn relay<E: WireElement>(
        &self,
        routes: &Routes,
        k: &ArrayView4<'_, E>,
        v: &ArrayView4<'_, E>,
        queue: &SyncSender<(Range<usize>, Piece)>,
    ) -> Result<()> {
        let rank = self.comm.rank();
        let needed = (0..routes.len()).filter(|&i| routes.needs(i, rank));
        let mut to_receive = needed.clone().filter(|&i| routes.piece(i).rank != rank);
        let mut send_credit = || to_receive.next().map_or(Ok(()), |i| self.send_credit(routes, i));
        (0..AHEAD).try_for_each(|_| send_credit())?;
        let mut next_local = 0;
        for i in needed {
            let (route, Block { tokens: keys, rank: owner }) = (routes.route(i), routes.piece(i).clone());
            let (tag, index) = ((Kind::Keys, i as u32), index_of(&route, rank));
            let next = || route[children(index, route.len())].iter();
            let send = |to: usize, bytes: Vec<u8>| {
                self.comm.receive(to, (Kind::Credit, i as u32), || format!("credit for keys {keys:?}"))?;
                self.comm.send(to, tag, bytes, || format!("credit for keys {keys:?}"))
            };
            let piece = if owner == rank {
                let local = next_local..next_local + keys.len();
                next_local = local.end;
                for &to in next() {
                    let mut bytes = Vec::new();
                    [k, v].iter().for_each(|x| put(&mut bytes, &tokens(x, &local)));
                    send(to, bytes)?;
                }
                Piece::Local(local)
            } else {
                let expected = [k, v].map(|x| shape_of(x, keys.len()).iter().product::<usize>() * size_of::<E>()).iter().sum();
                let from = route[parent(index).expect("the owner is the first")];
                let bytes = self.comm.receive_exactly(from, tag, expected, || format!("keys {keys:?}"))?;
                next().try_for_each(|&to| send(to, bytes.clone()))?;
                Piece::Received(bytes)
            };
            if queue.send((keys, piece)).is_err() {
                // The arithmetic has ended with an error of its own.
                return Ok(());
            }
            if owner != rank {
                send_credit()?;
            }
        }
        Ok(())
    }

    /// Allow the rank before this one on the route to send a piece.
    fn send_credit(&self, routes: &Routes, i: usize) -> Result<()> {
        let route = routes.route(i);
        let from = route[parent(index_of(&route, self.comm.rank())).expect("another rank has it")];
        self.comm.send(from, (Kind::Credit, i as u32), Vec::new(), || format!("keys {:?}", routes.piece(i).tokens))
    }
}

/// The elements in these bytes, copied only if they are not aligned.
fn elements<E: WireElement>(bytes: &[u8]) -> Cow<'_, [E]> {
    bytemuck::try_cast_slice(bytes)
        .map_or_else(|_| Cow::Owned(bytes.chunks_exact(size_of::<E>()).map(bytemuck::pod_read_unaligned).collect()), Cow::Borrowed)
}

/// One token, repeated.
fn repeated<E>(x: &Array4<E>, count: usize) -> ArrayView4<'_, E> {
    let (batch, heads, _, dims) = x.dim();
    x.broadcast((batch, heads, count, dims)).expect("an axis of length 1")
}

/// The index of a rank on a route that it is on.
fn index_of(route: &[usize], rank: usize) -> usize {
    route.iter().position(|&other| other == rank).expect("the rank needs the piece")
}
