//! The one way in which files are written: beside their place, on the disk, then renamed, so that a reader and a power failure meet the old
//! bytes or the new ones and never half of them.

use crate::error::{Error, Result};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A file that is not finished has a name of this form, with six letters or digits between.
const PART: (&str, &str) = (".regard-", ".part");
const LETTERS: usize = 6;

/// Write all of a file, or leave it as it was.
///
/// # Errors
/// When the system refuses; nothing is left behind then.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = part_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        sync_folder(folder)
    };
    write().map_err(|source| Error::File { action: "write", path: path.to_owned(), source })
}

fn part_in(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PART.0).suffix(PART.1).rand_bytes(LETTERS);
    // Readable by whom the user's mask allows, as any file is; a temporary file would be its owner's alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

/// A renamed file is safe once its directory is on the disk; some file systems cannot be asked.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    match std::fs::File::open(folder)?.sync_all() {
        Err(e) if matches!(e.kind(), std::io::ErrorKind::InvalidInput | std::io::ErrorKind::Unsupported) => Ok(()),
        result => result,
    }
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn is_part(name: &str) -> bool {
    let between = name.strip_prefix(PART.0).and_then(|rest| rest.strip_suffix(PART.1));
    between.is_some_and(|letters| letters.len() == LETTERS && letters.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// Remove what killed runs left half-written. For those who hold the directory's lock.
pub fn remove_parts(folder: &Path) {
    remove_parts_unchanged_for(folder, Duration::ZERO);
}

/// The same for a directory that others may be writing to: only what nobody has written to for so long.
pub fn remove_parts_unchanged_for(folder: &Path, time: Duration) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let is_old = |file: std::fs::Metadata| {
        let age = || SystemTime::now().duration_since(file.modified().ok()?).ok();
        file.is_file() && (time.is_zero() || age().is_some_and(|age| age > time))
    };
    for entry in entries.flatten() {
        // Of a link: its own, not those of what it points to.
        if entry.file_name().to_str().is_some_and(is_part) && entry.metadata().is_ok_and(is_old) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_readable_by_others_and_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        assert_eq!(path.metadata().unwrap().permissions(), plain.metadata().unwrap().permissions());
    }

    #[test]
    fn parts_are_left_to_those_who_may_be_writing_them() {
        let dir = tempfile::tempdir().unwrap();
        let names = [".regard-abc123.part", ".regard-def456.part", "mine.part"];
        for (name, hours) in names.into_iter().zip([1, 30, 30]) {
            let file = std::fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
        }
        let left = || names.map(|name| dir.path().join(name).exists());
        remove_parts_unchanged_for(dir.path(), Duration::from_secs(24 * 3600));
        assert_eq!(left(), [true, false, true]);
        remove_parts(dir.path());
        assert_eq!(left(), [false, false, true]);
    }

    #[test]
    fn a_refusal_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("taken")).unwrap();
        assert!(matches!(write_atomic(&dir.path().join("taken"), b"x"), Err(Error::File { action: "write", .. })));
        assert!(write_atomic(&dir.path().join("no/such/place"), b"x").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
