//! How different are the heads of untrained multi-head attention? Three measures beside each other, and what the first really measures.

use super::Heads;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin};
use crate::experiments::robustness::{SUMMARY_COLUMNS, summary_cells};
use crate::options::sizes;
use crate::options::{check_list, check_seeds, check_seq};
use crate::published::{self, Statistic};
use crate::rows::{self, Row};
use crate::statistics::cell::Numbers;
use crate::statistics::draws::{Chi, Draw, Purpose, triangle};
use crate::statistics::estimate::Estimate;
use crate::statistics::summary::Summary;
use clap::Args;
use ndarray::{Array2, Array3, Array4, ArrayView3};
use rayon::prelude::*;
use regard::{Attention, Scale, StatsOptions};
use regard_plot::{Table, Value};
use serde::Serialize;

/// How different are untrained heads? Plain cosine, centred cosine, Jensen-Shannon
///
/// The plain cosine of two maps, often published as their similarity, is 1 / (tokens x sum of squared weights) for independent heads: it
/// measures sharpness. Writes head_diversity.csv and head_sharpness.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab heads --heads 2,4,16 --d-model 128 --seq 50")]
pub struct HeadsConfig {
    /// Numbers of heads; each divides d_model
    #[arg(long, value_parser = sizes, default_value = "1,2,4,8", value_name = "LIST")]
    pub heads: ::std::vec::Vec<usize>,
    /// Width of the model
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub d_model: usize,
    /// Tokens
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub seq: usize,
    /// Draws
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub seeds: usize,
    /// Seed of the draws
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Default for HeadsConfig {
    fn default() -> Self {
        defaults()
    }
}

/// The measures, as they stand in the table.
const MEASURES: [&str; 3] = ["plain_cosine", "centred_cosine", "jensen_shannon"];

/// Of one draw: the three measures, averaged over the pairs of heads, and the sum of squares, averaged over rows and heads.
#[derive(Debug, Clone, Copy)]
struct Likeness {
    measures: [f64; 3],
    sum_of_squares: f64,
}

impl HeadsConfig {
    /// Draws of each temperature and length.
    fn fewer(&self) -> usize {
        self.seeds.min(400)
    }

    /// Progress steps of a run.
    pub(super) fn work(&self) -> u64 {
        (self.heads.len() * self.seeds + SHARPNESS.len() * LENGTHS.len() * self.fewer()) as u64
    }

    fn check(&self) -> Result<()> {
        check_seq(self.seq)?;
        check_seeds(self.seeds, 2)?;
        require((1..=1024).contains(&self.d_model), "d_model", self.d_model, "from 1 to 1024")?;
        check_list("heads", &self.heads, "1,2,4,8")?;
        self.heads.iter().try_for_each(|&h| require(h > 0 && self.d_model.is_multiple_of(h), "heads", h, "a divisor of d_model"))
    }

    /// `head_diversity`, the measures for each number of heads; `head_sharpness`, the same for sharper and flatter maps; `head_maps`, one
    /// draw.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let fewer = self.fewer();
        let origin = origin::<Heads>(self, self.seed, Numbers::Regard.describe())?;
        let mut diversity = self.diversity(progress)?;
        let mut sharpness = self.sharpness(fewer, progress)?;
        let mut maps = self.maps()?;
        (diversity.origin, sharpness.origin, maps.origin) = (origin.clone(), origin.clone(), origin);
        Ok(vec![diversity, sharpness, maps])
    }

    /// The heads of the first draw, for the largest number of heads.
    fn maps(&self) -> Result<Table> {
        let heads = self.heads.iter().copied().max().unwrap_or(1);
        let columns = [("head", "head"), ("query", "query"), ("key", "key"), ("weight", "weight")];
        let mut table = Table::new("head_maps", "Attention weights of every head of the first draw", &columns);
        let (q, k) = self.projections(self.seq, 0, 1);
        let weights = Attention::new().weights(&split_heads(&q, heads), &split_heads(&k, heads))?;
        for ((_, head, query, key), &weight) in weights.indexed_iter() {
            table.push(vec![head.into(), query.into(), key.into(), weight.into()]);
        }
        Ok(table)
    }

    fn diversity(&self, progress: &dyn Progress) -> Result<Table> {
        let mut columns =
            vec![("heads", "heads"), ("measure", "measure, mean over pairs of heads"), ("~independent", "of independent heads")];
        columns.extend(SUMMARY_COLUMNS);
        let caption = "Untrained heads: means over pairs, weights of variance 2/d_model";
        let mut table = rows::table("head_diversity", caption, &columns);
        for &heads in &self.heads {
            let draws = self.measure(heads, self.seq, 1.0, self.seeds, progress)?;
            let squares = Estimate::of_mean(&draws.iter().map(|d| d.sum_of_squares).collect::<Vec<_>>());
            for (place, measure) in MEASURES.into_iter().enumerate() {
                let independent = [Some(expected(self.seq, squares)), Some(Estimate::exact(0.0)), None][place];
                let row = Row::default().of(heads).of(measure).maybe(independent);
                if heads == 1 {
                    // One head has no pair: there is nothing to average.
                    row.all(vec![Value::Missing; table.columns.len() - 5]).put(&mut table);
                } else {
                    let sample: Vec<f64> = draws.iter().map(|d| d.measures[place]).collect();
                    let published = if place == 0 { published::number(Statistic::HeadCosine, self.seq, heads, true) } else { None };
                    summary_cells(row, &Summary::new(&sample), None, published).put(&mut table);
                }
            }
        }
        Ok(table)
    }

    /// The same heads at other temperatures and lengths: the plain cosine follows the sharpness, the centred one does not.
    fn sharpness(&self, seeds: usize, progress: &dyn Progress) -> Result<Table> {
        let heads = self.heads.iter().copied().find(|&h| h > 1).unwrap_or(1);
        let caption = format!("{heads} independent heads, scores multiplied by a factor");
        let columns = [
            ("seq", "tokens"),
            ("factor", "factor on the scores"),
            ("~sum_of_squares", "sharpness: mean sum of squared weights"),
            ("~plain_cosine", "plain cosine"),
            ("~independent", "1 / (tokens x sum of squares)"),
            ("~centred_cosine", "centred cosine"),
            ("~jensen_shannon", "Jensen-Shannon divergence (nats)"),
        ];
        let mut table = rows::table("head_sharpness", &caption, &columns);
        for seq in LENGTHS {
            for factor in SHARPNESS {
                let draws = self.measure(heads, seq, factor, seeds, progress)?;
                let mean = |f: &dyn Fn(&Likeness) -> f64| Estimate::of_mean(&draws.iter().map(f).collect::<Vec<_>>());
                let squares = mean(&|d| d.sum_of_squares);
                let [plain, centred, divergence] = [0, 1, 2].map(|i| mean(&|d| d.measures[i]));
                let row = Row::default().of(seq).of(factor).estimate(squares).estimate(plain);
                row.estimate(expected(seq, squares)).estimate(centred).estimate(divergence).put(&mut table);
            }
        }
        Ok(table)
    }

    fn measure(&self, heads: usize, seq: usize, factor: f64, seeds: usize, progress: &dyn Progress) -> Result<Vec<Likeness>> {
        const TOGETHER: usize = 8;
        let starts: Vec<usize> = (0..seeds).step_by(TOGETHER).collect();
        let parts: Vec<Result<Vec<Likeness>>> = starts
            .into_par_iter()
            .map(|from| {
                let to = seeds.min(from + TOGETHER);
                let (q, k) = self.projections(seq, from, to);
                let part = likeness(&split_heads(&q, heads), &split_heads(&k, heads), factor);
                progress.advance((to - from) as u64);
                part
            })
            .collect();
        let mut all = Vec::with_capacity(seeds);
        for part in parts {
            all.append(&mut part?);
        }
        Ok(all)
    }

    /// `x Wq` and `x Wk` of some draws, each `[draw, seq, d_model]`. With fewer tokens than numbers of each, x is a triangle in turned
    /// coordinates, and a turned W is as random as W: the products have the same distribution, with less to multiply.
    fn projections(&self, seq: usize, from: usize, to: usize) -> (Array3<f64>, Array3<f64>) {
        let d = self.d_model;
        let turned = d > seq;
        let inner = if turned { seq } else { d };
        let mut both = [(); 2].map(|()| Array3::zeros((to - from, seq, d)));
        let (mut x, mut w) = (Array2::zeros((seq, inner)), Array2::zeros((inner, d)));
        for draw in from..to {
            let mut numbers = Draw::new(self.seed, Purpose::Heads, [seq, d], draw as u64);
            let places = x.as_slice_mut().expect("a new array is contiguous");
            if turned {
                let mut chi = Chi::new(Draw::named(self.seed, "chi of heads", [seq, d], draw as u64));
                triangle(&mut numbers, &mut chi, seq, d, places);
            } else {
                numbers.normal(places);
            }
            x *= (2.0 / d as f64).sqrt();
            for projected in &mut both {
                numbers.normal(w.as_slice_mut().expect("a new array is contiguous"));
                ndarray::linalg::general_mat_mul(1.0, &x, &w, 0.0, &mut projected.index_axis_mut(ndarray::Axis(0), draw - from));
            }
        }
        let [q, k] = both;
        (q, k)
    }
}

/// The plain cosine of independent heads.
fn expected(seq: usize, squares: Estimate) -> Estimate {
    let of = |x: f64| 1.0 / (seq as f64 * x);
    Estimate { value: of(squares.value), low: of(squares.high), high: of(squares.low) }
}

const SHARPNESS: [f64; 7] = [0.01, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
const LENGTHS: [usize; 3] = [5, 20, 100];

/// `[draw, seq, d_model]` to `[draw, head, seq, d_model / heads]`.
fn split_heads(x: &Array3<f64>, heads: usize) -> Array4<f64> {
    let (draws, seq, d) = x.dim();
    let view = x.view().into_shape_with_order((draws, seq, heads, d / heads)).expect("heads divide the width");
    view.permuted_axes([0, 2, 1, 3]).to_owned()
}

fn likeness(q: &Array4<f64>, k: &Array4<f64>, factor: f64) -> Result<Vec<Likeness>> {
    let (draws, heads, _, dim) = q.dim();
    let attention = Attention::new().threads(1).scale(Scale::By(factor / (dim as f64).sqrt()));
    let weights = attention.weights(q, k)?;
    let similarity = attention.head_similarity(q, k)?;
    let (_, rows) = attention.forward_with_stats(q, k, k, StatsOptions::default())?;
    let squares = rows.heads().sum_of_squares;
    let pairs: Vec<(usize, usize)> = (0..heads).flat_map(|a| (a + 1..heads).map(move |b| (a, b))).collect();
    let over_pairs = |f: &dyn Fn(usize, usize) -> f64| pairs.iter().map(|&(a, b)| f(a, b)).sum::<f64>() / pairs.len() as f64;
    Ok((0..draws)
        .map(|draw| {
            let maps = weights.index_axis(ndarray::Axis(0), draw);
            Likeness {
                measures: [
                    over_pairs(&|a, b| plain_cosine(&maps, a, b)),
                    over_pairs(&|a, b| similarity.centred_cosine[[draw, a, b]]),
                    over_pairs(&|a, b| similarity.jensen_shannon[[draw, a, b]]),
                ],
                sum_of_squares: squares.row(draw).sum() / heads as f64,
            }
        })
        .collect())
}

/// Cosine of two maps as vectors: what is often published as the similarity of heads.
fn plain_cosine(maps: &ArrayView3<'_, f64>, a: usize, b: usize) -> f64 {
    let (a, b) = (maps.index_axis(ndarray::Axis(0), a), maps.index_axis(ndarray::Axis(0), b));
    let dot = |x: &ndarray::ArrayView2<'_, f64>, y: &ndarray::ArrayView2<'_, f64>| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
}
