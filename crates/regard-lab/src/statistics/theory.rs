//! Exact expectations of a row of attention weights over random queries and keys, by quadrature: no sampling.
//!
//! With independent standard normal numbers in q and k, the scores of a row are, given q, independent normal numbers of standard deviation
//! `s = |q|` (unscaled) or `|q| / sqrt(d_k)` (scaled), and `|q|` is chi-distributed. So every expectation is one over `s`, of functions of
//! `s` and the number of keys `n` alone. With `z = u + s x`, `x` normal, and `M(u) = E exp(-e^z)`:
//!
//! ```text
//! E ln Z      = -gamma - a - integral from a of M(u)^n du             a far to the left, where M = 1
//! E sum w^2   = n integral of E[e^(2z) exp(-e^z)] M^(n-1) du
//! E entropy   = E ln Z - s^2 (1 - E sum w^2)                          (Stein: E sum w x = s (1 - E sum w^2))
//! E max w     = n integral of phi(x) e^(v - e^v) G(x, v)^(n-1) dv dx,   G = integral over y < x of phi(y) exp(-e^(v + s (y - x)))
//! ```
//!
//! All integrands are smooth and die out on both sides, where equal steps converge faster than any power of the step.

use rayon::prelude::*;
use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::sync::{Mutex, PoisonError};

const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

/// Expectations of a row's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RowExpectation {
    /// `E[-sum(w ln w)]` in nats.
    pub entropy: f64,
    /// `E[max w]`.
    pub max_weight: f64,
    /// `E[sum w^2]`.
    pub sum_of_squares: f64,
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// P(normal < x)
fn below(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

/// Expected maximum of `n` standard normal numbers.
pub fn expected_maximum(n: usize) -> f64 {
    let step = 1.0 / 16.0;
    let points = (-144..=144).map(|i| f64::from(i) * step);
    points.map(|x| n as f64 * x * density(x) * below(x).powi(n as i32 - 1)).sum::<f64>() * step
}

/// Expectations over `n` independent normal scores of standard deviation `s`.
pub fn at_spread(n: usize, s: f64) -> RowExpectation {
    let n_real = n as f64;
    if n <= 1 || s < 1e-9 {
        return RowExpectation { entropy: n_real.ln(), max_weight: 1.0 / n_real, sum_of_squares: 1.0 / n_real };
    }
    let step = 0.25f64.min(s / 2.0);
    let (left, right) = (-9.0 * s - 40.0, 9.0 * s + 6.0);
    let u_step = 0.2 * (1.0 + s * s).sqrt();
    let u_count = ((right - left) / u_step).ceil() as usize;
    let (mut survivors, mut squares) = (0.0, 0.0);
    for i in 0..=u_count {
        let u = left + i as f64 * u_step;
        let (m, a) = kernels(u, s, step);
        survivors += m.powi(n as i32) * if i == 0 { 0.5 } else { 1.0 };
        squares += a * m.powi(n as i32 - 1);
    }
    let log_sum = -EULER_GAMMA - left - survivors * u_step;
    let sum_of_squares = n_real * squares * u_step;
    RowExpectation { entropy: log_sum - s * s * (1.0 - sum_of_squares), max_weight: maximum(n, s), sum_of_squares }
}

/// `E exp(-e^z)` and `E[e^(2z) exp(-e^z)]` for z of mean `u` and standard deviation `s`.
fn kernels(u: f64, s: f64, step: f64) -> (f64, f64) {
    let (low, high) = (((u - 9.0 * s) / step).floor() as i64, (4.5f64.min(u + 9.0 * s) / step).ceil() as i64);
    let (mut m, mut a) = (0.0, 0.0);
    for i in low..=high {
        let z = i as f64 * step;
        let p = density((z - u) / s);
        // Below -38 the kernel is 1 and its square nothing.
        if z < -38.0 {
            m += p;
        } else {
            let e = z.exp();
            let k = p * (-e).exp();
            m += k;
            a += e * e * k;
        }
    }
    ((m * step / s).min(1.0), a * step / s)
}

/// `E max w`.
fn maximum(n: usize, s: f64) -> f64 {
    let reach = (46.0 / s).min(20.0);
    let panels = (reach / (1.5 / s).min(1.0)).ceil() as usize;
    let w = gauss_legendre(0.0, reach, panels);
    let x_step = 0.125;
    let (v_step, v_low) = (0.25, -32.0);
    let v: [f64; 152] = std::array::from_fn(|i| v_low + i as f64 * v_step);
    // The weight of each node and its kernel for each v: sums over nodes are made for all v side by side.
    let kernel: Vec<[f64; 152]> = w.iter().map(|&(w, weight)| v.map(|v| weight * (-(v - s * w).exp()).exp())).collect();
    let of_v = v.map(|v| (v - v.exp()).exp());
    let mut sum = 0.0;
    for i in -48..=68 {
        let x = f64::from(i) * x_step;
        let mut near = [0.0; 152];
        for (&(w, _), line) in w.iter().zip(&kernel) {
            let p = density(x - w);
            for j in 0..near.len() {
                near[j] += line[j] * p;
            }
        }
        let far = below(x - reach);
        let inner: f64 = near.iter().zip(&of_v).map(|(near, of_v)| of_v * (far + near).powi(n as i32 - 1)).sum();
        sum += density(x) * inner;
    }
    n as f64 * sum * x_step * v_step
}

/// Nodes and weights of 8-point Gauss-Legendre rules on `panels` equal parts of `[a, b]`.
fn gauss_legendre(a: f64, b: f64, panels: usize) -> Vec<(f64, f64)> {
    const POINTS: u32 = 8;
    let rule: Vec<(f64, f64)> = (0..POINTS)
        .map(|i| {
            let mut x = (PI * (f64::from(i) + 0.75) / (f64::from(POINTS) + 0.5)).cos();
            let mut slope = 0.0;
            for _ in 0..20 {
                let (mut last, mut p) = (1.0, x);
                for k in 2..=POINTS {
                    let k = f64::from(k);
                    (last, p) = (p, ((2.0 * k - 1.0) * x * p - (k - 1.0) * last) / k);
                }
                slope = f64::from(POINTS) * (x * p - last) / (x * x - 1.0);
                x -= p / slope;
            }
            (x, 2.0 / ((1.0 - x * x) * slope * slope))
        })
        .collect();
    let half = (b - a) / panels as f64 / 2.0;
    let panel = |p: usize| rule.iter().map(move |&(x, w)| (a + half * (2.0 * p as f64 + 1.0 + x), half * w));
    (0..panels).flat_map(panel).collect()
}

/// A rule for the expectation of a smooth function of a chi-distributed number with `d` degrees of freedom.
fn chi_rule(d: usize) -> Vec<(f64, f64)> {
    let centre = (d as f64 - 0.5).sqrt();
    let mut rule =
        if d < 25 { gauss_legendre(0.0, centre + 5.0, 4) } else { (-6..=6).map(|i| (centre + 0.7 * f64::from(i), 1.0)).collect() };
    // The density up to a constant; the weights are made to sum to 1.
    let log_density = |x: f64| (d as f64 - 1.0) * x.ln() - 0.5 * x * x;
    let top = log_density((d as f64 - 1.0).max(0.25).sqrt());
    rule.iter_mut().for_each(|(x, w)| *w *= (log_density(*x) - top).exp());
    let total: f64 = rule.iter().map(|r| r.1).sum();
    rule.iter_mut().for_each(|r| r.1 /= total);
    rule
}

/// Expectations of a row over random queries and keys of dimension `d_k`, with `n` keys. Cached: several experiments need the
/// same values.
pub fn row(n: usize, d_k: usize, scaled: bool) -> RowExpectation {
    static KNOWN: Mutex<BTreeMap<(usize, usize, bool), RowExpectation>> = Mutex::new(BTreeMap::new());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known().get(&(n, d_k, scaled)) {
        return *found;
    }
    let computed = row_at_scale(n, d_k, if scaled { 1.0 / (d_k as f64).sqrt() } else { 1.0 });
    known().insert((n, d_k, scaled), computed);
    computed
}

/// The same for scores that are multiplied by `scale`.
pub fn row_at_scale(n: usize, d_k: usize, scale: f64) -> RowExpectation {
    let parts: Vec<_> = chi_rule(d_k).into_par_iter().map(|(s, w)| (w, at_spread(n, s * scale))).collect();
    parts.into_iter().fold(RowExpectation::default(), |sum, (w, e)| RowExpectation {
        entropy: sum.entropy + w * e.entropy,
        max_weight: sum.max_weight + w * e.max_weight,
        sum_of_squares: sum.sum_of_squares + w * e.sum_of_squares,
    })
}

/// Standard deviation of a dot product of two independent vectors of `d_k` standard normal numbers.
pub fn dot_product_deviation(d_k: usize) -> f64 {
    (d_k as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// n, d_k, then entropy, maximum, sum of squares: unscaled, scaled; five decimals, computed with another program.
    const KNOWN: [(usize, usize, [f64; 3], [f64; 3]); 15] = [
        (4, 16, [0.44868, 0.81935, 0.74657], [1.12056, 0.51158, 0.38871]),
        (4, 64, [0.22053, 0.91010, 0.87161], [1.11592, 0.51569, 0.39113]),
        (4, 256, [0.10826, 0.95523, 0.93569], [1.11472, 0.51674, 0.39176]),
        (4, 1024, [0.05354, 0.97766, 0.96783], [1.11442, 0.51700, 0.39192]),
        (8, 4, [1.28766, 0.52721, 0.39647], [1.74770, 0.34339, 0.22638]),
        (8, 16, [0.67279, 0.74822, 0.65220], [1.72896, 0.35645, 0.23070]),
        (8, 64, [0.31828, 0.87493, 0.82259], [1.72365, 0.35999, 0.23190]),
        (8, 256, [0.15291, 0.93790, 0.91107], [1.72227, 0.36090, 0.23221]),
        (8, 1024, [0.07482, 0.96906, 0.95552], [1.72192, 0.36112, 0.23229]),
        (20, 8, [1.42397, 0.53858, 0.40047], [2.57870, 0.21177, 0.10999]),
        (20, 32, [0.65314, 0.76483, 0.67367], [2.56949, 0.21568, 0.10978]),
        (20, 64, [0.43927, 0.83480, 0.76752], [2.56789, 0.21635, 0.10972]),
        (20, 128, [0.29888, 0.88387, 0.83519], [2.56709, 0.21669, 0.10969]),
        (20, 256, [0.20551, 0.91825, 0.88335], [2.56668, 0.21686, 0.10968]),
        (20, 512, [0.14245, 0.94237, 0.91749], [2.56648, 0.21694, 0.10967]),
    ];

    #[test]
    fn expectations_are_the_known_ones() {
        for (n, d, unscaled, scaled) in KNOWN {
            for (is_scaled, known) in [(false, unscaled), (true, scaled)] {
                let e = row(n, d, is_scaled);
                for (got, known) in [e.entropy, e.max_weight, e.sum_of_squares].into_iter().zip(known) {
                    assert!((got - known).abs() < 1.5e-5, "n = {n}, d_k = {d}, scaled {is_scaled}: {got} instead of {known}");
                }
            }
        }
    }

    #[test]
    fn two_keys_are_a_logistic_function() {
        // w = 1 / (1 + e^-x) with x of standard deviation s sqrt 2.
        for s in [0.05, 0.5, 1.0, 4.0, 30.0, 64.0] {
            let e = at_spread(2, s);
            let sigma = s * std::f64::consts::SQRT_2;
            let step = 0.0005;
            let mut known = RowExpectation::default();
            for i in -18_000..=18_000 {
                let t = f64::from(i) * step;
                let (p, q) = (1.0 / (1.0 + (-sigma * t).exp()), 1.0 / (1.0 + (sigma * t).exp()));
                let plogp = |p: f64| if p > 0.0 { p * p.ln() } else { 0.0 };
                let weight = density(t) * step;
                known.entropy -= weight * (plogp(p) + plogp(q));
                known.max_weight += weight * p.max(q);
                known.sum_of_squares += weight * (p * p + q * q);
            }
            for (got, known) in [(e.entropy, known.entropy), (e.max_weight, known.max_weight), (e.sum_of_squares, known.sum_of_squares)] {
                assert!((got - known).abs() < 2e-5, "s = {s}: {got} instead of {known}");
            }
        }
    }

    #[test]
    fn limits_of_small_and_large_spread_hold() {
        let (n, m) = (8, expected_maximum(8));
        assert!((m - 1.4236).abs() < 1e-4 && (expected_maximum(20) - 1.8675).abs() < 1e-4);
        let small = at_spread(n, 0.01);
        assert!((small.entropy - (8f64.ln() - 1e-4 * (1.0 - 1.0 / 8.0) / 2.0)).abs() < 1e-7);
        assert!((small.max_weight - (1.0 + 0.01 * m) / 8.0).abs() < 2e-5, "{}", small.max_weight);
        let large = at_spread(n, 2000.0);
        assert!((large.entropy / (PI * PI / 6.0 * m / 2000.0) - 1.0).abs() < 2e-3);
        assert!(((1.0 - large.max_weight) / (2f64.ln() * m / 2000.0) - 1.0).abs() < 2e-3);
        assert!(((1.0 - large.sum_of_squares) / (m / 2000.0) - 1.0).abs() < 2e-3);
    }
}
