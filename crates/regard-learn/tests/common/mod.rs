//! Answers as files, judged.

#![allow(dead_code)] // No test program needs all of it.

use regard_learn::Builds;
use regard_learn::exercise::{Exercise, Lang};
use regard_learn::judge::{NoVerdict, Status, Task, Verdict, check_seeds};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A folder for answers and a Python to run them.
pub struct Judge {
    folder: tempfile::TempDir,
    python: Option<PathBuf>,
    count: AtomicUsize,
    builds: Builds,
}

fn python() -> Option<PathBuf> {
    let named = std::env::var_os("REGARD_LEARN_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| PathBuf::from("python3"));
    let works = std::process::Command::new(&python).args(["-c", "import numpy"]).stderr(std::process::Stdio::null()).status();
    works.is_ok_and(|status| status.success()).then_some(python)
}

/// Whether that Python has PyTorch.
pub fn torch() -> bool {
    python().is_some_and(|python| {
        let tried = std::process::Command::new(python).args(["-c", "import torch"]).stderr(std::process::Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    })
}

/// The languages that can be judged here.
pub fn languages() -> Vec<Lang> {
    let mut languages = Vec::new();
    if python().is_some() {
        languages.push(Lang::Python);
    } else {
        eprintln!("skipped: Python, because REGARD_LEARN_PYTHON names no Python with NumPy, and python3 has none");
    }
    if torch() {
        languages.push(Lang::Torch);
    } else {
        eprintln!("skipped: PyTorch, because REGARD_LEARN_PYTHON names no Python with PyTorch, and python3 has none");
    }
    if std::process::Command::new("rustc").arg("-V").output().is_ok() {
        languages.push(Lang::Rust);
    } else {
        eprintln!("skipped: Rust, because there is no rustc");
    }
    languages
}

impl Judge {
    /// A judge with a folder of its own.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), python: python(), count: AtomicUsize::new(0), builds: Builds::new() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where Rust answers are compiled.
    pub fn builds(&self) -> &Builds {
        &self.builds
    }

    /// Judges a source on one seed.
    pub fn check(&self, exercise: &'static Exercise, lang: Lang, source: &str) -> Verdict {
        self.seeds(exercise, lang, source, 1)
    }

    /// Judges a source on several seeds.
    pub fn seeds(&self, exercise: &'static Exercise, lang: Lang, source: &str, seeds: u64) -> Verdict {
        let file = self.folder.path().join(format!("answer{}.{}", self.count.fetch_add(1, Ordering::Relaxed), lang.ending()));
        std::fs::write(&file, source).expect("it can be written");
        self.judge(exercise, lang, &file, seeds)
    }

    /// Judges a file on one seed.
    pub fn file(&self, exercise: &'static Exercise, lang: Lang, file: &Path) -> Verdict {
        self.judge(exercise, lang, file, 1)
    }

    fn judge(&self, exercise: &'static Exercise, lang: Lang, file: &Path, seeds: u64) -> Verdict {
        let stop = AtomicBool::new(false);
        let task = Task { exercise, lang, file, python: self.python.as_deref(), seed: 1, builds: &self.builds, stop: &stop };
        match check_seeds(&task, seeds) {
            Ok(verdict) => {
                if std::env::var_os("REGARD_LEARN_TIMES").is_some() {
                    eprintln!("{} ms: {} {} {:?}", verdict.millis, exercise.name, lang.name(), verdict.status);
                }
                verdict
            }
            Err(NoVerdict::Error(error)) => panic!("{error}"),
            Err(NoVerdict::Stopped) => panic!("stopped"),
        }
    }
}

/// A verdict in one line, for messages.
pub fn said(verdict: &Verdict) -> String {
    let ids: Vec<&str> = verdict.diagnosis.iter().flat_map(|d| d.mistakes.iter().map(|m| m.id)).collect();
    let failure = verdict.smallest.as_ref().and_then(|s| s.failure.as_ref());
    let label = verdict.smallest.as_ref().map(|s| s.case.label.clone());
    format!(
        "{:?}, {} of {} failed, {ids:?}, {:?}, {:?}, {label:?}, {failure:?}, {:?}",
        verdict.status, verdict.failed, verdict.cases, verdict.message, verdict.facts, verdict.prints.0
    )
}

pub fn is_pass(verdict: &Verdict) -> Result<(), String> {
    if verdict.status == Status::Pass {
        Ok(())
    } else {
        Err(format!("{} {}: {}", verdict.exercise.name, verdict.lang.name(), said(verdict)))
    }
}

/// The exercises; with `REGARD_LEARN_ONLY=decode,absorb` only these.
pub fn exercises() -> Vec<&'static Exercise> {
    let only = std::env::var("REGARD_LEARN_ONLY").ok();
    let wanted = |e: &&&'static Exercise| only.as_ref().is_none_or(|list| list.split(',').any(|name| name == e.name));
    regard_learn::exercises::EXERCISES.iter().filter(wanted).copied().collect()
}

/// Runs all of them on two threads and shows every failure.
pub fn run_all<F: FnOnce(&Judge) -> Result<(), String> + Send>(work: impl Iterator<Item = F>) {
    let queue: Mutex<Vec<F>> = Mutex::new(work.collect());
    let failures = Mutex::new(Vec::new());
    let judge = Judge::new();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(one) = {
                    let mut queue = queue.lock().expect("no panic");
                    queue.pop()
                } {
                    if let Err(failure) = one(&judge) {
                        failures.lock().expect("no panic").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no panic");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
