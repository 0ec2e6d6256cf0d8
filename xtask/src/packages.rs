//! `cargo xtask packages`: what a publication needs. Every package builds from its own files alone, and documentation has no warning.

use std::process::ExitCode;

use anyhow::Result;

use crate::command::{self, cargo};
use crate::steps::Steps;

/// Packages that stay here: xtask reads the repository, the extension is a wheel's part, and candle takes as long to compile as all the
/// rest.
pub(crate) const AT_HOME: [&str; 6] = ["--exclude", "xtask", "--exclude", "regard-python", "--exclude", "regard-candle"];

pub(crate) fn run() -> Result<ExitCode> {
    let mut steps = Steps::default();
    steps.step("packages build from their own files", || {
        let mut package = cargo(&["package", "--quiet", "--workspace", "--allow-dirty"]);
        // That it builds is the question, not how fast it runs.
        package.args(AT_HOME).env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
        command::run(package)
    });
    documentation(&mut steps);
    Ok(steps.finish())
}

/// Links that lead nowhere, and whatever else rustdoc warns of.
pub(crate) fn documentation(steps: &mut Steps) {
    steps.step("documentation without a warning", || {
        let mut doc = cargo(&["doc", "--quiet", "--workspace", "--no-deps", "--keep-going"]);
        doc.args(["--exclude", "regard-candle"]).env("RUSTDOCFLAGS", "-Dwarnings");
        command::run(doc)
    });
}
