//! Gradients of the query heads that share one key/value head, tile by tile of query rows: a visitor of the main loop.
//!
//! ```text
//! for a tile of up to Q_TILE query rows
//!   for each split of keys, for each tile of keys that any row sees
//!     for each panel (one or two vectors of rows), one query per lane
//!       scores = K-tile . q, ...                     as in the forward pass, bit for bit
//!       p      = exp(scores - row_max) / row_sum     forward: out = (p * dropout) v
//!       d_p    = V-tile . d_out                      and so   d_p = (v . d_out) * dropout
//!       ds     = p * (d_p - delta)                   delta = d_out . out, the softmax's own part
//!       dq    += K-tile^T . ds                       forward: scores = k . q * scale
//!     dv += (p * dropout) . d_out                    all rows of the tile at once
//!     dk += ds . (q * scale)
//! ```
//!
//! `p` and `ds` are laid out `[key][row]`: seen from the queries they are panels, and seen from the keys they are rows of
//! elements to broadcast. So all five products read their operands in place.
//!
//! Hidden means hidden here as well: a zero of `ds` or `p` must not meet an infinity. Where something is hidden, elements of k, q and d_out
//! that are not finite are left out of the products, and given to the pairs that are visible afterwards.

use super::kernels::{
    AddAndClear, AddRows, AddSquares, AddTileRows, Delta, Destination, PairRows, ROW_KEYS, RecomputeWeights, ScoreGradients,
    ThroughSoftcap, score_gradients, tile_rows_len,
};
use crate::bias::gradient::{BiasSums, ScoreRows};
use crate::forward::attend::add_products;
use crate::forward::output::store_rows;
use crate::forward::{Inputs, SavedView};
use crate::mainloop::dropout::DropoutFactors;
use crate::mainloop::operand::{NonFinite, Operand};
use crate::mainloop::scores::{Scorer, Stage, pack_factor, pack_panels, tile_keys, tile_queries};
use crate::mainloop::tiles::{AddTileProducts, factor_depth, product_len};
use crate::mainloop::tiling::{GRADIENT_SPLIT, KV_TILE, MAX_PANEL, Need, Panel, QueryTile, by_width, lanes, tile_shape};
use crate::mainloop::top_k::Cutoffs;
use crate::mainloop::{KvTile, Visitor, mainloop};
use crate::plan::Plan;
use ndarray::{Array3, ArrayView3, ArrayView4, ArrayViewMut2, ArrayViewMut3};
use regard_simd::scratch::{Scratch, slices};
use regard_simd::strided::{CopyScaled, Rows};
use regard_simd::{Driver, Real, Simd, Storage};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;

/// Inputs of a backward pass.
pub(super) struct Given<'c, 'x, E: Storage> {
    pub(super) plan: &'c Plan<'c>,
    pub(super) inputs: &'c Inputs<'x, E>,
    pub(super) saved: &'c SavedView<'x, E>,
    pub(super) d_out: ArrayView4<'x, E>,
    /// Of every query tile of the call in order, with top-k.
    pub(super) cutoffs: Option<Vec<Cutoffs<E::Real>>>,
    /// `sum(p * d_p)` of every row, where the scale is so large that `d_out . out` is too inaccurate.
    pub(super) deltas: Option<Array3<E::Real>>,
}

impl<'x, E: Storage> Given<'_, 'x, E> {
    /// What makes the scores of a query tile.
    pub(super) fn scorer(&self, tile: QueryTile) -> Scorer<'_, E> {
        let cutoffs = self.cutoffs.as_ref().map(|all| Arc::clone(&all[tile_index(self.plan, &tile)]));
        Scorer { panels_only: true, cutoffs, ..Scorer::new(self.plan, &self.inputs.q, &self.inputs.k, tile) }
    }

    /// (row_max, 1 / row_sum) of a row; zeros where it saw nothing.
    pub(super) fn row_state(&self, place: [usize; 3]) -> [E::Real; 2] {
        let (max, sum) = (self.saved.row_max[place], self.saved.row_sum[place]);
        if sum == E::Real::ZERO { [E::Real::ZERO; 2] } else { [max, E::Real::ONE / sum] }
    }
}

/// Sums over the keys that are kept row by row, where they are wanted: of the squares of `d_scores`, and of the share of the scale's
/// gradient.
pub(super) type RowSums<A> = [Option<A>; 2];

/// Query heads that share a key/value head: some of their queries against some keys.
pub(super) struct Unit<'u, 'c, 'x, 'v, E: Storage, X> {
    pub(super) given: &'u Given<'c, 'x, E>,
    pub(super) batch: usize,
    pub(super) kv_head: usize,
    /// Batch entry and head within the parts of the biases' sums.
    pub(super) place: [usize; 2],
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
    /// Sums for the keys, rows of `head_dim` and `value_dim` padded to whole vectors.
    pub(super) dk: &'u mut [MaybeUninit<E::Real>],
    pub(super) dv: &'u mut [MaybeUninit<E::Real>],
    /// All of dk and dv is initialised: sums of earlier queries, or zeros.
    pub(super) initialised: bool,
    /// `[head of the group, query, dim]`, written whole.
    pub(super) dq: ArrayViewMut3<'u, MaybeUninit<X>>,
    pub(super) dq_scale: E::Real,
    /// `[head of the group, query]`
    pub(super) rows: RowSums<ArrayViewMut2<'u, f64>>,
    pub(super) biases: &'u mut [BiasSums<'v, E::Real>],
}

/// Distance of two rows that are padded to whole vectors.
pub(super) fn padded<T>(dims: usize) -> usize {
    // Whole vectors on every level: the sums are laid out before the level is entered.
    dims.next_multiple_of(64 / size_of::<T>())
}

impl<E: Storage, X: Storage<Real = E::Real>> Driver<E::Real> for Unit<'_, '_, '_, '_, E, X> {
    type Output = ();

    fn run<S: Simd<T = E::Real>>(mut self, simd: S) {
        let Given { plan, inputs, .. } = self.given;
        let (heads, queries) = tile_shape(plan);
        let group = plan.dims.group();
        let rows = lanes::<S>(heads * queries);
        let (mut memory, mut squares) = (Scratch::take(), vec![0.0; if self.rows[0].is_some() { 2 * rows } else { 0 }]);
        let mut buffers = Buffers::new::<S>(plan, &inputs.v, rows, &mut memory, &mut squares);
        // Of every tile of keys: all of them are finite; `None`: not looked at yet.
        let mut finite_keys = vec![None; self.keys.end.div_ceil(KV_TILE) - self.keys.start / KV_TILE];
        // Heads within queries: so the order of the sums over both does not depend on how many queries there are at a time.
        for first in self.queries.clone().step_by(queries) {
            for head in (0..group).step_by(heads) {
                let count = queries.min(self.queries.end - first);
                let (batch, first) = (self.batch + plan.part.batch, first + plan.part.query);
                let tile = QueryTile { batch, head: self.kv_head * group + head, heads, first, queries: count };
                self.tile(simd, tile, head, &mut buffers, &mut finite_keys);
                // Where the sums do not begin with zeros, the first tile sees every key.
                self.initialised = true;
            }
        }
    }
}

impl<E: Storage, X: Storage<Real = E::Real>> Unit<'_, '_, '_, '_, E, X> {
    /// One tile of query rows against all keys of the unit.
    fn tile<S: Simd<T = E::Real>>(
        &mut self,
        simd: S,
        tile: QueryTile,
        head: usize,
        buffers: &mut Buffers<'_, E::Real>,
        finite_keys: &mut [Option<bool>],
    ) {
        let given = self.given;
        let plan = given.plan;
        let scorer = given.scorer(tile);
        let d_out = tile_queries(plan, &given.d_out, &tile);
        let direct = buffers.begin(simd, given, &scorer, &d_out);
        let d_out_rows = direct.unwrap_or(&*buffers.d_out_rows);
        let v = Rows::new(&tile_keys(plan, &given.inputs.v, &tile));
        let mut visitor = Differentiate {
            plan,
            values: Operand::new(v, plan.part.key, buffers.value_copy),
            d_out_rows,
            dk: self.dk,
            dv: self.dv,
            initialised: self.initialised,
            first_key: self.keys.start,
            place: self.place,
            head_in_group: head,
            biases: self.biases,
            finite_keys,
            several: self.keys.len() > GRADIENT_SPLIT,
            seen: 0..0,
            any_seen: false,
            ld: tile.rows().next_multiple_of(S::LANES),
            squares_wanted: self.rows[0].is_some(),
            panels: &mut buffers.panels,
        };
        mainloop(simd, &scorer, scorer.key_range(self.keys.clone()), GRADIENT_SPLIT, &mut visitor);
        Visitor::<S, E>::split_done(&mut visitor, simd);
        let (acc, squares) = buffers.panels.sums(self.keys.len() > GRADIENT_SPLIT);
        let first = tile.first - plan.part.query - self.queries.start;
        let here = |r: usize| [head + r / tile.queries, first + r % tile.queries];
        let [to_squares, to_scale] = &mut self.rows;
        if let Some(to) = to_squares {
            squares.iter().enumerate().take(tile.rows()).for_each(|(r, &sum)| to[here(r)] = sum);
        }
        if let Some(to) = to_scale {
            scale_gradient::<S, E>(&scorer, acc, |r, sum| to[here(r)] = sum);
        }
        let scales = &mut *buffers.scales;
        scales.fill(self.dq_scale);
        let dq = self.dq.slice_mut(ndarray::s![head..head + tile.heads, first..first + tile.queries, ..]);
        store_rows::<S, X, false>(simd, acc, scales, buffers.rows, dq);
    }
}

/// Which of all query tiles it is, in their order.
fn tile_index(plan: &Plan<'_>, tile: &QueryTile) -> usize {
    let (heads, queries) = tile_shape(plan);
    let tiles = plan.dims.seq_q.div_ceil(queries);
    let [batch, head, first] = tile.place(plan, 0);
    (batch * (plan.dims.heads_q / heads) + head / heads) * tiles + first / queries
}

/// forward: `scores = (k . q) * scale`, and so `d_scale = sum of ds * (k . q) = sum of (K^T ds) . q`, row by row
fn scale_gradient<S: Simd, E: Storage<Real = S::T>>(scorer: &Scorer<'_, E>, acc: &[S::T], mut tell: impl FnMut(usize, f64)) {
    let (tile, dims) = (&scorer.tile, scorer.plan.dims.head_dim);
    for panel in Panel::all::<S>(tile.rows()) {
        for (lane, r) in panel.rows().enumerate() {
            let q = |dim: usize| scorer.q[[r / tile.queries, r % tile.queries, dim]].to_real().to_f64();
            let d = |dim: usize| acc[panel.start * dims + dim * panel.width + lane].to_f64();
            tell(r, (0..dims).map(|dim| d(dim) * q(dim)).sum());
        }
    }
}

/// Working memory of a unit.
struct Buffers<'b, T> {
    d_out_rows: &'b mut [T],
    out_panels: &'b mut [T],
    value_copy: &'b mut [T],
    /// Finished rows, where they cannot be written to the result at once.
    rows: &'b mut [T],
    scales: &'b mut [T],
    panels: PanelBuffers<'b, T>,
}

/// The part that panels work on.
struct PanelBuffers<'b, T> {
    /// Panels of d_out.
    d_out_panels: &'b mut [T],
    /// `q * scale` as rows; without the scale where the lanes multiply tiles.
    q_rows: &'b mut [T],
    /// Where the lanes multiply tiles: rows of d_out and q as factors of products, and working memory.
    d_out_pairs: &'b mut [T],
    q_pairs: &'b mut [T],
    products: &'b mut [T],
    tiles: &'b mut [T],
    /// Of one panel: the dropout; scores after the softcap.
    factors: &'b mut [T],
    capped: &'b mut [T],
    /// `[key][row]`, of all panels.
    p: &'b mut [T],
    ds: &'b mut [T],
    /// Per lane: row_max, 1 / row_sum, d_out . out.
    row_max: &'b mut [T],
    inv_row_sum: &'b mut [T],
    delta: &'b mut [T],
    /// dq of this split, and of the splits before: panels of `[dim][lane]`.
    acc: &'b mut [T],
    total: &'b mut [T],
    /// Sums of squares of ds, likewise; empty if they are not collected.
    squares: &'b mut [f64],
    squares_total: &'b mut [f64],
    /// Numbers of d_out and of q (times the scale) that are not finite, by row in place of the key, where they may meet a hidden key.
    non_finite_d_out: Vec<NonFinite<T>>,
    non_finite_q: Vec<NonFinite<T>>,
    /// Which pairs of a tile are visible, by panel, where it matters.
    visible: Vec<(Panel, Range<usize>, [u32; KV_TILE])>,
}

impl<'b, T: Real> Buffers<'b, T> {
    fn new<S: Simd<T = T>>(
        plan: &Plan<'_>,
        v: &ArrayView4<'_, impl Storage<Real = T>>,
        lanes: usize,
        memory: &'b mut Scratch,
        squares: &'b mut [f64],
    ) -> Self {
        let d = &plan.dims;
        let panel = KV_TILE * 2 * S::LANES;
        let when = |wanted: bool, len: usize| if wanted { len } else { 0 };
        slices! { memory =>
            d_out_rows: lanes * padded::<T>(d.value_dim),
            out_panels: lanes * d.value_dim,
            value_copy: Operand::copy_len(Rows::new(&v.slice(ndarray::s![0, 0, .., ..]))),
            rows: lanes * d.head_dim,
            scales: lanes,
            d_out_panels: lanes * d.value_dim.max(factor_depth::<S>(d.value_dim)),
            q_rows: lanes * padded::<T>(d.head_dim),
            d_out_pairs: when(S::TILES, lanes / 2 * padded::<T>(d.value_dim)),
            q_pairs: when(S::TILES, lanes / 2 * padded::<T>(d.head_dim)),
            products: when(S::TILES, panel),
            tiles: when(S::TILES, product_len(d.head_dim).max(tile_rows_len(lanes, padded::<T>(d.head_dim.max(d.value_dim))))),
            factors: when(plan.dropout().is_some(), panel),
            capped: when(plan.softcap().is_some(), panel),
            p: KV_TILE * lanes,
            ds: KV_TILE * lanes,
            row_max: lanes,
            inv_row_sum: lanes,
            delta: lanes,
            acc: lanes * d.head_dim,
            total: lanes * d.head_dim,
        }
        let (squares, squares_total) = squares.split_at_mut(squares.len() / 2);
        let (non_finite_d_out, non_finite_q, visible) = Default::default();
        #[rustfmt::skip]
        let panels = PanelBuffers {
            d_out_panels, q_rows, d_out_pairs, q_pairs, products, tiles, factors, capped, p, ds, row_max, inv_row_sum, delta, acc, total,
            squares, squares_total, non_finite_d_out, non_finite_q, visible,
        };
        Self { d_out_rows, out_panels, value_copy, rows, scales, panels }
    }

    /// Prepare a query tile for all keys. Returns d_out if its rows can be read in place; otherwise they were copied.
    fn begin<'x, S: Simd<T = T>, E: Storage<Real = T>>(
        &mut self,
        simd: S,
        given: &Given<'_, 'x, E>,
        scorer: &Scorer<'_, E>,
        d_out: &ArrayView3<'x, E>,
    ) -> Option<&'x [T]> {
        let (plan, tile, panels) = (given.plan, &scorer.tile, &mut self.panels);
        let d = &plan.dims;
        pack_factor(simd, tile, d_out, panels.d_out_panels);
        match &given.saved.out_unrounded {
            Some(out_unrounded) => pack_panels(simd, tile, &tile_queries(plan, out_unrounded, tile), self.out_panels),
            None => pack_panels(simd, tile, &tile_queries(plan, &given.saved.out, tile), self.out_panels),
        }
        for panel in Panel::all::<S>(tile.rows()) {
            let part = panel.start * d.value_dim..panel.lanes().end * d.value_dim;
            let steps = factor_depth::<S>(d.value_dim);
            simd.call(Delta {
                out: &self.out_panels[part],
                d_out: &panels.d_out_panels[panel.start * steps..panel.lanes().end * steps],
                delta: &mut panels.delta[panel.lanes()],
            });
        }
        let scale = T::from_f64(plan.scale);
        copy_padded(simd, &scorer.q, Some(scale).filter(|_| !S::TILES), panels.q_rows);
        (panels.non_finite_d_out, panels.non_finite_q) = (Vec::new(), Vec::new());
        for r in 0..panels.row_max.len() {
            let state = if r < tile.rows() { given.row_state(tile.place(plan, r)) } else { [T::ZERO; 2] };
            [panels.row_max[r], panels.inv_row_sum[r]] = state;
            // What is not finite is so in both.
            if let Some(deltas) = given.deltas.as_ref().filter(|_| r < tile.rows() && panels.delta[r].is_finite()) {
                panels.delta[r] = deltas[tile.place(plan, r)];
            }
        }
        panels.acc.fill(T::ZERO);
        panels.total.fill(T::ZERO);
        panels.squares.fill(0.0);
        panels.squares_total.fill(0.0);
        let ld = padded::<T>(d.value_dim);
        if !plan.may_hide()
            && d.value_dim == ld
            && let Some(rows) = d_out.to_slice().and_then(E::as_real)
        {
            return Some(rows);
        }
        copy_padded(simd, d_out, None, self.d_out_rows);
        // A weight is two parts where tiles are multiplied: an infinity would meet the zero of the second.
        if plan.may_hide() || S::TILES {
            panels.non_finite_d_out = take_non_finite(simd, self.d_out_rows, tile.rows(), ld);
            panels.non_finite_q = take_non_finite(simd, panels.q_rows, tile.rows(), padded::<T>(d.head_dim));
        }
        if S::TILES {
            panels.non_finite_q.iter_mut().for_each(|x| x.value = x.value * scale);
            for (from, dims, to) in
                [(&*self.d_out_rows, d.value_dim, &mut *panels.d_out_pairs), (&*panels.q_rows, d.head_dim, &mut *panels.q_pairs)]
            {
                simd.call(PairRows { from, rows: tile.rows(), ld: padded::<T>(dims), to });
            }
        }
        None
    }
}

impl<T: Real> PanelBuffers<'_, T> {
    /// dq and the squares of all splits.
    fn sums(&self, several: bool) -> (&[T], &[f64]) {
        if several { (self.total, self.squares_total) } else { (self.acc, self.squares) }
    }
}

/// Both factors of `d_p = v . d_out` of a panel, in pairs where the lanes [multiply pairs](Simd::PAIRS).
pub(super) fn gradient_factors<'f, S: Simd<T = E::Real>, E: Storage>(
    simd: S,
    values: &'f mut Operand<'_, E>,
    keys: &Range<usize>,
    d_out: &'f [E::Real],
    panel: &Panel,
) -> (Rows<'f, E::Real>, &'f [E::Real]) {
    let v = match () {
        () if S::TILES => values.tile_rows(keys),
        () if S::PAIRS => values.pair_rows(keys),
        () => values.rows(simd, keys),
    };
    let d_out = &d_out[panel.start * v.cols()..][..panel.width * v.cols()];
    (v, d_out)
}

/// The rows of a query tile, padded to whole vectors.
fn copy_padded<S: Simd, E: Storage<Real = S::T>>(simd: S, from: &ArrayView3<'_, E>, factor: Option<S::T>, to: &mut [S::T]) {
    let (_, queries, dims) = from.dim();
    let ld = padded::<S::T>(dims);
    for (h, head) in from.outer_iter().enumerate() {
        simd.call(CopyScaled { from: Rows::new(&head), factor, ld, to: &mut to[h * queries * ld..] });
    }
}

/// Replace non-finite elements by zero; returns them.
fn take_non_finite<S: Simd>(simd: S, numbers: &mut [S::T], rows: usize, cols: usize) -> Vec<NonFinite<S::T>> {
    if cols == 0 || Rows::from_slice(numbers, rows, cols).all_finite(simd) {
        return Vec::new();
    }
    let numbers = numbers[..rows * cols].iter_mut().enumerate().filter(|(_, x)| !x.is_finite());
    numbers.map(|(at, x)| NonFinite { key: at / cols, dim: at % cols, value: std::mem::replace(x, S::T::ZERO) }).collect()
}

struct Differentiate<'w, 'b, 'v, E: Storage> {
    plan: &'w Plan<'w>,
    values: Operand<'w, E>,
    d_out_rows: &'w [E::Real],
    dk: &'w mut [MaybeUninit<E::Real>],
    dv: &'w mut [MaybeUninit<E::Real>],
    initialised: bool,
    /// The first key of dk, dv, `finite_keys` and the biases' sums.
    first_key: usize,
    place: [usize; 2],
    head_in_group: usize,
    biases: &'w mut [BiasSums<'v, E::Real>],
    finite_keys: &'w mut [Option<bool>],
    several: bool,
    /// The keys of the tile that any panel needs.
    seen: Range<usize>,
    /// Something of this split was seen.
    any_seen: bool,
    /// From one key to the next in `p` and `ds`.
    ld: usize,
    squares_wanted: bool,
    panels: &'w mut PanelBuffers<'b, E::Real>,
}

impl<S: Simd, E: Storage<Real = S::T>> Visitor<S, E> for Differentiate<'_, '_, '_, E> {
    fn stage(&self) -> Stage {
        Stage::Softcap
    }

    fn begin(&mut self, _: S, tile: &mut KvTile<'_, '_, E>, needs: &[Need]) {
        let first = needs.iter().map(|n| n.keys.start).min().expect("needs is not empty");
        let last = needs.iter().map(|n| n.keys.end).max().expect("needs is not empty");
        (self.seen, self.any_seen) = (first..last, true);
        tile.k.begin(tile.keys.clone(), self.finite_keys[tile.keys.start / KV_TILE - self.first_key / KV_TILE]);
        self.values.begin(tile.keys.clone(), None);
        self.panels.visible.clear();
        // Panels that see nothing of the tile, between others that do: what another tile left there must not be added.
        let between = needs[0].panel.start..needs[needs.len() - 1].panel.lanes().end;
        for panel in Panel::all::<S>(tile.scorer.tile.rows()) {
            if between.contains(&panel.start) && needs.iter().all(|need| need.panel.start != panel.start) {
                self.clear(panel.lanes(), self.seen.clone());
            }
        }
    }

    fn panel(&mut self, simd: S, tile: &mut KvTile<'_, '_, E>, need: &Need, scores: &mut [S::T]) {
        let (plan, ld, panel, keys) = (self.plan, self.ld, need.panel, &need.keys);
        let lanes = panel.lanes();
        if plan.softcap().is_some() {
            self.panels.capped[..scores.len()].copy_from_slice(scores);
        }
        tile.finish_scores(simd, need, scores);
        // Rows of other panels need keys that this one does not.
        self.clear(lanes.clone(), self.seen.start..keys.start);
        self.clear(lanes.clone(), keys.end..self.seen.end);
        let care = self.care(simd, tile, need, scores);
        let panels = &mut *self.panels;
        let factors = plan.dropout().map(|dropout| {
            let factors = &mut panels.factors[..scores.len()];
            simd.call(DropoutFactors { dropout, tile: tile.scorer.tile, need, factors });
            &*factors
        });
        let at = (keys.start - self.seen.start) * ld + panel.start;
        let (row_max, inv_row_sum) = (&panels.row_max[lanes.clone()], &panels.inv_row_sum[lanes.clone()]);
        let (p, ds) = (&mut panels.p[at..], &mut panels.ds[at..]);
        let (v, d_out) = gradient_factors(simd, &mut self.values, keys, panels.d_out_panels, &panel);
        let (delta, products) = (&panels.delta[lanes.clone()], &mut *panels.products);
        let visible = care.then(|| &panels.visible[panels.visible.len() - 1].2[..]);
        by_width!(S, panel.width, NR => {
            simd.call(RecomputeWeights::<_, NR> { scores, factors, row_max, inv_row_sum, ld, p });
            score_gradients(simd, ScoreGradients::<_, NR, false> { v, d_out, p: scores, factors, delta, visible, ld, products, ds });
        });
        if self.squares_wanted {
            simd.call(AddSquares { ds, ld, keys: keys.len(), to: &mut panels.squares[lanes] });
        }
        for (bias, sums) in plan.biases_with_gradient().iter().zip(&mut *self.biases) {
            let [batch, head] = [self.place[0], self.place[1] + self.head_in_group];
            tile.scorer.tile.segments(plan, panel.rows(), |at, queries, lane| {
                let head = head + at.head - tile.scorer.tile.head;
                let place = [batch, head, keys.start - self.first_key, queries.start - plan.part.query];
                sums.add(simd, bias, &ScoreRows { at, place, queries, keys, ds: &ds[lane..], ld });
            });
        }
        if let Some(cap) = plan.softcap() {
            let (capped, inverse_cap) = (&panels.capped[..scores.len()], S::T::from_f64(1.0 / cap));
            simd.call(ThroughSoftcap { capped, width: panel.width, inverse_cap, ld, ds });
        }
        self.add_to_queries(simd, tile, need);
    }

    fn tile_done(&mut self, simd: S, tile: &KvTile<'_, '_, E>, needs: &[Need]) {
        self.finite_keys[tile.keys.start / KV_TILE - self.first_key / KV_TILE] = tile.k.finite;
        self.add_to_keys(simd, needs);
    }

    fn split_done(&mut self, simd: S) {
        if self.several && std::mem::take(&mut self.any_seen) {
            simd.call(AddAndClear { from: self.panels.acc, to: self.panels.total });
            self.panels.squares_total.iter_mut().zip(&mut *self.panels.squares).for_each(|(to, from)| *to += std::mem::take(from));
        }
    }
}

impl<E: Storage> Differentiate<'_, '_, '_, E> {
    /// No gradients of these lanes on some keys of the tile.
    fn clear(&mut self, lanes: Range<usize>, keys: Range<usize>) {
        for key in keys {
            let at = (key - self.seen.start) * self.ld;
            self.panels.p[at..][lanes.clone()].fill(E::Real::ZERO);
            self.panels.ds[at..][lanes.clone()].fill(E::Real::ZERO);
        }
    }

    /// Note which pairs of a panel are visible, where non-finite elements make that matter.
    fn care<S: Simd<T = E::Real>>(&mut self, simd: S, tile: &mut KvTile<'_, '_, E>, need: &Need, scores: &[S::T]) -> bool {
        let panels = &mut *self.panels;
        let non_finite = !panels.non_finite_d_out.is_empty()
            || !panels.non_finite_q.is_empty()
            || panels.delta[need.panel.rows()].iter().any(|x| !x.is_finite());
        let care = non_finite || tile.k.needs_care(simd, need);
        if care {
            panels.visible.push((need.panel, need.keys.clone(), tile.scorer.visible(simd, need, scores)));
        }
        care
    }

    /// `dq += K^T . ds`
    fn add_to_queries<S: Simd<T = E::Real>>(&mut self, simd: S, tile: &mut KvTile<'_, '_, E>, need: &Need) {
        let (ld, Panel { start, rows, width }, dims) = (self.ld, need.panel, self.plan.dims.head_dim);
        let at = (need.keys.start - self.seen.start) * ld + start;
        // Sums are only added to.
        let (panels, ones) = (&mut *self.panels, &[E::Real::ONE; MAX_PANEL]);
        let (ds, acc) = (&panels.ds[at..], &mut panels.acc[start * dims..][..width * dims]);
        let care = tile.k.needs_care(simd, need);
        if S::TILES {
            let first = need.keys.start % KV_TILE;
            let (values, keys, memory) = (tile.k.transposed(simd, care), first..first + need.keys.len(), &mut *panels.tiles);
            by_width!(S, width, NR => {
                simd.call(AddTileProducts::<_, NR> { values, dims, keys, weights: ds, ld, alpha: ones, memory, acc });
            });
        } else {
            let k = if care { tile.k.zero_non_finite(simd, &need.keys) } else { tile.k.rows(simd, &need.keys) };
            add_products(simd, k, ds, ld, ones, acc);
        }
        if !care {
            return;
        }
        let (_, _, visible) = &panels.visible[panels.visible.len() - 1];
        for x in tile.k.non_finite(&need.keys) {
            let i = x.key - need.keys.start;
            for lane in (0..rows).filter(|lane| visible[i] >> lane & 1 == 1) {
                acc[x.dim * width + lane] += ds[i * ld + lane] * x.value;
            }
        }
    }

    /// `dv += p . d_out` and `dk += ds . q` for the keys of a tile.
    fn add_to_keys<S: Simd<T = E::Real>>(&mut self, simd: S, needs: &[Need]) {
        let (d, ld, seen, panels) = (&self.plan.dims, self.ld, self.seen.clone(), &mut *self.panels);
        let (k_ld, v_ld) = (padded::<E::Real>(d.head_dim), padded::<E::Real>(d.value_dim));
        // Few enough that their rows of p stay in the first cache while all columns are gone through.
        let step = if S::TILES { ROW_KEYS } else { 4 * S::TILE_ROWS };
        let scale = E::Real::from_f64(self.plan.scale);
        for first in seen.clone().step_by(step) {
            let keys = first..seen.end.min(first + step);
            let mut here = needs.iter().filter(|n| n.keys.start < keys.end && keys.start < n.keys.end).map(|n| n.panel.rows());
            let Some(first) = here.next() else { continue };
            let rows = first.start..here.next_back().unwrap_or(first).end;
            let at = (keys.start - seen.start) * ld;
            for (numbers, from, pairs, factor, dims, row_ld, sums) in [
                (&panels.p[at..], self.d_out_rows, &*panels.d_out_pairs, E::Real::ONE, d.value_dim, v_ld, &mut *self.dv),
                (&panels.ds[at..], &*panels.q_rows, &*panels.q_pairs, scale, d.head_dim, k_ld, &mut *self.dk),
            ] {
                let sums = &mut sums[(keys.start - self.first_key) * row_ld..(keys.end - self.first_key) * row_ld];
                // SAFETY: once the sums are initialised, all of them hold values.
                let sums = unsafe { Destination::new(sums, self.initialised) };
                let (depth, keys) = (rows.clone(), keys.len());
                if S::TILES {
                    let memory = &mut *panels.tiles;
                    simd.call(AddTileRows { numbers, ld, depth, keys, from: pairs, factor, row_ld, memory, sums });
                } else {
                    simd.call(AddRows { numbers, ld, depth, keys, from, dims, row_ld, sums });
                }
            }
        }
        for (non_finite, weights, row_ld, sums) in
            [(&panels.non_finite_d_out, &*panels.p, v_ld, &mut *self.dv), (&panels.non_finite_q, &*panels.ds, k_ld, &mut *self.dk)]
        {
            for x in non_finite {
                let Some((panel, keys, visible)) = panels.visible.iter().find(|(panel, ..)| panel.rows().contains(&x.key)) else {
                    continue;
                };
                for (key, _) in keys.clone().zip(visible).filter(|(_, word)| *word >> (x.key - panel.start) & 1 == 1) {
                    // SAFETY: where something is hidden, the sums begin with zeros; else all keys of the tile were just written.
                    let sum = unsafe { sums[(key - self.first_key) * row_ld + x.dim].assume_init_mut() };
                    *sum += weights[(key - seen.start) * ld + x.key] * x.value;
                }
            }
        }
    }
}
