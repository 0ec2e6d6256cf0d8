//! Temporary files: results lie beside their final name, under a name that no other job has, until all ranks have written. Files of others
//! are not written to, removed, or replaced without permission.

use crate::error::{Error, Result};
use std::fs::File;
use std::hash::BuildHasher;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The temporary files of a job, which a signal handler can remove.
#[derive(Debug, Clone, Default)]
pub struct TempFiles(Arc<Mutex<Vec<PathBuf>>>);

impl TempFiles {
    /// Remove them.
    pub fn remove(&self) {
        for path in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Add the file that `open` creates or opens. Nothing is removed meanwhile.
    fn add<T>(&self, path: &Path, open: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = open()?;
        files.push(path.to_owned());
        Ok(opened)
    }

    /// Forget them: they have their final names, or are to be kept.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A random name of this job.
pub(crate) fn job_id() -> String {
    let random = std::hash::RandomState::new();
    format!("{:08x}", random.hash_one((std::process::id(), std::time::SystemTime::now())) as u32)
}

/// A file and its temporary name.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    temporary: PathBuf,
}

impl Place {
    pub(crate) fn new(path: PathBuf, job_id: &str) -> Self {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{job_id}.regard-unfinished"));
        Self { temporary: path.with_file_name(name), path }
    }

    /// Rank 0 creates the file, where nothing may be, not even a link. The others open it afterwards.
    pub(crate) fn open(&self, creates: bool, of: &TempFiles) -> Result<File> {
        let open = || match creates {
            true => File::options().write(true).create_new(true).open(&self.temporary),
            false => open_existing(&self.temporary, &std::fs::symlink_metadata(&self.temporary)?),
        };
        of.add(&self.temporary, open).map_err(|e| Error::write(&self.path, e))
    }
}

/// Open the regular file that was found at a path; not what a link that appeared since leads to.
fn open_existing(path: &Path, found: &std::fs::Metadata) -> std::io::Result<File> {
    let replaced = || std::io::Error::new(ErrorKind::InvalidInput, "its temporary file was replaced");
    if !found.is_file() {
        return Err(replaced());
    }
    let file = File::options().write(true).open(path)?;
    if is_same(found, &file.metadata()?) { Ok(file) } else { Err(replaced()) }
}

#[cfg(unix)]
fn is_same(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(_: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    b.is_file()
}

/// Why a path cannot be used for results, if so.
fn obstacle(path: &Path, overwrite: bool) -> std::io::Result<Option<&'static str>> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
        Ok(found) if found.is_dir() => Ok(Some("this is a directory; name a file in it")),
        Ok(found) if !found.is_file() => Ok(Some("this is a link, a pipe or a device, which is not replaced; name another file")),
        Ok(_) if !overwrite => Ok(Some("this file exists; name another one, or replace it with --overwrite")),
        Ok(_) => Ok(None),
    }
}

/// A path can be used for results.
pub(crate) fn check_free(path: &Path, overwrite: bool) -> Result<()> {
    let refused = |reason: String| Error::File { path: path.to_owned(), reason };
    if path.file_name().is_none() {
        return Err(refused("this is not the name of a file".to_owned()));
    }
    if path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return Err(refused("its folder does not exist; make it first, or name another".to_owned()));
    }
    match obstacle(path, overwrite) {
        Err(e) => Err(refused(e.to_string())),
        Ok(Some(reason)) => Err(refused(reason.to_owned())),
        Ok(None) => Ok(()),
    }
}

/// How a name was reserved.
enum Reservation {
    /// By a hard link: the file has both names.
    Link,
    /// By an empty file, on file systems without hard links.
    Empty,
    /// Not at all: an existing file may be replaced.
    Replace,
}

fn reserve(place: &Place, overwrite: bool) -> Result<Reservation> {
    let Place { path, temporary } = place;
    let appeared = || Error::Appeared { path: path.clone(), kept: temporary.clone() };
    check_free(path, overwrite).map_err(|_| appeared())?;
    if overwrite {
        return Ok(Reservation::Replace);
    }
    let reserved = match std::fs::hard_link(temporary, path) {
        Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Err(e),
        Ok(()) => Ok(Reservation::Link),
        Err(_) => File::create_new(path).map(|_| Reservation::Empty),
    };
    reserved.map_err(|e| if e.kind() == ErrorKind::AlreadyExists { appeared() } else { Error::write(path, e) })
}

/// Give all files their names; or none, where a file appeared at one of them, and the temporary files are kept.
pub(crate) fn finish(places: &[Place], overwrite: bool, of: &TempFiles) -> Result<()> {
    let mut reserved = Vec::new();
    for place in places {
        match reserve(place, overwrite) {
            Ok(reservation) => reserved.push((place, reservation)),
            Err(error) => {
                for (place, reservation) in reserved {
                    if !matches!(reservation, Reservation::Replace) {
                        let _ = std::fs::remove_file(&place.path);
                    }
                }
                if matches!(error, Error::Appeared { .. }) {
                    of.forget();
                }
                return Err(error);
            }
        }
    }
    for (Place { path, temporary }, reservation) in reserved {
        let settled = match reservation {
            Reservation::Link => std::fs::remove_file(temporary),
            Reservation::Empty | Reservation::Replace => std::fs::rename(temporary, path),
        };
        settled.map_err(|e| Error::write(path, e))?;
    }
    of.forget();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("regard-unfinished-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder");
        path
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    #[test]
    fn two_jobs_have_names_of_their_own_and_remove_their_own_only() {
        let folder = folder("two");
        let [a, b] = [Place::new(folder.join("x.npy"), &job_id()), Place::new(folder.join("x.npy"), &job_id())];
        let (of_a, of_b) = (TempFiles::default(), TempFiles::default());
        std::fs::write(a.temporary.with_file_name(".x.npy.regard-unfinished"), "mine").expect("written");
        drop((a.open(true, &of_a).expect("made"), b.open(true, &of_b).expect("made")));
        assert!(a.open(true, &of_a).is_err(), "what is there is not made again");
        of_b.remove();
        assert!(a.temporary.exists() && !b.temporary.exists());
        finish(&[a], false, &of_a).expect("free");
        of_a.remove();
        assert_eq!(names(&folder), [".x.npy.regard-unfinished", "x.npy"]);
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    #[cfg(unix)]
    fn a_link_in_place_of_a_temporary_file_is_not_written_through() {
        let folder = folder("link");
        let (path, outside) = (folder.join(".x.npy.word.regard-unfinished"), folder.join("outside"));
        std::fs::write(&path, "").expect("written");
        std::fs::write(&outside, "mine").expect("written");
        let found = std::fs::symlink_metadata(&path).expect("there");
        assert!(open_existing(&path, &found).is_ok());
        std::fs::remove_file(&path).and_then(|()| std::os::unix::fs::symlink(&outside, &path)).expect("planted");
        assert!(open_existing(&path, &found).is_err());
        assert!(open_existing(&path, &std::fs::symlink_metadata(&path).expect("there")).is_err());
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn what_appears_meanwhile_stays_and_so_do_the_results() {
        let folder = folder("appears");
        let places = ["a", "b", "c"].map(|name| Place::new(folder.join(name), "word"));
        let of = TempFiles::default();
        places.iter().for_each(|place| drop(place.open(true, &of).expect("made")));
        std::fs::write(folder.join("b"), "mine").expect("written");
        let error = finish(&places, false, &of).expect_err("it is there");
        assert!(error.to_string().contains(".b.word.regard-unfinished"), "{error}");
        of.remove();
        assert_eq!(names(&folder), [".a.word.regard-unfinished", ".b.word.regard-unfinished", ".c.word.regard-unfinished", "b"]);
        assert_eq!(std::fs::read(folder.join("b")).expect("there"), b"mine");
        finish(&places, true, &of).expect("it may be replaced");
        assert_eq!(
            (names(&folder), std::fs::read(folder.join("b")).expect("there")),
            (vec!["a".into(), "b".into(), "c".into()], Vec::new())
        );
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    #[cfg(unix)]
    fn links_and_directories_are_never_replaced() {
        let folder = folder("links");
        std::fs::write(folder.join("user"), "mine").expect("written");
        std::os::unix::fs::symlink(folder.join("user"), folder.join("link")).expect("a link");
        std::os::unix::fs::symlink(folder.join("nowhere"), folder.join("dangling")).expect("a link");
        std::fs::create_dir(folder.join("dir")).expect("a folder");
        for name in ["link", "dangling", "dir"] {
            for overwrite in [false, true] {
                assert!(check_free(&folder.join(name), overwrite).is_err(), "{name}");
                let (place, of) = (Place::new(folder.join(name), "word"), TempFiles::default());
                drop(place.open(true, &of).expect("made"));
                assert!(matches!(finish(std::slice::from_ref(&place), overwrite, &of), Err(Error::Appeared { .. })), "{name}");
                std::fs::remove_file(place.temporary).expect("it is kept");
            }
        }
        // A temporary name that is a link is not followed.
        let place = Place::new(folder.join("x"), "word");
        std::os::unix::fs::symlink(folder.join("user"), &place.temporary).expect("a link");
        assert!(place.open(true, &TempFiles::default()).is_err() && place.open(false, &TempFiles::default()).is_err());
        assert_eq!(std::fs::read(folder.join("user")).expect("there"), b"mine");
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
