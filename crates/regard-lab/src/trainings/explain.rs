//! Are weights explanations? What cross-attention looks at, beside what the answer depends on.
//!
//! Each written token has the read tokens that it is *for*: the letter at the mirrored place, the digit that a word names. Five questions
//! about them, the last three causal:
//!
//! 1. *Weight*: how much weight does a head put on them?
//! 2. *Value-weighted*: the same, with each weight multiplied by the length of what it adds to the stream, `|v_j W_O|`.
//! 3. *Influence*: a read token is exchanged for another one; whose prediction moves?
//! 4. *Ablated*: a head's result is set to zero; how many tokens are still right?
//! 5. *Permuted*: a head's weights are shuffled among the read tokens, row by row; how many are still right?

use super::heads::HeadMap;
use super::pairs::PairKind;
use ndarray::{Array4, ArrayViewMut4};
use regard_nn::Result;
use regard_nn::generate::argmax;
use regard_nn::layers::heads::Heads;
use regard_nn::layers::probe::{Attending, Change, Probe};
use regard_nn::layers::stack::Keep;
use regard_nn::loss::IGNORE;
use regard_nn::random::Draws;
use regard_nn::seq2seq::{EncoderDecoder, Pairs};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// One head of cross-attention.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CrossHead {
    /// Decoder block.
    pub layer: usize,
    /// Head.
    pub head: usize,
    /// Mean weight on what a written token is for.
    pub weight: f64,
    /// The same, value-weighted.
    pub value_weighted: f64,
    /// Share of tokens that are right without this head.
    pub ablated: f64,
    /// Share of tokens that are right with its weights shuffled.
    pub permuted: f64,
}

/// The answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// Inputs that were looked at.
    pub inputs: usize,
    /// Share of tokens that are right, the written ones before them given.
    pub right: f64,
    /// The same with the weights of all heads shuffled.
    pub all_permuted: f64,
    /// The same with even weights in all heads.
    pub all_even: f64,
    /// Mean share of all influence that is of what a written token is for.
    pub influence: f64,
    /// The same share if every read token counted alike.
    pub even: f64,
    /// Head by head.
    pub heads: Vec<CrossHead>,
    /// Influence of each read token (column) on each written one (row), on the input of the maps.
    pub map: HeadMap,
}

/// What is done to cross-attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Nothing,
    Ablate { layer: usize, head: usize },
    Permute { layer: usize, head: usize },
    PermuteAll,
    EvenAll,
}

struct Operator<'o> {
    operation: Operation,
    lengths: &'o [usize],
    draws: RefCell<Draws>,
}

/// Sublayers of a block of the decoder; the second is cross-attention.
const SUBLAYERS: usize = 3;

impl Operator<'_> {
    fn mix(&self, weights: &Array4<f32>, heads: &Heads<'_, f32>, z: &mut ArrayViewMut4<'_, f32>, head: usize, even: bool) {
        let group = weights.dim().1 / heads.v.dim().1.max(1);
        for (b, &keys) in self.lengths.iter().enumerate() {
            for i in 0..weights.dim().2 {
                let mut row: Vec<f32> = (0..keys).map(|j| if even { 1.0 / keys as f32 } else { weights[[b, head, i, j]] }).collect();
                self.draws.borrow_mut().shuffle(&mut row);
                for d in 0..z.dim().3 {
                    z[[b, head, i, d]] = row.iter().enumerate().map(|(j, w)| w * heads.v[[b, head / group, j, d]]).sum();
                }
            }
        }
    }
}

impl Probe<f32> for Operator<'_> {
    fn results(
        &self,
        number: usize,
        attending: &Attending<'_>,
        heads: &Heads<'_, f32>,
        mut z: ArrayViewMut4<'_, f32>,
    ) -> regard::Result<()> {
        if number % SUBLAYERS != 1 {
            return Ok(());
        }
        let weights = || attending.attention(&Change::default()).weights(heads.q, heads.k);
        let here = number / SUBLAYERS;
        let all = 0..heads.q.dim().1;
        match self.operation {
            Operation::Ablate { layer, head } if layer == here => z.index_axis_mut(ndarray::Axis(1), head).fill(0.0),
            Operation::Permute { layer, head } if layer == here => self.mix(&weights()?, heads, &mut z, head, false),
            Operation::PermuteAll | Operation::EvenAll => {
                let weights = weights()?;
                all.for_each(|head| self.mix(&weights, heads, &mut z, head, self.operation == Operation::EvenAll));
            }
            _ => {}
        }
        Ok(())
    }
}

/// A model that is asked.
struct Asked<'a> {
    model: &'a EncoderDecoder,
    p: &'a [f32],
    kind: PairKind,
    seed: u64,
}

impl Asked<'_> {
    fn logits(&self, pairs: &Pairs, operation: Operation) -> Result<Vec<f32>> {
        let mut pass = self.model.plan(pairs, Keep::Discard);
        let draws = RefCell::new(Draws::at(self.seed, &[0x9E12]));
        self.model.probe(&self.model.weights(self.p), pairs, &mut pass, &Operator { operation, lengths: &pairs.source_lengths, draws })?;
        Ok(pass.logits().to_vec())
    }

    /// Share of tokens that are right.
    fn right(&self, pairs: &Pairs, operation: Operation) -> Result<f64> {
        let logits = self.logits(pairs, operation)?;
        let rows = logits.chunks_exact(self.model.config().vocab).zip(&pairs.targets).filter(|(_, t)| **t != IGNORE);
        let (right, all) = rows.fold((0usize, 0usize), |(right, all), (l, &t)| (right + usize::from(argmax(l) == t as usize), all + 1));
        Ok(right as f64 / all.max(1) as f64)
    }

    /// How far each row's prediction moves (total variation) when a read token is exchanged, `[pair][row][read token]`: a mean over others.
    fn influence(&self, pairs: &Pairs) -> Result<Vec<Vec<Vec<f64>>>> {
        let (context, vocab) = (self.kind.context(), self.model.config().vocab);
        let before = self.logits(pairs, Operation::Nothing)?;
        let before: Vec<Vec<f64>> = before.chunks_exact(vocab).map(softmax).collect();
        let longest = pairs.source_lengths.iter().copied().max().unwrap_or(0);
        let mut moved = vec![vec![vec![0.0; longest]; context]; pairs.batch];
        let mut draws = Draws::at(self.seed, &[0x1F1]);
        // Every read token in turn, for several others.
        for column in (0..longest).flat_map(|column| std::iter::repeat_n(column, EXCHANGES)) {
            let mut other = pairs.clone();
            for (b, &length) in pairs.source_lengths.iter().enumerate() {
                if column < length {
                    let token = &mut other.source[b * context + column];
                    *token = self.kind.another(*token, &mut draws);
                }
            }
            let after = self.logits(&other, Operation::Nothing)?;
            for (row, after) in after.chunks_exact(vocab).enumerate() {
                let distance: f64 = 0.5 * before[row].iter().zip(softmax(after)).map(|(a, b)| (a - b).abs()).sum::<f64>();
                moved[row / context][row % context][column] += distance / EXCHANGES as f64;
            }
        }
        Ok(moved)
    }
}

/// Other tokens that a read token is exchanged for.
const EXCHANGES: usize = 4;
/// Inputs whose weights and influence are looked at.
const LOOKED_AT: usize = 48;

/// Ask a trained model about held-out pairs; `shown` is the one that maps are of.
///
/// # Errors
/// When pairs and model do not fit together.
pub(super) fn explain(model: &EncoderDecoder, p: &[f32], kind: PairKind, pairs: &Pairs, shown: &Pairs, seed: u64) -> Result<Explained> {
    let asked = Asked { model, p, kind, seed };
    let few = kind.first(pairs, LOOKED_AT);
    let places: Vec<Vec<Vec<usize>>> = (0..few.batch).map(|b| kind.places(&few, b)).collect();
    let moved = asked.influence(&few)?;
    let (mut influence, mut even, mut rows) = (0.0, 0.0, 0usize);
    for (b, places) in places.iter().enumerate() {
        for (i, own) in places.iter().enumerate().filter(|(_, own)| !own.is_empty()) {
            let all: f64 = moved[b][i].iter().sum();
            influence += if all > 0.0 { own.iter().map(|&j| moved[b][i][j]).sum::<f64>() / all } else { 0.0 };
            even += own.len() as f64 / few.source_lengths[b] as f64;
            rows += 1;
        }
    }
    let count = rows.max(1) as f64;
    let mut heads = Vec::new();
    let mut pass = model.plan(&few, Keep::Tape);
    model.loss(&model.weights(p), &few, &mut pass)?;
    let (call, attentions) = model.cross_attentions(&few, &pass);
    for (layer, (attention, saved)) in attentions.into_iter().enumerate() {
        let (weights, operands) = (attention.weights(&call, saved)?, attention.heads(&call, saved));
        let group = attention.config().heads / attention.config().kv_heads;
        for head in 0..attention.config().heads {
            let lengths = added_lengths(model, p, layer, head, attention.config().head_dim);
            let (mut weight, mut value_weighted) = (0.0, 0.0);
            for (b, places) in places.iter().enumerate() {
                let keys = few.source_lengths[b];
                let size: Vec<f64> = (0..keys).map(|j| lengths(&|d| operands.v[[b, head / group, j, d]])).collect();
                for (i, own) in places.iter().enumerate().filter(|(_, own)| !own.is_empty()) {
                    let w = |j: usize| f64::from(weights[[b, head, i, j]]);
                    let all: f64 = (0..keys).map(|j| w(j) * size[j]).sum();
                    weight += own.iter().map(|&j| w(j)).sum::<f64>() / count;
                    value_weighted += own.iter().map(|&j| w(j) * size[j]).sum::<f64>() / all.max(f64::MIN_POSITIVE) / count;
                }
            }
            let ablated = asked.right(pairs, Operation::Ablate { layer, head })?;
            let permuted = asked.right(pairs, Operation::Permute { layer, head })?;
            heads.push(CrossHead { layer, head, weight, value_weighted, ablated, permuted });
        }
    }
    let (keys, written) = (shown.source_lengths[0], shown.targets.iter().filter(|t| **t != IGNORE).count());
    let moved = asked.influence(shown)?.swap_remove(0);
    let weights = moved[..written].iter().flat_map(|row| row[..keys].iter().map(|x| *x as f32)).collect();
    Ok(Explained {
        inputs: pairs.batch,
        right: asked.right(pairs, Operation::Nothing)?,
        all_permuted: asked.right(pairs, Operation::PermuteAll)?,
        all_even: asked.right(pairs, Operation::EvenAll)?,
        influence: influence / count,
        even: even / count,
        heads,
        map: HeadMap { layer: 0, head: 0, rows: written, cols: keys, weights },
    })
}

/// The length of what a value of a head adds to the stream: `|v W_O|`, with the head's own rows of W_O.
fn added_lengths<'p>(
    model: &EncoderDecoder,
    p: &'p [f32],
    layer: usize,
    head: usize,
    dim: usize,
) -> impl Fn(&dyn Fn(usize) -> f32) -> f64 + 'p {
    let name = format!("decoder.blocks.{layer}.cross.out.weight");
    let range = model.layout().entries().iter().find(|e| e.name == name).map_or(0..0, |e| e.range.clone());
    let width = model.config().width;
    let rows = p.get(range).unwrap_or_default().get(head * dim * width..(head + 1) * dim * width).unwrap_or_default();
    move |v| {
        let mut sum = vec![0.0f64; width];
        for (d, row) in rows.chunks_exact(width).enumerate() {
            sum.iter_mut().zip(row).for_each(|(s, w)| *s += f64::from(v(d)) * f64::from(*w));
        }
        sum.iter().map(|x| x * x).sum::<f64>().sqrt()
    }
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    let powers: Vec<f64> = logits.iter().map(|x| f64::from(x - max).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|x| x / sum).collect()
}
