//! Trainings of four mixers on two tasks.

use super::Focus;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, SeedsConfig, brief, check_steps};
use crate::recall::mixers::{MixerKind, SEPARATE};
use crate::recall::{Model, TRAINED, Task, Tests, Trained, train};
use crate::rows::{self, Row};
use clap::Args;
use regard_plot::Table;
use serde::Serialize;

/// Convolution, GRU, attention and local attention with the same number of parameters: recall and copying at a distance
///
/// Recall: pairs of key and value, then a key; the answer is its value. Copy: symbols, one of them marked; the answer is the marked one.
/// Trained with 4 to 16 positions, tested with 16, 32 and 64. Writes focus.csv, focus_distance.csv, focus_curves.csv and
/// focus_seeds.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab focus --steps 5000 --seeds 3")]
pub struct FocusConfig {
    /// Steps of each training
    #[arg(long, default_value_t = 1500, value_name = "N")]
    pub steps: u64,
    /// Examples of each test
    #[arg(long, default_value_t = 1000, value_name = "N")]
    pub examples: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for FocusConfig {
    fn default() -> Self {
        defaults()
    }
}

/// Positions before the question that local attention sees.
pub(super) const WINDOW: usize = 8;
pub(super) const MODELS: [(&str, MixerKind); 4] = [
    ("convolution", MixerKind::Convolution),
    ("GRU", MixerKind::Gru),
    ("attention", MixerKind::Attention { roles: SEPARATE, window: None }),
    ("local attention", MixerKind::Attention { roles: SEPARATE, window: Some(WINDOW) }),
];
pub(super) const TASKS: [Task; 2] = [Task::Recall, Task::Copy];
pub(super) const RUNS: usize = MODELS.len() * TASKS.len();
/// The length of training, and longer ones.
pub(super) const LENGTHS: [usize; 3] = [TRAINED, 2 * TRAINED, 4 * TRAINED];

/// A training with its model, task and seed.
type NamedRun = (&'static str, Task, u64, Trained);

impl FocusConfig {
    /// `focus`, right answers by length; `focus_distance`, by the distance of the answer; `focus_curves`, losses and gradient norms;
    /// `focus_seeds`, every training.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_steps(self.steps)?;
        self.seeds.check()?;
        require((4..=100_000).contains(&self.examples), "examples", self.examples, "from 4 to 100000")?;
        let kinds: Vec<(&'static str, MixerKind, Task)> =
            TASKS.iter().flat_map(|&task| MODELS.map(|(name, kind)| (name, kind, task))).collect();
        let jobs = self.seeds.jobs(&kinds, self.steps, |(name, _, task)| format!("{name}, {}", task.name()));
        let results = Jobs::new(progress, Focus::ID, self, "").run(&jobs, |&((_, kind, task), seed), watch| {
            train(kind, task, self.steps, seed, &Tests { lengths: &LENGTHS, swapped: &[], examples: self.examples }, watch)
        })?;
        let runs: Vec<NamedRun> = jobs.iter().zip(results).map(|(job, run)| (job.what.0.0, job.what.0.2, job.what.1, run)).collect();
        let tables = vec![by_length(&runs), by_distance(&runs), curves(&runs), each(&runs)];
        Ok(signed(tables, &origin::<Focus>(self, self.seeds.seed, "symbols drawn by Regard, from the seed and the step")?))
    }
}

/// The trainings of a model and a task.
fn of<'r>(runs: &'r [NamedRun], name: &str, task: Task) -> Vec<&'r Trained> {
    runs.iter().filter(|run| run.0 == name && run.1 == task).map(|run| &run.3).collect()
}

fn by_length(runs: &[NamedRun]) -> Table {
    let columns = [
        ("task", "task"),
        ("model", "model"),
        ("parameters", "parameters of the mixer"),
        ("length", "positions before the question"),
        ("seeds", "trainings"),
        ("~right", "share of right answers"),
    ];
    let caption = "Right answers after training with 4 to 16 positions; chance is 1/16";
    let mut table = rows::table("focus", caption, &columns);
    for task in TASKS {
        for (name, kind) in MODELS {
            let runs = of(runs, name, task);
            for (at, length) in LENGTHS.into_iter().enumerate() {
                let right: Vec<f64> = runs.iter().map(|run| run.lengths[at]).collect();
                let row = Row::default().of(task.name()).of(name).of(Model::new(kind).parameters).of(length);
                row.of(runs.len()).share(&right).put(&mut table);
            }
        }
    }
    table
}

fn by_distance(runs: &[NamedRun]) -> Table {
    let columns =
        [("task", "task"), ("model", "model"), ("distance", "distance of the answer"), ("seeds", "trainings"), ("~right", "right answers")];
    let caption = "Right answers among 16 positions, by the distance of the answer from the question; local attention sees 8 positions";
    let mut table = rows::table("focus_distance", caption, &columns);
    for task in TASKS {
        for (name, _) in MODELS {
            let runs = of(runs, name, task);
            for distance in 1..=TRAINED {
                let right: Vec<f64> = runs.iter().map(|run| run.distances[distance - 1]).collect();
                Row::default().of(task.name()).of(name).of(distance).of(runs.len()).share(&right).put(&mut table);
            }
        }
    }
    table
}

fn curves(runs: &[NamedRun]) -> Table {
    let columns = [
        ("task", "task"),
        ("model", "model"),
        ("step", "step"),
        ("seeds", "trainings"),
        ("~loss", "training loss (nats)"),
        ("~gradient", "norm of the gradient"),
    ];
    let mut table = rows::table("focus_curves", "Loss and gradient norm over the training, means over trainings", &columns);
    for task in TASKS {
        for (name, _) in MODELS {
            let runs = of(runs, name, task);
            let points = runs.first().map_or(0, |run| run.curve.len());
            for at in 0..points {
                let row = Row::default().of(task.name()).of(name).of(runs[0].curve[at].step as usize).of(runs.len());
                let row = row.mean(&runs.iter().map(|run| run.curve[at].loss).collect::<Vec<_>>());
                row.mean(&runs.iter().map(|run| run.curve[at].gradient).collect::<Vec<_>>()).put(&mut table);
            }
        }
    }
    table
}

fn each(runs: &[NamedRun]) -> Table {
    let mut columns = vec![("task", "task"), ("model", "model"), ("seed", "seed")];
    columns.extend([("right_16", "right at 16"), ("right_32", "right at 32"), ("right_64", "right at 64"), ("loss", "last training loss")]);
    let mut table = Table::new("focus_seeds", "Every training by itself", &columns);
    for (name, task, seed, run) in runs {
        let loss = run.curve.last().map_or(f64::NAN, |point| point.loss);
        let row = Row::default().of(task.name()).of(*name).of(*seed as usize);
        row.all(run.lengths.iter().copied().chain([loss]).map(brief)).put(&mut table);
    }
    table
}
