//! Attention of one query tile: the visitor that updates the running softmax and accumulates values.

use super::output::{Outputs, copy_rows, store_rows};
use super::softmax::{AccLayout, Observer, OwnedState, SoftmaxUpdate, State};
use crate::mainloop::decode::DecodeValues;
use crate::mainloop::dropout::apply_dropout;
use crate::mainloop::operand::{Operand, Source, TileRows};
use crate::mainloop::scores::{Scorer, Stage};
use crate::mainloop::tiles::{AddTileProducts, product_len};
use crate::mainloop::tiling::{KV_SPLIT, KV_TILE, Need, by_width};
use crate::mainloop::{KvTile, Visitor, mainloop};
use ndarray::Axis;
use regard_simd::microkernel::{Epilogue, GemmOperands, product};
use regard_simd::scratch::{Scratch, slices};
use regard_simd::strided::Rows;
use regard_simd::{Driver, Kernel, Real, Simd, Storage};
use std::ops::Range;

pub(crate) struct AttendTile<'p, 'a, 'o, E: Storage, O> {
    pub(crate) scorer: &'p Scorer<'a, E>,
    pub(crate) v: Source<'p, E>,
    /// Makes an observer with the given number of lanes.
    pub(crate) observer: &'p (dyn Fn(usize) -> O + Sync),
    pub(crate) keys: Range<usize>,
    /// Keys of the whole call, or of one split computed on its own; `keys` are those of this piece.
    pub(crate) of: Range<usize>,
    /// States of earlier keys: of this split, and of the splits before it. Empty at the start.
    pub(crate) before: &'p [OwnedState<E::Real, O>],
    /// States of the splits after `keys`, in order.
    pub(crate) splits: &'p [Split<E::Real, O>],
    pub(crate) output: Option<&'p mut Outputs<'o, E>>,
}

/// Keys of splits, and the state of each on its own.
pub(crate) type Splits<T, O> = Vec<Split<T, O>>;

/// The keys of a split, and their state.
pub(crate) type Split<T, O> = (Range<usize>, OwnedState<T, O>);

/// The states, if there is no output; the observer's summary of each row otherwise.
pub(crate) type Outcome<T, O> = (Vec<OwnedState<T, O>>, Vec<<O as Observer<T>>::Row>);

impl<E: Storage, O: Observer<E::Real>> Driver<E::Real> for AttendTile<'_, '_, '_, E, O> {
    type Output = Outcome<E::Real, O>;

    fn run<S: Simd<T = E::Real>>(self, simd: S) -> Self::Output {
        let Self { scorer, v, observer, keys, of, before, splits, output } = self;
        let layout = AccLayout::new::<S>(scorer.tile.rows(), scorer.plan.dims.value_dim, scorer.decodes::<S>());
        let seen = scorer.key_range(of);
        let several = has_several_splits(&seen);
        let lanes = layout.lanes;
        let mut memory = Scratch::take();
        slices! { memory =>
            copy: Operand::copy_len(v),
            dropout: if scorer.plan.dropout().is_some() { KV_TILE * 2 * S::LANES } else { 0 },
            factors: 2 * lanes,
            rows: layout.rows * layout.ld.unwrap_or(layout.dims),
            tiles: if S::TILES { product_len(layout.dims) } else { 0 },
            row_max: lanes,
            row_sum: lanes,
            acc: layout.acc_len(),
            total_max: if several { lanes } else { 0 },
            total_sum: if several { lanes } else { 0 },
            total_acc: if several { layout.acc_len() } else { 0 },
        }
        let mut attend = Attend {
            scorer,
            layout,
            values: Operand::new(v, scorer.plan.part.key, copy),
            state: State::new(row_max, row_sum, acc, observer(lanes)),
            total: several.then(|| State::new(total_max, total_sum, total_acc, observer(lanes))),
            dropout,
            factors,
            rows,
            tiles,
        };
        let states = [Some(&mut attend.state), attend.total.as_mut()].into_iter().flatten();
        states.zip(before).for_each(|(state, before)| before.restore(&layout, state));
        let mut end = seen.end.min(keys.end);
        mainloop(simd, scorer, seen.start.max(keys.start)..end, KV_SPLIT, &mut attend);
        for (keys, split) in splits {
            split.restore(&layout, &mut attend.state);
            end = keys.end;
            if end.is_multiple_of(KV_SPLIT) {
                attend.split_done(simd);
            }
        }
        let Some(output) = output else {
            // At the end of a split its state has been added to `total` already, and only `total` is kept.
            let ended = several && end.is_multiple_of(KV_SPLIT);
            let states = [Some(&attend.state).filter(|_| !ended), attend.total.as_ref()];
            let kept = states.into_iter().take(1 + usize::from(several)).map(|state| OwnedState::new(layout, state, || observer(0)));
            return (kept.collect(), Vec::new());
        };
        if !seen.end.is_multiple_of(KV_SPLIT) {
            attend.split_done(simd);
        }
        (Vec::new(), attend.finish(simd, output))
    }
}

/// Rows that see keys of several splits have a state for those before.
pub(crate) fn has_several_splits(seen: &Range<usize>) -> bool {
    !seen.is_empty() && seen.start / KV_SPLIT != (seen.end - 1) / KV_SPLIT
}

struct Attend<'w, 'a, E: Storage, O> {
    scorer: &'w Scorer<'a, E>,
    layout: AccLayout,
    values: Operand<'w, E>,
    /// Of this split.
    state: State<'w, E::Real, O>,
    /// Of the splits before, where there are several.
    total: Option<State<'w, E::Real, O>>,
    /// Room for the dropout of a panel.
    dropout: &'w mut [E::Real],
    /// Two elements per lane.
    factors: &'w mut [E::Real],
    /// Finished rows, before they are stored; sums of a tile where rows are few.
    rows: &'w mut [E::Real],
    /// Working memory of [`AddTileProducts`].
    tiles: &'w mut [E::Real],
}

impl<S: Simd, E: Storage<Real = S::T>, O: Observer<S::T>> Visitor<S, E> for Attend<'_, '_, E, O> {
    fn stage(&self) -> Stage {
        Stage::Masked
    }

    fn begin(&mut self, _: S, tile: &mut KvTile<'_, '_, E>, _: &[Need]) {
        self.values.begin(tile.keys.clone(), None);
    }

    fn panel(&mut self, simd: S, tile: &mut KvTile<'_, '_, E>, need: &Need, scores: &mut [S::T]) {
        // Of the scores as they are: afterwards they are weights.
        let care = self.values.needs_care(simd, need).then(|| tile.scorer.visible(simd, need, scores));
        let (state, alpha) = (&mut self.state, &mut *self.factors);
        by_width!(S, need.panel.width, NR => simd.call(SoftmaxUpdate::<_, _, NR> { need, scores, state, alpha }));
        apply_dropout(simd, self.scorer.plan.dropout(), self.scorer.tile, need, scores, self.dropout);
        self.add_values(simd, need, scores, care.as_ref());
    }

    fn split_done(&mut self, simd: S) {
        if let Some(total) = &mut self.total {
            total.combine(simd, &self.layout, &self.state, self.factors);
            self.state.reset();
        }
    }
}

impl<E: Storage, O: Observer<E::Real>> Attend<'_, '_, E, O> {
    /// `acc = acc * alpha + values^T . p`. With `visible`, non-finite values are added only to rows that see them.
    fn add_values<S: Simd<T = E::Real>>(&mut self, simd: S, need: &Need, weights: &[S::T], visible: Option<&[u32; KV_TILE]>) {
        let Self { layout, values, state, factors: alpha, rows: sums, tiles: memory, .. } = self;
        let (panel, dims) = (&need.panel, layout.dims);
        let acc = &mut *state.acc;
        match layout.ld {
            Some(ld) => {
                let rows = layout.rows;
                let v = match visible {
                    Some(_) => TileRows::Real(values.zero_non_finite(simd, &need.keys)),
                    None => values.decode_rows(simd, &need.keys),
                };
                match v {
                    TileRows::Stored(v) => simd.call(DecodeValues { weights, rows, ld, v, alpha, sums, acc }),
                    TileRows::Real(v) => simd.call(DecodeValues { weights, rows, ld, v, alpha, sums, acc }),
                }
            }
            None if S::TILES => {
                let acc = &mut acc[panel.start * dims..][..panel.width * dims];
                let v = values.transposed(simd, visible.is_some());
                let first = need.keys.start % KV_TILE;
                let (keys, ld) = (first..first + need.keys.len(), panel.width);
                by_width!(S, panel.width, NR => {
                    simd.call(AddTileProducts::<_, NR> { values: v, dims, keys, weights, ld, alpha, memory, acc });
                });
            }
            None => {
                let acc = &mut acc[panel.start * dims..][..panel.width * dims];
                let v = if visible.is_some() { values.zero_non_finite(simd, &need.keys) } else { values.rows(simd, &need.keys) };
                add_products(simd, v, weights, panel.width, alpha, acc);
            }
        }
        let Some(visible) = visible else { return };
        for x in values.non_finite(&need.keys) {
            let i = x.key - need.keys.start;
            for lane in (0..panel.rows).filter(|lane| visible[i] >> lane & 1 == 1) {
                let place = match layout.ld {
                    Some(ld) => lane * ld + x.dim,
                    None => panel.start * dims + x.dim * panel.width + lane,
                };
                state.acc[place] += weights[i * panel.width + lane] * x.value;
            }
        }
    }

    /// Divide and store all rows; returns the observer's summaries.
    fn finish<S: Simd<T = E::Real>>(self, simd: S, outputs: &mut Outputs<'_, E>) -> Vec<O::Row> {
        let Self { scorer, layout, state, total, factors, rows: buffer, .. } = self;
        let mut state = total.unwrap_or(state);
        let (plan, tile) = (scorer.plan, &scorer.tile);
        let before: Option<Vec<[S::T; 2]>> =
            plan.has_sink().then(|| state.row_max.iter().zip(&*state.row_sum).map(|(&max, &sum)| [max, sum]).collect());
        if plan.has_sink() {
            let logit = |r: usize| plan.sink(tile.row(r.min(layout.rows - 1)).0).map_or(S::T::NEG_INFINITY, S::T::from_f64);
            let logits: Vec<_> = (0..layout.lanes).map(logit).collect();
            state.add_sink(simd, &layout, &logits, factors);
        }
        outputs.set_denominators(state.row_max, state.row_sum);
        let out = outputs.out.index_axis_mut(Axis(0), 0);
        // A row that saw nothing is 0 / 1.
        let divisors = &mut factors[..layout.lanes];
        divisors.iter_mut().zip(&*state.row_sum).for_each(|(d, &sum)| *d = if sum == S::T::ZERO { S::T::ONE } else { sum });
        match layout.ld {
            Some(ld) => {
                for (r, &divisor) in divisors.iter().enumerate().take(layout.rows) {
                    for (to, &x) in buffer[r * layout.dims..][..layout.dims].iter_mut().zip(&state.acc[r * ld..]) {
                        *to = x / divisor;
                    }
                }
                copy_rows(buffer, out, E::from_real);
            }
            // Rounded results are stored by way of the buffer, which then holds what was rounded.
            None => store_rows::<S, E, true>(simd, state.acc, divisors, buffer, out),
        }
        if let Some(out_unrounded) = &mut outputs.out_unrounded {
            copy_rows(buffer, out_unrounded.index_axis_mut(Axis(0), 0), |x| x);
        }
        let end = |r: usize| [state.row_max[r], state.row_sum[r]];
        (0..layout.rows).map(|r| state.observer.finish(r, before.as_ref().map_or_else(|| end(r), |before| before[r]), end(r))).collect()
    }
}

/// `acc[dim][lane] = acc[dim][lane] * alpha[lane] + sum over keys of v[key, dim] * weights[key * ld + lane]`, for a panel of `alpha`'s
/// lanes.
pub(crate) fn add_products<S: Simd>(simd: S, v: Rows<'_, S::T>, weights: &[S::T], ld: usize, alpha: &[S::T], acc: &mut [S::T]) {
    let width = acc.len() / v.cols().max(1);
    if width > 0 {
        by_width!(S, width, NR => simd.call(AddProducts::<_, NR> { v, weights, ld, alpha, acc }));
    }
}

struct AddProducts<'k, T: Real, const NR: usize> {
    v: Rows<'k, T>,
    weights: &'k [T],
    /// From one key's weights to the next's.
    ld: usize,
    alpha: &'k [T],
    acc: &'k mut [T],
}

impl<T: Real, const NR: usize> Kernel<T> for AddProducts<'_, T, NR> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { v, weights, ld, alpha, acc } = self;
        let (width, rows, depth) = (NR * S::LANES, v.cols(), v.len());
        assert!(v.has_unit_cols() && depth > 0);
        assert!(weights.len() >= (depth - 1) * ld + width && acc.len() >= rows * width && alpha.len() >= width);
        // SAFETY: rows of v have as many contiguous elements as the result has rows; `weights` has a row of `width` for each key, `acc` one
        // for each dimension, `alpha` one. All of it was just checked.
        unsafe {
            let mut by = [simd.splat(T::ZERO); NR];
            for (n, by) in by.iter_mut().enumerate() {
                *by = simd.load(alpha.as_ptr().add(n * S::LANES));
            }
            let to = AddTo::<S, NR> { acc: acc.as_mut_ptr(), by };
            let operands = GemmOperands { rows, depth, a: v.row(0), stride: v.row_stride(), b: weights.as_ptr(), ld };
            product::<S, NR, true, false, false>(simd, operands, to);
        }
    }
}

/// A tile's sum on its way to the accumulator.
struct AddTo<S: Simd, const NR: usize> {
    acc: *mut S::T,
    by: [S::V; NR],
}

impl<S: Simd, const NR: usize> Epilogue<S, NR> for AddTo<S, NR> {
    #[inline(always)]
    unsafe fn finish(&mut self, simd: S, row: usize, c: [S::V; NR]) {
        for (n, c) in c.into_iter().enumerate() {
            // SAFETY: `acc` has NR * LANES places for every row.
            unsafe {
                let to = self.acc.add((row * NR + n) * S::LANES);
                simd.store(to, simd.mul_add(simd.load(to), self.by[n], c));
            }
        }
    }
}
