//! The gradient of a bias: that of the scores, summed over whatever the bias is the same for.
//!
//! Sums are kept per batch entry and head (where the bias has them) and per span of keys; they are added up in a fixed order, so
//! that threads do not change a bit.

use crate::attention::Plan;
use crate::bias::Bias;
use crate::gradient::GRADIENT_SPAN;
use crate::mask::Place;
use crate::score::RowBlock;
use crate::simd::{Lanes, Operation, Real, Transpose};
use ndarray::{Array2, Array4, ArrayViewMut4, Axis};
use std::any::Any;
use std::ops::Range;

/// The gradient of a [`Bias`], in the shape of the bias.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum BiasGradient {
    /// Of [`Bias::Dense`], in its own (broadcast) shape.
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
    /// `[batch or 1, head or 1, query or 1, key or span]`.
    Dense { sums: Array4<T>, per_key: bool },
    /// `[batch, head, span, place in the table]`.
    Table(Array4<f64>),
}

/// The part of them that a task adds to.
pub(crate) struct BiasSums<'v, T> {
    pub(crate) sums: Sums<'v, T>,
    /// What the views begin with.
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) span: usize,
}

/// See [`BiasTotals`].
pub(crate) enum Sums<'v, T> {
    Dense { view: ArrayViewMut4<'v, T>, per_key: bool },
    Table(ArrayViewMut4<'v, f64>),
}

impl<T: Real> BiasTotals<T> {
    pub(crate) fn new(bias: &Bias<'_>, plan: &Plan<'_>, spans: usize) -> Self {
        let d = &plan.dims;
        let dense = |shape: &[usize]| {
            let per_key = shape[3] != 1;
            let last = if per_key { shape[3] } else { spans };
            Self::Dense { sums: Array4::from_elem([shape[0], shape[1], shape[2], last], T::ZERO), per_key }
        };
        match bias {
            Bias::Dense(b) => dense(b.shape()),
            Bias::Dense64(b) => dense(b.shape()),
            Bias::Alibi(_) => Self::Table(Array4::zeros([d.batch, d.heads_q, spans, 1])),
            Bias::Relative(table) => Self::Table(Array4::zeros([d.batch, d.heads_q, spans, table.ncols()])),
        }
    }

    /// Whether the batch entries, and the heads, have sums of their own, so that they can be worked on side by side.
    pub(crate) fn apart(&self, plan: &Plan<'_>) -> (bool, bool) {
        match self {
            Self::Dense { sums, .. } => (sums.len_of(Axis(0)) == plan.dims.batch, sums.len_of(Axis(1)) == plan.dims.heads_q),
            Self::Table(_) => (true, true),
        }
    }

    /// The sums, as the gradient of the bias.
    pub(crate) fn finish(self, bias: &Bias<'_>) -> BiasGradient {
        match (bias, self) {
            (Bias::Dense(b), Self::Dense { sums, .. }) => BiasGradient::Dense(dense_total(sums, b.shape())),
            (Bias::Dense64(b), Self::Dense { sums, .. }) => BiasGradient::Dense64(dense_total(sums, b.shape())),
            (Bias::Alibi(_), Self::Table(sums)) => BiasGradient::Alibi(table_total(&sums).column(0).to_vec()),
            (Bias::Relative(table), Self::Table(sums)) => {
                let total = table_total(&sums);
                let total = if table.nrows() == 1 { total.sum_axis(Axis(0)).insert_axis(Axis(0)) } else { total };
                BiasGradient::Relative(total.mapv(|x| x as f32))
            }
            _ => unreachable!("the sums were made for this bias"),
        }
    }
}

fn dense_total<T: Real, B: Real>(sums: Array4<T>, shape: &[usize]) -> Array4<B> {
    let rounded = |x: f64| B::from_f64(x);
    if sums.shape() == shape {
        let sums: Box<dyn Any> = Box::new(sums);
        // Where the bias is of the type that the arithmetic is done in, the sums are the result.
        return match sums.downcast::<Array4<B>>() {
            Ok(sums) => *sums,
            Err(sums) => sums.downcast_ref::<Array4<T>>().expect("it is what it was").mapv(|x| rounded(x.to_f64())),
        };
    }
    // One number per span, in order.
    let mut total = Array4::zeros([shape[0], shape[1], shape[2], 1]);
    for span in sums.axis_iter(Axis(3)) {
        total.index_axis_mut(Axis(3), 0).zip_mut_with(&span, |t: &mut f64, x| *t += x.to_f64());
    }
    total.mapv(rounded)
}

/// `[head, place]`: over batch entries and spans, in order.
fn table_total(sums: &Array4<f64>) -> Array2<f64> {
    let mut total = Array2::zeros([sums.len_of(Axis(1)), sums.len_of(Axis(3))]);
    for batch in sums.outer_iter() {
        for span in batch.axis_iter(Axis(1)) {
            total += &span;
        }
    }
    total
}

impl<T: Real> BiasSums<'_, T> {
    /// Add the gradients of the scores of a panel: `ds[key][lane]`, keys `pitch` apart.
    pub(crate) fn add<S: Lanes<T = T>>(
        &mut self,
        simd: S,
        plan: &Plan<'_>,
        block: &RowBlock,
        panel: &Range<usize>,
        keys: &Range<usize>,
        span: usize,
        ds: &[T],
        pitch: usize,
    ) {
        let bias = plan.bias().expect("there are sums for a bias only");
        let Self { sums, batch, head, span: first_span } = self;
        block.segments(plan, panel.clone(), |place, queries, lane| {
            let ds = &ds[lane..];
            match sums {
                Sums::Dense { view, per_key } => {
                    let first_key = *first_span * GRADIENT_SPAN;
                    let column = if *per_key { keys.start - first_key } else { span - *first_span };
                    let at = |axis: usize, index: usize| if view.len_of(Axis(axis)) == 1 { 0 } else { index };
                    let (b, h, q) = (at(0, place.batch - *batch), at(1, place.head - *head), at(2, queries.start));
                    let per_query = view.len_of(Axis(2)) != 1;
                    let mut lines = view.slice_mut(ndarray::s![b, h, q.., column..]);
                    if per_query && *per_key {
                        let stride = lines.strides()[0];
                        assert!(
                            (lines.strides()[1] == 1 || lines.ncols() == 1)
                                && lines.nrows() >= queries.len()
                                && lines.ncols() >= keys.len()
                        );
                        let to = lines.as_mut_ptr();
                        simd.call(AddTransposed { ds, pitch, rows: queries.len(), keys: keys.len(), to, stride });
                        return;
                    }
                    for (j, line) in ds.chunks(pitch).take(keys.len()).enumerate() {
                        for (i, &x) in line.iter().take(queries.len()).enumerate() {
                            lines[[if per_query { i } else { 0 }, if *per_key { j } else { 0 }]] += x;
                        }
                    }
                }
                Sums::Table(view) => {
                    let mut table = view.slice_mut(ndarray::s![place.batch - *batch, place.head - *head, span - *first_span, ..]);
                    add_to_table(bias, place, queries, keys, ds, pitch, |at, x| table[at] += x);
                }
            }
        });
    }
}

/// By distance: forward, `score += -slope * |distance|` or `score += table[distance]`.
fn add_to_table<T: Real>(
    bias: &Bias<'_>,
    place: &Place,
    queries: Range<usize>,
    keys: &Range<usize>,
    ds: &[T],
    pitch: usize,
    mut add: impl FnMut(usize, f64),
) {
    for (key, line) in keys.clone().zip(ds.chunks(pitch)) {
        for (query, x) in queries.clone().zip(line) {
            let distance = (key as i64).saturating_sub(place.position(query));
            match bias {
                Bias::Alibi(_) => add(0, -(distance.unsigned_abs() as f64) * x.to_f64()),
                Bias::Relative(table) => {
                    let reach = (table.ncols() / 2) as i64;
                    add((distance.clamp(-reach, reach) + reach) as usize, x.to_f64());
                }
                _ => {}
            }
        }
    }
}

/// `to[row][key] += ds[key][row]`
struct AddTransposed<'k, T> {
    ds: &'k [T],
    pitch: usize,
    rows: usize,
    keys: usize,
    /// Rows `stride` apart, with room for `keys` each.
    to: *mut T,
    stride: isize,
}

impl<T: Real> Operation<T> for AddTransposed<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { ds, pitch, rows, keys, to, stride } = self;
        assert!(keys == 0 || ds.len() >= (keys - 1) * pitch + rows);
        add_transposed(simd.narrow(), ds, pitch, rows, keys, to, stride);
    }
}

#[inline(always)]
fn add_transposed<S: Transpose>(simd: S, ds: &[S::T], pitch: usize, rows: usize, keys: usize, to: *mut S::T, stride: isize) {
    let (whole_rows, whole_keys) = (rows - rows % S::LANES, keys - keys % S::LANES);
    // Rows first: they often lie a power of two apart, and only a few of those find room in the first cache together.
    for row in (0..whole_rows).step_by(S::LANES) {
        for key in (0..whole_keys).step_by(S::LANES) {
            // SAFETY: LANES keys from `key` and LANES rows from `row` on are inside `ds`, and inside the rows and keys that the caller
            // checked `to` for.
            unsafe {
                let square = simd.load_transposed(ds.as_ptr().add(key * pitch + row), pitch as isize);
                for (x, &line) in square.as_ref().iter().enumerate() {
                    let at = to.offset((row + x) as isize * stride).add(key);
                    simd.store(at, simd.add(simd.load(at), line));
                }
            }
        }
    }
    let one = |row: usize, key: usize| {
        // SAFETY: the row and the key are among those that the caller checked `to` for.
        unsafe { *to.offset(row as isize * stride).add(key) += ds[key * pitch + row] };
    };
    (0..whole_rows).for_each(|row| (whole_keys..keys).for_each(|key| one(row, key)));
    (whole_rows..rows).for_each(|row| (0..keys).for_each(|key| one(row, key)));
}
