//! Foreign files, links, pipes, sockets and directories under every name that a command writes: refused at once, and nothing of them
//! changes.
#![cfg(unix)]

mod common;

use common::{command, files, refused, regard, works};
use regard_files::names::{EXPERIMENT, MANIFEST, UNFINISHED, WRITERS, fits};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KINDS: [&str; 8] =
    ["link", "dangling link", "link to a directory", "link to a device", "named pipe", "socket", "directory", "foreign file"];

/// A socket, bound under a short name: addresses have a hundred bytes.
fn socket(path: &Path) {
    let dir = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap());
    std::fs::rename(dir.path().join("s"), path).unwrap();
}

fn plant(kind: &str, path: &Path, outside: &Path) {
    let link = |target: &Path| std::os::unix::fs::symlink(target, path).unwrap();
    match kind {
        "link" => link(&outside.join("precious.txt")),
        "dangling link" => link(&outside.join("nowhere")),
        "link to a directory" => link(outside),
        "link to a device" => link(Path::new("/dev/zero")),
        "named pipe" => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
        "socket" => socket(path),
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

/// The exit code and the message; a command that waits is killed.
fn quickly(arguments: &[&str], folder: &Path) -> (Option<i32>, String) {
    let mut child = command(arguments, folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
            panic!("{arguments:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

struct Case {
    /// The row of the table.
    command: &'static str,
    arguments: &'static [&'static str],
    /// Names that an undisturbed run does not leave.
    more: &'static [&'static str],
}

/// Each command with tiny settings, writing into the directory `o`.
fn cases() -> Vec<Case> {
    let look = &["look", "--text", "Once upon a time", "--out", "o"];
    let one = &["look", "--text", "Once upon a time", "--layer", "0", "--head", "1", "--neuron", "2,1", "--out", "o"];
    let train =
        &["train", "--characters", "3000", "--context", "8", "--width", "8", "--heads", "1", "--layers", "1", "--steps", "1", "--out", "o"];
    let attend = &["attend", "q.npy", "q.npy", "q.npy", "--stats", "--heat-map", "4x4", "--out", "o/y.npy"];
    let circuit = &["circuit", "--pairs", "1", "--steps", "1", "--exact", "0", "--edges", "1", "--random", "0", "--out", "o"];
    let case = |command, arguments| Case { command, arguments, more: &[] };
    let resuming = |command, arguments| Case { command, arguments, more: &[UNFINISHED] };
    vec![
        case("look", look),
        case("look", one),
        case("look", &["look", "--text", "Once upon a time", "--keys", "--out", "o"]),
        case("look --html", &["look", "--text", "Once", "--html", "o/page.html", "--out", "p"]),
        resuming("screen", &["screen", "--texts", "1", "--tokens", "4", "--out", "o"]),
        case("plot", &["plot", "w.csv", "--out", "o"]),
        case("diff", &["diff", "--edits-b", "scale=off", "--texts", "2", "--tokens", "8", "--out", "o"]),
        resuming("circuit", circuit),
        case("train", train),
        resuming(EXPERIMENT, &["lab", "sweep", "--out", "o"]),
        case(EXPERIMENT, &["lab", "sweep", "--shard", "1/2", "--seeds", "2", "--out", "o"]),
        case(EXPERIMENT, &["merge", "one.shard", "two.shard", "--out", "o"]),
        resuming("report", &["report", "--seeds", "2", "--no-timing", "--handout", "--out", "o"]),
        // Without a Python with NumPy these two write nothing.
        Case {
            command: "judge",
            arguments: &["judge", "none:none", "--junit", "o/j.xml", "--markdown", "o/m.md", "--record", "o/v.json"],
            more: &["j.xml", "m.md", "v.json"],
        },
        Case {
            command: "learn check",
            arguments: &[
                "learn",
                "check",
                "1",
                "--file",
                "a.py",
                "--junit",
                "o/j.xml",
                "--result-json",
                "o/r.json",
                "--record",
                "o/v.json",
                "--quiet",
            ],
            more: &["j.xml", "r.json", "v.json"],
        },
        case("attend", attend),
    ]
}

/// What the cases read, beside the directory `o`.
fn prepare(folder: &Path) {
    std::fs::write(folder.join("w.csv"), "0.5,0.5\n0.5,0.5\n").unwrap();
    std::fs::write(folder.join("a.py"), "").unwrap();
    let mut header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 8, 4), }".to_owned();
    header.push_str(&" ".repeat(117 - header.len()));
    header.push('\n');
    let mut npy = [b"\x93NUMPY\x01\x00", &u16::try_from(header.len()).unwrap().to_le_bytes()[..], header.as_bytes()].concat();
    npy.extend((0..32).flat_map(|i| (i as f32).sin().to_le_bytes()));
    std::fs::write(folder.join("q.npy"), npy).unwrap();
    for (name, shard, file) in [("one", "1/2", "one/sweep.1-of-2.shard"), ("two", "2/2", "two/sweep.2-of-2.shard")] {
        works(&["lab", "sweep", "--shard", shard, "--seeds", "2", "--out", name, "--quiet"], folder);
        std::fs::rename(folder.join(file), folder.join(format!("{name}.shard"))).unwrap();
        std::fs::remove_dir_all(folder.join(name)).unwrap();
    }
}

/// The cases with the names that they write; a folder with what they read.
fn written() -> (tempfile::TempDir, Vec<(Case, Vec<String>)>) {
    let inputs = tempfile::tempdir().unwrap();
    prepare(inputs.path());
    let names_of = |case: &Case| {
        let (o, p) = (inputs.path().join("o"), inputs.path().join("p"));
        std::fs::create_dir(&o).unwrap();
        let (code, message) = quickly(case.arguments, inputs.path());
        let judges = ["judge", "learn check"].contains(&case.command);
        assert!(code == Some(0) || judges, "{:?}: {code:?} {message}", case.arguments);
        let left: Vec<String> = files(&o).into_keys().chain(case.more.iter().map(|name| (*name).to_owned())).collect();
        std::fs::remove_dir_all(&o).unwrap();
        let _ = std::fs::remove_dir_all(&p);
        left
    };
    let all = cases().into_iter().map(|case| (names_of(&case), case)).map(|(names, case)| (case, names)).collect();
    (inputs, all)
}

/// No command writes a name that is not in the table, and every name of the table is tried.
#[test]
fn whatever_is_planted_under_a_name_is_refused_at_once_and_unchanged() {
    let (inputs, cases) = written();
    let row = |command: &str| WRITERS.iter().find(|writer| writer.command == command).expect("a row");
    for (case, names) in &cases {
        let writer = row(case.command);
        for name in names {
            let hidden = (name == MANIFEST && writer.folder) || (name == UNFINISHED && writer.resumes);
            assert!(hidden || writer.names.iter().any(|pattern| fits(pattern, name)), "{}: {name} is not in the table", case.command);
        }
    }
    // `learn` refuses nothing and replaces nothing: crates/regard-learn has its test. Temporary files of `attend` have random names.
    for writer in WRITERS.iter().filter(|writer| writer.command != "learn") {
        for pattern in writer.names.iter().filter(|pattern| !pattern.ends_with(".regard-unfinished")) {
            let covered =
                |(case, names): &(Case, Vec<String>)| case.command == writer.command && names.iter().any(|name| fits(pattern, name));
            assert!(cases.iter().any(covered), "{}: {pattern} is not tried", writer.command);
        }
    }
    let mut tried = 0;
    for (Case { command, arguments, .. }, names) in &cases {
        for (at, name) in names.iter().enumerate() {
            // Of the many tables and figures of a report, three of each kind.
            let pattern = row(command).names.iter().find(|pattern| pattern.contains('*') && fits(pattern, name));
            if pattern.is_some_and(|pattern| names[..at].iter().filter(|other| fits(pattern, other)).count() >= 3) {
                continue;
            }
            for kind in KINDS {
                if name == UNFINISHED && kind == "directory" {
                    continue;
                }
                let dir = tempfile::tempdir().unwrap();
                let (inside, outside) = (dir.path().join("in/o"), dir.path().join("outside"));
                std::fs::create_dir_all(&inside).unwrap();
                std::fs::create_dir(&outside).unwrap();
                std::fs::write(outside.join("precious.txt"), "precious").unwrap();
                for (input, bytes) in files(inputs.path()) {
                    std::fs::write(dir.path().join("in").join(input), bytes).unwrap();
                }
                plant(kind, &inside.join(name), &outside);
                let before = (state(&inside.join(name)), state(&outside));
                let (code, message) = quickly(arguments, &dir.path().join("in"));
                let what = format!("{command}: {kind} at {name}: {message}");
                assert!(matches!(code, Some(1 | 2)) && message.starts_with("error: "), "{what} (exit code {code:?})");
                assert_eq!((state(&inside.join(name)), state(&outside)), before, "{what}");
                let left: Vec<String> =
                    std::fs::read_dir(&inside).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
                assert_eq!(left, std::slice::from_ref(name), "{what}: nothing else is written");
                tried += 1;
            }
        }
    }
    assert!(tried > 300, "{tried}");
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
    run(&["circuit", "--steps", "18446744073709551615"], "--steps = 18446744073709551615 is above the limit of 1000 points");
    run(&["circuit", "--random", "18446744073709551615"], "--random = 18446744073709551615 is above the limit of 1000 circuits");
    for command in ["classify", "diff", "screen"] {
        run(&[command, "--texts", "0"], "--texts = 0 leaves nothing to do; give at least 1");
        run(&[command, "--tokens", "0"], "--tokens = 0 leaves nothing to do; give at least 1");
    }
    run(&["train", "--text", "pipe"], "pipe is a named pipe, not a regular file: give a regular file, or - for the standard input");
    run(&["plot", "zero.csv"], "zero.csv is a device");
    run(&["plot", "pipe.npy"], "pipe.npy is a named pipe");
    run(&["plot", "zero.csv", "--tokens", "pipe"], "is a");
    // Of a file that is longer than any archive, only the end is looked at.
    std::fs::File::create(dir.path().join("long.npz")).unwrap().set_len(1 << 40).unwrap();
    run(&["plot", "long.npz"], "cut short, or no zip file");
    let whisper = concat!(env!("CARGO_MANIFEST_DIR"), "/../regard-model/tests/golden/whisper");
    run(&["look", whisper, "--audio", "pipe"], "pipe is a named pipe");
    std::fs::create_dir_all(dir.path().join("model/1_Pooling")).unwrap();
    for (name, bytes) in files(Path::new(whisper)) {
        std::fs::write(dir.path().join("model").join(name), bytes).unwrap();
    }
    for name in ["generation_config.json", "modules.json", "1_Pooling/config.json"] {
        let path = dir.path().join("model").join(name);
        let _ = std::fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        run(&["inspect", "model"], "is a named pipe");
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(regard(&["train", "--resume", "--out", "none"], dir.path()).status.code(), Some(2));
}
