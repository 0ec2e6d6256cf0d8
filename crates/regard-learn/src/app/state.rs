//! The learner's folder: files that are never overwritten, and progress that survives a kill at any moment.
//!
//! `progress.json` is replaced as a whole by a rename, under a lock. It carries a MAC under a key of the user: passes in a file that was
//! edited, or written by a program under judgement, do not count.

use crate::error::{Error, Result};
use crate::exercise::{Exercise, Lang};
use crate::exercises::{EXERCISES, find_in};
use crate::files::{self, hex};
use crate::judge::Status;
use crate::sets::List;
use regard_files::{Output, Staged};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// State of one exercise in one language.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The language that was used last.
    pub lang: Option<Lang>,
    /// The exercises.
    pub exercises: Entries,
}

type Entries = BTreeMap<String, BTreeMap<Lang, Entry>>;

/// `progress.json`.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// Missing in files of earlier versions.
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    lang: Option<Lang>,
    exercises: Entries,
    #[serde(default)]
    mac: Option<String>,
}

const FORMAT: &str = "regard-learn progress 2";
const PROGRESS_LIMIT: u64 = 1 << 20;

impl Progress {
    /// An entry, empty where there is none.
    pub fn entry(&self, exercise: &Exercise, lang: Lang) -> Entry {
        self.exercises.get(exercise.name).and_then(|langs| langs.get(&lang)).cloned().unwrap_or_default()
    }

    /// The entry, to be changed.
    pub fn entry_mut(&mut self, exercise: &Exercise, lang: Lang) -> &mut Entry {
        self.exercises.entry(exercise.name.to_owned()).or_default().entry(lang).or_default()
    }

    fn mac(&self, key: &[u8]) -> String {
        let text = serde_json::to_string(&(FORMAT, self.lang, &self.exercises)).unwrap_or_default();
        let inner = Sha256::new().chain_update(key).chain_update(text).finalize();
        hex(&Sha256::new().chain_update(key).chain_update(inner).finalize())
    }

    /// Without what only a verdict may say.
    fn without_verdicts(mut self) -> Self {
        for entry in self.exercises.values_mut().flat_map(BTreeMap::values_mut) {
            (entry.status, entry.passed) = (None, false);
            entry.hash.clear();
        }
        self
    }
}

/// What is in `progress.json`.
#[derive(Default)]
struct Read {
    bytes: Option<Vec<u8>>,
    progress: Progress,
    /// The MAC is right.
    verified: bool,
}

/// Short hash of a text.
pub fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes)[..8])
}

/// The learner's folder.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
    key: Vec<u8>,
    /// The exercises that it may know.
    list: List,
}

impl Folder {
    /// The folder that is meant: itself where it has exercises, the `regard-learn` within it otherwise.
    pub fn find(dir: Option<&Path>) -> Self {
        let base = dir.unwrap_or(Path::new(""));
        let has = |root: &Path| ["progress.json", "python", "rust", "torch"].iter().any(|name| root.join(name).exists());
        let inner = base.join("regard-learn");
        let itself = has(base) && (dir.is_some() || base.join("progress.json").exists());
        let root = if itself || (dir.is_some() && !inner.exists()) { base.to_path_buf() } else { inner };
        Self { root, key: user_key(), list: EXERCISES }
    }

    /// The folder within it for a set of exercises.
    pub fn of_set(self, name: &str, list: List) -> Self {
        Self { root: self.root.join(name), list, ..self }
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
        self.root.join(regard_files::names::LEARN_PROGRESS)
    }

    fn read(&self) -> Result<Read> {
        let path = self.progress_file();
        let Some(bytes) = files::read_existing(&path, PROGRESS_LIMIT)? else { return Ok(Read::default()) };
        let foreign = |reason: String| Error::Progress { path: path.clone(), reason };
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|e| foreign(e.to_string()))?;
        if let Some(name) = stored.exercises.keys().find(|name| find_in(self.list, name).is_none_or(|e| e.name != *name)) {
            return Err(foreign(format!("unknown exercise {name:?}")));
        }
        if let Some(format) = stored.format.as_ref().filter(|format| *format != FORMAT) {
            return Err(foreign(format!("unknown format {format:?}")));
        }
        let progress = Progress { lang: stored.lang, exercises: stored.exercises };
        let verified = stored.mac.is_some_and(|mac| mac == progress.mac(&self.key));
        let progress = if verified { progress } else { progress.without_verdicts() };
        Ok(Read { bytes: Some(bytes), progress, verified })
    }

    /// What is known of the exercises. Verdicts of a file without a valid MAC do not count.
    pub fn progress(&self) -> Result<Progress> {
        self.read().map(|read| read.progress)
    }

    /// Changes what is known, completely or not at all. A file without a valid MAC is kept as `progress.1.json`.
    pub fn update(&self, change: impl FnOnce(&mut Progress)) -> Result<()> {
        let lock = files::lock(&self.root)?;
        if lock.is_held() {
            regard_files::remove_parts(&self.root);
        }
        for lang in Lang::ALL {
            regard_files::remove_abandoned(&self.root.join(lang.name()), ABANDONED);
        }
        let mut read = self.read()?;
        let path = self.progress_file();
        if read.bytes.is_some() && !read.verified {
            files::move_aside(&path, "progress", "json")?;
            read.bytes = None;
        }
        change(&mut read.progress);
        let text = self.text(&read.progress)?;
        let output = Output::reserve(&path, PROGRESS_LIMIT, |now| Some(now) == read.bytes.as_deref())?;
        Ok(output.write(text.as_bytes())?)
    }

    /// Refuses before the work what would be refused after it: a foreign or unreadable `progress.json`.
    pub fn check_writable(&self) -> Result<()> {
        let read = self.read()?;
        if self.root.is_dir() && (read.bytes.is_none() || read.verified) {
            Output::reserve(&self.progress_file(), PROGRESS_LIMIT, |now| Some(now) == read.bytes.as_deref())?;
        }
        Ok(())
    }

    fn text(&self, progress: &Progress) -> Result<String> {
        let stored = Stored {
            format: Some(FORMAT.to_owned()),
            lang: progress.lang,
            exercises: progress.exercises.clone(),
            mac: Some(progress.mac(&self.key)),
        };
        serde_json::to_string_pretty(&stored).map_err(|e| Error::Usage(e.to_string()))
    }

    /// Creates the learner's file from the stub where there is none; a newer stub is put beside the file as `.new`.
    pub fn prepare(&self, exercise: &Exercise, lang: Lang) -> Result<PathBuf> {
        let path = self.file(exercise, lang);
        let folder = self.root.join(lang.name());
        std::fs::create_dir_all(&folder).map_err(|e| Error::file("create", &folder, e))?;
        let stub = exercise.stub(lang);
        let known = self.progress()?.entry(exercise, lang).stub;
        if files::create_new(&path, stub.as_bytes())? {
            self.update(|progress| progress.entry_mut(exercise, lang).stub = hash(stub.as_bytes()))?;
        } else if !known.is_empty() && known != hash(stub.as_bytes()) {
            files::create_new(&folder.join(format!("{}.new", exercise.file_name(lang))), stub.as_bytes())?;
            self.update(|progress| progress.entry_mut(exercise, lang).stub = hash(stub.as_bytes()))?;
        }
        Ok(path)
    }

    /// Moves the learner's file aside, writes the stub again, and returns the new place of the file. The stub is written first: on a full
    /// disk nothing moves.
    pub fn reset(&self, exercise: &Exercise, lang: Lang) -> Result<Option<PathBuf>> {
        let path = self.file(exercise, lang);
        let folder = self.root.join(lang.name());
        self.progress()?;
        std::fs::create_dir_all(&folder).map_err(|e| Error::file("create", &folder, e))?;
        let stub = Staged::write(&path, exercise.stub(lang).as_bytes())?;
        let there = path.symlink_metadata().is_ok();
        let moved = if there { Some(files::move_aside(&path, &exercise.file_stem(), lang.ending())?) } else { None };
        stub.commit()?;
        self.update(|progress| progress.entry_mut(exercise, lang).stub = hash(exercise.stub(lang).as_bytes()))?;
        Ok(moved)
    }
}

/// Age after which a temporary file belongs to a command that was killed.
const ABANDONED: Duration = Duration::from_secs(60);

/// The user's key, created at the first use; empty where there is no folder for it, which leaves a checksum in place of a MAC.
fn user_key() -> Vec<u8> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::var_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute()).map(|home| home.join(".local/state"));
    let local = || std::env::var_os("LOCALAPPDATA").map(PathBuf::from).filter(|path| path.is_absolute());
    let Some(folder) = state.or_else(home).or_else(local).map(|folder| folder.join("regard-learn")) else { return Vec::new() };
    let path = folder.join("key");
    let existing = || files::read_existing(&path, 32).ok().flatten().filter(|key| key.len() == 32);
    existing()
        .or_else(|| {
            let mut key = [0; 32];
            getrandom::fill(&mut key).ok()?;
            create_private(&folder).ok()?;
            files::create_new(&path, &key).ok()?;
            existing()
        })
        .unwrap_or_default()
}

/// A folder that only this user can read, where the system has such permissions; elsewhere that of its parent.
fn create_private(folder: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a key of its own: tests leave the user's key alone.
    fn folder_in(dir: &Path) -> Folder {
        Folder { root: dir.to_owned(), key: vec![7; 32], list: EXERCISES }
    }

    #[test]
    fn nothing_is_overwritten() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = folder_in(dir.path());
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
        let folder = folder_in(dir.path());
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
        let folder = folder_in(dir.path());
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
    fn temporary_files_of_a_killed_command_are_removed_and_foreign_files_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let part = regard_files::names::part(1);
        for name in [part.as_str(), ".regard-learn-notes", ".lock", "mine"] {
            std::fs::write(dir.path().join(name), "mine").expect("it can be written");
        }
        folder_in(dir.path()).update(|_| {}).expect("it works");
        assert!(!dir.path().join(part).exists());
        for name in [".regard-learn-notes", ".lock", "mine"] {
            assert_eq!(std::fs::read_to_string(dir.path().join(name)).expect("it stays"), "mine", "{name}");
        }
    }

    #[test]
    fn passes_in_a_file_that_was_edited_do_not_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = folder_in(dir.path());
        let (first, second) = (EXERCISES[0], EXERCISES[1]);
        folder.update(|p| (p.entry_mut(first, Lang::Rust).passed, p.entry_mut(first, Lang::Rust).hints) = (true, 2)).expect("written");
        assert!(folder.progress().expect("it can be read").entry(first, Lang::Rust).passed);
        let path = dir.path().join("progress.json");
        let text = std::fs::read_to_string(&path).expect("it is there");
        let edited = text.replace("similarity", "softmax");
        std::fs::write(&path, &edited).expect("it can be written");
        let read = folder.progress().expect("it can be read").entry(second, Lang::Rust);
        assert!(!read.passed && read.hints == 2, "{read:?}");
        // The next change keeps the edited file under another name.
        folder.update(|p| p.entry_mut(second, Lang::Rust).tries = 1).expect("it works");
        assert_eq!(std::fs::read_to_string(dir.path().join("progress.1.json")).expect("kept"), edited);
        assert!(!folder.progress().expect("it can be read").entry(second, Lang::Rust).passed);
        // Another user's key does not verify it either.
        std::fs::write(&path, &text).expect("it can be written");
        let other = Folder { root: dir.path().to_owned(), key: vec![8; 32], list: EXERCISES };
        assert!(!other.progress().expect("it can be read").entry(first, Lang::Rust).passed);
        assert!(folder.progress().expect("it can be read").entry(first, Lang::Rust).passed);
    }

    #[test]
    fn foreign_files_and_links_stay_as_they_are() {
        for text in
            ["{ not json", "{}", "[]", "{\"lang\": \"python\"}", "{\"exercises\": {\"my app\": {}}}", "{\"exercises\": {}, \"version\": 3}"]
        {
            let dir = tempfile::tempdir().expect("a folder");
            let (path, folder) = (dir.path().join("progress.json"), folder_in(dir.path()));
            std::fs::write(&path, text).expect("it can be written");
            assert!(folder.check_writable().is_err(), "{text}: refused before the work");
            let error = folder.update(|_| {}).expect_err("it is foreign");
            assert!(error.to_string().contains("move it away"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).expect("kept"), text);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_neither_followed_nor_replaced() {
        let (dir, outside) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let folder = folder_in(dir.path());
        let target = outside.path().join("target");
        std::os::unix::fs::symlink(&target, dir.path().join("progress.json")).expect("a link");
        assert!(folder.check_writable().is_err());
        folder.update(|_| {}).expect_err("it is a link");
        assert!(!target.exists());
        std::fs::write(&target, folder.text(&Progress::default()).expect("text")).expect("it can be written");
        let before = std::fs::read(&target).expect("it is there");
        folder.update(|p| p.lang = Some(Lang::Rust)).expect_err("it is a link");
        assert_eq!(std::fs::read(&target).expect("it is there"), before);
    }

    /// Whatever is planted under a name of the table stays as it is, there or moved aside by a reset; nothing outside changes.
    #[cfg(unix)]
    #[test]
    fn what_is_planted_under_a_name_of_the_table_stays() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let exercise = EXERCISES[0];
        let of_languages = Lang::ALL.into_iter().flat_map(|lang| {
            let (stem, ending) = (format!("{}/{}", lang.name(), exercise.file_stem()), lang.ending());
            [format!(".{ending}"), format!(".1.{ending}"), format!(".{ending}.new"), ".png".to_owned(), ".1.png".to_owned()]
                .map(|end| format!("{stem}{end}"))
        });
        let names: Vec<String> = of_languages.chain(["progress.json", "progress.1.json"].map(str::to_owned)).collect();
        for pattern in regard_files::names::writer("learn").names {
            assert!(names.iter().any(|name| regard_files::names::fits(pattern, name)), "{pattern} is not tried");
        }
        let kinds =
            ["link", "dangling link", "link to a directory", "link to a device", "named pipe", "socket", "directory", "foreign file"];
        for (name, kind) in names.iter().flat_map(|name| kinds.map(|kind| (name, kind))) {
            let dir = tempfile::tempdir().expect("a folder");
            let (root, outside) = (dir.path().join("learn"), dir.path().join("outside"));
            for folder in Lang::ALL.map(|lang| root.join(lang.name())).iter().chain([&outside]) {
                std::fs::create_dir_all(folder).expect("a folder");
            }
            std::fs::write(outside.join("precious"), "precious").expect("it can be written");
            let place = root.join(name);
            match kind {
                "link" => symlink(outside.join("precious"), &place).expect("a link"),
                "dangling link" => symlink(outside.join("nowhere"), &place).expect("a link"),
                "link to a directory" => symlink(&outside, &place).expect("a link"),
                "link to a device" => symlink("/dev/zero", &place).expect("a link"),
                "named pipe" => assert!(std::process::Command::new("mkfifo").arg(&place).status().expect("mkfifo").success()),
                "socket" => {
                    // Addresses have a hundred bytes.
                    let short = dir.path().join("s");
                    drop(std::os::unix::net::UnixListener::bind(&short).expect("a socket"));
                    std::fs::rename(short, &place).expect("moved");
                }
                "directory" => std::fs::create_dir(&place).expect("a folder"),
                _ => std::fs::write(&place, "mine").expect("it can be written"),
            }
            let planted = place.symlink_metadata().expect("planted");
            let folder = folder_in(&root);
            for lang in Lang::ALL {
                // Each is refused or done.
                let _ = folder.prepare(exercise, lang);
                let _ = folder.update(|progress| progress.entry_mut(exercise, lang).stub = "older".to_owned());
                let _ = folder.prepare(exercise, lang);
                let _ = files::create_numbered(&root.join(lang.name()), &exercise.file_stem(), "png", b"png");
                let _ = folder.reset(exercise, lang);
            }
            let _ = files::move_aside(&folder.progress_file(), "progress", "json");
            let folders = Lang::ALL.map(|lang| root.join(lang.name()));
            let entries = folders.iter().chain([&root]).map(|folder| std::fs::read_dir(folder).expect("a folder"));
            let found = entries.flatten().flatten().find(|entry| {
                let now = entry.path().symlink_metadata().expect("it is there");
                (now.ino(), now.mode()) == (planted.ino(), planted.mode())
            });
            let found = found.unwrap_or_else(|| panic!("the {kind} at {name} is gone")).path();
            let mine = !planted.is_file() || std::fs::read(&found).is_ok_and(|bytes| bytes == b"mine");
            assert!(mine, "the {kind} at {name} was written to");
            let left: Vec<_> = std::fs::read_dir(&outside).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
            assert_eq!(left, ["precious"], "{kind} at {name}");
            assert_eq!(std::fs::read(outside.join("precious")).expect("it is there"), b"precious", "{kind} at {name}");
        }
    }
}
