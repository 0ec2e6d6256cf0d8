//! The two-layer networks of a block.
//!
//! ```text
//! GELU     y = gelu(x U + b) D + c             gelu(h) = h cdf(h), the exact one
//! SwiGLU   y = (silu(x G) * (x U)) D           silu(h) = h / (1 + exp(-h)); G and U side by side
//! ```
//!
//! The forward pass keeps the activation and, in the place of what it was made from, its derivative: the backward pass
//! is then one multiplication per element.

use crate::float::{Float, kernel};
use crate::linear::{Linear, Write, add_to_rows};
use crate::params::Layout;
use regard::matmul::Packed;
use serde::{Deserialize, Serialize};

/// Which network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MlpKind {
    /// One linear layer up, GELU, one down, with biases.
    #[default]
    Gelu,
    /// A gate beside the layer up, without biases.
    SwiGlu,
}

/// The network of a block, from `width` over `hidden` to `width`.
#[derive(Debug, Clone)]
pub struct Mlp {
    kind: MlpKind,
    up: Linear,
    down: Linear,
}

impl Mlp {
    /// A network of `hidden` units.
    pub fn new(layout: &mut Layout, kind: MlpKind, width: usize, hidden: usize) -> Self {
        let gelu = kind == MlpKind::Gelu;
        Self {
            kind,
            up: Linear::new(layout, if gelu { "up" } else { "gate_up" }, width, if gelu { hidden } else { 2 * hidden }, gelu),
            down: Linear::new(layout, "down", hidden, width, gelu),
        }
    }

    /// Numbers per row before the activation.
    pub fn inner(&self) -> usize {
        self.up.outputs()
    }

    /// Numbers per row after it.
    pub fn hidden(&self) -> usize {
        self.down.inputs()
    }

    /// Width of rows in and out.
    pub fn width(&self) -> usize {
        self.up.inputs()
    }

    /// Pack the weights for [`Mlp::forward`].
    pub fn pack<T: Float>(&self, p: &[T], [up, down]: &mut [Packed<T>; 2]) {
        self.up.pack(p, up);
        self.down.pack(p, down);
    }

    /// Pack the weights for [`Mlp::backward`].
    pub fn pack_turned<T: Float>(&self, p: &[T], [up, down]: &mut [Packed<T>; 2]) {
        self.up.pack_turned(p, up);
        self.down.pack_turned(p, down);
    }

    /// `y += mlp(x)` for rows on the calling thread; what the backward pass needs is left in `inner` and `act`.
    pub fn forward<T: Float>(&self, p: &[T], [up, down]: &[Packed<T>; 2], x: &[T], inner: &mut [T], act: &mut [T], y: &mut [T]) {
        self.up.product(up, x, inner, Write::Replace);
        match self.up.bias(p) {
            Some(bias) => gelu_rows(bias, inner, act),
            None => swiglu_rows(self.hidden(), inner, act),
        }
        self.down.product(down, act, y, Write::Add);
        if let Some(bias) = self.down.bias(p) {
            add_to_rows(y, bias);
        }
    }

    /// `y = mlp(x)` of any number of rows; nothing is kept for a backward pass.
    pub fn forward_only<T: Float>(&self, p: &[T], x: &[T], inner: &mut [T], act: &mut [T], y: &mut [T]) {
        self.up.forward(p, x, inner);
        match self.kind {
            MlpKind::Gelu => gelu_only(inner, act),
            MlpKind::SwiGlu => swiglu_rows(self.hidden(), inner, act),
        }
        self.down.forward(p, act, y);
    }

    /// Gradient of rows on the calling thread: `dx` is written, `inner` (the derivative) becomes the gradient on what
    /// went into the activation; `d_act` is scratch.
    pub fn backward<T: Float>(&self, [up, down]: &[Packed<T>; 2], dy: &[T], d_act: &mut [T], inner: &mut [T], dx: &mut [T]) {
        self.down.input_gradient(down, dy, d_act, Write::Replace);
        match self.kind {
            MlpKind::Gelu => multiply(inner, d_act),
            MlpKind::SwiGlu => multiply_twice(self.hidden(), inner, d_act),
        }
        self.up.input_gradient(up, inner, dx, Write::Replace);
    }

    /// Gradients of the layer up, after [`Mlp::backward`] of all rows: x went in, `d_inner` is what `inner` became.
    pub fn up_gradient<T: Float>(&self, g: &mut [T], x: &[T], d_inner: &[T]) {
        self.up.weight_gradient(g, x, d_inner);
    }

    /// Gradients of the layer down.
    pub fn down_gradient<T: Float>(&self, g: &mut [T], act: &[T], dy: &[T]) {
        self.down.weight_gradient(g, act, dy);
    }
}

kernel! {
    /// h = inner + bias; act = gelu(h); inner = gelu'(h).
    fn gelu_rows<'a, T>(bias: &'a [T], inner: &'a mut [T], act: &'a mut [T]) -> () {
        for (inner, act) in inner.chunks_exact_mut(bias.len()).zip(act.chunks_exact_mut(bias.len())) {
            for ((inner, act), &b) in inner.iter_mut().zip(act).zip(bias) {
                let h = *inner + b;
                let (cdf, pdf) = h.normal();
                *act = h * cdf;
                *inner = h.mul_add(pdf, cdf);
            }
        }
    }
}

kernel! {
    /// act = gelu(h)
    fn gelu_only<'a, T>(h: &'a [T], act: &'a mut [T]) -> () {
        for (&h, act) in h.iter().zip(act) {
            *act = h * h.normal().0;
        }
    }
}

kernel! {
    /// inner holds rows of (gate, up): act = silu(gate) * up; gate becomes d act / d gate, up becomes d act / d up.
    fn swiglu_rows<'a, T>(hidden: usize, inner: &'a mut [T], act: &'a mut [T]) -> () {
        for (inner, act) in inner.chunks_exact_mut(2 * hidden).zip(act.chunks_exact_mut(hidden)) {
            let (gate, up) = inner.split_at_mut(hidden);
            for ((gate, up), act) in gate.iter_mut().zip(up).zip(act) {
                let sigmoid = T::ONE / (T::ONE + (-*gate).exp());
                let silu = *gate * sigmoid;
                *act = silu * *up;
                *gate = *up * (sigmoid + silu * (T::ONE - sigmoid));
                *up = silu;
            }
        }
    }
}

kernel! {
    /// inner *= d_act
    fn multiply<'a, T>(inner: &'a mut [T], d_act: &'a [T]) -> () {
        for (inner, &d) in inner.iter_mut().zip(d_act) {
            *inner *= d;
        }
    }
}

kernel! {
    /// Both halves of each row of inner *= d_act
    fn multiply_twice<'a, T>(hidden: usize, inner: &'a mut [T], d_act: &'a [T]) -> () {
        for (inner, d_act) in inner.chunks_exact_mut(2 * hidden).zip(d_act.chunks_exact(hidden)) {
            let (gate, up) = inner.split_at_mut(hidden);
            for ((gate, up), &d) in gate.iter_mut().zip(up).zip(d_act) {
                *gate *= d;
                *up *= d;
            }
        }
    }
}
