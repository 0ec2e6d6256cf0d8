//! Strided rows of a tensor, and their way into and out of panels.
//!
//! The kernels keep one *query per lane*: a panel of rows is stored transposed, `[dim][row]`, so that the other operand is read in place
//! from the caller's memory, one broadcast element at a time, and nothing has to be reduced across lanes.

use crate::float::{Real, Storage};
use crate::simd::{Kernel, Simd, Transpose};
use half::{bf16, f16};
use ndarray::{ArrayView1, ArrayView2};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A matrix view as a pointer and two strides, for the kernels. [Pairs](Self::pairs) need not be aligned.
#[derive(Debug)]
pub struct Rows<'a, E: 'a> {
    ptr: *const E,
    rows: usize,
    cols: usize,
    row_stride: isize,
    col_stride: isize,
    lifetime: PhantomData<&'a [E]>,
}

impl<E> Clone for Rows<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Rows<'_, E> {}

// SAFETY: it is a shared borrow of elements, which other threads may read.
unsafe impl<E: Sync> Send for Rows<'_, E> {}
// SAFETY: as above.
unsafe impl<E: Sync> Sync for Rows<'_, E> {}

impl<'a, E: Storage> Rows<'a, E> {
    /// The rows of a matrix of any strides.
    pub fn new(view: &ArrayView2<'a, E>) -> Self {
        let (rows, cols) = view.dim();
        let strides = view.strides();
        Self { ptr: view.as_ptr(), rows, cols, row_stride: strides[0], col_stride: strides[1], lifetime: PhantomData }
    }

    /// Contiguous rows.
    pub fn from_slice(data: &'a [E], rows: usize, cols: usize) -> Self {
        assert!(rows.checked_mul(cols).is_some_and(|n| n <= data.len()), "{rows} rows of {cols} in {}", data.len());
        Self { ptr: data.as_ptr(), rows, cols, row_stride: cols as isize, col_stride: 1, lifetime: PhantomData }
    }

    /// One row, repeated `rows` times.
    pub fn repeated(row: &ArrayView1<'a, E>, rows: usize) -> Self {
        Self { ptr: row.as_ptr(), rows, cols: row.len(), row_stride: 0, col_stride: row.strides()[0], lifetime: PhantomData }
    }

    /// Some of the rows.
    pub fn slice(self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        // Where there are none, the pointer may be anywhere: it is not read.
        Self { ptr: self.ptr.wrapping_offset(rows.start as isize * self.row_stride), rows: rows.len(), ..self }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// No rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements of a row are contiguous.
    pub fn has_unit_cols(&self) -> bool {
        self.col_stride == 1 || self.cols <= 1
    }

    /// From one row to the next.
    pub fn row_stride(&self) -> isize {
        self.row_stride
    }

    /// Pointer to the start of a row.
    pub fn row(&self, row: usize) -> *const E {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // Wrapping: an empty row may begin anywhere.
        self.ptr.wrapping_offset(row as isize * self.row_stride)
    }

    /// One element.
    pub fn get(&self, row: usize, col: usize) -> E::Real {
        assert!(row < self.rows && col < self.cols, "({row}, {col}) of ({}, {})", self.rows, self.cols);
        // SAFETY: both indices were just checked against the view's shape.
        unsafe { self.ptr.offset(row as isize * self.row_stride + col as isize * self.col_stride).read_unaligned().to_real() }
    }

    /// Copy all rows, widened, into contiguous rows of `to`.
    pub fn copy<S: Simd<T = E::Real>>(&self, simd: S, to: &mut [E::Real]) {
        simd.call(CopyScaled { from: *self, factor: None, ld: self.cols, to });
    }

    /// Whether all elements are finite.
    pub fn all_finite<S: Simd<T = E::Real>>(&self, simd: S) -> bool {
        let mut finite = false;
        simd.call(AllFinite { of: *self, finite: &mut finite });
        finite
    }

    /// Write all rows transposed: `to[col * width + first + i]` is element `col` of the i-th row.
    /// Lanes next to the last row may be overwritten with zeros.
    pub fn transpose_into<S: Simd<T = E::Real>>(&self, simd: S, to: &mut [E::Real], width: usize, first: usize) {
        simd.call(TransposeInto { from: *self, to, width, first });
    }

    /// Rows of 16-bit elements in place as rows of pairs, for [`Simd::dot_pairs`]; `None` where elements do not lie in pairs.
    pub fn pairs(self) -> Option<Rows<'a, E::Real>> {
        let Self { ptr, rows, cols, row_stride, lifetime: _, .. } = self;
        let lie = 2 * size_of::<E>() == size_of::<E::Real>() && self.has_unit_cols() && cols.is_multiple_of(2) && row_stride % 2 == 0;
        lie.then(|| Rows { ptr: ptr.cast(), rows, cols: cols / 2, row_stride: row_stride / 2, col_stride: 1, lifetime: PhantomData })
    }

    /// Write pair `x` of row `i` to `to[place(x, i)]`, a zero beside the last element of odd rows.
    fn each_pair(&self, to: &mut [E::Real], place: impl Fn(usize, usize) -> usize) {
        assert!(2 * size_of::<E>() == size_of::<E::Real>(), "16-bit elements");
        for (i, col) in (0..self.rows).flat_map(|i| (0..self.cols.next_multiple_of(2)).map(move |col| (i, col))) {
            let to = std::ptr::from_mut(&mut to[place(col / 2, i)]).cast::<E>();
            // SAFETY: two elements have the size of one place; both indices are within the view's shape.
            unsafe {
                let element = |col: usize| self.ptr.offset(i as isize * self.row_stride + col as isize * self.col_stride).read_unaligned();
                to.add(col % 2).write(if col < self.cols { element(col) } else { E::STORED_ZERO });
            }
        }
    }

    /// Copy all rows into rows of pairs, `ld` apart; the padding becomes zeros.
    pub fn copy_pairs(&self, to: &mut [E::Real], ld: usize) {
        assert!(2 * size_of::<E>() == size_of::<E::Real>(), "16-bit elements");
        assert!(self.cols.div_ceil(2) <= ld && to.len() >= self.rows * ld);
        if !self.has_unit_cols() {
            to[..self.rows * ld].fill(E::Real::ZERO);
            return self.each_pair(to, |pair, i| i * ld + pair);
        }
        for (i, to) in to.chunks_exact_mut(ld.max(1)).take(self.rows).enumerate() {
            // SAFETY: two elements have the size of one place, of which there are `ld` (just checked): room for the row and the zeros
            // after it.
            unsafe {
                let to = to.as_mut_ptr().cast::<E>();
                std::ptr::copy_nonoverlapping(self.row(i), to, self.cols);
                (self.cols..2 * ld).for_each(|col| to.add(col).write(E::STORED_ZERO));
            }
        }
    }

    /// [`Self::transpose_into`] of pairs: `to[pair * width + first + i]` is a pair of the i-th row.
    pub fn transpose_pairs_into<S: Simd<T = E::Real>>(&self, simd: S, to: &mut [E::Real], width: usize, first: usize) {
        match self.pairs() {
            Some(pairs) => pairs.transpose_into(simd, to, width, first),
            None => self.each_pair(to, |pair, i| pair * width + first + i),
        }
    }
}

/// Rows of any storage type.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "each is named for its type")]
pub enum AnyRows<'a> {
    F32(Rows<'a, f32>),
    F64(Rows<'a, f64>),
    F16(Rows<'a, f16>),
    Bf16(Rows<'a, bf16>),
}

struct AllFinite<'k, E> {
    of: Rows<'k, E>,
    finite: &'k mut bool,
}

impl<E: Storage> Kernel<E::Real> for AllFinite<'_, E> {
    #[inline(always)]
    fn run<S: Simd<T = E::Real>>(self, simd: S) {
        let Self { of, finite } = self;
        let zero = simd.splat(E::Real::ZERO);
        let mut sums = [zero; 4];
        for row in 0..of.rows {
            let mut col = 0;
            if of.has_unit_cols() {
                let from = of.row(row);
                macro_rules! add {
                    ($($sum:literal)*) => {
                        while col + [$($sum),*].len() * S::LANES <= of.cols {
                            // SAFETY: as many elements from `col` on are inside the row.
                            $(let x = unsafe { E::load(simd, from.add(col + $sum * S::LANES)) };
                            // Infinity and NaN times zero are NaN, and stay.
                            sums[$sum] = simd.mul_add(x, zero, sums[$sum]);)*
                            col += [$($sum),*].len() * S::LANES;
                        }
                    };
                }
                add!(0 1 2 3);
                add!(0);
            }
            if (col..of.cols).any(|col| !of.get(row, col).is_finite()) {
                return;
            }
        }
        let sum = simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3]));
        *finite = simd.bits_from_mask(simd.eq(sum, zero)) == u32::MAX >> (32 - S::LANES);
    }
}

struct TransposeInto<'k, E: Storage> {
    from: Rows<'k, E>,
    to: &'k mut [E::Real],
    width: usize,
    first: usize,
}

impl<E: Storage> Kernel<E::Real> for TransposeInto<'_, E> {
    #[inline(always)]
    fn run<S: Simd<T = E::Real>>(self, simd: S) {
        transpose_into(simd.narrow(), self);
    }
}

#[inline(always)]
fn transpose_into<S: Transpose, E: Storage<Real = S::T>>(simd: S, task: TransposeInto<'_, E>) {
    let TransposeInto { from, to, width, first } = task;
    let (count, cols) = (from.rows, from.cols);
    assert!(first + count <= width && to.len() >= cols * width);
    let mut whole = 0;
    let room = first + count.next_multiple_of(S::LANES) <= width;
    if room && from.has_unit_cols() && first.is_multiple_of(S::LANES) {
        whole = cols - cols % S::LANES;
        for i in (0..count).step_by(S::LANES) {
            for col in (0..whole).step_by(S::LANES) {
                let mut square = simd.zero_square();
                for (x, line) in square.as_mut().iter_mut().enumerate().take(count - i) {
                    // SAFETY: LANES elements from `col` on are inside the row.
                    *line = unsafe { E::load(simd, from.row(i + x).add(col)) };
                }
                for (x, &line) in simd.transpose(square).as_ref().iter().enumerate() {
                    // SAFETY: `room` says that a whole vector fits at `first + i` of every column, of which `to` has all.
                    unsafe { simd.store(to.as_mut_ptr().add((col + x) * width + first + i), line) };
                }
            }
        }
    }
    for col in whole..cols {
        for i in 0..count {
            to[col * width + first + i] = from.get(i, col);
        }
    }
}

/// All rows, widened, times a factor where there is one, `ld` apart; the padding becomes zeros.
#[derive(Debug)]
pub struct CopyScaled<'k, E: Storage> {
    /// The rows.
    pub from: Rows<'k, E>,
    /// What they are multiplied with.
    pub factor: Option<E::Real>,
    /// From one row to the next in `to`.
    pub ld: usize,
    /// Where they go.
    pub to: &'k mut [E::Real],
}

impl<E: Storage> Kernel<E::Real> for CopyScaled<'_, E> {
    #[inline(always)]
    fn run<S: Simd<T = E::Real>>(self, simd: S) {
        let Self { from, factor, ld, to } = self;
        assert!(from.cols <= ld && to.len() >= from.rows * ld);
        let by = simd.splat(factor.unwrap_or(E::Real::ONE));
        for (to, row) in to.chunks_exact_mut(ld.max(1)).zip(0..from.rows) {
            let mut col = 0;
            if from.has_unit_cols() {
                let line = from.row(row);
                while col + S::LANES <= from.cols {
                    // SAFETY: LANES elements from `col` on are inside the row, and inside `to`, which has at least `cols`.
                    unsafe {
                        let x = E::load(simd, line.add(col));
                        simd.store(to.as_mut_ptr().add(col), if factor.is_some() { simd.mul(x, by) } else { x });
                    }
                    col += S::LANES;
                }
            }
            for (to, col) in to[col..].iter_mut().zip(col..) {
                *to = match factor {
                    _ if col >= from.cols => E::Real::ZERO,
                    None => from.get(row, col),
                    Some(factor) => from.get(row, col) * factor,
                };
            }
        }
    }
}

/// The way back: `from[dim * width + r]` divided by (or multiplied with) `by[r]` becomes `to[r * dims + dim]`, for `rows` rows.
#[derive(Debug)]
pub struct TransposeOut<'k, T, const DIVIDE: bool> {
    /// A panel.
    pub from: &'k [T],
    /// Its lanes.
    pub width: usize,
    /// One value per lane.
    pub by: &'k [T],
    /// How many of the lanes are rows.
    pub rows: usize,
    /// Elements of a row.
    pub dims: usize,
    /// Contiguous rows.
    pub to: &'k mut [MaybeUninit<T>],
}

impl<T: Real, const DIVIDE: bool> Kernel<T> for TransposeOut<'_, T, DIVIDE> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        transpose_out(simd.narrow(), self);
    }
}

#[inline(always)]
fn transpose_out<S: Transpose, const DIVIDE: bool>(simd: S, task: TransposeOut<'_, S::T, DIVIDE>) {
    let TransposeOut { from, width, by, rows, dims, to } = task;
    assert!(from.len() >= dims * width && by.len() >= width && width.is_multiple_of(S::LANES));
    assert!(rows <= width && to.len() >= rows * dims);
    let whole = dims - dims % S::LANES;
    for r in (0..rows).step_by(S::LANES) {
        // SAFETY: r + LANES <= width, and there is one value per lane.
        let factor = unsafe { simd.load(by.as_ptr().add(r)) };
        for dim in (0..whole).step_by(S::LANES) {
            let mut square = simd.zero_square();
            for (x, line) in square.as_mut().iter_mut().enumerate() {
                // SAFETY: dim + x < dims and r + LANES <= width.
                let numbers = unsafe { simd.load(from.as_ptr().add((dim + x) * width + r)) };
                *line = if DIVIDE { simd.div(numbers, factor) } else { simd.mul(numbers, factor) };
            }
            for (x, &line) in simd.transpose(square).as_ref().iter().enumerate().take(rows - r) {
                // SAFETY: r + x < rows and dim + LANES <= dims.
                unsafe { simd.store(to.as_mut_ptr().cast::<S::T>().add((r + x) * dims + dim), line) };
            }
        }
    }
    for r in 0..rows {
        for dim in whole..dims {
            let x = from[dim * width + r];
            to[r * dims + dim].write(if DIVIDE { x / by[r] } else { x * by[r] });
        }
    }
}

/// Initialised elements as uninitialised memory to write to.
///
/// # Safety
/// Only initialised values may be written to the result.
pub unsafe fn as_uninit<T: Real>(numbers: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: same layout; the caller guarantees what is written.
    unsafe { &mut *(std::ptr::from_mut(numbers) as *mut [MaybeUninit<T>]) }
}

#[cfg(test)]
#[path = "../tests/unit/strided.rs"]
mod tests;
