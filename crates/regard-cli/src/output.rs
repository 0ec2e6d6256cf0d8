//! What is printed. A reader who goes away (`regard sweep | head`) has seen enough: that is no failure. A disk that is full is.

use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{ErrorKind, IsTerminal, Write};

/// Text on the standard output, with a line end.
pub(crate) fn print(text: impl Display) -> Result<()> {
    let mut out = std::io::stdout().lock();
    forgiven(writeln!(out, "{text}").and_then(|()| out.flush())).context("cannot write to the standard output")
}

/// A result of writing, where a closed pipe is none.
pub(crate) fn forgiven(written: std::io::Result<()>) -> std::io::Result<()> {
    match written {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// A line on the standard error, for people. If nobody can read it, nobody does.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Characters that a line may have: those of the terminal, and any number in a file or a pipe.
pub(crate) fn line_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(terminal_size::Width(width), _)| usize::from(width))
}
