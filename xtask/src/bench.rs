//! `cargo xtask bench`: ratios against PyTorch, measured in turns.

use anyhow::Result;
use clap::Args;

use crate::command::{cargo, command, run as start, target_dir};
use crate::parity::TorchPython;
use crate::python::Environment;

#[derive(Args)]
pub(crate) struct Options {
    /// Thread counts, one process each
    #[arg(long, num_args = 1.., default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Rounds of theirs, ours, theirs, ours, ...
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Only workloads whose name matches; `sweep` is the laboratory's sweep
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Further libraries as extra columns, where importable: ort flex
    #[arg(long, num_args = 1.., value_name = "PEER")]
    peers: Vec<String>,
    #[command(flatten)]
    torch: TorchPython,
}

/// `--only sweep` is the laboratory's sweep alone.
const SWEEP: &str = "sweep";

/// The laboratory's sweep beside the same sweep in NumPy and PyTorch.
fn sweep(options: &Options, environment: &Environment) -> Result<()> {
    start(cargo(&["build", "--release", "--package", "regard-lab", "--example", "time_sweep"]))?;
    let program = target_dir().join("release/examples/time_sweep");
    let mut bench = command(environment.python(), &["bench/sweep.py", "--ours"]);
    bench.arg(program).arg("--threads").args(options.threads.iter().map(ToString::to_string));
    bench.arg("--rounds").arg(options.rounds.min(5).to_string());
    start(bench)
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let environment = options.torch.prepare()?;
    if options.only.as_deref() == Some(SWEEP) {
        return sweep(options, &environment);
    }
    let swept = if options.only.is_none() { sweep(options, &environment) } else { Ok(()) };
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
    swept.and(measured).and(drawn)
}
