//! Options together with what a plain loop needs to know of them.

use super::{Inputs, Normal, Shape, to};
use ndarray::{Array3, Array4};
use regard::reference::Reference;
use regard::{Attention, Bias, Element, Real, Scale};

/// [`Attention`] keeps its options to itself; the plain computation needs those that are not in the textbook's scores.
#[derive(Debug, Clone, Default)]
pub struct Recipe<'a> {
    pub attention: Attention<'a>,
    scale: Scale,
    softcap: Option<f64>,
    sink: Option<Vec<f64>>,
}

impl<'a> Recipe<'a> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(mut self, f: impl FnOnce(Attention<'a>) -> Attention<'a>) -> Self {
        self.attention = f(self.attention);
        self
    }

    pub fn scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self.with(|a| a.scale(scale))
    }

    pub fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self.with(|a| a.softcap(cap))
    }

    pub fn sink(mut self, logits: Vec<f64>) -> Self {
        self.sink = Some(logits.clone());
        self.with(|a| a.sink(logits))
    }

    /// A dense bias of that shape; every seventh or so number hides its key.
    pub fn dense_bias(self, shape: [usize; 4], seed: u64) -> Self {
        let mut numbers = Normal::new(seed);
        let bias = Array4::from_shape_simple_fn(shape, || match numbers.below(7) {
            0 => f32::NEG_INFINITY,
            _ => numbers.number() as f32,
        });
        self.with(|a| a.bias(Bias::Dense(bias.into())))
    }

    /// Sink logits for every head of a shape.
    pub fn some_sink(self, shape: &Shape) -> Self {
        self.sink((0..shape.heads_q).map(|h| h as f64 - 1.0).collect())
    }
}

/// The result of the plain loop.
pub struct Plain<E: Element> {
    pub raw: Array4<E::Real>,
    pub capped: Array4<E::Real>,
    pub scores: Array4<E::Real>,
    pub weights: Array4<E::Real>,
    pub lse: Array3<E::Real>,
    pub out: Array4<E>,
}

/// Three loops in the arithmetic of `E`, nothing clever. What is hidden, and the bias, are read off the textbook's scores.
pub fn naive<E: Element>(recipe: &Recipe<'_>, x: &Inputs<E>, exact: &Reference) -> Plain<E> {
    let real = E::Real::from_f64;
    let exp = |x: E::Real| real(x.to_f64().exp());
    let (batch, heads_q, seq_q, head_dim) = x.q.dim();
    let (_, heads_kv, seq_kv, value_dim) = x.v.dim();
    let scale = real(match recipe.scale {
        Scale::InvSqrtDim => 1.0 / (head_dim.max(1) as f64).sqrt(),
        Scale::Off => 1.0,
        Scale::By(x) => x,
    });
    let shape = [batch, heads_q, seq_q, seq_kv];
    let zeros = || Array4::from_elem(shape, E::Real::ZERO);
    let (mut raw, mut capped, mut scores, mut weights) = (zeros(), zeros(), zeros(), zeros());
    let mut lse = Array3::from_elem([batch, heads_q, seq_q], E::Real::HIDDEN);
    let mut out = Array4::from_elem([batch, heads_q, seq_q, value_dim], to::<E>(0.0));
    for b in 0..batch {
        for h in 0..heads_q {
            let kv = h / (heads_q / heads_kv);
            for i in 0..seq_q {
                let mut max = recipe.sink.as_ref().map_or(E::Real::HIDDEN, |s| real(s[h]));
                for j in 0..seq_kv {
                    let at = [b, h, i, j];
                    let mut dot = E::Real::ZERO;
                    for d in 0..head_dim {
                        dot += x.q[[b, h, i, d]].to_real() * x.k[[b, kv, j, d]].to_real();
                    }
                    raw[at] = dot * scale;
                    capped[at] = recipe.softcap.map_or(raw[at], |cap| real(cap) * real((raw[at] / real(cap)).to_f64().tanh()));
                    let hidden = exact.scores[at] == f64::NEG_INFINITY;
                    scores[at] = if hidden { E::Real::HIDDEN } else { capped[at] + real(exact.scores[at] - exact.capped[at]) };
                    if max < scores[at] {
                        max = scores[at];
                    }
                }
                if max == E::Real::HIDDEN {
                    continue;
                }
                let mut sum = recipe.sink.as_ref().map_or(E::Real::ZERO, |s| exp(real(s[h]) - max));
                for j in 0..seq_kv {
                    sum += exp(scores[[b, h, i, j]] - max);
                }
                lse[[b, h, i]] = max + sum.ln();
                let mut row = vec![E::Real::ZERO; value_dim];
                for j in (0..seq_kv).filter(|&j| exact.scores[[b, h, i, j]] != f64::NEG_INFINITY) {
                    let w = exp(scores[[b, h, i, j]] - max) / sum;
                    weights[[b, h, i, j]] = w;
                    for (d, o) in row.iter_mut().enumerate() {
                        *o += w * x.v[[b, kv, j, d]].to_real();
                    }
                }
                for (d, o) in row.into_iter().enumerate() {
                    out[[b, h, i, d]] = E::from_real(o);
                }
            }
        }
    }
    Plain { raw, capped, scores, weights, lse, out }
}
