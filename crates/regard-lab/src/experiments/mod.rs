//! The experiments. Each is a function from a configuration to tables; a [`Progress`] may watch, and changes nothing.

mod bench;
mod cell;
mod checks;
mod entropy;
mod heads;
mod learning;
mod mask_training;
mod module;
mod pairs;
mod parity;
mod patterns;
mod robustness;
mod scale_training;
mod sweep;
mod trained_heads;

pub use bench::BenchConfig;
pub use cell::{Loss, Numbers};
pub use checks::ChecksConfig;
pub use entropy::EntropyConfig;
pub use heads::HeadsConfig;
pub use learning::{LearningConfig, LearningText, read_text};
pub use mask_training::{MaskTrainingConfig, Variant, variant_name};
pub use pairs::{PairTask, PairTasksConfig, task_name};
pub use parity::{ParityConfig, agrees, find_torch};
pub use patterns::{PATTERNS, PatternsConfig};
pub use robustness::RobustnessConfig;
pub use scale_training::ScaleTrainingConfig;
pub use sweep::SweepConfig;
pub use trained_heads::TrainedHeadsConfig;

use crate::error::{Error, Result, require};

/// Somebody who wants to know how far an experiment has come.
pub trait Progress: Sync {
    /// So many steps are to come; may be called again for a further part.
    fn expect(&self, steps: u64);
    /// So many more steps are done.
    fn advance(&self, steps: u64);
    /// What is being done, in a few words.
    fn say(&self, _what: &str) {}
}

/// Nobody.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched;

impl Progress for Unwatched {
    fn expect(&self, _: u64) {}
    fn advance(&self, _: u64) {}
}

/// The widest head that the experiments take.
pub const MAX_D_K: usize = 4096;
/// The longest sequence of the experiments on random numbers.
const MAX_SEQ: usize = 1024;
const MAX_SEEDS: usize = 1_000_000;

/// A list of values to go through: at least one, and each once.
pub(crate) fn check_list<T: PartialEq + ToString>(name: &'static str, list: &[T], example: &'static str) -> Result<()> {
    if list.is_empty() {
        return Err(Error::EmptyList { name, example });
    }
    let twice = list.iter().enumerate().find(|(place, item)| list[..*place].contains(item));
    twice.map_or(Ok(()), |(_, item)| require(false, name, item.to_string(), "in the list once"))
}

pub(crate) fn check_d_k(d_k: &[usize]) -> Result<()> {
    check_list("d_k", d_k, "4,16,64,256")?;
    d_k.iter().try_for_each(|&d| require((1..=MAX_D_K).contains(&d), "d_k", d, "from 1 to 4096"))
}

pub(crate) fn check_seq(seq: usize) -> Result<()> {
    require((2..=MAX_SEQ).contains(&seq), "seq", seq, "from 2 to 1024 tokens")
}

pub(crate) fn check_seeds(seeds: usize, least: usize) -> Result<()> {
    let requirement = if least > 1 { "from 2 to 1000000, for a spread" } else { "from 1 to 1000000" };
    require((least..=MAX_SEEDS).contains(&seeds), "seeds", seeds, requirement)
}

/// Numbers as they are given on a command line: `4,16,64`.
pub(crate) fn listed<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A word as a shell takes it: quoted where it holds anything that a shell would not leave alone.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-./,:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Where a table came from. The command is given in full, with defaults, and without what cannot change a result.
pub(crate) fn origin(command: String, seed: u64, numbers: &str) -> Result<Vec<(String, String)>> {
    let level = regard::Level::preferred()?.name();
    Ok([
        ("regard", env!("CARGO_PKG_VERSION").to_owned()),
        ("command", command),
        ("seed", seed.to_string()),
        ("numbers", numbers.to_owned()),
        ("simd", level.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_change_them() {
        for (word, quoted) in
            [("a/b-c_1.txt", "a/b-c_1.txt"), ("my book.txt", "'my book.txt'"), ("$(rm x)", "'$(rm x)'"), ("it's", "'it'\\''s'"), ("", "''")]
        {
            assert_eq!(shell_word(word), quoted);
        }
    }

    #[test]
    fn a_list_has_each_value_once() {
        assert!(check_list("d_k", &[4, 16], "4").is_ok());
        assert!(check_list::<usize>("d_k", &[], "4").unwrap_err().to_string().contains("empty list"));
        assert!(
            check_list("d_k", &[4, 16, 4], "4").unwrap_err().to_string().contains("d_k = 4 is not possible: it must be in the list once")
        );
    }
}
