//! `regard learn` as a process: exit codes, kills, two at once, what is missing.

mod common;

use common::{command, fails, regard};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn python() -> Option<PathBuf> {
    let named = std::env::var_os("REGARD_LEARN_PYTHON").map(PathBuf::from);
    let python = named.unwrap_or_else(|| PathBuf::from("python3"));
    let works = std::process::Command::new(&python).args(["-c", "import numpy"]).stderr(std::process::Stdio::null()).status();
    if works.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    eprintln!("skipped: REGARD_LEARN_PYTHON names no Python with NumPy, and python3 has none");
    None
}

const RIGHT: &str = "import numpy as np\ndef softmax(x):\n    top = x.max(1, keepdims=True)\n    e = np.exp(x - np.where(np.isneginf(top), 0, top))\n    s = e.sum(1, keepdims=True)\n    return e / np.where(s == 0, 1, s)\n";
const WRONG: &str = "import numpy as np\ndef softmax(x):\n    e = np.exp(x - x.max(0))\n    return e / e.sum(0)\n";

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).expect("it can be written");
}

#[test]
fn exit_codes_say_how_it_stands() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), "right.py", RIGHT);
    write(dir.path(), "wrong.py", WRONG);
    let check = |file: &str| regard(&["learn", "check", "2", "--file", file, "--python", &python.to_string_lossy(), "--json"], dir.path());
    let right = check("right.py");
    assert_eq!(right.status.code(), Some(0), "{}", String::from_utf8_lossy(&right.stdout));
    let wrong = check("wrong.py");
    assert_eq!(wrong.status.code(), Some(1));
    let records: serde_json::Value = serde_json::from_slice(&wrong.stdout).expect("JSON");
    assert_eq!(records[0]["status"], "fail");
    assert_eq!(records[0]["diagnosis"]["id"], "columns");
    assert!(!dir.path().join("regard-learn").exists(), "a file that is named leaves nothing behind");
}

#[test]
fn what_is_missing_is_one_line_that_says_what_to_do() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), "right.py", RIGHT);
    write(dir.path(), "right.rs", "pub fn softmax(x: &[f32], _: [usize; 2]) -> Vec<f32> { x.to_vec() }");
    let bare =
        |arguments: &[&str]| command(arguments, dir.path()).env("PATH", "/nowhere").env_remove("VIRTUAL_ENV").output().expect("it starts");
    fails(&bare(&["learn", "check", "2", "--file", "right.py"]), 2, "--python PATH");
    fails(&bare(&["learn", "check", "2", "--file", "right.rs"]), 2, "install Rust");
    fails(&regard(&["learn", "check", "99"], dir.path()), 2, "regard learn list");
    fails(&regard(&["learn", "check", "2", "--file", "nowhere.py"], dir.path()), 2, "nowhere.py");
    fails(&regard(&["learn", "check", "--all", "--dir", "nowhere"], dir.path()), 2, "no folder");
    // A Python without NumPy.
    let hidden = dir.path().join("numpy");
    std::fs::create_dir(&hidden).expect("it can be made");
    write(&hidden, "__init__.py", "raise ImportError('not here')");
    if let Some(python) = python() {
        let output = command(&["learn", "check", "2", "--file", "right.py", "--python", &python.to_string_lossy()], dir.path())
            .env("PYTHONPATH", dir.path())
            .output()
            .expect("it starts");
        fails(&output, 2, "pip install numpy");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_one_line() {
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), "regard-learn", "a file where the folder should be");
    fails(&regard(&["learn", "hint", "1"], dir.path()), 2, "--dir PATH");
    fails(&regard(&["learn", "--plain"], dir.path()), 2, "--dir PATH");
}

#[test]
fn hints_come_one_by_one_and_the_solution_after_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let refused = regard(&["learn", "solution", "2"], dir.path());
    assert_eq!(refused.status.code(), Some(1));
    for level in 1..=3 {
        let hints = common::works(&["learn", "hint", "softmax"], dir.path());
        assert_eq!(hints.lines().count(), level, "{hints}");
    }
    let asked = regard(&["learn", "solution", "02"], dir.path());
    assert!(String::from_utf8_lossy(&asked.stdout).contains("[y/N]") && asked.status.code() == Some(1));
}

#[test]
fn a_kill_loses_nothing() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("regard-learn");
    std::fs::create_dir_all(root.join("python")).expect("it can be made");
    write(&root.join("python"), "02_softmax.py", RIGHT);
    let arguments = ["learn", "check", "2", "--lang", "python", "--python", &python.to_string_lossy()];
    assert!(regard(&arguments, dir.path()).status.success());
    for millis in [1, 20, 60, 120, 200, 300, 400, 500] {
        let mut child = command(&arguments, dir.path()).stdout(std::process::Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(millis));
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        let progress: serde_json::Value =
            serde_json::from_slice(&std::fs::read(root.join("progress.json")).expect("it is there")).expect("whole");
        assert_eq!(progress["exercises"]["softmax"]["python"]["passed"], true);
        assert_eq!(std::fs::read_to_string(root.join("python/02_softmax.py")).expect("it is there"), RIGHT);
    }
}

#[test]
fn two_at_once_do_not_spoil_a_folder() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("regard-learn");
    std::fs::create_dir_all(root.join("python")).expect("it can be made");
    write(&root.join("python"), "02_softmax.py", RIGHT);
    let python = python.to_string_lossy().into_owned();
    let check = ["learn", "check", "2", "--python", &python];
    let mut running: Vec<_> =
        (0..2).map(|_| command(&check, dir.path()).stdout(std::process::Stdio::null()).spawn().expect("it starts")).collect();
    let hints: Vec<_> = (0..3)
        .map(|_| command(&["learn", "hint", "1"], dir.path()).stdout(std::process::Stdio::null()).spawn().expect("it starts"))
        .collect();
    running.extend(hints);
    assert!(running.into_iter().all(|mut child| child.wait().expect("it ends").success()));
    let progress: serde_json::Value =
        serde_json::from_slice(&std::fs::read(root.join("progress.json")).expect("it is there")).expect("whole");
    assert_eq!(progress["exercises"]["softmax"]["python"]["passed"], true);
    assert_eq!(progress["exercises"]["similarity"]["python"]["hints"], 3);
}

#[test]
fn a_class_is_a_table_and_its_folders_stay_as_they_are() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().expect("a folder");
    for (name, source) in [("ann", RIGHT), ("ben", WRONG)] {
        let folder = dir.path().join(name).join("python");
        std::fs::create_dir_all(&folder).expect("it can be made");
        write(&folder, "02_softmax.py", source);
    }
    let python = python.to_string_lossy().into_owned();
    let arguments = ["learn", "check", "--all", "--csv", "--python", &python, "--dir", "ann", "--dir", "ben"];
    let output = regard(&arguments, dir.path());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text.lines().count(), 1 + 2 * 14);
    assert!(
        text.contains("ann,2,softmax,python,pass,") && text.contains("ben,2,softmax,python,fail,") && text.contains(",columns,"),
        "{text}"
    );
    assert!(text.contains("ben,1,similarity,python,todo,"));
    assert!(!dir.path().join("ann/progress.json").exists());
}

#[test]
fn expectations_that_are_shown_are_the_laboratory_s() {
    for (d, without, with) in regard_learn::app::after::EXPECTED {
        for (scaled, shown) in [(false, without), (true, with)] {
            let exact = regard_lab::theory::row(8, d, scaled);
            for (a, b) in shown.iter().zip([exact.entropy, exact.max_weight, 1.0 - exact.sum_of_squares]) {
                assert!((a - b).abs() < 6e-6, "{d} {scaled}: {a} {b}");
            }
        }
    }
}
