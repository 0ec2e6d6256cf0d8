//! Rows in a storage of fewer bits than the arithmetic has: f16, bf16 and q8_0. They are widened a tile at a time.
//!
//! q8_0 is the format of GGUF files: 32 integers of 8 bits and their scale in f16. `scale * integer` has at most 19 significant bits, so a
//! widened element is exact in f32 and in f64.

use crate::float::Real;
use crate::simd::{Kernel, Simd};
use half::{bf16, f16};
use ndarray::{ArrayBase, ArrayView2, Ix2, ViewRepr};
use std::ops::Range;

/// Elements of a [`Q8Block`].
pub const Q8_ELEMENTS: usize = 32;

/// 32 elements of 8 bits with a scale, 34 bytes: element `i` is `scale * values[i]`. The layout is that of `block_q8_0` in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Q8Block {
    /// What the integers are multiplied with.
    pub scale: f16,
    /// The integers.
    pub values: [i8; Q8_ELEMENTS],
}

const _: () = assert!(size_of::<Q8Block>() == 2 + Q8_ELEMENTS);

impl Q8Block {
    /// All elements are zero.
    pub const ZERO: Self = Self { scale: f16::ZERO, values: [0; Q8_ELEMENTS] };

    /// Round up to 32 elements, zeros after them: the scale is the largest magnitude / 127, each integer the nearest of `x / scale`, halves
    /// away from zero (as llama.cpp rounds).
    ///
    /// A block with an element that is not finite, or whose scale is beyond f16 (elements above 8.3e6), is NaN as a whole: nothing
    /// that is not finite becomes finite.
    ///
    /// # Panics
    /// When there are more than 32 elements.
    pub fn quantise<T: Real>(elements: &[T]) -> Self {
        assert!(elements.len() <= Q8_ELEMENTS, "{} elements in a block of {Q8_ELEMENTS}", elements.len());
        let mut x = [0f32; Q8_ELEMENTS];
        x.iter_mut().zip(elements).for_each(|(x, e)| *x = e.to_f64() as f32);
        let finite = x.iter().all(|x| x.is_finite());
        let scale = x.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
        let stored = f16::from_f32(scale);
        if !finite || !stored.is_finite() {
            return Self { scale: f16::NAN, ..Self::ZERO };
        }
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        Self { scale: stored, values: x.map(|x| (x * inverse).round() as i8) }
    }

    /// The elements.
    pub fn widen(&self) -> [f32; Q8_ELEMENTS] {
        let scale = self.scale.to_f32();
        self.values.map(|x| scale * f32::from(x))
    }
}

/// Blocks of a row of `elements`.
pub const fn q8_blocks(elements: usize) -> usize {
    elements.div_ceil(Q8_ELEMENTS)
}

/// A view with its element type spelled out, without which it would not be covariant in its lifetime.
type View2<'a, E> = ArrayBase<ViewRepr<&'a E>, Ix2, E>;

/// The storage of [`CompressedRows`].
#[derive(Debug, Clone, Copy)]
enum Stored<'a> {
    F16(View2<'a, f16>),
    Bf16(View2<'a, bf16>),
    Q8(View2<'a, Q8Block>),
}

/// A matrix in f16, bf16 or q8_0, of any strides.
#[derive(Debug, Clone, Copy)]
pub struct CompressedRows<'a> {
    stored: Stored<'a>,
    cols: usize,
}

impl<'a> CompressedRows<'a> {
    /// Rows of f16.
    pub fn f16(rows: ArrayView2<'a, f16>) -> Self {
        Self { cols: rows.ncols(), stored: Stored::F16(rows) }
    }

    /// Rows of bf16.
    pub fn bf16(rows: ArrayView2<'a, bf16>) -> Self {
        Self { cols: rows.ncols(), stored: Stored::Bf16(rows) }
    }

    /// Rows of `cols` elements in blocks; elements of a last block beyond them are not read.
    ///
    /// # Panics
    /// When rows do not have [`q8_blocks`] blocks.
    pub fn q8(rows: ArrayView2<'a, Q8Block>, cols: usize) -> Self {
        assert!(rows.ncols() == q8_blocks(cols), "{} blocks for {cols} elements", rows.ncols());
        Self { stored: Stored::Q8(rows), cols }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        match &self.stored {
            Stored::F16(rows) => rows.nrows(),
            Stored::Bf16(rows) => rows.nrows(),
            Stored::Q8(rows) => rows.nrows(),
        }
    }

    /// No rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Some of the rows.
    pub fn slice(self, rows: Range<usize>) -> Self {
        let cut = ndarray::Slice::from(rows);
        let axis = ndarray::Axis(0);
        let stored = match self.stored {
            Stored::F16(mut x) => {
                x.slice_axis_inplace(axis, cut);
                Stored::F16(x)
            }
            Stored::Bf16(mut x) => {
                x.slice_axis_inplace(axis, cut);
                Stored::Bf16(x)
            }
            Stored::Q8(mut x) => {
                x.slice_axis_inplace(axis, cut);
                Stored::Q8(x)
            }
        };
        Self { stored, ..self }
    }

    /// Widen all rows into contiguous rows of `to`.
    pub fn widen<S: Simd>(&self, simd: S, to: &mut [S::T]) {
        simd.call(Widen { from: *self, to });
    }

    /// Whether all elements are finite.
    pub fn all_finite(&self) -> bool {
        match &self.stored {
            Stored::F16(rows) => rows.iter().all(|x| x.is_finite()),
            Stored::Bf16(rows) => rows.iter().all(|x| x.is_finite()),
            Stored::Q8(rows) => rows.iter().all(|x| x.scale.is_finite()),
        }
    }
}

/// f16 from its bits: the same bits in f32, times what the exponents differ by. Exact.
#[inline(always)]
fn widen_f16(bits: u16) -> f32 {
    let (sign, rest) = ((u32::from(bits) & 0x8000) << 16, (u32::from(bits) & 0x7FFF) << 13);
    let finite = (f32::from_bits(rest) * f32::from_bits(0x7780_0000)).to_bits();
    f32::from_bits(sign | if rest >= 0x0F80_0000 { rest | 0x7F80_0000 } else { finite })
}

/// bf16 from its bits.
#[inline(always)]
fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// A row of 16-bit elements. A macro, because a closure would not be compiled for the SIMD level.
macro_rules! widen_row {
    ($to:expr, $row:expr, $widen:ident) => {{
        let row = $row;
        match row.as_slice() {
            Some(row) => {
                for (to, x) in $to.iter_mut().zip(row) {
                    *to = T::from_f64(f64::from($widen(x.to_bits())));
                }
            }
            None => {
                for (to, x) in $to.iter_mut().zip(row) {
                    *to = T::from_f64(f64::from($widen(x.to_bits())));
                }
            }
        }
    }};
}

/// Plain loops, which are compiled for the vectors of the level.
struct Widen<'k, 'r, T> {
    from: CompressedRows<'r>,
    to: &'k mut [T],
}

impl<T: Real> Kernel<T> for Widen<'_, '_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, _: S) {
        let Self { from, to } = self;
        assert!(to.len() >= from.len() * from.cols);
        for (row, to) in to.chunks_exact_mut(from.cols.max(1)).enumerate().take(from.len()) {
            match &from.stored {
                Stored::F16(rows) => widen_row!(to, rows.row(row), widen_f16),
                Stored::Bf16(rows) => widen_row!(to, rows.row(row), widen_bf16),
                Stored::Q8(rows) => {
                    for (to, block) in to.chunks_mut(Q8_ELEMENTS).zip(rows.row(row)) {
                        let scale = widen_f16(block.scale.to_bits());
                        match <&mut [T; Q8_ELEMENTS]>::try_from(&mut *to) {
                            Ok(to) => widen_block(to, scale, &block.values),
                            Err(_) => widen_block(to, scale, &block.values),
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn widen_block<T: Real>(to: &mut [T], scale: f32, values: &[i8; Q8_ELEMENTS]) {
    for (to, &x) in to.iter_mut().zip(values) {
        *to = T::from_f64(f64::from(scale * f32::from(x)));
    }
}

#[cfg(test)]
#[path = "../tests/unit/compressed.rs"]
mod tests;
