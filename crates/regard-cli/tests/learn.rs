//! `regard learn` as a process: exit codes, kills, two at once, what is missing.

mod common;

use common::fails;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The command with a home of its own below `folder`: the user's key is left alone.
fn command(arguments: &[&str], folder: &Path) -> std::process::Command {
    let mut command = common::command(arguments, folder);
    command.env("XDG_STATE_HOME", folder.join("state"));
    command
}

fn regard(arguments: &[&str], folder: &Path) -> std::process::Output {
    command(arguments, folder).output().expect("the program starts")
}

fn works(arguments: &[&str], folder: &Path) -> String {
    let output = regard(arguments, folder);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

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

const RIGHT: &str = "import numpy as np\ndef softmax(x):\n    top = x.max(1, keepdims=True)\n    e = np.exp(x - \
    np.where(np.isneginf(top), 0, top))\n    s = e.sum(1, keepdims=True)\n    return e / np.where(s == 0, 1, s)\n";
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

/// A learner's folder with `02_softmax.py`, and a home of its own, so that the user's key is left alone.
fn with_softmax(source: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(dir.path().join("regard-learn/python")).expect("it can be made");
    write(&dir.path().join("regard-learn/python"), "02_softmax.py", source);
    dir
}

#[test]
fn a_foreign_progress_file_is_refused_before_the_work_and_stays() {
    let dir = with_softmax(RIGHT);
    let path = dir.path().join("regard-learn/progress.json");
    let text = "{\"chapter\": 3}";
    for arguments in [&["learn", "check", "2"][..], &["learn", "hint", "1"], &["learn", "--plain"], &["learn", "reset", "2"]] {
        std::fs::write(&path, text).expect("it can be written");
        fails(&regard(arguments, dir.path()), 2, "move it away");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), text, "{arguments:?}");
    }
    assert_eq!(std::fs::read_to_string(dir.path().join("regard-learn/python/02_softmax.py")).expect("it is there"), RIGHT);
}

#[test]
fn no_file_is_truncated_and_no_link_is_written_through() {
    let dir = with_softmax(RIGHT);
    let (root, outside) = (dir.path().join("regard-learn"), dir.path().join("outside"));
    std::fs::write(&outside, "mine").expect("it can be written");
    std::os::unix::fs::symlink(&outside, root.join(".lock")).expect("a link");
    works(&["learn", "hint", "1"], dir.path());
    assert_eq!(std::fs::read_to_string(&outside).expect("it is there"), "mine");
    std::fs::remove_file(root.join("progress.json")).expect("it was written");
    std::os::unix::fs::symlink(&outside, root.join("progress.json")).expect("a link");
    assert_eq!(regard(&["learn", "hint", "1"], dir.path()).status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(&outside).expect("it is there"), "mine");
    assert!(root.join("progress.json").is_symlink());
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_at_once() {
    let Some(python) = python() else { return };
    let dir = with_softmax(RIGHT);
    let root = dir.path().join("regard-learn");
    let pipe = |path: &Path| {
        let _ = std::fs::remove_file(path);
        assert!(std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo starts").success());
    };
    pipe(&root.join("progress.json"));
    for arguments in [&["learn", "list"][..], &["learn", "check", "2"], &["learn", "hint", "1"]] {
        fails(&within_ten_seconds(arguments, dir.path()), 2, "named pipe");
    }
    std::fs::remove_file(root.join("progress.json")).expect("it is there");
    pipe(&root.join("python/02_softmax.py"));
    fails(&within_ten_seconds(&["learn", "check", "2", "--python", &python.to_string_lossy()], dir.path()), 2, "named pipe");
}

fn within_ten_seconds(arguments: &[&str], folder: &Path) -> std::process::Output {
    let mut child =
        command(arguments, folder).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    let end = std::time::Instant::now() + Duration::from_secs(10);
    while child.try_wait().expect("it can be waited for").is_none() && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    let hangs = child.try_wait().expect("it can be waited for").is_none();
    let _ = child.kill();
    assert!(!hangs, "{arguments:?} hangs");
    child.wait_with_output().expect("it ends")
}

#[test]
fn an_answer_cannot_write_a_pass() {
    let Some(python) = python() else { return };
    let python = python.to_string_lossy().into_owned();
    let dir = with_softmax(WRONG);
    let root = dir.path().join("regard-learn");
    let forged = "{\"lang\":\"python\",\"exercises\":{\"softmax\":{\"python\":{\"status\":\"pass\",\"passed\":true,\"tries\":1,\"hints\":0,\"hash\":\"\",\"stub\":\"\"}}}}";
    let planting = format!("{WRONG}try: open({:?}, 'w').write({forged:?})\nexcept OSError: pass\n", root.join("progress.json"));
    write(&root.join("python"), "02_softmax.py", &planting);
    assert_eq!(regard(&["learn", "check", "2", "--python", &python], dir.path()).status.code(), Some(1));
    let passed = || works(&["learn", "list"], dir.path()).lines().filter(|line| line.trim_start().starts_with("pass")).count();
    assert_eq!(passed(), 0);
    // Written while no check runs, or where nothing keeps an answer from writing: it does not count, and is kept aside by the next change.
    write(&root, "progress.json", forged);
    assert_eq!(passed(), 0);
    assert_eq!(regard(&["learn", "solution", "2"], dir.path()).status.code(), Some(1));
    works(&["learn", "hint", "2"], dir.path());
    assert_eq!(std::fs::read_to_string(root.join("progress.1.json")).expect("kept"), forged);
    write(&root.join("python"), "02_softmax.py", RIGHT);
    assert!(regard(&["learn", "check", "2", "--python", &python], dir.path()).status.success());
    assert_eq!(passed(), 1);
}

#[test]
fn a_compiled_answer_cannot_be_planted() {
    let dir = tempfile::tempdir().expect("a folder");
    let right = regard_learn::exercises::find("softmax").expect("it is there").solution(regard_learn::exercise::Lang::Rust);
    write(dir.path(), "right.rs", right);
    write(dir.path(), "wrong.rs", &right.replace("exp()", "exp2()"));
    let check = |file: &str| {
        command(&["learn", "check", "2", "--file", file], dir.path())
            .env("XDG_CACHE_HOME", dir.path().join("cache"))
            .output()
            .expect("runs")
    };
    assert_eq!(check("right.rs").status.code(), Some(0));
    // No program of an answer is kept: there is none to replace, nor one to use for another answer.
    let folder = std::fs::read_dir(dir.path().join("cache/regard-learn")).into_iter().flatten().flatten();
    let kept: Vec<_> = folder.map(|file| file.path()).filter(|path| path.to_string_lossy().contains("answer")).collect();
    assert!(kept.is_empty(), "{kept:?}");
    assert_eq!(check("wrong.rs").status.code(), Some(1));
}

#[test]
fn results_that_cannot_be_written_are_an_error() {
    let Some(python) = python() else { return };
    let dir = with_softmax(RIGHT);
    let python = python.to_string_lossy().into_owned();
    for form in [&["--csv"][..], &["--json"], &[]] {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
        let arguments = [&["learn", "check", "2", "--python", &python][..], form].concat();
        let output = command(&arguments, dir.path()).stdout(full).output().expect("it starts");
        fails(&output, 2, "cannot write to the standard output");
    }
    // A standard error that cannot be written changes nothing.
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let status = command(&["learn", "check", "2", "--python", &python], dir.path()).stderr(full).output().expect("it starts").status;
    assert_eq!(status.code(), Some(0));
}

#[test]
fn hints_come_one_by_one_and_the_solution_after_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let refused = regard(&["learn", "solution", "2"], dir.path());
    assert_eq!(refused.status.code(), Some(1));
    for level in 1..=3 {
        let hints = works(&["learn", "hint", "softmax"], dir.path());
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
    assert_eq!(text.lines().count(), 1 + 2 * 16);
    assert!(
        text.contains("ann,2,softmax,python,pass,") && text.contains("ben,2,softmax,python,fail,") && text.contains(",columns,"),
        "{text}"
    );
    assert!(text.contains("ben,1,similarity,python,todo,"));
    assert!(!dir.path().join("ann/progress.json").exists());
}

#[test]
fn expectations_that_are_shown_are_the_laboratory_s() {
    for (d, without, with) in regard_learn::app::demo::EXPECTED {
        for (scaled, shown) in [(false, without), (true, with)] {
            let exact = regard_lab::theory::row(8, d, scaled);
            for (a, b) in shown.iter().zip([exact.entropy, exact.max_weight, 1.0 - exact.sum_of_squares]) {
                assert!((a - b).abs() < 6e-6, "{d} {scaled}: {a} {b}");
            }
        }
    }
}

/// The residual stream around the attention of each layer.
#[derive(Default)]
struct Streams(std::sync::Mutex<std::collections::HashMap<(usize, &'static str), Vec<f32>>>);

impl regard_model::Hook for Streams {
    fn wants(&self, _: usize, site: regard_model::Site) -> bool {
        ["resid_pre", "resid_mid"].contains(&site.name())
    }

    fn at(&self, layer: usize, site: regard_model::Site, x: ndarray::ArrayViewMutD<'_, f32>) -> bool {
        self.0.lock().expect("no panic").insert((layer, site.name()), x.iter().copied().collect());
        false
    }
}

#[test]
fn exercise_16_reads_the_layers_of_the_built_in_model_and_has_their_output() {
    use regard_learn::exercise::Judging;
    use regard_learn::value::{Call, Value};
    let exercise = regard_learn::exercises::find("checkpoint").expect("it is there");
    let Judging::Numbers { formula, .. } = &exercise.judging else { panic!("numbers") };
    let model = regard_model::Model::built_in().expect("it is in the program");
    let ids = model.ids(regard_model::Input::Text("Once upon a time there was a little dog.")).expect("tokens");
    let (t, e, heads) = (ids.len(), model.width(), model.shape().heads);
    let streams = Streams::default();
    model.run_with(&ids, &Default::default(), &Default::default(), &streams).expect("it runs");
    let streams = streams.0.into_inner().expect("no panic");
    let cases = regard_learn::judge::cases(exercise, 1);
    let file = &cases.iter().find(|case| case.label.starts_with("the language model")).expect("a case").call.args[0];
    let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    for layer in 0..2 {
        let x = Value::new(&[t, e], wide(&streams[&(layer, "resid_pre")]));
        let args = vec![file.clone(), x, Value::number(heads as f64), Value::number(layer as f64)];
        let call = Call { dims: vec![t, e, heads, layer], args };
        let out = (formula.f64)(&call, &Default::default()).expect("it answers");
        let right = wide(&streams[&(layer, "resid_mid")]);
        let size = right.iter().fold(0.0, |top: f64, x| top.max(x.abs()));
        let apart = out[0].data.iter().zip(&right).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(t > 5 && apart <= 1e-5 * size, "layer {layer}: {apart} of {size}");
    }
}
