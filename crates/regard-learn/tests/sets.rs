//! Exercise sets of others: read from a folder, judged by their own programs.

mod common;

use common::{Judge, languages, said};
use regard_learn::exercise::Lang;
use regard_learn::judge::Status;
use regard_learn::sets;
use std::path::Path;

fn example() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/set"))
}

#[test]
fn answers_to_a_set_are_judged_and_its_mistakes_are_named() {
    if !languages().contains(&Lang::Python) {
        return;
    }
    let list = sets::load(example()).expect("a set");
    let exercise = list[0];
    assert_eq!((list.len(), exercise.number, exercise.name), (1, 1, "row_mean"));
    let judge = Judge::new();
    let check = |source: &str| judge.check(exercise, Lang::Python, source);
    assert_eq!(check(exercise.solution(Lang::Python)).status, Status::Pass);
    assert_eq!(check(exercise.stub(Lang::Python)).status, Status::Todo);
    // Another way to write each answer: right ones pass, wrong ones have the wrong answers' numbers.
    let right = "def row_mean(x, shift):\n    return [sum(float(y) for y in row) / len(row) + shift for row in x]\n";
    assert_eq!(check(right).status, Status::Pass);
    for (id, body) in [
        ("sum", "x @ [1.0] * 0"),
        ("sum", "(x * 1.0).sum(1) + shift"),
        ("no-shift", "x.sum(1) / x.shape[1]"),
        ("columns", "x.T.mean(1) + shift"),
    ] {
        let verdict = check(&format!("def row_mean(x, shift):\n    return {body}\n"));
        let named: Vec<&str> = verdict.diagnosis.iter().flat_map(|d| d.mistakes.iter().map(|m| m.id)).collect();
        assert_ne!(verdict.status, Status::Pass, "{body}");
        assert_eq!(named == [id], !body.contains("[1.0]"), "{body}: {}", said(&verdict));
    }
}

#[test]
fn what_is_not_a_set_is_refused_with_its_reason() {
    let refused = |change: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("01_row_mean");
        std::fs::create_dir_all(folder.join("wrong")).expect("a folder");
        for name in ["exercise.toml", "text.md", "stub.py", "solution.py", "wrong/sum.py", "wrong/columns.py", "wrong/no-shift.py"] {
            std::fs::copy(example().join("01_row_mean").join(name), folder.join(name)).expect("it can be copied");
        }
        change(&folder);
        sets::load(dir.path()).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let edit = |folder: &Path, old: &str, new: &str| {
        let path = folder.join("exercise.toml");
        let text = std::fs::read_to_string(&path).expect("it is there");
        assert!(text.contains(old), "{old}");
        std::fs::write(&path, text.replacen(old, new, 1)).expect("it can be written");
    };
    assert_eq!(refused(&|_| {}), "");
    type Change<'c> = (&'c str, &'c dyn Fn(&Path));
    let changes: [Change<'_>; 12] = [
        ("unknown field", &|f| edit(f, "title =", "titel =")),
        ("unknown dimension \"k\"", &|f| edit(f, "dims = [\"n\"] }]", "dims = [\"k\"] }]")),
        ("needs a size", &|f| edit(f, "sizes = [1, 1]", "sizes = [1]")),
        ("needs a size", &|f| edit(f, "sizes = [1, 1]", "sizes = [1, 0]")),
        ("has no", &|f| edit(f, "sum =", "sums =")),
        ("must be at most 4096", &|f| edit(f, "sizes = [1, 1]", "sizes = [1, 9223372036854775807]")),
        ("elements of x in the case \"one number\" is 16777216", &|f| edit(f, "sizes = [1, 1]", "sizes = [4096, 4096]")),
        ("elements of x in the case \"random\"", &|f| edit(f, "random = 6", "random = 6\nlargest = 4096")),
        ("random is 1001", &|f| edit(f, "random = 6", "random = 1001")),
        ("largest is 9223372036854775807", &|f| edit(f, "random = 6", "random = 6\nlargest = 9223372036854775807")),
        ("is not a set", &|f| std::fs::remove_file(f.join("exercise.toml")).expect("it is there")),
        ("solution.py", &|f| std::fs::remove_file(f.join("solution.py")).expect("it is there")),
    ];
    for (reason, change) in changes {
        let said = refused(change);
        assert!(said.contains(reason), "{reason}: {said}");
    }
}
