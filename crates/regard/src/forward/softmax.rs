//! The running softmax: the state of each row, one tile's update, and the combination of two states.
//!
//! ```text
//! row_max' = max(row_max, max of the tile)          alpha = exp(row_max - row_max')
//! p        = exp(score - row_max')                  hidden: p = 0
//! row_sum' = row_sum * alpha + sum of p
//! acc'     = acc * alpha + p v                      at the end: out = acc / row_sum
//! ```
//!
//! `row_max` and `row_sum` are kept apart: their sum, the log-sum-exp, rounds the small one away when scores are large.
//! A row that has seen nothing has `row_max = -inf` and `row_sum = 0`, and combining it changes nothing.

use crate::error::{Result, check_shape};
use crate::mainloop::tiling::{Need, Panel, lanes};
use ndarray::{Array3, Array4, ArrayView3, ArrayView4, Zip};
use regard_simd::{Kernel, Real, Simd, math};
use std::ops::Range;

/// Observes every tile in the softmax, for statistics. The methods with vectors are `#[inline(always)]`; they are not closures, which would
/// not be compiled for the SIMD level.
pub(crate) trait Observer<T: Real>: Clone + Send + Sync {
    /// Sums of one vector of rows over one tile.
    type Sums<S: Simd<T = T>>: Copy;
    /// The summary of a finished row.
    type Row: Send;
    /// Nothing seen yet.
    fn reset(&mut self) {}
    /// The scores of a strip and its maximum, before they become weights.
    #[inline(always)]
    fn scores<S: Simd<T = T>>(&mut self, _simd: S, _strip: &Strip<'_>, _scores: &[T], _maxima: [S::V; 2]) {}
    /// Sums of zero.
    fn begin<S: Simd<T = T>>(&self, simd: S, strip: &Strip<'_>) -> Self::Sums<S>;
    /// One key: `x = score - maximum` and `p = exp(x)`.
    #[inline(always)]
    fn see<S: Simd<T = T>>(_simd: S, _sums: &mut Self::Sums<S>, _key: usize, _x: S::V, _p: S::V) {}
    /// The strip is done: `weights` are the `p`.
    #[inline(always)]
    fn weights<S: Simd<T = T>>(&mut self, _simd: S, _strip: &Strip<'_>, _weights: &[T], _update: &Update<S::V>, _sums: Self::Sums<S>) {}
    /// Take in what another saw of later keys. `states` are (row_max, row_sum) of both before that, `factors` what their sums are
    /// multiplied with.
    fn combine(&mut self, _later: &Self, _states: [[&[T]; 2]; 2], _factors: [&[T]; 2]) {}
    /// One row, from (row_max, row_sum) of its keys, and of these and the sink.
    fn finish(&self, row: usize, keys: [T; 2], all: [T; 2]) -> Self::Row;
}

/// No-op observer.
impl<T: Real> Observer<T> for () {
    type Sums<S: Simd<T = T>> = ();
    type Row = ();
    #[inline(always)]
    fn begin<S: Simd<T = T>>(&self, _: S, _: &Strip<'_>) {}
    fn finish(&self, _: usize, _: [T; 2], _: [T; 2]) {}
}

/// One vector of the rows of a panel, and its keys: key `i` of the rows is at `[i * width + offset]`.
#[derive(Debug)]
pub(crate) struct Strip<'k> {
    pub(crate) keys: &'k Range<usize>,
    pub(crate) width: usize,
    pub(crate) offset: usize,
    /// The first lane within those of the query tile.
    pub(crate) lane: usize,
    /// How many of the lanes are rows.
    pub(crate) rows: usize,
}

/// How `acc` is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccLayout {
    pub(crate) rows: usize,
    pub(crate) dims: usize,
    /// `Some(distance of two rows)` where rows are few, `None` for panels.
    pub(crate) ld: Option<usize>,
    /// Places for a value per row: whole panels.
    pub(crate) lanes: usize,
    /// Lanes of a vector.
    vector: usize,
}

impl AccLayout {
    pub(crate) fn new<S: Simd>(rows: usize, dims: usize, decodes: bool) -> Self {
        let ld = decodes.then(|| dims.next_multiple_of(S::LANES));
        Self { rows, dims, ld, lanes: lanes::<S>(rows), vector: S::LANES }
    }

    /// Row after row, whatever the vectors are.
    const fn plain(rows: usize, dims: usize) -> Self {
        Self { rows, dims, ld: Some(dims), lanes: rows, vector: 1 }
    }

    /// Where the number of a row and a dimension is.
    fn place(&self, row: usize, dim: usize) -> usize {
        if let Some(ld) = self.ld {
            return row * ld + dim;
        }
        let panel = Panel::of_row(row, self.rows, self.vector);
        panel.start * self.dims + dim * panel.width + row - panel.start
    }

    pub(crate) fn acc_len(&self) -> usize {
        self.ld.map_or(self.lanes * self.dims, |ld| self.rows * ld)
    }
}

/// Running state of a query tile.
///
/// `acc` is `[panel][dim][lane]`, or `[row][dim]` with whole vectors to a row where rows are few.
pub(crate) struct State<'s, T, O> {
    pub(crate) row_max: &'s mut [T],
    pub(crate) row_sum: &'s mut [T],
    pub(crate) acc: &'s mut [T],
    pub(crate) observer: O,
}

/// Owned copy of the state, to resume from.
pub(crate) struct OwnedState<T, O> {
    pub(crate) layout: AccLayout,
    row_max: Vec<T>,
    row_sum: Vec<T>,
    acc: Vec<T>,
    observer: O,
}

impl<T: Real> OwnedState<T, ()> {
    /// `[row_max, row_sum, acc...]` of each row; nothing where no row has seen anything.
    pub(crate) fn numbers(&self) -> Vec<T> {
        let Self { layout, row_max, row_sum, acc, .. } = self;
        let row = |r: usize| [row_max[r], row_sum[r]].into_iter().chain((0..layout.dims).map(move |d| acc[layout.place(r, d)]));
        let rows = 0..layout.rows.min(row_max.len());
        let nothing = |r: usize| row_max[r] == T::NEG_INFINITY && row(r).skip(1).all(|x| x.to_f64().to_bits() == 0);
        if rows.clone().all(nothing) { Vec::new() } else { rows.flat_map(row).collect() }
    }

    /// The inverse of [`Self::numbers`].
    pub(crate) fn from_numbers([rows, dims]: [usize; 2], numbers: &[T]) -> Self {
        let each = || numbers.chunks_exact(dims + 2);
        let (row_max, row_sum) = (each().map(|row| row[0]).collect(), each().map(|row| row[1]).collect());
        let acc = each().flat_map(|row| row[2..].iter().copied()).collect();
        Self { layout: AccLayout::plain(rows, dims), row_max, row_sum, acc, observer: () }
    }
}

impl<T: Real, O: Observer<T>> OwnedState<T, O> {
    /// Copy into `to`, which may have another layout.
    pub(crate) fn restore(&self, layout: &AccLayout, to: &mut State<'_, T, O>) {
        if self.row_max.is_empty() {
            return;
        }
        if self.layout == *layout {
            to.row_max.copy_from_slice(&self.row_max);
            to.row_sum.copy_from_slice(&self.row_sum);
            to.acc.copy_from_slice(&self.acc);
        } else {
            for (r, (&max, &sum)) in self.row_max.iter().zip(&self.row_sum).enumerate().take(layout.rows) {
                (to.row_max[r], to.row_sum[r]) = (max, sum);
                (0..layout.dims).for_each(|d| to.acc[layout.place(r, d)] = self.acc[self.layout.place(r, d)]);
            }
        }
        to.observer.clone_from(&self.observer);
    }

    /// A copy of `from`; `None` is the empty state, with the observer that `fresh` makes.
    pub(crate) fn new(layout: AccLayout, from: Option<&State<'_, T, O>>, fresh: impl FnOnce() -> O) -> Self {
        match from {
            Some(State { row_max, row_sum, acc, observer }) => {
                let observer = observer.clone();
                Self { layout, row_max: row_max.to_vec(), row_sum: row_sum.to_vec(), acc: acc.to_vec(), observer }
            }
            None => Self { layout, row_max: Vec::new(), row_sum: Vec::new(), acc: Vec::new(), observer: fresh() },
        }
    }
}

impl<'s, T: Real, O: Observer<T>> State<'s, T, O> {
    /// Nothing seen yet.
    pub(crate) fn new(row_max: &'s mut [T], row_sum: &'s mut [T], acc: &'s mut [T], observer: O) -> Self {
        let mut state = Self { row_max, row_sum, acc, observer };
        state.reset();
        state
    }

    pub(crate) fn reset(&mut self) {
        self.row_max.fill(T::NEG_INFINITY);
        self.row_sum.fill(T::ZERO);
        self.acc.fill(T::ZERO);
        self.observer.reset();
    }

    /// Combine with the state of later keys. `factors` is scratch for two elements per lane.
    pub(crate) fn combine<S: Simd<T = T>>(&mut self, simd: S, layout: &AccLayout, later: &State<'_, T, O>, factors: &mut [T]) {
        let (mine, others) = factors[..2 * layout.lanes].split_at_mut(layout.lanes);
        simd.call(FactorPairs { maxima: [&*self.row_max, &*later.row_max], factors: [&mut *mine, &mut *others] });
        let states = [[&*self.row_max, &*self.row_sum], [&*later.row_max, &*later.row_sum]];
        self.observer.combine(&later.observer, states, [mine, others]);
        let (row_max, row_sum) = (&mut *self.row_max, &mut *self.row_sum);
        simd.call(CombineRows { row_max, row_sum, later: [&*later.row_max, &*later.row_sum], factors: [mine, others] });
        simd.call(ScaleAcc { acc: self.acc, layout, factors: mine, other: Some((later.acc, others)) });
    }

    /// Add the sink: one more logit per row, without a value. `logits` is per lane, `-inf` for none.
    pub(crate) fn add_sink<S: Simd<T = T>>(&mut self, simd: S, layout: &AccLayout, logits: &[T], factors: &mut [T]) {
        let (mine, sinks) = factors[..2 * layout.lanes].split_at_mut(layout.lanes);
        simd.call(FactorPairs { maxima: [&*self.row_max, logits], factors: [&mut *mine, &mut *sinks] });
        let (row_max, row_sum) = (&mut *self.row_max, &mut *self.row_sum);
        simd.call(CombineRows { row_max, row_sum, later: [logits, &[]], factors: [mine, sinks] });
        simd.call(ScaleAcc { acc: self.acc, layout, factors: mine, other: None });
    }
}

/// `exp(m - max)` of both maxima, per lane; 0 for a state that has seen nothing.
struct FactorPairs<'k, T> {
    maxima: [&'k [T]; 2],
    factors: [&'k mut [T]; 2],
}

impl<T: Real> Kernel<T> for FactorPairs<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { maxima: [a, b], factors: [to_a, to_b] } = self;
        let lanes = to_a.len();
        assert!(lanes.is_multiple_of(S::LANES) && [a.len(), b.len(), to_b.len()] == [lanes; 3]);
        for r in (0..lanes).step_by(S::LANES) {
            // SAFETY: all four have `lanes` places, a multiple of LANES (just checked).
            unsafe {
                let (a, b) = (simd.load(a.as_ptr().add(r)), simd.load(b.as_ptr().add(r)));
                let top = finite_max(simd, simd.max(b, a));
                simd.store(to_a.as_mut_ptr().add(r), math::exp(simd, simd.sub(a, top)));
                simd.store(to_b.as_mut_ptr().add(r), math::exp(simd, simd.sub(b, top)));
            }
        }
    }
}

/// `row_max` becomes the maximum of both, `row_sum` the sum of both times their factors; without a second sum, of one logit.
struct CombineRows<'k, T> {
    row_max: &'k mut [T],
    row_sum: &'k mut [T],
    /// Maxima and sums; no sums where each is one logit.
    later: [&'k [T]; 2],
    factors: [&'k [T]; 2],
}

impl<T: Real> Kernel<T> for CombineRows<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { row_max, row_sum, later: [later_max, later_sum], factors: [mine, others] } = self;
        let lanes = row_max.len();
        assert!(lanes.is_multiple_of(S::LANES) && [row_sum.len(), later_max.len(), mine.len(), others.len()] == [lanes; 4]);
        assert!(later_sum.is_empty() || later_sum.len() == lanes);
        for r in (0..lanes).step_by(S::LANES) {
            // SAFETY: all have `lanes` places, a multiple of LANES, but for `later_sum` if it is empty (just checked).
            unsafe {
                let (a, b) = (simd.load(row_max.as_ptr().add(r)), simd.load(later_max.as_ptr().add(r)));
                simd.store(row_max.as_mut_ptr().add(r), simd.max(b, a));
                let (fa, fb) = (simd.load(mine.as_ptr().add(r)), simd.load(others.as_ptr().add(r)));
                let plus = if later_sum.is_empty() { fb } else { simd.mul(simd.load(later_sum.as_ptr().add(r)), fb) };
                simd.store(row_sum.as_mut_ptr().add(r), simd.mul_add(simd.load(row_sum.as_ptr().add(r)), fa, plus));
            }
        }
    }
}

/// `acc = acc * factors + other.0 * other.1`, factors being per lane.
struct ScaleAcc<'k, T> {
    acc: &'k mut [T],
    layout: &'k AccLayout,
    factors: &'k [T],
    other: Option<(&'k [T], &'k [T])>,
}

impl<T: Real> Kernel<T> for ScaleAcc<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { acc, layout, factors, other } = self;
        match layout.ld {
            Some(ld) => {
                for r in 0..layout.rows {
                    for at in (r * ld..(r + 1) * ld).step_by(S::LANES) {
                        let by = other.map(|(acc, by)| (acc, simd.splat(by[r])));
                        scale_vector(simd, acc, at, simd.splat(factors[r]), by);
                    }
                }
            }
            None => {
                let mut at = 0;
                for panel in Panel::all::<S>(layout.rows) {
                    for _ in 0..layout.dims {
                        for lane in panel.lanes().step_by(S::LANES) {
                            // SAFETY: the slices are one whole vector each.
                            let load = |from: &[T]| unsafe { simd.load(from[lane..lane + S::LANES].as_ptr()) };
                            let by = other.map(|(acc, by)| (acc, load(by)));
                            scale_vector(simd, acc, at, load(factors), by);
                            at += S::LANES;
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn scale_vector<S: Simd>(simd: S, acc: &mut [S::T], at: usize, factor: S::V, other: Option<(&[S::T], S::V)>) {
    let acc = &mut acc[at..at + S::LANES];
    // SAFETY: every slice is one whole vector.
    unsafe {
        let plus = match other {
            Some((other, by)) => simd.mul(simd.load(other[at..at + S::LANES].as_ptr()), by),
            None => simd.splat(S::T::ZERO),
        };
        simd.store(acc.as_mut_ptr(), simd.mul_add(simd.load(acc.as_ptr()), factor, plus));
    }
}

/// The maximum to subtract: 0 where nothing was seen, so that `-inf - -inf` does not arise.
#[inline(always)]
fn finite_max<S: Simd>(simd: S, top: S::V) -> S::V {
    simd.select(simd.eq(top, simd.splat(S::T::NEG_INFINITY)), simd.splat(S::T::ZERO), top)
}

/// Scores become `p`; maximum, sum and what the observer keeps are brought up to date. `alpha[..width]` is what older sums are to be
/// multiplied with.
pub(crate) struct SoftmaxUpdate<'k, 's, T, O, const NR: usize> {
    pub(crate) need: &'k Need,
    pub(crate) scores: &'k mut [T],
    pub(crate) state: &'k mut State<'s, T, O>,
    pub(crate) alpha: &'k mut [T],
}

impl<T: Real, O: Observer<T>, const NR: usize> Kernel<T> for SoftmaxUpdate<'_, '_, T, O, NR> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { need, scores, state, alpha } = self;
        let panel = &need.panel;
        let width = NR * S::LANES;
        let scores = &mut scores[..need.keys.len() * width];
        for offset in (0..width).step_by(S::LANES) {
            let lane = panel.start + offset;
            let rows = panel.rows.saturating_sub(offset).min(S::LANES);
            let strip = Strip { keys: &need.keys, width, offset, lane, rows };
            update(simd, &strip, scores, state, &mut alpha[offset..offset + S::LANES]);
        }
    }
}

/// What one tile did to a vector of rows.
#[derive(Clone, Copy)]
pub(crate) struct Update<V> {
    /// What older sums are multiplied with.
    pub(crate) alpha: V,
    pub(crate) old_max: V,
    /// The new maximum; 0 where nothing was seen.
    pub(crate) top: V,
    pub(crate) old_sum: V,
    pub(crate) new_sum: V,
}

/// One vector of rows takes in one tile.
///
/// The sum is one chain in the order of the keys. Hidden keys add zeros, so that it does not matter how many of them a
/// range takes in. (An exponential takes longer than an addition's latency: more chains would not be faster.)
#[inline(always)]
fn update<S: Simd, O: Observer<S::T>>(simd: S, strip: &Strip<'_>, scores: &mut [S::T], state: &mut State<'_, S::T, O>, alpha: &mut [S::T]) {
    let Strip { keys, width, offset, lane, .. } = *strip;
    let count = keys.len();
    assert!(offset + S::LANES <= width && scores.len() >= count * width && alpha.len() >= S::LANES);
    let row_max = state.row_max[lane..lane + S::LANES].as_mut_ptr();
    let row_sum = state.row_sum[lane..lane + S::LANES].as_mut_ptr();
    let hidden = simd.splat(S::T::NEG_INFINITY);
    // SAFETY: `scores` has `count` rows of `width`, each of which holds a vector at `offset`; row_max, row_sum and alpha are vectors. All
    // of it was just checked.
    unsafe {
        let first = scores.as_mut_ptr().add(offset);
        let at = |key: usize| first.add(key * width);
        let mut tops = [hidden; 4];
        let whole = count & !3;
        for key in (0..whole).step_by(4) {
            for (c, top) in tops.iter_mut().enumerate() {
                *top = simd.max(simd.load(at(key + c)), *top);
            }
        }
        for key in whole..count {
            tops[0] = simd.max(simd.load(at(key)), tops[0]);
        }
        let tile_max = simd.max(simd.max(tops[0], tops[1]), simd.max(tops[2], tops[3]));
        let old_max = simd.load(row_max);
        state.observer.scores(simd, strip, scores, [old_max, tile_max]);
        let new_max = simd.max(tile_max, old_max);
        let top = finite_max(simd, new_max);
        let by = math::exp(simd, simd.sub(old_max, top));
        let mut sums = state.observer.begin(simd, strip);
        let mut sum = simd.splat(S::T::ZERO);
        for key in 0..count {
            let x = simd.sub(simd.load(at(key)), top);
            let p = math::exp(simd, x);
            simd.store(at(key), p);
            sum = simd.add(sum, p);
            O::see(simd, &mut sums, key, x, p);
        }
        let old_sum = simd.load(row_sum);
        simd.store(row_max, new_max);
        let new_sum = simd.mul_add(old_sum, by, sum);
        simd.store(row_sum, new_sum);
        simd.store(alpha.as_mut_ptr(), by);
        state.observer.weights(simd, strip, scores, &Update { alpha: by, old_max, top, old_sum, new_sum }, sums);
    }
}

/// Join attention over two disjoint sets of keys, each given by its normalised output and its log-sum-exp (natural
/// logarithm). Rows that saw nothing (`lse = -inf`) give way to the other side; two of them are zero. Symmetric, bit for bit: a NaN of
/// either side shows, also where the weight of that side underflows to zero.
///
/// ```
/// use regard::{Attention, merge};
/// use ndarray::{Array4, s};
/// let x = Array4::from_shape_fn((1, 1, 6, 4), |(_, _, i, j)| (i * 5 + j) as f64 * 0.1);
/// let whole = Attention::new().forward(&x, &x, &x)?;
/// let part = |keys| Attention::new().forward(x.view(), x.slice(keys), x.slice(keys));
/// let (a, b) = (part(s![.., .., ..4, ..])?, part(s![.., .., 4.., ..])?);
/// let (out, lse) = merge(a.out.view(), a.lse.view(), b.out.view(), b.lse.view())?;
/// assert!((&out - &whole.out).iter().all(|d| d.abs() < 1e-12));
/// assert!((&lse - &whole.lse).iter().all(|d| d.abs() < 1e-12));
/// # Ok::<(), regard::Error>(())
/// ```
///
/// # Errors
/// [`crate::Error::OutputShape`] when the shapes do not agree.
pub fn merge<T: Real>(
    out_a: ArrayView4<'_, T>,
    lse_a: ArrayView3<'_, T>,
    out_b: ArrayView4<'_, T>,
    lse_b: ArrayView3<'_, T>,
) -> Result<(Array4<T>, Array3<T>)> {
    check_shape("out_b", out_b.shape(), out_a.shape())?;
    check_shape("lse_a", lse_a.shape(), &out_a.shape()[..3])?;
    check_shape("lse_b", lse_b.shape(), &out_a.shape()[..3])?;
    let mut out = out_a.to_owned();
    let mut lse = lse_a.to_owned();
    Zip::from(out.lanes_mut(ndarray::Axis(3))).and(out_b.lanes(ndarray::Axis(3))).and(&mut lse).and(&lse_b).for_each(
        |mut out, out_b, lse, &lse_b| {
            let (a, b) = (lse.to_f64(), lse_b.to_f64());
            match (a == f64::NEG_INFINITY, b == f64::NEG_INFINITY) {
                (true, true) => return out.fill(T::ZERO),
                (false, true) => return,
                (true, false) => {
                    *lse = lse_b;
                    return out.assign(&out_b);
                }
                (false, false) => {}
            }
            // Not `max`: a NaN must show.
            let top = if a > b { a } else { b };
            let (wa, wb) = ((a - top).exp(), (b - top).exp());
            let sum = wa + wb;
            *lse = T::from_f64(top + sum.ln());
            Zip::from(&mut out).and(&out_b).for_each(|x, &y| *x = T::from_f64((x.to_f64() * wa + y.to_f64() * wb) / sum));
        },
    );
    Ok((out, lse))
}
