//! The measured ceilings against the kernels that they are compared with.

use super::*;
use crate::matmul::{PackedMatrix, Write};
use ndarray::Array2;

/// Operations per second of a product that stays in the caches.
fn product_flops<T: Real>() -> f64 {
    let n = 96;
    let (lhs, rhs) = (Array2::from_elem((n, n), T::ONE), Array2::from_elem((n, n), T::ONE));
    let (mut dst, mut packed) = (Array2::from_elem((n, n), T::ZERO), PackedMatrix::default());
    packed.pack(rhs.view());
    let mut best: f64 = 0.0;
    for _ in 0..200 {
        let start = Instant::now();
        packed.matmul(dst.view_mut(), Write::Replace, lhs.view());
        best = best.max(2.0 * (n * n * n) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

#[test]
fn the_ceiling_is_above_what_the_kernels_reach() {
    let level = Level::preferred().expect("a level");
    for (kind, reached, ceiling) in [("f32", product_flops::<f32>(), flops_f32(level)), ("f64", product_flops::<f64>(), flops_f64(level))] {
        // Other programs on the machine may slow down either measurement.
        assert!(ceiling > 0.8 * reached, "{kind}: {ceiling:e} per second in registers, {reached:e} in a product");
    }
    for level in Level::available() {
        assert!(flops_f32(level) > 1e8 && flops_f64(level) > 1e8, "{level:?}");
        assert!(exponentials_f32(level) > 1e7 && exponentials_f64(level) > 1e7, "{level:?}");
        // Other programs on the machine may slow down either measurement.
        let ahead = |pairs: f64| pairs > flops_f32(level);
        assert_eq!(flops_bf16(level).map(ahead), (level >= Level::Avx512Bf16).then_some(true), "{level:?}");
    }
}

#[test]
fn sums_of_words_count_every_word() {
    for n in [0, 1, 7, 8, 9, 1000] {
        let words: Vec<u64> = (0..n).map(|i| i * i).collect();
        assert_eq!(sum_words(&words), words.iter().sum::<u64>());
    }
}
