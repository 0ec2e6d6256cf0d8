//! The same language model with and without 1/sqrt(d_k), at several head sizes: loss, heads and gradients during training.

use super::ScaleTraining;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, LearningConfig, SeedsConfig, brief, every};
use crate::options::check_list;
use crate::options::sizes;
use crate::rows::{self, Row};
use crate::trainings::ablate_scale::{AblateConfig, AblateRun, Moment, trained_heads};
use crate::trainings::attention_stats::{HeadView, LayerView};
use clap::Args;
use regard_nn::attention::ScaleKind;
use regard_nn::config::ModelConfig;
use regard_plot::Table;
use serde::Serialize;

/// Train the same language model with and without 1/sqrt(d_k), at several head sizes
///
/// Loss curves, entropy and saturation of every head over time, and the norms of the gradients on queries, keys and values: what the
/// scale does for a model that learns, and what learning makes up for without it. Writes scale_training.csv and five tables that it rests
/// on.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Examples:\n  regard lab scale-training                              head sizes 4, 16, 64, 256\n  \
         regard lab scale-training --head-dims 16,512 --steps 300")]
pub struct ScaleTrainingConfig {
    /// Widths of a head
    #[arg(long, value_parser = sizes, default_value = "4,16,64,256", value_name = "LIST")]
    pub head_dims: ::std::vec::Vec<usize>,
    /// Steps of each of the trainings (two per width and seed)
    #[arg(long, default_value_t = 250, value_name = "N")]
    pub steps: u64,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Validation windows that heads and gradients are looked at with
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub windows: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for ScaleTrainingConfig {
    fn default() -> Self {
        defaults()
    }
}

impl ScaleTrainingConfig {
    fn check(&self) -> Result<()> {
        self.learning.check(self.steps, self.windows)?;
        self.seeds.check()?;
        check_list("head_dims", &self.head_dims, "4,16,64,256")?;
        self.head_dims.iter().try_for_each(|&d| require((1..=1024).contains(&d), "head_dims", d, "from 1 to 1024"))
    }

    /// `scale_training`, one row per width and scale; `scale_training_paired`, without the scale against with it, seed by seed;
    /// `scale_training_seeds`; `scale_training_curves`; `scale_training_heads` and `scale_training_gradients`, over time.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let learning = &self.learning;
        let content = learning.content()?;
        let (text, vocab, described) = learning.tokens_of(&content)?;
        let both = |&head_dim: &usize| [ScaleKind::InvSqrtDim, ScaleKind::Off].map(|scale| (head_dim, scale));
        let kinds: Vec<(usize, ScaleKind)> = self.head_dims.iter().flat_map(both).collect();
        let jobs = self.seeds.jobs(&kinds, self.steps, |(head_dim, scale)| {
            format!("heads of {head_dim}, {}", if scale == ScaleKind::Off { "no scale" } else { "scaled" })
        });
        let results = Jobs::new(progress, ScaleTraining::ID, self, &content).run(&jobs, |&((head_dim, scale), seed), watch| {
            let config = AblateConfig {
                model: learning.model(vocab),
                train: learning.train(self.steps, seed),
                head_dims: Vec::new(),
                every: every(self.steps, 10),
                windows: self.windows,
            };
            let model = ModelConfig { head_dim: Some(head_dim), scale, ..config.model.clone() };
            Ok(trained_heads(&config, model, &text, watch)?)
        })?;
        let runs: Vec<Run> = jobs.iter().zip(results).map(|(job, result)| Run { seed: job.what.1, result }).collect();
        let tables = vec![outcome(&runs), paired(&runs, learning.entropy()), each(&runs), curves(&runs), heads(&runs), gradients(&runs)];
        Ok(signed(tables, &origin::<ScaleTraining>(self, self.seeds.seed, &described)?))
    }
}

/// One training.
struct Run {
    seed: u64,
    result: AblateRun,
}

/// Width and scale in the order of the first seed, each with its trainings in the order of the seeds.
fn by_kind(runs: &[Run]) -> Vec<((usize, bool), Vec<&Run>)> {
    let mut all: Vec<((usize, bool), Vec<&Run>)> = Vec::new();
    for run in runs {
        let kind = (run.result.head_dim, run.result.scale != ScaleKind::Off);
        match all.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, runs)) => runs.push(run),
            None => all.push((kind, vec![run])),
        }
    }
    all
}

/// Mean over the heads of a moment.
fn over_heads(moment: &Moment, f: impl Fn(&HeadView) -> f64) -> f64 {
    let heads = &moment.inside.heads;
    heads.iter().map(f).sum::<f64>() / heads.len().max(1) as f64
}

/// Of all blocks together.
fn norm(moment: &Moment, f: fn(&LayerView) -> f64) -> f64 {
    moment.inside.layers.iter().map(|layer| f(layer).powi(2)).sum::<f64>().sqrt()
}

/// What is measured of every training.
type Measure = (&'static str, &'static str, fn(&AblateRun) -> f64);

fn first(run: &AblateRun, f: impl Fn(&Moment) -> f64) -> f64 {
    run.moments.first().map_or(f64::NAN, f)
}

fn last(run: &AblateRun, f: impl Fn(&Moment) -> f64) -> f64 {
    run.moments.last().map_or(f64::NAN, f)
}

const MEASURES: [Measure; 11] = [
    ("first_loss", "training loss, first step", |r| r.curve.first().map_or(f64::NAN, |point| point.loss)),
    ("train_loss", "training loss", |r| r.curve.last().map_or(f64::NAN, |point| point.loss)),
    ("validation_loss", "validation loss", |r| r.validation),
    ("first_entropy", "relative entropy before training", |r| first(r, |m| over_heads(m, |h| h.relative_entropy))),
    ("last_entropy", "relative entropy after", |r| last(r, |m| over_heads(m, |h| h.relative_entropy))),
    ("first_saturated", "saturated rows before training", |r| first(r, |m| over_heads(m, |h| h.saturated))),
    ("last_saturated", "saturated rows after", |r| last(r, |m| over_heads(m, |h| h.saturated))),
    ("first_query_gradient", "gradient on the queries' weights before training", |r| first(r, |m| norm(m, |l| l.query_gradient))),
    ("last_query_gradient", "gradient on the queries' weights after", |r| last(r, |m| norm(m, |l| l.query_gradient))),
    ("first_value_gradient", "gradient on the values' weights before training", |r| first(r, |m| norm(m, |l| l.value_gradient))),
    ("last_value_gradient", "gradient on the values' weights after", |r| last(r, |m| norm(m, |l| l.value_gradient))),
];

fn sample(runs: &[&Run], f: fn(&AblateRun) -> f64) -> Vec<f64> {
    runs.iter().map(|run| f(&run.result)).collect()
}

fn outcome(runs: &[Run]) -> Table {
    let estimates: Vec<(String, &str)> = MEASURES.iter().map(|(name, title, _)| (format!("~{name}"), *title)).collect();
    let mut columns = vec![("head_dim", "head size d_k"), ("scaled", "scaled"), ("seeds", "trainings")];
    columns.extend(estimates.iter().map(|(name, title)| (name.as_str(), *title)));
    let caption = "Losses, heads and gradients, before and after training: means over trainings";
    let mut table = rows::table("scale_training", caption, &columns);
    for ((head_dim, scaled), runs) in by_kind(runs) {
        let mut row = Row::default().of(head_dim).of(scaled).of(runs.len());
        for (name, _, f) in MEASURES {
            let sample = sample(&runs, f);
            row = if name.ends_with("_saturated") || name.ends_with("_entropy") { row.share(&sample) } else { row.mean(&sample) };
        }
        row.put(&mut table);
    }
    table
}

/// Without the scale against with it, of the same seed; and how far both are from the least loss that is possible, where that is known.
fn paired(runs: &[Run], floor: Option<f64>) -> Table {
    let columns = [
        ("head_dim", "head size d_k"),
        ("seeds", "pairs"),
        ("~difference", "validation loss without the scale minus with it, same seed"),
        ("same_sign", "pairs with the sign of the mean"),
        ("floor", "entropy of the text"),
        ("~excess_with", "loss above the entropy, with the scale"),
        ("~excess_without", "without"),
        ("~excess_ratio", "ratio of the two, same seed"),
    ];
    let mut table = rows::table("scale_training_paired", "With and without the scale, seed by seed", &columns);
    let all = by_kind(runs);
    for ((head_dim, scaled), with) in all.iter().filter(|((_, scaled), _)| *scaled) {
        let Some((_, without)) = all.iter().find(|((d, s), _)| d == head_dim && s != scaled) else { continue };
        let (with, without) = (sample(with, |r| r.validation), sample(without, |r| r.validation));
        let row = Row::default().of(*head_dim).of(with.len()).paired(&without, &with).of(floor);
        let above = |losses: &[f64]| -> Vec<f64> { losses.iter().map(|loss| loss - floor.unwrap_or(f64::NAN)).collect() };
        let row = if floor.is_some() {
            let ratios: Vec<f64> = above(&without).iter().zip(above(&with)).map(|(a, b)| a / b).collect();
            row.mean(&above(&with)).mean(&above(&without)).mean(&ratios)
        } else {
            row.maybe(None).maybe(None).maybe(None)
        };
        row.put(&mut table);
    }
    table
}

/// Seed by seed.
fn each(runs: &[Run]) -> Table {
    let named = MEASURES.map(|(name, title, _)| (name, title));
    let columns: Vec<_> = [("head_dim", "head size d_k"), ("scaled", "scaled"), ("seed", "seed")].into_iter().chain(named).collect();
    let mut table = Table::new("scale_training_seeds", "Every training by itself", &columns);
    for run in runs {
        let row = Row::default().of(run.result.head_dim).of(run.result.scale != ScaleKind::Off).of(run.seed as usize);
        row.all(MEASURES.map(|(_, _, f)| brief(f(&run.result)))).put(&mut table);
    }
    table
}

fn curves(runs: &[Run]) -> Table {
    let columns = [("head_dim", "head size d_k"), ("scaled", "scaled"), ("step", "step"), ("~loss", "training loss (nats per token)")];
    let mut table = rows::table("scale_training_curves", "Training loss, the mean since the point before, over trainings", &columns);
    for ((head_dim, scaled), runs) in by_kind(runs) {
        for (at, point) in runs[0].result.curve.iter().enumerate() {
            let sample: Vec<f64> = runs.iter().filter_map(|run| run.result.curve.get(at)).map(|point| point.loss).collect();
            Row::default().of(head_dim).of(scaled).of(point.step as usize).mean(&sample).put(&mut table);
        }
    }
    table
}

fn heads(runs: &[Run]) -> Table {
    let columns = [
        ("head_dim", "head size d_k"),
        ("scaled", "scaled"),
        ("step", "step"),
        ("~relative_entropy", "entropy / ln(visible keys), mean over heads"),
        ("sharpest", "of the sharpest head of all trainings"),
        ("flattest", "of the flattest"),
        ("~saturated", "rows with a weight above 0.99, mean over heads"),
        ("least_saturated", "of the least saturated head"),
        ("most_saturated", "of the most saturated"),
    ];
    let caption = "Heads as the model learns: rows of validation windows that see more than one key";
    let mut table = rows::table("scale_training_heads", caption, &columns);
    for ((head_dim, scaled), runs) in by_kind(runs) {
        for (at, moment) in runs[0].result.moments.iter().enumerate() {
            let here: Vec<&Moment> = runs.iter().filter_map(|run| run.result.moments.get(at)).collect();
            let of = |f: fn(&HeadView) -> f64| {
                let means: Vec<f64> = here.iter().map(|moment| over_heads(moment, f)).collect();
                let all: Vec<f64> = here.iter().flat_map(|moment| moment.inside.heads.iter().map(f)).collect();
                let ends = [f64::INFINITY, f64::NEG_INFINITY];
                (means, all.iter().fold(ends, |[low, high], &x| [low.min(x), high.max(x)]).map(brief))
            };
            let ((entropy, ends), (saturated, others)) = (of(|h| h.relative_entropy), of(|h| h.saturated));
            let row = Row::default().of(head_dim).of(scaled).of(moment.step as usize).share(&entropy).all(ends);
            row.share(&saturated).all(others).put(&mut table);
        }
    }
    table
}

fn gradients(runs: &[Run]) -> Table {
    let columns = [
        ("head_dim", "head size d_k"),
        ("scaled", "scaled"),
        ("step", "step"),
        ("~query_gradient", "norm on the queries' weights"),
        ("~key_gradient", "on the keys' weights"),
        ("~value_gradient", "on the values' weights"),
    ];
    let caption = "Gradients of the validation loss on the projections of all blocks, means over trainings";
    let mut table = rows::table("scale_training_gradients", caption, &columns);
    for ((head_dim, scaled), runs) in by_kind(runs) {
        for (at, moment) in runs[0].result.moments.iter().enumerate() {
            let of = |f: fn(&LayerView) -> f64| -> Vec<f64> {
                runs.iter().filter_map(|run| run.result.moments.get(at)).map(|moment| norm(moment, f)).collect()
            };
            let row = Row::default().of(head_dim).of(scaled).of(moment.step as usize).mean(&of(|l| l.query_gradient));
            row.mean(&of(|l| l.key_gradient)).mean(&of(|l| l.value_gradient)).put(&mut table);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::trained_heads::tests::run as made;

    fn runs() -> Vec<Run> {
        let one = |seed, scale, validation| Run { seed, result: AblateRun { validation, ..made(scale) } };
        [(1, 2.0, 2.5), (2, 2.2, 2.6)]
            .into_iter()
            .flat_map(|(seed, with, without)| [one(seed, ScaleKind::InvSqrtDim, with), one(seed, ScaleKind::Off, without)])
            .collect()
    }

    #[test]
    fn every_number_of_a_training_stands_in_its_column() {
        let runs = runs();
        let table = outcome(&runs);
        let known = [
            ("head_dim", 64.0),
            ("seeds", 2.0),
            ("first_loss", 17.0),
            ("train_loss", 18.0),
            ("validation_loss", 2.1),
            ("first_entropy", 1.0),
            ("last_entropy", 1.0),
            ("first_saturated", 1.0),
            ("last_saturated", 1.0),
            ("first_query_gradient", 13.0),
            ("last_query_gradient", 1300.0),
            ("first_value_gradient", 15.0),
            ("last_value_gradient", 1500.0),
        ];
        for (column, value) in known {
            assert_eq!(table.number(&table.rows[0], column), value, "{column}");
        }
        let gradients = gradients(&runs);
        let columns = ["step", "query_gradient", "key_gradient", "value_gradient"];
        assert_eq!(columns.map(|c| gradients.number(&gradients.rows[1], c)), [8.0, 1300.0, 1400.0, 1500.0]);
        let heads = heads(&runs);
        let columns = ["step", "relative_entropy", "sharpest", "flattest", "saturated", "least_saturated", "most_saturated"];
        assert_eq!(columns.map(|c| heads.number(&heads.rows[1], c)), [8.0, 1.0, 400.0, 400.0, 1.0, 600.0, 600.0]);
        let seeds = each(&runs);
        assert_eq!(["seed", "validation_loss"].map(|c| seeds.number(&seeds.rows[3], c)), [2.0, 2.6]);
        assert_eq!(seeds.value(&seeds.rows[3], "scaled"), &false.into());
    }

    #[test]
    fn pairs_are_of_the_same_seed() {
        let table = paired(&runs(), Some(1.0));
        let got = ["seeds", "difference", "same_sign", "excess_with", "excess_without"].map(|c| table.number(&table.rows[0], c));
        for (got, known) in got.into_iter().zip([2.0, 0.45, 2.0, 1.1, 1.55]) {
            assert!((got - known).abs() < 1e-9, "{got} instead of {known}");
        }
        // The mean of 1.5 / 1 and 1.6 / 1.2.
        assert!((table.number(&table.rows[0], "excess_ratio") - 1.4167).abs() < 1e-4);
        assert!(paired(&runs(), None).number(&paired(&runs(), None).rows[0], "excess_with").is_nan());
    }
}
