//! The lanes: one trait for all CPU levels.
//!
//! Every kernel is written once, generic over [`Simd`]. A value of a lanes type can only be had from `detect`, so holding one proves that
//! the CPU has the instructions, and the arithmetic on it is safe to call. [`crate::Real::dispatch`] chooses the level, once per task;
//! [`Simd::call`] enters a [`Kernel`] compiled for it: whatever is `#[inline(always)]` below is part of the kernel. Closures are not:
//! use a trait or a macro there.

use crate::float::Real;
use crate::sealed::Sealed;
use crate::tiles::TileProduct;

/// Numbers in the widest vector.
pub const MAX_LANES: usize = 16;

/// A vector of the narrow lanes.
pub type Narrow<S> = <<S as Simd>::Narrow as Simd>::V;

/// Vectors of `LANES` elements and what can be done with them.
///
/// Sealed. Each method is the lane-wise operation of its name. `mul_add(a, b, c)` is `a * b + c`, rounded once on every level
/// that has the instruction (all but [`crate::Level::Portable`] on a CPU target without FMA).
#[expect(missing_docs, reason = "each method is the operation of its name")]
pub trait Simd: Sealed + Copy + Send + Sync + 'static {
    /// The number in a lane.
    type T: Real;
    /// A vector.
    type V: Copy;
    /// One truth value per lane.
    type M: Copy;
    /// Lanes of at most 256 bits that can be transposed in registers.
    type Narrow: Transpose<T = Self::T>;
    /// Numbers per vector.
    const LANES: usize;
    /// Rows of the register tile (see [`crate::microkernel`]).
    const TILE_ROWS: usize;
    /// There is [`Simd::dot_pairs`].
    const PAIRS: bool = false;
    /// There are [`Simd::multiply_tiles`] and [`Simd::split_pairs`]. Such lanes have [`Simd::PAIRS`] too.
    const TILES: bool = false;

    /// The widest vector has room for `LANES` elements, and whole vectors of them fill it.
    const FITS: () =
        assert!(Self::LANES <= MAX_LANES && MAX_LANES.is_multiple_of(Self::LANES) && Self::LANES.is_multiple_of(Self::Narrow::LANES));

    fn narrow(self) -> Self::Narrow;
    /// The elements of a vector, and zeros.
    #[inline(always)]
    fn to_array(self, v: Self::V) -> [Self::T; MAX_LANES] {
        let () = Self::FITS;
        let mut array = [Self::T::ZERO; MAX_LANES];
        // SAFETY: the array has room for a vector, as FITS asserts when this is compiled.
        unsafe { self.store(array.as_mut_ptr(), v) };
        array
    }
    /// The first elements of an array.
    #[inline(always)]
    fn vector(self, array: &[Self::T; MAX_LANES]) -> Self::V {
        let () = Self::FITS;
        // SAFETY: the array holds a vector, as FITS asserts when this is compiled.
        unsafe { self.load(array.as_ptr()) }
    }
    /// Run `kernel` in a function of its own that is compiled for this level.
    ///
    /// Kernels are entered by this, each once per panel and tile: a call costs nothing there, and each kernel is compiled
    /// once instead of into every place that uses it.
    fn call<K: Kernel<Self::T>>(self, kernel: K);
    fn splat(self, x: Self::T) -> Self::V;
    /// # Safety
    /// `p` must be valid for reading `LANES` elements; no alignment is required.
    unsafe fn load(self, p: *const Self::T) -> Self::V;
    /// # Safety
    /// `p` must be valid for writing `LANES` elements; no alignment is required.
    unsafe fn store(self, p: *mut Self::T, v: Self::V);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger of the two; either may come back where one is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn abs(self, a: Self::V) -> Self::V;
    /// `a < b`, false where either is NaN.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    fn eq(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a` where the mask is true, else `b`.
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// 0 where the mask is true, else `a`.
    fn clear(self, m: Self::M, a: Self::V) -> Self::V;
    /// Lane `i` is true iff bit `n * LANES + i` is set.
    fn mask_from_bits(self, bits: u32, n: usize) -> Self::M;
    /// Bit `i` is set iff lane `i` is true.
    fn bits_from_mask(self, m: Self::M) -> u32;
    /// `2^n`, where `t = n + Coefficients::ROUNDING` holds the integer n in its low bits, and the result is a normal number.
    fn power_of_two(self, t: Self::V) -> Self::V;

    /// `(c + a.1 * b.1) + a.0 * b.0` where each lane of `a` and `b` is a pair of bf16, element 0 in the low half. Each step is rounded
    /// once; subnormal elements and results are taken as zero. Only with [`Simd::PAIRS`].
    fn dot_pairs(self, _a: Self::V, _b: Self::V, _c: Self::V) -> Self::V {
        unreachable!("PAIRS was checked")
    }
    /// [`Simd::dot_pairs`] of narrow vectors, with the same bits. Only with [`Simd::PAIRS`].
    fn dot_narrow_pairs(self, _a: Narrow<Self>, _b: Narrow<Self>, _c: Narrow<Self>) -> Narrow<Self> {
        unreachable!("PAIRS was checked")
    }
    /// Elements 0 and elements 1 of pairs of bf16, widened. Only with [`Simd::PAIRS`].
    fn unpair(self, _a: Self::V) -> [Self::V; 2] {
        unreachable!("PAIRS was checked")
    }

    /// The product of bf16 matrices that the task describes, in tiles. Only with [`Simd::TILES`].
    ///
    /// # Safety
    /// As [`TileProduct`] says.
    unsafe fn multiply_tiles(self, _task: TileProduct<Self::T>) {
        unreachable!("TILES was checked")
    }
    /// Two vectors as pairs of bf16, `low` in the low halves: their elements clipped to bf16, and what is left of them, rounded to bf16.
    /// The rest of an element that is not finite is zero. Only with [`Simd::TILES`].
    fn split_pairs(self, _low: Self::V, _high: Self::V) -> [Self::V; 2] {
        unreachable!("TILES was checked")
    }

    /// # Safety
    /// `p` must be valid for reading `LANES` elements.
    unsafe fn load_f16(self, p: *const half::f16) -> Self::V {
        // SAFETY: the caller guarantees LANES elements.
        unsafe { widen(self, p) }
    }
    /// # Safety
    /// `p` must be valid for reading `LANES` elements.
    unsafe fn load_bf16(self, p: *const half::bf16) -> Self::V {
        // SAFETY: the caller guarantees LANES elements.
        unsafe { widen(self, p) }
    }
    /// The same vector, opaque to the optimizer. Otherwise a load, select and store become a masked store, which takes an AMD core a
    /// dozen cycles with AVX2.
    fn hide_from_optimizer(self, a: Self::V) -> Self::V {
        a
    }
    /// Prefetch the cache line at `p`, which need not be valid.
    fn prefetch<E>(self, p: *const E) {
        let _ = p;
    }
}

/// Number by number.
///
/// # Safety
/// `p` must be valid for reading `LANES` elements.
unsafe fn widen<S: Simd, E: Into<f64>>(simd: S, p: *const E) -> S::V {
    let mut x = [S::T::ZERO; MAX_LANES];
    for (i, x) in x.iter_mut().enumerate().take(S::LANES) {
        // SAFETY: i < LANES, and the caller guarantees LANES elements.
        *x = S::T::from_f64(unsafe { p.add(i).read() }.into());
    }
    simd.vector(&x)
}

/// Methods whose body is one expression.
macro_rules! methods {
    ($(fn $name:ident($self:ident, $($arg:ident: $ty:ty),*) -> $ret:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name($self, $($arg: $ty),*) -> $ret {
            $body
        }
    )*};
}
pub(crate) use methods;

/// Lanes that transpose a square of `LANES` vectors in registers.
pub trait Transpose: Simd {
    /// `LANES` vectors.
    type Square: Copy + AsRef<[Self::V]> + AsMut<[Self::V]>;
    /// All zero.
    fn zero_square(self) -> Self::Square;
    /// Rows become columns.
    fn transpose(self, rows: Self::Square) -> Self::Square;
    /// Load a vector from each of `LANES` lines, a stride apart, and transpose them: vector x holds element x of every line.
    ///
    /// # Safety
    /// Each line must be valid for reading `LANES` elements.
    #[inline(always)]
    unsafe fn load_transposed(self, line: *const Self::T, stride: isize) -> Self::Square {
        let mut square = self.zero_square();
        for (x, row) in square.as_mut().iter_mut().enumerate() {
            // SAFETY: the caller guarantees the lines.
            *row = unsafe { self.load(line.offset(x as isize * stride)) };
        }
        self.transpose(square)
    }
}

/// Vector code that is generic over the level. `run` and all that it calls are `#[inline(always)]`, or they are not compiled for the level.
pub trait Kernel<T: Real> {
    /// Run it.
    fn run<S: Simd<T = T>>(self, simd: S);
}

/// What calls kernels, and has no vector code of its own.
pub trait Driver<T: Real> {
    /// What it returns.
    type Output;
    /// Run it.
    fn run<S: Simd<T = T>>(self, simd: S) -> Self::Output;
}

#[cfg(test)]
#[path = "../tests/unit/simd.rs"]
mod tests;
