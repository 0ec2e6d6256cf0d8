//! Five questions about attention, each answered by an experiment.
//!
//! 1. How does q.k grow with d_k?  2. Why hide with -inf and not with 0?  3. What determines the width of the output?
//! 4. Can the output have a higher rank than the input?

use super::{Checks, gradient_test};
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin};
use crate::experiments::patterns::textbook_softmax;
use crate::options::sizes;
use crate::options::{check_d_k, check_seeds};
use crate::rows::{self, Row};
use crate::statistics::cell::Numbers;
use crate::statistics::draws::{Chi, Draw, Purpose, triangle};
use crate::statistics::estimate::Estimate;
use crate::statistics::rank::{rank, singular_values};
use crate::statistics::theory;
use clap::Args;
use ndarray::{Array1, Array2, Array4, ArrayView4};
use rayon::prelude::*;
use regard::{Attention, Scale, Stage};
use regard_plot::Table;
use serde::Serialize;

/// Five questions about attention, each answered by an experiment
///
/// How q.k grows with d_k; why to hide with -inf and not with 0; what determines the width of the output; whether the output can have a
/// higher rank than the input. And a popular test for vanishing gradients, run on attention that should fail it.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab checks --d-k 16,64,256,1024 --seeds 100000")]
pub struct ChecksConfig {
    /// Head dimensions of the first question
    #[arg(long, value_parser = sizes, default_value = "1,4,16,64,256,512,1024,4096", value_name = "LIST")]
    pub d_k: ::std::vec::Vec<usize>,
    /// Draws per dimension
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for ChecksConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Tokens of the first question.
const GROWTH_SEQ: usize = 5;
/// The range that the problem sheet gives for the scores at d_k = 512.
const RANGE: f64 = crate::published::PROBLEM_SHEET_RANGE.1;

impl ChecksConfig {
    /// `check_growth`, `check_masking`, `check_output_width`, `check_rank`, `check_gradient_test`.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_d_k(&self.d_k)?;
        check_seeds(self.seeds, 2)?;
        let origin = origin::<Checks>(self, self.seed, Numbers::Regard.describe())?;
        let mut tables =
            vec![self.growth(progress)?, self.masking()?, self.output_width()?, self.ranks()?, gradient_test::gradients(self.seed)?];
        tables.iter_mut().for_each(|table| table.origin.clone_from(&origin));
        Ok(tables)
    }

    fn normal(&self, place: usize, shape: [usize; 4]) -> Array4<f64> {
        self.normal_of(0, place, shape)
    }

    fn normal_of(&self, draw: usize, place: usize, shape: [usize; 4]) -> Array4<f64> {
        let mut x = Array4::zeros(shape);
        Draw::new(self.seed, Purpose::Checks, [place, shape[3]], draw as u64).normal(x.as_slice_mut().expect("a new array is contiguous"));
        x
    }

    fn growth(&self, progress: &dyn Progress) -> Result<Table> {
        let columns = [
            ("d_k", "d_k"),
            ("seeds", "draws"),
            ("~std", "std of q.k"),
            ("sqrt_d_k", "sqrt(d_k)"),
            ("~ratio", "ratio"),
            ("~largest", "mean largest |q.k| of 5 x 5"),
            ("~within_50", "share within -50 .. 50"),
            ("~scaled_std", "std of q.k / sqrt(d_k)"),
            ("~scaled_largest", "mean largest, scaled"),
        ];
        let caption = "Dot products of 5 queries and 5 keys in each draw";
        let mut table = rows::table("check_growth", caption, &columns);
        for &d_k in &self.d_k {
            // More dimensions than vectors: rotated coordinates, which preserve dot products at a fixed cost.
            let (vectors, rotated) = (2 * GROWTH_SEQ, d_k > 2 * GROWTH_SEQ);
            let width = if rotated { vectors } else { d_k };
            let draw = |draw: usize| -> Result<[f64; 3]> {
                let mut numbers = Draw::new(self.seed, Purpose::Checks, [0, d_k], draw as u64);
                let mut both = vec![0.0; vectors * width];
                if rotated {
                    let mut chi = Chi::new(Draw::named(self.seed, "chi of checks", [0, d_k], draw as u64));
                    triangle(&mut numbers, &mut chi, vectors, d_k, &mut both);
                } else {
                    numbers.normal(&mut both);
                }
                let (q, k) = both.split_at(GROWTH_SEQ * width);
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
                let scores: Vec<f64> = q.chunks_exact(width).flat_map(|q| k.chunks_exact(width).map(move |k| dot(q, k))).collect();
                let count = scores.len() as f64;
                let square = scores.iter().map(|s| s * s).sum::<f64>() / count;
                let inside = scores.iter().filter(|s| s.abs() < RANGE).count() as f64 / count;
                Ok([square, scores.iter().fold(0.0, |a: f64, s| a.max(s.abs())), inside])
            };
            let draws = (0..self.seeds).into_par_iter().map(draw).collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>>>()?;
            progress.advance(self.seeds as u64);
            let of = |which: usize| draws.iter().map(|d| d[which]).collect::<Vec<_>>();
            let std = Estimate::of_mean(&of(0)).map(|x| x.clamp(0.0, f64::INFINITY).sqrt());
            let (largest, within) = (Estimate::of_mean(&of(1)), Estimate::of_shares(&of(2)));
            let root = theory::dot_product_deviation(d_k);
            let scaled = |e: Estimate| e.map(|x| x / root);
            let row = Row::default().of(d_k).of(self.seeds).estimate(std).of(root).estimate(scaled(std)).estimate(largest);
            row.estimate(within).estimate(scaled(std)).estimate(scaled(largest)).put(&mut table);
        }
        Ok(table)
    }

    fn masking(&self) -> Result<Table> {
        let columns = [
            ("method", "how the future is hidden"),
            ("draws", "draws"),
            ("~hidden_weight", "mean weight on hidden keys"),
            ("least_row_sum", "smallest sum of a row, of all draws"),
            ("leak", "largest change of an earlier output when the last value changes by 1"),
        ];
        let mut table = rows::table("check_masking", "Hiding keys before and after the softmax", &columns);
        let draws = self.seeds.min(1000);
        let all = (0..draws).into_par_iter().map(|draw| self.three_maskings(draw)).collect::<Result<Vec<_>>>()?;
        for (at, method) in ["-inf before the softmax (Regard)", "0 before the softmax", "0 after the softmax"].into_iter().enumerate() {
            let of = |which: usize| all.iter().map(move |methods| methods[at][which]);
            let least = of(1).fold(f64::INFINITY, |least, x| if x < least || x.is_nan() { x } else { least });
            let leak = of(2).fold(0.0, |most: f64, x| if x > most || x.is_nan() { x } else { most });
            let row = Row::default().of(method).of(draws).estimate(Estimate::of_mean(&of(0).collect::<Vec<_>>()));
            row.of(least).of(leak).put(&mut table);
        }
        Ok(table)
    }

    /// Of one draw, for each masking method: the mean weight on hidden keys, the smallest sum of a row, and the leak.
    fn three_maskings(&self, draw: usize) -> Result<[[f64; 3]; 3]> {
        let n = 6;
        let [q, k, v] = [1, 2, 3].map(|place| self.normal_of(draw, place, [1, 1, n, 8]));
        let mut moved = v.clone();
        moved.iter_mut().skip((n - 1) * 8).for_each(|x| *x += 1.0);
        let causal = Attention::new().threads(1).causal();
        let exact = causal.weights(&q, &k)?.into_shape_with_order((n, n)).expect("one head");
        let leak = (causal.forward(&q, &k, &v)?.out - causal.forward(&q, &k, &moved)?.out)
            .iter()
            .take((n - 1) * 8)
            .fold(0.0, |a: f64, x| if x.is_nan() { f64::NAN } else { a.max(x.abs()) });
        let raw = Attention::new().threads(1).scores(&q, &k, Stage::Raw)?.into_shape_with_order((n, n)).expect("one head");
        let zeroed = Array2::from_shape_fn((n, n), |(i, j)| if j <= i { raw[[i, j]] } else { 0.0 });
        let zero_before = rows_softmax(&zeroed);
        let plain = rows_softmax(&raw);
        let zero_after = Array2::from_shape_fn((n, n), |(i, j)| if j <= i { plain[[i, j]] } else { 0.0 });
        Ok([(&exact, Some(leak)), (&zero_before, None), (&zero_after, None)].map(|(weights, leak)| {
            let hidden: f64 = weights.indexed_iter().filter(|((i, j), _)| j > i).map(|(_, w)| w).sum();
            let least = weights.rows().into_iter().map(|row| row.sum()).fold(f64::INFINITY, f64::min);
            // A value moved by 1 in every component moves an output by the weight that it has.
            let leak = leak.unwrap_or_else(|| (0..n - 1).map(|i| weights[[i, n - 1]]).fold(0.0, f64::max));
            [hidden / (n * (n - 1) / 2) as f64, least, leak]
        }))
    }

    fn output_width(&self) -> Result<Table> {
        let columns = [
            ("d_k", "d_k (queries and keys)"),
            ("d_v", "d_v (values)"),
            ("out", "width of the output"),
            ("weights", "shape of the weights"),
        ];
        let mut table = Table::new("check_output_width", "Weights are tokens by tokens; the output is as wide as the values", &columns);
        for (d_k, d_v) in [(8, 8), (64, 8), (8, 64), (1, 3)] {
            let (q, k, v) = (self.normal(4, [1, 1, 6, d_k]), self.normal(5, [1, 1, 6, d_k]), self.normal(6, [1, 1, 6, d_v]));
            let (out, weights) = (Attention::new().forward(&q, &k, &v)?.out, Attention::new().weights(&q, &k)?);
            let shape = format!("{} x {}", weights.dim().2, weights.dim().3);
            table.push(vec![d_k.into(), d_v.into(), out.dim().3.into(), shape.into()]);
        }
        Ok(table)
    }

    fn ranks(&self) -> Result<Table> {
        let columns = [
            ("case", "case"),
            ("input_rank", "rank of what goes in"),
            ("output_rank", "rank of what comes out"),
            ("bound", "bound"),
            ("raised", "higher than the input"),
            ("smallest", "smallest singular value / largest"),
        ];
        let mut table = Table::new(
            "check_rank",
            "Ranks at 12 tokens, by singular values in f64; q and k of the scores of rank 1 spread evenly over -4 .. 4",
            &columns,
        );
        let n = 12;
        let flat = |x: Array4<f64>| -> Array2<f64> {
            let (_, _, rows, cols) = x.dim();
            x.into_shape_with_order((rows, cols)).expect("one head")
        };
        let mut push = |case: &str, input: usize, output: &Array2<f64>, bound: usize| {
            let (values, out) = (singular_values(output), rank(output));
            let ratio = values.last().copied().unwrap_or(0.0) / values.first().copied().unwrap_or(1.0);
            table.push(vec![case.into(), input.into(), out.into(), bound.into(), (out > input).into(), ratio.into()]);
        };
        // One head: values of rank 3 in 12 dimensions.
        let v = flat(self.normal(7, [1, 1, n, 3])).dot(&flat(self.normal(8, [1, 1, 3, 12])));
        let values = v.view().into_shape_with_order((1, 1, n, 12)).expect("one head");
        let (q, k) = (self.normal(9, [1, 1, n, 16]), self.normal(10, [1, 1, n, 16]));
        push("values of rank 3", rank(&v), &flat(Attention::new().forward(&q, &k, values)?.out), 3);
        let full = self.normal(11, [1, 1, n, 12]);
        let uniform = Attention::new().scale(Scale::By(0.0)).forward(&q, &k, &full)?.out;
        push("uniform weights", rank(&flat(full)), &flat(uniform), 1);
        // d_k = 1: the scores have rank 1; the softmax of them has full rank, since exp(q k) is strictly totally positive. Numbers spread
        // evenly show that in double precision; of random ones two may lie too close together.
        let q = Array4::from_shape_fn((1, 1, n, 1), |(_, _, i, _)| 8.0 * i as f64 / (n - 1) as f64 - 4.0);
        let k = q.clone();
        let scores = flat(Attention::new().scores(&q, &k, Stage::Raw)?);
        push("softmax, d_k = 1", rank(&scores), &flat(Attention::new().weights(&q, &k)?), n);
        // Heads side by side, over tokens that span two directions only.
        let x = flat(self.normal(14, [1, 1, n, 2])).dot(&flat(self.normal(15, [1, 1, 2, 16])));
        for heads in [1, 2, 4, 8] {
            let bound = (heads * 2.min(16 / heads)).min(n);
            push(&format!("rank-2 tokens, heads: {heads}"), rank(&x), &self.concatenated(&x, heads)?, bound);
        }
        Ok(table)
    }

    /// Untrained multi-head self-attention, heads side by side, before any output projection.
    fn concatenated(&self, x: &Array2<f64>, heads: usize) -> Result<Array2<f64>> {
        let (n, d) = x.dim();
        let mut project = Vec::new();
        for place in 0..3 {
            let w = self.normal(16 + 3 * heads + place, [1, 1, d, d]).into_shape_with_order((d, d)).expect("one matrix") / 4.0;
            project.push(x.dot(&w));
        }
        let split = |x: &Array2<f64>| {
            let view: ArrayView4<'_, f64> = x.view().into_shape_with_order((1, n, heads, d / heads)).expect("heads divide the width");
            view.permuted_axes([0, 2, 1, 3]).to_owned()
        };
        let out = Attention::new().forward(&split(&project[0]), &split(&project[1]), &split(&project[2]))?.out;
        Ok(Array2::from_shape_fn((n, d), |(i, c)| out[[0, c / (d / heads), i, c % (d / heads)]]))
    }
}

fn rows_softmax(scores: &Array2<f64>) -> Array2<f64> {
    let mut weights = scores.clone();
    for mut row in weights.rows_mut() {
        let softened = textbook_softmax(&row.to_vec());
        row.assign(&Array1::from(softened));
    }
    weights
}
