//! Foreign files, links, pipes, sockets and directories under every name that a command writes: refused at once, and nothing of them
//! changes.
#![cfg(unix)]

mod common;

use common::{command, files, refused, regard, works};
use regard_files::names::{EXPERIMENT, HANDOUT, MANIFEST, PLOT, SCREEN, UNFINISHED, WRITERS, fits, model};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KINDS: [&str; 8] =
    ["link", "dangling link", "link to a directory", "link to a device", "named pipe", "socket", "directory", "foreign file"];

fn plant(kind: &str, path: &Path, outside: &Path) {
    let link = |target: &Path| std::os::unix::fs::symlink(target, path).unwrap();
    match kind {
        "link" => link(&outside.join("precious.txt")),
        "dangling link" => link(&outside.join("nowhere")),
        "link to a directory" => link(outside),
        "link to a device" => link(Path::new("/dev/zero")),
        "named pipe" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        "directory" => std::fs::create_dir(path).unwrap(),
        _ => std::fs::write(path, "mine").unwrap(),
    }
}

/// Everything below a path, without following links: kind, mode, inode, time of change, target or bytes.
fn state(path: &Path) -> Vec<String> {
    let m = std::fs::symlink_metadata(path).unwrap();
    let content = match m.file_type() {
        kind if kind.is_symlink() => format!("{:?}", std::fs::read_link(path).unwrap()),
        kind if kind.is_file() => format!("{:?}", std::fs::read(path).unwrap()),
        _ => String::new(),
    };
    // The times of a directory change when a temporary file is created in it.
    let time = if m.is_dir() { 0 } else { m.mtime_nsec() };
    let mut all = vec![format!("{} {} {} {time} {content}", path.display(), m.mode(), m.ino())];
    if m.is_dir() {
        let mut below: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        below.sort();
        all.extend(below.iter().flat_map(|path| state(path)));
    }
    all
}

/// The exit code and the message, within ten seconds.
fn quickly(arguments: &[&str], folder: &Path) -> (Option<i32>, String) {
    let mut child = command(arguments, folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(30) {
            let _ = child.kill();
            panic!("{arguments:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

struct Case {
    command: &'static str,
    arguments: &'static [&'static str],
    names: Vec<String>,
}

/// Each command with tiny settings, and the names that it writes into the directory `o`.
fn cases() -> Vec<Case> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let with_record = |names: Vec<String>| names.into_iter().chain([MANIFEST.to_owned()]).collect::<Vec<_>>();
    let look = &["look", "--text", "Once upon a time", "--out", "o"];
    let one = &["look", "--text", "Once upon a time", "--layer", "0", "--head", "1", "--neuron", "2,1", "--out", "o"];
    let of_one =
        ["head_0_1.csv", "head_0_1.svg", "head_0_1.png", "neuron.csv", "neuron_keys.csv", "neuron_0_1_2_1.svg", "neuron_0_1_2_1.png"];
    let train =
        &["train", "--characters", "3000", "--context", "8", "--width", "8", "--heads", "1", "--layers", "1", "--steps", "1", "--out", "o"];
    let sweep = regard_lab::EXPERIMENTS.iter().find(|entry| entry.id() == "sweep").expect("an experiment");
    let case = |command, arguments, names| Case { command, arguments, names };
    vec![
        case("look", look, with_record(owned(&["look.csv", "heads.svg", "heads.png"]))),
        case("look", one, owned(&of_one)),
        case("look --html", &["look", "--text", "Once", "--html", "o/page.html", "--out", "p"], owned(&["page.html"])),
        case(
            "screen",
            &["screen", "--texts", "1", "--tokens", "4", "--out", "o"],
            [owned(&SCREEN), owned(&[MANIFEST, UNFINISHED])].concat(),
        ),
        case("plot", &["plot", "w.csv", "--out", "o"], with_record(owned(&PLOT))),
        case("train", train, with_record(owned(&model::FILES))),
        case(EXPERIMENT, &["sweep", "--out", "o"], [sweep.files(), owned(&["published_claims.csv", MANIFEST, UNFINISHED])].concat()),
        case(EXPERIMENT, &["sweep", "--shard", "1/2", "--seeds", "2", "--out", "o"], owned(&["sweep.1-of-2.shard"])),
        case(
            "report",
            &["report", "--seeds", "2", "--no-timing", "--out", "o"],
            owned(&["index.html", "attention_sweep_results.csv", "attention_robustness.png", "attention_robustness.svg", MANIFEST]),
        ),
        case("report", &["report", "--seeds", "2", "--no-timing", "--handout", "--out", "o"], owned(&HANDOUT)),
    ]
}

#[test]
fn the_cases_cover_the_table_of_names() {
    let cases = cases();
    // `learn` and `attend` have tests of their own beside their code.
    for writer in WRITERS.iter().filter(|writer| !["learn", "attend"].contains(&writer.command)) {
        for pattern in writer.names {
            let covered = |case: &Case| case.command == writer.command && case.names.iter().any(|name| fits(pattern, name));
            assert!(cases.iter().any(covered), "{}: {pattern} is not tried", writer.command);
        }
    }
}

#[test]
fn whatever_is_planted_under_a_name_is_refused_at_once_and_unchanged() {
    let mut tried = 0;
    for Case { command, arguments, names } in cases() {
        for name in names {
            for kind in KINDS {
                if name == UNFINISHED && kind == "directory" {
                    continue;
                }
                let dir = tempfile::tempdir().unwrap();
                let (inside, outside) = (dir.path().join("in/o"), dir.path().join("outside"));
                std::fs::create_dir_all(&inside).unwrap();
                std::fs::create_dir(&outside).unwrap();
                std::fs::write(outside.join("precious.txt"), "precious").unwrap();
                std::fs::write(dir.path().join("in/w.csv"), "0.5,0.5\n0.5,0.5\n").unwrap();
                plant(kind, &inside.join(&name), &outside);
                let before = (state(&inside.join(&name)), state(&outside));
                let (code, message) = quickly(arguments, &dir.path().join("in"));
                let what = format!("{command}: {kind} at {name}: {message}");
                assert!(matches!(code, Some(1 | 2)) && message.starts_with("error: "), "{what} (exit code {code:?})");
                assert_eq!((state(&inside.join(&name)), state(&outside)), before, "{what}");
                let left: Vec<String> =
                    std::fs::read_dir(&inside).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
                assert_eq!(left, std::slice::from_ref(&name), "{what}: nothing else is written");
                tried += 1;
            }
        }
    }
    assert!(tried > 200, "{tried}");
}

/// A name of an earlier version's probe, state or temporary file, which are not written any more.
#[test]
fn names_of_earlier_versions_are_neither_followed_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (inside, outside) = (dir.path().join("o"), dir.path().join("precious.txt"));
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(&outside, "precious").unwrap();
    for name in ["screen.partial.json", ".model.safetensors.7.partial", ".regard-Ab12Cd.part", ".regard-0123456789abcdef01234567.part"] {
        std::fs::write(inside.join(name), "mine").unwrap();
    }
    works(&["screen", "--texts", "1", "--tokens", "4", "--out", "o", "--quiet"], dir.path());
    // The shell's process becomes the program's: the link has its number.
    let train = "ln -s ../precious.txt o/.regard.$$.probe; exec \"$0\" train --characters 3000 --context 8 --width 8 --heads 1 --layers 1 \
                 --steps 1 --out o --quiet";
    let trained = Command::new("sh").args(["-c", train, env!("CARGO_BIN_EXE_regard")]).current_dir(dir.path()).output().unwrap();
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    works(&["train", "--resume", "--out", "o", "--quiet"], dir.path());
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");
    for name in ["screen.partial.json", ".model.safetensors.7.partial", ".regard-Ab12Cd.part", ".regard-0123456789abcdef01234567.part"] {
        assert_eq!(std::fs::read(inside.join(name)).unwrap(), b"mine", "{name}");
    }
}

#[test]
fn an_edited_file_of_a_training_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let small =
        ["train", "--characters", "3000", "--context", "8", "--width", "8", "--heads", "1", "--layers", "1", "--steps", "2", "--quiet"];
    works(&small, dir.path());
    let out = dir.path().join("model");
    for name in ["model.json", "training.csv", "training.svg", "training.png"] {
        let good = std::fs::read(out.join(name)).unwrap();
        // A summary must still have the checksum: a space at its end changes nothing else.
        std::fs::write(out.join(name), [&good[..], b" "].concat()).unwrap();
        let before = files(&out);
        refused(&["train", "--resume", "--steps", "4"], dir.path(), &format!("{name} was changed since regard wrote it"));
        common::assert_same(&before, &files(&out), name);
        std::fs::write(out.join(name), good).unwrap();
    }
    std::fs::write(out.join("training.csv"), "edited").unwrap();
    works(&[&small[..], &["--overwrite"]].concat(), dir.path());
    // Without a record nothing proves that a training wrote these files.
    let foreign = dir.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("model.json"), "{}").unwrap();
    refused(&[&small[..], &["--overwrite", "--out", "foreign"]].concat(), dir.path(), "model.json was not written by regard");
    assert_eq!(std::fs::read(foreign.join("model.json")).unwrap(), b"{}");
}

#[test]
fn a_page_of_ours_is_replaced_and_an_edited_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let look = ["look", "--text", "Once upon", "--html", "look.html", "--quiet"];
    works(&look, dir.path());
    let page = std::fs::read(dir.path().join("look.html")).unwrap();
    works(&look, dir.path());
    assert!(std::fs::read(dir.path().join("look.html")).unwrap() == page);
    std::fs::write(dir.path().join("look.html"), [&page[..], b"<!-- mine -->"].concat()).unwrap();
    refused(&look, dir.path(), "look.html was not written by regard and is left alone");
}

/// Kill a screen after its first steps, train another model into the same folder, and screen again: all heads are the new model's.
#[test]
fn a_screen_does_not_resume_with_the_heads_of_another_model() {
    let dir = tempfile::tempdir().unwrap();
    let train = |seed: &str| {
        let small = ["train", "--characters", "3000", "--context", "16", "--width", "8", "--heads", "4", "--layers", "2", "--steps", "2"];
        works(&[&small[..], &["--seed", seed, "--overwrite", "--quiet"]].concat(), dir.path());
    };
    let screen = |out: &'static str| ["screen", "model", "--texts", "8", "--tokens", "16", "--threads", "1", "--quiet", "--out", out];
    train("1");
    let stored = || std::fs::read_dir(dir.path().join("o").join(UNFINISHED)).map_or(0, Iterator::count);
    let killed = (0..20).any(|_| {
        let mut child = command(&screen("o"), dir.path()).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && stored() < 2 {
            std::thread::yield_now();
        }
        let _ = child.kill();
        child.wait().unwrap();
        stored() > 0
    });
    assert!(killed, "every screen ended before it could be killed");
    train("2");
    works(&screen("o"), dir.path());
    works(&screen("fresh"), dir.path());
    let table = |out: &str| std::fs::read_to_string(dir.path().join(out).join("screen.csv")).unwrap();
    assert_eq!(table("o"), table("fresh"));
}

#[test]
fn a_changed_digit_of_stored_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    works(&["sweep", "--d-k", "4", "--out", "r", "--quiet"], dir.path());
    let path = dir.path().join("r/attention_sweep_results.csv");
    let text = std::fs::read_to_string(&path).unwrap();
    let at = text.rfind(|c: char| c.is_ascii_digit()).unwrap();
    let digit = if &text[at..=at] == "1" { "2" } else { "1" };
    std::fs::write(&path, format!("{}{digit}{}", &text[..at], &text[at + 1..])).unwrap();
    refused(&["report", "--from", "r", "--out", "page"], dir.path(), "attention_sweep_results.csv was changed since regard wrote it");
    // A step of a killed run.
    let store = regard_files::ResumeStore::open(dir.path()).unwrap();
    store.put("mask-training seed 1", "{\"loss\":1.25}").unwrap();
    let step = std::fs::read_dir(dir.path().join(UNFINISHED)).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&step, std::fs::read_to_string(&step).unwrap().replace("1.25", "1.26")).unwrap();
    refused(&["sweep", "--out", "."], dir.path(), "is not a step that regard stored: its digest does not match");
}

#[test]
fn sizes_above_a_limit_and_endless_files_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], words: &str| {
        let (code, message) = quickly(arguments, dir.path());
        assert!(code == Some(2) && message.contains(words) && message.lines().count() == 1, "{arguments:?}: {code:?} {message}");
    };
    for command in [&["classify"][..], &["screen"], &["surgery", "L0.H0=zero"]] {
        let with = |more: [&'static str; 2]| [command, &more].concat();
        run(&with(["--tokens", "1000000000"]), "--tokens = 1000000000 is above the limit of 1048576 tokens");
        run(&with(["--texts", "1000000000"]), "--texts = 1000000000 is above the limit of 10000 texts");
        run(&with(["--file", "/dev/zero"]), "/dev/zero is a device, not a regular file");
    }
    assert!(Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("zero.csv")).unwrap();
    std::os::unix::fs::symlink("pipe", dir.path().join("pipe.npy")).unwrap();
    run(&["look", "--file", "/dev/zero"], "/dev/zero is a device");
    run(&["look", "--file", "pipe"], "pipe is a named pipe");
    run(&["look", "--generate", "1000000000"], "--generate = 1000000000 is above the limit");
    run(&["train", "--text", "pipe"], "pipe is a named pipe, not a regular file: give a regular file, or - for the standard input");
    run(&["plot", "zero.csv"], "zero.csv is a device");
    run(&["plot", "pipe.npy"], "pipe.npy is a named pipe");
    run(&["plot", "zero.csv", "--tokens", "pipe"], "is a");
    assert_eq!(regard(&["train", "--resume", "--out", "none"], dir.path()).status.code(), Some(2));
}
