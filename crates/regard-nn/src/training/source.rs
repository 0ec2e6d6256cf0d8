//! The source of a training text.

use crate::error::Result;
use crate::stories;
use regard_files::limits::TEXT_BYTES;
use regard_files::read_text;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The source of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextSource {
    /// Generated stories, whose entropy is known.
    Stories {
        /// Their length.
        characters: usize,
        /// Seed of the generator.
        seed: u64,
    },
    /// A file in UTF-8.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// The standard input, in UTF-8.
    Stdin,
}

impl TextSource {
    /// A path from the command line: `-` is the standard input.
    pub fn named(path: PathBuf) -> Self {
        if path.as_os_str() == "-" { Self::Stdin } else { Self::File { path } }
    }

    /// The text, without a byte order mark.
    ///
    /// # Errors
    /// [`Error::Files`](crate::Error::Files) when it cannot be read, is not UTF-8, empty, or longer than [`TEXT_BYTES`].
    pub fn read(&self) -> Result<String> {
        match self {
            Self::Stories { characters, seed } => Ok(stories::write(*characters, *seed)),
            Self::File { path } => Ok(read_text(path, TEXT_BYTES.max)?),
            Self::Stdin => Ok(read_text(Path::new("-"), TEXT_BYTES.max)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_the_standard_input() {
        assert_eq!(TextSource::named("-".into()), TextSource::Stdin);
        assert_eq!(TextSource::named("./-".into()), TextSource::File { path: "./-".into() });
    }
}
