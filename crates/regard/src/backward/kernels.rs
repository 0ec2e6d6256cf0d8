//! The steps of a backward pass over a tile, each a loop over whole vectors: weights, gradients of the scores, sums over rows and keys. See
//! [`super::differentiate`].

use crate::mainloop::tiles::{TileDots, factor_depth};
use regard_simd::microkernel::{Epilogue, GemmOperands, half, product};
use regard_simd::strided::Rows;
use regard_simd::tiles::{Parts, TILE, TILE_DEPTH, TileProduct, padded_pairs};
use regard_simd::{Kernel, Real, Simd, Storage, math};
use std::mem::MaybeUninit;
use std::ops::Range;

/// `to += from; from = 0`
pub(super) struct AddAndClear<'k, T> {
    pub(super) from: &'k mut [T],
    pub(super) to: &'k mut [T],
}

impl<T: Real> Kernel<T> for AddAndClear<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        for (to, from) in self.to.chunks_exact_mut(S::LANES).zip(self.from.chunks_exact_mut(S::LANES)) {
            // SAFETY: both chunks are one whole vector.
            unsafe {
                simd.store(to.as_mut_ptr(), simd.add(simd.load(to.as_ptr()), simd.load(from.as_ptr())));
                simd.store(from.as_mut_ptr(), simd.splat(T::ZERO));
            }
        }
    }
}

/// `delta[lane] = sum over dim of out[dim][lane] * d_out[dim][lane]`, for a panel; d_out is in pairs where the lanes multiply pairs.
///
/// In the very chains of `d_p = v . d_out`: in a row whose weight is all on one key, `out` is that key's value, `delta` is its `d_p`, and
/// their difference is exactly zero, whatever the scale then multiplies it with.
pub(super) struct Delta<'k, T> {
    pub(super) out: &'k [T],
    pub(super) d_out: &'k [T],
    pub(super) delta: &'k mut [T],
}

impl<T: Real> Kernel<T> for Delta<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { out, d_out, delta } = self;
        let width = delta.len();
        let dims = out.len() / width.max(1);
        let steps = factor_depth::<S>(dims);
        assert!(width.is_multiple_of(S::LANES) && out.len() >= dims * width && d_out.len() >= steps * width);
        for lane in (0..width).step_by(S::LANES) {
            // SAFETY: `out` and `d_out` have `dims` rows of `width` elements, `delta` one (just checked), of which `lane` is the start of a
            // vector.
            unsafe {
                let mut chains = [simd.splat(T::ZERO); 2];
                if S::TILES {
                    // The even and the odd elements of a tile are chains of their own.
                    for tile in 0..steps / TILE {
                        let mut sums = [simd.splat(T::ZERO); 2];
                        for step in tile * TILE..(tile + 1) * TILE {
                            let parts = simd.unpair(simd.load(d_out.as_ptr().add(step * width + lane)));
                            for (i, (sum, part)) in sums.iter_mut().zip(parts).enumerate() {
                                if 2 * step + i < dims {
                                    *sum = simd.mul_add(simd.load(out.as_ptr().add((2 * step + i) * width + lane)), part, *sum);
                                }
                            }
                        }
                        chains[0] = simd.add(chains[0], simd.add(sums[0], sums[1]));
                    }
                }
                for step in 0..if S::TILES { 0 } else { steps } {
                    let chain = &mut chains[usize::from(step >= half(steps))];
                    let d_out = simd.load(d_out.as_ptr().add(step * width + lane));
                    if S::PAIRS {
                        let [low, high] = simd.unpair(d_out);
                        // The order of `dot_pairs`; the last pair may be half empty.
                        if 2 * step + 1 < dims {
                            *chain = simd.mul_add(simd.load(out.as_ptr().add((2 * step + 1) * width + lane)), high, *chain);
                        }
                        *chain = simd.mul_add(simd.load(out.as_ptr().add(2 * step * width + lane)), low, *chain);
                    } else {
                        *chain = simd.mul_add(simd.load(out.as_ptr().add(step * width + lane)), d_out, *chain);
                    }
                }
                simd.store(delta.as_mut_ptr().add(lane), simd.add(chains[0], chains[1]));
            }
        }
    }
}

/// `scores` become weights; `p` gets them, less what dropout takes.
pub(super) struct RecomputeWeights<'k, T, const NR: usize> {
    pub(super) scores: &'k mut [T],
    pub(super) factors: Option<&'k [T]>,
    pub(super) row_max: &'k [T],
    pub(super) inv_row_sum: &'k [T],
    pub(super) ld: usize,
    pub(super) p: &'k mut [T],
}

impl<T: Real, const NR: usize> Kernel<T> for RecomputeWeights<'_, T, NR> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { scores, factors, row_max, inv_row_sum, ld, p } = self;
        let width = NR * S::LANES;
        let keys = scores.len() / width;
        assert!(keys > 0 && p.len() >= (keys - 1) * ld + width && row_max.len() >= width && inv_row_sum.len() >= width);
        assert!(factors.is_none_or(|f| f.len() >= scores.len()));
        for n in 0..NR {
            // SAFETY: n vectors are in row_max and inv_row_sum; `scores` (and `factors`) have `keys` rows of `width`, `p` has `keys` rows,
            // `ld` apart, the last of which holds `width` elements. All of it was just checked.
            unsafe {
                let (top, inv) = (simd.load(row_max.as_ptr().add(n * S::LANES)), simd.load(inv_row_sum.as_ptr().add(n * S::LANES)));
                // Also lanes past the last row, whose scores have no meaning.
                let empty = simd.eq(inv, simd.splat(T::ZERO));
                // A row that is NaN is so where it sees: its hidden scores must not meet the NaN of its sum.
                let has_non_finite = simd.bits_from_mask(simd.eq(inv, inv)) != u32::MAX >> (32 - S::LANES);
                for key in 0..keys {
                    let at = scores.as_mut_ptr().add(key * width + n * S::LANES);
                    let to = p.as_mut_ptr().add(key * ld + n * S::LANES);
                    let score = simd.load(at);
                    let mut w = simd.clear(empty, simd.mul(math::exp(simd, simd.sub(score, top)), inv));
                    if has_non_finite {
                        w = simd.clear(simd.eq(score, simd.splat(T::NEG_INFINITY)), w);
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

/// `ds[key][lane] = p * (dot(v[key], d_out[lane]) * dropout - delta)`, 0 for hidden pairs. With PAIRS, elements of v and d_out are pairs.
pub(super) struct ScoreGradients<'k, T: Real, const NR: usize, const PAIRS: bool> {
    pub(super) v: Rows<'k, T>,
    /// `[dim][lane]`
    pub(super) d_out: &'k [T],
    pub(super) p: &'k [T],
    pub(super) factors: Option<&'k [T]>,
    pub(super) delta: &'k [T],
    /// Visible pairs, where `p = 0` is not sufficient: a visible weight may be zero in a non-finite row.
    pub(super) visible: Option<&'k [u32]>,
    pub(super) ld: usize,
    /// Working memory where the lanes multiply tiles, as much as `p`.
    pub(super) products: &'k mut [T],
    pub(super) ds: &'k mut [T],
}

/// Run it in pairs where the lanes multiply pairs.
pub(super) fn score_gradients<S: Simd, const NR: usize>(simd: S, task: ScoreGradients<'_, S::T, NR, false>) {
    if S::PAIRS && !S::TILES {
        let ScoreGradients { v, d_out, p, factors, delta, visible, ld, products, ds } = task;
        simd.call(ScoreGradients::<_, NR, true> { v, d_out, p, factors, delta, visible, ld, products, ds });
    } else {
        simd.call(task);
    }
}

impl<T: Real, const NR: usize, const PAIRS: bool> Kernel<T> for ScoreGradients<'_, T, NR, PAIRS> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { v, d_out, p, factors, delta, visible, ld, products, ds } = self;
        let (width, depth) = (NR * S::LANES, v.cols());
        let rows = p.len() / width;
        assert!(v.has_unit_cols() && rows > 0 && v.len() >= rows);
        assert!(d_out.len() >= depth * width && p.len() >= rows * width && delta.len() >= width);
        assert!(ds.len() >= (rows - 1) * ld + width && factors.is_none_or(|f| f.len() >= rows * width));
        assert!(visible.is_none_or(|v| v.len() >= rows));
        // SAFETY: rows of v have `depth` contiguous elements; d_out has depth * width elements; p, factors, visible and ds have a row
        // for each key, and delta is one. All of it was just checked; that of the products is where they are made.
        unsafe {
            let mut deltas = [simd.splat(T::ZERO); NR];
            for (n, d) in deltas.iter_mut().enumerate() {
                *d = simd.load(delta.as_ptr().add(n * S::LANES));
            }
            let mut to = StoreGradients::<S, NR> {
                p: p.as_ptr(),
                factors: factors.map(<[T]>::as_ptr),
                visible: visible.map(<[u32]>::as_ptr),
                deltas,
                ld,
                ds: ds.as_mut_ptr(),
            };
            if S::TILES {
                let products = &mut products[..rows * width];
                TileDots { rows: v, count: rows, panel: d_out, width, scale: None, to: &mut *products }.run(simd);
                for (row, line) in products.chunks_exact(width).enumerate() {
                    let mut c = [simd.splat(T::ZERO); NR];
                    for (n, c) in c.iter_mut().enumerate() {
                        *c = simd.load(line.as_ptr().add(n * S::LANES));
                    }
                    to.finish(simd, row, c);
                }
            } else {
                let operands = GemmOperands { rows, depth, a: v.row(0), stride: v.row_stride(), b: d_out.as_ptr(), ld: width };
                product::<S, NR, false, true, PAIRS>(simd, operands, to);
            }
        }
    }
}

/// Gradients of the weights on their way to memory, as gradients of the scores.
struct StoreGradients<S: Simd, const NR: usize> {
    p: *const S::T,
    factors: Option<*const S::T>,
    visible: Option<*const u32>,
    deltas: [S::V; NR],
    ld: usize,
    ds: *mut S::T,
}

impl<S: Simd, const NR: usize> Epilogue<S, NR> for StoreGradients<S, NR> {
    #[inline(always)]
    unsafe fn finish(&mut self, simd: S, row: usize, c: [S::V; NR]) {
        for (n, c) in c.into_iter().enumerate() {
            // SAFETY: p, factors and ds have NR * LANES elements for every row, `visible` a word.
            unsafe {
                let at = (row * NR + n) * S::LANES;
                let p = simd.load(self.p.add(at));
                let d_p = match self.factors {
                    None => c,
                    Some(f) => simd.mul(c, simd.load(f.add(at))),
                };
                let ds = simd.mul(p, simd.sub(d_p, self.deltas[n]));
                // A hidden value may be anything.
                let hidden = match self.visible {
                    None => simd.eq(p, simd.splat(S::T::ZERO)),
                    Some(visible) => simd.mask_from_bits(!*visible.add(row), n),
                };
                simd.store(self.ds.add(row * self.ld + n * S::LANES), simd.clear(hidden, ds));
            }
        }
    }
}

/// `to[lane] += sum over keys of ds[key][lane]^2`, in f64: squares of small gradients are not zero.
pub(super) struct AddSquares<'k, T> {
    pub(super) ds: &'k [T],
    pub(super) ld: usize,
    pub(super) keys: usize,
    pub(super) to: &'k mut [f64],
}

impl<T: Real> Kernel<T> for AddSquares<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, _: S) {
        let Self { ds, ld, keys, to } = self;
        for line in ds.chunks(ld).take(keys) {
            for (to, &x) in to.iter_mut().zip(line) {
                let x = x.to_f64();
                *to += x * x;
            }
        }
    }
}

/// forward: `capped = cap * tanh(raw / cap)`, and so `ds *= 1 - (capped / cap)^2`
pub(super) struct ThroughSoftcap<'k, T> {
    pub(super) capped: &'k [T],
    pub(super) width: usize,
    pub(super) inverse_cap: T,
    pub(super) ld: usize,
    pub(super) ds: &'k mut [T],
}

impl<T: Real> Kernel<T> for ThroughSoftcap<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { capped, width, inverse_cap, ld, ds } = self;
        let (by, one) = (simd.splat(inverse_cap), simd.splat(T::ONE));
        for (line, ds) in capped.chunks_exact(width).zip(ds.chunks_mut(ld)) {
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
pub(super) enum Destination<'k, T> {
    /// What is there is added to.
    Add(&'k mut [T]),
    /// The first sums: they are written, in whole vectors.
    Write(&'k mut [MaybeUninit<T>]),
}

impl<'k, T> Destination<'k, T> {
    /// # Safety
    /// Sums that are added to are initialised.
    pub(super) unsafe fn new(sums: &'k mut [MaybeUninit<T>], add: bool) -> Self {
        // SAFETY: the caller's promise; both types have the same layout.
        if add { Self::Add(unsafe { &mut *(sums as *mut [_] as *mut [T]) }) } else { Self::Write(sums) }
    }
}

/// `sums[key] += sum over rows of numbers[key][row] * from[row]`, in whole vectors of `dims`.
pub(super) struct AddRows<'k, T> {
    pub(super) numbers: &'k [T],
    /// From one key's elements to the next's.
    pub(super) ld: usize,
    /// The rows to sum over.
    pub(super) depth: Range<usize>,
    pub(super) keys: usize,
    pub(super) from: &'k [T],
    pub(super) dims: usize,
    /// From one row to the next in `from` and in `sums`.
    pub(super) row_ld: usize,
    pub(super) sums: Destination<'k, T>,
}

impl<T: Real> Kernel<T> for AddRows<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { numbers, ld, depth, keys, from, dims, row_ld, sums } = self;
        assert!(keys > 0 && depth.end <= ld && numbers.len() >= (keys - 1) * ld + depth.end);
        assert!(dims.next_multiple_of(S::LANES) <= row_ld || dims == 0);
        let (sums, len, add) = match sums {
            Destination::Add(sums) => (sums.as_mut_ptr(), sums.len(), true),
            Destination::Write(sums) => (sums.as_mut_ptr().cast(), sums.len(), false),
        };
        assert!(from.len() >= depth.end * row_ld && len >= keys * row_ld);
        // SAFETY: `numbers` has `depth.end` numbers for each key, `from` a padded row for each of the depth, `sums` one for each
        // key; columns are taken in whole vectors up to `dims` padded, which is at most the leading dimension. All of it was just checked.
        unsafe {
            let a = numbers.as_ptr().add(depth.start);
            let b = from.as_ptr().add(depth.start * row_ld);
            let mut col = 0;
            let operands = |col: usize| GemmOperands { rows: keys, depth: depth.len(), a, stride: ld as isize, b: b.add(col), ld: row_ld };
            while col + S::LANES < dims {
                product::<S, 2, false, false, false>(simd, operands(col), AddToRows { to: sums.add(col), ld: row_ld, add });
                col += 2 * S::LANES;
            }
            if col < dims {
                product::<S, 1, false, false, false>(simd, operands(col), AddToRows { to: sums.add(col), ld: row_ld, add });
            }
        }
    }
}

/// Rows of a query tile as a factor of products of tiles: pairs of rows 16 apart, `to[step * TILE + i]` being those of rows `i` and `i +
/// 16` of 32; zeros past the last row.
pub(super) struct PairRows<'k, T> {
    pub(super) from: &'k [T],
    pub(super) rows: usize,
    /// From one row to the next in `from` and in `to`: whole vectors.
    pub(super) ld: usize,
    pub(super) to: &'k mut [T],
}

impl<T: Real> Kernel<T> for PairRows<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { from, rows, ld, to } = self;
        assert!(from.len() >= rows * ld && ld.is_multiple_of(S::LANES) && to.len() >= padded_pairs(rows) * ld);
        for (i, to) in to.chunks_exact_mut(ld.max(1)).take(padded_pairs(rows)).enumerate() {
            let row = i / TILE * TILE_DEPTH + i % TILE;
            for (n, to) in to.chunks_exact_mut(S::LANES).enumerate() {
                let mut elements = [simd.splat(T::ZERO); 2];
                // SAFETY: the rows that are read exist (just checked); the chunk is one whole vector.
                unsafe {
                    for (half, x) in elements.iter_mut().enumerate() {
                        if row + half * TILE < rows {
                            *x = simd.load(from.as_ptr().add((row + half * TILE) * ld + n * S::LANES));
                        }
                    }
                    // Elements are bf16, of which clipping takes nothing.
                    simd.store(to.as_mut_ptr(), simd.split_pairs(elements[0], elements[1])[0]);
                }
            }
        }
    }
}

/// Keys of [`AddTileRows`] at a time.
pub(super) const ROW_KEYS: usize = 2 * TILE;

/// Working memory of [`AddTileRows`] for query tiles of `rows` rows and sums of `ld` dimensions.
pub(super) fn tile_rows_len(rows: usize, ld: usize) -> usize {
    ROW_KEYS * (2 * padded_pairs(rows) + ld)
}

/// [`AddRows`] by tiles, for at most [`ROW_KEYS`] keys: `sums[key] += factor * sum over rows of numbers[key][row] * from[row]`.
pub(super) struct AddTileRows<'k, T> {
    /// From one key's elements to the next's: whole vectors.
    pub(super) numbers: &'k [T],
    pub(super) ld: usize,
    /// The rows to sum over; their 32s are taken whole.
    pub(super) depth: Range<usize>,
    pub(super) keys: usize,
    /// The result of [`PairRows`].
    pub(super) from: &'k [T],
    pub(super) factor: T,
    /// From one row to the next in `from` and in `sums`: whole vectors.
    pub(super) row_ld: usize,
    pub(super) memory: &'k mut [T],
    pub(super) sums: Destination<'k, T>,
}

impl<T: Real> Kernel<T> for AddTileRows<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { numbers, ld, depth, keys, from, factor, row_ld, memory, sums } = self;
        let first_step = depth.start / TILE_DEPTH;
        let steps = depth.end.div_ceil(TILE_DEPTH) - first_step;
        let pairs = steps * TILE;
        assert!(S::LANES == TILE && keys > 0 && keys <= ROW_KEYS && ld.is_multiple_of(TILE) && row_ld.is_multiple_of(TILE));
        assert!(depth.end <= ld && numbers.len() >= (keys - 1) * ld + ld.min((first_step + steps) * TILE_DEPTH));
        let (sums, len, add) = match sums {
            Destination::Add(sums) => (sums.as_mut_ptr(), sums.len(), true),
            Destination::Write(sums) => (sums.as_mut_ptr().cast(), sums.len(), false),
        };
        assert!(from.len() >= (first_step * TILE + pairs) * row_ld && len >= keys * row_ld);
        let (a, c) = memory.split_at_mut(ROW_KEYS * 2 * pairs);
        assert!(c.len() >= ROW_KEYS * row_ld);
        // SAFETY: `numbers` has `ld` elements for each key, as far as they are read; `a` has 2 * pairs elements for each of ROW_KEYS keys,
        // `c` a row; `from` has a row for each pair, `sums` one for each key. All of it was just checked.
        unsafe {
            for key in 0..keys {
                for step in 0..steps {
                    let lane = (first_step + step) * TILE_DEPTH;
                    let numbers = numbers.as_ptr().add(key * ld + lane);
                    let high = if lane + TILE < ld { simd.load(numbers.add(TILE)) } else { simd.splat(T::ZERO) };
                    let [clipped, rest] = simd.split_pairs(simd.load(numbers), high);
                    simd.store(a.as_mut_ptr().add(key * 2 * pairs + step * TILE), clipped);
                    simd.store(a.as_mut_ptr().add((key * 2 + 1) * pairs + step * TILE), rest);
                }
            }
            simd.multiply_tiles(TileProduct {
                rows: keys.max(TILE),
                columns: row_ld,
                steps,
                parts: Parts::A,
                a: a.as_ptr(),
                a_stride: (2 * pairs * size_of::<T>()) as isize,
                b: from.as_ptr().add(first_step * TILE * row_ld),
                b_stride: row_ld,
                c: c.as_mut_ptr(),
                c_stride: row_ld,
            });
            let by = simd.splat(factor);
            for at in (0..keys * row_ld).step_by(S::LANES) {
                let (c, to) = (simd.load(c.as_ptr().add(at)), sums.add(at));
                simd.store(to, if add { simd.mul_add(c, by, simd.load(to)) } else { simd.mul(c, by) });
            }
        }
    }
}

/// A tile's sum on its way to the accumulator.
struct AddToRows<T> {
    to: *mut T,
    ld: usize,
    /// Else what is there has no meaning yet.
    add: bool,
}

impl<S: Simd, const NR: usize> Epilogue<S, NR> for AddToRows<S::T> {
    #[inline(always)]
    unsafe fn finish(&mut self, simd: S, row: usize, c: [S::V; NR]) {
        for (n, c) in c.into_iter().enumerate() {
            // SAFETY: `to` has NR * LANES places for every row, and values in them if they are added to.
            unsafe {
                let at = self.to.add(row * self.ld + n * S::LANES);
                simd.store(at, if self.add { simd.add(simd.load(at), c) } else { c });
            }
        }
    }
}

/// The sum of the squares of each row, in eight chains, which the CPU works on at once.
pub(super) struct RowSquares<'k, E> {
    /// Side by side.
    pub(super) rows: &'k [E],
    pub(super) dims: usize,
    pub(super) to: &'k mut [f64],
}

impl<E: Storage> Kernel<E::Real> for RowSquares<'_, E> {
    #[inline(always)]
    fn run<S: Simd<T = E::Real>>(self, _: S) {
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
