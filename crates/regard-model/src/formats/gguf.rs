//! GGUF, versions 2 and 3.
//!
//! ```text
//! "GGUF" version:u32 tensors:u64 settings:u64
//! settings   key:string type:u32 value                          string: length:u64 bytes; array: type:u32 length:u64 values
//! tensors    name:string dims:u32 dim:u64 ... type:u32 offset:u64    the fastest dimension first; offsets from the data's begin
//! padding to general.alignment (32), then the data
//! ```
//!
//! Settings stay in the file: an array is a range of its bytes until it is read.

use super::{Cursor, Kind, Place, Places, map, missing, one_file_archive};
use crate::error::{Error, Result};
use regard::MappedFile;
use regard_nn::tensors::{BlockKind, Source, Tensor};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A setting, or where it lies.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Integer(i64),
    Number(f64),
    Flag(bool),
    Text(Range<usize>),
    Array { kind: u32, count: usize, bytes: Range<usize> },
}

/// A mapped file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    bytes: MappedFile,
    settings: HashMap<String, Value>,
    places: Places,
}

/// Why a file was refused.
type Reason = String;

fn cut() -> Reason {
    "it ends in the middle of its header: it is cut short or damaged".to_owned()
}

fn string(cursor: &mut Cursor<'_>) -> std::result::Result<Range<usize>, Reason> {
    let len = usize::try_from(cursor.u64().ok_or_else(cut)?).map_err(|_| cut())?;
    let at = cursor.at;
    cursor.take(len).ok_or_else(cut)?;
    Ok(at..at + len)
}

fn text(bytes: &[u8], range: Range<usize>) -> std::result::Result<&str, Reason> {
    std::str::from_utf8(&bytes[range]).map_err(|_| "one of its names is not UTF-8".to_owned())
}

/// Bytes of a number of this type.
fn width(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

fn number(cursor: &mut Cursor<'_>, kind: u32) -> std::result::Result<Value, Reason> {
    let mut value = || {
        Some(match kind {
            0 => Value::Integer(i64::from(cursor.u8()?)),
            1 => Value::Integer(i64::from(cursor.u8()? as i8)),
            2 => Value::Integer(i64::from(u16::from_le_bytes(cursor.array()?))),
            3 => Value::Integer(i64::from(i16::from_le_bytes(cursor.array()?))),
            4 => Value::Integer(i64::from(cursor.u32()?)),
            5 => Value::Integer(i64::from(cursor.i32()?)),
            6 => Value::Number(f64::from(cursor.f32()?)),
            7 => Value::Flag(cursor.u8()? != 0),
            10 => Value::Integer(i64::try_from(cursor.u64()?).ok()?),
            11 => Value::Integer(i64::from_le_bytes(cursor.array()?)),
            12 => Value::Number(f64::from_le_bytes(cursor.array()?)),
            _ => return None,
        })
    };
    value().ok_or_else(cut)
}

fn value(cursor: &mut Cursor<'_>, kind: u32) -> std::result::Result<Value, Reason> {
    match kind {
        8 => string(cursor).map(Value::Text),
        9 => {
            let kind = cursor.u32().ok_or_else(cut)?;
            let count = usize::try_from(cursor.u64().ok_or_else(cut)?).map_err(|_| cut())?;
            let start = cursor.at;
            if kind == 8 {
                // Each takes eight bytes at least: a length beyond the file ends the loop early.
                for _ in 0..count {
                    string(cursor)?;
                }
            } else {
                let width = width(kind).ok_or_else(|| format!("it has an array of values of type {kind}, which is none of GGUF's"))?;
                cursor.take(count.checked_mul(width).ok_or_else(cut)?).ok_or_else(cut)?;
            }
            Ok(Value::Array { kind, count, bytes: start..cursor.at })
        }
        _ if width(kind).is_some() => number(cursor, kind),
        _ => Err(format!("it has a setting of type {kind}, which is none of GGUF's")),
    }
}

fn tensor_kind(number: u32) -> std::result::Result<Kind, Reason> {
    Ok(match number {
        0 => Kind::F32,
        1 => Kind::F16,
        2 => Kind::Blocks(BlockKind::Q4_0),
        3 => Kind::Blocks(BlockKind::Q4_1),
        6 => Kind::Blocks(BlockKind::Q5_0),
        7 => Kind::Blocks(BlockKind::Q5_1),
        8 => Kind::Blocks(BlockKind::Q8_0),
        10 => Kind::Blocks(BlockKind::Q2_K),
        11 => Kind::Blocks(BlockKind::Q3_K),
        12 => Kind::Blocks(BlockKind::Q4_K),
        13 => Kind::Blocks(BlockKind::Q5_K),
        14 => Kind::Blocks(BlockKind::Q6_K),
        20 => Kind::Blocks(BlockKind::IQ4_NL),
        23 => Kind::Blocks(BlockKind::IQ4_XS),
        28 => Kind::F64,
        30 => Kind::Bf16,
        other => {
            return Err(format!(
                "it has a tensor of GGML type {other}; F32, F16, BF16, F64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL and \
                    IQ4_XS can be run"
            ));
        }
    })
}

fn parse(bytes: &[u8]) -> std::result::Result<(HashMap<String, Value>, Vec<Place>), Reason> {
    /// More of either is no model.
    const MOST: u64 = 1 << 16;
    let mut cursor = Cursor::new(bytes);
    if cursor.take(4) != Some(b"GGUF") {
        return Err("it does not begin with GGUF".to_owned());
    }
    let version = cursor.u32().ok_or_else(cut)?;
    if !(2..=3).contains(&version) {
        return Err(format!("it has GGUF version {version}; 2 and 3 (little-endian) can be read"));
    }
    let (tensors, settings) = (cursor.u64().ok_or_else(cut)?, cursor.u64().ok_or_else(cut)?);
    if tensors > MOST || settings > MOST {
        return Err(format!("its header speaks of {tensors} tensors and {settings} settings: it is damaged"));
    }
    let mut values = HashMap::new();
    for _ in 0..settings {
        let key = string(&mut cursor)?;
        let kind = cursor.u32().ok_or_else(cut)?;
        let value = value(&mut cursor, kind)?;
        let key = text(bytes, key)?;
        if values.insert(key.to_owned(), value).is_some() {
            return Err(format!("its setting {key} is there twice"));
        }
    }
    let (mut places, mut names) = (Vec::new(), HashSet::new());
    for _ in 0..tensors {
        let name = string(&mut cursor)?;
        let name = text(bytes, name)?.to_owned();
        let dims = cursor.u32().ok_or_else(cut)?;
        if dims > 4 {
            return Err(format!("its tensor {name} has {dims} dimensions: it is damaged"));
        }
        let mut shape = Vec::new();
        for _ in 0..dims {
            shape.push(usize::try_from(cursor.u64().ok_or_else(cut)?).map_err(|_| cut())?);
        }
        shape.reverse();
        let kind = tensor_kind(cursor.u32().ok_or_else(cut)?)?;
        let offset = usize::try_from(cursor.u64().ok_or_else(cut)?).map_err(|_| cut())?;
        let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let len = count.and_then(|n| kind.bytes(n));
        let rows = shape.last().is_none_or(|row| kind.bytes(*row).is_some());
        let Some(len) = len.filter(|_| rows) else {
            return Err(format!("its tensor {name} of shape {shape:?} is no whole number of {} blocks", kind.name()));
        };
        let end = offset.checked_add(len).ok_or_else(cut)?;
        if !names.insert(name.clone()) {
            return Err(format!("its tensor {name} is there twice"));
        }
        places.push(Place { name, shape, kind, bytes: offset..end });
    }
    let alignment = match values.get("general.alignment") {
        None => 32,
        Some(Value::Integer(x)) if (1..=1 << 20).contains(x) => *x as usize,
        Some(other) => return Err(format!("its general.alignment is {other:?}")),
    };
    check_offsets(&places, alignment)?;
    let start = cursor.at.next_multiple_of(alignment);
    for place in &mut places {
        let range = place.bytes.start.checked_add(start).zip(place.bytes.end.checked_add(start));
        place.bytes = range
            .map(|(a, b)| a..b)
            .filter(|range| range.end <= bytes.len())
            .ok_or_else(|| format!("its tensor {} ends past the {} bytes of the file: the file is truncated", place.name, bytes.len()))?;
    }
    Ok((values, places))
}

/// Tensors begin at multiples of the alignment, and no two share bytes.
fn check_offsets(places: &[Place], alignment: usize) -> std::result::Result<(), Reason> {
    if let Some(place) = places.iter().find(|place| !place.bytes.start.is_multiple_of(alignment)) {
        return Err(format!("its tensor {} begins at byte {}, not at a multiple of {alignment}", place.name, place.bytes.start));
    }
    let mut in_order: Vec<&Place> = places.iter().filter(|place| !place.bytes.is_empty()).collect();
    in_order.sort_by_key(|place| place.bytes.start);
    match in_order.windows(2).find(|pair| pair[0].bytes.end > pair[1].bytes.start) {
        Some(pair) => Err(format!("its tensors {} and {} share bytes", pair[0].name, pair[1].name)),
        None => Ok(()),
    }
}

/// Read any bytes as a file would be: for tests that throw damaged ones at it.
#[doc(hidden)]
pub fn parses(bytes: &[u8]) -> bool {
    parse(bytes).is_ok()
}

impl Gguf {
    /// Map a file.
    ///
    /// # Errors
    /// When it cannot be read or is not a whole GGUF file.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = map(path)?;
        let (settings, places) = parse(bytes.as_ref()).map_err(|reason| Error::damaged(path, reason))?;
        Ok(Self { path: path.to_owned(), bytes, settings, places: Places::new(places) })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its settings.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.settings.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    /// A number; of a list, its first where all are the same.
    pub fn integer(&self, key: &str) -> Option<i64> {
        match self.settings.get(key)? {
            Value::Integer(x) => Some(*x),
            Value::Array { .. } => {
                let all = self.integers(key)?;
                let first = *all.first()?;
                all.iter().all(|x| *x == first).then_some(first)
            }
            _ => None,
        }
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<f64> {
        match self.settings.get(key)? {
            Value::Number(x) => Some(*x),
            Value::Integer(x) => Some(*x as f64),
            _ => None,
        }
    }

    /// Yes or no.
    pub fn flag(&self, key: &str) -> Option<bool> {
        if let Value::Flag(x) = self.settings.get(key)? { Some(*x) } else { None }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<&str> {
        if let Value::Text(range) = self.settings.get(key)? { text(self.bytes.as_ref(), range.clone()).ok() } else { None }
    }

    /// A list of texts, as bytes: tokens need not be UTF-8.
    pub fn texts(&self, key: &str) -> Option<Vec<&[u8]>> {
        let Value::Array { kind: 8, bytes, .. } = self.settings.get(key)? else { return None };
        let all = self.bytes.as_ref();
        let (mut cursor, mut texts) = (Cursor { bytes: &all[..bytes.end], at: bytes.start }, Vec::new());
        while cursor.left() > 0 {
            texts.push(&all[string(&mut cursor).ok()?]);
        }
        Some(texts)
    }

    fn values(&self, key: &str) -> Option<Vec<Value>> {
        let Value::Array { kind, count, bytes } = self.settings.get(key)? else { return None };
        width(*kind)?;
        let mut cursor = Cursor { bytes: &self.bytes.as_ref()[..bytes.end], at: bytes.start };
        (0..*count).map(|_| number(&mut cursor, *kind).ok()).collect()
    }

    /// A list of integers.
    pub fn integers(&self, key: &str) -> Option<Vec<i64>> {
        self.values(key)?.into_iter().map(|x| if let Value::Integer(x) = x { Some(x) } else { None }).collect()
    }

    /// A list of elements.
    pub fn numbers(&self, key: &str) -> Option<Vec<f64>> {
        self.values(key)?.into_iter().map(|x| if let Value::Number(x) = x { Some(x) } else { None }).collect()
    }
}

impl Source for Gguf {
    fn tensor(&self, name: &str) -> regard_nn::Result<Tensor<'_>> {
        let (_, place) = self.places.get(name).ok_or_else(|| missing(name))?;
        place.tensor(self.bytes.as_ref())
    }
}

one_file_archive!(Gguf);
