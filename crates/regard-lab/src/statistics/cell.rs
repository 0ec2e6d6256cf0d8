//! A cell: many draws of Q, K, V of one size, with attention computed without and with the scale. The random experiments consist of cells.

use crate::error::Result;
use crate::experiment::Progress;
use crate::statistics::draws::{Chi, Draw, Purpose, triangle};
use crate::statistics::torch_randn::TorchRandn;
use clap::ValueEnum;
use ndarray::{Array3, Array4, Axis, CowArray};
use rayon::prelude::*;
use regard::{Attention, GradientStats, SavedView, Scale, Stage, StatsOptions};
use serde::Serialize;
use std::ops::Range;

/// Generator of the random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Numbers {
    /// torch.manual_seed(seed + d_k), torch.randn; reproduced here, PyTorch is not needed
    #[value(name = "pytorch")]
    PyTorch,
    /// Regard's own counter-based numbers, in double precision
    Regard,
}

impl Numbers {
    /// Description for tables.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Regard => "Philox by counter, Box-Muller, float64",
            Self::PyTorch => "torch.manual_seed(seed + d_k), torch.randn for Q, K, V, float32",
        }
    }
}

/// What the gradients are gradients of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// mean(out^2)
    MeanSquare,
    /// sum(out^2)
    SumSquare,
    /// sum(out)
    Sum,
    /// A random direction, scaled so that the gradients on the weights have variance 1
    Unit,
}

impl Loss {
    /// Name on the command line and in tables.
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
pub struct Cell {
    pub(crate) seq: usize,
    pub(crate) d_k: usize,
    pub(crate) seeds: usize,
    pub(crate) seed: u64,
    pub(crate) numbers: Numbers,
    pub(crate) loss: Option<Loss>,
}

/// Measurements, scaled or unscaled: matrices in the order of the draws, rows in order within.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// Per matrix: means over its rows.
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

/// Number of lists in [`Measured`].
pub(crate) const LISTS: usize = 11;

impl Measured {
    pub(crate) fn lens(&self) -> [usize; LISTS] {
        self.clone().lists().map(|list| list.len())
    }

    pub(crate) fn lists(&mut self) -> [&mut Vec<f64>; LISTS] {
        let Self { max_weight, entropy, sum_of_squares, score_min, score_max, score_square, dq, dk, dv, dq_rows, d_scores_rows } = self;
        [max_weight, entropy, sum_of_squares, score_min, score_max, score_square, dq, dk, dv, dq_rows, d_scores_rows]
    }

    fn append(&mut self, mut later: Self) {
        self.lists().into_iter().zip(later.lists()).for_each(|(all, later)| all.append(later));
    }

    fn note_gradients(&mut self, stats: GradientStats) {
        // Of each matrix, from those of its rows.
        let norms =
            |rows: &Array3<f64>| -> Vec<f64> { rows.outer_iter().map(|rows| rows.iter().map(|x| x * x).sum::<f64>().sqrt()).collect() };
        (self.dq, self.dk, self.dv) = (norms(&stats.dq_rows), norms(&stats.dk_rows), norms(&stats.dv_rows));
        (self.dq_rows, self.d_scores_rows) = (stats.dq_rows.into_iter().collect(), stats.d_scores_rows.into_iter().collect());
    }
}

/// Smallest and largest number, and the mean of the squares.
fn range(numbers: &[f64]) -> [f64; 3] {
    let (mut low, mut high, mut squares) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
    for &x in numbers {
        (low, high, squares) = (low.min(x), high.max(x), squares + x * x);
    }
    [low, high, squares / numbers.len() as f64]
}

/// Elements per tensor and task: a few tensors of this size stay in L2.
const NUMBERS_PER_TASK: usize = 8192;

/// Q, K, V and the cotangent of some draws, each `[draw, 1, seq, d_k]`; the cotangent is empty unless the loss needs one.
type Tensors = [Array4<f64>; 4];

impl Cell {
    /// Width of a row as computed. Wide rows are rotated into a space of as many dimensions as there are rows: the measurements depend
    /// only on dot products among queries and keys, and among values and cotangents.
    fn width(&self) -> usize {
        if self.numbers == Numbers::Regard && self.d_k > 2 * self.seq { 2 * self.seq } else { self.d_k }
    }

    /// Zeroed tensors for `draws` draws.
    fn zeros(&self, draws: usize, width: usize) -> Tensors {
        let cotangent = if self.loss == Some(Loss::Unit) { draws } else { 0 };
        [draws, draws, draws, cotangent].map(|draws| Array4::zeros((draws, 1, self.seq, width)))
    }

    /// Draws `from..to` in rotated coordinates.
    fn draw_rotated(&self, from: usize, to: usize, tensors: &mut Tensors) {
        let (rows, one) = (2 * self.seq, self.seq * 2 * self.seq);
        let mut both = vec![0.0; rows * rows];
        let [q, k, v, cotangent] = tensors.each_mut().map(|tensor| tensor.as_slice_mut().expect("a new array is contiguous"));
        for (i, draw) in (from..to).enumerate() {
            let here = i * one..(i + 1) * one;
            let mut own = Draw::new(self.seed, Purpose::Cell, [self.seq, self.d_k], draw as u64);
            let mut chi = Chi::new(Draw::named(self.seed, "chi", [self.seq, self.d_k], draw as u64));
            triangle(&mut own, &mut chi, rows, self.d_k, &mut both);
            q[here.clone()].copy_from_slice(&both[..one]);
            k[here.clone()].copy_from_slice(&both[one..]);
            triangle(&mut own, &mut chi, rows, self.d_k, &mut both);
            v[here.clone()].copy_from_slice(&both[..one]);
            if !cotangent.is_empty() {
                cotangent[here].copy_from_slice(&both[one..]);
            }
        }
        let deviation = 1.0 / (self.d_k as f64).sqrt();
        cotangent.iter_mut().for_each(|x| *x *= deviation);
    }

    /// Draws `from..to`.
    fn draw(&self, from: usize, to: usize, tensors: &mut Tensors) -> Result<()> {
        let one = self.seq * self.d_k;
        let [q, k, v, cotangent] = tensors.each_mut().map(|tensor| tensor.as_slice_mut().expect("a new array is contiguous"));
        for (i, draw) in (from..to).enumerate() {
            let here = i * one..(i + 1) * one;
            let mut own = Draw::new(self.seed, Purpose::Cell, [self.seq, self.d_k], draw as u64);
            if self.numbers == Numbers::PyTorch {
                let mut torch = TorchRandn::new(self.seed.wrapping_add((self.d_k + 10_000 * draw) as u64));
                for tensor in [&mut *q, k, v] {
                    tensor[here.clone()].iter_mut().zip(torch.randn(one)?).for_each(|(to, x)| *to = x.into());
                }
            } else {
                [&mut *q, k, v].into_iter().for_each(|tensor| own.normal(&mut tensor[here.clone()]));
            }
            if !cotangent.is_empty() {
                own.normal(&mut cotangent[here]);
            }
        }
        let deviation = 1.0 / (self.d_k as f64).sqrt();
        cotangent.iter_mut().for_each(|x| *x *= deviation);
        Ok(())
    }

    /// Q and K of one draw, for figures.
    pub(crate) fn one_draw(&self, draw: usize) -> Result<[Array4<f64>; 2]> {
        let mut tensors = self.zeros(1, self.d_k);
        self.draw(draw, draw + 1, &mut tensors)?;
        let [q, k, ..] = tensors;
        Ok([q, k])
    }

    /// Q, K, V and the cotangent of one draw, in the coordinates that are computed with.
    pub(crate) fn draw_one(&self, draw: usize) -> Result<[Array4<f64>; 4]> {
        let mut tensors = self.zeros(1, self.width());
        if self.width() == self.d_k {
            self.draw(draw, draw + 1, &mut tensors)?;
        } else {
            self.draw_rotated(draw, draw + 1, &mut tensors);
        }
        Ok(tensors)
    }

    /// Measures draws `from..to`; `tensors` holds at least that many.
    fn part(&self, from: usize, to: usize, tensors: &mut Tensors) -> Result<[Measured; 2]> {
        if self.width() == self.d_k {
            self.draw(from, to, tensors)?;
        } else {
            self.draw_rotated(from, to, tensors);
        }
        let [q, k, v, cotangent] =
            tensors.each_ref().map(|tensor| tensor.slice_axis(Axis(0), (..tensor.len_of(Axis(0)).min(to - from)).into()));
        let scores = Attention::new().threads(1).scale(Scale::Off).scores(q, k, Stage::Raw)?;
        let matrix = self.seq * self.seq;
        let ranges: Vec<_> = scores.as_slice().expect("a new array is contiguous").chunks_exact(matrix).map(range).collect();
        let mut both = [Measured::default(), Measured::default()];
        for (scaled, measured) in [false, true].into_iter().zip(&mut both) {
            let attention = Attention::new().threads(1).scale(Scale::By(if scaled { 1.0 / (self.d_k as f64).sqrt() } else { 1.0 }));
            let (result, rows) = attention.forward_with_stats(q, k, v, StatsOptions::default())?;
            let heads = rows.heads();
            measured.max_weight = heads.max_weight.into_iter().collect();
            measured.entropy = heads.entropy.into_iter().collect();
            measured.sum_of_squares = heads.sum_of_squares.into_iter().collect();
            let unit = if scaled { 1.0 / (self.d_k as f64).sqrt() } else { 1.0 };
            measured.score_min = ranges.iter().map(|range| unit * range[0]).collect();
            measured.score_max = ranges.iter().map(|range| unit * range[1]).collect();
            measured.score_square = ranges.iter().map(|range| unit * unit * range[2]).collect();
            if let Some(loss) = self.loss {
                let one_matrix = (self.seq * self.d_k) as f64;
                let d_out = match loss {
                    Loss::MeanSquare => CowArray::from(result.out.mapv(|x| 2.0 * x / one_matrix)),
                    Loss::SumSquare => CowArray::from(result.out.mapv(|x| 2.0 * x)),
                    Loss::Sum => CowArray::from(Array4::ones(result.out.raw_dim())),
                    Loss::Unit => CowArray::from(cotangent),
                };
                // exp(score - lse) are the weights: the statistics' pass serves the backward pass too.
                let one = ndarray::arr0(1.0);
                let row_sum = one.broadcast(result.lse.raw_dim()).expect("one number stands for all");
                let saved = SavedView { row_sum, row_max: result.lse.view(), out: result.out.view(), out_unrounded: None };
                let (_, stats) = attention.backward_with_stats(q, k, v, saved, d_out.view())?;
                measured.note_gradients(stats);
            }
        }
        Ok(both)
    }

    /// Label in files.
    pub(crate) fn name(&self) -> String {
        let loss = self.loss.map_or("none", Loss::word);
        format!("{} tokens, d_k {}, {} draws of seed {}, {:?}, loss {loss}", self.seq, self.d_k, self.seeds, self.seed, self.numbers)
    }

    /// Unscaled, then scaled, of the same draws; computed here or read from shards.
    pub(crate) fn measure(&self, progress: &dyn Progress) -> Result<[Measured; 2]> {
        let make = |draws: Range<usize>| self.make(draws, progress);
        match progress.share() {
            Some(share) => share.draws(self, &make),
            None => make(0..self.seeds),
        }
    }

    /// Measures some draws in parallel; the result does not depend on the number of threads.
    fn make(&self, draws: Range<usize>, progress: &dyn Progress) -> Result<[Measured; 2]> {
        let together = (NUMBERS_PER_TASK / (self.seq * self.width())).clamp(1, 256);
        let starts: Vec<usize> = draws.clone().step_by(together).collect();
        let parts: Vec<_> = starts
            .into_par_iter()
            .map_init(
                || self.zeros(together, self.width()),
                |tensors, from| {
                    let to = draws.end.min(from + together);
                    let part = self.part(from, to, tensors);
                    progress.advance((to - from) as u64);
                    part
                },
            )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Unwatched;

    /// The largest distance of two samples' distribution functions, times sqrt(n m / (n + m)): above 1.95 once in a thousand.
    fn apart(a: &[f64], b: &[f64]) -> f64 {
        let sorted = |x: &[f64]| {
            let mut x = x.to_vec();
            x.sort_unstable_by(f64::total_cmp);
            x
        };
        let (a, b) = (sorted(a), sorted(b));
        let share = |x: &[f64], at: f64| x.partition_point(|y| *y <= at) as f64 / x.len() as f64;
        let most = a.iter().chain(&b).map(|&at| (share(&a, at) - share(&b, at)).abs()).fold(0.0, f64::max);
        let (n, m) = (a.len() as f64, b.len() as f64);
        most * (n * m / (n + m)).sqrt()
    }

    #[test]
    fn rotated_rows_have_the_distribution_of_the_rows_themselves() {
        let cell = Cell { seq: 4, d_k: 24, seeds: 4000, seed: 3, numbers: Numbers::Regard, loss: Some(Loss::Unit) };
        assert_eq!(cell.width(), 8);
        let [unscaled, scaled] = cell.measure(&Unwatched).unwrap();
        // PyTorch's generator shares no number and no code with ours.
        let plain = Cell { numbers: Numbers::PyTorch, ..cell };
        assert_eq!(plain.width(), 24);
        let [plain_unscaled, plain_scaled] = plain.measure(&Unwatched).unwrap();
        for (turned, plain) in [(unscaled, plain_unscaled), (scaled, plain_scaled)] {
            let lists =
                |m: &Measured| [m.max_weight.clone(), m.entropy.clone(), m.score_max.clone(), m.dq.clone(), m.dk.clone(), m.dv.clone()];
            for (which, (a, b)) in lists(&turned).iter().zip(&lists(&plain)).enumerate() {
                assert!(apart(a, b) < 1.95, "list {which}: {}", apart(a, b));
            }
            // Rows of one matrix are alike, so the bound is wider.
            assert!(apart(&turned.dq_rows, &plain.dq_rows) < 2.0 * 1.95);
            assert!(apart(&turned.d_scores_rows, &plain.d_scores_rows) < 2.0 * 1.95);
        }
    }
}
