//! How fast multiply-adds can be on this CPU: the peak that a measurement is put against.

use regard_simd::{Kernel, Level, MissingLevel, Real, Simd};
use std::time::Instant;

/// Independent chains: more than latency times ports of any CPU so far, and fewer than the registers of AVX2.
const CHAINS: usize = 12;

/// Multiply-adds, and what comes of them: their number, and a number that depends on all of them.
struct Chains<'k, T> {
    rounds: u64,
    operations: &'k mut f64,
    result: &'k mut T,
}

impl<T: Real> Kernel<T> for Chains<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let (factor, plus) = (simd.splat(T::from_f64(0.999)), simd.splat(T::from_f64(0.001)));
        let mut acc = [plus; CHAINS];
        for _ in 0..self.rounds {
            for a in &mut acc {
                *a = simd.mul_add(*a, factor, plus);
            }
        }
        for a in acc {
            *self.result += simd.to_array(a)[0];
        }
        *self.operations = 2.0 * (CHAINS * S::LANES) as f64 * self.rounds as f64;
    }
}

/// Floating-point operations per second of one thread that does nothing but multiply-adds in registers, at the level that calls use;
/// takes a few hundredths of a second. Run it on as many threads as the measurement that is compared with it.
pub(super) fn peak_flops<T: Real>() -> Result<f64, MissingLevel> {
    let level = Level::preferred()?;
    let mut best: f64 = 0.0;
    for _ in 0..8 {
        let start = Instant::now();
        let (mut operations, mut result) = (0.0, T::ZERO);
        T::call(level, Chains { rounds: 400_000, operations: &mut operations, result: &mut result });
        std::hint::black_box(result);
        best = best.max(operations / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
