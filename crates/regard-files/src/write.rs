//! Atomic writing: a temporary file beside its destination, synced, then renamed, so that a reader or a power failure finds the old bytes
//! or the new ones. A name is checked before it is replaced or removed, and what had it is checked again afterwards, where the system can
//! exchange two names: something that appeared in between gets its name back.

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
            Some(now) if now == *expected => self.exchange(expected),
            None => self.commit_new(),
            Some(_) => Err(Error::Changed { path: self.path.clone() }),
        }
    }

    /// Exchange names with the file that is replaced, and give both back where it is another one.
    fn exchange(self, expected: &Stamp) -> Result<Stamp> {
        let Some(temporary) = &self.temporary else { return Err(self.failed(ErrorKind::NotFound.into())) };
        match rename_atomically(temporary, &self.path, Rename::Exchange) {
            Err(e) if e.kind() == ErrorKind::NotFound => self.commit_new(),
            Err(_) => self.rename(),
            Ok(()) if is_file(temporary, expected) => self.settled(),
            Ok(()) => {
                rename_atomically(temporary, &self.path, Rename::Exchange).map_err(|e| self.failed(e))?;
                Err(Error::Changed { path: self.path.clone() })
            }
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

enum Rename {
    /// Both names exist.
    Exchange,
    /// The new name is free.
    New,
}

/// Rename in one step; an error where the system or the file system cannot.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn rename_atomically(from: &Path, to: &Path, how: Rename) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let flags = match how {
        Rename::Exchange => RenameFlags::EXCHANGE,
        Rename::New => RenameFlags::NOREPLACE,
    };
    Ok(renameat_with(CWD, from, CWD, to, flags)?)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn rename_atomically(_: &Path, _: &Path, _: Rename) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Whether a path has the file of a stamp, under whatever name that was taken.
fn is_file(path: &Path, expected: &Stamp) -> bool {
    stamp_of_target(path).is_ok_and(|found| found.is_some_and(|found| found.is_same_file(expected)))
}

/// Remove a file that is known by its stamp: it gets a name that nothing else has first. False where something else has its name.
///
/// # Errors
/// What the system says.
pub(crate) fn remove_known(path: &Path, expected: &Stamp) -> std::io::Result<bool> {
    let random = std::hash::RandomState::new();
    let aside = folder_of(path).join(names::part(random.hash_one((std::process::id(), SystemTime::now()))));
    match rename_atomically(path, &aside, Rename::New) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(_) => std::fs::remove_file(path).map(|()| true),
        Ok(()) if is_file(&aside, expected) => std::fs::remove_file(aside).map(|()| true),
        Ok(()) => rename_atomically(&aside, path, Rename::New).map(|()| false),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(folder: &Path) -> Vec<(String, String)> {
        let read =
            |path: PathBuf| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap_or_default());
        let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| read(entry.unwrap().path())).collect();
        all.sort();
        all
    }

    /// Between the check of a name and its renaming or removal, another program takes the name.
    #[test]
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    fn what_appears_after_the_check_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let (path, outside) = (dir.path().join("a.csv"), dir.path().join("outside"));
        std::fs::write(&outside, "precious").unwrap();
        let ours = || {
            let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
            std::fs::write(&path, "ours").unwrap();
            stamp_of_target(&path).unwrap().unwrap()
        };
        let plants: [(&str, &dyn Fn()); 3] = [
            ("a file", &|| {
                std::fs::write(dir.path().join("new"), "mine").and_then(|()| std::fs::rename(dir.path().join("new"), &path)).unwrap()
            }),
            ("a link", &|| std::fs::remove_file(&path).and_then(|()| std::os::unix::fs::symlink(&outside, &path)).unwrap()),
            ("a directory", &|| std::fs::remove_file(&path).and_then(|()| std::fs::create_dir(&path)).unwrap()),
        ];
        for (what, plant) in plants {
            let expected = ours();
            plant();
            let before = texts(dir.path());
            let staged = Staged::write(&path, b"new").unwrap();
            assert!(matches!(staged.exchange(&expected), Err(Error::Changed { .. })), "{what}");
            assert_eq!(texts(dir.path()), before, "{what} is not replaced");
            assert!(!remove_known(&path, &expected).unwrap(), "{what}");
            assert_eq!(texts(dir.path()), before, "{what} is not removed");
        }
        let expected = ours();
        let stamp = Staged::write(&path, b"new").unwrap().exchange(&expected).unwrap();
        assert_eq!(texts(dir.path())[0].1, "new");
        assert!(remove_known(&path, &stamp).unwrap());
        assert_eq!(texts(dir.path()), [("outside".to_owned(), "precious".to_owned())]);
    }
}
