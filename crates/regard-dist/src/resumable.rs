//! Rows that absorb their keys in pieces.

use ndarray::ArrayView4;
use regard::{Attention, Element, Error, Finished, GlobalOffset, Result, RunningAttention, Saved, StatsOptions, View};
use std::ops::Range;

/// Attention whose keys are given piece by piece.
pub trait InPieces {
    /// Begin with the rows from `first_query` on of attention whose scores have the shape `[batch, heads_q, seq_q, seq_kv]`. Keys follow in
    /// pieces: the bits of one call, in the memory of the rows and one piece.
    ///
    /// ```
    /// use ndarray::{Array4, s};
    /// use regard::Attention;
    /// use regard_dist::InPieces;
    /// let x = Array4::from_shape_fn((1, 2, 600, 8), |(_, h, i, d)| ((h + i * d) as f32).sin());
    /// let attention = Attention::new().causal();
    /// let mut rows = attention.begin(x.slice(s![.., .., 100..200, ..]), 100, [1, 2, 600, 600]);
    /// for keys in [0..512, 512..600] {
    ///     let piece = x.slice(s![.., .., keys.clone(), ..]);
    ///     rows.absorb(keys.start, piece, piece)?;
    /// }
    /// let whole = attention.forward(&x, &x, &x)?.out;
    /// assert_eq!(rows.finish()?.out, whole.slice(s![.., .., 100..200, ..]));
    /// # Ok::<(), regard::Error>(())
    /// ```
    fn begin<'x, E: Element>(&'x self, q: impl View<'x, E>, first_query: usize, scores: [usize; 4]) -> Rows<'x, E>;
}

impl InPieces for Attention<'_> {
    fn begin<'x, E: Element>(&'x self, q: impl View<'x, E>, first_query: usize, scores: [usize; 4]) -> Rows<'x, E> {
        let part = GlobalOffset { batch: 0, query: first_query, key: 0, whole: scores };
        Rows { attention: self, q: q.into(), part, state: RunningAttention::default(), key_shape: None, result: None }
    }
}

/// Heads and dimensions of keys and values, which all pieces share.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KeyShape {
    heads: usize,
    dim: usize,
    value_dim: usize,
}

/// Rows whose keys are given in pieces, in order. See [`InPieces::begin`].
pub struct Rows<'a, E: Element> {
    attention: &'a Attention<'a>,
    q: ArrayView4<'a, E>,
    /// With the key that is due.
    part: GlobalOffset,
    state: RunningAttention<E::Real>,
    key_shape: Option<KeyShape>,
    result: Option<Finished<E>>,
}

impl<E: Element> Rows<'_, E> {
    /// Collect the statistics of the rows too: see [`regard::stats`].
    #[must_use]
    pub fn with_stats(mut self, options: StatsOptions) -> Self {
        self.state.stats = Some(options);
        self
    }

    /// The next keys and their values: from where the last ones ended to a multiple of 256 or the end.
    ///
    /// # Errors
    /// As [`Attention::forward_part`]; [`Error::Piece`] for keys that are not the next ones. After an error the rows cannot be continued.
    pub fn absorb<'y>(&mut self, first_key: usize, k: impl View<'y, E>, v: impl View<'y, E>) -> Result<()> {
        let (k, v) = (k.into(), v.into());
        let key_shape = KeyShape { heads: k.shape()[1], dim: k.shape()[3], value_dim: v.shape()[3] };
        let due = std::mem::replace(&mut self.part.key, usize::MAX);
        let (len, end) = (self.part.whole[3], first_key.saturating_add(k.shape()[2]));
        if first_key != due || self.key_shape.is_some_and(|before| before != key_shape) {
            return Err(Error::Piece { operand: "keys", start: first_key, end, len });
        }
        let part = GlobalOffset { key: first_key, ..self.part };
        self.result = self.attention.forward_part(part, self.q.view(), k, v, &mut self.state)?;
        (self.part.key, self.key_shape) = (end, Some(key_shape));
        Ok(())
    }

    /// Skip the next keys: before or after all that the rows see, and not the last ones.
    pub(crate) fn skip(&mut self, keys: Range<usize>) -> Result<()> {
        let len = self.part.whole[3];
        if keys.start != self.part.key || keys.end >= len {
            return Err(Error::Piece { operand: "keys", start: keys.start, end: keys.end, len });
        }
        self.part.key = keys.end;
        Ok(())
    }

    /// The results, when all keys were given.
    ///
    /// # Errors
    /// [`Error::Piece`] when some were not.
    pub fn finish(self) -> Result<Saved<E>> {
        Ok(self.finish_with_stats()?.0)
    }

    /// The same, with the statistics of [`Rows::with_stats`].
    ///
    /// # Errors
    /// As [`Rows::finish`].
    pub fn finish_with_stats(self) -> Result<Finished<E>> {
        let (start, len) = (self.part.key, self.part.whole[3]);
        self.result.ok_or(Error::Piece { operand: "keys", start, end: len, len })
    }
}
