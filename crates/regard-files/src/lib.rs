//! The file layer: every command reads and writes through this crate.
//!
//! - [`Folder`] records which files of a directory Regard wrote, by SHA-256, and refuses to replace any other file.
//! - [`Output`] writes one file outside such a folder; [`Staged`] is the temporary file behind both.
//! - [`ResumeStore`] holds the results of finished steps of an interrupted run.
//! - [`read_bytes`], [`read_text`] and [`open_file`] read regular files up to a limit.
//! - [`names`] lists every name that a command writes, [`limits`] every limit of an input.
#![forbid(unsafe_code)]

mod digest;
mod error;
mod folder;
pub mod limits;
pub mod names;
mod output;
mod read;
mod resume;
mod shell;
mod stamp;
mod write;

pub use digest::{Hasher, digest};
pub use error::{Error, Result};
pub use folder::{Folder, Recorded, recorded};
pub use names::{MANIFEST, UNFINISHED};
pub use output::{Output, is_sealed_html, seal_html};
pub use read::{open_file, read_bytes, read_text, text_from_bytes};
pub use resume::ResumeStore;
pub use shell::shell_quoted;
pub use stamp::{FolderLock, Stamp, check_target, lock_folder};
pub use write::{Staged, create_new, remove_abandoned, remove_parts};
