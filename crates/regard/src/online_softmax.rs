//! The running softmax: the state of each row, one tile's update, and the merge of two states.
//!
//! ```text
//! row_max' = max(row_max, max of the tile)          alpha = exp(row_max - row_max')
//! p        = exp(score - row_max')                  hidden: p = 0
//! row_sum' = row_sum * alpha + sum of p
//! acc'     = acc * alpha + p v                      at the end: out = acc / row_sum
//! ```
//!
//! `row_max` and `row_sum` are kept apart: their sum, the log-sum-exp, rounds the small one away when scores are large.
//! A row that has seen nothing has `row_max = -inf` and `row_sum = 0`, and merging it changes nothing.

use crate::error::{Error, Result};
use crate::score::width;
use crate::simd::{Lanes, Operation, Real, math};
use crate::stats::StatSums;
use ndarray::{Array3, Array4, ArrayView3, ArrayView4, Zip};

/// Running state of a block of rows, `lanes` of them, padded to whole panels.
///
/// `acc` is `[panel][dim][lane]`, or `[row][dim]` with whole vectors to a row where rows are few.
pub(crate) struct State<'s, T> {
    pub(crate) row_max: &'s mut [T],
    pub(crate) row_sum: &'s mut [T],
    pub(crate) acc: &'s mut [T],
    pub(crate) stats: Option<StatSums<T>>,
}

/// How `acc` is laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccLayout {
    pub(crate) rows: usize,
    pub(crate) dims: usize,
    /// `Some(distance of two rows)` where rows are few, `None` for panels.
    pub(crate) pitch: Option<usize>,
}

impl AccLayout {
    pub(crate) fn new<S: Lanes>(rows: usize, dims: usize, few: bool) -> Self {
        Self { rows, dims, pitch: few.then(|| dims.next_multiple_of(S::LANES)) }
    }

    pub(crate) fn lanes<S: Lanes>(&self) -> usize {
        self.rows.next_multiple_of(2 * S::LANES)
    }

    pub(crate) fn acc_len<S: Lanes>(&self) -> usize {
        self.pitch.map_or(self.lanes::<S>() * self.dims, |pitch| self.rows * pitch)
    }
}

impl<T: Real> State<'_, T> {
    /// Nothing seen yet.
    pub(crate) fn reset(&mut self) {
        self.row_max.fill(T::HIDDEN);
        self.row_sum.fill(T::ZERO);
        self.acc.fill(T::ZERO);
        if let Some(stats) = &mut self.stats {
            stats.reset();
        }
    }

    #[inline(always)]
    fn merge<S: Lanes<T = T>>(&mut self, simd: S, layout: &AccLayout, later: &Self, factors: &mut [T]) {
        let lanes = layout.lanes::<S>();
        let (mine, others) = factors[..2 * lanes].split_at_mut(lanes);
        let maxima = (&mut *self.row_max, &*later.row_max);
        for r in (0..lanes).step_by(S::LANES) {
            // SAFETY: row_max, row_sum and both halves of the factors have `lanes` places, a multiple of LANES.
            unsafe {
                let (a, b) = (simd.load(maxima.0.as_ptr().add(r)), simd.load(maxima.1.as_ptr().add(r)));
                let (fa, fb) = factor_pair(simd, a, b);
                simd.store(mine.as_mut_ptr().add(r), fa);
                simd.store(others.as_mut_ptr().add(r), fb);
            }
        }
        if let (Some(stats), Some(later_stats)) = (&mut self.stats, &later.stats) {
            stats.merge(self.row_max, self.row_sum, later_stats, later.row_max, later.row_sum, mine, others);
        }
        for r in (0..lanes).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let (a, b) = (simd.load(self.row_max.as_ptr().add(r)), simd.load(later.row_max.as_ptr().add(r)));
                simd.store(self.row_max.as_mut_ptr().add(r), simd.max(b, a));
                let (fa, fb) = (simd.load(mine.as_ptr().add(r)), simd.load(others.as_ptr().add(r)));
                let (a, b) = (simd.load(self.row_sum.as_ptr().add(r)), simd.load(later.row_sum.as_ptr().add(r)));
                simd.store(self.row_sum.as_mut_ptr().add(r), simd.mul_add(a, fa, simd.mul(b, fb)));
            }
        }
        self.scale_acc(simd, layout, mine, Some((later.acc, others)));
    }

    #[inline(always)]
    fn add_sink<S: Lanes<T = T>>(&mut self, simd: S, layout: &AccLayout, logits: &[T], factors: &mut [T]) {
        let lanes = layout.lanes::<S>();
        for r in (0..lanes).step_by(S::LANES) {
            // SAFETY: all slices have `lanes` places, a multiple of LANES.
            unsafe {
                let (m, l) = (simd.load(self.row_max.as_ptr().add(r)), simd.load(self.row_sum.as_ptr().add(r)));
                let (fm, fs) = factor_pair(simd, m, simd.load(logits[..lanes].as_ptr().add(r)));
                simd.store(factors[..lanes].as_mut_ptr().add(r), fm);
                simd.store(self.row_sum.as_mut_ptr().add(r), simd.mul_add(l, fm, fs));
                simd.store(self.row_max.as_mut_ptr().add(r), simd.max(simd.load(logits.as_ptr().add(r)), m));
            }
        }
        self.scale_acc(simd, layout, factors, None);
    }

    /// `acc = acc * factors + other.0 * other.1`, factors being per lane.
    #[inline(always)]
    fn scale_acc<S: Lanes<T = T>>(&mut self, simd: S, layout: &AccLayout, factors: &[T], other: Option<(&[T], &[T])>) {
        // (place in acc, first lane) of every vector; the lane stands for the whole vector where rows are few.
        let (rows, dims) = (layout.rows, layout.dims);
        let (mut r, mut at) = (0, 0);
        while r < rows {
            let (vectors, width, steps) = match layout.pitch {
                None => (width::<S>(rows - r) / S::LANES, width::<S>(rows - r), dims),
                Some(pitch) => (1, 1, pitch / S::LANES),
            };
            for _ in 0..steps {
                for n in 0..vectors {
                    let lane = r + n * S::LANES;
                    let acc = &mut self.acc[at..at + S::LANES];
                    // SAFETY: every slice is one whole vector.
                    unsafe {
                        let factor = |from: &[T]| match layout.pitch {
                            None => simd.load(from[lane..lane + S::LANES].as_ptr()),
                            Some(_) => simd.splat(from[lane]),
                        };
                        let plus = match other {
                            Some((acc, by)) => simd.mul(simd.load(acc[at..at + S::LANES].as_ptr()), factor(by)),
                            None => simd.splat(T::ZERO),
                        };
                        simd.store(acc.as_mut_ptr(), simd.mul_add(simd.load(acc.as_ptr()), factor(factors), plus));
                    }
                    at += S::LANES;
                }
            }
            r += width;
        }
    }
}

/// One state takes in what another has seen, of later keys. `factors` is room for two numbers per lane.
pub(crate) struct Merge<'k, 's, T> {
    pub(crate) into: &'k mut State<'s, T>,
    pub(crate) layout: &'k AccLayout,
    pub(crate) later: &'k State<'s, T>,
    pub(crate) factors: &'k mut [T],
}

impl<T: Real> Operation<T> for Merge<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        self.into.merge(simd, self.layout, self.later, self.factors);
    }
}

/// The sink takes part: one more logit per row that has no value. `logits` is per lane, `-inf` for none.
pub(crate) struct AddSink<'k, 's, T> {
    pub(crate) to: &'k mut State<'s, T>,
    pub(crate) layout: &'k AccLayout,
    pub(crate) logits: &'k [T],
    pub(crate) factors: &'k mut [T],
}

impl<T: Real> Operation<T> for AddSink<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        self.to.add_sink(simd, self.layout, self.logits, self.factors);
    }
}

/// `exp(m - max)` of both maxima; 0 for a state that has seen nothing.
#[inline(always)]
fn factor_pair<S: Lanes>(simd: S, a: S::V, b: S::V) -> (S::V, S::V) {
    let top = finite_top(simd, simd.max(b, a));
    (math::exp(simd, simd.sub(a, top)), math::exp(simd, simd.sub(b, top)))
}

/// The maximum to subtract: 0 where nothing was seen, so that `-inf - -inf` does not arise.
#[inline(always)]
fn finite_top<S: Lanes>(simd: S, top: S::V) -> S::V {
    simd.select(simd.eq(top, simd.splat(S::T::HIDDEN)), simd.splat(S::T::ZERO), top)
}

/// Sees every vector of a tile on its way: `x = score - maximum` and `p = exp(x)`. A trait rather than a closure, which
/// would not be compiled for the SIMD level.
pub(crate) trait Watch<S: Lanes> {
    /// Implementations are `#[inline(always)]`.
    fn see(&mut self, simd: S, key: usize, x: S::V, p: S::V);
}

impl<S: Lanes> Watch<S> for () {
    #[inline(always)]
    fn see(&mut self, _: S, _: usize, _: S::V, _: S::V) {}
}

/// One vector of rows takes in one tile: `scores[key * width]` become `p`; `row_max` and `row_sum` are brought up to date.
/// `watch` sees every vector.
///
/// The sum is one chain in the order of the keys. Hidden keys add zeros, so that it does not matter how many of them a
/// range takes in. (An exponential takes longer than an addition's latency: more chains would not be faster.)
///
/// # Safety
/// `scores` must be valid for `keys` vectors, `width` apart; `row_max` and `row_sum` for one vector.
#[inline(always)]
pub(crate) unsafe fn update<S: Lanes>(
    simd: S,
    scores: *mut S::T,
    width: usize,
    keys: usize,
    row_max: *mut S::T,
    row_sum: *mut S::T,
    watch: &mut impl Watch<S>,
) -> Update<S::V> {
    let hidden = simd.splat(S::T::HIDDEN);
    // SAFETY: all keys are below `keys`; the caller vouches for the rest.
    unsafe {
        let at = |key: usize| scores.add(key * width);
        let mut tops = [hidden; 4];
        let whole = keys & !3;
        for key in (0..whole).step_by(4) {
            for (c, top) in tops.iter_mut().enumerate() {
                *top = simd.max(simd.load(at(key + c)), *top);
            }
        }
        for key in whole..keys {
            tops[0] = simd.max(simd.load(at(key)), tops[0]);
        }
        let tile_max = simd.max(simd.max(tops[0], tops[1]), simd.max(tops[2], tops[3]));
        let old_max = simd.load(row_max);
        let new_max = simd.max(tile_max, old_max);
        let top = finite_top(simd, new_max);
        let alpha = math::exp(simd, simd.sub(old_max, top));
        let mut sum = simd.splat(S::T::ZERO);
        for key in 0..keys {
            let x = simd.sub(simd.load(at(key)), top);
            let p = math::exp(simd, x);
            simd.store(at(key), p);
            sum = simd.add(sum, p);
            watch.see(simd, key, x, p);
        }
        let old_sum = simd.load(row_sum);
        simd.store(row_max, new_max);
        simd.store(row_sum, simd.mul_add(old_sum, alpha, sum));
        Update { alpha, old_max, tile_max, top, old_sum }
    }
}

/// What one tile did to a vector of rows.
#[derive(Clone, Copy)]
pub(crate) struct Update<V> {
    /// What older sums are multiplied with.
    pub(crate) alpha: V,
    pub(crate) old_max: V,
    pub(crate) tile_max: V,
    /// The new maximum; 0 where nothing was seen.
    pub(crate) top: V,
    pub(crate) old_sum: V,
}

/// Join attention over two disjoint sets of keys, each given by its normalised output and its log-sum-exp (natural
/// logarithm). Rows that saw nothing (`lse = -inf`) give way to the other side; two of them stay empty.
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
/// [`Error::OutputShape`] when the shapes do not agree.
pub fn merge<T: Real>(
    out_a: ArrayView4<'_, T>,
    lse_a: ArrayView3<'_, T>,
    out_b: ArrayView4<'_, T>,
    lse_b: ArrayView3<'_, T>,
) -> Result<(Array4<T>, Array3<T>)> {
    let same = |operand, got: &[usize], expected: &[usize]| {
        if got == expected { Ok(()) } else { Err(Error::OutputShape { operand, got: got.to_vec(), expected: expected.to_vec() }) }
    };
    same("out_b", out_b.shape(), out_a.shape())?;
    same("lse_a", lse_a.shape(), &out_a.shape()[..3])?;
    same("lse_b", lse_b.shape(), &out_a.shape()[..3])?;
    let mut out = out_a.to_owned();
    let mut lse = lse_a.to_owned();
    Zip::from(out.lanes_mut(ndarray::Axis(3))).and(out_b.lanes(ndarray::Axis(3))).and(&mut lse).and(&lse_b).for_each(
        |mut out, out_b, lse, &lse_b| {
            let (a, b) = (lse.to_f64(), lse_b.to_f64());
            if b == f64::NEG_INFINITY {
                return;
            }
            // Not `max`: a NaN must show.
            let top = if a > b { a } else { b };
            let (wa, wb) = ((a - top).exp(), (b - top).exp());
            let sum = wa + wb;
            *lse = T::from_f64(top + sum.ln());
            if wa == 0.0 {
                out.assign(&out_b);
            } else {
                Zip::from(&mut out).and(&out_b).for_each(|x, &y| *x = T::from_f64((x.to_f64() * wa + y.to_f64() * wb) / sum));
            }
        },
    );
    Ok((out, lse))
}
