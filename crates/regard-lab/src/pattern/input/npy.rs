//! `.npy` files and `.npz` archives of them.
//!
//! The format is a magic number, a version, the length of a header, and the header: a Python dictionary with the keys `descr`,
//! `fortran_order` and `shape`. It is read here rather than by a crate, because the readers at hand take the header's word for how
//! much memory to ask for, and parse it with a general parser of Python literals.

use super::stored::{Stored, byte_length, check_size, unread};
use super::{InputError, Numbers};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use zip::ZipArchive;

/// Real headers have about a hundred bytes.
const MAX_HEADER: usize = 16 << 10;

/// Dimensions beyond these no array of NumPy's has.
const MAX_DIMENSIONS: usize = 64;

struct Header {
    stored: Stored,
    big_endian: bool,
    fortran: bool,
    shape: Vec<usize>,
}

/// Why a header cannot be read: its text is wrong, or its elements are of a type that is not taken.
enum HeaderError {
    Text(String),
    DType(String),
}

impl From<&str> for HeaderError {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// The array of a `.npy` file.
pub(super) fn read_file(path: &Path, file: &mut File) -> Result<Numbers, InputError> {
    let length = file.metadata().map_err(|source| InputError::Io { path: path.to_owned(), source })?.len();
    read(path, &super::stem(path), BufReader::new(file), length)
}

/// An array out of a stream of `length` bytes.
fn read(path: &Path, array: &str, mut stream: impl Read, length: u64) -> Result<Numbers, InputError> {
    let (header, used) = read_header(&mut stream).map_err(|e| match e {
        HeaderError::Text(reason) => InputError::Malformed { path: path.to_owned(), kind: ".npy", reason },
        HeaderError::DType(dtype) => InputError::DType { path: path.to_owned(), array: array.to_owned(), dtype },
    })?;
    let got = length.saturating_sub(used);
    let wrong = |expected| InputError::Length { path: path.to_owned(), array: array.to_owned(), expected, got };
    let expected = byte_length(&header.shape, header.stored).ok_or_else(|| wrong(u64::MAX))?;
    if expected != got {
        return Err(wrong(expected));
    }
    check_size(path, array, expected, header.stored)?;
    let numbers = header.stored.read(&mut stream, header.big_endian, header.fortran, &header.shape);
    let numbers = numbers.map_err(|e| unread(path, array, expected, e))?;
    // An archive compares its checksum when its end is reached, and not before.
    match stream.read(&mut [0]) {
        Ok(0) => Ok(numbers),
        Ok(_) => Err(wrong(expected)),
        Err(e) => Err(InputError::Malformed { path: path.to_owned(), kind: ".npz", reason: e.to_string() }),
    }
}

/// The header, and how many bytes it took.
fn read_header(stream: &mut impl Read) -> Result<(Header, u64), HeaderError> {
    let mut start = [0; 8];
    stream.read_exact(&mut start).map_err(|_| "shorter than a header")?;
    if &start[..6] != b"\x93NUMPY" {
        return Err("it does not begin with the magic number of .npy".into());
    }
    let wide = match start[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(HeaderError::Text(format!("version {version} is not known"))),
    };
    let mut length = [0; 4];
    stream.read_exact(&mut length[..wide]).map_err(|_| "shorter than a header")?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_HEADER {
        return Err(HeaderError::Text(format!("a header of {length} bytes")));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).map_err(|_| "shorter than its header")?;
    let text = String::from_utf8(text).map_err(|_| "the header is not text")?;
    Ok((parse_header(&text)?, (8 + wide + length) as u64))
}

fn parse_header(text: &str) -> Result<Header, HeaderError> {
    let descr = value(text, "descr")?;
    let descr = descr.strip_prefix('\'').or_else(|| descr.strip_prefix('"')).ok_or_else(|| HeaderError::DType("record".to_owned()))?;
    let descr = descr.split(['\'', '"']).next().unwrap_or("");
    let (order, kind) = descr.split_at_checked(1).ok_or("descr is empty")?;
    let big_endian = match order {
        "<" | "|" => false,
        "=" => cfg!(target_endian = "big"),
        ">" => true,
        _ => return Err(HeaderError::DType(descr.to_owned())),
    };
    let stored = match kind {
        "f2" => Stored::F16,
        "f4" => Stored::F32,
        "f8" => Stored::F64,
        _ => return Err(HeaderError::DType(descr.to_owned())),
    };
    let order = value(text, "fortran_order")?;
    let fortran = match (order.starts_with("True"), order.starts_with("False")) {
        (true, _) => true,
        (_, true) => false,
        _ => return Err("fortran_order is neither True nor False".into()),
    };
    let shape = value(text, "shape")?;
    let inner = shape.strip_prefix('(').and_then(|s| s.split_once(')')).ok_or("shape is not a tuple")?.0;
    let shape: Vec<usize> = inner
        .split(',')
        .map(str::trim)
        .filter(|d| !d.is_empty())
        .map(|d| d.parse().map_err(|_| HeaderError::Text(format!("a dimension of \"{}\"", d.escape_default()))))
        .collect::<Result<_, _>>()?;
    if shape.len() > MAX_DIMENSIONS {
        return Err("more dimensions than any array has".into());
    }
    Ok(Header { stored, big_endian, fortran, shape })
}

/// What follows a key of the header's dictionary.
fn value<'t>(text: &'t str, key: &str) -> Result<&'t str, HeaderError> {
    let quoted = [format!("'{key}'"), format!("\"{key}\"")];
    let after =
        quoted.iter().find_map(|q| text.split_once(q.as_str())).ok_or_else(|| HeaderError::Text(format!("the header has no {key}")))?.1;
    let after = after.trim_start().strip_prefix(':').ok_or_else(|| HeaderError::Text(format!("the header has no value for {key}")))?;
    Ok(after.trim_start())
}

/// An open `.npz`.
pub(super) struct Archive {
    path: PathBuf,
    zip: ZipArchive<BufReader<File>>,
}

impl Archive {
    pub(super) fn open(path: &Path, mut file: File) -> Result<Self, InputError> {
        // The library would search the whole file.
        if !ends_as_zip(&mut file).map_err(|source| InputError::Io { path: path.to_owned(), source })? {
            return Err(malformed(path, "it is cut short, or no zip file"));
        }
        let zip = ZipArchive::new(BufReader::new(file)).map_err(|e| malformed(path, &e.to_string()))?;
        Ok(Self { path: path.to_owned(), zip })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.zip.file_names().filter_map(|n| n.strip_suffix(".npy").map(str::to_owned)).collect();
        names.sort();
        names
    }

    pub(super) fn read(&mut self, name: &str) -> Result<Numbers, InputError> {
        let path = self.path.clone();
        let entry = self.zip.by_name(&format!("{name}.npy")).map_err(|e| malformed(&path, &e.to_string()))?;
        let length = entry.size();
        read(&path, name, entry, length)
    }
}

/// Bytes from the end in which a zip file has the magic number of its end record.
const ZIP_END: u64 = 22 + (u16::MAX as u64);

fn ends_as_zip(file: &mut File) -> std::io::Result<bool> {
    let length = file.metadata()?.len();
    let mut end = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(ZIP_END)))?;
    file.by_ref().take(ZIP_END).read_to_end(&mut end)?;
    file.rewind()?;
    Ok(end.windows(4).any(|four| four == b"PK\x05\x06"))
}

fn malformed(path: &Path, reason: &str) -> InputError {
    InputError::Malformed { path: path.to_owned(), kind: ".npz", reason: reason.to_owned() }
}
