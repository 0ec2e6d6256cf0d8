//! A head step by step, for people who want to follow: scores, scale, mask, softmax, values.

use crate::error::{Error, Result};
use crate::run::Run;
use ndarray::{Array2, ArrayView2, Axis};
use regard::Stage;
use serde::Serialize;

/// Tokens of which every step is shown, at most.
const MOST: usize = 64;

/// Every step of a head, rows of each.
#[derive(Debug, Clone, Serialize)]
pub struct Steps {
    /// Queries, after rotary positions where the model has them.
    pub q: Vec<Vec<f64>>,
    /// Keys, the same.
    pub k: Vec<Vec<f64>>,
    /// `q . k`, in f64 as in [`crate::Neuron`].
    pub raw: Vec<Vec<f64>>,
    /// Times the scale; after a softcap, where the model has one.
    pub scaled: Vec<Vec<f64>>,
    /// What goes into the softmax: biases added; nothing where a key is hidden.
    pub masked: Vec<Vec<Option<f64>>>,
    /// Behind the softmax.
    pub weights: Vec<Vec<f64>>,
    /// The values.
    pub v: Vec<Vec<f64>>,
    /// Weights times values.
    pub out: Vec<Vec<f64>>,
}

fn lists(x: ArrayView2<'_, f32>) -> Vec<Vec<f64>> {
    x.outer_iter().map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
}

/// The one matrix of four dimensions.
fn matrix(x: ndarray::Array4<f32>) -> Array2<f32> {
    x.index_axis_move(Axis(0), 0).index_axis_move(Axis(0), 0)
}

/// Every query with every key.
fn dot_products(q: &[Vec<f64>], k: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    q.iter().map(|q| k.iter().map(|k| dot(q, k)).collect()).collect()
}

impl Run {
    /// Every step of a head, of at most 64 tokens.
    ///
    /// # Errors
    /// [`Error::Outside`]; where edits are of some rows only.
    pub fn steps(&self, layer: usize, head: usize) -> Result<Steps> {
        if self.len().max(self.keys()) > MOST {
            return Err(Error::Tokens { reason: format!("steps are shown of at most {MOST} tokens") });
        }
        let mut all = self.each_group(layer, head, 0..self.len(), None, |attention, [q, k, v], _| {
            let (scaled, masked) = (matrix(attention.scores(q, k, Stage::Softcap)?), matrix(attention.scores(q, k, Stage::Masked)?));
            let (weights, out) = (matrix(attention.weights(q, k)?), matrix(attention.forward(q, k, v)?.out));
            let seen = |x: f64| x.is_finite().then_some(x);
            let of_head = |x: ndarray::ArrayView4<'_, f32>| lists(x.index_axis(Axis(0), 0).index_axis(Axis(0), 0));
            Ok(Steps {
                q: of_head(q),
                k: of_head(k),
                raw: dot_products(&of_head(q), &of_head(k)),
                scaled: lists(scaled.view()),
                masked: lists(masked.view()).into_iter().map(|row| row.into_iter().map(seen).collect()).collect(),
                weights: lists(weights.view()),
                v: of_head(v),
                out: lists(out.view()),
            })
        })?;
        match all.len() {
            1 => Ok(all.swap_remove(0)),
            _ => Err(Error::Tokens { reason: "edits of some rows only cannot be followed step by step".to_owned() }),
        }
    }
}
