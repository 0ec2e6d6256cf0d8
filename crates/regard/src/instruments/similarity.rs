//! Similarity of heads.

use super::SoftmaxDenominators;
use super::weights::{Consumer, each_weight};
use crate::error::Result;
use crate::mainloop::scores::Scorer;
use crate::mainloop::tiling::{KV_TILE, Need, QueryTile};
use crate::plan::Plan;
use ndarray::{Array3, ArrayView4};
use regard_simd::{Real, Simd, Storage};

/// Similarity of the heads of a batch entry, each `[batch, heads_q, heads_q]`. NaN for a head with a row that a NaN or an infinity spoils.
#[derive(Debug, Clone)]
pub struct HeadSimilarity {
    /// Correlation of the weights of two heads, over the pairs that either may see: 1 for equal maps, about 0 for
    /// unrelated ones. (The cosine without centring measures how sharp the maps are, not how alike.)
    pub centred_cosine: Array3<f64>,
    /// Jensen-Shannon divergence of two heads' rows in nats, averaged over the rows in which both heads see a key: 0 for equal, ln 2 for
    /// disjoint; NaN where there is no such row.
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
    states: &SoftmaxDenominators<E::Real>,
) -> Result<HeadSimilarity> {
    let d = plan.dims;
    let heads = d.heads_q;
    let tasks: Vec<_> = (0..d.batch).flat_map(|b| (0..d.seq_q).step_by(QUERIES).map(move |first| (b, first))).collect();
    let parts = plan.for_tasks(tasks.clone(), |(batch, first)| {
        let queries = QUERIES.min(d.seq_q - first);
        let tile = |head| QueryTile { batch: batch + plan.part.batch, head, heads: 1, first: first + plan.part.query, queries };
        let scorers: Vec<_> = (0..heads).map(|head| Scorer::new(plan, &q, &k, tile(head)).with_cutoffs()).collect();
        let mut pairs = vec![PairSums::default(); heads * heads];
        // Of each pair of heads, query by query: only rows in which both see a key count.
        let mut divergences = vec![0.0; heads * heads * queries];
        let mut sees = vec![false; heads * queries];
        let mut maps = vec![0.0; heads * queries * KV_TILE];
        for start in (0..d.seq_kv).step_by(KV_TILE) {
            let keys = start..d.seq_kv.min(start + KV_TILE);
            for (scorer, map) in scorers.iter().zip(maps.chunks_exact_mut(queries * KV_TILE)) {
                map.fill(HIDDEN);
                each_weight(scorer, keys.clone(), states, &mut VisibleWeights { first: plan.part.key + start, map });
            }
            for (sees, row) in sees.iter_mut().zip(maps.chunks_exact(KV_TILE)) {
                *sees |= row.iter().any(|&x| x != HIDDEN);
            }
            for (a, b) in (0..heads).flat_map(|a| (a + 1..heads).map(move |b| (a, b))) {
                let pair = a * heads + b;
                for (query, divergence) in divergences[pair * queries..][..queries].iter_mut().enumerate() {
                    let row = |head: usize| &maps[(head * queries + query) * KV_TILE..][..KV_TILE];
                    *divergence += pairs[pair].add(row(a), row(b));
                }
            }
        }
        for (pair, sums) in pairs.iter_mut().enumerate() {
            for (query, &divergence) in divergences[pair * queries..][..queries].iter().enumerate() {
                // A NaN shows, whatever the other head sees.
                if divergence.is_nan() || [pair / heads, pair % heads].iter().all(|head| sees[head * queries + query]) {
                    sums.divergence += divergence;
                    sums.rows += 1.0;
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
        jensen_shannon: Array3::from_shape_fn(shape, |(b, i, j)| match pair(b, i, j).divergence() {
            _ if i == j => of_itself(b, i, 0.0),
            // Rounding may leave equal heads a hair below zero.
            mean if mean < 0.0 => 0.0,
            mean => mean,
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
        let visible = visible.expect("WANTS_VISIBLE");
        for ((key, line), bits) in need.keys.clone().zip(values.chunks_exact(need.panel.width)).zip(visible) {
            for ((lane, r), &w) in need.panel.rows().enumerate().zip(line) {
                if bits >> lane & 1 == 1 {
                    self.map[r * KV_TILE + key - self.first] = w.to_f64();
                }
            }
        }
    }
}

/// Running sums over the pairs of queries and keys that either of two heads sees.
#[derive(Debug, Clone, Copy, Default)]
struct PairSums {
    count: f64,
    a: f64,
    b: f64,
    aa: f64,
    bb: f64,
    ab: f64,
    /// Of the rows in which both heads see a key.
    divergence: f64,
    rows: f64,
}

impl PairSums {
    /// Add some keys of one query. Returned is their share of the row's Jensen-Shannon divergence.
    fn add(&mut self, a: &[f64], b: &[f64]) -> f64 {
        // x ln x, 0 at 0; NaN stays
        let xlnx = |x: f64| if x == 0.0 { 0.0 } else { x * x.ln() };
        let weight = |x: f64| if x == HIDDEN { 0.0 } else { x };
        let mut divergence = 0.0;
        for (&a, &b) in a.iter().zip(b).filter(|(a, b)| **a != HIDDEN || **b != HIDDEN) {
            let (a, b) = (weight(a), weight(b));
            self.merge(&Self { count: 1.0, a, b, aa: a * a, bb: b * b, ab: a * b, ..Self::default() });
            divergence += (xlnx(a) + xlnx(b)) / 2.0 - xlnx(f64::midpoint(a, b));
        }
        divergence
    }

    fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.a += other.a;
        self.b += other.b;
        self.aa += other.aa;
        self.bb += other.bb;
        self.ab += other.ab;
        self.divergence += other.divergence;
        self.rows += other.rows;
    }

    /// Mean over the rows that count; NaN where there are none.
    fn divergence(&self) -> f64 {
        self.divergence / self.rows
    }

    /// 0 where one of the maps does not vary.
    fn correlation(&self) -> f64 {
        let Self { count, a, b, aa, bb, ab, .. } = *self;
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
