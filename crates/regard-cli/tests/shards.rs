//! Parts of an experiment, made apart and put together.

mod common;

use common::{assert_same, files, refused, works};
use std::path::Path;

/// The same experiment whole and in parts, made in another order than they are counted.
fn whole_and_merged(experiment: &[&str], parts: usize, folder: &Path) {
    works(&[experiment, &["--quiet", "--out", "whole"]].concat(), folder);
    for i in 0..parts {
        let part = format!("{}/{parts}", (i * 5 + 2) % parts + 1);
        works(&[experiment, &["--quiet", "--out", "shards", "--shard", &part]].concat(), folder);
    }
    // Twice, under another name, beside something that is none.
    let first = std::fs::read_dir(folder.join("shards")).expect("parts").next().expect("one").expect("a file").path();
    std::fs::copy(first, folder.join("shards/again.shard")).expect("a copy");
    std::fs::write(folder.join("shards/notes.txt"), "mine").expect("a file");
    works(&["merge", "shards", "--quiet", "--out", "merged"], folder);
    let without_record = |name: &str| {
        let mut all = files(&folder.join(name));
        all.retain(|name, _| !name.starts_with('.'));
        all
    };
    assert_same(&without_record("whole"), &without_record("merged"), "merged");
}

#[test]
fn parts_give_the_bytes_of_the_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    whole_and_merged(&["sweep", "--d-k", "4,64", "--seeds", "301", "--numbers", "regard", "--loss", "unit"], 7, folder.path());
    // More parts than draws.
    let folder = tempfile::tempdir().expect("a folder");
    whole_and_merged(&["sweep", "--d-k", "8", "--seeds", "9", "--numbers", "pytorch"], 16, folder.path());
    let folder = tempfile::tempdir().expect("a folder");
    whole_and_merged(&["robustness", "--seq", "8", "--d-k", "8,64", "--seeds", "40"], 3, folder.path());
}

#[test]
fn parts_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let sweep = |seed: &str, part: &str, out: &str| {
        works(&["sweep", "--d-k", "4", "--seeds", "30", "--seed", seed, "--quiet", "--shard", part, "--out", out], folder);
    };
    for part in ["1/3", "3/3"] {
        sweep("1", part, "shards");
    }
    refused(&["merge", "shards", "--out", "merged"], folder, "part 2 of 3 of `regard lab sweep` is missing");
    sweep("2", "2/3", "other");
    refused(&["merge", "shards", "other/sweep.2-of-3.shard"], folder, "belongs to another run");
    sweep("1", "2/3", "shards");
    let path = folder.join("shards/sweep.2-of-3.shard");
    let good = std::fs::read(&path).expect("a part");
    for at in [5, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        std::fs::write(&path, &bad).expect("it is written");
        refused(&["merge", "shards", "--out", "merged"], folder, "sweep.2-of-3.shard");
    }
    for len in [0, 10, good.len() - 3] {
        std::fs::write(&path, &good[..len]).expect("it is written");
        refused(&["merge", "shards", "--out", "merged"], folder, "sweep.2-of-3.shard");
    }
    assert!(!folder.join("merged").exists() || files(&folder.join("merged")).is_empty(), "nothing is written for parts that are refused");
    // Made again where it is damaged, and left alone where it is whole.
    sweep("1", "2/3", "shards");
    assert_eq!(std::fs::read(&path).expect("a part"), good);
    works(&["merge", "shards", "--quiet", "--out", "merged"], folder);
    refused(&["merge", "nowhere"], folder, "nowhere");
    refused(&["sweep", "--shard", "4/3"], folder, "parts are counted from 1");
    // Said at once: the work would take hours.
    refused(&["patterns", "--shard", "1/3", "--quiet"], folder, "no draws that could be shared");
    refused(&["mask-training", "--steps", "1000000", "--shard", "1/3"], folder, "no draws that could be shared");
    // The header is under the hash too, and the format has a number.
    let text = String::from_utf8_lossy(&good).into_owned();
    let at = text.find("\"start\":").expect("draws") + 8;
    let mut bad = good.clone();
    bad[at] ^= 1;
    std::fs::write(&path, &bad).expect("it is written");
    refused(&["merge", "shards", "--out", "merged"], folder, "it does not have its hash");
    std::fs::write(&path, [b"regard shard 1\n", &good[15..]].concat()).expect("it is written");
    refused(&["merge", "shards", "--out", "merged"], folder, "another version of regard made it: make it again");
    sweep("1", "2/3", "shards");
    assert_eq!(std::fs::read(&path).expect("a part"), good);
    // What is not regard's stays; found before the work.
    std::fs::write(&path, "my notes").expect("it is written");
    refused(
        &["sweep", "--d-k", "4", "--seeds", "30", "--shard", "2/3", "--out", "shards"],
        folder,
        "was not written by regard and is left alone",
    );
    assert_eq!(std::fs::read(&path).expect("a part"), b"my notes");
    if Path::new("/dev/zero").exists() {
        refused(&["merge", "/dev/zero"], folder, "/dev/zero");
    }
    if cfg!(unix) {
        std::fs::remove_file(&path).expect("removed");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        refused(&["merge", "shards", "--out", "merged"], folder, "not a regular file");
        refused(&["sweep", "--d-k", "4", "--seeds", "30", "--shard", "2/3", "--out", "shards"], folder, "left alone");
    }
}
