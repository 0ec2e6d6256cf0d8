//! Atomic writing: a temporary file beside its destination, synced, then renamed, so that a reader or a power failure finds the old bytes
//! or the new ones.

use crate::error::{Error, Result};
use crate::names;
use crate::stamp::{Stamp, stamp_of_target};
use std::fs::File;
use std::hash::BuildHasher;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A temporary file, written and synced, that has no final name yet. Dropping it removes it.
#[derive(Debug)]
pub struct Staged {
    /// `None` once renamed.
    temporary: Option<PathBuf>,
    path: PathBuf,
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file of a random name in a directory; an existing name, also of a link, is never opened.
fn create_part(folder: &Path) -> std::io::Result<(File, PathBuf)> {
    let random = std::hash::RandomState::new();
    for attempt in 0..100u32 {
        let path = folder.join(names::part(random.hash_one((std::process::id(), SystemTime::now(), attempt))));
        match File::options().read(true).write(true).create_new(true).open(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (file, path)),
        }
    }
    Err(std::io::Error::new(ErrorKind::AlreadyExists, "no free name for a temporary file"))
}

/// Whether a directory can be written to: creates a temporary file in it and removes it.
pub(crate) fn probe(folder: &Path) -> std::io::Result<()> {
    let (_, path) = create_part(folder)?;
    std::fs::remove_file(path)
}

impl Staged {
    /// Write bytes to a temporary file beside `path`.
    ///
    /// # Errors
    /// [`Error::File`]; the temporary file is then removed.
    pub fn write(path: &Path, bytes: &[u8]) -> Result<Self> {
        let failed = |source| Error::File { action: "write", path: path.to_owned(), source };
        let (mut file, temporary) = create_part(folder_of(path)).map_err(failed)?;
        let staged = Self { temporary: Some(temporary), path: path.to_owned() };
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(staged)
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::File { action: "write", path: self.path.clone(), source }
    }

    /// Rename over a file that is known by its stamp.
    pub(crate) fn replace(self, expected: &Stamp) -> Result<Stamp> {
        match stamp_of_target(&self.path)? {
            Some(now) if now == *expected => self.rename(),
            None => self.commit_new(),
            Some(_) => Err(Error::Changed { path: self.path.clone() }),
        }
    }

    fn rename(mut self) -> Result<Stamp> {
        let Some(temporary) = &self.temporary else { return Err(self.failed(ErrorKind::NotFound.into())) };
        std::fs::rename(temporary, &self.path).map_err(|e| self.failed(e))?;
        self.temporary = None;
        self.settled()
    }

    /// Give the file its name, where nothing exists.
    ///
    /// # Errors
    /// [`Error::NotOurs`] where something exists, [`Error::File`].
    pub fn commit(self) -> Result<()> {
        self.commit_new().map(|_| ())
    }

    pub(crate) fn commit_new(self) -> Result<Stamp> {
        let Some(temporary) = &self.temporary else { return Err(self.failed(ErrorKind::NotFound.into())) };
        let exists = |e: std::io::Error| {
            if e.kind() == ErrorKind::AlreadyExists { Error::NotOurs { path: self.path.clone() } } else { self.failed(e) }
        };
        match std::fs::hard_link(temporary, &self.path) {
            // Dropping `self` removes the temporary name.
            Ok(()) => self.settled(),
            Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Err(exists(e)),
            // The file system has no hard links: an empty file reserves the name.
            Err(_) => {
                File::create_new(&self.path).map_err(exists)?;
                self.rename()
            }
        }
    }

    /// Sync the directory; some file systems cannot. The temporary name goes first: removing a hard link changes the time of the inode.
    fn settled(mut self) -> Result<Stamp> {
        self.remove_temporary();
        sync_folder(folder_of(&self.path)).map_err(|e| self.failed(e))?;
        let metadata = std::fs::symlink_metadata(&self.path).map_err(|e| self.failed(e))?;
        Ok(Stamp::of(&metadata))
    }

    fn remove_temporary(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.remove_temporary();
    }
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        result => result,
    }
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Write a new file atomically; nothing may exist under its name, not even a link.
///
/// # Errors
/// [`Error::NotOurs`] and [`Error::NotAFile`] where something exists, [`Error::File`].
pub fn create_new(path: &Path, bytes: &[u8]) -> Result<()> {
    match stamp_of_target(path)? {
        Some(_) => Err(Error::NotOurs { path: path.to_owned() }),
        None => Staged::write(path, bytes)?.commit(),
    }
}

/// Remove temporary files of killed runs. For the holder of the directory's lock.
pub fn remove_parts(folder: &Path) {
    remove_abandoned(folder, Duration::ZERO);
}

/// Remove temporary files that were not written to for `age`: for a directory without a lock.
pub fn remove_abandoned(folder: &Path, age: Duration) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        // `DirEntry::metadata` does not follow links.
        let Ok(metadata) = entry.metadata() else { continue };
        let unchanged = || metadata.modified().ok().and_then(|time| SystemTime::now().duration_since(time).ok());
        let old = age.is_zero() || unchanged().is_some_and(|unchanged| unchanged > age);
        if metadata.is_file() && old && entry.file_name().to_str().is_some_and(names::is_part) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
