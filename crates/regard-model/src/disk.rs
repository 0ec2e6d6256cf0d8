//! Where files of models are read: on the disk, and in a browser tab among those that were handed over.

#[cfg(not(target_family = "wasm"))]
mod system {
    use crate::error::Result;
    use regard_files::limits::Limit;
    use std::io::{self, Read};
    use std::path::{Path, PathBuf};

    /// Something is there, whatever it is.
    pub(crate) fn exists(path: &Path) -> bool {
        path.exists()
    }

    pub(crate) fn is_file(path: &Path) -> bool {
        path.is_file()
    }

    pub(crate) fn is_dir(path: &Path) -> bool {
        path.is_dir()
    }

    pub(crate) fn read(path: &Path, limit: Limit) -> Result<Vec<u8>> {
        Ok(regard_files::read_bytes(path, limit.max)?)
    }

    /// The first `len` bytes, or the whole file where it is shorter.
    pub(crate) fn start(path: &Path, len: u64) -> Result<Vec<u8>> {
        let mut start = Vec::new();
        let read = regard_files::open_file(path)?.take(len).read_to_end(&mut start);
        read.map_err(|source| crate::Error::file(path, source))?;
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
    use crate::error::{Error, Result};
    use regard::MappedFile;
    use regard_files::limits::Limit;
    use std::io;
    use std::path::{Path, PathBuf};

    pub(crate) fn exists(path: &Path) -> bool {
        is_file(path)
    }

    pub(crate) fn is_file(path: &Path) -> bool {
        MappedFile::open(path).is_ok()
    }

    pub(crate) fn is_dir(path: &Path) -> bool {
        !is_file(path) && MappedFile::list().iter().any(|file| file.starts_with(path))
    }

    /// Files of a tab are in memory already.
    pub(crate) fn read(path: &Path, _: Limit) -> Result<Vec<u8>> {
        start(path, u64::MAX)
    }

    /// The first `len` bytes, or the whole file where it is shorter.
    pub(crate) fn start(path: &Path, len: u64) -> Result<Vec<u8>> {
        let file = MappedFile::open(path).map_err(|source| Error::file(path, source))?;
        Ok(file.as_ref().iter().take(usize::try_from(len).unwrap_or(usize::MAX)).copied().collect())
    }

    /// The files of a folder, sorted.
    pub(crate) fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(MappedFile::list().into_iter().filter(|path| path.parent() == Some(folder)).collect())
    }
}

use crate::error::{Error, Result};
use regard_files::limits::{STATE_BYTES, TOKENIZER_BYTES};
use serde_json::Value;
use std::path::Path;

pub(crate) use system::{is_dir, is_file, list, read, start};

/// The text of a vocabulary.
pub(crate) fn vocabulary(path: &Path) -> Result<String> {
    String::from_utf8(read(path, TOKENIZER_BYTES)?).map_err(|e| Error::damaged(path, format!("it is not UTF-8 ({e})")))
}

/// A file of settings.
pub(crate) fn json(path: &Path) -> Result<Value> {
    serde_json::from_slice(&read(path, STATE_BYTES)?).map_err(|e| Error::damaged(path, format!("it is not JSON ({e})")))
}

/// A file of settings, null where there is none. A damaged one is an error: without its settings a model computes something else.
pub(crate) fn json_if_there(path: &Path) -> Result<Value> {
    if system::exists(path) { json(path) } else { Ok(Value::Null) }
}
