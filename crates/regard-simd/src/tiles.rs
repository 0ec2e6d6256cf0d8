//! Products of bf16 matrices in tiles: 16 rows of 16 columns, 32 elements of depth at a time.
//!
//! ```text
//! c[row][column] = sum over parts and depth of a[row][depth] * b[depth][column]
//! ```
//!
//! Elements of `a` and `b` are bf16 in pairs of neighbouring depths, a pair in the place of an f32: rows of `a` are read where they lie,
//! and `b` is `[depth / 2][column]`. An f32 factor has two parts ([`crate::Simd::split_pairs`]): the other factor is gone through twice.
//!
//! An element of `c` begins with zero. For each 32 elements of depth, the 16 even ones are one chain of multiply-adds and the 16 odd ones
//! another; the two are added, and then added to the element. Each step is rounded once; subnormal elements, and results, are zero. So the
//! bits depend on where in the depth an element stands, and not on zeros beside it, nor on the other rows and columns.

/// Rows and columns of a tile.
pub const TILE: usize = 16;

/// Elements of depth of a tile.
pub const TILE_DEPTH: usize = 2 * TILE;

/// Pairs of a row of `a` where `depth` is filled up to whole tiles.
pub const fn padded_pairs(depth: usize) -> usize {
    depth.next_multiple_of(TILE_DEPTH) / 2
}

/// Which factor has several parts, one after the other: the first of all steps, then the second of all steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// One part each.
    None,
    /// Two parts of `a`: a row of the second follows `steps * TILE` pairs after that of the first.
    A,
    /// Two parts of `b`: the second follows `steps * TILE` rows after the first.
    B,
}

/// Operands of a product. Strides are in pairs.
///
/// `a` must be valid for reading `rows` rows (at least [`TILE`]) of `steps * TILE` pairs, `b` for `steps * TILE` rows of
/// `columns` pairs, each as often as it has [`Parts`]; `c` for writing `rows` rows of `columns` elements.
#[derive(Debug, Clone, Copy)]
pub struct TileProduct<T> {
    /// Rows of `a` and `c`: [`TILE`] or more.
    pub rows: usize,
    /// Columns of `b` and `c`: a multiple of [`TILE`].
    pub columns: usize,
    /// The depth of each part, in tiles.
    pub steps: usize,
    /// Which factor has two parts.
    pub parts: Parts,
    /// The first factor.
    pub a: *const T,
    /// From one row of `a` to the next, in bytes.
    pub a_stride: isize,
    /// The second factor.
    pub b: *const T,
    /// From one row of `b` to the next.
    pub b_stride: usize,
    /// The product.
    pub c: *mut T,
    /// From one row of `c` to the next.
    pub c_stride: usize,
}

#[cfg(test)]
#[path = "../tests/unit/tiles.rs"]
mod tests;
