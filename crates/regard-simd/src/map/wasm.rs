//! [`MappedFile`] where there is no disk: the files that the host handed over, in memory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static FILES: Mutex<BTreeMap<PathBuf, Arc<Vec<u8>>>> = Mutex::new(BTreeMap::new());

fn files() -> MutexGuard<'static, BTreeMap<PathBuf, Arc<Vec<u8>>>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The bytes of a file.
#[derive(Debug)]
pub struct MappedFile {
    bytes: Arc<Vec<u8>>,
    path: PathBuf,
}

impl MappedFile {
    /// Hands over a file; another one of the same name is replaced.
    pub fn insert(path: impl Into<PathBuf>, bytes: Vec<u8>) {
        files().insert(path.into(), Arc::new(bytes));
    }

    /// Removes a folder with its files: memory is freed when no model uses them.
    pub fn remove(folder: &Path) {
        files().retain(|path, _| !path.starts_with(folder));
    }

    /// The names of all files.
    pub fn list() -> Vec<PathBuf> {
        files().keys().cloned().collect()
    }

    /// Opens a file that was handed over.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`].
    pub fn open(path: &Path) -> io::Result<Self> {
        let bytes = files().get(path).cloned().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such file"))?;
        Ok(Self { bytes, path: path.to_owned() })
    }

    /// The file's name, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Files in memory do not change.
    ///
    /// # Errors
    /// None.
    pub fn check_unchanged(&self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
