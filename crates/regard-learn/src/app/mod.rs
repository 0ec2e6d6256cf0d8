//! The command `regard learn`: what it does, said in lines. Arguments and exit codes are the command's.

mod classroom;
pub mod demo;
mod record;
pub mod state;
mod terminal;
mod watch;

use crate::error::{Error, Result};
use crate::exercise::{Exercise, Judging, Lang};
use crate::exercises::{EXERCISES, find_in};
use crate::judge::{NoVerdict, Status, Task, Verdict, check};
use crate::runner::Builds;
use crate::sets::{self, List};
use crate::show::{self, Look};
use regard_files::Output;
use state::Folder;
use std::collections::BTreeMap;
use std::io::{BufRead, ErrorKind, IsTerminal, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

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
    /// Proves a set of exercises: solutions pass, stubs are not begun, wrong answers are named.
    Prove,
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
    /// Nothing is printed.
    pub quiet: bool,
    /// No colours, no watching.
    pub plain: bool,
    /// Folder of a set of exercises.
    pub set: Option<PathBuf>,
    /// Points of an exercise.
    pub points: u64,
    /// Files for classrooms.
    pub files: Files,
}

/// Files that `check` writes beside what it prints.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// JUnit XML.
    pub junit: Option<PathBuf>,
    /// `result.json` of Classroom 50.
    pub result: Option<PathBuf>,
    /// The verdict of one exercise, with its text, for the Python package.
    pub record: Option<PathBuf>,
    /// Whether they may replace files.
    pub overwrite: bool,
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
        Action::Prove => session.prove(),
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

/// The folder of the learner for a set, if there is one.
fn in_set(options: &Options, list: List, folder: Folder) -> Folder {
    let path = options.set.as_deref().and_then(|set| set.canonicalize().ok());
    match path.as_deref().and_then(Path::file_name) {
        Some(name) => folder.of_set(&name.to_string_lossy(), list),
        None => folder,
    }
}

struct Session<'a> {
    options: &'a Options,
    stop: &'static AtomicBool,
    folder: Folder,
    list: List,
    lang: Lang,
    look: Look,
    builds: Arc<Builds>,
}

impl<'a> Session<'a> {
    fn new(options: &'a Options, stop: &'static AtomicBool) -> Result<Self> {
        let list = options.set.as_deref().map_or(Ok(EXERCISES), sets::load)?;
        let folder = in_set(options, list, Folder::find(options.dirs.first().map(PathBuf::as_path)));
        let remembered = folder.progress().ok().and_then(|p| p.lang);
        let lang = options.lang.or(remembered).unwrap_or(Lang::Python);
        let look = Look { colour: !options.plain && stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() };
        if options.set.is_some() && lang != Lang::Python {
            return Err(Error::Usage("the exercises of a set are judged in Python; leave --lang out".to_owned()));
        }
        Ok(Self { options, stop, folder, list, lang, look, builds: Arc::default() })
    }

    fn in_set(&self, folder: Folder) -> Folder {
        in_set(self.options, self.list, folder)
    }

    fn find(&self, word: &str) -> Result<&'static Exercise> {
        find_in(self.list, word).ok_or_else(|| Error::NoExercise { name: word.to_owned(), count: self.list.len() })
    }

    /// Remembers the language that was asked for.
    fn remember(&self) -> Result<()> {
        let lang = self.lang;
        if self.folder.progress()?.lang == Some(lang) { Ok(()) } else { self.folder.update(|p| p.lang = Some(lang)) }
    }

    /// The first exercise that has not passed.
    fn first_open(&self) -> Result<Option<&'static Exercise>> {
        let progress = self.folder.progress()?;
        Ok(self.list.iter().copied().find(|e| !progress.entry(e, self.lang).passed))
    }

    fn watch(&self, word: Option<&str>) -> Result<Outcome> {
        let named = word.map(|word| self.find(word)).transpose()?;
        self.remember()?;
        let Some(exercise) = named.map_or_else(|| self.first_open(), |exercise| Ok(Some(exercise)))? else {
            say(&[format!("all {} exercises pass in {}; `regard learn list` shows them", self.list.len(), self.lang.name())])?;
            return Ok(Outcome::Done);
        };
        if !self.options.plain && terminal::is_terminal() {
            return watch::watch(self, exercise);
        }
        let path = self.folder.prepare(exercise, self.lang)?;
        say(&intro(exercise, self.lang, &path))?;
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

    /// The exercises and their state for programs.
    fn list_json(&self) -> Result<serde_json::Value> {
        let progress = self.folder.progress()?;
        let one = |exercise: &&'static Exercise| {
            let entry = progress.entry(exercise, self.lang);
            serde_json::json!({"number": exercise.number, "name": exercise.name, "title": exercise.title, "passed": entry.passed,
                "status": entry.status, "tries": entry.tries, "hints": entry.hints})
        };
        Ok(self.list.iter().map(one).collect())
    }

    fn list(&self) -> Result<Outcome> {
        if let Some(path) = &self.options.files.record {
            Output::reserve_new(path, self.options.files.overwrite)?.write(self.list_json()?.to_string().as_bytes())?;
            return Ok(Outcome::Done);
        }
        if self.options.json {
            print(&format!("{:#}", self.list_json()?))?;
            return Ok(Outcome::Done);
        }
        say(&self.list_lines()?)?;
        say(&["`regard learn 12` goes to exercise 12".to_owned()])?;
        Ok(Outcome::Done)
    }

    fn list_lines(&self) -> Result<Vec<String>> {
        let progress = self.folder.progress()?;
        let mut lines = Vec::new();
        for exercise in self.list {
            let entry = progress.entry(exercise, self.lang);
            let state = match entry.status {
                _ if entry.passed => self.look.paint("32", "pass"),
                Some(Status::Todo) | None => "    ".to_owned(),
                Some(_) => self.look.paint("31", "open"),
            };
            lines.push(format!("  {state}  {:02} {:<19} {}", exercise.number, exercise.name, exercise.title));
        }
        let passed = self.list.iter().filter(|e| progress.entry(e, self.lang).passed).count();
        lines.push(format!("{passed} of {} pass in {}; files are in {}", self.list.len(), self.lang.name(), self.folder.root().display()));
        Ok(lines)
    }

    fn show(&self, exercise: &'static Exercise) -> Result<Outcome> {
        let path = self.folder.prepare(exercise, self.lang)?;
        say(&intro(exercise, self.lang, &path))?;
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
        let quiet = self.options.json || self.options.csv || self.options.quiet;
        if let Some(folder) = jobs.first().and_then(|job| job.folder.as_ref()).filter(|_| !several) {
            folder.check_writable()?;
        }
        let files = &self.options.files;
        let reserve = |path: &Option<PathBuf>| path.as_deref().map(|path| Output::reserve_new(path, files.overwrite)).transpose();
        let outputs = [reserve(&files.junit)?, reserve(&files.result)?, reserve(&files.record)?];
        let (mut records, mut texts) = (Vec::new(), Vec::new());
        let judged = self.in_turn(&jobs, several && !quiet, &mut |job, verdict| {
            let mut hints = 0;
            if let Some(folder) = &job.folder {
                hints = folder.progress().map(|p| p.entry(job.exercise, job.lang).hints).unwrap_or(0);
                // A teacher looks at folders and leaves them as they are.
                if !several && job.file.exists() {
                    self.note(folder, job.exercise, &verdict);
                }
            }
            if files.record.is_some() {
                texts.push(show::verdict(&verdict, Look::default()).join("\n"));
            }
            if !quiet && !several {
                say(&show::verdict(&verdict, self.look))?;
                if verdict.status == Status::Pass && jobs.len() == 1 {
                    say(&self.praise(job.exercise, job.lang, &job.file))?;
                }
            }
            records.push(record::record(&job.place, &verdict, hints, self.options.points));
            Ok(())
        });
        match judged {
            Ok(()) => {}
            Err(NoVerdict::Stopped) => return Ok(Outcome::Stopped),
            Err(NoVerdict::Error(error)) => return Err(error),
        }
        let [junit, result, record] = outputs;
        if let Some(output) = junit {
            output.write(classroom::junit(&records).as_bytes())?;
        }
        if let Some(output) = result {
            output.write(format!("{:#}\n", classroom::result(&records)).as_bytes())?;
        }
        if let (Some(output), [one, ..]) = (record, &mut records[..]) {
            one.json["text"] = texts.join("\n").into();
            output.write(one.json.to_string().as_bytes())?;
        }
        if self.options.quiet {
            // The exit code tells.
        } else if self.options.json {
            print(&record::to_json(&records))?;
        } else if self.options.csv {
            print(&record::to_csv(&records))?;
        } else if several {
            say(&record::to_table(&records))?;
            say(&classroom::frequent(&records))?;
        }
        let passed = records.iter().all(|r| r.status == Status::Pass);
        Ok(if passed { Outcome::Done } else { Outcome::NotPassed })
    }

    /// Judges jobs on as many threads as there are processors, and hands on the verdicts in order.
    fn in_turn(
        &self,
        jobs: &[Job],
        progress: bool,
        each: &mut dyn FnMut(&Job, Verdict) -> Result<()>,
    ) -> std::result::Result<(), NoVerdict> {
        let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(jobs.len());
        let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let start = Instant::now();
        let (sender, verdicts) = channel();
        std::thread::scope(|scope| {
            for _ in 0..workers {
                let (sender, next, over) = (sender.clone(), &next, &over);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(job) = jobs.get(at) else { break };
                        if sender.send((at, self.judge_job(job))).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let (mut waiting, mut shown, mut said) = (BTreeMap::new(), 0, Instant::now());
            for (at, verdict) in verdicts {
                waiting.insert(at, verdict);
                while let Some(verdict) = waiting.remove(&shown) {
                    let handed = verdict.and_then(|verdict| each(&jobs[shown], verdict).map_err(NoVerdict::Error));
                    if handed.is_err() {
                        over.store(true, Ordering::Relaxed);
                        return handed;
                    }
                    shown += 1;
                }
                if progress && start.elapsed() > Duration::from_secs(2) && said.elapsed() > Duration::from_secs(2) {
                    warn(&format!("{shown} of {} answers judged", jobs.len()));
                    said = Instant::now();
                }
            }
            Ok(())
        })
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
            (true, true) => self.list.to_vec(),
            (false, false) => named,
            (false, true) => vec![self.first_open()?.unwrap_or(self.list[0])],
        };
        let dirs: Vec<Option<&Path>> =
            if self.options.dirs.is_empty() { vec![None] } else { self.options.dirs.iter().map(|d| Some(d.as_path())).collect() };
        let mut jobs = Vec::new();
        for dir in dirs {
            if let Some(dir) = dir.filter(|dir| !dir.is_dir()) {
                return Err(Error::Usage(format!("{} is no folder: --dir names a learner's folder", dir.display())));
            }
            let folder = self.in_set(Folder::find(dir));
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
            [] => find_in(self.list, &stem)
                .ok_or_else(|| Error::Usage(format!("which exercise is {}? Say `check N --file PATH`", file.display())))?,
            _ => return Err(Error::Usage("--file judges one exercise".to_owned())),
        };
        let by_ending = match file.extension().and_then(|e| e.to_str()) {
            Some("py") if file.parent().is_some_and(|folder| folder.ends_with("torch")) => Some(Lang::Torch),
            Some("py") => Some(Lang::Python),
            Some("rs") => Some(Lang::Rust),
            _ => None,
        };
        let lang = self.options.lang.or(by_ending).unwrap_or(self.lang);
        Ok(Job { exercise, lang, file: file.to_path_buf(), folder: None, place: file.to_path_buf() })
    }

    /// Judges the solutions, stubs and wrong answers of a set, or of the built-in exercises in one language.
    fn prove(&self) -> Result<Outcome> {
        let folder = tempfile::tempdir().map_err(Error::temporary)?;
        let mut failures = 0;
        for exercise in self.list {
            let wrong: Vec<(String, String)> = match &exercise.judging {
                Judging::Programs(programs) => {
                    let read = |path: &PathBuf| Result::Ok(String::from_utf8_lossy(&crate::files::read_answer(path)?).into_owned());
                    let one = |(mistake, path): &(crate::exercise::Mistake, PathBuf)| Result::Ok((mistake.id.to_owned(), read(path)?));
                    programs.wrong.iter().map(one).collect::<Result<_>>()?
                }
                _ => {
                    let all = crate::wrong::wrong_answers(exercise.solution(self.lang), exercise.wrong(self.lang));
                    all.into_iter().map(|wrong| (wrong.id, wrong.source)).collect()
                }
            };
            let listed = [("solution", exercise.solution(self.lang)), ("stub", exercise.stub(self.lang))];
            let jobs = listed.map(|(what, source)| (what.to_owned(), source.to_owned())).into_iter().chain(wrong);
            let mut lines = Vec::new();
            let mut count = 0;
            for (what, source) in jobs {
                let file = folder.path().join(exercise.file_name(self.lang));
                std::fs::write(&file, &source).map_err(|reason| Error::file("write", &file, reason))?;
                let verdict = match self.judge(exercise, self.lang, &file) {
                    Ok(verdict) => verdict,
                    Err(NoVerdict::Stopped) => return Ok(Outcome::Stopped),
                    Err(NoVerdict::Error(error)) => return Err(error),
                };
                let ids: Vec<&str> = verdict.diagnosis.iter().flat_map(|d| d.mistakes.iter().map(|m| m.id)).collect();
                let right = match what.as_str() {
                    "solution" => verdict.status == Status::Pass,
                    "stub" => verdict.status == Status::Todo,
                    id => verdict.status != Status::Pass && ids == [id],
                };
                count += 1;
                if !right {
                    failures += 1;
                    let said = if ids.is_empty() { "nothing is named".to_owned() } else { format!("named: {}", ids.join(", ")) };
                    lines.push(format!("  {what}: {:?}, {said}", verdict.status).to_lowercase());
                }
            }
            let word = if lines.is_empty() { self.look.paint("32;1", "ok  ") } else { self.look.paint("31;1", "fail") };
            lines.insert(0, format!("{word} {:02} {}: {count} answers", exercise.number, exercise.name));
            say(&lines)?;
        }
        say(&[match failures {
            0 => "solutions pass, stubs are not begun, every listed mistake is named".to_owned(),
            count => format!("{count} answers are not judged as they must be"),
        }])?;
        Ok(if failures == 0 { Outcome::Done } else { Outcome::NotPassed })
    }

    /// What is said after a pass.
    fn praise(&self, exercise: &'static Exercise, lang: Lang, file: &Path) -> Vec<String> {
        let mut lines = vec![format!("  {}", exercise.idea)];
        let work =
            demo::work(&demo::Answer { exercise, lang, file, python: self.options.python.as_deref(), builds: &self.builds }, self.look);
        lines.extend(work.into_iter().map(|line| format!("  {line}")));
        lines.push(format!("  our solution: `regard learn solution {}`", exercise.number));
        let next = self.list.iter().find(|e| e.number == exercise.number + 1);
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
    // The first of those with most.
    Lang::ALL.into_iter().rev().max_by_key(|lang| count(*lang)).unwrap_or(Lang::Python)
}

/// What an exercise is about and where its file is.
fn intro(exercise: &Exercise, lang: Lang, path: &Path) -> Vec<String> {
    let mut lines = show::paragraphs(&exercise.text(lang));
    lines.push(String::new());
    lines.push(format!("Edit {} and save.", path.display()));
    lines
}
