//! Options together with the plain loops that they are compared with.

use super::oracle::{Answer, Bias, Options};
use super::{Inputs, Normal, Shape, to};
use ndarray::{Array3, Array4};
use regard::{Attention, Element, Real, Scale};

/// What is asked of a call, in words that the judge and the library both understand.
#[derive(Debug, Clone, Default)]
pub struct Recipe {
    pub options: Options,
}

impl Recipe {
    pub fn new() -> Self {
        Self::default()
    }

    /// The call of the library.
    pub fn attention(&self) -> Attention<'_> {
        self.options.attention()
    }

    // Inlined, its default options are a constant that several calls share: rust-lang/rust#155241, mended in Rust 1.97.
    #[inline(never)]
    pub fn with(self, f: impl FnOnce(Options) -> Options) -> Self {
        Self { options: f(self.options) }
    }

    pub fn scale(self, scale: Scale) -> Self {
        let scale = match scale {
            Scale::InvSqrtDim => None,
            Scale::Off => Some(1.0),
            Scale::By(x) => Some(x),
        };
        self.with(|o| Options { scale, ..o })
    }

    pub fn softcap(self, cap: f64) -> Self {
        self.with(|o| o.softcap(cap))
    }

    pub fn sink(self, logits: Vec<f64>) -> Self {
        self.with(|o| o.sink(logits))
    }

    /// A dense bias of that shape; every seventh or so number hides its key.
    pub fn dense_bias(self, shape: [usize; 4], seed: u64) -> Self {
        let mut numbers = Normal::new(seed);
        let bias = Array4::from_shape_simple_fn(shape, || match numbers.below(7) {
            0 => f32::NEG_INFINITY,
            _ => numbers.number() as f32,
        });
        self.with(|o| o.bias(Bias::Dense(bias)))
    }

    pub fn has_sink(&self) -> bool {
        self.options.sink.is_some()
    }

    /// The shape of the dense bias, if there is one.
    pub fn bias_shape(&self) -> Option<[usize; 4]> {
        self.options.biases.iter().find_map(|bias| match bias {
            Bias::Dense(x) if self.options.bias_gradient => Some(x.dim().into()),
            _ => None,
        })
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
    pub max: Array3<E::Real>,
    pub sum: Array3<E::Real>,
    pub lse: Array3<E::Real>,
    pub out: Array4<E>,
}

/// Three loops in the arithmetic of `E`, nothing clever. What is hidden, and the bias, are the judge's.
pub fn naive<E: Element>(recipe: &Recipe, x: &Inputs<E>, exact: &Answer) -> Plain<E> {
    let real = E::Real::from_f64;
    let exp = |x: E::Real| real(x.to_f64().exp());
    let (batch, heads_q, seq_q, head_dim) = x.q.dim();
    let (_, heads_kv, seq_kv, value_dim) = x.v.dim();
    let scale = real(recipe.options.factor(&exact.dims));
    let shape = [batch, heads_q, seq_q, seq_kv];
    let zeros = || Array4::from_elem(shape, E::Real::ZERO);
    let (mut raw, mut capped, mut scores, mut weights) = (zeros(), zeros(), zeros(), zeros());
    let mut lse = Array3::from_elem([batch, heads_q, seq_q], E::Real::NEG_INFINITY);
    let (mut maxima, mut sums) = (lse.clone(), Array3::from_elem([batch, heads_q, seq_q], E::Real::ONE));
    let mut out = Array4::from_elem([batch, heads_q, seq_q, value_dim], to::<E>(0.0));
    for b in 0..batch {
        for h in 0..heads_q {
            let kv = h / (heads_q / heads_kv);
            for i in 0..seq_q {
                let mut max = recipe.options.sink.as_ref().map_or(E::Real::NEG_INFINITY, |s| real(s[h]));
                for j in 0..seq_kv {
                    let at = [b, h, i, j];
                    let mut dot = E::Real::ZERO;
                    for d in 0..head_dim {
                        dot += x.q[[b, h, i, d]].to_real() * x.k[[b, kv, j, d]].to_real();
                    }
                    raw[at] = dot * scale;
                    capped[at] = recipe.options.softcap.map_or(raw[at], |cap| real(cap) * real((raw[at] / real(cap)).to_f64().tanh()));
                    let hidden = !exact.visible[at];
                    scores[at] = if hidden { E::Real::NEG_INFINITY } else { capped[at] + real(exact.scores[at] - exact.capped[at]) };
                    if max < scores[at] {
                        max = scores[at];
                    }
                }
                if max == E::Real::NEG_INFINITY {
                    continue;
                }
                let mut sum = recipe.options.sink.as_ref().map_or(E::Real::ZERO, |s| exp(real(s[h]) - max));
                for j in 0..seq_kv {
                    sum += exp(scores[[b, h, i, j]] - max);
                }
                (maxima[[b, h, i]], sums[[b, h, i]]) = (max, sum);
                lse[[b, h, i]] = max + sum.ln();
                let mut row = vec![E::Real::ZERO; value_dim];
                for j in (0..seq_kv).filter(|&j| exact.visible[[b, h, i, j]]) {
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
    Plain { raw, capped, scores, weights, max: maxima, sum: sums, lse, out }
}

/// The gradients of the plain loop.
pub struct PlainGradients<E: Element> {
    pub dq: Array4<E>,
    pub dk: Array4<E>,
    pub dv: Array4<E>,
    pub d_scores: Array4<E::Real>,
    pub d_sink: Vec<f64>,
    /// The largest sum of the sizes of what was added up to a number of dq, dk, dv, d_scores: what a rounding is relative to.
    pub sizes: [f64; 4],
}

/// The textbook's loops in the arithmetic of `E`, every sum one chain. Dropout is the judge's.
pub fn naive_backward<E: Element>(
    recipe: &Recipe,
    x: &Inputs<E>,
    d_out: &Array4<E>,
    exact: &Answer,
    plain: &Plain<E>,
) -> PlainGradients<E> {
    let real = E::Real::from_f64;
    let size = |x: E::Real| if x.is_finite() { x.to_f64().abs() } else { 0.0 };
    let (batch, heads_q, seq_q, head_dim) = x.q.dim();
    let (_, heads_kv, seq_kv, value_dim) = x.v.dim();
    let scale = real(recipe.options.factor(&exact.dims));
    let zeros = |of: &Array4<E>| Array4::from_elem(of.raw_dim(), E::Real::ZERO);
    let (mut dq, mut dk, mut dv) = (zeros(&x.q), zeros(&x.k), zeros(&x.v));
    let mut d_scores = Array4::from_elem(plain.scores.raw_dim(), E::Real::ZERO);
    let mut d_sink = vec![0.0; heads_q];
    let [mut dq_size, mut dk_size, mut dv_size] = [&x.q, &x.k, &x.v].map(|of| Array4::<f64>::zeros(of.raw_dim()));
    let mut ds_size = Array4::<f64>::zeros(plain.scores.raw_dim());
    for b in 0..batch {
        for h in 0..heads_q {
            let kv = h / (heads_q / heads_kv);
            for i in 0..seq_q {
                let seen: Vec<usize> = (0..seq_kv).filter(|&j| exact.visible[[b, h, i, j]]).collect();
                let kept = |j: usize| {
                    let (w, applied) = (exact.weights[[b, h, i, j]], exact.applied[[b, h, i, j]]);
                    if w == 0.0 { E::Real::ONE } else { real(applied / w) }
                };
                let (mut d_weights, mut dot_size) = (vec![E::Real::ZERO; seq_kv], vec![0.0; seq_kv]);
                let (mut delta, mut delta_size) = (E::Real::ZERO, 0.0);
                for &j in &seen {
                    for e in 0..value_dim {
                        let term = d_out[[b, h, i, e]].to_real() * x.v[[b, kv, j, e]].to_real();
                        d_weights[j] += term;
                        dot_size[j] += size(term) * size(kept(j));
                    }
                    d_weights[j] = d_weights[j] * kept(j);
                    delta += plain.weights[[b, h, i, j]] * d_weights[j];
                    delta_size += size(plain.weights[[b, h, i, j]]) * dot_size[j];
                }
                if let Some(sink) = &recipe.options.sink
                    && sink[h] > f64::NEG_INFINITY
                {
                    let share = (real(sink[h]) - plain.max[[b, h, i]]).to_f64().exp() / plain.sum[[b, h, i]].to_f64();
                    d_sink[h] -= share * delta.to_f64();
                }
                for &j in &seen {
                    let at = [b, h, i, j];
                    let w = plain.weights[at];
                    d_scores[at] = w * (d_weights[j] - delta);
                    ds_size[at] = size(w) * (dot_size[j] + delta_size);
                    let slope = recipe.options.softcap.map_or(E::Real::ONE, |cap| {
                        let t = plain.capped[at] / real(cap);
                        E::Real::ONE - t * t
                    });
                    let d_raw = d_scores[at] * slope * scale;
                    for e in 0..value_dim {
                        let term = w * kept(j) * d_out[[b, h, i, e]].to_real();
                        dv[[b, kv, j, e]] += term;
                        dv_size[[b, kv, j, e]] += size(term);
                    }
                    for e in 0..head_dim {
                        let (q, k) = (x.q[[b, h, i, e]].to_real(), x.k[[b, kv, j, e]].to_real());
                        dq[[b, h, i, e]] += d_raw * k;
                        dk[[b, kv, j, e]] += d_raw * q;
                        dq_size[[b, h, i, e]] += ds_size[at] * size(scale) * size(k);
                        dk_size[[b, kv, j, e]] += ds_size[at] * size(scale) * size(q);
                    }
                }
            }
        }
    }
    let stored = |x: Array4<E::Real>| x.mapv(E::from_real);
    let sizes = [dq_size, dk_size, dv_size, ds_size].map(|x| x.iter().fold(0.0, |m: f64, &x| m.max(x)));
    PlainGradients { dq: stored(dq), dk: stored(dk), dv: stored(dv), d_scores, d_sink, sizes }
}
