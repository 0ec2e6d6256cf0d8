//! The main loop: iterates over the key tiles that a query tile sees, computes the scores of every panel and calls a visitor.
//!
//! ```text
//! for each tile of KV_TILE keys that any row sees
//!   for each panel (one or two vectors of rows) that sees any of it
//!     scores = K-tile . q, scale, softcap, biases, masks, top-k      scores.rs, decode.rs
//!     visitor.panel(scores)
//!   visitor.tile_done
//! at the end of a split: visitor.split_done
//! ```
//!
//! Forward, decode, backward, top-k, weights, maps and statistics are visitors. Copying, masking and skipping are decided here and in
//! [`operand`]. Visitors contain no vector code and are called once per panel and tile, for a thousand scores or more.

pub(crate) mod decode;
pub(crate) mod dropout;
pub(crate) mod operand;
pub(crate) mod scores;
pub(crate) mod tiles;
pub(crate) mod tiling;
pub(crate) mod top_k;

use operand::Operand;
use regard_simd::scratch::Scratch;
use regard_simd::{Simd, Storage};
use scores::{Scorer, Stage};
use std::ops::Range;
use tiling::{KV_TILE, Need};

/// Consumer of the scores.
pub(crate) trait Visitor<S: Simd, E: Storage<Real = S::T>> {
    /// The stage of the scores passed to `panel`; after [`Stage::Softcap`], [`KvTile::finish_scores`] completes them.
    fn stage(&self) -> Stage;
    /// Called before the panels of a key tile that some panel sees.
    fn begin(&mut self, _simd: S, _tile: &mut KvTile<'_, '_, E>, _needs: &[Need]) {}
    /// `scores[key * width + lane]` for the keys and rows of the need.
    fn panel(&mut self, simd: S, tile: &mut KvTile<'_, '_, E>, need: &Need, scores: &mut [S::T]);
    /// Called after the panels of a key tile.
    fn tile_done(&mut self, _simd: S, _tile: &KvTile<'_, '_, E>, _needs: &[Need]) {}
    /// Called at the end of a split, visible or not.
    fn split_done(&mut self, _simd: S) {}
}

/// The current key tile.
pub(crate) struct KvTile<'w, 'a, E: Storage> {
    pub(crate) scorer: &'w Scorer<'a, E>,
    pub(crate) keys: Range<usize>,
    pub(crate) k: Operand<'w, E>,
    /// The panels of the queries, `[dim][lane]`.
    pub(crate) queries: &'w [E::Real],
    addend: &'w mut [E::Real],
}

impl<E: Storage> KvTile<'_, '_, E> {
    /// Scores at [`Stage::Softcap`] become those of [`Stage::Masked`].
    pub(crate) fn finish_scores<S: Simd<T = E::Real>>(&mut self, simd: S, need: &Need, scores: &mut [E::Real]) {
        self.scorer.add_biases_and_mask(simd, need, self.addend, scores);
    }
}

/// Run the visitor over `keys`, in splits of `split` keys. The caller finishes a partial split at the end.
pub(crate) fn mainloop<S: Simd, E: Storage<Real = S::T>>(
    simd: S,
    scorer: &Scorer<'_, E>,
    keys: Range<usize>,
    split: usize,
    visitor: &mut dyn Visitor<S, E>,
) {
    if keys.is_empty() {
        return;
    }
    let mut memory = Scratch::take();
    let lengths = [scorer.queries_len::<S>(), Operand::copy_len(scorer.k), KV_TILE * 2 * S::LANES, scorer.addend_len::<S>()];
    let [queries, copy, scores, addend] = memory.slices(lengths);
    scorer.pack_queries(simd, queries);
    let k = Operand::new(scorer.k, scorer.plan.part.key, copy);
    let mut tile = KvTile { scorer, keys: 0..0, k, queries, addend };
    let mut needs = Vec::with_capacity(tiling::Q_TILE / S::LANES);
    let mut start = keys.start;
    while start < keys.end {
        let end = keys.end.min((start / KV_TILE + 1) * KV_TILE);
        tile.keys = start..end;
        scorer.find_needs::<S>(start..end, &mut needs);
        if !needs.is_empty() {
            tile.k.begin(start..end, None);
            visitor.begin(simd, &mut tile, &needs);
            let stage = visitor.stage();
            for need in &needs {
                let scores = &mut scores[..need.keys.len() * need.panel.width];
                scorer.dots(simd, tile.queries, &mut tile.k, need, stage, scores);
                if stage == Stage::Masked {
                    tile.finish_scores(simd, need, scores);
                }
                visitor.panel(simd, &mut tile, need, scores);
            }
            visitor.tile_done(simd, &tile, &needs);
        }
        if end.is_multiple_of(split) {
            visitor.split_done(simd);
        }
        start = end;
    }
}
