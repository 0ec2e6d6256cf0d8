//! One query and one key of a head, element by element: products, score, weight, and contribution to the output.
//!
//! ```text
//! q, k before positions -> q, k as they attend -> q_d k_d -> running sum over d = q.k        for the chosen key
//! q.k -> times the scale -> softcap -> bias and mask -> softmax                              for every key of the query's row
//! ```

use crate::error::{Error, Result};
use crate::run::Run;
use ndarray::{Axis, Slice};
use regard::{Rectangle, Stage};
use serde::Serialize;

/// A query and a key of a head.
#[derive(Debug, Clone, Serialize)]
pub struct Neuron {
    /// Which layer.
    pub layer: usize,
    /// Which head.
    pub head: usize,
    /// The query's token, by its number.
    pub query: usize,
    /// The key's.
    pub key: usize,
    /// The query before rotary positions; the same as `q` where there are none.
    pub q_before: Vec<f32>,
    /// The key before rotary positions.
    pub k_before: Vec<f32>,
    /// The query as it attends.
    pub q: Vec<f32>,
    /// The key.
    pub k: Vec<f32>,
    /// `q_d k_d`.
    pub products: Vec<f64>,
    /// Sums of the products up to each d: the last is `q.k`.
    pub sums: Vec<f64>,
    /// The query's row, key by key.
    pub keys: Vec<KeyOfRow>,
}

/// What a query makes of one key.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct KeyOfRow {
    /// `q.k`.
    pub dot: f64,
    /// Times the scale.
    pub scaled: f64,
    /// Behind the softcap; the same where there is none.
    pub capped: f64,
    /// Behind biases and the mask: what goes into the softmax. `-inf` where the key is hidden.
    pub score: f64,
    /// Behind the softmax.
    pub weight: f64,
}

impl Run {
    /// A query and a key of a head, number by number, with the edits that the run was made with.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn neuron(&self, layer: usize, head: usize, query: usize, key: usize) -> Result<Neuron> {
        for (what, number, count) in [("query", query, self.len()), ("key", key, self.keys())] {
            if number >= count {
                return Err(Error::Outside { what, number, count });
            }
        }
        let keys = self.each_group(layer, head, query..query + 1, None, |attention, [q, k, _], _| {
            let states = attention.row_states(q, k)?;
            let weights = attention.weights_of(q, k, &states, Rectangle { rows: query..query + 1, keys: 0..self.keys() })?;
            let row = q.slice_axis(Axis(2), Slice::from(query..query + 1));
            let place = attention.clone().q_offset(query as i64);
            let stage = |stage: Stage| place.scores(row, k, stage);
            let [scaled, capped, score] = [stage(Stage::Raw)?, stage(Stage::Softcap)?, stage(Stage::Masked)?];
            let of_key = |j: usize| KeyOfRow {
                dot: row.iter().zip(k.index_axis(Axis(2), j)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum(),
                scaled: scaled[[0, 0, 0, j]].into(),
                capped: capped[[0, 0, 0, j]].into(),
                score: score[[0, 0, 0, j]].into(),
                weight: weights[[0, 0, 0, j]].into(),
            };
            let pair = [row.iter().copied().collect::<Vec<f32>>(), k.index_axis(Axis(2), key).iter().copied().collect()];
            Ok((pair, (0..self.keys()).map(of_key).collect::<Vec<_>>()))
        })?;
        let ([q, k], keys) = keys.into_iter().next().ok_or(Error::Outside { what: "query", number: query, count: self.len() })?;
        let products: Vec<f64> = q.iter().zip(&k).map(|(a, b)| f64::from(*a) * f64::from(*b)).collect();
        let mut sum = 0.0;
        let sums = products.iter().map(|x| {
            sum += x;
            sum
        });
        let sums = sums.collect();
        let (q_before, k_before) = (self.before_positions(&q, query), self.before_positions(&k, key));
        Ok(Neuron { layer, head, query, key, q_before, k_before, q, k, products, sums, keys })
    }
}
