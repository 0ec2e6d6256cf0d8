//! Who carries messages between ranks, and what messages are.

use crate::error::{Error, Failure, Result};
use bytemuck::Pod;
use half::{bf16, f16};
use ndarray::{Array4, ArrayView4};
use regard::Element;

/// Carries bytes between ranks. Messages with the same tag between the same two ranks arrive in the order in which they were sent.
pub trait Exchange: Sync {
    /// Which rank this is.
    fn rank(&self) -> usize;

    /// How many there are.
    fn ranks(&self) -> usize;

    /// What a rank is called in errors: its number, unless ranks are counted anew.
    fn name(&self, rank: usize) -> usize {
        rank
    }

    /// Send, without waiting for the receiver to take it.
    ///
    /// # Errors
    /// When the other rank is gone.
    fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> std::result::Result<(), Failure>;

    /// The next message with this tag, waited for.
    ///
    /// # Errors
    /// When the other rank is gone, or says nothing for so long that the exchange gives up.
    fn receive(&self, from: usize, tag: Tag) -> std::result::Result<Vec<u8>, Failure>;
}

/// What a message is, and of which block.
pub type Tag = (Kind, u32);

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// What is to be the same on all ranks.
    Greeting,
    /// Keys and values of a block.
    Keys,
    /// Somebody has taken a block, and may get another.
    Credit,
    /// Keys, values and the sums for them, on their way through the queries.
    Sums,
    /// The finished sums of a block, on their way home.
    Home,
    /// Numbers per tile of rows.
    Tiles,
    /// Whatever ranks that share a training tell each other.
    Training,
    /// What rows have seen of the keys before.
    States,
    /// Results that all ranks get.
    Results,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] =
        [Self::Greeting, Self::Keys, Self::Credit, Self::Sums, Self::Home, Self::Tiles, Self::Training, Self::States, Self::Results];
}

/// A number that can travel.
pub trait Number: Element<Real: Pod> + Pod {}

impl Number for f32 {}
impl Number for f64 {}
impl Number for f16 {}
impl Number for bf16 {}

/// Sends and receives, with what it was about in every error.
pub struct Talk<'x, X> {
    pub(crate) exchange: &'x X,
}

impl<'x, X: Exchange> Talk<'x, X> {
    /// By this exchange.
    pub fn new(exchange: &'x X) -> Self {
        Self { exchange }
    }

    pub(crate) fn rank(&self) -> usize {
        self.exchange.rank()
    }

    /// As [`Exchange::send`]; `what` is what this rank needs the other for.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>, what: impl Fn() -> String) -> Result<()> {
        self.exchange.send(to, tag, bytes).map_err(|failure| self.failed(to, failure, what()))
    }

    /// As [`Exchange::receive`].
    ///
    /// # Errors
    /// [`Error::Lost`] and [`Error::Waited`].
    pub fn receive(&self, from: usize, tag: Tag, what: impl Fn() -> String) -> Result<Vec<u8>> {
        self.exchange.receive(from, tag).map_err(|failure| self.failed(from, failure, what()))
    }

    /// The same of so many bytes.
    ///
    /// # Errors
    /// [`Error::Length`] too.
    pub fn receive_exactly(&self, from: usize, tag: Tag, expected: usize, what: impl Fn() -> String) -> Result<Vec<u8>> {
        let bytes = self.receive(from, tag, &what)?;
        let ([rank, from], got) = ([self.rank(), from].map(|rank| self.exchange.name(rank)), bytes.len());
        if got == expected { Ok(bytes) } else { Err(Error::Length { rank, from, what: what(), got, expected }) }
    }

    fn failed(&self, from: usize, failure: Failure, what: String) -> Error {
        let [rank, from] = [self.rank(), from].map(|rank| self.exchange.name(rank));
        match failure {
            Failure::Lost => Error::Lost { rank, from, what },
            Failure::Waited(waited) => Error::Waited { rank, from, what, waited },
        }
    }

    /// All ranks have the same, or nobody goes on.
    ///
    /// # Errors
    /// [`Error::Differ`] too.
    pub fn agree(&self, mine: &str) -> Result<()> {
        let others = || (0..self.exchange.ranks()).filter(|&other| other != self.rank());
        for other in others() {
            self.send(other, (Kind::Greeting, 0), mine.as_bytes().to_vec(), || "a greeting".to_owned())?;
        }
        for from in others() {
            let theirs = self.receive(from, (Kind::Greeting, 0), || "a greeting".to_owned())?;
            if theirs != mine.as_bytes() {
                let theirs = String::from_utf8_lossy(&theirs).into_owned();
                let [rank, from] = [self.rank(), from].map(|rank| self.exchange.name(rank));
                return Err(Error::Differ { rank, from, mine: mine.to_owned(), theirs });
            }
        }
        Ok(())
    }
}

/// Numbers of a tensor, in the standard layout.
pub(crate) fn put<T: Pod>(to: &mut Vec<u8>, x: &ArrayView4<'_, T>) {
    to.reserve(x.len() * size_of::<T>());
    for of_head in x.outer_iter().flat_map(|entry| entry.into_outer_iter()) {
        match of_head.as_slice() {
            Some(numbers) => to.extend_from_slice(bytemuck::cast_slice(numbers)),
            None => of_head.iter().for_each(|x| to.extend_from_slice(bytemuck::bytes_of(x))),
        }
    }
}

/// A tensor from the front of the bytes, which are long enough.
pub(crate) fn get<T: Pod>(from: &mut &[u8], shape: [usize; 4]) -> Array4<T> {
    let count = shape.iter().product::<usize>();
    let (bytes, rest) = from.split_at(count * size_of::<T>());
    *from = rest;
    let mut numbers = vec![T::zeroed(); count];
    bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(bytes);
    Array4::from_shape_vec(shape, numbers).expect("as many numbers as the shape has")
}
