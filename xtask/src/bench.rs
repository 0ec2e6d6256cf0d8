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
    /// Only workloads whose name matches; `model` is a training step of whole models
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Further libraries beside PyTorch: ort ort-mha openvino (default: all three) flex, or none
    #[arg(long, num_args = 1.., value_name = "PEER")]
    peers: Vec<String>,
    #[command(flatten)]
    torch: TorchPython,
}

/// A benchmark program that prints its times, and the script that alternates it with its peers.
struct Pair {
    /// What `--only` calls it.
    name: &'static str,
    package: &'static str,
    example: &'static str,
    script: &'static str,
    most_rounds: usize,
}

const MODEL: Pair = Pair { name: "model", package: "regard-nn", example: "train_step", script: "bench/train_step.py", most_rounds: 12 };

impl Pair {
    fn run(&self, options: &Options, environment: &Environment) -> Result<()> {
        start(cargo(&["build", "--release", "--package", self.package, "--example", self.example]))?;
        let mut bench = command(environment.python(), &[self.script, "--ours"]);
        bench.arg(target_dir().join("release/examples").join(self.example));
        bench.arg("--threads").args(options.threads.iter().map(ToString::to_string));
        bench.arg("--rounds").arg(options.rounds.min(self.most_rounds).to_string());
        start(bench)
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let environment = options.torch.prepare()?;
    if options.only.as_deref() == Some(MODEL.name) {
        return MODEL.run(options, &environment);
    }
    let mut paired = Ok(());
    if options.only.is_none() {
        paired = MODEL.run(options, &environment);
    }
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
    paired.and(measured).and(drawn)
}
