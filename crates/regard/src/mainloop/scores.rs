//! Scores of one panel of queries against one tile of keys: the dot products and everything that happens to them
//! before the softmax.
//!
//! ```text
//! dot * scale -> softcap -> + biases -> masks (hidden = -inf) -> top-k
//! ```
//!
//! Layout: `scores[key * width + lane]`, one query per lane, `width` lanes (one or two vectors) to a panel.
//! Nothing here is larger than a tile.

use super::decode::DecodeScores;
use super::operand::{Operand, Source, TileRows};
use super::tiles::{TileDots, factor_depth};
use super::tiling::{DECODE_ROWS, KV_TILE, MASK_STEP, MAX_PANEL, Need, Panel, QueryTile, by_width, lanes};
use super::top_k::Cutoffs;
use crate::bias::Region;
use crate::mask::TileCoverage;
use crate::plan::Plan;
use ndarray::{ArrayView2, ArrayView3, ArrayView4, Axis};
use regard_simd::microkernel::{Epilogue, GemmOperands, product};
use regard_simd::strided::{CopyScaled, Rows};
use regard_simd::{Kernel, Real, Simd, Storage, math};
use std::ops::Range;

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

/// A stage of the scores before the softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// `q.k * scale`.
    Raw,
    /// After the softcap.
    Softcap,
    /// After biases, masks and top-k: hidden keys are `-inf`. The input of the softmax.
    Masked,
}

/// Computes the scores of a query tile.
pub(crate) struct Scorer<'a, E: Storage> {
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) tile: QueryTile,
    pub(crate) q: ArrayView3<'a, E>,
    pub(crate) k: Source<'a, E>,
    /// One per row, when only the highest scores count.
    pub(crate) cutoffs: Option<Cutoffs<E::Real>>,
    /// Rows are laid out in panels, even where they are few.
    pub(crate) panels_only: bool,
    /// All pairs are scored; the mask is ignored.
    pub(crate) ignores_mask: bool,
}

/// The part of a tensor like q (or its result) that belongs to a query tile.
pub(crate) fn tile_queries<'a, E>(plan: &Plan<'_>, q: &ArrayView4<'a, E>, tile: &QueryTile) -> ArrayView3<'a, E> {
    let [batch, head, first] = tile.place(plan, 0);
    let mut q = q.index_axis_move(Axis(0), batch);
    q.slice_axis_inplace(Axis(0), (head..head + tile.heads).into());
    q.slice_axis_inplace(Axis(1), (first..first + tile.queries).into());
    q
}

/// The keys (or values) that a query tile reads.
pub(crate) fn tile_keys<'a, E>(plan: &Plan<'_>, k: &ArrayView4<'a, E>, tile: &QueryTile) -> ArrayView2<'a, E> {
    k.index_axis_move(Axis(0), tile.batch - plan.part.batch).index_axis_move(Axis(0), tile.head / plan.dims.group())
}

/// Keys or values of a call.
pub(crate) trait KeyRows<E: Storage>: Sync {
    /// Those that a query tile reads.
    fn of_tile(&self, plan: &Plan<'_>, tile: &QueryTile) -> Source<'_, E>;
}

impl<E: Storage> KeyRows<E> for ArrayView4<'_, E> {
    fn of_tile(&self, plan: &Plan<'_>, tile: &QueryTile) -> Source<'_, E> {
        Source::Stored(Rows::new(&tile_keys(plan, self, tile)))
    }
}

impl<'a, E: Storage> Scorer<'a, E> {
    pub(crate) fn new(plan: &'a Plan<'a>, q: &ArrayView4<'a, E>, k: &'a impl KeyRows<E>, tile: QueryTile) -> Self {
        let (q, k) = (tile_queries(plan, q, &tile), k.of_tile(plan, &tile));
        Self { plan, tile, q, k, cutoffs: None, panels_only: false, ignores_mask: false }
    }

    /// So few rows that vectors run along the keys, without a panel (see [`super::decode`]).
    pub(crate) fn decodes<S: Simd<T = E::Real>>(&self) -> bool {
        !self.panels_only && !S::TILES && self.tile.rows() <= DECODE_ROWS.min(S::Narrow::LANES)
    }

    /// The keys of the call, counted in the whole.
    pub(crate) fn all_keys(&self) -> Range<usize> {
        self.plan.part.key..self.plan.part.key + self.plan.dims.seq_kv
    }

    /// The keys that any of the rows may see.
    pub(crate) fn key_range(&self, keys: Range<usize>) -> Range<usize> {
        if self.ignores_mask { keys } else { self.tile.key_range(self.plan, 0..self.tile.rows(), keys) }
    }

    /// What each panel needs of a tile of keys, panels that see nothing of it left out.
    pub(super) fn find_needs<S: Simd<T = E::Real>>(&self, keys: Range<usize>, needs: &mut Vec<Need>) {
        needs.clear();
        let (plan, rows) = (self.plan, self.tile.rows());
        let has_hiding_bias_or_top_k = plan.has_hiding_bias_or_top_k();
        let cheap = !self.ignores_mask && plan.mask().has_cheap_coverage();
        // Where coverage is expensive it is evaluated once, per panel.
        if cheap && self.tile.coverage(plan, 0..rows, keys.clone()) == TileCoverage::Empty {
            return;
        }
        for panel in Panel::all::<S>(rows) {
            let (keys, coverage) = if self.ignores_mask {
                (keys.clone(), TileCoverage::Full)
            } else {
                let keys = self.tile.key_range(plan, panel.rows(), keys.clone());
                let coverage = self.tile.coverage(plan, panel.rows(), keys.clone());
                (keys, coverage)
            };
            if coverage != TileCoverage::Empty {
                needs.push(Need { panel, keys, coverage, has_hiding_bias_or_top_k });
            }
        }
    }

    /// Length of the buffer for the queries: panels of `[dim][lane]`, or row after row where they are few.
    pub(super) fn queries_len<S: Simd<T = E::Real>>(&self) -> usize {
        let dim = self.plan.dims.head_dim;
        // As a factor, or row after row.
        lanes::<S>(self.tile.rows()) * dim.max(factor_depth::<S>(dim))
    }

    /// Length of the buffer that a bias of a panel and a tile is laid out in.
    pub(super) fn addend_len<S: Simd>(&self) -> usize {
        if self.plan.biases().is_empty() { 0 } else { KV_TILE * 2 * S::LANES }
    }

    /// Lay the queries out for the kernels.
    pub(super) fn pack_queries<S: Simd<T = E::Real>>(&self, simd: S, to: &mut [E::Real]) {
        let dim = self.plan.dims.head_dim;
        if dim == 0 {
            return;
        }
        if !self.decodes::<S>() {
            return pack_factor(simd, &self.tile, &self.q, to);
        }
        to.fill(E::Real::ZERO);
        let ld = factor_depth::<S>(dim);
        for (q, to) in self.q.outer_iter().zip(to.chunks_mut(self.tile.queries * ld)) {
            let from = Rows::new(&q);
            if S::PAIRS { from.copy_pairs(to, ld) } else { simd.call(CopyScaled { from, factor: None, ld, to }) }
        }
    }

    /// Scores of a panel at [`Stage::Raw`] or [`Stage::Softcap`]: dot products, scale, softcap. Lanes beyond the panel's rows hold
    /// unspecified values.
    pub(super) fn dots<S: Simd<T = E::Real>>(
        &self,
        simd: S,
        queries: &[E::Real],
        k: &mut Operand<'_, E>,
        need: &Need,
        stage: Stage,
        scores: &mut [E::Real],
    ) {
        let dim = self.plan.dims.head_dim;
        let Panel { start, width, .. } = need.panel;
        let scale = E::Real::from_f64(self.plan.scale);
        if S::TILES {
            let dim = factor_depth::<S>(dim);
            let panel = &queries[start * dim..][..width * dim];
            let (rows, count) = (k.tile_rows(&need.keys), need.keys.len());
            simd.call(TileDots { rows, count, panel, width, scale: Some(scale), to: scores });
        } else if S::PAIRS {
            let (k, depth) = (k.pair_rows(&need.keys), factor_depth::<S>(dim));
            if self.decodes::<S>() {
                simd.call(DecodeScores::<_, true> { queries, rows: self.tile.rows(), k, scale, scores });
            } else {
                let queries = &queries[start * depth..][..width * depth];
                by_width!(S, width, NR => simd.call(Dots::<_, NR, true> { queries, k, scale, scores }));
            }
        } else if self.decodes::<S>() {
            let rows = self.tile.rows();
            match k.decode_rows(simd, &need.keys) {
                TileRows::Stored(k) => simd.call(DecodeScores::<_, false> { queries, rows, k, scale, scores }),
                TileRows::Real(k) => simd.call(DecodeScores::<_, false> { queries, rows, k, scale, scores }),
            }
        } else {
            let queries = &queries[start * dim..][..width * dim];
            let k = k.rows(simd, &need.keys);
            by_width!(S, width, NR => simd.call(Dots::<_, NR, false> { queries, k, scale, scores }));
        }
        if stage >= Stage::Softcap
            && let Some(cap) = self.plan.softcap()
        {
            simd.call(Softcap { cap: E::Real::from_f64(cap), inverse: E::Real::from_f64(1.0 / cap), scores });
        }
    }

    /// The last steps: scores at [`Stage::Softcap`] become those of [`Stage::Masked`].
    pub(super) fn add_biases_and_mask<S: Simd<T = E::Real>>(&self, simd: S, need: &Need, addend: &mut [E::Real], scores: &mut [E::Real]) {
        for bias in 0..self.plan.biases().len() {
            let addend = &mut addend[..scores.len()];
            self.expand_bias(simd, bias, need, addend);
            simd.call(AddBias { addend, scores });
        }
        if need.coverage != TileCoverage::Full {
            self.mask(simd, need, scores);
        }
        if self.cutoffs.is_some() {
            self.apply_top_k(simd, need, scores);
        }
    }

    fn expand_bias<S: Simd<T = E::Real>>(&self, simd: S, bias: usize, need: &Need, to: &mut [E::Real]) {
        let (bias, keys) = (&self.plan.biases()[bias], &need.keys);
        self.tile.segments(self.plan, need.panel.rows(), |at, queries, lane| {
            bias.fill(simd, &Region { at, queries, keys: keys.clone() }, to, need.panel.width, lane);
        });
    }

    fn mask<S: Simd<T = E::Real>>(&self, simd: S, need: &Need, scores: &mut [E::Real]) {
        let Need { panel, keys, .. } = need;
        let mut bits = [0; KV_TILE];
        let mut first = keys.start;
        // The edge of a band is in few places: what is visible as a whole needs no bits.
        let cheap = self.plan.mask().has_cheap_coverage();
        let step = if cheap { MASK_STEP } else { KV_TILE };
        while first < keys.end {
            let some = first..keys.end.min(first + step);
            if !cheap || self.tile.coverage(self.plan, panel.rows(), some.clone()) != TileCoverage::Full {
                let bits = &mut bits[..some.len()];
                self.tile.mask_bits(simd, self.plan, panel.rows(), some.clone(), bits);
                let at = (some.start - keys.start) * panel.width;
                let scores = &mut scores[at..at + some.len() * panel.width];
                by_width!(S, panel.width, NR => simd.call(Hide::<_, NR> { bits, scores }));
            }
            first = some.end;
        }
    }

    /// Hide what is below the row's cutoff. NaN is not below anything and stays.
    fn apply_top_k<S: Simd<T = E::Real>>(&self, simd: S, need: &Need, scores: &mut [E::Real]) {
        let Some(cutoffs) = &self.cutoffs else { return };
        let Need { panel, keys, .. } = need;
        let cutoffs = &cutoffs[panel.rows()];
        let mut low = [E::Real::NEG_INFINITY; MAX_PANEL];
        low.iter_mut().zip(cutoffs).for_each(|(l, c)| *l = c.score);
        simd.call(HideBelow { low: &low, width: panel.width, scores });
        for (lane, cut) in cutoffs.iter().enumerate() {
            // Keys after the last one that keeps the score at the cutoff.
            let after = cut.last_key.saturating_add(1);
            if after < keys.end {
                let from = keys.start.max(after) - keys.start;
                for s in scores[from * panel.width + lane..].iter_mut().step_by(panel.width) {
                    if *s == cut.score {
                        *s = E::Real::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// Bit `r` of the j-th word: row `r` of the panel sees the j-th key. Not read off the scores alone: the score of a visible key may be
    /// `-inf` of its own. `scores` are those of [`Stage::Masked`], for top-k.
    pub(crate) fn visible<S: Simd<T = E::Real>>(&self, simd: S, need: &Need, scores: &[E::Real]) -> [u32; KV_TILE] {
        let Panel { rows, width, .. } = need.panel;
        let mut visible = [0; KV_TILE];
        self.tile.mask_bits(simd, self.plan, need.panel.rows(), need.keys.clone(), &mut visible[..need.keys.len()]);
        let mut addend = vec![E::Real::ZERO; need.keys.len() * width];
        for bias in 0..self.plan.biases().len() {
            self.expand_bias(simd, bias, need, &mut addend);
            for (word, line) in visible.iter_mut().zip(addend.chunks_exact(width)) {
                let hidden = |lane: usize| u32::from(line[lane] == E::Real::NEG_INFINITY) << lane;
                *word &= !(0..rows).fold(0, |bits, lane| bits | hidden(lane));
            }
        }
        if let Some(cutoffs) = &self.cutoffs {
            let cutoffs = &cutoffs[need.panel.rows()];
            for (word, line) in visible.iter_mut().zip(scores.chunks_exact(width)) {
                let hidden = |lane: usize| cutoffs[lane].score > E::Real::NEG_INFINITY && line[lane] == E::Real::NEG_INFINITY;
                *word &= !(0..rows).fold(0, |bits, lane| bits | u32::from(hidden(lane)) << lane);
            }
        }
        visible
    }

    /// Whether a row sees any key, evaluated pair by pair.
    pub(crate) fn row_sees_any(plan: &Plan<'_>, tile: &QueryTile, r: usize) -> bool {
        let (head, query) = tile.row(r);
        let at = plan.position(tile.batch, head);
        let keys = 0..plan.part.whole[3];
        let hidden = |key: usize| plan.biases().iter().any(|bias| bias.may_hide() && bias.at(&at, query, key) == f64::NEG_INFINITY);
        plan.mask().key_range(&at, query..query + 1, keys).any(|key| plan.mask().visible(&at, query, key) && !hidden(key))
    }
}

/// The rows of a query tile as panels of `[dim][lane]`, zeros in lanes past the last row.
pub(crate) fn pack_panels<S: Simd, E: Storage<Real = S::T>>(simd: S, tile: &QueryTile, from: &ArrayView3<'_, E>, to: &mut [S::T]) {
    pack::<S, E, false>(simd, tile, from, to);
}

/// The same for rows that are multiplied with rows of K or V: `[dim / 2][lane]` in pairs where the lanes [multiply pairs](Simd::PAIRS),
/// filled up to whole tiles where they [multiply tiles](Simd::TILES).
pub(crate) fn pack_factor<S: Simd, E: Storage<Real = S::T>>(simd: S, tile: &QueryTile, from: &ArrayView3<'_, E>, to: &mut [S::T]) {
    if S::PAIRS { pack::<S, E, true>(simd, tile, from, to) } else { pack::<S, E, false>(simd, tile, from, to) }
}

fn pack<S: Simd, E: Storage<Real = S::T>, const PAIRS: bool>(simd: S, tile: &QueryTile, from: &ArrayView3<'_, E>, to: &mut [S::T]) {
    let (queries, elements) = (tile.queries, from.len_of(Axis(2)));
    let dim = if PAIRS { factor_depth::<S>(elements) } else { elements };
    for panel in Panel::all::<S>(tile.rows()) {
        let to = &mut to[panel.start * dim..][..panel.width * dim];
        if panel.rows < panel.width || (S::TILES && PAIRS && elements < 2 * dim) {
            to.fill(S::T::ZERO);
        }
        let rows = panel.rows();
        let mut r = rows.start;
        while r < rows.end {
            let (head, query) = (r / queries, r % queries);
            let count = (queries - query).min(rows.end - r);
            let rows: Rows<'_, E> = Rows::new(&from.index_axis(Axis(0), head));
            let (rows, first) = (rows.slice(query..query + count), r - panel.start);
            if PAIRS {
                rows.transpose_pairs_into(simd, to, panel.width, first)
            } else {
                rows.transpose_into(simd, to, panel.width, first)
            }
            r += count;
        }
    }
}

/// `scores[key][lane] = dot(k[key], q[lane]) * scale`; with PAIRS, elements of both are pairs.
struct Dots<'k, T: Real, const NR: usize, const PAIRS: bool> {
    /// `[dim][lane]`
    queries: &'k [T],
    k: Rows<'k, T>,
    scale: T,
    scores: &'k mut [T],
}

impl<T: Real, const NR: usize, const PAIRS: bool> Kernel<T> for Dots<'_, T, NR, PAIRS> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let Self { queries, k, scale, scores } = self;
        let (width, rows, depth) = (NR * S::LANES, k.len(), k.cols());
        assert!(k.has_unit_cols() && rows > 0);
        assert!(queries.len() >= depth * width && scores.len() >= rows * width);
        let to = StoreScaled::<S> { to: scores.as_mut_ptr(), width, factor: simd.splat(scale) };
        let operands = GemmOperands { rows, depth, a: k.row(0), stride: k.row_stride(), b: queries.as_ptr(), ld: width };
        // SAFETY: rows of k have `depth` contiguous elements; `queries` has depth * width elements; `scores` has room
        // for `rows` rows of `width`. All of it was just checked.
        unsafe { product::<S, NR, false, true, PAIRS>(simd, operands, to) };
    }
}

/// Scores on their way to memory.
struct StoreScaled<S: Simd> {
    to: *mut S::T,
    width: usize,
    factor: S::V,
}

impl<S: Simd, const NR: usize> Epilogue<S, NR> for StoreScaled<S> {
    #[inline(always)]
    unsafe fn finish(&mut self, simd: S, row: usize, c: [S::V; NR]) {
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

impl<T: Real> Kernel<T> for Softcap<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let (cap, inverse) = (simd.splat(self.cap), simd.splat(self.inverse));
        map!(simd, S, self.scores, |_at, s| simd.mul(cap, math::tanh(simd, simd.mul(s, inverse))));
    }
}

/// Add a bias, laid out like the scores.
struct AddBias<'k, T> {
    addend: &'k [T],
    scores: &'k mut [T],
}

impl<T: Real> Kernel<T> for AddBias<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        assert!(self.addend.len() >= self.scores.len());
        let hidden = simd.splat(T::NEG_INFINITY);
        let from = self.addend.as_ptr();
        map!(simd, S, self.scores, |at, s| {
            // SAFETY: `addend` is as long as `scores` (just checked), and `at` is the start of a whole vector in it.
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

impl<T: Real, const NR: usize> Kernel<T> for Hide<'_, T, NR> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        let hidden = simd.splat(T::NEG_INFINITY);
        for (&bits, scores) in self.bits.iter().zip(self.scores.chunks_exact_mut(NR * S::LANES)) {
            for n in 0..NR {
                // SAFETY: n is below the number of vectors in the chunk.
                unsafe {
                    let at = scores.as_mut_ptr().add(n * S::LANES);
                    simd.store(at, simd.select(simd.mask_from_bits(bits, n), simd.hide_from_optimizer(simd.load(at)), hidden));
                }
            }
        }
    }
}

/// Hide what is below a value per lane. NaN is not below anything.
struct HideBelow<'k, T> {
    low: &'k [T; MAX_PANEL],
    width: usize,
    scores: &'k mut [T],
}

impl<T: Real> Kernel<T> for HideBelow<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T = T>>(self, simd: S) {
        assert!(self.width <= MAX_PANEL && self.width.is_multiple_of(S::LANES));
        let hidden = simd.splat(T::NEG_INFINITY);
        let low = self.low.as_ptr();
        map!(simd, S, self.scores, |at, s| {
            // SAFETY: `at % width` is the start of a vector of the panel, which is at most MAX_PANEL lanes wide (just checked).
            let low = unsafe { simd.load(low.add(at % self.width)) };
            simd.select(simd.lt(s, low), hidden, simd.hide_from_optimizer(s))
        });
    }
}
