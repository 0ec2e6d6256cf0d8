//! One bit per query and key, for the tiles that are partly visible.

use super::algebra::{HeadPosition, Mask, Rule, broadcast_index};
use super::coverage::TileCoverage;
use crate::arrays::CowBase;
use ndarray::{ArrayView2, Axis, Ix4};
use regard_simd::{Kernel, Real, Simd};
use std::ops::Range;

/// Most keys of one call of [`Mask::and_bits`].
pub(crate) const MOST_KEYS: usize = 128;

impl Mask<'_> {
    /// `bits[j]` loses bit `r` where query `queries.start + r` does not see key `keys.start + j`. At most 32 queries
    /// and a tile of keys.
    pub(crate) fn and_bits<S: Simd>(&self, simd: S, at: &HeadPosition, queries: Range<usize>, keys: Range<usize>, bits: &mut [u32]) {
        debug_assert!(queries.len() <= 32 && bits.len() == keys.len());
        match &self.0 {
            Rule::Everything => {}
            Rule::Band { low, high } => {
                let first = at.position(queries.start);
                for (bits, key) in bits.iter_mut().zip(keys) {
                    let d = (key as i64).saturating_sub(first);
                    // low <= d - r <= high
                    let from = high.map_or(0, |h| d.saturating_sub(h));
                    let to = low.map_or(32, |l| d.saturating_sub(l).saturating_add(1));
                    *bits &= below(to) & !below(from);
                }
            }
            Rule::FirstKeys(n) => hide_from(bits, keys.start, *n),
            Rule::KeyLengths(lengths) => hide_from(bits, keys.start, lengths[at.batch]),
            Rule::Dense(m) => simd.call(AndLines { lines: DenseLines::new(m, at, &queries, &keys), bits }),
            Rule::All(masks) => {
                for m in masks {
                    m.and_bits(simd, at, queries.clone(), keys.clone(), bits);
                }
            }
            Rule::Any(masks) => {
                let (mut any, mut one) = ([0; MOST_KEYS], [0; MOST_KEYS]);
                let (any, one) = (&mut any[..bits.len()], &mut one[..bits.len()]);
                for m in masks {
                    one.fill(u32::MAX);
                    m.and_bits(simd, at, queries.clone(), keys.clone(), one);
                    any.iter_mut().zip(&*one).for_each(|(a, o)| *a |= o);
                }
                bits.iter_mut().zip(&*any).for_each(|(b, a)| *b &= a);
            }
            Rule::Not(mask) => {
                let mut inner = [u32::MAX; MOST_KEYS];
                let inner = &mut inner[..bits.len()];
                mask.and_bits(simd, at, queries, keys, inner);
                bits.iter_mut().zip(&*inner).for_each(|(b, i)| *b &= !i);
            }
            Rule::Documents { .. } | Rule::Blocks { .. } | Rule::Custom(_) => self.and_bits_one_by_one(at, queries, keys, bits),
        }
    }

    fn and_bits_one_by_one(&self, at: &HeadPosition, queries: Range<usize>, keys: Range<usize>, bits: &mut [u32]) {
        for (bits, key) in bits.iter_mut().zip(keys) {
            for (r, query) in queries.clone().enumerate() {
                *bits &= !(u32::from(!self.visible(at, query, key)) << r);
            }
        }
    }
}

/// The lowest `n` bits.
fn below(n: i64) -> u32 {
    match n {
        ..=0 => 0,
        1..=31 => (1 << n) - 1,
        _ => u32::MAX,
    }
}

fn hide_from(bits: &mut [u32], first_key: usize, end: usize) {
    let visible = end.saturating_sub(first_key).min(bits.len());
    bits[visible..].fill(0);
}

/// A part of a dense mask, `[query, key]`, of any strides; an axis of length 1 is the same for all.
pub(super) struct DenseLines<'m> {
    view: ArrayView2<'m, bool>,
}

impl<'m> DenseLines<'m> {
    pub(super) fn new(mask: &'m CowBase<'_, bool, Ix4>, at: &HeadPosition, queries: &Range<usize>, keys: &Range<usize>) -> Self {
        let [b, h, _, _] = broadcast_index(mask.shape(), [at.batch, at.head, 0, 0]);
        let mut view = mask.view().index_axis_move(Axis(0), b).index_axis_move(Axis(0), h);
        for (axis, range) in [(0, queries), (1, keys)] {
            // What was broadcast by a stride of 0 is the same for all, too.
            let same = view.len_of(Axis(axis)) == 1 || view.strides()[axis] == 0;
            let range = if same { 0..1 } else { range.clone() };
            view.slice_axis_inplace(Axis(axis), range.into());
        }
        Self { view }
    }

    /// How much is visible.
    pub(super) fn coverage(&self) -> TileCoverage {
        // In memory order.
        let lines = if self.has_columns() { self.view.reversed_axes() } else { self.view };
        let (mut any, mut all) = (0, 1);
        for line in lines.outer_iter() {
            let mut see = |on: &bool| {
                any |= u8::from(*on);
                all &= u8::from(*on);
            };
            // As bytes: auto-vectorised.
            match line.to_slice() {
                Some(line) => line.iter().for_each(&mut see),
                None => line.iter().for_each(&mut see),
            }
            if any != all {
                return TileCoverage::Partial;
            }
        }
        if all == 1 { TileCoverage::Full } else { TileCoverage::Empty }
    }

    /// Neighbours in memory are queries.
    fn has_columns(&self) -> bool {
        self.view.strides()[0] == 1 && self.view.strides()[1] != 1 && self.view.nrows() > 1
    }
}

/// Bit `r` of `bits[j]` is cleared where line `r` is false for key j.
struct AndLines<'k> {
    lines: DenseLines<'k>,
    bits: &'k mut [u32],
}

impl<T: Real> Kernel<T> for AndLines<'_> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { lines, bits } = self;
        let view = lines.view;
        if lines.has_columns() {
            for (j, column) in view.axis_iter(Axis(1)).enumerate() {
                let visible = column.iter().enumerate().fold(0, |word, (r, &on)| word | u32::from(on) << r);
                let to = if view.ncols() == 1 { &mut bits[..] } else { &mut bits[j..=j] };
                to.iter_mut().for_each(|bits| *bits &= visible);
            }
            return;
        }
        for (r, line) in view.outer_iter().enumerate() {
            let mine = if view.nrows() == 1 { u32::MAX } else { 1 << r };
            match line.to_slice() {
                _ if line.len() == 1 => {
                    if !line[0] {
                        bits.iter_mut().for_each(|bits| *bits &= !mine);
                    }
                }
                Some(line) => {
                    // The next keys of the line come up soon, and lines are too far apart for the CPU to see that.
                    (0..line.len()).step_by(64).for_each(|at| simd.prefetch(line.as_ptr().wrapping_add(line.len() + at)));
                    for (bits, &on) in bits.iter_mut().zip(line) {
                        // All ones for true, all zeros for false.
                        *bits &= u32::from(on).wrapping_neg() | !mine;
                    }
                }
                None => {
                    for (bits, &on) in bits.iter_mut().zip(line) {
                        *bits &= u32::from(on).wrapping_neg() | !mine;
                    }
                }
            }
        }
    }
}
