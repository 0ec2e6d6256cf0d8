//! Writing with a language model: temperature, top-k, top-p, with a cache of keys and values.

use crate::error::{Error, Result};
use crate::float::Float;
use crate::layers::cache::CacheType;
use crate::layers::probe::{NoProbe, Probe};
use crate::layers::stack::{Memory, StackCache};
use crate::lm::LanguageModel;
use crate::models::transformer::Transformer;
use crate::parallel::in_pool;
use crate::random::Draws;
use crate::tensors::Weights;
use std::ops::Range;

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the most likely token.
    pub temperature: f64,
    /// Only the k most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together have this probability.
    pub top_p: Option<f64>,
    /// The seed of all draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: None, seed: 0 }
    }
}

impl Sampling {
    /// Whether the settings are valid.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<()> {
        let refuse = |name, value: f64, requirement: &str| {
            Err(Error::Config { name, value: value.to_string(), requirement: requirement.to_owned() })
        };
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refuse("temperature", self.temperature, "finite and not negative");
        }
        if self.top_k == Some(0) {
            return refuse("top-k", 0.0, "at least 1");
        }
        match self.top_p {
            Some(p) if !(p > 0.0 && p <= 1.0) => refuse("top-p", p, "in (0, 1]"),
            _ => Ok(()),
        }
    }

    /// Draw a token from logits.
    ///
    /// # Errors
    /// [`Error::Logits`] when one of them is NaN, or none is larger than minus infinity.
    pub fn draw<T: Float>(&self, logits: &[T], draws: &mut Draws) -> Result<u32> {
        if logits.iter().any(|x| x.to_f64().is_nan()) || logits.iter().all(|x| x.to_f64() == f64::NEG_INFINITY) {
            return Err(Error::Logits);
        }
        if self.temperature == 0.0 {
            return Ok(argmax(logits) as u32);
        }
        let max = logits.iter().map(|x| x.to_f64()).fold(f64::NEG_INFINITY, f64::max);
        let mut weights: Vec<f64> = logits.iter().map(|x| ((x.to_f64() - max) / self.temperature).exp()).collect();
        if self.top_k.is_some() || self.top_p.is_some() {
            self.cut(&mut weights);
        }
        Ok(draws.weighted(&weights) as u32)
    }

    /// Set the weights of tokens that may not be drawn to zero.
    fn cut(&self, weights: &mut [f64]) {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        // Stable: of equal tokens the lower ones stay.
        order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
        let mut keep = self.top_k.unwrap_or(weights.len()).min(weights.len());
        if let Some(p) = self.top_p {
            let whole: f64 = order[..keep].iter().map(|&i| weights[i]).sum();
            let mut sum = 0.0;
            let enough = order[..keep].iter().position(|&i| {
                sum += weights[i];
                sum >= p * whole
            });
            keep = enough.map_or(keep, |n| n + 1);
        }
        for &i in &order[keep..] {
            weights[i] = 0.0;
        }
    }
}

/// The lowest index of the largest number.
pub fn argmax<T: Float>(x: &[T]) -> usize {
    x.iter().enumerate().fold((0, None), |(best, max), (i, &x)| if max.is_none_or(|m| x > m) { (i, Some(x)) } else { (best, max) }).0
}

/// How a [`Writer`] goes on from its prompt.
#[derive(Debug, Clone, Copy)]
pub struct Continuation {
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens that the model sees at a time.
    pub context: usize,
    /// The BOS token; where the prompt begins with it, it stays in front when older tokens are dropped.
    pub bos: Option<u32>,
    /// Keys and values are cached; without, the visible text is read again for each token.
    pub cached: bool,
    /// How keys and values are stored.
    pub cache_type: CacheType,
}

/// A text being written. When the context is full, its older half is dropped and the rest read again, with the cache or without it, so
/// that both write the same.
#[derive(Debug)]
pub struct Writer<'m, T: Float> {
    model: &'m Transformer,
    weights: Weights<'m, T>,
    options: Continuation,
    draws: Draws,
    tokens: Vec<u32>,
    /// 1 where the prompt begins with BOS.
    kept: usize,
    /// The first token that the model still sees, after those that are kept.
    first: usize,
    cache: StackCache<T>,
    logits: Vec<T>,
}

impl<'m, T: Float> Writer<'m, T> {
    /// Continue `prompt`, which must have at least one token.
    ///
    /// # Errors
    /// When the prompt is empty, a token is outside the vocabulary or a setting is out of range.
    pub fn new(model: &'m LanguageModel, params: &'m [T], prompt: &[u32], sampling: Sampling, cached: bool) -> Result<Self> {
        let options = Continuation { sampling, context: model.config().context, bos: None, cached, cache_type: CacheType::F32 };
        Self::with(model, model.weights(params), prompt, options)
    }

    /// The same with any transformer and its weights.
    ///
    /// # Errors
    /// As [`Writer::new`].
    pub fn with(model: &'m Transformer, weights: Weights<'m, T>, prompt: &[u32], options: Continuation) -> Result<Self> {
        options.sampling.check()?;
        if prompt.is_empty() {
            return Err(Error::Length { what: "the prompt", got: 0, expected: 1 });
        }
        let vocab = model.vocab();
        if let Some(&token) = prompt.iter().find(|t| **t as usize >= vocab) {
            return Err(Error::Token { token, vocab });
        }
        let kept = usize::from(options.context > 1 && options.bos.is_some_and(|bos| prompt[0] == bos));
        Ok(Self {
            model,
            options,
            draws: Draws::at(options.sampling.seed, &[0x6E4]),
            tokens: prompt.to_vec(),
            kept,
            first: prompt.len().saturating_sub(options.context - kept).max(kept),
            cache: model.cache(&weights, 1).stored_as(options.cache_type),
            weights,
            logits: Vec::new(),
        })
    }

    /// The same over a memory, which cross-attention reads.
    #[must_use]
    pub fn reading(mut self, memory: Memory<'_, T>) -> Self {
        self.cache = self.model.cache_reading(&self.weights, 1, memory).stored_as(self.options.cache_type);
        self
    }

    /// Prompt and what was written.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Bytes of the cached keys and values, with the room to grow.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Write one more token.
    ///
    /// # Errors
    /// None after [`Writer::new`] succeeded, except by a defect.
    pub fn next_token(&mut self) -> Result<u32> {
        self.next_token_probed(&NoProbe)
    }

    /// The same, with a probe of each pass.
    ///
    /// # Errors
    /// What the probe's edits or its interrupt flag lead to.
    pub fn next_token_probed(&mut self, probe: &(dyn Probe<T> + Sync)) -> Result<u32> {
        self.next_token_of(probe, |_| ())
    }

    /// The same, where `rule` may change the logits before a token is drawn.
    ///
    /// # Errors
    /// As [`Writer::next_token_probed`], and when no token is left.
    pub fn next_token_of(&mut self, probe: &(dyn Probe<T> + Sync), rule: impl FnOnce(&mut [T])) -> Result<u32> {
        let Continuation { context, cached, .. } = self.options;
        let len = self.tokens.len();
        if self.kept + len - self.first > context {
            self.first = len - (context / 2).max(1 + self.kept) + self.kept;
            self.cache.clear();
        }
        if !cached {
            self.cache.clear();
        }
        // Rows of one pass are neighbours in the text: a BOS token whose successors were dropped is read by itself.
        if self.cache.is_empty() && self.first > self.kept && self.kept == 1 {
            self.extend(0..1, probe)?;
        }
        self.extend(self.first - self.kept + self.cache.len()..len, probe)?;
        rule(&mut self.logits);
        let token = self.options.sampling.draw(&self.logits, &mut self.draws)?;
        self.tokens.push(token);
        Ok(token)
    }

    /// Read some tokens of the text, the past being in the cache.
    fn extend(&mut self, rows: Range<usize>, probe: &(dyn Probe<T> + Sync)) -> Result<()> {
        let Self { model, weights, tokens, cache, logits, .. } = self;
        let new = &tokens[rows.clone()];
        probe.pass(rows, tokens.len());
        if model.is_small() {
            model.extend_probed(weights, new, cache, logits, probe)
        } else {
            in_pool(|| model.extend_probed(weights, new, cache, logits, probe))
        }
    }
}
