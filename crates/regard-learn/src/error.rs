//! What stops the judge, as opposed to what makes an answer wrong.

use std::path::{Path, PathBuf};

/// Something that the judge cannot work without. Every message says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder.
    #[error("cannot {action} {}: {reason}{}", path.display(), remedy(action))]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        reason: std::io::Error,
    },
    /// A working folder of ours.
    #[error("cannot write in {}: {reason}; free some space there, or set {variable} to a folder that can be written to", path.display())]
    Work {
        /// The folder.
        path: PathBuf,
        /// What names another one.
        variable: &'static str,
        /// Why not.
        reason: std::io::Error,
    },
    /// Python is not there.
    #[error("there is no Python: `{python}` cannot be started ({reason}); install Python 3 or name one with --python PATH")]
    NoPython {
        /// What was tried.
        python: String,
        /// Why not.
        reason: std::io::Error,
    },
    /// Python ends before it begins.
    #[error("`{python}` does not run ({reason}); name a Python 3.9 or newer with --python PATH")]
    BadPython {
        /// Which one.
        python: String,
        /// What it said.
        reason: String,
    },
    /// NumPy is not there.
    #[error("{python} has no NumPy ({reason}); run `{python} -m pip install numpy`, or name another Python with --python PATH")]
    NoNumpy {
        /// Which Python.
        python: String,
        /// What it said.
        reason: String,
    },
    /// PyTorch is not there.
    #[error(
        "{python} has no PyTorch ({reason}); run `{python} -m pip install torch`, name another Python with --python PATH, or do the \
            exercises in NumPy with --lang python"
    )]
    NoTorch {
        /// Which Python.
        python: String,
        /// What it said.
        reason: String,
    },
    /// rustc is not there.
    #[error("there is no rustc ({reason}); install Rust with rustup, or do the exercises in Python with --lang python")]
    NoRustc {
        /// Why not.
        reason: std::io::Error,
    },
    /// rustc is there, and fails for reasons of its own.
    #[error("rustc cannot compile anything here ({reason}); mend that first, or do the exercises in Python with --lang python")]
    BadRustc {
        /// What it said.
        reason: String,
    },
    /// A process or socket could not be created.
    #[error("cannot start the learner's program: {reason}")]
    Process {
        /// Why not.
        reason: std::io::Error,
    },
    /// No such exercise.
    #[error(
        "there is no exercise {name:?}: give a number from 1 to {count}, or a name such as softmax; `regard learn list` has all of them"
    )]
    NoExercise {
        /// What was asked for.
        name: String,
        /// How many there are.
        count: usize,
    },
    /// The file layer refuses or fails.
    #[error(transparent)]
    Files(#[from] regard_files::Error),
    /// The standard output cannot be written.
    #[error("cannot write to the standard output: {0}; the results are incomplete")]
    Output(std::io::Error),
    /// Options that do not go together.
    #[error("{0}")]
    Usage(String),
    /// The progress file is no progress file.
    #[error("{} is not a progress file of this command ({reason}); move it away, and `regard learn check --all` makes it \
        anew", path.display())]
    Progress {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

impl Error {
    /// Something about a file.
    pub fn file(action: &'static str, path: &Path, reason: std::io::Error) -> Self {
        Self::File { action, path: path.to_path_buf(), reason: plain(reason) }
    }

    /// Something about a temporary folder.
    pub(crate) fn temporary(reason: std::io::Error) -> Self {
        Self::Work { path: std::env::temp_dir(), variable: "TMPDIR", reason: plain(reason) }
    }
}

/// Without the path that `tempfile` adds: messages have their own.
fn plain(reason: std::io::Error) -> std::io::Error {
    let code = reason.get_ref().and_then(|e| e.source()?.downcast_ref::<std::io::Error>()?.raw_os_error());
    code.map_or(reason, std::io::Error::from_raw_os_error)
}

fn remedy(action: &str) -> &'static str {
    if action == "read" { "" } else { "; free space or rights are missing there: name another folder with --dir PATH" }
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
