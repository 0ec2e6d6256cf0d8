//! Checks of the repository's text: words that must not come back, line lengths, paths named in the documentation, public functions with
//! too many arguments, and files that are written past the file layer.
//!
//! `words.txt` has a phrase per line; `exempt.txt` has lines `check path`, for files that are not mended yet. Both are data.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::command::root;

const WORDS: &str = include_str!("words.txt");
const EXEMPT: &str = include_str!("exempt.txt");
/// Columns of a line of Markdown.
const MARKDOWN_WIDTH: usize = 120;
/// Arguments of a public function, `self` not counted.
const ARGUMENTS: usize = 7;

/// A finding: file, line from 1, and what is wrong.
type Finding = (String, usize, String);

/// Every file with one of the endings, relative to the root; generated, stored and foreign files are left out.
fn files(endings: &[&str]) -> Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    for top in ["crates", "python", "xtask", "docs", "bench", "."] {
        collect(&root().join(top), top != ".", &mut paths)?;
    }
    let mut found = Vec::new();
    for path in paths {
        let name = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        let ends = path.extension().is_some_and(|extension| endings.iter().any(|ending| extension == *ending));
        let own = ["xtask/src/words.txt", "xtask/src/text_checks.rs"].contains(&name.as_str());
        if ends && !own && !name.contains("/stored/") && !name.contains("/golden/") && !name.contains("/assets/") {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {name}"))?;
            found.push((name, text));
        }
    }
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, deep: bool, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in folder.read_dir().with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() {
            paths.push(path);
        } else if deep && path.is_dir() && !["target", "node_modules", ".venv", "fuzz"].contains(&name.as_str()) && !name.starts_with('.') {
            collect(&path, deep, paths)?;
        }
    }
    Ok(())
}

/// Whether a line has the phrase as whole words.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    line.match_indices(phrase).any(|(at, _)| boundary(line[..at].chars().next_back()) && boundary(line[at + phrase.len()..].chars().next()))
}

/// Phrases that must not come back. A phrase that begins with a capital letter is a name, and is compared as it is.
fn forbidden_words(files: &[(String, String)]) -> Vec<Finding> {
    let phrases: Vec<&str> = WORDS.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let mut found = Vec::new();
    for (name, text) in files {
        for (at, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for phrase in &phrases {
                let is_name = phrase.starts_with(|c: char| c.is_uppercase());
                if has_phrase(if is_name { line } else { &lower }, phrase) {
                    found.push((name.clone(), at + 1, format!("\"{phrase}\"")));
                }
            }
        }
    }
    found
}

fn long_lines(files: &[(String, String)], width: usize) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, text) in files {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| line.chars().count() > width) {
            found.push((name.clone(), at + 1, format!("{} columns", line.chars().count())));
        }
    }
    found
}

fn rust_width() -> Result<usize> {
    let text = fs::read_to_string(root().join("rustfmt.toml"))?;
    let value = text.lines().find_map(|line| line.strip_prefix("max_width")).context("rustfmt.toml has no max_width")?;
    Ok(value.trim_start_matches([' ', '=']).trim().parse()?)
}

/// Paths that a text names: link targets, and words in backticks that begin with a folder of the repository.
fn named_paths(text: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for part in text.split("](").skip(1) {
        let target = part.split(')').next().unwrap_or_default().split('#').next().unwrap_or_default();
        if !target.is_empty() && !target.contains("://") && !target.contains(char::is_whitespace) {
            paths.insert(target.to_owned());
        }
    }
    for word in text.split(|c: char| c.is_whitespace() || "`(),;".contains(c)) {
        let word = word.split('#').next().unwrap_or_default().trim_end_matches(['.', ':', '/']);
        let folder = ["crates/", "docs/", "xtask/", "python/", "bench/", "notebooks/"].iter().any(|folder| word.starts_with(folder));
        if folder && !word.contains(['<', '*', '{', '|', '$']) && !["..", "NAME", "FILE"].iter().any(|part| word.contains(part)) {
            paths.insert(word.to_owned());
        }
    }
    paths
}

fn missing_paths(files: &[(String, String)]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, text) in
        files.iter().filter(|(name, _)| !name.starts_with("crates/") && !name.starts_with("python/") && name != "CHANGELOG.md")
    {
        let folder = root().join(name).parent().unwrap_or(Path::new("")).to_owned();
        for path in named_paths(text) {
            if !root().join(&path).exists() && !folder.join(&path).exists() {
                let line = text.lines().position(|line| line.contains(&path)).unwrap_or(0);
                found.push((name.clone(), line + 1, format!("no such path: {path}")));
            }
        }
    }
    found
}

/// The number of arguments of a function, from the text after its opening bracket; `self` is not counted.
fn arguments(rest: &str) -> usize {
    let (mut depth, mut list, mut previous) = (0i32, String::new(), ' ');
    for c in rest.chars() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            '>' if previous == '-' => {}
            ')' | ']' | '}' | '>' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            break;
        }
        list.push(if depth > 0 && c == ',' { ' ' } else { c });
        previous = c;
    }
    list.split(',')
        .map(str::trim)
        .filter(|argument| !argument.is_empty() && !["self", "&self", "&mut self", "mut self"].contains(argument))
        .count()
}

fn many_arguments(files: &[(String, String)]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, text) in files.iter().filter(|(name, _)| name.starts_with("crates/") && name.contains("/src/")) {
        for (at, _) in text.match_indices("pub fn ") {
            let Some(open) = text[at..].find('(') else { continue };
            let count = arguments(&text[at + open + 1..]);
            if count > ARGUMENTS {
                let line = text[..at].lines().count().max(1);
                found.push((name.clone(), line, format!("{count} arguments")));
            }
        }
    }
    found
}

/// Calls that write, move or replace files. Only the file layer makes them: it knows whose files are there, and follows no links.
const WRITES: [&str; 9] =
    ["fs::write(", "fs::rename(", "fs::copy(", "fs::hard_link(", "fs::remove_", "File::create", "OpenOptions", ".write(true)", "symlink("];

/// Calls of [`WRITES`] outside of tests.
fn direct_writes(files: &[(String, String)]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, text) in files.iter().filter(|(name, _)| name.contains("/src/") && !name.starts_with("xtask/")) {
        let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (at, line) in code.lines().enumerate() {
            if let Some(call) = WRITES.iter().find(|call| line.contains(**call)) {
                found.push((name.clone(), at + 1, format!("{call} outside of crates/regard-files")));
            }
        }
    }
    found
}

/// Tests in the sources of a library that Cargo does not test: they would never be compiled.
fn tests_never_run(files: &[(String, String)]) -> Vec<Finding> {
    let untested =
        |manifest: &str| manifest.split("\n[").any(|part| part.starts_with("lib]") && part.lines().any(|line| line == "test = false"));
    let mut found = Vec::new();
    for (manifest, _) in files.iter().filter(|(name, text)| name.ends_with("Cargo.toml") && untested(text)) {
        let sources = manifest.replace("Cargo.toml", "src/");
        for (name, text) in files.iter().filter(|(name, _)| name.starts_with(&sources)) {
            let lines = text.lines().enumerate().filter(|(_, line)| line.trim() == "#[test]");
            found.extend(lines.map(|(at, _)| (name.clone(), at + 1, format!("{manifest} has test = false"))));
        }
    }
    found
}

/// The findings of a check outside of the files that are exempt from it.
fn remaining(check: &str, findings: Vec<Finding>) -> Vec<String> {
    let exempt: Vec<&str> = EXEMPT.lines().filter_map(|line| line.strip_prefix(check)?.strip_prefix(' ')).map(str::trim).collect();
    let is_exempt = |name: &str| exempt.iter().any(|path| name == *path || path.ends_with('/') && name.starts_with(path));
    findings.into_iter().filter(|(name, ..)| !is_exempt(name)).map(|(name, line, what)| format!("{name}:{line}: {what}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_none(check: &str, findings: Vec<Finding>) {
        let all = findings.len();
        let left = remaining(check, findings);
        assert!(left.is_empty(), "{check}: {} findings of {all} in files that are not exempt\n{}", left.len(), left.join("\n"));
    }

    fn file(text: &str) -> Vec<(String, String)> {
        vec![("crates/x/src/a.rs".to_owned(), text.to_owned())]
    }

    #[test]
    fn checks_find_what_they_look_for() {
        assert_eq!(forbidden_words(&file("// Nobody waits.\n// anybody's\nlet nobody_x = 1;")).len(), 2);
        assert_eq!(long_lines(&file("abc\nabcd"), 3), [("crates/x/src/a.rs".to_owned(), 2, "4 columns".to_owned())]);
        let paths = named_paths("see [a](docs/a.md#x), `crates/regard/src` and crates/x/src/<name>/ or <https://x.org>");
        assert_eq!(paths.into_iter().collect::<Vec<_>>(), ["crates/regard/src", "docs/a.md"]);
        assert_eq!(missing_paths(&[("README.md".to_owned(), "`crates/regard/none.rs`".to_owned())]).len(), 1);
        assert_eq!(arguments("&self, a: [u8; 3], f: impl Fn(u8, u8) -> Vec<(u8, u8)>, b: &[(A, B)])"), 3);
        assert_eq!(many_arguments(&file("pub fn f(a: A, b: A, c: A, d: A, e: A, f: A, g: A, h: A) {}")).len(), 1);
        assert!(remaining("words", vec![("no/such/file.rs".to_owned(), 1, "x".to_owned())]).len() == 1);
    }

    #[test]
    fn files_are_written_by_the_file_layer() {
        assert_eq!(
            direct_writes(&file("fn f() {\n    std::fs::write(a, b)\n}\n\n#[cfg(test)]\nmod tests {\n    fs::rename(a, b)\n}")).len(),
            1
        );
        assert_none("writes", direct_writes(&files(&["rs"]).unwrap()));
    }

    #[test]
    fn every_test_is_compiled() {
        let package = |manifest: &str| {
            let source = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n}\n".to_owned();
            [("crates/x/Cargo.toml".to_owned(), manifest.to_owned()), ("crates/x/src/a.rs".to_owned(), source)]
        };
        assert_eq!(tests_never_run(&package("[package]\n\n[lib]\ntest = false\n\n[dependencies]\n")).len(), 1);
        assert_eq!(tests_never_run(&package("[package]\n\n[lib]\ndoctest = false\n\n[[bin]]\ntest = false\n")).len(), 0);
        assert_none("tests", tests_never_run(&files(&["rs", "toml"]).unwrap()));
    }

    #[test]
    fn old_words_do_not_come_back() {
        assert_none("words", forbidden_words(&files(&["rs", "md", "py", "pyi", "js", "toml"]).unwrap()));
    }

    #[test]
    fn lines_are_within_their_limits() {
        assert_none("markdown", long_lines(&files(&["md"]).unwrap(), MARKDOWN_WIDTH));
        assert_none("rust", long_lines(&files(&["rs"]).unwrap(), rust_width().unwrap()));
    }

    #[test]
    fn paths_named_in_the_documentation_exist() {
        assert_none("paths", missing_paths(&files(&["md"]).unwrap()));
    }

    #[test]
    fn public_functions_have_at_most_seven_arguments() {
        assert_none("arguments", many_arguments(&files(&["rs"]).unwrap()));
    }
}
