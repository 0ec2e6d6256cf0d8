//! How fast multiply-adds can be on this CPU: the peak that a measurement is put against.

use crate::float::Real;
use crate::level::{Level, MissingLevel};
use crate::simd::{Kernel, Simd};
use std::time::Instant;

/// Independent chains: more than latency times ports of any CPU so far, and fewer than the registers of AVX2.
const CHAINS: usize = 12;

struct Chains {
    rounds: u64,
}

impl<T: Real> Kernel<T> for Chains {
    type Output = (f64, T);

    /// Floating-point operations, and a number that depends on all of them.
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) -> Self::Output {
        let (factor, plus) = (simd.splat(T::from_f64(0.999)), simd.splat(T::from_f64(0.001)));
        let mut acc = [plus; CHAINS];
        for _ in 0..self.rounds {
            for a in &mut acc {
                *a = simd.mul_add(*a, factor, plus);
            }
        }
        let mut sum = T::ZERO;
        for a in acc {
            sum += simd.to_array(a)[0];
        }
        (2.0 * (CHAINS * S::LANES) as f64 * self.rounds as f64, sum)
    }
}

/// Floating-point operations per second of one thread that does nothing but multiply-adds in registers, at the level that calls use;
/// takes a few hundredths of a second. Run it on as many threads as the measurement that is compared with it.
///
/// ```
/// assert!(regard_simd::peak::peak_flops::<f32>()? > 1e8);
/// # Ok::<(), regard_simd::MissingLevel>(())
/// ```
///
/// # Errors
/// When `REGARD_SIMD` names a level that is not there.
pub fn peak_flops<T: Real>() -> Result<f64, MissingLevel> {
    let level = Level::preferred()?;
    let mut best: f64 = 0.0;
    for _ in 0..8 {
        let start = Instant::now();
        let (operations, result) = std::hint::black_box(T::call(level, Chains { rounds: 400_000 }));
        std::hint::black_box(result);
        best = best.max(operations / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
