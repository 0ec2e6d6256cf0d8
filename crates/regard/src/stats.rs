//! What attention did, row by row, without the matrix: sums that run along with the softmax, in the same pass.
//!
//! With `w` the weights of a row, `i` the query's position on the key axis and `j` the key:
//!
//! | name | definition |
//! |---|---|
//! | `entropy` | `-sum(w ln w)`, in nats |
//! | `max_weight`, `argmax` | the largest weight, and the lowest key that has it (-1 in a row without any visible key) |
//! | `sum_of_squares` | `sum(w^2)`; its inverse is an effective number of keys |
//! | `diagonal_mass` | weight of key `j = i` |
//! | `previous_token_mass` | weight of key `j = i - 1` |
//! | `first_token_mass` | weight of key 0 |
//! | `local_mass` | weight of the keys with `abs(i - j) <= local_window` |
//! | `mean_distance` | `sum(w * abs(i - j))` |
//! | `top_keys` | the keys with the largest weights, and these |
//!
//! The weights are those of the keys. With a sink logit they sum to less than one, and so do the masses.
//! A row without any visible key has zeros throughout. Distances are exact up to 2^24 keys in f32.

use crate::mask::Place;
use crate::online_softmax::Update;
use crate::score::RowBlock;
use crate::simd::{Lanes, Real};
use ndarray::{Array2, Array3, Array4, Axis};
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

/// Statistics of every row, each `[batch, heads_q, seq_q]`. The [module](crate::stats) has the definitions.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the table of the module defines them")]
pub struct RowStats<T> {
    pub entropy: Array3<T>,
    pub max_weight: Array3<T>,
    pub argmax: Array3<i64>,
    pub sum_of_squares: Array3<T>,
    pub diagonal_mass: Array3<T>,
    pub previous_token_mass: Array3<T>,
    pub first_token_mass: Array3<T>,
    pub local_mass: Array3<T>,
    pub mean_distance: Array3<T>,
    /// Key numbers, heaviest first, `[batch, heads_q, seq_q, top_keys]`; -1 where there are fewer visible keys.
    pub top_keys: Array4<i64>,
    /// Their weights.
    pub top_weights: Array4<T>,
}

/// Means over the rows of a head that see any key, each `[batch, heads_q]`.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the table of the module defines them")]
pub struct HeadStats {
    pub entropy: Array2<f64>,
    pub max_weight: Array2<f64>,
    pub sum_of_squares: Array2<f64>,
    pub diagonal_mass: Array2<f64>,
    pub previous_token_mass: Array2<f64>,
    pub first_token_mass: Array2<f64>,
    pub local_mass: Array2<f64>,
    pub mean_distance: Array2<f64>,
}

impl<T: Real> RowStats<T> {
    /// Mean of each statistic over the rows that see any key; 0 for a head without such a row.
    pub fn heads(&self) -> HeadStats {
        let counts = self.argmax.map_axis(Axis(2), |keys| keys.iter().filter(|&&key| key >= 0).count().max(1) as f64);
        // Rows that see no key are zeros.
        let mean = |rows: &Array3<T>| rows.map_axis(Axis(2), |rows| rows.iter().map(|x| x.to_f64()).sum::<f64>()) / &counts;
        HeadStats {
            entropy: mean(&self.entropy),
            max_weight: mean(&self.max_weight),
            sum_of_squares: mean(&self.sum_of_squares),
            diagonal_mass: mean(&self.diagonal_mass),
            previous_token_mass: mean(&self.previous_token_mass),
            first_token_mass: mean(&self.first_token_mass),
            local_mass: mean(&self.local_mass),
            mean_distance: mean(&self.mean_distance),
        }
    }
}

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

/// The running sums of a block of rows.
pub(crate) struct StatSums<T> {
    options: StatsOptions,
    lanes: usize,
    /// `[sum][lane]`
    sums: Vec<T>,
    /// The query's position of each lane.
    positions: Vec<i64>,
    position_values: Vec<T>,
    argmax: Vec<Option<usize>>,
    /// `[lane][top_keys]`, best first.
    tops: Vec<(T, usize)>,
}

impl<T: Real> StatSums<T> {
    pub(crate) fn new(options: StatsOptions, block: &RowBlock, place: impl Fn(usize) -> Place, lanes: usize) -> Self {
        let mut positions = Vec::with_capacity(lanes);
        for head in block.head..block.head + block.heads {
            let place = place(head);
            positions.extend((block.first..block.first + block.queries).map(|query| place.position(query)));
        }
        // Lanes past the last row are anybody's.
        positions.resize(lanes, 0);
        let position_values = positions.iter().map(|&p| T::from_f64(p as f64)).collect();
        let tops = vec![Self::NO_KEY; options.top_keys * lanes];
        Self { options, lanes, sums: vec![T::ZERO; SUMS * lanes], positions, position_values, argmax: vec![None; lanes], tops }
    }

    const NO_KEY: (T, usize) = (T::HIDDEN, usize::MAX);

    pub(crate) fn reset(&mut self) {
        self.sums.fill(T::ZERO);
        self.argmax.fill(None);
        self.tops.fill(Self::NO_KEY);
    }

    /// Positions of the vector of lanes from `lane` on.
    pub(crate) fn positions(&self, lane: usize) -> *const T {
        self.position_values[lane..].as_ptr()
    }

    /// List the heaviest keys; before the scores become weights.
    #[inline(always)]
    pub(crate) fn note_top_keys<S: Lanes<T = T>>(
        &mut self,
        simd: S,
        scores: &[T],
        width: usize,
        offset: usize,
        lane: usize,
        rows: usize,
        keys: &Range<usize>,
    ) {
        let k = self.options.top_keys;
        if k == 0 {
            return;
        }
        let mut low = [T::HIDDEN; 16];
        for (x, low) in low.iter_mut().enumerate().take(S::LANES) {
            *low = self.tops[(lane + x) * k + k - 1].0;
        }
        for (key, line) in keys.clone().zip(scores.chunks_exact(width)) {
            let line = &line[offset..offset + S::LANES];
            // SAFETY: both are whole vectors.
            let mut better = unsafe { simd.bits_from_mask(simd.lt(simd.load(low.as_ptr()), simd.load(line.as_ptr()))) };
            while better != 0 {
                let x = better.trailing_zeros() as usize;
                better &= better - 1;
                if x < rows {
                    let tops = &mut self.tops[(lane + x) * k..][..k];
                    insert(tops, (line[x], key));
                    low[x] = tops[k - 1].0;
                }
            }
        }
    }

    /// Take in one tile of a vector of rows: `weights` are the `p` of the update; `squares`, `entropy` and `distance` were
    /// summed on the way. `first_max` finds the lowest key with the tile's maximum.
    #[inline(always)]
    pub(crate) fn note_tile<S: Lanes<T = T>>(
        &mut self,
        simd: S,
        update: &Update<S::V>,
        [squares, entropy, distance]: [S::V; 3],
        weights: &[T],
        width: usize,
        offset: usize,
        lane: usize,
        rows: usize,
        keys: &Range<usize>,
    ) {
        let lanes = self.lanes;
        assert!(lane + S::LANES <= lanes && self.sums.len() == SUMS * lanes);
        let at = |sum: usize| sum * lanes + lane;
        let mut alpha = [T::ZERO; 16];
        // SAFETY: every vector lies inside its sum's `lanes` places (just checked); `alpha` holds 16 >= LANES.
        unsafe {
            simd.store(alpha.as_mut_ptr(), update.alpha);
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
        self.note_argmax(simd, update, weights, width, offset, lane, rows, keys);
        let window = self.options.local_window as i64;
        let (mut nearest, mut farthest) = (i64::MAX, i64::MIN);
        for x in 0..rows {
            let position = self.positions[lane + x];
            (nearest, farthest) = (nearest.min(position), farthest.max(position));
            for (sum, key) in [(DIAGONAL, position), (PREVIOUS, position - 1), (FIRST, 0)] {
                if let Ok(key) = usize::try_from(key)
                    && keys.contains(&key)
                {
                    self.sums[at(sum) + x] += weights[(key - keys.start) * width + offset + x];
                }
            }
        }
        let band = |p: i64| usize::try_from(p).unwrap_or(0).clamp(keys.start, keys.end);
        let near = band(nearest.saturating_sub(window))..band(farthest.saturating_add(window).saturating_add(1));
        if !near.is_empty() {
            self.add_local(simd, weights, width, offset, lane, keys.start, near);
        }
    }

    #[inline(always)]
    fn add_local<S: Lanes<T = T>>(
        &mut self,
        simd: S,
        weights: &[T],
        width: usize,
        offset: usize,
        lane: usize,
        first_key: usize,
        near: Range<usize>,
    ) {
        let window = simd.splat(T::from_f64(self.options.local_window as f64));
        let zero = simd.splat(T::ZERO);
        let mut sum = zero;
        // SAFETY: each is a whole vector: the positions and sums have `lanes` places, `weights` has `width` per key.
        unsafe {
            let positions = simd.load(self.positions(lane));
            for key in near {
                let away = simd.abs(simd.sub(positions, simd.splat(T::from_f64(key as f64))));
                let p = simd.load(weights[(key - first_key) * width + offset..][..S::LANES].as_ptr());
                sum = simd.add(sum, simd.select(simd.lt(window, away), zero, p));
            }
            let local = self.sums[LOCAL * self.lanes + lane..][..S::LANES].as_mut_ptr();
            simd.store(local, simd.add(simd.load(local), sum));
        }
    }

    /// Rows whose maximum grew: the lowest key of the tile that has it is the one with p = 1.
    #[inline(always)]
    fn note_argmax<S: Lanes<T = T>>(
        &mut self,
        simd: S,
        update: &Update<S::V>,
        weights: &[T],
        width: usize,
        offset: usize,
        lane: usize,
        rows: usize,
        keys: &Range<usize>,
    ) {
        let mut grown = simd.bits_from_mask(simd.lt(update.old_max, update.tile_max)) & (u32::MAX >> (32 - rows.min(S::LANES).max(1)));
        let one = simd.splat(T::ONE);
        for (key, line) in keys.clone().zip(weights.chunks_exact(width)) {
            if grown == 0 {
                return;
            }
            // SAFETY: the slice is one whole vector.
            let p = unsafe { simd.load(line[offset..offset + S::LANES].as_ptr()) };
            let mut here = grown & simd.bits_from_mask(simd.eq(p, one));
            grown &= !here;
            while here != 0 {
                let x = here.trailing_zeros() as usize;
                here &= here - 1;
                self.argmax[lane + x] = Some(key);
            }
        }
    }

    /// Take in the sums of later keys; see [`crate::online_softmax::State::merge`].
    pub(crate) fn merge(&mut self, max: &[T], sum: &[T], later: &Self, later_max: &[T], later_sum: &[T], mine: &[T], others: &[T]) {
        let lanes = self.lanes;
        for r in 0..lanes {
            let (a, b) = (mine[r], others[r]);
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
            let k = self.options.top_keys;
            for &top in &later.tops[r * k..(r + 1) * k] {
                if self.tops[r * k + k - 1].0 < top.0 {
                    insert(&mut self.tops[r * k..(r + 1) * k], top);
                }
            }
        }
    }

    /// The statistics of one row, from its own state and, where there is a sink, the state after it:
    /// `(row_max, row_sum)` each. `None` where no key was visible.
    pub(crate) fn finish(&self, r: usize, keys: (T, T), all: (T, T)) -> Option<RowSummary> {
        let argmax = self.argmax[r]?;
        let at = |sum: usize| self.sums[sum * self.lanes + r].to_f64();
        let (max, sum) = (keys.0.to_f64(), keys.1.to_f64());
        let (top, total) = (all.0.to_f64(), all.1.to_f64());
        let unit = if max == top { 1.0 } else { (max - top).exp() } / total;
        let k = self.options.top_keys;
        let tops = self.tops[r * k..(r + 1) * k].iter().filter(|(_, key)| *key != usize::MAX);
        Some(RowSummary {
            argmax,
            max_weight: unit,
            sum_of_squares: at(SQUARES) * unit * unit,
            // -sum w ln w with w = p unit; rounding may leave a certain row a hair below zero.
            entropy: (-at(ENTROPY) * unit - sum * unit * unit.ln()).max(0.0),
            mean_distance: at(DISTANCE) * unit,
            diagonal_mass: at(DIAGONAL) * unit,
            previous_token_mass: at(PREVIOUS) * unit,
            first_token_mass: at(FIRST) * unit,
            local_mass: at(LOCAL) * unit,
            tops: tops.map(|&(score, key)| (key, (score.to_f64() - top).exp() / total)).collect(),
        })
    }
}

/// The finished statistics of one row.
pub(crate) struct RowSummary {
    argmax: usize,
    max_weight: f64,
    sum_of_squares: f64,
    entropy: f64,
    mean_distance: f64,
    diagonal_mass: f64,
    previous_token_mass: f64,
    first_token_mass: f64,
    local_mass: f64,
    tops: Vec<(usize, f64)>,
}

impl<T: Real> RowStats<T> {
    pub(crate) fn zeros(shape: [usize; 3], top_keys: usize) -> Self {
        let rows = || Array3::from_elem(shape, T::ZERO);
        let [b, h, n] = shape;
        Self {
            entropy: rows(),
            max_weight: rows(),
            argmax: Array3::from_elem(shape, -1),
            sum_of_squares: rows(),
            diagonal_mass: rows(),
            previous_token_mass: rows(),
            first_token_mass: rows(),
            local_mass: rows(),
            mean_distance: rows(),
            top_keys: Array4::from_elem([b, h, n, top_keys], -1),
            top_weights: Array4::from_elem([b, h, n, top_keys], T::ZERO),
        }
    }

    /// Where its numbers go. Only for new statistics, which lie side by side.
    pub(crate) fn places(&mut self) -> Places<'_, T> {
        fn flat<X, D: ndarray::Dimension>(x: &mut ndarray::Array<X, D>) -> &mut [X] {
            x.as_slice_mut().expect("a new array lies side by side")
        }
        Places {
            top: self.top_keys.len_of(Axis(3)),
            entropy: flat(&mut self.entropy),
            max_weight: flat(&mut self.max_weight),
            argmax: flat(&mut self.argmax),
            sum_of_squares: flat(&mut self.sum_of_squares),
            diagonal_mass: flat(&mut self.diagonal_mass),
            previous_token_mass: flat(&mut self.previous_token_mass),
            first_token_mass: flat(&mut self.first_token_mass),
            local_mass: flat(&mut self.local_mass),
            mean_distance: flat(&mut self.mean_distance),
            top_keys: flat(&mut self.top_keys),
            top_weights: flat(&mut self.top_weights),
        }
    }
}

/// The numbers of [`RowStats`], side by side.
pub(crate) struct Places<'s, T> {
    /// Keys listed per row.
    top: usize,
    entropy: &'s mut [T],
    max_weight: &'s mut [T],
    argmax: &'s mut [i64],
    sum_of_squares: &'s mut [T],
    diagonal_mass: &'s mut [T],
    previous_token_mass: &'s mut [T],
    first_token_mass: &'s mut [T],
    local_mass: &'s mut [T],
    mean_distance: &'s mut [T],
    top_keys: &'s mut [i64],
    top_weights: &'s mut [T],
}

impl<T: Real> Places<'_, T> {
    /// Row number `at` of all.
    pub(crate) fn set(&mut self, at: usize, row: &RowSummary) {
        let f = T::from_f64;
        self.entropy[at] = f(row.entropy);
        self.max_weight[at] = f(row.max_weight);
        self.argmax[at] = row.argmax as i64;
        self.sum_of_squares[at] = f(row.sum_of_squares);
        self.diagonal_mass[at] = f(row.diagonal_mass);
        self.previous_token_mass[at] = f(row.previous_token_mass);
        self.first_token_mass[at] = f(row.first_token_mass);
        self.local_mass[at] = f(row.local_mass);
        self.mean_distance[at] = f(row.mean_distance);
        for (n, &(key, weight)) in row.tops.iter().enumerate() {
            self.top_keys[at * self.top + n] = key as i64;
            self.top_weights[at * self.top + n] = f(weight);
        }
    }
}

/// Insert into a list that is sorted by score, dropping the last; equal scores stay in the order of arrival.
fn insert<T: Real>(tops: &mut [(T, usize)], new: (T, usize)) {
    let place = tops.iter().position(|t| t.0 < new.0).unwrap_or(tops.len());
    if place < tops.len() {
        tops[place..].rotate_right(1);
        tops[place] = new;
    }
}
