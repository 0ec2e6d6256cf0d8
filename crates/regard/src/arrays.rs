//! Arrays: memory for results, and parts of them.

use crate::error::{Error, Result, checked_len};
use ndarray::{Array4, ArrayBase, ArrayViewMut, ArrayViewMut4, Axis, CowRepr, Dimension};
use std::mem::MaybeUninit;

/// A `CowArray` with its element type spelled out, without which it would not be covariant in its lifetime.
pub(crate) type CowBase<'a, A, D> = ArrayBase<CowRepr<'a, A>, D, A>;

/// Memory for a result, or an error.
pub(crate) fn uninit<T>(what: &'static str, shape: [usize; 4]) -> Result<Array4<MaybeUninit<T>>> {
    let len = checked_len(what, shape)?;
    let mut memory = Vec::new();
    memory.try_reserve_exact(len).map_err(|_| Error::OutOfMemory { what, bytes: len.saturating_mul(size_of::<T>()) })?;
    // SAFETY: the capacity was just reserved, and a place that may be uninitialised needs no initialisation.
    unsafe { memory.set_len(len) };
    Ok(Array4::from_shape_vec(shape, memory).expect("the length is that of the shape"))
}

/// The same, filled.
pub(crate) fn filled<T: Copy>(what: &'static str, shape: [usize; 4], with: T) -> Result<Array4<T>> {
    let mut array = uninit(what, shape)?;
    array.fill(MaybeUninit::new(with));
    // SAFETY: every element was just written.
    Ok(unsafe { array.assume_init() })
}

/// The part of a view before `index` along an axis, which the view gives up.
pub(crate) fn take<'v, T, D: Dimension>(view: &mut ArrayViewMut<'v, T, D>, axis: usize, index: usize) -> ArrayViewMut<'v, T, D> {
    let all = std::mem::replace(view, ArrayViewMut::from_shape(D::zeros(view.ndim()), &mut []).expect("nothing has this shape"));
    let (part, rest) = all.split_at(Axis(axis), index);
    *view = rest;
    part
}

/// Chunks of `size` along an axis; the last may be shorter.
pub(crate) fn cut<T>(view: ArrayViewMut4<'_, T>, axis: usize, size: usize) -> Vec<ArrayViewMut4<'_, T>> {
    let (mut pieces, mut rest) = (Vec::new(), view);
    while rest.len_of(Axis(axis)) > size {
        pieces.push(take(&mut rest, axis, size));
    }
    pieces.push(rest);
    pieces
}

/// A 64-bit digest of words, which tells arrays apart that differ by accident.
#[derive(Debug, Default)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) const fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    }

    pub(crate) const fn finish(self) -> u64 {
        (self.0 ^ (self.0 >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }
}

/// Shape and digest of an array.
pub(crate) fn array_digest(shape: &[usize], words: impl Iterator<Item = u64>) -> String {
    let mut digest = Digest::default();
    words.for_each(|word| digest.add(word));
    format!("{shape:?} {:016x}", digest.finish())
}
