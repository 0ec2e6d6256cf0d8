//! The same language model with and without 1/sqrt(d_k), at several head sizes: what becomes of loss, heads and gradients as it learns.

use super::ScaleTraining;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin, signed};
use crate::learning::{LearningConfig, Relay, brief, every};
use crate::options::check_list;
use crate::options::sizes;
use clap::Args;
use regard_nn::attention::ScaleKind;
use regard_nn::experiments::ablate_scale::{AblateConfig, AblateRun, Moment, ablate_scale};
use regard_nn::train::TrainConfig;
use regard_plot::Table;
use serde::Serialize;

/// Train the same language model with and without 1/sqrt(d_k), at several head sizes
///
/// Loss curves, entropy and saturation of every head over time, and the norms of the gradients on queries, keys and values: what the scale does for
/// a model that learns, and what learning makes up for without it. Writes scale_training.csv and three tables that it rests on.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(
    after_help = "Examples:\n  regard scale-training                              head sizes 4, 16, 64, 256\n  regard scale-training --head-dims 16,512 --steps 300"
)]
pub struct ScaleTrainingConfig {
    /// Widths of a head
    #[arg(long, value_parser = sizes, default_value = "4,16,64,256", value_name = "LIST")]
    pub head_dims: ::std::vec::Vec<usize>,
    /// Steps of each of the trainings (two per width: half as many as elsewhere, by when the loss falls slowly)
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub steps: u64,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Validation windows that heads and gradients are looked at with
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub windows: usize,
    /// Of first values and windows
    #[arg(long, default_value_t = TrainConfig::default().seed)]
    pub seed: u64,
}

impl Default for ScaleTrainingConfig {
    fn default() -> Self {
        defaults()
    }
}

impl ScaleTrainingConfig {
    fn check(&self) -> Result<()> {
        self.learning.check(self.steps, self.windows)?;
        check_list("head_dims", &self.head_dims, "4,16,64,256")?;
        self.head_dims.iter().try_for_each(|&d| require((1..=1024).contains(&d), "head_dims", d, "from 1 to 1024"))
    }

    /// `scale_training`, one row per training; `scale_training_curves`; `scale_training_heads`, every head over time;
    /// `scale_training_gradients`, every block over time.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let learning = &self.learning;
        let (text, vocab, described) = learning.tokens()?;
        let config = AblateConfig {
            model: learning.model(vocab),
            train: learning.train(self.steps, self.seed),
            head_dims: self.head_dims.clone(),
            every: every(self.steps, 10),
            windows: self.windows,
        };
        let mut relay = Relay::new(progress);
        let runs = ablate_scale(&config, &text, &mut |now| relay.watch(now))?;
        Ok(signed(
            vec![outcome(&runs), curves(&runs), heads(&runs), gradients(&runs)],
            &origin::<ScaleTraining>(self, self.seed, &described)?,
        ))
    }
}

fn scaled(run: &AblateRun) -> bool {
    run.scale != ScaleKind::Off
}

/// Mean over the heads of a moment.
fn over_heads(moment: &Moment, f: impl Fn(&regard_nn::experiments::inside::HeadView) -> f64) -> f64 {
    let heads = &moment.inside.heads;
    heads.iter().map(f).sum::<f64>() / heads.len().max(1) as f64
}

fn outcome(runs: &[AblateRun]) -> Table {
    let columns = [
        ("head_dim", "head size d_k"),
        ("scaled", "scaled"),
        ("train_loss", "training loss"),
        ("validation_loss", "validation loss"),
        ("first_entropy", "relative entropy before training"),
        ("last_entropy", "after"),
        ("first_saturated", "saturated rows before training"),
        ("last_saturated", "after"),
        ("first_query_gradient", "gradient on the queries' weights before training"),
        ("last_query_gradient", "after"),
        ("first_value_gradient", "gradient on the values' weights before training"),
        ("last_value_gradient", "after"),
    ];
    let caption =
        "The same model and text with and without the scale: losses in nats per token; heads and gradients before and after training";
    let mut table = Table::new("scale_training", caption, &columns);
    for run in runs {
        let (Some(first), Some(last)) = (run.moments.first(), run.moments.last()) else { continue };
        let norm = |moment: &Moment, f: fn(&regard_nn::experiments::inside::LayerView) -> f64| {
            moment.inside.layers.iter().map(|layer| f(layer).powi(2)).sum::<f64>().sqrt()
        };
        table.push(vec![
            run.head_dim.into(),
            scaled(run).into(),
            run.curve.last().map(|point| point.loss).into(),
            run.validation.into(),
            over_heads(first, |h| h.relative_entropy).into(),
            over_heads(last, |h| h.relative_entropy).into(),
            over_heads(first, |h| h.saturated).into(),
            over_heads(last, |h| h.saturated).into(),
            norm(first, |l| l.query_gradient).into(),
            norm(last, |l| l.query_gradient).into(),
            norm(first, |l| l.value_gradient).into(),
            norm(last, |l| l.value_gradient).into(),
        ]);
    }
    table
}

fn curves(runs: &[AblateRun]) -> Table {
    let columns = [("head_dim", "head size d_k"), ("scaled", "scaled"), ("step", "step"), ("loss", "training loss (nats per token)")];
    let mut table = Table::new("scale_training_curves", "Training loss, the mean since the point before", &columns);
    for run in runs {
        for point in &run.curve {
            table.push(vec![run.head_dim.into(), scaled(run).into(), (point.step as usize).into(), brief(point.loss)]);
        }
    }
    table
}

fn heads(runs: &[AblateRun]) -> Table {
    let columns = [
        ("head_dim", "head size d_k"),
        ("scaled", "scaled"),
        ("step", "step"),
        ("block", "block"),
        ("head", "head"),
        ("relative_entropy", "entropy / ln(visible keys)"),
        ("max_weight", "largest weight"),
        ("saturated", "rows with a weight above 0.99"),
    ];
    let caption = "Every head as it learns: means over the rows of validation windows that see more than one key";
    let mut table = Table::new("scale_training_heads", caption, &columns);
    for run in runs {
        for moment in &run.moments {
            for h in &moment.inside.heads {
                table.push(vec![
                    run.head_dim.into(),
                    scaled(run).into(),
                    (moment.step as usize).into(),
                    h.layer.into(),
                    h.head.into(),
                    brief(h.relative_entropy),
                    brief(h.max_weight),
                    brief(h.saturated),
                ]);
            }
        }
    }
    table
}

fn gradients(runs: &[AblateRun]) -> Table {
    let columns = [
        ("head_dim", "head size d_k"),
        ("scaled", "scaled"),
        ("step", "step"),
        ("block", "block"),
        ("query_gradient", "norm on the queries' weights"),
        ("key_gradient", "on the keys' weights"),
        ("value_gradient", "on the values' weights"),
    ];
    let mut table = Table::new("scale_training_gradients", "Gradients of the validation loss on the projections of each block", &columns);
    for run in runs {
        for moment in &run.moments {
            for l in &moment.inside.layers {
                table.push(vec![
                    run.head_dim.into(),
                    scaled(run).into(),
                    (moment.step as usize).into(),
                    l.layer.into(),
                    brief(l.query_gradient),
                    brief(l.key_gradient),
                    brief(l.value_gradient),
                ]);
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::trained_heads::tests::{check, run};
    use regard_plot::Value;

    #[test]
    fn every_number_of_a_training_stands_in_its_column() {
        let runs = [run(ScaleKind::InvSqrtDim), run(ScaleKind::Off)];
        let table = outcome(&runs);
        let known = [
            ("head_dim", 64.0),
            ("train_loss", 18.0),
            ("validation_loss", 19.0),
            ("first_entropy", 4.0),
            ("last_entropy", 400.0),
            ("first_saturated", 6.0),
            ("last_saturated", 600.0),
            ("first_query_gradient", 13.0),
            ("last_query_gradient", 1300.0),
            ("first_value_gradient", 15.0),
            ("last_value_gradient", 1500.0),
        ];
        check(&table, 0, &known);
        check(&curves(&runs), 1, &[("head_dim", 64.0), ("step", 8.0), ("loss", 18.0)]);
        let known = [("head_dim", 64.0), ("step", 8.0), ("block", 1.0), ("head", 2.0)];
        check(&heads(&runs), 1, &[&known[..], &[("relative_entropy", 400.0), ("max_weight", 500.0), ("saturated", 600.0)]].concat());
        let numbers = [("query_gradient", 1300.0), ("key_gradient", 1400.0), ("value_gradient", 1500.0)];
        check(&gradients(&runs), 1, &[&known[..3], &numbers].concat());
        for table in [table, curves(&runs), heads(&runs), gradients(&runs)] {
            let scaled = |row: Option<&Vec<Value>>| row.map(|row| table.value(row, "scaled").clone());
            assert_eq!((scaled(table.rows.first()), scaled(table.rows.last())), (Some(true.into()), Some(false.into())), "{}", table.name);
        }
    }
}
