//! A block of keys that travels with the sums of its gradients.

use crate::distributed::tokens;
use crate::exchange::WireElement;
use ndarray::{Array4, ArrayView4, ArrayViewMut4, Axis, s};
use regard::Real;
use regard::tiling::GRADIENT_SPLIT;
use std::marker::PhantomData;

/// A block of keys and values with the running sums of dk and dv, in the layout of its message: dk, dv, k and v of each span, so that
/// nothing is copied.
pub(crate) struct InFlightBlock<E> {
    bytes: Vec<u8>,
    /// Offset at which the elements are aligned.
    start: usize,
    /// Of k and of v.
    shapes: [[usize; 4]; 2],
    element: PhantomData<E>,
}

/// The keys of a span, and the sums of their gradients.
pub(crate) struct Span<'b, E: WireElement> {
    /// k and v.
    pub(crate) keys: [ArrayViewMut4<'b, E>; 2],
    /// dk and dv.
    pub(crate) sums: [ArrayViewMut4<'b, E::Real>; 2],
}

impl<E: WireElement> InFlightBlock<E> {
    /// Bytes of `tokens` tokens.
    pub(crate) fn bytes_of(shapes: &[[usize; 4]; 2], tokens: usize) -> usize {
        let elements: usize = shapes.iter().map(|[batch, heads, _, dims]| batch * heads * tokens * dims).sum();
        elements * (size_of::<E>() + size_of::<E::Real>())
    }

    /// k and v, with sums of zero.
    pub(crate) fn new(keys: [ArrayView4<'_, E>; 2]) -> Self {
        let shapes = keys.each_ref().map(|x| [x.len_of(Axis(0)), x.len_of(Axis(1)), x.len_of(Axis(2)), x.len_of(Axis(3))]);
        let bytes = vec![0; Self::bytes_of(&shapes, shapes[0][2])];
        let mut new = Self::received(bytes, shapes);
        for first in (0..shapes[0][2]).step_by(GRADIENT_SPLIT) {
            let range = first..shapes[0][2].min(first + GRADIENT_SPLIT);
            let to = new.span(first).keys;
            to.into_iter().zip(&keys).for_each(|(mut to, from)| to.assign(&tokens(from, &range)));
        }
        new
    }

    /// The message of another rank.
    pub(crate) fn received(mut bytes: Vec<u8>, shapes: [[usize; 4]; 2]) -> Self {
        let (align, len) = (align_of::<E::Real>(), bytes.len());
        let mut start = 0;
        if bytes.as_ptr().align_offset(align) != 0 {
            bytes.resize(len + align, 0);
            start = bytes.as_ptr().align_offset(align);
            bytes.copy_within(..len, start);
            bytes.truncate(start + len);
        }
        Self { bytes, start, shapes, element: PhantomData }
    }

    /// The message for another rank.
    pub(crate) fn into_bytes(mut self) -> Vec<u8> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
        }
        self.bytes
    }

    /// The span that begins at this token of the block.
    pub(crate) fn span(&mut self, first: usize) -> Span<'_, E> {
        let count = GRADIENT_SPLIT.min(self.shapes[0][2] - first);
        let from = self.start + Self::bytes_of(&self.shapes, first);
        let span = &mut self.bytes[from..from + Self::bytes_of(&self.shapes, count)];
        let shapes = self.shapes.map(|[batch, heads, _, dims]| [batch, heads, count, dims]);
        let [of_k, of_v] = shapes.map(|shape| shape.iter().product::<usize>());
        let (sums, keys) = span.split_at_mut((of_k + of_v) * size_of::<E::Real>());
        let (dk, dv) = bytemuck::cast_slice_mut::<u8, E::Real>(sums).split_at_mut(of_k);
        let (k, v) = bytemuck::cast_slice_mut::<u8, E>(keys).split_at_mut(of_k);
        Span { keys: [view(shapes[0], k), view(shapes[1], v)], sums: [view(shapes[0], dk), view(shapes[1], dv)] }
    }

    /// dk and dv.
    pub(crate) fn sums(mut self) -> [Array4<E::Real>; 2] {
        let mut sums = self.shapes.map(|shape| Array4::from_elem(shape, E::Real::ZERO));
        for first in (0..self.shapes[0][2]).step_by(GRADIENT_SPLIT) {
            let from = self.span(first).sums;
            let range = first..first + from[0].len_of(Axis(2));
            sums.iter_mut().zip(from).for_each(|(to, from)| to.slice_mut(s![.., .., range.clone(), ..]).assign(&from));
        }
        sums
    }
}

fn view<T>(shape: [usize; 4], elements: &mut [T]) -> ArrayViewMut4<'_, T> {
    ArrayViewMut4::from_shape(shape, elements).expect("as many elements as the shape has")
}
