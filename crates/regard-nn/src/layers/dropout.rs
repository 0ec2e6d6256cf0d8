//! Dropout whose mask is a pure function of a key and the element's number: nothing is stored, forward and backward agree, and
//! neither pieces nor threads matter.

use crate::float::{Float, kernel};
use crate::random::Draws;

/// Which elements of one buffer are dropped in one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    key: u32,
    /// Elements whose hash is below it are dropped.
    threshold: u32,
    scale: f64,
}

impl Dropout {
    /// Drop with probability `p` in [0, 1), scale what stays by `1 / (1 - p)`; `place` names the buffer.
    pub fn new(p: f64, seed: u64, place: u64) -> Option<Self> {
        (p > 0.0).then(|| Self {
            key: Draws::at(seed, &[0xD809, place]).bits() as u32,
            threshold: (p * 4_294_967_296.0) as u32,
            scale: 1.0 / (1.0 - p),
        })
    }

    /// Apply to elements that begin at number `first` of the buffer; the gradient is the same function.
    pub fn apply<T: Float>(&self, first: usize, x: &mut [T]) {
        drop_elements(self.key, self.threshold, T::from_f64(self.scale), first as u32, x);
    }
}

/// A hash of 32 bits with good avalanche, cheap on vectors.
#[inline(always)]
const fn hash(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}

kernel! {
    fn drop_elements<'a, T>(key: u32, threshold: u32, scale: T, first: u32, x: &'a mut [T]) -> () {
        for (i, x) in (0u32..).zip(x) {
            let keep = hash(hash(first.wrapping_add(i)) ^ key) >= threshold;
            *x = if keep { *x * scale } else { T::ZERO };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_mean_and_pieces() {
        let dropout = Dropout::new(0.3, 5, 1).expect("on");
        let mut x = vec![1f32; 100_000];
        dropout.apply(0, &mut x);
        let kept = x.iter().filter(|x| **x != 0.0).count() as f64 / x.len() as f64;
        assert!((kept - 0.7).abs() < 0.005, "{kept}");
        assert!(x.iter().all(|&x| x == 0.0 || x == (1.0 / 0.7) as f32));
        let mut pieces = vec![1f32; 100_000];
        let (a, b) = pieces.split_at_mut(777);
        dropout.apply(777, b);
        dropout.apply(0, a);
        assert_eq!(x, pieces);
        assert!(Dropout::new(0.0, 5, 1).is_none());
        let mut other = vec![1f32; 100_000];
        Dropout::new(0.3, 5, 2).expect("on").apply(0, &mut other);
        assert_ne!(x, other);
    }
}
