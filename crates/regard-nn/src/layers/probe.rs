//! Hooks: observe and edit activations during a forward pass.
//!
//! ```text
//! stream -> norm -> q, k, v -> (norms, rotary) -> heads()       to look at, and to change
//!                              change()                         other scores than the model's own: scale, temperature, mask
//!                              z = weights v -> results()       per head, before W_O: to look at, and to change
//! stream + z W_O -> stream()
//! stream -> norm -> network -> stream
//! branch()                                                      what attention or network is about to add: to look at, and to change
//! ```
//!
//! A head is z, before the output projection: setting it to zero takes away exactly `z_h W_O^h`.

use super::attention::{Heads, HeadsMut, MultiHeadAttention};
use super::norm::Norm;
use super::pass::Pass;
use crate::float::Float;
use crate::tensors::Weights;
use ndarray::{ArrayView4, ArrayViewMut4};
use regard::{Attention, Mask, Scale};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

/// How scores are to differ from the model's own. By default not at all.
#[derive(Debug, Clone, Default)]
pub struct Change<'a> {
    /// Instead of the model's scale.
    pub scale: Option<Scale>,
    /// Scores are divided by this, after all that is done to them before the mask.
    pub temperature: Option<f64>,
    /// Instead of the model's mask and window.
    pub mask: Option<Mask<'a>>,
    /// Of the keys that are visible so far, only these.
    pub only: Option<Mask<'a>>,
    /// All visible keys have the same score.
    pub flat: bool,
    /// The operands are those of this query head alone.
    pub head: Option<usize>,
}

/// A layer's attention in a pass: what [`Probe::results`] can ask again, also in another way.
#[derive(Debug)]
pub struct Attending<'p> {
    pub(crate) layer: &'p MultiHeadAttention,
    pub(crate) pass: &'p Pass<'p>,
    pub(crate) number: u64,
    /// Where queries stand, when the past is in a cache.
    pub(crate) offsets: Option<Vec<i64>>,
}

impl Attending<'_> {
    /// The attention with this change.
    pub fn attention<'a>(&'a self, change: &Change<'a>) -> Attention<'a> {
        let attention = self.layer.attention(self.pass, self.number, change);
        match &self.offsets {
            Some(offsets) => attention.q_offsets(offsets.as_slice()),
            None => attention,
        }
    }

    /// The position of the first query of a sequence.
    pub fn start(&self, sequence: usize) -> usize {
        self.pass.start(sequence)
    }
}

/// Something that looks into a pass. Every method has a default that does nothing.
pub trait Probe<T> {
    /// The next pass computes these rows of a text of `len` tokens.
    fn pass(&self, rows: Range<usize>, len: usize) {
        let _ = (rows, len);
    }

    /// A flag that ends the pass with [`regard::Error::Interrupted`], checked before each sublayer and each tile of queries.
    fn interrupt(&self) -> Option<&AtomicBool> {
        None
    }

    /// The residual stream before sublayer `number`, which may be changed; with the number of sublayers, after the last.
    fn stream(&self, number: usize, rows: &mut [T]) {
        let _ = (number, rows);
    }

    /// Queries, keys and values of sublayer `number`, after norms and rotary positions, before they attend.
    fn heads(&self, number: usize, heads: &mut HeadsMut<'_, T>) {
        let _ = (number, heads);
    }

    /// How all heads of sublayer `number` make their scores.
    fn change(&self, number: usize) -> Change<'_> {
        let _ = number;
        Change::default()
    }

    /// Whether [`Probe::results`] looks at keys and values of sublayer `number`. Without, those of a cache that stores fewer bits are empty
    /// there: to show them costs a copy of the whole cache.
    fn reads_heads(&self, number: usize) -> bool {
        let _ = number;
        true
    }

    /// The heads' results of sublayer `number`, `[batch, head, seq, dim]`, with what they were made from.
    ///
    /// # Errors
    /// What attention says when it is asked again.
    fn results(&self, number: usize, attending: &Attending<'_>, heads: &Heads<'_, T>, z: ArrayViewMut4<'_, T>) -> regard::Result<()> {
        let _ = (number, attending, heads, z);
        Ok(())
    }

    /// Whether [`Probe::branch`] is to be called for sublayer `number`: its result is then made apart from the stream.
    fn wants_branch(&self, number: usize) -> bool {
        let _ = number;
        false
    }

    /// What attention or network of sublayer `number` is about to add to the stream, biases included.
    fn branch(&self, number: usize, rows: &mut [T]) {
        let _ = (number, rows);
    }
}

/// Observes a backward pass, from the last sublayer to the first. Every method has a default that does nothing.
pub trait GradientProbe<T: Float> {
    /// The gradient of the residual stream before sublayer `number`; with the number of sublayers, after the last.
    fn stream(&self, number: usize, d: &[T]) {
        let _ = (number, d);
    }

    /// The gradient of what attention or network of sublayer `number` adds to the stream.
    fn branch(&self, number: usize, d: &[T]) {
        let _ = (number, d);
    }

    /// The gradient of the heads' results of sublayer `number`, `[batch, head, seq, dim]`, with what they were made from.
    fn results(&self, number: usize, heads: &Heads<'_, T>, d: ArrayView4<'_, T>) {
        let _ = (number, heads, d);
    }

    /// The gradients of queries, keys and values of sublayer `number` as they attend, after norms and positions.
    fn heads(&self, number: usize, d: &Heads<'_, T>) {
        let _ = (number, d);
    }

    /// What sublayer `number` reads of the stream, and the gradients of that.
    fn reads(&self, number: usize, reads: &Reads<'_, T>) {
        let _ = (number, reads);
    }
}

/// What is made of rows that attention reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
}

/// A sublayer's reading of the stream in a backward pass: gradients of the stream by one operand of one head, or by the network.
#[derive(Debug)]
pub struct Reads<'r, T: Float> {
    pub(crate) w: &'r Weights<'r, T>,
    pub(crate) norm: Option<&'r Norm>,
    /// Rows of the stream that are read, and the numbers of their norm.
    pub(crate) x: &'r [T],
    pub(crate) stats: &'r [T],
    pub(crate) attention: Option<&'r MultiHeadAttention>,
    /// On the projected rows of attention; on the rows that the network reads.
    pub(crate) d: &'r [T],
}

impl<T: Float> Reads<'_, T> {
    /// Through the queries, keys or values of one head; of attention sublayers, which are not cross-attention.
    pub fn through(&self, operand: Operand, head: usize) -> Vec<T> {
        let Some(attention) = self.attention else { return Vec::new() };
        let mut d = vec![T::ZERO; self.x.len()];
        attention.input().gradient_through(self.w, self.d, attention.first_of(operand, head), attention.config().head_dim, &mut d);
        self.before_norm(d)
    }

    /// Through the network.
    pub fn network(&self) -> Vec<T> {
        if self.attention.is_some() { Vec::new() } else { self.before_norm(self.d[..self.x.len()].to_vec()) }
    }

    fn before_norm(&self, mut d: Vec<T>) -> Vec<T> {
        if let Some(norm) = self.norm {
            norm.backward_in_place(self.w, self.x, self.stats, &mut d, &mut vec![T::ZERO; 2 * norm.width()]);
        }
        d
    }
}

/// No-op hook.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProbe;

impl<T> Probe<T> for NoProbe {
    fn reads_heads(&self, _: usize) -> bool {
        false
    }
}
impl<T: Float> GradientProbe<T> for NoProbe {}
