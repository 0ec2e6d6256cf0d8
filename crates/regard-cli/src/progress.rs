//! Progress bar with the remaining time, on a terminal, for work of more than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use regard_files::ResumeStore;
use regard_lab::experiments::Progress;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SHOWN_AFTER: Duration = Duration::from_secs(1);

pub(crate) struct Bar {
    bar: ProgressBar,
    what: &'static str,
    started: Instant,
    waiting: AtomicBool,
    quiet: bool,
    resume: Option<ResumeStore>,
}

impl Bar {
    pub(crate) fn new(what: &'static str, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg} [{wide_bar}] {percent:>3} %, {eta} left").expect("a valid template");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        let wanted = !quiet && std::io::stderr().is_terminal();
        Self { bar, what, started: Instant::now(), waiting: AtomicBool::new(wanted), quiet, resume: None }
    }

    /// Store finished steps below the folder of the results, and resume from those that an interrupted run left there.
    pub(crate) fn resuming(mut self, results: &Path) -> regard_files::Result<Self> {
        let store = ResumeStore::open(results)?;
        if store.found() > 0 && !self.quiet {
            crate::output::note(format_args!("resuming: {} finished steps of an earlier run are in {}", store.found(), results.display()));
        }
        self.resume = Some(store);
        Ok(self)
    }

    /// All results are written: remove the stored steps.
    pub(crate) fn ended(&self) {
        // Names of steps begin with the experiment's; a report runs them all.
        let prefix = if self.what == "report" { String::new() } else { format!("{} ", self.what) };
        self.resume.iter().for_each(|store| store.clear(&prefix));
    }

    /// Hide the bar; stored steps stay until [`Bar::ended`].
    pub(crate) fn hide(&self) {
        self.bar.finish_and_clear();
    }

    /// A line for work of unknown length, where a bar would be shown.
    pub(crate) fn note(&self, what: &str) {
        if self.waiting.load(Ordering::Relaxed) {
            crate::output::note(what);
        }
    }

    /// Sets the text before the bar.
    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Progress for Bar {
    fn expect(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    fn advance(&self, steps: u64) {
        if self.started.elapsed() > SHOWN_AFTER && self.waiting.swap(false, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(steps);
    }

    fn say(&self, what: &str) {
        self.bar.set_message(format!("{}: {what}", self.what));
    }

    fn recall(&self, name: &str) -> Option<String> {
        self.resume.as_ref()?.get(name).ok()?
    }

    fn remember(&self, name: &str, what: &str) -> regard_lab::Result<()> {
        Ok(self.resume.as_ref().map_or(Ok(()), |store| store.put(name, what))?)
    }

    fn warn(&self, what: &str) {
        if !self.quiet {
            self.bar.suspend(|| crate::output::note(what));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
