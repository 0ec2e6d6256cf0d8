//! Watch mode: edit, save, see. A save ends the check that is running; keys do the rest.

use super::{Outcome, Session, Status, intro};
use crate::error::Result;
use crate::exercise::Exercise;
use crate::judge::{Failure, NoVerdict, Task, Verdict, check};
use crate::show::picture::{png, three};
use crate::show::{self};
use notify::Watcher;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// A save is often several events: wait until they are over.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// How often the file is looked at where events do not come.
const POLL: Duration = Duration::from_millis(100);
/// A check that takes longer than this is said to be running.
const SOON: Duration = Duration::from_millis(400);

enum Event {
    Key(char),
    Maybe,
    Done(u64, std::result::Result<Box<Verdict>, NoVerdict>),
}

/// What a save changes.
type Stamp = Option<(SystemTime, u64)>;

fn stamp(path: &Path) -> Stamp {
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len()))
}

struct Watching<'s, 'a> {
    session: &'s Session<'a>,
    exercise: &'static Exercise,
    path: PathBuf,
    seen: Stamp,
    due: Option<Instant>,
    /// The running check: its number and how to end it.
    running: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
    number: u64,
    /// When to show that a check is running.
    show_running_at: Option<Instant>,
    verdict: Option<Box<Verdict>>,
    sender: Sender<Event>,
    /// The key whose question waits for `y`.
    asked: Option<char>,
    /// Digits typed in the list.
    selecting: Option<String>,
}

/// Watches an exercise and those that follow until told to stop.
pub(super) fn watch(session: &Session<'_>, exercise: &'static Exercise) -> Result<Outcome> {
    let (sender, events) = channel();
    let _keys = super::terminal::Keys::listen(sender.clone(), Event::Key);
    let path = session.folder.prepare(exercise, session.lang)?;
    let noticed = sender.clone();
    let mut watcher = notify::recommended_watcher(move |_| {
        let _ = noticed.send(Event::Maybe);
    })
    .ok();
    if let Some(watcher) = &mut watcher {
        // The folder, not the file: editors that rename make a new file. Where this fails, polling remains.
        let _ = watcher.watch(&session.folder.root().join(session.lang.name()), notify::RecursiveMode::NonRecursive);
    }
    let seen = stamp(&path);
    let mut watching = Watching {
        session,
        exercise,
        path,
        seen,
        due: Some(Instant::now()),
        running: None,
        number: 0,
        show_running_at: None,
        verdict: None,
        sender,
        asked: None,
        selecting: None,
    };
    watching.screen(&intro(exercise, session.lang, &watching.path));
    watching.run(&events)
}

impl Watching<'_, '_> {
    fn run(&mut self, events: &Receiver<Event>) -> Result<Outcome> {
        loop {
            if self.session.stop.load(Ordering::Relaxed) {
                self.end_check();
                return Ok(Outcome::Stopped);
            }
            match events.recv_timeout(POLL) {
                Ok(Event::Key('q')) => {
                    self.end_check();
                    return Ok(self.outcome());
                }
                Ok(Event::Key(key)) => self.key(key)?,
                Ok(Event::Done(number, result)) if number == self.number => self.done(result)?,
                Ok(Event::Done(..) | Event::Maybe) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(self.outcome()),
            }
            let now = stamp(&self.path);
            if now.is_some() && now != self.seen {
                self.seen = now;
                self.due = Some(Instant::now() + DEBOUNCE);
                self.end_check();
            }
            if self.due.is_some_and(|due| Instant::now() >= due) {
                self.due = None;
                self.start_check();
            }
            if self.show_running_at.is_some_and(|until| Instant::now() >= until) {
                self.show_running_at = None;
                put(&["checking .. (saving the file starts again)".to_owned()]);
            }
        }
    }

    fn outcome(&self) -> Outcome {
        let passed = self.verdict.as_ref().is_some_and(|v| v.status == Status::Pass);
        if passed { Outcome::Done } else { Outcome::NotPassed }
    }

    fn end_check(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            stop.store(true, Ordering::Relaxed);
            // It looks up every few milliseconds, and ends its runner.
            let _ = thread.join();
        }
        self.show_running_at = None;
        self.number += 1;
    }

    fn start_check(&mut self) {
        self.end_check();
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let (number, sender, file, exercise, lang) =
            (self.number, self.sender.clone(), self.path.clone(), self.exercise, self.session.lang);
        let (python, seed, builds) = (self.session.options.python.clone(), self.session.options.seed, Arc::clone(&self.session.builds));
        let thread = std::thread::spawn(move || {
            let task = Task { exercise, lang, file: &file, python: python.as_deref(), seed, builds: &builds, stop: &told };
            let _ = sender.send(Event::Done(number, check(&task).map(Box::new)));
        });
        self.running = Some((stop, thread));
        self.show_running_at = Some(Instant::now() + SOON);
    }

    fn done(&mut self, result: std::result::Result<Box<Verdict>, NoVerdict>) -> Result<()> {
        (self.running, self.show_running_at) = (None, None);
        let verdict = match result {
            Ok(verdict) => verdict,
            Err(NoVerdict::Stopped) => return Ok(()),
            Err(NoVerdict::Error(error)) => return Err(error),
        };
        self.session.note(&self.session.folder, self.exercise, &verdict);
        let mut lines = if verdict.status == Status::Todo {
            intro(self.exercise, self.session.lang, &self.path)
        } else {
            show::verdict(&verdict, self.session.look)
        };
        if verdict.status == Status::Pass {
            lines.extend(self.session.praise(self.exercise, self.session.lang, &self.path));
            lines.push("  key n goes on, key s shows our solution".to_owned());
        } else if verdict.status != Status::Todo {
            lines.push(String::new());
            lines.push(format!("  edit {} and save", self.path.display()));
        }
        self.verdict = Some(verdict);
        self.screen(&lines);
        Ok(())
    }

    fn key(&mut self, key: char) -> Result<()> {
        let asked = self.asked.take();
        if let Some(typed) = self.selecting.take()
            && self.select(typed, key)?
        {
            return Ok(());
        }
        match (asked, key) {
            (Some('r'), 'y') => {
                let line = self.session.reset_line(self.exercise)?;
                self.seen = None;
                self.screen(&[line]);
            }
            (Some('s'), 'y') => self.show_solution(),
            (_, 'h') => {
                let lines = self.session.hint_lines(self.exercise)?;
                self.screen(&lines);
            }
            (_, 's') => self.solution()?,
            (_, 'r') => {
                self.asked = Some('r');
                self.screen(&["Move your file aside and begin again? y".to_owned()]);
            }
            (_, 'l') => {
                self.selecting = Some(String::new());
                let mut lines = self.session.list_lines()?;
                lines.push("type a number to go there".to_owned());
                self.screen(&lines);
            }
            (_, 'n') => self.next()?,
            (_, 'p') => self.picture(),
            (_, '\n' | ' ' | '\r') => self.start_check(),
            _ => {}
        }
        Ok(())
    }

    /// Takes a key typed in the list; false if it is not part of a number.
    fn select(&mut self, mut typed: String, key: char) -> Result<bool> {
        match key {
            '0'..='9' => typed.push(key),
            '\n' | '\r' if !typed.is_empty() => {}
            _ => return Ok(false),
        }
        let number: usize = typed.parse().unwrap_or(0);
        // One digit is enough where no exercise has a second one.
        let more = key.is_ascii_digit() && typed.len() == 1 && number * 10 <= self.session.list.len();
        if more {
            self.selecting = Some(typed);
        } else if let Some(exercise) = self.session.list.iter().find(|e| e.number == number) {
            self.go_to(exercise)?;
        } else {
            self.screen(&[format!("there is no exercise {number}: type a number from 1 to {}", self.session.list.len())]);
        }
        Ok(true)
    }

    fn solution(&mut self) -> Result<()> {
        let entry = self.session.folder.progress()?.entry(self.exercise, self.session.lang);
        if entry.passed {
            self.show_solution();
        } else if entry.hints < self.exercise.hints.len() {
            self.screen(&[format!(
                "the solution is free after a pass, or after all {} hints (key h); {} used",
                self.exercise.hints.len(),
                entry.hints
            )]);
        } else {
            self.asked = Some('s');
            self.screen(&["Show the solution without having passed? y".to_owned()]);
        }
        Ok(())
    }

    fn show_solution(&self) {
        let lines: Vec<String> = self.exercise.solution(self.session.lang).lines().map(str::to_owned).collect();
        self.page(&lines, "solution");
    }

    /// The next exercise, once this one has passed.
    fn next(&mut self) -> Result<()> {
        let passed = self.session.folder.progress()?.entry(self.exercise, self.session.lang).passed;
        if !passed {
            self.screen(&[format!("{} has not passed yet; key l shows the list, where a number goes to any exercise", self.exercise.name)]);
            return Ok(());
        }
        let after = self.session.list.iter().copied().filter(|e| e.number > self.exercise.number);
        let progress = self.session.folder.progress()?;
        let mut open = after.filter(|e| !progress.entry(e, self.session.lang).passed);
        let Some(exercise) = open.next().or(self.session.first_open()?) else {
            self.screen(&[format!("all {} exercises pass. Well done!", self.session.list.len())]);
            return Ok(());
        };
        self.go_to(exercise)
    }

    /// Shows and watches another exercise.
    fn go_to(&mut self, exercise: &'static Exercise) -> Result<()> {
        self.end_check();
        self.exercise = exercise;
        self.path = self.session.folder.prepare(exercise, self.session.lang)?;
        (self.seen, self.verdict, self.due) = (stamp(&self.path), None, Some(Instant::now()));
        self.screen(&intro(exercise, self.session.lang, &self.path));
        Ok(())
    }

    /// Saves the pictures of the last failure.
    fn picture(&self) {
        let seen = self.verdict.as_ref().and_then(|v| v.smallest.as_ref());
        let maps = seen.and_then(|seen| match (&seen.failure, &seen.reply) {
            (Some(Failure::Numbers { result, .. }), Ok(got)) => Some(three(&seen.expected.values[*result], &got[*result])),
            _ => None,
        });
        let line = match maps.map(|maps| png(&maps)) {
            None => "there is no picture: nothing is wrong, or there are no numbers".to_owned(),
            Some(Err(error)) => format!("the picture cannot be made: {error}"),
            Some(Ok(bytes)) => {
                let folder = self.path.parent().unwrap_or(Path::new("."));
                match crate::files::create_numbered(folder, &self.exercise.file_stem(), "png", &bytes) {
                    Ok(path) => format!("saved {} (expected, yours, difference)", path.display()),
                    Err(error) => error.to_string(),
                }
            }
        };
        self.screen(&[line]);
    }

    fn clear(&self) {
        let _ = write!(std::io::stdout(), "\x1b[2J\x1b[H");
    }

    fn screen(&self, lines: &[String]) {
        self.page(lines, "check");
    }

    /// Lines from the top, as many as fit, and the keys below; the sub-command has all of them.
    fn page(&self, lines: &[String], sub_command: &str) {
        let (rows, cols) = super::terminal::size();
        let room = rows.saturating_sub(3);
        self.clear();
        let wrapped: Vec<String> = lines.iter().flat_map(|line| line.split('\n')).flat_map(|line| show::wrap(line, cols)).collect();
        let shown = if wrapped.len() > room { room.saturating_sub(1) } else { wrapped.len() };
        put(&wrapped[..shown]);
        if shown < wrapped.len() {
            put(&[format!("  .. {} more lines: regard learn {sub_command} {}", wrapped.len() - shown, self.exercise.number)]);
        }
        self.help();
    }

    fn help(&self) {
        let keys = "h hint  s solution  n next  l list, go to  p picture  r reset  space check  q quit";
        put(&[String::new(), self.session.look.paint("2", keys)]);
    }
}

/// Prints lines; a terminal that is gone ends the loop by its signal.
fn put(lines: &[String]) {
    let _ = super::say(lines);
}
