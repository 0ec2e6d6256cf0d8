//! Serialisation of the running state, to continue in another process.
//!
//! ```text
//! "rows   2"   place of the next piece: batch entry, query, key, shape of all scores; 1 after the last piece      integers of 8 bytes
//! size of a number   query tiles                                         integers of 4 bytes, all little-endian
//! each tile:   sums of splits     rows     dimensions of values
//! each sum:    elements            row_max, row_sum, acc of each row      none where no row has seen anything
//! ```

use super::RunningAttention;
use crate::error::{Error, Result};
use crate::forward::softmax::OwnedState;
use crate::plan::{GlobalOffset, Progress};
use regard_simd::Real;

/// Magic bytes with the version.
const FORM: &[u8; 8] = b"rows   2";

/// The place of the next piece before the first one.
const NO_PIECE: GlobalOffset = GlobalOffset { batch: usize::MAX, query: usize::MAX, key: usize::MAX, whole: [usize::MAX; 4] };

impl<T: Real> RunningAttention<T> {
    /// Serialise the state: `value_dim + 2` elements for each row, and as many again where keys were cut within a split of 2048.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with statistics.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if self.stats.is_some() {
            return Err(Error::Unsupported { what: "a running state with statistics as bytes" });
        }
        let mut bytes = FORM.to_vec();
        let Progress { next, finished } = self.progress;
        let GlobalOffset { batch, query, key, whole } = next.unwrap_or(NO_PIECE);
        let place = [batch, query, key, whole[0], whole[1], whole[2], whole[3], usize::from(finished)];
        place.into_iter().for_each(|n| bytes.extend((n as u64).to_le_bytes()));
        let put = |bytes: &mut Vec<u8>, n: usize| bytes.extend((n as u32).to_le_bytes());
        [size_of::<T>(), self.states.len()].into_iter().for_each(|n| put(&mut bytes, n));
        for states in &self.states {
            let [rows, dims] = states.first().map_or([0; 2], |state| [state.layout.rows, state.layout.dims]);
            [states.len(), rows, dims].into_iter().for_each(|n| put(&mut bytes, n));
            for numbers in states.iter().map(OwnedState::numbers) {
                put(&mut bytes, numbers.len());
                let numbers = numbers.into_iter().map(T::to_f64);
                if size_of::<T>() == 4 {
                    numbers.for_each(|x| bytes.extend((x as f32).to_le_bytes()));
                } else {
                    numbers.for_each(|x| bytes.extend(x.to_le_bytes()));
                }
            }
        }
        Ok(bytes)
    }

    /// Restore a serialised state. Precomputed splits ([`precompute_splits`](crate::Attention::precompute_splits)) stay.
    ///
    /// # Errors
    /// [`Error::State`] for bytes that are not a state, or that have another element type.
    pub fn read_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let mut from = Reader { bytes, all: bytes.len() };
        if from.take(FORM.len())? != FORM {
            return Err(Error::State { what: "bytes of its kind and version at its beginning", got: 0, expected: FORM.len() });
        }
        let next = GlobalOffset {
            batch: from.place()?,
            query: from.place()?,
            key: from.place()?,
            whole: [from.place()?, from.place()?, from.place()?, from.place()?],
        };
        let progress = Progress { next: Some(next).filter(|next| *next != NO_PIECE), finished: from.place()? != 0 };
        from.expect("bytes to a number", size_of::<T>())?;
        let mut tiles = Vec::new();
        for _ in 0..from.count()? {
            let (sums, shape) = (from.count()?, [from.count()?, from.count()?]);
            let numbers = shape[1].checked_add(2).and_then(|per_row| shape[0].checked_mul(per_row)).unwrap_or(usize::MAX);
            let mut states = Vec::new();
            for _ in 0..sums {
                let got = from.count()?;
                if got != 0 && got != numbers {
                    return Err(Error::State { what: "numbers", got, expected: numbers });
                }
                let bytes = from.take(got.saturating_mul(size_of::<T>()))?;
                let number = |x: &[u8]| match (<[u8; 4]>::try_from(x), <[u8; 8]>::try_from(x)) {
                    (Ok(x), _) => f64::from(f32::from_le_bytes(x)),
                    (_, Ok(x)) => f64::from_le_bytes(x),
                    _ => f64::NAN,
                };
                let numbers: Vec<T> = bytes.chunks_exact(size_of::<T>()).map(|x| T::from_f64(number(x))).collect();
                states.push(OwnedState::from_numbers(shape, &numbers));
            }
            tiles.push(states);
        }
        from.end()?;
        (self.states, self.progress) = (tiles, progress);
        Ok(())
    }
}

/// Bounds-checked little-endian reader.
struct Reader<'b> {
    bytes: &'b [u8],
    all: usize,
}

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Result<&'b [u8]> {
        let missing = count.saturating_sub(self.bytes.len());
        let short = Error::State { what: "bytes", got: self.all, expected: self.all.saturating_add(missing) };
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn count(&mut self) -> Result<usize> {
        Ok(self.take(4)?.iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte)))
    }

    fn place(&mut self) -> Result<usize> {
        Ok(self.take(8)?.iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte)))
    }

    fn expect(&mut self, what: &'static str, expected: usize) -> Result<()> {
        let got = self.count()?;
        if got == expected { Ok(()) } else { Err(Error::State { what, got, expected }) }
    }

    fn end(&self) -> Result<()> {
        let expected = self.all - self.bytes.len();
        if self.bytes.is_empty() { Ok(()) } else { Err(Error::State { what: "bytes", got: self.all, expected }) }
    }
}
