//! NEON lanes: a vector is two registers of 128 bits, so that panels are as wide as those of AVX2.
//!
//! Every operation rounds as its counterpart on x86 does: the bits are those of AVX2 and AVX-512.

use crate::simd::{Kernel, Simd, Transpose, methods};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

/// Rows of the register tile: 16 accumulators of 32 registers. By `llvm-mca`, 3.92 multiply-adds per cycle of the 4 of a Neoverse V2 and
/// 2.95 of the 3 that its model of an Apple M1 has; five rows reach 3.32 and 2.42, six spill (2.70 and 1.57).
const TILE_ROWS: usize = 4;

/// An intrinsic on the low registers and on the high ones.
macro_rules! both {
    ($f:expr, $($x:expr),+) => {
        // SAFETY: a value of these lanes exists only where the CPU has the instructions.
        unsafe { [$f($($x[0]),+), $f($($x[1]),+)] }
    };
}

/// The lanes of a type: a value is proof that the CPU has the instructions.
macro_rules! tokens {
    ($($name:ident),*) => {$(
        /// Proof that the CPU has the instructions.
        #[derive(Clone, Copy)]
        pub struct $name(());

        impl crate::sealed::Sealed for $name {}

        impl $name {
            #[inline]
            pub fn detect() -> Option<Self> {
                is_aarch64_feature_detected!("neon").then_some(Self(()))
            }
        }
    )*};
}
tokens!(F32, F64);

/// How a kernel is entered, and memory.
macro_rules! basics {
    ($t:ty, $load:ident, $store:ident, $splat:ident) => {
        const TILE_ROWS: usize = TILE_ROWS;

        #[inline(always)]
        fn narrow(self) -> Self {
            self
        }
        #[inline]
        fn call<K: Kernel<$t>>(self, kernel: K) {
            #[target_feature(enable = "neon")]
            #[inline(never)]
            fn inner<S: Simd<T = $t>, K: Kernel<$t>>(simd: S, kernel: K) {
                kernel.run(simd);
            }
            // SAFETY: `self` proves that the feature is there.
            unsafe { inner(self, kernel) }
        }
        #[inline(always)]
        unsafe fn load(self, p: *const $t) -> Self::V {
            // SAFETY: the caller guarantees the memory, `self` proves the instruction.
            unsafe { [$load(p), $load(p.add(Self::LANES / 2))] }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut $t, v: Self::V) {
            // SAFETY: the caller guarantees the memory, `self` proves the instruction.
            unsafe {
                $store(p, v[0]);
                $store(p.add(Self::LANES / 2), v[1]);
            }
        }
        #[inline(always)]
        fn prefetch<E>(self, p: *const E) {
            // SAFETY: a prefetch never faults.
            unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags)) }
        }
        #[inline(always)]
        fn splat(self, x: $t) -> Self::V {
            // SAFETY: `self` proves the instruction.
            [unsafe { $splat(x) }; 2]
        }
    };
}

/// Lane-wise methods. The bit of each lane is in `$lane`.
macro_rules! lane_ops {
    (
        $lane:expr;
        $add:ident $sub:ident $mul:ident $div:ident $mul_add:ident $abs:ident $lt:ident $eq:ident $select:ident
        $and:ident $clear:ident $or:ident $sum:ident $test:ident $fill:ident $as_bits:ident $as_numbers:ident
        $shift:expr, $one:expr, $plus:ident
    ) => {
        methods! {
            fn add(self, a: Self::V, b: Self::V) -> Self::V = both!($add, a, b);
            fn sub(self, a: Self::V, b: Self::V) -> Self::V = both!($sub, a, b);
            fn mul(self, a: Self::V, b: Self::V) -> Self::V = both!($mul, a, b);
            fn div(self, a: Self::V, b: Self::V) -> Self::V = both!($div, a, b);
            fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V = both!($mul_add, c, a, b);
            // Not `fmax`: NaN and signed zeros are those of the instruction of x86.
            fn max(self, a: Self::V, b: Self::V) -> Self::V = self.select(self.lt(b, a), a, b);
            fn abs(self, a: Self::V) -> Self::V = both!($abs, a);
            fn lt(self, a: Self::V, b: Self::V) -> Self::M = both!($lt, a, b);
            fn eq(self, a: Self::V, b: Self::V) -> Self::M = both!($eq, a, b);
            fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V = both!($select, m, a, b);
            fn clear(self, m: Self::M, a: Self::V) -> Self::V = {
                let bits = both!($as_bits, a);
                let bits = both!($clear, bits, m);
                both!($as_numbers, bits)
            };
            fn mask_from_bits(self, bits: u32, n: usize) -> Self::M = {
                // SAFETY: `self` proves the instruction.
                let bits = [unsafe { $fill((bits >> (n * Self::LANES)).into()) }; 2];
                both!($test, bits, $lane)
            };
            fn bits_from_mask(self, m: Self::M) -> u32 = {
                let [low, high] = both!($and, m, $lane);
                // SAFETY: `self` proves the instructions.
                unsafe { $sum($or(low, high)) as u32 }
            };
            fn power_of_two(self, t: Self::V) -> Self::V = {
                let bits = both!($as_bits, t);
                let bits = both!($shift, bits);
                // SAFETY: `self` proves the instruction.
                let one = [unsafe { $fill($one) }; 2];
                let bits = both!($plus, one, bits);
                both!($as_numbers, bits)
            };
        }
    };
}

/// The bit of each lane.
// SAFETY: vectors are their elements.
const BITS_32: [uint32x4_t; 2] = unsafe { std::mem::transmute([1u32, 2, 4, 8, 16, 32, 64, 128]) };
// SAFETY: as above.
const BITS_64: [uint64x2_t; 2] = unsafe { std::mem::transmute([1u64, 2, 4, 8]) };

impl Simd for F32 {
    type T = f32;
    type V = [float32x4_t; 2];
    type M = [uint32x4_t; 2];
    type Narrow = Self;
    const LANES: usize = 8;

    basics!(f32, vld1q_f32, vst1q_f32, vdupq_n_f32);
    lane_ops!(
        BITS_32;
        vaddq_f32 vsubq_f32 vmulq_f32 vdivq_f32 vfmaq_f32 vabsq_f32 vcltq_f32 vceqq_f32 vbslq_f32
        vandq_u32 vbicq_u32 vorrq_u32 vaddvq_u32 vtstq_u32 vdupq_n_u32 vreinterpretq_u32_f32 vreinterpretq_f32_u32
        vshlq_n_u32::<23>, 1f32.to_bits(), vaddq_u32
    );
    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> [float32x4_t; 2] {
        let (low, high);
        // SAFETY: the caller guarantees eight elements of two bytes; the instructions are part of NEON (the intrinsics need a later Rust).
        unsafe {
            let halves = vld1q_u16(p.cast());
            asm!(
                "fcvtl {low:v}.4s, {halves:v}.4h", "fcvtl2 {high:v}.4s, {halves:v}.8h",
                halves = in(vreg) halves, low = out(vreg) low, high = lateout(vreg) high,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        [low, high]
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> [float32x4_t; 2] {
        // SAFETY: the caller guarantees eight elements of two bytes.
        let bits = unsafe {
            let halves = vld1q_u16(p.cast());
            [vshll_n_u16::<16>(vget_low_u16(halves)), vshll_high_n_u16::<16>(halves)]
        };
        both!(vreinterpretq_f32_u32, bits)
    }
}

impl Transpose for F32 {
    type Square = [[float32x4_t; 2]; 8];
    #[inline(always)]
    fn zero_square(self) -> Self::Square {
        [self.splat(0.0); 8]
    }
    #[inline(always)]
    fn transpose(self, r: Self::Square) -> Self::Square {
        // Column `x` of four rows is in register `x`.
        macro_rules! block {
            ($first:literal, $half:literal) => {{
                let [a, b, c, d] = [r[$first][$half], r[$first + 1][$half], r[$first + 2][$half], r[$first + 3][$half]];
                let (ab, ab_odd) = (vreinterpretq_f64_f32(vtrn1q_f32(a, b)), vreinterpretq_f64_f32(vtrn2q_f32(a, b)));
                let (cd, cd_odd) = (vreinterpretq_f64_f32(vtrn1q_f32(c, d)), vreinterpretq_f64_f32(vtrn2q_f32(c, d)));
                [
                    vreinterpretq_f32_f64(vtrn1q_f64(ab, cd)),
                    vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd)),
                    vreinterpretq_f32_f64(vtrn2q_f64(ab, cd)),
                    vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd)),
                ]
            }};
        }
        // SAFETY: `self` proves that the instructions are there.
        let [a, b, c, d] = unsafe { [block!(0, 0), block!(4, 0), block!(0, 1), block!(4, 1)] };
        [[a[0], b[0]], [a[1], b[1]], [a[2], b[2]], [a[3], b[3]], [c[0], d[0]], [c[1], d[1]], [c[2], d[2]], [c[3], d[3]]]
    }
}

impl Simd for F64 {
    type T = f64;
    type V = [float64x2_t; 2];
    type M = [uint64x2_t; 2];
    type Narrow = Self;
    const LANES: usize = 4;

    basics!(f64, vld1q_f64, vst1q_f64, vdupq_n_f64);
    lane_ops!(
        BITS_64;
        vaddq_f64 vsubq_f64 vmulq_f64 vdivq_f64 vfmaq_f64 vabsq_f64 vcltq_f64 vceqq_f64 vbslq_f64
        vandq_u64 vbicq_u64 vorrq_u64 vaddvq_u64 vtstq_u64 vdupq_n_u64 vreinterpretq_u64_f64 vreinterpretq_f64_u64
        vshlq_n_u64::<52>, 1f64.to_bits(), vaddq_u64
    );
}

impl Transpose for F64 {
    type Square = [[float64x2_t; 2]; 4];
    #[inline(always)]
    fn zero_square(self) -> Self::Square {
        [self.splat(0.0); 4]
    }
    #[inline(always)]
    fn transpose(self, r: Self::Square) -> Self::Square {
        // Column `x` of two rows is in register `x`.
        macro_rules! block {
            ($first:literal, $half:literal) => {{
                let (a, b) = (r[$first][$half], r[$first + 1][$half]);
                [vtrn1q_f64(a, b), vtrn2q_f64(a, b)]
            }};
        }
        // SAFETY: `self` proves that the instructions are there.
        let [a, b, c, d] = unsafe { [block!(0, 0), block!(2, 0), block!(0, 1), block!(2, 1)] };
        [[a[0], b[0]], [a[1], b[1]], [c[0], d[0]], [c[1], d[1]]]
    }
}
