//! Tests of Windows programs under wine, linked by Debian's mingw.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{has_target, install, missing_target};
use crate::command::{cargo, command, run, run_quietly, target_dir, works};
use crate::steps::{Steps, skipped};

const TARGET: &str = "x86_64-pc-windows-gnu";
const LINKER: &str = "x86_64-w64-mingw32-gcc";
const PACKAGES: [&str; 2] = ["gcc-mingw-w64-x86-64", "wine64"];
/// Debian keeps the program out of the search path.
const WINE: [&str; 2] = ["/usr/lib/wine/wine64", "wine64"];
/// Programs of Rust draw their random numbers from this library, which wine has from version 8.17 on; Debian 12 has 8.0.
const LIBRARY: &str = "bcryptprimitives.dll";
const RANDOM: &str = "#include <windows.h>\n#include <ntsecapi.h>\n\
    __declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T len) { return RtlGenRandom(data, (ULONG)len); }\n";

fn wine() -> Option<&'static str> {
    WINE.into_iter().find(|program| works(command(program, &["--version"])))
}

pub(super) fn add_steps(steps: &mut Steps) {
    let name = "Windows programs under wine";
    if !cfg!(target_os = "linux") {
        return skipped(name, "NOT TESTED: only on Linux");
    }
    if !has_target(TARGET) {
        return missing_target(name, TARGET);
    }
    let linker = || works(command(LINKER, &["--version"]));
    if wine().is_none() || !linker() {
        install(&PACKAGES);
    }
    let (Some(wine), true) = (wine(), linker()) else {
        return skipped(name, &format!("NOT TESTED: install {}", PACKAGES.join(", ")));
    };
    let folder = target_dir().join("wine");
    steps.step("wine has what programs of Rust need", || library(&folder));
    steps.step("files, locks and records on Windows", || run(tests(wine, &folder, &["--package", "regard-files", "--lib"])));
    steps.step("exercises on Windows", || run(tests(wine, &folder, &["--package", "regard-learn", "--lib"])));
    steps.step("golden vectors and bits on Windows", || {
        let mut tests = tests(wine, &folder, &["--package", "regard", "--test", "suite"]);
        tests.args(["--", "golden::", "bits::"]);
        run(tests)
    });
}

/// The library that an old wine lacks, beside nothing else: a wine that has it takes its own first.
fn library(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let source = folder.join("random.c");
    fs::write(&source, RANDOM).context("cannot write the source")?;
    let mut compile = command(LINKER, &["-shared", "-o"]);
    compile.arg(folder.join(LIBRARY)).arg(source).arg("-ladvapi32");
    run_quietly(compile)
}

fn tests(wine: &str, folder: &Path, arguments: &[&str]) -> Command {
    let mut tests = cargo(&["test", "--quiet", "--target", TARGET]);
    tests
        .args(arguments)
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER", wine)
        .env("WINEPREFIX", folder.join("prefix"))
        .env("WINEPATH", format!("Z:{}", folder.display()).replace('/', "\\"))
        .env("WINEDEBUG", "-all");
    tests
}
