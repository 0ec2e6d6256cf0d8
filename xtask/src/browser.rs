//! The browser that the page is tested in: found on the machine, installed from the distribution's packages where that is allowed, else passed over.

use crate::command::{command, run_quietly};
use crate::steps::skipped;
use std::path::PathBuf;

/// The names that the tests look for, too (crates/regard-cli/tests/page/chrome.rs).
const NAMES: [&str; 5] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];

fn found() -> bool {
    let named = std::env::var_os("REGARD_BROWSER").map(PathBuf::from).filter(|path| path.is_file());
    let path = std::env::var_os("PATH").unwrap_or_default();
    named.is_some() || std::env::split_paths(&path).any(|folder| NAMES.iter().any(|name| folder.join(name).is_file()))
}

/// Whether packages may be installed: in continuous integration, on a system with apt.
fn may_install() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true") && run_quietly(command("apt-get", &["--version"])).is_ok()
}

/// Says aloud when the page will not be tested.
pub(crate) fn prepare() {
    if !found() && may_install() {
        let _ = run_quietly(command("apt-get", &["install", "--yes", "--no-install-recommends", "chromium"]));
    }
    if !found() {
        skipped(
            "the page in a browser",
            "chromium is not installed; it comes from the system's packages (REGARD_BROWSER names another one)",
        );
    }
}
