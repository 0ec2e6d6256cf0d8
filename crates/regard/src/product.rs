//! The one matrix product of this crate: rows of broadcast numbers times a panel of vectors.
//!
//! ```text
//! c[row][0..NR] = sum over depth of a[row, depth] * b[depth][0..NR]
//! ```
//!
//! Forward, `b` is a panel with one query per lane, NR vectors wide, in a buffer of ours; `a` is K (a row is a key, depth runs over
//! the head dimension) or V turned on its side (a row is a value dimension, depth runs over the keys), read straight from
//! the caller's memory. Backward, the gradients of K and V have `a` = weights (a row is a key, depth runs over the queries) and
//! `b` = rows of queries. A register tile of TILE_ROWS x NR accumulators does per depth step TILE_ROWS broadcasts, NR loads
//! and TILE_ROWS * NR multiply-adds: 8 loads for 12 with AVX2 (6 x 2 of 16 registers), 10 for 16 with AVX-512 (8 x 2 of 32),
//! so that the multiply-add ports are the limit and not the load ports.
//!
//! Every element is one chain of multiply-adds in the order of depth, whatever the tile: its bits do not depend on where in a
//! tile it was computed. A dot product (HALVES) is two such chains, one for each half of the head dimension, added at the end:
//! half the rounding error where scores are large, for one addition.

use crate::simd::Lanes;

/// What becomes of a finished row. A trait rather than a closure: a closure would not be compiled for the SIMD level.
pub(crate) trait Take<S: Lanes, const NR: usize> {
    /// `rows` rows from `row` on are about to be computed: the time to ask for the memory that they go to.
    #[inline(always)]
    fn begin(&mut self, simd: S, row: usize, rows: usize) {
        let _ = (simd, row, rows);
    }
    /// Memory that will be read soon, and how far to go in it per depth step of the tile that begins with `row`.
    #[inline(always)]
    fn ahead(&self, row: usize) -> Option<(*const S::T, usize)> {
        let _ = row;
        None
    }
    /// Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// `row` must be below the `rows` that [`product`] was called for.
    unsafe fn take(&mut self, simd: S, row: usize, c: [S::V; NR]);
}

/// Where the second chain of a dot product begins.
#[inline(always)]
pub(crate) fn half(depth: usize) -> usize {
    depth.div_ceil(2)
}

/// Compute `rows` rows and hand each to `to`.
///
/// # Safety
/// `a` must be valid for reading at `row * stride + depth` (ALONG_ROWS false) or `row + depth * stride`
/// (ALONG_ROWS true: neighbours in memory are neighbouring rows) for all rows and depths, and `b` for `NR * LANES` numbers at
/// every `depth * pitch`; `to` must be fit to take `rows` rows.
#[inline(always)]
pub(crate) unsafe fn product<S: Lanes, const NR: usize, const ALONG_ROWS: bool, const HALVES: bool>(
    s: S,
    rows: usize,
    depth: usize,
    a: *const S::T,
    stride: isize,
    b: *const S::T,
    pitch: usize,
    mut to: impl Take<S, NR>,
) {
    let mut row = 0;
    macro_rules! block {
        ($mr:literal) => {{
            to.begin(s, row, $mr);
            let along = if ALONG_ROWS { row as isize } else { row as isize * stride };
            // SAFETY: rows row..row + $mr exist, so the caller vouches for them, for both parts of the depth.
            let c = unsafe {
                let a = a.offset(along);
                let first = if HALVES { half(depth) } else { depth };
                let ahead = to.ahead(row);
                let mut c = tile::<S, $mr, NR, ALONG_ROWS>(s, first, a, stride, b, pitch, ahead);
                if HALVES {
                    let along = first as isize * if ALONG_ROWS { stride } else { 1 };
                    let rest = tile::<S, $mr, NR, ALONG_ROWS>(s, depth - first, a.offset(along), stride, b.add(first * pitch), pitch, None);
                    for (c, rest) in c.iter_mut().zip(rest) {
                        for (c, rest) in c.iter_mut().zip(rest) {
                            *c = s.add(*c, rest);
                        }
                    }
                }
                c
            };
            for (m, c) in c.into_iter().enumerate() {
                // SAFETY: row + m < rows.
                unsafe { to.take(s, row + m, c) };
            }
            row += $mr;
        }};
    }
    // A tile needs eight accumulators to hide the latency of a multiply-add: rather two middling tiles at the end than a
    // whole one and one of a row or two.
    while rows - row >= S::TILE_ROWS + 4 || rows - row == S::TILE_ROWS {
        match S::TILE_ROWS {
            8 => block!(8),
            6 => block!(6),
            _ => block!(2),
        }
    }
    while row < rows {
        let left = rows - row;
        match if left > S::TILE_ROWS { left.div_ceil(2) } else { left } {
            1 => block!(1),
            2 => block!(2),
            3 => block!(3),
            4 => block!(4),
            5 => block!(5),
            6 => block!(6),
            _ => block!(7),
        }
    }
    debug_assert_eq!(row, rows);
}

/// # Safety
/// As [`product`], for MR rows.
#[inline(always)]
unsafe fn tile<S: Lanes, const MR: usize, const NR: usize, const ALONG_ROWS: bool>(
    s: S,
    depth: usize,
    mut a: *const S::T,
    stride: isize,
    mut b: *const S::T,
    pitch: usize,
    mut ahead: Option<(*const S::T, usize)>,
) -> [[S::V; NR]; MR] {
    use crate::simd::Real;
    let mut c = [[s.splat(S::T::ZERO); NR]; MR];
    macro_rules! step {
        ($a:expr, $b:expr) => {{
            let (a, b) = ($a, $b);
            let mut vectors = [s.splat(S::T::ZERO); NR];
            for (n, v) in vectors.iter_mut().enumerate() {
                *v = s.load(b.add(n * S::LANES));
            }
            for (m, c) in c.iter_mut().enumerate() {
                let x = s.splat(*a.offset(if ALONG_ROWS { m as isize } else { m as isize * stride }));
                for (c, v) in c.iter_mut().zip(vectors) {
                    *c = s.mul_add(x, v, *c);
                }
            }
        }};
    }
    const UNROLL: usize = 4;
    let along = if ALONG_ROWS { stride } else { 1 };
    for _ in 0..depth / UNROLL {
        if let Some((next, step)) = &mut ahead {
            s.prefetch(*next);
            *next = next.wrapping_add(*step * UNROLL);
        }
        // SAFETY: the caller vouches for `depth` steps of MR numbers of a and NR vectors of b.
        unsafe {
            for u in 0..UNROLL {
                step!(a.offset(u as isize * along), b.add(u * pitch));
            }
        }
        // Past the last step the pointers may leave the allocation; they are not read there.
        a = a.wrapping_offset(UNROLL as isize * along);
        b = b.wrapping_add(UNROLL * pitch);
    }
    for _ in 0..depth % UNROLL {
        // SAFETY: as above.
        unsafe { step!(a, b) };
        a = a.wrapping_offset(along);
        b = b.wrapping_add(pitch);
    }
    c
}
