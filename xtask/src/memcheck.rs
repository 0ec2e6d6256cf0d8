//! `cargo xtask memcheck`: the memory-safety tests under every checker that is installed.
//!
//! Miri sees undefined behaviour but only the portable level. AddressSanitizer sees every level of
//! this CPU. valgrind needs no nightly toolchain; it hides AVX-512 from the program. A level that one
//! checker has looked at is not given to the next.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{cargo, command, run, run_quietly, target_dir, text, works};
use crate::levels;
use crate::steps::{Steps, skipped};
use crate::test::ORDINARY;

const PROGRAM: &str = "memory_safety";

fn host() -> Result<String> {
    let version = text(command("rustc", &["--version", "--verbose"]))?;
    let line = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc does not name its host")?.to_owned())
}

fn under_miri() -> Result<()> {
    let mut miri = cargo(&["+nightly", "miri", "test", "--quiet"]);
    miri.args(["--package", "regard", "--test", PROGRAM]).env(levels::FORCE, "portable").env("MIRIFLAGS", "-Zmiri-disable-isolation");
    run(miri)
}

fn under_address_sanitizer(host: &str, level: &str) -> Result<()> {
    let mut tests = cargo(&["+nightly", "test", "--quiet", "--target", host]);
    tests
        .args(["--package", "regard", "--test", PROGRAM])
        .env(levels::FORCE, level)
        .env("RUSTFLAGS", "-Zsanitizer=address")
        .env("CARGO_TARGET_DIR", target_dir().join("asan"));
    // Checked memory does not need fast kernels: plain ones take 20 seconds instead of 4, but compile in a minute instead of three.
    tests.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    run(tests)
}

/// Path of the test program, built by the ordinary compiler.
fn test_program() -> Result<String> {
    let mut build = cargo(&["test", "--quiet", "--no-run", "--message-format=json"]);
    build.args(ORDINARY).args(["--test", PROGRAM]);
    let messages = text(build)?;
    let program = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == PROGRAM)
        .find_map(|message| message["executable"].as_str().map(str::to_owned));
    program.context("cargo did not name the test program")
}

fn under_valgrind(program: &str, level: &str) -> Result<()> {
    let mut valgrind = command("valgrind", &["--quiet", "--error-exitcode=99", "--leak-check=no", program, "--test-threads=1"]);
    valgrind.env(levels::FORCE, level).env("RAYON_NUM_THREADS", "2");
    run_quietly(valgrind)
}

fn nightly(arguments: &[&str]) -> Command {
    let mut words = vec!["+nightly"];
    words.extend(arguments);
    cargo(&words)
}

/// A checker that is not installed: said aloud and passed over at home, a failure where everything must be there.
fn missing(steps: &mut Steps, required: bool, name: &str, why: &'static str) {
    if required { steps.step(name, || bail!("{why}")) } else { skipped(name, why) }
}

/// One step per level of this CPU, under the first checker that can look at it.
pub(crate) fn add_steps(steps: &mut Steps, required: bool) -> Result<()> {
    let mut left: Vec<&str> = levels::available().collect();
    if works(nightly(&["miri", "--version"])) {
        steps.step("memory safety under Miri, portable", under_miri);
        left.retain(|level| *level != "portable");
    } else {
        let why = "`cargo +nightly miri --version` does not work here: rustup toolchain install nightly --component miri";
        // Not a failure anywhere: the next checker looks at its level, and not every place can install it.
        skipped("memory safety under Miri", why);
    }

    let host = host()?;
    if works(nightly(&["--version"])) {
        for level in left.drain(..) {
            steps.step(&format!("memory safety under AddressSanitizer, {level}"), || under_address_sanitizer(&host, level));
        }
    } else {
        missing(steps, required, "memory safety under AddressSanitizer", "there is no nightly toolchain: rustup toolchain install nightly");
    }

    if left.is_empty() {
        return Ok(());
    }
    if !works(command("valgrind", &["--version"])) {
        skipped("memory safety under valgrind", "the command is not installed; it comes from the system's packages");
        return Ok(());
    }
    let program = test_program();
    for level in left {
        let name = format!("memory safety under valgrind, {level}");
        if level.starts_with("avx512") {
            skipped(&name, "valgrind hides AVX-512 from the program");
            continue;
        }
        steps.step(&name, || match &program {
            Ok(program) => under_valgrind(program, level),
            Err(error) => bail!("{error:#}"),
        });
    }
    Ok(())
}

/// Whether this is continuous integration, where nothing may be passed over for want of a tool.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

pub(crate) fn run_checks() -> Result<ExitCode> {
    let mut steps = Steps::default();
    add_steps(&mut steps, in_ci())?;
    Ok(steps.finish())
}

#[cfg(test)]
mod tests {
    use super::{Steps, missing};
    use std::process::ExitCode;

    #[test]
    fn a_missing_checker_is_passed_over_at_home_and_fails_in_ci() {
        let mut home = Steps::default();
        missing(&mut home, false, "a checker", "it is not installed");
        home.step("the rest", || Ok(()));
        assert_eq!(home.finish(), ExitCode::SUCCESS);
        let mut ci = Steps::default();
        missing(&mut ci, true, "a checker", "it is not installed");
        ci.step("the rest", || Ok(()));
        assert_eq!(ci.finish(), ExitCode::FAILURE);
    }
}
