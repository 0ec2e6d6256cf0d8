//! Output on the terminal. A closed pipe (`regard lab sweep | head`) is not an error; a full disk is.

use crate::help::wrapped;
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

/// Sentences on the standard output, wrapped at the terminal's width.
pub(crate) fn print_wrapped(text: impl Display) -> Result<()> {
    print(line_width().map_or_else(|| text.to_string(), |width| folded(&text.to_string(), width)))
}

/// A line on the standard error, wrapped at the terminal's width. Errors of writing it are ignored: a full device or a closed pipe must not
/// change the exit code.
pub(crate) fn note(text: impl Display) {
    let stderr = std::io::stderr();
    let width = terminal_size::terminal_size_of(&stderr).map(|(terminal_size::Width(width), _)| usize::from(width));
    let text = width.map_or_else(|| text.to_string(), |width| folded(&text.to_string(), width));
    let _ = writeln!(stderr.lock(), "{text}");
}

/// Lines that are too long for the width, wrapped.
fn folded(text: &str, width: usize) -> String {
    let fold = |line: &str| if line.chars().count() > width { wrapped(line, width.saturating_sub(2).max(20), 2) } else { line.to_owned() };
    text.lines().map(fold).collect::<Vec<_>>().join("\n")
}

/// Characters per line of the terminal; `None` for a file or a pipe.
pub(crate) fn line_width() -> Option<usize> {
    if !std::io::stdout().is_terminal() {
        return None;
    }
    terminal_size::terminal_size().map(|(terminal_size::Width(width), _)| usize::from(width))
}
