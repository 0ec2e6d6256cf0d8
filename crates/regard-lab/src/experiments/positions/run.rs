//! Positional encodings: what a model without them cannot do.

use super::Positions as Experiment_;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, SeedsConfig, brief, check_steps};
use crate::rows::{self, Row};
use crate::statistics::estimate::Estimate;
use crate::trainings::pairs::{PairKind, PairsConfig, learn_pairs};
use clap::Args;
use regard_nn::config::ModelConfig;
use regard_nn::lm::LanguageModel;
use regard_nn::positions::Positions;
use regard_nn::random::Draws;
use regard_nn::stack::Keep;
use regard_nn::training::trainer::TrainConfig;
use regard_nn::{MaskKind, Pass};
use regard_plot::Table;
use serde::{Deserialize, Serialize};

/// Take positions away: shuffled input gives shuffled output, and words cannot be written backwards
///
/// Attention by itself sees a set, not a sequence. Two tests: the output of a model whose input is shuffled, and the task of writing
/// letters backwards, learnt without positions, with learned ones, with sinusoidal waves (embeddings multiplied by sqrt(width),
/// as in the original, and as they start) and with rotary angles. Writes positions.csv and
/// positions_seeds.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab positions --steps 2000 --seeds 3")]
pub struct PositionsConfig {
    /// Steps of each training
    #[arg(long, default_value_t = 600, value_name = "N")]
    pub steps: u64,
    /// Pairs in a step
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub batch: usize,
    /// Inputs, never trained on, that are tried at the end
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub held_out: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for PositionsConfig {
    fn default() -> Self {
        defaults()
    }
}

/// The kinds that are compared, as the table names them.
pub(super) const KINDS: [(&str, Positions); 5] = [
    ("none", Positions::None),
    ("learned", Positions::Learned),
    (SCALED, Positions::Sinusoidal),
    ("sinusoidal", Positions::Sinusoidal),
    ("rotary", Positions::Rotary(10_000.0)),
];

/// Sinusoidal positions as the original has them: embeddings multiplied by sqrt(width).
pub(super) const SCALED: &str = "sinusoidal, scaled";

fn model(kind: &str, positions: Positions) -> ModelConfig {
    let default = ModelConfig::default();
    let embedding_scale = (kind == SCALED).then(|| (default.width as f64).sqrt());
    ModelConfig { positions, embedding_scale, ..default }
}

/// One training, and how far a shuffled input moves the outputs.
#[derive(Serialize, Deserialize)]
struct Run {
    exact_match: f64,
    right: f64,
    train_loss: f64,
    moved: f64,
}

/// The largest change of an output when the tokens are shuffled and each output is compared with that of its own token, as a share of the
/// largest output: of an untrained model without a mask.
fn moved_by_shuffling(config: ModelConfig, seed: u64) -> Result<f64> {
    let (seq, vocab) = (16, 26);
    let model = LanguageModel::new(ModelConfig { vocab, context: seq, ..config })?;
    let p: Vec<f32> = model.layout().init(seed);
    let mut draws = Draws::at(seed, &[0x5A0F]);
    let ids: Vec<u32> = (0..seq).map(|_| draws.below(vocab) as u32).collect();
    let mut order: Vec<usize> = (0..seq).collect();
    draws.shuffle(&mut order);
    let logits = |ids: &[u32]| -> Result<Vec<f32>> {
        let mut pass = model.plan(1, seq, Keep::Discard);
        model.forward(&model.weights(&p), ids, &Pass::new(1, seq, MaskKind::Everything), &mut pass)?;
        Ok(pass.logits().to_vec())
    };
    let (plain, shuffled) = (logits(&ids)?, logits(&order.iter().map(|&i| ids[i]).collect::<Vec<_>>())?);
    let largest = plain.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
    let apart = order.iter().enumerate().flat_map(|(to, &from)| (0..vocab).map(move |c| (to * vocab + c, from * vocab + c)));
    let moved = apart.map(|(a, b)| (shuffled[a] - plain[b]).abs()).fold(0.0, |m: f32, x| if x > m || x.is_nan() { x } else { m });
    Ok(f64::from(moved / largest))
}

impl PositionsConfig {
    /// `positions`, one row per kind; `positions_seeds`, every training.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_steps(self.steps)?;
        self.seeds.check()?;
        require((1..=4096).contains(&self.batch), "batch", self.batch, "from 1 to 4096 pairs")?;
        require((1..=100_000).contains(&self.held_out), "held_out", self.held_out, "from 1 to 100000")?;
        let jobs = self.seeds.jobs(&KINDS, self.steps, |(name, _)| name.to_owned());
        let results = Jobs::new(progress, Experiment_::ID, self, "").run(&jobs, |&((kind, positions), seed), watch| {
            let model = model(kind, positions);
            let moved = moved_by_shuffling(model.clone(), seed)?;
            let train = TrainConfig { steps: self.steps, batch: self.batch, seed, ..TrainConfig::default() };
            let config = PairsConfig { kind: PairKind::Reverse, model, train, held_out: self.held_out, curve_every: self.steps };
            let learnt = learn_pairs(&config, watch)?;
            let train_loss = learnt.curve.last().map_or(f64::NAN, |point| point.loss);
            Ok(Run { exact_match: learnt.exact_match, right: learnt.explained.right, train_loss, moved })
        })?;
        let runs: Vec<(&str, u64, Run)> = jobs.iter().zip(results).map(|(job, run)| (job.what.0.0, job.what.1, run)).collect();
        let numbers = "letters drawn by Regard, from the seed and the step";
        Ok(signed(vec![outcome(&runs, self.held_out), each(&runs)], &origin::<Experiment_>(self, self.seeds.seed, numbers)?))
    }
}

fn outcome(runs: &[(&str, u64, Run)], held_out: usize) -> Table {
    let columns = [
        ("positions", "positions"),
        ("seeds", "trainings"),
        ("held_out", "held-out inputs"),
        ("~moved", "change of the outputs when the input is shuffled"),
        ("~exact_match", "written backwards without a mistake"),
        ("~right", "letters right, teacher-forced"),
    ];
    let caption = "Letters written backwards, and what shuffling the input does to an untrained model";
    let mut table = rows::table("positions", caption, &columns);
    for (kind, _) in KINDS {
        let of = |f: fn(&Run) -> f64| -> Vec<f64> { runs.iter().filter(|run| run.0 == kind).map(|run| f(&run.2)).collect() };
        let exact = of(|r| r.exact_match);
        let row = Row::default().of(kind).of(exact.len()).of(held_out).mean(&of(|r| r.moved));
        // Trainings that all come to the same share still tried a limited number of inputs.
        let share = if exact.iter().all(|x| *x == exact[0]) {
            let tried = held_out * exact.len();
            Estimate::of_share((exact[0] * tried as f64).round() as usize, tried)
        } else {
            Estimate::of_mean(&exact).map(|x| x.clamp(0.0, 1.0))
        };
        row.estimate(share).share(&of(|r| r.right)).put(&mut table);
    }
    table
}

fn each(runs: &[(&str, u64, Run)]) -> Table {
    let columns = [
        ("positions", "positions"),
        ("seed", "seed"),
        ("moved", "change when shuffled"),
        ("exact_match", "without a mistake"),
        ("right", "letters right"),
        ("train_loss", "training loss, mean over the training"),
    ];
    let mut table = Table::new("positions_seeds", "Every training by itself", &columns);
    for (kind, seed, r) in runs {
        Row::default().of(*kind).of(*seed as usize).all([r.moved, r.exact_match, r.right, r.train_loss].map(brief)).put(&mut table);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_model_without_positions_sees_a_set() {
        for (name, kind) in KINDS {
            let moved = moved_by_shuffling(model(name, kind), 3).unwrap();
            assert_eq!(moved < 1e-5, name == "none", "{name}: {moved}");
        }
    }
}
