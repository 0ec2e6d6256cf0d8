//! Column sums: the total weight of each key.

use super::SoftmaxDenominators;
use super::weights::{Consumer, each_weight};
use crate::arrays::filled;
use crate::error::Result;
use crate::mainloop::scores::Scorer;
use crate::mainloop::tiling::{KV_SPLIT, KV_TILE, Need, query_tiles};
use crate::plan::Plan;
use ndarray::{Array3, ArrayView4, Axis};
use regard_simd::{Real, Simd, Storage};

/// Sums over all rows, `[batch, heads_q, seq_kv]`.
pub(crate) fn column_sums<E: Storage>(
    plan: &Plan<'_>,
    q: ArrayView4<'_, E>,
    k: ArrayView4<'_, E>,
    states: &SoftmaxDenominators<E::Real>,
) -> Result<Array3<E::Real>> {
    let d = plan.dims;
    let scorers = plan.for_tasks(query_tiles(plan, 0..plan.dims.seq_q), |tile| Scorer::new(plan, &q, &k, tile).with_cutoffs())?;
    // Each task owns some keys of some heads, and goes through all of their rows in order.
    let owner = |scorer: &Scorer<'_, E>| (scorer.tile.batch, scorer.tile.head);
    let owners: Vec<&[Scorer<'_, E>]> = scorers.chunk_by(|a, b| owner(a) == owner(b)).collect();
    let tasks: Vec<_> = owners.into_iter().flat_map(|o| (0..d.seq_kv).step_by(KV_SPLIT).map(move |first| (o, first))).collect();
    let sums = plan.for_tasks(tasks.clone(), |(scorers, first)| {
        let keys = first..d.seq_kv.min(first + KV_SPLIT);
        let mut columns = Columns { first: plan.part.key + first, queries: 0, sums: vec![vec![0.0; keys.len()]; scorers[0].tile.heads] };
        for scorer in scorers {
            columns.queries = scorer.tile.queries;
            each_weight(scorer, keys.clone(), states, &mut columns);
        }
        columns.sums
    })?;
    let mut columns = filled("column sums", [d.batch, d.heads_q, d.seq_kv, 1], E::Real::ZERO)?.remove_axis(Axis(3));
    for ((scorers, first), sums) in tasks.into_iter().zip(sums) {
        let [batch, head, _] = scorers[0].tile.place(plan, 0);
        for (h, sums) in sums.into_iter().enumerate() {
            for (i, x) in sums.into_iter().enumerate() {
                columns[[batch, head + h, first + i]] = E::Real::from_f64(x);
            }
        }
    }
    Ok(columns)
}

/// Sums over the rows, one per key and head.
struct Columns {
    first: usize,
    queries: usize,
    sums: Vec<Vec<f64>>,
}

impl<T: Real> Consumer<T> for Columns {
    fn take<S: Simd<T = T>>(&mut self, _: S, need: &Need, values: &[T], _: Option<&[u32; KV_TILE]>) {
        for (key, line) in need.keys.clone().zip(values.chunks_exact(need.panel.width)) {
            for (r, &w) in need.panel.rows().zip(line) {
                self.sums[r / self.queries][key - self.first] += w.to_f64();
            }
        }
    }
}
