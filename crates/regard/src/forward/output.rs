//! Where finished rows go.

use crate::walk::tiling::Panel;
use ndarray::{ArrayViewMut2, ArrayViewMut3, Axis};
use regard_simd::strided::{TransposeOut, as_uninit};
use regard_simd::{Real, Simd, Storage};
use std::mem::MaybeUninit;

/// Where the results of some rows go.
pub(crate) struct Output<'g, E: Storage> {
    /// `[head, query, dim]`.
    pub(crate) out: ArrayViewMut3<'g, MaybeUninit<E>>,
    /// The same, not rounded, where that is wanted and elements are rounded.
    pub(crate) exact: Option<ArrayViewMut3<'g, MaybeUninit<E::Real>>>,
    pub(crate) denominator: Denominator<'g, E::Real>,
}

impl<E: Storage> Output<'_, E> {
    pub(crate) fn split_at(self, axis: Axis, index: usize) -> (Self, Self) {
        let (out_a, out_b) = self.out.split_at(axis, index);
        let (exact_a, exact_b) = self.exact.map(|exact| exact.split_at(axis, index)).unzip();
        let (a, b) = self.denominator.split_at(axis, index);
        (Self { out: out_a, exact: exact_a, denominator: a }, Self { out: out_b, exact: exact_b, denominator: b })
    }
}

/// Where the softmax denominators of some rows go, `[head, query]`.
pub(crate) enum Denominator<'g, T> {
    /// As one number, `row_max + ln(row_sum)`.
    Lse(ArrayViewMut2<'g, T>),
    /// `row_max` and `row_sum`, for a backward pass.
    MaxSum(ArrayViewMut2<'g, T>, ArrayViewMut2<'g, T>),
    /// Nowhere.
    None,
}

impl<'g, T: Real> Denominator<'g, T> {
    /// One per batch entry: `arrays` is lse, or row_max and row_sum, or nothing, `[batch, heads_q, seq_q]`.
    pub(crate) fn by_batch(arrays: Denominators<'g, T>, batch: usize) -> Vec<Self> {
        match arrays {
            Denominators::Lse(lse) => rows(lse).map(Self::Lse).collect(),
            Denominators::MaxSum(max, sum) => rows(max).zip(rows(sum)).map(|(max, sum)| Self::MaxSum(max, sum)).collect(),
            Denominators::None => (0..batch).map(|_| Self::None).collect(),
        }
    }

    fn split_at(self, axis: Axis, index: usize) -> (Self, Self) {
        match self {
            Self::Lse(lse) => {
                let (a, b) = lse.split_at(axis, index);
                (Self::Lse(a), Self::Lse(b))
            }
            Self::MaxSum(max, sum) => {
                let ((max_a, max_b), (sum_a, sum_b)) = (max.split_at(axis, index), sum.split_at(axis, index));
                (Self::MaxSum(max_a, sum_a), Self::MaxSum(max_b, sum_b))
            }
            Self::None => (Self::None, Self::None),
        }
    }

    pub(crate) fn set(&mut self, at: [usize; 2], row_max: T, row_sum: T) {
        match self {
            Self::Lse(lse) => lse[at] = lse_of(row_max, row_sum),
            Self::MaxSum(max, sum) => (max[at], sum[at]) = (row_max, row_sum),
            Self::None => {}
        }
    }
}

/// [`Denominator`] of a whole call.
pub(crate) enum Denominators<'g, T> {
    Lse(ArrayViewMut3<'g, T>),
    MaxSum(ArrayViewMut3<'g, T>, ArrayViewMut3<'g, T>),
    None,
}

impl<T: Real> Denominators<'_, T> {
    /// Nothing was seen.
    pub(crate) fn fill_empty(self) {
        match self {
            Self::Lse(mut lse) => lse.fill(T::MASKED),
            Self::MaxSum(mut max, mut sum) => {
                max.fill(T::MASKED);
                sum.fill(T::ZERO);
            }
            Self::None => {}
        }
    }
}

/// The parts of an array along its first axis.
fn rows<T>(array: ArrayViewMut3<'_, T>) -> impl Iterator<Item = ArrayViewMut2<'_, T>> {
    let mut rest = Some(array);
    std::iter::from_fn(move || {
        let all = rest.take().filter(|all| all.len_of(Axis(0)) > 0)?;
        let (one, more) = all.split_at(Axis(0), 1);
        rest = Some(more);
        Some(one.index_axis_move(Axis(0), 0))
    })
}

/// `-inf` for a row that saw nothing.
pub(crate) fn lse_of<T: Real>(row_max: T, row_sum: T) -> T {
    if row_sum == T::ZERO { T::MASKED } else { row_max + row_sum.ln() }
}

/// Rows of panels (`acc` is `[panel][dim][lane]`), each divided by (or multiplied with) its row's `by`, become rows of the result.
/// `buffer` has room for all rows.
pub(crate) fn store_rows<S: Simd, E: Storage<Real = S::T>, const DIVIDE: bool>(
    simd: S,
    acc: &[S::T],
    by: &[S::T],
    buffer: &mut [S::T],
    mut out: ArrayViewMut3<'_, MaybeUninit<E>>,
) {
    let (heads, queries, dims) = out.dim();
    // Straight into the result where that is the same numbers side by side, else by way of a buffer.
    let direct = out.as_slice_mut().and_then(E::as_real_mut);
    let is_direct = direct.is_some();
    // SAFETY: `TransposeOut` writes numbers.
    let rows = direct.unwrap_or_else(|| unsafe { as_uninit(&mut *buffer) });
    for panel in Panel::all::<S>(heads * queries) {
        let Panel { start, rows: count, width } = panel;
        let from = &acc[start * dims..][..width * dims];
        let (by, to) = (&by[start..], &mut rows[start * dims..]);
        simd.call(TransposeOut::<_, DIVIDE> { from, width, by, rows: count, dims, to });
    }
    if !is_direct {
        copy_rows(buffer, out, E::from_real);
    }
}

/// Rows side by side become rows of the result.
pub(crate) fn copy_rows<T: Copy, X>(rows: &[T], mut out: ArrayViewMut3<'_, MaybeUninit<X>>, rounded: impl Fn(T) -> X) {
    let (heads, queries, dims) = out.dim();
    assert!(rows.len() >= heads * queries * dims, "a number for every place");
    if dims == 0 {
        return;
    }
    let mut rows = rows.chunks_exact(dims);
    for mut head in out.outer_iter_mut() {
        for (mut to, from) in head.outer_iter_mut().zip(&mut rows) {
            to.iter_mut().zip(from).for_each(|(to, &x)| *to = MaybeUninit::new(rounded(x)));
        }
    }
}
