//! [`Kept`]: finished parts of a run that is not, in a folder of its own below the results, so that a kill costs one part and not all.

use crate::error::Result;
use regard_plot::{digest, remove_parts, write_atomic};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The folder, below that of the results. It goes when the run has ended.
pub const UNFINISHED: &str = ".regard-unfinished";

/// A part: its whole name, so that two names with one file name are no danger, and what it came to.
#[derive(Serialize, Deserialize)]
struct Part {
    name: String,
    result: String,
}

/// Parts of a run.
#[derive(Debug, Clone)]
pub struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// Below a folder of results; nothing is written yet.
    pub fn below(results: &Path) -> Self {
        Self { folder: results.join(UNFINISHED) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}.json", digest(name.as_bytes())))
    }

    /// A part of that name, if it was kept whole.
    pub fn get(&self, name: &str) -> Option<String> {
        let part: Part = serde_json::from_slice(&std::fs::read(self.file(name)).ok()?).ok()?;
        (part.name == name).then_some(part.result)
    }

    /// Keep a part.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, name: &str, result: &str) -> Result<()> {
        let failed = |source| regard_plot::Error::File { action: "write", path: self.folder.clone(), source };
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        let part = Part { name: name.to_owned(), result: result.to_owned() };
        Ok(write_atomic(&self.file(name), &serde_json::to_vec(&part).expect("two texts are JSON"))?)
    }

    /// How many parts there are.
    pub fn count(&self) -> usize {
        self.ours().count()
    }

    /// Files that have a name as [`Kept::put`] gives it, and a part in them.
    fn ours(&self) -> impl Iterator<Item = PathBuf> {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        files.filter(|path| {
            let part: Option<Part> = std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            part.is_some_and(|part| path.file_name() == Path::new(&format!("{}.json", digest(part.name.as_bytes()))).file_name())
        })
    }

    /// The run has ended: remove its parts, and the folder if nothing else is in it.
    pub fn clear(&self) {
        for path in self.ours() {
            let _ = std::fs::remove_file(path);
        }
        remove_parts(&self.folder);
        let _ = std::fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_again_and_go_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::below(dir.path());
        assert_eq!(kept.get("a"), None);
        kept.put("a", "1").unwrap();
        kept.put("b", "2").unwrap();
        assert_eq!((kept.get("a").as_deref(), kept.get("b").as_deref(), kept.count()), (Some("1"), Some("2"), 2));
        // Half a file is none.
        let file = kept.file("b");
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(kept.get("b"), None);
        kept.put("b", "3").unwrap();
        std::fs::write(kept.folder.join("notes.txt"), "mine").unwrap();
        // A kill in the middle of a write leaves this.
        let half = kept.folder.join(".regard-Ab12Cd.part");
        std::fs::write(&half, "half").unwrap();
        kept.clear();
        assert!(!half.exists(), "nothing half-written stays");
        assert_eq!((kept.count(), kept.get("a")), (0, None));
        assert!(kept.folder.join("notes.txt").exists(), "what is not ours stays");
    }
}
