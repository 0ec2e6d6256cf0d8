//! Few queries over many keys: vectors run along the keys for the scores and along the value dimension for the sum,
//! so that K and V go through the registers once, at the speed of memory.
//!
//! The order of every chain of multiply-adds is that of [`crate::product`]: a query decoded alone has the bits that it
//! has in a long prefill. Scores are handed on in the panel layout, so that everything between the two products is shared.

use crate::element::Element;
use crate::rows::Rows;
use crate::simd::{Lanes, Operation, Real, Transpose};
use std::ops::Range;

/// `scores[key * LANES + r] = dot(q[r], k[key]) * scale` for up to eight rows, row after row in `queries`, padded with
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
            1 => along_keys::<S, E, 1>(simd, queries, rows, &k, keys, scale, scores),
            2 => along_keys::<S, E, 2>(simd, queries, rows, &k, keys, scale, scores),
            3 | 4 => along_keys::<S, E, 4>(simd, queries, rows, &k, keys, scale, scores),
            _ => along_keys::<S, E, 8>(simd, queries, rows, &k, keys, scale, scores),
        }
    }
}

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
    let (dim, count) = (k.cols(), keys.len());
    assert!(keys.end <= k.len() && k.has_unit_cols());
    assert!(rows <= ROWS.min(lanes) && q.len() >= ROWS.min(lanes) * dim && scores.len() >= count * S::LANES);
    let zero = s.splat(S::T::ZERO);
    let factor = s.splat(scale);
    let whole = dim - dim % lanes;
    let per_line = 64 / size_of::<E>();
    let mut key = 0;
    // Two groups of keys at a time: two chains hide the latency of a multiply-add where there is one row only.
    while key < count {
        let mut sums = [[zero; ROWS]; 2];
        let mut lines = [k.row(keys.start); 16];
        for (x, line) in lines.iter_mut().enumerate().take(2 * lanes) {
            // Past the last key, the last one is read again; what comes of it is not used.
            *line = k.row(keys.start + (key + x).min(count - 1));
        }
        let ahead = 2 * lanes as isize * k.row_stride();
        for d in (0..whole).step_by(lanes) {
            for (group, sums) in sums.iter_mut().enumerate() {
                let mut square = s.zero_square();
                for (x, row) in square.as_mut().iter_mut().enumerate() {
                    let line = lines[group * lanes + x].wrapping_add(d);
                    if d % per_line == 0 {
                        s.prefetch(line.wrapping_offset(ahead));
                    }
                    // SAFETY: the line has `dim` numbers side by side, and d + lanes <= dim.
                    *row = unsafe { E::load(s, line) };
                }
                let square = s.transpose(square);
                for (r, sum) in sums.iter_mut().enumerate().take(lanes) {
                    for (x, &column) in square.as_ref().iter().enumerate() {
                        // SAFETY: r < min(ROWS, lanes) and d + x < dim.
                        let q = unsafe { *q.get_unchecked(r * dim + d + x) };
                        *sum = s.mul_add(s.splat(q), column, *sum);
                    }
                }
            }
        }
        for d in whole..dim {
            for (group, sums) in sums.iter_mut().enumerate() {
                let mut column = [S::T::ZERO; 16];
                for (x, c) in column.iter_mut().enumerate().take(lanes) {
                    // SAFETY: the line has `dim` numbers side by side, and d < dim.
                    *c = unsafe { (*lines[group * lanes + x].add(d)).to_real() };
                }
                // SAFETY: 16 >= lanes.
                let column = unsafe { s.load(column.as_ptr()) };
                for (r, sum) in sums.iter_mut().enumerate().take(lanes) {
                    *sum = s.mul_add(s.splat(q[r * dim + d]), column, *sum);
                }
            }
        }
        for (group, sums) in sums.iter().enumerate() {
            let first = key + group * lanes;
            for (r, &sum) in sums.iter().enumerate().take(rows) {
                let mut line = [S::T::ZERO; 16];
                // SAFETY: 16 >= lanes.
                unsafe { s.store(line.as_mut_ptr(), s.mul(sum, factor)) };
                for (x, &score) in line.iter().enumerate().take(lanes.min(count.saturating_sub(first))) {
                    scores[(first + x) * S::LANES + r] = score;
                }
            }
        }
        key += 2 * lanes;
    }
}

/// Keys whose values are gone through, dimension by dimension, while they are in the first-level cache.
const GROUP: usize = 16;

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
    assert!(keys.end <= v.len() && v.has_unit_cols() && pitch >= dims && pitch % S::LANES == 0);
    assert!(rows <= S::LANES && weights.len() >= count * S::LANES && alpha.len() >= rows);
    let (sums, acc) = (&mut sums[..rows * pitch], &mut acc[..rows * pitch]);
    sums.fill(S::T::ZERO);
    let mut first = 0;
    while first < count {
        let group = GROUP.min(count - first);
        let mut lines = [v.row(keys.start); GROUP];
        for (x, line) in lines.iter_mut().enumerate().take(group) {
            *line = v.row(keys.start + first + x);
        }
        let weights = &weights[first * S::LANES..];
        let ahead = GROUP as isize * v.row_stride();
        let mut r = 0;
        while r < rows {
            match rows - r {
                1 => along_values::<S, E, 1, 8>(simd, weights, r, pitch, dims, &lines[..group], ahead, sums),
                2 => along_values::<S, E, 2, 4>(simd, weights, r, pitch, dims, &lines[..group], ahead, sums),
                3 => along_values::<S, E, 3, 2>(simd, weights, r, pitch, dims, &lines[..group], ahead, sums),
                _ => along_values::<S, E, 4, 2>(simd, weights, r, pitch, dims, &lines[..group], ahead, sums),
            }
            r += (rows - r).min(4);
        }
        first += group;
    }
    for (r, (acc, sums)) in acc.chunks_exact_mut(pitch).zip(sums.chunks_exact(pitch)).enumerate() {
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
    ahead: isize,
    sums: &mut [S::T],
) {
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    let mut d = 0;
    while d + lanes * VECTORS <= dims {
        value_block::<S, E, ROWS, VECTORS>(simd, weights, first, pitch, d, lines, ahead, sums);
        d += lanes * VECTORS;
    }
    while d + lanes <= dims {
        value_block::<S, E, ROWS, 1>(simd, weights, first, pitch, d, lines, ahead, sums);
        d += lanes;
    }
    for d in d..dims {
        for (key, line) in lines.iter().enumerate() {
            // SAFETY: the line has `dims` numbers, and d < dims.
            let x = s.splat(unsafe { (*line.add(d)).to_real() });
            for r in first..first + ROWS {
                let sum = &mut sums[r * pitch + d];
                let mut one = [S::T::ZERO; 16];
                // SAFETY: 16 >= lanes. A vector for one number: the multiply-add must be the one of the other paths.
                unsafe { s.store(one.as_mut_ptr(), s.mul_add(s.splat(weights[key * S::LANES + r]), x, s.splat(*sum))) };
                *sum = one[0];
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
    ahead: isize,
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
            s.prefetch(line.wrapping_offset(ahead));
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
