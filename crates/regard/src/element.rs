//! What a tensor may hold: f32 and f64, and the half types as storage for f32 arithmetic.

use crate::calls::Calls;
use crate::simd::{Lanes, Real};
use half::{bf16, f16};

/// A storage type, together with the type that its arithmetic is done in. Sealed.
pub trait Element: Copy + Send + Sync + std::fmt::Debug + 'static + storage::Storage + Calls {
    /// The arithmetic type.
    type Real: Real;
    /// Widen; exact.
    fn to_real(self) -> Self::Real;
    /// Round to nearest.
    fn from_real(x: Self::Real) -> Self;
}

mod storage {
    use super::*;

    /// How kernels read and write an element type.
    pub trait Storage: Sized {
        /// The elements are stored as their arithmetic type.
        const NATIVE: bool;
        /// Zero.
        const STORED_ZERO: Self;
        /// Load and widen a vector.
        ///
        /// # Safety
        /// `p` must be valid for reading `LANES` elements.
        unsafe fn load<S: Lanes<T = <Self as Element>::Real>>(simd: S, p: *const Self) -> S::V
        where
            Self: Element;
    }

    impl Storage for f32 {
        const NATIVE: bool = true;
        const STORED_ZERO: Self = 0.0;
        #[inline(always)]
        unsafe fn load<S: Lanes<T = f32>>(simd: S, p: *const f32) -> S::V {
            // SAFETY: the caller vouches for the memory.
            unsafe { simd.load(p) }
        }
    }

    impl Storage for f64 {
        const NATIVE: bool = true;
        const STORED_ZERO: Self = 0.0;
        #[inline(always)]
        unsafe fn load<S: Lanes<T = f64>>(simd: S, p: *const f64) -> S::V {
            // SAFETY: the caller vouches for the memory.
            unsafe { simd.load(p) }
        }
    }

    impl Storage for f16 {
        const NATIVE: bool = false;
        const STORED_ZERO: Self = f16::ZERO;
        #[inline(always)]
        unsafe fn load<S: Lanes<T = f32>>(simd: S, p: *const f16) -> S::V {
            // SAFETY: the caller vouches for the memory.
            unsafe { simd.load_f16(p) }
        }
    }

    impl Storage for bf16 {
        const NATIVE: bool = false;
        const STORED_ZERO: Self = bf16::ZERO;
        #[inline(always)]
        unsafe fn load<S: Lanes<T = f32>>(simd: S, p: *const bf16) -> S::V {
            // SAFETY: the caller vouches for the memory.
            unsafe { simd.load_bf16(p) }
        }
    }
}

macro_rules! element {
    ($t:ty, $real:ty, |$x:ident| $to:expr, |$y:ident| $from:expr) => {
        impl Element for $t {
            type Real = $real;
            #[inline(always)]
            fn to_real(self) -> $real {
                let $x = self;
                $to
            }
            #[inline(always)]
            fn from_real($y: $real) -> Self {
                $from
            }
        }
    };
}

element!(f32, f32, |x| x, |y| y);
element!(f64, f64, |x| x, |y| y);
element!(f16, f32, |x| x.to_f32(), |y| f16::from_f32(y));
element!(bf16, f32, |x| x.to_f32(), |y| bf16::from_f32(y));
