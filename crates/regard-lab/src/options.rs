//! What the options of several experiments have in common: lists, their limits, and how they are written on a command line.

use crate::error::{Error, Result, require};
use serde::Serializer;
use std::path::PathBuf;

/// The widest head that the experiments take.
pub(crate) const MAX_D_K: usize = 4096;
/// The longest sequence of the experiments on random numbers.
const MAX_SEQ: usize = 1024;
const MAX_SEEDS: usize = 1_000_000;

/// A list of sizes: `4,16,64`.
pub(crate) fn sizes(text: &str) -> std::result::Result<Vec<usize>, String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| item.parse().map_err(|_| format!("{item:?} is not a whole number; give a list such as 4,16,64"))).collect()
}

/// A list of names, each once.
pub(crate) fn named<T: Copy + PartialEq>(
    text: &str,
    what: &str,
    all: &[T],
    name: impl Fn(T) -> String,
) -> std::result::Result<Vec<T>, String> {
    let mut found = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let known = || all.iter().map(|&one| name(one)).collect::<Vec<_>>().join(", ");
        let one = all.iter().copied().find(|&one| name(one) == item);
        let one = one.ok_or_else(|| format!("there is no {what} {item:?}; there are {}", known()))?;
        if !found.contains(&one) {
            found.push(one);
        }
    }
    Ok(found)
}

/// A path as it was written, as far as it is text.
pub(crate) fn path_as_text<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    match path {
        Some(path) => serializer.serialize_str(&path.to_string_lossy()),
        None => serializer.serialize_none(),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_each_value_once() {
        assert!(check_list("d_k", &[4, 16], "4").is_ok());
        assert!(check_list::<usize>("d_k", &[], "4").unwrap_err().to_string().contains("empty list"));
        let twice = check_list("d_k", &[4, 16, 4], "4").unwrap_err().to_string();
        assert!(twice.contains("invalid d_k: 4; it must be in the list once"), "{twice}");
    }

    #[test]
    fn lists_are_read_and_what_is_none_is_named() {
        assert_eq!(sizes(" 4, 16,,64"), Ok(vec![4, 16, 64]));
        assert!(sizes("4,x").unwrap_err().contains("\"x\" is not a whole number"));
        assert_eq!(named("b,a,b", "letter", &['a', 'b'], |c| c.to_string()), Ok(vec!['b', 'a']));
        assert_eq!(named("c", "letter", &['a', 'b'], |c| c.to_string()), Err("there is no letter \"c\"; there are a, b".to_owned()));
    }
}
