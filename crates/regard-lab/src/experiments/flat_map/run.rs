//! The notebook in NumPy: weights of 0.01 make a map in which there is nothing to see.

use super::FlatMap;
use crate::error::Result;
use crate::experiment::{Progress, defaults, origin, signed};
use crate::options::check_seeds;
use crate::rows::{self, Row};
use crate::statistics::cell::Numbers;
use crate::statistics::draws::Draw;
use crate::statistics::estimate::Estimate;
use clap::Args;
use ndarray::{Array2, Array4};
use rayon::prelude::*;
use regard::Attention;
use regard_plot::Table;
use serde::Serialize;

/// Attend to 3 tokens with projections of 0.01, as a notebook does, and with larger ones
///
/// Width 4, sinusoidal positions added. How far the weights are from 1/3, by the size of the projections. Writes flat_map.csv and
/// flat_map_weights.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab flat-map --seeds 100000")]
pub struct FlatMapConfig {
    /// Draws per size
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for FlatMapConfig {
    fn default() -> Self {
        defaults()
    }
}

const TOKENS: usize = 3;
const WIDTH: usize = 4;
/// Sizes of the projections: the notebook's, and 1 / sqrt(width) among others.
const SIZES: [f64; 4] = [0.01, 0.1, 0.5, 1.0];

impl FlatMapConfig {
    /// The weights of a draw with projections of that size.
    fn weights(&self, size: f64, index: usize) -> Result<Array4<f64>> {
        let mut numbers = Draw::named(self.seed, "flat-map", [TOKENS, WIDTH], index as u64);
        let mut normal = |rows: usize| {
            let mut x = Array2::zeros((rows, WIDTH));
            numbers.normal(x.as_slice_mut().expect("a new array is contiguous"));
            x
        };
        let wave = |i: usize, j: usize| {
            let angle = i as f64 / 10_000f64.powf((j / 2 * 2) as f64 / WIDTH as f64);
            if j.is_multiple_of(2) { angle.sin() } else { angle.cos() }
        };
        let x = normal(TOKENS) + Array2::from_shape_fn((TOKENS, WIDTH), |(i, j)| wave(i, j));
        let [q, k] = [(); 2].map(|()| x.dot(&(normal(WIDTH) * size)).into_shape_with_order((1, 1, TOKENS, WIDTH)).expect("one head"));
        Ok(Attention::new().threads(1).weights(&q, &k)?)
    }

    /// `flat_map`, by the size of the projections; `flat_map_weights`, one draw.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_seeds(self.seeds, 2)?;
        let columns = [("size", "size of the projections"), ("seeds", "draws"), ("~deviation", "largest distance of a weight from 1/3")];
        let caption = "Distance of the weights from 1/3, by the size of the projections";
        let mut table = rows::table("flat_map", caption, &columns);
        let columns = [("size", "size"), ("query", "query"), ("key", "key"), ("weight", "weight")];
        let mut maps = Table::new("flat_map_weights", "Weights of the first draw", &columns);
        for size in SIZES {
            let draw = |index| Ok(self.weights(size, index)?.fold(0.0, |most: f64, w| most.max((w - 1.0 / TOKENS as f64).abs())));
            let all = (0..self.seeds).into_par_iter().map(draw).collect::<Result<Vec<_>>>()?;
            Row::default().of(size).of(self.seeds).estimate(Estimate::of_mean(&all)).put(&mut table);
            for ((_, _, query, key), &weight) in self.weights(size, 0)?.indexed_iter() {
                maps.push(vec![size.into(), query.into(), key.into(), weight.into()]);
            }
        }
        progress.advance(self.seeds as u64);
        Ok(signed(vec![table, maps], &origin::<FlatMap>(self, self.seed, Numbers::Regard.describe())?))
    }
}
