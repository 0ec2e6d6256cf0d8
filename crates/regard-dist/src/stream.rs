//! Keys on their way through the ranks, in key order: from whoever has them to those that see any of them, each of which hands on to two others.
//!
//! ```text
//! keys of rank 1, of 6 ranks:   1 -> 2, 3    2 -> 4, 5    3 -> 0          every rank meets its pieces in key order, its own among them
//! ```
//!
//! A thread of its own hands on, so that nobody waits for another's arithmetic. Whoever needs a piece says so when it has room for it: when it has taken the one before the last.
//! So what somebody waits for is either the same piece at a rank that has it earlier, or an earlier piece, and nobody waits for itself.

use crate::error::Result;
use crate::exchange::{Exchange, Kind, Number, put};
use crate::forward::{Distributed, tokens};
use crate::ways::{Ways, after, before};
use ndarray::{Array4, ArrayView4, Axis};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

/// Pieces that a rank has room for, beside the one that it takes.
pub(crate) const AHEAD: usize = 2;

/// Pieces that lie ready for the arithmetic.
pub(crate) const READY: usize = 2;

/// A piece, as the arithmetic gets it.
enum Keys {
    /// Tokens of this rank.
    Mine(Range<usize>),
    /// Another's, as they came.
    Got(Vec<u8>),
}

impl<X: Exchange> Distributed<'_, X> {
    /// Give all keys to `absorb`, in order, with the first one's place. For ranks that have tokens. Keys that none of them sees are zeros.
    pub(crate) fn with_keys<E: Number>(
        &self,
        scores: [usize; 4],
        k: &ArrayView4<'_, E>,
        v: &ArrayView4<'_, E>,
        mut absorb: impl FnMut(usize, ArrayView4<'_, E>, ArrayView4<'_, E>) -> Result<()>,
    ) -> Result<()> {
        let ways = Ways::new(self.attention, scores, self.partition)?;
        let unseen = [k, v].map(|x| Array4::from_elem(shape(x, 1), E::zeroed()));
        std::thread::scope(|scope| {
            let (give, pieces) = sync_channel(READY);
            let relay = scope.spawn(move || self.relay(&ways, k, v, &give));
            let next = || {
                let begun = Instant::now();
                let piece = pieces.recv().ok();
                self.waited.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                piece
            };
            let mut due = 0;
            let absorbed = std::iter::from_fn(next).try_for_each(|(keys, piece)| {
                if due < keys.start {
                    let [k, v] = unseen.each_ref().map(|x| so_many(x, keys.start - due));
                    absorb(due, k, v)?;
                }
                match piece {
                    Keys::Mine(here) => absorb(keys.start, tokens(k, &here), tokens(v, &here)),
                    Keys::Got(bytes) => {
                        let [of_k, of_v] = [k, v].map(|x| shape(x, keys.len()));
                        let numbers = numbers(&bytes);
                        let (k, v) = numbers.split_at(of_k.iter().product());
                        let view = |shape, numbers| ArrayView4::from_shape(shape, numbers).expect("so many were received");
                        absorb(keys.start, view(of_k, k), view(of_v, v))
                    }
                }?;
                due = keys.end;
                self.progress.iter().for_each(|tell| tell(due));
                Ok(())
            });
            drop(pieces);
            let relayed = relay.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // Its own error first: the relay may have ended because of it.
            absorbed.and(relayed)?;
            if due < scores[3] {
                let [k, v] = unseen.each_ref().map(|x| so_many(x, scores[3] - due));
                absorb(due, k, v)?;
            }
            Ok(())
        })
    }

    /// The keys that this rank needs: to those after it, and to `give`.
    fn relay<E: Number>(
        &self,
        ways: &Ways,
        k: &ArrayView4<'_, E>,
        v: &ArrayView4<'_, E>,
        give: &SyncSender<(Range<usize>, Keys)>,
    ) -> Result<()> {
        let rank = self.talk.rank();
        let mine = (0..ways.len()).filter(|&i| ways.needs(i, rank));
        // Those that come from others; who has room for them says so, as far ahead as there is room.
        let mut to_come = mine.clone().filter(|&i| ways.piece(i).1 != rank);
        let mut ask = || to_come.next().map_or(Ok(()), |i| self.ask(ways, i));
        (0..AHEAD).try_for_each(|_| ask())?;
        let mut own = 0;
        for i in mine {
            let (way, (keys, owner)) = (ways.way(i), ways.piece(i));
            let (tag, place) = ((Kind::Keys, i as u32), place(&way, rank));
            let next = || way[after(place, way.len())].iter();
            let send = |to: usize, bytes: Vec<u8>| {
                self.talk.receive(to, (Kind::Credit, i as u32), || format!("the word that it has room for keys {keys:?}"))?;
                self.talk.send(to, tag, bytes, || format!("room for keys {keys:?}"))
            };
            let piece = if owner == rank {
                let here = own..own + keys.len();
                own = here.end;
                for &to in next() {
                    let mut bytes = Vec::new();
                    [k, v].iter().for_each(|x| put(&mut bytes, &tokens(x, &here)));
                    send(to, bytes)?;
                }
                Keys::Mine(here)
            } else {
                let expected = [k, v].map(|x| shape(x, keys.len()).iter().product::<usize>() * size_of::<E>()).iter().sum();
                let from = way[before(place).expect("the first has them")];
                let bytes = self.talk.receive_exactly(from, tag, expected, || format!("keys {keys:?}"))?;
                next().try_for_each(|&to| send(to, bytes.clone()))?;
                Keys::Got(bytes)
            };
            if give.send((keys, piece)).is_err() {
                // The arithmetic has ended with an error of its own.
                return Ok(());
            }
            if owner != rank {
                ask()?;
            }
        }
        Ok(())
    }

    /// There is room for a piece.
    fn ask(&self, ways: &Ways, i: usize) -> Result<()> {
        let way = ways.way(i);
        let from = way[before(place(&way, self.talk.rank())).expect("another has it")];
        self.talk.send(from, (Kind::Credit, i as u32), Vec::new(), || format!("keys {:?}", ways.piece(i).0))
    }
}

/// Of so many tokens.
fn shape<E>(x: &ArrayView4<'_, E>, tokens: usize) -> [usize; 4] {
    [x.len_of(Axis(0)), x.len_of(Axis(1)), tokens, x.len_of(Axis(3))]
}

/// The numbers that bytes are, where they lie if they may lie there.
fn numbers<E: Number>(bytes: &[u8]) -> Cow<'_, [E]> {
    bytemuck::try_cast_slice(bytes)
        .map_or_else(|_| Cow::Owned(bytes.chunks_exact(size_of::<E>()).map(bytemuck::pod_read_unaligned).collect()), Cow::Borrowed)
}

/// One token, so many times.
fn so_many<E>(x: &Array4<E>, count: usize) -> ArrayView4<'_, E> {
    let (batch, heads, _, dims) = x.dim();
    x.broadcast((batch, heads, count, dims)).expect("an axis of length 1")
}

/// Of a rank that needs the piece.
fn place(way: &[usize], rank: usize) -> usize {
    way.iter().position(|&other| other == rank).expect("it needs the piece")
}
