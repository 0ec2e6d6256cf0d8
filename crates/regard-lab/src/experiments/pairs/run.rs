//! Tasks that need cross-attention: an encoder-decoder reads a sequence and writes another one.

use super::Pairs;
use crate::error::{Error, Result, require};
use crate::experiment::{Progress, defaults, origin};
use crate::learning::{Relay, brief, check_steps, training_bytes};
use crate::memory;
use crate::options::named;
use clap::Args;
use regard_nn::config::ModelConfig;
use regard_nn::experiments::pairs::{PairKind, PairsConfig, PairsResult, learn_pairs};
use regard_nn::train::TrainConfig;
use regard_plot::Table;
use serde::{Serialize, Serializer};

pub use regard_nn::experiments::pairs::PairKind as PairTask;

/// Learn tasks that need cross-attention: words backwards, numbers in words
///
/// An encoder-decoder reads one sequence and writes another, and is tried on inputs that it was never trained on. To write a word backwards, each
/// written letter must look at one read letter: cross-attention becomes the anti-diagonal, and the figure shows it token by token.
/// Writes pairs_results.csv and five tables that it rests on.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(
    after_help = "Examples:\n  regard pairs                        both tasks\n  regard pairs --task reverse         one of them\n  regard pairs --task number-words --steps 500 --held-out 5000"
)]
pub struct PairTasksConfig {
    /// reverse, number-words, or both
    #[arg(long, value_parser = tasks, default_value = "both", value_name = "LIST")]
    #[serde(serialize_with = "task_names")]
    pub task: ::std::vec::Vec<PairTask>,
    /// Steps of training
    #[arg(long, default_value_t = known().train.steps, value_name = "N")]
    pub steps: u64,
    /// Pairs in a step
    #[arg(long, default_value_t = known().train.batch, value_name = "N")]
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
    /// Of first values and pairs
    #[arg(long, default_value_t = known().train.seed)]
    pub seed: u64,
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

    /// `pairs_results`, one row per task; `pairs_curves`; `pairs_examples`; `pairs_heads`, cross-attention head by head; `pairs_tokens` and
    /// `pairs_maps`, cross-attention on one input.
    ///
    /// # Errors
    /// When a setting is not possible.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let mut tables = empty();
        for &kind in &self.task {
            let model = ModelConfig { width: self.width, heads: self.heads, layers: self.layers, ..ModelConfig::default() };
            let train = TrainConfig { steps: self.steps, batch: self.batch, seed: self.seed, ..TrainConfig::default() };
            let config = PairsConfig { kind, model, train, held_out: self.held_out, curve_every: (self.steps / 30).max(1) };
            let mut relay = Relay::new(progress);
            fill(&mut tables, kind, self.steps, &learn_pairs(&config, &mut |now| relay.watch(now))?);
        }
        let origin = origin::<Pairs>(self, self.seed, "pairs drawn by Regard, from the seed and the step")?;
        tables.iter_mut().for_each(|table| table.origin.clone_from(&origin));
        Ok(tables.into())
    }
}

fn empty() -> [Table; 6] {
    let task = ("task", "task");
    [
        Table::new(
            "pairs_results",
            "Inputs that were never trained on, written by an encoder-decoder",
            &[
                task,
                ("steps", "steps"),
                ("held_out", "held-out inputs"),
                ("exact_match", "right to the last token"),
                ("train_loss", "training loss at the end"),
                ("anti_diagonal", "largest weight of a head on the anti-diagonal"),
            ],
        ),
        Table::new(
            "pairs_curves",
            "Training loss, the mean since the point before",
            &[task, ("step", "step"), ("loss", "training loss (nats per token)")],
        ),
        Table::new(
            "pairs_examples",
            "Held-out inputs and what was written; wrong ones first",
            &[task, ("input", "input"), ("written", "written"), ("right", "should be"), ("correct", "correct")],
        ),
        Table::new(
            "pairs_heads",
            "Cross-attention of every head on one held-out input: mean weight on the anti-diagonal",
            &[task, ("block", "block"), ("head", "head"), ("anti_diagonal", "weight on the anti-diagonal")],
        ),
        Table::new(
            "pairs_tokens",
            "The tokens of that input and of what was written",
            &[task, ("side", "side"), ("place", "place"), ("token", "token")],
        ),
        Table::new(
            "pairs_maps",
            "Cross-attention of every head on that input: rows write, columns are read",
            &[task, ("block", "block"), ("head", "head"), ("query", "row"), ("key", "column"), ("weight", "weight")],
        ),
    ]
}

fn fill([results, curves, examples, heads, tokens, maps]: &mut [Table; 6], kind: PairKind, steps: u64, result: &PairsResult) {
    let task = task_name(kind);
    let best = result.maps.iter().map(|map| map.anti_diagonal).fold(0.0, f64::max);
    results.push(vec![
        task.into(),
        (steps as usize).into(),
        result.held_out.into(),
        result.exact_match.into(),
        result.curve.last().map(|point| point.loss).into(),
        best.into(),
    ]);
    for point in &result.curve {
        curves.push(vec![task.into(), (point.step as usize).into(), brief(point.loss)]);
    }
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
    for map in &result.maps {
        heads.push(vec![task.into(), map.layer.into(), map.head.into(), brief(map.anti_diagonal)]);
        for ((query, key), &weight) in map.weights.indexed_iter() {
            // Three decimals are more than a colour can say.
            let weight = (f64::from(weight) * 1e3).round() / 1e3;
            maps.push(vec![task.into(), map.layer.into(), map.head.into(), query.into(), key.into(), weight.into()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;
    use regard_nn::experiments::CurvePoint;
    use regard_nn::experiments::pairs::{CrossMap, Example};

    #[test]
    fn every_number_of_a_task_stands_in_its_column() {
        let example = |written: &str| Example { source: "12".to_owned(), written: written.to_owned(), right: "21".to_owned() };
        let map = |head, anti_diagonal| CrossMap { layer: 1, head, weights: array![[0.25, 0.75], [0.125, 0.875]], anti_diagonal };
        let result = PairsResult {
            curve: vec![CurvePoint { step: 1, loss: 4.0 }, CurvePoint { step: 9, loss: 3.0 }],
            exact_match: 0.5,
            held_out: 40,
            examples: vec![example("22"), example("21")],
            mapped: "12".to_owned(),
            mapped_written: vec!["21".to_owned(), "(end)".to_owned()],
            maps: vec![map(2, 0.25), map(3, 0.75)],
        };
        let mut tables = empty();
        fill(&mut tables, PairKind::NumberWords, 9, &result);
        let fields = |table: usize, row: usize| tables[table].rows[row].iter().map(|value| value.to_field()).collect::<Vec<_>>().join(" ");
        assert_eq!(fields(0, 0), "number-words 9 40 0.5 3.0 0.75");
        assert_eq!(fields(1, 1), "number-words 9 3.0");
        assert_eq!(fields(2, 0), "number-words \u{201c}12\u{201d} \u{201c}22\u{201d} \u{201c}21\u{201d} false");
        assert!(fields(2, 1).ends_with("true"));
        assert_eq!(fields(3, 1), "number-words 1 3 0.75");
        assert_eq!([fields(4, 1), fields(4, 3)], ["number-words read 1 2", "number-words written 1 (end)"]);
        assert_eq!([fields(5, 1), fields(5, 6)], ["number-words 1 2 0 1 0.75", "number-words 1 3 1 0 0.125"]);
        let columns = |table: usize| tables[table].columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(" ");
        assert_eq!(columns(0), "task steps held_out exact_match train_loss anti_diagonal");
        assert_eq!(columns(2), "task input written right correct");
        assert_eq!(columns(4), "task side place token");
        assert_eq!(columns(5), "task block head query key weight");
    }
}
