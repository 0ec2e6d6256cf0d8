//! The command `regard learn`: what it does, said in lines. Arguments and exit codes are the command's.

pub mod demo;
mod record;
pub mod state;
mod terminal;
mod watch;

use crate::error::{Error, Result};
use crate::exercise::{Exercise, Lang};
use crate::exercises::{EXERCISES, find};
use crate::judge::{NoVerdict, Status, Task, Verdict, check};
use crate::runner::Builds;
use crate::show::{self, Look};
use state::Folder;
use std::io::{BufRead, ErrorKind, IsTerminal, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What is to be done.
#[derive(Clone, Debug)]
pub enum Action {
    /// An exercise, watched: this one, or the first that has not passed.
    Watch(Option<String>),
    /// All exercises and how they stand.
    List,
    /// The text of one.
    Show(String),
    /// Judge these, or all.
    Check {
        /// Numbers or names.
        which: Vec<String>,
        /// All of them.
        all: bool,
    },
    /// One more hint.
    Hint(String),
    /// A right answer.
    Solution(String),
    /// The file aside, and the stub again.
    Reset(String),
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The language; else the one that was used last.
    pub lang: Option<Lang>,
    /// The learner's folders.
    pub dirs: Vec<PathBuf>,
    /// Judge this file.
    pub file: Option<PathBuf>,
    /// The Python that runs Python files.
    pub python: Option<PathBuf>,
    /// Which random cases.
    pub seed: u64,
    /// For programs.
    pub json: bool,
    /// For spreadsheets.
    pub csv: bool,
    /// No colours, no watching.
    pub plain: bool,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, and everything that was judged passed.
    Done,
    /// Something did not pass.
    NotPassed,
    /// Stop was requested.
    Stopped,
}

/// Runs the command.
pub fn run(action: &Action, options: &Options, stop: &'static AtomicBool) -> Result<Outcome> {
    let session = Session::new(options, stop)?;
    match action {
        Action::Watch(word) => session.watch(word.as_deref()),
        Action::List => session.list(),
        Action::Show(word) => session.show(session.find(word)?),
        Action::Check { which, all } => session.check(which, *all),
        Action::Hint(word) => session.hint(session.find(word)?),
        Action::Solution(word) => session.solution(session.find(word)?),
        Action::Reset(word) => session.reset(session.find(word)?),
    }
}

/// Prints lines. A closed pipe (`regard learn list | head -1`) is no error; a full disk is.
fn say(lines: &[String]) -> Result<()> {
    let width = if stdout().is_terminal() { terminal::size().1 } else { usize::MAX };
    let lines = lines.iter().flat_map(|line| line.split('\n')).flat_map(|line| show::wrap(line, width));
    print(&lines.collect::<Vec<_>>().join("\n"))
}

/// Prints a text as it is.
fn print(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::Output(e)),
        _ => Ok(()),
    }
}

/// Prints a line for people to the standard error, if it can be written.
fn warn(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

struct Session<'a> {
    options: &'a Options,
    stop: &'static AtomicBool,
    folder: Folder,
    lang: Lang,
    look: Look,
    builds: Arc<Builds>,
}

impl<'a> Session<'a> {
    fn new(options: &'a Options, stop: &'static AtomicBool) -> Result<Self> {
        let folder = Folder::find(options.dirs.first().map(PathBuf::as_path));
        let remembered = folder.progress().ok().and_then(|p| p.lang);
        let lang = options.lang.or(remembered).unwrap_or(Lang::Python);
        let look = Look { colour: !options.plain && stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() };
        Ok(Self { options, stop, folder, lang, look, builds: Arc::default() })
    }

    fn find(&self, word: &str) -> Result<&'static Exercise> {
        find(word).ok_or_else(|| Error::NoExercise { name: word.to_owned(), count: EXERCISES.len() })
    }

    /// Remembers the language that was asked for.
    fn remember(&self) -> Result<()> {
        let lang = self.lang;
        if self.folder.progress()?.lang == Some(lang) { Ok(()) } else { self.folder.update(|p| p.lang = Some(lang)) }
    }

    /// The first exercise that has not passed.
    fn first_open(&self) -> Result<Option<&'static Exercise>> {
        let progress = self.folder.progress()?;
        Ok(EXERCISES.iter().copied().find(|e| !progress.entry(e, self.lang).passed))
    }

    fn watch(&self, word: Option<&str>) -> Result<Outcome> {
        let named = word.map(|word| self.find(word)).transpose()?;
        self.remember()?;
        let Some(exercise) = named.map_or_else(|| self.first_open(), |exercise| Ok(Some(exercise)))? else {
            say(&[format!("all {} exercises pass in {}; `regard learn list` shows them", EXERCISES.len(), self.lang.name())])?;
            return Ok(Outcome::Done);
        };
        if !self.options.plain && terminal::is_terminal() {
            return watch::watch(self, exercise);
        }
        let path = self.folder.prepare(exercise, self.lang)?;
        say(&intro(exercise, &path))?;
        let verdict = match self.judge(exercise, self.lang, &path) {
            Ok(verdict) => verdict,
            Err(NoVerdict::Stopped) => return Ok(Outcome::Stopped),
            Err(NoVerdict::Error(error)) => return Err(error),
        };
        self.note(&self.folder, exercise, &verdict);
        say(&show::verdict(&verdict, self.look))?;
        Ok(if verdict.status == Status::Pass { Outcome::Done } else { Outcome::NotPassed })
    }

    fn judge(&self, exercise: &'static Exercise, lang: Lang, file: &Path) -> std::result::Result<Verdict, NoVerdict> {
        let python = self.options.python.as_deref();
        check(&Task { exercise, lang, file, python, seed: self.options.seed, builds: &self.builds, stop: self.stop })
    }

    /// Keeps a verdict; a folder that cannot be written to is said, and does not change the verdict.
    fn note(&self, folder: &Folder, exercise: &Exercise, verdict: &Verdict) {
        let version = verdict.source.clone();
        let kept = folder.update(|progress| {
            progress.lang = Some(verdict.lang);
            let entry = progress.entry_mut(exercise, verdict.lang);
            if entry.hash != version && verdict.status != Status::Todo {
                entry.tries += 1;
            }
            entry.hash = version;
            entry.status = Some(verdict.status);
            entry.passed |= verdict.status == Status::Pass;
        });
        if let Err(error) = kept {
            warn(&format!("the verdict stands, but progress is not kept: {error}"));
        }
    }

    fn list(&self) -> Result<Outcome> {
        say(&self.list_lines()?)?;
        say(&["`regard learn 12` goes to exercise 12".to_owned()])?;
        Ok(Outcome::Done)
    }

    fn list_lines(&self) -> Result<Vec<String>> {
        let progress = self.folder.progress()?;
        let mut lines = Vec::new();
        for exercise in EXERCISES {
            let entry = progress.entry(exercise, self.lang);
            let state = match entry.status {
                _ if entry.passed => self.look.paint("32", "pass"),
                Some(Status::Todo) | None => "    ".to_owned(),
                Some(_) => self.look.paint("31", "open"),
            };
            lines.push(format!("  {state}  {:02} {:<19} {}", exercise.number, exercise.name, exercise.title));
        }
        let passed = EXERCISES.iter().filter(|e| progress.entry(e, self.lang).passed).count();
        lines.push(format!("{passed} of {} pass in {}; files are in {}", EXERCISES.len(), self.lang.name(), self.folder.root().display()));
        Ok(lines)
    }

    fn show(&self, exercise: &'static Exercise) -> Result<Outcome> {
        let path = self.folder.prepare(exercise, self.lang)?;
        say(&intro(exercise, &path))?;
        Ok(Outcome::Done)
    }

    fn hint(&self, exercise: &'static Exercise) -> Result<Outcome> {
        say(&self.hint_lines(exercise)?)?;
        Ok(Outcome::Done)
    }

    fn hint_lines(&self, exercise: &'static Exercise) -> Result<Vec<String>> {
        let mut level = 0;
        let lang = self.lang;
        self.folder.update(|progress| {
            let entry = progress.entry_mut(exercise, lang);
            entry.hints = (entry.hints + 1).min(exercise.hints.len());
            level = entry.hints;
        })?;
        Ok((0..level).map(|at| format!("hint {} of {}: {}", at + 1, exercise.hints.len(), exercise.hints[at])).collect())
    }

    fn solution(&self, exercise: &'static Exercise) -> Result<Outcome> {
        let entry = self.folder.progress()?.entry(exercise, self.lang);
        if !entry.passed {
            if entry.hints < exercise.hints.len() {
                say(&[format!(
                    "{} of {} hints used; the solution is free after a pass, or after all hints: `regard learn hint {}`",
                    entry.hints,
                    exercise.hints.len(),
                    exercise.number
                )])?;
                return Ok(Outcome::NotPassed);
            }
            write!(stdout(), "Show the solution of {} without having passed it? [y/N] ", exercise.name).map_err(Error::Output)?;
            stdout().flush().map_err(Error::Output)?;
            let mut answer = String::new();
            let _ = stdin().lock().read_line(&mut answer);
            if !answer.trim().to_lowercase().starts_with('y') {
                say(&["not shown".to_owned()])?;
                return Ok(Outcome::NotPassed);
            }
        }
        print(exercise.solution(self.lang).trim_end())?;
        Ok(Outcome::Done)
    }

    fn reset(&self, exercise: &'static Exercise) -> Result<Outcome> {
        say(&[self.reset_line(exercise)?])?;
        Ok(Outcome::Done)
    }

    fn reset_line(&self, exercise: &'static Exercise) -> Result<String> {
        let moved = self.folder.reset(exercise, self.lang)?;
        let kept = moved.map(|place| format!("your file is now {}; ", place.display())).unwrap_or_default();
        Ok(format!("{kept}{} begins again", self.folder.file(exercise, self.lang).display()))
    }

    fn check(&self, which: &[String], all: bool) -> Result<Outcome> {
        let jobs = self.jobs(which, all)?;
        let several = self.options.dirs.len() > 1;
        let quiet = self.options.json || self.options.csv;
        if let Some(folder) = jobs.first().and_then(|job| job.folder.as_ref()).filter(|_| !several) {
            folder.check_writable()?;
        }
        let mut records = Vec::new();
        for job in &jobs {
            let verdict = match self.judge_job(job) {
                Ok(verdict) => verdict,
                Err(NoVerdict::Stopped) => return Ok(Outcome::Stopped),
                Err(NoVerdict::Error(error)) => return Err(error),
            };
            let mut hints = 0;
            if let Some(folder) = &job.folder {
                hints = folder.progress().map(|p| p.entry(job.exercise, job.lang).hints).unwrap_or(0);
                // A teacher looks at folders and leaves them as they are.
                if !several && job.file.exists() {
                    self.note(folder, job.exercise, &verdict);
                }
            }
            if !quiet && !several {
                say(&show::verdict(&verdict, self.look))?;
                if verdict.status == Status::Pass && jobs.len() == 1 {
                    say(&self.praise(job.exercise, job.lang, &job.file))?;
                }
            }
            records.push(record::record(&job.place, &verdict, hints));
        }
        if self.options.json {
            print(&record::to_json(&records))?;
        } else if self.options.csv {
            print(&record::to_csv(&records))?;
        } else if several {
            say(&record::to_table(&records))?;
        }
        let passed = records.iter().all(|r| r.status == Status::Pass);
        Ok(if passed { Outcome::Done } else { Outcome::NotPassed })
    }

    /// A verdict; a file that is not there is not begun.
    fn judge_job(&self, job: &Job) -> std::result::Result<Verdict, NoVerdict> {
        if job.folder.is_some() && !job.file.exists() {
            return Ok(Verdict::absent(job.exercise, job.lang, &job.file));
        }
        self.judge(job.exercise, job.lang, &job.file)
    }

    fn jobs(&self, which: &[String], all: bool) -> Result<Vec<Job>> {
        let named: Vec<&'static Exercise> = which.iter().map(|word| self.find(word)).collect::<Result<_>>()?;
        if let Some(file) = &self.options.file {
            return self.file_job(file, &named).map(|job| vec![job]);
        }
        let exercises = match (all, named.is_empty()) {
            (true, false) => return Err(Error::Usage("give exercises or --all, not both".to_owned())),
            (true, true) => EXERCISES.to_vec(),
            (false, false) => named,
            (false, true) => vec![self.first_open()?.unwrap_or(EXERCISES[0])],
        };
        let dirs: Vec<Option<&Path>> =
            if self.options.dirs.is_empty() { vec![None] } else { self.options.dirs.iter().map(|d| Some(d.as_path())).collect() };
        let mut jobs = Vec::new();
        for dir in dirs {
            if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
                return Err(Error::Usage(format!("{} is no folder: --dir names a learner's folder", dir.display())));
            }
            let folder = Folder::find(dir);
            let remembered = folder.progress().ok().and_then(|p| p.lang);
            let lang = self.options.lang.or(remembered).unwrap_or_else(|| guess(&folder));
            let place = dir.map_or_else(|| folder.root().to_path_buf(), Path::to_path_buf);
            for exercise in &exercises {
                jobs.push(Job { exercise, lang, file: folder.file(exercise, lang), folder: Some(folder.clone()), place: place.clone() });
            }
        }
        Ok(jobs)
    }

    fn file_job(&self, file: &Path, named: &[&'static Exercise]) -> Result<Job> {
        let stem = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let exercise = match named {
            [exercise] => exercise,
            [] => find(&stem).ok_or_else(|| Error::Usage(format!("which exercise is {}? Say `check N --file PATH`", file.display())))?,
            _ => return Err(Error::Usage("--file judges one exercise".to_owned())),
        };
        let by_ending = match file.extension().and_then(|e| e.to_str()) {
            Some("py") => Some(Lang::Python),
            Some("rs") => Some(Lang::Rust),
            _ => None,
        };
        let lang = self.options.lang.or(by_ending).unwrap_or(self.lang);
        Ok(Job { exercise, lang, file: file.to_path_buf(), folder: None, place: file.to_path_buf() })
    }

    /// What is said after a pass.
    fn praise(&self, exercise: &'static Exercise, lang: Lang, file: &Path) -> Vec<String> {
        let mut lines = vec![format!("  {}", exercise.idea)];
        let work =
            demo::work(&demo::Answer { exercise, lang, file, python: self.options.python.as_deref(), builds: &self.builds }, self.look);
        lines.extend(work.into_iter().map(|line| format!("  {line}")));
        lines.push(format!("  our solution: `regard learn solution {}`", exercise.number));
        let next = EXERCISES.iter().find(|e| e.number == exercise.number + 1);
        lines.extend(next.map(|e| format!("  next: {:02} {}, {}", e.number, e.name, e.title)));
        lines
    }
}

/// A file to be judged.
struct Job {
    exercise: &'static Exercise,
    lang: Lang,
    file: PathBuf,
    folder: Option<Folder>,
    place: PathBuf,
}

/// The language of a folder that does not say it: the one that it has more files of.
fn guess(folder: &Folder) -> Lang {
    let count = |lang: Lang| EXERCISES.iter().filter(|e| folder.file(e, lang).exists()).count();
    if count(Lang::Rust) > count(Lang::Python) { Lang::Rust } else { Lang::Python }
}

/// What an exercise is about and where its file is.
fn intro(exercise: &Exercise, path: &Path) -> Vec<String> {
    let mut lines: Vec<String> = exercise.files.text.lines().map(str::to_owned).collect();
    lines.push(String::new());
    lines.push(format!("Edit {} and save.", path.display()));
    lines
}
