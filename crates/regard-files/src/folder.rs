//! [`Folder`]: a directory of results with a record of the files that Regard wrote.
//!
//! `.regard.json` records each file by its plain name: the command that wrote it, and the SHA-256 of its bytes. The command that wrote a
//! file may replace or remove it while its bytes are those recorded. Any other file under such a name is an error, which
//! [`Folder::reserve`] reports before the work. The directory is locked while it is open, where the file system has locks.

use crate::digest::{Hasher, digest};
use crate::error::{Error, Result};
use crate::limits::STATE_BYTES;
use crate::names::{MANIFEST, fits, writer};
use crate::read::{open_own, read_up_to};
use crate::stamp::{FolderLock, Stamp, lock_folder, stamp_of_target};
use crate::write::{Staged, probe, remove_known, remove_parts};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A recorded file. While it is being replaced, both digests are recorded: a kill may leave either.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    command: String,
    sha256: Vec<String>,
}

type Record = BTreeMap<String, Entry>;

/// A directory that one command writes results to.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    command: String,
    record: Record,
    /// Of the record's file, as it was read or written last.
    record_stamp: Option<Stamp>,
    /// Files that this run wrote; unchanged while they have these stamps.
    stamps: BTreeMap<String, Stamp>,
    written: BTreeSet<String>,
    _lock: FolderLock,
}

/// State of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Free,
    /// A file with recorded bytes.
    Ours(Stamp),
    /// A recorded file with other bytes.
    Changed(Stamp),
    /// A file that is not recorded.
    Foreign,
}

/// Whether it names a file directly below the directory, on any system, other than the record and temporary files.
fn is_plain(name: &str) -> bool {
    let separators = ['/', '\\', ':', '\0'];
    !name.is_empty() && name != "." && name != ".." && !name.contains(separators) && !name.starts_with(".regard")
}

fn digest_of_own(path: &Path) -> Result<String> {
    let mut hasher = Hasher::new();
    let mut file = open_own(path)?;
    hasher.update_from(&mut file).map_err(|source| Error::File { action: "read", path: path.to_owned(), source })?;
    Ok(hasher.finish())
}

/// The record of a directory with the stamp of its file; empty where there is none.
fn read_record(folder: &Path) -> Result<(Record, Option<Stamp>)> {
    let path = folder.join(MANIFEST);
    let Some(stamp) = stamp_of_target(&path)? else { return Ok((Record::new(), None)) };
    let damaged = |reason: String| Error::Record { path: path.clone(), reason };
    let bytes = read_up_to(&path, &mut open_own(&path)?, STATE_BYTES.max)?;
    let record: Record = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
    match record.keys().find(|name| !is_plain(name)) {
        Some(name) => Err(damaged(format!("{name:?} is not a plain file name"))),
        None => Ok((record, Some(stamp))),
    }
}

/// The recorded files of a directory, for readers.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    record: Record,
    /// Whether the directory has a record.
    pub exists: bool,
}

/// Read the record of a directory; empty where there is none.
///
/// # Errors
/// [`Error::Record`] when it is not valid or names anything but files of the directory.
pub fn recorded(folder: &Path) -> Result<Recorded> {
    let (record, stamp) = read_record(folder)?;
    Ok(Recorded { record, exists: stamp.is_some() })
}

impl Recorded {
    /// Names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.record.keys().map(String::as_str)
    }

    /// Whether a name is recorded.
    pub fn contains(&self, name: &str) -> bool {
        self.record.contains_key(name)
    }

    /// Whether these bytes are recorded for the name.
    pub fn has(&self, name: &str, bytes: &[u8]) -> bool {
        self.record.get(name).is_some_and(|entry| entry.sha256.contains(&digest(bytes)))
    }
}

impl Folder {
    /// Create the directory where it does not exist, lock it, read its record, remove temporary files of killed runs.
    ///
    /// # Errors
    /// [`Error::Directory`] when it cannot be created or written to, [`Error::Record`] and [`Error::NotAFile`] when its record is not
    /// valid, [`Error::Busy`] when another process has it open.
    pub fn open(path: &Path, command: &str) -> Result<Self> {
        Self::open_with(path, command, false)
    }

    /// [`Folder::open`] that waits for another process instead of returning [`Error::Busy`].
    ///
    /// # Errors
    /// Those of [`Folder::open`].
    pub fn open_waiting(path: &Path, command: &str) -> Result<Self> {
        Self::open_with(path, command, true)
    }

    fn open_with(path: &Path, command: &str, wait: bool) -> Result<Self> {
        let refused = |source| Error::Directory { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(refused)?;
        let lock = lock_folder(path, wait)?;
        let (record, record_stamp) = read_record(path)?;
        probe(path).map_err(refused)?;
        if lock.is_held() {
            remove_parts(path);
        }
        let (stamps, written) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { path: path.to_owned(), command: command.to_owned(), record, record_stamp, stamps, written, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the directory had a record when it was opened, or has one now.
    pub fn has_record(&self) -> bool {
        self.record_stamp.is_some()
    }

    /// Whether a name is recorded.
    pub fn is_recorded(&self, name: &str) -> bool {
        self.record.contains_key(name)
    }

    fn state(&self, name: &str) -> Result<State> {
        let path = self.path.join(name);
        let Some(stamp) = stamp_of_target(&path)? else { return Ok(State::Free) };
        let Some(entry) = self.record.get(name) else { return Ok(State::Foreign) };
        if self.stamps.get(name) == Some(&stamp) || entry.sha256.contains(&digest_of_own(&path)?) {
            return Ok(State::Ours(stamp));
        }
        Ok(State::Changed(stamp))
    }

    /// The stamp of the file that may be replaced; `None` where the name is free.
    fn check(&self, name: &str) -> Result<Option<Stamp>> {
        let path = self.path.join(name);
        if !is_plain(name) {
            return Err(Error::NotOurs { path });
        }
        match self.state(name)? {
            State::Free => Ok(None),
            State::Ours(stamp) => Ok(Some(stamp)),
            State::Changed(_) => Err(Error::Changed { path }),
            State::Foreign => Err(Error::NotOurs { path }),
        }
    }

    /// Check, before any work, that files of these names can be written.
    ///
    /// # Errors
    /// [`Error::NotOurs`], [`Error::Changed`] and [`Error::NotAFile`] when something else has one of the names.
    pub fn reserve<S: AsRef<str>>(&self, names: &[S]) -> Result<()> {
        names.iter().try_for_each(|name| self.check(name.as_ref()).map(|_| ()))
    }

    /// Record a file of an earlier version, which had no record, after `is_ours` accepted its bytes. False where the name is free or
    /// recorded, or the bytes are refused.
    ///
    /// # Errors
    /// [`Error::NotAFile`], and when the file cannot be read.
    pub fn adopt(&mut self, name: &str, limit: u64, is_ours: impl FnOnce(&[u8]) -> bool) -> Result<bool> {
        let path = self.path.join(name);
        if stamp_of_target(&path)?.is_none() || self.record.contains_key(name) || !is_plain(name) {
            return Ok(false);
        }
        let bytes = read_up_to(&path, &mut open_own(&path)?, limit)?;
        let ours = is_ours(&bytes);
        if ours {
            self.record.insert(name.to_owned(), Entry { command: self.command.clone(), sha256: vec![digest(&bytes)] });
        }
        Ok(ours)
    }

    /// Accept the present bytes of a recorded file that was changed: for an explicit `--overwrite`.
    ///
    /// # Errors
    /// [`Error::NotAFile`], and when the file cannot be read.
    pub fn accept_change(&mut self, name: &str) -> Result<()> {
        if let State::Changed(stamp) = self.state(name)? {
            self.stamps.insert(name.to_owned(), stamp);
        }
        Ok(())
    }

    /// Write files, in this order; a name may occur twice. Nothing is written unless all names can be.
    ///
    /// # Errors
    /// Those of [`Folder::reserve`], and when the operating system refuses.
    pub fn write_all<N: AsRef<str>, B: AsRef<[u8]>>(&mut self, files: &[(N, B)]) -> Result<()> {
        let table = writer(&self.command).names;
        for (name, _) in files {
            let name = name.as_ref();
            debug_assert!(table.iter().any(|pattern| fits(pattern, name)), "{name} is not in the table of names for {}", self.command);
            self.check(name)?;
        }
        let mut pending = Vec::new();
        for (name, bytes) in files {
            let (name, new) = (name.as_ref().to_owned(), digest(bytes));
            let entry = self.record.entry(name.clone()).or_insert_with(|| Entry { command: String::new(), sha256: Vec::new() });
            if stamp_of_target(&self.path.join(&name))?.is_none() && !pending.iter().any(|(other, _)| *other == name) {
                entry.sha256.clear();
            }
            entry.command.clone_from(&self.command);
            if !entry.sha256.contains(&new) {
                entry.sha256.push(new.clone());
            }
            pending.push((name, new));
        }
        // On a full disk nothing is replaced.
        let staged = files.iter().map(|(name, bytes)| Staged::write(&self.path.join(name.as_ref()), bytes.as_ref()));
        let staged = staged.collect::<Result<Vec<_>>>()?;
        // Recorded before they exist: an interrupted run leaves no file without an owner.
        self.write_record()?;
        for ((name, new), staged) in pending.into_iter().zip(staged) {
            let stamp = match self.check(&name)? {
                Some(old) => staged.replace(&old)?,
                None => staged.commit_new()?,
            };
            self.stamps.insert(name.clone(), stamp);
            self.record.insert(name.clone(), Entry { command: self.command.clone(), sha256: vec![new] });
            self.written.insert(name);
        }
        Ok(())
    }

    /// Keep a file of an earlier run that this one does not write.
    pub fn keep(&mut self, name: &str) {
        self.written.insert(name.to_owned());
    }

    /// Remove one file, if its bytes are recorded. Returns whether it was removed.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn remove(&mut self, name: &str) -> Result<bool> {
        let path = self.path.join(name);
        let Ok(State::Ours(stamp)) = self.state(name) else { return Ok(false) };
        if !remove_known(&path, &stamp).map_err(|source| Error::File { action: "remove", path, source })? {
            return Ok(false);
        }
        self.record.remove(name);
        self.stamps.remove(name);
        Ok(true)
    }

    /// Write the record without digests of replaced bytes.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn settle(&mut self) -> Result<()> {
        self.write_record()
    }

    /// Remove the files of an earlier run of the same command that this one did not write, and return their names. Changed files stay.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn finish(mut self) -> Result<Vec<String>> {
        let stale = |(name, entry): &(&String, &Entry)| entry.command == self.command && !self.written.contains(*name);
        let stale: Vec<String> = self.record.iter().filter(stale).map(|(name, _)| name.clone()).collect();
        let mut removed = Vec::new();
        for name in stale {
            if self.remove(&name)? {
                removed.push(name.clone());
            }
            self.record.remove(&name);
        }
        self.write_record()?;
        Ok(removed)
    }

    fn write_record(&mut self) -> Result<()> {
        let mut text = serde_json::to_string_pretty(&self.record).expect("a map of texts is JSON");
        text.push('\n');
        let staged = Staged::write(&self.path.join(MANIFEST), text.as_bytes())?;
        let stamp = match &self.record_stamp {
            Some(old) => staged.replace(old)?,
            None => staged.commit_new()?,
        };
        self.record_stamp = Some(stamp);
        Ok(())
    }
}

#[cfg(test)]
#[path = "../tests/unit/folder.rs"]
mod tests;
