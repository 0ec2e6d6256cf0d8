//! A decoder-only language model, by its [`ModelConfig`].

use super::transformer::Transformer;
use crate::config::ModelConfig;
use crate::error::Result;

pub use super::transformer::LmActivations;

/// A decoder-only language model: a [`Transformer`] of the parts that a [`ModelConfig`] says.
#[derive(Debug, Clone)]
pub struct LanguageModel {
    config: ModelConfig,
    parts: Transformer,
}

impl LanguageModel {
    /// A model of this shape.
    ///
    /// # Errors
    /// [`crate::Error::Config`].
    pub fn new(config: ModelConfig) -> Result<Self> {
        config.check()?;
        let parts = Transformer::new(&config.parts());
        Ok(Self { config, parts })
    }

    /// Its shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
}

impl std::ops::Deref for LanguageModel {
    type Target = Transformer;

    fn deref(&self) -> &Transformer {
        &self.parts
    }
}
