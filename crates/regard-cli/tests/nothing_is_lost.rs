//! What is the user's stays the user's, and what cannot work is said before anything is done.

mod common;

use common::{command, fails, files, refused, regard, works};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A report that takes a moment, in the folder `report`.
fn small_report(folder: &Path) {
    works(&["report", "--seeds", "20", "--no-timing", "--quiet"], folder);
}

#[test]
fn a_record_that_names_files_elsewhere_is_refused_and_they_stay() {
    let dir = tempfile::tempdir().unwrap();
    small_report(dir.path());
    std::fs::write(dir.path().join("precious.txt"), "mine").unwrap();
    for record in ["{\"../precious.txt\":\"report\"}", "{\"../precious.txt\":{\"command\":\"report\",\"sha256\":[]}}"] {
        std::fs::write(dir.path().join("report/.regard.json"), record).unwrap();
        refused(&["report", "--from", "report"], dir.path(), ".regard.json is not a record that regard wrote");
        assert_eq!(std::fs::read(dir.path().join("precious.txt")).unwrap(), b"mine");
    }
}

#[test]
fn a_report_from_its_tables_says_what_is_damaged_or_gone_and_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    small_report(dir.path());
    let report = dir.path().join("report");
    let before = files(&report);
    let noise: Vec<u8> = (0..1000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(report.join("check_rank.csv"), &noise).unwrap();
    refused(&["report", "--from", "report"], dir.path(), "check_rank.csv was changed since regard wrote it");
    assert_eq!(files(&report).len(), before.len());
    std::fs::remove_file(report.join("check_rank.csv")).unwrap();
    refused(&["report", "--from", "report"], dir.path(), "check_rank.csv is recorded in .regard.json but does not exist");
    assert_eq!(files(&report).len(), before.len() - 1);
    std::fs::write(report.join("check_rank.csv"), &before["check_rank.csv"]).unwrap();
    works(&["report", "--from", "report", "--quiet"], dir.path());
    common::assert_same(&before, &files(&report), "the report again");
}

#[test]
fn a_file_that_was_edited_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    works(&["sweep", "--quiet"], dir.path());
    let path = dir.path().join("results/attention_sweep_results.csv");
    std::fs::write(&path, "my notes").unwrap();
    refused(&["sweep"], dir.path(), "attention_sweep_results.csv was changed since regard wrote it");
    assert_eq!(std::fs::read(&path).unwrap(), b"my notes");
}

#[test]
fn what_is_in_the_way_is_found_before_any_work() {
    for (arguments, name) in [
        (&["report", "--train", "--out", "o"][..], "index.html"),
        (&["report", "--seeds", "1000000", "--out", "o"], "attention_robustness.png"),
        (&["mask-training", "--steps", "1000000", "--out", "o"], "mask_training_use.svg"),
        (&["robustness", "--seeds", "1000000", "--out", "o"], "published_claims.csv"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("o")).unwrap();
        std::fs::write(dir.path().join("o").join(name), "mine").unwrap();
        // Had the work been done first, this would take hours.
        refused(arguments, dir.path(), &format!("{name} was not written by regard and is left alone"));
        assert_eq!(std::fs::read(dir.path().join("o").join(name)).unwrap(), b"mine");
    }
}

#[test]
fn a_python_without_pytorch_is_found_before_any_work() {
    let dir = tempfile::tempdir().unwrap();
    refused(&["report", "--seeds", "1000000", "--train", "--python", "/does/not/exist"], dir.path(), "/does/not/exist cannot import torch");
}

/// A pipe whose reader reads ten bytes and goes away.
fn into_a_closed_pipe(arguments: &[&str], folder: &Path) -> (Option<i32>, String) {
    let mut child = command(arguments, folder).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_reader_who_goes_away_is_no_failure_and_a_full_disk_is_one() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [&["patterns", "--no-timing", "--json"][..], &["sweep", "--json"], &["heads", "--seeds", "20"]] {
        let (code, said) = into_a_closed_pipe(arguments, dir.path());
        assert!(code == Some(0) && !said.contains("panicked"), "{arguments:?}: {code:?} {said}");
        if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
            let output = command(arguments, dir.path()).stdout(full).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(1) && said.contains("error: cannot write to the standard output"), "{said}");
        }
    }
    // The notes are not read: the work is done all the same.
    let mut child = command(&["sweep"], dir.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn sizes_that_cannot_be_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        (&["bench", "--heads", "4294967296", "--seq", "4294967296"][..], "not enough memory for q, k, v and out"),
        (&["bench", "--heads", "64", "--seq", "33000000", "--dtype", "f64"], "not enough memory for q, k, v and out"),
        (&["patterns", "--window", "9223372036854775808", "--dilation", "2"], "invalid window: 9223372036854775808"),
        (&["patterns", "--dilation", "18446744073709551615"], "invalid dilation: 18446744073709551615"),
        (&["sweep", "--d-k", "4,4"], "invalid d_k: 4; it must be in the list once"),
        (&["robustness", "--seq", "8,4,8"], "invalid seq: 8"),
        (&["heads", "--heads", "2,2"], "invalid heads: 2"),
        (
            &["masks", "--batch", "4096", "--context", "1024", "--width", "1024", "--layers", "32"],
            "not enough memory for one step of this training",
        ),
        (
            &["pairs", "--batch", "4096", "--width", "1024", "--layers", "32", "--heads", "1"],
            "not enough memory for one step of this training",
        ),
    ] {
        refused(arguments, dir.path(), words);
        assert!(!dir.path().join("results").join("attention_sweep_results.csv").exists(), "nothing is written: {arguments:?}");
    }
}

#[test]
fn a_text_that_does_not_end_is_refused() {
    if Path::new("/dev/zero").exists() {
        let dir = tempfile::tempdir().unwrap();
        refused(&["masks", "--text", "/dev/zero"], dir.path(), "/dev/zero is a device");
    }
}

#[test]
fn a_text_comes_from_the_standard_input_too() {
    let dir = tempfile::tempdir().unwrap();
    let text: String = (0..300).map(|i| format!("the {} cat sees {} dogs. ", ["old", "red", "quiet"][i % 3], i % 7)).collect();
    std::fs::write(dir.path().join("my text.txt"), format!("\u{feff}{text}")).unwrap();
    let small = ["--steps", "2", "--batch", "2", "--context", "16", "--width", "16", "--heads", "2", "--layers", "1", "--windows", "4"];
    let run = |name: &str, out: &str| {
        let arguments = [&["trained-heads", "--text", name, "--out", out, "--quiet"][..], &small].concat();
        let input = std::fs::File::open(dir.path().join("my text.txt")).unwrap();
        assert!(command(&arguments, dir.path()).stdin(input).status().unwrap().success());
        String::from_utf8(files(&dir.path().join(out))["trained_heads_named.csv"].clone()).unwrap()
    };
    let (from_input, from_file) = (run("-", "a"), run("my text.txt", "b"));
    let rows = |csv: &str| csv.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(rows(&from_input), rows(&from_file));
    // What is recorded can be given to a shell.
    assert!(from_file.contains("--text 'my text.txt' "), "{from_file}");
    assert!(from_file.contains(&format!(", {} characters", text.len())), "the byte order mark is no character: {from_file}");
}

#[test]
fn too_many_threads_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(&["sweep"], dir.path()).env("RAYON_NUM_THREADS", "1000000000").output().unwrap();
    fails(&output, 2, "too many threads: RAYON_NUM_THREADS = 1000000000");
    assert!(command(&["sweep", "--quiet"], dir.path()).env("RAYON_NUM_THREADS", "2").status().unwrap().success());
}

#[cfg(unix)]
fn program(path: &Path, lines: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
#[cfg(unix)]
fn nothing_in_the_current_folder_is_run_unasked() {
    let dir = tempfile::tempdir().unwrap();
    program(&dir.path().join("target/venv-torch/bin/python"), "touch ../ran; touch ran");
    std::fs::write(dir.path().join("torch.py"), "open('ran', 'w').close()\n").unwrap();
    let output = command(&["parity", "--quiet"], dir.path()).env_remove("VIRTUAL_ENV").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!dir.path().join("ran").exists());
}

#[test]
#[cfg(unix)]
fn a_python_that_hangs_is_not_waited_for_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    program(&dir.path().join("hangs"), "exec sleep 1000");
    let start = Instant::now();
    let output = regard(&["parity", "--python", "./hangs", "--timeout", "1"], dir.path());
    fails(&output, 1, "no answer within 1 seconds");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn small_words() {
    let dir = tempfile::tempdir().unwrap();
    assert!(works(&["help", "--help"], dir.path()).contains("regard look"));
    assert!(works(&["help", "sweep", "--help"], dir.path()).contains("regard lab sweep"));
    std::fs::write(dir.path().join("w.csv"), "1,0,0\n0.5,0.5,0\n0.25,0.25,0.5\n").unwrap();
    works(&["plot", "w.csv", "--tokens", "the cat sat", "--quiet"], dir.path());
    let csv = String::from_utf8(files(&dir.path().join("results"))["attention_plot.csv"].clone()).unwrap();
    for key in ["# regard: ", "# command: regard plot w.csv --tokens 'the cat sat'", "# simd: "] {
        assert!(csv.contains(key), "{csv}");
    }
    refused(&["plot", "w.csv", "--tokens", "cat"], dir.path(), "\"cat\" is one word, and no file has that name");
    works(
        &[
            "pairs",
            "--task",
            "both",
            "--steps",
            "1",
            "--batch",
            "2",
            "--width",
            "8",
            "--heads",
            "1",
            "--layers",
            "1",
            "--held-out",
            "1",
            "--quiet",
        ],
        dir.path(),
    );
}
