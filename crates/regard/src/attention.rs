//! [`Attention`]: the options, and the door where a call is checked once and becomes a plan.

use crate::bias::Bias;
use crate::dropout::Dropout;
use crate::element::Element;
use crate::error::{Error, Result, Shape4};
use crate::mask::{Mask, Place, check_length};
use crate::simd::Level;
use ndarray::ArrayView4;
use std::borrow::Cow;

/// More threads than any machine has cores for are a mistake of the caller's, and would take minutes to start.
const MAX_THREADS: usize = 4096;

/// What the dot products are multiplied with.
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

/// The position of query 0 on the key axis.
#[derive(Debug, Clone, PartialEq)]
enum Offset<'a> {
    /// The same for all.
    Same(i64),
    /// The last query stands at the last key (of the key lengths, where there are any).
    End,
    /// One per batch entry.
    PerBatch(Cow<'a, [i64]>),
}

/// Attention, described. Each method changes one option; the defaults are `1/sqrt(head_dim)` and no mask.
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
#[derive(Debug, Clone)]
#[must_use]
pub struct Attention<'a> {
    scale: Scale,
    softcap: Option<f64>,
    bias: Option<Bias<'a>>,
    bias_gradient: bool,
    mask: Mask<'a>,
    offset: Offset<'a>,
    top_k: Option<usize>,
    sink: Option<Cow<'a, [f64]>>,
    dropout: Option<Dropout>,
    threads: Option<usize>,
    level: Option<Level>,
}

impl Default for Attention<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Attention<'a> {
    /// Scaled by `1/sqrt(head_dim)`, everything visible.
    pub const fn new() -> Self {
        Self {
            scale: Scale::InvSqrtDim,
            softcap: None,
            bias: None,
            bias_gradient: true,
            mask: Mask::everything(),
            offset: Offset::Same(0),
            top_k: None,
            sink: None,
            dropout: None,
            threads: None,
            level: None,
        }
    }

    /// What the dot products are multiplied with.
    pub const fn scale(mut self, scale: Scale) -> Self {
        self.scale = scale;
        self
    }

    /// `cap * tanh(score / cap)`, with a cap from 1e-30 to 1e30: no score leaves (-cap, cap). Before bias and masks.
    pub const fn softcap(mut self, cap: f64) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Numbers that are added to the scores.
    pub fn bias(mut self, bias: Bias<'a>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Whether [`Attention::backward`] computes the gradient of the bias. It does, unless told otherwise.
    pub const fn bias_gradient(mut self, wanted: bool) -> Self {
        self.bias_gradient = wanted;
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

    /// No query sees a key before its own position: the wrong direction, on purpose.
    pub fn reverse(self) -> Self {
        self.mask(Mask::reverse())
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

    /// Only the first `lengths[b]` keys of batch entry `b` exist.
    pub fn key_lengths(self, lengths: impl Into<Cow<'a, [usize]>>) -> Self {
        self.mask(Mask::key_lengths(lengths))
    }

    /// Query 0 stands at this position of the key axis, for causal, window and distances.
    pub fn q_offset(mut self, offset: i64) -> Self {
        self.offset = Offset::Same(offset);
        self
    }

    /// The same, one per batch entry.
    pub fn q_offsets(mut self, offsets: impl Into<Cow<'a, [i64]>>) -> Self {
        self.offset = Offset::PerBatch(offsets.into());
        self
    }

    /// The last query stands at the last key; with key lengths, at the last key that exists.
    pub fn align_end(mut self) -> Self {
        self.offset = Offset::End;
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

    /// Check everything, once.
    pub(crate) fn plan<E: Element>(&self, q: &ArrayView4<'_, E>, k: &ArrayView4<'_, E>, v: Option<&ArrayView4<'_, E>>) -> Result<Plan<'_>> {
        let dims = Dims::check(q.shape(), k.shape(), v.map(ArrayView4::shape))?;
        let scores = dims.scores();
        self.mask.validate(scores)?;
        if let Some(bias) = &self.bias {
            bias.validate(scores)?;
        }
        let number = |name, value: f64, ok: bool, requirement| {
            if ok { Ok(()) } else { Err(Error::Number { name, value, requirement }) }
        };
        let scale = match self.scale {
            Scale::InvSqrtDim => 1.0 / (dims.head_dim.max(1) as f64).sqrt(),
            Scale::Off => 1.0,
            Scale::By(x) => x,
        };
        number("scale", scale, scale.is_finite(), "finite")?;
        if let Some(cap) = self.softcap {
            // So that it and its inverse are numbers of every type.
            number("softcap", cap, (1e-30..=1e30).contains(&cap), "from 1e-30 to 1e30")?;
        }
        if let Some(sink) = &self.sink {
            check_length("sink", sink.len(), dims.heads_q, "one logit per query head")?;
            for &x in sink.iter() {
                number("a sink logit", x, x < f64::INFINITY, "a number below infinity")?;
            }
        }
        if let Some(Dropout { probability: p, .. }) = self.dropout {
            number("dropout", p, (0.0..1.0).contains(&p), "at least 0 and below 1")?;
        }
        if self.top_k == Some(0) {
            return Err(Error::Zero { name: "top_k" });
        }
        match self.threads {
            Some(0) => return Err(Error::Zero { name: "threads" }),
            Some(threads) if threads > MAX_THREADS => {
                return Err(Error::Threads { threads, reason: format!("at most {MAX_THREADS} are allowed") });
            }
            _ => {}
        }
        if let Offset::PerBatch(offsets) = &self.offset {
            check_length("q_offset", offsets.len(), dims.batch, "one per batch entry")?;
        }
        let level = self.chosen_level()?;
        Ok(Plan { dims, scale, attention: self, level })
    }

    /// The level that calls run on.
    pub(crate) fn chosen_level(&self) -> Result<Level> {
        self.level.map_or_else(Level::preferred, Level::checked)
    }
}

/// Sizes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dims {
    pub(crate) batch: usize,
    pub(crate) heads_q: usize,
    pub(crate) heads_kv: usize,
    pub(crate) seq_q: usize,
    pub(crate) seq_kv: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
}

impl Dims {
    fn check(q: &[usize], k: &[usize], v: Option<&[usize]>) -> Result<Self> {
        let (qs, ks) = (Shape4::from(q), Shape4::from(k));
        if k[0] != q[0] {
            return Err(Error::Batch { operand: "k", shape: ks, q: qs });
        }
        if q[3] != k[3] {
            return Err(Error::HeadDim { q: qs, k: ks });
        }
        if let Some(v) = v {
            let vs = Shape4::from(v);
            if v[0] != q[0] {
                return Err(Error::Batch { operand: "v", shape: vs, q: qs });
            }
            if v[1] != k[1] {
                return Err(Error::KeyValueHeads { k: ks, v: vs });
            }
            if v[2] != k[2] {
                return Err(Error::KeyValueLength { k: ks, v: vs });
            }
        }
        let (heads_q, heads_kv) = (q[1], k[1]);
        // No query heads at all is an empty result, whatever the keys are.
        if heads_q != 0 && (heads_kv == 0 || heads_q % heads_kv != 0) {
            return Err(Error::HeadGroups { q: qs, k: ks, heads_q, heads_kv });
        }
        Ok(Self { batch: q[0], heads_q, heads_kv, seq_q: q[2], seq_kv: k[2], head_dim: q[3], value_dim: v.map_or(0, |v| v[3]) })
    }

    /// Shape of the scores.
    pub(crate) const fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads_q, self.seq_q, self.seq_kv]
    }

    /// Query heads per key/value head.
    pub(crate) fn group(&self) -> usize {
        self.heads_q / self.heads_kv.max(1)
    }

    /// Score pairs of all heads.
    pub(crate) fn pairs(&self) -> usize {
        self.batch.saturating_mul(self.heads_q).saturating_mul(self.seq_q).saturating_mul(self.seq_kv)
    }

    /// Multiply-adds of a forward pass without a mask, about.
    pub(crate) fn work(&self) -> usize {
        self.pairs().saturating_mul(self.head_dim + self.value_dim + 8)
    }
}

/// A call that was found to be in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'p> {
    pub(crate) dims: Dims,
    pub(crate) scale: f64,
    pub(crate) level: Level,
    attention: &'p Attention<'p>,
}

impl<'p> Plan<'p> {
    pub(crate) fn mask(&self) -> &'p Mask<'p> {
        &self.attention.mask
    }

    pub(crate) fn bias(&self) -> Option<&'p Bias<'p>> {
        self.attention.bias.as_ref()
    }

    pub(crate) fn softcap(&self) -> Option<f64> {
        self.attention.softcap
    }

    pub(crate) fn top_k(&self) -> Option<usize> {
        // As many as there are keys is all of them.
        self.attention.top_k.filter(|&k| k < self.dims.seq_kv)
    }

    /// May any key be hidden from any row?
    pub(crate) fn may_hide(&self) -> bool {
        !self.mask().is_everything() || self.top_k().is_some() || self.bias().is_some_and(Bias::may_hide)
    }

    pub(crate) fn bias_gradient(&self) -> bool {
        self.attention.bias_gradient
    }

    pub(crate) fn has_sink(&self) -> bool {
        self.attention.sink.is_some()
    }

    pub(crate) fn sink(&self, head: usize) -> Option<f64> {
        self.attention.sink.as_ref().map(|s| s[head])
    }

    pub(crate) fn dropout(&self) -> Option<Dropout> {
        // A probability of zero drops nothing, and multiplies with one.
        self.attention.dropout.filter(|d| d.probability > 0.0)
    }

    pub(crate) fn threads(&self) -> Option<usize> {
        self.attention.threads
    }

    pub(crate) fn place(&self, batch: usize, head: usize) -> Place {
        let q_offset = match &self.attention.offset {
            Offset::Same(n) => *n,
            Offset::PerBatch(n) => n[batch],
            Offset::End => {
                let keys = self.attention.mask.lengths().map_or(self.dims.seq_kv, |n| n[batch]);
                keys as i64 - self.dims.seq_q as i64
            }
        };
        Place { batch, head, q_offset }
    }
}
