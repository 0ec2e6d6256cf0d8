//! What is compiled for the learners' Rust files, in a private folder that is removed at the end of the process.
//!
//! The SHA-256 of each file is kept in memory, out of reach of the programs that are judged, and compared before each use: a file that was
//! replaced is compiled again. There is no cache on disk that could be planted.

use super::StartError;
use crate::error::Error;
use crate::files::hex;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Compiled files of one process.
#[derive(Default)]
pub struct Builds {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    folder: Option<tempfile::TempDir>,
    /// SHA-256 of each file, by its name in the folder.
    known: BTreeMap<String, [u8; 32]>,
}

/// Compiles to a path.
type Make<'a> = &'a dyn Fn(&Path) -> Result<(), StartError>;

impl Builds {
    /// No files yet; the folder is created at the first use.
    pub fn new() -> Self {
        Self::default()
    }

    /// The folder, once something was compiled.
    pub fn folder(&self) -> Option<PathBuf> {
        let state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.folder.as_ref().map(|folder| folder.path().to_path_buf())
    }

    /// The file that `make` compiles from `parts`: the one compiled before if its bytes are unchanged.
    pub(super) fn get(&self, name: &str, parts: &[&[u8]], make: Make<'_>) -> Result<PathBuf, StartError> {
        let (stem, dot, ending) = name.split_once('.').map_or((name, "", ""), |(stem, ending)| (stem, ".", ending));
        let name = format!("{stem}-{}{dot}{ending}", &hex(&digest(parts))[..32]);
        let (path, folder, known) = {
            let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if state.folder.is_none() {
                state.folder = Some(tempfile::Builder::new().prefix("regard-learn-").tempdir().map_err(Error::temporary)?);
            }
            let folder = state.folder.as_ref().map(|folder| folder.path().to_path_buf()).unwrap_or_default();
            (folder.join(&name), folder, state.known.get(&name).copied())
        };
        let actual = |path: &Path| std::fs::read(path).map(|bytes| digest(&[&bytes]));
        if known.is_some() && actual(&path).ok() == known {
            return Ok(path);
        }
        // Compiled in a folder of its own and renamed: two threads may compile the same answer.
        let work = tempfile::Builder::new().prefix("compile-").tempdir_in(&folder).map_err(Error::temporary)?;
        let made = work.path().join(&name);
        make(&made)?;
        let hash = actual(&made).map_err(Error::temporary)?;
        std::fs::rename(&made, &path).map_err(Error::temporary)?;
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner).known.insert(name, hash);
        Ok(path)
    }
}

/// SHA-256 of parts with their lengths.
fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
