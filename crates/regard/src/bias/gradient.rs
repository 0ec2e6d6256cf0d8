//! The gradient of a bias: that of the scores, summed over whatever the bias is the same for.
//!
//! A bias with a value per pair gets sums of the type that is computed in; where queries or keys share one, sums are f64, as many as the
//! bias has elements (times batch entries and heads for slopes and tables, which are added up at the end). Sums are made in a fixed order,
//! row by row, so that neither threads nor the width of a vector change a bit.

use super::{Bias, match_dense};
use crate::arrays::{cut, filled};
use crate::error::Result;
use crate::mask::HeadPosition;
use ndarray::{Array2, Array4, ArrayViewMut2, ArrayViewMut4, Axis};
use regard_simd::{Kernel, Real, Simd, Transpose};
use std::any::Any;
use std::ops::Range;

/// The gradient of a [`Bias`], in the shape of the bias.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum BiasGradient {
    /// Of [`Bias::Dense`] and of the half types, in its own (broadcast) shape.
    Dense(Array4<f32>),
    /// Of [`Bias::Dense64`], in its own (broadcast) shape.
    Dense64(Array4<f64>),
    /// Of the slopes of [`Bias::Alibi`].
    Alibi(Vec<f64>),
    /// Of the table of [`Bias::Relative`].
    Relative(Array2<f32>),
}

/// Sums of a whole call.
pub(crate) enum BiasTotals<T> {
    /// `[batch or 1, head or 1, query, key]`.
    Pairs(Array4<T>),
    /// `[batch or 1, head or 1, query or 1, key or 1]`, one of the last two being 1.
    Shared(Array4<f64>),
    /// `[batch, head, 1, place in the table]`; for slopes the two elements of a [`Compensated`] sum.
    Table(Array4<f64>),
}

/// The part of them that a task adds to.
pub(crate) enum BiasSums<'v, T> {
    Pairs(ArrayViewMut4<'v, T>),
    Shared(ArrayViewMut4<'v, f64>),
    Table(ArrayViewMut4<'v, f64>),
}

impl<T: Real> BiasTotals<T> {
    /// Zeros, for scores of this shape.
    pub(crate) fn new(bias: &Bias<'_>, [batch, heads, seq_q, seq_kv]: [usize; 4]) -> Result<Self> {
        let what = "the gradient of a bias";
        let table = |places: usize| Ok(Self::Table(filled(what, [batch, heads, 1, places], 0.0)?));
        match_dense!(bias, b => {
            let (b, h, n, m) = b.dim();
            let shape = [b, h, n, m];
            // One query, or one key, is not shared.
            let shared = (n == 1 && seq_q > 1) || (m == 1 && seq_kv > 1);
            Ok(if shared { Self::Shared(filled(what, shape, 0.0)?) } else { Self::Pairs(filled(what, shape, T::ZERO)?) })
        },
            Bias::Alibi(_) => table(2),
            Bias::Relative(numbers) => table(numbers.ncols())
        )
    }

    /// Whether the batch entries, the heads, and the keys have sums of their own, so that they can be worked on in parallel.
    pub(crate) fn apart(&self, scores: [usize; 4]) -> [bool; 3] {
        let apart = |shape: &[usize]| [0, 1, 3].map(|axis| shape[axis] == scores[axis]);
        match self {
            Self::Pairs(sums) => apart(sums.shape()),
            Self::Shared(sums) => apart(sums.shape()),
            Self::Table(_) => [true, true, false],
        }
    }

    /// Queries share a number.
    pub(crate) fn shares_queries(&self) -> bool {
        matches!(self, Self::Shared(sums) if sums.len_of(Axis(2)) == 1)
    }

    /// The parts of the units of work, in order.
    pub(crate) fn parts(&mut self, sizes: UnitSizes) -> Vec<BiasSums<'_, T>> {
        match self {
            Self::Pairs(sums) => sizes.parts(sums.view_mut()).into_iter().map(BiasSums::Pairs).collect(),
            Self::Shared(sums) => sizes.parts(sums.view_mut()).into_iter().map(BiasSums::Shared).collect(),
            // Its last axis is not the keys.
            Self::Table(sums) => UnitSizes { keys: usize::MAX, ..sizes }.parts(sums.view_mut()).into_iter().map(BiasSums::Table).collect(),
        }
    }

    /// The sums, as the gradient of the bias.
    pub(crate) fn finish(self, bias: &Bias<'_>) -> BiasGradient {
        match (bias, self) {
            (Bias::Dense64(_), Self::Pairs(sums)) => BiasGradient::Dense64(as_type(sums)),
            (Bias::Dense64(_), Self::Shared(sums)) => BiasGradient::Dense64(sums),
            (_, Self::Pairs(sums)) => BiasGradient::Dense(as_type(sums)),
            (_, Self::Shared(sums)) => BiasGradient::Dense(sums.mapv(|x| x as f32)),
            (Bias::Relative(table), Self::Table(sums)) => {
                let total = table_total(&sums);
                let total = if table.nrows() == 1 { total.sum_axis(Axis(0)).insert_axis(Axis(0)) } else { total };
                BiasGradient::Relative(total.mapv(|x| x as f32))
            }
            (_, Self::Table(sums)) => BiasGradient::Alibi(slope_totals(&sums)),
        }
    }
}

/// Batch entries, query heads and keys of a unit of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnitSizes {
    pub(crate) batches: usize,
    pub(crate) heads: usize,
    pub(crate) keys: usize,
}

impl UnitSizes {
    /// The parts of a tensor `[batch, head, _, key]`, in order; an axis of length 1 is in all of them.
    fn parts<'v, T>(&self, view: ArrayViewMut4<'v, T>) -> Vec<ArrayViewMut4<'v, T>> {
        let by_head = cut(view, 0, self.batches).into_iter().flat_map(|view| cut(view, 1, self.heads));
        by_head.flat_map(|view| cut(view, 3, self.keys)).collect()
    }
}

fn as_type<T: Real, B: Real>(sums: Array4<T>) -> Array4<B> {
    let sums: Box<dyn Any> = Box::new(sums);
    // Where the bias is of the type that the arithmetic is done in, the sums are the result.
    match sums.downcast::<Array4<B>>() {
        Ok(sums) => *sums,
        Err(sums) => sums.downcast_ref::<Array4<T>>().expect("it is what it was").mapv(|x| B::from_f64(x.to_f64())),
    }
}

/// `[head, place]`: over batch entries, in order.
fn table_total(sums: &Array4<f64>) -> Array2<f64> {
    let mut total = Array2::zeros([sums.len_of(Axis(1)), sums.len_of(Axis(3))]);
    for batch in sums.outer_iter() {
        total += &batch.index_axis(Axis(1), 0);
    }
    total
}

/// One per head: over batch entries, in order.
fn slope_totals(sums: &Array4<f64>) -> Vec<f64> {
    let total = |head: usize| {
        let mut total = Compensated::default();
        sums.slice(ndarray::s![.., head, 0, ..]).iter().for_each(|&x| total.add(x));
        total.sum + total.rest
    };
    (0..sums.len_of(Axis(1))).map(total).collect()
}

/// A sum and what was lost in rounding it (Neumaier): distances are large, and the gradients of a row cancel.
#[derive(Debug, Clone, Copy, Default)]
struct Compensated {
    sum: f64,
    rest: f64,
}

impl Compensated {
    fn add(&mut self, x: f64) {
        let Self { sum, .. } = *self;
        let total = sum + x;
        self.sum = total;
        // What is not finite has no rest: infinity stays infinity.
        if total.is_finite() {
            self.rest += if sum.abs() >= x.abs() { (sum - total) + x } else { (x - total) + sum };
        }
    }
}

/// The gradients of the scores of some rows of a head: `ds[key][row]`, keys `ld` apart.
pub(crate) struct ScoreRows<'d, T> {
    pub(crate) at: &'d HeadPosition,
    /// Batch entry, head and first key within the task's parts, and the first query within the call.
    pub(crate) place: [usize; 4],
    pub(crate) queries: Range<usize>,
    pub(crate) keys: &'d Range<usize>,
    pub(crate) ds: &'d [T],
    pub(crate) ld: usize,
}

impl<T: Real> BiasSums<'_, T> {
    /// Written all the same: one write fault per page instead of a read fault and a copy-on-write fault.
    pub(crate) fn touch(&mut self) {
        if let Self::Pairs(view) = self {
            view.fill(T::ZERO);
        }
    }

    pub(crate) fn add<S: Simd<T = T>>(&mut self, simd: S, bias: &Bias<'_>, rows: &ScoreRows<'_, T>) {
        let ScoreRows { at, place: [batch, head, first_key, first_query], queries, keys, ds, ld } = rows;
        let (count, ld) = (queries.len(), *ld);
        let row = |r: usize| Range::clone(keys).zip(ds[r..].iter().step_by(ld));
        match self {
            Self::Pairs(view) => {
                let [b, h] = [(0, *batch), (1, *head)].map(|(axis, at)| if view.len_of(Axis(axis)) == 1 { 0 } else { at });
                let (query, key) = (*first_query..first_query + count, *first_key..first_key + keys.len());
                simd.call(AddTransposed { ds, ld, to: view.slice_mut(ndarray::s![b, h, query, key]) });
            }
            Self::Shared(view) => {
                let shape: [usize; 4] = std::array::from_fn(|axis| view.len_of(Axis(axis)));
                let at = |axis: usize, at: usize| if shape[axis] == 1 { 0 } else { at };
                let mut lines = view.slice_mut(ndarray::s![at(0, *batch), at(1, *head), .., ..]);
                for r in 0..count {
                    let mut line = lines.row_mut(at(2, first_query + r));
                    if line.len() == 1 {
                        line[0] += row(r).map(|(_, x)| x.to_f64()).sum::<f64>();
                    } else {
                        row(r).zip(line.iter_mut().skip(*first_key)).for_each(|((_, x), to)| *to += x.to_f64());
                    }
                }
            }
            Self::Table(view) => {
                let mut table = view.slice_mut(ndarray::s![*batch, *head, 0usize, ..]);
                let mut slope = Compensated { sum: table[0], rest: table[table.len() - 1] };
                for (r, query) in queries.clone().enumerate() {
                    let distance = |key: usize| (key as i64).saturating_sub(at.position(query));
                    match bias {
                        // Forward, score += -slope * |distance|
                        Bias::Alibi(_) => row(r).for_each(|(key, x)| slope.add(-(distance(key).unsigned_abs() as f64) * x.to_f64())),
                        // Forward, score += table[distance]
                        _ => {
                            let reach = (table.len() / 2) as i64;
                            row(r).for_each(|(key, x)| table[(distance(key).clamp(-reach, reach) + reach) as usize] += x.to_f64());
                        }
                    }
                }
                if matches!(bias, Bias::Alibi(_)) {
                    (table[0], table[1]) = (slope.sum, slope.rest);
                }
            }
        }
    }
}

/// `to[row][key] += ds[key][row]`
struct AddTransposed<'k, T> {
    ds: &'k [T],
    ld: usize,
    /// `[row, key]`, keys contiguous.
    to: ArrayViewMut2<'k, T>,
}

impl<T: Real> Kernel<T> for AddTransposed<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { ds, ld, mut to } = self;
        let ((rows, keys), stride) = (to.dim(), to.strides()[0]);
        assert!(keys == 0 || ds.len() >= (keys - 1) * ld + rows);
        assert!(to.strides()[1] == 1 || keys <= 1);
        // SAFETY: `to` has these rows and keys, contiguous in a row; `ds` has a row of `rows` elements for each key. Both were just
        // checked.
        unsafe { add_transposed(simd.narrow(), ds, ld, [rows, keys], to.as_mut_ptr(), stride) };
    }
}

/// # Safety
/// `to` must be valid for `keys` contiguous elements in each of `rows` rows, `stride` apart, and `ds` have `rows` elements at each `key *
/// ld`.
#[inline(always)]
unsafe fn add_transposed<S: Transpose>(simd: S, ds: &[S::T], ld: usize, [rows, keys]: [usize; 2], to: *mut S::T, stride: isize) {
    let (whole_rows, whole_keys) = (rows - rows % S::LANES, keys - keys % S::LANES);
    // Rows first: they are often a power of two apart, and few such rows fit into L1 together.
    for row in (0..whole_rows).step_by(S::LANES) {
        for key in (0..whole_keys).step_by(S::LANES) {
            // SAFETY: LANES keys from `key` and LANES rows from `row` on are inside `ds`, and inside the rows and keys that the caller
            // checked `to` for.
            unsafe {
                let square = simd.load_transposed(ds.as_ptr().add(key * ld + row), ld as isize);
                for (x, &line) in square.as_ref().iter().enumerate() {
                    let at = to.offset((row + x) as isize * stride).add(key);
                    simd.store(at, simd.add(simd.load(at), line));
                }
            }
        }
    }
    let one = |row: usize, key: usize| {
        // SAFETY: the row and the key are among those that the caller checked `to` for.
        unsafe { *to.offset(row as isize * stride).add(key) += ds[key * ld + row] };
    };
    (0..whole_rows).for_each(|row| (whole_keys..keys).for_each(|key| one(row, key)));
    (whole_rows..rows).for_each(|row| (0..keys).for_each(|key| one(row, key)));
}
