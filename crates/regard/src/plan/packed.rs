//! Packed sequences by cumulative lengths.

use crate::error::{Error, Result, check_length};
use std::borrow::Cow;
use std::ops::Range;

/// Cumulative lengths of packed sequences, as flash-attention's `cu_seqlens`: `[0, len_0, len_0 + len_1, ...]`.
///
/// ```
/// use ndarray::{Array4, s};
/// use regard::{Attention, CuSeqlens};
/// // Three sequences of 2, 5 and 1 tokens, two heads of 8 dimensions.
/// let x = Array4::from_shape_fn((1, 2, 8, 8), |(_, h, i, d)| ((h + i * d) as f64).sin());
/// let packed = CuSeqlens::new(vec![0, 2, 7, 8], vec![0, 2, 7, 8]);
/// let all = Attention::new().causal().forward_packed(&x, &x, &x, &packed)?;
/// let second = x.slice(s![.., .., 2..7, ..]);
/// let alone = Attention::new().causal().forward(second, second, second)?;
/// assert_eq!(all.out.slice(s![.., .., 2..7, ..]), alone.out);
/// # Ok::<(), regard::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CuSeqlens<'a> {
    queries: Cow<'a, [usize]>,
    keys: Cow<'a, [usize]>,
}

impl<'a> CuSeqlens<'a> {
    /// By the cumulative lengths of queries and of keys, one more than there are sequences.
    pub fn new(cu_seqlens_q: impl Into<Cow<'a, [usize]>>, cu_seqlens_k: impl Into<Cow<'a, [usize]>>) -> Self {
        Self { queries: cu_seqlens_q.into(), keys: cu_seqlens_k.into() }
    }

    /// How many sequences.
    pub(crate) fn count(&self) -> usize {
        self.queries.len().saturating_sub(1)
    }

    pub(crate) fn check(&self, tokens_q: usize, tokens_k: usize) -> Result<()> {
        for (operand, ends, tokens) in [("cu_seqlens_q", &self.queries, tokens_q), ("cu_seqlens_k", &self.keys, tokens_k)] {
            let wrong = |index: usize| {
                let value = ends[index];
                (index == 0 && value != 0) || (index > 0 && value < ends[index - 1]) || (index + 1 == ends.len() && value != tokens)
            };
            if ends.is_empty() {
                return Err(Error::CumulativeLengths { operand, index: 0, value: 0, tokens });
            }
            if let Some(index) = (0..ends.len()).find(|&index| wrong(index)) {
                return Err(Error::CumulativeLengths { operand, index, value: ends[index], tokens });
            }
        }
        check_length("cu_seqlens_k", self.keys.len(), self.queries.len(), "as many as cu_seqlens_q")
    }

    pub(crate) fn sequence(&self, i: usize) -> [Range<usize>; 2] {
        [self.queries[i]..self.queries[i + 1], self.keys[i]..self.keys[i + 1]]
    }
}
