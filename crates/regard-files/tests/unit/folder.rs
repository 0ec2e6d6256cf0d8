use super::*;

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// One run of a command that writes these files.
fn run(path: &Path, command: &str, files: &[(&str, &str)]) -> Result<Vec<String>> {
    let mut folder = Folder::open(path, command)?;
    folder.write_all(files)?;
    folder.finish()
}

#[test]
fn a_second_run_replaces_its_own_files_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    assert!(run(dir.path(), "sweep", &[("a.csv", "1"), ("b.csv", "1")]).unwrap().is_empty());
    assert!(run(dir.path(), "heads", &[("c.csv", "1")]).unwrap().is_empty());
    assert_eq!(run(dir.path(), "sweep", &[("a.csv", "2")]).unwrap(), ["b.csv"]);
    assert_eq!(names(dir.path()), [".regard.json", "a.csv", "c.csv", "notes.txt"]);
    assert_eq!(std::fs::read(dir.path().join("notes.txt")).unwrap(), b"mine");
    assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"2");
    let record = recorded(dir.path()).unwrap();
    assert_eq!(record.names().collect::<Vec<_>>(), ["a.csv", "c.csv"]);
    assert!(record.has("a.csv", b"2") && !record.has("a.csv", b"1") && !record.has("notes.txt", b"mine"));
}

#[test]
fn a_foreign_file_is_left_alone_and_found_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.csv"), "mine").unwrap();
    let mut folder = Folder::open(dir.path(), "sweep").unwrap();
    assert!(matches!(folder.reserve(&["b.csv", "a.csv"]), Err(Error::NotOurs { .. })));
    assert!(folder.reserve(&["b.csv"]).is_ok());
    assert!(matches!(folder.write_all(&[("b.csv", "ours"), ("a.csv", "ours")]), Err(Error::NotOurs { .. })));
    assert!(!dir.path().join("b.csv").exists(), "nothing is written unless everything can be");
    assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"mine");
}

#[test]
fn a_changed_file_is_neither_replaced_nor_removed() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "sweep", &[("a.csv", "1"), ("b.csv", "1")]).unwrap();
    std::fs::write(dir.path().join("a.csv"), "edited").unwrap();
    let mut folder = Folder::open(dir.path(), "sweep").unwrap();
    assert!(matches!(folder.reserve(&["a.csv"]), Err(Error::Changed { .. })));
    assert!(!folder.remove("a.csv").unwrap());
    assert_eq!(folder.finish().unwrap(), ["b.csv"]);
    assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"edited");
}

#[test]
fn a_changed_file_is_replaced_after_it_was_accepted() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "sweep", &[("a.csv", "1")]).unwrap();
    std::fs::write(dir.path().join("a.csv"), "edited").unwrap();
    std::fs::write(dir.path().join("b.csv"), "mine").unwrap();
    let mut folder = Folder::open(dir.path(), "sweep").unwrap();
    folder.accept_change("a.csv").unwrap();
    folder.accept_change("b.csv").unwrap();
    assert!(matches!(folder.reserve(&["b.csv"]), Err(Error::NotOurs { .. })), "a file without a record is not accepted");
    folder.write_all(&[("a.csv", "2")]).unwrap();
    folder.finish().unwrap();
    assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"2");
}

#[test]
fn a_file_of_an_earlier_version_is_adopted_by_its_content() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.csv"), "old").unwrap();
    let mut folder = Folder::open(dir.path(), "sweep").unwrap();
    assert!(!folder.adopt("a.csv", 10, |bytes| bytes == b"other").unwrap() && !folder.adopt("b.csv", 10, |_| true).unwrap());
    assert!(folder.reserve(&["a.csv"]).is_err());
    assert!(folder.adopt("a.csv", 10, |bytes| bytes == b"old").unwrap());
    folder.write_all(&[("a.csv", "new")]).unwrap();
}

#[test]
fn a_name_may_be_written_twice_in_one_call_and_a_change_in_between_calls_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let mut folder = Folder::open(dir.path(), "sweep").unwrap();
    folder.write_all(&[("a.csv", "1"), ("b.csv", "1"), ("a.csv", "2")]).unwrap();
    assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"2");
    folder.write_all(&[("a.csv", "3")]).unwrap();
    std::fs::write(dir.path().join("a.csv"), "mine").unwrap();
    assert!(matches!(folder.write_all(&[("a.csv", "4")]), Err(Error::Changed { .. })));
    assert_eq!(std::fs::read(dir.path().join("a.csv")).unwrap(), b"mine");
}

#[test]
fn a_record_with_other_than_plain_names_is_refused() {
    for name in ["../precious.txt", "/tmp/precious.txt", "below/precious.txt", "..", "", "C:precious.txt", "a\\\\b", ".regard.json"] {
        let dir = tempfile::tempdir().unwrap();
        let (precious, host) = (dir.path().join("precious.txt"), dir.path().join("host"));
        std::fs::create_dir(&host).unwrap();
        std::fs::write(&precious, "mine").unwrap();
        let hash = digest(b"mine");
        std::fs::write(host.join(MANIFEST), format!("{{\"{name}\": {{\"command\": \"report\", \"sha256\": [\"{hash}\"]}}}}")).unwrap();
        let error = Folder::open(&host, "report").unwrap_err();
        assert!(matches!(error, Error::Record { .. }), "{name}: {error}");
        assert!(precious.exists());
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(MANIFEST), "{\"a.csv\": \"report\"}").unwrap();
    assert!(matches!(Folder::open(dir.path(), "report"), Err(Error::Record { .. })), "a record without digests proves nothing");
}

#[test]
fn after_a_kill_between_record_and_file_the_old_bytes_are_still_ours() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "sweep", &[("a.csv", "old")]).unwrap();
    let mut folder = Folder::open(dir.path(), "sweep").unwrap();
    folder.write_all(&[("a.csv", "new")]).unwrap();
    drop(folder);
    // As a kill leaves it: the record was written, the file was not.
    std::fs::write(dir.path().join("a.csv"), "old").unwrap();
    assert!(run(dir.path(), "sweep", &[("a.csv", "newer")]).is_ok());
}

#[test]
fn temporary_files_of_killed_runs_are_removed_and_files_that_only_look_similar_stay() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(crate::names::part(7)), "half").unwrap();
    let foreign = [".model.safetensors.1.partial", ".regard-Ab12Cd.part", ".regard-notes.part", ".regard.12.probe", "notes.part"];
    for mine in foreign {
        std::fs::write(dir.path().join(mine), "mine").unwrap();
    }
    drop(Folder::open(dir.path(), "sweep").unwrap());
    assert_eq!(names(dir.path()), foreign);
}

#[test]
fn one_run_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = Folder::open(dir.path(), "train").unwrap();
    let error = Folder::open(dir.path(), "sweep").unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let path = dir.path().to_owned();
    let waiting = std::thread::spawn(move || Folder::open_waiting(&path, "sweep").map(drop));
    drop(first);
    waiting.join().unwrap().unwrap();
    Folder::open(dir.path(), "sweep").unwrap();
}

#[test]
fn a_directory_that_cannot_be_created_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = Folder::open(&file.join("below"), "sweep").unwrap_err();
    assert!(matches!(error, Error::Directory { .. }), "{error}");
}
