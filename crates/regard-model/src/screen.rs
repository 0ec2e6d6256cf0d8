//! Every head taken out, one by one, on several texts.

use crate::edits::{Edits, Sources};
use crate::error::{Error, Result};
use crate::metric::Metric;
use crate::model::{Model, Remember};
use crate::paired_test::{Evidence, benjamini_hochberg};
use rayon::prelude::*;
use regard_nn::models::merged_logits::MergedLogits;
use regard_nn::tensors::Weights;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What an edit did to texts.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The edits in canonical form.
    pub edits: String,
    /// Mean loss of each text as it is, in nats a token; of a screen by another metric, its value.
    pub intact: Vec<f64>,
    /// With the edits.
    pub edited: Vec<f64>,
    /// The differences over texts.
    pub difference: Evidence,
    /// Mean Kullback-Leibler divergence of the predictions, in nats a token; not for screens.
    pub divergence: Option<f64>,
    /// Share of tokens whose most likely successor changed; not for screens.
    pub changed: Option<f64>,
    /// Benjamini-Hochberg, of screens.
    pub q: Option<f64>,
}

/// One head of a screen, to be stored and resumed from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Screened {
    /// Which layer.
    pub layer: usize,
    /// Which head.
    pub head: usize,
    /// Mean loss of each text without it, or the value of another metric.
    pub losses: Vec<f64>,
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len().max(1) as f64
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    logits.iter().map(|x| f64::from(x - max) - sum.ln()).collect()
}

impl Model {
    /// The effect of edits on losses and predictions of texts, with intervals; `watch` gets the number of finished texts, and may
    /// stop it by returning false.
    ///
    /// # Errors
    /// As [`Model::losses`].
    pub fn surgery(
        &self,
        texts: &[Vec<u32>],
        edits: &Edits,
        sources: &Sources,
        mut watch: impl FnMut(usize, usize) -> bool,
    ) -> Result<Outcome> {
        let (none, nothing) = (Edits::default(), Sources::default());
        let (mut intact, mut edited, mut divergences, mut changed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (done, ids) in texts.iter().enumerate() {
            let (a, b) = (self.run(ids, &none, &nothing)?, self.run(ids, edits, sources)?);
            intact.push(a.loss()?);
            edited.push(b.loss()?);
            let (mut divergence, mut other) = (0.0, 0usize);
            let width = self.width();
            // A few rows at a time: logits of long texts are large.
            let (a, b) = (a.hidden().to_owned(), b.hidden().to_owned());
            let rows = |x: &ndarray::Array2<f32>| x.as_slice().map(<[f32]>::to_vec).unwrap_or_default();
            for (a, b) in rows(&a).chunks(64 * width).zip(rows(&b).chunks(64 * width)) {
                let (a, b) = (self.logits(a)?, self.logits(b)?);
                for (a, b) in a.chunks(self.vocab()).zip(b.chunks(self.vocab())) {
                    other += usize::from(regard_nn::generate::argmax(a) != regard_nn::generate::argmax(b));
                    divergence += log_softmax(a).iter().zip(log_softmax(b)).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
                }
            }
            divergences.push(divergence / ids.len() as f64);
            changed.push(other as f64 / ids.len() as f64);
            if !watch(done + 1, texts.len()) {
                return Err(Error::Stopped);
            }
        }
        let differences: Vec<f64> = edited.iter().zip(&intact).map(|(a, b)| a - b).collect();
        Ok(Outcome {
            edits: edits.canonical(),
            difference: Evidence::of(&differences, 1),
            divergence: Some(mean(&divergences)),
            changed: Some(mean(&changed)),
            q: None,
            intact,
            edited,
        })
    }

    /// Take every head out, one by one. Heads in `known` are not computed again; `watch` gets each head as it is done and the number of
    /// all, and may stop the screen by returning false.
    ///
    /// A text without a head is run from the stream before that head's layer on: what is before is that of the whole text, to the bit.
    /// Texts, and where these are few several heads, are run side by side. Tokens that the model never learnt to tell apart are taken
    /// together, at most 1e-8 nats of a loss in exact arithmetic.
    ///
    /// # Errors
    /// As [`Model::losses`].
    pub fn screen(&self, texts: &[Vec<u32>], known: &[Screened], watch: impl FnMut(&Screened, usize) -> bool) -> Result<Vec<Outcome>> {
        self.screen_by(texts, &Metric::Loss, known, watch)
    }

    /// The same by a metric of each text.
    ///
    /// # Errors
    /// As [`Model::screen`]; when the metric does not fit the texts.
    pub fn screen_by(
        &self,
        texts: &[Vec<u32>],
        metric: &Metric,
        known: &[Screened],
        mut watch: impl FnMut(&Screened, usize) -> bool,
    ) -> Result<Vec<Outcome>> {
        if texts.is_empty() {
            return Err(Error::Tokens { reason: "there are no texts to screen on".to_owned() });
        }
        let (shape, weights) = (self.shape(), self.weights()?);
        metric.check(self, texts)?;
        let mut bench = Bench::new(self, &weights, texts, metric)?;
        let intact = bench.values(&bench.through(0..self.sublayers())?)?;
        let total = shape.layers * shape.heads;
        let (mut outcomes, mut todo) = (Vec::with_capacity(total), total);
        let is_known = |at: (usize, usize)| known.iter().find(|k| (k.layer, k.head, k.losses.len()) == (at.0, at.1, texts.len()));
        // Enough heads at a time to keep every thread busy; results do not depend on it.
        let together = (2 * rayon::current_num_threads()).div_ceil(texts.len());
        for layer in 0..shape.layers {
            let heads: Vec<usize> = (0..shape.heads).collect();
            for heads in heads.chunks(together) {
                let new: Vec<usize> = heads.iter().copied().filter(|head| is_known((layer, *head)).is_none()).collect();
                let mut new = bench.without(layer, &new)?.into_iter();
                for &head in heads {
                    let screened = match is_known((layer, head)) {
                        Some(known) => known.clone(),
                        None => Screened { layer, head, losses: new.next().expect("one per head that is not known") },
                    };
                    todo -= 1;
                    if !watch(&screened, total) && todo > 0 {
                        return Err(Error::Stopped);
                    }
                    let differences: Vec<f64> = screened.losses.iter().zip(&intact).map(|(a, b)| a - b).collect();
                    outcomes.push(Outcome {
                        edits: Edits::parse(&format!("L{layer}.H{head}=zero"))?.canonical(),
                        difference: Evidence::of(&differences, (layer * shape.heads + head) as u64),
                        divergence: None,
                        changed: None,
                        q: None,
                        intact: intact.clone(),
                        edited: screened.losses,
                    });
                }
            }
            if layer + 1 < shape.layers {
                bench.streams = bench.through(self.first_of(layer)..self.first_of(layer + 1))?;
            }
        }
        let q = benjamini_hochberg(&outcomes.iter().map(|outcome| outcome.difference.p).collect::<Vec<_>>());
        outcomes.iter_mut().zip(q).for_each(|(outcome, q)| outcome.q = Some(q));
        Ok(outcomes)
    }
}

/// Texts on the way through a model: the stream of each before some layer.
struct Bench<'b> {
    model: &'b Model,
    weights: &'b Weights<'b, f32>,
    texts: &'b [Vec<u32>],
    streams: Vec<Vec<f32>>,
    metric: &'b Metric,
    alike: Option<MergedLogits<f32>>,
    nothing: Sources,
}

impl<'b> Bench<'b> {
    fn new(model: &'b Model, weights: &'b Weights<'b, f32>, texts: &'b [Vec<u32>], metric: &'b Metric) -> Result<Self> {
        let alike = if *metric == Metric::Loss { model.transformer().merged_logits(weights) } else { None };
        let streams = texts.iter().map(|ids| model.embedded(weights, ids)).collect::<Result<_>>()?;
        Ok(Self { model, weights, texts, streams, metric, alike, nothing: Sources::default() })
    }

    /// Every text through these sublayers, with edits: all of the first edit's, then all of the second's.
    fn through_each(&self, edits: &[Edits], sublayers: Range<usize>) -> Result<Vec<Vec<f32>>> {
        let pairs: Vec<(&Edits, &Vec<f32>)> =
            edits.iter().flat_map(|edits| self.streams.iter().map(move |stream| (edits, stream))).collect();
        let run = |(edits, stream): (&Edits, &Vec<f32>)| {
            let probe = self.model.probe(edits, &self.nothing, Remember::default());
            Ok(self.model.through(self.weights, stream, sublayers.clone(), probe)?.0)
        };
        pairs.into_par_iter().with_max_len(1).map(run).collect()
    }

    /// The same as they are.
    fn through(&self, sublayers: Range<usize>) -> Result<Vec<Vec<f32>>> {
        self.through_each(&[Edits::default()], sublayers)
    }

    /// The mean loss of each text or its value of another metric, from its final rows: one product for all of them.
    fn values(&self, rows: &[Vec<f32>]) -> Result<Vec<f64>> {
        if let Some(values) = self.metric.values(self.model, self.texts, rows)? {
            return Ok(values);
        }
        let width = self.model.width();
        let all: Vec<f32> = rows.iter().flat_map(|rows| &rows[..rows.len() - width]).copied().collect();
        let targets: Vec<u32> = self.texts.iter().flat_map(|ids| &ids[1..]).copied().collect();
        let losses = self.model.losses_with(self.weights, self.alike.as_ref(), &all, &targets)?;
        let mut rest = losses.as_slice();
        let mut of_text = |ids: &Vec<u32>| {
            let (own, others) = rest.split_at(ids.len() - 1);
            rest = others;
            mean(own)
        };
        Ok(self.texts.iter().map(&mut of_text).collect())
    }

    /// The values of each text without each of these heads, with the streams before their layer.
    fn without(&self, layer: usize, heads: &[usize]) -> Result<Vec<Vec<f64>>> {
        let edits: Vec<Edits> = heads.iter().map(|head| Edits::parse(&format!("L{layer}.H{head}=zero"))).collect::<Result<_>>()?;
        let rows = self.through_each(&edits, self.model.first_of(layer)..self.model.sublayers())?;
        rows.chunks(self.texts.len()).map(|rows| self.values(rows)).collect()
    }
}
