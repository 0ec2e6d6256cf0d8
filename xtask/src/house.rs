//! Which module of the library may use which: imports point one way.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::command::root;

/// The modules of `crates/regard/src`, lowest first. A module uses those before its own row; those of one row do not use each other.
const LAYERS: [&[&str]; 9] =
    [&["error"], &["arrays"], &["mask"], &["bias"], &["plan"], &["walk"], &["forward"], &["backward", "instruments"], &["entry"]];

/// Fails with every import that points upwards or sideways.
pub(crate) fn check() -> Result<()> {
    let source = root().join("crates/regard/src");
    let mut wrong = Vec::new();
    for (height, module, file) in modules(&source)? {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for used in imports(&text) {
            let below = LAYERS[..height].iter().any(|row| row.contains(&used.as_str()));
            if used != module && !below && LAYERS.iter().any(|row| row.contains(&used.as_str())) {
                wrong.push(format!("{} uses {used}", file.strip_prefix(&source).unwrap_or(&file).display()));
            }
        }
    }
    ensure!(wrong.is_empty(), "imports that do not point downwards: {}", wrong.join(", "));
    Ok(())
}

/// Layer, module and file of every source file but `lib.rs`.
fn modules(source: &Path) -> Result<Vec<(usize, &'static str, PathBuf)>> {
    let mut found = Vec::new();
    for (height, &module) in LAYERS.iter().enumerate().flat_map(|(height, row)| row.iter().map(move |module| (height, module))) {
        let folder = source.join(module);
        if folder.is_dir() {
            for entry in folder.read_dir()? {
                found.push((height, module, entry?.path()));
            }
        } else {
            found.push((height, module, source.join(module).with_extension("rs")));
        }
    }
    Ok(found)
}

/// Modules of the crate that code names; comments may name any.
fn imports(text: &str) -> BTreeSet<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    code.flat_map(|line| line.split("crate::").skip(1).map(name).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn code_imports_and_comments_do_not() {
        let text = "//! crate::entry\nuse crate::mask::Mask;\nlet x = crate::bias::at(crate::plan::y);\n    // crate::walk\n";
        assert_eq!(super::imports(text).into_iter().collect::<Vec<_>>(), ["bias", "mask", "plan"]);
    }

    #[test]
    fn the_library_has_no_cycle() {
        super::check().expect("imports point one way");
    }
}
