//! Do heads come to differ? Their statistics and their likeness while a language model learns.

use super::TrainedHeads;
use crate::error::{Result, require};
use crate::experiment::{Progress, defaults, origin, signed};
use crate::learning::{LearningConfig, Relay, brief, every};
use clap::Args;
use regard_nn::experiments::ablate_scale::{AblateConfig, AblateRun, trained_heads};
use regard_nn::train::TrainConfig;
use regard_plot::Table;
use serde::Serialize;

/// What heads look at, and how alike they are, while a language model learns
///
/// For every head over time: entropy, largest weight, and how much it looks at itself, the token before and the first token. For every block: how
/// alike its heads are, by centred cosine and Jensen-Shannon divergence. (`regard heads` asks the same of untrained heads.)
/// Writes trained_heads.csv and trained_heads_likeness.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Examples:\n  regard trained-heads\n  regard trained-heads --heads 8 --layers 4 --steps 3000 --text book.txt")]
pub struct TrainedHeadsConfig {
    /// Steps of training
    #[arg(long, default_value_t = TrainConfig::default().steps, value_name = "N")]
    pub steps: u64,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Validation windows that heads are looked at with
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub windows: usize,
    /// Of first values and windows
    #[arg(long, default_value_t = TrainConfig::default().seed)]
    pub seed: u64,
}

impl Default for TrainedHeadsConfig {
    fn default() -> Self {
        defaults()
    }
}

impl TrainedHeadsConfig {
    /// `trained_heads`, every head over time; `trained_heads_likeness`, every block over time.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        let learning = &self.learning;
        learning.check(self.steps, self.windows)?;
        require(learning.heads > 1, "heads", learning.heads, "at least 2, to be compared")?;
        let (text, vocab, described) = learning.tokens()?;
        let model = learning.model(vocab);
        let config = AblateConfig {
            model: model.clone(),
            train: learning.train(self.steps, self.seed),
            head_dims: Vec::new(),
            every: every(self.steps, 20),
            windows: self.windows,
        };
        let mut relay = Relay::new(progress);
        let run = trained_heads(&config, model, &text, &mut |now| relay.watch(now))?;
        Ok(signed(vec![heads(&run), likeness(&run)], &origin::<TrainedHeads>(self, self.seed, &described)?))
    }
}

fn heads(run: &AblateRun) -> Table {
    let columns = [
        ("step", "step"),
        ("block", "block"),
        ("head", "head"),
        ("entropy", "entropy (nats)"),
        ("relative_entropy", "entropy / ln(visible keys)"),
        ("max_weight", "largest weight"),
        ("diagonal_mass", "weight of the token itself"),
        ("previous_token_mass", "of the token before"),
        ("first_token_mass", "of the first token"),
        ("mean_distance", "mean distance looked (tokens)"),
    ];
    let caption = "Every head as the model learns: means over the rows of validation windows that see more than one key";
    let mut table = Table::new("trained_heads", caption, &columns);
    for moment in &run.moments {
        for h in &moment.inside.heads {
            let numbers =
                [h.entropy, h.relative_entropy, h.max_weight, h.diagonal_mass, h.previous_token_mass, h.first_token_mass, h.mean_distance];
            let place = [(moment.step as usize).into(), h.layer.into(), h.head.into()];
            table.push(place.into_iter().chain(numbers.map(brief)).collect());
        }
    }
    table
}

fn likeness(run: &AblateRun) -> Table {
    let columns = [
        ("step", "step"),
        ("block", "block"),
        ("loss", "validation loss"),
        ("centred_cosine", "centred cosine, mean over pairs of heads"),
        ("jensen_shannon", "Jensen-Shannon divergence (nats)"),
    ];
    let caption = "How alike the heads of a block are as the model learns: 1 and 0 alike, 0 and ln 2 = 0.693 as different as can be";
    let mut table = Table::new("trained_heads_likeness", caption, &columns);
    for moment in &run.moments {
        for layer in &moment.inside.layers {
            table.push(vec![
                (moment.step as usize).into(),
                layer.layer.into(),
                brief(moment.inside.loss),
                brief(layer.centred_cosine),
                brief(layer.jensen_shannon),
            ]);
        }
    }
    table
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use regard_nn::attention::ScaleKind;
    use regard_nn::experiments::CurvePoint;
    use regard_nn::experiments::ablate_scale::Moment;
    use regard_nn::experiments::inside::{HeadView, Inside, LayerView};

    /// A training of which no two numbers are the same: those of step 8 are 100 times those of step 0.
    pub(in crate::experiments) fn run(scale: ScaleKind) -> AblateRun {
        let moment = |step: u64, x: f64| {
            let head = HeadView {
                layer: 1,
                head: 2,
                entropy: 3.0 * x,
                relative_entropy: 4.0 * x,
                max_weight: 5.0 * x,
                saturated: 6.0 * x,
                diagonal_mass: 7.0 * x,
                previous_token_mass: 8.0 * x,
                first_token_mass: 9.0 * x,
                mean_distance: 10.0 * x,
            };
            let layer = LayerView {
                layer: 1,
                centred_cosine: 11.0 * x,
                jensen_shannon: 12.0 * x,
                query_gradient: 13.0 * x,
                key_gradient: 14.0 * x,
                value_gradient: 15.0 * x,
            };
            Moment { step, inside: Inside { loss: 16.0 * x, heads: vec![head], layers: vec![layer] } }
        };
        let curve = vec![CurvePoint { step: 1, loss: 17.0 }, CurvePoint { step: 8, loss: 18.0 }];
        AblateRun { head_dim: 64, scale, curve, validation: 19.0, moments: vec![moment(0, 1.0), moment(8, 100.0)] }
    }

    /// Every column of one row.
    pub(in crate::experiments) fn check(table: &Table, row: usize, known: &[(&str, f64)]) {
        let names: Vec<&str> = table.columns.iter().map(|c| c.name.as_str()).filter(|name| *name != "scaled").collect();
        assert_eq!(names, known.iter().map(|(name, _)| *name).collect::<Vec<_>>(), "{}", table.name);
        for (column, value) in known {
            assert_eq!(table.number(&table.rows[row], column), *value, "{} of {}", column, table.name);
        }
    }

    #[test]
    fn every_number_of_a_head_stands_in_its_column() {
        let run = run(ScaleKind::InvSqrtDim);
        let known = [
            ("step", 8.0),
            ("block", 1.0),
            ("head", 2.0),
            ("entropy", 300.0),
            ("relative_entropy", 400.0),
            ("max_weight", 500.0),
            ("diagonal_mass", 700.0),
            ("previous_token_mass", 800.0),
            ("first_token_mass", 900.0),
            ("mean_distance", 1000.0),
        ];
        check(&heads(&run), 1, &known);
        let known = [("step", 0.0), ("block", 1.0), ("loss", 16.0), ("centred_cosine", 11.0), ("jensen_shannon", 12.0)];
        check(&likeness(&run), 0, &known);
    }
}
