//! [`Transformer`]: embedding, blocks, logits, as a list of parts. What families of models differ in are the parts, not the code.
//!
//! ```text
//! GPT-2       learned positions, layer norm before branches, joined q k v with biases, GELU by tanh, tied
//! Llama       rotary positions, RMS norm, grouped heads, gated SiLU, three matrices; Qwen 2 with biases, Qwen 3 with norms of q and k
//! Mistral     the same with a window
//! Gemma 2     embedding scaled, sandwich norms, softcaps, windows in every other block, gated GELU by tanh, tied
//! GPT-NeoX    part of each head rotated, q k v per head, network in parallel
//! BERT        learned positions and token types, norm of the embedding, norms of sums, GELU; RoBERTa's positions begin at 2; DistilBERT
//!             has no types
//! ALBERT      a narrow embedding and a layer that widens it; one block over and over
//! OLMo 2      norms of results alone, and of whole rows of queries and keys
//! Mixtral     experts
//! T5          relative positions by buckets, no scale, RMS norm; encoder and decoder, as Whisper (rows of sound) and BART
//! ViT         rows of patches instead of tokens
//! ```

pub use super::embedding_head::{EmbeddingConfig, HeadConfig};
use super::embedding_head::{InputEmbedding, OutputHead};
use super::merged_logits::MergedLogits;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::layers::loss::{Loss, cross_entropy};
use crate::layers::norm::NormKind;
use crate::layers::pass::{MaskKind, Pass, Wanted};
use crate::layers::probe::{GradientProbe, NoProbe, Probe};
use crate::layers::stack::{Activations, BlockConfig, Keep, Memory, Stack, StackCache};
use crate::parallel::in_pool;
use crate::tensors::layout::{Gradients, Layout};
use crate::tensors::weights::PARALLEL_WEIGHTS;
use crate::tensors::{Source, Weights};
use std::ops::Range;

/// A model as a list of parts.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformerConfig {
    /// Width of the residual stream.
    pub width: usize,
    /// In front.
    pub embedding: EmbeddingConfig,
    /// In order.
    pub blocks: Vec<BlockConfig>,
    /// A norm after the last block.
    pub last_norm: Option<(NormKind, f64)>,
    /// At the end; models that only read have none.
    pub head: Option<HeadConfig>,
}

/// Embedding, blocks and head. The mask is an argument of each pass.
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

    /// The rows after the last block, `[batch, seq, width]`.
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

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
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
        self.probe(w, ids, pass, acts, &NoProbe)
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

    /// The logits of rows after the last block; none where there is no head.
    pub fn logits_of<T: Float>(&self, w: &Weights<'_, T>, rows: &[T]) -> Vec<T> {
        let Some(exit) = &self.exit else { return Vec::new() };
        let mut logits = vec![T::ZERO; rows.len() / self.width.max(1) * self.vocab];
        exit.forward(w, rows, &mut logits);
        logits
    }

    /// The weights of one token's logit, for rows after the last norm, and its bias; `None` where there is no head, or it is not linear.
    pub fn unembedding<T: Float>(&self, w: &Weights<'_, T>, token: u32) -> Option<(Vec<T>, f64)> {
        self.exit.as_ref().and_then(|exit| exit.of_token(w, token as usize))
    }

    /// The loss of each row's target in nats, from rows after the last block; logits are never all there at once. What comes of a row does
    /// not depend on the others.
    ///
    /// # Errors
    /// When there is no head, not one target per row, or a target is no token.
    pub fn losses_of<T: Float>(&self, w: &Weights<'_, T>, rows: &[T], targets: &[u32]) -> Result<Vec<f64>> {
        Ok(self.losing(rows, targets)?.losses(w, rows, targets))
    }

    /// The same, with whether the target is the most likely token.
    ///
    /// # Errors
    /// As [`Transformer::losses_of`].
    pub fn judge<T: Float>(&self, w: &Weights<'_, T>, rows: &[T], targets: &[u32]) -> Result<Vec<(f64, bool)>> {
        Ok(self.losing(rows, targets)?.judged(w, rows, targets))
    }

    /// Tokens that training never distinguished, where there are many: [`Transformer::losses_merged`] takes them together.
    pub fn merged_logits<T: Float>(&self, w: &Weights<'_, T>) -> Option<MergedLogits<T>> {
        self.exit.as_ref().and_then(|exit| exit.merged_logits(w))
    }

    /// The same as [`Transformer::losses_of`] to 1e-8, for less: `alike` is of the same weights.
    ///
    /// # Errors
    /// As [`Transformer::losses_of`].
    pub fn losses_merged<T: Float>(&self, w: &Weights<'_, T>, alike: &MergedLogits<T>, rows: &[T], targets: &[u32]) -> Result<Vec<f64>> {
        Ok(self.losing(rows, targets)?.losses_merged(w, alike, rows, targets))
    }

    /// The head, for rows and their targets.
    fn losing<T>(&self, rows: &[T], targets: &[u32]) -> Result<&OutputHead> {
        let exit = self.exit.as_ref().ok_or(Error::Untrainable { part: "a model without a head" })?;
        if rows.len() != targets.len() * self.width {
            return Err(Error::Length { what: "the list of targets", got: targets.len(), expected: rows.len() / self.width.max(1) });
        }
        if let Some(&token) = targets.iter().find(|t| **t as usize >= self.vocab) {
            return Err(Error::Token { token, vocab: self.vocab });
        }
        Ok(exit)
    }

    /// Take the tables of relative positions from the weights, which passes need where there are such tables.
    pub fn read_tables<T: Float>(&mut self, w: &Weights<'_, T>) {
        self.stack.read_tables(w);
    }

    /// Some sublayers of the stack: from rows of the stream as they are before the first of these to rows as they are after the last.
    /// Cross-attention reads the rows of a memory, as many as the pass says.
    ///
    /// # Errors
    /// When attention refuses the pass.
    pub fn probe_part<T: Float>(
        &self,
        w: &Weights<'_, T>,
        pass: &Pass<'_>,
        sublayers: Range<usize>,
        (rows, memory): (&[T], &[T]),
        probe: &dyn Probe<T>,
    ) -> Result<Vec<T>> {
        let mut acts = self.stack.plan(pass, Keep::Discard);
        acts.restrict(sublayers);
        acts.input().copy_from_slice(rows);
        self.stack.probe(w, pass, memory, &mut acts, probe)?;
        Ok(acts.output().to_vec())
    }

    /// There are logits.
    pub fn has_head(&self) -> bool {
        self.exit.is_some()
    }

    /// The embedded tokens, `[batch, seq, width]`, with all that is added to them.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn embedded<T: Float>(&self, w: &Weights<'_, T>, ids: &[u32], pass: &Pass<'_>) -> Result<Vec<T>> {
        self.entry.check(ids, pass)?;
        let mut rows = vec![T::ZERO; pass.rows() * self.width];
        self.entry.forward(w, ids, pass, &mut rows);
        Ok(rows)
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
            return Err(Error::Untrainable { part: "a matrix of another element type than the computation" });
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

    /// The gradient of rows after the last block: `d_logits` gets their logits and makes them the gradient of those rows.
    ///
    /// # Errors
    /// When there is no head.
    pub fn rows_gradient<T: Float>(&self, w: &Weights<'_, T>, rows: &[T], d_logits: impl FnOnce(&mut [T])) -> Result<Vec<T>> {
        let exit = self.exit.as_ref().ok_or(Error::Untrainable { part: "a model without a head" })?;
        let logits = self.logits_of(w, rows);
        let (mut d, mut d_rows) = (logits.clone(), vec![T::ZERO; rows.len()]);
        d_logits(&mut d);
        exit.input_gradient(w, rows, &logits, &mut d, &mut d_rows);
        Ok(d_rows)
    }

    /// From the gradient of the rows after the last block to those of activations, which `seen` gets; weights, of any type, are constant.
    /// The last forward pass kept what is needed ([`Keep::Tape`]).
    ///
    /// # Errors
    /// When there was no such pass, or the gradient has another length than the rows.
    pub fn activation_gradients<T: Float>(
        &self,
        w: &Weights<'_, T>,
        pass: &Pass<'_>,
        acts: &mut LmActivations<T>,
        d_rows: &[T],
        seen: &dyn GradientProbe<T>,
    ) -> Result<()> {
        let d = acts.stack.gradient();
        if d.len() != d_rows.len() {
            return Err(Error::Length { what: "the gradient of the rows", got: d_rows.len(), expected: d.len() });
        }
        d.copy_from_slice(d_rows);
        self.stack.backward_probed(w, &mut Gradients::of_activations(), pass, (&[], &mut []), &mut acts.stack, seen)
    }

    /// The same over a memory, which cross-attention reads.
    pub fn cache_reading<T: Float>(&self, w: &Weights<'_, T>, batch: usize, memory: Memory<'_, T>) -> StackCache<T> {
        self.stack.cache(w, batch, Some(memory))
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
        self.extend_probed(w, ids, cache, logits, &NoProbe)
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
        let (batch, new) = (cache.batch(), ids.len() / cache.batch().max(1));
        let rows = self.extend_rows(w, ids, cache, probe)?;
        self.logits(w, &Pass { wanted: Wanted::LastRow, ..Pass::new(batch, new, MaskKind::Causal) }, rows, logits)
    }

    /// The rows after the last block of `new` tokens of each sequence, the past being in the cache; causal.
    ///
    /// # Errors
    /// As [`Transformer::extend`].
    pub fn extend_rows<'c, T: Float>(
        &self,
        w: &Weights<'_, T>,
        ids: &[u32],
        cache: &'c mut StackCache<T>,
        probe: &dyn Probe<T>,
    ) -> Result<&'c [T]> {
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
        self.stack.extend(w, &x, &pass, cache, probe)
    }

    /// Where no layer is shared out over threads, one token is written in less time than it takes to change threads.
    pub(crate) fn is_small(&self) -> bool {
        self.layout.len() < PARALLEL_WEIGHTS
    }
}
