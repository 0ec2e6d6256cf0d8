//! Strided rows of a tensor, and their way in and out of the kernels' own layout.
//!
//! The kernels keep one *query per lane*: a panel of queries is stored transposed, `[dim][query]`, so that the rows of
//! K and V are read as they lie in the caller's memory, one broadcast number at a time, and nothing has to be reduced
//! across lanes.

use crate::element::Element;
use crate::score::{panels, width};
use crate::simd::{Lanes, Operation, Real, Transpose};
use ndarray::{ArrayView2, ArrayViewMut3, Axis};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

/// A matrix view as a pointer and two strides, for the kernels.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a, E: 'a> {
    ptr: *const E,
    rows: usize,
    cols: usize,
    row_stride: isize,
    col_stride: isize,
    lifetime: PhantomData<&'a E>,
}

impl<'a, E: Element> Rows<'a, E> {
    pub(crate) fn new(view: &ArrayView2<'a, E>) -> Self {
        let (rows, cols) = view.dim();
        let strides = view.strides();
        Self { ptr: view.as_ptr(), rows, cols, row_stride: strides[0], col_stride: strides[1], lifetime: PhantomData }
    }

    /// Rows side by side.
    pub(crate) fn from_slice(data: &'a [E], rows: usize, cols: usize) -> Self {
        assert!(data.len() >= rows * cols);
        Self { ptr: data.as_ptr(), rows, cols, row_stride: cols as isize, col_stride: 1, lifetime: PhantomData }
    }

    /// The same rows as their arithmetic type, if that is what they are stored as.
    pub(crate) fn native(&self) -> Option<Rows<'a, E::Real>> {
        let Self { ptr, rows, cols, row_stride, col_stride, lifetime: _ } = *self;
        // NATIVE says that E and E::Real are one type.
        E::NATIVE.then_some(Rows { ptr: ptr.cast(), rows, cols, row_stride, col_stride, lifetime: PhantomData })
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    /// Elements of a row lie side by side.
    pub(crate) fn has_unit_cols(&self) -> bool {
        self.col_stride == 1 || self.cols <= 1
    }

    pub(crate) fn row_stride(&self) -> isize {
        self.row_stride
    }

    /// Pointer to the start of a row.
    pub(crate) fn row(&self, row: usize) -> *const E {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row is inside the view, and so is its first element (or the row is empty and never read).
        unsafe { self.ptr.offset(row as isize * self.row_stride) }
    }

    pub(crate) fn get(&self, row: usize, col: usize) -> E::Real {
        assert!(row < self.rows && col < self.cols, "({row}, {col}) of ({}, {})", self.rows, self.cols);
        // SAFETY: both indices were just checked against the view's shape.
        unsafe { self.ptr.offset(row as isize * self.row_stride + col as isize * self.col_stride).read().to_real() }
    }

    /// Copy rows, widened, into `to`, side by side.
    pub(crate) fn copy<S: Lanes<T = E::Real>>(&self, simd: S, rows: Range<usize>, to: &mut [E::Real]) {
        simd.call(CopyRows { from: *self, rows, to });
    }

    #[inline(always)]
    fn copy_rows<S: Lanes<T = E::Real>>(&self, simd: S, rows: Range<usize>, to: &mut [E::Real]) {
        assert!(rows.end <= self.rows && to.len() >= rows.len() * self.cols);
        let unit = self.has_unit_cols();
        for (to, row) in to.chunks_exact_mut(self.cols.max(1)).zip(rows) {
            let mut col = 0;
            if unit {
                let from = self.row(row);
                while col + S::LANES <= self.cols {
                    // SAFETY: LANES elements from `col` on are inside the row, and inside `to`, which has `cols`.
                    unsafe { simd.store(to.as_mut_ptr().add(col), E::load(simd, from.add(col))) };
                    col += S::LANES;
                }
            }
            for (to, col) in to[col..].iter_mut().zip(col..) {
                *to = self.get(row, col);
            }
        }
    }

    /// Whether all elements of some rows are finite.
    pub(crate) fn all_finite<S: Lanes<T = E::Real>>(&self, simd: S, rows: Range<usize>) -> bool {
        simd.call(AllFinite { of: *self, rows })
    }

    #[inline(always)]
    fn rows_finite<S: Lanes<T = E::Real>>(&self, simd: S, rows: Range<usize>) -> bool {
        let unit = self.has_unit_cols();
        let zero = simd.splat(E::Real::ZERO);
        let mut sums = [zero; 4];
        for row in rows {
            let mut col = 0;
            if unit {
                let from = self.row(row);
                macro_rules! add {
                    ($($sum:literal)*) => {
                        while col + [$($sum),*].len() * S::LANES <= self.cols {
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
            if (col..self.cols).any(|col| !self.get(row, col).is_finite()) {
                return false;
            }
        }
        let sum = simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3]));
        simd.bits_from_mask(simd.eq(sum, zero)) == u32::MAX >> (32 - S::LANES)
    }

    /// Write `rows` transposed: `to[col * width + first + i]` is element `col` of the i-th row.
    /// Lanes next to the last row may be overwritten with zeros.
    pub(crate) fn transpose_into<S: Lanes<T = E::Real>>(
        &self,
        simd: S,
        rows: Range<usize>,
        to: &mut [E::Real],
        width: usize,
        first: usize,
    ) {
        simd.call(TransposeInto { from: *self, rows, to, width, first });
    }

    #[inline(always)]
    fn transpose_rows<S: Transpose<T = E::Real>>(&self, simd: S, rows: Range<usize>, to: &mut [E::Real], width: usize, first: usize) {
        let count = rows.len();
        assert!(rows.end <= self.rows && to.len() >= self.cols * width);
        assert!(first + count <= width);
        let mut whole = 0;
        let room = first + count.next_multiple_of(S::LANES) <= width;
        if room && self.has_unit_cols() && first.is_multiple_of(S::LANES) {
            whole = self.cols - self.cols % S::LANES;
            for i in (0..count).step_by(S::LANES) {
                for col in (0..whole).step_by(S::LANES) {
                    let mut square = simd.zero_square();
                    for (x, line) in square.as_mut().iter_mut().enumerate().take(count - i) {
                        // SAFETY: LANES elements from `col` on are inside the row.
                        *line = unsafe { E::load(simd, self.row(rows.start + i + x).add(col)) };
                    }
                    for (x, &line) in simd.transpose(square).as_ref().iter().enumerate() {
                        // SAFETY: `room` says that a whole vector fits at `first + i` of every column.
                        unsafe { simd.store(to.as_mut_ptr().add((col + x) * width + first + i), line) };
                    }
                }
            }
        }
        for col in whole..self.cols {
            for i in 0..count {
                to[col * width + first + i] = self.get(rows.start + i, col);
            }
        }
    }
}

struct CopyRows<'k, E: Element> {
    from: Rows<'k, E>,
    rows: Range<usize>,
    to: &'k mut [E::Real],
}

impl<E: Element> Operation<E::Real> for CopyRows<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = E::Real>>(self, simd: S) {
        self.from.copy_rows(simd, self.rows, self.to);
    }
}

struct AllFinite<'k, E: Element> {
    of: Rows<'k, E>,
    rows: Range<usize>,
}

impl<E: Element> Operation<E::Real> for AllFinite<'_, E> {
    type Output = bool;
    #[inline(always)]
    fn run<S: Lanes<T = E::Real>>(self, simd: S) -> bool {
        self.of.rows_finite(simd, self.rows)
    }
}

struct TransposeInto<'k, E: Element> {
    from: Rows<'k, E>,
    rows: Range<usize>,
    to: &'k mut [E::Real],
    width: usize,
    first: usize,
}

impl<E: Element> Operation<E::Real> for TransposeInto<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = E::Real>>(self, simd: S) {
        self.from.transpose_rows(simd.narrow(), self.rows, self.to, self.width, self.first);
    }
}

/// Rows, widened, times a factor, `pitch` apart; what is left of the pitch becomes zeros.
pub(crate) struct CopyScaled<'k, E: Element> {
    pub(crate) from: Rows<'k, E>,
    pub(crate) rows: Range<usize>,
    pub(crate) factor: E::Real,
    pub(crate) pitch: usize,
    pub(crate) to: &'k mut [E::Real],
}

impl<E: Element> Operation<E::Real> for CopyScaled<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = E::Real>>(self, simd: S) {
        let Self { from, rows, factor, pitch, to } = self;
        assert!(rows.end <= from.rows && from.cols <= pitch && to.len() >= rows.len() * pitch);
        let by = simd.splat(factor);
        for (to, row) in to.chunks_exact_mut(pitch.max(1)).zip(rows) {
            let mut col = 0;
            if from.has_unit_cols() {
                let line = from.row(row);
                while col + S::LANES <= from.cols {
                    // SAFETY: LANES elements from `col` on are inside the row, and inside `to`, which has at least `cols`.
                    unsafe { simd.store(to.as_mut_ptr().add(col), simd.mul(E::load(simd, line.add(col)), by)) };
                    col += S::LANES;
                }
            }
            for (to, col) in to[col..].iter_mut().zip(col..) {
                *to = if col < from.cols { from.get(row, col) * factor } else { E::Real::ZERO };
            }
        }
    }
}

/// Hand the rows of a block out: `acc` is panels of `[dim][lane]`, each number is divided by (or multiplied with) its row's `by`.
/// `buffer` has room for all rows.
pub(crate) fn hand_out<S: Lanes, E: Element<Real = S::T>, const DIVIDE: bool>(
    simd: S,
    acc: &[S::T],
    by: &[S::T],
    buffer: &mut [S::T],
    mut out: ArrayViewMut3<'_, MaybeUninit<E>>,
) {
    let (heads, queries, dims) = out.dim();
    // Straight into the result where that is the same numbers side by side, else by way of a buffer.
    let direct = if E::NATIVE { out.as_slice_mut() } else { None };
    let is_direct = direct.is_some();
    let rows = match direct {
        // SAFETY: NATIVE says that E and S::T are one type.
        Some(to) => unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<S::T>]) },
        None => as_uninit(buffer),
    };
    for panel in panels::<S>(heads * queries) {
        let width = width::<S>(panel.len());
        let from = &acc[panel.start * dims..][..width * dims];
        let (by, to) = (&by[panel.start..], &mut rows[panel.start * dims..]);
        simd.call(TransposeOut::<_, DIVIDE> { from, width, by, rows: panel.len(), dims, to });
    }
    if !is_direct {
        copy_out(buffer, out);
    }
}

/// Rows side by side become rows of the result, rounded.
pub(crate) fn copy_out<E: Element>(rows: &[E::Real], mut out: ArrayViewMut3<'_, MaybeUninit<E>>) {
    let dims = out.len_of(Axis(2));
    if dims == 0 {
        return;
    }
    let mut rows = rows.chunks_exact(dims);
    for mut head in out.outer_iter_mut() {
        for (mut to, from) in head.outer_iter_mut().zip(&mut rows) {
            to.iter_mut().zip(from).for_each(|(to, &x)| *to = MaybeUninit::new(E::from_real(x)));
        }
    }
}

/// The way back: `from[dim * width + r]` divided by (or multiplied with) `by[r]` becomes `to[r * dims + dim]`, for `rows` rows.
struct TransposeOut<'k, T, const DIVIDE: bool> {
    from: &'k [T],
    width: usize,
    by: &'k [T],
    rows: usize,
    dims: usize,
    to: &'k mut [MaybeUninit<T>],
}

/// Elements as their arithmetic type, if that is what they are stored as.
pub(crate) fn native<E: Element>(elements: &[E]) -> Option<&[E::Real]> {
    // SAFETY: NATIVE says that E and E::Real are one type.
    E::NATIVE.then(|| unsafe { &*(std::ptr::from_ref(elements) as *const [E::Real]) })
}

/// Initialised numbers as a place to write others to.
pub(crate) fn as_uninit<T: Real>(numbers: &mut [T]) -> &mut [MaybeUninit<T>] {
    // SAFETY: same layout; what is written is numbers, so the slice stays initialised (`MaybeUninit::uninit()` is written nowhere).
    unsafe { &mut *(std::ptr::from_mut(numbers) as *mut [MaybeUninit<T>]) }
}

impl<T: Real, const DIVIDE: bool> Operation<T> for TransposeOut<'_, T, DIVIDE> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { from, width, by, rows, dims, to } = self;
        transpose_out::<_, DIVIDE>(simd.narrow(), from, width, by, rows, dims, to);
    }
}

#[inline(always)]
fn transpose_out<S: Transpose, const DIVIDE: bool>(
    simd: S,
    from: &[S::T],
    width: usize,
    by: &[S::T],
    rows: usize,
    dims: usize,
    to: &mut [MaybeUninit<S::T>],
) {
    assert!(from.len() >= dims * width && by.len() >= width && width.is_multiple_of(S::LANES));
    assert!(rows <= width && to.len() >= rows * dims);
    let whole = dims - dims % S::LANES;
    for r in (0..rows).step_by(S::LANES) {
        // SAFETY: r + LANES <= width, and there is one number per lane.
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
