//! `cargo xtask bench`: ratios against PyTorch, measured in turns.

use anyhow::Result;
use clap::Args;

use crate::command::{command, run as start};
use crate::parity::TorchPython;

#[derive(Args)]
pub(crate) struct Options {
    /// Thread counts, one process each
    #[arg(long, num_args = 1.., default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Rounds of theirs, ours, theirs, ours, ...
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Only workloads whose name matches
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Further libraries as extra columns, where importable: ort flex
    #[arg(long, num_args = 1.., value_name = "PEER")]
    peers: Vec<String>,
    #[command(flatten)]
    torch: TorchPython,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let environment = options.torch.prepare()?;
    let mut bench = command(environment.python(), &["bench/run.py", "--threads"]);
    bench.args(options.threads.iter().map(ToString::to_string));
    bench.arg("--rounds").arg(options.rounds.to_string());
    if let Some(only) = &options.only {
        bench.arg("--only").arg(only);
    }
    if !options.peers.is_empty() {
        bench.arg("--peers").args(&options.peers);
    }
    let measured = start(bench);
    let drawn = start(command(environment.python(), &["bench/plot.py"]));
    measured.and(drawn)
}
