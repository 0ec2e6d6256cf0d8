//! What exists under a name, without following links, and locks of directories.

use crate::error::{Error, Result};
use std::fs::{File, Metadata, TryLockError};
use std::path::Path;

/// Identity and state of a regular file: equal stamps mean that the file was neither replaced nor written to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    len: u64,
    modified: Option<std::time::SystemTime>,
    inode: [i64; 4],
}

impl Stamp {
    /// The same file with the same bytes, whatever its name: renaming changes the time of the inode.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.len, self.modified, &self.inode[..2]) == (other.len, other.modified, &other.inode[..2])
    }

    /// The stamp of what is at a path now; `None` where nothing can be seen.
    pub fn at(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|metadata| Self::of(&metadata))
    }

    #[cfg(unix)]
    pub(crate) fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let inode = [metadata.dev().cast_signed(), metadata.ino().cast_signed(), metadata.ctime(), metadata.ctime_nsec()];
        Self { len: metadata.len(), modified: metadata.modified().ok(), inode }
    }

    #[cfg(not(unix))]
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { len: metadata.len(), modified: metadata.modified().ok(), inode: [0; 4] }
    }
}

/// What a metadata entry is, in words.
pub(crate) fn kind(metadata: &Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return "named pipe";
        }
        if kind.is_socket() {
            return "socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "device";
        }
    }
    match metadata.file_type() {
        kind if kind.is_symlink() => "symbolic link",
        kind if kind.is_dir() => "directory",
        kind if kind.is_file() => "file",
        _ => "special file",
    }
}

/// The stamp of a regular file at a path to be written; `None` where nothing exists. Links are not followed.
///
/// # Errors
/// [`Error::NotAFile`] for a link, a directory, a pipe, a socket or a device.
pub(crate) fn stamp_of_target(path: &Path) -> Result<Option<Stamp>> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(Some(Stamp::of(&metadata))),
        Ok(metadata) => {
            let advice = "it is left alone; move it, or choose another name or directory";
            Err(Error::NotAFile { path: path.to_owned(), kind: kind(&metadata), advice })
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { action: "read", path: path.to_owned(), source }),
    }
}

/// Check that a path to be written is free or a regular file. Links are not followed.
///
/// # Errors
/// [`Error::NotAFile`].
pub fn check_target(path: &Path) -> Result<()> {
    stamp_of_target(path).map(|_| ())
}

/// An exclusive lock of a directory, held until dropped; no lock where the file system has none.
#[derive(Debug)]
pub struct FolderLock(Option<File>);

impl FolderLock {
    /// Whether the file system granted the lock.
    pub fn is_held(&self) -> bool {
        self.0.is_some()
    }
}

/// The directory itself.
#[cfg(unix)]
fn lock_handle(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

/// A file of the system's temporary folder, named by the directory's path: Windows does not lock directories.
#[cfg(not(unix))]
fn lock_handle(path: &Path) -> std::io::Result<File> {
    let name = crate::digest::digest(path.canonicalize()?.as_os_str().as_encoded_bytes());
    File::options().create(true).append(true).open(std::env::temp_dir().join(format!("regard-{name}.lock")))
}

/// Lock a directory: wait for another process, or return [`Error::Busy`]. No file is created in it.
///
/// # Errors
/// [`Error::Busy`].
pub fn lock_folder(path: &Path, wait: bool) -> Result<FolderLock> {
    let Ok(directory) = lock_handle(path) else { return Ok(FolderLock(None)) };
    if wait {
        return Ok(FolderLock(directory.lock().is_ok().then_some(directory)));
    }
    match directory.try_lock() {
        Ok(()) => Ok(FolderLock(Some(directory))),
        Err(TryLockError::WouldBlock) => Err(Error::Busy { path: path.to_owned() }),
        Err(TryLockError::Error(_)) => Ok(FolderLock(None)),
    }
}
