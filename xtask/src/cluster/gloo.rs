//! The same by torch.distributed: attention that processes of PyTorch share, over gloo.

use anyhow::Result;

use crate::command::{command, root, run};
use crate::parity::TorchPython;
use crate::python::{Environment, TESTS};
use crate::steps::Steps;

/// What is compared in minutes, and what `cargo xtask parity` runs too.
const FILES: [(&str, &str); 2] = [
    ("bits of one process on 1 to 7 ranks of torch.distributed", "parity/broad_shared.py"),
    ("models, faults and refusals of torch.distributed", "parity/test_shared.py"),
];

pub(crate) fn add_steps(steps: &mut Steps, torch: &TorchPython) {
    let mut environment = None;
    steps.step("Python with PyTorch", || {
        environment = Some(torch.prepare()?);
        Ok(())
    });
    if let Some(environment) = environment {
        for (name, file) in FILES {
            steps.step(name, || pytest(&environment, file));
        }
    }
}

fn pytest(environment: &Environment, file: &str) -> Result<()> {
    // What each number of ranks says is of interest also when all is well.
    let mut pytest = command(environment.python(), &["-m", "pytest", "--quiet", "--capture=no", "-p", "no:cacheprovider", file]);
    pytest.current_dir(root().join(TESTS));
    run(pytest)
}
