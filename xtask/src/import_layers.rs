//! Imports of a crate point one way: its modules are listed lowest first, and each uses only earlier rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::root;

/// The layers of a crate, lowest first: `layers.txt` has a line `[crate]`, then one line per row of modules. Modules of one row do not
/// use each other, except those joined by `+`, which are one group.
const LAYERS: &str = include_str!("layers.txt");

type Rows = Vec<Vec<String>>;

fn layers() -> BTreeMap<String, Rows> {
    let mut crates: BTreeMap<String, Rows> = BTreeMap::new();
    let mut current = String::new();
    for line in LAYERS.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => name.clone_into(&mut current),
            None => crates.entry(current.clone()).or_default().push(line.split_whitespace().map(str::to_owned).collect()),
        }
    }
    crates
}

/// Every import of a crate that points upwards or sideways.
fn wrong_imports(name: &str, rows: &Rows) -> Result<Vec<String>> {
    let source = root().join("crates").join(name).join("src");
    let has = |group: &String, module: &str| group.split('+').any(|m| m == module);
    let height = |module: &str| rows.iter().position(|row| row.iter().any(|group| has(group, module)));
    let together = |a: &str, b: &str| rows.iter().flatten().any(|group| has(group, a) && has(group, b));
    let mut wrong = Vec::new();
    for (module, file) in modules(&source)? {
        let Some(own) = height(&module) else { continue };
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for used in imports(&text).into_iter().filter(|used| *used != module) {
            if height(&used).is_some_and(|other| other >= own) && !together(&module, &used) {
                wrong.push(format!("{} uses {used}", file.strip_prefix(&source).unwrap_or(&file).display()));
            }
        }
    }
    Ok(wrong)
}

/// Top-level module and path of every source file but `lib.rs`.
fn modules(source: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in source.read_dir().with_context(|| format!("cannot list {}", source.display()))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            let mut files = Vec::new();
            collect(&path, &mut files)?;
            found.extend(files.into_iter().map(|file| (name.clone(), file)));
        } else if name != "lib" && path.extension().is_some_and(|extension| extension == "rs") {
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in folder.read_dir()? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Modules of the crate that the code names; comments and unit tests may name any.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod").next().unwrap_or_default();
    let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    code.flat_map(|line| line.split("crate::").skip(1).map(name).collect::<Vec<_>>()).collect()
}

/// Fails with every wrong import of every listed crate.
pub(crate) fn check() -> Result<()> {
    let mut wrong = Vec::new();
    for (name, rows) in layers() {
        wrong.extend(wrong_imports(&name, &rows)?.into_iter().map(|import| format!("{name}: {import}")));
    }
    ensure!(wrong.is_empty(), "imports that do not point downwards:\n{}", wrong.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn code_imports_and_comments_and_tests_do_not() {
        let text = "//! crate::api\nuse crate::mask::Mask;\nlet x = crate::bias::at(crate::plan::y);\n    // \
             crate::tile\n#[cfg(test)]\nmod tests {\n use crate::forward::x;\n}\n";
        assert_eq!(super::imports(text).into_iter().collect::<Vec<_>>(), ["bias", "mask", "plan"]);
    }

    #[test]
    fn an_import_that_points_upwards_is_found() {
        let rows = |text: &[&str]| text.iter().map(|row| row.split(' ').map(str::to_owned).collect()).collect::<super::Rows>();
        let upside_down = rows(&["report judging"]);
        let wrong = super::wrong_imports("regard-lab", &upside_down).unwrap();
        assert!(wrong.iter().any(|line| line == "report.rs uses judging"), "{wrong:?}");
        assert!(super::wrong_imports("regard-lab", &rows(&["report+judging"])).unwrap().is_empty());
    }

    #[test]
    fn imports_point_one_way() {
        super::check().unwrap();
    }
}
