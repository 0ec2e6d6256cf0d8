//! `cargo xtask parity`: regard against PyTorch on PyTorch's own samples.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::command::{command, root, run as start};
use crate::python::{Environment, TESTS};

/// Requirement files of the environment with PyTorch, shared by `parity` and `bench`.
pub(crate) const REQUIREMENTS: [&str; 2] = ["python/tests/parity/requirements.txt", "bench/requirements.txt"];

/// The library's golden vectors, and the laboratory's copy of them: a package includes nothing from outside of it.
const GOLDEN: &str = "crates/regard/tests/golden/attention.json";
const LABORATORY: &str = "crates/regard-lab/src/experiments/parity/stored/attention.json";

/// The Python with PyTorch.
#[derive(Args)]
pub(crate) struct TorchPython {
    /// Python with PyTorch to use instead of target/venv-torch
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Use the installed regard instead of building this one
    #[arg(long)]
    no_install: bool,
}

impl TorchPython {
    /// The environment, with this regard installed unless `--no-install`.
    pub(crate) fn prepare(&self) -> Result<Environment> {
        let environment = match &self.python {
            Some(python) => Environment::existing(python),
            None => Environment::make("venv-torch", &REQUIREMENTS)?,
        };
        if !self.no_install {
            environment.install_regard()?;
        }
        Ok(environment)
    }
}

#[derive(Args)]
pub(crate) struct Options {
    /// Regenerate python/tests/golden and crates/regard/tests/golden first
    #[arg(long)]
    write_golden: bool,
    #[command(flatten)]
    torch: TorchPython,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let environment = options.torch.prepare()?;
    if options.write_golden {
        start(command(environment.python(), &["python/tests/parity/golden_maker.py", "--npz", "python/tests/golden", "--json", GOLDEN]))?;
        std::fs::copy(root().join(GOLDEN), root().join(LABORATORY)).context("cannot copy the golden vectors")?;
    }
    let mut pytest = command(environment.python(), &["-m", "pytest", "--quiet", "-p", "no:cacheprovider", "parity", "test_golden.py"]);
    pytest.current_dir(root().join(TESTS));
    start(pytest)
}
