//! Sparse attention: only the k nearest keys of each query.

use super::Nearest;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Job, Jobs, LearningConfig, SeedsConfig};
use crate::options::{check_list, sizes};
use crate::rows::{self, Row};
use crate::statistics::draws::Draw;
use crate::statistics::estimate::Estimate;
use crate::trainings::heads::{VisibleKeys, loss_with_few_keys};
use crate::trainings::learn::learn;
use clap::Args;
use ndarray::Array4;
use rayon::prelude::*;
use regard::Attention;
use regard_nn::data::{Target, Windows};
use regard_nn::lm::LanguageModel;
use regard_plot::Table;
use serde::{Deserialize, Serialize};

/// Keep only the k nearest keys of each query: what is lost, for random vectors and for a trained model
///
/// Nearest are the keys with the largest weights. Beside them the k latest keys, which need no search. The model was trained with all keys.
/// Writes nearest.csv and nearest_random.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab nearest --keys 1,2,4,8 --context 128 --steps 2000")]
pub struct NearestConfig {
    /// Numbers of keys that are kept
    #[arg(long, value_parser = sizes, default_value = "1,2,4,8,16,32", value_name = "LIST")]
    pub keys: ::std::vec::Vec<usize>,
    /// Draws of random vectors
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pub draws: usize,
    /// Steps of each training
    #[arg(long, default_value_t = 400, value_name = "N")]
    pub steps: u64,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Validation windows
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub windows: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for NearestConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Losses of one training, with all keys and with some.
#[derive(Serialize, Deserialize)]
struct Run {
    all: f64,
    nearest: Vec<f64>,
    latest: Vec<f64>,
}

/// Tokens and width of the random vectors.
const SEQ: usize = 64;
const D_K: usize = 64;

impl NearestConfig {
    fn check(&self) -> Result<()> {
        self.learning.check(self.steps, self.windows)?;
        self.seeds.check()?;
        check_list("keys", &self.keys, "1,2,4,8")?;
        require((2..=1_000_000).contains(&self.draws), "draws", self.draws, "from 2 to 1000000")?;
        self.keys.iter().try_for_each(|&k| require(k > 0, "keys", k, "at least 1"))
    }

    /// `nearest`, the loss of a trained model; `nearest_random`, the output of random vectors.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let learning = &self.learning;
        let content = learning.content()?;
        let (text, vocab, described) = learning.tokens_of(&content)?;
        let random = self.random(progress)?;
        let windows = Windows::spread(&text.validation, self.windows, learning.context, Target::Next);
        let jobs: Vec<Job<u64>> =
            self.seeds.all().map(|seed| Job { name: format!("seed {seed}"), steps: self.steps, what: seed }).collect();
        let runs = Jobs::new(progress, Nearest::ID, self, &content).run(&jobs, |&seed, watch| {
            let model = LanguageModel::new(learning.model(vocab))?;
            let (learnt, p) = learn("training", &model, &learning.train(self.steps, seed), &text, self.steps, self.windows, watch)?;
            let of = |kept: fn(usize) -> VisibleKeys| -> Result<Vec<f64>> {
                self.keys.iter().map(|&k| Ok(loss_with_few_keys(&model, &p, &windows, kept(k))?)).collect()
            };
            Ok(Run { all: learnt.validation, nearest: of(VisibleKeys::Nearest)?, latest: of(VisibleKeys::Latest)? })
        })?;
        Ok(signed(vec![self.trained(&runs), random], &origin::<Nearest>(self, self.seeds.seed, &described)?))
    }

    fn trained(&self, runs: &[Run]) -> Table {
        let columns = [
            ("keys", "keys kept"),
            ("seeds", "trainings"),
            ("~loss", "validation loss with the nearest keys"),
            ("~added", "loss added, same training"),
            ("~latest_loss", "validation loss with the latest keys"),
            ("~latest_added", "loss added, same training"),
        ];
        let caption = "Trained with all keys, used with few: means over trainings";
        let mut table = rows::table("nearest", caption, &columns);
        for (at, &keys) in self.keys.iter().enumerate() {
            let of = |f: &dyn Fn(&Run) -> f64| -> Vec<f64> { runs.iter().map(f).collect() };
            let row = Row::default().of(keys).of(runs.len()).mean(&of(&|r| r.nearest[at])).mean(&of(&|r| r.nearest[at] - r.all));
            row.mean(&of(&|r| r.latest[at])).mean(&of(&|r| r.latest[at] - r.all)).put(&mut table);
        }
        table
    }

    fn random(&self, progress: &dyn Progress) -> Result<Table> {
        let columns = [
            ("keys", "keys kept"),
            ("draws", "draws"),
            ("~kept", "share of the weight that they have"),
            ("~error", "relative error of the output"),
        ];
        let caption = format!("Random vectors: {SEQ} tokens, d_k = {D_K}, scaled; error: |out - exact| / |exact|");
        let mut table = rows::table("nearest_random", &caption, &columns);
        let draw = |index: usize| -> Result<Vec<[f64; 2]>> {
            let mut numbers = Draw::named(self.seeds.seed, "nearest", [SEQ, D_K], index as u64);
            let [q, k, v] = [(); 3].map(|()| {
                let mut x = Array4::zeros((1, 1, SEQ, D_K));
                numbers.normal(x.as_slice_mut().expect("a new array is contiguous"));
                x
            });
            let attention = Attention::new().threads(1);
            let (weights, exact) = (attention.weights(&q, &k)?, attention.forward(&q, &k, &v)?.out);
            let norm: f64 = exact.iter().map(|x| x * x).sum();
            let mut order: Vec<Vec<usize>> = Vec::new();
            for i in 0..SEQ {
                let mut keys: Vec<usize> = (0..SEQ).collect();
                keys.sort_by(|&a, &b| weights[[0, 0, i, b]].total_cmp(&weights[[0, 0, i, a]]));
                order.push(keys);
            }
            let few = |most: usize| {
                let (mut kept, mut apart) = (0.0, 0.0);
                for (i, order) in order.iter().enumerate() {
                    let near = &order[..most.min(SEQ)];
                    let sum: f64 = near.iter().map(|&j| weights[[0, 0, i, j]]).sum();
                    kept += sum / SEQ as f64;
                    for d in 0..D_K {
                        let out: f64 = near.iter().map(|&j| weights[[0, 0, i, j]] / sum * v[[0, 0, j, d]]).sum();
                        apart += (out - exact[[0, 0, i, d]]).powi(2);
                    }
                }
                [kept, (apart / norm).sqrt()]
            };
            progress.advance(self.keys.len() as u64);
            Ok(self.keys.iter().map(|&k| few(k)).collect())
        };
        let all = (0..self.draws).into_par_iter().map(draw).collect::<Result<Vec<_>>>()?;
        for (at, &keys) in self.keys.iter().enumerate() {
            let of = |which: usize| Estimate::of_mean(&all.iter().map(|x| x[at][which]).collect::<Vec<_>>());
            Row::default().of(keys).of(self.draws).estimate(of(0)).estimate(of(1)).put(&mut table);
        }
        Ok(table)
    }
}
