//! The smallest case: fewer batches, heads, queries and keys, simple numbers, while the kernel is wrong in the same way.

use super::diagnose::Seen;
use super::problem::{Memory, Plane, Problem, Segment};

/// Calls that are spent on it.
const CALLS: usize = 60;

/// Runs a smaller problem; the result if the kernel is wrong in the same way.
type Still<'a> = &'a mut dyn FnMut(&Problem) -> Option<Seen>;

pub(super) fn shrink(seen: &Seen, still: Still<'_>) -> Seen {
    let mut best = seen.clone();
    let p = &seen.problem;
    if p.packed || p.paged || p.merge.is_some() || p.dropout > 0.0 || p.memory != Memory::Contiguous {
        return best;
    }
    let mut left = CALLS;
    loop {
        let sizes = Sizes::all(&best.problem);
        let tries = sizes.smaller(&best.problem);
        let mut moved = false;
        for kept in tries {
            if left == 0 {
                return best;
            }
            left -= 1;
            if let Some(seen) = still(&part(&best.problem, &kept)) {
                (best, moved) = (seen, true);
                break;
            }
        }
        if !moved {
            break;
        }
    }
    for round in [|x: f64| x.round(), |x: f64| (2.0 * x).round() / 2.0, |x: f64| (8.0 * x).round() / 8.0] {
        let mut simple = best.problem.clone();
        for x in simple.q.iter_mut().chain(&mut simple.k).chain(&mut simple.v).chain(simple.d_out.iter_mut().flatten()) {
            *x = round(*x);
        }
        if let Some(seen) = still(&simple) {
            return seen;
        }
    }
    best
}

/// What remains of a problem: batches, key heads, queries, keys.
struct Sizes {
    batches: Vec<usize>,
    groups: Vec<usize>,
    queries: Vec<usize>,
    keys: Vec<usize>,
}

impl Sizes {
    fn all(p: &Problem) -> Self {
        let s = p.segments[0];
        Self {
            batches: (0..p.segments.len()).collect(),
            groups: (0..p.heads[1]).collect(),
            queries: (0..s.n).collect(),
            keys: (0..s.m).collect(),
        }
    }

    fn smaller(&self, p: &Problem) -> Vec<Self> {
        let copy = || Self::all(p);
        let mut tries = Vec::new();
        let halves = |all: &[usize]| {
            let (first, second) = all.split_at(all.len() / 2);
            let mut cut = vec![first.to_vec(), second.to_vec(), all[1..].to_vec(), all[..all.len() - 1].to_vec()];
            cut.retain(|rest| !rest.is_empty() && rest.len() < all.len());
            cut
        };
        for batches in halves(&self.batches) {
            tries.push(Self { batches, ..copy() });
        }
        for groups in halves(&self.groups) {
            tries.push(Self { groups, ..copy() });
        }
        for queries in halves(&self.queries) {
            tries.push(Self { queries, ..copy() });
        }
        for keys in halves(&self.keys) {
            // Lengths and positions count keys from the front.
            if p.lengths.as_ref().is_none_or(|all| keys.len() >= all.iter().copied().max().unwrap_or(0) && keys[0] == 0) {
                tries.push(Self { keys, ..copy() });
            }
        }
        tries
    }
}

fn part(p: &Problem, kept: &Sizes) -> Problem {
    let group = p.heads[0] / p.heads[1];
    let heads: Vec<usize> = kept.groups.iter().flat_map(|g| g * group..(g + 1) * group).collect();
    let (n, m) = (kept.queries.len(), kept.keys.len());
    let take = |data: &[f64], rows: &[usize], of: &[usize], all: [usize; 3]| -> Vec<f64> {
        let [per_batch, count, width] = all;
        let mut out = Vec::new();
        for b in &kept.batches {
            for row in rows {
                for head in of {
                    let at = ((b * per_batch + row) * count + head) * width;
                    out.extend(&data[at..at + width]);
                }
            }
        }
        out
    };
    let s = p.segments[0];
    let queries = |data: &[f64], width: usize| take(data, &kept.queries, &heads, [s.n, p.heads[0], width]);
    let keys = |data: &[f64], width: usize| take(data, &kept.keys, &kept.groups, [s.m, p.heads[1], width]);
    let plane = |plane: &Plane| {
        let pick = |axis: usize, kept: &[usize]| if plane.shape[axis] == 1 { vec![0] } else { kept.to_vec() };
        let axes = [pick(0, &kept.batches), pick(1, &heads), pick(2, &kept.queries), pick(3, &kept.keys)];
        let mut data = Vec::new();
        for &b in &axes[0] {
            for &h in &axes[1] {
                for &i in &axes[2] {
                    data.extend(axes[3].iter().map(|&j| plane.at([b, h, i, j])));
                }
            }
        }
        Plane { shape: [0, 1, 2, 3].map(|axis| axes[axis].len()), data }
    };
    let of_heads = |all: &Vec<f64>| heads.iter().map(|h| all[*h]).collect();
    Problem {
        segments: (0..kept.batches.len()).map(|b| Segment { q0: b * n, n, k0: b * m, m }).collect(),
        heads: [heads.len(), kept.groups.len()],
        q: queries(&p.q, p.dims[0]),
        k: keys(&p.k, p.dims[0]),
        v: keys(&p.v, p.dims[1]),
        mask: p.mask.as_ref().map(plane),
        bias: p.bias.as_ref().map(plane),
        alibi: p.alibi.as_ref().map(of_heads),
        sinks: p.sinks.as_ref().map(of_heads),
        lengths: p.lengths.as_ref().map(|all| kept.batches.iter().map(|b| all[*b]).collect()),
        k_scale: p.k_scale.as_ref().map(|all| keys(all, 1)),
        d_out: p.d_out.as_ref().map(|all| queries(all, p.dims[1])),
        ..p.clone()
    }
}
