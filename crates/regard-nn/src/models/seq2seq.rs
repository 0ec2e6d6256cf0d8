//! An encoder-decoder: the decoder writes, and looks at what was read by cross-attention.

use super::embedding_head::{InputEmbedding, OutputHead};
use crate::attention::{AttentionSaved, MultiHeadAttention};
use crate::config::ModelConfig;
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::layers::pass::{MaskKind, Pass};
use crate::layers::probe::{NoProbe, Probe};
use crate::layers::stack::{Activations, Keep, Memory, Stack};
use crate::loss::{Loss, cross_entropy};
use crate::tensors::Weights;
use crate::tensors::layout::{Gradients, Layout};

/// Encoder and decoder over one vocabulary, each with an embedding of its own.
#[derive(Debug, Clone)]
pub struct EncoderDecoder {
    config: ModelConfig,
    layout: Layout,
    encoder: Encoder,
    entry: InputEmbedding,
    decoder: Stack,
    exit: OutputHead,
}

/// Tokens of a batch: what is read, what is written, what should be written next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pairs {
    /// Sequences.
    pub batch: usize,
    /// `[batch, source_seq]`, filled up after each length.
    pub source: Vec<u32>,
    /// How many tokens of each source exist.
    pub source_lengths: Vec<usize>,
    /// `[batch, target_seq]`: a start token, then what was written.
    pub written: Vec<u32>,
    /// `[batch, target_seq]`: the next token; [`crate::IGNORE`] after the end.
    pub targets: Vec<u32>,
}

impl Pairs {
    fn passes(&self, dropout: Option<u64>) -> (Pass<'_>, Pass<'_>) {
        let (source_seq, seq) = (self.source.len() / self.batch.max(1), self.written.len() / self.batch.max(1));
        let read = Pass::new(self.batch, source_seq, MaskKind::Everything);
        let encode = Pass { key_lengths: Some(&self.source_lengths), dropout, ..read };
        let dropout = dropout.map(|seed| seed ^ 0x5EED_DEC0);
        let decode = Pass {
            memory_seq: source_seq,
            memory_lengths: Some(&self.source_lengths),
            dropout,
            ..Pass::new(self.batch, seq, MaskKind::Causal)
        };
        (encode, decode)
    }
}

/// Buffers of one shape of an encoder-decoder's pass.
#[derive(Debug, Clone)]
pub struct PairActivations<T: Float> {
    encoder: Activations<T>,
    decoder: Activations<T>,
    logits: Vec<T>,
    row_losses: Vec<f64>,
}

impl<T: Float> PairActivations<T> {
    /// `[batch, target_seq, vocab]`.
    pub fn logits(&self) -> &[T] {
        &self.logits
    }
}

impl EncoderDecoder {
    /// `layers` blocks on each side.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(config: ModelConfig) -> Result<Self> {
        config.check()?;
        let mut layout = Layout::new();
        let encoder = layout.within("encoder", |layout| Encoder::new(layout, &config))?;
        let (entry, decoder) = layout.within("decoder", |layout| {
            let entry = InputEmbedding::new(layout, &config.embedding(), config.width);
            (entry, Stack::new(layout, config.width, &config.blocks(true), config.last_norm()))
        });
        let exit = OutputHead::new(&mut layout, &config.head(), &entry.tokens, config.width);
        Ok(Self { config, layout, encoder, entry, decoder, exit })
    }

    /// Its shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The parameters of a training as weights.
    ///
    /// # Panics
    /// When there are not as many as the model has.
    pub fn weights<'w, T: Float>(&self, params: &'w [T]) -> Weights<'w, T> {
        Weights::of_buffer(&self.layout, params)
    }

    /// Its parameters.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Buffers for batches of this shape.
    pub fn plan<T: Float>(&self, pairs: &Pairs, keep: Keep) -> PairActivations<T> {
        let (encode, decode) = pairs.passes(None);
        PairActivations {
            encoder: self.encoder.plan(&encode, keep),
            decoder: self.decoder.plan(&decode, keep),
            logits: vec![T::ZERO; pairs.written.len() * self.config.vocab],
            row_losses: vec![0.0; pairs.written.len()],
        }
    }

    fn forward<T: Float>(&self, w: &Weights<'_, T>, pairs: &Pairs, dropout: Option<u64>, pass: &mut PairActivations<T>) -> Result<()> {
        self.run(w, pairs, dropout, pass, &NoProbe)
    }

    /// Logits of a batch, with the decoder looked into: of its block b, sublayer 3 b is self-attention and 3 b + 1 cross-attention.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn probe<T: Float>(&self, w: &Weights<'_, T>, pairs: &Pairs, pass: &mut PairActivations<T>, probe: &dyn Probe<T>) -> Result<()> {
        self.run(w, pairs, None, pass, probe)
    }

    fn run<T: Float>(
        &self,
        w: &Weights<'_, T>,
        pairs: &Pairs,
        dropout: Option<u64>,
        pass: &mut PairActivations<T>,
        probe: &dyn Probe<T>,
    ) -> Result<()> {
        let (encode, decode) = pairs.passes(dropout);
        self.encoder.forward(w, &pairs.source, &encode, &mut pass.encoder)?;
        self.entry.check(&pairs.written, &decode)?;
        self.entry.forward(w, &pairs.written, &decode, pass.decoder.input());
        self.decoder.probe(w, &decode, pass.encoder.output(), &mut pass.decoder, probe)?;
        self.exit.forward(w, pass.decoder.output(), &mut pass.logits);
        Ok(())
    }

    fn check_targets(&self, pairs: &Pairs) -> Result<()> {
        if pairs.targets.len() != pairs.written.len() {
            return Err(Error::Length { what: "the list of targets", got: pairs.targets.len(), expected: pairs.written.len() });
        }
        match pairs.targets.iter().find(|&&t| t != crate::IGNORE && t as usize >= self.config.vocab) {
            Some(&token) => Err(Error::Token { token, vocab: self.config.vocab }),
            None => Ok(()),
        }
    }

    /// The loss of a batch.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn loss<T: Float>(&self, w: &Weights<'_, T>, pairs: &Pairs, pass: &mut PairActivations<T>) -> Result<Loss> {
        self.check_targets(pairs)?;
        self.forward(w, pairs, None, pass)?;
        Ok(cross_entropy(&mut pass.logits, &pairs.targets, None, &mut pass.row_losses))
    }

    /// The loss, and its gradients added to `g`; each counted row weighs `1 / divisor` in these.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn loss_and_gradient<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut [T],
        pairs: &Pairs,
        dropout: Option<u64>,
        divisor: f64,
        pass: &mut PairActivations<T>,
    ) -> Result<Loss> {
        self.check_targets(pairs)?;
        self.forward(w, pairs, dropout, pass)?;
        let g = &mut Gradients::new(&self.layout, g);
        let loss = cross_entropy(&mut pass.logits, &pairs.targets, Some(divisor), &mut pass.row_losses);
        let (encode, decode) = pairs.passes(dropout);
        let (out, d) = pass.decoder.output_and_gradient();
        self.exit.backward(&self.entry.tokens, w, g, out, &pass.logits, d);
        let (memory, d_memory) = pass.encoder.output_and_gradient();
        d_memory.fill(T::ZERO);
        self.decoder.backward(w, g, &decode, memory, d_memory, &mut pass.decoder)?;
        self.entry.backward(g, &pairs.written, &decode, pass.decoder.gradient());
        self.encoder.backward(w, g, &pairs.source, &encode, &mut pass.encoder)?;
        Ok(loss)
    }

    /// Greedy continuation of `start`, until `end` or `most` tokens; with the end token where it came.
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn write<T: Float>(&self, w: &Weights<'_, T>, pairs: &Pairs, start: u32, end: u32, most: usize) -> Result<Vec<Vec<u32>>> {
        let (encode, _) = pairs.passes(None);
        let mut read = self.encoder.plan(&encode, Keep::Discard);
        self.encoder.forward(w, &pairs.source, &encode, &mut read)?;
        let (batch, vocab, width) = (pairs.batch, self.config.vocab, self.config.width);
        let most = most.min(self.config.context);
        let memory = Memory { rows: read.output(), seq: encode.seq, lengths: Some(&pairs.source_lengths) };
        let mut cache = self.decoder.cache(w, batch, Some(memory));
        let mut last = vec![start; batch];
        let mut written = vec![Vec::new(); batch];
        let (mut x, mut logits) = (vec![T::ZERO; batch * width], vec![T::ZERO; batch * vocab]);
        for offset in 0..most {
            let pass = Pass { offset, ..Pass::new(batch, 1, MaskKind::Causal) };
            self.entry.check(&last, &pass)?;
            self.entry.forward(w, &last, &pass, &mut x);
            let rows = self.decoder.extend(w, &x, &pass, &mut cache, &NoProbe)?;
            self.exit.forward(w, rows, &mut logits);
            for ((last, written), logits) in last.iter_mut().zip(&mut written).zip(logits.chunks_exact(vocab)) {
                if written.last() != Some(&end) {
                    *last = crate::generate::argmax(logits) as u32;
                    written.push(*last);
                }
            }
            if written.iter().all(|w| w.last() == Some(&end)) {
                break;
            }
        }
        Ok(written)
    }

    /// The cross-attention of each decoder block in the last pass over `pairs`, with what its weights are asked by.
    pub fn cross_attentions<'s, T: Float>(
        &'s self,
        pairs: &'s Pairs,
        pass: &'s PairActivations<T>,
    ) -> (Pass<'s>, Vec<(&'s MultiHeadAttention, &'s AttentionSaved<T>)>) {
        (pairs.passes(None).1, self.decoder.attentions(&pass.decoder).skip(1).step_by(2).collect())
    }
}
