//! Trainings that are killed, interrupted, shared by workers, and resumed.

use crate::common::{assert_same, command, files, refused, works};
use crate::{refused_training, step, train};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Any number below `n`, another one in each run.
fn any(n: u64) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish() % n
}

/// Start, and wait until a checkpoint of that many steps is there.
fn started(arguments: &[String], folder: &Path, out: &str, steps: u64) -> Child {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut child = command(&arguments, folder).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let begun = Instant::now();
    while step(&folder.join(out)).is_none_or(|done| done < steps) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint of {steps} steps");
        if child.try_wait().expect("it can be asked").is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

/// Start, and kill a moment after that many steps. Whether that was before the end.
fn killed(arguments: &[String], folder: &Path, out: &str, steps: u64) -> bool {
    let mut child = started(arguments, folder, out, steps);
    std::thread::sleep(Duration::from_micros(any(5000)));
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    !folder.join(out).join("training.svg").exists()
}

const STEPS: u64 = 240;

fn interrupted_settings(out: &str, threads: &str, steps: u64) -> Vec<String> {
    train(&[
        "--steps",
        &steps.to_string(),
        "--checkpoint-every",
        "7",
        "--validate-every",
        "20",
        "--dropout",
        "0.1",
        "--out",
        out,
        "--threads",
        threads,
    ])
}

#[test]
fn killed_training_goes_on_to_the_bytes_of_an_undisturbed_one() {
    let dir = tempfile::tempdir().unwrap();
    let whole = interrupted_settings("whole", "1", STEPS);
    works(&whole.iter().map(String::as_str).collect::<Vec<_>>(), dir.path());
    let right = files(&dir.path().join("whole"));
    let mut cut = 0;
    for (out, threads) in [("one", "1"), ("two", "2"), ("three", "3")] {
        // Killed at first, and killed again after it was taken up.
        for resumed in [false, true] {
            let moment = if resumed { STEPS / 2 + any(STEPS / 4) } else { any(STEPS / 3) };
            let arguments = if resumed {
                ["train", "--resume", "--checkpoint-every", "5", "--out", out, "--threads", threads].map(str::to_owned).to_vec()
            } else {
                interrupted_settings(out, threads, STEPS)
            };
            cut += usize::from(killed(&arguments, dir.path(), out, moment));
        }
        works(&["train", "--resume", "--out", out, "--threads", threads], dir.path());
        assert_same(&right, &files(&dir.path().join(out)), out);
    }
    assert!(cut >= 4, "of six kills only {cut} came before the end");
}

/// 200 steps of eight parts: killed with one number of workers, killed again with another, and ended with a third.
#[test]
fn workers_share_the_parts_of_a_step_and_do_not_change_a_byte() {
    const STEPS: u64 = 200;
    let dir = tempfile::tempdir().unwrap();
    let shared = ["--batch", "16", "--parts", "8", "--width", "64"];
    let arguments = |out: &str, workers: usize| {
        let mut all: Vec<_> = interrupted_settings(out, "2", STEPS);
        shared.chunks(2).for_each(|option| match all.iter().position(|word| word == option[0]) {
            Some(place) => all[place + 1] = option[1].to_owned(),
            None => all.extend(option.iter().map(|word| (*word).to_owned())),
        });
        all.extend(["--workers".to_owned(), workers.to_string()]);
        all
    };
    works(&arguments("whole", 1).iter().map(String::as_str).collect::<Vec<_>>(), dir.path());
    let right = files(&dir.path().join("whole"));
    for workers in [2, 3, 4] {
        let out = format!("by{workers}");
        works(&arguments(&out, workers).iter().map(String::as_str).collect::<Vec<_>>(), dir.path());
        assert_same(&right, &files(&dir.path().join(&out)), &out);
    }
    let mut cut = 0;
    for (out, workers) in [("one", ["1", "3", "2"]), ("two", ["2", "1", "4"]), ("three", ["3", "4", "1"]), ("four", ["4", "2", "3"])] {
        for (turn, now) in workers[..2].iter().enumerate() {
            let moment = if turn == 1 { STEPS / 2 + any(STEPS / 4) } else { any(STEPS / 3) };
            let arguments = if turn == 1 {
                ["train", "--resume", "--checkpoint-every", "5", "--out", out, "--workers", now].map(str::to_owned).to_vec()
            } else {
                arguments(out, now.parse().unwrap())
            };
            cut += usize::from(killed(&arguments, dir.path(), out, moment));
        }
        works(&["train", "--resume", "--out", out, "--workers", workers[2]], dir.path());
        assert_same(&right, &files(&dir.path().join(out)), out);
    }
    assert!(cut >= 5, "of eight kills only {cut} came before the end");
}

#[cfg(unix)]
#[test]
fn a_folder_takes_one_training_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = started(&interrupted_settings("model", "1", 100_000), dir.path(), "model", 1);
    let words = "another run of regard is writing to model: wait until it ends, or choose another directory";
    refused(&["sweep", "--seeds", "1", "--out", "model"], dir.path(), words);
    refused_training(&["--overwrite", "--steps", "1"], dir.path(), words);
    refused(&["train", "--resume", "--out", "model"], dir.path(), words);
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    // A killed training leaves no lock.
    works(&["sweep", "--seeds", "1", "--out", "model"], dir.path());
}

#[cfg(unix)]
fn interrupt(child: &Child) {
    signal(child, "-INT");
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill is there");
    assert!(sent.success());
}

#[cfg(unix)]
#[test]
fn interrupted_training_saves_and_goes_on_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let whole = interrupted_settings("whole", "2", 600);
    works(&whole.iter().map(String::as_str).collect::<Vec<_>>(), dir.path());
    // As a person does it, and as a system that shuts down.
    for (name, model) in [("-INT", "model"), ("-TERM", "my model")] {
        let mut child = started(&interrupted_settings(model, "1", 600), dir.path(), model, 7);
        signal(&child, name);
        let mut message = String::new();
        child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{message}");
        let quoted = if model.contains(' ') { format!("'{model}'") } else { model.to_owned() };
        assert!(message.contains(&format!("resume with: regard train --resume --out {quoted}\n")), "{message}");
        let out = dir.path().join(model);
        let done = step(&out).unwrap();
        assert!((7..600).contains(&done) && message.contains(&format!("saved after step {done} of 600")), "{done}: {message}");
        assert!(!out.join("training.svg").exists());
        works(&["train", "--resume", "--out", model], dir.path());
        assert_same(&files(&dir.path().join("whole")), &files(&out), name);
    }
}

#[cfg(unix)]
#[test]
fn second_interrupt_stops_at_once() {
    let dir = tempfile::tempdir().unwrap();
    // Enough parts for a first step of minutes.
    let endless = ["train", "--characters", "6000", "--context", "16", "--batch", "131072", "--micro-batches", "131072"].map(str::to_owned);
    let mut child = started(&endless, dir.path(), "model", 0);
    interrupt(&child);
    let mut line = String::new();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    while !line.contains("Ctrl-C again stops at once") {
        assert!(messages.read_line(&mut line).unwrap() > 0, "{line}");
    }
    assert!(child.try_wait().unwrap().is_none(), "the first one waits for the step");
    interrupt(&child);
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert_eq!(status.code(), Some(130));
    assert_eq!(step(&dir.path().join("model")), Some(0));
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupt_counts_where_messages_cannot_be_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let arguments = interrupted_settings("full", "1", 100_000);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the device");
    let mut child = command(&arguments, dir.path()).stdout(Stdio::null()).stderr(full).spawn().expect("the program starts");
    let begun = Instant::now();
    while step(&dir.path().join("full")).is_none_or(|done| done < 7) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
}
