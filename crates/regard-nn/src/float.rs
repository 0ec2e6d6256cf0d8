//! [`Float`]: f32 for work, f64 for checks; and the door to vector code.
//!
//! Loops over elements are written once, plainly; `kernel!` compiles them for every level of `regard-simd`, of which the one that the
//! library uses is taken. Every multiply-add is spelled `mul_add` and every sum has a fixed number of partial sums, so the bits do not
//! depend on the level.

use crate::tensors::Numbers;
use std::borrow::Cow;
use std::iter::Sum;

/// A number that parts compute with: f32 or f64.
pub trait Float: regard::Real + regard::Element + Default + Sum + std::fmt::Display + std::ops::MulAssign + std::ops::SubAssign {
    /// `self * a + b`, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// The larger of two values; neither is NaN.
    fn larger(self, other: Self) -> Self;
    /// e^x; f32 to two units in the last place, and 0 below -87.
    fn exp(self) -> Self;
    /// The standard normal distribution function and density at x.
    fn normal(self) -> (Self, Self);
    /// A tensor's elements of this type.
    fn numbers(x: &[Self]) -> Numbers<'_>;
    /// The reverse of [`Float::numbers`].
    ///
    /// # Errors
    /// Returns elements of another type unchanged.
    fn own(numbers: Numbers<'_>) -> Result<Cow<'_, [Self]>, Numbers<'_>>;
    /// Input and output as f32, where this type is f32.
    fn as_f32s<'a>(from: &'a [Self], to: &'a mut [Self]) -> Option<(&'a [f32], &'a mut [f32])>;
    /// Fill with the f32 values that `write` produces.
    fn from_f32s(to: &mut [Self], write: impl FnOnce(&mut [f32]));
}

/// 2^f = 1 + f * poly(f) for |f| <= 1/2, lowest power first; fitted here, relative error 7e-9.
const EXP2: [f32; 6] = [std::f32::consts::LN_2, 0.240_226_5, 0.055_503_57, 0.009_618_031, 0.001_339_086_7, 0.000_154_697_3];
/// Adding it to a number rounds that to an integer, which then stands in the low bits.
const ROUNDING: f32 = 12_582_912.0;
/// (cdf(x) - 1/2) / x in powers of x^2, for x^2 < 1.45; fitted here, relative error 2e-10.
const NORMAL_NEAR: [f32; 7] = [0.398_942_3, -0.066_490_375, 0.009_973_51, -0.001_187_140_6, 0.000_115_075_02, -9.085_525e-6, 4.824_522e-7];
/// (1 - cdf(x)) / (t exp(-x^2 / 2)) in powers of t = 1 / (1 + FAR_T x); fitted here for x up to 13.5, relative error 1.4e-8.
const NORMAL_FAR: [f32; 9] =
    [0.083_707_705, 0.085_129_41, 0.068_790_04, 0.126_355_16, -0.097_245_73, 0.354_033_68, -0.334_189_65, 0.285_453_4, -0.072_033_98];
const FAR_T: f32 = 0.21;
const INV_SQRT_2PI: f64 = 0.398_942_280_401_432_7;

#[inline(always)]
fn horner<const N: usize>(coefficients: &[f32; N], x: f32) -> f32 {
    let mut y = coefficients[N - 1];
    for c in coefficients[..N - 1].iter().rev() {
        y = y.mul_add(x, *c);
    }
    y
}

/// What is the same in both types.
macro_rules! plain {
    ($numbers:ident) => {
        fn numbers(x: &[Self]) -> Numbers<'_> {
            Numbers::$numbers(Cow::Borrowed(x))
        }
        fn own(numbers: Numbers<'_>) -> Result<Cow<'_, [Self]>, Numbers<'_>> {
            match numbers {
                Numbers::$numbers(x) => Ok(x),
                other => Err(other),
            }
        }
        #[inline(always)]
        fn mul_add(self, a: Self, b: Self) -> Self {
            Self::mul_add(self, a, b)
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            Self::sqrt(self)
        }
        #[inline(always)]
        fn larger(self, other: Self) -> Self {
            if self > other { self } else { other }
        }
    };
}

impl Float for f32 {
    plain!(F32);
    fn as_f32s<'a>(from: &'a [Self], to: &'a mut [Self]) -> Option<(&'a [f32], &'a mut [f32])> {
        Some((from, to))
    }
    fn from_f32s(to: &mut [Self], write: impl FnOnce(&mut [f32])) {
        write(to);
    }
    #[inline(always)]
    fn exp(self) -> Self {
        const LOW: f32 = (std::f64::consts::LOG2_E - std::f32::consts::LOG2_E as f64) as f32;
        // NaN passes both comparisons.
        let x = if self < -87.0 { -87.0 } else { self };
        let x = if x > 88.0 { 88.0 } else { x };
        let t = x.mul_add(std::f32::consts::LOG2_E, ROUNDING);
        let n = t - ROUNDING;
        let f = x.mul_add(LOW, x.mul_add(std::f32::consts::LOG2_E, -n));
        let p = f.mul_add(horner(&EXP2, f), 1.0);
        let y = Self::from_bits(p.to_bits().wrapping_add(t.to_bits() << 23));
        let y = if self < -87.0 { 0.0 } else { y };
        if self > 88.0 { Self::INFINITY } else { y }
    }
    #[inline(always)]
    fn normal(self) -> (Self, Self) {
        let squared = self * self;
        let bell = Float::exp(-0.5 * squared);
        let near = self.mul_add(horner(&NORMAL_NEAR, squared), 0.5);
        let t = 1.0 / FAR_T.mul_add(self.abs(), 1.0);
        let tail = bell * (t * horner(&NORMAL_FAR, t));
        let far = if self > 0.0 { 1.0 - tail } else { tail };
        (if squared < 1.45 { near } else { far }, bell * INV_SQRT_2PI as f32)
    }
}

impl Float for f64 {
    plain!(F64);
    fn as_f32s<'a>(_: &'a [Self], _: &'a mut [Self]) -> Option<(&'a [f32], &'a mut [f32])> {
        None
    }
    fn from_f32s(to: &mut [Self], write: impl FnOnce(&mut [f32])) {
        let mut narrow = vec![0.0; to.len()];
        write(&mut narrow);
        to.iter_mut().zip(narrow).for_each(|(to, x)| *to = Self::from(x));
    }
    #[inline(always)]
    fn exp(self) -> Self {
        Self::exp(self)
    }
    #[inline(always)]
    fn normal(self) -> (Self, Self) {
        (0.5 * libm::erfc(-self * std::f64::consts::FRAC_1_SQRT_2), (-0.5 * self * self).exp() * INV_SQRT_2PI)
    }
}

/// Partial sums of a sum over a row: enough for two vectors of the widest level.
pub(crate) const LANES: usize = 16;

/// The sum of `f` over the elements, in [`LANES`] partial sums.
#[inline(always)]
pub(crate) fn lane_sum<T: Float>(x: &[T], f: impl Fn(T, T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in chunks.by_ref() {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = f(x, *lane);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = f(x, *lane);
    }
    fold(lanes)
}

/// The sum of `f` over pairs of elements, in [`LANES`] partial sums.
#[inline(always)]
pub(crate) fn lane_sum2<T: Float>(x: &[T], y: &[T], f: impl Fn(T, T, T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (mut xs, mut ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
    for (x, y) in xs.by_ref().zip(ys.by_ref()) {
        for ((lane, &x), &y) in lanes.iter_mut().zip(x).zip(y) {
            *lane = f(x, y, *lane);
        }
    }
    for ((lane, &x), &y) in lanes.iter_mut().zip(xs.remainder()).zip(ys.remainder()) {
        *lane = f(x, y, *lane);
    }
    fold(lanes)
}

/// The largest element; `T::NEG_INFINITY` of none.
#[inline(always)]
pub(crate) fn lane_max<T: Float>(x: &[T]) -> T {
    let mut lanes = [T::NEG_INFINITY; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in chunks.by_ref() {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = x.larger(*lane);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = x.larger(*lane);
    }
    lanes.into_iter().fold(T::NEG_INFINITY, T::larger)
}

/// Partial sums of a product of two long rows: a multiply-add need not wait for the one before.
pub(crate) const WIDE: usize = 2 * LANES;

/// The sum of the elements.
#[inline(always)]
pub(crate) fn fold_wide<T: Float>(lanes: [T; WIDE]) -> T {
    // Out of sight: where the compiler sees how the sums are added up, it takes the loop before apart to match, and that is four times
    // slower.
    let lanes = std::hint::black_box(lanes);
    let mut halves = [T::ZERO; LANES];
    for (j, half) in halves.iter_mut().enumerate() {
        *half = lanes[j] + lanes[j + LANES];
    }
    fold(halves)
}

/// The sum of partial sums.
#[inline(always)]
fn fold<T: Float>(lanes: [T; LANES]) -> T {
    let mut lanes = lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// A function whose body is compiled for each SIMD level. `'a` stands for the lifetime of whatever is borrowed.
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$life:lifetime, $t:ident>($($arg:ident: $ty:ty),* $(,)?) -> $out:ty $body:block) => {
        $(#[$meta])*
        $vis fn $name<$life, $t: $crate::float::Float>($($arg: $ty),*) -> $out {
            struct Call<$life, 'result, $t> {
                $($arg: $ty,)*
                result: &'result mut Option<$out>,
                life: std::marker::PhantomData<&$life $t>,
            }
            impl<$life, $t: $crate::float::Float> regard_simd::Kernel<$t> for Call<$life, '_, $t> {
                #[inline(always)]
                fn run<S: regard_simd::Simd<T = $t>>(self, _: S) {
                    let Self { $($arg,)* result, life: _ } = self;
                    *result = Some($body);
                }
            }
            let mut result = None;
            let call = Call::<$life, '_, $t> { $($arg,)* result: &mut result, life: std::marker::PhantomData };
            $t::call(regard_simd::Level::preferred_or_panic(), call);
            result.expect("the kernel ran")
        }
    };
}
pub(crate) use kernel;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_right_to_a_few_units() {
        let mut worst = 0f64;
        for i in -860_000..=880_000 {
            let x = i as f32 * 1e-4;
            let right = f64::from(x).exp();
            worst = worst.max((f64::from(Float::exp(x)) - right).abs() / right);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst}");
        assert_eq!(Float::exp(0f32), 1.0);
        assert_eq!(Float::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Float::exp(f32::INFINITY), f32::INFINITY);
        assert!(Float::exp(f32::NAN).is_nan());
    }

    #[test]
    fn normal_distribution_is_right_to_an_unit_of_one() {
        for i in -130_000..=130_000 {
            let x = i as f32 * 1e-4;
            let ((cdf, pdf), (right_cdf, right_pdf)) = (x.normal(), f64::from(x).normal());
            assert!((f64::from(cdf) - right_cdf).abs() < 1.2e-7, "cdf({x}) = {cdf}, not {right_cdf}");
            assert!((f64::from(pdf) - right_pdf).abs() < 1.2e-7, "pdf({x}) = {pdf}, not {right_pdf}");
        }
    }

    #[test]
    fn sums_and_maxima_take_every_element() {
        for n in [0usize, 1, 15, 16, 17, 40] {
            let x: Vec<f64> = (0..n).map(|i| (i * i % 7) as f64 - 3.0).collect();
            assert_eq!(lane_sum(&x, |x, s| s + x), x.iter().sum::<f64>());
            assert_eq!(lane_sum2(&x, &x, |x, y, s| x.mul_add(y, s)), x.iter().map(|x| x * x).sum::<f64>());
            assert_eq!(lane_max(&x), x.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
    }
}
