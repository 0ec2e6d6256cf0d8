//! A language model: embedding, blocks, logits; its loss and gradients.

use crate::config::ModelConfig;
use crate::dropout::Dropout;
use crate::embedding::Embedding;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::linear::{Linear, PARALLEL_WEIGHTS};
use crate::look::{Call, MaskKind};
use crate::loss::{Loss, cross_entropy};
use crate::parallel::in_pool;
use crate::params::Layout;
use crate::positions::Added;
use crate::stack::{Stack, StackCache, StackSaved};

/// Where the embedding's dropout mask is drawn.
const EMBEDDING_DROPOUT: u64 = u64::MAX;

/// Tokens to rows: embedding and added positions.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) tokens: Embedding,
    added: Added,
    dropout: f64,
}

impl Entry {
    pub(crate) fn new(layout: &mut Layout, config: &ModelConfig) -> Self {
        Self {
            tokens: Embedding::new(layout, "tokens", config.vocab, config.width, true),
            added: Added::new(layout, config.positions, config.context, config.width),
            dropout: config.dropout,
        }
    }

    /// Are these tokens, and do they fit?
    pub(crate) fn check(&self, ids: &[u32], call: &Call<'_>) -> Result<()> {
        if ids.len() != call.rows() {
            return Err(Error::Length { what: "the list of tokens", got: ids.len(), expected: call.rows() });
        }
        if let Some(&token) = ids.iter().find(|id| **id as usize >= self.tokens.count()) {
            return Err(Error::Token { token, vocab: self.tokens.count() });
        }
        match self.added.limit() {
            Some(context) if call.offset + call.seq > context => Err(Error::TooLong { tokens: call.offset + call.seq, context }),
            _ => Ok(()),
        }
    }

    pub(crate) fn forward<T: Float>(&self, p: &[T], ids: &[u32], call: &Call<'_>, x: &mut [T]) {
        self.tokens.forward(p, ids, x);
        self.added.forward(p, x, call.seq, self.tokens.width(), call.offset);
        if let Some(drop) = call.dropout.and_then(|seed| Dropout::new(self.dropout, seed, EMBEDDING_DROPOUT)) {
            drop.apply(0, x);
        }
    }

    pub(crate) fn backward<T: Float>(&self, g: &mut [T], ids: &[u32], call: &Call<'_>, dx: &mut [T]) {
        if let Some(drop) = call.dropout.and_then(|seed| Dropout::new(self.dropout, seed, EMBEDDING_DROPOUT)) {
            drop.apply(0, dx);
        }
        self.added.backward(g, dx, call.seq, self.tokens.width(), call.offset);
        self.tokens.backward(g, ids, dx);
    }
}

/// Rows to logits: a layer of its own, or the embedding's table.
#[derive(Debug, Clone)]
pub(crate) struct Exit {
    head: Option<Linear>,
}

impl Exit {
    pub(crate) fn new(layout: &mut Layout, config: &ModelConfig) -> Self {
        Self { head: (!config.tied).then(|| Linear::new(layout, "head", config.width, config.vocab, true)) }
    }

    pub(crate) fn forward<T: Float>(&self, tokens: &Embedding, p: &[T], x: &[T], logits: &mut [T]) {
        match &self.head {
            Some(head) => head.forward(p, x, logits),
            None => tokens.unembed(p, x, logits),
        }
    }

    pub(crate) fn backward<T: Float>(&self, tokens: &Embedding, p: &[T], g: &mut [T], x: &[T], d_logits: &[T], dx: &mut [T]) {
        match &self.head {
            Some(head) => head.backward(p, g, x, d_logits, dx),
            None => tokens.unembed_backward(p, g, x, d_logits, dx),
        }
    }
}

/// A decoder-only language model. The mask is said with each call, so that it can be the wrong one.
#[derive(Debug, Clone)]
pub struct LanguageModel {
    config: ModelConfig,
    layout: Layout,
    entry: Entry,
    stack: Stack,
    exit: Exit,
}

/// Buffers of one shape of a language model's pass.
#[derive(Debug, Clone)]
pub struct LmPass<T: Float> {
    stack: StackSaved<T>,
    /// `[batch, seq, vocab]`; after [`LanguageModel::loss_and_gradient`] their gradient.
    logits: Vec<T>,
    row_losses: Vec<f64>,
    shape: (usize, usize),
}

impl<T: Float> LmPass<T> {
    /// The logits of the last forward pass, `[batch, seq, vocab]`.
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

    /// The stack's part.
    pub fn stack(&self) -> &StackSaved<T> {
        &self.stack
    }
}

impl LanguageModel {
    /// A model of this shape.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: ModelConfig) -> Result<Self> {
        config.check()?;
        let mut layout = Layout::new();
        let entry = Entry::new(&mut layout, &config);
        let stack = Stack::new(&mut layout, &config, config.layers, false);
        let exit = Exit::new(&mut layout, &config);
        Ok(Self { config, layout, entry, stack, exit })
    }

    /// Its shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its parameters.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its blocks.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Buffers for a shape; with those of the backward pass, or without.
    pub fn plan<T: Float>(&self, batch: usize, seq: usize, backward: bool) -> LmPass<T> {
        let call = Call::new(batch, seq, MaskKind::Causal);
        LmPass {
            stack: self.stack.plan(&call, backward),
            logits: vec![T::ZERO; batch * seq * self.config.vocab],
            row_losses: vec![0.0; batch * seq],
            shape: (batch, seq),
        }
    }

    /// Tokens `[batch, seq]` to [`LmPass::logits`].
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn forward<T: Float>(&self, p: &[T], ids: &[u32], call: &Call<'_>, pass: &mut LmPass<T>) -> Result<()> {
        self.entry.check(ids, call)?;
        if pass.shape != (call.batch, call.seq) {
            return Err(Error::Length { what: "the planned pass", got: pass.shape.0 * pass.shape.1, expected: call.rows() });
        }
        self.entry.forward(p, ids, call, pass.stack.input());
        self.stack.forward(p, call, &[], &mut pass.stack)?;
        self.exit.forward(&self.entry.tokens, p, pass.stack.output(), &mut pass.logits);
        Ok(())
    }

    fn check_targets(&self, targets: &[u32], call: &Call<'_>) -> Result<()> {
        if targets.len() != call.rows() {
            return Err(Error::Length { what: "the list of targets", got: targets.len(), expected: call.rows() });
        }
        match targets.iter().find(|&&t| t != crate::loss::IGNORE && t as usize >= self.config.vocab) {
            Some(&token) => Err(Error::Token { token, vocab: self.config.vocab }),
            None => Ok(()),
        }
    }

    /// The loss of targets, without gradients.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn loss<T: Float>(&self, p: &[T], ids: &[u32], targets: &[u32], call: &Call<'_>, pass: &mut LmPass<T>) -> Result<Loss> {
        self.check_targets(targets, call)?;
        in_pool(|| {
            self.forward(p, ids, call, pass)?;
            Ok(cross_entropy(&mut pass.logits, targets, None, &mut pass.row_losses))
        })
    }

    /// The loss, and its gradients added to `g`; each counted row weighs `1 / divisor` in these.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn loss_and_gradient<T: Float>(
        &self,
        p: &[T],
        g: &mut [T],
        ids: &[u32],
        targets: &[u32],
        call: &Call<'_>,
        divisor: f64,
        pass: &mut LmPass<T>,
    ) -> Result<Loss> {
        self.check_targets(targets, call)?;
        self.forward(p, ids, call, pass)?;
        let loss = cross_entropy(&mut pass.logits, targets, Some(divisor), &mut pass.row_losses);
        let (out, d) = pass.stack.output_and_gradient();
        self.exit.backward(&self.entry.tokens, p, g, out, &pass.logits, d);
        self.stack.backward(p, g, call, &[], &mut [], &mut pass.stack)?;
        self.entry.backward(g, ids, call, pass.stack.gradient());
        Ok(loss)
    }

    /// A cache for decoding causally.
    pub fn cache<T: Float>(&self, p: &[T], batch: usize) -> StackCache<T> {
        self.stack.cache(p, batch, self.config.context, None)
    }

    /// Logits of the last of `new` tokens of each sequence, `[batch, vocab]`, the past being in the cache.
    ///
    /// # Errors
    /// When tokens do not fit, or the cache is full.
    pub fn extend<T: Float>(&self, p: &[T], ids: &[u32], batch: usize, cache: &mut StackCache<T>, logits: &mut Vec<T>) -> Result<()> {
        // Where no layer is shared out, one token is written in less time than it takes to change threads.
        if p.len() < PARALLEL_WEIGHTS {
            self.extend_here(p, ids, batch, cache, logits)
        } else {
            in_pool(|| self.extend_here(p, ids, batch, cache, logits))
        }
    }

    fn extend_here<T: Float>(&self, p: &[T], ids: &[u32], batch: usize, cache: &mut StackCache<T>, logits: &mut Vec<T>) -> Result<()> {
        let (new, width) = (ids.len() / batch.max(1), self.config.width);
        if new == 0 {
            return Err(Error::Length { what: "the list of new tokens", got: ids.len(), expected: batch.max(1) });
        }
        let call = Call { offset: cache.len(), ..Call::new(batch, new, MaskKind::Causal) };
        self.entry.check(ids, &call)?;
        let mut x = vec![T::ZERO; ids.len() * width];
        self.entry.forward(p, ids, &call, &mut x);
        self.stack.extend(p, &mut x, cache)?;
        for b in 0..batch {
            let last = ((b + 1) * new - 1) * width;
            x.copy_within(last..last + width, b * width);
        }
        logits.resize(batch * self.config.vocab, T::ZERO);
        self.exit.forward(&self.entry.tokens, p, &x[..batch * width], logits);
        Ok(())
    }
}
