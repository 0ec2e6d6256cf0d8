//! Child processes, started in the repository's root.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository's root").to_path_buf()
}

/// Where cargo puts its results.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// `program arguments...`, to be run in the root.
pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(program: S, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    command
}

/// `cargo arguments...`; a `+toolchain` in front is honoured.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = command("cargo", arguments);
    if arguments.first().is_some_and(|first| first.starts_with('+')) {
        for inherited in ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC"] {
            command.env_remove(inherited);
        }
    }
    command
}

/// Runs to the end; an exit code other than zero is an error that quotes the command.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(&command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(&command));
    }
    Ok(())
}

/// Like [`run`], but what the command prints is shown only when it fails.
pub(crate) fn run_quietly(mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {}", shown(&command)))?;
    if !output.status.success() {
        print!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        bail!("{} ended with {}", shown(&command), output.status);
    }
    Ok(())
}

/// What the command prints on its standard output.
pub(crate) fn text(mut command: Command) -> Result<String> {
    command.stderr(Stdio::inherit());
    let Output { status, stdout, .. } = command.output().with_context(|| format!("cannot start {}", shown(&command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(&command));
    }
    String::from_utf8(stdout).context("the output is not UTF-8")
}

/// Whether the command starts and ends well; nothing is printed.
pub(crate) fn works(mut command: Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    format!("`{}`", line.join(" "))
}
