//! Exponential and hyperbolic tangent on lanes, the same on every level.

use super::{Lanes, Real};

/// `exp(x)`. Exactly 1 at 0, exactly 0 below [`Real::MIN_EXP`] (minus infinity included); NaN stays NaN.
/// Not for `x` past the largest exponent: scores have their row's maximum taken off first.
///
/// ```text
/// n = round(x log2(e)), f = x log2(e) - n in [-1/2, 1/2], exp(x) = 2^n * (1 + f * poly(f))
/// ```
#[inline(always)]
pub fn exp<S: Lanes>(s: S, x: S::V) -> S::V {
    let (t, f) = split(s, x, s.splat(S::T::LOG2_E));
    let p = s.mul_add(f, fraction(s, f), s.splat(S::T::ONE));
    let y = s.scale_by_power(p, t);
    s.clear(s.lt(x, s.splat(S::T::MIN_EXP)), y)
}

/// `tanh(x)`, accurate near 0 too: `E / (E + 2)` with `E = exp(2|x|) - 1`.
#[inline(always)]
pub fn tanh<S: Lanes>(s: S, x: S::V) -> S::V {
    let zero = s.splat(S::T::ZERO);
    let limit = s.splat(S::T::TANH_LIMIT);
    let a = s.abs(x);
    // NaN is not above the limit, and stays.
    let a = s.select(s.lt(limit, a), limit, a);
    let (t, f) = split(s, a, s.splat(S::T::LOG2_E + S::T::LOG2_E));
    let power = s.scale_by_power(s.splat(S::T::ONE), t);
    // 2^n (1 + f poly) - 1 = 2^n f poly + (2^n - 1)
    let e = s.mul_add(power, s.mul(f, fraction(s, f)), s.sub(power, s.splat(S::T::ONE)));
    let y = s.div(e, s.add(e, s.splat(S::T::ONE + S::T::ONE)));
    s.select(s.lt(x, zero), s.sub(zero, y), y)
}

/// (n + ROUNDING, x * by - n) with n the integer nearest to x * by
#[inline(always)]
fn split<S: Lanes>(s: S, x: S::V, by: S::V) -> (S::V, S::V) {
    let t = s.mul_add(x, by, s.splat(S::T::ROUNDING));
    let minus_n = s.sub(s.splat(S::T::ROUNDING), t);
    (t, s.mul_add(x, by, minus_n))
}

/// (2^f - 1) / f, pairs of powers first: half the latency of one power after the other.
#[inline(always)]
fn fraction<S: Lanes>(s: S, f: S::V) -> S::V {
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
