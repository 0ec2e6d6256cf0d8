//! Output buffers of the forward pass.

use crate::arrays::take;
use crate::mainloop::tiling::Panel;
use ndarray::{ArrayViewMut3, ArrayViewMut4};
use regard_simd::strided::{TransposeOut, as_uninit};
use regard_simd::{Real, Simd, Storage};
use std::mem::MaybeUninit;

/// Output buffers of a call, or of one task.
pub(crate) struct Outputs<'g, E: Storage> {
    /// `[batch, head, query, dim]`.
    pub(crate) out: ArrayViewMut4<'g, MaybeUninit<E>>,
    /// `out` before rounding, for half-precision elements.
    pub(crate) out_unrounded: Option<ArrayViewMut4<'g, MaybeUninit<E::Real>>>,
    /// The denominators of the softmax, `[batch, head, query]`: as one number, or as two for a backward pass.
    pub(crate) lse: Option<ArrayViewMut3<'g, E::Real>>,
    pub(crate) row_max: Option<ArrayViewMut3<'g, E::Real>>,
    pub(crate) row_sum: Option<ArrayViewMut3<'g, E::Real>>,
}

impl<'g, E: Storage> Outputs<'g, E> {
    pub(crate) fn new(out: ArrayViewMut4<'g, MaybeUninit<E>>) -> Self {
        Self { out, out_unrounded: None, lse: None, row_max: None, row_sum: None }
    }

    /// The part before `index` along an axis, which it gives up.
    pub(crate) fn take(&mut self, axis: usize, index: usize) -> Self {
        let out = take(&mut self.out, axis, index);
        let out_unrounded = self.out_unrounded.as_mut().map(|x| take(x, axis, index));
        let [lse, row_max, row_sum] =
            [&mut self.lse, &mut self.row_max, &mut self.row_sum].map(|rows| rows.as_mut().map(|rows| take(rows, axis, index)));
        Self { out, out_unrounded, lse, row_max, row_sum }
    }

    /// The denominators of all rows.
    pub(crate) fn set_denominators(&mut self, row_max: &[E::Real], row_sum: &[E::Real]) {
        for (rows, from) in [(&mut self.row_max, row_max), (&mut self.row_sum, row_sum)] {
            rows.iter_mut().for_each(|rows| rows.iter_mut().zip(from).for_each(|(to, x)| *to = *x));
        }
        if let Some(lse) = &mut self.lse {
            lse.iter_mut().zip(row_max.iter().zip(row_sum)).for_each(|(to, (&max, &sum))| *to = lse_of(max, sum));
        }
    }
}

/// `-inf` for a row that saw nothing.
pub(crate) fn lse_of<T: Real>(row_max: T, row_sum: T) -> T {
    if row_sum == T::ZERO { T::NEG_INFINITY } else { row_max + row_sum.ln() }
}

/// Rows of panels (`acc` is `[panel][dim][lane]`), each divided by (or multiplied with) its row's `by`, become rows of the result.
/// `buffer` holds all rows.
pub(crate) fn store_rows<S: Simd, E: Storage<Real = S::T>, const DIVIDE: bool>(
    simd: S,
    acc: &[S::T],
    by: &[S::T],
    buffer: &mut [S::T],
    mut out: ArrayViewMut3<'_, MaybeUninit<E>>,
) {
    let (heads, queries, dims) = out.dim();
    // Straight into the result where that is the same contiguous elements, otherwise by way of a buffer.
    let direct = out.as_slice_mut().and_then(E::as_real_mut);
    let is_direct = direct.is_some();
    // SAFETY: `TransposeOut` writes initialised elements.
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

/// Copy contiguous rows to the result.
pub(crate) fn copy_rows<T: Copy, X>(rows: &[T], mut out: ArrayViewMut3<'_, MaybeUninit<X>>, rounded: impl Fn(T) -> X) {
    let (heads, queries, dims) = out.dim();
    assert!(rows.len() >= heads * queries * dims, "a number for every place");
    if dims == 0 {
        return;
    }
    let mut rows = rows.chunks_exact(dims);
    for mut head in out.outer_iter_mut() {
        for (mut to, from) in head.outer_iter_mut().zip(&mut rows) {
            // A loop over a slice becomes one over vectors.
            match to.as_slice_mut() {
                Some(to) => to.iter_mut().zip(from).for_each(|(to, &x)| *to = MaybeUninit::new(rounded(x))),
                None => to.iter_mut().zip(from).for_each(|(to, &x)| *to = MaybeUninit::new(rounded(x))),
            }
        }
    }
}
