//! The browser that the page is tested in: found on the machine, or installed from the distribution's packages in continuous integration.

use crate::command::{command, run_quietly, target_dir};
use crate::steps::{Steps, skipped};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// The names that the tests look for, too (crates/regard-cli/tests/page/chrome.rs).
const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];

fn found() -> bool {
    let named = std::env::var_os("REGARD_BROWSER").map(PathBuf::from).filter(|path| path.is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    named.is_some() || std::env::split_paths(&path).any(|folder| NAMES.iter().any(|name| folder.join(name).is_file()))
}

fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// A package of the distribution. An image may have no package lists, or old ones.
fn install_package(name: &str) {
    for words in [&["update"][..], &["install", "--yes", "--no-install-recommends", name]] {
        let _ = run_quietly(command("apt-get", words));
    }
}

/// Installs the browser in continuous integration, where its absence is a failure; elsewhere the page's tests are skipped aloud.
pub(crate) fn prepare(steps: &mut Steps) {
    if !found() && in_ci() {
        install_package("chromium");
        if !found() {
            steps.step("the page in a browser", || bail!("chromium cannot be installed; REGARD_BROWSER names another browser"));
        }
    } else if !found() {
        skipped(
            "the page in a browser",
            "chromium is not installed; it comes from the system's packages (REGARD_BROWSER names another one)",
        );
    }
}

/// The folder of axe-core, which the page's tests look for accessibility with, and of the TypeScript compiler, which checks the types of
/// its scripts: from npm, once per target folder. Without npm there is none; in continuous integration npm is installed, and its absence is
/// a failure.
pub(crate) fn node_packages(steps: &mut Steps) -> Option<PathBuf> {
    let folder = target_dir().join("axe");
    let modules = folder.join("node_modules");
    if [AXE_FILE, TSC_FILE].iter().all(|file| modules.join(file).is_file()) {
        return Some(modules);
    }
    let has_npm = || run_quietly(command("npm", &["--version"])).is_ok();
    if !has_npm() && in_ci() {
        install_package("npm");
    }
    if !has_npm() {
        if in_ci() {
            steps.step("accessibility and types of the page", || bail!("npm cannot be installed; axe-core and typescript come from it"));
        } else {
            skipped("accessibility and types of the page", "npm is not installed");
        }
        return None;
    }
    let install = || -> Result<()> {
        std::fs::create_dir_all(&folder).context("cannot create the folder of axe-core and typescript")?;
        let mut npm = command("npm", &["install", "--no-save", "--no-audit", "--no-fund", AXE, TSC]);
        npm.current_dir(&folder);
        run_quietly(npm)
    };
    match install() {
        Ok(()) => Some(modules),
        Err(error) if in_ci() => {
            steps.step("axe-core and typescript are installed", || Err(error));
            None
        }
        Err(_) => {
            skipped("accessibility and types of the page", "axe-core and typescript cannot be installed");
            None
        }
    }
}

/// The versions whose rules the page keeps.
const AXE: &str = "axe-core@4.14.0";
const TSC: &str = "typescript@5.9.3";
/// What the tests are given of them.
pub(crate) const AXE_FILE: &str = "axe-core/axe.min.js";
pub(crate) const TSC_FILE: &str = "typescript/lib/tsc.js";
