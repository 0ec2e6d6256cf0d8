//! What a forward pass over several ranks will take: its schedule, played through piece by piece with the speed of a rank's arithmetic and of its network.

use crate::error::{Error, Result};
use crate::files::{Sharing, greatest_divisor};
use crate::stream::{AHEAD, READY};
use crate::ways::{Ways, after};
use regard::Attention;
use std::ops::Range;

/// What is to be attended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Tokens of the whole.
    pub tokens: usize,
    /// Query heads.
    pub heads_q: usize,
    /// Key/value heads.
    pub heads_kv: usize,
    /// Dimensions of a head, of keys and of values alike.
    pub dim: usize,
    /// Bytes of a number.
    pub bytes: usize,
    /// Keys after a query are hidden.
    pub causal: bool,
}

/// What there is to do it with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// How many.
    pub ranks: usize,
    /// Multiplications and additions per second of a rank, with all of its threads.
    pub rate: f64,
    /// Bytes per second from a rank to another, each way.
    pub bandwidth: f64,
    /// Seconds that a message is on its way, however short.
    pub latency: f64,
}

/// What will come of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Groups of heads, each with its share of the ranks.
    pub head_groups: usize,
    /// From the first piece to the last row.
    pub seconds: f64,
    /// What arithmetic alone would take, shared out evenly, as a part of that.
    pub efficiency: f64,
    /// Bytes that the rank with most receives.
    pub received: f64,
    /// Part of the time in which the busiest link is in use.
    pub link: f64,
    /// Bytes of memory of the rank with most.
    pub memory: f64,
}

/// Bytes of memory that a rank takes before it has any token.
const PROGRAM: usize = 32 << 20;

/// Pairs of these queries and keys that are visible.
fn pairs(queries: &Range<usize>, keys: &Range<usize>, causal: bool) -> f64 {
    if !causal {
        return (queries.len() * keys.len()) as f64;
    }
    // Of each query: keys up to it. Rows before the keys see none, those after them all.
    let partial = queries.start.max(keys.start)..queries.end.min(keys.end);
    let full = queries.end.saturating_sub(queries.start.max(keys.end));
    let rising = if partial.is_empty() { 0 } else { partial.len() * (partial.start - keys.start + 1 + partial.end - keys.start) / 2 };
    (full * keys.len() + rising) as f64
}

/// Play it through.
///
/// # Errors
/// [`Error::Mesh`] and [`Error::Partition`] for ranks, heads and blocks that do not fit.
pub fn forecast(size: &Size, cluster: &Cluster, sharing: Sharing, head_groups: Option<usize>) -> Result<Forecast> {
    let Size { tokens, heads_q, heads_kv, dim, bytes, causal } = *size;
    let groups = head_groups.unwrap_or_else(|| greatest_divisor(cluster.ranks, heads_kv));
    if groups == 0 || ![cluster.ranks, heads_q, heads_kv].iter().all(|count| count.is_multiple_of(groups)) {
        return Err(Error::Mesh { groups, ranks: cluster.ranks, heads: heads_kv });
    }
    let (ranks, heads_q, heads_kv) = (cluster.ranks / groups, heads_q / groups, heads_kv / groups);
    let partition = sharing.partition(tokens, ranks)?;
    // Two products, of a multiplication and an addition each.
    let seconds_of = |pairs: f64| pairs * (4 * dim * heads_q) as f64 / cluster.rate;
    let row = (2 * dim * heads_kv * bytes) as f64;
    let blocks: Vec<Vec<_>> = (0..ranks).map(|rank| partition.blocks_of_rank(rank).collect()).collect();
    let attention = if causal { Attention::new().causal() } else { Attention::new() };
    let ways = Ways::new(&attention, [1, 1, tokens, tokens], &partition)?;
    // Of every rank: when the last piece was handed on, taken by the arithmetic, and done with; when its link is free; how long that was in use.
    let (mut relayed, mut done, mut free, mut used) = (vec![0.0f64; ranks], vec![0.0f64; ranks], vec![0.0f64; ranks], vec![0.0f64; ranks]);
    let mut started = vec![[0.0f64; READY + 1]; ranks];
    // When there was room for the pieces to come.
    let mut room = vec![[0.0f64; AHEAD]; ranks];
    let (mut largest, mut received) = (0, vec![0; ranks]);
    for i in 0..ways.len() {
        let (way, (keys, _)) = (ways.way(i), ways.piece(i));
        let hop = keys.len() as f64 * row / cluster.bandwidth;
        largest = largest.max(keys.len());
        let mut arrives = vec![0.0f64; way.len()];
        for (place, &r) in way.iter().enumerate() {
            let here = relayed[r].max(arrives[place]);
            let mut handed = here;
            for next in after(place, way.len()) {
                handed = handed.max(room[way[next]][0] + cluster.latency);
                let sent = handed.max(free[r]) + hop;
                (free[r], used[r], arrives[next]) = (sent, used[r] + hop, sent + cluster.latency);
            }
            let work = blocks[r].iter().map(|queries| pairs(queries, &keys, causal)).sum();
            let start = here.max(done[r]);
            done[r] = start + seconds_of(work);
            // It lies ready until the one before it is taken.
            relayed[r] = handed.max(started[r][READY - 1]);
            started[r].rotate_right(1);
            started[r][0] = start;
            if place > 0 {
                received[r] += keys.len();
                room[r].rotate_left(1);
                room[r][AHEAD - 1] = relayed[r];
            }
        }
    }
    let seconds = done.iter().copied().fold(0.0, f64::max);
    let all = seconds_of(pairs(&(0..tokens), &(0..tokens), causal)) / ranks as f64;
    let most = (0..ranks).map(|rank| partition.count(rank)).max().unwrap_or(0);
    // Its tokens and results, the states of its rows, pieces: on their way, ready, and in work, and the program.
    let number = bytes.max(4);
    let of_token = 2 * heads_kv * dim * bytes + heads_q * (2 * dim * bytes + 2 * (dim + 2) * number);
    let memory = most * of_token + if ranks > 1 { (AHEAD + READY + 4) * largest * 2 * heads_kv * dim * bytes } else { 0 } + PROGRAM;
    let busiest = used.iter().copied().fold(0.0, f64::max);
    Ok(Forecast {
        head_groups: groups,
        seconds,
        efficiency: if seconds > 0.0 { all / seconds } else { 1.0 },
        received: received.into_iter().max().unwrap_or(0) as f64 * row,
        link: if seconds > 0.0 { busiest / seconds } else { 0.0 },
        memory: memory as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { tokens: 8192, heads_q: 4, heads_kv: 2, dim: 64, bytes: 4, causal: true };
    const CLUSTER: Cluster = Cluster { ranks: 4, rate: 1e11, bandwidth: 1e9, latency: 1e-5 };

    #[test]
    fn pairs_are_those_that_are_counted() {
        for (queries, keys) in [(0..10, 0..10), (5..9, 0..20), (3..30, 7..12), (0..4, 8..9), (20..25, 3..11), (6..6, 0..4)] {
            let count = queries.clone().flat_map(|q| keys.clone().filter(move |&k| k <= q)).count();
            assert_eq!(pairs(&queries, &keys, true), count as f64, "{queries:?} {keys:?}");
            assert_eq!(pairs(&queries, &keys, false), (queries.len() * keys.len()) as f64);
        }
    }

    #[test]
    fn alone_it_is_the_arithmetic() {
        let alone = forecast(&SIZE, &Cluster { ranks: 1, ..CLUSTER }, Sharing::Snake(None), None).unwrap();
        let expected = 8192.0 * 8193.0 / 2.0 * (4 * 64 * 4) as f64 / 1e11;
        assert!((alone.seconds / expected - 1.0).abs() < 1e-9 && (alone.efficiency - 1.0).abs() < 1e-9, "{alone:?}");
        assert_eq!((alone.received, alone.link), (0.0, 0.0));
    }

    /// Two ranks, one piece each, no mask: the second piece of rank 1 is there before rank 0 has done its own, or is waited for.
    #[test]
    fn two_ranks_by_hand() {
        let size = Size { tokens: 512, causal: false, ..SIZE };
        let cluster = Cluster { ranks: 2, ..CLUSTER };
        let work = 256.0 * 256.0 * (4 * 64 * 4) as f64 / 1e11;
        let hop = 256.0 * (2 * 64 * 2 * 4) as f64 / 1e9 + 1e-5;
        let got = forecast(&size, &cluster, Sharing::Contiguous, Some(1)).unwrap();
        // Rank 1 has the first piece after it has asked, and a hop; it hands on its own at once, and does both; rank 0 does its own meanwhile.
        let first = 1e-5 + hop;
        let expected = (first + 2.0 * work).max((first + hop).max(work) + work);
        assert!((got.seconds / expected - 1.0).abs() < 1e-9, "{got:?}, {expected}");
    }

    #[test]
    fn faster_is_never_slower_and_heads_come_first() {
        let mut last = f64::INFINITY;
        for bandwidth in [1e7, 1e8, 1e9, 1e10, 1e12] {
            let now = forecast(&SIZE, &Cluster { bandwidth, ..CLUSTER }, Sharing::Snake(None), Some(1)).unwrap();
            assert!(now.seconds <= last && now.efficiency <= 1.0 + 1e-9 && now.link <= 1.0 + 1e-9, "{now:?}");
            last = now.seconds;
        }
        let slow = Cluster { bandwidth: 1e7, ..CLUSTER };
        let [one, two] = [Some(1), None].map(|groups| forecast(&SIZE, &slow, Sharing::Snake(None), groups).unwrap());
        assert_eq!(two.head_groups, 2);
        assert!(two.seconds < one.seconds && two.received < one.received, "{one:?} {two:?}");
        assert!(matches!(forecast(&SIZE, &CLUSTER, Sharing::Contiguous, Some(3)), Err(Error::Mesh { .. })));
    }
}
