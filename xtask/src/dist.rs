//! `cargo xtask dist`: what is installed without compiling, in the folder dist/.
//!
//! ```text
//! regard-VERSION-cp310-abi3-manylinux*.whl    the Python package with the command inside
//! regard-VERSION.tar.gz                       its source
//! regard-VERSION-PLATFORM.tar.gz              the command, for this processor and on Linux also for 64-bit ARM
//! regard-site-VERSION.tar.gz                  the page for a browser tab, as `cargo xtask site` wrote it
//! crates/*.crate                              the packages of Rust
//! SHA256SUMS
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::command::{cargo, command, root, run, target_dir};
use crate::python::Environment;
use crate::steps::{Steps, skipped};
use crate::{cross, installed};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The oldest C library that the wheel and the command run with, as zig and as pip name it.
const GLIBC: &str = "2.17";
const COMPATIBILITY: &str = "manylinux2014";
/// The processor of this machine, and the one that is compiled for across.
const ARCH: &str = std::env::consts::ARCH;
const ARM: &str = "aarch64";
/// Largest wheel, in bytes.
const WHEEL: u64 = 25_000_000;
const SUMS: &str = "SHA256SUMS";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these: wheel, source, command, arm, site, crates (all of them where none is named)
    #[arg(value_name = "PART")]
    parts: Vec<String>,
    /// Do not install and run what was made
    #[arg(long)]
    no_check: bool,
}

pub(crate) fn run_dist(options: &Options) -> Result<ExitCode> {
    const PARTS: [&str; 6] = ["wheel", "source", "command", "arm", "site", "crates"];
    if let Some(unknown) = options.parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
        bail!("unknown part: {unknown}; use {}", PARTS.join(", "));
    }
    let wanted = |part: &str| options.parts.is_empty() || options.parts.iter().any(|wanted| wanted == part);
    let dist = root().join("dist");
    fs::create_dir_all(&dist).context("cannot make dist/")?;
    let environment = Environment::make("venv-dist", &["xtask/dist.txt"])?;
    let mut steps = Steps::default();
    if wanted("wheel") {
        steps.step("wheel", || wheel(&environment, &dist));
        if !options.no_check {
            steps.step("the wheel without Rust: pip install, report, serve, learn", || installed::wheel(&newest_wheel(&dist)?));
        }
    }
    if wanted("source") {
        steps.step("source of the wheel", || {
            let mut sdist = command(environment.python(), &["-m", "maturin", "sdist", "--manifest-path", "python/Cargo.toml", "--out"]);
            sdist.arg(&dist);
            run(sdist)
        });
    }
    if wanted("command") {
        steps.step("command", || program(&environment, &dist, ARCH));
        if !options.no_check {
            steps.step("the command without Rust", || installed::archive(&tar_of(&dist, ARCH), &folder_of(ARCH), None));
        }
    }
    if wanted("arm") && cfg!(target_os = "linux") && ARCH != ARM {
        arm(&mut steps, options, &environment, &dist);
    }
    if wanted("site") {
        if root().join("site/files.json").is_file() {
            steps.step("site", || archive(&dist.join(format!("regard-site-{VERSION}.tar.gz")), &root(), &["site"]));
        } else {
            skipped("site", "site/ does not exist; `cargo xtask site` writes it");
        }
    }
    if wanted("crates") {
        steps.step("packages of Rust", || crates(&dist));
    }
    steps.step("checksums", || checksums(&dist));
    Ok(steps.finish())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(files(&path)?);
        } else {
            all.push(path);
        }
    }
    all.sort();
    Ok(all)
}

/// Removes the files of an earlier run that end like this; only the project's own begin with its name.
fn remove_old(dist: &Path, ending: &str) -> Result<()> {
    let old = |path: &&PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("regard")) && path.extension().is_some_and(|e| e == ending)
    };
    for path in files(dist)?.iter().filter(old) {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// The search path with the environment's programs: maturin and cargo look for zig there.
fn path_with(environment: &Environment) -> Result<std::ffi::OsString> {
    let bin = environment.python().parent().context("an interpreter has a folder")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path)))?)
}

fn wheel(environment: &Environment, dist: &Path) -> Result<()> {
    remove_old(dist, "whl")?;
    let mut build = command(environment.python(), &["-m", "maturin", "build", "--release", "--manifest-path", "python/Cargo.toml"]);
    build.arg("--out").arg(dist).env("PATH", path_with(environment)?);
    if cfg!(target_os = "linux") {
        build.args(["--zig", "--compatibility", COMPATIBILITY]);
    }
    run(build)?;
    for path in files(dist)?.iter().filter(|path| path.extension().is_some_and(|e| e == "whl")) {
        let bytes = fs::metadata(path)?.len();
        println!("    {}: {:.1} MB", path.display(), bytes as f64 / 1e6);
        ensure!(bytes <= WHEEL, "the wheel has {bytes} bytes, more than {WHEEL}");
    }
    Ok(())
}

fn newest_wheel(dist: &Path) -> Result<PathBuf> {
    let wheel = files(dist)?.into_iter().find(|path| path.extension().is_some_and(|e| e == "whl"));
    wheel.context("there is no wheel")
}

/// Processor and system, as archives are named by.
fn folder_of(arch: &str) -> String {
    format!("regard-{VERSION}-{arch}-{}", std::env::consts::OS)
}

fn tar_of(dist: &Path, arch: &str) -> PathBuf {
    dist.join(format!("{}.tar.gz", folder_of(arch)))
}

/// The command for 64-bit ARM: linked by zig, run under qemu where it is installed.
fn arm(steps: &mut Steps, options: &Options, environment: &Environment, dist: &Path) {
    let name = "command for 64-bit ARM";
    if !cross::has_target(cross::ARM) {
        return skipped(name, &format!("`rustup target add {}` does not work here", cross::ARM));
    }
    steps.step(name, || program(environment, dist, ARM));
    if !options.no_check {
        let name = "the command for 64-bit ARM under qemu";
        if cross::has_emulator() {
            steps.step(name, || installed::archive(&tar_of(dist, ARM), &folder_of(ARM), Some(&cross::EMULATOR)));
        } else {
            skipped(name, "NOT TESTED: qemu is not installed");
        }
    }
}

fn program(environment: &Environment, dist: &Path, arch: &str) -> Result<()> {
    let target = format!("{arch}-unknown-linux-gnu");
    let built = if cfg!(target_os = "linux") {
        let mut build = cargo(&["zigbuild", "--quiet", "--release", "--package", "regard-cli", "--target", &format!("{target}.{GLIBC}")]);
        build.env("PATH", path_with(environment)?);
        run(build)?;
        target_dir().join(&target).join("release")
    } else {
        run(cargo(&["build", "--quiet", "--release", "--package", "regard-cli"]))?;
        target_dir().join("release")
    };
    let name = if cfg!(windows) { "regard.exe" } else { "regard" };
    let folder = target_dir().join(folder_of(arch));
    fs::create_dir_all(&folder)?;
    fs::copy(built.join(name), folder.join(name)).with_context(|| format!("cannot copy {name}"))?;
    for file in
        ["README.md", "CHANGELOG.md", "crates/regard-cli/LICENSE-APACHE", "crates/regard-cli/LICENSE-MIT", "crates/regard-plot/NOTICE"]
    {
        let to = folder.join(Path::new(file).file_name().context("a file has a name")?);
        fs::copy(root().join(file), to).with_context(|| format!("cannot copy {file}"))?;
    }
    archive(&tar_of(dist, arch), &target_dir(), &[&folder_of(arch)])
}

/// `tar` is part of Linux, macOS and Windows.
fn archive(to: &Path, folder: &Path, names: &[&str]) -> Result<()> {
    let mut tar = command("tar", &["-czf"]);
    tar.arg(to).arg("-C").arg(folder).args(names);
    run(tar)?;
    println!("    {}: {:.1} MB", to.display(), fs::metadata(to)?.len() as f64 / 1e6);
    Ok(())
}

fn crates(dist: &Path) -> Result<()> {
    remove_old(dist, "crate")?;
    let mut package = cargo(&["package", "--quiet", "--workspace", "--no-verify", "--allow-dirty"]);
    package.args(crate::packages::AT_HOME);
    run(package)?;
    let to = dist.join("crates");
    fs::create_dir_all(&to)?;
    let ending = format!("-{VERSION}.crate");
    for path in files(&target_dir().join("package"))?.iter().filter(|path| path.to_string_lossy().ends_with(&ending)) {
        fs::copy(path, to.join(path.file_name().context("a file has a name")?))?;
    }
    Ok(())
}

fn checksums(dist: &Path) -> Result<()> {
    let mut text = String::new();
    for path in files(dist)?.iter().filter(|path| path.file_name().is_none_or(|name| name != SUMS)) {
        let hash: String = Sha256::digest(fs::read(path)?).iter().map(|byte| format!("{byte:02x}")).collect();
        let name = path.strip_prefix(dist).context("it is below dist/")?;
        text += &format!("{hash}  {}\n", name.display());
    }
    print!("{text}");
    fs::write(dist.join(SUMS), text).context("cannot write the checksums")
}
