//! Numbers that both sides of a comparison can make.

use regard_nn::Float;
use regard_nn::params::Layout;

/// The numbers of `nn_golden_maker.py`.
pub fn numbers<T: Float>(count: usize, seed: f64) -> Vec<T> {
    (0..count).map(|i| i as f64).map(|i| T::from_f64((seed + 0.7 * i + 0.013 * i * i).sin())).collect()
}

/// Its parameters: gains are around one, all else around zero.
pub fn parameters<T: Float>(layout: &Layout) -> Vec<T> {
    let mut values = Vec::new();
    for entry in layout.entries() {
        let base = if entry.name.ends_with("gain") { 1.0 } else { 0.0 };
        values.extend(entry.range.clone().map(|i| i as f64).map(|i| T::from_f64(0.3 * (0.5 + 0.7 * i + 0.013 * i * i).sin() + base)));
    }
    values
}

/// Its tokens.
pub fn tokens(count: usize, seed: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i + 3 * i + seed) % vocab) as u32).collect()
}

/// The largest difference.
pub fn worst<T: Float>(got: &[T], right: &[f64]) -> f64 {
    assert_eq!(got.len(), right.len());
    got.iter().zip(right).map(|(g, r)| (g.to_f64() - r).abs()).fold(0.0, f64::max)
}
