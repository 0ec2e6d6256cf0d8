//! A step in parts: their gradients begin from zero and are summed in a fixed tree, so the result does not depend on which rank computes
//! which part.
//!
//! ```text
//! 5 parts:  ((0 + 1) + (2 + 3)) + 4        the left side of a sum has the largest power of two below the number of its parts
//! ```
//!
//! A rank has adjacent parts, and owns a slice of the parameters. It sums the largest nodes of the tree whose parts it has, and sends each
//! of them, cut into slices, to the owners. An owner computes the rest of the sum for its slice, updates the slice, whose moments only it
//! has, and sends the new weights to all others.

use super::ranks::{HEAD, LOSS, Message, Ranks, Stage, copy_floats, copy_losses, others, receive};
use super::trainer::{Task, TrainConfig};
use crate::error::Result;
use crate::layers::loss::Loss;
use crate::optim::CHUNK;
use crate::parallel::{for_pieces, in_pool};
use std::ops::Range;

/// Where a node is split into its two sides.
fn middle(node: &Range<usize>) -> usize {
    node.start + node.len().next_power_of_two() / 2
}

fn add(to: &mut [f32], from: &[f32]) {
    for_pieces(to.chunks_mut(CHUNK).zip(from.chunks(CHUNK)).collect(), |_, (to, from)| {
        to.iter_mut().zip(from).for_each(|(to, x)| *to += x);
    });
}

/// Write the sum of a node to `to`. `leaf` computes one part, in order; `spare` are buffers for reuse.
fn sum(node: Range<usize>, to: &mut [f32], spare: &mut Vec<Vec<f32>>, leaf: &mut dyn FnMut(usize, &mut [f32]) -> Result<()>) -> Result<()> {
    if node.len() <= 1 {
        return leaf(node.start, to);
    }
    let middle = middle(&node);
    sum(node.start..middle, to, spare, leaf)?;
    let mut right = spare.pop().unwrap_or_else(|| vec![0.0; to.len()]);
    let done = sum(middle..node.end, &mut right, spare, leaf);
    add(to, &right);
    spare.push(right);
    done
}

/// The sum of a node: known, or the sum of its two sides.
fn total(node: Range<usize>, known: &mut Vec<(Range<usize>, Vec<f32>)>) -> Vec<f32> {
    if let Some(place) = known.iter().position(|(range, _)| *range == node) {
        return known.swap_remove(place).1;
    }
    assert!(node.len() > 1, "a rank has part {node:?}");
    let middle = middle(&node);
    let mut left = total(node.start..middle, known);
    add(&mut left, &total(middle..node.end, known));
    left
}

/// The most sums that wait for their other side.
pub(crate) fn tree_depth(parts: usize) -> u32 {
    parts.max(1).next_power_of_two().ilog2()
}

/// The adjacent items of a rank, of `count` that are shared evenly.
fn share(count: usize, ranks: usize, rank: usize) -> Range<usize> {
    let first = |rank: usize| (count * rank).div_ceil(ranks);
    first(rank)..first(rank + 1)
}

/// The parameters that a rank updates, cut where the sums of the gradient's norm are.
pub(crate) fn slice(parameters: usize, ranks: usize, rank: usize) -> Range<usize> {
    let chunks = share(parameters.div_ceil(CHUNK), ranks, rank);
    (chunks.start * CHUNK).min(parameters)..(chunks.end * CHUNK).min(parameters)
}

/// The largest nodes of a tree that have no other parts than these.
fn nodes(tree: Range<usize>, of: &Range<usize>) -> Vec<Range<usize>> {
    if tree.start.max(of.start) >= tree.end.min(of.end) {
        return Vec::new();
    }
    if of.start <= tree.start && tree.end <= of.end {
        return vec![tree];
    }
    let middle = middle(&tree);
    let mut all = nodes(tree.start..middle, of);
    all.extend(nodes(middle..tree.end, of));
    all
}

/// The nodes that a rank sums.
fn nodes_of(config: &TrainConfig, ranks: usize, rank: usize) -> Vec<Range<usize>> {
    nodes(0..config.parts, &share(config.parts, ranks, rank))
}

fn pieces(config: &TrainConfig, node: &Range<usize>) -> Range<usize> {
    node.start * config.micro_batches..node.end * config.micro_batches
}

/// The number of sums of squares of a slice.
pub(crate) fn chunks(slice: &Range<usize>) -> usize {
    slice.len().div_ceil(CHUNK)
}

/// Compute the gradient of a step: this rank's slice of `gradient` becomes the sum of all parts. Returned are the losses of all pieces.
pub(crate) fn gradient(
    task: &mut dyn Task,
    (config, step): (&TrainConfig, u64),
    params: &[f32],
    gradient: &mut [f32],
    spare: &mut Vec<Vec<f32>>,
    ranks: &dyn Ranks,
) -> Result<Vec<Loss>> {
    let (rank, count) = (ranks.rank(), ranks.ranks());
    let slice = |rank: usize| slice(params.len(), count, rank);
    let mut losses = vec![Loss::default(); config.pieces()];
    let mut known = Vec::new();
    for node in nodes_of(config, count, rank) {
        let mut leaf = |part: usize, to: &mut [f32]| {
            to.fill(0.0);
            for piece in pieces(config, &(part..part + 1)) {
                losses[piece] = task.gradient(params, to, config, step, piece)?;
            }
            Ok(())
        };
        // Only the computation runs on the pool: threads that wait for other ranks would block it.
        in_pool(|| sum(node.clone(), gradient, spare, &mut leaf))?;
        if count == 1 {
            return Ok(losses);
        }
        for to in others(ranks) {
            let message = Message::new(step, Stage::Gradient).losses(&losses[pieces(config, &node)]).floats(&gradient[slice(to)]);
            message.send(ranks, to, &|| format!("credit for its slice of parts {node:?} of step {step}"))?;
        }
        known.push((node, gradient[slice(rank)].to_vec()));
    }
    for from in others(ranks) {
        for node in nodes_of(config, count, from) {
            let pieces = pieces(config, &node);
            let (loss_bytes, expected) = (LOSS * pieces.len(), LOSS * pieces.len() + 4 * slice(rank).len());
            let what = || format!("the gradient of parts {node:?} of step {step}");
            let bytes = receive(ranks, from, (step, Stage::Gradient), Some(expected), &what)?;
            copy_losses(&bytes[..loss_bytes], &mut losses[pieces]);
            let mut sums = vec![0.0; slice(rank).len()];
            copy_floats(&bytes[loss_bytes..], &mut sums);
            known.push((node, sums));
        }
    }
    in_pool(|| gradient[slice(rank)].copy_from_slice(&total(0..config.parts, &mut known)));
    Ok(losses)
}

/// Bytes that a rank receives in a step: its slice and the losses of each node of other ranks, sums of squares, and the weights of the
/// other slices. Where the parts of each rank are one node, this is about `2 (1 - 1 / ranks)` times the parameters' bytes, as of a ring
/// all-reduce.
pub fn step_bytes(config: &TrainConfig, parameters: usize, ranks: usize, rank: usize) -> u64 {
    let mine = slice(parameters, ranks, rank).len();
    let of = |from: usize| {
        let theirs = slice(parameters, ranks, from);
        let nodes: usize = nodes_of(config, ranks, from).iter().map(|node| HEAD + LOSS * pieces(config, node).len() + 4 * mine).sum();
        nodes + (HEAD + 8 + 8 * chunks(&theirs)) + (HEAD + 4 * theirs.len())
    };
    (0..ranks).filter(|&from| from != rank).map(|from| of(from) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_ranks_computes_the_same_sum() {
        // Elements whose sum depends on the order.
        let part = |part: usize, to: &mut [f32]| {
            to.iter_mut().enumerate().for_each(|(i, to)| *to = ((part * 37 + i * 11) as f32).sin() * 10f32.powi((part % 7) as i32));
            Ok(())
        };
        let whole = |node: Range<usize>| {
            let mut to = vec![0.0; 50];
            sum(node, &mut to, &mut Vec::new(), &mut { part }).expect("a sum");
            to
        };
        for parts in 1..20 {
            let right = whole(0..parts);
            for ranks in 1..24 {
                let shares: Vec<_> = (0..ranks).map(|rank| share(parts, ranks, rank)).collect();
                assert_eq!((shares[0].start, shares[ranks - 1].end), (0, parts));
                assert!(shares.windows(2).all(|two| two[0].end == two[1].start) && !shares[0].is_empty());
                let mut known: Vec<_> = shares.iter().flat_map(|of| nodes(0..parts, of)).map(|node| (node.clone(), whole(node))).collect();
                assert_eq!(total(0..parts, &mut known), right, "{parts} parts by {ranks} ranks");
                assert!(known.is_empty());
            }
        }
        // Five, by hand, and in the order of a loop.
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|i| whole(i..i + 1)[3]);
        assert_eq!(whole(0..5)[3], ((a + b) + (c + d)) + e);
        assert!((0..50).any(|i| (1..19).fold(whole(0..1)[i], |sum, p| sum + whole(p..p + 1)[i]) != whole(0..19)[i]));
    }

    #[test]
    fn slices_cover_all_parameters_once() {
        for parameters in [1, 5000, CHUNK, 3 * CHUNK + 1, 10 * CHUNK - 1] {
            for ranks in 1..8 {
                let ends: Vec<_> = (0..ranks).map(|rank| slice(parameters, ranks, rank)).collect();
                assert_eq!((ends[0].start, ends[ranks - 1].end), (0, parameters));
                assert!(ends.windows(2).all(|two| two[0].end == two[1].start && two[1].start.is_multiple_of(CHUNK) | two[1].is_empty()));
            }
        }
    }
}
