//! 256-bit lanes: AVX2 with FMA and F16C.

use crate::simd::{Kernel, Simd, Transpose};
use std::arch::x86_64::*;

/// The lanes of a level, for each type: a value is proof that the CPU has the instructions.
macro_rules! tokens {
    ($($name:ident),*; $has:expr) => {$(
        /// Proof that the CPU has the instructions.
        #[derive(Clone, Copy)]
        pub struct $name(pub(super) ());

        impl crate::sealed::Sealed for $name {}

        impl $name {
            #[inline]
            pub fn detect() -> Option<Self> {
                $has.then_some(Self(()))
            }
        }
    )*};
}
pub(super) use tokens;

tokens!(F32, F64; is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c"));

/// Lane-wise methods whose body is one intrinsic expression.
macro_rules! lane_ops {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident : $ty:ty),*) -> $ret:ty = $body:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        fn $name(self, $($arg: $ty),*) -> $ret {
            // SAFETY: a value of this type exists only where the CPU has the instructions.
            unsafe { $body }
        }
    )*};
}
pub(super) use lane_ops;

/// What has the same form on all lanes.
macro_rules! arithmetic {
    ($t:ty, $v:ty, $splat:ident, $add:ident, $sub:ident, $mul:ident, $div:ident, $mul_add:ident, $max:ident) => {
        lane_ops! {
            fn splat(x: $t) -> $v = $splat(x);
            fn add(a: $v, b: $v) -> $v = $add(a, b);
            fn sub(a: $v, b: $v) -> $v = $sub(a, b);
            fn mul(a: $v, b: $v) -> $v = $mul(a, b);
            fn div(a: $v, b: $v) -> $v = $div(a, b);
            fn mul_add(a: $v, b: $v, c: $v) -> $v = $mul_add(a, b, c);
            fn max(a: $v, b: $v) -> $v = $max(a, b);
        }
    };
}
pub(super) use arithmetic;

/// How a kernel is entered, and memory.
macro_rules! basics {
    ($t:ty, $v:ty, $features:literal, $load:ident, $store:ident) => {
        #[inline]
        fn call<K: Kernel<$t>>(self, kernel: K) {
            #[target_feature(enable = $features)]
            #[inline(never)]
            fn inner<S: Simd<T = $t>, K: Kernel<$t>>(simd: S, kernel: K) {
                kernel.run(simd);
            }
            // SAFETY: `self` proves that the features are there.
            unsafe { inner(self, kernel) }
        }
        #[inline(always)]
        unsafe fn load(self, p: *const $t) -> $v {
            // SAFETY: the caller guarantees the memory, `self` proves the instruction.
            unsafe { $load(p) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut $t, v: $v) {
            // SAFETY: the caller guarantees the memory, `self` proves the instruction.
            unsafe { $store(p, v) }
        }
        #[inline(always)]
        fn prefetch<E>(self, p: *const E) {
            // SAFETY: a prefetch never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
    };
}
pub(super) use basics;

/// A vector goes through an instruction that does nothing.
macro_rules! hide_from_optimizer {
    ($v:ty) => {
        #[inline(always)]
        fn hide_from_optimizer(self, a: $v) -> $v {
            #[target_feature(enable = "avx2")]
            #[inline]
            fn inner(mut a: $v) -> $v {
                // SAFETY: no instruction at all: `a` stays in its register.
                unsafe { std::arch::asm!("/* {0} */", inout(ymm_reg) a, options(pure, nomem, nostack, preserves_flags)) };
                a
            }
            // SAFETY: `self` proves that the features are there.
            unsafe { inner(a) }
        }
    };
}

impl Simd for F32 {
    type T = f32;
    type V = __m256;
    type M = __m256;
    type Narrow = Self;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    fn narrow(self) -> Self {
        self
    }
    basics!(f32, __m256, "avx2,fma,f16c", _mm256_loadu_ps, _mm256_storeu_ps);
    arithmetic!(f32, __m256, _mm256_set1_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps, _mm256_fmadd_ps, _mm256_max_ps);
    lane_ops! {
        fn abs(a: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), a);
        fn lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        fn eq(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b);
        fn select(m: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, m);
        fn clear(m: __m256, a: __m256) -> __m256 = _mm256_andnot_ps(m, a);
        fn mask_from_bits(bits: u32, n: usize) -> __m256 = {
            let lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let lane = _mm256_sll_epi32(lane, _mm_cvtsi32_si128(8 * n as i32));
            _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), lane), lane))
        };
        fn bits_from_mask(m: __m256) -> u32 = _mm256_movemask_ps(m) as u32;
        fn power_of_two(t: __m256) -> __m256 = _mm256_castsi256_ps(_mm256_add_epi32(
            _mm256_set1_epi32(0x3f80_0000),
            _mm256_slli_epi32::<23>(_mm256_castps_si256(t)),
        ));
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const half::f16) -> __m256 {
        // SAFETY: the caller guarantees eight elements of two bytes.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const half::bf16) -> __m256 {
        // SAFETY: the caller guarantees eight elements of two bytes.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))) }
    }
    hide_from_optimizer!(__m256);
}

/// Both instructions, of every pair.
macro_rules! pairs {
    ($f:expr, $g:expr, $($a:expr, $b:expr);*) => {
        [$($f($a, $b), $g($a, $b)),*]
    };
}

impl Transpose for F32 {
    type Square = [__m256; 8];
    #[inline(always)]
    fn zero_square(self) -> [__m256; 8] {
        [self.splat(0.0); 8]
    }
    #[inline(always)]
    fn transpose(self, r: [__m256; 8]) -> [__m256; 8] {
        // SAFETY: `self` proves that the instructions are there.
        unsafe {
            let t = pairs!(_mm256_unpacklo_ps, _mm256_unpackhi_ps, r[0], r[1]; r[2], r[3]; r[4], r[5]; r[6], r[7]);
            let u = pairs!(_mm256_shuffle_ps::<0x44>, _mm256_shuffle_ps::<0xee>, t[0], t[2]; t[1], t[3]; t[4], t[6]; t[5], t[7]);
            let [a, e, b, f, c, g, d, h] =
                pairs!(_mm256_permute2f128_ps::<0x20>, _mm256_permute2f128_ps::<0x31>, u[0], u[4]; u[1], u[5]; u[2], u[6]; u[3], u[7]);
            [a, b, c, d, e, f, g, h]
        }
    }

    /// Half lines are put together while they are loaded, so that what is left to shuffle stays within 128 bits.
    #[inline(always)]
    unsafe fn load_transposed(self, line: *const f32, stride: isize) -> [__m256; 8] {
        let mut columns = self.zero_square();
        for half in 0..2 {
            // SAFETY: the caller guarantees eight elements of each line, `self` proves the instructions.
            unsafe {
                macro_rules! pair {
                    ($x:literal) => {
                        _mm256_insertf128_ps::<1>(
                            _mm256_castps128_ps256(_mm_loadu_ps(line.offset($x * stride + 4 * half))),
                            _mm_loadu_ps(line.offset(($x + 4) * stride + 4 * half)),
                        )
                    };
                }
                let (a, b, c, d) = (pair!(0), pair!(1), pair!(2), pair!(3));
                let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                columns[4 * half as usize] = _mm256_shuffle_ps::<0x44>(ab_low, cd_low);
                columns[4 * half as usize + 1] = _mm256_shuffle_ps::<0xee>(ab_low, cd_low);
                columns[4 * half as usize + 2] = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
                columns[4 * half as usize + 3] = _mm256_shuffle_ps::<0xee>(ab_high, cd_high);
            }
        }
        columns
    }
}

impl Simd for F64 {
    type T = f64;
    type V = __m256d;
    type M = __m256d;
    type Narrow = Self;
    const LANES: usize = 4;
    const TILE_ROWS: usize = 6;

    #[inline(always)]
    fn narrow(self) -> Self {
        self
    }
    basics!(f64, __m256d, "avx2,fma,f16c", _mm256_loadu_pd, _mm256_storeu_pd);
    arithmetic!(f64, __m256d, _mm256_set1_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, _mm256_div_pd, _mm256_fmadd_pd, _mm256_max_pd);
    lane_ops! {
        fn abs(a: __m256d) -> __m256d = _mm256_andnot_pd(_mm256_set1_pd(-0.0), a);
        fn lt(a: __m256d, b: __m256d) -> __m256d = _mm256_cmp_pd::<_CMP_LT_OQ>(a, b);
        fn eq(a: __m256d, b: __m256d) -> __m256d = _mm256_cmp_pd::<_CMP_EQ_OQ>(a, b);
        fn select(m: __m256d, a: __m256d, b: __m256d) -> __m256d = _mm256_blendv_pd(b, a, m);
        fn clear(m: __m256d, a: __m256d) -> __m256d = _mm256_andnot_pd(m, a);
        fn mask_from_bits(bits: u32, n: usize) -> __m256d = {
            let lane = _mm256_setr_epi64x(1, 2, 4, 8);
            let lane = _mm256_sll_epi64(lane, _mm_cvtsi32_si128(4 * n as i32));
            _mm256_castsi256_pd(_mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(i64::from(bits)), lane), lane))
        };
        fn bits_from_mask(m: __m256d) -> u32 = _mm256_movemask_pd(m) as u32;
        fn power_of_two(t: __m256d) -> __m256d = _mm256_castsi256_pd(_mm256_add_epi64(
            _mm256_set1_epi64x(0x3ff0_0000_0000_0000),
            _mm256_slli_epi64::<52>(_mm256_castpd_si256(t)),
        ));
    }
    hide_from_optimizer!(__m256d);
}

impl Transpose for F64 {
    type Square = [__m256d; 4];
    #[inline(always)]
    fn zero_square(self) -> [__m256d; 4] {
        [self.splat(0.0); 4]
    }
    #[inline(always)]
    fn transpose(self, r: [__m256d; 4]) -> [__m256d; 4] {
        // SAFETY: `self` proves that the instructions are there.
        unsafe {
            let t = pairs!(_mm256_unpacklo_pd, _mm256_unpackhi_pd, r[0], r[1]; r[2], r[3]);
            let [a, c, b, d] = pairs!(_mm256_permute2f128_pd::<0x20>, _mm256_permute2f128_pd::<0x31>, t[0], t[2]; t[1], t[3]);
            [a, b, c, d]
        }
    }
}
