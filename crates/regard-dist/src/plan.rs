//! Forecast of a forward pass over several ranks: its schedule is simulated piece by piece, with the speed of a rank's arithmetic and of
//! its network.

use crate::error::{Error, Result};
use crate::files::{Sharing, greatest_divisor, keys_at_once, rows_at_once};
use crate::partition::{Block, Partition};
use crate::routes::{Routes, children};
use crate::stream::{AHEAD, READY};
use regard::Attention;
use std::ops::Range;

/// The size of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Tokens.
    pub tokens: usize,
    /// Query heads.
    pub heads_q: usize,
    /// Key/value heads.
    pub heads_kv: usize,
    /// Dimensions of a head, of keys as of values.
    pub dim: usize,
    /// Bytes of an element.
    pub bytes: usize,
    /// Keys after a query are hidden.
    pub causal: bool,
}

/// The machines of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// Number of ranks.
    pub ranks: usize,
    /// Multiplications and additions per second of a rank, with all of its threads.
    pub rate: f64,
    /// Bytes per second from a rank to another, each way.
    pub bandwidth: f64,
    /// Seconds that the shortest message takes.
    pub latency: f64,
}

/// The forecast of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Groups of heads, each with its share of the ranks.
    pub head_groups: usize,
    /// Seconds from the first piece to the last row.
    pub seconds: f64,
    /// The fraction of it that evenly shared arithmetic alone would take.
    pub efficiency: f64,
    /// The most bytes that a rank receives.
    pub received: f64,
    /// The fraction of the time in which the busiest link is in use.
    pub link: f64,
    /// The most bytes of memory of a rank.
    pub memory: f64,
}

/// Bytes of memory of a rank without tokens.
const PROGRAM: f64 = (32 << 20) as f64;

/// The most tokens of a plan.
pub const MOST_TOKENS: usize = 1 << 32;
/// The most heads of a plan.
pub const MOST_HEADS: usize = 1 << 16;
/// The most dimensions of a head of a plan.
pub const MOST_DIM: usize = 1 << 16;

/// Blocks whose visibility costs as much as one step of the simulation.
const BLOCKS_PER_STEP: f64 = 32.0;

/// The most steps of a simulation: some seconds, and a byte of memory for each.
const STEPS: f64 = (1u64 << 27) as f64;

/// Visible pairs of these queries and keys; their number may exceed that of any integer.
fn pairs(queries: &Range<usize>, keys: &Range<usize>, causal: bool) -> f64 {
    let all = |queries: usize| queries as f64 * keys.len() as f64;
    if !causal {
        return all(queries.len());
    }
    // A query sees the keys up to its place: rows before the keys see none, those after them all.
    let partial = queries.start.max(keys.start)..queries.end.min(keys.end);
    let full = queries.end.saturating_sub(queries.start.max(keys.end));
    let rising =
        if partial.is_empty() { 0.0 } else { partial.len() as f64 * (partial.start + 1 + partial.end - 2 * keys.start) as f64 / 2.0 };
    all(full) + rising
}

/// The queries of a rank.
struct Queries {
    blocks: Vec<Range<usize>>,
    /// The number of queries from each block on, and 0 after the last.
    from: Vec<usize>,
}

impl Queries {
    fn new(partition: &Partition) -> Vec<Self> {
        let mut all: Vec<_> = (0..partition.ranks()).map(|_| Self { blocks: Vec::new(), from: vec![0] }).collect();
        for Block { tokens, rank } in partition.blocks() {
            all[*rank].blocks.push(tokens.clone());
        }
        for Self { blocks, from } in &mut all {
            for block in blocks.iter().rev() {
                from.push(from[from.len() - 1] + block.len());
            }
            from.reverse();
        }
        all
    }

    /// Visible pairs of them and these keys, which lie within one block.
    fn pairs(&self, keys: &Range<usize>, causal: bool) -> f64 {
        if !causal {
            return self.from[0] as f64 * keys.len() as f64;
        }
        let after = self.blocks.partition_point(|block| block.start < keys.end);
        let here = after.checked_sub(1).map_or(0.0, |i| pairs(&self.blocks[i], keys, causal));
        here + self.from[after] as f64 * keys.len() as f64
    }
}

/// Sizes whose products do not overflow, and a schedule whose simulation ends soon.
fn check_size(size: &Size, sharing: Sharing, ranks: usize) -> Result<()> {
    let Size { tokens, heads_q, dim, .. } = *size;
    for (what, got, most, requirement) in [
        ("the number of tokens", tokens, MOST_TOKENS, "at most 2^32"),
        ("the number of heads", heads_q, MOST_HEADS, "at most 65536"),
        ("the number of dimensions", dim, MOST_DIM, "at most 65536"),
    ] {
        if got > most {
            return Err(Error::Partition { what, got, requirement });
        }
    }
    sharing.partition(0, ranks)?;
    if ranks == 1 {
        return Ok(());
    }
    let (blocks, pieces) = sharing.counts(tokens, ranks);
    let steps = pieces as f64 * (ranks as f64 + blocks as f64 / BLOCKS_PER_STEP);
    if steps > STEPS {
        return Err(Error::Plan { pieces, ranks });
    }
    Ok(())
}

/// Simulate a job.
///
/// # Errors
/// [`Error::Mesh`] and [`Error::Partition`] for ranks, heads and blocks that do not fit or are too many, [`Error::Plan`] where the
/// simulation would take too long.
pub fn forecast(size: &Size, cluster: &Cluster, sharing: Sharing, head_groups: Option<usize>) -> Result<Forecast> {
    let Size { tokens, heads_q, heads_kv, dim, bytes, causal } = *size;
    let groups = head_groups.unwrap_or_else(|| greatest_divisor(cluster.ranks, heads_kv));
    if groups == 0 || ![cluster.ranks, heads_q, heads_kv].iter().all(|count| count.is_multiple_of(groups)) {
        return Err(Error::Mesh { groups, ranks: cluster.ranks, heads: heads_kv });
    }
    let (ranks, heads_q, heads_kv) = (cluster.ranks / groups, heads_q / groups, heads_kv / groups);
    check_size(size, sharing, ranks)?;
    // Two matrix products, each with a multiplication and an addition per pair and dimension.
    let seconds_of = |pairs: f64| pairs * 4.0 * dim as f64 * heads_q as f64 / cluster.rate;
    let all = seconds_of(pairs(&(0..tokens), &(0..tokens), causal)) / ranks as f64;
    let real = bytes.max(4);
    // The states of a row: of the current split of the keys, and of those before it.
    let states = (heads_q * 2 * (dim + 2) * real) as f64;
    if ranks == 1 {
        // Some rows at a time, and some keys; the others stay in their files.
        let piece = keys_at_once(heads_kv, [dim; 2], bytes).min(tokens) * heads_kv * 2 * dim * bytes;
        let memory = rows_at_once(heads_q, [dim; 2], real).min(tokens) as f64 * states + piece as f64 + PROGRAM;
        return Ok(Forecast { head_groups: groups, seconds: all, efficiency: 1.0, received: 0.0, link: 0.0, memory });
    }
    let partition = sharing.partition(tokens, ranks)?;
    let row = 2.0 * dim as f64 * heads_kv as f64 * bytes as f64;
    let queries = Queries::new(&partition);
    let attention = if causal { Attention::new().causal() } else { Attention::new() };
    let routes = Routes::new(&attention, [1, 1, tokens, tokens], &partition)?;
    // By rank: when the last piece was relayed and computed, when its link is free, and how long that was in use.
    let (mut relayed, mut done, mut free, mut used) = (vec![0.0f64; ranks], vec![0.0f64; ranks], vec![0.0f64; ranks], vec![0.0f64; ranks]);
    let mut started = vec![[0.0f64; READY + 1]; ranks];
    // When credit was sent for the next pieces.
    let mut credit = vec![[0.0f64; AHEAD]; ranks];
    let (mut largest, mut received) = (0, vec![0; ranks]);
    for i in 0..routes.len() {
        let (route, keys) = (routes.route(i), &routes.piece(i).tokens);
        let hop = keys.len() as f64 * row / cluster.bandwidth;
        largest = largest.max(keys.len());
        let mut arrives = vec![0.0f64; route.len()];
        for (index, &r) in route.iter().enumerate() {
            let here = relayed[r].max(arrives[index]);
            let mut sendable = here;
            for next in children(index, route.len()) {
                sendable = sendable.max(credit[route[next]][0] + cluster.latency);
                let sent = sendable.max(free[r]) + hop;
                (free[r], used[r], arrives[next]) = (sent, used[r] + hop, sent + cluster.latency);
            }
            let work = queries[r].pairs(keys, causal);
            let start = here.max(done[r]);
            done[r] = start + seconds_of(work);
            // It is queued until the piece before it is taken.
            relayed[r] = sendable.max(started[r][READY - 1]);
            started[r].rotate_right(1);
            started[r][0] = start;
            if index > 0 {
                received[r] += keys.len();
                credit[r].rotate_left(1);
                credit[r][AHEAD - 1] = relayed[r];
            }
        }
    }
    let seconds = done.iter().copied().fold(0.0, f64::max);
    let most = queries.iter().map(|queries| queries.from[0]).max().unwrap_or(0) as f64;
    // Tokens and results, states of rows, pieces in flight, queued and in work, and the program.
    let of_token = row + (2 * heads_q * dim * bytes) as f64 + states;
    let memory = most * of_token + ((AHEAD + READY + 4) * largest) as f64 * row + PROGRAM;
    let busiest = used.iter().copied().fold(0.0, f64::max);
    Ok(Forecast {
        head_groups: groups,
        seconds,
        efficiency: if seconds > 0.0 { all / seconds } else { 1.0 },
        received: received.into_iter().max().unwrap_or(0) as f64 * row,
        link: if seconds > 0.0 { busiest / seconds } else { 0.0 },
        memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { tokens: 8192, heads_q: 4, heads_kv: 2, dim: 64, bytes: 4, causal: true };
    const CLUSTER: Cluster = Cluster { ranks: 4, rate: 1e11, bandwidth: 1e9, latency: 1e-5 };

    #[test]
    fn visible_pairs_equal_a_count() {
        for (queries, keys) in [(0..10, 0..10), (5..9, 0..20), (3..30, 7..12), (0..4, 8..9), (20..25, 3..11), (6..6, 0..4)] {
            let count = queries.clone().flat_map(|q| keys.clone().filter(move |&k| k <= q)).count();
            assert_eq!(pairs(&queries, &keys, true), count as f64, "{queries:?} {keys:?}");
            assert_eq!(pairs(&queries, &keys, false), (queries.len() * keys.len()) as f64);
        }
    }

    #[test]
    fn pairs_of_a_rank_are_the_sum_over_its_blocks() {
        for (tokens, ranks, sharing) in
            [(9000, 3, Sharing::Snake(Some(256))), (5000, 4, Sharing::Contiguous), (700, 5, Sharing::Snake(Some(512)))]
        {
            let partition = sharing.partition(tokens, ranks).unwrap();
            for (rank, queries) in Queries::new(&partition).iter().enumerate() {
                for (keys, causal) in partition.pieces().into_iter().flat_map(|piece| [(piece.tokens.clone(), true), (piece.tokens, false)])
                {
                    let blocks = partition.blocks_of_rank(rank).map(|block| pairs(&block, &keys, causal)).sum::<f64>();
                    assert_eq!(queries.pairs(&keys, causal), blocks, "{tokens} {rank} {keys:?}");
                }
            }
        }
    }

    #[test]
    fn large_sizes_neither_overflow_nor_run_for_ever() {
        let size = Size { tokens: MOST_TOKENS, heads_q: 8, heads_kv: 8, dim: MOST_DIM, bytes: 8, causal: false };
        let alone = forecast(&size, &Cluster { ranks: 1, ..CLUSTER }, Sharing::Snake(Some(MOST_TOKENS)), None).unwrap();
        let expected = 2f64.powi(64) * 4.0 * 65536.0 * 8.0 / 1e11;
        assert!((alone.seconds / expected - 1.0).abs() < 1e-9, "{alone:?}");
        for size in [Size { dim: MOST_DIM + 1, ..size }, Size { heads_q: 8 * MOST_HEADS, ..size }, Size { tokens: MOST_TOKENS + 1, ..size }]
        {
            assert!(matches!(forecast(&size, &CLUSTER, Sharing::Contiguous, Some(1)), Err(Error::Partition { .. })));
        }
        assert!(matches!(forecast(&size, &CLUSTER, Sharing::Snake(None), Some(1)), Err(Error::Plan { .. })));
    }

    /// Measured for 300,000 tokens and 8 heads of 64: 0.16 GB, without the 17 MB of keys and values that are read at once.
    #[test]
    fn memory_of_one_rank_does_not_grow_with_the_tokens() {
        let of = |tokens| {
            let size = Size { tokens, heads_q: 8, heads_kv: 8, dim: 64, bytes: 4, causal: true };
            forecast(&size, &Cluster { ranks: 1, ..CLUSTER }, Sharing::Snake(None), None).unwrap().memory
        };
        assert!((of(300_000) / 0.177e9 - 1.0).abs() < 0.1 && of(300_000) == of(3_000_000) && of(300) < of(300_000), "{}", of(300_000));
    }

    #[test]
    fn time_of_one_rank_is_that_of_the_arithmetic() {
        let alone = forecast(&SIZE, &Cluster { ranks: 1, ..CLUSTER }, Sharing::Snake(None), None).unwrap();
        let expected = 8192.0 * 8193.0 / 2.0 * (4 * 64 * 4) as f64 / 1e11;
        assert!((alone.seconds / expected - 1.0).abs() < 1e-9 && (alone.efficiency - 1.0).abs() < 1e-9, "{alone:?}");
        assert_eq!((alone.received, alone.link), (0.0, 0.0));
    }

    /// Two ranks, one piece each, no mask.
    #[test]
    fn two_ranks_equal_a_calculation_by_hand() {
        let size = Size { tokens: 512, causal: false, ..SIZE };
        let cluster = Cluster { ranks: 2, ..CLUSTER };
        let work = 256.0 * 256.0 * (4 * 64 * 4) as f64 / 1e11;
        let hop = 256.0 * (2 * 64 * 2 * 4) as f64 / 1e9 + 1e-5;
        let got = forecast(&size, &cluster, Sharing::Contiguous, Some(1)).unwrap();
        // Rank 1 gets the first piece after its credit and a hop; it sends its own at once and computes both; rank 0 computes its own
        // meanwhile.
        let first = 1e-5 + hop;
        let expected = (first + 2.0 * work).max((first + hop).max(work) + work);
        assert!((got.seconds / expected - 1.0).abs() < 1e-9, "{got:?}, {expected}");
    }

    #[test]
    fn a_faster_network_is_never_slower_and_heads_are_shared_first() {
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
