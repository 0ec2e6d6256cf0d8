//! The learner's folder: files that are never overwritten, and progress that survives a kill at any moment.
//!
//! `progress.json` is replaced as a whole by a rename, under a lock, so two commands in one folder do not lose each other's entries.

use crate::error::{Error, Result};
use crate::exercise::{Exercise, Lang};
use crate::judge::Status;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How one exercise stands in one language.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Entry {
    /// The last verdict.
    pub status: Option<Status>,
    /// Whether some version passed.
    pub passed: bool,
    /// Versions that were judged.
    pub tries: u64,
    /// Hints that were shown.
    pub hints: usize,
    /// Hash of the version that was judged last.
    pub hash: String,
    /// Hash of the stub that the file began with.
    pub stub: String,
}

/// Progress by name of the exercise and language.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Progress {
    /// The language that was used last.
    pub lang: Option<Lang>,
    /// The exercises.
    pub exercises: BTreeMap<String, BTreeMap<Lang, Entry>>,
}

impl Progress {
    /// An entry, empty where there is none.
    pub fn entry(&self, exercise: &Exercise, lang: Lang) -> Entry {
        self.exercises.get(exercise.name).and_then(|langs| langs.get(&lang)).cloned().unwrap_or_default()
    }

    /// The entry, to be changed.
    pub fn entry_mut(&mut self, exercise: &Exercise, lang: Lang) -> &mut Entry {
        self.exercises.entry(exercise.name.to_owned()).or_default().entry(lang).or_default()
    }
}

/// Short hash of a text.
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// The learner's folder.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// The folder that is meant: itself where it has exercises, the `regard-learn` within it otherwise.
    pub fn find(dir: Option<&Path>) -> Self {
        let base = dir.unwrap_or(Path::new(""));
        let has = |root: &Path| ["progress.json", "python", "rust"].iter().any(|name| root.join(name).exists());
        let inner = base.join("regard-learn");
        let itself = has(base) && (dir.is_some() || base.join("progress.json").exists());
        let root = if itself || (dir.is_some() && !inner.exists()) { base.to_path_buf() } else { inner };
        Self { root }
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The learner's file.
    pub fn file(&self, exercise: &Exercise, lang: Lang) -> PathBuf {
        self.root.join(lang.name()).join(exercise.file_name(lang))
    }

    fn progress_file(&self) -> PathBuf {
        self.root.join("progress.json")
    }

    /// What is known of the exercises.
    pub fn progress(&self) -> Result<Progress> {
        let path = self.progress_file();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                return Ok(Progress::default());
            }
            Err(e) => return Err(Error::file("read", &path, e)),
        };
        serde_json::from_str(&text).map_err(|e| Error::Progress { path, reason: e.to_string() })
    }

    /// Changes what is known, whole or not at all.
    pub fn update(&self, change: impl FnOnce(&mut Progress)) -> Result<()> {
        std::fs::create_dir_all(&self.root).map_err(|e| Error::file("make", &self.root, e))?;
        let lock_path = self.root.join(".lock");
        let lock = File::create(&lock_path).map_err(|e| Error::file("write", &lock_path, e))?;
        lock.lock().map_err(|e| Error::file("lock", &lock_path, e))?;
        for folder in ["", "python", "rust"] {
            sweep(&self.root.join(folder));
        }
        let mut progress = self.progress()?;
        change(&mut progress);
        let text = serde_json::to_string_pretty(&progress).map_err(|e| Error::Usage(e.to_string()))?;
        write_atomic(&self.progress_file(), text.as_bytes())
    }

    /// Makes the learner's file from the stub where there is none; where the stub is newer than the file, puts it beside as `.new`.
    pub fn prepare(&self, exercise: &Exercise, lang: Lang) -> Result<PathBuf> {
        let path = self.file(exercise, lang);
        let folder = self.root.join(lang.name());
        std::fs::create_dir_all(&folder).map_err(|e| Error::file("make", &folder, e))?;
        let stub = exercise.stub(lang);
        let known = self.progress()?.entry(exercise, lang).stub;
        if create_new(&path, stub)? {
            self.update(|progress| progress.entry_mut(exercise, lang).stub = hash(stub.as_bytes()))?;
        } else if !known.is_empty() && known != hash(stub.as_bytes()) {
            create_new(&folder.join(format!("{}.new", exercise.file_name(lang))), stub)?;
            self.update(|progress| progress.entry_mut(exercise, lang).stub = hash(stub.as_bytes()))?;
        }
        Ok(path)
    }

    /// Moves the learner's file aside and begins again; tells where it went. The new file is written first: on a full disk nothing moves.
    pub fn reset(&self, exercise: &Exercise, lang: Lang) -> Result<Option<PathBuf>> {
        let path = self.file(exercise, lang);
        let folder = self.root.join(lang.name());
        std::fs::create_dir_all(&folder).map_err(|e| Error::file("make", &folder, e))?;
        let stub = whole(&path, exercise.stub(lang).as_bytes())?;
        let moved = if path.exists() { Some(move_aside(exercise, lang, &path)?) } else { None };
        match stub.persist_noclobber(&path) {
            Err(e) if e.error.kind() != std::io::ErrorKind::AlreadyExists => return Err(Error::file("write", &path, e.error)),
            _ => self.update(|progress| progress.entry_mut(exercise, lang).stub = hash(exercise.stub(lang).as_bytes()))?,
        }
        Ok(moved)
    }
}

/// How files begin that are not whole yet.
const UNFINISHED: &str = ".regard-learn-";
/// Whoever wrote them is gone after this time.
const ABANDONED: Duration = Duration::from_secs(60);

/// Removes what a command that was killed left unfinished.
fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(UNFINISHED)) {
        let changed = entry.metadata().and_then(|data| data.modified());
        if changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age > ABANDONED)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Gives a file the first free name of `01_similarity.1.py`, `01_similarity.2.py`, ..
fn move_aside(exercise: &Exercise, lang: Lang, path: &Path) -> Result<PathBuf> {
    let mut number = 1;
    loop {
        let place = path.with_file_name(format!("{}.{number}.{}", exercise.file_stem(), lang.ending()));
        // A hard link fails where something is already: nothing is overwritten, whoever else is at work.
        match std::fs::hard_link(path, &place) {
            Ok(()) => return std::fs::remove_file(path).map(|()| place).map_err(|e| Error::file("move", path, e)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(e) => return Err(Error::file("move", path, e)),
        }
    }
}

/// The text under another name beside `path`: a file of ours is whole or not there.
fn whole(path: &Path, bytes: &[u8]) -> Result<tempfile::NamedTempFile> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder).map_err(|e| Error::file("write in", folder, e))?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(|e| Error::file("write", path, e))?;
    make_readable(file.path());
    Ok(file)
}

/// Writes a file that is not there; false where it is.
fn create_new(path: &Path, text: &str) -> Result<bool> {
    if path.exists() {
        return Ok(false);
    }
    match whole(path, text.as_bytes())?.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(e) if e.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(Error::file("write", path, e.error)),
    }
}

fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    whole(path, bytes)?.persist(path).map_err(|e| Error::file("write", path, e.error))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    // The rename itself is to survive a power cut, where folders can be synced.
    let _ = OpenOptions::new().read(true).open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Temporary files are private; a learner's are not.
fn make_readable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exercises::EXERCISES;

    #[test]
    fn nothing_is_overwritten() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::find(Some(dir.path()));
        let exercise = EXERCISES[0];
        let path = folder.prepare(exercise, Lang::Python).expect("it can be written");
        std::fs::write(&path, "mine").expect("it can be written");
        folder.prepare(exercise, Lang::Python).expect("it is there");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "mine");
        for n in 1..=3 {
            let moved = folder.reset(exercise, Lang::Python).expect("it can be moved").expect("it was there");
            assert_eq!(moved.file_name().and_then(|n| n.to_str()), Some(&*format!("01_similarity.{n}.py")));
            std::fs::write(&path, format!("mine {n}")).expect("it can be written");
        }
        assert_eq!(std::fs::read_to_string(path.with_file_name("01_similarity.1.py")).expect("kept"), "mine");
    }

    #[test]
    fn an_exercise_that_changed_arrives_beside_the_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::find(Some(dir.path()));
        let exercise = EXERCISES[1];
        let path = folder.prepare(exercise, Lang::Rust).expect("it can be written");
        std::fs::write(&path, "mine").expect("it can be written");
        folder.update(|p| p.entry_mut(exercise, Lang::Rust).stub = "older".to_owned()).expect("it can be written");
        folder.prepare(exercise, Lang::Rust).expect("it is there");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "mine");
        let new = path.with_file_name("02_softmax.rs.new");
        assert_eq!(std::fs::read_to_string(new).expect("it is there"), exercise.stub(Lang::Rust));
    }

    #[test]
    fn two_at_once_lose_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::find(Some(dir.path()));
        std::thread::scope(|scope| {
            for exercise in EXERCISES.iter().take(8) {
                let folder = &folder;
                scope.spawn(move || {
                    (0..10).for_each(|_| folder.update(|p| p.entry_mut(exercise, Lang::Rust).tries += 1).expect("it works"))
                });
            }
        });
        let progress = folder.progress().expect("it can be read");
        assert!(EXERCISES.iter().take(8).all(|e| progress.entry(e, Lang::Rust).tries == 10));
    }

    #[test]
    fn what_a_kill_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a folder");
        let old = std::time::SystemTime::now() - 2 * ABANDONED;
        for (name, age) in [(".regard-learn-a", Some(old)), (".regard-learn-b", None), (".mine", Some(old))] {
            let file = File::create(dir.path().join(name)).expect("it can be written");
            if let Some(age) = age {
                file.set_modified(age).expect("it can be changed");
            }
        }
        Folder::find(Some(dir.path())).update(|_| {}).expect("it works");
        let there = |name: &str| dir.path().join(name).exists();
        assert!(!there(".regard-learn-a") && there(".regard-learn-b") && there(".mine"));
    }

    #[test]
    fn a_file_that_is_no_progress_is_said_and_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("progress.json"), "{ not json").expect("it can be written");
        let error = Folder::find(Some(dir.path())).update(|_| {}).expect_err("it is no progress");
        assert!(error.to_string().contains("move it away"), "{error}");
        assert_eq!(std::fs::read_to_string(dir.path().join("progress.json")).expect("kept"), "{ not json");
    }
}
