//! Numbers: f32 and f64, which arithmetic is done in, and f16 and bf16, which are storage for f32.

use crate::level::Level;
use crate::matmul::Products;
use crate::sealed::Sealed;
use crate::simd::{Driver, Kernel, Simd};
use crate::strided::{AnyRows, Rows};
use crate::{math, portable};
use half::{bf16, f16};
use std::convert::identity;
use std::mem::MaybeUninit;

#[cfg(target_arch = "aarch64")]
use crate::aarch64::neon;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::x86::amx;
#[cfg(target_arch = "x86_64")]
use crate::x86::{avx2, avx512};

/// The arithmetic types: f32 and f64. Sealed.
pub trait Real:
    Storage<Real = Self>
    + math::Coefficients
    + Products
    + Default
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
    /// Minus infinity.
    const NEG_INFINITY: Self;
    /// The largest finite number.
    const LARGEST: Self;

    /// Rounded from f64.
    fn from_f64(x: f64) -> Self;
    /// Exactly.
    fn to_f64(self) -> f64;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Not NaN, not infinite.
    fn is_finite(self) -> bool;
    /// Run `driver` with the lanes of `level`.
    ///
    /// # Panics
    /// If this CPU does not have the level: check it when a call is planned.
    #[doc(hidden)]
    fn dispatch<D: Driver<Self>>(level: Level, driver: D) -> D::Output;

    /// Rounded from f64; what is finite stays finite.
    #[inline(always)]
    fn from_f64_saturating(x: f64) -> Self {
        let limit = Self::LARGEST.to_f64();
        if x.is_finite() { Self::from_f64(x.clamp(-limit, limit)) } else { Self::from_f64(x) }
    }

    /// [`Rows::transpose_into`] of rows that widen to this type; false for others.
    #[doc(hidden)]
    fn transpose_storage<S: Simd<T = Self>>(simd: S, rows: AnyRows<'_>, to: &mut [Self], width: usize, first: usize) -> bool;

    /// Run one kernel on the code of `level`.
    #[doc(hidden)]
    fn call<K: Kernel<Self>>(level: Level, kernel: K) {
        struct Call<K>(K);
        impl<T: Real, K: Kernel<T>> Driver<T> for Call<K> {
            type Output = ();
            fn run<S: Simd<T = T>>(self, simd: S) {
                simd.call(self.0);
            }
        }
        Self::dispatch(level, Call(kernel))
    }
}

macro_rules! real {
    ($t:ty, $lanes:ident, $($rows:ident)*) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = Self::NEG_INFINITY;
            const LARGEST: Self = Self::MAX;

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
            fn transpose_storage<S: Simd<T = Self>>(simd: S, rows: AnyRows<'_>, to: &mut [Self], width: usize, first: usize) -> bool {
                match rows {
                    $(AnyRows::$rows(rows) => rows.transpose_into(simd, to, width, first),)*
                    _ => return false,
                }
                true
            }
            #[inline]
            fn dispatch<D: Driver<Self>>(level: Level, driver: D) -> D::Output {
                match level {
                    Level::Portable => driver.run(portable::$lanes),
                    #[cfg(target_arch = "aarch64")]
                    Level::Neon => driver.run(neon::$lanes::detect().expect("the level was checked")),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => driver.run(avx2::$lanes::detect().expect("the level was checked")),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 | Level::Avx512Bf16 | Level::Amx => driver.run(avx512::$lanes::detect().expect("the level was checked")),
                    // Levels of other architectures.
                    _ => unreachable!("the level was checked"),
                }
            }
        }
    };
}

real!(f32, F32, F32 F16 Bf16);
real!(f64, F64, F64);

/// How a number is stored, together with the type that its arithmetic is done in. Sealed.
pub trait Storage: Sealed + Copy + Send + Sync + std::fmt::Debug + 'static {
    /// The arithmetic type.
    type Real: Real;
    /// Numbers are stored as their arithmetic type.
    const IS_REAL: bool;
    /// Zero.
    const STORED_ZERO: Self;
    /// Widen; exact.
    fn to_real(self) -> Self::Real;
    /// Round to nearest.
    fn from_real(x: Self::Real) -> Self;
    /// Load and widen a vector.
    ///
    /// # Safety
    /// `p` must be valid for reading `LANES` elements.
    #[doc(hidden)]
    unsafe fn load<S: Simd<T = Self::Real>>(simd: S, p: *const Self) -> S::V;
    /// The same elements as their arithmetic type, if that is what they are stored as.
    fn as_real(numbers: &[Self]) -> Option<&[Self::Real]>;
    /// The same for uninitialised memory.
    #[doc(hidden)]
    fn as_real_mut(numbers: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<Self::Real>]>;
    /// The same for rows.
    #[doc(hidden)]
    fn real_rows(rows: Rows<'_, Self>) -> Option<Rows<'_, Self::Real>>;
    /// Run `driver` with the lanes of `level` for these elements: [`Real::dispatch`], but for bf16 at [`Level::Avx512Bf16`] and
    /// [`Level::Amx`].
    ///
    /// # Panics
    /// If this CPU does not have the level.
    #[doc(hidden)]
    #[inline]
    fn dispatch_stored<D: Driver<Self::Real>>(level: Level, driver: D) -> D::Output {
        Self::Real::dispatch(level, driver)
    }
}

/// `$as_real` reinterprets elements as the compute type, or is `None`.
macro_rules! storage {
    ($t:ty, $real:ty, $zero:expr, $load:ident, $to_real:path, $from_real:path, |$x:ident| $as_real:expr $(, $dispatch:item)?) => {
        impl Storage for $t {
            type Real = $real;
            const IS_REAL: bool = size_of::<$t>() == size_of::<$real>();
            const STORED_ZERO: Self = $zero;
            #[inline(always)]
            fn to_real(self) -> $real {
                $to_real(self)
            }
            #[inline(always)]
            fn from_real(x: $real) -> Self {
                $from_real(x)
            }
            #[inline(always)]
            unsafe fn load<S: Simd<T = $real>>(simd: S, p: *const $t) -> S::V {
                // SAFETY: the caller guarantees the memory.
                unsafe { simd.$load(p) }
            }
            fn as_real($x: &[Self]) -> Option<&[$real]> {
                $as_real
            }
            fn as_real_mut($x: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<$real>]> {
                $as_real
            }
            fn real_rows($x: Rows<'_, Self>) -> Option<Rows<'_, $real>> {
                $as_real
            }
            $($dispatch)?
        }
    };
}

storage!(f32, f32, 0.0, load, identity, identity, |x| Some(x));
storage!(f64, f64, 0.0, load, identity, identity, |x| Some(x));
storage!(f16, f32, f16::ZERO, load_f16, f16::to_f32, f16::from_f32, |_x| None);
storage!(
    bf16,
    f32,
    bf16::ZERO,
    load_bf16,
    bf16::to_f32,
    bf16::from_f32,
    |_x| None,
    #[inline]
    fn dispatch_stored<D: Driver<f32>>(level: Level, driver: D) -> D::Output {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Bf16 => driver.run(avx512::Bf16::detect().expect("the level was checked")),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Level::Amx => {
                let lanes = amx::Amx::detect().expect("the level was checked");
                let _release = amx::ReleaseTiles::new(lanes);
                driver.run(lanes)
            }
            _ => f32::dispatch(level, driver),
        }
    }
);
