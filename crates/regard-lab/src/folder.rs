//! [`Folder`]: a directory of results that knows which of its files are Regard's.
//!
//! `.regard.json` lists each file with the command that wrote it. A command replaces what it wrote earlier, removes what it no
//! longer writes, and touches nothing else: a file of the same name that is not listed is an error. One run at a time: the directory is locked
//! while it is open, where the file system can.

use crate::error::{Error, Result};
use crate::table_file::write_atomically;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// The list of files.
pub const MANIFEST: &str = ".regard.json";

/// A directory that results are written to by one command.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    command: String,
    /// File name to command.
    owners: BTreeMap<String, String>,
    written: BTreeSet<String>,
    /// The lock goes with it.
    _held: Option<File>,
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

impl Folder {
    /// Make the directory where it is not there, and read its list.
    ///
    /// # Errors
    /// When the directory cannot be made or written to, and [`Error::Busy`] when another run has it open.
    pub fn open(path: &Path, command: &str) -> Result<Self> {
        let refused = |source| Error::Directory { path: path.to_owned(), source };
        std::fs::create_dir_all(path).map_err(refused)?;
        let held = hold(path)?;
        let owners = match std::fs::read(path.join(MANIFEST)) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| Error::NotATable { path: path.join(MANIFEST), reason: format!("the list of files is damaged ({e})") })?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(refused(e)),
        };
        // Found out now, not after the experiment has run.
        let probe = path.join(format!(".regard.{}.probe", std::process::id()));
        std::fs::write(&probe, []).map_err(refused)?;
        std::fs::remove_file(&probe).map_err(refused)?;
        Ok(Self { path: path.to_owned(), command: command.to_owned(), owners, written: BTreeSet::new(), _held: held })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Write a file of this command's.
    ///
    /// # Errors
    /// [`Error::NotOurs`] when somebody else's file has that name.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path.join(name);
        if !self.owners.contains_key(name) && path.symlink_metadata().is_ok() {
            return Err(Error::NotOurs { path });
        }
        // Listed before it is there: an interrupted run must not leave a file that nobody owns.
        if self.owners.insert(name.to_owned(), self.command.clone()).as_ref() != Some(&self.command) {
            self.write_list()?;
        }
        self.written.insert(name.to_owned());
        write_atomically(&path, bytes)
    }

    /// A file that stays as it is.
    pub fn keep(&mut self, name: &str) {
        self.written.insert(name.to_owned());
    }

    /// Remove what an earlier run of the same command wrote and this one did not.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn finish(mut self) -> Result<()> {
        let stale: Vec<String> = self
            .owners
            .iter()
            .filter(|(name, command)| **command == self.command && !self.written.contains(*name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in stale {
            let path = self.path.join(&name);
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(Error::File { action: "remove", path, source }),
                _ => self.owners.remove(&name),
            };
        }
        self.write_list()
    }

    fn write_list(&self) -> Result<()> {
        let mut text = serde_json::to_string_pretty(&self.owners).expect("a map of texts is JSON");
        text.push('\n');
        write_atomically(&self.path.join(MANIFEST), text.as_bytes())
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

    #[test]
    fn a_second_run_replaces_its_own_files_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        for (command, files) in [("sweep", &["a.csv", "b.csv"][..]), ("heads", &["c.csv"]), ("sweep", &["a.csv"])] {
            let mut folder = Folder::open(dir.path(), command).unwrap();
            for file in files {
                folder.write(file, command.as_bytes()).unwrap();
            }
            folder.finish().unwrap();
        }
        assert_eq!(names(dir.path()), [".regard.json", "a.csv", "c.csv", "notes.txt"]);
        assert_eq!(std::fs::read(dir.path().join("notes.txt")).unwrap(), b"mine");
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.csv"), "mine").unwrap();
        let mut folder = Folder::open(dir.path(), "sweep").unwrap();
        assert!(matches!(folder.write("a.csv", b"ours"), Err(Error::NotOurs { .. })));
        assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"mine");
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
