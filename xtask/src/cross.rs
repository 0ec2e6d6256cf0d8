//! `cargo xtask cross`: 64-bit ARM and Windows under emulators, a type check for Windows and macOS, the oldest Rust.
//!
//! The bits are compared by one hash over 15,360 results (`crates/regard/examples/level_hash.rs`): equal on every level with fused
//! multiply-adds, of this CPU and of the emulated one.

mod wine;

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::command::{cargo, command, run, target_dir, text, works};
use crate::steps::{Steps, skipped};
use crate::test::ORDINARY;

/// Run under the emulator.
pub(crate) const ARM: &str = "aarch64-unknown-linux-gnu";
/// Of Debian and its kin: linker, emulator, C library.
const PACKAGES: [&str; 4] = ["gcc-aarch64-linux-gnu", "qemu-user-static", "libc6-arm64-cross", "libc6-dev-arm64-cross"];
const LINKER: &str = "aarch64-linux-gnu-gcc";
pub(crate) const EMULATOR: [&str; 3] = ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"];
/// The workspace's `rust-version`.
const OLDEST_RUST: &str = env!("CARGO_PKG_RUST_VERSION");
/// Only checked: no linker is needed for that.
const CHECKED: [&str; 3] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin", "x86_64-apple-darwin"];

/// Tests of `regard-simd` that an emulator cannot run: it has a speed of its own, and its handler of SIGBUS is not the program's.
const NOT_EMULATED: [&str; 2] = ["the_ceiling_is_above_what_the_kernels_reach", "a_read_of_a_file_that_was_shortened_names_it"];

/// Of the suite of `regard`: bits, golden vectors, exactness, gradients, hidden keys, statistics. The rest is too slow under an emulator.
const SUITE: [&str; 8] =
    ["bits::", "golden::", "gradient_bits::", "hidden_and_empty::", "gradient_hidden::", "errors::", "packed::", "strides::"];

#[derive(Args)]
pub(crate) struct Options {
    /// Only the hashes of bits
    #[arg(long)]
    only_hash: bool,
    /// Only the type checks: Windows, macOS, and the oldest Rust
    #[arg(long, conflicts_with = "only_hash")]
    only_check: bool,
    /// Only the tests of Windows programs under wine
    #[arg(long, conflicts_with_all = ["only_hash", "only_check"])]
    only_wine: bool,
    /// The whole suite of the library under the emulator, which is slow
    #[arg(long)]
    all_tests: bool,
}

pub(crate) fn run_all(options: &Options) -> Result<ExitCode> {
    let mut steps = Steps::default();
    if !options.only_check && !options.only_wine {
        add_arm(&mut steps, options);
    }
    if !options.only_check && !options.only_hash {
        wine::add_steps(&mut steps);
    }
    if !options.only_hash && !options.only_wine {
        for target in CHECKED {
            let name = format!("every crate and the Python extension check for {target}");
            if has_target(target) {
                steps.step(&name, || check(target));
            } else {
                missing_target(&name, target);
            }
        }
        let name = format!("every crate checks with Rust {OLDEST_RUST}");
        if has_toolchain() {
            steps.step(&name, || {
                let mut check = cargo(&[&format!("+{OLDEST_RUST}"), "check", "--quiet"]);
                check.args(ORDINARY).env("CARGO_TARGET_DIR", target_dir().join("oldest"));
                run(check)
            });
        } else {
            skipped(&name, &format!("NOT TESTED: `rustup toolchain install {OLDEST_RUST}` does not work here"));
        }
    }
    Ok(steps.finish())
}

fn missing_target(name: &str, target: &str) {
    skipped(name, &format!("NOT TESTED: `rustup target add {target}` does not work here"));
}

/// Whether the standard library of the target is installed; tries once to install it.
pub(crate) fn has_target(target: &str) -> bool {
    let installed =
        || text(command("rustup", &["target", "list", "--installed"])).is_ok_and(|list| list.lines().any(|line| line == target));
    installed() || (works(command("rustup", &["target", "add", target])) && installed())
}

fn has_toolchain() -> bool {
    let toolchain = format!("+{OLDEST_RUST}");
    let installed = || works(command("rustc", &[&toolchain, "--version"]));
    installed() || (works(command("rustup", &["toolchain", "install", OLDEST_RUST, "--profile", "minimal"])) && installed())
}

/// Linker and emulator; installed where they are missing and this is Debian's root.
pub(crate) fn has_emulator() -> bool {
    let there = || works(command(LINKER, &["--version"])) && works(command(EMULATOR[0], &["--version"]));
    if there() {
        return true;
    }
    install(&PACKAGES) && there()
}

fn install(packages: &[&str]) -> bool {
    let mut install = command("apt-get", &["-o", "DPkg::Lock::Timeout=300", "install", "--yes", "--no-install-recommends"]);
    install.args(packages);
    works(install)
}

/// `cargo` for the emulated CPU.
fn arm(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command
        .args(["--target", ARM])
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", EMULATOR.join(" "));
    command
}

fn add_arm(steps: &mut Steps, options: &Options) {
    let name = "64-bit ARM under qemu";
    if !has_target(ARM) {
        return missing_target(name, ARM);
    }
    if !has_emulator() {
        return skipped(name, &format!("NOT TESTED: install {}", PACKAGES.join(", ")));
    }
    steps.step("one hash of bits on x86-64 and on ARM", compare_hashes);
    if options.only_hash {
        return;
    }
    steps.step("SIMD kernels on ARM", || {
        let mut tests = arm(&["test", "--quiet", "--package", "regard-simd", "--lib"]);
        tests.arg("--").args(NOT_EMULATED.iter().flat_map(|test| ["--skip", test]));
        run(tests)
    });
    steps.step("suite of the library and golden vectors on ARM", || {
        let mut tests = arm(&["test", "--quiet", "--package", "regard", "--test", "suite"]);
        if !options.all_tests {
            tests.arg("--").args(SUITE);
        }
        run(tests)
    });
}

/// `level hash` of each fused level that the program prints.
fn fused(output: &str) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for line in output.lines().filter(|line| line.ends_with("fused")) {
        let mut words = line.split_whitespace().map(str::to_owned);
        found.push((words.next().context("no level")?, words.next().context("no hash")?));
    }
    ensure!(!found.is_empty(), "no hash of a fused level in: {output}");
    Ok(found)
}

/// The hashes of this CPU's levels (portable with FMA too) and of ARM's; all must be equal.
fn compare_hashes() -> Result<()> {
    let build = ["build", "--quiet", "--package", "regard", "--example", "level_hash"];
    run(cargo(&build))?;
    let mut hashes = named("", fused(&text(command(target_dir().join("debug/examples/level_hash"), &[]))?)?);
    if cfg!(target_arch = "x86_64") {
        // The portable level fuses where the instruction is part of the target.
        let folder = target_dir().join("fma");
        let mut with_fma = cargo(&build);
        with_fma.env("RUSTFLAGS", "-C target-feature=+fma").env("CARGO_TARGET_DIR", &folder);
        run(with_fma)?;
        hashes.extend(named(" with FMA", fused(&text(command(folder.join("debug/examples/level_hash"), &["portable"]))?)?));
    }
    run(arm(&build))?;
    let mut emulated = command(EMULATOR[0], &EMULATOR[1..]);
    emulated.arg(target_dir().join(ARM).join("debug/examples/level_hash"));
    hashes.extend(named(" on ARM", fused(&text(emulated)?)?));
    for (level, hash) in &hashes {
        println!("    {hash}  {level}");
    }
    match hashes.iter().find(|(_, hash)| *hash != hashes[0].1) {
        Some((level, _)) => bail!("the bits of {level} differ from those of {}", hashes[0].0),
        None => Ok(()),
    }
}

fn named(suffix: &str, hashes: Vec<(String, String)>) -> Vec<(String, String)> {
    hashes.into_iter().map(|(level, hash)| (level + suffix, hash)).collect()
}

fn check(target: &str) -> Result<()> {
    let mut check = cargo(&["check", "--quiet", "--target", target]);
    // The extension takes its interpreter's ABI from the feature `abi3`, so that none of the target is needed.
    check.args(ORDINARY);
    run(check)
}

#[cfg(test)]
mod tests {
    use super::{OLDEST_RUST, fused};
    use crate::command::{cargo, text};
    use serde_json::Value;

    /// Major and minor number.
    fn version(text: &str) -> (u32, u32) {
        let mut numbers = text.split('.').map(|number| number.parse().expect("a number"));
        (numbers.next().expect("a major number"), numbers.next().expect("a minor number"))
    }

    #[test]
    fn no_dependency_needs_a_newer_rust() {
        let Ok(all) = text(cargo(&["metadata", "--format-version", "1", "--locked"])) else {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "cargo metadata fails");
            eprintln!("SKIPPED: cargo metadata cannot download every package");
            return;
        };
        let all: Value = serde_json::from_str(&all).expect("JSON");
        let packages = all["packages"].as_array().expect("packages");
        let needs = |package: &Value| package["rust_version"].as_str().map(|needed| (version(needed), package["name"].to_string()));
        let newer: Vec<_> = packages.iter().filter_map(needs).filter(|(needed, _)| *needed > version(OLDEST_RUST)).collect();
        assert!(packages.len() > 100 && newer.is_empty(), "these need a newer Rust than {OLDEST_RUST}: {newer:?}");
    }

    #[test]
    fn only_fused_levels_are_compared() {
        let output = "portable   01  3 results, bits of its own\navx2       02  3 results, fused\n";
        assert_eq!(fused(output).expect("one"), [("avx2".to_owned(), "02".to_owned())]);
        fused("portable   01  3 results, bits of its own\n").expect_err("none is an error, not equality");
    }
}
