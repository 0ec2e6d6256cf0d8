//! What the heads of a language model look at, token by token: maps, patterns with names, and what is left when each row keeps a few keys
//! only.

use super::attention_stats::visible_keys;
use ndarray::{Array4, ArrayViewMut4};
use regard_nn::Result;
use regard_nn::data::Windows;
use regard_nn::layers::heads::Heads;
use regard_nn::layers::pass::{MaskKind, Pass};
use regard_nn::layers::probe::{Attending, Change, Probe};
use regard_nn::layers::stack::Keep;
use regard_nn::lm::LanguageModel;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// The weights of one head on one text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadMap {
    /// Block.
    pub layer: usize,
    /// Head.
    pub head: usize,
    /// Rows are queries.
    pub rows: usize,
    /// Columns are keys.
    pub cols: usize,
    /// Row by row.
    pub weights: Vec<f32>,
}

/// Keeps the weights of every attention that is computed.
#[derive(Default)]
struct Weights {
    layers: RefCell<Vec<Array4<f32>>>,
}

impl Probe<f32> for Weights {
    fn results(&self, _: usize, attending: &Attending<'_>, heads: &Heads<'_, f32>, _: ArrayViewMut4<'_, f32>) -> regard::Result<()> {
        self.layers.borrow_mut().push(attending.attention(&Change::default()).weights(heads.q, heads.k)?);
        Ok(())
    }
}

/// Weights of every block on some texts of the same length, `[batch, head, query, key]`.
fn weights(model: &LanguageModel, p: &[f32], ids: &[u32], seq: usize) -> Result<Vec<Array4<f32>>> {
    let batch = ids.len() / seq;
    let (probe, mut pass) = (Weights::default(), model.plan(batch, seq, Keep::Discard));
    model.probe(&model.weights(p), ids, &Pass::new(batch, seq, MaskKind::Causal), &mut pass, &probe)?;
    Ok(probe.layers.into_inner())
}

/// The weights of every head on one text.
///
/// # Errors
/// When the text does not fit the model.
pub fn maps(model: &LanguageModel, p: &[f32], ids: &[u32]) -> Result<Vec<HeadMap>> {
    let mut maps = Vec::new();
    for (layer, weights) in weights(model, p, ids, ids.len())?.into_iter().enumerate() {
        for (head, map) in weights.index_axis(ndarray::Axis(0), 0).outer_iter().enumerate() {
            maps.push(HeadMap { layer, head, rows: ids.len(), cols: ids.len(), weights: map.iter().copied().collect() });
        }
    }
    Ok(maps)
}

/// A pattern that people look for in a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// The token itself, or one a fixed step before it.
    Diagonal,
    /// The same keys from every row: separators, such as spaces and full stops.
    Vertical,
    /// Rows of nearly even weight.
    Horizontal,
    /// The other letters of the same word.
    Block,
}

impl Pattern {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Diagonal, Self::Vertical, Self::Horizontal, Self::Block];

    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Diagonal => "diagonal",
            Self::Vertical => "vertical",
            Self::Horizontal => "horizontal",
            Self::Block => "block",
        }
    }
}

/// How much of each pattern a head has: beyond what even weights would have, a mean over windows with its standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeadPatterns {
    /// Block.
    pub layer: usize,
    /// Head.
    pub head: usize,
    /// The step of the diagonal: 0 is the token itself.
    pub step: usize,
    /// In the order of [`Pattern::ALL`].
    pub excess: [f64; 4],
    /// Their standard errors.
    pub standard_error: [f64; 4],
}

/// Steps of the diagonal that are tried.
const STEPS: usize = 4;
/// Rows that see fewer keys have little to choose from.
const FIRST_ROW: usize = 8;
/// A row is even where its entropy is above this part of the largest possible.
const EVEN: f64 = 0.85;

/// Patterns of every head over windows. `separator` says of each token whether it parts words.
///
/// # Errors
/// When windows and model do not fit together.
pub fn patterns(model: &LanguageModel, p: &[f32], windows: &Windows, separator: &[bool]) -> Result<Vec<HeadPatterns>> {
    let seq = model.config().context;
    let visible = visible_keys(MaskKind::Causal, seq);
    let mut all = Vec::new();
    for (layer, weights) in weights(model, p, &windows.ids, seq)?.iter().enumerate() {
        for head in 0..weights.dim().1 {
            // Per window: what each step of the diagonal has, then the three other patterns.
            let mut samples = Vec::new();
            for (b, ids) in windows.ids.chunks_exact(seq).enumerate() {
                let parts: Vec<bool> = ids.iter().map(|&t| separator.get(t as usize).copied().unwrap_or(false)).collect();
                samples.push(window_patterns(&|i, j| f64::from(weights[[b, head, i, j]]), &parts, &visible));
            }
            let mean = |f: &dyn Fn(&Sample) -> f64| samples.iter().map(f).sum::<f64>() / samples.len() as f64;
            let step = (0..STEPS).max_by(|&a, &b| mean(&|s| s.diagonal[a]).total_cmp(&mean(&|s| s.diagonal[b]))).unwrap_or(0);
            let of: [&dyn Fn(&Sample) -> f64; 4] = [
                &|s| s.diagonal[step],
                &|s| s.vertical,
                &|s| s.horizontal,
                // What the diagonal has already is not counted twice.
                &|s| s.block - if step > 0 { s.diagonal_in_word[step] } else { 0.0 },
            ];
            let excess = of.map(mean);
            let standard_error = [0, 1, 2, 3].map(|k| {
                let squares: f64 = samples.iter().map(|s| (of[k](s) - excess[k]).powi(2)).sum();
                (squares / (samples.len() * samples.len().saturating_sub(1)).max(1) as f64).sqrt()
            });
            all.push(HeadPatterns { layer, head, step, excess, standard_error });
        }
    }
    Ok(all)
}

/// Of one window, each beyond what even weights have.
struct Sample {
    diagonal: [f64; STEPS],
    diagonal_in_word: [f64; STEPS],
    vertical: f64,
    horizontal: f64,
    block: f64,
}

fn window_patterns(w: &dyn Fn(usize, usize) -> f64, parts: &[bool], visible: &[usize]) -> Sample {
    let seq = parts.len();
    let rows = FIRST_ROW.min(seq.saturating_sub(1))..seq;
    let count = rows.len() as f64;
    let mut sample = Sample { diagonal: [0.0; STEPS], diagonal_in_word: [0.0; STEPS], vertical: 0.0, horizontal: 0.0, block: 0.0 };
    for i in rows {
        let even = 1.0 / visible[i] as f64;
        // The first letter of the word that row i is in.
        let first = (0..=i).rev().take_while(|&j| !parts[j]).last().unwrap_or(i);
        for (step, (all, in_word)) in sample.diagonal.iter_mut().zip(&mut sample.diagonal_in_word).enumerate() {
            if let Some(j) = i.checked_sub(step) {
                let excess = (w(i, j) - even) / count;
                *all += excess;
                *in_word += if j >= first && j < i { excess } else { 0.0 };
            }
        }
        let mut entropy = 0.0;
        for (j, &parts_words) in parts.iter().enumerate().take(i + 1) {
            let weight = w(i, j);
            entropy -= if weight > 0.0 { weight * weight.ln() } else { 0.0 };
            sample.vertical += if parts_words { (weight - even) / count } else { 0.0 };
            sample.block += if j >= first && j < i { (weight - even) / count } else { 0.0 };
        }
        sample.horizontal += f64::from(u8::from(entropy > EVEN * (visible[i] as f64).ln())) / count;
    }
    sample
}

/// Which keys a row keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VisibleKeys {
    /// Those with the largest weights.
    Nearest(usize),
    /// The last ones.
    Latest(usize),
}

/// Keeps the given number of weights of each row, renormalised.
struct Few(VisibleKeys);

impl Probe<f32> for Few {
    fn results(&self, _: usize, attending: &Attending<'_>, heads: &Heads<'_, f32>, mut z: ArrayViewMut4<'_, f32>) -> regard::Result<()> {
        let weights = attending.attention(&Change::default()).weights(heads.q, heads.k)?;
        let (batch, query_heads, seq, keys) = weights.dim();
        let group = query_heads / heads.v.dim().1.max(1);
        for ((b, h), i) in
            (0..batch).flat_map(|b| (0..query_heads).map(move |h| (b, h))).flat_map(|place| (0..seq).map(move |i| (place, i)))
        {
            let mut order: Vec<(usize, f32)> = (0..keys).map(|j| (j, weights[[b, h, i, j]])).filter(|(_, w)| *w > 0.0).collect();
            let most = match self.0 {
                VisibleKeys::Nearest(most) => {
                    order.sort_by(|x, y| y.1.total_cmp(&x.1).then(x.0.cmp(&y.0)));
                    most
                }
                VisibleKeys::Latest(most) => {
                    order.reverse();
                    most
                }
            };
            order.truncate(most);
            let sum: f32 = order.iter().map(|(_, w)| w).sum();
            for d in 0..z.dim().3 {
                z[[b, h, i, d]] = order.iter().map(|&(j, w)| w / sum * heads.v[[b, h / group, j, d]]).sum();
            }
        }
        Ok(())
    }
}

/// The loss of windows when every row of every head keeps only some keys.
///
/// # Errors
/// When windows and model do not fit together.
pub fn loss_with_few_keys(model: &LanguageModel, p: &[f32], windows: &Windows, kept: VisibleKeys) -> Result<f64> {
    let (seq, vocab) = (model.config().context, model.config().vocab);
    let batch = windows.ids.len() / seq;
    let mut pass = model.plan(batch, seq, Keep::Discard);
    model.probe(&model.weights(p), &windows.ids, &Pass::new(batch, seq, MaskKind::Causal), &mut pass, &Few(kept))?;
    let losses = pass.logits().chunks_exact(vocab).zip(&windows.targets).map(|(logits, &target)| {
        let max = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
        let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
        sum.ln() - f64::from(logits[target as usize] - max)
    });
    Ok(losses.sum::<f64>() / windows.targets.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns of a map that is drawn by hand: 16 tokens, a separator after every fourth.
    fn of(w: impl Fn(usize, usize) -> f64) -> Sample {
        let parts: Vec<bool> = (0..16).map(|j| j % 4 == 3).collect();
        let visible: Vec<usize> = (1..=16).collect();
        window_patterns(&w, &parts, &visible)
    }

    #[test]
    fn each_pattern_is_found_where_it_was_drawn() {
        let even = of(|i, j| if j <= i { 1.0 / (i + 1) as f64 } else { 0.0 });
        assert!(even.diagonal.iter().all(|x| x.abs() < 1e-12) && even.vertical.abs() < 1e-12 && even.block.abs() < 1e-12);
        assert!((even.horizontal - 1.0).abs() < 1e-12, "even rows are horizontal lines");
        let before = of(|i, j| f64::from(u8::from(j + 1 == i)));
        assert!(before.diagonal[1] > 0.9 && before.diagonal[0] < 0.0 && before.horizontal == 0.0);
        let separators = of(|i, j| if j == 3 || j == 7 { 0.5 } else { 0.0 * i as f64 });
        assert!(separators.vertical > 0.7, "{}", separators.vertical);
        // All letters of the word before the row's own, evenly; a first letter looks at itself.
        let word = of(|i, j| {
            let first = i / 4 * 4;
            if i == first { f64::from(u8::from(j == i)) } else { f64::from(u8::from(j >= first && j < i)) / (i - first) as f64 }
        });
        assert!(word.block > 0.4 && word.vertical < 0.0, "{} {}", word.block, word.vertical);
    }
}
