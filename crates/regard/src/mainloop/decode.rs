//! Few queries over many keys: vectors run along the keys for the scores and along the value dimension for the sum,
//! so that K and V go through the registers once, at the speed of memory.
//!
//! The order of every chain of multiply-adds is that of [`regard_simd::microkernel`]: a query decoded alone has the bits that it
//! has in a long prefill. Scores are handed on in the panel layout, so that everything between the two products is shared.

use regard_simd::microkernel::half;
use regard_simd::simd::{MAX_LANES, Narrow};
use regard_simd::strided::Rows;
use regard_simd::{Kernel, Real, Simd, Storage, Transpose};

/// `scores[key * LANES + r] = dot(q[r], k[key]) * scale` for up to four rows, row after row in `queries`, padded with zeros. With PAIRS,
/// elements of both are pairs.
pub(crate) struct DecodeScores<'k, E: Storage, const PAIRS: bool> {
    pub(crate) queries: &'k [E::Real],
    pub(crate) rows: usize,
    pub(crate) k: Rows<'k, E>,
    pub(crate) scale: E::Real,
    pub(crate) scores: &'k mut [E::Real],
}

impl<E: Storage, const PAIRS: bool> Kernel<E::Real> for DecodeScores<'_, E, PAIRS> {
    #[inline(always)]
    fn run<S: Simd<T = E::Real>>(self, simd: S) {
        match self.rows {
            _ if self.k.len() < GROUPS * S::Narrow::LANES => one_by_one(simd, self),
            1 => along_keys::<S, E, PAIRS, 1>(simd, self),
            2 => along_keys::<S, E, PAIRS, 2>(simd, self),
            _ => along_keys::<S, E, PAIRS, 4>(simd, self),
        }
    }
}

/// `a * b + c`, or the product of pairs.
#[inline(always)]
fn multiply_add<S: Simd, const PAIRS: bool>(simd: S, a: Narrow<S>, b: Narrow<S>, c: Narrow<S>) -> Narrow<S> {
    if PAIRS { simd.dot_narrow_pairs(a, b, c) } else { simd.narrow().mul_add(a, b, c) }
}

/// Too few keys to fill vectors: one element at a time, in the same order.
#[inline(always)]
fn one_by_one<S: Simd, E: Storage<Real = S::T>, const PAIRS: bool>(simd: S, task: DecodeScores<'_, E, PAIRS>) {
    let DecodeScores { queries: q, rows, k, scale, scores } = task;
    let s = simd.narrow();
    let dim = k.cols();
    for key in 0..k.len() {
        for r in 0..rows {
            let mut sums = [s.splat(S::T::ZERO); 2];
            for d in 0..dim {
                let sum = &mut sums[usize::from(d >= half(dim))];
                *sum = multiply_add::<S, PAIRS>(simd, s.splat(q[r * dim + d]), s.splat(k.get(key, d)), *sum);
            }
            scores[key * S::LANES + r] = s.to_array(s.mul(s.add(sums[0], sums[1]), s.splat(scale)))[0];
        }
    }
}

/// Groups of keys, a vector each, that are worked on in parallel: a load of q serves all of them, and more than one chain
/// hides the latency of a multiply-add. With four, the compiler runs out of registers, and it is slower.
const GROUPS: usize = 2;

#[inline(always)]
fn along_keys<S: Simd, E: Storage<Real = S::T>, const PAIRS: bool, const ROWS: usize>(simd: S, task: DecodeScores<'_, E, PAIRS>) {
    let DecodeScores { queries: q, rows, k, scale, scores } = task;
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    let (dim, count, together) = (k.cols(), k.len(), GROUPS * lanes);
    assert!(k.has_unit_cols());
    assert!(count >= together && rows <= ROWS && q.len() >= ROWS * dim && scores.len() >= count * S::LANES);
    let zero = s.splat(S::T::ZERO);
    let factor = s.splat(scale);
    let stride = k.row_stride();
    let mut key = 0;
    while key < count {
        // The last groups may overlap the ones before; what comes out is the same.
        key = key.min(count - together);
        let mut next = Prefetcher::new(&k, key + 2 * together);
        let mut totals = [[zero; ROWS]; GROUPS];
        for part in [0..half(dim), half(dim)..dim] {
            let mut sums = [[zero; ROWS]; GROUPS];
            let whole = part.start + (part.len() - part.len() % lanes);
            let mut line = k.row(key).wrapping_add(part.start);
            for d in (part.start..whole).step_by(lanes) {
                next.ask(s, together * lanes);
                for (group, sums) in sums.iter_mut().enumerate() {
                    // SAFETY: keys key..key + together are rows of `dim` contiguous elements, and d + lanes <= dim.
                    let square = unsafe { load_square::<S::Narrow, E>(s, line.offset((group * lanes) as isize * stride), stride) };
                    for (r, sum) in sums.iter_mut().enumerate() {
                        for (x, &column) in square.as_ref().iter().enumerate() {
                            // SAFETY: r < ROWS and d + x < dim.
                            let q = unsafe { *q.get_unchecked(r * dim + d + x) };
                            *sum = multiply_add::<S, PAIRS>(simd, s.splat(q), column, *sum);
                        }
                    }
                }
                line = line.wrapping_add(lanes);
            }
            for (group, (sums, totals)) in sums.iter_mut().zip(&mut totals).enumerate() {
                for d in whole..part.end {
                    let mut column = [S::T::ZERO; MAX_LANES];
                    for (x, c) in column.iter_mut().enumerate().take(lanes) {
                        *c = k.get(key + group * lanes + x, d);
                    }
                    let column = s.vector(&column);
                    for (r, sum) in sums.iter_mut().enumerate() {
                        *sum = multiply_add::<S, PAIRS>(simd, s.splat(q[r * dim + d]), column, *sum);
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
                let line = s.to_array(s.mul(total, factor));
                for (x, &score) in line.iter().enumerate().take(lanes) {
                    scores[(first + x) * S::LANES + r] = score;
                }
            }
        }
        key += together;
    }
}

/// Prefetches rows in memory order. The kernels read many rows in parallel, which hardware prefetchers do not recognise as a stream.
struct Prefetcher<E> {
    row: *const E,
    stride: isize,
    cols: usize,
    col: usize,
    /// Elements requested that do not fill a cache line yet.
    due: usize,
}

impl<E: Storage> Prefetcher<E> {
    /// From a row on, which may be past the last one.
    #[inline(always)]
    fn new(rows: &Rows<'_, E>, first: usize) -> Self {
        let stride = rows.row_stride();
        let row = if rows.is_empty() { std::ptr::null() } else { rows.row(0) };
        Self { row: row.wrapping_offset((first as isize).wrapping_mul(stride)), stride, cols: rows.cols(), col: 0, due: 0 }
    }

    /// The next `count` elements.
    #[inline(always)]
    fn ask<S: Simd>(&mut self, simd: S, count: usize) {
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

/// `LANES` elements of each of `LANES` lines, a stride apart: vector x holds element x of every line.
///
/// # Safety
/// Every line must be valid for reading `LANES` elements.
#[inline(always)]
unsafe fn load_square<S: Transpose, E: Storage<Real = S::T>>(s: S, line: *const E, stride: isize) -> S::Square {
    if E::IS_REAL {
        // SAFETY: IS_REAL says that the lines hold S::T; the caller guarantees the elements.
        return unsafe { s.load_transposed(line.cast(), stride) };
    }
    let mut square = s.zero_square();
    for (x, row) in square.as_mut().iter_mut().enumerate() {
        // SAFETY: the caller guarantees the elements.
        *row = unsafe { E::load(s, line.offset(x as isize * stride)) };
    }
    s.transpose(square)
}

/// Keys whose values are gone through, dimension by dimension, while they are in the first-level cache.
const LINES: usize = 16;

/// `acc[r * ld + d] = acc[..] * alpha[r] + sum over keys of weights[key * LANES + r] * v[key, d]`.
pub(crate) struct DecodeValues<'k, E: Storage> {
    pub(crate) weights: &'k [E::Real],
    pub(crate) rows: usize,
    pub(crate) ld: usize,
    pub(crate) v: Rows<'k, E>,
    pub(crate) alpha: &'k [E::Real],
    /// Room for as much as `acc` has.
    pub(crate) sums: &'k mut [E::Real],
    pub(crate) acc: &'k mut [E::Real],
}

impl<E: Storage> Kernel<E::Real> for DecodeValues<'_, E> {
    #[inline(always)]
    fn run<S: Simd<T = E::Real>>(self, simd: S) {
        let Self { weights, rows, ld, v, alpha, sums, acc } = self;
        let (dims, count) = (v.cols(), v.len());
        assert!(v.has_unit_cols() && ld >= dims && ld.is_multiple_of(S::LANES));
        assert!(rows <= S::LANES && weights.len() >= count * S::LANES && alpha.len() >= rows && count > 0);
        let (sums, acc) = (&mut sums[..rows * ld], &mut acc[..rows * ld]);
        sums.fill(S::T::ZERO);
        let mut first = 0;
        while first < count {
            let group = LINES.min(count - first);
            let mut lines = [v.row(0); LINES];
            for (x, line) in lines.iter_mut().enumerate().take(group) {
                *line = v.row(first + x);
            }
            let values = Values { weights: &weights[first * S::LANES..], ld, dims };
            let mut next = Prefetcher::new(&v, first + LINES);
            let mut r = 0;
            while r < rows {
                macro_rules! along {
                    ($rows:literal, $vectors:literal) => {
                        // SAFETY: every line is a row of v, which has `dims` contiguous elements.
                        unsafe { along_values::<S, E, $rows, $vectors>(simd, values, r, &lines[..group], &mut next, sums) }
                    };
                }
                match rows - r {
                    1 => along!(1, 8),
                    2 => along!(2, 4),
                    3 => along!(3, 2),
                    _ => along!(4, 2),
                }
                r += (rows - r).min(4);
            }
            first += group;
        }
        for (r, (acc, sums)) in acc.chunks_exact_mut(ld.max(1)).zip(sums.chunks_exact(ld.max(1))).enumerate() {
            let by = simd.splat(alpha[r]);
            for (acc, sum) in acc.chunks_exact_mut(S::LANES).zip(sums.chunks_exact(S::LANES)) {
                // SAFETY: both chunks are whole vectors.
                unsafe { simd.store(acc.as_mut_ptr(), simd.mul_add(simd.load(acc.as_ptr()), by, simd.load(sum.as_ptr()))) };
            }
        }
    }
}

/// Weights of some keys, and the layout of the sums.
#[derive(Clone, Copy)]
struct Values<'k, T> {
    weights: &'k [T],
    ld: usize,
    dims: usize,
}

/// ROWS rows from `first` on, VECTORS vectors of the value dimension at a time.
///
/// # Safety
/// Every line must be valid for reading `dims` elements.
#[inline(always)]
unsafe fn along_values<S: Simd, E: Storage<Real = S::T>, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    values: Values<'_, S::T>,
    first: usize,
    lines: &[*const E],
    next: &mut Prefetcher<E>,
    sums: &mut [S::T],
) {
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    let Values { weights, ld, dims } = values;
    let mut d = 0;
    while d + lanes * VECTORS <= dims {
        // SAFETY: the caller guarantees the lines, and these elements are among the `dims`.
        unsafe { value_vectors::<S, E, ROWS, VECTORS>(simd, values, [first, d], lines, next, sums) };
        d += lanes * VECTORS;
    }
    while d + lanes <= dims {
        // SAFETY: as above.
        unsafe { value_vectors::<S, E, ROWS, 1>(simd, values, [first, d], lines, next, sums) };
        d += lanes;
    }
    for d in d..dims {
        for (key, line) in lines.iter().enumerate() {
            // SAFETY: the line has `dims` elements, and d < dims.
            let x = s.splat(unsafe { (*line.add(d)).to_real() });
            for r in first..first + ROWS {
                let sum = &mut sums[r * ld + d];
                // A vector for one number: the multiply-add must be the one of the other paths.
                *sum = s.to_array(s.mul_add(s.splat(weights[key * S::LANES + r]), x, s.splat(*sum)))[0];
            }
        }
    }
}

/// VECTORS vectors from row `first` and dimension `d` on.
///
/// # Safety
/// Every line must be valid for reading `d + LANES * VECTORS` elements.
#[inline(always)]
unsafe fn value_vectors<S: Simd, E: Storage<Real = S::T>, const ROWS: usize, const VECTORS: usize>(
    simd: S,
    values: Values<'_, S::T>,
    [first, d]: [usize; 2],
    lines: &[*const E],
    next: &mut Prefetcher<E>,
    sums: &mut [S::T],
) {
    let s = simd.narrow();
    let lanes = S::Narrow::LANES;
    let Values { weights, ld, .. } = values;
    assert!(first + ROWS <= S::LANES && weights.len() >= lines.len() * S::LANES);
    assert!(d + lanes * VECTORS <= ld && sums.len() >= (first + ROWS) * ld);
    // SAFETY: the assertions, for sums and weights; the caller guarantees the lines.
    unsafe {
        let at = |r: usize, x: usize| (first + r) * ld + d + x * lanes;
        let mut tile = [[s.splat(S::T::ZERO); VECTORS]; ROWS];
        for (r, tile) in tile.iter_mut().enumerate() {
            for (x, sum) in tile.iter_mut().enumerate() {
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
            for (r, tile) in tile.iter_mut().enumerate() {
                let w = s.splat(*weights.get_unchecked(key * S::LANES + first + r));
                for (sum, value) in tile.iter_mut().zip(values) {
                    *sum = s.mul_add(w, value, *sum);
                }
            }
        }
        for (r, tile) in tile.iter().enumerate() {
            for (x, &sum) in tile.iter().enumerate() {
                s.store(sums.as_mut_ptr().add(at(r, x)), sum);
            }
        }
    }
}
