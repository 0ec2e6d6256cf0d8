//! Looking into a pass, and operating on it.
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
use super::pass::Pass;
use ndarray::ArrayViewMut4;
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

/// Looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProbe;

impl<T> Probe<T> for NoProbe {}
