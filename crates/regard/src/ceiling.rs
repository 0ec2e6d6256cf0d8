//! How fast multiply-adds can be on this CPU: the ceiling that a measurement is put against.

use crate::error::Result;
use crate::simd::{Lanes, Level, Operation, Real};
use std::time::Instant;

/// Independent chains: more than latency times ports of any CPU so far, and fewer than the registers of AVX2.
const CHAINS: usize = 12;

struct MultiplyAdds {
    rounds: u64,
}

impl<T: Real> Operation<T> for MultiplyAdds {
    type Output = (f64, T);

    /// Floating-point operations, and a number that depends on all of them.
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) -> Self::Output {
        simd.call(Chains { rounds: self.rounds })
    }
}

struct Chains {
    rounds: u64,
}

impl<T: Real> Operation<T> for Chains {
    type Output = (f64, T);

    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) -> Self::Output {
        let (factor, plus) = (simd.splat(T::from_f64(0.999)), simd.splat(T::from_f64(0.001)));
        let mut acc = [plus; CHAINS];
        for _ in 0..self.rounds {
            for a in &mut acc {
                *a = simd.mul_add(*a, factor, plus);
            }
        }
        let mut lanes = [T::ZERO; 16];
        let mut sum = T::ZERO;
        for a in acc {
            // SAFETY: 16 >= LANES places.
            unsafe { simd.store(lanes.as_mut_ptr(), a) };
            sum += lanes[0];
        }
        (2.0 * (CHAINS * S::LANES) as f64 * self.rounds as f64, sum)
    }
}

/// Floating-point operations per second of one thread that does nothing but multiply-adds in registers, at the level that calls use;
/// takes a few hundredths of a second. Run it on as many threads as the measurement that is compared with it.
///
/// ```
/// assert!(regard::ceiling::<f32>()? > 1e8);
/// # Ok::<(), regard::Error>(())
/// ```
///
/// # Errors
/// When `REGARD_SIMD` names a level that is not there.
pub fn ceiling<T: Real>() -> Result<f64> {
    let level = Level::preferred()?;
    let mut best: f64 = 0.0;
    for _ in 0..8 {
        let start = Instant::now();
        let (operations, result) = std::hint::black_box(T::dispatch(level, MultiplyAdds { rounds: 400_000 }));
        std::hint::black_box(result);
        best = best.max(operations / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
