//! A cell: many draws of Q, K, V of one size, attended to without and with the scale. All the random experiments are made of cells.

use crate::error::Result;
use crate::experiments::Progress;
use crate::rng::{Draw, Purpose};
use crate::torch_randn::TorchRandn;
use ndarray::{Array4, Axis};
use rayon::prelude::*;
use regard::{Attention, GradientStats, Gradients, Saved, Scale, Stage, StatsOptions};
use std::borrow::Cow;

/// Where the random numbers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbers {
    /// Counter-based, in double precision: [`crate`]'s own.
    Regard,
    /// Those of `torch.manual_seed(seed + d_k)` and three calls of `torch.randn`; further draws add 10,000 to the seed.
    PyTorch,
}

impl Numbers {
    /// For people.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Regard => "ChaCha8 by counter, ziggurat, float64",
            Self::PyTorch => "torch.manual_seed(seed + d_k), torch.randn for Q, K, V, float32",
        }
    }

    /// On the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Regard => "regard",
            Self::PyTorch => "pytorch",
        }
    }
}

/// What the gradients are gradients of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// `mean(out^2)`.
    MeanSquare,
    /// `sum(out^2)`.
    SumSquare,
    /// `sum(out)`.
    Sum,
    /// `sum(r * out)` with r normal of variance `1/d_v`, so that the gradients on the weights have variance 1.
    Unit,
}

impl Loss {
    /// On the command line and in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::MeanSquare => "mean-square",
            Self::SumSquare => "sum-square",
            Self::Sum => "sum",
            Self::Unit => "unit",
        }
    }
}

/// Sizes and numbers of a cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) seq: usize,
    pub(crate) d_k: usize,
    pub(crate) seeds: usize,
    pub(crate) seed: u64,
    pub(crate) numbers: Numbers,
    pub(crate) loss: Option<Loss>,
}

/// What came out, scaled or unscaled. Matrices in the order of the draws, rows in order within.
#[derive(Debug, Clone, Default)]
pub(crate) struct Measured {
    /// One number per matrix: means over its rows.
    pub(crate) max_weight: Vec<f64>,
    pub(crate) entropy: Vec<f64>,
    pub(crate) sum_of_squares: Vec<f64>,
    /// Smallest and largest score of each matrix, and the mean of the squares.
    pub(crate) score_min: Vec<f64>,
    pub(crate) score_max: Vec<f64>,
    pub(crate) score_square: Vec<f64>,
    /// Norms of the gradients of each matrix; empty without a loss.
    pub(crate) dq: Vec<f64>,
    pub(crate) dk: Vec<f64>,
    pub(crate) dv: Vec<f64>,
    /// Norms of each row of the gradients on Q and on the scores.
    pub(crate) dq_rows: Vec<f64>,
    pub(crate) d_scores_rows: Vec<f64>,
}

impl Measured {
    fn lists(&mut self) -> [&mut Vec<f64>; 11] {
        let Self { max_weight, entropy, sum_of_squares, score_min, score_max, score_square, dq, dk, dv, dq_rows, d_scores_rows } = self;
        [max_weight, entropy, sum_of_squares, score_min, score_max, score_square, dq, dk, dv, dq_rows, d_scores_rows]
    }

    fn append(&mut self, mut later: Self) {
        self.lists().into_iter().zip(later.lists()).for_each(|(all, later)| all.append(later));
    }

    fn note_gradients(&mut self, gradients: &Gradients<f64>, stats: &GradientStats) {
        let norms = |x: &Array4<f64>| -> Vec<f64> {
            let numbers = x.as_slice().expect("gradients lie side by side");
            numbers.chunks_exact(numbers.len() / x.len_of(Axis(0))).map(|matrix| sum_of_squares(matrix).sqrt()).collect()
        };
        (self.dk, self.dv) = (norms(&gradients.dk), norms(&gradients.dv));
        self.dq = stats.dq_rows.outer_iter().map(|rows| rows.iter().map(|x| x * x).sum::<f64>().sqrt()).collect();
        self.dq_rows = stats.dq_rows.iter().copied().collect();
        self.d_scores_rows = stats.d_scores_rows.iter().copied().collect();
    }
}

/// In eight chains, which the CPU works on at once.
fn sum_of_squares(numbers: &[f64]) -> f64 {
    let mut chains = [0.0; 8];
    let parts = numbers.chunks_exact(8);
    let rest: f64 = parts.remainder().iter().map(|x| x * x).sum();
    for part in parts {
        chains.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * x);
    }
    chains.iter().sum::<f64>() + rest
}

/// So many numbers per tensor and task: a few tensors of this size stay in the second cache.
const NUMBERS_PER_TASK: usize = 8192;

impl Cell {
    /// Q, K, V and the cotangent of draws `from..to`, each `[draw, 1, seq, d_k]`; the cotangent is empty unless the loss needs one.
    fn draws(&self, from: usize, to: usize) -> Result<[Array4<f64>; 4]> {
        let (one, cotangent) = (self.seq * self.d_k, self.loss == Some(Loss::Unit));
        let drawn = 3 + usize::from(cotangent);
        let mut tensors = [(); 4].map(|()| Vec::with_capacity((to - from) * one));
        for draw in from..to {
            let mut own = Draw::new(self.seed, Purpose::Cell, [self.seq, self.d_k], draw as u64);
            if self.numbers == Numbers::PyTorch {
                let mut torch = TorchRandn::new(self.seed.wrapping_add((self.d_k + 10_000 * draw) as u64));
                for tensor in &mut tensors[..3] {
                    tensor.extend(torch.randn(one)?.into_iter().map(f64::from));
                }
            } else {
                tensors[..3].iter_mut().for_each(|tensor| own.add_normal(tensor, one, 1.0));
            }
            if cotangent {
                own.add_normal(&mut tensors[3], one, 1.0 / (self.d_k as f64).sqrt());
            }
        }
        let mut place = 0;
        Ok(tensors.map(|numbers| {
            place += 1;
            let draws = if place <= drawn { to - from } else { 0 };
            Array4::from_shape_vec((draws, 1, self.seq, self.d_k), numbers).expect("as many numbers as the shape has places")
        }))
    }

    /// Q and K of one draw, for pictures.
    pub(crate) fn one_draw(&self, draw: usize) -> Result<[Array4<f64>; 2]> {
        let [q, k, ..] = self.draws(draw, draw + 1)?;
        Ok([q, k])
    }

    fn part(&self, from: usize, to: usize) -> Result<[Measured; 2]> {
        let [q, k, v, cotangent] = self.draws(from, to)?;
        let scores = Attention::new().threads(1).scale(Scale::Off).scores(&q, &k, Stage::Raw)?;
        let mut both = [Measured::default(), Measured::default()];
        for (scaled, measured) in [false, true].into_iter().zip(&mut both) {
            let attention = Attention::new().threads(1).scale(if scaled { Scale::InvSqrtDim } else { Scale::Off });
            let (result, rows) = attention.forward_with_stats(&q, &k, &v, StatsOptions::default())?;
            let heads = rows.heads();
            measured.max_weight = heads.max_weight.into_iter().collect();
            measured.entropy = heads.entropy.into_iter().collect();
            measured.sum_of_squares = heads.sum_of_squares.into_iter().collect();
            let unit = if scaled { 1.0 / (self.d_k as f64).sqrt() } else { 1.0 };
            for matrix in scores.outer_iter() {
                measured.score_min.push(unit * matrix.fold(f64::INFINITY, |a, &b| a.min(b)));
                measured.score_max.push(unit * matrix.fold(f64::NEG_INFINITY, |a, &b| a.max(b)));
                measured.score_square.push(unit * unit * matrix.iter().map(|x| x * x).sum::<f64>() / matrix.len() as f64);
            }
            if let Some(loss) = self.loss {
                let one_matrix = (self.seq * self.d_k) as f64;
                let d_out = match loss {
                    Loss::MeanSquare => Cow::Owned(result.out.mapv(|x| 2.0 * x / one_matrix)),
                    Loss::SumSquare => Cow::Owned(result.out.mapv(|x| 2.0 * x)),
                    Loss::Sum => Cow::Owned(Array4::ones(result.out.raw_dim())),
                    Loss::Unit => Cow::Borrowed(&cotangent),
                };
                // exp(score - lse) are the weights: the statistics' pass serves the backward pass too.
                let saved = Saved { row_sum: result.lse.mapv(|_| 1.0), row_max: result.lse, out: result.out };
                let (gradients, stats) = attention.backward_with_stats(&q, &k, &v, &saved, d_out.view())?;
                measured.note_gradients(&gradients, &stats);
            }
        }
        Ok(both)
    }

    /// Unscaled, then scaled, of the same draws. Parallel over the draws; the result does not depend on the threads.
    pub(crate) fn measure(&self, progress: &dyn Progress) -> Result<[Measured; 2]> {
        let together = (NUMBERS_PER_TASK / (self.seq * self.d_k)).clamp(1, 256);
        let starts: Vec<usize> = (0..self.seeds).step_by(together).collect();
        let parts: Vec<_> = starts
            .into_par_iter()
            .map(|from| {
                let to = self.seeds.min(from + together);
                let part = self.part(from, to);
                progress.advance((to - from) as u64);
                part
            })
            .collect();
        let mut both = [Measured::default(), Measured::default()];
        for part in parts {
            for (all, part) in both.iter_mut().zip(part?) {
                all.append(part);
            }
        }
        Ok(both)
    }
}
