//! Files of named vectors.

use crate::edits::Vectors;
use crate::error::{Error, Result};
use crate::formats::{Archive, SafetensorsFiles};
use regard_files::limits::VECTORS_BYTES;
use regard_nn::tensors::Source;
use std::path::Path;

impl Vectors {
    /// The tensors of a safetensors file, each a vector, by their names.
    ///
    /// # Errors
    /// When it is no such file, or a tensor has several rows or an element that is not finite.
    pub fn read(path: &Path) -> Result<Self> {
        let (file, mut vectors) = (SafetensorsFiles::open(path)?, Self::default());
        let bytes = file.files().iter().map(|file| file.as_ref().len()).sum();
        VECTORS_BYTES.check("vectors", bytes).map_err(|error| Error::damaged(path, error))?;
        for tensor in file.list() {
            let elements = tensor.shape.iter().product::<usize>();
            if tensor.shape.iter().filter(|n| **n != 1).count() > 1 {
                let reason = format!("the tensor {:?} has the shape {:?}; a vector has one dimension", tensor.name, tensor.shape);
                return Err(Error::damaged(path, reason));
            }
            let mut numbers = vec![0f32; elements];
            file.tensor(&tensor.name)?.numbers.widen(0..elements, &mut numbers);
            vectors.insert(&tensor.name, &numbers).map_err(|error| Error::damaged(path, error.to_string()))?;
        }
        Ok(vectors)
    }
}
