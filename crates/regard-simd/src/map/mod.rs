//! Files as memory: [`MappedFile`].

#[cfg(all(unix, not(miri)))]
mod fault;

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The bytes of a file, which the system reads when they are touched and gives up when memory is short.
///
/// Files that are replaced by renaming are safe. Another program that shortens the file itself takes pages away:
/// [`MappedFile::check_unchanged`] finds that before they are read, and a read that comes too late ends the program with exit code 1 and a
/// line on the standard error that names the file (on Unix).
#[derive(Debug)]
pub struct MappedFile {
    #[cfg(all(unix, not(miri)))]
    _watched: fault::Watched,
    map: memmap2::Mmap,
    file: File,
    path: PathBuf,
    state: State,
}

/// What a change of the file changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    len: u64,
    modified: Option<SystemTime>,
}

impl State {
    fn of(metadata: &Metadata) -> Self {
        Self { len: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl MappedFile {
    /// Map a file.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        // SAFETY: the map is private to this process and read only; that no other program writes to the file meanwhile is what the
        // documentation asks for, and `check_unchanged` checks.
        let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }?;
        Ok(Self {
            #[cfg(all(unix, not(miri)))]
            _watched: fault::Watched::new(&map, path),
            map,
            file,
            path: path.to_owned(),
            state: State::of(&metadata),
        })
    }

    /// The file's name, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file has the length and the time of modification that it was opened with; costs one system call.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] when it was changed, and what the system says.
    pub fn check_unchanged(&self) -> io::Result<()> {
        if State::of(&self.file.metadata()?) == self.state {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "it was changed after it was opened: open it again"))
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

#[cfg(test)]
#[path = "../../tests/unit/map.rs"]
mod tests;
