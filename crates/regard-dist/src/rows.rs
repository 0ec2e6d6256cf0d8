//! Rows whose keys come in pieces.

use ndarray::ArrayView4;
use regard::{Attention, Element, Error, Part, Result, RowsDone, RowsSoFar, Saved, StatsOptions, View};
use std::ops::Range;

/// Attention that begins with some rows, and gets its keys afterwards.
pub trait InPieces {
    /// Attend with the rows from `first_query` on of attention whose scores have the shape `[batch, heads_q, seq_q, seq_kv]`, to keys that come in
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
        let part = Part { batch: 0, query: first_query, key: 0, whole: scores };
        Rows { attention: self, q: q.into(), part, so_far: RowsSoFar::default(), other: None, result: None }
    }
}

/// Rows whose keys come in pieces, in order. See [`InPieces::begin`].
pub struct Rows<'a, E: Element> {
    attention: &'a Attention<'a>,
    q: ArrayView4<'a, E>,
    /// With the key that is due.
    part: Part,
    so_far: RowsSoFar<E::Real>,
    /// Heads and dimensions of keys and values, which all pieces have.
    other: Option<[usize; 3]>,
    result: Option<RowsDone<E>>,
}

impl<E: Element> Rows<'_, E> {
    /// Collect the statistics of the rows as well: see [`regard::stats`].
    #[must_use]
    pub fn with_stats(mut self, options: StatsOptions) -> Self {
        self.so_far.stats = Some(options);
        self
    }

    /// The next keys and their values: from where the last ones ended to a multiple of 256 or the end.
    ///
    /// # Errors
    /// As [`Attention::forward_part`]; [`Error::Piece`] for keys that are not the next ones. After an error there are no next ones.
    pub fn absorb<'y>(&mut self, first_key: usize, k: impl View<'y, E>, v: impl View<'y, E>) -> Result<()> {
        let (k, v) = (k.into(), v.into());
        let other = [k.shape()[1], k.shape()[3], v.shape()[3]];
        let due = std::mem::replace(&mut self.part.key, usize::MAX);
        let (len, end) = (self.part.whole[3], first_key.saturating_add(k.shape()[2]));
        if first_key != due || self.other.is_some_and(|before| before != other) {
            return Err(Error::Piece { operand: "keys", start: first_key, end, len });
        }
        let part = Part { key: first_key, ..self.part };
        self.result = self.attention.forward_part(part, self.q.view(), k, v, &mut self.so_far)?;
        (self.part.key, self.other) = (end, Some(other));
        Ok(())
    }

    /// The next keys: before or after all that the rows see any of, and not the last ones.
    pub(crate) fn skip(&mut self, keys: Range<usize>) -> Result<()> {
        let len = self.part.whole[3];
        if keys.start != self.part.key || keys.end >= len {
            return Err(Error::Piece { operand: "keys", start: keys.start, end: keys.end, len });
        }
        self.part.key = keys.end;
        Ok(())
    }

    /// The results, when all keys have been there.
    ///
    /// # Errors
    /// [`Error::Piece`] when some have not.
    pub fn finish(self) -> Result<Saved<E>> {
        Ok(self.finish_with_stats()?.0)
    }

    /// The same, with the statistics if they were [asked for](Self::with_stats).
    ///
    /// # Errors
    /// As [`Rows::finish`].
    pub fn finish_with_stats(self) -> Result<RowsDone<E>> {
        let (start, len) = (self.part.key, self.part.whole[3]);
        self.result.ok_or(Error::Piece { operand: "keys", start, end: len, len })
    }
}
