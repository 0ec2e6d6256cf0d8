//! The logit lens: the prediction after each layer; and direct logit attribution by part.
//!
//! ```text
//! lens           logits of norm(stream after layer l), with the last norm's own scale of that stream
//! attribution    logit = sum of parts: embedding, each head's z W_O, each b_O, each network, the last norm's shift, the head's bias
//! ```
//!
//! Parts go through the last norm with the scale of the whole row, which makes it linear: they add up to the logit.

use crate::edits::{Edits, Sources};
use crate::error::{Error, Result};
use crate::model::{Model, Remember};
use crate::run::Run;
use ndarray::{Array2, Array3, Axis};
use regard_nn::linear::Write;
use std::ops::Range;

/// Predictions after each layer.
#[derive(Debug, Clone)]
pub struct Lens {
    /// The most likely tokens, best first, `[layers + 1, tokens, top]`; layer 0 is the embedding.
    pub top: Array3<u32>,
    /// Their probabilities.
    pub probability: Array3<f32>,
    /// The loss of the token that comes next, in nats, `[layers + 1, tokens]`; NaN at the last, where none comes.
    pub loss: Array2<f64>,
    /// The entropy of the prediction, in nats.
    pub entropy: Array2<f64>,
}

/// What parts of a model write to one logit.
#[derive(Debug, Clone)]
pub struct Attribution {
    /// `embedding`, `L0.H1`, `L0.bias`, `L0.mlp`, `last`.
    pub parts: Vec<String>,
    /// What each writes; they add up to the logit.
    pub writes: Vec<f64>,
    /// The logit itself.
    pub logit: f64,
}

/// A prediction: the softmax of one row of logits.
struct Ranked {
    logits: Vec<f32>,
    max: f32,
    /// Natural logarithm of the sum of the exponentials of `logits - max`.
    log_sum: f64,
    top: Vec<(u32, f64)>,
    entropy: f64,
}

impl Ranked {
    /// The `top` most likely tokens, best first; ties by number.
    fn of(logits: &[f32], top: usize) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
        let log = |id: usize| f64::from(logits[id] - max) - sum.ln();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let by_logit = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        order.select_nth_unstable_by(top - 1, by_logit);
        order.truncate(top);
        order.sort_by(by_logit);
        let entropy = -(0..logits.len()).map(|id| log(id).exp() * log(id)).sum::<f64>();
        let top = order.into_iter().map(|id| (id as u32, log(id).exp())).collect();
        Self { logits: logits.to_vec(), max, log_sum: sum.ln(), top, entropy }
    }

    fn log_probability(&self, id: u32) -> f64 {
        f64::from(self.logits[id as usize] - self.max) - self.log_sum
    }
}

impl Run {
    /// The most likely tokens after the token at `row`, best first, with their probabilities.
    ///
    /// # Errors
    /// [`Error::NoHead`] and [`Error::Outside`].
    pub fn next_tokens(&self, row: usize, top: usize) -> Result<Vec<(u32, f64)>> {
        if row >= self.len() {
            return Err(Error::Outside { what: "row", number: row, count: self.len() });
        }
        let hidden = self.hidden();
        let logits = self.model().logits(hidden.row(row).as_slice().expect("rows are contiguous"))?;
        Ok(Ranked::of(&logits, top.clamp(1, logits.len())).top)
    }
}

impl Model {
    /// The lens of a text, with the `top` most likely tokens of each place.
    ///
    /// # Errors
    /// As [`Model::run`], and [`Error::NoHead`].
    pub fn lens(&self, ids: &[u32], edits: &Edits, sources: &Sources, top: usize) -> Result<Lens> {
        self.lens_of(ids, edits, sources, top, 0..ids.len())
    }

    /// The same of some rows; the arrays have as many.
    ///
    /// # Errors
    /// As [`Model::lens`], and [`Error::Outside`].
    pub fn lens_of(&self, ids: &[u32], edits: &Edits, sources: &Sources, top: usize, of: Range<usize>) -> Result<Lens> {
        if of.start >= of.end || of.end > ids.len() {
            return Err(Error::Outside { what: "row", number: of.end, count: ids.len() });
        }
        if !self.has_head() {
            return Err(Error::NoHead { what: "tokens" });
        }
        let (_, memory) = self.forward(ids, edits, sources, Remember { streams: true, ..Remember::default() })?;
        let (layers, n, top) = (self.shape().layers, of.len(), top.clamp(1, self.vocab()));
        let mut lens = Lens {
            top: Array3::zeros((layers + 1, n, top)),
            probability: Array3::zeros((layers + 1, n, top)),
            loss: Array2::from_elem((layers + 1, n), f64::NAN),
            entropy: Array2::zeros((layers + 1, n)),
        };
        let weights = self.weights()?;
        for layer in 0..=layers {
            // Two sublayers per layer.
            let mut rows = memory.streams[2 * layer][of.start * self.width()..of.end * self.width()].to_vec();
            self.transformer().stack().apply_last_norm(&weights, &mut rows);
            for (row, rows) in rows.chunks(self.width()).enumerate() {
                let ranked = Ranked::of(&self.logits(rows)?, top);
                for (place, (id, probability)) in ranked.top.iter().enumerate() {
                    lens.top[[layer, row, place]] = *id;
                    lens.probability[[layer, row, place]] = *probability as f32;
                }
                lens.entropy[[layer, row]] = ranked.entropy;
                if let (Some(next), true) = (ids.get(of.start + row + 1), self.is_causal()) {
                    lens.loss[[layer, row]] = -ranked.log_probability(*next);
                }
            }
        }
        Ok(lens)
    }

    /// What each part writes to the logit of `token` at `row`.
    ///
    /// # Errors
    /// As [`Model::run`]; [`Error::NoHead`] also for heads that are not linear, and norms of sums.
    pub fn attribute(&self, ids: &[u32], edits: &Edits, sources: &Sources, row: usize, token: u32) -> Result<Attribution> {
        if row >= ids.len() {
            return Err(Error::Outside { what: "row", number: row, count: ids.len() });
        }
        if token as usize >= self.vocab() {
            return Err(Error::Outside { what: "token", number: token as usize, count: self.vocab() });
        }
        if !self.is_linear() {
            return Err(Error::NoHead { what: "parts of a logit: its norms or its head are not linear" });
        }
        let (hidden, memory) = self.forward(ids, edits, sources, Remember { streams: true, heads: true, ..Remember::default() })?;
        let (width, weights) = (self.width(), self.weights()?);
        let stream = |number: usize| &memory.streams[number][row * width..(row + 1) * width];
        let (mut names, mut parts) = (vec!["embedding".to_owned()], stream(0).to_vec());
        for (layer, tape) in memory.heads.iter().enumerate() {
            let output = self.layer(layer).expect("as many as tapes").output();
            let dim = self.head_dim();
            for (head, z) in tape.z.outer_iter().enumerate() {
                let mut alone = vec![0f32; output.inputs()];
                alone[head * dim..(head + 1) * dim].iter_mut().zip(z.index_axis(Axis(0), row)).for_each(|(to, z)| *to = *z);
                let mut written = vec![0f32; width];
                output.matrix(&weights).row_product(&alone, &mut written, Write::Replace);
                names.push(format!("L{layer}.H{head}"));
                parts.extend(written);
            }
            if let Some(bias) = output.bias(&weights) {
                names.push(format!("L{layer}.bias"));
                parts.extend_from_slice(bias);
            }
            let (before, after) = (stream(2 * layer + 1), stream(2 * layer + 2));
            names.push(format!("L{layer}.mlp"));
            parts.extend(after.iter().zip(before).map(|(a, b)| a - b));
        }
        let shift = self.transformer().stack().last_norm_parts(&weights, stream(2 * self.shape().layers), &mut parts);
        let bias = f64::from(self.logits(&vec![0f32; width])?[token as usize]);
        let of_token = |rows: &[f32]| -> Result<Vec<f64>> {
            Ok(self.logits(rows)?.chunks(self.vocab()).map(|logits| f64::from(logits[token as usize]) - bias).collect())
        };
        let mut writes = of_token(&parts)?;
        names.push("last".to_owned());
        writes.push(bias + shift.map_or(Ok(0.0), |shift| of_token(&shift).map(|x| x[0]))?);
        let logit = f64::from(self.logits(&hidden[row * width..(row + 1) * width])?[token as usize]);
        Ok(Attribution { parts: names, writes, logit })
    }
}
