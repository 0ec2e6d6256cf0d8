//! Which Python runs a learner's file.

use super::process::Launch;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const HARNESS: &str = concat!(include_str!("connect.py"), include_str!("harness.py"));

/// The one that was asked for, that of the virtual environment, or `python3` (`python` on Windows).
fn interpreter(asked: Option<&Path>) -> PathBuf {
    if let Some(python) = asked {
        // The harness runs in another folder; a bare name is looked up in PATH.
        let relative = python.is_relative() && python.components().count() > 1;
        let absolute = relative.then(|| std::path::absolute(python).ok()).flatten();
        return absolute.unwrap_or_else(|| python.to_path_buf());
    }
    // An empty or relative value would start a program of the current folder.
    let folder = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let environment = folder.map(|folder| folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" }));
    environment.filter(|python| python.exists()).unwrap_or_else(|| PathBuf::from(if cfg!(windows) { "python" } else { "python3" }))
}

/// What the harness makes arrays of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrays {
    NumPy,
    /// PyTorch's tensors.
    Torch,
    /// The same, with a backward pass of one's own: automatic differentiation is refused.
    TorchCustom,
}

pub(super) fn command(asked: Option<&Path>, arrays: Arrays) -> Result<Launch> {
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
    match arrays {
        Arrays::NumPy => command.env_remove("REGARD_LEARN_TORCH"),
        Arrays::Torch => command.env("REGARD_LEARN_TORCH", "tensors"),
        Arrays::TorchCustom => command.env("REGARD_LEARN_TORCH", "custom"),
    };
    Ok(Launch { command, harness: Some(("harness.py", HARNESS)), confined: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_found_from_any_folder() {
        let found = interpreter(Some(Path::new("venv/bin/python")));
        assert!(found.is_absolute() && found.ends_with("venv/bin/python"), "{}", found.display());
        assert_eq!(interpreter(Some(Path::new("python3"))), Path::new("python3"));
        assert_eq!(interpreter(Some(Path::new("/opt/python"))), Path::new("/opt/python"));
    }
}
