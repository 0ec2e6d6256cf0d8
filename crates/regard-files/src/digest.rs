//! SHA-256 in hexadecimal, as `sha256sum` prints it.

use sha2::{Digest, Sha256};
use std::io::Read;

/// Incremental SHA-256.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// An empty hash.
    pub fn new() -> Self {
        Self::default()
    }

    /// Append bytes.
    pub fn update(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.update(bytes);
    }

    /// Append all bytes of a stream.
    ///
    /// # Errors
    /// The stream's.
    pub fn update_from(&mut self, stream: &mut dyn Read) -> std::io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => self.0.update(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// 64 hexadecimal digits.
    pub fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// SHA-256 of bytes.
pub fn digest(bytes: impl AsRef<[u8]>) -> String {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.finish()
}
