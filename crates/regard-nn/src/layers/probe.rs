//! Looking into a pass, and operating on it.
//!
//! ```text
//! stream -> norm -> q, k, v -> (norms, rotary) -> heads()       to look at, and to change
//!                              options()                        scale, mask and bias of this layer's attention
//!                              z = weights v -> results()       per head, before W_O: to look at, and to change
//! stream + z W_O -> stream()
//! ```
//!
//! A head is z, before the output projection: setting it to zero takes away exactly `z_h W_O^h`.

use super::attention::{Heads, HeadsMut};
use ndarray::ArrayViewMut4;
use regard::Attention;

/// Something that looks into a pass. Every method has a default that does nothing.
pub trait Probe<T> {
    /// The residual stream before sublayer `number`; with the number of sublayers, behind the last.
    fn stream(&self, number: usize, rows: &[T]) {
        let _ = (number, rows);
    }

    /// Queries, keys and values of sublayer `number`, after norms and rotary positions, before they attend.
    fn heads(&self, number: usize, heads: &mut HeadsMut<'_, T>) {
        let _ = (number, heads);
    }

    /// What the attention of sublayer `number` is computed with.
    fn options<'a>(&self, number: usize, attention: Attention<'a>) -> Attention<'a> {
        let _ = number;
        attention
    }

    /// The heads' results of sublayer `number`, `[batch, head, seq, dim]`, with what they were made from.
    fn results(&self, number: usize, attention: &Attention<'_>, heads: &Heads<'_, T>, z: ArrayViewMut4<'_, T>) {
        let _ = (number, attention, heads, z);
    }
}

/// Looks at nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blind;

impl<T> Probe<T> for Blind {}
