//! Writing with a language model: temperature, top-k, top-p, with a cache of keys and values.

use crate::error::{Error, Result};
use crate::float::Float;
use crate::layers::pass::{MaskKind, Pass, Wanted};
use crate::layers::stack::{Keep, StackCache};
use crate::lm::LanguageModel;
use crate::parallel::in_pool;
use crate::random::Draws;
use crate::tensors::Weights;

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the likeliest token.
    pub temperature: f64,
    /// Only the k likeliest tokens.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability.
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
    /// Do the numbers make sense?
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

/// A text being written. When the context is full, its older half is forgotten and the rest read again, with the cache or without
/// it, so that both write the same.
#[derive(Debug)]
pub struct Writer<'m, T: Float> {
    model: &'m LanguageModel,
    weights: Weights<'m, T>,
    sampling: Sampling,
    draws: Draws,
    tokens: Vec<u32>,
    /// The first token that the model still sees.
    first: usize,
    cache: Option<StackCache<T>>,
    logits: Vec<T>,
}

impl<'m, T: Float> Writer<'m, T> {
    /// Continue `prompt`, which must have at least one token.
    ///
    /// # Errors
    /// When the prompt is empty or a token or a setting makes no sense.
    pub fn new(model: &'m LanguageModel, params: &'m [T], prompt: &[u32], sampling: Sampling, cached: bool) -> Result<Self> {
        sampling.check()?;
        if prompt.is_empty() {
            return Err(Error::Length { what: "the prompt", got: 0, expected: 1 });
        }
        let vocab = model.config().vocab;
        if let Some(&token) = prompt.iter().find(|t| **t as usize >= vocab) {
            return Err(Error::Token { token, vocab });
        }
        let weights = model.weights(params);
        Ok(Self {
            model,
            sampling,
            draws: Draws::at(sampling.seed, &[0x6E4]),
            tokens: prompt.to_vec(),
            first: prompt.len().saturating_sub(model.config().context),
            cache: cached.then(|| model.cache(&weights, 1)),
            weights,
            logits: Vec::new(),
        })
    }

    /// Prompt and what was written.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Write one more token.
    ///
    /// # Errors
    /// None after [`Writer::new`] succeeded, short of a defect.
    pub fn next_token(&mut self) -> Result<u32> {
        let context = self.model.config().context;
        if self.tokens.len() - self.first > context {
            self.first = self.tokens.len() - (context / 2).max(1);
            if let Some(cache) = &mut self.cache {
                cache.clear();
            }
        }
        let seen = &self.tokens[self.first..];
        let (model, weights, logits) = (self.model, &self.weights, &mut self.logits);
        match &mut self.cache {
            Some(cache) => {
                let new = &seen[cache.len()..];
                if model.is_small() {
                    model.extend(weights, new, cache, logits)?;
                } else {
                    in_pool(|| model.extend(weights, new, cache, logits))?;
                }
            }
            None => {
                let pass = Pass { wanted: Wanted::LastRow, ..Pass::new(1, seen.len(), MaskKind::Causal) };
                let mut acts = model.plan(1, seen.len(), Keep::Discard);
                model.forward(weights, seen, &pass, &mut acts)?;
                logits.clear();
                logits.extend_from_slice(acts.logits());
            }
        }
        let token = self.sampling.draw(&self.logits, &mut self.draws)?;
        self.tokens.push(token);
        Ok(token)
    }
}
