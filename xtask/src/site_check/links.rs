//! Links of the site's documents: each leads to a file of the site.

use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Values of `href` and `src` in HTML.
fn addresses(html: &str) -> impl Iterator<Item = &str> {
    [" href=\"", " src=\""].into_iter().flat_map(|start| html.split(start).skip(1).filter_map(|rest| rest.split('"').next()))
}

/// The file that a link of the document `from` leads to; none for other machines, data and places of the same document.
fn target(from: &str, address: &str) -> Option<String> {
    let path = address.split(['#', '?']).next().unwrap_or_default();
    let foreign = ["http:", "https:", "mailto:", "data:", "javascript:"].iter().any(|scheme| path.starts_with(scheme));
    if path.is_empty() || foreign {
        return None;
    }
    let mut at = PathBuf::new();
    for part in Path::new(from).parent().unwrap_or(Path::new("")).join(path).components() {
        match part {
            Component::ParentDir => {
                at.pop();
            }
            Component::Normal(name) => at.push(name),
            _ => {}
        }
    }
    let file = at.to_string_lossy().into_owned();
    Some(if path.ends_with('/') || file.is_empty() { format!("{file}/index.html").trim_start_matches('/').to_owned() } else { file })
}

/// Fails with every link of the folder's documents that leads nowhere; counts the others.
pub(super) fn check(folder: &Path) -> Result<usize> {
    let list = std::fs::read(folder.join("files.json")).context("cannot read the list of files")?;
    let files: Vec<Value> = serde_json::from_slice(&list)?;
    let (mut checked, mut dead) = (0, Vec::new());
    for name in files.iter().filter_map(Value::as_str).filter(|name| name.ends_with(".html")) {
        let html = std::fs::read_to_string(folder.join(name)).with_context(|| format!("cannot read {name}"))?;
        for address in addresses(&html) {
            if let Some(file) = target(name, address) {
                checked += 1;
                if !folder.join(&file).is_file() {
                    dead.push(format!("{name}: {address}"));
                }
            }
        }
    }
    ensure!(dead.is_empty(), "links that lead nowhere: {dead:#?}");
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative_to_their_document() {
        assert_eq!(target("guides/rust.html", "../index.html#a").as_deref(), Some("index.html"));
        assert_eq!(target("guides/rust.html", "page.png").as_deref(), Some("guides/page.png"));
        assert_eq!(target("index.html", "guides/").as_deref(), Some("guides/index.html"));
        assert_eq!(target("index.html", "#here"), None);
        assert_eq!(target("index.html", "https://example.org/x"), None);
        assert_eq!(addresses("<a href=\"x\"><img alt=\"\" src=\"y\">").collect::<Vec<_>>(), ["x", "y"]);
    }

    #[test]
    fn a_dead_link_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("files.json"), "[\"a.html\"]").expect("written");
        std::fs::write(folder.path().join("a.html"), "<a href=\"a.html\"></a><a href=\"b.html\"></a>").expect("written");
        assert!(check(folder.path()).expect_err("b.html is not there").to_string().contains("a.html: b.html"));
        std::fs::write(folder.path().join("b.html"), "").expect("written");
        assert_eq!(check(folder.path()).expect("both are there"), 2);
    }
}
