//! `cargo xtask test`: everything that must hold on each commit.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::browser;
use crate::command::{self, cargo, command, root, run_quietly, target_dir};
use crate::levels;
use crate::memcheck;
use crate::packages;
use crate::python::{self, Environment};
use crate::steps::{Steps, skipped};

/// The packages of every ordinary build: all of the workspace but candle's. The same words in every step, so that each dependency is
/// built once, with the same features.
pub(crate) const ORDINARY: [&str; 3] = ["--workspace", "--exclude", "regard-candle"];

fn run_at_every_level(steps: &mut Steps) {
    for level in levels::ALL {
        // The suite itself goes through every level; these tests use the one that the environment forces.
        let name = format!("golden vectors and memory safety at SIMD level {level}");
        match levels::lacks(level) {
            Some(why) => skipped(&name, why),
            None => steps.step(&name, || {
                for only in [["suite", "golden::"], ["memory_safety", ""]] {
                    let mut tests = cargo(&["test", "--quiet"]);
                    tests.args(ORDINARY).args(["--test", only[0], "--", only[1]]).env(levels::FORCE, level);
                    command::run(tests)?;
                }
                Ok(())
            }),
        }
    }
}

fn examples() -> Result<Vec<String>> {
    let folder = root().join("crates/regard/examples");
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut names = Vec::new();
    for entry in folder.read_dir().context("cannot list the examples")? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

fn run_examples(steps: &mut Steps) -> Result<()> {
    let names = examples()?;
    if names.is_empty() {
        skipped("examples", "crates/regard/examples has none");
        return Ok(());
    }
    for name in names {
        steps.step(&format!("example {name}"), || {
            let mut example = command(target_dir().join("debug/examples").join(&name), &[]);
            example.env("REGARD_EXAMPLE_SMALL", "1");
            run_quietly(example)
        });
    }
    Ok(())
}

/// The environment of the Python tests; the exercises in Python are judged with it, too.
fn python_environment() -> Result<Environment> {
    Environment::make("venv", &["python/tests/requirements.txt"])
}

/// Everything that is tested, compiled by one command, so that each crate has the same features for all: tests, examples, the command,
/// the extension.
fn build() -> Result<()> {
    let mut build = cargo(&["build", "--quiet", "--lib", "--bins", "--tests", "--examples"]);
    build.args(ORDINARY);
    command::run(build)
}

/// Compiles, and makes the environment meanwhile, which waits for the network most of the time.
fn prepare(steps: &mut Steps) -> Option<Environment> {
    std::thread::scope(|scope| {
        let environment = scope.spawn(python_environment);
        steps.step("everything is compiled", build);
        let mut made = None;
        steps.step("Python environment", || {
            made = Some(environment.join().unwrap_or_else(|_| bail!("a panic"))?);
            Ok(())
        });
        made
    })
}

fn run_rust(steps: &mut Steps, environment: Option<&Environment>) -> Result<()> {
    if environment.is_none() {
        skipped("exercises in Python", "there is no environment with NumPy");
    }
    let modules = browser::node_packages(steps);
    steps.step("Rust tests and doc tests", || {
        let mut tests = cargo(&["test", "--quiet", "--no-fail-fast"]);
        tests.args(ORDINARY);
        if let Some(environment) = environment {
            tests.env("REGARD_LEARN_PYTHON", environment.python());
        }
        if let Some(modules) = &modules {
            tests.env("REGARD_AXE", modules.join(browser::AXE_FILE)).env("REGARD_TSC", modules.join(browser::TSC_FILE));
        }
        // A test that this CPU could run must not be skipped there.
        if memcheck::in_ci() && levels::ALL.iter().all(|level| levels::lacks(level).is_none()) {
            tests.env("REGARD_NO_SKIPS", "1");
        }
        command::run(tests)
    });
    run_at_every_level(steps);
    run_examples(steps)
}

fn run_python(steps: &mut Steps) {
    steps.step("Python tests", || {
        build()?;
        let package = python::assemble(&target_dir().join("debug"))?;
        let mut pytest = command(python_environment()?.python(), &["-m", "pytest", "--quiet", "--ignore=parity", "-p", "no:cacheprovider"]);
        pytest.current_dir(root().join(python::TESTS)).env("PYTHONPATH", package);
        command::run(pytest)
    });
}

/// Which tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Rust tests, doc tests and examples, at every SIMD level
    Rust,
    /// Memory checks and the Python package
    Others,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only these
    #[arg(long, value_enum)]
    only: Option<Part>,
}

/// Both parts side by side: the one waits for browsers and killed programs, the other for the compiler. What the second prints comes at
/// the end.
fn run_both(steps: &mut Steps) -> Result<()> {
    // Asked before the build puts another file in its place.
    let this = std::env::current_exe().context("cannot tell which program this is")?;
    let environment = prepare(steps);
    browser::prepare(steps);
    let others = std::thread::spawn(move || command(this, &["test", "--only", "others"]).output());
    run_rust(steps, environment.as_ref())?;
    steps.step("memory checks and Python tests", || {
        let output = others.join().unwrap_or_else(|_| Err(std::io::Error::other("a panic"))).context("cannot start them")?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(()) } else { bail!("`cargo xtask test --only others` runs them alone") }
    });
    Ok(())
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut steps = Steps::default();
    match options.only {
        None => run_both(&mut steps)?,
        Some(Part::Rust) => {
            let environment = prepare(&mut steps);
            browser::prepare(&mut steps);
            run_rust(&mut steps, environment.as_ref())?;
        }
        Some(Part::Others) => {
            memcheck::add_steps(&mut steps, memcheck::in_ci())?;
            // Clippy has looked at the same crates just before; elsewhere it would take another minute.
            if memcheck::in_ci() {
                packages::documentation(&mut steps);
                steps.step("attention as an operation of candle", run_candle);
            }
            run_python(&mut steps);
        }
    }
    Ok(steps.finish())
}

/// `cargo xtask candle`: the package that stands outside of the ordinary build, because candle takes as long to compile as all the rest.
pub(crate) fn run_candle() -> Result<()> {
    command::run(cargo(&["test", "--quiet", "--package", "regard-candle"]))
}
