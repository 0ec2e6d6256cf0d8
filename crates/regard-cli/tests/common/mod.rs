//! The command as a child process, and what its tests ask of it.

#![allow(dead_code)] // No test program needs all of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

pub fn command(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
    command.args(arguments).current_dir(folder);
    command
}

pub fn regard(arguments: &[&str], folder: &Path) -> Output {
    command(arguments, folder).output().expect("the program starts")
}

pub fn works(arguments: &[&str], folder: &Path) -> String {
    let output = regard(arguments, folder);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// That exit code, one line that has the words, and nothing else.
pub fn fails(output: &Output, code: i32, words: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words}: {message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{words}: {message}");
    assert!(message.starts_with("error: ") && message.contains(words), "{words}: {message}");
    assert!(message.matches("os error").count() < 2, "a cause is said once: {message}");
    assert!(output.stdout.is_empty());
}

/// The arguments cannot be used.
pub fn refused(arguments: &[&str], folder: &Path, words: &str) {
    fails(&regard(arguments, folder), 2, words);
}

/// Every file of a directory.
pub fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let read =
        |entry: std::fs::DirEntry| (entry.file_name().into_string().expect("UTF-8"), std::fs::read(entry.path()).expect("it can be read"));
    std::fs::read_dir(folder).expect("it is there").map(|entry| read(entry.expect("it can be listed"))).collect()
}

/// Names of the files of a directory that end so.
pub fn named(folder: &Path, ending: &str) -> Vec<String> {
    files(folder).into_keys().filter(|name| name.ends_with(ending)).collect()
}

pub fn assert_same(a: &BTreeMap<String, Vec<u8>>, b: &BTreeMap<String, Vec<u8>>, what: &str) {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>(), "{what}");
    for (name, bytes) in a {
        assert!(b[name] == *bytes, "{what}: {name} differs");
    }
}
