//! Files that are there whole or not at all: written beside, synced, and renamed.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Write a file beside and rename it, so that there is never half a file under its name.
///
/// # Errors
/// [`Error::File`]; the old file is then untouched.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    Staged::write(path, bytes)?.commit()
}

/// A file that is written and synced, but not yet under its name; removed when it is dropped before it is committed.
#[derive(Debug)]
pub struct Staged {
    path: PathBuf,
    beside: Option<PathBuf>,
}

impl Staged {
    /// Write the bytes beside `path`.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(path: &Path, bytes: &[u8]) -> Result<Self> {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let beside = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let staged = Self { path: path.to_owned(), beside: Some(beside.clone()) };
        let written = File::create(&beside).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(|source| staged.failed(source))?;
        Ok(staged)
    }

    /// Give it its name.
    ///
    /// # Errors
    /// [`Error::File`]; the old file of that name is then untouched.
    pub fn commit(mut self) -> Result<()> {
        let Some(beside) = self.beside.take() else { return Ok(()) };
        let moved = std::fs::rename(&beside, &self.path);
        if moved.is_err() {
            self.beside = Some(beside);
        }
        moved.map_err(|source| self.failed(source))?;
        // The name is on the disk when the directory is; where a directory cannot be opened or synced, the system does it by itself.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::File { action: "write", path: self.path.clone(), source }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // The disk may be full: leave nothing behind.
            let _ = std::fs::remove_file(beside);
        }
    }
}
