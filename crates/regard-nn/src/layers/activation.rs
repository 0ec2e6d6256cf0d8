//! What stands between the two layers of a network.
//!
//! ```text
//! GELU         h cdf(h)                                           the exact one
//! GELU, tanh   h / 2 (1 + tanh(sqrt(2 / pi) (h + 0.044715 h^3)))
//! SiLU         h / (1 + exp(-h))
//! ReLU         max(h, 0)
//! ```
//!
//! The derivative is made along with the value and kept in the place of what both were made from: the backward pass is then
//! one multiplication per element.

use crate::float::{Float, kernel};
use serde::{Deserialize, Serialize};

/// Which function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `h cdf(h)`.
    #[default]
    Gelu,
    /// Its approximation by a hyperbolic tangent, which GPT-2 was trained with.
    GeluTanh,
    /// `h / (1 + exp(-h))`.
    Silu,
    /// `max(h, 0)`.
    Relu,
}

#[inline(always)]
fn gelu<T: Float>(h: T) -> (T, T) {
    let (cdf, pdf) = h.normal();
    (h * cdf, h.mul_add(pdf, cdf))
}

#[inline(always)]
fn gelu_tanh<T: Float>(h: T) -> (T, T) {
    let (root, cubic) = (T::from_f64(0.797_884_560_802_865_4), T::from_f64(0.044_715));
    let two = T::ONE + T::ONE;
    let square = h * h;
    let u = root * h * (cubic.mul_add(square, T::ONE));
    // tanh(u) = 1 - 2 / (exp(2 u) + 1)
    let tanh = T::ONE - two / ((two * u).exp() + T::ONE);
    let half = T::from_f64(0.5);
    let slope = root * (T::from_f64(3.0 * 0.044_715).mul_add(square, T::ONE));
    (half * h * (T::ONE + tanh), half * (T::ONE + tanh) + half * h * (T::ONE - tanh * tanh) * slope)
}

#[inline(always)]
fn silu<T: Float>(h: T) -> (T, T) {
    let sigmoid = T::ONE / (T::ONE + (-h).exp());
    let silu = h * sigmoid;
    (silu, sigmoid + silu * (T::ONE - sigmoid))
}

#[inline(always)]
fn relu<T: Float>(h: T) -> (T, T) {
    // NaN is not below zero, and stays.
    if h <= T::ZERO { (T::ZERO, T::ZERO) } else { (h, T::ONE) }
}

macro_rules! rows {
    ($plain:ident, $gated:ident, $function:ident) => {
        kernel! {
            /// h = inner + bias; act = f(h); inner = f'(h).
            fn $plain<'a, T>(bias: Option<&'a [T]>, inner: &'a mut [T], act: &'a mut [T]) -> () {
                match bias {
                    Some(bias) => {
                        for (inner, act) in inner.chunks_exact_mut(bias.len()).zip(act.chunks_exact_mut(bias.len())) {
                            for ((inner, act), &b) in inner.iter_mut().zip(act).zip(bias) {
                                (*act, *inner) = $function(*inner + b);
                            }
                        }
                    }
                    None => {
                        for (inner, act) in inner.iter_mut().zip(act) {
                            (*act, *inner) = $function(*inner);
                        }
                    }
                }
            }
        }

        kernel! {
            /// One row: act = f(gate) * up; gate becomes d act / d gate, up becomes d act / d up. One only: in a loop over rows, whose
            /// gates and ups alternate in memory, the compiler cannot tell them apart, and takes one element at a time.
            fn $gated<'a, T>(gate: &'a mut [T], up: &'a mut [T], act: &'a mut [T]) -> () {
                for ((gate, up), act) in gate.iter_mut().zip(up).zip(act) {
                    let (value, slope) = $function(*gate);
                    *act = value * *up;
                    *gate = *up * slope;
                    *up = value;
                }
            }
        }
    };
}

rows!(gelu_rows, gelu_gated, gelu);
rows!(gelu_tanh_rows, gelu_tanh_gated, gelu_tanh);
rows!(silu_rows, silu_gated, silu);
rows!(relu_rows, relu_gated, relu);

impl Activation {
    /// `act = f(inner + bias)`; `inner` becomes the derivative there.
    pub fn apply<T: Float>(self, bias: Option<&[T]>, inner: &mut [T], act: &mut [T]) {
        match self {
            Self::Gelu => gelu_rows(bias, inner, act),
            Self::GeluTanh => gelu_tanh_rows(bias, inner, act),
            Self::Silu => silu_rows(bias, inner, act),
            Self::Relu => relu_rows(bias, inner, act),
        }
    }

    /// Rows of `(gate, up)`, each `hidden` wide: `act = f(gate) * up`; `inner` becomes the derivatives.
    pub fn apply_gated<T: Float>(self, hidden: usize, inner: &mut [T], act: &mut [T]) {
        for (inner, act) in inner.chunks_exact_mut((2 * hidden).max(1)).zip(act.chunks_exact_mut(hidden.max(1))) {
            let (gate, up) = inner.split_at_mut(hidden);
            match self {
                Self::Gelu => gelu_gated(gate, up, act),
                Self::GeluTanh => gelu_tanh_gated(gate, up, act),
                Self::Silu => silu_gated(gate, up, act),
                Self::Relu => relu_gated(gate, up, act),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The textbook.
    fn definition(activation: Activation, h: f64) -> f64 {
        match activation {
            Activation::Gelu => 0.5 * h * libm::erfc(-h / 2f64.sqrt()),
            Activation::GeluTanh => 0.5 * h * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (h + 0.044_715 * h.powi(3))).tanh()),
            Activation::Silu => h / (1.0 + (-h).exp()),
            Activation::Relu => h.max(0.0),
        }
    }

    #[test]
    fn values_and_slopes_are_the_definitions() {
        let x: Vec<f64> = (-400..400).map(|i| 0.025 * f64::from(i) + 0.003).collect();
        for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu] {
            let (mut inner, mut act) = (x.clone(), vec![0.0; x.len()]);
            activation.apply(None, &mut inner, &mut act);
            let (mut inner32, mut act32) = (x.iter().map(|x| *x as f32).collect::<Vec<_>>(), vec![0f32; x.len()]);
            activation.apply(None, &mut inner32, &mut act32);
            for (i, &h) in x.iter().enumerate() {
                let slope = (definition(activation, h + 1e-6) - definition(activation, h - 1e-6)) / 2e-6;
                assert!((act[i] - definition(activation, h)).abs() < 1e-12, "{activation:?}({h}) = {}", act[i]);
                assert!((inner[i] - slope).abs() < 1e-8, "{activation:?}'({h}) = {}, not {slope}", inner[i]);
                assert!(
                    (f64::from(act32[i]) - act[i]).abs() < 4e-6 && (f64::from(inner32[i]) - inner[i]).abs() < 4e-6,
                    "{activation:?}({h})"
                );
            }
            let (mut inner, mut act) = ([f64::NAN, 1.0], [0.0; 1]);
            activation.apply_gated(1, &mut inner, &mut act);
            assert!(act[0].is_nan(), "{activation:?}");
        }
    }
}
