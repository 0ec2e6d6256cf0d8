//! [`ResumeStore`]: results of the finished steps of a run, below its directory of results, so that a killed run loses one step.

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::limits::STATE_BYTES;
use crate::names::{UNFINISHED, is_step};
use crate::read::{open_own, read_up_to};
use crate::stamp::{Stamp, kind, stamp_of_target};
use crate::write::{Staged, remove_known, remove_parts};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A stored step: its full name, its result, and the digest of both.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    name: String,
    result: String,
    sha256: String,
}

fn digest_of(name: &str, result: &str) -> String {
    digest(format!("{}\n{name}\n{result}", name.len()))
}

/// Stored steps of a run. Names must contain everything that a result depends on, such as settings and digests of inputs.
#[derive(Debug, Clone)]
pub struct ResumeStore {
    folder: PathBuf,
    found: usize,
}

impl ResumeStore {
    /// The store below a directory of results. Nothing is written yet; every stored step is verified.
    ///
    /// # Errors
    /// [`Error::Step`] when a stored step was changed, [`Error::NotAFile`] when a name of the store is a link or a special file.
    pub fn open(results: &Path) -> Result<Self> {
        let folder = results.join(UNFINISHED);
        let mut store = Self { folder, found: 0 };
        let unreadable = |source| Error::File { action: "read", path: store.folder.clone(), source };
        if !store.is_there()? {
            return Ok(store);
        }
        let mut found = 0;
        for entry in std::fs::read_dir(&store.folder).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            if name.to_str().is_some_and(is_step) {
                store.read(&store.folder.join(&name))?;
                found += 1;
            }
        }
        store.found = found;
        Ok(store)
    }

    /// Whether the directory is there. A link to one is refused.
    fn is_there(&self) -> Result<bool> {
        match std::fs::symlink_metadata(&self.folder) {
            Err(_) => Ok(false),
            Ok(metadata) if metadata.is_dir() => Ok(true),
            Ok(metadata) => {
                let advice = "it is left alone; move it, or choose another directory";
                Err(Error::NotAFile { path: self.folder.clone(), kind: kind(&metadata), advice })
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}.json", digest(name)))
    }

    /// A verified step.
    fn read(&self, path: &Path) -> Result<Option<(Step, Stamp)>> {
        let Some(stamp) = stamp_of_target(path)? else { return Ok(None) };
        let bytes = read_up_to(path, &mut open_own(path)?, STATE_BYTES.max)?;
        let refused = |reason: &str| Error::Step { path: path.to_owned(), reason: reason.to_owned() };
        let step: Step = serde_json::from_slice(&bytes).map_err(|e| refused(&e.to_string()))?;
        if digest_of(&step.name, &step.result) != step.sha256 {
            return Err(refused("its digest does not match"));
        }
        if self.path(&step.name) != path {
            return Err(refused("its name does not match"));
        }
        Ok(Some((step, stamp)))
    }

    /// How many steps an earlier run stored.
    pub fn found(&self) -> usize {
        self.found
    }

    /// The result of a stored step.
    ///
    /// # Errors
    /// [`Error::Step`] when it was changed.
    pub fn get(&self, name: &str) -> Result<Option<String>> {
        Ok(self.read(&self.path(name))?.map(|(step, _)| step.result))
    }

    /// Store the result of a step.
    ///
    /// # Errors
    /// When it cannot be written, or something else has its name.
    pub fn put(&self, name: &str, result: &str) -> Result<()> {
        let path = self.path(name);
        match std::fs::create_dir(&self.folder) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Directory { path: self.folder.clone(), source: e });
            }
            _ => {}
        }
        self.is_there()?;
        let old = self.read(&path)?;
        let step = Step { name: name.to_owned(), result: result.to_owned(), sha256: digest_of(name, result) };
        let staged = Staged::write(&path, &serde_json::to_vec(&step).expect("three texts are JSON"))?;
        match old {
            Some((_, stamp)) => staged.replace(&stamp).map(|_| ()),
            None => staged.commit(),
        }
    }

    /// Remove the verified steps whose names begin with `prefix`, and the directory if it is then empty. For the end of the run.
    pub fn clear(&self, prefix: &str) {
        if !matches!(self.is_there(), Ok(true)) {
            return;
        }
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_name().to_str().is_some_and(is_step)
                && let Ok(Some((step, stamp))) = self.read(&path)
                && step.name.starts_with(prefix)
            {
                let _ = remove_known(&path, &stamp);
            }
        }
        remove_parts(&self.folder);
        let _ = std::fs::remove_dir(&self.folder);
    }
}
