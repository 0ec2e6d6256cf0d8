//! Virtual environments under `target/`, and the Python package inside them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::{command, root, run, target_dir, text};

/// The folder of the Python tests.
pub(crate) const TESTS: &str = "python/tests";

/// A virtual environment.
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

    /// An existing Python: a path, or a name to look up.
    pub(crate) fn existing(python: &Path) -> Self {
        let bare = python.components().count() == 1;
        Self { python: if bare { python.to_path_buf() } else { root().join(python) } }
    }

    /// The interpreter.
    pub(crate) fn python(&self) -> &Path {
        &self.python
    }

    /// Builds and installs `./python` as users do, always anew.
    pub(crate) fn install_regard(&self) -> Result<()> {
        let mut install = self.pip_install();
        install.args(["--force-reinstall", "--no-deps", "./python"]);
        run(install)
    }

    fn pip_install(&self) -> std::process::Command {
        command(&self.python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
    }
}

/// File names of the extension: of the compiler, of Python.
const LIBRARY: (&str, &str) = if cfg!(windows) {
    ("_regard.dll", "_regard.pyd")
} else if cfg!(target_os = "macos") {
    ("lib_regard.dylib", "_regard.abi3.so")
} else {
    ("lib_regard.so", "_regard.abi3.so")
};

/// The package from the build of the Rust tests (optimised, with debug assertions): a folder for `PYTHONPATH`.
pub(crate) fn assemble(built: &Path) -> Result<PathBuf> {
    let folder = target_dir().join("python");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let package = folder.join("regard");
    fs::create_dir_all(&package).with_context(|| format!("cannot make {}", package.display()))?;
    let source = root().join("python/package/regard");
    for entry in source.read_dir().with_context(|| format!("cannot list {}", source.display()))? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_file(), path.file_name()) {
            fs::copy(&path, package.join(name)).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    let library = built.join(LIBRARY.0);
    fs::copy(&library, package.join(LIBRARY.1)).with_context(|| format!("cannot copy {}", library.display()))?;
    Ok(folder)
}
