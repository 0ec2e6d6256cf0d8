//! Arrays in `.npy` files that may be larger than memory: read in pieces, and written a few rows at a time.

use crate::error::{Error, Result};
use crate::exchange::WireElement;
use crate::temp_files::{Place, TempFiles};
use half::f16;
use ndarray::{Array3, Array4, ArrayView4, Axis, ShapeBuilder, s};
use std::any::TypeId;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const MAGIC: &[u8] = b"\x93NUMPY";

/// Offsets of the elements are multiples of it.
const ALIGNED: usize = 64;

/// The most rows of an array without elements.
const MOST_EMPTY: usize = 1 << 24;

/// An array in a file, which is read in pieces.
///
/// It is not mapped: a file that another program shortens would end this one with a signal. A file that changes while it is open is an
/// error instead.
pub struct Npy {
    path: PathBuf,
    file: File,
    version: Version,
    /// The type as NumPy calls it: `<f4`.
    pub descr: String,
    fortran: bool,
    /// Its shape, `[batch, head, token, dim]`; missing axes are 1.
    pub shape: [usize; 4],
    offset: usize,
}

/// Length and time of a file, which change when it is written to.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Version {
    fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { bytes: metadata.len(), modified: metadata.modified().ok() })
    }
}

/// The most bytes of a header: NumPy's own limit is 10,000 characters.
const MOST_HEADER: usize = 1 << 16;

/// NumPy's name of a type, if it has one.
pub fn descr_of<E: 'static>() -> Option<&'static str> {
    let of = TypeId::of::<E>();
    [(TypeId::of::<f16>(), "<f2"), (TypeId::of::<f32>(), "<f4"), (TypeId::of::<f64>(), "<f8")]
        .into_iter()
        .find(|(id, _)| *id == of)
        .map(|(_, name)| name)
}

fn wrong(path: &Path, reason: impl ToString) -> Error {
    Error::File { path: path.to_owned(), reason: reason.to_string() }
}

impl Npy {
    /// Open a file and read its header.
    ///
    /// # Errors
    /// [`Error::File`] when it is not a `.npy` file of floating-point elements with two to four dimensions, or is cut short.
    pub fn open(path: &Path) -> Result<Self> {
        let kind = std::fs::metadata(path).map_err(|e| wrong(path, e))?.file_type();
        if !kind.is_file() {
            let what = if kind.is_dir() { "this is a directory" } else { "this is a pipe or a device" };
            return Err(wrong(path, format!("{what}; a .npy file is needed, as numpy.save writes it")));
        }
        let file = File::open(path).map_err(|e| wrong(path, e))?;
        let version = Version::of(&file).map_err(|e| wrong(path, e))?;
        let mut bytes = Vec::new();
        (&file).take(MOST_HEADER as u64).read_to_end(&mut bytes).map_err(|e| wrong(path, e))?;
        let not = || wrong(path, "not a .npy file; save it with numpy.save");
        let start = if bytes.starts_with(MAGIC) { bytes.get(6..12) } else { None }.ok_or_else(not)?;
        let (begin, length) = match start[0] {
            1 => (10, usize::from(u16::from_le_bytes([start[2], start[3]]))),
            2 | 3 => (12, u32::from_le_bytes([start[2], start[3], start[4], start[5]]) as usize),
            version => return Err(wrong(path, format!("version {version} of .npy is not supported"))),
        };
        let offset = begin + length;
        let text = bytes.get(begin..offset).and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(not)?;
        let value = |key: &str| {
            let after = text.split_once(&format!("'{key}'")).map(|(_, after)| after.trim_start());
            after.and_then(|after| after.strip_prefix(':')).map(str::trim_start).ok_or_else(not)
        };
        let type_needed =
            |other: &str| wrong(path, format!("its elements are {other}; save it as little-endian float16, float32 or float64"));
        let descr = value("descr")?;
        let descr = descr.strip_prefix('\'').ok_or_else(|| type_needed("records"))?.split_once('\'').ok_or_else(not)?.0.to_owned();
        let size: usize = match descr.as_str() {
            "<f2" => 2,
            "<f4" => 4,
            "<f8" => 8,
            other => return Err(type_needed(&format!("{other:?}"))),
        };
        let inner = value("shape")?.strip_prefix('(').and_then(|rest| rest.split_once(')')).ok_or_else(not)?.0;
        let axes = inner.split(',').map(str::trim).filter(|axis| !axis.is_empty()).map(|axis| axis.parse::<usize>().map_err(|_| not()));
        let axes = axes.collect::<Result<Vec<_>>>()?;
        if !(2..=4).contains(&axes.len()) {
            return Err(wrong(
                path,
                format!("its shape is {axes:?}; [token, dim], [head, token, dim] or [batch, head, token, dim] is needed"),
            ));
        }
        let mut shape = [1; 4];
        shape[4 - axes.len()..].copy_from_slice(&axes);
        // Loops over the other axes of an array without elements must end too.
        let others = shape.iter().try_fold(1usize, |all, &axis| all.checked_mul(axis.max(1)));
        if shape.contains(&0) && others.is_none_or(|others| others > MOST_EMPTY) {
            return Err(wrong(
                path,
                format!("shape {axes:?} has no elements, and too many rows without any; at most {MOST_EMPTY} are possible"),
            ));
        }
        let expected = shape.iter().try_fold(size, |all, &axis| all.checked_mul(axis)).and_then(|all| all.checked_add(offset));
        if expected.map(|bytes| bytes as u64) != Some(version.bytes) {
            return Err(wrong(path, format!("shape {axes:?} does not fit the {} bytes of the file; it may be cut short", version.bytes)));
        }
        let fortran = value("fortran_order")?.starts_with("True");
        Ok(Self { path: path.to_owned(), file, version, descr, fortran, shape, offset })
    }

    /// Bytes of an element.
    pub(crate) fn size(&self) -> usize {
        if self.descr == "<f2" {
            2
        } else if self.descr == "<f4" {
            4
        } else {
            8
        }
    }

    /// Bytes of all elements.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.size()
    }

    /// The elements are of type `E`.
    ///
    /// # Errors
    /// [`Error::File`] when they are not.
    pub fn check_type<E: WireElement>(&self) -> Result<()> {
        if descr_of::<E>() == Some(self.descr.as_str()) {
            return Ok(());
        }
        Err(wrong(&self.path, format!("its elements are {}, unlike those of q; save q, k and v with one type", self.descr)))
    }

    /// The elements of some heads and of one range of tokens.
    ///
    /// # Errors
    /// As [`Npy::read`].
    pub fn read_range<E: WireElement>(&self, heads: &Range<usize>, tokens: Range<usize>) -> Result<Array4<E>> {
        self.read(heads, &[tokens])
    }

    /// The elements of some heads and tokens.
    ///
    /// # Errors
    /// As [`Npy::check_type`]; when the file cannot be read; [`Error::Changed`] when it has changed since it was opened.
    pub fn read<E: WireElement>(&self, heads: &Range<usize>, tokens: &[Range<usize>]) -> Result<Array4<E>> {
        self.check_type::<E>()?;
        let [batch, all_heads, all_tokens, dims] = self.shape;
        let mut read = Array4::from_elem([batch, heads.len(), tokens.iter().map(Range::len).sum(), dims], E::zeroed());
        let mut first = 0;
        for range in tokens {
            let mut to = read.slice_mut(s![.., .., first..first + range.len(), ..]);
            first += range.len();
            if self.fortran {
                // All batch entries and heads of the tokens lie together, for one dimension after the other.
                let mut lines = Array3::from_elem((batch, all_heads, range.len()).f(), E::zeroed());
                for (d, mut to) in to.axis_iter_mut(Axis(3)).enumerate() {
                    self.read_at(
                        (d * all_tokens + range.start) * all_heads * batch,
                        lines.as_slice_memory_order_mut().expect("contiguous"),
                    )?;
                    to.assign(&lines.slice(s![.., heads.clone(), ..]));
                }
                continue;
            }
            for (b, mut of_entry) in to.outer_iter_mut().enumerate() {
                for (h, mut of_head) in heads.clone().zip(of_entry.outer_iter_mut()) {
                    let place = ((b * all_heads + h) * all_tokens + range.start) * dims;
                    self.read_at(place, of_head.as_slice_mut().expect("the standard layout"))?;
                }
            }
        }
        self.check_unchanged()?;
        Ok(read)
    }

    /// Elements from this one on.
    fn read_at<E: WireElement>(&self, place: usize, to: &mut [E]) -> Result<()> {
        let (at, bytes) = ((self.offset + place * size_of::<E>()) as u64, bytemuck::cast_slice_mut(to));
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(bytes));
        // A file that is cut short has changed, which says more.
        read.or_else(|e| self.check_unchanged().and(Err(wrong(&self.path, e))))
    }

    /// Nothing was written to the file since it was opened, as far as its length and time say.
    fn check_unchanged(&self) -> Result<()> {
        let now = Version::of(&self.file).map_err(|e| wrong(&self.path, e))?;
        if now == self.version {
            return Ok(());
        }
        Err(Error::Changed { path: self.path.clone(), before: self.version.bytes, after: now.bytes })
    }
}

/// A file that several ranks write, each its own rows.
pub(crate) struct NpyWriter {
    place: Place,
    file: File,
    offset: u64,
    shape: [usize; 4],
    size: usize,
}

impl NpyWriter {
    /// The header of an array of `[batch, head, token, dim]`; statistics have no last axis.
    fn header(descr: &str, shape: [usize; 4], rows_only: bool) -> Vec<u8> {
        let axes = &shape[..if rows_only { 3 } else { 4 }];
        let axes = axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}), }}");
        let length = (10 + text.len() + 1).next_multiple_of(ALIGNED) - 10;
        let mut bytes = [MAGIC, &[1, 0], &(length as u16).to_le_bytes(), text.as_bytes()].concat();
        bytes.resize(10 + length - 1, b' ');
        bytes.push(b'\n');
        bytes
    }

    /// Rank 0 creates the file; the others open it afterwards.
    pub(crate) fn open<E: WireElement>(place: Place, shape: [usize; 4], rows_only: bool, creates: bool, of: &TempFiles) -> Result<Self> {
        let descr =
            descr_of::<E>().ok_or_else(|| wrong(&place.path, "NumPy has no name for this type; use float16, float32 or float64"))?;
        let (header, size) = (Self::header(descr, shape, rows_only), size_of::<E>());
        let mut file = place.open(creates, of)?;
        if creates {
            let bytes = shape.iter().try_fold(size, |all, &axis| all.checked_mul(axis)).and_then(|all| all.checked_add(header.len()));
            let bytes = bytes.ok_or_else(|| Error::write(&place.path, "the file would be longer than any file can be"))?;
            file.write_all(&header).and_then(|()| file.set_len(bytes as u64)).map_err(|e| Error::write(&place.path, e))?;
        }
        Ok(Self { place, file, offset: header.len() as u64, shape, size })
    }

    /// Write rows from `first` on, of heads from `head` on.
    pub(crate) fn write<E: WireElement>(&mut self, head: usize, first: usize, rows: &ArrayView4<'_, E>) -> Result<()> {
        let [_, heads, tokens, dims] = self.shape;
        for (b, of_entry) in rows.outer_iter().enumerate() {
            for (h, of_head) in of_entry.outer_iter().enumerate() {
                let at = (((b * heads + head + h) * tokens + first) * dims * self.size) as u64;
                let elements = of_head.as_standard_layout();
                let bytes: &[u8] = bytemuck::cast_slice(elements.as_slice().expect("the standard layout"));
                let mut write = || {
                    self.file.seek(SeekFrom::Start(self.offset + at))?;
                    self.file.write_all(bytes)
                };
                write().map_err(|e| Error::write(&self.place.path, e))?;
            }
        }
        Ok(())
    }

    /// Wait until everything this rank wrote is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::write(&self.place.path, e))
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }
}
