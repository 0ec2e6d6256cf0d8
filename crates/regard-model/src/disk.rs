//! Where files of models are read: on the disk, and in a browser tab among those that were handed over.

#[cfg(not(target_family = "wasm"))]
mod system {
    use std::io::{self, Read};
    use std::path::{Path, PathBuf};

    pub(crate) fn is_file(path: &Path) -> bool {
        path.is_file()
    }

    pub(crate) fn is_dir(path: &Path) -> bool {
        path.is_dir()
    }

    pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    /// The first `len` bytes, or the whole file where it is shorter.
    pub(crate) fn start(path: &Path, len: u64) -> io::Result<Vec<u8>> {
        let mut start = Vec::new();
        std::fs::File::open(path)?.take(len).read_to_end(&mut start)?;
        Ok(start)
    }

    /// The entries of a folder, sorted.
    pub(crate) fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        Ok(paths)
    }
}

#[cfg(target_family = "wasm")]
mod system {
    use regard::MappedFile;
    use std::io;
    use std::path::{Path, PathBuf};

    pub(crate) fn is_file(path: &Path) -> bool {
        MappedFile::open(path).is_ok()
    }

    pub(crate) fn is_dir(path: &Path) -> bool {
        !is_file(path) && MappedFile::list().iter().any(|file| file.starts_with(path))
    }

    pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
        Ok(MappedFile::open(path)?.as_ref().to_vec())
    }

    /// The first `len` bytes, or the whole file where it is shorter.
    pub(crate) fn start(path: &Path, len: u64) -> io::Result<Vec<u8>> {
        Ok(MappedFile::open(path)?.as_ref().iter().take(len as usize).copied().collect())
    }

    /// The files of a folder, sorted.
    pub(crate) fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(MappedFile::list().into_iter().filter(|path| path.parent() == Some(folder)).collect())
    }
}

use std::io;
use std::path::Path;

pub(crate) use system::{is_dir, is_file, list, read, start};

pub(crate) fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}
