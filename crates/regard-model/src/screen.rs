//! Every head taken out, one by one, on several texts.

use crate::edits::{Edits, Sources};
use crate::error::{Error, Result};
use crate::evidence::{Evidence, benjamini_hochberg};
use crate::model::Model;
use serde::{Deserialize, Serialize};

/// What an edit did to texts.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// The edits in canonical form.
    pub edits: String,
    /// Mean loss of each text as it is, in nats a token.
    pub intact: Vec<f64>,
    /// With the edits.
    pub edited: Vec<f64>,
    /// The differences over texts.
    pub difference: Evidence,
    /// Mean Kullback-Leibler divergence of the predictions, in nats a token; not for screens.
    pub divergence: Option<f64>,
    /// Share of tokens whose likeliest successor changed; not for screens.
    pub changed: Option<f64>,
    /// Benjamini-Hochberg, of screens.
    pub q: Option<f64>,
}

/// One head of a screen, to be stored and taken up again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Screened {
    /// Which layer.
    pub layer: usize,
    /// Which head.
    pub head: usize,
    /// Mean loss of each text without it.
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
    /// What edits do to the losses of texts, to predictions, and how sure that is; `watch` is told how many texts are done.
    ///
    /// # Errors
    /// As [`Model::losses`].
    pub fn surgery(&self, texts: &[Vec<u32>], edits: &Edits, sources: &Sources, mut watch: impl FnMut(usize, usize)) -> Result<Outcome> {
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
            watch(done + 1, texts.len());
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

    /// Take every head out, one by one. Heads in `known` are not computed again; `watch` gets each head as it is done and the number of all, and may stop
    /// the screen by returning false.
    ///
    /// # Errors
    /// As [`Model::losses`].
    pub fn screen(&self, texts: &[Vec<u32>], known: &[Screened], mut watch: impl FnMut(&Screened, usize) -> bool) -> Result<Vec<Outcome>> {
        if texts.is_empty() {
            return Err(Error::Tokens { reason: "there are no texts to screen on".to_owned() });
        }
        let (shape, sources) = (self.shape(), Sources::default());
        let intact: Vec<f64> = texts.iter().map(|ids| Ok(mean(&self.losses(ids, &Edits::default(), &sources)?))).collect::<Result<_>>()?;
        let total = shape.layers * shape.heads;
        let mut outcomes = Vec::with_capacity(total);
        for layer in 0..shape.layers {
            for head in 0..shape.heads {
                let edits = Edits::parse(&format!("L{layer}.H{head}=zero"))?;
                let before = known.iter().find(|known| (known.layer, known.head, known.losses.len()) == (layer, head, texts.len()));
                let screened = match before {
                    Some(known) => known.clone(),
                    None => {
                        let losses = texts.iter().map(|ids| Ok(mean(&self.losses(ids, &edits, &sources)?))).collect::<Result<_>>()?;
                        Screened { layer, head, losses }
                    }
                };
                let go_on = watch(&screened, total);
                let differences: Vec<f64> = screened.losses.iter().zip(&intact).map(|(a, b)| a - b).collect();
                outcomes.push(Outcome {
                    edits: edits.canonical(),
                    difference: Evidence::of(&differences, (layer * shape.heads + head) as u64),
                    divergence: None,
                    changed: None,
                    q: None,
                    intact: intact.clone(),
                    edited: screened.losses,
                });
                if !go_on {
                    return Err(Error::Tokens { reason: "the screen was stopped".to_owned() });
                }
            }
        }
        let q = benjamini_hochberg(&outcomes.iter().map(|outcome| outcome.difference.p).collect::<Vec<_>>());
        outcomes.iter_mut().zip(q).for_each(|(outcome, q)| outcome.q = Some(q));
        Ok(outcomes)
    }
}
