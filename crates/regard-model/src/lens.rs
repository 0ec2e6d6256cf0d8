//! The logit lens: the prediction after each layer; and direct logit attribution by part.
//!
//! ```text
//! lens           logits of norm(stream after layer l), with the last norm's own scale of that stream
//! attribution    logit = sum of parts: embedding, each head's z W_O, each b_O, each network, the last norm's shift, the head's bias
//! by position    a head's part = sum over keys j of a[row, j] v_j W_O
//! ```
//!
//! Parts go through the last norm with the scale of the whole row, which makes it linear: they add up to the logit.

use crate::edits::{Edits, Sources};
use crate::error::{Error, Result};
use crate::hooks::Site;
use crate::model::{Model, Remember};
use crate::run::Run;
use ndarray::{Array2, Array3, Axis};
use rayon::prelude::*;
use regard_nn::loss::softmax_sums;
use std::ops::Range;

/// Rows whose logits are there at a time.
const LENS_ROWS: usize = 128;

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
    /// The token that each is read from: that of the row, or by position, of a head, of each key.
    pub positions: Vec<usize>,
    /// What each writes; they add up to the logit.
    pub writes: Vec<f64>,
    /// The logit itself.
    pub logit: f64,
    /// Whose logit.
    pub token: u32,
}

/// Which logit is taken apart.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogitOf {
    /// The most likely token's by default.
    pub token: Option<u32>,
    /// The logit of this token is taken off.
    pub minus: Option<u32>,
    /// What a head writes is taken apart by the tokens whose values it reads.
    pub by_position: bool,
}

/// A prediction: the softmax of one row of logits.
struct Ranked {
    /// The most likely tokens with their probabilities, best first.
    top: Vec<(u32, f64)>,
    entropy: f64,
    /// Of the token that comes next; NaN where none comes.
    loss: f64,
}

impl Ranked {
    /// The `top` most likely tokens; ties by number.
    fn of(logits: &[f32], top: usize, next: Option<u32>) -> Self {
        let [max, sum, weighted] = softmax_sums(logits);
        let log = |id: u32| f64::from(logits[id as usize]) - max - sum.ln();
        let best = largest(logits, top).into_iter().map(|id| (id, log(id).exp())).collect();
        Self { top: best, entropy: sum.ln() - weighted / sum, loss: next.map_or(f64::NAN, |id| -log(id)) }
    }
}

/// The places of the `top` largest logits, the largest first; ties by place.
fn largest(logits: &[f32], top: usize) -> Vec<u32> {
    let by_logit = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    // No more than twice as many candidates at a time; what is not above the last of them is no candidate.
    let (mut best, mut least): (Vec<u32>, f32) = (Vec::with_capacity(2 * top), f32::NEG_INFINITY);
    for (id, &logit) in (0..).zip(logits) {
        if best.len() < top || logit > least {
            best.push(id);
        }
        if best.len() == 2 * top || (best.len() == top && least == f32::NEG_INFINITY) {
            best.sort_by(by_logit);
            best.truncate(top);
            least = logits[best[top - 1] as usize];
        }
    }
    best.sort_by(by_logit);
    best.truncate(top);
    best
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
        Ok(Ranked::of(&logits, top.clamp(1, logits.len()), None).top)
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
        let streams = self.streams(ids, edits, sources)?;
        let (layers, n, top) = (self.shape().layers, of.len(), top.clamp(1, self.vocab()));
        let mut lens = Lens {
            top: Array3::zeros((layers + 1, n, top)),
            probability: Array3::zeros((layers + 1, n, top)),
            loss: Array2::from_elem((layers + 1, n), f64::NAN),
            entropy: Array2::zeros((layers + 1, n)),
        };
        let (weights, width) = (self.weights()?, self.width());
        // The rows of all layers, one after the other: a product with the head for many of them at a time.
        let of_layer = |layer: usize| &streams[self.first_of(layer)][of.start * width..of.end * width];
        let mut rows: Vec<f32> = (0..=layers).flat_map(of_layer).copied().collect();
        self.transformer().stack().apply_last_norm(&weights, &mut rows);
        for (chunk, rows) in rows.chunks(LENS_ROWS * width).enumerate() {
            let logits = self.logits(rows)?;
            let next = |row: usize| ids.get(of.start + row + 1).copied().filter(|_| self.is_causal());
            let place = |at: usize| ((chunk * LENS_ROWS + at) / n, (chunk * LENS_ROWS + at) % n);
            let rank = |(at, logits): (usize, &[f32])| Ranked::of(logits, top, next(place(at).1));
            let ranked: Vec<Ranked> = logits.par_chunks(self.vocab()).enumerate().map(rank).collect();
            for (at, Ranked { top, entropy, loss }) in ranked.into_iter().enumerate() {
                let (layer, row) = place(at);
                for (best, (id, probability)) in top.into_iter().enumerate() {
                    lens.top[[layer, row, best]] = id;
                    lens.probability[[layer, row, best]] = probability as f32;
                }
                (lens.entropy[[layer, row]], lens.loss[[layer, row]]) = (entropy, loss);
            }
        }
        Ok(lens)
    }

    /// What each part writes to the logit of `token` at `row`.
    ///
    /// # Errors
    /// As [`Model::run`]; [`Error::NoHead`] also for heads that are not linear, and norms of sums.
    pub fn attribute(&self, ids: &[u32], edits: &Edits, sources: &Sources, row: usize, token: u32) -> Result<Attribution> {
        self.attribute_to(ids, edits, sources, row, LogitOf { token: Some(token), ..LogitOf::default() })
    }

    /// The same of the most likely token's logit, or of a difference of two logits.
    ///
    /// # Errors
    /// As [`Model::attribute`].
    pub fn attribute_to(&self, ids: &[u32], edits: &Edits, sources: &Sources, row: usize, of: LogitOf) -> Result<Attribution> {
        if row >= ids.len() {
            return Err(Error::Outside { what: "row", number: row, count: ids.len() });
        }
        if let Some(token) = [of.token, of.minus].into_iter().flatten().find(|token| *token as usize >= self.vocab()) {
            return Err(Error::Outside { what: "token", number: token as usize, count: self.vocab() });
        }
        let not_linear = || Error::NoHead { what: "parts of a logit: its norms or its head are not linear" };
        if !self.is_linear() {
            return Err(not_linear());
        }
        let (hidden, memory) = self.forward(ids, edits, sources, Remember { streams: true, heads: true, ..Remember::default() })?;
        let (width, weights) = (self.width(), self.weights()?);
        let last = &hidden[row * width..(row + 1) * width];
        let token = match of.token {
            Some(token) => token,
            None => regard_nn::generate::argmax(&self.logits(last)?) as u32,
        };
        let (mut direction, mut bias) = self.transformer().unembedding(&weights, token).ok_or_else(not_linear)?;
        if let Some(minus) = of.minus {
            let (other, its_bias) = self.transformer().unembedding(&weights, minus).ok_or_else(not_linear)?;
            direction.iter_mut().zip(other).for_each(|(x, y)| *x -= y);
            bias -= its_bias;
        }
        if let Some(edit) = edits.list().iter().find(|edit| of.by_position && edit.site().is_none() && edit.action.is_of_results()) {
            let reason = "it replaces the sum over keys, which cannot be taken apart by position".to_owned();
            return Err(Error::Edit { edit: edit.to_string(), reason });
        }
        let stream = |number: usize| &memory.streams[number][row * width..(row + 1) * width];
        let stack = self.transformer().stack();
        let along = |part: &[f32]| part.iter().zip(&direction).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        // Edits of the stream between embedding and sums are parts, too.
        let edited = |layer: usize| {
            let between = |site| matches!(site, Some(Site::ResidMid | Site::AttnOut));
            edits.list().iter().any(|edit| edit.on_layer(layer) && between(edit.site()))
        };
        let (mut names, mut parts) = (vec!["embedding".to_owned()], stream(0).to_vec());
        let mut by_key = Vec::new();
        for (layer, tape) in memory.heads.iter().enumerate() {
            let output = self.layer(layer).expect("as many as tapes").output();
            let (dim, dense) = (self.head_dim(), output.matrix(&weights).to_dense());
            for (head, z) in tape.z.outer_iter().enumerate() {
                let of_head = dense.slice_axis(Axis(0), (head * dim..(head + 1) * dim).into());
                names.push(format!("L{layer}.H{head}"));
                parts.extend(z.index_axis(Axis(0), row).dot(&of_head));
            }
            if of.by_position {
                let mut rows: Vec<f32> = dense.iter().copied().collect();
                stack.last_norm_parts(&weights, stream(self.sublayers()), &mut rows);
                by_key.push(rows.chunks(width).map(along).collect::<Vec<f64>>());
            }
            if edited(layer) {
                let mut rest: Vec<f32> =
                    stream(self.first_of(layer) + 1).iter().zip(stream(self.first_of(layer))).map(|(a, b)| a - b).collect();
                let heads = parts.len() - tape.z.len_of(Axis(0)) * width;
                parts[heads..]
                    .chunks(width)
                    .chain(output.bias(&weights))
                    .for_each(|part| rest.iter_mut().zip(part).for_each(|(x, y)| *x -= y));
                names.push(format!("L{layer}.edits"));
                parts.extend(rest);
            }
            if let Some(bias) = output.bias(&weights) {
                names.push(format!("L{layer}.bias"));
                parts.extend_from_slice(bias);
            }
            let mut wrote = |name: &str, sublayer: usize| {
                names.push(format!("L{layer}.{name}"));
                parts.extend(stream(sublayer + 1).iter().zip(stream(sublayer)).map(|(a, b)| a - b));
            };
            if self.has_cross() {
                wrote("cross", self.first_of(layer) + 1);
            }
            wrote("mlp", self.first_of(layer + 1) - 1);
        }
        let shift = stack.last_norm_parts(&weights, stream(self.sublayers()), &mut parts);
        let mut writes: Vec<f64> = parts.chunks(width).map(along).collect();
        names.push("last".to_owned());
        writes.push(bias + shift.map_or(0.0, |shift| along(&shift)));
        let (logit, positions) = (along(last) + bias, vec![row; names.len()]);
        let whole = Attribution { parts: names, positions, writes, logit, token };
        if !of.by_position {
            return Ok(whole);
        }
        let run = Run::new(self.clone(), ids.to_vec(), edits.clone(), hidden.clone(), memory.heads);
        self.by_position(&run, row, &by_key, whole)
    }

    /// Heads taken apart by keys; `along` has, of each layer, what one unit of each element of z writes.
    fn by_position(&self, run: &Run, row: usize, along: &[Vec<f64>], whole: Attribution) -> Result<Attribution> {
        let mut apart = Attribution { parts: Vec::new(), positions: Vec::new(), writes: Vec::new(), ..whole };
        let (dim, group) = (self.head_dim(), self.shape().heads / self.shape().kv_heads);
        for (part, writes) in whole.parts.into_iter().zip(whole.writes) {
            let mut push = |position: usize, writes: f64| {
                apart.parts.push(part.clone());
                apart.positions.push(position);
                apart.writes.push(writes);
            };
            let of_head = part.strip_prefix('L').and_then(|part| part.split_once(".H"));
            let Some((Ok(layer), Ok(head))) = of_head.map(|(layer, head)| (layer.parse::<usize>(), head.parse::<usize>())) else {
                push(row, writes);
                continue;
            };
            let weights = run.weights_of(layer, head, row..row + 1)?;
            let values = run.values_of(layer, head, head / group)?;
            let unit = &along[layer][head * dim..(head + 1) * dim];
            let keys = if run.is_causal() { row + 1 } else { run.keys() };
            for (key, value) in values.outer_iter().enumerate().take(keys) {
                let weight = f64::from(weights[[0, key]]);
                let written = value.iter().zip(unit).map(|(v, unit)| f64::from(*v) * unit).sum::<f64>();
                push(key, if weight == 0.0 { 0.0 } else { weight * written });
            }
        }
        Ok(apart)
    }
}
