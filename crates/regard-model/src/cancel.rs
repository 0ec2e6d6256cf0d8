//! [`Cancel`]: a flag that ends work on a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that ends work with [`crate::Error::Stopped`]; copies share it. Checked before every sublayer, every tile of queries and every
/// 256 rows of the output head.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the work of every handle that has this flag.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// # Errors
    /// [`crate::Error::Stopped`] when the flag is set.
    pub(crate) fn check(&self) -> crate::Result<()> {
        if self.is_cancelled() { Err(crate::Error::Stopped) } else { Ok(()) }
    }
}
