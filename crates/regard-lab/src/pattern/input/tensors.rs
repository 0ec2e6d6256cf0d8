//! `.safetensors` files. The header is parsed by the crate of that name; offsets and sizes are then checked against the file, and only
//! the requested array is read.

use super::stored::{ReadError, Stored, byte_length, check_size, unread};
use super::{InputError, Numbers};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The format's own limit.
const MAX_HEADER: u64 = 100_000_000;

pub(super) struct Tensors {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Where the data begins.
    start: u64,
    length: u64,
}

impl Tensors {
    pub(super) fn open(path: &Path, mut file: File) -> Result<Self, InputError> {
        let malformed = |reason: String| InputError::Malformed { path: path.to_owned(), kind: ".safetensors", reason };
        let length = file.metadata().map_err(|source| InputError::Io { path: path.to_owned(), source })?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|_| malformed("shorter than a header".to_owned()))?;
        let size = u64::from_le_bytes(size);
        if size > MAX_HEADER || size > length.saturating_sub(8) {
            return Err(malformed(format!("a header of {size} bytes in a file of {length}")));
        }
        let mut header = Vec::new();
        (&mut file).take(size).read_to_end(&mut header).map_err(|source| InputError::Io { path: path.to_owned(), source })?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| malformed(e.to_string()))?;
        Ok(Self { path: path.to_owned(), file, metadata, start: 8 + size, length })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.metadata.tensors().into_keys().collect();
        names.sort();
        names
    }

    pub(super) fn read(&mut self, name: &str) -> Result<Numbers, InputError> {
        let (path, array) = (self.path.clone(), name.to_owned());
        let malformed = |reason: &str| InputError::Malformed { path: self.path.clone(), kind: ".safetensors", reason: reason.to_owned() };
        let info = self.metadata.info(name).ok_or_else(|| malformed("a name without an array"))?.clone();
        let stored = match info.dtype {
            Dtype::F16 => Stored::F16,
            Dtype::BF16 => Stored::Bf16,
            Dtype::F32 => Stored::F32,
            Dtype::F64 => Stored::F64,
            other => return Err(InputError::DType { path, array, dtype: format!("{other:?}") }),
        };
        let (from, to) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let expected = byte_length(&info.shape, stored).unwrap_or(u64::MAX);
        let there = self.length.saturating_sub(self.start).saturating_sub(from);
        if to.checked_sub(from) != Some(expected) {
            return Err(malformed("an array's offsets do not fit its shape"));
        }
        if expected > there {
            return Err(InputError::Length { path, array, expected, got: there });
        }
        check_size(&path, &array, expected, stored)?;
        let read = self.file.seek(SeekFrom::Start(self.start + from)).map_err(ReadError::Io);
        let read = read.and_then(|_| stored.read(&mut BufReader::new(&mut self.file), false, false, &info.shape));
        read.map_err(|e| unread(&path, &array, expected, e))
    }
}
