//! Output on the terminal. A closed pipe (`regard lab sweep | head`) is not an error; a full disk is.

use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

/// A line on the standard output.
pub(crate) fn print(text: impl Display) -> Result<()> {
    let mut out = std::io::stdout().lock();
    forgiven(writeln!(out, "{text}").and_then(|()| out.flush())).context("cannot write to the standard output")
}

/// The result of writing, without the error of a closed pipe.
pub(crate) fn forgiven(written: std::io::Result<()>) -> std::io::Result<()> {
    match written {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A line on the standard error. Errors of writing it are ignored: a full device or a closed pipe must not change the exit code.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Characters per line of the terminal; `None` for a file or a pipe.
pub(crate) fn line_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(terminal_size::Width(width), _)| usize::from(width))
}
