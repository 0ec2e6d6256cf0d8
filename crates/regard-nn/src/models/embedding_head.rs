//! The two ends of a model: from tokens to rows, and from rows to logits.

use super::merged_logits::MergedLogits;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::layers::activation::Activation;
use crate::layers::dropout::Dropout;
use crate::layers::embedding::Embedding;
use crate::layers::linear::{Linear, add_to_rows};
use crate::layers::loss::{Share, shares};
use crate::layers::norm::{NORM_STATS, Norm, NormKind};
use crate::layers::pass::Pass;
use crate::layers::positions::{Added, Positions};
use crate::tensors::layout::{Gradients, Init, Layout, TensorId};
use crate::tensors::{Order, Weights};
use std::borrow::Cow;
use std::ops::Range;

/// Where the embedding's dropout mask is drawn.
const EMBEDDING_DROPOUT: u64 = u64::MAX;

/// From tokens to rows.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingConfig {
    /// Tokens.
    pub vocab: usize,
    /// Of the table; another width than the stream's is mapped to it by a layer.
    pub width: usize,
    /// Position encoding; only additive ones matter here.
    pub positions: Positions,
    /// Positions of a learned table.
    pub context: usize,
    /// The row of position 0 in a learned table.
    pub first_position: usize,
    /// A row is added that tells the kind of token; the first kind is used.
    pub types: Option<usize>,
    /// Rows of tokens are multiplied with this.
    pub scale: Option<f64>,
    /// A norm of the sum.
    pub norm: Option<(NormKind, f64)>,
    /// Probability of dropping, in training.
    pub dropout: f64,
    /// Rows come from a front end (sound, images): there is no table of tokens, and `vocab` counts the outputs of the head.
    pub rows: bool,
}

impl Default for EmbeddingConfig {
    fn default() -> Self {
        Self {
            vocab: 0,
            width: 0,
            positions: Positions::None,
            context: 0,
            first_position: 0,
            types: None,
            scale: None,
            norm: None,
            dropout: 0.0,
            rows: false,
        }
    }
}

/// From rows to logits.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadConfig {
    /// The embedding's table is the matrix.
    pub tied: bool,
    /// A bias per token.
    pub bias: bool,
    /// How an own matrix lies.
    pub order: Order,
    /// A layer, this activation and a norm of this eps before it.
    pub transform: Option<(Activation, f64)>,
    /// Logits are bent to stay below this.
    pub softcap: Option<f64>,
    /// Rows are multiplied with this before the matrix.
    pub scale: Option<f64>,
}

impl Default for HeadConfig {
    fn default() -> Self {
        Self { tied: false, bias: false, order: Order::InOut, transform: None, softcap: None, scale: None }
    }
}

/// Tokens to rows: embedding and added positions.
#[derive(Debug, Clone)]
pub(crate) struct InputEmbedding {
    pub(crate) tokens: Embedding,
    added: Added,
    types: Option<TensorId>,
    norm: Option<Norm>,
    widen: Option<Linear>,
    scale: Option<f64>,
    dropout: f64,
    width: usize,
}

impl InputEmbedding {
    pub(crate) fn new(layout: &mut Layout, config: &EmbeddingConfig, width: usize) -> Self {
        let inner = config.width;
        let tokens =
            if config.rows { Embedding::absent(config.vocab, inner) } else { Embedding::new(layout, "tokens", config.vocab, inner, true) };
        let added = match config.positions {
            Positions::Learned => Added::learned(layout, config.context, config.first_position, inner),
            other => Added::new(layout, other, config.context, inner),
        };
        Self {
            tokens,
            added,
            types: config.types.map(|count| layout.within("types", |l| l.add("table", &[count, inner], Init::Normal(0.02), false))),
            norm: config.norm.map(|(kind, eps)| Norm::with_eps(layout, "embedding_norm", kind, inner, eps)),
            widen: (inner != width).then(|| Linear::with_order(layout, "widen", inner, width, true, Order::OutIn)),
            scale: config.scale,
            dropout: config.dropout,
            width,
        }
    }

    pub(crate) fn untrainable(&self) -> Option<&'static str> {
        let plain = self.types.is_none() && self.norm.is_none() && self.widen.is_none();
        (!plain).then_some("an embedding with types, a norm or a layer")
    }

    /// Are these tokens, and do they fit?
    pub(crate) fn check(&self, ids: &[u32], pass: &Pass<'_>) -> Result<()> {
        if self.tokens.is_absent() {
            return Err(Error::Untokenized);
        }
        if ids.len() != pass.rows() {
            return Err(Error::Length { what: "the list of tokens", got: ids.len(), expected: pass.rows() });
        }
        if let Some(offsets) = pass.offsets.filter(|offsets| offsets.len() != pass.batch) {
            return Err(Error::Length { what: "the list of offsets", got: offsets.len(), expected: pass.batch });
        }
        if let Some(&token) = ids.iter().find(|id| **id as usize >= self.tokens.count()) {
            return Err(Error::Token { token, vocab: self.tokens.count() });
        }
        match self.added.limit() {
            Some(context) if pass.end() > context => Err(Error::TooLong { tokens: pass.end(), context }),
            _ => Ok(()),
        }
    }

    fn drop(&self, pass: &Pass<'_>) -> Option<Dropout> {
        pass.dropout.and_then(|seed| Dropout::new(self.dropout, seed, EMBEDDING_DROPOUT))
    }

    pub(crate) fn forward<T: Float>(&self, w: &Weights<'_, T>, ids: &[u32], pass: &Pass<'_>, x: &mut [T]) {
        match &self.widen {
            None => self.rows(w, ids, pass, x),
            Some(widen) => {
                let mut narrow = vec![T::ZERO; ids.len() * widen.inputs()];
                self.rows(w, ids, pass, &mut narrow);
                widen.forward(w, &narrow, x);
            }
        }
        if let Some(drop) = self.drop(pass) {
            drop.apply(0, x);
        }
    }

    /// As wide as the table.
    fn rows<T: Float>(&self, w: &Weights<'_, T>, ids: &[u32], pass: &Pass<'_>, x: &mut [T]) {
        let width = self.tokens.width();
        self.tokens.forward(w, ids, x);
        if let Some(scale) = self.scale {
            let scale = T::from_f64(scale);
            x.iter_mut().for_each(|x| *x *= scale);
        }
        if let Some(types) = self.types {
            let mut row = vec![T::ZERO; width];
            w.matrix(types, width, 1, Order::OutIn).line(0, &mut row);
            x.chunks_exact_mut(width.max(1)).for_each(|x| x.iter_mut().zip(&row).for_each(|(x, &r)| *x += r));
        }
        self.added.forward(w, x, pass, width);
        if let Some(norm) = &self.norm {
            norm.apply(w, x);
        }
    }

    pub(crate) fn backward<T: Float>(&self, g: &mut Gradients<'_, T>, ids: &[u32], pass: &Pass<'_>, dx: &mut [T]) {
        if let Some(drop) = self.drop(pass) {
            drop.apply(0, dx);
        }
        self.added.backward(g, dx, pass, self.width);
        if let Some(scale) = self.scale {
            let scale = T::from_f64(scale);
            dx.iter_mut().for_each(|x| *x *= scale);
        }
        self.tokens.backward(g, ids, dx);
    }
}

/// Rows to logits: a layer of its own, or the embedding's table.
#[derive(Debug, Clone)]
pub(crate) struct OutputHead {
    transform: Option<(Linear, Activation, Norm)>,
    head: Linear,
    /// Of a tied table.
    bias: Option<TensorId>,
    tied: bool,
    softcap: Option<f64>,
    scale: Option<f64>,
}

impl OutputHead {
    pub(crate) fn new(layout: &mut Layout, config: &HeadConfig, tokens: &Embedding, width: usize) -> Self {
        let transform = config.transform.map(|(activation, eps)| {
            let dense = Linear::with_order(layout, "transform", width, tokens.width(), true, config.order);
            (dense, activation, Norm::with_eps(layout, "transform_norm", NormKind::Layer, tokens.width(), eps))
        });
        let inputs = if transform.is_some() { tokens.width() } else { width };
        let (head, bias) = if config.tied {
            let bias = config.bias.then(|| layout.within("head", |l| l.add("bias", &[tokens.count()], Init::Zero, false)));
            (tokens.unembedding(), bias)
        } else {
            (Linear::with_order(layout, "head", inputs, tokens.count(), config.bias, config.order), None)
        };
        Self { transform, head, bias, tied: config.tied, softcap: config.softcap, scale: config.scale }
    }

    pub(crate) fn untrainable(&self) -> Option<&'static str> {
        let plain = self.transform.is_none() && self.bias.is_none() && self.softcap.is_none() && self.scale.is_none();
        (!plain).then_some("a head with a layer before it, a scale, a softcap, or a bias beside a tied table")
    }

    /// The weights of one token's logit and its bias; `None` for a head that is not linear.
    pub(crate) fn of_token<T: Float>(&self, w: &Weights<'_, T>, token: usize) -> Option<(Vec<T>, f64)> {
        if self.transform.is_some() || self.softcap.is_some() {
            return None;
        }
        let biases = [self.head.bias(w), self.bias.map(|bias| w.own(bias))];
        let bias: f64 = biases.into_iter().flatten().map(|biases| biases[token].to_f64()).sum();
        let mut weights = self.head.matrix(w).output(token);
        self.scaled(&mut weights);
        Some((weights, bias))
    }

    pub(crate) fn forward<T: Float>(&self, w: &Weights<'_, T>, x: &[T], logits: &mut [T]) {
        self.head.forward(w, &self.transformed(w, x), logits);
        self.finish(w, 0..self.head.outputs(), logits);
    }

    /// The loss of each row's target in nats, without all logits of a row being there at once.
    pub(crate) fn losses<T: Float>(&self, w: &Weights<'_, T>, x: &[T], targets: &[u32]) -> Vec<f64> {
        self.judged(w, x, targets).into_iter().map(|(loss, _)| loss).collect()
    }

    /// The loss of each row's target, and whether no logit is larger than the target's.
    pub(crate) fn judged<T: Float>(&self, w: &Weights<'_, T>, x: &[T], targets: &[u32]) -> Vec<(f64, bool)> {
        let strips = self.head.strips(w, &self.transformed(w, x), |row, columns, logits, made| {
            let count = logits.len() / columns.len();
            let first = columns.start;
            self.finish(w, columns, logits);
            shares(logits, first, &targets[row..row + count], made);
        });
        let judged = |row: usize| {
            let shares = strips.iter().map(|strip| strip[row]);
            (Share::loss(shares.clone()), Share::is_largest(shares))
        };
        (0..targets.len()).map(judged).collect()
    }

    /// Tokens that have the same logits, where there are many of them.
    pub(crate) fn merged_logits<T: Float>(&self, w: &Weights<'_, T>) -> Option<MergedLogits<T>> {
        let plain = self.head.order() == Order::OutIn && self.head.bias(w).is_none() && self.bias.is_none() && self.softcap.is_none();
        if plain { MergedLogits::find(&self.head.matrix(w)) } else { None }
    }

    /// The same as [`OutputHead::losses`], to [`MergedLogits`]'s bound.
    pub(crate) fn losses_merged<T: Float>(&self, w: &Weights<'_, T>, alike: &MergedLogits<T>, x: &[T], targets: &[u32]) -> Vec<f64> {
        let width = x.len() / targets.len().max(1);
        let mut losses = alike.losses(&self.head.matrix(w), &self.transformed(w, x), targets);
        let left: Vec<usize> = (0..targets.len()).filter(|row| losses[*row].is_nan()).collect();
        let rows: Vec<T> = left.iter().flat_map(|row| &x[row * width..(row + 1) * width]).copied().collect();
        let whole = self.losses(w, &rows, &left.iter().map(|row| targets[*row]).collect::<Vec<_>>());
        left.into_iter().zip(whole).for_each(|(row, loss)| losses[row] = loss);
        losses
    }

    /// Rows, or weights of a token, times the scale.
    fn scaled<T: Float>(&self, x: &mut [T]) {
        if let Some(scale) = self.scale {
            let scale = T::from_f64(scale);
            x.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// Rows as the last matrix reads them. A head has a layer before its matrix or a scale, not both.
    fn transformed<'x, T: Float>(&self, w: &Weights<'_, T>, x: &'x [T]) -> Cow<'x, [T]> {
        let Some((dense, activation, norm)) = &self.transform else {
            if self.scale.is_none() {
                return Cow::Borrowed(x);
            }
            let mut x = x.to_vec();
            self.scaled(&mut x);
            return Cow::Owned(x);
        };
        let mut inner = vec![T::ZERO; x.len() / dense.inputs().max(1) * dense.outputs()];
        let mut act = inner.clone();
        dense.forward(w, x, &mut inner);
        activation.apply(None, &mut inner, &mut act);
        norm.apply(w, &mut act);
        Cow::Owned(act)
    }

    /// What is done to logits of these columns after the last matrix.
    fn finish<T: Float>(&self, w: &Weights<'_, T>, columns: Range<usize>, logits: &mut [T]) {
        if let Some(bias) = self.bias {
            add_to_rows(logits, &w.own(bias)[columns]);
        }
        if let Some(cap) = self.softcap {
            logits.iter_mut().for_each(|x| *x = T::from_f64(cap * (x.to_f64() / cap).tanh()));
        }
    }

    /// The gradient of rows from that of their logits, which are given as well; weights are constant.
    pub(crate) fn input_gradient<T: Float>(&self, w: &Weights<'_, T>, x: &[T], logits: &[T], d_logits: &mut [T], dx: &mut [T]) {
        if let Some(cap) = self.softcap {
            let slope = |logit: &T| T::from_f64(1.0 - (logit.to_f64() / cap).powi(2));
            d_logits.iter_mut().zip(logits).for_each(|(d, logit)| *d *= slope(logit));
        }
        let Some((dense, activation, norm)) = &self.transform else {
            self.head.wide_input_gradient(w, d_logits, dx);
            return self.scaled(dx);
        };
        let rows = x.len() / dense.inputs().max(1);
        let mut slopes = vec![T::ZERO; rows * dense.outputs()];
        let (mut act, mut normed, mut stats) = (slopes.clone(), slopes.clone(), vec![T::ZERO; rows * NORM_STATS]);
        dense.forward(w, x, &mut slopes);
        activation.apply(None, &mut slopes, &mut act);
        norm.forward(w, &act, &mut normed, &mut stats);
        let mut d = normed;
        self.head.wide_input_gradient(w, d_logits, &mut d);
        norm.backward_in_place(w, &act, &stats, &mut d, &mut vec![T::ZERO; 2 * dense.outputs()]);
        d.iter_mut().zip(&slopes).for_each(|(d, slope)| *d *= *slope);
        dense.wide_input_gradient(w, &d, dx);
    }

    pub(crate) fn backward<T: Float>(
        &self,
        tokens: &Embedding,
        w: &Weights<'_, T>,
        g: &mut Gradients<'_, T>,
        x: &[T],
        d_logits: &[T],
        dx: &mut [T],
    ) {
        if self.tied {
            tokens.unembed_backward(w, g, x, d_logits, dx);
        } else {
            self.head.backward(w, g, x, d_logits, dx);
        }
    }
}
