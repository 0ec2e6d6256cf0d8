//! [`Folder`]: a directory of results that knows which of its files are Regard's.
//!
//! `.regard.json` records each file by its plain name: the command that wrote it, and the SHA-256 of its bytes. A file is ours when its bytes
//! are recorded. What is ours may be replaced or removed by the command that wrote it; whatever else has the same name was written
//! or changed by somebody else and is an error, which [`Folder::reserve`] finds before any work is done. One run at a time: the directory is
//! locked while it is open, where the file system can.

use crate::error::{Error, Result};
use crate::write::{remove_parts, write_atomic};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The record of files.
pub const MANIFEST: &str = ".regard.json";

/// A file of ours. While it is being replaced, its old bytes and its new ones are both ours: a kill may leave either.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    command: String,
    sha256: Vec<String>,
}

type Record = BTreeMap<String, Entry>;

/// A directory that results are written to by one command.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    command: String,
    record: Record,
    written: BTreeSet<String>,
    /// The lock goes with it.
    _held: Option<File>,
}

/// What stands under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Nothing,
    /// A file with recorded bytes.
    Ours,
    /// A file that was recorded and has other bytes now.
    Changed,
    /// Something that no run of ours wrote.
    Foreign,
}

/// The directory, locked; `None` where directories cannot be locked.
fn hold(path: &Path) -> Result<Option<File>> {
    let Ok(directory) = File::open(path) else { return Ok(None) };
    match directory.try_lock() {
        Ok(()) => Ok(Some(directory)),
        Err(TryLockError::WouldBlock) => Err(Error::Busy { path: path.to_owned() }),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Whether it names a file directly below the directory, on any system, and none of the record's own.
fn is_plain(name: &str) -> bool {
    let separators = ['/', '\\', ':', '\0'];
    !name.is_empty() && name != "." && name != ".." && !name.contains(separators) && !name.starts_with(".regard")
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    hexadecimal(Sha256::new_with_prefix(bytes))
}

fn digest_of_file(path: &Path) -> std::io::Result<String> {
    let (mut file, mut hash, mut piece) = (File::open(path)?, Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hexadecimal(hash)),
            n => hash.update(&piece[..n]),
        }
    }
}

/// The record of a directory; empty where there is none.
fn read_record(folder: &Path) -> Result<Record> {
    let path = folder.join(MANIFEST);
    let damaged = |reason: String| Error::Record { path: path.clone(), reason };
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Record::new()),
        Err(source) => return Err(Error::File { action: "read", path, source }),
    };
    let record: Record = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
    match record.keys().find(|name| !is_plain(name)) {
        Some(name) => Err(damaged(format!("{name:?} is not a plain file name"))),
        None => Ok(record),
    }
}

/// The files that a directory's record has, in order; empty where there is no record.
///
/// # Errors
/// [`Error::Record`] when it is damaged or names anything but files of the directory.
pub fn recorded(folder: &Path) -> Result<Vec<String>> {
    Ok(read_record(folder)?.into_keys().collect())
}

impl Folder {
    /// Make the directory where it is not there, and read its record. What a killed run left half-written is removed.
    ///
    /// # Errors
    /// When the directory cannot be made or written to, [`Error::Record`] when its record cannot be trusted, and [`Error::Busy`] when
    /// another run has it open.
    pub fn open(path: &Path, command: &str) -> Result<Self> {
        let refused = |source| Error::Directory { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(refused)?;
        let held = hold(path)?;
        let record = read_record(path)?;
        // Found out now, not after the experiment has run.
        tempfile::tempfile_in(path).map_err(refused)?;
        if held.is_some() {
            remove_parts(path);
        }
        Ok(Self { path: path.to_owned(), command: command.to_owned(), record, written: BTreeSet::new(), _held: held })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn standing(&self, name: &str) -> Result<Standing> {
        let path = self.path.join(name);
        let Ok(metadata) = path.symlink_metadata() else { return Ok(Standing::Nothing) };
        let Some(entry) = self.record.get(name) else { return Ok(Standing::Foreign) };
        if !metadata.is_file() {
            return Ok(Standing::Foreign);
        }
        let now = digest_of_file(&path).map_err(|source| Error::File { action: "read", path, source })?;
        Ok(if entry.sha256.contains(&now) { Standing::Ours } else { Standing::Changed })
    }

    /// Find out, before any work, whether files of these names can be written.
    ///
    /// # Errors
    /// [`Error::NotOurs`] and [`Error::Changed`] when somebody else's file, or somebody else's bytes, have one of the names.
    pub fn reserve<S: AsRef<str>>(&self, names: &[S]) -> Result<()> {
        names.iter().try_for_each(|name| self.check(name.as_ref()))
    }

    fn check(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        match self.standing(name)? {
            _ if !is_plain(name) => Err(Error::NotOurs { path }),
            Standing::Nothing | Standing::Ours => Ok(()),
            Standing::Changed => Err(Error::Changed { path }),
            Standing::Foreign => Err(Error::NotOurs { path }),
        }
    }

    /// Write files of this command's.
    ///
    /// # Errors
    /// Those of [`Folder::reserve`], before anything is written, and when the system refuses.
    pub fn write_all(&mut self, files: &[(String, Vec<u8>)]) -> Result<()> {
        files.iter().try_for_each(|(name, _)| self.check(name))?;
        let hashes: Vec<String> = files.iter().map(|(_, bytes)| digest(bytes)).collect();
        for ((name, _), new) in files.iter().zip(&hashes) {
            let old = self.record.get(name).filter(|_| self.path.join(name).exists());
            let mut sha256 = old.map_or_else(Vec::new, |entry| entry.sha256.clone());
            if !sha256.contains(new) {
                sha256.push(new.clone());
            }
            self.record.insert(name.clone(), Entry { command: self.command.clone(), sha256 });
        }
        // Recorded before they are there: an interrupted run must not leave a file that nobody owns.
        self.write_record()?;
        for ((name, bytes), new) in files.iter().zip(hashes) {
            write_atomic(&self.path.join(name), bytes)?;
            self.record.insert(name.clone(), Entry { command: self.command.clone(), sha256: vec![new] });
            self.written.insert(name.clone());
        }
        Ok(())
    }

    /// A file that stays as it is.
    pub fn keep(&mut self, name: &str) {
        self.written.insert(name.to_owned());
    }

    /// Remove what an earlier run of the same command wrote and this one did not, and say what that was. What was changed since stays.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn finish(mut self) -> Result<Vec<String>> {
        let stale = |(name, entry): &(&String, &Entry)| entry.command == self.command && !self.written.contains(*name);
        let stale: Vec<String> = self.record.iter().filter(stale).map(|(name, _)| name.clone()).collect();
        let mut removed = Vec::new();
        for name in stale {
            if self.standing(&name)? == Standing::Ours {
                let path = self.path.join(&name);
                std::fs::remove_file(&path).map_err(|source| Error::File { action: "remove", path, source })?;
                removed.push(name.clone());
            }
            self.record.remove(&name);
        }
        self.write_record()?;
        Ok(removed)
    }

    fn write_record(&self) -> Result<()> {
        let mut text = serde_json::to_string_pretty(&self.record).expect("a map of texts is JSON");
        text.push('\n');
        write_atomic(&self.path.join(MANIFEST), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// One run of a command that writes these files.
    fn run(path: &Path, command: &str, files: &[(&str, &str)]) -> Result<Vec<String>> {
        let mut folder = Folder::open(path, command)?;
        folder.write_all(&files.iter().map(|(name, content)| ((*name).to_owned(), content.as_bytes().to_vec())).collect::<Vec<_>>())?;
        folder.finish()
    }

    #[test]
    fn a_second_run_replaces_its_own_files_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        assert!(run(dir.path(), "sweep", &[("a.csv", "1"), ("b.csv", "1")]).unwrap().is_empty());
        assert!(run(dir.path(), "heads", &[("c.csv", "1")]).unwrap().is_empty());
        assert_eq!(run(dir.path(), "sweep", &[("a.csv", "2")]).unwrap(), ["b.csv"]);
        assert_eq!(names(dir.path()), [".regard.json", "a.csv", "c.csv", "notes.txt"]);
        assert_eq!(std::fs::read(dir.path().join("notes.txt")).unwrap(), b"mine");
        assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"2");
        assert_eq!(recorded(dir.path()).unwrap(), ["a.csv", "c.csv"]);
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone_and_found_before_any_work() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.csv"), "mine").unwrap();
        let mut folder = Folder::open(dir.path(), "sweep").unwrap();
        assert!(matches!(folder.reserve(&["b.csv", "a.csv"]), Err(Error::NotOurs { .. })));
        assert!(folder.reserve(&["b.csv"]).is_ok());
        let ours = [("b.csv".to_owned(), b"ours".to_vec()), ("a.csv".to_owned(), b"ours".to_vec())];
        assert!(matches!(folder.write_all(&ours), Err(Error::NotOurs { .. })));
        assert!(!dir.path().join("b.csv").exists(), "nothing is written unless everything can be");
        assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"mine");
    }

    #[test]
    fn a_file_that_was_changed_since_is_neither_replaced_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), "sweep", &[("a.csv", "1"), ("b.csv", "1")]).unwrap();
        std::fs::write(dir.path().join("a.csv"), "edited").unwrap();
        let folder = Folder::open(dir.path(), "sweep").unwrap();
        assert!(matches!(folder.reserve(&["a.csv"]), Err(Error::Changed { .. })));
        assert_eq!(folder.finish().unwrap(), ["b.csv"]);
        assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"edited");
    }

    #[test]
    fn a_record_with_anything_but_plain_names_is_not_obeyed() {
        for name in ["../precious.txt", "/tmp/precious.txt", "below/precious.txt", "..", "", "C:precious.txt", "a\\\\b", ".regard.json"] {
            let dir = tempfile::tempdir().unwrap();
            let (precious, host) = (dir.path().join("precious.txt"), dir.path().join("host"));
            std::fs::create_dir(&host).unwrap();
            std::fs::write(&precious, "mine").unwrap();
            let hash = digest(b"mine");
            std::fs::write(host.join(MANIFEST), format!("{{\"{name}\": {{\"command\": \"report\", \"sha256\": [\"{hash}\"]}}}}")).unwrap();
            let error = Folder::open(&host, "report").unwrap_err();
            assert!(matches!(error, Error::Record { .. }), "{name}: {error}");
            assert!(precious.exists());
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(MANIFEST), "{\"a.csv\": \"report\"}").unwrap();
        assert!(matches!(Folder::open(dir.path(), "report"), Err(Error::Record { .. })), "without a hash nothing is provably ours");
    }

    #[test]
    fn a_run_that_was_killed_between_record_and_file_owns_the_old_bytes_still() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path(), "sweep", &[("a.csv", "old")]).unwrap();
        let mut folder = Folder::open(dir.path(), "sweep").unwrap();
        folder.write_all(&[("a.csv".to_owned(), b"new".to_vec())]).unwrap();
        drop(folder);
        // As a kill leaves it: the record has been written, the file has not.
        std::fs::write(dir.path().join("a.csv"), "old").unwrap();
        assert!(run(dir.path(), "sweep", &[("a.csv", "newer")]).is_ok());
    }

    #[test]
    fn what_a_killed_run_left_half_written_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(".regard-Ab12Cd.part"), "half").unwrap();
        for mine in ["notes.part", ".regard-notes-of-mine.part", ".regard-a b c.part"] {
            std::fs::write(dir.path().join(mine), "mine").unwrap();
        }
        drop(Folder::open(dir.path(), "sweep").unwrap());
        assert_eq!(names(dir.path()), [".regard-a b c.part", ".regard-notes-of-mine.part", "notes.part"]);
    }

    #[test]
    fn one_run_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = Folder::open(dir.path(), "train").unwrap();
        let error = Folder::open(dir.path(), "sweep").unwrap_err();
        assert!(matches!(error, Error::Busy { .. }), "{error}");
        drop(first);
        Folder::open(dir.path(), "sweep").unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Folder::open(&file.join("below"), "sweep").unwrap_err();
        assert!(matches!(error, Error::Directory { .. }), "{error}");
    }
}
