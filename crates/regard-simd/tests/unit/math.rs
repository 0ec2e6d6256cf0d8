//! Exponential and hyperbolic tangent, on every level, against the standard library in f64.

use super::*;
use crate::level::Level;
use crate::simd::{Driver, MAX_LANES};

/// A function of lanes, of each number of a list.
struct Each<'x, T> {
    tanh: bool,
    numbers: &'x [T],
}

impl<T: Real> Driver<T> for Each<'_, T> {
    type Output = Vec<T>;
    fn run<S: Simd<T = T>>(self, simd: S) -> Vec<T> {
        let mut results = Vec::new();
        for some in self.numbers.chunks(S::LANES) {
            let mut array = [T::ZERO; MAX_LANES];
            array[..some.len()].copy_from_slice(some);
            let x = simd.vector(&array);
            let y = simd.to_array(if self.tanh { tanh(simd, x) } else { exp(simd, x) });
            results.extend(&y[..some.len()]);
        }
        results
    }
}

fn each<T: Real>(level: Level, tanh: bool, numbers: &[T]) -> Vec<T> {
    T::dispatch(level, Each { tanh, numbers })
}

/// From the most negative exponent to 0, and around the ends.
fn check<T: Real>(unit: f64) {
    let real = |x: f64| T::from_f64(x);
    let lowest = T::MIN_EXP.to_f64();
    let exponents: Vec<T> = (0..=20_000).map(|i| real(lowest * f64::from(i) / 20_000.0)).collect();
    let arguments: Vec<T> = (-20_000..=20_000).map(|i: i32| real((f64::from(i) / 1500.0).powi(3) / 200.0)).collect();
    let small: Vec<T> = (1..200).map(|i| real(2f64.powi(-i.min(120)) * 1.37)).collect();
    for level in Level::available() {
        for (x, y) in exponents.iter().zip(each(level, false, &exponents)) {
            let exact = x.to_f64().exp();
            // The argument is multiplied with log2(e) in one rounding: an error of |x| units.
            let off = (y.to_f64() - exact).abs() / exact;
            assert!(off <= unit * (1.5 + x.to_f64().abs()), "exp({x:?}) is {y:?}, {} of a unit off, {level:?}", off / unit);
        }
        for (x, y) in arguments.iter().chain(&small).zip(each(level, true, &[&arguments[..], &small].concat())) {
            let exact = x.to_f64().tanh();
            assert!((y.to_f64() - exact).abs() <= 6.0 * unit * exact.abs(), "tanh({x:?}) is {y:?} instead of {exact}, {level:?}");
        }
        let ends = [0.0, -0.0, f64::NEG_INFINITY, f64::NAN, 2.0 * lowest, -1e30].map(real);
        let got = each(level, false, &ends).into_iter().map(T::to_f64).collect::<Vec<_>>();
        assert_eq!((got[0], got[1], got[2], got[4], got[5]), (1.0, 1.0, 0.0, 0.0, 0.0), "{level:?}");
        assert!(got[3].is_nan(), "{level:?}");
        let ends = [0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e30, -1e30].map(real);
        let got = each(level, true, &ends).into_iter().map(T::to_f64).collect::<Vec<_>>();
        assert_eq!((got[0], got[1], got[2], got[4], got[5]), (0.0, 1.0, -1.0, 1.0, -1.0), "{level:?}");
        assert!(got[3].is_nan(), "{level:?}");
    }
}

#[test]
fn exp_and_tanh_are_right_on_every_level() {
    check::<f32>(f64::from(f32::EPSILON));
    check::<f64>(f64::EPSILON);
}

/// AVX2 and AVX-512 differ in width only.
#[test]
fn levels_with_fused_multiply_add_give_the_same_bits() {
    fn bits<T: Real>(level: Level) -> Vec<u64> {
        let numbers: Vec<T> = (0..5000).map(|i| T::from_f64(-f64::from(i) * 0.0173)).collect();
        [false, true].into_iter().flat_map(|tanh| each(level, tanh, &numbers)).map(|x| x.to_f64().to_bits()).collect()
    }
    if Level::Avx2.is_available() && Level::Avx512.is_available() {
        assert_eq!(bits::<f32>(Level::Avx2), bits::<f32>(Level::Avx512));
        assert_eq!(bits::<f64>(Level::Avx2), bits::<f64>(Level::Avx512));
    } else {
        use std::io::Write;
        assert!(std::env::var_os("REGARD_NO_SKIPS").is_none(), "REGARD_NO_SKIPS is set, and this CPU has no AVX-512");
        writeln!(std::io::stderr(), "SKIPPED exp and tanh of AVX2 against AVX-512: this CPU has no AVX-512").expect("stderr takes it");
    }
}
