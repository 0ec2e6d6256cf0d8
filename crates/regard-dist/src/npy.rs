//! Arrays in `.npy` files, where they lie: read through a map, so that they may be larger than memory, and written a few rows at a time.

use crate::error::{Error, Result};
use crate::exchange::Number;
use crate::unfinished::{Place, Unfinished};
use half::f16;
use ndarray::{Array4, ArrayView4, ShapeBuilder, s};
use regard::MappedFile;
use std::any::TypeId;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Where numbers begin is a multiple of it.
const ALIGNED: usize = 64;

/// Places of an array that has no numbers, at most.
const MOST_EMPTY: usize = 1 << 24;

/// An array that is mapped.
pub struct Npy {
    path: PathBuf,
    map: MappedFile,
    /// As NumPy calls it: `<f4`.
    pub descr: String,
    fortran: bool,
    /// Its shape, `[batch, head, token, dim]`: axes that are not there are 1.
    pub shape: [usize; 4],
    offset: usize,
}

/// What NumPy calls a type, where it has a name for it.
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
    /// Map a file. Nothing is read but its header.
    ///
    /// # Errors
    /// [`Error::File`] when it is not a `.npy` file of floating-point numbers with two to four dimensions, or is cut short.
    pub fn open(path: &Path) -> Result<Self> {
        let kind = std::fs::metadata(path).map_err(|e| wrong(path, e))?.file_type();
        if !kind.is_file() {
            let what = if kind.is_dir() { "it is a directory" } else { "it is a pipe or a device" };
            return Err(wrong(path, format!("{what}; a .npy file is needed, as numpy.save writes it")));
        }
        let map = MappedFile::open(path).map_err(|e| wrong(path, e))?;
        let bytes = map.as_ref();
        let not = || wrong(path, "not a .npy file; save it with numpy.save");
        let start = if bytes.starts_with(MAGIC) { bytes.get(6..12) } else { None }.ok_or_else(not)?;
        let (begin, length) = match start[0] {
            1 => (10, usize::from(u16::from_le_bytes([start[2], start[3]]))),
            2 | 3 => (12, u32::from_le_bytes([start[2], start[3], start[4], start[5]]) as usize),
            version => return Err(wrong(path, format!("version {version} of .npy is not known"))),
        };
        let offset = begin + length;
        let text = bytes.get(begin..offset).and_then(|text| std::str::from_utf8(text).ok()).ok_or_else(not)?;
        let value = |key: &str| {
            let after = text.split_once(&format!("'{key}'")).map(|(_, after)| after.trim_start());
            after.and_then(|after| after.strip_prefix(':')).map(str::trim_start).ok_or_else(not)
        };
        let type_needed =
            |other: &str| wrong(path, format!("its numbers are {other}; save it as little-endian float16, float32 or float64"));
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
        // No numbers at all: whatever goes over the other axes has an end all the same.
        let others = shape.iter().try_fold(1usize, |all, &axis| all.checked_mul(axis.max(1)));
        if shape.contains(&0) && others.is_none_or(|others| others > MOST_EMPTY) {
            return Err(wrong(
                path,
                format!("shape {axes:?} has no numbers, and too many places without any: at most {MOST_EMPTY} can be used"),
            ));
        }
        let expected = shape.iter().try_fold(size, |all, &axis| all.checked_mul(axis)).and_then(|all| all.checked_add(offset));
        if expected != Some(bytes.len()) {
            return Err(wrong(path, format!("shape {axes:?} needs another number of bytes than there are; was the file cut short?")));
        }
        let fortran = value("fortran_order")?.starts_with("True");
        Ok(Self { path: path.to_owned(), descr, fortran, shape, offset, map })
    }

    /// Bytes of a number.
    pub(crate) fn size(&self) -> usize {
        if self.descr == "<f2" {
            2
        } else if self.descr == "<f4" {
            4
        } else {
            8
        }
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.map.as_ref().len() - self.offset
    }

    /// The numbers, where they lie.
    ///
    /// # Errors
    /// [`Error::File`] when they are of another type, or not where a processor reads them.
    pub fn view<E: Number>(&self) -> Result<ArrayView4<'_, E>> {
        if descr_of::<E>() != Some(self.descr.as_str()) {
            return Err(wrong(&self.path, format!("its numbers are {}, and those of q are others", self.descr)));
        }
        let numbers = bytemuck::try_cast_slice(&self.map.as_ref()[self.offset..]);
        let numbers = numbers.map_err(|_| wrong(&self.path, "its numbers are not aligned; save it again with numpy.save"))?;
        let shape = self.shape.into_shape_with_order();
        let view = if self.fortran { ArrayView4::from_shape(shape.f(), numbers) } else { ArrayView4::from_shape(shape, numbers) };
        Ok(view.expect("the length was checked"))
    }

    /// Some heads and tokens of it, read: a map would count as memory beside them.
    ///
    /// # Errors
    /// As [`Npy::view`], and when the file cannot be read.
    pub(crate) fn read<E: Number>(&self, heads: &Range<usize>, tokens: &[Range<usize>]) -> Result<Array4<E>> {
        let view = self.view::<E>()?;
        let [batch, all_heads, all_tokens, dims] = self.shape;
        let mut read = Array4::from_elem([batch, heads.len(), tokens.iter().map(Range::len).sum(), dims], E::zeroed());
        let mut file = File::open(&self.path).map_err(|e| wrong(&self.path, e))?;
        for (b, h) in (0..batch).flat_map(|b| heads.clone().map(move |h| (b, h))) {
            let mut first = 0;
            for range in tokens {
                let mut to = read.slice_mut(s![b, h - heads.start, first..first + range.len(), ..]);
                first += range.len();
                if self.fortran {
                    to.assign(&view.slice(s![b, h, range.clone(), ..]));
                    continue;
                }
                let at = self.offset + ((b * all_heads + h) * all_tokens + range.start) * dims * size_of::<E>();
                let bytes = bytemuck::cast_slice_mut(to.as_slice_mut().expect("the standard layout"));
                file.seek(SeekFrom::Start(at as u64)).and_then(|_| file.read_exact(bytes)).map_err(|e| wrong(&self.path, e))?;
            }
        }
        Ok(read)
    }
}

/// A file that is being written, by several ranks: each its own rows.
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

    /// The first rank makes the file; the others open it afterwards.
    pub(crate) fn open<E: Number>(place: Place, shape: [usize; 4], rows_only: bool, makes: bool, of: &Unfinished) -> Result<Self> {
        let descr = descr_of::<E>().ok_or_else(|| wrong(&place.path, "NumPy has no name for this type of numbers"))?;
        let (header, size) = (Self::header(descr, shape, rows_only), size_of::<E>());
        let mut file = place.open(makes, of)?;
        if makes {
            let bytes = shape.iter().try_fold(size, |all, &axis| all.checked_mul(axis)).and_then(|all| all.checked_add(header.len()));
            let bytes = bytes.ok_or_else(|| Error::write(&place.path, "no file can be so long"))?;
            file.write_all(&header).and_then(|()| file.set_len(bytes as u64)).map_err(|e| Error::write(&place.path, e))?;
        }
        Ok(Self { place, file, offset: header.len() as u64, shape, size })
    }

    /// Rows from `first` on, of heads from `head` on.
    pub(crate) fn write<E: Number>(&mut self, head: usize, first: usize, rows: &ArrayView4<'_, E>) -> Result<()> {
        let [_, heads, tokens, dims] = self.shape;
        for (b, of_entry) in rows.outer_iter().enumerate() {
            for (h, of_head) in of_entry.outer_iter().enumerate() {
                let at = (((b * heads + head + h) * tokens + first) * dims * self.size) as u64;
                let numbers = of_head.as_standard_layout();
                let bytes: &[u8] = bytemuck::cast_slice(numbers.as_slice().expect("the standard layout"));
                let mut write = || {
                    self.file.seek(SeekFrom::Start(self.offset + at))?;
                    self.file.write_all(bytes)
                };
                write().map_err(|e| Error::write(&self.place.path, e))?;
            }
        }
        Ok(())
    }

    /// Everything this rank wrote is on the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::write(&self.place.path, e))
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }
}
