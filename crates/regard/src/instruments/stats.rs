//! Streaming row statistics: sums collected in the softmax pass, without the weight matrix.
//!
//! With `w` the weights of a row, `i` the query's position on the key axis and `j` the key:
//!
//! | name | definition |
//! |---|---|
//! | `entropy` | `-sum(w ln w)`, in nats |
//! | `max_weight`, `argmax` | the largest weight, and the lowest key that has it (-1 where there is none) |
//! | `sum_of_squares` | `sum(w^2)`; its inverse is an effective number of keys |
//! | `diagonal_mass` | weight of key `j = i` |
//! | `previous_token_mass` | weight of key `j = i - 1` |
//! | `first_token_mass` | weight of key 0 |
//! | `local_mass` | weight of the keys with `abs(i - j) <= local_window` |
//! | `mean_distance` | `sum(w * abs(i - j))` |
//! | `top_keys` | the keys with the largest weights, and these |
//!
//! The weights are those of the keys. With a sink logit they sum to less than one, and so do the masses.
//! A row without any visible key has zeros throughout; a row that a NaN or an infinity spoils has NaN, and the key that did it as `argmax`.
//! Distances are exact up to 2^24 keys in f32.

use crate::arrays::filled;
use crate::error::Result;
use crate::forward::schedule::{self, Observed, Running};
use crate::forward::softmax::{Observer, Strip, Update};
use crate::forward::{Inputs, Outputs};
use crate::mainloop::tiling::QueryTile;
use crate::plan::Plan;
use ndarray::{Array2, Array3, Array4, Axis};
use regard_simd::simd::MAX_LANES;
use regard_simd::{Real, Simd, Storage};
use std::ops::Range;

/// Which statistics to collect beside those that always are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatsOptions {
    /// Half width of [`RowStats::local_mass`].
    pub local_window: usize,
    /// How many of the heaviest keys to list per row.
    pub top_keys: usize,
}

impl Default for StatsOptions {
    fn default() -> Self {
        Self { local_window: 3, top_keys: 0 }
    }
}

/// The statistics that are one value per row: what is kept of rows, of heads, and of a row that is finished.
macro_rules! statistics {
    ($($name:ident),*) => {
        /// Statistics of every row, each `[batch, heads_q, seq_q]`. The [module](crate::stats) has the definitions.
        #[derive(Debug, Clone)]
        #[expect(missing_docs, reason = "the table of the module defines them")]
        pub struct RowStats<T> {
            $(pub $name: Array3<T>,)*
            pub argmax: Array3<i64>,
            /// Key numbers, heaviest first, `[batch, heads_q, seq_q, top_keys]`; -1 where there are fewer visible keys.
            pub top_keys: Array4<i64>,
            /// Their weights.
            pub top_weights: Array4<T>,
        }

        /// Means over the rows of a head that see any key, each `[batch, heads_q]`.
        #[derive(Debug, Clone)]
        #[expect(missing_docs, reason = "the table of the module defines them")]
        pub struct HeadStats {
            $(pub $name: Array2<f64>,)*
        }

        /// The finished statistics of one row.
        pub(crate) struct RowSummary {
            $($name: f64,)*
            argmax: i64,
            /// Keys and weights; -1 in a spoiled row.
            tops: Vec<(i64, f64)>,
        }

        impl<T: Real> RowStats<T> {
            /// Mean of each statistic over the rows that see any key; 0 for a head without such a row.
            pub fn heads(&self) -> HeadStats {
                // Rows that see no key are zeros; a spoiled one makes NaN of any mean.
                let counts = self.argmax.map_axis(Axis(2), |keys| keys.iter().filter(|&&key| key >= 0).count().max(1) as f64);
                let mean = |rows: &Array3<T>| rows.map_axis(Axis(2), |rows| rows.iter().map(|x| x.to_f64()).sum::<f64>()) / &counts;
                HeadStats { $($name: mean(&self.$name),)* }
            }

            fn zeros(shape: [usize; 3], top_keys: usize) -> Result<Self> {
                let [b, h, n] = shape;
                let what = "statistics";
                Ok(Self {
                    $($name: filled(what, [b, h, n, 1], T::ZERO)?.remove_axis(Axis(3)),)*
                    argmax: filled(what, [b, h, n, 1], -1)?.remove_axis(Axis(3)),
                    top_keys: filled(what, [b, h, n, top_keys], -1)?,
                    top_weights: filled(what, [b, h, n, top_keys], T::ZERO)?,
                })
            }

            fn set(&mut self, at: [usize; 3], row: &RowSummary) {
                $(self.$name[at] = T::from_f64(row.$name);)*
                self.argmax[at] = row.argmax;
                let [b, h, i] = at;
                for (n, &(key, weight)) in row.tops.iter().enumerate() {
                    self.top_keys[[b, h, i, n]] = key;
                    self.top_weights[[b, h, i, n]] = T::from_f64(weight);
                }
            }
        }
    };
}

statistics!(entropy, max_weight, sum_of_squares, diagonal_mass, previous_token_mass, first_token_mass, local_mass, mean_distance);

/// Sums that are linear in `p`, so that a new maximum multiplies them with `alpha`.
const DISTANCE: usize = 0;
const DIAGONAL: usize = 1;
const PREVIOUS: usize = 2;
const FIRST: usize = 3;
const LOCAL: usize = 4;
const LINEAR: usize = 5;
/// sum p^2
const SQUARES: usize = 5;
/// sum p (score - row_max)
const ENTROPY: usize = 6;
const SUMS: usize = 7;

/// The running sums of a tile of query rows.
#[derive(Clone)]
pub(crate) struct StatSums<T> {
    options: StatsOptions,
    lanes: usize,
    /// `[sum][lane]`
    sums: Vec<T>,
    /// The query's position of each lane.
    positions: Vec<i64>,
    position_values: Vec<T>,
    argmax: Vec<Option<usize>>,
    /// The first key whose weight is NaN.
    spoiled: Vec<Option<usize>>,
    /// `[lane][top_keys]`, best first.
    tops: Vec<(T, usize)>,
}

impl<T: Real> StatSums<T> {
    fn new(options: StatsOptions, plan: &Plan<'_>, tile: &QueryTile, lanes: usize) -> Self {
        let mut positions = Vec::with_capacity(lanes);
        tile.segments(plan, 0..tile.rows(), |at, queries, _| positions.extend(queries.map(|query| at.position(query))));
        // Lanes past the last row are padding.
        positions.resize(lanes, 0);
        let position_values = positions.iter().map(|&p| T::from_f64(p as f64)).collect();
        // More keys than there are, or a window of more, is all of them.
        let top_keys = options.top_keys.min(plan.part.whole[3]);
        let options = StatsOptions { top_keys, local_window: options.local_window.min(1 << (usize::BITS - 2)) };
        let tops = vec![Self::NO_KEY; top_keys * lanes];
        Self {
            options,
            lanes,
            sums: vec![T::ZERO; SUMS * lanes],
            positions,
            position_values,
            argmax: vec![None; lanes],
            spoiled: vec![None; lanes],
            tops,
        }
    }

    const NO_KEY: (T, usize) = (T::NEG_INFINITY, usize::MAX);

    /// List the heaviest keys.
    #[inline(always)]
    fn note_top_keys<S: Simd<T = T>>(&mut self, simd: S, strip: &Strip<'_>, scores: &[T]) {
        let k = self.options.top_keys;
        if k == 0 {
            return;
        }
        let mut low = [T::NEG_INFINITY; MAX_LANES];
        for (x, low) in low.iter_mut().enumerate().take(S::LANES) {
            *low = self.tops[(strip.lane + x) * k + k - 1].0;
        }
        for (key, line) in strip.keys.clone().zip(scores.chunks_exact(strip.width)) {
            let line = &line[strip.offset..strip.offset + S::LANES];
            // SAFETY: the line is one whole vector.
            let mut better = unsafe { simd.bits_from_mask(simd.lt(simd.vector(&low), simd.load(line.as_ptr()))) };
            while better != 0 {
                let x = better.trailing_zeros() as usize;
                better &= better - 1;
                if x < strip.rows {
                    let tops = &mut self.tops[(strip.lane + x) * k..][..k];
                    insert(tops, (line[x], key));
                    low[x] = tops[k - 1].0;
                }
            }
        }
    }

    /// Rows whose maximum grew: the lowest key of the tile that has it.
    #[inline(always)]
    fn note_argmax<S: Simd<T = T>>(&mut self, simd: S, strip: &Strip<'_>, scores: &[T], [old_max, tile_max]: [S::V; 2]) {
        let rows = u32::MAX >> (32 - strip.rows.clamp(1, S::LANES));
        let mut grown = simd.bits_from_mask(simd.lt(old_max, tile_max)) & rows;
        for (key, line) in strip.keys.clone().zip(scores.chunks_exact(strip.width)) {
            if grown == 0 {
                return;
            }
            // SAFETY: the slice is one whole vector.
            let score = unsafe { simd.load(line[strip.offset..strip.offset + S::LANES].as_ptr()) };
            let mut here = grown & simd.bits_from_mask(simd.eq(score, tile_max));
            grown &= !here;
            while here != 0 {
                let x = here.trailing_zeros() as usize;
                here &= here - 1;
                self.argmax[strip.lane + x] = Some(key);
            }
        }
    }

    /// The masses at single keys.
    #[inline(always)]
    fn note_places(&mut self, strip: &Strip<'_>, weights: &[T]) {
        for x in 0..strip.rows {
            let position = self.positions[strip.lane + x];
            for (sum, key) in [(DIAGONAL, Some(position)), (PREVIOUS, position.checked_sub(1)), (FIRST, Some(0))] {
                if let Some(key) = key.and_then(|key| usize::try_from(key).ok())
                    && strip.keys.contains(&key)
                {
                    self.sums[sum * self.lanes + strip.lane + x] += weights[(key - strip.keys.start) * strip.width + strip.offset + x];
                }
            }
        }
    }

    /// Rows that became NaN.
    fn note_spoiled(&mut self, strip: &Strip<'_>, weights: &[T]) {
        for x in 0..strip.rows {
            let mut row = strip.keys.clone().zip(weights[strip.offset + x..].iter().step_by(strip.width));
            let first = &mut self.spoiled[strip.lane + x];
            *first = first.or_else(|| row.find(|(_, p)| p.to_f64().is_nan()).map(|(key, _)| key));
        }
    }

    #[inline(always)]
    fn add_local<S: Simd<T = T>>(&mut self, simd: S, strip: &Strip<'_>, weights: &[T]) {
        let positions = &self.positions[strip.lane..strip.lane + strip.rows.max(1)];
        let (mut nearest, mut farthest) = (i64::MAX, i64::MIN);
        for &position in positions {
            (nearest, farthest) = (nearest.min(position), farthest.max(position));
        }
        let reach = self.options.local_window as i64;
        let band = |p: i64| usize::try_from(p).unwrap_or(0).clamp(strip.keys.start, strip.keys.end);
        let near: Range<usize> = band(nearest.saturating_sub(reach))..band(farthest.saturating_add(reach).saturating_add(1));
        if near.is_empty() {
            return;
        }
        let window = simd.splat(T::from_f64(self.options.local_window as f64));
        let zero = simd.splat(T::ZERO);
        let mut sum = zero;
        // SAFETY: each slice is a whole vector.
        unsafe {
            let positions = simd.load(self.position_values[strip.lane..strip.lane + S::LANES].as_ptr());
            for key in near {
                let away = simd.abs(simd.sub(positions, simd.splat(T::from_f64(key as f64))));
                let p = simd.load(weights[(key - strip.keys.start) * strip.width + strip.offset..][..S::LANES].as_ptr());
                sum = simd.add(sum, simd.select(simd.lt(window, away), zero, p));
            }
            let local = self.sums[LOCAL * self.lanes + strip.lane..][..S::LANES].as_mut_ptr();
            simd.store(local, simd.add(simd.load(local), sum));
        }
    }
}

impl<T: Real> Observer<T> for StatSums<T> {
    /// Squares, entropy, distance; the rows' positions counted from the first key.
    type Sums<S: Simd<T = T>> = [S::V; 4];
    /// `None` where no key was visible.
    type Row = Option<RowSummary>;

    fn reset(&mut self) {
        self.sums.fill(T::ZERO);
        self.argmax.fill(None);
        self.spoiled.fill(None);
        self.tops.fill(Self::NO_KEY);
    }

    #[inline(always)]
    fn scores<S: Simd<T = T>>(&mut self, simd: S, strip: &Strip<'_>, scores: &[T], maxima: [S::V; 2]) {
        self.note_top_keys(simd, strip, scores);
        self.note_argmax(simd, strip, scores, maxima);
    }

    #[inline(always)]
    fn begin<S: Simd<T = T>>(&self, simd: S, strip: &Strip<'_>) -> [S::V; 4] {
        let zero = simd.splat(T::ZERO);
        // SAFETY: the slice is one whole vector.
        let positions = unsafe { simd.load(self.position_values[strip.lane..strip.lane + S::LANES].as_ptr()) };
        [zero, zero, zero, simd.sub(positions, simd.splat(T::from_f64(strip.keys.start as f64)))]
    }

    #[inline(always)]
    fn see<S: Simd<T = T>>(simd: S, [squares, entropy, distance, positions]: &mut [S::V; 4], key: usize, x: S::V, p: S::V) {
        *squares = simd.mul_add(p, p, *squares);
        // Hidden: p = 0 and x = -inf, which must not meet.
        *entropy = simd.mul_add(p, simd.max(x, simd.splat(T::VERY_NEGATIVE)), *entropy);
        let away = simd.abs(simd.sub(*positions, simd.splat(T::from_f64(key as f64))));
        *distance = simd.mul_add(p, away, *distance);
    }

    #[inline(always)]
    fn weights<S: Simd<T = T>>(&mut self, simd: S, strip: &Strip<'_>, weights: &[T], update: &Update<S::V>, sums: [S::V; 4]) {
        let [squares, entropy, distance, _] = sums;
        let (lanes, lane) = (self.lanes, strip.lane);
        assert!(lane + S::LANES <= lanes && self.sums.len() == SUMS * lanes);
        // SAFETY: every vector lies inside its sum's `lanes` places (just checked).
        unsafe {
            let at = |sum: usize| sum * lanes + lane;
            let sums = self.sums.as_mut_ptr();
            for sum in 0..LINEAR {
                let p = sums.add(at(sum));
                let plus = if sum == DISTANCE { distance } else { simd.splat(T::ZERO) };
                simd.store(p, simd.mul_add(simd.load(p), update.alpha, plus));
            }
            let p = sums.add(at(SQUARES));
            simd.store(p, simd.mul_add(simd.load(p), simd.mul(update.alpha, update.alpha), squares));
            // sum p (s - new) = alpha (sum p (s - old) + (old - new) sum p); nothing to carry over from an empty state.
            let p = sums.add(at(ENTROPY));
            let zero = simd.splat(T::ZERO);
            let shift = simd.mul_add(simd.sub(update.old_max, update.top), update.old_sum, simd.load(p));
            let shift = simd.select(simd.eq(update.old_sum, zero), zero, simd.mul(shift, update.alpha));
            simd.store(p, simd.add(shift, entropy));
        }
        self.note_places(strip, weights);
        self.add_local(simd, strip, weights);
        if simd.bits_from_mask(simd.eq(update.new_sum, update.new_sum)) != u32::MAX >> (32 - S::LANES) {
            self.note_spoiled(strip, weights);
        }
    }

    fn combine(&mut self, later: &Self, states: [[&[T]; 2]; 2], factors: [&[T]; 2]) {
        let [[max, sum], [later_max, later_sum]] = states;
        let (lanes, k) = (self.lanes, self.options.top_keys);
        for r in 0..lanes {
            let (a, b) = (factors[0][r], factors[1][r]);
            for s in 0..LINEAR {
                self.sums[s * lanes + r] = self.sums[s * lanes + r] * a + later.sums[s * lanes + r] * b;
            }
            let squares = &mut self.sums[SQUARES * lanes + r];
            *squares = *squares * (a * a) + later.sums[SQUARES * lanes + r] * (b * b);
            let top = if max[r] < later_max[r] { later_max[r] } else { max[r] };
            let carried = |entropy: T, m: T, l: T, factor: T| if l == T::ZERO { T::ZERO } else { (entropy + (m - top) * l) * factor };
            self.sums[ENTROPY * lanes + r] = carried(self.sums[ENTROPY * lanes + r], max[r], sum[r], a)
                + carried(later.sums[ENTROPY * lanes + r], later_max[r], later_sum[r], b);
            if max[r] < later_max[r] {
                self.argmax[r] = later.argmax[r];
            }
            self.spoiled[r] = self.spoiled[r].or(later.spoiled[r]);
            for &top in &later.tops[r * k..(r + 1) * k] {
                if self.tops[r * k + k - 1].0 < top.0 {
                    insert(&mut self.tops[r * k..(r + 1) * k], top);
                }
            }
        }
    }

    fn finish(&self, r: usize, keys: [T; 2], all: [T; 2]) -> Option<RowSummary> {
        let [max, sum] = keys.map(T::to_f64);
        let [top, total] = all.map(T::to_f64);
        let k = self.options.top_keys;
        // In a spoiled row every weight is NaN.
        let spoiled = sum.is_nan() || total.is_nan();
        let argmax = (if spoiled { self.spoiled[r] } else { None }).or(self.argmax[r])? as i64;
        let at = |sum: usize| if spoiled { f64::NAN } else { self.sums[sum * self.lanes + r].to_f64() };
        let unit = if max == top { 1.0 } else { (max - top).exp() } / total;
        // -sum w ln w with w = p unit; rounding may leave a certain row a hair below zero. A sink may leave the keys nothing.
        let entropy = if unit == 0.0 { 0.0 } else { -at(ENTROPY) * unit - sum * unit * unit.ln() };
        let tops = self.tops[r * k..(r + 1) * k].iter().filter(|(_, key)| spoiled || *key != usize::MAX);
        let top_weight = |&(score, key): &(T, usize)| {
            if spoiled { (-1, f64::NAN) } else { (key as i64, (score.to_f64() - top).exp() / total) }
        };
        Some(RowSummary {
            argmax,
            max_weight: if spoiled { f64::NAN } else { unit },
            sum_of_squares: at(SQUARES) * unit * unit,
            entropy: if entropy <= 0.0 { 0.0 } else { entropy },
            mean_distance: at(DISTANCE) * unit,
            diagonal_mass: at(DIAGONAL) * unit,
            previous_token_mass: at(PREVIOUS) * unit,
            first_token_mass: at(FIRST) * unit,
            local_mass: at(LOCAL) * unit,
            tops: tops.map(top_weight).collect(),
        })
    }
}

/// Attend, and collect the statistics of all rows.
pub(crate) fn forward_with_stats<E: Storage>(
    plan: &Plan<'_>,
    inputs: Inputs<'_, E>,
    outputs: Outputs<'_, E>,
    options: StatsOptions,
) -> Result<RowStats<E::Real>> {
    row_stats(plan, options, schedule::run(plan, &inputs, outputs, &|tile, lanes| StatSums::new(options, plan, tile, lanes))?)
}

/// [`forward_with_stats`] for keys that are a part of a whole: zeros before the last piece.
pub(crate) fn forward_part_with_stats<E: Storage>(
    plan: &Plan<'_>,
    inputs: Inputs<'_, E>,
    outputs: Option<Outputs<'_, E>>,
    states: &mut Running<E::Real, StatSums<E::Real>>,
    options: StatsOptions,
) -> Result<RowStats<E::Real>> {
    let observer = |tile: &QueryTile, lanes: usize| StatSums::new(options, plan, tile, lanes);
    row_stats(plan, options, schedule::run_part(plan, &inputs, outputs, states, &[], &observer)?)
}

fn row_stats<T: Real>(plan: &Plan<'_>, options: StatsOptions, tiles: Observed<T, StatSums<T>>) -> Result<RowStats<T>> {
    let d = plan.dims;
    let mut stats = RowStats::zeros([d.batch, d.heads_q, d.seq_q], options.top_keys)?;
    for (tile, rows) in tiles {
        for (r, summary) in rows.iter().enumerate() {
            if let Some(summary) = summary {
                stats.set(tile.place(plan, r), summary);
            }
        }
    }
    Ok(stats)
}

/// Insert into a list that is sorted by score, dropping the last; equal scores stay in the order of arrival.
fn insert<T: Real>(tops: &mut [(T, usize)], new: (T, usize)) {
    let place = tops.iter().position(|t| t.0 < new.0).unwrap_or(tops.len());
    if place < tops.len() {
        tops[place..].rotate_right(1);
        tops[place] = new;
    }
}
