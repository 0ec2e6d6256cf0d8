//! The loss of a whole text of any length: window by window, every token once.
//!
//! Windows of a tokenizer with a BOS token begin with it. Without one, the first token of the text is not predicted. Models of
//! `regard train` predict as many tokens in a window as they were trained to (`context`); other models see at most `context` tokens, the
//! predicted one included, as is usual for perplexities.

use crate::edits::{Edits, Sources};
use crate::error::{Error, Result};
use crate::model::{Model, Remember};
use rayon::prelude::*;
use regard_nn::cache::CacheType;
use regard_nn::evaluate::{Split, Window};

/// What a text came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluated {
    /// The loss of each predicted token, in nats.
    pub losses: Vec<f64>,
    /// Tokens that were the most likely ones.
    pub correct: usize,
}

impl Evaluated {
    /// Mean loss in nats a token.
    pub fn loss(&self) -> f64 {
        self.losses.iter().sum::<f64>() / self.losses.len() as f64
    }

    /// Share of tokens that were the most likely ones.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.losses.len() as f64
    }
}

impl Model {
    /// The loss of each token of a text (but of the first, where no BOS token stands before it), by windows that begin `stride` tokens
    /// apart; by default as far apart as they can. `watch` gets the predicted tokens so far, and of all. A BOS token at the front of `ids`
    /// is the tokenizer's.
    ///
    /// # Errors
    /// As [`Model::losses`]; also for a stride that would leave tokens out, or a text without two tokens.
    pub fn evaluate(
        &self,
        ids: &[u32],
        stride: Option<usize>,
        edits: &Edits,
        sources: &Sources,
        watch: impl FnMut(usize, usize),
    ) -> Result<Evaluated> {
        self.evaluate_with_cache(ids, stride, edits, sources, CacheType::F32, watch)
    }

    /// [`Model::evaluate`] as if every token were decoded: over keys and values that a cache of this type stores.
    ///
    /// # Errors
    /// As [`Model::evaluate`].
    pub fn evaluate_with_cache(
        &self,
        ids: &[u32],
        stride: Option<usize>,
        edits: &Edits,
        sources: &Sources,
        cache_type: CacheType,
        mut watch: impl FnMut(usize, usize),
    ) -> Result<Evaluated> {
        let bos = self.tokenizer().ok().and_then(|tokenizer| tokenizer.first()).filter(|first| ids.first() == Some(first));
        let text = &ids[usize::from(bos.is_some())..];
        let ours = self.trained().is_some();
        let split = Split {
            tokens: text.len(),
            first: usize::from(bos.is_none()),
            predictions: if ours { self.context() } else { self.context().saturating_sub(1).max(1) },
            stride,
            whole_last: ours,
        };
        let short = || Error::Tokens { reason: "a loss needs at least two tokens: the second is predicted from the first".to_owned() };
        let windows = if text.len() <= split.first { return Err(short()) } else { split.windows()? };
        // The rows that a window reads: those before its targets.
        let tokens = |window: &Window| -> Vec<u32> {
            bos.into_iter().chain(text[(window.targets.start - split.first)..window.targets.end].iter().copied()).collect()
        };
        self.check_loss(&tokens(&windows[0]))?;
        let weights = self.weights()?;
        let judge = |window: &Window| -> Result<Vec<(f64, bool)>> {
            let ids = tokens(window);
            let inputs = &ids[..ids.len() - 1];
            self.check(inputs, edits, sources)?;
            let probe = self.probe(edits, sources, Remember::default());
            let all = 0..self.transformer().stack().sublayers();
            let rows = match cache_type {
                CacheType::F32 => self.through(&weights, &self.embedded(&weights, inputs)?, all, probe)?.0,
                stored => self.through_cache(&weights, inputs, stored, &probe)?,
            };
            let judged = self.judge(&weights, &rows, &ids[1..])?;
            Ok(judged[window.new.start - window.targets.start..].to_vec())
        };
        let mut evaluated = Evaluated::default();
        for windows in windows.chunks(2 * rayon::current_num_threads()) {
            for judged in windows.par_iter().with_max_len(1).map(judge).collect::<Result<Vec<_>>>()? {
                evaluated.correct += judged.iter().filter(|(_, correct)| *correct).count();
                evaluated.losses.extend(judged.into_iter().map(|(loss, _)| loss));
            }
            watch(evaluated.losses.len(), text.len() - split.first);
        }
        Ok(evaluated)
    }
}
