//! The products of lanes that multiply [tiles](Simd::TILES): rows of bf16 are read in place, weights are split into two parts of bf16.
//!
//! ```text
//! scores[key][lane] = K . q             a: rows of K in place             b: q in pairs, [dim / 2][lane]
//! acc[dim][lane]   += V^T . p           a: V transposed, [dim][key]       b: p in pairs of keys, two parts
//! sums[key][dim]   += p . d_out         a: p, two parts                   b: d_out in pairs of rows, [row / 2][dim]
//! ```
//!
//! Keys stand at their places in the whole key tile, and the rows of a query tile at theirs, so that bits do not depend on which of them
//! take part.

use super::tiling::{KV_TILE, MAX_PANEL};
use regard_simd::strided::Rows;
use regard_simd::tiles::{Parts, TILE, TILE_DEPTH, TileProduct, padded_pairs};
use regard_simd::{Kernel, Real, Simd, Storage};
use std::ops::Range;

/// Pairs of keys of a key tile.
pub(crate) const KEY_PAIRS: usize = KV_TILE / 2;

const _: () = assert!(KV_TILE.is_multiple_of(TILE_DEPTH) && MAX_PANEL == TILE_DEPTH);

/// Elements of a lane where a row of `dims` elements is packed as a factor of a product (see [`super::scores::pack_factor`]).
pub(crate) fn factor_depth<S: Simd>(dims: usize) -> usize {
    match () {
        () if S::TILES => padded_pairs(dims),
        () if S::PAIRS => dims.div_ceil(2),
        () => dims,
    }
}

/// `to[key][lane] = dot(rows[key], panel[lane]) * scale` for the first `count` rows, of which there are [`TILE`] at least.
pub(crate) struct TileDots<'k, T: Real> {
    /// In pairs, filled up to whole tiles.
    pub(crate) rows: Rows<'k, T>,
    pub(crate) count: usize,
    /// `[dim / 2][lane]`
    pub(crate) panel: &'k [T],
    pub(crate) width: usize,
    /// `None`: 1.
    pub(crate) scale: Option<T>,
    pub(crate) to: &'k mut [T],
}

impl<T: Real> Kernel<T> for TileDots<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { rows, count, panel, width, scale, to } = self;
        let pairs = rows.cols();
        assert!(rows.has_unit_cols() && pairs.is_multiple_of(TILE) && count > 0 && rows.len() >= count.max(TILE));
        assert!(width.is_multiple_of(TILE) && width <= MAX_PANEL && panel.len() >= pairs * width && to.len() >= count * width);
        let product = TileProduct {
            rows: count.max(TILE),
            columns: width,
            steps: pairs / TILE,
            parts: Parts::None,
            a: rows.row(0),
            a_stride: rows.row_stride() * size_of::<T>() as isize,
            b: panel.as_ptr(),
            b_stride: width,
            c: to.as_mut_ptr(),
            c_stride: width,
        };
        // SAFETY: there are as many rows of `pairs` contiguous pairs, the panel has `pairs` rows of `width`, and `to` (or the memory of a
        // tile) as many rows of `width`. All of it was just checked.
        unsafe {
            if count >= TILE {
                simd.multiply_tiles(product);
            } else {
                let mut few = [T::ZERO; TILE * MAX_PANEL];
                simd.multiply_tiles(TileProduct { c: few.as_mut_ptr(), ..product });
                to[..count * width].copy_from_slice(&few[..count * width]);
            }
        }
        let Some(scale) = scale else { return };
        let by = simd.splat(scale);
        for to in to[..count * width].chunks_exact_mut(S::LANES) {
            // SAFETY: the chunk is one whole vector.
            unsafe { simd.store(to.as_mut_ptr(), simd.mul(simd.load(to.as_ptr()), by)) };
        }
    }
}

/// Rows of a key tile in pairs of keys: `to[pair * cols + col]`, the first row at place `first`; zeros where there is no row.
struct PairKeys<'k, X: Storage> {
    rows: Rows<'k, X>,
    first: usize,
    to: &'k mut [X::Real],
}

impl<X: Storage> Kernel<X::Real> for PairKeys<'_, X> {
    #[inline(always)]
    fn run<S: Simd<T = X::Real>>(self, simd: S) {
        let Self { rows, first, to } = self;
        let cols = rows.cols();
        assert!(to.len() >= KEY_PAIRS * cols && first + rows.len() <= KV_TILE);
        let zero = simd.splat(S::T::ZERO);
        for (pair, to) in to.chunks_exact_mut(cols.max(1)).take(KEY_PAIRS).enumerate() {
            let places = [2 * pair, 2 * pair + 1];
            let exists = places.map(|place| place >= first && place < first + rows.len());
            let mut col = 0;
            if rows.has_unit_cols() {
                while col + S::LANES <= cols {
                    let mut keys = [zero; 2];
                    for (i, key) in keys.iter_mut().enumerate() {
                        if exists[i] {
                            // SAFETY: LANES elements from `col` on are inside the row.
                            *key = unsafe { X::load(simd, rows.row(places[i] - first).add(col)) };
                        }
                    }
                    // SAFETY: as above, of `to`. Elements are bf16, of which clipping takes nothing.
                    unsafe { simd.store(to.as_mut_ptr().add(col), simd.split_pairs(keys[0], keys[1])[0]) };
                    col += S::LANES;
                }
            }
            for (to, col) in to[col..].iter_mut().zip(col..) {
                let element = |i: usize| if exists[i] { rows.get(places[i] - first, col) } else { S::T::ZERO };
                *to = simd.to_array(simd.split_pairs(simd.splat(element(0)), simd.splat(element(1)))[0])[0];
            }
        }
    }
}

/// Elements of a key tile that is transposed, and of the memory to do it.
pub(crate) fn transposed_len(cols: usize) -> [usize; 2] {
    [KEY_PAIRS * cols.next_multiple_of(TILE), KEY_PAIRS * cols]
}

/// A key tile transposed, `to[col * KEY_PAIRS + pair]`; the first row is at place `first` of the tile. Rows past the last column have no
/// meaning.
pub(crate) fn transpose_keys<S: Simd, X: Storage<Real = S::T>>(
    simd: S,
    rows: Rows<'_, X>,
    first: usize,
    to: &mut [S::T],
    memory: &mut [S::T],
) {
    let cols = rows.cols();
    simd.call(PairKeys { rows, first, to: memory });
    Rows::from_slice(memory, KEY_PAIRS, cols).transpose_into(simd, to, KEY_PAIRS, 0);
}

/// Working memory for [`AddTileProducts`] of values of `dims` dimensions: the parts of the weights, and a product.
pub(crate) fn product_len(dims: usize) -> usize {
    2 * KEY_PAIRS * MAX_PANEL + dims.next_multiple_of(TILE) * MAX_PANEL
}

/// `acc[dim][lane] = acc[dim][lane] * alpha[lane] + sum over keys of values[dim][key] * weights[key * ld + lane]`, for a panel of NR
/// vectors.
pub(crate) struct AddTileProducts<'k, T, const NR: usize> {
    /// Transposed, of the whole key tile.
    pub(crate) values: &'k [T],
    pub(crate) dims: usize,
    /// Places in the key tile of the keys that have weights.
    pub(crate) keys: Range<usize>,
    pub(crate) weights: &'k [T],
    pub(crate) ld: usize,
    pub(crate) alpha: &'k [T],
    pub(crate) memory: &'k mut [T],
    pub(crate) acc: &'k mut [T],
}

impl<T: Real, const NR: usize> Kernel<T> for AddTileProducts<'_, T, NR> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { values, dims, keys, weights, ld, alpha, memory, acc } = self;
        let width = NR * S::LANES;
        if dims == 0 {
            return;
        }
        let rows = dims.next_multiple_of(TILE);
        let (first_step, steps) = (keys.start / TILE_DEPTH, keys.end.div_ceil(TILE_DEPTH) - keys.start / TILE_DEPTH);
        assert!(!keys.is_empty() && keys.end <= KV_TILE && values.len() >= rows * KEY_PAIRS && alpha.len() >= width);
        assert!(weights.len() >= (keys.len() - 1) * ld + width && acc.len() >= dims * width && width.is_multiple_of(TILE));
        let (parts, c) = memory.split_at_mut(2 * KEY_PAIRS * width);
        assert!(c.len() >= rows * width);
        let zero = simd.splat(T::ZERO);
        for pair in 0..steps * TILE {
            let first = first_step * TILE_DEPTH + 2 * pair;
            let exists = [keys.contains(&first), keys.contains(&(first + 1))];
            for lane in (0..width).step_by(S::LANES) {
                let mut numbers = [zero; 2];
                // SAFETY: there is a row of weights for every key. The parts are `steps * TILE` rows of `width` each, of at most KEY_PAIRS.
                unsafe {
                    for (i, x) in numbers.iter_mut().enumerate() {
                        if exists[i] {
                            *x = simd.load(weights.as_ptr().add((first + i - keys.start) * ld + lane));
                        }
                    }
                    let [clipped, rest] = simd.split_pairs(numbers[0], numbers[1]);
                    simd.store(parts.as_mut_ptr().add(pair * width + lane), clipped);
                    simd.store(parts.as_mut_ptr().add((steps * TILE + pair) * width + lane), rest);
                }
            }
        }
        // SAFETY: `values` has `rows` rows of KEY_PAIRS pairs, those of the steps among them; `parts` has two of `steps * TILE` rows of
        // `width`, `c` has `rows` of them, `acc` has `dims` and `alpha` one. All of it was just checked or written.
        unsafe {
            simd.multiply_tiles(TileProduct {
                rows,
                columns: width,
                steps,
                parts: Parts::B,
                a: values.as_ptr().add(first_step * TILE),
                a_stride: (KEY_PAIRS * size_of::<T>()) as isize,
                b: parts.as_ptr(),
                b_stride: width,
                c: c.as_mut_ptr(),
                c_stride: width,
            });
            for lane in (0..width).step_by(S::LANES) {
                let by = simd.load(alpha.as_ptr().add(lane));
                for at in (lane..dims * width).step_by(width) {
                    let to = acc.as_mut_ptr().add(at);
                    simd.store(to, simd.mul_add(simd.load(to), by, simd.load(c.as_ptr().add(at))));
                }
            }
        }
    }
}
