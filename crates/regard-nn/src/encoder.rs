//! An encoder: every token sees every token that exists.

use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::lm::Entry;
use crate::look::Call;
use crate::params::Layout;
use crate::stack::{Stack, StackSaved};

/// Embedding and blocks: tokens to rows of meaning.
#[derive(Debug, Clone)]
pub struct Encoder {
    entry: Entry,
    stack: Stack,
    context: usize,
}

impl Encoder {
    /// An encoder whose tensors are added to `layout`.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn new(layout: &mut Layout, config: &ModelConfig) -> Result<Self> {
        config.check()?;
        let entry = Entry::new(layout, config);
        Ok(Self { entry, stack: Stack::new(layout, config, config.layers, false), context: config.context })
    }

    /// Its blocks.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Tokens it can take.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Buffers for a shape.
    pub fn plan<T: Float>(&self, call: &Call<'_>, backward: bool) -> StackSaved<T> {
        self.stack.plan(call, backward)
    }

    /// Tokens `[batch, seq]` to rows, in [`StackSaved::output`].
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn forward<T: Float>(&self, p: &[T], ids: &[u32], call: &Call<'_>, saved: &mut StackSaved<T>) -> Result<()> {
        self.entry.check(ids, call)?;
        if saved.input().len() != call.rows() * self.entry.tokens.width() {
            return Err(Error::Length {
                what: "the planned pass",
                got: saved.input().len(),
                expected: call.rows() * self.entry.tokens.width(),
            });
        }
        self.entry.forward(p, ids, call, saved.input());
        self.stack.forward(p, call, &[], saved)
    }

    /// The gradient of the rows, which was put into [`StackSaved::gradient`], to the parameters.
    ///
    /// # Errors
    /// When there was no forward pass.
    pub fn backward<T: Float>(&self, p: &[T], g: &mut [T], ids: &[u32], call: &Call<'_>, saved: &mut StackSaved<T>) -> Result<()> {
        self.stack.backward(p, g, call, &[], &mut [], saved)?;
        self.entry.backward(g, ids, call, saved.gradient());
        Ok(())
    }
}
