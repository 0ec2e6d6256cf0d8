//! Draws shared among several machines: each makes a part, and the parts put together give the bytes of one run.
//!
//! Every draw is a function of its number, so any machine can make any of them. A shard is a file with what was measured of its draws, in
//! order, and with all that says what it belongs to; merging runs the experiment again, with the draws read instead of made. Nothing else
//! is shared: no network, any scheduler.
//!
//! ```text
//! sweep.3-of-64.shard     regard shard 2 \n  SHA-256 of all that follows \n  {"experiment", "words", "version", "part", "parts",
//! "cells": [...]} \n  f64, little-endian
//! ```

use crate::error::{Error, Result};
use crate::experiment::Progress;
use crate::statistics::cell::{Cell, LISTS, Measured};
use regard_files::{Output, digest, open_file};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const MAGIC: &str = "regard shard 2\n";
/// Prefix of every version.
const ANY_MAGIC: &str = "regard shard ";
/// Magic line with the program's version: other versions may draw other numbers.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Upper bound of a file's size in bytes.
const MOST_BYTES: u64 = 8 << 30;
/// Upper bound of the number of parts.
pub const MOST: usize = 100_000;

/// Source of a cell's draws when several machines share them.
pub trait Share: Sync {
    /// Measurements of a cell's draws; `make` computes a range of them.
    ///
    /// # Errors
    /// Errors of `make`, and missing draws.
    fn draws(&self, cell: &Cell, make: &dyn Fn(Range<usize>) -> Result<[Measured; 2]>) -> Result<[Measured; 2]>;
}

/// One part of many, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Index.
    pub part: usize,
    /// Number of parts.
    pub parts: usize,
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("{text:?} is no part; give the number of the part and of all, as in 3/64");
        let (part, parts) = text.split_once('/').ok_or_else(wrong)?;
        let (part, parts) = (part.trim().parse().map_err(|_| wrong())?, parts.trim().parse().map_err(|_| wrong())?);
        if part < 1 || part > parts || parts > MOST {
            return Err(format!("part {part} of {parts} is not possible: parts are counted from 1, and there are at most {MOST}"));
        }
        Ok(Self { part, parts })
    }
}

impl Part {
    /// Its range of the draws.
    fn range(self, draws: usize) -> Range<usize> {
        let at = |part: usize| (draws as u128 * part as u128 / self.parts as u128) as usize;
        at(self.part - 1)..at(self.part)
    }
}

/// Header of a shard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    experiment: String,
    /// Arguments of the command after the experiment's name.
    words: Vec<String>,
    version: String,
    #[serde(flatten)]
    part: Part,
    cells: Vec<CellOfShard>,
    /// Of the header and the numbers; it stands before them.
    #[serde(skip)]
    sha256: String,
}

/// Draws of a cell: how many numbers each list has, unscaled and scaled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CellOfShard {
    cell: String,
    draws: Range<usize>,
    lens: [[usize; LISTS]; 2],
}

fn refused(path: &Path, reason: impl Into<String>) -> Error {
    Error::Shard { path: path.to_owned(), reason: reason.into() }
}

/// Draws of a cell, and what they came to without and with the scale.
type Draws = (Range<usize>, [Measured; 2]);

/// Computes one part and records its measurements.
pub struct Maker<'p> {
    part: Part,
    progress: &'p dyn Progress,
    kept: Mutex<BTreeMap<String, Draws>>,
}

impl std::fmt::Debug for Maker<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Maker({:?})", self.part)
    }
}

impl<'p> Maker<'p> {
    /// A part of a run, with progress.
    pub fn new(part: Part, progress: &'p dyn Progress) -> Self {
        Self { part, progress, kept: Mutex::default() }
    }

    /// The file of what was made.
    ///
    /// # Errors
    /// When the experiment shares no draws.
    pub fn file(self, experiment: &str, words: &[String]) -> Result<(String, Vec<u8>)> {
        let kept = self.kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            return Err(no_draws(experiment));
        }
        let (mut cells, mut numbers) = (Vec::new(), Vec::new());
        for (cell, (draws, mut both)) in kept {
            let lens = both.each_ref().map(Measured::lens);
            for list in both.iter_mut().flat_map(Measured::lists) {
                numbers.extend(list.iter().flat_map(|x| x.to_le_bytes()));
            }
            cells.push(CellOfShard { cell, draws, lens });
        }
        let (experiment_of, words, version) = (experiment.to_owned(), words.to_vec(), VERSION.to_owned());
        let header = Header { experiment: experiment_of, words, version, part: self.part, cells, sha256: String::new() };
        let mut body = serde_json::to_vec(&header).map_err(|e| Error::Arguments { reason: e.to_string() })?;
        body.push(b'\n');
        body.extend(numbers);
        let mut bytes = format!("{MAGIC}{}\n", digest(&body)).into_bytes();
        bytes.extend(body);
        Ok((file_name(experiment, self.part), bytes))
    }
}

/// An experiment that is not made of draws.
pub fn no_draws(experiment: &str) -> Error {
    Error::Arguments { reason: format!("{experiment} has no draws that could be shared: run it whole") }
}

/// File name of a part.
pub fn file_name(experiment: &str, Part { part, parts }: Part) -> String {
    format!("{experiment}.{part}-of-{parts}.shard")
}

impl Share for Maker<'_> {
    fn draws(&self, cell: &Cell, make: &dyn Fn(Range<usize>) -> Result<[Measured; 2]>) -> Result<[Measured; 2]> {
        let own = self.part.range(cell.seeds);
        let made = make(own.clone())?;
        // The rest of the run needs measurements; its tables are discarded.
        let shown = if own.len() < 2 { make(0..cell.seeds.min(2))? } else { made.clone() };
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(cell.name(), (own, made));
        Ok(shown)
    }
}

impl Progress for Maker<'_> {
    fn expect(&self, steps: u64) {
        self.progress.expect(steps / self.part.parts as u64);
    }

    fn advance(&self, steps: u64) {
        self.progress.advance(steps);
    }

    fn share(&self) -> Option<&dyn Share> {
        Some(self)
    }
}

/// All parts of a run.
#[derive(Debug)]
pub struct Merged {
    /// Which experiment.
    pub experiment: String,
    /// Arguments of its command.
    pub words: Vec<String>,
    cells: BTreeMap<String, (usize, [Measured; 2])>,
}

/// The bytes of a regular file that begins as a shard does.
fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    let unreadable = |e: std::io::Error| refused(path, e.to_string());
    let mut file = open_file(path)?;
    let len = file.metadata().map_err(unreadable)?.len();
    if len > MOST_BYTES {
        return Err(refused(path, format!("it has {len} bytes, more than a shard can have: share the draws out to more parts")));
    }
    let mut bytes = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes != MAGIC.as_bytes() {
        let old = bytes.starts_with(ANY_MAGIC.as_bytes());
        return Err(refused(path, if old { "another version of regard made it: make it again" } else { "it is no shard of regard" }));
    }
    bytes.clear();
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn read(path: &Path) -> Result<(Header, Vec<f64>)> {
    let bytes = bytes_of(path)?;
    let damaged = |what: &str| refused(path, format!("it is damaged ({what}): make it again"));
    let line = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("its end is missing"));
    let (said, body) = bytes.split_at(line(&bytes)?);
    let (sha256, body) = (digest(&body[1..]), &body[1..]);
    if said != sha256.as_bytes() {
        return Err(damaged("it does not have its hash"));
    }
    let end = line(body)?;
    let mut header: Header = serde_json::from_slice(&body[..end]).map_err(|e| damaged(&e.to_string()))?;
    header.sha256 = sha256;
    if header.version != VERSION {
        let reason = format!("version {} of regard made it, and this is {VERSION}: make it again, or merge with that one", header.version);
        return Err(refused(path, reason));
    }
    let Part { part, parts } = header.part;
    if part < 1 || part > parts || parts > MOST {
        return Err(damaged(&format!("there is no part {part} of {parts}")));
    }
    let numbers = &body[end + 1..];
    let wanted = header.cells.iter().flat_map(|cell| cell.lens.iter().flatten()).try_fold(0usize, |sum, len| sum.checked_add(*len));
    if wanted.and_then(|wanted| wanted.checked_mul(8)) != Some(numbers.len()) {
        return Err(damaged("it has another number of numbers than it says"));
    }
    let (numbers, _) = numbers.as_chunks::<8>();
    Ok((header, numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()))
}

/// Whether a file is this part of this run, and whole.
pub fn is_of(path: &Path, experiment: &str, words: &[String], part: Part) -> bool {
    read(path).is_ok_and(|(h, _)| (h.experiment.as_str(), h.words.as_slice(), h.part) == (experiment, words, part))
}

/// The destination of a part: nothing exists there, or a shard, which may be made again.
///
/// # Errors
/// When it is anything else.
pub fn reserve(path: &Path) -> Result<Output> {
    Ok(Output::reserve_beginning(path, ANY_MAGIC.as_bytes())?)
}

impl Merged {
    /// Read the files; each part must be there, in any order, and may be there twice.
    ///
    /// # Errors
    /// When one is damaged, belongs to another run, differs from its double, or is missing: it is named.
    pub fn read(files: &[PathBuf]) -> Result<Self> {
        let mut parts: BTreeMap<usize, (Header, PathBuf)> = BTreeMap::new();
        let mut numbers: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut first: Option<(Header, PathBuf)> = None;
        for path in files {
            let (header, read) = read(path)?;
            let (own, own_path) = first.get_or_insert_with(|| (header.clone(), path.clone()));
            let same = |h: &Header| (h.experiment.clone(), h.words.clone(), h.version.clone(), h.part.parts);
            if same(&header) != same(own) {
                return Err(refused(path, format!("it belongs to another run than {}", own_path.display())));
            }
            if let Some((before, other)) = parts.get(&header.part.part) {
                if *before != header {
                    return Err(refused(path, format!("it differs from {}, which is the same part", other.display())));
                }
                continue;
            }
            numbers.insert(header.part.part, read);
            parts.insert(header.part.part, (header, path.clone()));
        }
        let Some((first, _)) = first else {
            return Err(Error::Arguments { reason: "there are no shards to merge".to_owned() });
        };
        let missing: Vec<String> =
            (1..=first.part.parts).filter(|part| !parts.contains_key(part)).map(|part| part.to_string()).take(20).collect();
        if !missing.is_empty() {
            let (parts, experiment) = (first.part.parts, &first.experiment);
            let reason = format!(
                "part {} of {parts} of `regard lab {experiment}` is missing; run the command of the others with --shard {}/{parts}",
                missing.join(", "),
                missing[0]
            );
            return Err(Error::Arguments { reason });
        }
        let mut cells: BTreeMap<String, (usize, [Measured; 2])> = BTreeMap::new();
        for (part, (header, path)) in parts {
            let mut rest = numbers[&part].as_slice();
            for CellOfShard { cell, draws, lens } in header.cells {
                let (end, both) = cells.entry(cell).or_default();
                if draws.start != *end {
                    return Err(refused(&path, "its draws do not follow those of the part before"));
                }
                *end = draws.end;
                for (all, lens) in both.iter_mut().zip(lens) {
                    for (list, len) in all.lists().into_iter().zip(lens) {
                        let (own, later) = rest.split_at(len);
                        list.extend_from_slice(own);
                        rest = later;
                    }
                }
            }
        }
        Ok(Self { experiment: first.experiment, words: first.words, cells })
    }
}

impl Share for Merged {
    fn draws(&self, cell: &Cell, _: &dyn Fn(Range<usize>) -> Result<[Measured; 2]>) -> Result<[Measured; 2]> {
        match self.cells.get(&cell.name()) {
            Some((draws, both)) if *draws == cell.seeds => Ok(both.clone()),
            _ => Err(Error::Arguments { reason: format!("the shards have no draws of {}: they are of another version", cell.name()) }),
        }
    }
}

impl Progress for Merged {
    fn expect(&self, _: u64) {}
    fn advance(&self, _: u64) {}

    fn share(&self) -> Option<&dyn Share> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_draws_once() {
        for draws in [0, 1, 5, 63, 64, 65, 1_000_000] {
            let mut end = 0;
            for part in 1..=64 {
                let own = Part { part, parts: 64 }.range(draws);
                assert_eq!(own.start, end);
                end = own.end;
            }
            assert_eq!(end, draws);
        }
        for wrong in ["", "3", "0/4", "5/4", "x/4", "1/0", "1/1000000", "-1/3"] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong}");
        }
        assert_eq!("3/64".parse::<Part>(), Ok(Part { part: 3, parts: 64 }));
    }
    /// Hand-made files with a valid hash.
    #[test]
    fn parts_that_cannot_be_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.shard");
        let header = |version: &str, part: usize, parts: usize| {
            let part = Part { part, parts };
            Header {
                experiment: "sweep".into(),
                words: Vec::new(),
                version: version.into(),
                part,
                cells: Vec::new(),
                sha256: String::new(),
            }
        };
        let merged = |header: &Header| {
            let mut body = serde_json::to_vec(header).unwrap();
            body.push(b'\n');
            std::fs::write(&path, [format!("{MAGIC}{}\n", digest(&body)).as_bytes(), &body].concat()).unwrap();
            Merged::read(std::slice::from_ref(&path)).map_err(|e| e.to_string())
        };
        assert!(merged(&header(VERSION, 1, 1)).is_ok());
        assert!(merged(&header("9.9", 1, 1)).unwrap_err().contains("version 9.9"));
        for (part, parts) in [(0, 0), (0, 1), (2, 1), (1, usize::MAX)] {
            assert!(merged(&header(VERSION, part, parts)).unwrap_err().contains("there is no part"));
        }
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(MOST_BYTES + 1).unwrap();
        assert!(Merged::read(&[path]).unwrap_err().to_string().contains("more than a shard can have"));
    }
}
