//! Tasks that need cross-attention: an encoder-decoder reads a sequence and writes another one.

use super::Pairs;
use crate::error::{Error, Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, SeedsConfig, brief, check_steps, training_bytes};
use crate::memory;
use crate::options::named;
use crate::rows::{self, Row};
use crate::statistics::estimate::Estimate;
use crate::trainings::explain::CrossHead;
use crate::trainings::pairs::{PairKind, PairsConfig, PairsResult, learn_pairs};
use clap::Args;
use regard_nn::config::ModelConfig;
use regard_nn::training::trainer::TrainConfig;
use regard_plot::Table;
use serde::{Serialize, Serializer};

pub use crate::trainings::pairs::PairKind as PairTask;

/// Learn tasks that need cross-attention: words backwards, numbers in words
///
/// An encoder-decoder reads one sequence and writes another, and is tried on inputs that it was never trained on. Do the weights of its
/// cross-attention explain what it does? They are put beside what the answer depends on: read tokens are exchanged, heads taken away,
/// weights shuffled, and weighted by what they add. Writes pairs_results.csv and six tables that it rests on.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Examples:\n  regard lab pairs                        both tasks\n  \
         regard lab pairs --task reverse         one of them\n  regard lab pairs --task number-words --steps 500 --held-out 5000")]
pub struct PairTasksConfig {
    /// reverse, number-words, or both
    #[arg(long, value_parser = tasks, default_value = "both", value_name = "LIST")]
    #[serde(serialize_with = "task_names")]
    pub task: ::std::vec::Vec<PairTask>,
    /// Steps of training
    #[arg(long, default_value_t = 1200, value_name = "N")]
    pub steps: u64,
    /// Pairs in a step
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub batch: usize,
    /// Width of the model
    #[arg(long, default_value_t = known().model.width, value_name = "N")]
    pub width: usize,
    /// Heads of each block
    #[arg(long, default_value_t = known().model.heads, value_name = "N")]
    pub heads: usize,
    /// Blocks on each side
    #[arg(long, default_value_t = known().model.layers, value_name = "N")]
    pub layers: usize,
    /// Inputs, never trained on, that are tried at the end
    #[arg(long, default_value_t = known().held_out, value_name = "N")]
    pub held_out: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for PairTasksConfig {
    fn default() -> Self {
        defaults()
    }
}

/// The defaults of the task itself.
fn known() -> PairsConfig {
    PairsConfig::new(PairKind::Reverse)
}

fn tasks(text: &str) -> std::result::Result<Vec<PairTask>, String> {
    let text = if text == "both" { "reverse,number-words" } else { text };
    named(text, "task", &[PairKind::Reverse, PairKind::NumberWords], |task| task_name(task).to_owned())
}

fn task_names<S: Serializer>(tasks: &[PairTask], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(tasks.iter().map(|&task| task_name(task)))
}

/// The name of a task, on a command line and in tables.
pub const fn task_name(task: PairTask) -> &'static str {
    match task {
        PairKind::Reverse => "reverse",
        PairKind::NumberWords => "number-words",
    }
}

impl PairTasksConfig {
    fn check(&self) -> Result<()> {
        check_steps(self.steps)?;
        self.seeds.check()?;
        require((1..=4096).contains(&self.batch), "batch", self.batch, "from 1 to 4096 pairs")?;
        require((1..=1024).contains(&self.width), "width", self.width, "from 1 to 1024")?;
        require((1..=64).contains(&self.heads), "heads", self.heads, "from 1 to 64")?;
        require((1..=32).contains(&self.layers), "layers", self.layers, "from 1 to 32")?;
        require((1..=100_000).contains(&self.held_out), "held_out", self.held_out, "from 1 to 100000")?;
        if self.task.is_empty() {
            return Err(Error::EmptyList { name: "task", example: "reverse,number-words" });
        }
        let longest = self.task.iter().map(|task| task.context()).max().unwrap_or(1);
        memory::check("one step of this training", training_bytes(self.batch * longest, self.width, 2 * self.layers))
    }

    /// `pairs_results`, one row per task; `pairs_heads`, head by head; `pairs_curves`; `pairs_examples`, `pairs_tokens`, `pairs_maps` and
    /// `pairs_influence`, what the first seed made of some inputs.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let jobs = self.seeds.jobs(&self.task, self.steps, |kind| task_name(kind).to_owned());
        let results = Jobs::new(progress, Pairs::ID, self, "").run(&jobs, |&(kind, seed), watch| {
            let model = ModelConfig { width: self.width, heads: self.heads, layers: self.layers, ..ModelConfig::default() };
            let train = TrainConfig { steps: self.steps, batch: self.batch, seed, ..TrainConfig::default() };
            let config = PairsConfig { kind, model, train, held_out: self.held_out, curve_every: (self.steps / 30).max(1) };
            Ok(learn_pairs(&config, watch)?)
        })?;
        let runs: Vec<Run> = jobs.iter().zip(results).map(|(job, result)| Run { kind: job.what.0, seed: job.what.1, result }).collect();
        let mut tables = vec![outcome(&runs, self.steps), heads(&runs), curves(&runs)];
        tables.extend(self.task.iter().filter_map(|kind| runs.iter().find(|run| run.kind == *kind)).fold(empty(), first));
        Ok(signed(tables, &origin::<Pairs>(self, self.seeds.seed, "pairs drawn by Regard, from the seed and the step")?))
    }
}

/// One training.
struct Run {
    kind: PairKind,
    seed: u64,
    result: PairsResult,
}

/// Tasks in order, each with its trainings.
fn by_task(runs: &[Run]) -> Vec<(&'static str, Vec<&Run>)> {
    let mut all: Vec<(&'static str, Vec<&Run>)> = Vec::new();
    for run in runs {
        match all.iter_mut().find(|(task, _)| *task == task_name(run.kind)) {
            Some((_, runs)) => runs.push(run),
            None => all.push((task_name(run.kind), vec![run])),
        }
    }
    all
}

/// The head that has most of it.
fn most(result: &PairsResult, f: fn(&CrossHead) -> f64) -> f64 {
    result.explained.heads.iter().map(f).fold(0.0, f64::max)
}

/// What is measured of every training.
type Measure = (&'static str, &'static str, fn(&PairsResult) -> f64);

const MEASURES: [Measure; 10] = [
    ("exact_match", "right to the last token", |r| r.exact_match),
    ("train_loss", "training loss at the end", |r| r.curve.last().map_or(f64::NAN, |point| point.loss)),
    ("weight", "weight on the token's own place, the head that has most", |r| most(r, |h| h.weight)),
    ("value_weighted", "the same, weighted by what values add", |r| most(r, |h| h.value_weighted)),
    ("influence", "share of the influence that is of the own place", |r| r.explained.influence),
    ("even", "share if all read tokens counted alike", |r| r.explained.even),
    ("right", "tokens right", |r| r.explained.right),
    ("worst_ablated", "without the head that matters most", |r| 1.0 - most(r, |h| 1.0 - h.ablated)),
    ("all_permuted", "with all weights shuffled", |r| r.explained.all_permuted),
    ("all_even", "with even weights", |r| r.explained.all_even),
];

fn outcome(runs: &[Run], steps: u64) -> Table {
    let estimates: Vec<(String, &str)> = MEASURES.iter().map(|(name, title, _)| (format!("~{name}"), *title)).collect();
    let mut columns = vec![("task", "task"), ("seeds", "trainings"), ("steps", "steps"), ("held_out", "held-out inputs")];
    columns.extend(estimates.iter().map(|(name, title)| (name.as_str(), *title)));
    let caption = "Held-out inputs, and whether cross-attention explains the outputs: means over trainings";
    let mut table = rows::table("pairs_results", caption, &columns);
    for (task, runs) in by_task(runs) {
        let mut row = Row::default().of(task).of(runs.len()).of(steps as usize).of(runs[0].result.held_out);
        for (name, _, f) in MEASURES {
            let sample: Vec<f64> = runs.iter().map(|run| f(&run.result)).collect();
            row = if name == "train_loss" { row.mean(&sample) } else { row.share(&sample) };
        }
        row.put(&mut table);
    }
    table
}

fn heads(runs: &[Run]) -> Table {
    let columns = [
        ("task", "task"),
        ("seed", "seed"),
        ("block", "block"),
        ("head", "head"),
        ("weight", "weight on the token's own place"),
        ("value_weighted", "weighted by what values add"),
        ("inputs", "inputs operated on"),
        ("~ablated", "tokens right without it"),
        ("~permuted", "with its weights shuffled"),
    ];
    let caption = "Every cross-attention head of every training: what it looks at, and what is lost without it";
    let mut table = rows::table("pairs_heads", caption, &columns);
    for run in runs {
        let inputs = run.result.explained.inputs;
        // Tokens of one input fail together: as if each input were one token.
        let share = |share: f64| {
            let e = Estimate::of_share((share * inputs as f64).round() as usize, inputs);
            Estimate { value: (share * 1e4).round() / 1e4, low: (e.low * 1e4).round() / 1e4, high: (e.high * 1e4).round() / 1e4 }
        };
        for h in &run.result.explained.heads {
            let row = Row::default().of(task_name(run.kind)).all([run.seed as usize, h.layer, h.head]);
            let row = row.all([brief(h.weight), brief(h.value_weighted)]).of(inputs);
            row.estimate(share(h.ablated)).estimate(share(h.permuted)).put(&mut table);
        }
    }
    table
}

fn curves(runs: &[Run]) -> Table {
    let columns = [("task", "task"), ("step", "step"), ("~loss", "training loss (nats per token)")];
    let mut table = rows::table("pairs_curves", "Training loss, the mean since the point before, over trainings", &columns);
    for (task, runs) in by_task(runs) {
        for (at, point) in runs[0].result.curve.iter().enumerate() {
            let sample: Vec<f64> = runs.iter().filter_map(|run| run.result.curve.get(at)).map(|point| point.loss).collect();
            Row::default().of(task).of(point.step as usize).mean(&sample).put(&mut table);
        }
    }
    table
}

fn empty() -> [Table; 4] {
    let task = ("task", "task");
    [
        Table::new(
            "pairs_examples",
            "Held-out inputs, wrong outputs first",
            &[task, ("input", "input"), ("written", "written"), ("right", "should be"), ("correct", "correct")],
        ),
        Table::new(
            "pairs_tokens",
            "The tokens of one input and of what was written",
            &[task, ("side", "side"), ("place", "place"), ("token", "token")],
        ),
        Table::new(
            "pairs_maps",
            "Cross-attention of every head on that input: rows write, columns are read",
            &[task, ("block", "block"), ("head", "head"), ("query", "row"), ("key", "column"), ("weight", "weight")],
        ),
        Table::new(
            "pairs_influence",
            "How far each written token's prediction moves when a read token is exchanged for another (total variation)",
            &[task, ("query", "row"), ("key", "column"), ("influence", "influence")],
        ),
    ]
}

/// What the first training of a task made of some inputs.
fn first([mut examples, mut tokens, mut maps, mut influence]: [Table; 4], run: &Run) -> [Table; 4] {
    let (task, result) = (task_name(run.kind), &run.result);
    for e in &result.examples {
        // A number stays a text, so that a table reads back as it was written.
        let shown = |text: &str| format!("\u{201c}{text}\u{201d}");
        let correct = e.written == e.right;
        examples.push(vec![task.into(), shown(&e.source).into(), shown(&e.written).into(), shown(&e.right).into(), correct.into()]);
    }
    for (place, token) in result.mapped.chars().enumerate() {
        tokens.push(vec![task.into(), "read".into(), place.into(), token.to_string().into()]);
    }
    for (place, token) in result.mapped_written.iter().enumerate() {
        tokens.push(vec![task.into(), "written".into(), place.into(), token.as_str().into()]);
    }
    // Three decimals are more than a colour can say.
    let short = |x: f32| (f64::from(x) * 1e3).round() / 1e3;
    for map in &result.maps {
        for (at, &weight) in map.weights.iter().enumerate() {
            Row::default().of(task).all([map.layer, map.head, at / map.cols, at % map.cols]).of(short(weight)).put(&mut maps);
        }
    }
    let map = &result.explained.map;
    for (at, &moved) in map.weights.iter().enumerate() {
        Row::default().of(task).all([at / map.cols, at % map.cols]).of(short(moved)).put(&mut influence);
    }
    [examples, tokens, maps, influence]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainings::CurvePoint;
    use crate::trainings::explain::Explained;
    use crate::trainings::heads::HeadMap;
    use crate::trainings::pairs::Example;

    #[test]
    fn every_number_of_a_task_stands_in_its_column() {
        let example = |written: &str| Example { source: "12".to_owned(), written: written.to_owned(), right: "21".to_owned() };
        let map = |head| HeadMap { layer: 1, head, rows: 2, cols: 2, weights: vec![0.25, 0.75, 0.125, 0.875] };
        let head = |head, weight| CrossHead { layer: 1, head, weight, value_weighted: weight / 2.0, ablated: 0.25, permuted: 0.5 };
        let explained = Explained {
            inputs: 40,
            right: 0.875,
            all_permuted: 0.125,
            all_even: 0.0625,
            influence: 0.75,
            even: 0.5,
            heads: vec![head(2, 0.25), head(3, 0.75)],
            map: map(0),
        };
        let result = PairsResult {
            curve: vec![CurvePoint { step: 1, loss: 4.0 }, CurvePoint { step: 9, loss: 3.0 }],
            exact_match: 0.5,
            held_out: 40,
            examples: vec![example("22"), example("21")],
            mapped: "12".to_owned(),
            mapped_written: vec!["21".to_owned(), "(end)".to_owned()],
            maps: vec![map(2), map(3)],
            explained,
        };
        let runs = [Run { kind: PairKind::NumberWords, seed: 6, result }];
        let table = outcome(&runs, 9);
        let columns = ["steps", "held_out", "exact_match", "train_loss", "weight", "value_weighted", "influence", "even", "right"];
        assert_eq!(columns.map(|c| table.number(&table.rows[0], c)), [9.0, 40.0, 0.5, 3.0, 0.75, 0.375, 0.75, 0.5, 0.875]);
        assert_eq!(["worst_ablated", "all_permuted", "all_even"].map(|c| table.number(&table.rows[0], c)), [0.25, 0.125, 0.0625]);
        let table = heads(&runs);
        let columns = ["seed", "block", "head", "weight", "value_weighted", "ablated", "permuted"];
        assert_eq!(columns.map(|c| table.number(&table.rows[1], c)), [6.0, 1.0, 3.0, 0.75, 0.375, 0.25, 0.5]);
        let tables = first(empty(), &runs[0]);
        let fields = |table: usize, row: usize| tables[table].rows[row].iter().map(|value| value.to_field()).collect::<Vec<_>>().join(" ");
        assert_eq!(fields(0, 0), "number-words \u{201c}12\u{201d} \u{201c}22\u{201d} \u{201c}21\u{201d} false");
        assert!(fields(0, 1).ends_with("true"));
        assert_eq!([fields(1, 1), fields(1, 3)], ["number-words read 1 2", "number-words written 1 (end)"]);
        assert_eq!([fields(2, 1), fields(2, 6)], ["number-words 1 2 0 1 0.75", "number-words 1 3 1 0 0.125"]);
        assert_eq!(fields(3, 2), "number-words 1 0 0.125");
    }
}
