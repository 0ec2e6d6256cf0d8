//! A transformer of one block with at most one defect, small enough to be questioned.
//!
//! ```text
//! x = embedding[token] + position[place]        per head: weights = softmax(q k^T / sqrt d) over j <= i, mixed = weights v
//! logits = (x + joined heads @ w_o) @ unembedding
//! ```

use crate::rng::Rng;
use crate::value::Value;

/// Tokens, places, heads; width of a head.
pub(crate) const VOCAB: usize = 11;
pub(crate) const MAX_LEN: usize = 12;
pub(crate) const HEADS: usize = 3;
const D: usize = 4;
const WIDTH: usize = HEADS * D;
/// Rounding moves numbers by less than this.
const ROUNDING: f64 = 4e-5;
const DROPOUT: f64 = 0.1;

/// The names that a model can have.
pub(crate) const NAMES: [&str; 10] = [
    "healthy", "future_leak", "hidden_leak", "no_positions", "wrong_axis", "mask_after_softmax", "tied_heads", "self_blind", "short_memory",
    "dropout_on",
];

/// A model that answers questions.
pub(crate) struct Model {
    name: &'static str,
    embedding: Vec<f64>,
    positions: Vec<f64>,
    /// q, k, v of each head `[WIDTH, D]`.
    projections: Vec<[Vec<f64>; 3]>,
    w_o: Vec<f64>,
    unembedding: Vec<f64>,
    noise: Rng,
    rounding: f64,
}

fn matrix(rng: &mut Rng, rows: usize, cols: usize, spread: f64) -> Vec<f64> {
    (0..rows * cols).map(|_| spread * f64::from(rng.normal())).collect()
}

/// `x [rows, inner] @ w [inner, cols]`
fn product(x: &[f64], w: &[f64], inner: usize, cols: usize) -> Vec<f64> {
    let rows = x.len() / inner;
    (0..rows * cols).map(|at| (0..inner).map(|c| x[at / cols * inner + c] * w[c * cols + at % cols]).sum()).collect()
}

impl Model {
    /// A model of this name; without rounding its answers are exact.
    pub(crate) fn new(name: &'static str, rng: &mut Rng, rounding: bool) -> Self {
        let spread = 1.2 / (WIDTH as f64).sqrt();
        let embedding = matrix(rng, VOCAB, WIDTH, 1.0);
        let positions = matrix(rng, MAX_LEN, WIDTH, 1.0);
        let mut projections: Vec<[Vec<f64>; 3]> = (0..HEADS).map(|_| [(); 3].map(|()| matrix(rng, WIDTH, D, spread))).collect();
        let w_o = matrix(rng, WIDTH, WIDTH, 2.0 * spread);
        let unembedding = matrix(rng, WIDTH, VOCAB, spread);
        if name == "tied_heads" {
            let first = projections[0].clone();
            projections.iter_mut().for_each(|p| [p[0], p[1]] = [first[0].clone(), first[1].clone()]);
        }
        let noise = Rng::new(rng.next(), "rounding");
        Self { name, embedding, positions, projections, w_o, unembedding, noise, rounding: if rounding { ROUNDING } else { 0.0 } }
    }

    /// Logits `[n, VOCAB]` and weights `[HEADS, n, n]`, or why there are none.
    pub(crate) fn answer(&mut self, tokens: &[usize]) -> Result<(Value<f64>, Value<f64>), String> {
        let n = tokens.len();
        if n == 0 || n > MAX_LEN || tokens.iter().any(|t| *t >= VOCAB) {
            return Err(format!("the model takes 1 to {MAX_LEN} tokens from 0 to {}", VOCAB - 1));
        }
        let place = |i: usize, c: usize| if self.name == "no_positions" { 0.0 } else { self.positions[i * WIDTH + c] };
        let embedded = |row: usize, at: usize| self.embedding[tokens[row] * WIDTH + at] + place(row, at);
        let x: Vec<f64> = (0..n * WIDTH).map(|at| embedded(at / WIDTH, at % WIDTH)).collect();
        let mut joined = vec![0.0; n * WIDTH];
        let mut all = Vec::new();
        for h in 0..HEADS {
            let [q, k, v] = [0, 1, 2].map(|part| product(&x, &self.projections[h][part], WIDTH, D));
            let score = |i: usize, j: usize| (0..D).map(|c| q[i * D + c] * k[j * D + c]).sum::<f64>() / (D as f64).sqrt();
            let scores: Vec<f64> = (0..n * n).map(|at| score(at / n, at % n)).collect();
            let mut weights = self.weights(&scores, n);
            if self.name == "dropout_on" {
                let factor = 1.0 / (1.0 - DROPOUT);
                weights.iter_mut().for_each(|w| *w *= if self.noise.chance(DROPOUT) { 0.0 } else { factor });
            }
            let mixing = if self.name == "hidden_leak" { softmax(&scores, n, &|_, _| true) } else { weights.clone() };
            for at in 0..n * D {
                let (i, c) = (at / D, at % D);
                joined[i * WIDTH + h * D + c] = (0..n).map(|j| mixing[i * n + j] * v[j * D + c]).sum();
            }
            all.extend(weights);
        }
        let added = product(&joined, &self.w_o, WIDTH, WIDTH);
        let sum: Vec<f64> = x.iter().zip(&added).map(|(a, b)| a + b).collect();
        let logits = product(&sum, &self.unembedding, WIDTH, VOCAB);
        Ok((self.rounded(&[n, VOCAB], logits), self.rounded(&[HEADS, n, n], all)))
    }

    fn weights(&self, scores: &[f64], n: usize) -> Vec<f64> {
        match self.name {
            "future_leak" => softmax(scores, n, &|i, j| j <= i + 1),
            "self_blind" => softmax(scores, n, &|i, j| j < i),
            "short_memory" => softmax(scores, n, &|i, j| j <= i && j + 4 > i),
            "mask_after_softmax" => {
                let mut weights = softmax(scores, n, &|_, _| true);
                (0..n * n).filter(|at| at % n > at / n).for_each(|at| weights[at] = 0.0);
                weights
            }
            "wrong_axis" => {
                let turned: Vec<f64> = (0..n * n).map(|at| scores[at % n * n + at / n]).collect();
                let columns = softmax(&turned, n, &|j, i| j <= i);
                (0..n * n).map(|at| columns[at % n * n + at / n]).collect()
            }
            _ => softmax(scores, n, &|i, j| j <= i),
        }
    }

    /// As f32 arithmetic in another order would have it; what is exactly 0 stays so.
    fn rounded(&mut self, shape: &[usize], mut data: Vec<f64>) -> Value<f64> {
        for x in data.iter_mut().filter(|x| **x != 0.0) {
            *x += self.rounding * (2.0 * self.noise.uniform() - 1.0) * x.abs().min(1.0);
        }
        Value::new(shape, data)
    }
}

fn softmax(scores: &[f64], n: usize, sees: &dyn Fn(usize, usize) -> bool) -> Vec<f64> {
    let mut weights = vec![0.0; n * n];
    for i in 0..n {
        let visible: Vec<usize> = (0..n).filter(|&j| sees(i, j)).collect();
        let top = visible.iter().map(|&j| scores[i * n + j]).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = visible.iter().map(|&j| (scores[i * n + j] - top).exp()).sum();
        visible.iter().for_each(|&j| weights[i * n + j] = (scores[i * n + j] - top).exp() / total);
    }
    weights
}
