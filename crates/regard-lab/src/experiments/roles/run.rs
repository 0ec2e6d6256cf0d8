//! Attention with shared projections, and with its trained projections exchanged.

use super::Roles;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, SeedsConfig, brief, check_steps};
use crate::recall::mixers::{self, MixerKind, SEPARATE};
use crate::recall::{Model, TRAINED, Task, Tests, Trained, train};
use crate::rows::{self, Row};
use clap::Args;
use regard_plot::Table;
use serde::Serialize;

/// Queries, keys and values: share their projections in training, or exchange them after it
///
/// Recall: pairs of key and value, then a key; the answer is its value, or the value of the next key. Writes roles.csv and
/// roles_seeds.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab roles --steps 5000 --seeds 3")]
pub struct RolesConfig {
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

impl Default for RolesConfig {
    fn default() -> Self {
        defaults()
    }
}

pub(super) const TASKS: [Task; 2] = [Task::Recall, Task::Next];
/// Variants that are trained.
const TRAINED_WITH: [(&str, mixers::Roles); 4] =
    [("three projections", SEPARATE), ("Q = K", [0, 0, 2]), ("K = V", [0, 1, 1]), ("Q = K = V", [0, 0, 0])];
/// Exchanges of the trained projections of the first variant.
const EXCHANGED: [(&str, mixers::Roles); 3] =
    [("Q and K exchanged", [1, 0, 2]), ("K and V exchanged", [0, 2, 1]), ("Q and V exchanged", [2, 1, 0])];
pub(super) const RUNS: usize = TASKS.len() * TRAINED_WITH.len();

/// A training with its variant, task and seed.
type NamedRun = (&'static str, Task, u64, Trained);

impl RolesConfig {
    /// `roles`, right answers by variant and task; `roles_seeds`, every training.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        check_steps(self.steps)?;
        self.seeds.check()?;
        require((4..=100_000).contains(&self.examples), "examples", self.examples, "from 4 to 100000")?;
        let kinds: Vec<(&'static str, mixers::Roles, Task)> =
            TASKS.iter().flat_map(|&task| TRAINED_WITH.map(|(name, roles)| (name, roles, task))).collect();
        let jobs = self.seeds.jobs(&kinds, self.steps, |(name, _, task)| format!("{name}, {}", task.name()));
        let exchanged = EXCHANGED.map(|(_, roles)| roles);
        let results = Jobs::new(progress, Roles::ID, self, "").run(&jobs, |&((_, roles, task), seed), watch| {
            let swapped: &[mixers::Roles] = if roles == SEPARATE { &exchanged } else { &[] };
            let tests = Tests { lengths: &[TRAINED], swapped, examples: self.examples };
            train(MixerKind::Attention { roles, window: None }, task, self.steps, seed, &tests, watch)
        })?;
        let runs: Vec<NamedRun> = jobs.iter().zip(results).map(|(job, run)| (job.what.0.0, job.what.0.2, job.what.1, run)).collect();
        let numbers = "symbols drawn by Regard, from the seed and the step";
        Ok(signed(vec![outcome(&runs), each(&runs)], &origin::<Roles>(self, self.seeds.seed, numbers)?))
    }
}

fn outcome(runs: &[NamedRun]) -> Table {
    let columns = [
        ("task", "task"),
        ("variant", "projections"),
        ("parameters", "parameters of attention"),
        ("seeds", "trainings"),
        ("~right", "share of right answers"),
    ];
    let caption = "Right answers among 16 pairs; chance is 1/16";
    let mut table = rows::table("roles", caption, &columns);
    for task in TASKS {
        let of = |name: &str, right: &dyn Fn(&Trained) -> f64| -> Vec<f64> {
            runs.iter().filter(|run| run.0 == name && run.1 == task).map(|run| right(&run.3)).collect()
        };
        let mut put = |name: &str, roles: mixers::Roles, right: Vec<f64>| {
            let parameters = Model::new(MixerKind::Attention { roles, window: None }).parameters;
            Row::default().of(task.name()).of(name).of(parameters).of(right.len()).share(&right).put(&mut table);
        };
        for (name, roles) in TRAINED_WITH {
            put(name, roles, of(name, &|run| run.lengths[0]));
        }
        for (at, (name, roles)) in EXCHANGED.into_iter().enumerate() {
            put(name, roles, of(TRAINED_WITH[0].0, &|run| run.swapped[at]));
        }
    }
    table
}

fn each(runs: &[NamedRun]) -> Table {
    let columns = [("task", "task"), ("variant", "projections"), ("seed", "seed"), ("right", "right"), ("loss", "last training loss")];
    let mut table = Table::new("roles_seeds", "Every training by itself", &columns);
    for (name, task, seed, run) in runs {
        let loss = run.curve.last().map_or(f64::NAN, |point| point.loss);
        Row::default().of(task.name()).of(*name).of(*seed as usize).all([run.lengths[0], loss].map(brief)).put(&mut table);
    }
    table
}
