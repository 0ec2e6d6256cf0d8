//! Virtual environments under `target/`, and the Python package inside them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{command, root, run, target_dir, text};

/// The folder of the Python tests.
pub(crate) const TESTS: &str = "python/tests";

/// How the extension is compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// As the Rust tests are: optimised, with debug assertions, and out of the library that they have compiled.
    Tested,
    /// As users have it.
    Release,
}

/// A Python with packages of its own.
pub(crate) struct Environment {
    python: PathBuf,
}

impl Environment {
    /// The virtual environment `target/NAME` with these requirement files installed.
    ///
    /// It is kept between runs and made anew when a requirement or the Python version changes.
    pub(crate) fn make(name: &str, requirements: &[&str]) -> Result<Self> {
        let base = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let folder = target_dir().join(name);
        let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
        let stamp_file = folder.join("requirements.stamp");

        let mut stamp = text(command(&base, &["--version"]))?;
        for file in requirements {
            stamp += &fs::read_to_string(root().join(file)).with_context(|| format!("cannot read {file}"))?;
        }
        if python.exists() && fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
            return Ok(Self { python });
        }

        println!("    making {}", folder.display());
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        let mut venv = command(&base, &["-m", "venv"]);
        venv.arg(&folder);
        run(venv)?;
        let environment = Self { python };
        let mut install = environment.pip_install();
        for file in requirements {
            install.args(["--requirement", file]);
        }
        run(install)?;
        fs::write(&stamp_file, stamp).context("cannot write the stamp")?;
        Ok(environment)
    }

    /// A Python that is there already: a path, or a bare name to look up.
    pub(crate) fn existing(python: &Path) -> Self {
        let bare = python.components().count() == 1;
        Self { python: if bare { python.to_path_buf() } else { root().join(python) } }
    }

    /// The interpreter.
    pub(crate) fn python(&self) -> &Path {
        &self.python
    }

    /// Builds `./python` and installs it, always anew.
    pub(crate) fn install_regard(&self, build: Build) -> Result<()> {
        let mut install = self.pip_install();
        install.args(["--force-reinstall", "--no-deps", "./python"]);
        if build == Build::Tested {
            install.env("MATURIN_PEP517_ARGS", "--profile dev");
        }
        run(install)
    }

    fn pip_install(&self) -> std::process::Command {
        command(&self.python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
    }
}
