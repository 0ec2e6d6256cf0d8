//! Weights and outputs by the place of the scale, and the time of a power and of a division.

use super::ScalePlace;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin, signed};
use crate::learning::brief;
use crate::options::check_seeds;
use crate::rows::{self, Row};
use crate::statistics::cell::Numbers;
use crate::statistics::draws::Draw;
use crate::statistics::estimate::Estimate;
use clap::Args;
use ndarray::Array2;
use rayon::prelude::*;
use regard_plot::Table;
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Scale before the softmax, after it, or not at all: weights and outputs at d_k = 64, 256, 1024; and power against division
///
/// Writes scale_place.csv and scale_place_maps.csv, and scale_power.csv unless --no-timing is given.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab scale-place --seeds 2000")]
pub struct ScalePlaceConfig {
    /// Draws per cell, at most 2000 of which are used
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Measure no times
    #[arg(long)]
    pub no_timing: bool,
}

impl Default for ScalePlaceConfig {
    fn default() -> Self {
        defaults()
    }
}

pub(super) const D_K: [usize; 3] = [64, 256, 1024];
pub(super) const PLACES: [&str; 3] = ["before the softmax", "after the softmax", "none"];
const SEQ: usize = 8;
const D_V: usize = 64;

/// Weights with the scale at each of [`PLACES`].
fn weights(q: &Array2<f64>, k: &Array2<f64>) -> [Array2<f64>; 3] {
    let (scores, root) = (q.dot(&k.t()), (q.ncols() as f64).sqrt());
    let softmax = |mut x: Array2<f64>| {
        for mut row in x.rows_mut() {
            let largest = row.fold(f64::NEG_INFINITY, |m, x| m.max(*x));
            row.mapv_inplace(|x| libm::exp(x - largest));
            row /= row.sum();
        }
        x
    };
    let none = softmax(scores.clone());
    [softmax(scores / root), &none / root, none]
}

impl ScalePlaceConfig {
    pub(super) fn draws(&self) -> usize {
        self.seeds.min(2000)
    }

    fn inputs(&self, d_k: usize, index: usize) -> [Array2<f64>; 3] {
        let mut draw = Draw::named(self.seed, "scale-place", [SEQ, d_k], index as u64);
        [d_k, d_k, D_V].map(|width| {
            let mut x = Array2::zeros((SEQ, width));
            draw.normal(x.as_slice_mut().expect("a new array is contiguous"));
            x
        })
    }

    /// `scale_place`, means over draws; `scale_place_maps`, one draw; `scale_power`, times.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_seeds(self.seeds, 2)?;
        let columns = [
            ("d_k", "d_k"),
            ("place", "scale"),
            ("seeds", "draws"),
            ("~row_sum", "sum of a row's weights"),
            ("~largest", "largest weight / sum of its row"),
            ("~output", "RMS of the outputs"),
            ("~apart", "distance of the outputs from the scaled ones / their length"),
        ];
        let caption = "Weights and outputs of 8 tokens by the place of the scale";
        let mut table = rows::table("scale_place", caption, &columns);
        let maps = [("d_k", "d_k"), ("place", "scale"), ("query", "query"), ("key", "key"), ("weight", "weight")];
        let mut maps = Table::new("scale_place_maps", "Weights of one draw", &maps);
        for d_k in D_K {
            let draw = |index: usize| -> [[f64; 4]; 3] {
                let [q, k, v] = self.inputs(d_k, index);
                let all = weights(&q, &k);
                let right = all[0].dot(&v);
                progress.advance(1);
                all.map(|weights| {
                    let sums = weights.rows().into_iter().map(|row| row.sum()).sum::<f64>() / SEQ as f64;
                    let share = |row: ndarray::ArrayView1<'_, f64>| row.fold(0.0, |m: f64, x| m.max(*x)) / row.sum();
                    let largest = weights.rows().into_iter().map(share).sum::<f64>() / SEQ as f64;
                    let out = weights.dot(&v);
                    let rms = (out.iter().map(|x| x * x).sum::<f64>() / out.len() as f64).sqrt();
                    let apart = (&out - &right).iter().map(|x| x * x).sum::<f64>() / right.iter().map(|x| x * x).sum::<f64>();
                    [sums, largest, rms, apart.sqrt()]
                })
            };
            let all: Vec<[[f64; 4]; 3]> = (0..self.draws()).into_par_iter().map(draw).collect();
            for (at, place) in PLACES.into_iter().enumerate() {
                let of = |which: usize| Estimate::of_mean(&all.iter().map(|draw| draw[at][which]).collect::<Vec<_>>());
                let row = Row::default().of(d_k).of(place).of(self.draws());
                (0..4).fold(row, |row, which| row.estimate(of(which))).put(&mut table);
            }
            let [q, k, _] = self.inputs(d_k, 0);
            for (place, weights) in PLACES.into_iter().zip(weights(&q, &k)) {
                for ((i, j), weight) in weights.indexed_iter() {
                    Row::default().of(d_k).of(place).of(i).of(j).of(brief(*weight)).put(&mut maps);
                }
            }
        }
        let mut tables = vec![table, maps];
        if !self.no_timing {
            tables.push(powers());
        }
        Ok(signed(tables, &origin::<ScalePlace>(self, self.seed, Numbers::Regard.describe())?))
    }
}

/// Shortest of several runs, in nanoseconds per call.
fn nanoseconds(calls: usize, mut run: impl FnMut()) -> f64 {
    let once = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e9 / calls as f64
    };
    (0..15).map(|_| once(&mut run)).fold(f64::INFINITY, f64::min)
}

/// The factor as a power and as a division, and its use on the scores.
fn powers() -> Table {
    let columns = [("operation", "operation"), ("nanoseconds", "ns each, best of 15"), ("error", "largest relative error")];
    let caption = "The scale as power and division, and applied to a score: times on this machine, d_k from 1 to 4096";
    let mut table = Table::new("scale_power", caption, &columns);
    let widths: Vec<f64> = (1..=4096).map(f64::from).collect();
    // x * root - 1, by exact products in two numbers: the error of 1 / root.
    let error = |f: fn(f64) -> f64| {
        let one = |d: &f64| {
            let y = f(*d);
            let square = y * y;
            let rest = y.mul_add(y, -square);
            (((square * d - 1.0) + rest * d) / 2.0).abs()
        };
        widths.iter().map(one).fold(0.0, f64::max)
    };
    let power = |d: f64| d.powf(-0.5);
    let division = |d: f64| 1.0 / d.sqrt();
    for (name, f) in [("d_k ** -0.5", power as fn(f64) -> f64), ("1 / sqrt(d_k)", division as fn(f64) -> f64)] {
        let time = nanoseconds(widths.len(), || {
            for d in &widths {
                black_box(black_box(f)(black_box(*d)));
            }
        });
        table.push(vec![name.into(), brief(time), brief(error(f))]);
    }
    let scores = vec![1.5f32; 1 << 18];
    let mut to = scores.clone();
    let factor = black_box(0.044_194_174f32);
    let multiply = nanoseconds(scores.len(), || {
        to.iter_mut().zip(&scores).for_each(|(to, x)| *to = x * factor);
        black_box(&mut to);
    });
    let root = black_box(22.627_417f32);
    let divide = nanoseconds(scores.len(), || {
        to.iter_mut().zip(&scores).for_each(|(to, x)| *to = x / root);
        black_box(&mut to);
    });
    table.push(vec!["score * factor".into(), brief(multiply), regard_plot::Value::Missing]);
    table.push(vec!["score / root".into(), brief(divide), regard_plot::Value::Missing]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_softmax_rows_sum_to_the_scale_and_keep_their_shape() {
        let [q, k, _] = ScalePlaceConfig::default().inputs(64, 3);
        let [before, after, none] = weights(&q, &k);
        for i in 0..SEQ {
            assert!((before.row(i).sum() - 1.0).abs() < 1e-12 && (after.row(i).sum() - 0.125).abs() < 1e-12);
            assert!(after.row(i).iter().zip(none.row(i)).all(|(a, b)| (8.0 * a - b).abs() < 1e-15));
        }
    }
}
