//! Which Python runs a learner's file.

use super::process::Launch;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const RUNNER: &str = include_str!("runner.py");

/// The one that was asked for, that of the virtual environment, or `python3`.
fn interpreter(asked: Option<&Path>) -> PathBuf {
    if let Some(python) = asked {
        return python.to_path_buf();
    }
    let environment = std::env::var_os("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("bin/python"));
    environment.filter(|python| python.exists()).unwrap_or_else(|| PathBuf::from("python3"))
}

pub(super) fn command(asked: Option<&Path>) -> Result<Launch> {
    let python = interpreter(asked);
    let program = python.display().to_string();
    let tried = Command::new(&python).arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if let Err(reason) = tried {
        return Err(Error::NoPython { python: program, reason });
    }
    let mut command = Command::new(&python);
    command.args(["-B", "-X", "utf8"]);
    // A BLAS with threads takes longer to start them than for all products of a check.
    for name in ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
        command.env(name, "1");
    }
    Ok(Launch { command, runner: Some(("runner.py", RUNNER)) })
}
