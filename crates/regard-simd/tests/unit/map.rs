use super::*;

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("regard-map-{name}-{}", std::process::id()))
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not map files")]
fn a_mapped_file_is_its_bytes() {
    let path = place("bytes");
    std::fs::write(&path, b"regard").expect("a file");
    let map = MappedFile::open(&path).expect("mapped");
    std::fs::remove_file(&path).expect("removed");
    assert_eq!((map.as_ref(), map.path()), (b"regard".as_slice(), path.as_path()));
    map.check_unchanged().expect("a removed file keeps its bytes");
    assert!(MappedFile::open(&path).is_err());
    assert!(MappedFile::open(&std::env::temp_dir()).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "Miri does not map files")]
fn changes_of_a_mapped_file_are_found() {
    let path = place("changed");
    std::fs::write(&path, vec![7; 10_000]).expect("a file");
    let map = MappedFile::open(&path).expect("mapped");
    map.check_unchanged().expect("as it was");
    File::options().write(true).open(&path).expect("opened").set_len(100).expect("shortened");
    assert_eq!(map.check_unchanged().expect_err("shorter").kind(), io::ErrorKind::InvalidData);
    std::fs::remove_file(&path).expect("removed");
}

/// In a process of its own: the page is gone when it is read.
#[test]
#[cfg(all(unix, not(miri)))]
fn a_read_of_a_file_that_was_shortened_names_it() {
    const CHILD: &str = "REGARD_TEST_SHORTENED";
    if let Some(path) = std::env::var_os(CHILD) {
        let path = PathBuf::from(path);
        let other = MappedFile::open(&path).expect("mapped");
        drop(other);
        let map = MappedFile::open(&path).expect("mapped");
        File::options().write(true).open(&path).expect("opened").set_len(0).expect("shortened");
        let sum: usize = map.as_ref().iter().map(|byte| usize::from(*byte)).sum();
        unreachable!("{sum} was read");
    }
    let path = place("shortened");
    std::fs::write(&path, vec![7; 100_000]).expect("a file");
    let mut child = std::process::Command::new(std::env::current_exe().expect("a program"));
    let name = "map::tests::a_read_of_a_file_that_was_shortened_names_it";
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, &path).output().expect("it starts");
    std::fs::remove_file(&path).expect("removed");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("regard-map-shortened") && message.contains("was shortened"), "{message}");
}
