//! The traits of numbers and lanes are sealed: unsafe code relies on what their implementations are.
//!
//! A type of another crate is no number, or [`Scratch::slices`](crate::scratch::Scratch::slices) would make values of it out of any bytes:
//!
//! ```compile_fail
//! use regard_simd::math::Coefficients;
//! struct Foreign;
//! impl Coefficients for Foreign {
//!     const ROUNDING: Self = Self;
//!     const MIN_EXP: Self = Self;
//!     const LOG2_E: Self = Self;
//!     const VERY_NEGATIVE: Self = Self;
//!     const TANH_LIMIT: Self = Self;
//!     const EXP2: &'static [Self] = &[];
//! }
//! ```
//!
//! ```compile_fail
//! use regard_simd::strided::Rows;
//! use regard_simd::{Simd, Storage};
//! use std::mem::MaybeUninit;
//! #[derive(Debug, Clone, Copy)]
//! struct Foreign(f32);
//! impl Storage for Foreign {
//!     type Real = f32;
//!     const IS_REAL: bool = false;
//!     const STORED_ZERO: Self = Self(0.0);
//!     fn to_real(self) -> f32 {
//!         self.0
//!     }
//!     fn from_real(x: f32) -> Self {
//!         Self(x)
//!     }
//!     unsafe fn load<S: Simd<T = f32>>(simd: S, p: *const Self) -> S::V {
//!         unsafe { simd.load(p.cast()) }
//!     }
//!     fn as_real(_: &[Self]) -> Option<&[f32]> {
//!         None
//!     }
//!     fn as_real_mut(_: &mut [MaybeUninit<Self>]) -> Option<&mut [MaybeUninit<f32>]> {
//!         None
//!     }
//!     fn real_rows(_: Rows<'_, Self>) -> Option<Rows<'_, f32>> {
//!         None
//!     }
//! }
//! ```
//!
//! ```compile_fail
//! use regard_simd::level::Level;
//! use regard_simd::matmul::{Chunk, Pack, Products};
//! struct Foreign;
//! impl Products for Foreign {
//!     fn pack(_: Level, _: Pack<'_, Self>) {}
//!     fn multiply(_: Level, _: Chunk<'_, Self>) {}
//! }
//! ```
//!
//! The seal cannot be named from outside:
//!
//! ```compile_fail
//! struct Foreign;
//! impl regard_simd::sealed::Sealed for Foreign {}
//! ```

use half::{bf16, f16};

/// Implemented by the element types and lanes of this crate, and by nothing else.
pub trait Sealed {}

impl Sealed for f32 {}
impl Sealed for f64 {}
impl Sealed for f16 {}
impl Sealed for bf16 {}
