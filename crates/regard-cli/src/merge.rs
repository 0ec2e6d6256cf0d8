//! `regard merge`: merges the shards of an experiment.

use crate::experiments::{find, finish, reserved};
use crate::options::{Common, Out, Outcome, Unusable};
use anyhow::Result;
use clap::Args;
use regard_lab::shards::Merged;
use std::path::PathBuf;

/// Merge the shards of an experiment: the same bytes as if one machine had run it
///
/// Shards are written by `--shard K/N` of experiments that draw random numbers, on any machines and in any order. A shard that is given
/// twice counts once. A damaged, foreign or missing shard is an error that names it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  for k in $(seq 64); do regard lab sweep --seeds 1000000 --numbers regard --shard $k/64 --out shards; done
  regard merge shards --out results")]
pub(crate) struct Merge {
    /// Shards, or folders with files that end in .shard
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    out: Out,
    #[command(flatten)]
    common: Common,
}

impl Merge {
    pub(crate) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("merge")?;
        let mut files = Vec::new();
        for path in &self.paths {
            if path.is_dir() {
                let unreadable = |e: std::io::Error| Unusable(format!("cannot list {}: {e}", path.display()));
                for entry in path.read_dir().map_err(unreadable)? {
                    let file = entry.map_err(unreadable)?.path();
                    if file.extension().is_some_and(|ending| ending == "shard") {
                        files.push(file);
                    }
                }
            } else {
                files.push(path.clone());
            }
        }
        files.sort();
        let merged = Merged::read(&files)?;
        let entry = find(&merged.experiment).ok_or_else(|| {
            Unusable(format!("unknown experiment: {:?}; merge the shards with the version that wrote them", merged.experiment))
        })?;
        let folder = reserved(entry, &self.out)?;
        let matches = entry.command().no_binary_name(true).try_get_matches_from(&merged.words);
        let matches = matches.map_err(|e| {
            let said = crate::options::one_line(&e.to_string());
            Unusable(format!("the command of the shards cannot be used: {}", said.strip_prefix("error: ").unwrap_or(&said)))
        })?;
        let tables = entry.run(&matches, &merged)?;
        bar.hide();
        finish(entry, tables, folder, &self.common)
    }
}
