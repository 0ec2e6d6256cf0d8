//! Gradients of the query heads that share one key/value head, block by block of query rows. See [`crate::backward`].
//!
//! ```text
//! for a block of up to Q_TILE query rows
//!   for each span of keys, for each tile of keys that any row sees
//!     for each panel (one or two vectors of rows), one query per lane
//!       scores = K-tile . q, ...                     as in the forward pass, bit for bit
//!       p      = exp(scores - row_max) / row_sum     forward: out = (p * dropout) v
//!       d_p    = V-tile . d_out                      and so   d_p = (v . d_out) * dropout
//!       ds     = p * (d_p - delta)                   delta = d_out . out, the softmax's own part
//!       dq    += K-tile^T . ds                       forward: scores = k . q * scale
//!     dv += (p * dropout) . d_out                    all rows of the block at once
//!     dk += ds . (q * scale)
//! ```
//!
//! `p` and `ds` are laid out `[key][row]`: seen from the queries they are panels, and seen from the keys they are rows of
//! numbers to broadcast. So all five products read what they need as it lies.

use crate::attention::Plan;
use crate::bias_gradient::BiasSums;
use crate::block::AddValues;
use crate::dropout::Factors;
use crate::element::Element;
use crate::forward::{SavedView, block_keys, block_queries, block_scorer, block_shape};
use crate::gradient_kernels::{AddRows, AddSquares, Destination, Move, RowDots, ScoreGradients, ThroughSoftcap, Weigh};
use crate::mask::TileCoverage;
use crate::rows::{CopyScaled, Rows, hand_out, native};
use crate::score::{Cutoffs, KV_TILE, KeyTile, RowBlock, Scorer, Stage, pack_panels};
use crate::scratch::Scratch;
use crate::simd::{Lanes, Operation, Real};
use ndarray::{ArrayView3, ArrayView4, ArrayViewMut2, ArrayViewMut3};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// Keys whose share of dq is summed on its own, before it is added to that of the keys before. Part of the result's bits; long
/// rows can so be shared out over threads without changing any.
pub(crate) const GRADIENT_SPAN: usize = 2 * KV_TILE;

/// What goes into a backward pass.
pub(crate) struct Inputs<'a, E: Element> {
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) q: ArrayView4<'a, E>,
    pub(crate) k: ArrayView4<'a, E>,
    pub(crate) v: ArrayView4<'a, E>,
    pub(crate) d_out: ArrayView4<'a, E>,
    pub(crate) saved: SavedView<'a, E>,
    /// Of every block of the call in order, with top-k.
    pub(crate) cutoffs: Option<Vec<Cutoffs<E::Real>>>,
}

/// Query heads that share a key/value head: some of their queries against some spans of keys.
pub(crate) struct Unit<'u, 'a, 'v, E: Element, X> {
    pub(crate) inputs: &'u Inputs<'a, E>,
    pub(crate) batch: usize,
    pub(crate) kv_head: usize,
    pub(crate) queries: Range<usize>,
    pub(crate) spans: Range<usize>,
    /// Sums for the keys of the spans, rows of `head_dim` and `value_dim` padded to whole vectors.
    pub(crate) dk: &'u mut [MaybeUninit<E::Real>],
    pub(crate) dv: &'u mut [MaybeUninit<E::Real>],
    /// All of dk and dv holds numbers: the sums of queries before, or zeros.
    pub(crate) begun: bool,
    /// `[head of the group, query, dim]`, written whole.
    pub(crate) dq: ArrayViewMut3<'u, MaybeUninit<X>>,
    pub(crate) dq_scale: E::Real,
    /// Sums of the squares of `d_scores` over the keys, `[head of the group, query]`, where they are wanted.
    pub(crate) squares: Option<ArrayViewMut2<'u, E::Real>>,
    pub(crate) bias: Option<&'u mut BiasSums<'v, E::Real>>,
    /// Of every tile of the spans: all keys are finite; `None`: not looked at yet.
    pub(crate) finite_keys: Vec<Option<bool>>,
}

/// Distance of two rows that are padded to whole vectors.
pub(crate) fn padded<T: Real>(dims: usize) -> usize {
    // Whole vectors on every level: the sums are laid out before the level is entered.
    dims.next_multiple_of(64 / size_of::<T>())
}

/// Working memory of a block.
struct Buffers<'b, T> {
    /// Panels of q and of d_out.
    q_panels: &'b mut [T],
    d_out_panels: &'b mut [T],
    /// `q * scale` and d_out as rows.
    q_rows: &'b mut [T],
    d_out_rows: &'b mut [T],
    /// K and V, where they must be copied.
    key_copy: &'b mut [T],
    value_copy: &'b mut [T],
    /// K without what is not finite.
    clean_keys: &'b mut [T],
    /// Of one panel: scores and then p; the bias and then the dropout; scores after the softcap.
    scores: &'b mut [T],
    numbers: &'b mut [T],
    capped: &'b mut [T],
    /// `[key][row]`, of all panels.
    p: &'b mut [T],
    ds: &'b mut [T],
    /// Per lane: row_max, 1 / row_sum, d_out . out.
    top: &'b mut [T],
    inverse: &'b mut [T],
    delta: &'b mut [T],
    /// dq of this span, and of the spans before: panels of `[dim][lane]`.
    acc: &'b mut [T],
    total: &'b mut [T],
    /// The same of the squares of ds.
    squares: &'b mut [T],
    squares_total: &'b mut [T],
    /// Finished rows, where they cannot be written to the result at once.
    rows: &'b mut [T],
}

/// A block of rows, made ready.
struct Block<'a, E: Element> {
    scorer: Scorer<'a, E>,
    v: Rows<'a, E>,
    /// d_out as rows, where it can be read as it lies; else it was copied.
    d_out_rows: Option<&'a [E::Real]>,
    /// Numbers of d_out that are not finite, where some may meet a hidden key: (row, dim, number).
    wild: Vec<(usize, usize, E::Real)>,
}

impl<E: Element, X: Element<Real = E::Real>> Operation<E::Real> for Unit<'_, '_, '_, E, X> {
    type Output = ();

    fn run<S: Lanes<T = E::Real>>(mut self, simd: S) {
        let plan = self.inputs.plan;
        let (heads, queries) = block_shape(plan);
        let group = plan.dims.group();
        let mut memory = Scratch::take();
        let mut buffers = self.buffers::<S>(&mut memory, heads * queries);
        // Heads within queries: so the order of the sums over both does not depend on how many queries there are at a time.
        for first in self.queries.clone().step_by(queries) {
            for head in (0..group).step_by(heads) {
                let count = queries.min(self.queries.end - first);
                let block = RowBlock { batch: self.batch, head: self.kv_head * group + head, heads, first, queries: count };
                self.block(simd, block, head, &mut buffers);
                // Where the sums are not begun with zeros, the first block sees every key.
                self.begun = true;
            }
        }
    }
}

impl<E: Element, X: Element<Real = E::Real>> Unit<'_, '_, '_, E, X> {
    fn buffers<'b, S: Lanes<T = E::Real>>(&self, memory: &'b mut Scratch, rows: usize) -> Buffers<'b, E::Real> {
        let Inputs { plan, k, v, .. } = self.inputs;
        let d = &plan.dims;
        let lanes = rows.next_multiple_of(2 * S::LANES);
        let copied = |view: &ArrayView4<'_, E>, dim: usize| if E::NATIVE && view.strides()[3] == 1 { 0 } else { KV_TILE * dim };
        let panel = KV_TILE * 2 * S::LANES;
        let when = |wanted: bool, len: usize| if wanted { len } else { 0 };
        // In the order of the fields below.
        let mut parts = memory
            .slices([
                lanes * d.head_dim,
                lanes * d.value_dim,
                lanes * padded::<E::Real>(d.head_dim),
                lanes * padded::<E::Real>(d.value_dim),
                copied(k, d.head_dim),
                copied(v, d.value_dim),
                when(plan.may_hide(), KV_TILE * d.head_dim),
                panel,
                when(plan.bias().is_some() || plan.dropout().is_some(), panel),
                when(plan.softcap().is_some(), panel),
                KV_TILE * lanes,
                KV_TILE * lanes,
                lanes,
                lanes,
                lanes,
                lanes * d.head_dim,
                when(self.spans.len() > 1, lanes * d.head_dim),
                lanes,
                lanes,
                lanes * d.head_dim,
            ])
            .into_iter();
        let mut next = || parts.next().expect("a part for every field");
        Buffers {
            q_panels: next(),
            d_out_panels: next(),
            q_rows: next(),
            d_out_rows: next(),
            key_copy: next(),
            value_copy: next(),
            clean_keys: next(),
            scores: next(),
            numbers: next(),
            capped: next(),
            p: next(),
            ds: next(),
            top: next(),
            inverse: next(),
            delta: next(),
            acc: next(),
            total: next(),
            squares: next(),
            squares_total: next(),
            rows: next(),
        }
    }

    /// One block of rows against all spans.
    fn block<S: Lanes<T = E::Real>>(&mut self, simd: S, block: RowBlock, head: usize, buffers: &mut Buffers<'_, E::Real>) {
        let ready = Self::prepare(self.inputs, simd, block, buffers);
        let several = self.spans.len() > 1;
        buffers.acc.fill(E::Real::ZERO);
        buffers.total.fill(E::Real::ZERO);
        buffers.squares.fill(E::Real::ZERO);
        buffers.squares_total.fill(E::Real::ZERO);
        for span in self.spans.clone() {
            let seen = self.span(simd, &ready, span, buffers);
            if several && seen {
                simd.call(Move { from: buffers.acc, to: buffers.total });
                simd.call(Move { from: buffers.squares, to: buffers.squares_total });
            }
        }
        let (acc, squares) = if several { (&*buffers.total, &*buffers.squares_total) } else { (&*buffers.acc, &*buffers.squares) };
        let first = block.first - self.queries.start;
        if let Some(to) = &mut self.squares {
            for (r, &sum) in squares.iter().enumerate().take(block.rows()) {
                to[[head + r / block.queries, first + r % block.queries]] = sum;
            }
        }
        let scales = &mut *buffers.inverse;
        scales.fill(self.dq_scale);
        let dq = self.dq.slice_mut(ndarray::s![head..head + block.heads, first..first + block.queries, ..]);
        hand_out::<S, X, false>(simd, acc, scales, buffers.rows, dq);
    }

    /// Lay out what all keys need of a block.
    fn prepare<'a, S: Lanes<T = E::Real>>(
        inputs: &Inputs<'a, E>,
        simd: S,
        block: RowBlock,
        buffers: &mut Buffers<'_, E::Real>,
    ) -> Block<'a, E> {
        let Inputs { plan, q, k, v, d_out, saved, cutoffs } = inputs;
        let cutoffs = cutoffs.as_ref().map(|all| Arc::clone(&all[block_index(plan, &block)]));
        let scorer = Scorer { panels_only: true, ..block_scorer(plan, q, k, block, cutoffs) };
        let (d_out, out) = (block_queries(d_out, &block), block_queries(&saved.out, &block));
        scorer.pack_queries(simd, buffers.q_panels);
        pack_panels(simd, &block, &d_out, buffers.d_out_panels);
        let one = E::Real::ONE;
        copy_rows(simd, &scorer.q, E::Real::from_f64(plan.scale), buffers.q_rows);
        let pitch = padded::<E::Real>(plan.dims.value_dim);
        let in_place = !scorer.may_hide() && plan.dims.value_dim == pitch;
        let d_out_rows = d_out.to_slice().filter(|_| in_place).and_then(native);
        if d_out_rows.is_none() {
            copy_rows(simd, &d_out, one, buffers.d_out_rows);
        }
        buffers.delta.fill(E::Real::ZERO);
        for (h, out) in out.outer_iter().enumerate() {
            let first = h * block.queries;
            let a = &d_out_rows.unwrap_or(buffers.d_out_rows)[first * pitch..];
            simd.call(RowDots { a, pitch, b: Rows::new(&out), to: &mut buffers.delta[first..] });
        }
        let mut wild = Vec::new();
        if scorer.may_hide() {
            take_wild(simd, buffers.d_out_rows, block.rows(), pitch, |row, dim, x| wild.push((row, dim, x)));
            // Where a row sees such a query, its ds is NaN already.
            take_wild(simd, buffers.q_rows, block.rows(), padded::<E::Real>(plan.dims.head_dim), |_, _, _| {});
        }
        for r in 0..buffers.top.len() {
            let (mut max, mut sum) = (E::Real::ZERO, E::Real::ZERO);
            if r < block.rows() {
                let (head, query) = block.row(r);
                (max, sum) = (saved.row_max[[block.batch, head, query]], saved.row_sum[[block.batch, head, query]]);
            }
            let empty = sum == E::Real::ZERO;
            buffers.top[r] = if empty { E::Real::ZERO } else { max };
            buffers.inverse[r] = if empty { E::Real::ZERO } else { one / sum };
        }
        let v = Rows::new(&block_keys(plan, v, &block));
        Block { scorer, v, d_out_rows, wild }
    }

    /// One span of keys. Says whether any of it was seen.
    fn span<S: Lanes<T = E::Real>>(&mut self, simd: S, block: &Block<'_, E>, span: usize, buffers: &mut Buffers<'_, E::Real>) -> bool {
        let scorer = &block.scorer;
        let seq_kv = scorer.plan.dims.seq_kv;
        let keys = scorer.key_range(span * GRADIENT_SPAN..seq_kv.min((span + 1) * GRADIENT_SPAN));
        let mut start = keys.start;
        let mut seen = false;
        while start < keys.end {
            let end = keys.end.min(start / KV_TILE * KV_TILE + KV_TILE);
            if scorer.may_see(start..end) {
                seen |= self.tile(simd, block, start..end, span, buffers);
            }
            start = end;
        }
        seen
    }

    /// One tile of keys against all panels.
    fn tile<S: Lanes<T = E::Real>>(
        &mut self,
        simd: S,
        block: &Block<'_, E>,
        keys: Range<usize>,
        span: usize,
        buffers: &mut Buffers<'_, E::Real>,
    ) -> bool {
        let Block { scorer, v, .. } = block;
        let rows = scorer.block.rows();
        let key_tile = scorer.key_tile(simd, keys.start, keys.end, buffers.key_copy);
        let mut needs = Vec::with_capacity(rows.div_ceil(2 * S::LANES));
        let mut idle = Vec::new();
        for panel in scorer.panels::<S>() {
            let (keys, coverage) = scorer.needed(&panel, &key_tile);
            if coverage == TileCoverage::Empty {
                idle.push(panel);
            } else {
                needs.push(Need { panel, keys, coverage });
            }
        }
        let (Some(first), Some(last)) = (needs.iter().map(|n| n.keys.start).min(), needs.iter().map(|n| n.keys.end).max()) else {
            return false;
        };
        let seen = first..last;
        let pitch = rows.next_multiple_of(S::LANES);
        // Panels that see nothing of the tile, between others that do: what another tile left there must not be added.
        let between = needs[0].panel.start..needs[needs.len() - 1].panel.end;
        for panel in idle.into_iter().filter(|panel| between.contains(&panel.start) || !block.wild.is_empty()) {
            for line in 0..seen.len() {
                let at = line * pitch + panel.start..line * pitch + panel.end;
                buffers.p[at.clone()].fill(E::Real::ZERO);
                buffers.ds[at].fill(E::Real::ZERO);
            }
        }
        let value_tile = match v.native() {
            Some(rows) if rows.has_unit_cols() => KeyTile { start: keys.start, end: keys.end, rows, base: 0 },
            _ => {
                v.copy(simd, keys.clone(), buffers.value_copy);
                KeyTile {
                    start: keys.start,
                    end: keys.end,
                    rows: Rows::from_slice(buffers.value_copy, keys.len(), v.cols()),
                    base: keys.start,
                }
            }
        };
        // A hidden key that is not finite must not meet the zeros of ds.
        let partial = scorer.may_hide_beside_mask() || needs.iter().any(|n| n.coverage != TileCoverage::Full);
        let mut finite_keys = key_tile;
        let tile = keys.start / KV_TILE - self.spans.start * (GRADIENT_SPAN / KV_TILE);
        if partial && !*self.finite_keys[tile].get_or_insert_with(|| scorer.k.all_finite(simd, whole_tile(&keys, scorer.k.len()))) {
            let dims = scorer.k.cols();
            scorer.k.copy(simd, keys.clone(), buffers.clean_keys);
            take_wild(simd, buffers.clean_keys, keys.len(), dims, |_, _, _| {});
            finite_keys = KeyTile { rows: Rows::from_slice(buffers.clean_keys, keys.len(), dims), base: keys.start, ..key_tile };
        }
        let mut out = PanelBuffers {
            q_panels: buffers.q_panels,
            d_out_panels: buffers.d_out_panels,
            scores: buffers.scores,
            numbers: buffers.numbers,
            capped: buffers.capped,
            p: buffers.p,
            ds: buffers.ds,
            top: buffers.top,
            inverse: buffers.inverse,
            delta: buffers.delta,
            acc: buffers.acc,
            squares: self.squares.is_some().then_some(&mut *buffers.squares),
            pitch,
        };
        for need in &needs {
            let tiles = Tiles { keys: &key_tile, finite_keys: &finite_keys, values: &value_tile, seen: &seen };
            if need.panel.len() > S::LANES {
                panel::<S, E, 2>(simd, scorer, need, &tiles, &mut out, self.bias.as_deref_mut(), span);
            } else {
                panel::<S, E, 1>(simd, scorer, need, &tiles, &mut out, self.bias.as_deref_mut(), span);
            }
        }
        self.add_to_keys(simd, block, &needs, &seen, buffers);
        true
    }

    /// `dv += p . d_out` and `dk += ds . q` for the keys of a tile.
    fn add_to_keys<S: Lanes<T = E::Real>>(
        &mut self,
        simd: S,
        block: &Block<'_, E>,
        needs: &[Need],
        seen: &Range<usize>,
        buffers: &Buffers<'_, E::Real>,
    ) {
        let d = &block.scorer.plan.dims;
        let rows = block.scorer.block.rows();
        let pitch = rows.next_multiple_of(S::LANES);
        let base = self.spans.start * GRADIENT_SPAN;
        let (k_pitch, v_pitch) = (padded::<E::Real>(d.head_dim), padded::<E::Real>(d.value_dim));
        // Few enough that their rows of p stay in the first cache while all columns are gone through.
        let step = 4 * S::TILE_ROWS;
        for first in seen.clone().step_by(step) {
            let keys = first..seen.end.min(first + step);
            let mut rows_here: Option<Range<usize>> = None;
            for need in needs.iter().filter(|n| n.keys.start < keys.end && keys.start < n.keys.end) {
                let from = rows_here.map_or(need.panel.start, |r| r.start);
                rows_here = Some(from..need.panel.end);
            }
            let Some(rows_here) = rows_here else { continue };
            let at = (keys.start - seen.start) * pitch;
            let to = keys.start - base;
            for (numbers, from, dims, row_pitch, sums) in [
                (&buffers.p[at..], block.d_out_rows.unwrap_or(buffers.d_out_rows), d.value_dim, v_pitch, &mut *self.dv),
                (&buffers.ds[at..], &buffers.q_rows[..], d.head_dim, k_pitch, &mut *self.dk),
            ] {
                let sums = &mut sums[to * row_pitch..(keys.end - base) * row_pitch];
                // SAFETY: once the sums are begun, all of them are numbers.
                let sums = if self.begun { Destination::Add(unsafe { sums.assume_init_mut() }) } else { Destination::Write(sums) };
                simd.call(AddRows { numbers, pitch, depth: rows_here.clone(), keys: keys.len(), from, dims, row_pitch, sums });
            }
        }
        let pairs = |row: usize| seen.clone().zip(buffers.p[row..].iter().step_by(pitch));
        for &(row, dim, x) in &block.wild {
            for (key, &p) in pairs(row) {
                if p != E::Real::ZERO {
                    // SAFETY: where something is hidden, the sums are begun with zeros.
                    unsafe { *self.dv[(key - base) * v_pitch + dim].assume_init_mut() += p * x };
                }
            }
        }
    }
}

/// The keys of the tile that some keys are in.
fn whole_tile(keys: &Range<usize>, all: usize) -> Range<usize> {
    let first = keys.start / KV_TILE * KV_TILE;
    first..all.min(first + KV_TILE)
}

/// Which of all blocks it is, in the order of [`crate::forward::blocks`].
fn block_index(plan: &Plan<'_>, block: &RowBlock) -> usize {
    let (heads, queries) = block_shape(plan);
    let tiles = plan.dims.seq_q.div_ceil(queries);
    (block.batch * (plan.dims.heads_q / heads) + block.head / heads) * tiles + block.first / queries
}

/// The rows of a block, padded to whole vectors.
fn copy_rows<S: Lanes, E: Element<Real = S::T>>(simd: S, from: &ArrayView3<'_, E>, factor: S::T, to: &mut [S::T]) {
    let (_, queries, dims) = from.dim();
    let pitch = padded::<S::T>(dims);
    for (h, head) in from.outer_iter().enumerate() {
        simd.call(CopyScaled { from: Rows::new(&head), rows: 0..queries, factor, pitch, to: &mut to[h * queries * pitch..] });
    }
}

/// Put zero in the place of what is not finite, and tell.
fn take_wild<S: Lanes>(simd: S, numbers: &mut [S::T], rows: usize, cols: usize, mut tell: impl FnMut(usize, usize, S::T)) {
    if cols == 0 || Rows::from_slice(numbers, rows, cols).all_finite(simd, 0..rows) {
        return;
    }
    for (at, x) in numbers[..rows * cols].iter_mut().enumerate().filter(|(_, x)| !x.is_finite()) {
        tell(at / cols, at % cols, std::mem::replace(x, S::T::ZERO));
    }
}

/// What a panel needs of a tile.
struct Need {
    panel: Range<usize>,
    keys: Range<usize>,
    coverage: TileCoverage,
}

/// A tile of keys and of values.
struct Tiles<'t, T> {
    keys: &'t KeyTile<'t, T>,
    /// The keys without what is not finite, where that matters.
    finite_keys: &'t KeyTile<'t, T>,
    values: &'t KeyTile<'t, T>,
    /// The keys that any panel needs.
    seen: &'t Range<usize>,
}

/// The part of [`Buffers`] that a panel works on.
struct PanelBuffers<'b, T> {
    q_panels: &'b [T],
    d_out_panels: &'b [T],
    scores: &'b mut [T],
    numbers: &'b mut [T],
    capped: &'b mut [T],
    p: &'b mut [T],
    ds: &'b mut [T],
    top: &'b [T],
    inverse: &'b [T],
    delta: &'b [T],
    acc: &'b mut [T],
    squares: Option<&'b mut [T]>,
    /// From one key to the next in `p` and `ds`.
    pitch: usize,
}

/// One panel of rows against the keys that it needs: p, ds and dq.
fn panel<S: Lanes, E: Element<Real = S::T>, const NR: usize>(
    simd: S,
    scorer: &Scorer<'_, E>,
    need: &Need,
    tiles: &Tiles<'_, S::T>,
    on: &mut PanelBuffers<'_, S::T>,
    bias: Option<&mut BiasSums<'_, S::T>>,
    span: usize,
) {
    let plan = scorer.plan;
    let Need { panel, keys, coverage } = need;
    let (width, pitch) = (NR * S::LANES, on.pitch);
    let lanes = panel.start..panel.start + width;
    let scores = &mut on.scores[..keys.len() * width];
    scorer.scores::<S, NR>(simd, on.q_panels, panel, tiles.keys, keys, *coverage, Stage::Softcap, on.numbers, scores);
    if plan.softcap().is_some() {
        on.capped[..scores.len()].copy_from_slice(scores);
    }
    scorer.bias_and_hide(simd, panel, keys, *coverage, width, on.numbers, scores);
    let factors = plan.dropout().map(|dropout| {
        let factors = &mut on.numbers[..scores.len()];
        simd.call(Factors { dropout, block: scorer.block, panel: panel.clone(), keys: keys.clone(), width, factors });
        &*factors
    });
    // Rows of other panels need keys that this one does not.
    for key in (tiles.seen.start..keys.start).chain(keys.end..tiles.seen.end) {
        let at = (key - tiles.seen.start) * pitch;
        on.p[at..][lanes.clone()].fill(S::T::ZERO);
        on.ds[at..][lanes.clone()].fill(S::T::ZERO);
    }
    let at = (keys.start - tiles.seen.start) * pitch + panel.start;
    let (top, inverse) = (&on.top[lanes.clone()], &on.inverse[lanes.clone()]);
    simd.call(Weigh::<_, NR> { scores, factors, top, inverse, pitch, p: &mut on.p[at..] });
    let local = |tile: &KeyTile<'_, S::T>| keys.start - tile.base..keys.end - tile.base;
    let dims = tiles.values.rows.cols();
    let d_out = &on.d_out_panels[panel.start * dims..][..width * dims];
    let ds = &mut on.ds[at..];
    let (v, delta) = (tiles.values.rows, &on.delta[lanes.clone()]);
    simd.call(ScoreGradients::<_, NR> { v, keys: local(tiles.values), d_out, p: scores, factors, delta, pitch, ds });
    if let Some(squares) = &mut on.squares {
        simd.call(AddSquares { ds, pitch, keys: keys.len(), to: &mut squares[lanes] });
    }
    if let Some(bias) = bias {
        bias.add(simd, plan, &scorer.block, panel, keys, span, ds, pitch);
    }
    if let Some(cap) = plan.softcap() {
        let (capped, inverse_cap) = (&on.capped[..scores.len()], S::T::from_f64(1.0 / cap));
        simd.call(ThroughSoftcap { capped, width, inverse_cap, pitch, ds });
    }
    let dims = tiles.keys.rows.cols();
    let acc = &mut on.acc[panel.start * dims..][..width * dims];
    let (v, alpha) = (tiles.finite_keys.rows, &[S::T::ONE; 32]);
    simd.call(AddValues::<_, NR> { v, keys: local(tiles.finite_keys), weights: ds, pitch, alpha, acc });
}
