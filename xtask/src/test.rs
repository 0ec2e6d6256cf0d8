//! `cargo xtask test`: everything that must hold on each commit.

use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::browser;
use crate::command::{self, cargo, command, root, run_quietly, target_dir};
use crate::levels;
use crate::memcheck;
use crate::python::{self, Environment};
use crate::steps::{Steps, skipped};

/// The packages of every ordinary build: all of the workspace but candle's. The same words in every step, so that each dependency is built once, with
/// the same features.
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
    steps.step("examples are built", || {
        let mut build = cargo(&["build", "--quiet", "--examples"]);
        build.args(ORDINARY);
        command::run(build)
    });
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
fn python_environment(steps: &mut Steps) -> Option<Environment> {
    let mut environment = None;
    steps.step("Python environment", || {
        environment = Some(Environment::make("venv", &["python/tests/requirements.txt"])?);
        Ok(())
    });
    environment
}

fn run_rust(steps: &mut Steps, environment: Option<&Environment>) {
    if environment.is_none() {
        skipped("exercises in Python", "there is no environment with NumPy");
    }
    steps.step("Rust tests and doc tests", || {
        let mut tests = cargo(&["test", "--quiet", "--no-fail-fast"]);
        tests.args(ORDINARY);
        if let Some(environment) = environment {
            tests.env("REGARD_LEARN_PYTHON", environment.python());
        }
        command::run(tests)
    });
}

fn run_python(steps: &mut Steps, environment: Option<&Environment>) {
    let Some(environment) = environment else {
        skipped("Python tests", "there is no environment for them");
        return;
    };
    let mut package = None;
    steps.step("Python extension out of the same build", || {
        // With the tests among what is built, so that crates have the features that they were tested with, and are not compiled again.
        let mut build = cargo(&["build", "--quiet", "--lib", "--bins", "--tests"]);
        build.args(ORDINARY);
        command::run(build)?;
        package = Some(python::assemble(&target_dir().join("debug"))?);
        Ok(())
    });
    if let Some(package) = package {
        steps.step("Python tests", || {
            let mut pytest = command(environment.python(), &["-m", "pytest", "--quiet", "--ignore=parity", "-p", "no:cacheprovider"]);
            pytest.current_dir(root().join(python::TESTS)).env("PYTHONPATH", package);
            command::run(pytest)
        });
    }
}

pub(crate) fn run() -> Result<ExitCode> {
    let mut steps = Steps::default();
    let environment = python_environment(&mut steps);
    browser::prepare();
    run_rust(&mut steps, environment.as_ref());
    run_at_every_level(&mut steps);
    run_examples(&mut steps)?;
    memcheck::add_steps(&mut steps, memcheck::in_ci())?;
    run_python(&mut steps, environment.as_ref());
    Ok(steps.finish())
}

/// `cargo xtask candle`: the package that stands outside of the ordinary build, because candle takes as long to compile as all the rest.
pub(crate) fn run_candle() -> Result<()> {
    command::run(cargo(&["test", "--quiet", "--package", "regard-candle"]))
}
