//! [`Transformer`]: embedding, blocks, logits, as a list of parts. What families of models differ in are the parts, not the code.
//!
//! ```text
//! GPT-2       learned positions, layer norm before branches, joined q k v with biases, GELU by tanh, tied
//! Llama       rotary positions, RMS norm, grouped heads, gated SiLU, three matrices; Qwen 2 with biases, Qwen 3 with norms of q and k
//! Mistral     the same with a window
//! Gemma 2     embedding scaled, sandwich norms, softcaps, windows in every other block, gated GELU by tanh, tied
//! GPT-NeoX    part of each head rotated, q k v per head, network in parallel
//! BERT        learned positions and token types, norm of the embedding, norms of sums, GELU; RoBERTa's positions begin at 2; DistilBERT has no types
//! ALBERT      a narrow embedding and a layer that widens it; one block over and over
//! ```

use crate::error::{Error, Result};
use crate::float::Float;
use crate::layers::activation::Activation;
use crate::layers::dropout::Dropout;
use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::layers::loss::{Loss, cross_entropy};
use crate::layers::norm::{EPS, Norm, NormKind};
use crate::layers::pass::{MaskKind, Pass, Wanted};
use crate::layers::positions::{Added, Positions};
use crate::layers::probe::{Blind, Probe};
use crate::layers::stack::{Activations, BlockConfig, Keep, Stack, StackCache};
use crate::parallel::in_pool;
use crate::params::{Gradients, Init, Layout, TensorId};
use crate::tensors::weights::PARALLEL_WEIGHTS;
use crate::tensors::{Order, Source, Weights};

/// Where the embedding's dropout mask is drawn.
const EMBEDDING_DROPOUT: u64 = u64::MAX;

/// From tokens to rows.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingConfig {
    /// Tokens.
    pub vocab: usize,
    /// Of the table; another width than the stream's is mapped to it by a layer.
    pub width: usize,
    /// How positions are told: only what is added counts here.
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
}

/// A model as a list of parts.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Width of the residual stream.
    pub width: usize,
    /// In front.
    pub embedding: EmbeddingConfig,
    /// In order.
    pub blocks: Vec<BlockConfig>,
    /// A norm behind the last block.
    pub last_norm: Option<(NormKind, f64)>,
    /// At the end; models that only read have none.
    pub head: Option<HeadConfig>,
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
        let tokens = Embedding::new(layout, "tokens", config.vocab, inner, true);
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

    fn untrainable(&self) -> Option<&'static str> {
        let plain = self.types.is_none() && self.norm.is_none() && self.widen.is_none() && self.scale.is_none();
        (!plain).then_some("an embedding with types, a norm, a scale or a layer")
    }

    /// Are these tokens, and do they fit?
    pub(crate) fn check(&self, ids: &[u32], pass: &Pass<'_>) -> Result<()> {
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
        Self { transform, head, bias, tied: config.tied, softcap: config.softcap }
    }

    fn untrainable(&self) -> Option<&'static str> {
        let plain = self.transform.is_none() && self.bias.is_none() && self.softcap.is_none();
        (!plain).then_some("a head with a layer before it, a softcap, or a bias beside a tied table")
    }

    pub(crate) fn forward<T: Float>(&self, w: &Weights<'_, T>, x: &[T], logits: &mut [T]) {
        match &self.transform {
            None => self.head.forward(w, x, logits),
            Some((dense, activation, norm)) => {
                let mut inner = vec![T::ZERO; x.len() / dense.inputs().max(1) * dense.outputs()];
                let mut act = inner.clone();
                dense.forward(w, x, &mut inner);
                activation.apply(None, &mut inner, &mut act);
                norm.apply(w, &mut act);
                self.head.forward(w, &act, logits);
            }
        }
        if let Some(bias) = self.bias {
            crate::layers::linear::add_to_rows(logits, w.own(bias));
        }
        if let Some(cap) = self.softcap {
            logits.iter_mut().for_each(|x| *x = T::from_f64(cap * (x.to_f64() / cap).tanh()));
        }
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

/// Embedding, blocks and head. The mask is said with each pass, so that it can be the wrong one.
#[derive(Debug, Clone)]
pub struct Transformer {
    layout: Layout,
    entry: InputEmbedding,
    stack: Stack,
    exit: Option<OutputHead>,
    width: usize,
    vocab: usize,
}

/// Buffers of one shape of a model's pass.
#[derive(Debug, Clone)]
pub struct LmActivations<T: Float> {
    stack: Activations<T>,
    /// Of the wanted rows; after [`Transformer::loss_and_gradient`] their gradient.
    logits: Vec<T>,
    row_losses: Vec<f64>,
    shape: (usize, usize),
}

impl<T: Float> LmActivations<T> {
    /// The logits of the last forward pass, `[batch, seq, vocab]`, or of the wanted rows one after the other.
    pub fn logits(&self) -> &[T] {
        &self.logits
    }

    /// The loss of each row of the last call that had targets, 0 where the target was ignored.
    pub fn row_losses(&self) -> &[f64] {
        &self.row_losses
    }

    /// `(batch, seq)`.
    pub fn shape(&self) -> (usize, usize) {
        self.shape
    }

    /// The rows behind the last block, `[batch, seq, width]`.
    pub fn rows(&self) -> &[T] {
        self.stack.output()
    }

    /// The stack's part.
    pub fn stack(&self) -> &Activations<T> {
        &self.stack
    }
}

impl Transformer {
    /// A model of these parts.
    pub fn new(config: &TransformerConfig) -> Self {
        let mut layout = Layout::new();
        let entry = InputEmbedding::new(&mut layout, &config.embedding, config.width);
        let stack = Stack::new(&mut layout, config.width, &config.blocks, config.last_norm);
        let exit = config.head.as_ref().map(|head| OutputHead::new(&mut layout, head, &entry.tokens, config.width));
        Self { layout, entry, stack, exit, width: config.width, vocab: config.embedding.vocab }
    }

    /// Its tensors.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its blocks.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The parameters of a training as weights.
    ///
    /// # Panics
    /// When there are not as many as the model has.
    pub fn weights<'w, T: Float>(&self, params: &'w [T]) -> Weights<'w, T> {
        Weights::of_buffer(&self.layout, params)
    }

    /// The tensors of a source as weights.
    ///
    /// # Errors
    /// [`Error::Tensor`] when one is missing or has another shape.
    pub fn bind<'w, T: Float>(&self, source: &'w dyn Source) -> Result<Weights<'w, T>> {
        Weights::bind(&self.layout, source)
    }

    /// Buffers for a shape, for a pass that keeps what a backward pass needs, or nothing.
    pub fn plan<T: Float>(&self, batch: usize, seq: usize, keep: Keep) -> LmActivations<T> {
        let pass = Pass::new(batch, seq, MaskKind::Causal);
        LmActivations { stack: self.stack.plan(&pass, keep), logits: Vec::new(), row_losses: vec![0.0; batch * seq], shape: (batch, seq) }
    }

    /// Tokens `[batch, seq]` to [`LmActivations::logits`].
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn forward<T: Float>(&self, w: &Weights<'_, T>, ids: &[u32], pass: &Pass<'_>, acts: &mut LmActivations<T>) -> Result<()> {
        self.probe(w, ids, pass, acts, &Blind)
    }

    /// The same, looked into.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn probe<T: Float>(
        &self,
        w: &Weights<'_, T>,
        ids: &[u32],
        pass: &Pass<'_>,
        acts: &mut LmActivations<T>,
        probe: &dyn Probe<T>,
    ) -> Result<()> {
        self.entry.check(ids, pass)?;
        if acts.shape != (pass.batch, pass.seq) {
            return Err(Error::Length { what: "the planned pass", got: acts.shape.0 * acts.shape.1, expected: pass.rows() });
        }
        self.entry.forward(w, ids, pass, acts.stack.input());
        self.stack.probe(w, pass, &[], &mut acts.stack, probe)?;
        self.logits(w, pass, acts.stack.output(), &mut acts.logits)
    }

    /// The logits of the wanted rows.
    fn logits<T: Float>(&self, w: &Weights<'_, T>, pass: &Pass<'_>, rows: &[T], logits: &mut Vec<T>) -> Result<()> {
        let Some(exit) = &self.exit else { return Ok(()) };
        let Some(wanted) = pass.wanted_rows() else {
            logits.resize(rows.len() / self.width.max(1) * self.vocab, T::ZERO);
            exit.forward(w, rows, logits);
            return Ok(());
        };
        let mut picked = Vec::with_capacity(wanted.len() * self.width);
        for row in &wanted {
            let numbers = rows.get(row * self.width..(row + 1) * self.width);
            picked.extend_from_slice(numbers.ok_or(Error::Length { what: "the pass", got: pass.rows(), expected: row + 1 })?);
        }
        logits.resize(wanted.len() * self.vocab, T::ZERO);
        exit.forward(w, &picked, logits);
        Ok(())
    }

    fn check_targets(&self, targets: &[u32], pass: &Pass<'_>) -> Result<()> {
        if pass.wanted != Wanted::All {
            return Err(Error::Config { name: "wanted", value: format!("{:?}", pass.wanted), requirement: "all, for a loss".to_owned() });
        }
        if targets.len() != pass.rows() {
            return Err(Error::Length { what: "the list of targets", got: targets.len(), expected: pass.rows() });
        }
        match targets.iter().find(|&&t| t != crate::IGNORE && t as usize >= self.vocab) {
            Some(&token) => Err(Error::Token { token, vocab: self.vocab }),
            None if self.exit.is_none() => Err(Error::Untrainable { part: "a model without a head" }),
            None => Ok(()),
        }
    }

    /// The loss of targets, without gradients.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn loss<T: Float>(
        &self,
        w: &Weights<'_, T>,
        ids: &[u32],
        targets: &[u32],
        pass: &Pass<'_>,
        acts: &mut LmActivations<T>,
    ) -> Result<Loss> {
        self.check_targets(targets, pass)?;
        in_pool(|| {
            self.forward(w, ids, pass, acts)?;
            Ok(cross_entropy(&mut acts.logits, targets, None, &mut acts.row_losses))
        })
    }

    /// Whether the model, with these weights, has a backward pass.
    ///
    /// # Errors
    /// [`Error::Untrainable`].
    pub fn check_trainable<T: Float>(&self, w: &Weights<'_, T>) -> Result<()> {
        if !w.is_trainable() {
            return Err(Error::Untrainable { part: "a matrix of other numbers than those of the computation" });
        }
        match self.entry.untrainable().or(self.exit.as_ref().and_then(OutputHead::untrainable)) {
            Some(part) => Err(Error::Untrainable { part }),
            None => self.stack.check_trainable(),
        }
    }

    /// The loss, and its gradients added to `g`; each counted row weighs `1 / divisor` in these.
    ///
    /// # Errors
    /// When tokens or shapes do not fit, and [`Error::Untrainable`].
    pub fn loss_and_gradient<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut [T],
        ids: &[u32],
        targets: &[u32],
        pass: &Pass<'_>,
        divisor: f64,
        acts: &mut LmActivations<T>,
    ) -> Result<Loss> {
        self.check_targets(targets, pass)?;
        self.check_trainable(w)?;
        let g = &mut Gradients::new(&self.layout, g);
        self.forward(w, ids, pass, acts)?;
        let loss = cross_entropy(&mut acts.logits, targets, Some(divisor), &mut acts.row_losses);
        let (out, d) = acts.stack.output_and_gradient();
        if let Some(exit) = &self.exit {
            exit.backward(&self.entry.tokens, w, g, out, &acts.logits, d);
        }
        self.stack.backward(w, g, pass, &[], &mut [], &mut acts.stack)?;
        self.entry.backward(g, ids, pass, acts.stack.gradient());
        Ok(loss)
    }

    /// A cache for decoding.
    pub fn cache<T: Float>(&self, w: &Weights<'_, T>, batch: usize) -> StackCache<T> {
        self.stack.cache(w, batch, None)
    }

    /// Logits of the last of `new` tokens of each sequence, `[batch, vocab]`, the past being in the cache; causal.
    ///
    /// # Errors
    /// When tokens do not fit, or there are none.
    pub fn extend<T: Float>(&self, w: &Weights<'_, T>, ids: &[u32], cache: &mut StackCache<T>, logits: &mut Vec<T>) -> Result<()> {
        self.extend_probed(w, ids, cache, logits, &Blind)
    }

    /// The same, looked into.
    ///
    /// # Errors
    /// As [`Transformer::extend`].
    pub fn extend_probed<T: Float>(
        &self,
        w: &Weights<'_, T>,
        ids: &[u32],
        cache: &mut StackCache<T>,
        logits: &mut Vec<T>,
        probe: &dyn Probe<T>,
    ) -> Result<()> {
        let batch = cache.batch();
        let new = ids.len() / batch.max(1);
        if new == 0 {
            return Err(Error::Length { what: "the list of new tokens", got: ids.len(), expected: batch.max(1) });
        }
        let lengths = cache.lengths().to_vec();
        let pass = Pass { offsets: Some(&lengths), wanted: Wanted::LastRow, ..Pass::new(batch, new, MaskKind::Causal) };
        self.entry.check(ids, &pass)?;
        let mut x = vec![T::ZERO; ids.len() * self.width];
        self.entry.forward(w, ids, &pass, &mut x);
        let rows = self.stack.extend(w, &x, &pass, cache, probe)?;
        self.logits(w, &pass, rows, logits)
    }

    /// Where no layer is shared out over threads, one token is written in less time than it takes to change threads.
    pub(crate) fn is_small(&self) -> bool {
        self.layout.len() < PARALLEL_WEIGHTS
    }
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
        }
    }
}

impl Default for HeadConfig {
    fn default() -> Self {
        Self { tied: false, bias: false, order: Order::InOut, transform: None, softcap: None }
    }
}

/// The norm behind the last block that our own models have.
pub(crate) fn usual_norm(kind: NormKind) -> (NormKind, f64) {
    (kind, EPS)
}
