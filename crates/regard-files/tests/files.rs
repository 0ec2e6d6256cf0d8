//! Writing, reading and stored steps, against links, pipes, devices and foreign files.
#![cfg(unix)]

use regard_files::{
    Error, Folder, MANIFEST, Output, ResumeStore, UNFINISHED, create_new, is_sealed_html, limits, names, open_file, read_bytes, read_text,
    remove_abandoned, remove_parts, seal_html, shell_quoted,
};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

fn fifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
}

/// A socket, bound under a short name: addresses have a hundred bytes.
fn socket(path: &Path) {
    let dir = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap());
    std::fs::rename(dir.path().join("s"), path).unwrap();
}

/// Something planted under a name, beside an untouched file outside.
fn plant(kind: &str, path: &Path, outside: &Path) {
    std::fs::write(outside, "outside").unwrap();
    match kind {
        "link" => std::os::unix::fs::symlink(outside, path).unwrap(),
        "dangling link" => std::os::unix::fs::symlink(outside.with_file_name("nowhere"), path).unwrap(),
        "link to a directory" => std::os::unix::fs::symlink(outside.parent().unwrap(), path).unwrap(),
        "link to a device" => std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        "pipe" => fifo(path),
        "socket" => socket(path),
        "directory" => std::fs::create_dir(path).unwrap(),
        "file" => std::fs::write(path, "mine").unwrap(),
        other => unreachable!("{other}"),
    }
}

const KINDS: [&str; 8] = ["link", "dangling link", "link to a directory", "link to a device", "pipe", "socket", "directory", "file"];

fn state(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let m = std::fs::symlink_metadata(path).unwrap();
    let bytes = if m.is_file() { std::fs::read(path).unwrap() } else { Vec::new() };
    format!("{} {} {} {:?} {:?}", m.ino(), m.mode(), m.len(), m.modified().unwrap(), bytes)
}

/// Every writer refuses every kind quickly, and nothing changes.
#[test]
fn what_is_planted_under_a_name_is_refused_and_unchanged() {
    type Write = fn(&Path, &str) -> regard_files::Result<()>;
    let writers: [(&str, &str, Write); 6] = [
        ("create_new", "x.html", |dir, name| create_new(&dir.join(name), b"new")),
        ("output", "x.html", |dir, name| Output::reserve(&dir.join(name), 1000, |_| false)?.write(b"new")),
        ("folder", "x.csv", |dir, name| Folder::open(dir, "sweep")?.write_all(&[(name, "new")])),
        ("record", MANIFEST, |dir, _| Folder::open(dir, "sweep")?.write_all(&[("y.csv", "new")])),
        ("store", UNFINISHED, |dir, name| {
            let store = ResumeStore::open(dir)?;
            // A directory that is a directory is in order; nothing in it is touched.
            if dir.join(name).symlink_metadata().is_ok_and(|m| m.is_dir()) {
                return Err(Error::NotOurs { path: dir.join(name) });
            }
            store.put("a", "1")
        }),
        ("step", ".regard-unfinished/ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb.json", |dir, _| {
            ResumeStore::open(dir)?.put("a", "1")
        }),
    ];
    for (writer, name, write) in writers {
        for kind in KINDS {
            let dir = tempfile::tempdir().unwrap();
            let (inside, outside) = (dir.path().join("in"), dir.path().join("outside"));
            std::fs::create_dir_all(inside.join(name).parent().unwrap()).unwrap();
            plant(kind, &inside.join(name), &outside);
            let before = (state(&inside.join(name)), state(&outside));
            let begun = Instant::now();
            let error = write(&inside, name).expect_err(&format!("{writer}: {kind}"));
            assert!(begun.elapsed() < Duration::from_secs(5), "{writer}: {kind}");
            assert!(error.is_usage(), "{writer}: {kind}: {error}");
            assert_eq!((state(&inside.join(name)), state(&outside)), before, "{writer}: {kind}");
            let left: Vec<_> = std::fs::read_dir(&inside).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert!(!left.iter().any(|name| name.to_string_lossy().ends_with(".part")), "{writer}: {kind}: {left:?}");
        }
    }
}

#[test]
fn an_output_is_new_or_proves_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("page.html");
    let reserve = || Output::reserve(&path, 1 << 20, is_sealed_html);
    reserve().unwrap().write(seal_html("<p>one</p>").as_bytes()).unwrap();
    reserve().unwrap().write(seal_html("<p>two</p>").as_bytes()).unwrap();
    let sealed = std::fs::read(&path).unwrap();
    assert!(sealed.starts_with(b"<p>two</p>") && is_sealed_html(&sealed) && !is_sealed_html(b"") && !is_sealed_html(&sealed[1..]));
    let late = reserve().unwrap();
    std::fs::write(&path, "edited").unwrap();
    assert!(matches!(late.write(b"new"), Err(Error::Changed { .. })), "a change after the reservation");
    assert!(matches!(reserve(), Err(Error::NotOurs { .. })));
    assert!(matches!(Output::reserve_new(&path, false), Err(Error::NotOurs { .. })));
    Output::reserve_new(&path, true).unwrap().write(b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    let late = Output::reserve_new(&dir.path().join("b"), false).unwrap();
    std::fs::write(dir.path().join("b"), "mine").unwrap();
    assert!(matches!(late.write(b"new"), Err(Error::NotOurs { .. })), "a file that appeared after the reservation");
    assert!(matches!(Output::reserve_new(&dir.path().join("no/such"), false), Err(Error::Directory { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
}

#[test]
fn a_new_file_has_the_permissions_of_any_file() {
    let dir = tempfile::tempdir().unwrap();
    let [a, plain] = ["a", "plain"].map(|name| dir.path().join(name));
    create_new(&a, b"one").unwrap();
    std::fs::write(&plain, "").unwrap();
    assert_eq!(a.metadata().unwrap().permissions(), plain.metadata().unwrap().permissions());
}

#[test]
fn reading_is_bounded_and_never_waits() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a"), "\u{feff}text").unwrap();
    std::os::unix::fs::symlink(path("a"), path("link")).unwrap();
    fifo(&path("fifo"));
    assert_eq!(read_text(&path("a"), 7).unwrap(), "text");
    assert_eq!(read_text(&path("link"), 7).unwrap(), "text");
    assert!(matches!(read_bytes(&path("a"), 6), Err(Error::TooLong { limit: 6, .. })));
    for other in [path("fifo"), "/dev/zero".into(), dir.path().to_owned()] {
        let begun = Instant::now();
        assert!(matches!(read_text(&other, 10), Err(Error::NotAFile { .. })), "{}", other.display());
        assert!(matches!(open_file(&other), Err(Error::NotAFile { .. })), "{}", other.display());
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    std::fs::write(path("b"), b"ab\xff").unwrap();
    assert!(matches!(read_text(&path("b"), 10), Err(Error::NotUtf8 { at: 2, .. })));
    std::fs::write(path("c"), "\u{feff}").unwrap();
    assert!(matches!(read_text(&path("c"), 10), Err(Error::Empty { .. })));
    assert!(matches!(read_text(&path("none"), 10), Err(Error::File { action: "read", .. })));
}

#[test]
fn stored_steps_are_found_again_and_a_changed_digit_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let open = || ResumeStore::open(dir.path());
    let store = open().unwrap();
    assert_eq!((store.get("a").unwrap(), store.found()), (None, 0));
    store.put("a", "{\"loss\":1.25}").unwrap();
    store.put("b", "2").unwrap();
    store.put("b", "3").unwrap();
    let store = open().unwrap();
    assert_eq!(
        (store.get("a").unwrap().as_deref(), store.get("b").unwrap().as_deref(), store.found()),
        (Some("{\"loss\":1.25}"), Some("3"), 2)
    );
    let folder = dir.path().join(UNFINISHED);
    let file =
        std::fs::read_dir(&folder).unwrap().flatten().map(|e| e.path()).find(|p| std::fs::read_to_string(p).unwrap().contains("1.25"));
    let file = file.unwrap();
    let whole = std::fs::read_to_string(&file).unwrap();
    for changed in [whole.replace("1.25", "1.26"), whole.replace("\"name\":\"a\"", "\"name\":\"c\""), whole[..20].to_owned(), String::new()]
    {
        std::fs::write(&file, &changed).unwrap();
        assert!(matches!(open(), Err(Error::Step { .. })), "{changed}");
        assert!(store.get("a").is_err() && store.put("a", "1").is_err());
        store.clear("");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), changed, "it is left alone");
        store.put("b", "3").unwrap();
    }
    std::fs::write(&file, whole).unwrap();
    std::fs::write(folder.join("notes.txt"), "mine").unwrap();
    std::fs::write(folder.join(names::part(5)), "half").unwrap();
    store.put("other step", "4").unwrap();
    open().unwrap().clear("other");
    assert_eq!((store.get("other step").unwrap(), store.get("a").unwrap().is_some()), (None, true), "steps of other runs stay");
    open().unwrap().clear("");
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"], "foreign files stay");
    std::fs::remove_file(folder.join("notes.txt")).unwrap();
    open().unwrap().clear("");
    assert!(!folder.exists());
}

#[test]
fn temporary_files_of_other_running_processes_stay() {
    let dir = tempfile::tempdir().unwrap();
    let names = [names::part(1), names::part(2), "mine.part".to_owned()];
    for (name, hours) in names.iter().zip([1, 30, 30]) {
        let file = std::fs::File::create(dir.path().join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
    }
    let left = || names.each_ref().map(|name| dir.path().join(name).exists());
    remove_abandoned(dir.path(), Duration::from_secs(24 * 3600));
    assert_eq!(left(), [true, false, true]);
    remove_parts(dir.path());
    assert_eq!(left(), [false, false, true]);
}

#[test]
fn limits_name_the_option_and_the_limit() {
    assert!(limits::check_texts(16, 256).is_ok());
    for (texts, tokens, words) in [
        (16, 1_000_000_000, "--tokens = 1000000000 is above the limit of 1048576 tokens"),
        (1_000_000_000, 256, "--texts = 1000000000 is above the limit of 10000 texts"),
        (10_000, 1 << 20, "--texts times --tokens = 10485760000 is above the limit of 16777216 tokens in all texts"),
    ] {
        let error = limits::check_texts(texts, tokens).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
    for (texts, tokens, name) in [(0, 256, "--texts"), (16, 0, "--tokens")] {
        let error = limits::check_texts(texts, tokens).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name} = 0 ")), "{error}");
    }
}

#[test]
fn words_are_quoted_for_a_shell() {
    for (word, quoted) in [("a/b-1.csv", "a/b-1.csv"), ("", "''"), ("a b", "'a b'"), ("it's", "'it'\\''s'"), ("caf\u{e9}", "caf\u{e9}")] {
        assert_eq!(shell_quoted(word), quoted);
    }
}
