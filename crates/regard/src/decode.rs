//! Few queries over many keys: vectors run along the keys for the scores and along the value dimension for the sum,
//! so that K and V go through the registers once, at the speed of memory.
//!
//! The order of every chain of multiply-adds is that of [`crate::product`]: a query decoded alone has the bits that it
//! has in a long prefill. Scores are handed on in the panel layout, so that everything between the two products is shared.

use crate::element::Element;
use crate::rows::Rows;
use crate::score::KV_TILE;
use crate::simd::{Lanes, Real, Transpose};
use std::ops::Range;

/// `scores[key * LANES + r] = dot(q[r], k[key]) * scale` for up to eight rows, row after row in `q`, padded with zeros.
///
/// `keys` are rows of `k`.
#[inline(always)]
pub(crate) fn scores<S: Lanes, E: Element<Real = S::T>>(
    simd: S,
    q: &[S::T],
    rows: usize,
    k: &Rows<'_, E>,
    keys: Range<usize>,
    scale: S::T,
    scores: &mut [S::T],
) {
    match rows {
        1 => along_keys::<S, E, 1>(simd, q, rows, k, keys, scale, scores),
        2 => along_keys::<S, E, 2>(simd, q, rows, k, keys, scale, scores),
        3 | 4 => along_keys::<S, E, 4>(simd, q, rows, k, keys, scale, scores),
        _ => along_keys::<S, E, 8>(simd, q, rows, k, keys, scale, scores),
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
    let mut key = 0;
    // Two groups of keys at a time: two chains hide the latency of a multiply-add where there is one row only.
    while key < count {
        let mut sums = [[zero; ROWS]; 2];
        // Past the last key, the last one is read again; what comes of it is not used.
        let row = |x: usize| k.row(keys.start + (key + x).min(count - 1));
        for d in (0..whole).step_by(lanes) {
            for (group, sums) in sums.iter_mut().enumerate() {
                let mut square = s.zero_square();
                for (x, line) in square.as_mut().iter_mut().enumerate() {
                    // SAFETY: the row has `dim` numbers side by side, and d + lanes <= dim.
                    *line = unsafe { E::load(s, row(group * lanes + x).add(d)) };
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
                    // SAFETY: the row has `dim` numbers side by side, and d < dim.
                    *c = unsafe { (*row(group * lanes + x).add(d)).to_real() };
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

/// `acc[r * pitch + d] = acc[..] * alpha[r] + sum over keys of weights[key * LANES + r] * v[key, d]`.
///
/// `keys` are rows of `v`.
#[inline(always)]
pub(crate) fn accumulate<S: Lanes, E: Element<Real = S::T>>(
    simd: S,
    weights: &[S::T],
    rows: usize,
    pitch: usize,
    v: &Rows<'_, E>,
    keys: Range<usize>,
    alpha: &[S::T],
    acc: &mut [S::T],
) {
    let (dims, count) = (v.cols(), keys.len());
    assert!(keys.end <= v.len() && v.has_unit_cols());
    assert!(count <= KV_TILE && weights.len() >= count * S::LANES && pitch >= dims && acc.len() >= rows * pitch && alpha.len() >= rows);
    let mut r = 0;
    while r < rows {
        match rows - r {
            1 => along_values::<S, E, 1, 8>(simd, weights, r, pitch, v, keys.clone(), alpha, acc),
            2 => along_values::<S, E, 2, 4>(simd, weights, r, pitch, v, keys.clone(), alpha, acc),
            3 => along_values::<S, E, 3, 3>(simd, weights, r, pitch, v, keys.clone(), alpha, acc),
            _ => along_values::<S, E, 4, 2>(simd, weights, r, pitch, v, keys.clone(), alpha, acc),
        }
        r += (rows - r).min(4);
    }
}

/// ROWS rows from `first` on, VECTORS vectors of the value dimension at a time.
#[inline(always)]
fn along_values<S: Lanes, E: Element<Real = S::T>, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[S::T],
    first: usize,
    pitch: usize,
    v: &Rows<'_, E>,
    keys: Range<usize>,
    alpha: &[S::T],
    acc: &mut [S::T],
) {
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    let dims = v.cols();
    let mut d = 0;
    while d + lanes * VECTORS <= dims {
        value_block::<S, E, ROWS, VECTORS>(simd, weights, first, pitch, d, v, keys.clone(), alpha, acc);
        d += lanes * VECTORS;
    }
    while d + lanes <= dims {
        value_block::<S, E, ROWS, 1>(simd, weights, first, pitch, d, v, keys.clone(), alpha, acc);
        d += lanes;
    }
    for d in d..dims {
        let mut sums = [s.splat(S::T::ZERO); ROWS];
        for (key, row) in keys.clone().enumerate() {
            let x = s.splat(v.get(row, d));
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = s.mul_add(s.splat(weights[key * S::LANES + first + r]), x, *sum);
            }
        }
        for (r, &sum) in sums.iter().enumerate() {
            let at = (first + r) * pitch + d;
            let mut line = [S::T::ZERO; 16];
            // SAFETY: 16 >= lanes.
            unsafe { s.store(line.as_mut_ptr(), s.mul_add(s.splat(acc[at]), s.splat(alpha[first + r]), sum)) };
            acc[at] = line[0];
        }
    }
}

#[inline(always)]
fn value_block<S: Lanes, E: Element<Real = S::T>, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    weights: &[S::T],
    first: usize,
    pitch: usize,
    d: usize,
    v: &Rows<'_, E>,
    keys: Range<usize>,
    alpha: &[S::T],
    acc: &mut [S::T],
) {
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    let (dims, count) = (v.cols(), keys.len());
    assert!(keys.end <= v.len() && v.has_unit_cols());
    assert!(d + lanes * VECTORS <= dims && pitch >= dims && acc.len() >= (first + ROWS) * pitch && weights.len() >= count * S::LANES);
    assert!(first + ROWS <= S::LANES);
    let mut sums = [[s.splat(S::T::ZERO); VECTORS]; ROWS];
    for (key, row) in keys.enumerate() {
        // SAFETY: the row has `dims` numbers side by side, and the block ends at or before `dims`; the weight is one of
        // `count * LANES`.
        unsafe {
            let line = v.row(row).add(d);
            let mut values = [s.splat(S::T::ZERO); VECTORS];
            for (x, value) in values.iter_mut().enumerate() {
                *value = E::load(s, line.add(x * lanes));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let w = s.splat(*weights.get_unchecked(key * S::LANES + first + r));
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = s.mul_add(w, value, *sum);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let by = s.splat(alpha[first + r]);
        for (x, &sum) in sums.iter().enumerate() {
            // SAFETY: the first assertion.
            unsafe {
                let at = acc.as_mut_ptr().add((first + r) * pitch + d + x * lanes);
                s.store(at, s.mul_add(s.load(at), by, sum));
            }
        }
    }
}
