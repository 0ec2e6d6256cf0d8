//! A digest of everything in a model that decides its results.

use crate::error::Result;
use crate::model::Model;
use regard_files::Hasher;
use regard_nn::tensors::source::Source;

/// Elements that are widened at a time.
const CHUNK: usize = 1 << 14;

impl Model {
    /// SHA-256 of the architecture and of all tensors that it reads, independent of path, format and time.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub fn digest(&self) -> Result<String> {
        let mut hasher = Hasher::new();
        hasher.update(format!("{:?}", self.transformer()));
        let mut values = vec![0f32; CHUNK];
        for entry in self.transformer().layout().entries() {
            let tensor = self.tensor_source().tensor(&entry.name)?;
            hasher.update(format!("{} {:?} {}", entry.name, tensor.shape, tensor.numbers.kind()));
            let len = tensor.numbers.len();
            for start in (0..len).step_by(CHUNK) {
                let end = (start + CHUNK).min(len);
                tensor.numbers.widen(start..end, &mut values[..end - start]);
                hasher.update(bytemuck::cast_slice::<f32, u8>(&values[..end - start]));
            }
        }
        Ok(hasher.finish())
    }
}
