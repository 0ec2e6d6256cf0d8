//! Exponential and hyperbolic tangent on lanes, the same on every level.

use crate::float::Real;
use crate::sealed::Sealed;
use crate::simd::Simd;

/// Constants of the functions of this module.
pub trait Coefficients: Sealed + Sized + 'static {
    /// 1.5 * 2^(mantissa bits): adding it rounds to an integer that then stands in the low bits.
    const ROUNDING: Self;
    /// Below it, [`exp`] gives zero: a little above the logarithm of the smallest normal number.
    const MIN_EXP: Self;
    /// log2(e)
    const LOG2_E: Self;
    /// A very negative finite number.
    const VERY_NEGATIVE: Self;
    /// tanh is 1 from here on.
    const TANH_LIMIT: Self;
    /// Coefficients of (2^f - 1) / f for |f| <= 1/2, highest power first; an even number.
    const EXP2: &'static [Self];
}

impl Coefficients for f32 {
    const ROUNDING: Self = 12_582_912.0;
    const MIN_EXP: Self = -86.6;
    const LOG2_E: Self = std::f32::consts::LOG2_E;
    const VERY_NEGATIVE: Self = -1e30;
    const TANH_LIMIT: Self = 10.0;
    // Interpolated at the Chebyshev nodes of [-1/2, 1/2]; relative error of 2^f: 5.1e-9.
    const EXP2: &'static [Self] = &[1.545_316_3e-4, 1.339_086_3e-3, 9.618_083e-3, 5.550_357e-2, 0.240_226_5, std::f32::consts::LN_2];
}

impl Coefficients for f64 {
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
}

/// `exp(x)`. Exactly 1 at 0, exactly 0 below [`Coefficients::MIN_EXP`] (minus infinity included); NaN stays NaN.
/// Not for `x` above the largest exponent: the caller subtracts the row's maximum first.
///
/// ```text
/// n = round(x log2(e)), f = x log2(e) - n in [-1/2, 1/2], exp(x) = 2^n * (1 + f * poly(f))
/// ```
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let (t, f) = split(s, x, s.splat(S::T::LOG2_E));
    let p = s.mul_add(f, fraction(s, f), s.splat(S::T::ONE));
    // A product, not a sum of bits: a NaN of any payload stays one.
    let y = s.mul(p, s.power_of_two(t));
    s.clear(s.lt(x, s.splat(S::T::MIN_EXP)), y)
}

/// `tanh(x)`, accurate near 0 too: `E / (E + 2)` with `E = exp(2|x|) - 1`.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let zero = s.splat(S::T::ZERO);
    let limit = s.splat(S::T::TANH_LIMIT);
    let a = s.abs(x);
    // NaN is not above the limit, and stays.
    let a = s.select(s.lt(limit, a), limit, a);
    let (t, f) = split(s, a, s.splat(S::T::LOG2_E + S::T::LOG2_E));
    let power = s.power_of_two(t);
    // 2^n (1 + f poly) - 1 = 2^n f poly + (2^n - 1)
    let e = s.mul_add(power, s.mul(f, fraction(s, f)), s.sub(power, s.splat(S::T::ONE)));
    let y = s.div(e, s.add(e, s.splat(S::T::ONE + S::T::ONE)));
    s.select(s.lt(x, zero), s.sub(zero, y), y)
}

/// (n + ROUNDING, x * by - n) with n the integer nearest to x * by
#[inline(always)]
fn split<S: Simd>(s: S, x: S::V, by: S::V) -> (S::V, S::V) {
    let t = s.mul_add(x, by, s.splat(S::T::ROUNDING));
    let minus_n = s.sub(s.splat(S::T::ROUNDING), t);
    (t, s.mul_add(x, by, minus_n))
}

/// (2^f - 1) / f, pairs of powers first: half the latency of one power after the other.
#[inline(always)]
fn fraction<S: Simd>(s: S, f: S::V) -> S::V {
    let squared = s.mul(f, f);
    let mut pairs = S::T::EXP2.chunks_exact(2);
    let mut q = s.splat(S::T::ZERO);
    for (n, pair) in pairs.by_ref().enumerate() {
        let linear = s.mul_add(s.splat(pair[0]), f, s.splat(pair[1]));
        q = if n == 0 { linear } else { s.mul_add(q, squared, linear) };
    }
    debug_assert!(pairs.remainder().is_empty());
    q
}

#[cfg(test)]
#[path = "../tests/unit/math.rs"]
mod tests;
