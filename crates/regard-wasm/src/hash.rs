//! The bits of attention on this engine as one hash, and its error against sums in f64 that share no code with it.

use ndarray::Array4;
use regard::{Attention, Mask};
use sha2::{Digest, Sha256};

/// Elements in [-1, 1) from a linear congruence.
fn tensor(seed: u64, shape: (usize, usize, usize, usize)) -> Array4<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    Array4::from_shape_simple_fn(shape, || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    })
}

/// One element of the output by sums in f64; `visible` is the mask.
fn expected([q, k, v]: [&Array4<f32>; 3], [head, row, d]: [usize; 3], visible: impl Fn(usize) -> bool) -> f64 {
    let (seq, dim) = (k.dim().2, k.dim().3);
    let score = |key: usize| (0..dim).map(|i| f64::from(q[[0, head, row, i]]) * f64::from(k[[0, head, key, i]])).sum::<f64>();
    let scores: Vec<(usize, f64)> = (0..seq).filter(|key| visible(*key)).map(|key| (key, score(key) / (dim as f64).sqrt())).collect();
    let top = scores.iter().map(|(_, score)| *score).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|(_, score)| (score - top).exp()).sum();
    scores.iter().map(|(key, score)| (score - top).exp() / sum * f64::from(v[[0, head, *key, d]])).sum()
}

/// SHA-256 of outputs and gradients over sizes and masks, and the largest error of an output.
pub(crate) fn hash() -> regard::Result<(String, f64)> {
    let (mut hash, mut worst) = (Sha256::new(), 0f64);
    for (number, &(seq, dim)) in [(1, 8), (17, 16), (64, 32), (129, 64), (300, 24)].iter().enumerate() {
        let [q, k, v, d_out] = [1, 2, 3, 4].map(|seed| tensor(seed + 10 * number as u64, (1, 2, seq, dim)));
        for window in [None, Some(5)] {
            let attention = match window {
                Some(window) => Attention::new().causal().mask(Mask::window(Some(window), Some(0))),
                None => Attention::new().causal(),
            };
            let saved = attention.forward_saved(&q, &k, &v)?;
            let gradients = attention.backward(&q, &k, &v, &saved, &d_out)?;
            let out = attention.forward(&q, &k, &v)?.out;
            for x in [&out, &gradients.dq, &gradients.dk, &gradients.dv].into_iter().flatten() {
                hash.update(x.to_le_bytes());
            }
            for row in [0, seq / 2, seq - 1] {
                let visible = |key: usize| key <= row && window.is_none_or(|window| key + window >= row);
                let error = (f64::from(out[[0, 1, row, dim - 1]]) - expected([&q, &k, &v], [1, row, dim - 1], visible)).abs();
                // NaN is the largest error.
                worst = if error <= worst { worst } else { error };
            }
        }
    }
    Ok((hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), worst))
}
