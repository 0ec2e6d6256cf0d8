//! SIMD and numeric kernels: vectors on several CPU levels, the register tile of every matrix product, strided rows, random
//! numbers, threads and scratch memory. Nothing here depends on attention.
//!
//! A [`Kernel`] is vector code: generic over [`Simd`], `#[inline(always)]` all the way down, entered by [`Simd::call`]. A [`Driver`] has no
//! vector code of its own: it is what [`Real::dispatch`] runs, once per task, and it calls kernels.

#![warn(missing_docs)]
#![deny(clippy::too_many_arguments)]

pub mod allocator;
pub mod compressed;
pub mod float;
pub mod level;
#[cfg(not(target_family = "wasm"))]
pub mod map;
#[cfg(target_family = "wasm")]
#[path = "map/wasm.rs"]
pub mod map;
pub mod math;
pub mod matmul;
pub mod microkernel;
pub mod peak;
pub mod philox;
pub mod pool;
mod portable;
pub mod random;
pub mod scratch;
mod sealed;
pub mod simd;
pub mod strided;
pub mod tiles;
#[cfg(target_arch = "aarch64")]
mod aarch64 {
    pub(crate) mod neon;
}
#[cfg(target_arch = "x86_64")]
mod x86 {
    #[cfg(target_os = "linux")]
    pub(crate) mod amx;
    pub(crate) mod avx2;
    pub(crate) mod avx512;
}

pub use float::{Real, Storage};
pub use level::{Level, MissingLevel};
pub use map::MappedFile;
pub use simd::{Driver, Kernel, Simd, Transpose};
