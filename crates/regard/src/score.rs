//! Scores of one panel of queries against one tile of keys: the dot products and everything that happens to them
//! before the softmax.
//!
//! ```text
//! dot * scale -> softcap -> + bias -> masks (hidden = -inf) -> top-k
//! ```
//!
//! Layout: `scores[key * width + lane]`, one query per lane, `width` lanes (one or two vectors) to a panel.
//! Nothing here is larger than a tile.

use crate::attention::Plan;
use crate::bias::Bias;
use crate::decode;
use crate::dropout::{Factors, Multiply};
use crate::element::Element;
use crate::mask::{Place, TileCoverage, broadcast_index};
use crate::product::{Take, product};
use crate::rows::Rows;
use crate::simd::{Lanes, Operation, Real, math};
use ndarray::{ArrayView2, ArrayView3};
use std::ops::Range;
use std::sync::Arc;

/// `values[at..at + LANES] = f(at, values[at..])`, for every vector. A macro, because a closure would not be compiled for
/// the SIMD level.
macro_rules! map {
    ($simd:expr, $lanes:ident, $values:expr, |$at:ident, $v:ident| $f:expr) => {
        for (i, v) in $values.chunks_exact_mut($lanes::LANES).enumerate() {
            let $at = i * $lanes::LANES;
            // SAFETY: the chunk is one whole vector.
            let $v = unsafe { $simd.load(v.as_ptr()) };
            let result = $f;
            // SAFETY: the chunk is one whole vector.
            unsafe { $simd.store(v.as_mut_ptr(), result) };
        }
    };
}

/// Keys per tile. The running softmax is brought up to date once per tile, so this number is part of the result's bits:
/// the same for every path and level. 128 keys make that cost 1 % at head_dim 64, and a tile's scores (16 KiB at
/// AVX-512) still leave room in a first-level cache.
pub(crate) const KV_TILE: usize = 128;

/// Keys after which a fresh running state is begun; the states are merged in order. Long rows can so be shared out
/// over threads without changing a bit.
pub(crate) const SPAN: usize = 16 * KV_TILE;

/// Up to so many rows, vectors run along the keys (see [`decode`]); with more, lanes are filled by rows.
const FEW: usize = 4;

/// Keys that are asked about together where a tile is partly visible.
const HIDE_STEP: usize = 32;

/// Query rows that share a tile of K and V while it is in the cache.
pub(crate) const Q_TILE: usize = 64;

/// Rows of a tile of queries: `queries` of them from `first` on, in each of `heads` neighbouring query heads that read
/// the same keys. Row `r` is query `first + r % queries` of head `head + r / queries`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowBlock {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) heads: usize,
    pub(crate) first: usize,
    pub(crate) queries: usize,
}

impl RowBlock {
    pub(crate) fn rows(&self) -> usize {
        self.heads * self.queries
    }

    /// (head, query) of a row.
    pub(crate) fn row(&self, r: usize) -> (usize, usize) {
        (self.head + r / self.queries, self.first + r % self.queries)
    }

    /// Cut a range of rows where the head changes: calls `f(place, queries, lane of the first)`.
    pub(crate) fn segments(&self, plan: &Plan<'_>, rows: Range<usize>, mut f: impl FnMut(&Place, Range<usize>, usize)) {
        let mut r = rows.start;
        while r < rows.end {
            let (head, query) = self.row(r);
            let count = (self.queries - r % self.queries).min(rows.end - r);
            f(&plan.place(self.batch, head), query..query + count, r - rows.start);
            r += count;
        }
    }

    fn key_range(&self, plan: &Plan<'_>, rows: Range<usize>, keys: Range<usize>) -> Range<usize> {
        if plan.mask().is_everything() {
            return keys;
        }
        let mut all: Option<Range<usize>> = None;
        self.segments(plan, rows, |place, queries, _| {
            let one = plan.mask().key_range(place, queries, keys.clone());
            if !one.is_empty() {
                all = Some(all.take().map_or(one.clone(), |a| a.start.min(one.start)..a.end.max(one.end)));
            }
        });
        all.unwrap_or(keys.start..keys.start)
    }

    fn coverage(&self, plan: &Plan<'_>, rows: Range<usize>, keys: Range<usize>) -> TileCoverage {
        if plan.mask().is_everything() {
            return TileCoverage::Full;
        }
        let mut all = None;
        self.segments(plan, rows, |place, queries, _| {
            let one = plan.mask().coverage(place, queries, keys.clone());
            all = Some(all.map_or(one, |a: TileCoverage| a.beside(one)));
        });
        all.unwrap_or(TileCoverage::Empty)
    }

    /// Bit `r` of `bits[j]`: row `rows.start + r` sees key `keys.start + j`.
    fn bits<S: Lanes>(&self, simd: S, plan: &Plan<'_>, rows: Range<usize>, keys: Range<usize>, bits: &mut [u32]) {
        let mut one = [0; KV_TILE];
        let one = &mut one[..keys.len()];
        bits.fill(0);
        self.segments(plan, rows, |place, queries, lane| {
            one.fill(u32::MAX >> (32 - queries.len()));
            plan.mask().and_bits(simd, place, queries, keys.clone(), one);
            bits.iter_mut().zip(&*one).for_each(|(b, o)| *b |= o << lane);
        });
    }
}

/// The lowest score of a row that top-k keeps, and the last key that keeps it at that very score.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cutoff<T> {
    pub(crate) score: T,
    pub(crate) last_key: usize,
}

/// The cutoffs of the rows of a block.
pub(crate) type Cutoffs<T> = Arc<[Cutoff<T>]>;

/// Everything that is needed to make scores for a block of rows.
pub(crate) struct Scorer<'a, E: Element> {
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) block: RowBlock,
    pub(crate) q: ArrayView3<'a, E>,
    pub(crate) k: Rows<'a, E>,
    /// One per row, when only the highest scores count.
    pub(crate) cutoffs: Option<Cutoffs<E::Real>>,
    /// Rows are laid out in panels, even where they are few.
    pub(crate) panels_only: bool,
}

/// How far into the steps before the softmax to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// `q.k * scale`.
    Raw,
    /// After the softcap.
    Softcap,
    /// After bias and masks: hidden keys are `-inf`. What goes into the softmax.
    Bias,
}

/// A tile of keys, ready for a block of rows.
#[derive(Clone, Copy)]
pub(crate) struct KeyTile<'t, T> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Key `base + i` is row i.
    pub(crate) rows: Rows<'t, T>,
    pub(crate) base: usize,
}

impl<'a, E: Element> Scorer<'a, E> {
    pub(crate) fn new(plan: &'a Plan<'a>, block: RowBlock, q: ArrayView3<'a, E>, k: &ArrayView2<'a, E>) -> Self {
        assert_eq!(q.dim(), (block.heads, block.queries, plan.dims.head_dim));
        assert_eq!(k.dim(), (plan.dims.seq_kv, plan.dims.head_dim));
        Self { plan, block, q, k: Rows::new(k), cutoffs: None, panels_only: false }
    }

    /// So few rows that vectors run along the keys, without a panel (see [`decode`]).
    pub(crate) fn few<S: Lanes<T = E::Real>>(&self) -> bool {
        !self.panels_only && self.block.rows() <= FEW.min(S::Narrow::LANES)
    }

    /// Length of the buffer for the queries: panels of `[dim][lane]`, or row after row where they are few.
    pub(crate) fn queries_len<S: Lanes<T = E::Real>>(&self) -> usize {
        self.block.rows().next_multiple_of(2 * S::LANES) * self.plan.dims.head_dim
    }

    /// Length of the buffer that K is copied to, where it cannot be read as it lies.
    pub(crate) fn keys_len(&self) -> usize {
        if E::NATIVE && self.k.has_unit_cols() { 0 } else { KV_TILE * self.plan.dims.head_dim }
    }

    /// Rows of the panels, at most two vectors of them each.
    pub(crate) fn panels<S: Lanes<T = E::Real>>(&self) -> impl Iterator<Item = Range<usize>> + use<S, E> {
        panels::<S>(self.block.rows())
    }

    /// Lay the queries out for the kernels.
    pub(crate) fn pack_queries<S: Lanes<T = E::Real>>(&self, simd: S, to: &mut [E::Real]) {
        let dim = self.plan.dims.head_dim;
        if dim == 0 {
            return;
        }
        let queries = self.block.queries;
        if self.few::<S>() {
            to.fill(E::Real::ZERO);
            for (q, to) in self.q.outer_iter().zip(to.chunks_mut(queries * dim)) {
                Rows::new(&q).copy(simd, 0..queries, to);
            }
            return;
        }
        pack_panels(simd, &self.block, &self.q, to);
    }

    /// The keys that any of the rows may see.
    pub(crate) fn key_range(&self, keys: Range<usize>) -> Range<usize> {
        self.block.key_range(self.plan, 0..self.block.rows(), keys)
    }

    /// Whether any of the rows sees any of the keys.
    pub(crate) fn may_see(&self, keys: Range<usize>) -> bool {
        // Where that is dear to know, it is asked once, of each panel.
        !self.plan.mask().has_cheap_coverage() || self.block.coverage(self.plan, 0..self.block.rows(), keys) != TileCoverage::Empty
    }

    /// Make keys `start..end` (of one tile) ready to be read.
    pub(crate) fn key_tile<'t, S: Lanes<T = E::Real>>(
        &self,
        simd: S,
        start: usize,
        end: usize,
        copy: &'t mut [E::Real],
    ) -> KeyTile<'t, E::Real>
    where
        'a: 't,
    {
        debug_assert!(start < end && start / KV_TILE == (end - 1) / KV_TILE);
        match self.k.native() {
            Some(rows) if rows.has_unit_cols() => KeyTile { start, end, rows, base: 0 },
            _ => {
                // Few rows read the keys as they are stored, if they can.
                if !(self.few::<S>() && self.k.has_unit_cols()) {
                    self.k.copy(simd, start..end, copy);
                }
                KeyTile { start, end, rows: Rows::from_slice(copy, end - start, self.k.cols()), base: start }
            }
        }
    }

    /// Length of the buffer that the bias (and then the dropout) of a panel and a tile is laid out in.
    pub(crate) fn numbers_len<S: Lanes<T = E::Real>>(&self) -> usize {
        if self.plan.bias().is_some() || self.plan.dropout().is_some() { KV_TILE * 2 * S::LANES } else { 0 }
    }

    /// Drop weights of a panel and some keys. `numbers` is working memory.
    pub(crate) fn drop_out<S: Lanes<T = E::Real>>(
        &self,
        simd: S,
        panel: &Range<usize>,
        keys: &Range<usize>,
        width: usize,
        numbers: &mut [E::Real],
        weights: &mut [E::Real],
    ) {
        if let Some(dropout) = self.plan.dropout() {
            let factors = &mut numbers[..keys.len() * width];
            simd.call(Factors { dropout, block: self.block, panel: panel.clone(), keys: keys.clone(), width, factors });
            simd.call(Multiply { factors, values: &mut weights[..keys.len() * width] });
        }
    }

    /// Which keys of the tile a panel needs, and how much of that is visible.
    pub(crate) fn needed(&self, panel: &Range<usize>, tile: &KeyTile<'_, E::Real>) -> (Range<usize>, TileCoverage) {
        let keys = self.block.key_range(self.plan, panel.clone(), tile.start..tile.end);
        let coverage = self.block.coverage(self.plan, panel.clone(), keys.clone());
        (keys, coverage)
    }

    /// Scores of a panel for some keys of the tile, at the given stage.
    ///
    /// `scores`, and with a bias `numbers`, must have `keys.len() * NR * LANES` places. Lanes beyond the panel's rows hold numbers of no meaning, or
    /// `-inf` after a mask.
    pub(crate) fn scores<S: Lanes<T = E::Real>, const NR: usize>(
        &self,
        simd: S,
        queries: &[E::Real],
        panel: &Range<usize>,
        tile: &KeyTile<'_, E::Real>,
        keys: &Range<usize>,
        coverage: TileCoverage,
        stage: Stage,
        numbers: &mut [E::Real],
        scores: &mut [E::Real],
    ) {
        let dim = self.plan.dims.head_dim;
        let count = keys.len();
        let width = NR * S::LANES;
        assert!(tile.start <= keys.start && keys.end <= tile.end);
        let scores = &mut scores[..count * width];
        let scale = E::Real::from_f64(self.plan.scale);
        if self.few::<S>() {
            assert_eq!(NR, 1);
            let rows = self.block.rows();
            if self.k.has_unit_cols() {
                simd.call(decode::FewScores { queries, rows, k: self.k, keys: keys.clone(), scale, scores });
            } else {
                let local = keys.start - tile.base..keys.end - tile.base;
                simd.call(decode::FewScores { queries, rows, k: tile.rows, keys: local, scale, scores });
            }
        } else {
            let queries = &queries[panel.start * dim..][..width * dim];
            let keys = keys.start - tile.base..keys.end - tile.base;
            simd.call(Dots::<_, NR> { queries, k: tile.rows, keys, scale, scores });
        }
        if stage >= Stage::Softcap
            && let Some(cap) = self.plan.softcap()
        {
            simd.call(Softcap { cap: E::Real::from_f64(cap), inverse: E::Real::from_f64(1.0 / cap), scores });
        }
        if stage == Stage::Bias {
            self.bias_and_hide(simd, panel, keys, coverage, width, numbers, scores);
        }
    }

    /// The last steps: scores at [`Stage::Softcap`] become those of [`Stage::Bias`].
    pub(crate) fn bias_and_hide<S: Lanes<T = E::Real>>(
        &self,
        simd: S,
        panel: &Range<usize>,
        keys: &Range<usize>,
        coverage: TileCoverage,
        width: usize,
        numbers: &mut [E::Real],
        scores: &mut [E::Real],
    ) {
        self.add_bias(simd, panel, keys, width, numbers, scores);
        if coverage != TileCoverage::Full {
            self.hide(simd, panel, keys, width, scores);
        }
        if self.cutoffs.is_some() {
            self.cut_off(simd, panel, keys, width, scores);
        }
    }

    /// May a key be hidden from a row that the mask shows it to?
    pub(crate) fn may_hide_beside_mask(&self) -> bool {
        self.cutoffs.is_some() || self.plan.bias().is_some_and(Bias::may_hide)
    }

    /// May any key be hidden from any row?
    pub(crate) fn may_hide(&self) -> bool {
        self.plan.may_hide()
    }

    /// Scores of all tiles of some keys that any row sees: `f(panel, keys, width, scores)`.
    pub(crate) fn each_tile<S: Lanes<T = E::Real>>(
        &self,
        simd: S,
        keys: Range<usize>,
        queries: &[E::Real],
        copy: &mut [E::Real],
        scores: &mut [E::Real],
        numbers: &mut [E::Real],
        mut f: impl FnMut(Range<usize>, Range<usize>, usize, &mut [E::Real]),
    ) {
        let keys = self.key_range(keys);
        let mut start = keys.start;
        while start < keys.end {
            let first = start / KV_TILE * KV_TILE;
            let end = keys.end.min(first + KV_TILE);
            if self.may_see(start..end) {
                let tile = self.key_tile(simd, start, end, copy);
                for panel in self.panels::<S>() {
                    let (needed, coverage) = self.needed(&panel, &tile);
                    if coverage == TileCoverage::Empty {
                        continue;
                    }
                    let width = width::<S>(panel.len());
                    if width > S::LANES {
                        self.scores::<S, 2>(simd, queries, &panel, &tile, &needed, coverage, Stage::Bias, numbers, scores);
                    } else {
                        self.scores::<S, 1>(simd, queries, &panel, &tile, &needed, coverage, Stage::Bias, numbers, scores);
                    }
                    let len = needed.len() * width;
                    f(panel, needed, width, &mut scores[..len]);
                }
            }
            start = end;
        }
    }

    fn add_bias<S: Lanes<T = E::Real>>(
        &self,
        simd: S,
        panel: &Range<usize>,
        keys: &Range<usize>,
        width: usize,
        numbers: &mut [E::Real],
        scores: &mut [E::Real],
    ) {
        let Some(bias) = self.plan.bias() else { return };
        let numbers = &mut numbers[..scores.len()];
        // Rows of the bias, where it has one number per key, of the type that is computed in.
        let dense = E::Real::dense_bias(bias).filter(|b| b.len_of(ndarray::Axis(3)) != 1);
        self.block.segments(self.plan, panel.clone(), |place, queries, lane| {
            if let Some(dense) = &dense {
                let [b, h, q, _] = broadcast_index(dense.shape(), [place.batch, place.head, queries.start, 0]);
                let rows = dense.slice(ndarray::s![b, h, q.., keys.clone()]);
                let rows: Rows<'_, E::Real> = if dense.len_of(ndarray::Axis(2)) == 1 {
                    Rows::new(&rows.broadcast([queries.len(), keys.len()]).expect("one row for all"))
                } else {
                    Rows::new(&rows)
                };
                return rows.transpose_into(simd, 0..queries.len(), numbers, width, lane);
            }
            for (r, query) in queries.enumerate() {
                bias.fill(place, query, keys.clone(), &mut numbers[lane + r..], width);
            }
        });
        simd.call(AddNumbers { numbers, scores });
    }

    fn hide<S: Lanes<T = E::Real>>(&self, simd: S, panel: &Range<usize>, keys: &Range<usize>, width: usize, scores: &mut [E::Real]) {
        let mut bits = [0; KV_TILE];
        let mut first = keys.start;
        // The edge of a band is in few places: what is visible as a whole needs no bits.
        let cheap = self.plan.mask().has_cheap_coverage();
        let step = if cheap { HIDE_STEP } else { KV_TILE };
        while first < keys.end {
            let some = first..keys.end.min(first + step);
            if !cheap || self.block.coverage(self.plan, panel.clone(), some.clone()) != TileCoverage::Full {
                let bits = &mut bits[..some.len()];
                self.block.bits(simd, self.plan, panel.clone(), some.clone(), bits);
                let at = (some.start - keys.start) * width;
                let scores = &mut scores[at..at + some.len() * width];
                if width > S::LANES { simd.call(Hide::<_, 2> { bits, scores }) } else { simd.call(Hide::<_, 1> { bits, scores }) }
            }
            first = some.end;
        }
    }

    /// Hide what is below the row's cutoff. NaN is not below anything and stays.
    fn cut_off<S: Lanes<T = E::Real>>(&self, simd: S, panel: &Range<usize>, keys: &Range<usize>, width: usize, scores: &mut [E::Real]) {
        let Some(cutoffs) = &self.cutoffs else { return };
        let cutoffs = &cutoffs[panel.clone()];
        let mut low = [E::Real::HIDDEN; 32];
        low.iter_mut().zip(cutoffs).for_each(|(l, c)| *l = c.score);
        simd.call(HideBelow { low: &low, width, scores });
        for (lane, cut) in cutoffs.iter().enumerate() {
            // Keys after the last one that keeps the score at the cutoff.
            let after = cut.last_key.saturating_add(1);
            if after < keys.end {
                let from = keys.start.max(after) - keys.start;
                for s in scores[from * width + lane..].iter_mut().step_by(width) {
                    if *s == cut.score {
                        *s = E::Real::HIDDEN;
                    }
                }
            }
        }
    }
}

/// The rows of a block as panels of `[dim][lane]`, zeros in lanes past the last row.
pub(crate) fn pack_panels<S: Lanes, E: Element<Real = S::T>>(simd: S, block: &RowBlock, from: &ArrayView3<'_, E>, to: &mut [S::T]) {
    let (queries, dim) = (block.queries, from.len_of(ndarray::Axis(2)));
    for panel in panels::<S>(block.rows()) {
        let width = width::<S>(panel.len());
        let to = &mut to[panel.start * dim..][..width * dim];
        if panel.len() < width {
            to.fill(S::T::ZERO);
        }
        let mut r = panel.start;
        while r < panel.end {
            let (head, query) = (r / queries, r % queries);
            let count = (queries - query).min(panel.end - r);
            let rows: Rows<'_, E> = Rows::new(&from.index_axis(ndarray::Axis(0), head));
            rows.transpose_into(simd, query..query + count, to, width, r - panel.start);
            r += count;
        }
    }
}

/// Rows of the panels, at most two vectors of them each.
pub(crate) fn panels<S: Lanes>(rows: usize) -> impl Iterator<Item = Range<usize>> + use<S> {
    (0..rows).step_by(2 * S::LANES).map(move |r| r..rows.min(r + 2 * S::LANES))
}

/// Lanes that a panel of so many rows takes: one vector or two.
pub(crate) fn width<S: Lanes>(rows: usize) -> usize {
    if rows <= S::LANES { S::LANES } else { 2 * S::LANES }
}

/// `scores[key][lane] = dot(k[key], q[lane]) * scale`
struct Dots<'k, T: Real, const NR: usize> {
    /// `[dim][lane]`
    queries: &'k [T],
    k: Rows<'k, T>,
    keys: Range<usize>,
    scale: T,
    scores: &'k mut [T],
}

impl<T: Real, const NR: usize> Operation<T> for Dots<'_, T, NR> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let Self { queries, k, keys, scale, scores } = self;
        let (width, count, dim) = (NR * S::LANES, keys.len(), k.cols());
        assert!(k.has_unit_cols() && keys.end <= k.len() && count > 0);
        assert!(queries.len() >= dim * width && scores.len() >= count * width);
        let to = StoreScaled::<S> { to: scores.as_mut_ptr(), width, factor: simd.splat(scale) };
        // SAFETY: `keys` are rows of k with `dim` numbers side by side; `queries` has dim * width numbers; `scores` has room
        // for `count` rows of `width`. All of it was just checked.
        unsafe { product::<S, NR, false, true>(simd, count, dim, k.row(keys.start), k.row_stride(), queries.as_ptr(), width, to) };
    }
}

/// Scores on their way to memory.
struct StoreScaled<S: Lanes> {
    to: *mut S::T,
    width: usize,
    factor: S::V,
}

impl<S: Lanes, const NR: usize> Take<S, NR> for StoreScaled<S> {
    #[inline(always)]
    unsafe fn take(&mut self, simd: S, row: usize, c: [S::V; NR]) {
        for (n, c) in c.into_iter().enumerate() {
            // SAFETY: `to` has `width` = NR * LANES places for every row.
            unsafe { simd.store(self.to.add(row * self.width + n * S::LANES), simd.mul(c, self.factor)) };
        }
    }
}

/// `cap * tanh(score / cap)`
struct Softcap<'k, T> {
    cap: T,
    inverse: T,
    scores: &'k mut [T],
}

impl<T: Real> Operation<T> for Softcap<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let (cap, inverse) = (simd.splat(self.cap), simd.splat(self.inverse));
        map!(simd, S, self.scores, |_at, s| simd.mul(cap, math::tanh(simd, simd.mul(s, inverse))));
    }
}

/// Add a bias, laid out like the scores.
struct AddNumbers<'k, T> {
    numbers: &'k [T],
    scores: &'k mut [T],
}

impl<T: Real> Operation<T> for AddNumbers<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        assert!(self.numbers.len() >= self.scores.len());
        let hidden = simd.splat(T::HIDDEN);
        let from = self.numbers.as_ptr();
        map!(simd, S, self.scores, |at, s| {
            // SAFETY: `numbers` is as long as `scores` (just checked), and `at` is the start of a whole vector in it.
            let b = unsafe { simd.load(from.add(at)) };
            // Chosen, not added: a NaN key stays hidden.
            simd.select(simd.eq(b, hidden), hidden, simd.add(s, b))
        });
    }
}

/// Hide the keys whose bit is not set: one word per key, one bit per lane.
struct Hide<'k, T, const NR: usize> {
    bits: &'k [u32],
    scores: &'k mut [T],
}

impl<T: Real, const NR: usize> Operation<T> for Hide<'_, T, NR> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        let hidden = simd.splat(T::HIDDEN);
        for (&bits, scores) in self.bits.iter().zip(self.scores.chunks_exact_mut(NR * S::LANES)) {
            for n in 0..NR {
                // SAFETY: n is below the number of vectors in the chunk.
                unsafe {
                    let at = scores.as_mut_ptr().add(n * S::LANES);
                    simd.store(at, simd.select(simd.mask_from_bits(bits, n), simd.opaque(simd.load(at)), hidden));
                }
            }
        }
    }
}

/// Hide what is below a number per lane. NaN is not below anything.
struct HideBelow<'k, T> {
    low: &'k [T; 32],
    width: usize,
    scores: &'k mut [T],
}

impl<T: Real> Operation<T> for HideBelow<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes<T = T>>(self, simd: S) {
        assert!(self.width <= 32 && self.width.is_multiple_of(S::LANES));
        let hidden = simd.splat(T::HIDDEN);
        let low = self.low.as_ptr();
        map!(simd, S, self.scores, |at, s| {
            // SAFETY: `at % width` is the start of a vector of the panel, which is at most 32 lanes wide (just checked).
            let low = unsafe { simd.load(low.add(at % self.width)) };
            simd.select(simd.lt(s, low), hidden, simd.opaque(s))
        });
    }
}
