//! Scores, scale, mask, softmax and values, one after the other.

use super::Worked;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin, signed};
use crate::statistics::draws::Draw;
use clap::Args;
use ndarray::{Array2, Array4, array};
use regard::{Attention, Mask};
use regard_plot::Table;
use serde::Serialize;

/// Attention of three tokens step by step, with every number
///
/// Queries, keys and values are small integers and d_k = 4, so that every step can be done by hand. Larger random inputs are computed by
/// the same steps and compared with the library. Writes worked_example.csv, worked_outputs.csv and worked_larger.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab worked --seed 2")]
pub struct WorkedConfig {
    /// Seed of the larger inputs
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for WorkedConfig {
    fn default() -> Self {
        defaults()
    }
}

pub(crate) const TOKENS: [&str; 3] = ["the", "cat", "sat"];

/// Tokens and d_k of the larger inputs.
pub(super) const LARGER: [(usize, usize); 4] = [(3, 4), (16, 64), (64, 64), (256, 128)];

/// The steps of one attention, each a matrix.
pub(crate) struct Steps {
    pub(crate) scores: Array2<f64>,
    pub(crate) scaled: Array2<f64>,
    pub(crate) masked: Array2<f64>,
    pub(crate) weights: Array2<f64>,
    pub(crate) output: Array2<f64>,
}

/// Attention as its definition has it.
fn steps(q: &Array2<f64>, k: &Array2<f64>, v: &Array2<f64>, scale: bool, causal: bool) -> Steps {
    let scores = q.dot(&k.t());
    let scaled = if scale { &scores / (q.ncols() as f64).sqrt() } else { scores.clone() };
    let mut masked = scaled.clone();
    masked.indexed_iter_mut().filter(|((i, j), _)| causal && j > i).for_each(|(_, x)| *x = f64::NEG_INFINITY);
    let mut weights = masked.clone();
    for mut row in weights.rows_mut() {
        let largest = row.fold(f64::NEG_INFINITY, |m, x| m.max(*x));
        row.mapv_inplace(|x| libm::exp(x - largest));
        row /= row.sum();
    }
    let output = weights.dot(v);
    Steps { scores, scaled, masked, weights, output }
}

/// Queries, keys and values of the three tokens.
pub(crate) fn example() -> [Array2<f64>; 3] {
    [
        array![[1.0, 1.0, 0.0, 0.0], [0.0, 2.0, 0.0, 2.0], [2.0, 0.0, 1.0, 0.0]],
        array![[1.0, 2.0, 0.0, 1.0], [2.0, 0.0, 2.0, 0.0], [0.0, 1.0, 1.0, 1.0]],
        array![[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]],
    ]
}

/// Names of the variants: scale and causal mask.
pub(super) const VARIANTS: [(&str, bool, bool); 3] =
    [("scaled, causal", true, true), ("scaled, no mask", true, false), ("unscaled, no mask", false, false)];

impl WorkedConfig {
    /// `worked_example`, every number; `worked_outputs`, the outputs; `worked_larger`, larger inputs against the library.
    ///
    /// # Errors
    /// When the library refuses an input.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        let [q, k, v] = example();
        let mut numbers = vec![("variant", "variant"), ("step", "step"), ("query", "query")];
        numbers.extend(["key_1", "key_2", "key_3"].into_iter().zip(TOKENS));
        let mut table = Table::new("worked_example", "Three tokens, d_{k} = 4: every number", &numbers);
        let columns = [("variant", "variant"), ("query", "query"), ("first", "first element"), ("second", "second element")];
        let mut outputs = Table::new("worked_outputs", "Outputs: rows of V, mixed by the weights", &columns);
        for (variant, scale, causal) in VARIANTS {
            let s = steps(&q, &k, &v, scale, causal);
            let shown = [("1 scores Q K^{T}", &s.scores), ("2 scaled", &s.scaled), ("3 masked", &s.masked), ("4 softmax", &s.weights)];
            for (step, values) in shown {
                if (step.starts_with('2') && !scale) || (step.starts_with('3') && !causal) {
                    continue;
                }
                for (token, row) in TOKENS.iter().zip(values.rows()) {
                    let mut cells = vec![variant.into(), step.into(), (*token).into()];
                    cells.extend(row.iter().map(|x| (*x).into()));
                    table.push(cells);
                }
            }
            for (token, row) in TOKENS.iter().zip(s.output.rows()) {
                outputs.push(vec![variant.into(), (*token).into(), row[0].into(), row[1].into()]);
            }
        }
        Ok(signed(vec![table, outputs, self.larger(progress)?], &origin::<Worked>(self, self.seed, "normal numbers by Regard")?))
    }

    fn larger(&self, progress: &dyn Progress) -> Result<Table> {
        let columns = [
            ("tokens", "tokens"),
            ("d_k", "d_{k}"),
            ("weights", "largest difference of a weight"),
            ("outputs", "of an output"),
            ("row_sum", "largest distance of a row's sum from 1"),
        ];
        let caption = "Larger random inputs, f64, causal mask: largest differences from the library";
        let mut table = Table::new("worked_larger", caption, &columns);
        for (at, (n, d)) in LARGER.into_iter().enumerate() {
            let mut draw = Draw::named(self.seed, "worked", [n, d], at as u64);
            let [q, k, v] = if at == 0 {
                example()
            } else {
                [(); 3].map(|()| {
                    let mut x = Array2::zeros((n, d));
                    draw.normal(x.as_slice_mut().expect("a new array is contiguous"));
                    x
                })
            };
            let s = steps(&q, &k, &v, true, true);
            let four = |x: &Array2<f64>| -> Array4<f64> {
                let (rows, cols) = x.dim();
                x.clone().into_shape_with_order((1, 1, rows, cols)).expect("one head")
            };
            let attention = Attention::new().threads(1).mask(Mask::causal());
            let (weights, out) = (attention.weights(&four(&q), &four(&k))?, attention.forward(&four(&q), &four(&k), &four(&v))?.out);
            let largest = |a: &Array2<f64>, b: &Array4<f64>| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            let sum = s.weights.rows().into_iter().map(|row| (row.sum() - 1.0).abs()).fold(0.0, f64::max);
            let differences = [largest(&s.weights, &weights), largest(&s.output, &out), sum].map(crate::learning::brief);
            let mut cells = vec![n.into(), d.into()];
            cells.extend(differences);
            table.push(cells);
            progress.advance(1);
        }
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_what_a_hand_computes() {
        let [q, k, v] = example();
        let s = steps(&q, &k, &v, true, true);
        assert_eq!(s.scores, array![[3.0, 2.0, 1.0], [6.0, 0.0, 4.0], [2.0, 6.0, 1.0]]);
        assert_eq!(s.scaled, array![[1.5, 1.0, 0.5], [3.0, 0.0, 2.0], [1.0, 3.0, 0.5]]);
        // e^3 / (e^3 + 1) = 20.0855 / 21.0855; e^1, e^3, e^0.5 = 2.71828, 20.08554, 1.64872 of 24.45254.
        let known = array![[1.0, 0.0, 0.0], [0.952_574, 0.047_426, 0.0], [0.111_166, 0.821_409, 0.067_425]];
        assert!(s.weights.iter().zip(&known).all(|(a, b): (&f64, &f64)| (a - b).abs() < 1e-6), "{:?}", s.weights);
        let out = array![[1.0, 0.0], [0.952_574, 0.047_426], [0.246_016, 0.956_259]];
        assert!(s.output.iter().zip(&out).all(|(a, b): (&f64, &f64)| (a - b).abs() < 1e-6), "{:?}", s.output);
    }
}
