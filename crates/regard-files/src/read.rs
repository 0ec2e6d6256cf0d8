//! Bounded reading of regular files. Pipes and devices are refused without waiting for them; `-` is the standard input where a caller
//! allows it.

use crate::error::{Error, Result};
use crate::stamp::kind;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const BYTE_ORDER_MARK: char = '\u{feff}';

fn unreadable(path: &Path, source: std::io::Error) -> Error {
    Error::File { action: "read", path: path.to_owned(), source }
}

/// Open without waiting for the other end of a pipe.
fn open(path: &Path, follow: bool) -> std::io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let flags = OFlags::NONBLOCK | if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        options.custom_flags(flags.bits().cast_signed());
    }
    #[cfg(not(unix))]
    let _ = follow;
    options.open(path)
}

fn regular(path: &Path, opened: std::io::Result<File>, advice: &'static str) -> Result<File> {
    let not_a_file = |metadata: &std::fs::Metadata| Error::NotAFile { path: path.to_owned(), kind: kind(metadata), advice };
    match opened.and_then(|file| Ok((file.metadata()?, file))) {
        Ok((metadata, file)) if metadata.is_file() => Ok(file),
        Ok((metadata, _)) => Err(not_a_file(&metadata)),
        // A socket cannot be opened, nor a link where links are not followed: say what it is.
        Err(source) => {
            let dangling = |metadata: &std::fs::Metadata| metadata.is_symlink() && source.kind() == std::io::ErrorKind::NotFound;
            match std::fs::symlink_metadata(path) {
                Ok(metadata) if metadata.is_file() || dangling(&metadata) => Err(unreadable(path, source)),
                Ok(metadata) => Err(not_a_file(&metadata)),
                Err(_) => Err(unreadable(path, source)),
            }
        }
    }
}

/// Open a regular file, or a link to one.
///
/// # Errors
/// [`Error::NotAFile`] for a directory, pipe, socket or device, without waiting; [`Error::File`].
pub fn open_file(path: &Path) -> Result<File> {
    regular(path, open(path, true), "give a regular file")
}

/// Open a file that Regard itself writes: links are not followed.
pub(crate) fn open_own(path: &Path) -> Result<File> {
    regular(path, open(path, false), "it is left alone; move it, or choose another directory")
}

pub(crate) fn read_up_to(path: &Path, stream: &mut dyn Read, limit: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| unreadable(path, e))?;
    if bytes.len() as u64 > limit { Err(Error::TooLong { path: path.to_owned(), limit }) } else { Ok(bytes) }
}

/// All bytes of a regular file of at most `limit` bytes.
///
/// # Errors
/// Those of [`open_file`], and [`Error::TooLong`].
pub fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>> {
    read_up_to(path, &mut open_file(path)?, limit)
}

/// A UTF-8 text of at most `limit` bytes from a regular file, or from the standard input where the path is `-`. A byte order mark is
/// removed.
///
/// # Errors
/// Those of [`read_bytes`], [`Error::NotUtf8`] and [`Error::Empty`].
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    let bytes = if path == Path::new("-") {
        read_up_to(path, &mut std::io::stdin().lock(), limit)?
    } else {
        let advice = "give a regular file, or - for the standard input";
        read_up_to(path, &mut regular(path, open(path, true), advice)?, limit)?
    };
    text_from_bytes(path, bytes)
}

/// Decode a text that was read from `path`, which errors name: UTF-8 without its byte order mark, not empty.
///
/// # Errors
/// [`Error::NotUtf8`] and [`Error::Empty`].
pub fn text_from_bytes(path: &Path, bytes: Vec<u8>) -> Result<String> {
    let mut text = String::from_utf8(bytes).map_err(|e| Error::NotUtf8 { path: path.to_owned(), at: e.utf8_error().valid_up_to() })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    if text.is_empty() { Err(Error::Empty { path: path.to_owned() }) } else { Ok(text) }
}
