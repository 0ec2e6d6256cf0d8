//! The lanes: one trait, three CPU levels, one dispatch.
//!
//! Every kernel of this crate is written once, generic over [`Lanes`]. A value of a lanes type can only be had from
//! `detect`, so holding one proves that the CPU has the instructions, and the arithmetic on it is safe to call.
//! [`Real::dispatch`] chooses the level, once per task. [`Lanes::call`] enters a kernel ([`Operation`]) compiled for it:
//! whatever is `#[inline(always)]` below is part of the kernel. Closures are not: use a trait or a macro there.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub mod math;
mod portable;

use crate::calls::Products;
use crate::element::Element;
use crate::error::{Error, Result};
use std::sync::OnceLock;

/// A level of SIMD instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Plain Rust, whatever the compiler makes of it for the target's baseline.
    Portable,
    /// AVX2 with FMA and F16C, 256 bits.
    Avx2,
    /// AVX-512 F, 512 bits.
    Avx512,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The name as it is written in `REGARD_SIMD`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether this CPU can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::F32::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::F32::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The levels of this CPU, lowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|l| l.is_available())
    }

    /// The level that calls use unless told otherwise: the value of `REGARD_SIMD`, else the best of this CPU.
    ///
    /// # Errors
    /// [`Error::Level`] when `REGARD_SIMD` names a level that is not there.
    pub fn preferred() -> Result<Self> {
        static PREFERRED: OnceLock<Result<Level>> = OnceLock::new();
        PREFERRED
            .get_or_init(|| match std::env::var("REGARD_SIMD") {
                Ok(name) if !name.is_empty() => Self::parse(&name)?.checked(),
                _ => Ok(Self::available().last().unwrap_or(Self::Portable)),
            })
            .clone()
    }

    /// The level of that name.
    ///
    /// # Errors
    /// [`Error::Level`] when there is none.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|l| l.name() == name).ok_or_else(|| Self::missing(name))
    }

    /// Itself, if this CPU has it.
    pub(crate) fn checked(self) -> Result<Self> {
        if self.is_available() { Ok(self) } else { Err(Self::missing(self.name())) }
    }

    fn missing(asked: &str) -> Error {
        let available: Vec<_> = Self::available().map(Self::name).collect();
        Error::Level { asked: asked.to_owned(), available: available.join(", ") }
    }
}

/// Vectors of `LANES` numbers and what can be done with them.
///
/// Each method is the lane-wise operation of its name. `mul_add(a, b, c)` is `a * b + c`, rounded once on every level
/// that has the instruction (all but [`Level::Portable`] on a CPU target without FMA).
pub trait Lanes: Copy + Send + Sync + 'static {
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
    /// Rows of the register tile (see [`crate::product`]).
    const TILE_ROWS: usize;

    fn narrow(self) -> Self::Narrow;
    /// Run `operation` in a function of its own that is compiled for this level.
    ///
    /// Kernels are entered by this, each once per panel and tile: a call costs nothing there, and each kernel is compiled
    /// once instead of into every place that uses it.
    fn call<O: Operation<Self::T>>(self, operation: O) -> O::Output;
    fn splat(self, x: Self::T) -> Self::V;
    /// # Safety
    /// `p` must be valid for reading `LANES` numbers; no alignment is asked for.
    unsafe fn load(self, p: *const Self::T) -> Self::V;
    /// # Safety
    /// `p` must be valid for writing `LANES` numbers; no alignment is asked for.
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
    /// `p * 2^n`, where `t = n + Real::ROUNDING` holds the integer n in its low bits, and the result is a normal number.
    fn scale_by_power(self, p: Self::V, t: Self::V) -> Self::V;

    /// # Safety
    /// `p` must be valid for reading `LANES` numbers.
    unsafe fn load_f16(self, p: *const half::f16) -> Self::V {
        let mut x = [Self::T::ZERO; 16];
        for (i, x) in x.iter_mut().enumerate().take(Self::LANES) {
            // SAFETY: i < LANES, and the caller vouches for LANES numbers.
            *x = Self::T::from_f64(f64::from(unsafe { p.add(i).read() }));
        }
        // SAFETY: x holds 16 >= LANES numbers.
        unsafe { self.load(x.as_ptr()) }
    }
    /// # Safety
    /// `p` must be valid for reading `LANES` numbers.
    unsafe fn load_bf16(self, p: *const half::bf16) -> Self::V {
        let mut x = [Self::T::ZERO; 16];
        for (i, x) in x.iter_mut().enumerate().take(Self::LANES) {
            // SAFETY: i < LANES, and the caller vouches for LANES numbers.
            *x = Self::T::from_f64(f64::from(unsafe { p.add(i).read() }));
        }
        // SAFETY: x holds 16 >= LANES numbers.
        unsafe { self.load(x.as_ptr()) }
    }
    /// The same vector, of which the compiler knows nothing. A number loaded and stored again where a mask says so becomes a
    /// masked store otherwise, which takes an AMD core a dozen cycles with AVX2.
    fn opaque(self, a: Self::V) -> Self::V {
        a
    }
    /// Ask for the cache line at `p`, which need not be valid.
    fn prefetch<E>(self, p: *const E) {
        let _ = p;
    }
}

/// Lanes that can turn a square of `LANES` vectors over its diagonal.
pub trait Transpose: Lanes {
    /// `LANES` vectors.
    type Square: Copy + AsRef<[Self::V]> + AsMut<[Self::V]>;
    /// All zero.
    fn zero_square(self) -> Self::Square;
    /// Rows become columns.
    fn transpose(self, rows: Self::Square) -> Self::Square;
    /// Load a vector from each of `LANES` lines, a stride apart, and turn them over: vector x holds number x of every line.
    ///
    /// # Safety
    /// Each line must be valid for reading `LANES` numbers.
    #[inline(always)]
    unsafe fn load_transposed(self, line: *const Self::T, stride: isize) -> Self::Square {
        let mut square = self.zero_square();
        for (x, row) in square.as_mut().iter_mut().enumerate() {
            // SAFETY: the caller vouches for the lines.
            *row = unsafe { self.load(line.offset(x as isize * stride)) };
        }
        self.transpose(square)
    }
}

/// A computation that is generic over the level.
pub trait Operation<T: Real> {
    /// What it returns.
    type Output;
    /// Run it. Kernels are `#[inline(always)]`, or they are not compiled for the level.
    fn run<S: Lanes<T = T>>(self, simd: S) -> Self::Output;
}

/// A computation of one kernel: what [`Real::dispatch`] is given where there is nothing to do around it.
pub struct Kernel<O>(pub O);

impl<T: Real, O: Operation<T>> Operation<T> for Kernel<O> {
    type Output = O::Output;
    fn run<S: Lanes<T = T>>(self, simd: S) -> O::Output {
        simd.call(self.0)
    }
}

/// The arithmetic types: f32 and f64.
pub trait Real:
    Element<Real = Self>
    + Products
    + PartialOrd
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;
    /// Minus infinity, the score of a hidden key.
    const HIDDEN: Self;
    /// 1.5 * 2^(mantissa bits): adding it rounds to an integer that then stands in the low bits.
    const ROUNDING: Self;
    /// Below it, [`math::exp`] gives zero: a little above the logarithm of the smallest normal number.
    const MIN_EXP: Self;
    /// log2(e)
    const LOG2_E: Self;
    /// A number below all sensible scores, finite.
    const VERY_NEGATIVE: Self;
    /// tanh is 1 from here on.
    const TANH_LIMIT: Self;
    /// Coefficients of (2^f - 1) / f for |f| <= 1/2, highest power first; an even number.
    const EXP2: &'static [Self];

    /// Rounded from f64.
    fn from_f64(x: f64) -> Self;
    /// Exactly.
    fn to_f64(self) -> f64;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Not NaN, not infinite.
    fn is_finite(self) -> bool;
    /// The numbers of a dense bias, if they are of this type.
    fn dense_bias<'b>(bias: &'b crate::bias::Bias<'_>) -> Option<ndarray::ArrayView4<'b, Self>>;
    /// Run `operation` on the code of `level`.
    ///
    /// # Panics
    /// If this CPU does not have the level; it was checked when the call was planned.
    fn dispatch<O: Operation<Self>>(level: Level, operation: O) -> O::Output;
}

macro_rules! dispatch {
    ($level:expr, $operation:expr, $lanes:ident) => {
        match $level {
            Level::Portable => $operation.run(portable::$lanes),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => $operation.run(avx2::$lanes::detect().expect("the level was checked")),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => $operation.run(avx512::$lanes::detect().expect("the level was checked")),
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("the level was checked"),
        }
    };
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const HIDDEN: Self = Self::NEG_INFINITY;
    const ROUNDING: Self = 12_582_912.0;
    const MIN_EXP: Self = -86.6;
    const LOG2_E: Self = std::f32::consts::LOG2_E;
    const VERY_NEGATIVE: Self = -1e30;
    const TANH_LIMIT: Self = 10.0;
    // Interpolated at the Chebyshev nodes of [-1/2, 1/2]; relative error of 2^f: 5.1e-9.
    const EXP2: &'static [Self] = &[1.545_316_3e-4, 1.339_086_3e-3, 9.618_083e-3, 5.550_357e-2, 0.240_226_5, std::f32::consts::LN_2];

    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x as Self
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn ln(self) -> Self {
        self.ln()
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        self.is_finite()
    }
    fn dense_bias<'b>(bias: &'b crate::bias::Bias<'_>) -> Option<ndarray::ArrayView4<'b, Self>> {
        if let crate::bias::Bias::Dense(numbers) = bias { Some(numbers.view()) } else { None }
    }
    #[inline]
    fn dispatch<O: Operation<Self>>(level: Level, operation: O) -> O::Output {
        dispatch!(level, operation, F32)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const HIDDEN: Self = Self::NEG_INFINITY;
    const ROUNDING: Self = 6_755_399_441_055_744.0;
    const MIN_EXP: Self = -707.7;
    const LOG2_E: Self = std::f64::consts::LOG2_E;
    const VERY_NEGATIVE: Self = -1e200;
    const TANH_LIMIT: Self = 20.0;
    // As above; relative error of 2^f: 1.1e-19.
    const EXP2: &'static [Self] = &[
        2.572_932_417_736_230_4e-11,
        4.455_817_908_336_064_5e-10,
        7.054_897_304_155_499_3e-9,
        1.017_805_708_773_394_1e-7,
        1.321_548_680_870_556_3e-6,
        1.525_273_384_155_677_3e-5,
        1.540_353_039_337_073_3e-4,
        1.333_355_814_640_647e-3,
        9.618_129_107_628_48e-3,
        5.550_410_866_482_162_7e-2,
        0.240_226_506_959_100_71,
        std::f64::consts::LN_2,
    ];

    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    fn ln(self) -> Self {
        self.ln()
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        self.is_finite()
    }
    fn dense_bias<'b>(bias: &'b crate::bias::Bias<'_>) -> Option<ndarray::ArrayView4<'b, Self>> {
        if let crate::bias::Bias::Dense64(numbers) = bias { Some(numbers.view()) } else { None }
    }
    #[inline]
    fn dispatch<O: Operation<Self>>(level: Level, operation: O) -> O::Output {
        dispatch!(level, operation, F64)
    }
}
