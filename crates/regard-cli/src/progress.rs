//! A bar with the time that is left, for what takes longer than a second, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use regard_lab::Kept;
use regard_lab::experiments::Progress;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Bar {
    bar: ProgressBar,
    what: &'static str,
    started: Instant,
    waiting: AtomicBool,
    quiet: bool,
    kept: Option<Kept>,
}

impl Bar {
    pub(crate) fn new(what: &'static str, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent:>3} %, {eta} left").expect("the template is in order");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        let wanted = !quiet && std::io::stderr().is_terminal();
        Self { bar, what, started: Instant::now(), waiting: AtomicBool::new(wanted), quiet, kept: None }
    }

    /// Keep finished parts below the folder of the results, and go on from those that an earlier run left there.
    pub(crate) fn keeping(mut self, results: &Path) -> Self {
        let kept = Kept::below(results);
        if kept.count() > 0 && !self.quiet {
            crate::output::note(format_args!("going on: {} finished parts of an earlier run are in {}", kept.count(), results.display()));
        }
        self.kept = Some(kept);
        self
    }

    /// All results are written: the parts are not needed any more.
    pub(crate) fn ended(&self) {
        self.kept.iter().for_each(Kept::clear);
    }

    /// The bar goes; the parts stay until [`Bar::ended`].
    pub(crate) fn hide(&self) {
        self.bar.finish_and_clear();
    }

    /// A line of its own, for what takes long and cannot say how long; only where a bar would be shown.
    pub(crate) fn note(&self, what: &str) {
        if self.waiting.load(Ordering::Relaxed) {
            crate::output::note(what);
        }
    }

    /// What stands before the bar from now on.
    pub(crate) fn say(&self, what: String) {
        self.bar.set_message(what);
    }
}

impl Progress for Bar {
    fn expect(&self, steps: u64) {
        self.bar.inc_length(steps);
    }

    fn advance(&self, steps: u64) {
        if self.started.elapsed() > PATIENCE && self.waiting.swap(false, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.inc(steps);
    }

    fn say(&self, what: &str) {
        self.bar.set_message(format!("{}: {what}", self.what));
    }

    fn recall(&self, name: &str) -> Option<String> {
        self.kept.as_ref()?.get(name)
    }

    fn remember(&self, name: &str, what: &str) -> regard_lab::Result<()> {
        self.kept.as_ref().map_or(Ok(()), |kept| kept.put(name, what))
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
