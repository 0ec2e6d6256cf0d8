//! Results of trainings that are stored with the program: a report takes seconds, a training takes minutes.
//!
//! Each is the table that its command writes, byte for byte; `regard report --train` makes them again.

use crate::error::Result;
use crate::experiments::{LearningConfig, MaskTrainingConfig, PairTasksConfig, Progress, ScaleTrainingConfig, TrainedHeadsConfig};
use crate::table::Table;

/// `NAME.csv` of the directory `trained`.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../trained/", $name, ".csv")).as_slice())),*]
    };
}

const STORED: &[(&str, &[u8])] = &files![
    "mask_training",
    "mask_training_curves",
    "mask_training_prefix",
    "mask_training_baselines",
    "mask_training_samples",
    "scale_training",
    "scale_training_curves",
    "scale_training_heads",
    "scale_training_gradients",
    "trained_heads",
    "trained_heads_likeness",
    "pairs_results",
    "pairs_curves",
    "pairs_examples",
    "pairs_heads",
    "pairs_tokens",
    "pairs_maps",
];

/// The line of a table's origin that says that it was not made for this report.
const KEY: &str = "stored";

/// The stored tables; their origin says that they are.
pub(crate) fn stored() -> Vec<Table> {
    let read = |&(name, bytes): &(&str, &[u8])| {
        let mut table = Table::from_csv(name, bytes).expect("the tests read every stored table");
        table.origin.push((KEY.to_owned(), "with the program; regard report --train makes it again".to_owned()));
        table
    };
    STORED.iter().map(read).collect()
}

/// Swallows announcements: all of the work was announced before.
struct Announced<'p>(&'p dyn Progress);

impl Progress for Announced<'_> {
    fn expect(&self, _: u64) {}
    fn advance(&self, steps: u64) {
        self.0.advance(steps);
    }
    fn say(&self, what: &str) {
        self.0.say(what);
    }
}

/// The same tables, trained now.
pub(crate) fn again(seed: u64, progress: &dyn Progress) -> Result<Vec<Table>> {
    let with_seed = |learning: LearningConfig| LearningConfig { seed, ..learning };
    let (masks, scale, heads, pairs) =
        (MaskTrainingConfig::default(), ScaleTrainingConfig::default(), TrainedHeadsConfig::default(), PairTasksConfig::default());
    let masks = MaskTrainingConfig { learning: with_seed(masks.learning), ..masks };
    let scale = ScaleTrainingConfig { learning: with_seed(scale.learning), ..scale };
    let heads = TrainedHeadsConfig { learning: with_seed(heads.learning) };
    let pairs = PairTasksConfig { seed, ..pairs };
    progress.expect(masks.work() + scale.work() + heads.work() + pairs.work());
    let progress = Announced(progress);
    let mut tables = masks.run(&progress)?;
    tables.extend(scale.run(&progress)?);
    tables.extend(heads.run(&progress)?);
    tables.extend(pairs.run(&progress)?);
    Ok(tables)
}

/// What a section says of a table that is stored.
pub(crate) fn note(table: &Table) -> Option<String> {
    let of = |key: &str| table.origin.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    of(KEY)?;
    Some(format!(
        "These numbers were not computed for this page: training takes minutes, so its results are stored with the program. They were made by regard {} ({}, seed {}) with the command below and are the same on any number of threads; `regard report --train` trains again.",
        of("regard").unwrap_or("?"),
        of("simd").unwrap_or("?"),
        of("seed").unwrap_or("?")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_tables_are_small_and_what_the_default_commands_write() {
        let commands = [
            MaskTrainingConfig::default().command(),
            ScaleTrainingConfig::default().command(),
            TrainedHeadsConfig::default().command(),
            PairTasksConfig::default().command(),
        ];
        for (&(_, bytes), mut table) in STORED.iter().zip(stored()) {
            let command = table.origin.iter().find(|(key, _)| key == "command").map(|(_, value)| value.clone());
            assert!(commands.iter().any(|c| Some(c) == command.as_ref()), "{}: {command:?}", table.name);
            assert!(note(&table).is_some_and(|n| !n.contains('?')), "{}", table.name);
            table.origin.pop();
            assert!(note(&table).is_none() && table.to_csv() == bytes, "{} changes when it is read", table.name);
        }
        let size: usize = STORED.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(size < 130_000, "{size} bytes");
    }
}
