//! Where a text comes from, and reading it: UTF-8, not empty, and not without end.

use crate::error::{Error, Result};
use crate::stories;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// The longest text that is read, in bytes: a character token takes four times as much again.
pub const LONGEST_TEXT: u64 = 512 << 20;

/// Written by some editors before the first character; it is no part of the text.
const BYTE_ORDER_MARK: char = '\u{FEFF}';

/// Where a text comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextSource {
    /// Our own, of known entropy.
    Stories {
        /// How many.
        characters: usize,
        /// Which ones.
        seed: u64,
    },
    /// A file in UTF-8.
    File {
        /// Where it is.
        path: PathBuf,
    },
    /// What is piped in, in UTF-8.
    Stdin,
}

impl TextSource {
    /// A file's name as it is given on a command line: `-` is the standard input.
    pub fn named(path: PathBuf) -> Self {
        if path.as_os_str() == "-" { Self::Stdin } else { Self::File { path } }
    }

    /// The text, without a byte order mark.
    ///
    /// # Errors
    /// [`Error::Text`] when it cannot be read, is not UTF-8, empty, or longer than [`LONGEST_TEXT`].
    pub fn read(&self) -> Result<String> {
        let (name, opened): (String, std::io::Result<Box<dyn Read>>) = match self {
            Self::Stories { characters, seed } => return Ok(stories::write(*characters, *seed)),
            Self::File { path } => (path.display().to_string(), File::open(path).map(|file| Box::new(file) as Box<dyn Read>)),
            Self::Stdin => ("the standard input".to_owned(), Ok(Box::new(std::io::stdin()))),
        };
        let mut bytes = Vec::new();
        // A device may have no end: one byte more than is allowed tells.
        let read = opened.and_then(|file| file.take(LONGEST_TEXT + 1).read_to_end(&mut bytes));
        read.map_err(|e| Error::Text { problem: format!("cannot read {name}: {e}") })?;
        text_of(&name, bytes)
    }
}

fn text_of(name: &str, bytes: Vec<u8>) -> Result<String> {
    let refused = |reason: String| Error::Text { problem: format!("{name} {reason}") };
    if bytes.len() as u64 > LONGEST_TEXT {
        return Err(refused(format!("has more than {} MiB: give a shorter text", LONGEST_TEXT >> 20)));
    }
    let mut text = String::from_utf8(bytes).map_err(|e| {
        refused(format!("is not UTF-8: byte {} is no part of a character; convert it to UTF-8 first", e.utf8_error().valid_up_to()))
    })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }
    if text.is_empty() {
        return Err(refused("is empty: give a text to read".to_owned()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_mark_is_no_part_of_the_text() {
        assert_eq!(text_of("t", b"\xEF\xBB\xBFAnna".to_vec()).expect("a text"), "Anna");
        assert!(text_of("t", b"\xEF\xBB\xBF".to_vec()).expect_err("nothing else").to_string().contains("is empty"));
        // Only at the beginning.
        assert_eq!(text_of("t", "a\u{FEFF}".into()).expect("a text"), "a\u{FEFF}");
    }

    #[test]
    fn a_dash_is_the_standard_input() {
        assert_eq!(TextSource::named("-".into()), TextSource::Stdin);
        assert_eq!(TextSource::named("./-".into()), TextSource::File { path: "./-".into() });
    }
}
