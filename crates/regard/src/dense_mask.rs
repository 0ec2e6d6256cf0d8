//! A dense mask that lies in memory in the usual order, read line by line: one line of truth values per query, or one that serves all.

use crate::mask::{CowBase, Place, TileCoverage, broadcast_index};
use crate::simd::{Lanes, Operation, Real};
use ndarray::Ix4;
use std::ops::Range;

/// The lines of some queries.
pub(crate) struct DenseLines<'m> {
    data: &'m [bool],
    first: usize,
    /// From one query to the next; 0 where one line serves all.
    stride: usize,
    queries: usize,
    /// One truth value per line serves all keys.
    same_for_keys: bool,
}

impl<'m> DenseLines<'m> {
    /// `None` where the mask lies in another order.
    pub(crate) fn new(mask: &'m CowBase<'_, bool, Ix4>, place: &Place, queries: &Range<usize>) -> Option<Self> {
        let data = mask.as_slice()?;
        let shape = mask.shape();
        let [b, h, q, _] = broadcast_index(shape, [place.batch, place.head, queries.start, 0]);
        let first = ((b * shape[1] + h) * shape[2] + q) * shape[3];
        let stride = if shape[2] == 1 { 0 } else { shape[3] };
        Some(Self { data, first, stride, queries: queries.len(), same_for_keys: shape[3] == 1 })
    }

    /// How much of the lines is visible at these keys.
    pub(crate) fn coverage(&self, keys: &Range<usize>) -> TileCoverage {
        // As bytes: sixteen at a time without a thought of the SIMD level.
        let (mut any, mut all) = (0, 1);
        for r in 0..self.distinct() {
            for &on in self.line(r, keys) {
                any |= u8::from(on);
                all &= u8::from(on);
            }
            if any != all {
                return TileCoverage::Partial;
            }
        }
        if all == 1 { TileCoverage::Full } else { TileCoverage::Empty }
    }

    /// How many lines differ.
    fn distinct(&self) -> usize {
        if self.stride == 0 { 1 } else { self.queries }
    }

    #[inline(always)]
    fn line(&self, r: usize, keys: &Range<usize>) -> &'m [bool] {
        let start = self.first + r * self.stride;
        if self.same_for_keys { &self.data[start..=start] } else { &self.data[start + keys.start..start + keys.end] }
    }
}

/// Bit `r` of `bits[j]` is cleared where line `r` is false for key j.
pub(crate) struct AndLines<'k> {
    pub(crate) lines: DenseLines<'k>,
    pub(crate) keys: Range<usize>,
    pub(crate) bits: &'k mut [u32],
}

impl<T: Real> Operation<T> for AndLines<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { lines, keys, bits } = self;
        for r in 0..lines.distinct() {
            let line = lines.line(r, &keys);
            let mine = if lines.stride == 0 { u32::MAX } else { 1 << r };
            if lines.same_for_keys {
                if !line[0] {
                    bits.iter_mut().for_each(|bits| *bits &= !mine);
                }
            } else {
                // The next keys of the line come up soon, and lines are too far apart for the CPU to see that.
                (0..line.len()).step_by(64).for_each(|at| simd.prefetch(line.as_ptr().wrapping_add(line.len() + at)));
                for (bits, &on) in bits.iter_mut().zip(line) {
                    // All ones for true, all zeros for false.
                    *bits &= u32::from(on).wrapping_neg() | !mine;
                }
            }
        }
    }
}
