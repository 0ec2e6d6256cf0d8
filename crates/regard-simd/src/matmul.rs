//! A matrix product for the layers around attention, with the register tile that attention has.
//!
//! ```text
//! dst[m, n] = lhs[m, k] rhs[k, n]        or        dst += lhs rhs
//! ```
//!
//! The depth k is cut into chunks of at most `KC`. Of a chunk, rhs is packed into panels: as many columns as a register tile has, depth
//! after depth. A block of `MC` rows of lhs stays in L2 while panels stream through L1;
//! the next panel is prefetched. Rows of lhs whose elements are neighbours are read where they are; others
//! (a transposed matrix) are packed, the rows of a tile contiguously. Weights that many products share are packed once ([`PackedMatrix`]).
//!
//! Every element is one chain of multiply-adds per chunk, and chunks are added in order: its bits depend on its row, its column and
//! the depth, not on the other rows and columns of the call. One thread computes one call; callers share work out in pieces of their
//! choice.

use crate::float::Real;
use crate::level::Level;
use crate::microkernel::{Epilogue, GemmOperands, product};
use crate::scratch::Scratch;
use crate::sealed::Sealed;
use crate::simd::{Driver, Kernel, Simd, Transpose};
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis};
use std::ops::Range;

/// Largest depth of a chunk: an AVX2 panel of this depth fills L1.
const KC: usize = 512;
/// Rows of a block of lhs, which stays in L2: whole tiles of six or eight rows.
const MC: usize = 96;
/// Columns of rhs packed at a time, where it is not packed in advance.
const NC: usize = 2048;
/// Vectors in a row of a panel; the last panel has one if that suffices.
const NR: usize = 2;
/// Depths of one panel that are packed before the next panel, so that memory is read in long runs.
const PACK_DEPTH: usize = 8;
/// Bytes of a cache line.
const LINE: usize = 64;

/// What happens to the old contents of the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Overwrite.
    Replace,
    /// Add to them.
    Add,
}

/// `dst = lhs rhs`, or `dst += lhs rhs`, of any strides, on the calling thread.
///
/// ```
/// use ndarray::array;
/// use regard_simd::matmul::{Write, matmul};
/// let mut dst = array![[1.0f32, 1.0]];
/// matmul(dst.view_mut(), Write::Add, array![[1.0f32, 2.0]].view(), array![[3.0f32, 4.0], [5.0, 6.0]].view());
/// assert_eq!(dst, array![[14.0, 17.0]]);
/// ```
///
/// # Panics
/// When the shapes do not fit together, or `REGARD_SIMD` names a level that this CPU does not have.
pub fn matmul<T: Real>(dst: ArrayViewMut2<'_, T>, write: Write, lhs: ArrayView2<'_, T>, rhs: ArrayView2<'_, T>) {
    matmul_at(Level::preferred_or_panic(), dst, write, lhs, rhs);
}

fn matmul_at<T: Real>(level: Level, mut dst: ArrayViewMut2<'_, T>, write: Write, lhs: ArrayView2<'_, T>, rhs: ArrayView2<'_, T>) {
    check(&dst, &lhs, rhs.dim());
    if !has_rows(&dst) {
        if has_rows(&dst.view_mut().reversed_axes()) {
            return matmul_at(level, dst.reversed_axes(), write, rhs.reversed_axes(), lhs.reversed_axes());
        }
        // No two neighbours anywhere: through a matrix that has them.
        let mut dense = Array2::from_elem(dst.dim(), T::ZERO);
        dense.assign(&dst);
        matmul_at(level, dense.view_mut(), write, lhs, rhs);
        return dst.assign(&dense);
    }
    clear_without_depth(&mut dst, write, &lhs);
    let depth = chunk_depth(lhs.ncols());
    let mut memory = Scratch::take();
    let [panels, block] = memory.slices([packed_len::<T>(level, depth, dst.ncols().min(NC)), MC * depth]);
    for (mut dst, rhs) in dst.axis_chunks_iter_mut(Axis(1), NC).zip(rhs.axis_chunks_iter(Axis(1), NC)) {
        let chunks = lhs.axis_chunks_iter(Axis(1), depth).zip(rhs.axis_chunks_iter(Axis(0), depth));
        for (i, (lhs, rhs)) in chunks.enumerate() {
            let write = if i == 0 { write } else { Write::Add };
            T::pack(level, Pack { rhs, panels });
            T::multiply(level, Chunk { dst: dst.view_mut(), write, lhs, panels, block });
        }
    }
}

/// The right side of a product, packed for any number of products.
///
/// ```
/// use ndarray::array;
/// use regard_simd::matmul::{PackedMatrix, Write};
/// let mut packed = PackedMatrix::default();
/// packed.pack(array![[3.0f32, 4.0], [5.0, 6.0]].view());
/// let mut dst = array![[1.0f32, 1.0]];
/// packed.matmul(dst.view_mut(), Write::Add, array![[1.0f32, 2.0]].view());
/// assert_eq!(dst, array![[14.0, 17.0]]);
/// ```
#[derive(Debug)]
pub struct PackedMatrix<T> {
    /// The panels of all chunks, from the first cache line in it on.
    numbers: Vec<T>,
    depth: usize,
    columns: usize,
}

impl<T: Real> PackedMatrix<T> {
    /// Pack a matrix of any strides, in the place of what was here.
    pub fn pack(&mut self, rhs: ArrayView2<'_, T>) {
        self.pack_at(Level::preferred_or_panic(), rhs);
    }

    fn pack_at(&mut self, level: Level, rhs: ArrayView2<'_, T>) {
        (self.depth, self.columns) = rhs.dim();
        let len = packed_len::<T>(level, self.depth, self.columns);
        self.numbers.resize(len + LINE / size_of::<T>(), T::ZERO);
        let first = self.first();
        let mut panels = &mut self.numbers[first..first + len];
        for rhs in rhs.axis_chunks_iter(Axis(0), chunk_depth(self.depth)) {
            let (chunk, rest) = std::mem::take(&mut panels).split_at_mut(packed_len::<T>(level, rhs.nrows(), self.columns));
            T::pack(level, Pack { rhs, panels: chunk });
            panels = rest;
        }
    }

    /// `dst = lhs rhs`, or `dst += lhs rhs`, on the calling thread.
    ///
    /// # Panics
    /// When the shapes do not fit together, the elements of a row of dst are not neighbours, or `REGARD_SIMD` names a level that is not
    /// available.
    pub fn matmul(&self, dst: ArrayViewMut2<'_, T>, write: Write, lhs: ArrayView2<'_, T>) {
        self.matmul_at(Level::preferred_or_panic(), dst, write, lhs);
    }

    fn matmul_at(&self, level: Level, mut dst: ArrayViewMut2<'_, T>, write: Write, lhs: ArrayView2<'_, T>) {
        check(&dst, &lhs, (self.depth, self.columns));
        assert!(has_rows(&dst), "the elements of a row of dst are not neighbours");
        clear_without_depth(&mut dst, write, &lhs);
        let depth = chunk_depth(self.depth);
        let mut memory = Scratch::take();
        let [block] = memory.slices([MC * depth]);
        let mut panels = &self.numbers[self.first()..];
        for (i, lhs) in lhs.axis_chunks_iter(Axis(1), depth).enumerate() {
            let (chunk, rest) = panels.split_at(packed_len::<T>(level, lhs.ncols(), self.columns));
            let write = if i == 0 { write } else { Write::Add };
            T::multiply(level, Chunk { dst: dst.view_mut(), write, lhs, panels: chunk, block });
            panels = rest;
        }
    }

    fn first(&self) -> usize {
        // A place that does not exist in an empty vector, which has no panels either.
        self.numbers.as_ptr().align_offset(LINE).min(self.numbers.len())
    }
}

impl<T> Default for PackedMatrix<T> {
    /// A matrix without rows and columns.
    fn default() -> Self {
        Self { numbers: Vec::new(), depth: 0, columns: 0 }
    }
}

impl<T: Real> Clone for PackedMatrix<T> {
    /// The copy begins at a cache line of its own.
    fn clone(&self) -> Self {
        let mut copy = Self { numbers: vec![T::ZERO; self.numbers.len()], depth: self.depth, columns: self.columns };
        let len = self.numbers.len().saturating_sub(LINE / size_of::<T>());
        let (from, to) = (self.first(), copy.first());
        copy.numbers[to..to + len].copy_from_slice(&self.numbers[from..from + len]);
        copy
    }
}

fn check<T>(dst: &ArrayViewMut2<'_, T>, lhs: &ArrayView2<'_, T>, rhs: (usize, usize)) {
    assert_eq!(rhs.0, lhs.ncols(), "lhs {:?} and rhs {rhs:?} differ in depth", lhs.dim());
    assert_eq!(dst.dim(), (lhs.nrows(), rhs.1), "dst {:?} is not the shape of the product", dst.dim());
}

/// Numbers of a row are neighbours.
fn has_rows<T>(dst: &ArrayViewMut2<'_, T>) -> bool {
    dst.strides()[1] == 1 || dst.ncols() <= 1
}

/// A product without depth is zero; there is no chunk that would write it.
fn clear_without_depth<T: Real>(dst: &mut ArrayViewMut2<'_, T>, write: Write, lhs: &ArrayView2<'_, T>) {
    if lhs.ncols() == 0 && write == Write::Replace {
        dst.fill(T::ZERO);
    }
}

/// Chunks of about the same depth, none of them deeper than KC.
fn chunk_depth(depth: usize) -> usize {
    depth.div_ceil(depth.div_ceil(KC).max(1)).max(1)
}

/// Elements of the panels of a chunk.
fn packed_len<T: Real>(level: Level, depth: usize, columns: usize) -> usize {
    struct LaneCount;
    impl<T: Real> Driver<T> for LaneCount {
        type Output = usize;
        fn run<S: Simd<T = T>>(self, _: S) -> usize {
            S::LANES
        }
    }
    depth * columns.next_multiple_of(T::dispatch(level, LaneCount))
}

/// One panel: how many columns it has, and the elements in a row of it, zeros at its end included.
#[derive(Clone, Copy)]
struct Panel {
    columns: usize,
    width: usize,
}

impl Panel {
    /// The panel that begins at column `first` of `columns`.
    #[inline(always)]
    fn at<S: Simd>(first: usize, columns: usize) -> Self {
        let columns = (columns - first).min(NR * S::LANES);
        Self { columns, width: columns.next_multiple_of(S::LANES) }
    }
}

/// Write the panels of a chunk of rhs.
#[doc(hidden)]
#[derive(Debug)]
pub struct Pack<'a, T> {
    rhs: ArrayView2<'a, T>,
    panels: &'a mut [T],
}

impl<T: Real> Kernel<T> for Pack<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let (depth, columns) = self.rhs.dim();
        let (down, along) = (self.rhs.strides()[0], self.rhs.strides()[1]);
        assert!(self.panels.len() >= depth * columns.next_multiple_of(S::LANES), "too few elements for the panels");
        // A row of rhs is read in strips of depths; where the depths are the neighbours, each panel is packed as a whole.
        let strip = if along == 1 { PACK_DEPTH } else { depth.max(1) };
        for first_depth in (0..depth).step_by(strip) {
            let depths = first_depth..(first_depth + strip).min(depth);
            for first in (0..columns).step_by(NR * S::LANES) {
                let panel = Panel::at::<S>(first, columns);
                // SAFETY: columns from `first` on and all depths are of rhs, whose strides these are. Panels before this one are whole, so
                // it begins at `first * depth`; it ends within what was asserted.
                unsafe {
                    let from = self.rhs.as_ptr().offset(first as isize * along);
                    pack_panel(simd, panel, depths.clone(), from, down, along, self.panels.as_mut_ptr().add(first * depth));
                }
            }
        }
    }
}

/// Write some depths of a panel.
///
/// # Safety
/// `from` must be valid for reading at `depth * down + column * along` for these depths and the panel's columns, `to` for writing all rows
/// of the panel up to the last of these depths.
#[inline(always)]
unsafe fn pack_panel<S: Simd>(simd: S, panel: Panel, depths: Range<usize>, from: *const S::T, down: isize, along: isize, to: *mut S::T) {
    let Panel { columns, width } = panel;
    let mut depths = depths;
    // SAFETY: the caller guarantees columns and depths; vectors are only read where all of a row's `width` columns are there (and
    // `width` is a multiple of LANES, which is one of the narrow lanes' count), squares only where as many depths are left.
    unsafe {
        if along == 1 && columns == width {
            for d in depths {
                for n in (0..width).step_by(S::LANES) {
                    simd.store(to.add(d * width + n), simd.load(from.offset(d as isize * down).add(n)));
                }
            }
            return;
        }
        let (narrow, step) = (simd.narrow(), S::Narrow::LANES);
        if down == 1 && columns == width {
            while depths.len() >= step {
                let d = depths.start;
                for n in (0..width).step_by(step) {
                    let square = narrow.load_transposed(from.offset(n as isize * along).add(d), along);
                    for (x, v) in square.as_ref().iter().enumerate() {
                        narrow.store(to.add((d + x) * width + n), *v);
                    }
                }
                depths.start += step;
            }
        }
        for d in depths {
            for n in 0..width {
                let x = if n < columns { *from.offset(d as isize * down + n as isize * along) } else { S::T::ZERO };
                *to.add(d * width + n) = x;
            }
        }
    }
}

/// All rows of lhs times the panels of a chunk. Numbers of a row of dst are neighbours.
#[doc(hidden)]
#[derive(Debug)]
pub struct Chunk<'a, T> {
    dst: ArrayViewMut2<'a, T>,
    write: Write,
    lhs: ArrayView2<'a, T>,
    panels: &'a [T],
    /// Room for a packed block of lhs.
    block: &'a mut [T],
}

impl<T: Real> Kernel<T> for Chunk<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(mut self, simd: S) {
        const { assert!(MC.is_multiple_of(S::TILE_ROWS) && MC >= S::TILE_ROWS, "a block is whole tiles") };
        let ((rows, depth), columns) = (self.lhs.dim(), self.dst.ncols());
        let (down, along) = (self.lhs.strides()[0], self.lhs.strides()[1]);
        let ld = self.dst.strides()[0];
        assert!(self.panels.len() >= depth * columns.next_multiple_of(S::LANES), "too few elements for the panels");
        assert!(self.block.len() >= MC * depth, "no room for a block of rows");
        assert!(has_rows(&self.dst), "elements of a row are neighbours");
        for first_row in (0..rows).step_by(MC) {
            let count = MC.min(rows - first_row);
            // SAFETY: the rows from `first_row` on, all depths and all columns are of lhs and dst, whose strides these are. The panels and
            // the block are as long as was asserted: a panel begins at `first * depth`, and a packed tile is TILE_ROWS * depth elements.
            unsafe {
                let lhs = self.lhs.as_ptr().offset(first_row as isize * down);
                if along != 1 {
                    pack_rows::<S>(count, depth, lhs, down, along, self.block.as_mut_ptr());
                }
                for first in (0..columns).step_by(NR * S::LANES) {
                    let panel = Panel::at::<S>(first, columns);
                    let numbers = self.panels.as_ptr().add(first * depth);
                    let to = Store {
                        dst: self.dst.as_mut_ptr().offset(first_row as isize * ld).add(first),
                        ld,
                        columns: panel.columns,
                        write: self.write,
                        // Behind the last panel comes the first again, for the next rows.
                        next: self.panels.as_ptr().add((first + panel.columns) % columns * depth),
                        row_share: (panel.width * depth).div_ceil(MC),
                    };
                    macro_rules! rows_times_panel {
                        ($nr:literal) => {
                            if along == 1 {
                                let operands = GemmOperands { rows: count, depth, a: lhs, stride: down, b: numbers, ld: panel.width };
                                product::<S, $nr, false, false, false>(simd, operands, to);
                            } else {
                                for row in (0..count).step_by(S::TILE_ROWS) {
                                    let tile = self.block.as_ptr().add(row * depth);
                                    let (rows, stride) = (S::TILE_ROWS.min(count - row), S::TILE_ROWS as isize);
                                    let operands = GemmOperands { rows, depth, a: tile, stride, b: numbers, ld: panel.width };
                                    product::<S, $nr, true, false, false>(simd, operands, to.at_row(row));
                                }
                            }
                        };
                    }
                    if panel.width == S::LANES { rows_times_panel!(1) } else { rows_times_panel!(2) }
                }
            }
        }
    }
}

/// Pack `rows` rows of lhs, the rows of a tile contiguously.
///
/// # Safety
/// `lhs` must be valid for reading at `row * down + depth * along`, `to` for writing whole tiles.
#[inline(always)]
unsafe fn pack_rows<S: Simd>(rows: usize, depth: usize, lhs: *const S::T, down: isize, along: isize, to: *mut S::T) {
    for first_depth in (0..depth).step_by(PACK_DEPTH) {
        let depths = first_depth..(first_depth + PACK_DEPTH).min(depth);
        for row in (0..rows).step_by(S::TILE_ROWS) {
            let count = S::TILE_ROWS.min(rows - row);
            for d in depths.clone() {
                // SAFETY: the caller guarantees the rows; a tile is TILE_ROWS * depth elements.
                unsafe {
                    let from = lhs.offset(row as isize * down + d as isize * along);
                    let to = to.add(row * depth + d * S::TILE_ROWS);
                    if down == 1 && count == S::TILE_ROWS {
                        std::ptr::copy_nonoverlapping(from, to, S::TILE_ROWS);
                    } else {
                        for r in 0..count {
                            *to.add(r) = *from.offset(r as isize * down);
                        }
                    }
                }
            }
        }
    }
}

/// Where the rows of a block go, for one panel.
#[derive(Clone, Copy)]
struct Store<T> {
    dst: *mut T,
    ld: isize,
    columns: usize,
    write: Write,
    /// The next panel, and how many elements of it are prefetched while one row is computed.
    next: *const T,
    row_share: usize,
}

impl<T> Store<T> {
    /// The same from a later row on.
    #[inline(always)]
    fn at_row(self, row: usize) -> Self {
        Self { dst: self.dst.wrapping_offset(row as isize * self.ld), next: self.next.wrapping_add(row * self.row_share), ..self }
    }
}

impl<S: Simd, const NR: usize> Epilogue<S, NR> for Store<S::T> {
    #[inline(always)]
    fn begin(&mut self, simd: S, row: usize, rows: usize) {
        for r in row..row + rows {
            simd.prefetch(self.dst.wrapping_offset(r as isize * self.ld));
        }
    }

    #[inline(always)]
    fn ahead(&self, row: usize) -> Option<(*const S::T, usize)> {
        Some((self.next.wrapping_add(row * self.row_share), (NR * S::LANES * S::TILE_ROWS).div_ceil(MC)))
    }

    #[inline(always)]
    unsafe fn finish(&mut self, simd: S, row: usize, c: [S::V; NR]) {
        // SAFETY: the row exists and has as many elements as `columns` says; a whole panel has NR * LANES, of 32 at most.
        unsafe {
            let to = self.dst.offset(row as isize * self.ld);
            if self.columns == NR * S::LANES {
                for (n, c) in c.into_iter().enumerate() {
                    let to = to.add(n * S::LANES);
                    simd.store(to, if self.write == Write::Add { simd.add(simd.load(to), c) } else { c });
                }
            } else {
                let mut numbers = [S::T::ZERO; 32];
                for (n, c) in c.into_iter().enumerate() {
                    simd.store(numbers[n * S::LANES..(n + 1) * S::LANES].as_mut_ptr(), c);
                }
                for (n, &x) in numbers.iter().enumerate().take(self.columns) {
                    *to.add(n) = if self.write == Write::Add { *to.add(n) + x } else { x };
                }
            }
        }
    }
}

/// The kernels, compiled once for each type: what uses this crate links to them.
#[doc(hidden)]
pub trait Products: Sealed + Sized {
    fn pack(level: Level, pack: Pack<'_, Self>);
    fn multiply(level: Level, chunk: Chunk<'_, Self>);
}

macro_rules! products {
    ($($t:ty),*) => {$(
        impl Products for $t {
            fn pack(level: Level, pack: Pack<'_, Self>) {
                <$t>::call(level, pack);
            }
            fn multiply(level: Level, chunk: Chunk<'_, Self>) {
                <$t>::call(level, chunk);
            }
        }
    )*};
}

products!(f32, f64);

#[cfg(test)]
#[path = "../tests/unit/matmul.rs"]
mod tests;
