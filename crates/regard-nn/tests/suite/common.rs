//! Numbers that both sides of a comparison can make.

use regard_nn::Float;
use regard_nn::tensors::layout::Layout;

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

/// The largest number; NaN when one of them is. (`f64::max` would drop it.)
pub fn max(numbers: impl IntoIterator<Item = f64>) -> f64 {
    numbers.into_iter().fold(0.0, |max, x| if x.is_nan() || x > max { if max.is_nan() { max } else { x } } else { max })
}

/// The largest difference; NaN when one of the numbers is.
pub fn worst<T: Float>(got: &[T], right: &[f64]) -> f64 {
    assert_eq!(got.len(), right.len());
    max(got.iter().zip(right).map(|(g, r)| (g.to_f64() - r).abs()))
}

#[test]
fn one_nan_among_many_numbers_fails_a_comparison() {
    for at in 0..4 {
        let mut got = [1.0, 2.0, 3.0, 4.0];
        got[at] = f64::NAN;
        assert!(worst(&got, &[1.0, 2.0, 3.0, 4.0]).is_nan());
        assert!(max(got).is_nan());
    }
    assert_eq!(max([1.0, 3.0, 2.0]), 3.0);
}
