//! Files that are not whole: they lie beside their place, under a name that no other job has, until all ranks have written. Nothing that somebody else made is written to,
//! replaced without having been allowed, or removed.

use crate::error::{Error, Result};
use std::fs::File;
use std::hash::BuildHasher;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The files that a job has made and not finished, for whoever ends it early.
#[derive(Debug, Clone, Default)]
pub struct Unfinished(Arc<Mutex<Vec<PathBuf>>>);

impl Unfinished {
    /// Remove them.
    pub fn remove(&self) {
        for path in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// What `make` makes or opens belongs to the job. Nobody removes anything meanwhile.
    fn adding<T>(&self, path: &Path, make: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let made = make()?;
        files.push(path.to_owned());
        Ok(made)
    }

    /// They have their names, or are to stay as they are.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A word that no other job has.
pub(crate) fn own_word() -> String {
    let random = std::hash::RandomState::new();
    format!("{:08x}", random.hash_one((std::process::id(), std::time::SystemTime::now())) as u32)
}

/// A file, and what it is called until it is whole.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    unfinished: PathBuf,
}

impl Place {
    /// The job's own word makes the name its own.
    pub(crate) fn new(path: PathBuf, word: &str) -> Self {
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{word}.regard-unfinished"));
        Self { unfinished: path.with_file_name(name), path }
    }

    /// The first rank makes it: nothing may be there, not even a link. The others open it afterwards.
    pub(crate) fn open(&self, makes: bool, of: &Unfinished) -> Result<File> {
        let open = || {
            if !makes && !std::fs::symlink_metadata(&self.unfinished)?.is_file() {
                return Err(std::io::Error::new(ErrorKind::InvalidInput, "another has taken its place"));
            }
            File::options().write(true).create_new(makes).open(&self.unfinished)
        };
        of.adding(&self.unfinished, open).map_err(|e| Error::write(&self.path, e))
    }
}

/// Something is at the place, and must not be replaced.
fn in_the_way(path: &Path, overwrite: bool) -> std::io::Result<Option<&'static str>> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
        Ok(there) if there.is_dir() => Ok(Some("it is a directory; name a file in it")),
        Ok(there) if !there.is_file() => Ok(Some("it is a link, a pipe or a device, which is left alone; name another file")),
        Ok(_) if !overwrite => Ok(Some("it is there already; name another file, or replace it with --overwrite")),
        Ok(_) => Ok(None),
    }
}

/// Nothing is in the way at a place where a file is to be.
pub(crate) fn check_free(path: &Path, overwrite: bool) -> Result<()> {
    let refused = |reason: String| Error::File { path: path.to_owned(), reason };
    if path.file_name().is_none() {
        return Err(refused("it is not the name of a file".to_owned()));
    }
    if path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return Err(refused("its folder is not there; make it first, or name another".to_owned()));
    }
    match in_the_way(path, overwrite) {
        Err(e) => Err(refused(e.to_string())),
        Ok(Some(reason)) => Err(refused(reason.to_owned())),
        Ok(None) => Ok(()),
    }
}

/// How a name was taken, which was free.
enum Taken {
    /// By a link: the file has both names.
    Linked,
    /// By an empty file, where there are no links.
    Empty,
    /// Not at all: whatever is there may be replaced.
    Replaces,
}

fn take(place: &Place, overwrite: bool) -> Result<Taken> {
    let free = check_free(&place.path, overwrite);
    let Place { path, unfinished } = place;
    let appeared = || Error::Appeared { path: path.clone(), kept: unfinished.clone() };
    free.map_err(|_| appeared())?;
    if overwrite {
        return Ok(Taken::Replaces);
    }
    let taken = match std::fs::hard_link(unfinished, path) {
        Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Err(e),
        Ok(()) => Ok(Taken::Linked),
        Err(_) => File::create_new(path).map(|_| Taken::Empty),
    };
    taken.map_err(|e| if e.kind() == ErrorKind::AlreadyExists { appeared() } else { Error::write(path, e) })
}

/// All of them are whole and get their names: all, or none where something has appeared in the way, which stays, as do the files under their own names.
pub(crate) fn finish(places: &[Place], overwrite: bool, of: &Unfinished) -> Result<()> {
    let mut taken = Vec::new();
    for place in places {
        match take(place, overwrite) {
            Ok(how) => taken.push((place, how)),
            Err(error) => {
                for (place, how) in taken {
                    if !matches!(how, Taken::Replaces) {
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
    for (Place { path, unfinished }, how) in taken {
        let settled = match how {
            Taken::Linked => std::fs::remove_file(unfinished),
            Taken::Empty | Taken::Replaces => std::fs::rename(unfinished, path),
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
        let [a, b] = [Place::new(folder.join("x.npy"), &own_word()), Place::new(folder.join("x.npy"), &own_word())];
        let (of_a, of_b) = (Unfinished::default(), Unfinished::default());
        std::fs::write(a.unfinished.with_file_name(".x.npy.regard-unfinished"), "mine").expect("written");
        drop((a.open(true, &of_a).expect("made"), b.open(true, &of_b).expect("made")));
        assert!(a.open(true, &of_a).is_err(), "what is there is not made again");
        of_b.remove();
        assert!(a.unfinished.exists() && !b.unfinished.exists());
        finish(&[a], false, &of_a).expect("free");
        of_a.remove();
        assert_eq!(names(&folder), [".x.npy.regard-unfinished", "x.npy"]);
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn what_appears_meanwhile_stays_and_so_do_the_results() {
        let folder = folder("appears");
        let places = ["a", "b", "c"].map(|name| Place::new(folder.join(name), "word"));
        let of = Unfinished::default();
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
                let (place, of) = (Place::new(folder.join(name), "word"), Unfinished::default());
                drop(place.open(true, &of).expect("made"));
                assert!(matches!(finish(std::slice::from_ref(&place), overwrite, &of), Err(Error::Appeared { .. })), "{name}");
                std::fs::remove_file(place.unfinished).expect("it is kept");
            }
        }
        // A temporary name that is a link is not followed.
        let place = Place::new(folder.join("x"), "word");
        std::os::unix::fs::symlink(folder.join("user"), &place.unfinished).expect("a link");
        assert!(place.open(true, &Unfinished::default()).is_err() && place.open(false, &Unfinished::default()).is_err());
        assert_eq!(std::fs::read(folder.join("user")).expect("there"), b"mine");
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
