//! The learner's files, through the file layer: regular files are read up to a limit, nothing foreign is replaced, no link is written
//! through.

use crate::error::{Error, Result};
use regard_files::FolderLock;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Largest answer of a learner, in bytes.
const ANSWER_LIMIT: u64 = 4 << 20;
/// How long to wait for another command in the same folder.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes of a regular file; `None` if there is none.
pub(crate) fn read_existing(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match regard_files::read_bytes(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(regard_files::Error::File { source, .. }) if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The bytes of a learner's file.
pub(crate) fn read_answer(path: &Path) -> Result<Vec<u8>> {
    Ok(regard_files::read_bytes(path, ANSWER_LIMIT)?)
}

/// Locks a folder, which is created where it is missing.
pub(crate) fn lock(folder: &Path) -> Result<FolderLock> {
    std::fs::create_dir_all(folder).map_err(|e| Error::file("create", folder, e))?;
    let start = Instant::now();
    loop {
        match regard_files::lock_folder(folder, false) {
            Err(regard_files::Error::Busy { .. }) if start.elapsed() < LOCK_TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            locked => return Ok(locked?),
        }
    }
}

/// Creates a file; false if the name is taken, by whatever.
pub(crate) fn create_new(path: &Path, bytes: &[u8]) -> Result<bool> {
    match regard_files::create_new(path, bytes) {
        Ok(()) => Ok(true),
        Err(regard_files::Error::NotOurs { .. } | regard_files::Error::NotAFile { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Creates a file under the first free name of `stem.ending`, `stem.1.ending`, ..
pub(crate) fn create_numbered(folder: &Path, stem: &str, ending: &str, bytes: &[u8]) -> Result<PathBuf> {
    let mut path = folder.join(format!("{stem}.{ending}"));
    let mut number = 1;
    while !create_new(&path, bytes)? {
        path = folder.join(format!("{stem}.{number}.{ending}"));
        number += 1;
    }
    Ok(path)
}

/// Gives a file the first free name of `stem.1.ending`, `stem.2.ending`, .. beside it.
pub(crate) fn move_aside(path: &Path, stem: &str, ending: &str) -> Result<PathBuf> {
    let mut number = 1;
    loop {
        let place = path.with_file_name(format!("{stem}.{number}.{ending}"));
        // A hard link fails if the name is taken: nothing is overwritten.
        match std::fs::hard_link(path, &place) {
            Ok(()) => return std::fs::remove_file(path).map(|()| place).map_err(|e| Error::file("move", path, e)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(e) => return Err(Error::file("move", path, e)),
        }
    }
}
