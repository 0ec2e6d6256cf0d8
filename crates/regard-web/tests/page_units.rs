//! Functions of the page's scripts that touch no document, under node; and the size of the files.

use std::path::Path;
use std::process::Command;

/// Lines of a module, and columns of a line, at most.
const LINES: usize = 300;
const COLUMNS: usize = 120;

#[test]
fn modules_are_short_and_lines_fit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
    let mut wrong = Vec::new();
    for entry in folder.read_dir().expect("a folder") {
        let path = entry.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("UTF-8");
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if text.lines().count() > LINES {
            wrong.push(format!("{name}: {} lines", text.lines().count()));
        }
        if name.ends_with(".js") && !text.starts_with("// @ts-check\n") {
            wrong.push(format!("{name}: its first line is not // @ts-check"));
        }
        let long = text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS);
        wrong.extend(long.map(|(i, line)| format!("{name}:{}: {} columns", i + 1, line.chars().count())));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The types of the scripts, where `REGARD_TSC` names the TypeScript compiler (`cargo xtask test` gets it from npm).
#[test]
fn types_are_consistent() {
    let Some(tsc) = std::env::var_os("REGARD_TSC") else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no TypeScript compiler: with CI=true types are always checked");
        eprintln!("SKIPPED: REGARD_TSC names no tsc.js");
        return;
    };
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
    let options = ["--allowJs", "--checkJs", "--noEmit", "--target", "esnext", "--module", "esnext", "--moduleResolution", "bundler"];
    let mut check = Command::new("node");
    check.arg(tsc).args(options).args(["--lib", "dom,dom.iterable,esnext"]).arg(page.join("main.js"));
    let output = check.output().expect("node runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn pure_functions_do_what_they_say() {
    if Command::new("node").arg("--version").output().is_err() {
        eprintln!("SKIPPED: node is not installed");
        return;
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/units.mjs");
    let output = Command::new("node").arg(tests).output().expect("node runs");
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}
