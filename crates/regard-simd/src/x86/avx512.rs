//! 512-bit lanes: AVX-512 F, and the same with products of bf16 pairs (AVX512_BF16) and of tiles ([`super::amx`]). Transposition is left
//! to the 256-bit lanes, which every such CPU has too.

use super::avx2::{self, arithmetic, basics, lane_ops, tokens};
use crate::simd::{Kernel, Simd};
#[cfg(target_os = "linux")]
use crate::{
    tiles::TileProduct,
    x86::amx::{self, Amx},
};
use std::arch::x86_64::*;

tokens!(F32, F64; is_x86_feature_detected!("avx512f") && avx2::F32::detect().is_some());
tokens!(Bf16; is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vl") && F32::detect().is_some());

/// 16 lanes of f32, compiled for some features; `$more` is what these lanes have beside it.
macro_rules! f32_lanes {
    ($name:ident, $features:literal, { $($more:tt)* }) => {
        impl Simd for $name {
            type T = f32;
            type V = __m512;
            type M = __mmask16;
            type Narrow = avx2::F32;
            const LANES: usize = 16;
            const TILE_ROWS: usize = 8;

            #[inline(always)]
            fn narrow(self) -> avx2::F32 {
                // `detect` checked AVX2 as well.
                avx2::F32(())
            }
            basics!(f32, __m512, $features, _mm512_loadu_ps, _mm512_storeu_ps);
            #[inline(always)]
            unsafe fn load_f16(self, p: *const half::f16) -> __m512 {
                // SAFETY: the caller guarantees sixteen elements of two bytes.
                unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
            }
            #[inline(always)]
            unsafe fn load_bf16(self, p: *const half::bf16) -> __m512 {
                // SAFETY: the caller guarantees sixteen elements of two bytes.
                unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))) }
            }
            #[inline(always)]
            fn mask_from_bits(self, bits: u32, n: usize) -> __mmask16 {
                (bits >> (n * Self::LANES)) as __mmask16
            }
            #[inline(always)]
            fn bits_from_mask(self, m: __mmask16) -> u32 {
                u32::from(m)
            }
            arithmetic!(
                f32, __m512, _mm512_set1_ps, _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps, _mm512_fmadd_ps, _mm512_max_ps
            );
            lane_ops! {
                fn abs(a: __m512) -> __m512 = _mm512_abs_ps(a);
                fn lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
                fn eq(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b);
                fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(m, b, a);
                fn clear(m: __mmask16, a: __m512) -> __m512 = _mm512_maskz_mov_ps(!m, a);
                fn power_of_two(t: __m512) -> __m512 = _mm512_castsi512_ps(_mm512_add_epi32(
                    _mm512_set1_epi32(0x3f80_0000),
                    _mm512_slli_epi32::<23>(_mm512_castps_si512(t)),
                ));
            }
            $($more)*
        }
    };
}

/// 16 lanes of f32 that multiply pairs of bf16.
macro_rules! pair_lanes {
    ($name:ident, $features:literal, { $($more:tt)* }) => {
        f32_lanes!($name, $features, {
            const PAIRS: bool = true;

            lane_ops! {
                fn dot_pairs(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_dpbf16_ps(c, pairs(a), pairs(b));
                fn dot_narrow_pairs(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_dpbf16_ps(c, narrow_pairs(a), narrow_pairs(b));
                fn unpair(a: __m512) -> [__m512; 2] = {
                    let a = _mm512_castps_si512(a);
                    [
                        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(a)),
                        _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(-1 << 16))),
                    ]
                };
            }
            $($more)*
        });
    };
}

f32_lanes!(F32, "avx512f,avx2,fma,f16c", {});
pair_lanes!(Bf16, "avx512f,avx512vl,avx512bf16,avx2,fma,f16c", {});
#[cfg(target_os = "linux")]
pair_lanes!(Amx, "avx512f,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c", {
    const TILES: bool = true;

    #[inline(always)]
    unsafe fn multiply_tiles(self, task: TileProduct<f32>) {
        // SAFETY: the caller guarantees the memory; `self` proves the instructions and the permission of the kernel.
        unsafe { amx::multiply(task) };
    }
    lane_ops! {
        fn split_pairs(low: __m512, high: __m512) -> [__m512; 2] = {
            let upper = _mm512_set1_epi32(-1 << 16);
            macro_rules! pair {
                ($low:expr, $high:expr) => {
                    _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32::<16>($low), _mm512_and_si512($high, upper)))
                };
            }
            // Half of the last place of bf16 before the rest is clipped as well. NaN and infinity have no rest.
            macro_rules! rest {
                ($x:ident) => {{
                    let clipped = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512($x), upper));
                    let finite = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(_mm512_abs_ps($x), _mm512_set1_ps(f32::MAX));
                    _mm512_add_epi32(_mm512_castps_si512(_mm512_maskz_sub_ps(finite, $x, clipped)), _mm512_set1_epi32(0x8000))
                }};
            }
            [pair!(_mm512_castps_si512(low), _mm512_castps_si512(high)), pair!(rest!(low), rest!(high))]
        };
    }
});

/// The same bits as pairs.
#[inline(always)]
fn pairs(a: __m512) -> __m512bh {
    // SAFETY: both are 512 bits, of which any pattern is a value.
    unsafe { std::mem::transmute(a) }
}

/// The same bits as pairs.
#[inline(always)]
fn narrow_pairs(a: __m256) -> __m256bh {
    // SAFETY: both are 256 bits, of which any pattern is a value.
    unsafe { std::mem::transmute(a) }
}

impl Simd for F64 {
    type T = f64;
    type V = __m512d;
    type M = __mmask8;
    type Narrow = avx2::F64;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 8;

    #[inline(always)]
    fn narrow(self) -> avx2::F64 {
        // `detect` checked AVX2 as well.
        avx2::F64(())
    }
    basics!(f64, __m512d, "avx512f,avx2,fma,f16c", _mm512_loadu_pd, _mm512_storeu_pd);
    #[inline(always)]
    fn mask_from_bits(self, bits: u32, n: usize) -> __mmask8 {
        (bits >> (n * Self::LANES)) as __mmask8
    }
    #[inline(always)]
    fn bits_from_mask(self, m: __mmask8) -> u32 {
        u32::from(m)
    }
    arithmetic!(f64, __m512d, _mm512_set1_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, _mm512_div_pd, _mm512_fmadd_pd, _mm512_max_pd);
    lane_ops! {
        fn abs(a: __m512d) -> __m512d = _mm512_abs_pd(a);
        fn lt(a: __m512d, b: __m512d) -> __mmask8 = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(a, b);
        fn eq(a: __m512d, b: __m512d) -> __mmask8 = _mm512_cmp_pd_mask::<_CMP_EQ_OQ>(a, b);
        fn select(m: __mmask8, a: __m512d, b: __m512d) -> __m512d = _mm512_mask_blend_pd(m, b, a);
        fn clear(m: __mmask8, a: __m512d) -> __m512d = _mm512_maskz_mov_pd(!m, a);
        fn power_of_two(t: __m512d) -> __m512d = _mm512_castsi512_pd(_mm512_add_epi64(
            _mm512_set1_epi64(0x3ff0_0000_0000_0000),
            _mm512_slli_epi64::<52>(_mm512_castpd_si512(t)),
        ));
    }
}
