//! Heads that share keys and values: what the cache saves, and what it costs.

use super::MultiQuery;
use crate::error::{Result, require};
use crate::experiment::{Experiment, Progress, defaults, origin, signed};
use crate::learning::{Jobs, LearningConfig, SeedsConfig, brief, every};
use crate::options::{check_list, sizes};
use crate::rows::{self, Row};
use crate::trainings::learn::{Learnt, learn};
use clap::Args;
use regard_nn::config::ModelConfig;
use regard_nn::lm::LanguageModel;
use regard_plot::Table;
use serde::{Deserialize, Serialize};

/// Let query heads share keys and values: the size of the cache against the loss
///
/// The same language model with as many key/value heads as query heads, fewer, and one (multi-query attention), trained with the same
/// seeds. Writes multi_query.csv and multi_query_seeds.csv.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(after_help = "Example:\n  regard lab multi-query --heads 8 --kv-heads 8,4,2,1 --steps 1000")]
pub struct MultiQueryConfig {
    /// Key/value heads, each a divisor of the query heads
    #[arg(long, value_parser = sizes, default_value = "4,2,1", value_name = "LIST")]
    pub kv_heads: ::std::vec::Vec<usize>,
    /// Steps of each training
    #[arg(long, default_value_t = 400, value_name = "N")]
    pub steps: u64,
    /// Text and model.
    #[command(flatten)]
    #[serde(flatten)]
    pub learning: LearningConfig,
    /// Validation windows
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub windows: usize,
    /// Trainings
    #[command(flatten)]
    #[serde(flatten)]
    pub seeds: SeedsConfig,
}

impl Default for MultiQueryConfig {
    fn default() -> Self {
        defaults()
    }
}

/// One training.
#[derive(Serialize, Deserialize)]
struct Run {
    learnt: Learnt,
    parameters: usize,
}

impl MultiQueryConfig {
    fn check(&self) -> Result<()> {
        self.learning.check(self.steps, self.windows)?;
        self.seeds.check()?;
        check_list("kv_heads", &self.kv_heads, "4,2,1")?;
        let heads = self.learning.heads;
        self.kv_heads.iter().try_for_each(|&kv| require(kv > 0 && heads.is_multiple_of(kv), "kv_heads", kv, "a divisor of heads"))
    }

    /// `multi_query`, one row per number of key/value heads; `multi_query_seeds`, every training.
    ///
    /// # Errors
    /// When a setting is not possible, or the text too short.
    pub fn run(&self, progress: &dyn Progress) -> Result<Vec<Table>> {
        self.check()?;
        let learning = &self.learning;
        let content = learning.content()?;
        let (text, vocab, described) = learning.tokens_of(&content)?;
        let jobs = self.seeds.jobs(&self.kv_heads, self.steps, |kv| format!("{kv} key/value heads"));
        let results = Jobs::new(progress, MultiQuery::ID, self, &content).run(&jobs, |&(kv, seed), watch| {
            let model = LanguageModel::new(ModelConfig { kv_heads: Some(kv), ..learning.model(vocab) })?;
            let train = learning.train(self.steps, seed);
            let (learnt, p) = learn("training", &model, &train, &text, every(self.steps, 20), self.windows, watch)?;
            Ok(Run { learnt, parameters: p.len() })
        })?;
        let runs: Vec<(usize, u64, Run)> = jobs.iter().zip(results).map(|(job, run)| (job.what.0, job.what.1, run)).collect();
        Ok(signed(vec![self.outcome(&runs), each(&runs)], &origin::<MultiQuery>(self, self.seeds.seed, &described)?))
    }

    fn outcome(&self, runs: &[(usize, u64, Run)]) -> Table {
        let columns = [
            ("kv_heads", "key/value heads"),
            ("heads", "query heads"),
            ("seeds", "trainings"),
            ("parameters", "parameters"),
            ("cache_bytes", "bytes of cache per token"),
            ("~validation_loss", "validation loss"),
            ("~difference", "minus that of the first row, same seed"),
            ("same_sign", "pairs with the sign of the mean"),
        ];
        let caption = "Cache in float32, and loss: means over trainings";
        let mut table = rows::table("multi_query", caption, &columns);
        let losses = |kv: usize| -> Vec<f64> { runs.iter().filter(|run| run.0 == kv).map(|run| run.2.learnt.validation).collect() };
        let first = losses(self.kv_heads[0]);
        let l = &self.learning;
        for &kv in &self.kv_heads {
            let here = losses(kv);
            let parameters = runs.iter().find(|run| run.0 == kv).map(|run| run.2.parameters);
            // Keys and values, of every block.
            let bytes = 2 * kv * (l.width / l.heads) * l.layers * size_of::<f32>();
            let row = Row::default().of(kv).of(l.heads).of(here.len()).of(parameters).of(bytes).mean(&here);
            row.paired(&here, &first).put(&mut table);
        }
        table
    }
}

fn each(runs: &[(usize, u64, Run)]) -> Table {
    let columns = [
        ("kv_heads", "key/value heads"),
        ("seed", "seed"),
        ("train_loss", "loss on the text learnt"),
        ("validation_loss", "validation loss"),
    ];
    let mut table = Table::new("multi_query_seeds", "Every training by itself", &columns);
    for (kv, seed, run) in runs {
        let numbers = [run.learnt.train, run.learnt.validation].map(brief);
        Row::default().of(*kv).of(*seed as usize).all(numbers).put(&mut table);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_paired_by_seed_and_caches_counted_by_hand() {
        let config = MultiQueryConfig { kv_heads: vec![4, 1], ..MultiQueryConfig::default() };
        let run =
            |kv, seed, validation| (kv, seed, Run { learnt: Learnt { curve: Vec::new(), train: 1.0, validation }, parameters: 10 * kv });
        let table = config.outcome(&[run(4, 1, 2.0), run(1, 1, 2.5), run(4, 2, 3.0), run(1, 2, 3.3)]);
        // 2 tensors, 1 head of 16, 2 blocks, 4 bytes.
        let columns = ["kv_heads", "parameters", "cache_bytes", "validation_loss", "difference", "same_sign"];
        let got = columns.map(|c| table.number(&table.rows[1], c));
        for (got, known) in got.into_iter().zip([1.0, 10.0, 256.0, 2.9, 0.4, 2.0]) {
            assert!((got - known).abs() < 1e-9, "{got} instead of {known}");
        }
        assert_eq!(table.number(&table.rows[0], "cache_bytes"), 1024.0);
    }
}
