//! The register tile of every matrix product: rows of broadcast elements times a panel of vectors.
//!
//! ```text
//! c[row][0..NR] = sum over depth of a[row, depth] * b[depth][0..NR]
//! ```
//!
//! Forward, `b` is a panel with one query per lane, NR vectors wide, in a packed buffer; `a` is K (a row is a key, depth runs over
//! the head dimension) or V transposed (a row is a value dimension, depth runs over the keys), read straight from
//! the caller's memory. Backward, the gradients of K and V have `a` = weights (a row is a key, depth runs over the queries) and
//! `b` = rows of queries. A register tile of TILE_ROWS x NR accumulators does per depth step TILE_ROWS broadcasts, NR loads
//! and TILE_ROWS * NR multiply-adds: 8 loads for 12 with AVX2 (6 x 2 of 16 registers), 10 for 16 with AVX-512 (8 x 2 of 32), 8 for 16 with
//! NEON (4 x 2 pairs of 32), so that the multiply-add ports are the limit and not the load ports.
//!
//! Every element is one chain of multiply-adds in the order of depth, whatever the tile: its bits do not depend on where in a
//! tile it was computed. A dot product (HALVES) is two such chains, one for each half of the head dimension, added at the end:
//! half the rounding error where scores are large, for one addition. The two run in parallel in a tile of half the rows, so that
//! no accumulator has to wait in memory for its other half.
//!
//! With PAIRS, an element of `a` and of `b` is a pair of bf16, and a step of depth multiplies both ([`Simd::dot_pairs`]).

use crate::float::Real;
use crate::simd::Simd;

/// Epilogue of a row of the product. A trait rather than a closure: a closure would not be compiled for the SIMD level.
pub trait Epilogue<S: Simd, const NR: usize> {
    /// Called before rows `row..row + rows` are computed: prefetch their destination here.
    #[inline(always)]
    fn begin(&mut self, _simd: S, _row: usize, _rows: usize) {}
    /// Memory to prefetch, and the step in it per depth step of the tile that begins with `row`.
    #[inline(always)]
    fn ahead(&self, _row: usize) -> Option<(*const S::T, usize)> {
        None
    }
    /// Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// `row` must be below the `rows` that [`product`] was called for.
    unsafe fn finish(&mut self, simd: S, row: usize, c: [S::V; NR]);
}

/// Where the second chain of a dot product begins.
#[inline(always)]
pub fn half(depth: usize) -> usize {
    depth.div_ceil(2)
}

/// Operands of a product: `rows` rows of broadcast elements, and `depth` rows of vectors.
#[derive(Clone, Copy)]
pub struct GemmOperands<T> {
    /// Rows of the result.
    pub rows: usize,
    /// Terms of each sum.
    pub depth: usize,
    /// The broadcast elements.
    pub a: *const T,
    /// From one row of `a` to the next (ALONG_ROWS: from one depth to the next, rows being neighbours).
    pub stride: isize,
    /// The vectors.
    pub b: *const T,
    /// Leading dimension of `b`.
    pub ld: usize,
}

/// Compute all rows and hand each to `to`.
///
/// # Safety
/// `a` must be valid for reading at `row * stride + depth` (ALONG_ROWS false) or `row + depth * stride`
/// (ALONG_ROWS true: neighbours in memory are neighbouring rows) for all rows and depths, and `b` for `NR * LANES` elements at
/// every `depth * ld`; `to` must be fit to finish `rows` rows.
#[inline(always)]
pub unsafe fn product<S: Simd, const NR: usize, const ALONG_ROWS: bool, const HALVES: bool, const PAIRS: bool>(
    s: S,
    operands: GemmOperands<S::T>,
    mut to: impl Epilogue<S, NR>,
) {
    let GemmOperands { rows, stride, .. } = operands;
    let mut row = 0;
    macro_rules! tile_of {
        ($mr:literal) => {{
            to.begin(s, row, $mr);
            let along = if ALONG_ROWS { row as isize } else { row as isize * stride };
            // SAFETY: rows row..row + $mr exist, so the caller guarantees them.
            let c = unsafe {
                let (operands, ahead) = (GemmOperands { a: operands.a.offset(along), ..operands }, to.ahead(row));
                if HALVES {
                    let [mut c, rest] = tile::<S, $mr, NR, 2, ALONG_ROWS, PAIRS>(s, operands, ahead);
                    for (c, rest) in c.as_flattened_mut().iter_mut().zip(rest.as_flattened()) {
                        *c = s.add(*c, *rest);
                    }
                    c
                } else {
                    let [c] = tile::<S, $mr, NR, 1, ALONG_ROWS, PAIRS>(s, operands, ahead);
                    c
                }
            };
            for (m, c) in c.into_iter().enumerate() {
                // SAFETY: row + m < rows.
                unsafe { to.finish(s, row + m, c) };
            }
            row += $mr;
        }};
    }
    // A step of pairs takes half as long again as a multiply-add: in panels of one vector, the two chains have all rows.
    let most = if HALVES && !(PAIRS && NR == 1) { S::TILE_ROWS / 2 } else { S::TILE_ROWS };
    while row < rows {
        let left = rows - row;
        // Few accumulators do not hide the latency of a multiply-add: the last rows are two tiles of about equal height, not a whole
        // tile and one of a row or two.
        let mr = if left >= 2 * most { most } else { left.div_ceil(left.div_ceil(most)) };
        match mr {
            8 if most >= 8 => tile_of!(8),
            7 if most >= 7 => tile_of!(7),
            6 if most >= 6 => tile_of!(6),
            5 if most >= 5 => tile_of!(5),
            4 if most >= 4 => tile_of!(4),
            3 if most >= 3 => tile_of!(3),
            2 if most >= 2 => tile_of!(2),
            _ => tile_of!(1),
        }
    }
    debug_assert_eq!(row, rows);
}

/// MR rows in CHAINS chains each: chain `n` goes over the `n`-th part of the depth, the last of them being the shortest.
///
/// # Safety
/// As [`product`], for MR rows.
#[inline(always)]
unsafe fn tile<S: Simd, const MR: usize, const NR: usize, const CHAINS: usize, const ALONG_ROWS: bool, const PAIRS: bool>(
    s: S,
    operands: GemmOperands<S::T>,
    mut ahead: Option<(*const S::T, usize)>,
) -> [[[S::V; NR]; MR]; CHAINS] {
    let GemmOperands { depth, mut a, stride, mut b, ld, .. } = operands;
    let mut c = [[[s.splat(S::T::ZERO); NR]; MR]; CHAINS];
    let along = if ALONG_ROWS { stride } else { 1 };
    let long = depth.div_ceil(CHAINS);
    let short = depth - long * (CHAINS - 1);
    macro_rules! step {
        ($chain:expr, $depth:expr) => {{
            let depth = $chain * long + $depth;
            let (a, b) = (a.offset(depth as isize * along), b.add(depth * ld));
            let mut vectors = [s.splat(S::T::ZERO); NR];
            for (n, v) in vectors.iter_mut().enumerate() {
                *v = s.load(b.add(n * S::LANES));
            }
            for (m, c) in c[$chain].iter_mut().enumerate() {
                // Pairs of 16-bit elements need not be aligned.
                let x = s.splat(a.offset(if ALONG_ROWS { m as isize } else { m as isize * stride }).read_unaligned());
                for (c, v) in c.iter_mut().zip(vectors) {
                    *c = if PAIRS { s.dot_pairs(x, v, *c) } else { s.mul_add(x, v, *c) };
                }
            }
        }};
    }
    const UNROLL: usize = 4;
    for _ in 0..short / UNROLL {
        if let Some((next, step)) = &mut ahead {
            s.prefetch(*next);
            *next = next.wrapping_add(*step * UNROLL);
        }
        // SAFETY: the caller guarantees `depth` steps of MR elements of a and NR vectors of b.
        unsafe {
            for u in 0..UNROLL {
                for chain in 0..CHAINS {
                    step!(chain, u);
                }
            }
        }
        // Past the last step the pointers may leave the allocation; they are not read there.
        a = a.wrapping_offset(UNROLL as isize * along);
        b = b.wrapping_add(UNROLL * ld);
    }
    for i in 0..long - short / UNROLL * UNROLL {
        for chain in 0..CHAINS {
            if chain + 1 < CHAINS || i < short % UNROLL {
                // SAFETY: as above; this step is within its chain.
                unsafe { step!(chain, 0) };
            }
        }
        a = a.wrapping_offset(along);
        b = b.wrapping_add(ld);
    }
    c
}
