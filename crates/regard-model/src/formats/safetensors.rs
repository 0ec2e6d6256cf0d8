//! `model.safetensors`, or several files and an index that names them. The reader is regard-nn's; here files are mapped and listed.

use super::{Archive, TensorInfo, map, missing};
use crate::disk;
use crate::error::{Error, Result};
use regard::MappedFile;
use regard_files::limits::STATE_BYTES;
use regard_nn::tensors::{SafetensorsFile, Source, Tensor};
use std::path::Path;

/// One or more safetensors files.
#[derive(Debug)]
pub struct SafetensorsFiles(Vec<SafetensorsFile<MappedFile>>);

impl SafetensorsFiles {
    /// One file.
    ///
    /// # Errors
    /// When it cannot be read or is not a whole safetensors file.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self(vec![SafetensorsFile::new(path, map(path)?)?]))
    }

    /// The files that an index names, beside it.
    ///
    /// # Errors
    /// When the index or one of them cannot be used.
    pub fn open_index(index: &Path) -> Result<Self> {
        let text = disk::read(index, STATE_BYTES)?;
        let open = |name: String| {
            let path = index.with_file_name(name);
            Ok(SafetensorsFile::new(&path, map(&path)?)?)
        };
        let names = named(&text).map_err(|reason| Error::damaged(index, reason))?;
        names.into_iter().map(open).collect::<Result<_>>().map(Self)
    }
}

/// The files that an index names, each once.
fn named(index: &[u8]) -> std::result::Result<Vec<String>, String> {
    let json: serde_json::Value = serde_json::from_slice(index).map_err(|e| format!("it is not JSON ({e})"))?;
    let names = json["weight_map"].as_object().ok_or("it has no weight_map")?;
    let mut names: Vec<&str> = names.values().filter_map(serde_json::Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let plain = |name: &str| {
        // A plain name: an index must not reach outside of its folder.
        let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
        if is_plain { Ok(name.to_owned()) } else { Err(format!("it names the file {name:?}, which is not beside it")) }
    };
    names.into_iter().map(plain).collect()
}

/// The files that any bytes name as an index would: for tests that throw damaged ones at it.
#[doc(hidden)]
pub fn names(index: &[u8]) -> Vec<String> {
    named(index).unwrap_or_default()
}

impl Source for SafetensorsFiles {
    fn tensor(&self, name: &str) -> regard_nn::Result<Tensor<'_>> {
        self.0.iter().find(|file| file.has(name)).ok_or_else(|| missing(name))?.tensor(name)
    }
}

impl Archive for SafetensorsFiles {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|file| file.has(name))
    }

    fn list(&self) -> Vec<TensorInfo> {
        let info = |(name, shape, kind, bytes)| TensorInfo { name, shape, kind, bytes };
        let mut list: Vec<TensorInfo> = self.0.iter().flat_map(|file| file.list()).map(info).collect();
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list
    }

    fn files(&self) -> Vec<&MappedFile> {
        self.0.iter().map(SafetensorsFile::bytes).collect()
    }
}
