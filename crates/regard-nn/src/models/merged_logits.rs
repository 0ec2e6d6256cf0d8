//! Tokens that training never distinguished share one logit.
//!
//! A vocabulary may have tokens that were in no text. Their rows of the last matrix all went the same way, and are the same but for
//! rounding: three in five of the 32,000 that llama2.c's stories15M has. Losses need the sum of exponentials over them, not each one. With
//! their mean c, and none further from it than `radius`,
//!
//! ```text
//! sum of exp(h . w) = count exp(h . c) (1 + e),     0 <= e <= cosh(|h| radius) - 1
//! ```
//!
//! since the deviations add up to zero and the exponential is convex. So what a loss lacks is at most `e` times the probability of these
//! tokens together; rows where that may be more than `LACKING` are computed as a whole.

use crate::float::Float;
use crate::layers::linear::strips;
use crate::layers::loss::{Share, shares};
use crate::tensors::Matrix;

/// What a loss may lack, in nats: less than logits of f32 are rounded by.
const LACKING: f64 = 1e-8;
/// Rows are alike when their distance is this share of their length.
const NEAR: f64 = 1e-3;
/// A smaller share of the vocabulary is not worth it.
const WORTH: f64 = 0.25;
/// Rows that may stand for those that are alike, and rows that each is compared with.
const CANDIDATES: usize = 32;
const COMPARED: usize = 256;

/// A table of tokens, of which those that are alike are one.
#[derive(Debug, Clone)]
pub struct MergedLogits<T> {
    /// Rows of all other tokens.
    table: Vec<T>,
    /// The row of each token among them; of those that are alike, [`NONE`].
    columns: Vec<u32>,
    centre: Vec<f64>,
    count: usize,
    radius: f64,
}

/// A token without a row of its own.
const NONE: u32 = u32::MAX;

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn dot<T: Float>(h: &[T], row: &[f64]) -> f64 {
    h.iter().zip(row).map(|(h, w)| h.to_f64() * w).sum()
}

fn line<T: Float>(table: &Matrix<'_, T>, token: usize) -> Vec<f64> {
    let mut row = vec![T::ZERO; table.inputs()];
    table.line(token, &mut row);
    row.iter().map(|x| x.to_f64()).collect()
}

impl<T: Float> MergedLogits<T> {
    /// The largest group of tokens that are alike in a table of one row per token, where there are enough of them.
    pub(crate) fn find(table: &Matrix<'_, T>) -> Option<Self> {
        let (tokens, width) = (table.outputs(), table.inputs());
        let some = |count: usize| (0..count.min(tokens)).map(move |i| line(table, i * tokens / count.min(tokens)));
        let compared: Vec<Vec<f64>> = some(COMPARED).collect();
        let length = |row: &[f64]| distance(row, &vec![0.0; width]);
        let is_near = |a: &[f64], b: &[f64]| distance(a, b) <= NEAR * length(a);
        let near = |row: &Vec<f64>| compared.iter().filter(|other| is_near(row, other)).count();
        let first = some(CANDIDATES).max_by_key(near)?;
        let alike: Vec<bool> = (0..tokens).map(|token| is_near(&first, &line(table, token))).collect();
        let count = alike.iter().filter(|alike| **alike).count();
        if (count as f64) < WORTH * tokens as f64 {
            return None;
        }
        let mut centre = vec![0.0; width];
        for token in (0..tokens).filter(|token| alike[*token]) {
            centre.iter_mut().zip(line(table, token)).for_each(|(sum, x)| *sum += x / count as f64);
        }
        let (mut own, mut columns, mut radius) = (Vec::with_capacity((tokens - count) * width), vec![NONE; tokens], 0f64);
        let mut row = vec![T::ZERO; width];
        for (token, column) in columns.iter_mut().enumerate() {
            table.line(token, &mut row);
            if alike[token] {
                radius = radius.max(distance(&centre, &line(table, token)));
            } else {
                *column = (own.len() / width) as u32;
                own.extend_from_slice(&row);
            }
        }
        Some(Self { table: own, columns, centre, count, radius })
    }

    /// How many tokens are alike.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The loss of each row's target in nats; NaN for a row that must be computed as a whole.
    pub(crate) fn losses(&self, table: &Matrix<'_, T>, x: &[T], targets: &[u32]) -> Vec<f64> {
        let columns: Vec<u32> = targets.iter().map(|target| self.columns[*target as usize]).collect();
        let strips = strips(&Matrix::of_rows(&self.table, self.centre.len()), x, |row, strip, logits, made| {
            let count = logits.len() / strip.len();
            shares(logits, strip.start, &columns[row..row + count], made);
        });
        let loss = |(row, h): (usize, &[T])| {
            let target = (columns[row] == NONE).then(|| dot(h, &line(table, targets[row] as usize)));
            let alike = Share { largest: dot(h, &self.centre), sum: self.count as f64, target };
            let all = strips.iter().map(|strip| strip[row]).chain([alike]);
            let (largest, log_sum) = Share::log_sum(all.clone());
            let probability = alike.sum * (alike.largest - largest - log_sum).exp();
            let lacking = probability * ((h.iter().map(|x| x.to_f64().powi(2)).sum::<f64>().sqrt() * self.radius).cosh() - 1.0);
            if lacking <= LACKING { Share::loss(all) } else { f64::NAN }
        };
        x.chunks_exact(self.centre.len().max(1)).enumerate().map(loss).collect()
    }
}
