//! The transport between ranks, and what messages are.

use crate::error::Failure;
use bytemuck::Pod;
use half::{bf16, f16};
use ndarray::{Array4, ArrayView4};
use regard::Element;

/// Carries bytes between ranks. Messages with the same tag between the same two ranks arrive in the order in which they were sent.
pub trait Exchange: Sync {
    /// This rank.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// The number of a rank in errors, which differs where an exchange is a part of another.
    fn name(&self, rank: usize) -> usize {
        rank
    }

    /// Send, without waiting for the receiver.
    ///
    /// # Errors
    /// When the other rank has disconnected.
    fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>) -> std::result::Result<(), Failure>;

    /// Wait for the next message with this tag.
    ///
    /// # Errors
    /// When the other rank has disconnected, or sends nothing within the timeout of the exchange.
    fn receive(&self, from: usize, tag: Tag) -> std::result::Result<Vec<u8>, Failure>;
}

/// Kind and block of a message.
pub type Tag = (Kind, u32);

/// What a message contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A text that has to be the same on all ranks.
    Agreement,
    /// Keys and values of a block.
    Keys,
    /// Flow-control credit for keys and values.
    Credit,
    /// Keys and values of a block with the running sums of their gradients.
    Block,
    /// Flow-control credit for such a block.
    BlockCredit,
    /// The finished gradients of a block of keys.
    Gradients,
    /// Partial results, one per tile of rows.
    Partials,
    /// Any message of a shared training.
    Training,
    /// The running softmax state of rows.
    States,
    /// Results that all ranks get.
    Results,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Agreement,
        Self::Keys,
        Self::Credit,
        Self::Block,
        Self::BlockCredit,
        Self::Gradients,
        Self::Partials,
        Self::Training,
        Self::States,
        Self::Results,
    ];
}

/// An element type that messages can contain.
pub trait WireElement: Element<Real: Pod> + Pod {}

impl WireElement for f32 {}
impl WireElement for f64 {}
impl WireElement for f16 {}
impl WireElement for bf16 {}

/// Append the elements of a tensor, in standard layout.
pub(crate) fn put<T: Pod>(to: &mut Vec<u8>, x: &ArrayView4<'_, T>) {
    to.reserve(x.len() * size_of::<T>());
    for of_head in x.outer_iter().flat_map(|entry| entry.into_outer_iter()) {
        match of_head.as_slice() {
            Some(elements) => to.extend_from_slice(bytemuck::cast_slice(elements)),
            None => of_head.iter().for_each(|x| to.extend_from_slice(bytemuck::bytes_of(x))),
        }
    }
}

/// Take a tensor from the front of the bytes, which are long enough.
pub(crate) fn get<T: Pod>(from: &mut &[u8], shape: [usize; 4]) -> Array4<T> {
    let count = shape.iter().product::<usize>();
    let (bytes, rest) = from.split_at(count * size_of::<T>());
    *from = rest;
    let mut elements = vec![T::zeroed(); count];
    bytemuck::cast_slice_mut(&mut elements).copy_from_slice(bytes);
    Array4::from_shape_vec(shape, elements).expect("as many elements as the shape has")
}
