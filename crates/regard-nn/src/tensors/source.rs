//! Where tensors come from: a training's buffer, a safetensors file, several of them, or any of these under other names.

use super::layout::Layout;
use super::numbers::Numbers;
use crate::error::{Error, Result};
use crate::float::Float;
use bytemuck::AnyBitPattern;
use regard_files::limits::{CHECKPOINT_BYTES, STATE_BYTES};
use regard_files::read_bytes;
use safetensors::tensor::{Dtype, Metadata, SafeTensors};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// A tensor as its source has it.
#[derive(Debug, Clone)]
pub struct Tensor<'s> {
    /// Row-major.
    pub shape: Vec<usize>,
    /// As many as the shape says.
    pub numbers: Numbers<'s>,
}

/// Something that has tensors by name.
pub trait Source {
    /// The tensor of that name.
    ///
    /// # Errors
    /// [`Error::Tensor`] when it is not there or cannot be used.
    fn tensor(&self, name: &str) -> Result<Tensor<'_>>;
}

/// The parameters of a training.
#[derive(Debug, Clone, Copy)]
pub struct Buffer<'b, T> {
    /// Names and places.
    pub layout: &'b Layout,
    /// Numbers.
    pub numbers: &'b [T],
}

impl<T: Float> Source for Buffer<'_, T> {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let entry = self.layout.entries().iter().find(|e| e.name == name).ok_or_else(|| missing(name))?;
        Ok(Tensor { shape: entry.shape.clone(), numbers: T::numbers(&self.numbers[entry.range.clone()]) })
    }
}

fn missing(name: &str) -> Error {
    Error::Tensor { name: name.to_owned(), reason: "it is not there".to_owned() }
}

/// A safetensors file: its bytes, read or mapped, stay as they are.
#[derive(Debug)]
pub struct SafetensorsFile<B = Vec<u8>> {
    bytes: B,
    /// Where tensors begin.
    data: usize,
    header: Metadata,
}

impl SafetensorsFile {
    /// Read a file.
    ///
    /// # Errors
    /// [`Error::Files`] and [`Error::Checkpoint`].
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read_bytes(path, CHECKPOINT_BYTES.max)?;
        Self::new(path, bytes)
    }
}

impl<B: AsRef<[u8]>> SafetensorsFile<B> {
    /// The file.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    /// The bytes of a file, for example a memory map of it; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when they are not a whole safetensors file.
    pub fn new(path: &Path, bytes: B) -> Result<Self> {
        let refused = |e: safetensors::SafeTensorError| Error::Checkpoint {
            path: path.to_owned(),
            reason: format!("it is cut short or not a safetensors file ({e})"),
        };
        let (size, header) = SafeTensors::read_metadata(bytes.as_ref()).map_err(refused)?;
        // Checks that every tensor lies within.
        SafeTensors::deserialize(bytes.as_ref()).map_err(refused)?;
        Ok(Self { bytes, data: size + 8, header })
    }

    /// A tensor of that name is there.
    pub fn has(&self, name: &str) -> bool {
        self.header.info(name).is_some()
    }

    /// Name, shape, type and bytes of each tensor.
    pub fn list(&self) -> Vec<(String, Vec<usize>, &'static str, usize)> {
        let kind = |dtype| match dtype {
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
            Dtype::I64 => "i64",
            Dtype::BOOL => "bool",
            Dtype::U8 => "u8",
            _ => "other",
        };
        let tensors = self.header.tensors().into_iter();
        tensors.map(|(name, info)| (name, info.shape.clone(), kind(info.dtype), info.data_offsets.1 - info.data_offsets.0)).collect()
    }

    /// The names of its tensors.
    pub fn names(&self) -> Vec<String> {
        self.header.tensors().into_keys().collect()
    }
}

/// Bytes as elements: where they lie, or copied where they do not lie at a multiple of the element size.
fn cast<N: AnyBitPattern>(bytes: &[u8]) -> Cow<'_, [N]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytes.chunks_exact(size_of::<N>()).map(bytemuck::pod_read_unaligned).collect()),
    }
}

impl<B: AsRef<[u8]>> Source for SafetensorsFile<B> {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let info = self.header.info(name).ok_or_else(|| missing(name))?;
        let (start, end) = info.data_offsets;
        let bytes = &self.bytes.as_ref()[self.data + start..self.data + end];
        let refused = |reason: &str| Error::Tensor { name: name.to_owned(), reason: reason.to_owned() };
        if cfg!(target_endian = "big") {
            return Err(refused("its elements are little-endian; this machine is big-endian"));
        }
        let numbers = match info.dtype {
            Dtype::F32 => Numbers::F32(cast(bytes)),
            Dtype::F64 => Numbers::F64(cast(bytes)),
            Dtype::F16 => Numbers::F16(cast(bytes)),
            Dtype::BF16 => Numbers::Bf16(cast(bytes)),
            other => return Err(refused(&format!("it is of type {other:?}, expected F32, F64, F16 or BF16"))),
        };
        Ok(Tensor { shape: info.shape.clone(), numbers })
    }
}

/// Several sources, each with some of the tensors.
#[derive(Debug)]
pub struct Shards<S>(pub Vec<S>);

impl Shards<SafetensorsFile> {
    /// Read the files that an index (`model.safetensors.index.json`) names, beside it.
    ///
    /// # Errors
    /// [`Error::Files`] and [`Error::Checkpoint`].
    pub fn read(index: &Path) -> Result<Self> {
        let refused = |reason: String| Error::Checkpoint { path: index.to_owned(), reason };
        let bytes = read_bytes(index, STATE_BYTES.max)?;
        let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| refused(format!("it is not JSON ({e})")))?;
        let map = json["weight_map"].as_object().ok_or_else(|| refused("it has no weight_map".to_owned()))?;
        let mut names: Vec<&str> = map.values().filter_map(serde_json::Value::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let read = |name: &str| {
            // A plain name: an index must not reach outside of its folder.
            if Path::new(name).file_name().is_none_or(|plain| plain != name) {
                return Err(refused(format!("it names the file {name:?}, which is not beside it")));
            }
            SafetensorsFile::read(&index.with_file_name(name))
        };
        names.into_iter().map(read).collect::<Result<_>>().map(Self)
    }
}

impl<S: Source> Source for Shards<S> {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.0.iter().map(|shard| shard.tensor(name)).find(Result::is_ok).unwrap_or_else(|| Err(missing(name)))
    }
}

/// A source whose tensors have other names than the layers': `rename` says theirs, given ours.
pub struct Renamed<S, F> {
    /// Where they are.
    pub source: S,
    /// From our name to theirs.
    pub rename: F,
}

impl<S: Source, F: Fn(&str) -> String> Source for Renamed<S, F> {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let theirs = (self.rename)(name);
        self.source.tensor(&theirs).map_err(|error| match error {
            Error::Tensor { reason, .. } => Error::Tensor { name: format!("{theirs} (for {name})"), reason },
            other => other,
        })
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        (**self).tensor(name)
    }
}

/// The files of a model's folder: one file, or several and an index.
///
/// # Errors
/// [`Error::Files`] and [`Error::Checkpoint`].
pub fn read_folder(folder: &Path) -> Result<Shards<SafetensorsFile>> {
    let index: PathBuf = folder.join("model.safetensors.index.json");
    if index.exists() { Shards::read(&index) } else { Ok(Shards(vec![SafetensorsFile::read(&folder.join("model.safetensors"))?])) }
}
