//! Dropout of attention weights: what it does to the weights, and what it does in training.

use super::Dropout;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, LearningConfig, SeedsConfig, brief, every};
use crate::options::check_list;
use crate::rows::{self, Row};
use crate::statistics::draws::Draw;
use crate::statistics::estimate::Estimate;
use crate::trainings::learn::{Learnt, learn};
use clap::Args;
use ndarray::Array4;
use rayon::prelude::*;
use regard::Attention;
use regard_nn::config::ModelConfig;
use regard_nn::lm::LanguageModel;
use regard_plot::Table;
use serde::Serialize;

/// Drop attention weights at random: what happens to the weights, and to a model that learns a short text
///
/// A dropped weight is 0, the others are divided by the share that is kept, so that each is right on average. The training is on a short
/// text. Writes dropout_weights.csv, dropout_training.csv and two tables that it rests on.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab dropout --rates 0,0.1,0.5 --characters 50000")]
pub struct DropoutConfig {
    /// Probabilities of dropping; begin with 0 to compare with
    #[arg(long, value_parser = rates, default_value = "0,0.1,0.3", value_name = "LIST")]
    pub rates: ::std::vec::Vec<f64>,
    /// Draws of weights per rate
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub draws: usize,
    /// Steps of each training
    #[arg(long, default_value_t = 600, value_name = "N")]
    pub steps: u64,
    /// Characters of the text that are learnt
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    pub characters: usize,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Windows that each loss is measured with
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub windows: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for DropoutConfig {
    fn default() -> Self {
        defaults()
    }
}

fn rates(text: &str) -> std::result::Result<Vec<f64>, String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| item.parse().map_err(|_| format!("{item:?} is no number; give a list such as 0,0.1,0.4"))).collect()
}

/// Tokens and width of the draws.
const SEQ: usize = 8;
const D_K: usize = 64;

impl DropoutConfig {
    fn check(&self) -> Result<()> {
        self.learning.check(self.steps, self.windows)?;
        self.seeds.check()?;
        check_list("rates", &self.rates, "0,0.1,0.4")?;
        require((2..=1_000_000).contains(&self.draws), "draws", self.draws, "from 2 to 1000000")?;
        require(self.characters >= 1000, "characters", self.characters, "at least 1000")?;
        self.rates.iter().try_for_each(|&p| require((0.0..1.0).contains(&p), "rates", p, "at least 0 and below 1"))
    }

    /// `dropout_weights`, `dropout_training`, `dropout_curves`, `dropout_seeds`.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let learning = &self.learning;
        let content: String = learning.content()?.chars().take(self.characters).collect();
        let (text, vocab, described) = learning.tokens_of(&content)?;
        let weights = self.weights(progress)?;
        let jobs = self.seeds.jobs(&self.rates, self.steps, |rate| format!("dropout {rate}"));
        let results = Jobs::new(progress, Dropout::ID, self, &content).run(&jobs, |&(dropout, seed), watch| {
            let model = LanguageModel::new(ModelConfig { dropout, ..learning.model(vocab) })?;
            let train = learning.train(self.steps, seed);
            Ok(learn("training", &model, &train, &text, every(self.steps, 20), self.windows, watch)?.0)
        })?;
        let runs: Vec<(f64, u64, Learnt)> = jobs.iter().zip(results).map(|(job, run)| (job.what.0, job.what.1, run)).collect();
        let tables = vec![weights, self.outcome(&runs), self.curves(&runs), each(&runs)];
        let described = format!("the first {} characters of {described}", self.characters);
        Ok(signed(tables, &origin::<Dropout>(self, self.seeds.seed, &described)?))
    }

    /// What dropping does to weights of random queries and keys.
    fn weights(&self, progress: &dyn Progress) -> Result<Table> {
        let columns = [
            ("rate", "probability of dropping"),
            ("draws", "draws"),
            ("~dropped", "share of weights dropped"),
            ("~bias", "mean of (weight after - before) / mean weight"),
            ("~row_sum_std", "std of the sum of a row (1 before)"),
            ("expected_std", "sqrt(rate / (1 - rate) x sum of squares)"),
            ("~output_change", "relative change of the output"),
        ];
        let caption = format!("Weights of {SEQ} random tokens, d_k = {D_K}, before and after dropping");
        let mut table = rows::table("dropout_weights", &caption, &columns);
        for &rate in &self.rates {
            let draw = |index: usize| -> Result<[f64; 5]> {
                let mut numbers = Draw::named(self.seeds.seed, "dropout", [SEQ, D_K], index as u64);
                let mut normal = |width: usize| {
                    let mut x = Array4::zeros((1, 1, SEQ, width));
                    numbers.normal(x.as_slice_mut().expect("a new array is contiguous"));
                    x
                };
                let (q, k, v) = (normal(D_K), normal(D_K), normal(D_K));
                // With the unit matrix for values the output is the weights themselves.
                let unit = Array4::from_shape_fn((1, 1, SEQ, SEQ), |(_, _, i, j)| f64::from(u8::from(i == j)));
                let plain = Attention::new().threads(1);
                let dropping = if rate > 0.0 { plain.clone().dropout(rate, index as u64) } else { plain.clone() };
                let (before, after) = (plain.forward(&q, &k, &unit)?.out, dropping.forward(&q, &k, &unit)?.out);
                let (out, other) = (plain.forward(&q, &k, &v)?.out, dropping.forward(&q, &k, &v)?.out);
                let cells = (SEQ * SEQ) as f64;
                let rows = after.iter().collect::<Vec<_>>();
                let sums = rows.chunks(SEQ).map(|row| row.iter().copied().sum::<f64>());
                let square = |x: &Array4<f64>| x.iter().map(|x| x * x).sum::<f64>();
                Ok([
                    after.iter().filter(|w| **w == 0.0).count() as f64 / cells,
                    (after.sum() - before.sum()) / before.sum(),
                    sums.map(|s| (s - 1.0).powi(2)).sum::<f64>() / SEQ as f64,
                    square(&before) / SEQ as f64,
                    (square(&(&other - &out)) / square(&out)).sqrt(),
                ])
            };
            let all = (0..self.draws).into_par_iter().map(draw).collect::<Result<Vec<_>>>()?;
            progress.advance(self.draws as u64);
            let of = |which: usize| Estimate::of_mean(&all.iter().map(|x| x[which]).collect::<Vec<_>>());
            let expected = (rate / (1.0 - rate) * of(3).value).sqrt();
            let row = Row::default()
                .of(rate)
                .of(self.draws)
                .estimate(of(0))
                .estimate(of(1))
                .estimate(of(2).map(|x| x.clamp(0.0, f64::INFINITY).sqrt()));
            row.of(expected).estimate(of(4)).put(&mut table);
        }
        Ok(table)
    }

    fn outcome(&self, runs: &[(f64, u64, Learnt)]) -> Table {
        let columns = [
            ("rate", "probability of dropping"),
            ("seeds", "trainings"),
            ("~train_loss", "loss on the text learnt, nothing dropped"),
            ("~validation_loss", "validation loss"),
            ("~gap", "validation minus learnt"),
            ("~difference", "validation loss minus that of the first row, same seed"),
            ("same_sign", "pairs with the sign of the mean"),
        ];
        let caption = format!("A model that learns {} characters: means over trainings", self.characters);
        let mut table = rows::table("dropout_training", &caption, &columns);
        let of = |rate: f64, f: fn(&Learnt) -> f64| -> Vec<f64> { runs.iter().filter(|run| run.0 == rate).map(|run| f(&run.2)).collect() };
        let first = of(self.rates[0], |l| l.validation);
        for &rate in &self.rates {
            let validation = of(rate, |l| l.validation);
            let row = Row::default().of(rate).of(validation.len()).mean(&of(rate, |l| l.train)).mean(&validation);
            row.mean(&of(rate, |l| l.validation - l.train)).paired(&validation, &first).put(&mut table);
        }
        table
    }

    fn curves(&self, runs: &[(f64, u64, Learnt)]) -> Table {
        let columns =
            [("rate", "probability of dropping"), ("step", "step"), ("~loss", "training loss, with what is dropped (nats per token)")];
        let mut table = rows::table("dropout_curves", "Training loss, the mean since the point before, over trainings", &columns);
        for &rate in &self.rates {
            let runs: Vec<&Learnt> = runs.iter().filter(|run| run.0 == rate).map(|run| &run.2).collect();
            let Some(first) = runs.first() else { continue };
            for (at, point) in first.curve.iter().enumerate() {
                let sample: Vec<f64> = runs.iter().filter_map(|run| run.curve.get(at)).map(|point| point.loss).collect();
                Row::default().of(rate).of(point.step as usize).mean(&sample).put(&mut table);
            }
        }
        table
    }
}

fn each(runs: &[(f64, u64, Learnt)]) -> Table {
    let columns = [
        ("rate", "probability of dropping"),
        ("seed", "seed"),
        ("train_loss", "loss on the text learnt"),
        ("validation_loss", "validation loss"),
    ];
    let mut table = Table::new("dropout_seeds", "Every training by itself", &columns);
    for (rate, seed, learnt) in runs {
        Row::default().of(*rate).of(*seed as usize).all([learnt.train, learnt.validation].map(brief)).put(&mut table);
    }
    table
}
