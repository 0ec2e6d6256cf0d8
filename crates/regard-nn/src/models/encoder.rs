//! An encoder: every token sees every token that exists.

use super::embedding_head::InputEmbedding;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::layers::pass::Pass;
use crate::layers::stack::{Activations, Keep, Stack};
use crate::tensors::Weights;
use crate::tensors::layout::{Gradients, Layout};

/// Embedding and blocks: tokens to rows of meaning.
#[derive(Debug, Clone)]
pub struct Encoder {
    entry: InputEmbedding,
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
        let entry = InputEmbedding::new(layout, &config.embedding(), config.width);
        Ok(Self { entry, stack: Stack::new(layout, config.width, &config.blocks(false), config.last_norm()), context: config.context })
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
    pub fn plan<T: Float>(&self, pass: &Pass<'_>, keep: Keep) -> Activations<T> {
        self.stack.plan(pass, keep)
    }

    /// Tokens `[batch, seq]` to rows, in [`Activations::output`].
    ///
    /// # Errors
    /// When tokens or shapes do not fit.
    pub fn forward<T: Float>(&self, w: &Weights<'_, T>, ids: &[u32], pass: &Pass<'_>, acts: &mut Activations<T>) -> Result<()> {
        self.entry.check(ids, pass)?;
        if acts.input().len() != pass.rows() * self.entry.tokens.width() {
            return Err(Error::Length {
                what: "the planned pass",
                got: acts.input().len(),
                expected: pass.rows() * self.entry.tokens.width(),
            });
        }
        self.entry.forward(w, ids, pass, acts.input());
        self.stack.forward(w, pass, &[], acts)
    }

    /// The gradient of the rows, which was put into [`Activations::gradient`], to the parameters.
    ///
    /// # Errors
    /// When there was no forward pass.
    pub fn backward<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut Gradients<'_, T>,
        ids: &[u32],
        pass: &Pass<'_>,
        acts: &mut Activations<T>,
    ) -> Result<()> {
        self.stack.backward(w, g, pass, &[], &mut [], acts)?;
        self.entry.backward(g, ids, pass, acts.gradient());
        Ok(())
    }
}
