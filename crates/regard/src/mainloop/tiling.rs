//! Tiling: all tile constants and the names of tiles.
//!
//! ```text
//! query tile   up to 64 rows of one head, or of neighbouring heads with the same keys; a task
//! panel        one or two vectors of its rows, one row to a lane
//! key tile     128 keys, at fixed key numbers; the running softmax is brought up to date once per tile
//! split        2048 keys (forward) or 256 (backward), after which a fresh sum is begun; the sums are combined in order
//! ```

use crate::mask::{HeadPosition, TileCoverage};
use crate::plan::Plan;
use regard_simd::{Driver, Simd, Storage};
use std::ops::Range;

/// Keys per tile. The running softmax is brought up to date once per tile, so this number is part of the result's bits:
/// the same for every path and level. 128 keys make that cost 1 % at head_dim 64, and a tile's scores (16 KiB at
/// AVX-512) still leave room in a first-level cache.
pub(crate) const KV_TILE: usize = 128;

/// Keys after which a fresh running state is begun; the states are combined in order. Long rows can so be shared out
/// over threads without changing a bit.
pub const KV_SPLIT: usize = 16 * KV_TILE;

/// Keys whose share of dq is summed on its own, before it is added to that of the keys before. Part of the result's bits; long
/// rows can so be shared out over threads without changing any.
pub const GRADIENT_SPLIT: usize = 2 * KV_TILE;

/// Query rows that share a tile of K and V while it is in the cache.
pub const Q_TILE: usize = 64;

/// The same, widest first, in a forward pass of lanes that [multiply tiles](Simd::TILES), where the values of a tile are transposed once
/// for all its rows.
const WIDE_Q_TILES: [usize; 4] = [16 * Q_TILE, 8 * Q_TILE, 4 * Q_TILE, 2 * Q_TILE];

/// Elements of q, or of out, of a wide query tile at most: both stay in L2.
const WIDE_ELEMENTS: usize = 1 << 17;

/// Largest number of rows for which vectors run along the keys (see [`super::decode`]); with more, lanes are filled by rows.
pub(crate) const DECODE_ROWS: usize = 4;

/// Keys per coverage test within a partial tile.
pub(super) const MASK_STEP: usize = 32;

/// Rows of the widest panel: two vectors of 16.
pub(crate) const MAX_PANEL: usize = 32;

const _: () = assert!(KV_TILE <= crate::mask::MOST_KEYS && KV_TILE.is_multiple_of(MASK_STEP) && Q_TILE.is_multiple_of(MAX_PANEL));

/// `$call` with `$nr` the number of vectors (one or two) of a panel that is `$width` lanes wide.
macro_rules! by_width {
    ($lanes:ident, $width:expr, $nr:ident => $call:expr) => {
        if $width > $lanes::LANES {
            const $nr: usize = 2;
            $call
        } else {
            const $nr: usize = 1;
            $call
        }
    };
}
pub(crate) use by_width;

/// Rows of a task: `queries` of them from `first` on, in each of `heads` neighbouring query heads that read the same keys. Row `r` is query
/// `first + r % queries` of head `head + r / queries`. Batch entry and queries are counted in the whole (see
/// [`crate::plan::GlobalOffset`]).
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryTile {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) heads: usize,
    pub(crate) first: usize,
    pub(crate) queries: usize,
}

impl QueryTile {
    pub(crate) fn rows(&self) -> usize {
        self.heads * self.queries
    }

    /// (head, query) of a row.
    pub(crate) fn row(&self, r: usize) -> (usize, usize) {
        (self.head + r / self.queries, self.first + r % self.queries)
    }

    /// Where a row is in the tensors of the call: batch entry, head, query.
    pub(crate) fn place(&self, plan: &Plan<'_>, r: usize) -> [usize; 3] {
        let (head, query) = self.row(r);
        [self.batch - plan.part.batch, head, query - plan.part.query]
    }

    /// Cut a range of rows where the head changes: calls `f(position, queries, lane of the first)`.
    pub(crate) fn segments(&self, plan: &Plan<'_>, rows: Range<usize>, mut f: impl FnMut(&HeadPosition, Range<usize>, usize)) {
        let mut r = rows.start;
        while r < rows.end {
            let (head, query) = self.row(r);
            let count = (self.queries - r % self.queries).min(rows.end - r);
            f(&plan.position(self.batch, head), query..query + count, r - rows.start);
            r += count;
        }
    }

    /// A part of `keys` outside which none of the rows sees anything.
    pub(crate) fn key_range(&self, plan: &Plan<'_>, rows: Range<usize>, keys: Range<usize>) -> Range<usize> {
        if plan.mask().is_everything() {
            return keys;
        }
        let mut all: Option<Range<usize>> = None;
        self.segments(plan, rows, |at, queries, _| {
            let one = plan.mask().key_range(at, queries, keys.clone());
            if !one.is_empty() {
                all = Some(all.take().map_or(one.clone(), |a| a.start.min(one.start)..a.end.max(one.end)));
            }
        });
        all.unwrap_or(keys.start..keys.start)
    }

    pub(crate) fn coverage(&self, plan: &Plan<'_>, rows: Range<usize>, keys: Range<usize>) -> TileCoverage {
        if plan.mask().is_everything() {
            return TileCoverage::Full;
        }
        let mut all = None;
        self.segments(plan, rows, |at, queries, _| {
            let one = plan.mask().coverage(at, queries, keys.clone());
            all = Some(all.map_or(one, |a: TileCoverage| a.beside(one)));
        });
        all.unwrap_or(TileCoverage::Empty)
    }

    /// Bit `r` of `bits[j]`: the mask shows key `keys.start + j` to row `rows.start + r`.
    pub(crate) fn mask_bits<S: Simd>(&self, simd: S, plan: &Plan<'_>, rows: Range<usize>, keys: Range<usize>, bits: &mut [u32]) {
        let mut one = [0; KV_TILE];
        let one = &mut one[..keys.len()];
        bits.fill(0);
        self.segments(plan, rows, |at, queries, lane| {
            one.fill(u32::MAX >> (32 - queries.len()));
            plan.mask().and_bits(simd, at, queries, keys.clone(), one);
            bits.iter_mut().zip(&*one).for_each(|(b, o)| *b |= o << lane);
        });
    }
}

/// Rows `start..start + rows` of a query tile, in `width` lanes: one vector or two.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Panel {
    pub(crate) start: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

impl Panel {
    /// The panels of `rows` rows.
    pub(crate) fn all<S: Simd>(rows: usize) -> impl Iterator<Item = Self> {
        (0..rows).step_by(2 * S::LANES).map(move |start| Self::of_row(start, rows, S::LANES))
    }

    /// The panel of a row among `rows` rows, for vectors of `lanes` lanes.
    pub(crate) fn of_row(row: usize, rows: usize, lanes: usize) -> Self {
        let start = row / (2 * lanes) * (2 * lanes);
        let rows = (rows - start).min(2 * lanes);
        Self { start, rows, width: if rows <= lanes { lanes } else { 2 * lanes } }
    }

    /// Its rows within the tile.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.start..self.start + self.rows
    }

    /// Its lanes within those of the tile.
    pub(crate) fn lanes(&self) -> Range<usize> {
        self.start..self.start + self.width
    }
}

/// Lanes of whole panels for `rows` rows.
pub(crate) fn lanes<S: Simd>(rows: usize) -> usize {
    rows.next_multiple_of(2 * S::LANES)
}

/// What a panel needs of a tile of keys.
#[derive(Debug, Clone)]
pub(crate) struct Need {
    pub(crate) panel: Panel,
    /// Keys of the tile outside which it sees nothing.
    pub(crate) keys: Range<usize>,
    /// How much of these keys the mask shows.
    pub(crate) coverage: TileCoverage,
    /// Something beside the mask may hide keys: a bias, top-k.
    pub(crate) has_hiding_bias_or_top_k: bool,
}

impl Need {
    /// Every row of the panel sees all of the keys.
    pub(crate) fn sees_all(&self) -> bool {
        self.coverage == TileCoverage::Full && !self.has_hiding_bias_or_top_k
    }
}

/// Heads and queries of a query tile. Neighbouring heads that read the same keys share one where queries are few. A part
/// has the tiles of the whole: sums over queries are made of them.
pub(crate) fn tile_shape(plan: &Plan<'_>) -> (usize, usize) {
    let (n, group) = (plan.part.whole[2], plan.dims.group());
    let fit = (Q_TILE / n.max(1)).clamp(1, group.max(1));
    let heads = if n < Q_TILE / 2 { (1..=fit).rev().find(|h| group % h == 0).unwrap_or(1) } else { 1 };
    (heads, tile_queries(n))
}

/// Queries of a query tile in a call of `n` queries: tiles of equal size, in steps of 16.
pub fn tile_queries(n: usize) -> usize {
    equal_tiles(n, Q_TILE)
}

fn equal_tiles(n: usize, most: usize) -> usize {
    let tiles = n.div_ceil(most).max(1);
    n.div_ceil(tiles).next_multiple_of(16).clamp(1, n.max(1))
}

/// The query tiles of some rows, in order of batch entry, head and query.
pub(crate) fn query_tiles(plan: &Plan<'_>, rows: Range<usize>) -> Vec<QueryTile> {
    tiles_of_shape(plan, rows, tile_shape(plan))
}

/// The query tiles of all rows, for a forward pass whose results are those of each row alone: wide ones where that saves work, and there
/// are enough of them for the threads.
pub(crate) fn forward_tiles<E: Storage>(plan: &Plan<'_>) -> Vec<QueryTile> {
    struct MultipliesTiles;
    impl<T: regard_simd::Real> Driver<T> for MultipliesTiles {
        type Output = bool;
        fn run<S: Simd<T = T>>(self, _: S) -> bool {
            S::TILES
        }
    }
    let (d, (heads, queries)) = (plan.dims, tile_shape(plan));
    let enough = |most: &usize| {
        let fits = most * d.head_dim.max(d.value_dim) <= WIDE_ELEMENTS;
        fits && d.batch * d.heads_q * d.seq_q.div_ceil(*most) >= 4 * plan.threads()
    };
    let wide = (heads == 1 && E::dispatch_stored(plan.level, MultipliesTiles)).then(|| WIDE_Q_TILES.into_iter().find(enough)).flatten();
    tiles_of_shape(plan, 0..d.seq_q, (heads, wide.map_or(queries, |most| equal_tiles(d.seq_q, most))))
}

fn tiles_of_shape(plan: &Plan<'_>, rows: Range<usize>, (heads, queries): (usize, usize)) -> Vec<QueryTile> {
    let (d, part) = (plan.dims, plan.part);
    let mut tiles = Vec::new();
    for batch in 0..d.batch {
        for head in (0..d.heads_q).step_by(heads) {
            for first in rows.clone().step_by(queries) {
                let queries = queries.min(rows.end - first);
                tiles.push(QueryTile { batch: batch + part.batch, head, heads, first: first + part.query, queries });
            }
        }
    }
    tiles
}
