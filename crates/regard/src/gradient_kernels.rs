//! The steps of a backward pass over a tile, each a loop over whole vectors: weights, gradients of the scores, sums over rows and keys. What they are
//! steps of is said in [`crate::gradient`].

use crate::element::Element;
use crate::product::{Take, product};
use crate::rows::Rows;
use crate::simd::{Lanes, Operation, Real, Transpose, math};
use std::mem::MaybeUninit;
use std::ops::Range;

/// `to += from`, and `from` is begun anew.
pub(crate) struct Move<'k, T> {
    pub(crate) from: &'k mut [T],
    pub(crate) to: &'k mut [T],
}

impl<T: Real> Operation<T> for Move<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        for (to, from) in self.to.chunks_exact_mut(S::LANES).zip(self.from.chunks_exact_mut(S::LANES)) {
            // SAFETY: both chunks are one whole vector.
            unsafe {
                simd.store(to.as_mut_ptr(), simd.add(simd.load(to.as_ptr()), simd.load(from.as_ptr())));
                simd.store(from.as_mut_ptr(), simd.splat(T::ZERO));
            }
        }
    }
}

/// `to[row] = sum over dim of a[row][dim] * b[row][dim]`
pub(crate) struct RowDots<'k, E: Element> {
    pub(crate) a: &'k [E::Real],
    pub(crate) pitch: usize,
    pub(crate) b: Rows<'k, E>,
    pub(crate) to: &'k mut [E::Real],
}

impl<E: Element> Operation<E::Real> for RowDots<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = E::Real>>(self, simd: S) {
        let Self { a, pitch, b, to } = self;
        row_dots(simd.narrow(), a, pitch, b, to);
    }
}

/// One sum per dimension modulo LANES, and these added in order: the narrow lanes are as many on every level that has them.
#[inline(always)]
fn row_dots<S: Transpose, E: Element<Real = S::T>>(simd: S, a: &[S::T], pitch: usize, b: Rows<'_, E>, to: &mut [S::T]) {
    let (rows, dims) = (b.len(), b.cols());
    let whole = if b.has_unit_cols() { dims - dims % S::LANES } else { 0 };
    assert!(dims <= pitch && a.len() >= rows * pitch && to.len() >= rows);
    for first in (0..rows).step_by(S::LANES) {
        let count = S::LANES.min(rows - first);
        let mut square = simd.zero_square();
        for (x, sum) in square.as_mut().iter_mut().enumerate().take(count) {
            let line = b.row(first + x);
            for dim in (0..whole).step_by(S::LANES) {
                // SAFETY: LANES numbers from `dim` on are inside the row of b, and inside that of a, which is as long or longer.
                unsafe { *sum = simd.mul_add(simd.load(a.as_ptr().add((first + x) * pitch + dim)), E::load(simd, line.add(dim)), *sum) };
            }
        }
        let mut sum = simd.splat(S::T::ZERO);
        for &line in simd.transpose(square).as_ref() {
            sum = simd.add(sum, line);
        }
        let mut sums = [S::T::ZERO; 16];
        // SAFETY: there are 16 >= LANES places.
        unsafe { simd.store(sums.as_mut_ptr(), sum) };
        for (x, sum) in sums.into_iter().enumerate().take(count) {
            let rest = |dim: usize| a[(first + x) * pitch + dim] * b.get(first + x, dim);
            to[first + x] = (whole..dims).fold(sum, |sum, dim| sum + rest(dim));
        }
    }
}

/// `scores` become weights; `p` gets them, less what dropout takes.
pub(crate) struct Weigh<'k, T, const NR: usize> {
    pub(crate) scores: &'k mut [T],
    pub(crate) factors: Option<&'k [T]>,
    pub(crate) top: &'k [T],
    pub(crate) inverse: &'k [T],
    pub(crate) pitch: usize,
    pub(crate) p: &'k mut [T],
}

impl<T: Real, const NR: usize> Operation<T> for Weigh<'_, T, NR> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { scores, factors, top, inverse, pitch, p } = self;
        let width = NR * S::LANES;
        let keys = scores.len() / width;
        assert!(keys > 0 && p.len() >= (keys - 1) * pitch + width && top.len() >= width && inverse.len() >= width);
        assert!(factors.is_none_or(|f| f.len() >= scores.len()));
        for n in 0..NR {
            // SAFETY: n vectors are in top and inverse; `scores` (and `factors`) have `keys` rows of `width`, `p` has `keys` rows, `pitch`
            // apart, the last of which holds `width` numbers. All of it was just checked.
            unsafe {
                let (top, inverse) = (simd.load(top.as_ptr().add(n * S::LANES)), simd.load(inverse.as_ptr().add(n * S::LANES)));
                // Also lanes past the last row, whose scores have no meaning.
                let empty = simd.eq(inverse, simd.splat(T::ZERO));
                // A row that is NaN is so where it sees: its hidden scores must not meet the NaN of its sum.
                let broken = simd.bits_from_mask(simd.eq(inverse, inverse)) != u32::MAX >> (32 - S::LANES);
                for key in 0..keys {
                    let at = scores.as_mut_ptr().add(key * width + n * S::LANES);
                    let to = p.as_mut_ptr().add(key * pitch + n * S::LANES);
                    let score = simd.load(at);
                    let mut w = simd.clear(empty, simd.mul(math::exp(simd, simd.sub(score, top)), inverse));
                    if broken {
                        w = simd.clear(simd.eq(score, simd.splat(T::HIDDEN)), w);
                    }
                    simd.store(at, w);
                    match factors {
                        None => simd.store(to, w),
                        Some(f) => simd.store(to, simd.mul(w, simd.load(f.as_ptr().add(key * width + n * S::LANES)))),
                    }
                }
            }
        }
    }
}

/// `ds[key][lane] = p * (dot(v[key], d_out[lane]) * dropout - delta)`
pub(crate) struct ScoreGradients<'k, T: Real, const NR: usize> {
    pub(crate) v: Rows<'k, T>,
    pub(crate) keys: Range<usize>,
    /// `[dim][lane]`
    pub(crate) d_out: &'k [T],
    pub(crate) p: &'k [T],
    pub(crate) factors: Option<&'k [T]>,
    pub(crate) delta: &'k [T],
    pub(crate) pitch: usize,
    pub(crate) ds: &'k mut [T],
}

impl<T: Real, const NR: usize> Operation<T> for ScoreGradients<'_, T, NR> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { v, keys, d_out, p, factors, delta, pitch, ds } = self;
        let (width, count, dims) = (NR * S::LANES, keys.len(), v.cols());
        assert!(v.has_unit_cols() && keys.end <= v.len() && count > 0);
        assert!(d_out.len() >= dims * width && p.len() >= count * width && delta.len() >= width);
        assert!(ds.len() >= (count - 1) * pitch + width && factors.is_none_or(|f| f.len() >= count * width));
        // SAFETY: `keys` are rows of v with `dims` numbers side by side; d_out has dims * width numbers; p, factors and ds have a row
        // for each key, and delta is one. All of it was just checked.
        unsafe {
            let mut deltas = [simd.splat(T::ZERO); NR];
            for (n, d) in deltas.iter_mut().enumerate() {
                *d = simd.load(delta.as_ptr().add(n * S::LANES));
            }
            let to = StoreGradients::<S, NR> { p: p.as_ptr(), factors: factors.map(<[T]>::as_ptr), deltas, pitch, ds: ds.as_mut_ptr() };
            product::<S, NR, false, true>(simd, count, dims, v.row(keys.start), v.row_stride(), d_out.as_ptr(), width, to);
        }
    }
}

/// Gradients of the weights on their way to memory, as gradients of the scores.
struct StoreGradients<S: Lanes, const NR: usize> {
    p: *const S::T,
    factors: Option<*const S::T>,
    deltas: [S::V; NR],
    pitch: usize,
    ds: *mut S::T,
}

impl<S: Lanes, const NR: usize> Take<S, NR> for StoreGradients<S, NR> {
    #[inline(always)]
    unsafe fn take(&mut self, simd: S, row: usize, c: [S::V; NR]) {
        for (n, c) in c.into_iter().enumerate() {
            // SAFETY: p, factors and ds have NR * LANES numbers for every row.
            unsafe {
                let at = (row * NR + n) * S::LANES;
                let p = simd.load(self.p.add(at));
                let d_p = match self.factors {
                    None => c,
                    Some(f) => simd.mul(c, simd.load(f.add(at))),
                };
                let ds = simd.mul(p, simd.sub(d_p, self.deltas[n]));
                // A hidden value may be anything.
                let hidden = simd.eq(p, simd.splat(S::T::ZERO));
                simd.store(self.ds.add(row * self.pitch + n * S::LANES), simd.clear(hidden, ds));
            }
        }
    }
}

/// `to[lane] += sum over keys of ds[key][lane]^2`
pub(crate) struct AddSquares<'k, T> {
    pub(crate) ds: &'k [T],
    pub(crate) pitch: usize,
    pub(crate) keys: usize,
    pub(crate) to: &'k mut [T],
}

impl<T: Real> Operation<T> for AddSquares<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { ds, pitch, keys, to } = self;
        assert!(keys > 0 && ds.len() >= (keys - 1) * pitch + to.len() && to.len().is_multiple_of(S::LANES));
        for n in (0..to.len()).step_by(S::LANES) {
            // SAFETY: every row of ds holds as many numbers as `to` (just checked), of which n is the start of a whole vector.
            unsafe {
                let mut sum = simd.load(to.as_ptr().add(n));
                for key in 0..keys {
                    let x = simd.load(ds.as_ptr().add(key * pitch + n));
                    sum = simd.mul_add(x, x, sum);
                }
                simd.store(to.as_mut_ptr().add(n), sum);
            }
        }
    }
}

/// forward: `capped = cap * tanh(raw / cap)`, and so `ds *= 1 - (capped / cap)^2`
pub(crate) struct ThroughSoftcap<'k, T> {
    pub(crate) capped: &'k [T],
    pub(crate) width: usize,
    pub(crate) inverse_cap: T,
    pub(crate) pitch: usize,
    pub(crate) ds: &'k mut [T],
}

impl<T: Real> Operation<T> for ThroughSoftcap<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { capped, width, inverse_cap, pitch, ds } = self;
        let (by, one) = (simd.splat(inverse_cap), simd.splat(T::ONE));
        for (line, ds) in capped.chunks_exact(width).zip(ds.chunks_mut(pitch)) {
            for (c, d) in line.chunks_exact(S::LANES).zip(ds[..width].chunks_exact_mut(S::LANES)) {
                // SAFETY: both chunks are one whole vector.
                unsafe {
                    let t = simd.mul(simd.load(c.as_ptr()), by);
                    let d_now = simd.load(d.as_ptr());
                    let slope = simd.sub(one, simd.mul(t, t));
                    // A hidden score may be anything.
                    let none = simd.eq(d_now, simd.splat(T::ZERO));
                    simd.store(d.as_mut_ptr(), simd.clear(none, simd.mul(d_now, slope)));
                }
            }
        }
    }
}

/// Where sums over rows go.
pub(crate) enum Destination<'k, T> {
    /// What is there is added to.
    Add(&'k mut [T]),
    /// The first sums: they are written, in whole vectors.
    Write(&'k mut [MaybeUninit<T>]),
}

/// `sums[key] += sum over rows of numbers[key][row] * from[row]`, in whole vectors of `dims`.
pub(crate) struct AddRows<'k, T> {
    pub(crate) numbers: &'k [T],
    /// From one key's numbers to the next's.
    pub(crate) pitch: usize,
    /// The rows to sum over.
    pub(crate) depth: Range<usize>,
    pub(crate) keys: usize,
    pub(crate) from: &'k [T],
    pub(crate) dims: usize,
    /// From one row to the next in `from` and in `sums`.
    pub(crate) row_pitch: usize,
    pub(crate) sums: Destination<'k, T>,
}

impl<T: Real> Operation<T> for AddRows<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { numbers, pitch, depth, keys, from, dims, row_pitch, sums } = self;
        assert!(keys > 0 && depth.end <= pitch && numbers.len() >= (keys - 1) * pitch + depth.end);
        assert!(dims.next_multiple_of(S::LANES) <= row_pitch || dims == 0);
        let (sums, len, add) = match sums {
            Destination::Add(sums) => (sums.as_mut_ptr(), sums.len(), true),
            Destination::Write(sums) => (sums.as_mut_ptr().cast(), sums.len(), false),
        };
        assert!(from.len() >= depth.end * row_pitch && len >= keys * row_pitch);
        // SAFETY: `numbers` has `depth.end` numbers for each key, `from` a padded row for each of the depth, `sums` one for each
        // key; columns are taken in whole vectors up to `dims` padded, which is at most the pitch. All of it was just checked.
        unsafe {
            let a = numbers.as_ptr().add(depth.start);
            let b = from.as_ptr().add(depth.start * row_pitch);
            let mut col = 0;
            while col + S::LANES < dims {
                let to = AddToRows { to: sums.add(col), pitch: row_pitch, add };
                product::<S, 2, false, false>(simd, keys, depth.len(), a, pitch as isize, b.add(col), row_pitch, to);
                col += 2 * S::LANES;
            }
            if col < dims {
                let to = AddToRows { to: sums.add(col), pitch: row_pitch, add };
                product::<S, 1, false, false>(simd, keys, depth.len(), a, pitch as isize, b.add(col), row_pitch, to);
            }
        }
    }
}

/// A block's sum on its way to the accumulator.
struct AddToRows<T> {
    to: *mut T,
    pitch: usize,
    /// Else what is there has no meaning yet.
    add: bool,
}

impl<S: Lanes, const NR: usize> Take<S, NR> for AddToRows<S::T> {
    #[inline(always)]
    unsafe fn take(&mut self, simd: S, row: usize, c: [S::V; NR]) {
        for (n, c) in c.into_iter().enumerate() {
            // SAFETY: `to` has NR * LANES places for every row, and numbers in them if they are to be added to.
            unsafe {
                let at = self.to.add(row * self.pitch + n * S::LANES);
                simd.store(at, if self.add { simd.add(simd.load(at), c) } else { c });
            }
        }
    }
}

/// The sum of the squares of each row, in eight chains, which the CPU works on at once.
pub(crate) struct RowSquares<'k, E> {
    /// Side by side.
    pub(crate) rows: &'k [E],
    pub(crate) dims: usize,
    pub(crate) to: &'k mut [f64],
}

impl<E: Element> Operation<E::Real> for RowSquares<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = E::Real>>(self, _: S) {
        let Self { rows, dims, to } = self;
        for (row, to) in rows.chunks_exact(dims.max(1)).zip(to) {
            let mut chains = [0.0; 8];
            let (parts, rest) = row.as_chunks::<8>();
            for part in parts {
                for i in 0..8 {
                    let x = part[i].to_real().to_f64();
                    chains[i] += x * x;
                }
            }
            for (chain, x) in chains.iter_mut().zip(rest) {
                let x = x.to_real().to_f64();
                *chain += x * x;
            }
            *to = chains.iter().sum();
        }
    }
}
