//! Files as memory: [`MappedFile`].

use std::fs::File;
use std::io;
use std::path::Path;

/// The bytes of a file, which the system reads when they are touched and gives up when memory is short.
///
/// Another program that shortens the file while it is mapped ends this one with a signal, as with every memory map: files that are replaced
/// by renaming are safe.
#[derive(Debug)]
pub struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Map a file.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        // SAFETY: the map is private to this process and read only; that nobody else writes to the file meanwhile is what the documentation asks for.
        unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }.map(Self)
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
#[path = "../tests/unit/map.rs"]
mod tests;
