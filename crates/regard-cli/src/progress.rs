//! A bar with the time that is left, for what takes longer than a second, on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use regard_lab::experiments::Progress;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Bar {
    bar: ProgressBar,
    what: &'static str,
    started: Instant,
    waiting: AtomicBool,
    quiet: bool,
}

impl Bar {
    pub(crate) fn new(what: &'static str, quiet: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {percent:>3} %, {eta} left").expect("the template is in order");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(what);
        let wanted = !quiet && std::io::stderr().is_terminal();
        Self { bar, what, started: Instant::now(), waiting: AtomicBool::new(wanted), quiet }
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
