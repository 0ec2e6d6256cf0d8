//! Few queries over many keys: vectors run along the keys for the scores and along the value dimension for the sum,
//! so that K and V go through the registers once, at the speed of memory.
//!
//! The order of every chain of multiply-adds is that of [`crate::product`]: a query decoded alone has the bits that it
//! has in a long prefill. Scores are handed on in the panel layout, so that everything between the two products is shared.

use crate::element::Element;
use crate::product::half;
use crate::rows::Rows;
use crate::simd::{Lanes, Operation, Real, Transpose};
use std::ops::Range;

/// `scores[key * LANES + r] = dot(q[r], k[key]) * scale` for up to four rows, row after row in `queries`, padded with
/// zeros. `keys` are rows of `k`.
pub(crate) struct FewScores<'k, E: Element> {
    pub(crate) queries: &'k [E::Real],
    pub(crate) rows: usize,
    pub(crate) k: Rows<'k, E>,
    pub(crate) keys: Range<usize>,
    pub(crate) scale: E::Real,
    pub(crate) scores: &'k mut [E::Real],
}

impl<E: Element> Operation<E::Real> for FewScores<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = E::Real>>(self, simd: S) {
        let Self { queries, rows, k, keys, scale, scores } = self;
        match rows {
            _ if keys.len() < GROUPS * S::Narrow::LANES => one_by_one::<S, E>(simd, queries, rows, &k, keys, scale, scores),
            1 => along_keys::<S, E, 1>(simd, queries, rows, &k, keys, scale, scores),
            2 => along_keys::<S, E, 2>(simd, queries, rows, &k, keys, scale, scores),
            _ => along_keys::<S, E, 4>(simd, queries, rows, &k, keys, scale, scores),
        }
    }
}

/// Too few keys to fill vectors: one number at a time, in the same order.
#[inline(always)]
fn one_by_one<S: Lanes, E: Element<Real = S::T>>(
    simd: S,
    q: &[S::T],
    rows: usize,
    k: &Rows<'_, E>,
    keys: Range<usize>,
    scale: S::T,
    scores: &mut [S::T],
) {
    let s = simd.narrow();
    let dim = k.cols();
    for (key, row) in keys.enumerate() {
        for r in 0..rows {
            let mut sums = [s.splat(S::T::ZERO); 2];
            for d in 0..dim {
                let sum = &mut sums[usize::from(d >= half(dim))];
                *sum = s.mul_add(s.splat(q[r * dim + d]), s.splat(k.get(row, d)), *sum);
            }
            scores[key * S::LANES + r] = first_lane(s, s.mul(s.add(sums[0], sums[1]), s.splat(scale)));
        }
    }
}

/// Groups of keys, a vector each, that are worked on side by side: a load of q serves all of them, and more than one chain
/// hides the latency of a multiply-add. With four, the compiler runs out of registers, and it is slower.
const GROUPS: usize = 2;

#[inline(always)]
fn along_keys<S: Lanes, E: Element<Real = S::T>, const ROWS: usize>(
    simd: S,
    q: &[S::T],
    rows: usize,
    k: &Rows<'_, E>,
    keys: Range<usize>,
    scale: S::T,
    scores: &mut [S::T],
) {
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    let (dim, count, together) = (k.cols(), keys.len(), GROUPS * lanes);
    assert!(keys.end <= k.len() && k.has_unit_cols());
    assert!(count >= together && rows <= ROWS && q.len() >= ROWS * dim && scores.len() >= count * S::LANES);
    let zero = s.splat(S::T::ZERO);
    let factor = s.splat(scale);
    let stride = k.row_stride();
    let mut key = 0;
    while key < count {
        // The last groups may overlap the ones before; what comes out is the same.
        key = key.min(count - together);
        let mut next = Ahead::new(k, keys.start + key + 2 * together);
        let mut totals = [[zero; ROWS]; GROUPS];
        for part in [0..half(dim), half(dim)..dim] {
            let mut sums = [[zero; ROWS]; GROUPS];
            let whole = part.start + (part.len() - part.len() % lanes);
            let mut line = k.row(keys.start + key).wrapping_add(part.start);
            for d in (part.start..whole).step_by(lanes) {
                next.ask(s, together * lanes);
                for (group, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: keys key..key + together are rows of `dim` numbers side by side, and d + lanes <= dim.
                    let square = unsafe { load_square::<S::Narrow, E>(s, line.offset((group * lanes) as isize * stride), stride) };
                    for (r, sum) in sums.iter_mut().enumerate() {
                        for (x, &column) in square.as_ref().iter().enumerate() {
                            // SAFETY: r < ROWS and d + x < dim.
                            let q = unsafe { *q.get_unchecked(r * dim + d + x) };
                            *sum = s.mul_add(s.splat(q), column, *sum);
                        }
                    }
                }
                line = line.wrapping_add(lanes);
            }
            for (group, (sums, totals)) in sums.iter_mut().zip(&mut totals).enumerate() {
                for d in whole..part.end {
                    let mut column = [S::T::ZERO; 16];
                    for (x, c) in column.iter_mut().enumerate().take(lanes) {
                        *c = k.get(keys.start + key + group * lanes + x, d);
                    }
                    // SAFETY: 16 >= lanes.
                    let column = unsafe { s.load(column.as_ptr()) };
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = s.mul_add(s.splat(q[r * dim + d]), column, *sum);
                    }
                }
                for (total, &sum) in totals.iter_mut().zip(&*sums) {
                    *total = if part.start == 0 { sum } else { s.add(*total, sum) };
                }
            }
        }
        for (group, totals) in totals.iter().enumerate() {
            let first = key + group * lanes;
            for (r, &total) in totals.iter().enumerate().take(rows) {
                let mut line = [S::T::ZERO; 16];
                // SAFETY: 16 >= lanes.
                unsafe { s.store(line.as_mut_ptr(), s.mul(total, factor)) };
                for (x, &score) in line.iter().enumerate().take(lanes) {
                    scores[(first + x) * S::LANES + r] = score;
                }
            }
        }
        key += together;
    }
}

/// Memory that will be read soon, asked for in its own order. The kernels go through many lines side by side, which is no stream
/// that the hardware would see: this is one.
struct Ahead<E> {
    row: *const E,
    stride: isize,
    cols: usize,
    col: usize,
    /// Numbers that were asked for and fill no whole cache line yet.
    due: usize,
}

impl<E: Element> Ahead<E> {
    /// From a row on, which may be past the last one.
    #[inline(always)]
    fn new(rows: &Rows<'_, E>, first: usize) -> Self {
        let stride = rows.row_stride();
        Self { row: rows.row(0).wrapping_offset((first as isize).wrapping_mul(stride)), stride, cols: rows.cols(), col: 0, due: 0 }
    }

    /// The next `count` numbers.
    #[inline(always)]
    fn ask<S: Lanes>(&mut self, simd: S, count: usize) {
        let line = 64 / size_of::<E>();
        self.due += count;
        while self.due >= line {
            simd.prefetch(self.row.wrapping_add(self.col));
            self.due -= line;
            self.col += line;
            if self.col >= self.cols {
                self.col = 0;
                self.row = self.row.wrapping_offset(self.stride);
            }
        }
    }
}

#[inline(always)]
fn first_lane<S: Lanes>(s: S, v: S::V) -> S::T {
    let mut line = [S::T::ZERO; 16];
    // SAFETY: 16 >= LANES.
    unsafe { s.store(line.as_mut_ptr(), v) };
    line[0]
}

/// `LANES` numbers of each of `LANES` lines, a stride apart: vector x holds number x of every line.
///
/// # Safety
/// Every line must be valid for reading `LANES` numbers.
#[inline(always)]
unsafe fn load_square<S: Transpose, E: Element<Real = S::T>>(s: S, line: *const E, stride: isize) -> S::Square {
    if E::NATIVE {
        // SAFETY: NATIVE says that the lines hold S::T; the caller vouches for the numbers.
        return unsafe { s.load_transposed(line.cast(), stride) };
    }
    let mut square = s.zero_square();
    for (x, row) in square.as_mut().iter_mut().enumerate() {
        // SAFETY: the caller vouches for the numbers.
        *row = unsafe { E::load(s, line.offset(x as isize * stride)) };
    }
    s.transpose(square)
}

/// Keys whose values are gone through, dimension by dimension, while they are in the first-level cache.
const LINES: usize = 16;

/// `acc[r * pitch + d] = acc[..] * alpha[r] + sum over keys of weights[key * LANES + r] * v[key, d]`.
pub(crate) struct Accumulate<'k, E: Element> {
    pub(crate) weights: &'k [E::Real],
    pub(crate) rows: usize,
    pub(crate) pitch: usize,
    pub(crate) v: Rows<'k, E>,
    /// Rows of `v`.
    pub(crate) keys: Range<usize>,
    pub(crate) alpha: &'k [E::Real],
    /// Room for as much as `acc` has.
    pub(crate) sums: &'k mut [E::Real],
    pub(crate) acc: &'k mut [E::Real],
}

impl<E: Element> Operation<E::Real> for Accumulate<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = E::Real>>(self, simd: S) {
        let Self { weights, rows, pitch, v, keys, alpha, sums, acc } = self;
        accumulate(simd, weights, rows, pitch, &v, keys, alpha, sums, acc);
    }
}

#[inline(always)]
fn accumulate<S: Lanes, E: Element<Real = S::T>>(
    simd: S,
    weights: &[S::T],
    rows: usize,
    pitch: usize,
    v: &Rows<'_, E>,
    keys: Range<usize>,
    alpha: &[S::T],
    sums: &mut [S::T],
    acc: &mut [S::T],
) {
    let (dims, count) = (v.cols(), keys.len());
    assert!(keys.end <= v.len() && v.has_unit_cols() && pitch >= dims && pitch.is_multiple_of(S::LANES));
    assert!(rows <= S::LANES && weights.len() >= count * S::LANES && alpha.len() >= rows);
    let (sums, acc) = (&mut sums[..rows * pitch], &mut acc[..rows * pitch]);
    sums.fill(S::T::ZERO);
    let mut first = 0;
    while first < count {
        let group = LINES.min(count - first);
        let mut lines = [v.row(keys.start); LINES];
        for (x, line) in lines.iter_mut().enumerate().take(group) {
            *line = v.row(keys.start + first + x);
        }
        let weights = &weights[first * S::LANES..];
        let mut next = Ahead::new(v, keys.start + first + LINES);
        let mut r = 0;
        while r < rows {
            match rows - r {
                1 => along_values::<S, E, 1, 8>(simd, weights, r, pitch, dims, &lines[..group], &mut next, sums),
                2 => along_values::<S, E, 2, 4>(simd, weights, r, pitch, dims, &lines[..group], &mut next, sums),
                3 => along_values::<S, E, 3, 2>(simd, weights, r, pitch, dims, &lines[..group], &mut next, sums),
                _ => along_values::<S, E, 4, 2>(simd, weights, r, pitch, dims, &lines[..group], &mut next, sums),
            }
            r += (rows - r).min(4);
        }
        first += group;
    }
    for (r, (acc, sums)) in acc.chunks_exact_mut(pitch.max(1)).zip(sums.chunks_exact(pitch.max(1))).enumerate() {
        let by = simd.splat(alpha[r]);
        for (acc, sum) in acc.chunks_exact_mut(S::LANES).zip(sums.chunks_exact(S::LANES)) {
            // SAFETY: both chunks are whole vectors.
            unsafe { simd.store(acc.as_mut_ptr(), simd.mul_add(simd.load(acc.as_ptr()), by, simd.load(sum.as_ptr()))) };
        }
    }
}

/// ROWS rows from `first` on, VECTORS vectors of the value dimension at a time. Every line has `dims` numbers.
#[inline(always)]
fn along_values<S: Lanes, E: Element<Real = S::T>, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[S::T],
    first: usize,
    pitch: usize,
    dims: usize,
    lines: &[*const E],
    next: &mut Ahead<E>,
    sums: &mut [S::T],
) {
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    let mut d = 0;
    while d + lanes * VECTORS <= dims {
        value_block::<S, E, ROWS, VECTORS>(simd, weights, first, pitch, d, lines, next, sums);
        d += lanes * VECTORS;
    }
    while d + lanes <= dims {
        value_block::<S, E, ROWS, 1>(simd, weights, first, pitch, d, lines, next, sums);
        d += lanes;
    }
    for d in d..dims {
        for (key, line) in lines.iter().enumerate() {
            // SAFETY: the line has `dims` numbers, and d < dims.
            let x = s.splat(unsafe { (*line.add(d)).to_real() });
            for r in first..first + ROWS {
                let sum = &mut sums[r * pitch + d];
                // A vector for one number: the multiply-add must be the one of the other paths.
                *sum = first_lane(s, s.mul_add(s.splat(weights[key * S::LANES + r]), x, s.splat(*sum)));
            }
        }
    }
}

/// A block of VECTORS vectors from dimension `d` on, which lies within every line.
#[inline(always)]
fn value_block<S: Lanes, E: Element<Real = S::T>, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[S::T],
    first: usize,
    pitch: usize,
    d: usize,
    lines: &[*const E],
    next: &mut Ahead<E>,
    sums: &mut [S::T],
) {
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    assert!(first + ROWS <= S::LANES && weights.len() >= lines.len() * S::LANES);
    assert!(d + lanes * VECTORS <= pitch && sums.len() >= (first + ROWS) * pitch);
    // SAFETY: the assertions, for sums and weights; the caller's lines have `dims` >= d + lanes * VECTORS numbers.
    unsafe {
        let at = |r: usize, x: usize| (first + r) * pitch + d + x * lanes;
        let mut block = [[s.splat(S::T::ZERO); VECTORS]; ROWS];
        for (r, block) in block.iter_mut().enumerate() {
            for (x, sum) in block.iter_mut().enumerate() {
                *sum = s.load(sums.as_ptr().add(at(r, x)));
            }
        }
        for (key, line) in lines.iter().enumerate() {
            let line = line.add(d);
            next.ask(s, lanes * VECTORS);
            let mut values = [s.splat(S::T::ZERO); VECTORS];
            for (x, value) in values.iter_mut().enumerate() {
                *value = E::load(s, line.add(x * lanes));
            }
            for (r, block) in block.iter_mut().enumerate() {
                let w = s.splat(*weights.get_unchecked(key * S::LANES + first + r));
                for (sum, value) in block.iter_mut().zip(values) {
                    *sum = s.mul_add(w, value, *sum);
                }
            }
        }
        for (r, block) in block.iter().enumerate() {
            for (x, &sum) in block.iter().enumerate() {
                s.store(sums.as_mut_ptr().add(at(r, x)), sum);
            }
        }
    }
}
