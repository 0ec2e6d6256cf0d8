//! `cargo xtask memcheck`: the memory-safety tests under every checker that is installed.
//!
//! Miri sees undefined behaviour but only the portable level. AddressSanitizer sees every level of
//! this CPU. valgrind needs no nightly toolchain; it hides AVX-512 from the program.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{cargo, command, run, run_quietly, target_dir, text, works};
use crate::levels;
use crate::steps::{Steps, skipped};

const PROGRAM: &str = "memory_safety";
/// The test program that is made for this, of the whole workspace, so that the build is the one that `cargo test --workspace` made.
const TEST: [&str; 3] = ["--workspace", "--test", PROGRAM];

fn host() -> Result<String> {
    let version = text(command("rustc", &["--version", "--verbose"]))?;
    let line = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc does not name its host")?.to_owned())
}

fn under_miri() -> Result<()> {
    let mut miri = cargo(&["+nightly", "miri", "test", "--quiet"]);
    miri.args(TEST).env(levels::FORCE, "portable").env("MIRIFLAGS", "-Zmiri-disable-isolation");
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
    build.args(TEST);
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

/// One step per checker and level; an error when no checker is installed.
pub(crate) fn add_steps(steps: &mut Steps) -> Result<()> {
    let mut checkers = 0;
    if works(nightly(&["miri", "--version"])) {
        checkers += 1;
        steps.step("memory safety under Miri, portable", under_miri);
    } else {
        skipped("memory safety under Miri", "`cargo +nightly miri --version` does not work here");
    }

    let host = host()?;
    if works(nightly(&["--version"])) {
        checkers += 1;
        for level in levels::available() {
            steps.step(&format!("memory safety under AddressSanitizer, {level}"), || under_address_sanitizer(&host, level));
        }
    } else {
        skipped("memory safety under AddressSanitizer", "there is no nightly toolchain");
    }

    if works(command("valgrind", &["--version"])) {
        checkers += 1;
        let program = test_program();
        for level in levels::available() {
            let name = format!("memory safety under valgrind, {level}");
            if level == "avx512" {
                skipped(&name, "valgrind hides AVX-512 from the program");
                continue;
            }
            steps.step(&name, || match &program {
                Ok(program) => under_valgrind(program, level),
                Err(error) => bail!("{error:#}"),
            });
        }
    } else {
        skipped("memory safety under valgrind", "the command is not installed");
    }

    if checkers == 0 {
        steps.step("memory safety", || bail!("none of Miri, AddressSanitizer, valgrind is installed"));
    }
    Ok(())
}

pub(crate) fn run_checks() -> Result<ExitCode> {
    let mut steps = Steps::default();
    add_steps(&mut steps)?;
    Ok(steps.finish())
}
