//! How alike the heads are.

use super::RowStates;
use super::weights::{Consumer, each_weight};
use crate::error::Result;
use crate::plan::Plan;
use crate::walk::scores::Scorer;
use crate::walk::tiling::{KV_TILE, Need, QueryTile};
use ndarray::{Array3, ArrayView4};
use regard_simd::{Real, Simd, Storage};

/// How alike the heads of a batch entry are, each `[batch, heads_q, heads_q]`. NaN for a head with a row that a NaN or an infinity spoils.
#[derive(Debug, Clone)]
pub struct HeadSimilarity {
    /// Correlation of the weights of two heads, over the pairs that either may see: 1 for equal maps, about 0 for
    /// unrelated ones. (The cosine without centring measures how sharp the maps are, not how alike.)
    pub centred_cosine: Array3<f64>,
    /// Jensen-Shannon divergence of two heads' rows in nats, averaged over the rows: 0 for equal, ln 2 for disjoint.
    pub jensen_shannon: Array3<f64>,
}

/// Queries of a task.
const QUERIES: usize = 16;

/// What a map has in the place of a hidden pair: no weight.
const HIDDEN: f64 = -1.0;

pub(crate) fn head_similarity<E: Storage>(
    plan: &Plan<'_>,
    q: ArrayView4<'_, E>,
    k: ArrayView4<'_, E>,
    states: &RowStates<E::Real>,
) -> Result<HeadSimilarity> {
    let d = plan.dims;
    let heads = d.heads_q;
    let tasks: Vec<_> = (0..d.batch).flat_map(|b| (0..d.seq_q).step_by(QUERIES).map(move |first| (b, first))).collect();
    let parts = plan.for_tasks(tasks.clone(), |(batch, first)| {
        let queries = QUERIES.min(d.seq_q - first);
        let tile = |head| QueryTile { batch: batch + plan.part.batch, head, heads: 1, first: first + plan.part.query, queries };
        let scorers: Vec<_> = (0..heads).map(|head| Scorer::new(plan, &q, &k, tile(head)).with_cutoffs()).collect();
        let mut pairs = vec![PairSums::default(); heads * heads];
        let mut maps = vec![0.0; heads * queries * KV_TILE];
        for start in (0..d.seq_kv).step_by(KV_TILE) {
            let keys = start..d.seq_kv.min(start + KV_TILE);
            for (scorer, map) in scorers.iter().zip(maps.chunks_exact_mut(queries * KV_TILE)) {
                map.fill(HIDDEN);
                each_weight(scorer, keys.clone(), states, &mut VisibleWeights { first: plan.part.key + start, map });
            }
            for a in 0..heads {
                for b in a + 1..heads {
                    let of = |head: usize| &maps[head * queries * KV_TILE..][..queries * KV_TILE];
                    pairs[a * heads + b].add(of(a), of(b));
                }
            }
        }
        pairs
    })?;
    let mut sums = vec![PairSums::default(); d.batch * heads * heads];
    for ((batch, _), pairs) in tasks.into_iter().zip(parts) {
        for (sum, part) in sums[batch * heads * heads..].iter_mut().zip(pairs) {
            sum.merge(&part);
        }
    }
    let spoiled = |b: usize, h: usize| states.row_sum.slice(ndarray::s![b, h, ..]).iter().any(|x| x.to_f64().is_nan());
    let pair = |b: usize, i: usize, j: usize| &sums[(b * heads + i.min(j)) * heads + i.max(j)];
    let of_itself = |b: usize, i: usize, value: f64| if spoiled(b, i) { f64::NAN } else { value };
    let shape = [d.batch, heads, heads];
    Ok(HeadSimilarity {
        centred_cosine: Array3::from_shape_fn(shape, |(b, i, j)| if i == j { of_itself(b, i, 1.0) } else { pair(b, i, j).correlation() }),
        jensen_shannon: Array3::from_shape_fn(shape, |(b, i, j)| {
            let mean = pair(b, i, j).0[6] / d.seq_q.max(1) as f64;
            match () {
                () if i == j => of_itself(b, i, 0.0),
                // Rounding may leave equal heads a hair below zero.
                () if mean < 0.0 => 0.0,
                () => mean,
            }
        }),
    })
}

/// Weights of one tile, `[query][key]`, hidden pairs left as they are.
struct VisibleWeights<'m> {
    first: usize,
    map: &'m mut [f64],
}

impl<T: Real> Consumer<T> for VisibleWeights<'_> {
    const WANTS_VISIBLE: bool = true;

    fn take<S: Simd<T = T>>(&mut self, _: S, need: &Need, values: &[T], visible: Option<&[u32; KV_TILE]>) {
        let visible = visible.expect("it was wanted");
        for ((key, line), bits) in need.keys.clone().zip(values.chunks_exact(need.panel.width)).zip(visible) {
            for ((lane, r), &w) in need.panel.rows().enumerate().zip(line) {
                if bits >> lane & 1 == 1 {
                    self.map[r * KV_TILE + key - self.first] = w.to_f64();
                }
            }
        }
    }
}

/// Running sums over the pairs of two heads: how many, a, b, a a, b b, a b, and the rows' Jensen-Shannon divergences.
#[derive(Debug, Clone, Default)]
struct PairSums([f64; 7]);

impl PairSums {
    fn add(&mut self, a: &[f64], b: &[f64]) {
        // x ln x, 0 at 0; NaN stays
        let xlnx = |x: f64| if x == 0.0 { 0.0 } else { x * x.ln() };
        let weight = |x: f64| if x == HIDDEN { 0.0 } else { x };
        for (&a, &b) in a.iter().zip(b).filter(|(a, b)| **a != HIDDEN || **b != HIDDEN) {
            let (a, b) = (weight(a), weight(b));
            self.merge(&Self([1.0, a, b, a * a, b * b, a * b, (xlnx(a) + xlnx(b)) / 2.0 - xlnx(f64::midpoint(a, b))]));
        }
    }

    fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(to, x)| *to += x);
    }

    /// 0 where one of the maps does not vary.
    fn correlation(&self) -> f64 {
        let [count, a, b, aa, bb, ab, _] = self.0;
        let n = count.max(1.0);
        let (va, vb) = (aa - a * a / n, bb - b * b / n);
        // What rounding leaves of a constant map is no variation.
        let flat = |variance: f64, squares: f64| variance <= 1e-13 * squares;
        match () {
            () if va.is_nan() || vb.is_nan() => f64::NAN,
            () if flat(va, aa) || flat(vb, bb) => 0.0,
            () => (ab - a * b / n) / (va * vb).sqrt(),
        }
    }
}
