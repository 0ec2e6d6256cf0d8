//! [`Attention`]: the options.

use crate::bias::Bias;
use crate::mask::Mask;
use regard_simd::Level;
use std::borrow::Cow;
use std::sync::atomic::AtomicBool;

/// The factor of the dot products.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Scale {
    /// `1 / sqrt(head_dim)`.
    #[default]
    InvSqrtDim,
    /// Nothing: the experiment of leaving it out.
    Off,
    /// Any number, also negative or zero.
    By(f64),
}

/// Drop each weight with a probability; which ones is a function of the seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dropout {
    pub(crate) probability: f64,
    pub(crate) seed: u64,
}

/// The position of query 0 on the key axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Offset<'a> {
    /// The same for all.
    Same(i64),
    /// The last query stands at the last key (of the key lengths, where there are any).
    End,
    /// One per batch entry.
    PerBatch(Cow<'a, [i64]>),
}

/// Options builder. Each method changes one option; the defaults are `1/sqrt(head_dim)` and no mask.
/// Masks that are given one after the other all hold (logical and).
///
/// ```
/// use regard::{Attention, Scale};
/// let q = ndarray::Array4::<f32>::ones((1, 8, 300, 64));
/// let k = ndarray::Array4::<f32>::ones((1, 2, 300, 64));
/// let v = ndarray::Array4::<f32>::ones((1, 2, 300, 32));
/// let result = Attention::new().causal().window(128, 0).scale(Scale::InvSqrtDim).forward(&q, &k, &v)?;
/// assert_eq!(result.out.shape(), [1, 8, 300, 32]);
/// # Ok::<(), regard::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Attention<'a> {
    pub(super) scale: Scale,
    pub(super) softcap: Option<f64>,
    pub(super) biases: Vec<Bias<'a>>,
    pub(super) without_bias_gradient: bool,
    pub(super) scale_gradient: bool,
    pub(super) mask: Mask<'a>,
    /// Of [`Attention::key_lengths`], as often as they were given: all of them hold.
    pub(super) key_lengths: Vec<Cow<'a, [usize]>>,
    /// Every value that was given; validation fails if they differ.
    pub(super) offsets: Vec<Offset<'a>>,
    pub(super) top_k: Option<usize>,
    pub(super) sink: Option<Cow<'a, [f64]>>,
    pub(super) dropout: Option<Dropout>,
    pub(crate) threads: Option<usize>,
    pub(super) level: Option<Level>,
    pub(super) interrupt: Option<&'a AtomicBool>,
}

impl<'a> Attention<'a> {
    /// Scaled by `1/sqrt(head_dim)`, everything visible.
    pub fn new() -> Self {
        Self::default()
    }

    /// The factor of the dot products.
    pub const fn scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    /// `cap * tanh(score / cap)`, with a cap from 1e-30 to 1e30: no score leaves (-cap, cap). Before bias and masks.
    pub const fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// A bias that is added to the scores. Several biases add up.
    pub fn bias(mut self, bias: Bias<'a>) -> Self {
        self.biases.push(bias);
        self
    }

    /// Whether [`Attention::backward`] computes the gradients of biases. Default: true.
    pub const fn bias_gradient(mut self, wanted: bool) -> Self {
        self.without_bias_gradient = !wanted;
        self
    }

    /// Whether [`Attention::backward`] computes the gradient on the scale. Default: false.
    pub const fn scale_gradient(mut self, wanted: bool) -> Self {
        self.scale_gradient = wanted;
        self
    }

    /// One more mask that must hold.
    pub fn mask(mut self, mask: Mask<'a>) -> Self {
        self.mask = self.mask & mask;
        self
    }

    /// No query sees a key after its own position.
    pub fn causal(self) -> Self {
        self.mask(Mask::causal())
    }

    /// Causal, with the last query at the last key: for queries that continue a longer past.
    pub fn causal_bottom_right(self) -> Self {
        self.causal().align_end()
    }

    /// Anti-causal: no query sees a key before its own position.
    pub fn anti_causal(self) -> Self {
        self.mask(Mask::anti_causal())
    }

    /// [`Attention::anti_causal`] by another name.
    pub fn reverse(self) -> Self {
        self.anti_causal()
    }

    /// A query sees only keys after its own position.
    pub fn strictly_future(self) -> Self {
        self.mask(Mask::strictly_future())
    }

    /// At most `left` keys before and `right` keys after the query's own position, which is always visible.
    /// [`Mask::window`] has unbounded sides too.
    pub fn window(self, left: usize, right: usize) -> Self {
        self.mask(Mask::window(Some(left), Some(right)))
    }

    /// Only the first `lengths[b]` keys of batch entry `b` exist: the others are hidden, and [`Attention::align_end`] ends at the last one
    /// that exists.
    pub fn key_lengths(mut self, lengths: impl Into<Cow<'a, [usize]>>) -> Self {
        let lengths = lengths.into();
        self.key_lengths.push(lengths.clone());
        self.mask(Mask::key_lengths(lengths))
    }

    /// Query 0 stands at this position of the key axis, for causal, window and distances.
    pub fn q_offset(mut self, offset: i64) -> Self {
        self.offsets.push(Offset::Same(offset));
        self
    }

    /// The same, one per batch entry.
    pub fn q_offsets(mut self, offsets: impl Into<Cow<'a, [i64]>>) -> Self {
        self.offsets.push(Offset::PerBatch(offsets.into()));
        self
    }

    /// The last query stands at the last key; with [`Attention::key_lengths`], at the last key that exists. What a mask hides,
    /// [`Mask::key_lengths`] too, does not move the queries.
    pub fn align_end(mut self) -> Self {
        self.offsets.push(Offset::End);
        self
    }

    /// Sparse attention: each query attends to its `k` highest scores only, ties going to the lower index.
    pub const fn top_k(mut self, k: usize) -> Self {
        self.top_k = Some(k);
        self
    }

    /// One more logit per query head that takes part in the softmax and has no value.
    pub fn sink(mut self, logits: impl Into<Cow<'a, [f64]>>) -> Self {
        self.sink = Some(logits.into());
        self
    }

    /// Drop weights after the softmax, each with probability `p`, and multiply the others with `1 / (1 - p)`. Which ones is a pure
    /// function of the seed and of (batch, head, query, key): the same in [`Attention::forward`], [`Attention::backward`] and
    /// [`Attention::weights`], on any number of threads. Statistics are those of the weights before any were dropped.
    pub const fn dropout(mut self, p: f64, seed: u64) -> Self {
        self.dropout = Some(Dropout { probability: p, seed });
        self
    }

    /// How many threads to use. Default: all of rayon's. The result is the same for any number.
    pub const fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Use this SIMD level, and no other.
    pub const fn level(mut self, level: Level) -> Self {
        self.level = Some(level);
        self
    }

    /// Return [`crate::Error::Interrupted`] soon after the flag is set: before the next query tile, within a few milliseconds.
    pub const fn interrupt(mut self, flag: &'a AtomicBool) -> Self {
        self.interrupt = Some(flag);
        self
    }
}
