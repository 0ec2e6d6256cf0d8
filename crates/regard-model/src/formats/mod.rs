//! Files of tensors: one reader per format, each a list of names with shapes and places. Bytes stay in the mapped file.

pub mod gguf;
pub mod llama2c;
pub mod pickle;
pub mod safetensors;

pub use gguf::Gguf;
pub use llama2c::Llama2c;
pub use pickle::Pickle;
pub use safetensors::SafetensorsFiles;

use crate::error::{Error, Result};
use half::{bf16, f16};
use regard::MappedFile;
use regard_nn::tensors::{BlockKind, Blocks, Numbers, Source};
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// A tensor of an archive, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// As the file calls it.
    pub name: String,
    /// Row-major.
    pub shape: Vec<usize>,
    /// Its elements: `f32`, `Q4_1`, ...
    pub kind: &'static str,
    /// What it takes in the file.
    pub bytes: usize,
}

/// A file, or several, with tensors.
pub trait Archive: Source + Send + Sync + std::fmt::Debug {
    /// A tensor of that name is there.
    fn has(&self, name: &str) -> bool;
    /// All tensors, in the order of the file.
    fn list(&self) -> Vec<TensorInfo>;
    /// The mapped files, which must not change while they are in use.
    fn files(&self) -> Vec<&MappedFile>;
}

/// Implements [`Archive`] for a type with the fields `bytes`, a mapped file, and `places`, its tensors.
macro_rules! one_file_archive {
    ($archive:ty) => {
        impl super::Archive for $archive {
            fn has(&self, name: &str) -> bool {
                self.places.has(name)
            }

            fn list(&self) -> Vec<super::TensorInfo> {
                self.places.list()
            }

            fn files(&self) -> Vec<&regard::MappedFile> {
                vec![&self.bytes]
            }
        }
    };
}
pub(crate) use one_file_archive;

/// How the elements of a tensor lie in a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    F64,
    F32,
    F16,
    Bf16,
    Blocks(BlockKind),
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Blocks(kind) => kind.name,
        }
    }

    /// Bytes of a number of elements; `None` when they are not whole blocks, or too many.
    pub(crate) fn bytes(self, numbers: usize) -> Option<usize> {
        match self {
            Self::F64 => numbers.checked_mul(8),
            Self::F32 => numbers.checked_mul(4),
            Self::F16 | Self::Bf16 => numbers.checked_mul(2),
            Self::Blocks(kind) => numbers.is_multiple_of(kind.numbers).then(|| numbers / kind.numbers)?.checked_mul(kind.bytes),
        }
    }

    /// The elements in these bytes; not for blocks that are cut short.
    pub(crate) fn numbers(self, bytes: &[u8]) -> Option<Numbers<'_>> {
        Some(match self {
            Self::F64 => Numbers::F64(cast(bytes)),
            // Old pickles have their elements at odd places: these are read where they lie too.
            Self::F32 => bytemuck::try_cast_slice(bytes).map_or(Numbers::Unaligned(bytes), |x| Numbers::F32(Cow::Borrowed(x))),
            Self::F16 => Numbers::F16(cast::<f16>(bytes)),
            Self::Bf16 => Numbers::Bf16(cast::<bf16>(bytes)),
            Self::Blocks(kind) => Numbers::Quantised(Blocks::new(kind, bytes)?),
        })
    }
}

/// Bytes as elements: where they lie, or copied where they do not lie at a multiple of the element size.
fn cast<N: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Cow<'_, [N]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytes.chunks_exact(size_of::<N>()).map(bytemuck::pod_read_unaligned).collect()),
    }
}

/// Where a tensor lies in a file.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: Kind,
    pub(crate) bytes: Range<usize>,
}

impl Place {
    pub(crate) fn info(&self) -> TensorInfo {
        TensorInfo { name: self.name.clone(), shape: self.shape.clone(), kind: self.kind.name(), bytes: self.bytes.len() }
    }

    /// The tensor, from the bytes of its file.
    pub(crate) fn tensor<'s>(&self, file: &'s [u8]) -> regard_nn::Result<regard_nn::tensors::Tensor<'s>> {
        let refused = |reason: &str| regard_nn::Error::Tensor { name: self.name.clone(), reason: reason.to_owned() };
        if cfg!(target_endian = "big") {
            return Err(refused("its elements are little-endian; this machine is big-endian"));
        }
        let bytes = file.get(self.bytes.clone()).ok_or_else(|| refused("it ends past the end of its file"))?;
        let numbers = self.kind.numbers(bytes).ok_or_else(|| refused("its last block is cut short"))?;
        Ok(regard_nn::tensors::Tensor { shape: self.shape.clone(), numbers })
    }
}

/// Where the tensors of a file lie, by name and in its order; of two with the same name the last counts.
#[derive(Debug)]
pub(crate) struct Places {
    all: Vec<Place>,
    numbers: HashMap<String, usize>,
}

impl Places {
    pub(crate) fn new(all: Vec<Place>) -> Self {
        let numbers = all.iter().enumerate().map(|(i, place)| (place.name.clone(), i)).collect();
        Self { all, numbers }
    }

    /// A tensor with its number in the order of the file.
    pub(crate) fn get(&self, name: &str) -> Option<(usize, &Place)> {
        self.numbers.get(name).map(|&number| (number, &self.all[number]))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    pub(crate) fn list(&self) -> Vec<TensorInfo> {
        self.all.iter().map(Place::info).collect()
    }
}

pub(crate) fn missing(name: &str) -> regard_nn::Error {
    regard_nn::Error::Tensor { name: name.to_owned(), reason: "it is not there".to_owned() }
}

/// Whether the files of an archive are as they were when it was opened.
///
/// # Errors
/// [`Error::Damaged`] with the first that has changed.
pub(crate) fn check_unchanged(archive: &dyn Archive) -> Result<()> {
    let changed = |file: &&MappedFile| file.check_unchanged().is_err();
    match archive.files().into_iter().find(changed) {
        Some(file) => Err(Error::damaged(file.path(), "it was changed after it was loaded: load it again")),
        None => Ok(()),
    }
}

pub(crate) fn map(path: &Path) -> Result<MappedFile> {
    let map = MappedFile::open(path).map_err(|source| Error::file(path, source))?;
    if map.as_ref().is_empty() {
        return Err(Error::damaged(path, "it is empty"));
    }
    Ok(map)
}

/// A bounds-checked little-endian reader.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'b> {
    pub(crate) bytes: &'b [u8],
    pub(crate) at: usize,
}

impl<'b> Cursor<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[x]| x)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn f32(&mut self) -> Option<f32> {
        self.array().map(f32::from_le_bytes)
    }
}
