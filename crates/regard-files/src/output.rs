//! [`Output`]: one file outside a [`Folder`](crate::Folder), checked before the work and written after it.

use crate::digest::digest;
use crate::error::{Error, Result};
use crate::read::{open_own, read_up_to};
use crate::stamp::{Stamp, stamp_of_target};
use crate::write::{Staged, probe};
use std::path::{Path, PathBuf};

/// A destination for one file. Nothing existed under its name, or a file that may be replaced.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    replaces: Option<Stamp>,
}

impl Output {
    /// Check a destination before the work. An existing regular file of at most `limit` bytes may be replaced if `is_ours` accepts its
    /// bytes.
    ///
    /// # Errors
    /// [`Error::NotOurs`] and [`Error::NotAFile`] for anything else that exists, [`Error::Directory`] when its directory cannot be written
    /// to.
    pub fn reserve(path: &Path, limit: u64, is_ours: impl FnOnce(&[u8]) -> bool) -> Result<Self> {
        Self::reserve_if(path, |_| {
            let bytes = read_up_to(path, &mut open_own(path)?, limit);
            Ok(bytes.is_ok_and(|bytes| is_ours(&bytes)))
        })
    }

    /// [`Output::reserve`] where a file that begins with `magic` may be replaced.
    ///
    /// # Errors
    /// Those of [`Output::reserve`].
    pub fn reserve_beginning(path: &Path, magic: &[u8]) -> Result<Self> {
        Self::reserve_if(path, |_| {
            let mut start = vec![0; magic.len()];
            Ok(std::io::Read::read_exact(&mut open_own(path)?, &mut start).is_ok() && start == magic)
        })
    }

    /// [`Output::reserve`] for a new file, or any regular file where `overwrite` is set.
    ///
    /// # Errors
    /// Those of [`Output::reserve`].
    pub fn reserve_new(path: &Path, overwrite: bool) -> Result<Self> {
        Self::reserve_if(path, |_| Ok(overwrite))
    }

    fn reserve_if(path: &Path, may_replace: impl FnOnce(&Stamp) -> Result<bool>) -> Result<Self> {
        let not_ours = || Error::NotOurs { path: path.to_owned() };
        if path.file_name().is_none() {
            return Err(not_ours());
        }
        let replaces = stamp_of_target(path)?;
        if let Some(stamp) = &replaces
            && !may_replace(stamp)?
        {
            return Err(not_ours());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        probe(folder).map_err(|source| Error::Directory { path: folder.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), replaces })
    }

    /// The destination.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Write the file atomically.
    ///
    /// # Errors
    /// [`Error::Changed`] and [`Error::NotOurs`] when the destination changed since it was reserved, [`Error::File`].
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        let staged = Staged::write(&self.path, bytes)?;
        match &self.replaces {
            Some(old) => staged.replace(old).map(|_| ()),
            None => staged.commit(),
        }
    }
}

const SEAL: &str = "\n<!-- written by regard, sha256 ";
const SEAL_END: &str = " -->\n";

/// Append the digest of a page as a comment: [`is_sealed_html`] recognises the page while it is unchanged.
pub fn seal_html(page: &str) -> String {
    format!("{page}{SEAL}{}{SEAL_END}", digest(page))
}

/// Whether [`seal_html`] made this page and it was not changed.
pub fn is_sealed_html(bytes: &[u8]) -> bool {
    let length = SEAL.len() + 64 + SEAL_END.len();
    let Some(at) = bytes.len().checked_sub(length) else { return false };
    let (page, seal) = bytes.split_at(at);
    seal == format!("{SEAL}{}{SEAL_END}", digest(page)).as_bytes()
}
