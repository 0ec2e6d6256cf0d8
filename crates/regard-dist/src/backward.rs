//! The backward pass: a wavefront. A block of keys travels through the blocks of queries that see any of it, in query order, with the
//! running sums of its dk and dv; dq stays with its rows, which get the keys in key order.
//!
//! ```text
//! task (c, j), queries c and keys j, comes after (c, j - 1), for dq, and (c - 1, j), for dk and dv.  Each rank runs its tasks in the
//! order of c + j.
//! ```
//!
//! A block is sent when its receiver has finished a task of an earlier wave. So at most two blocks are in flight to a rank, and the
//! schedule cannot deadlock.

use crate::distributed::{Distributed, LocalBlock, shape_of, tokens};
use crate::error::Result;
use crate::exchange::{Exchange, Kind, WireElement, get, put};
use crate::in_flight::InFlightBlock;
use crate::routes::mark_visible;
use ndarray::{Array4, ArrayView4, ArrayViewMut4, Axis, s};
use regard::tiling::GRADIENT_SPLIT;
use regard::{GlobalOffset, Gradients, PartInputs, PartSums, Real, Saved, SavedView};
use std::collections::HashMap;
use std::ops::Range;

/// Waves before its first task in which a block of keys is sent.
const AHEAD: usize = 2;

/// Queries and keys of a task, as indices of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Task {
    queries: usize,
    keys: usize,
}

/// Permission to send a block of keys with its sums.
struct Credit {
    keys: usize,
    /// The rank that waits for it.
    to: usize,
}

/// Which blocks of queries see which blocks of keys.
struct Visibility {
    /// By queries and keys.
    visible: Vec<Vec<bool>>,
    /// The first queries that see each block of keys.
    first: Vec<Option<usize>>,
    /// Credits to send after each task of this rank.
    credits: HashMap<Task, Vec<Credit>>,
}

impl Visibility {
    fn sees(&self, Task { queries, keys }: Task) -> bool {
        self.visible[queries][keys]
    }

    /// The next queries that see the keys.
    fn after(&self, task: Task) -> Option<usize> {
        (task.queries + 1..self.visible.len()).find(|&queries| self.visible[queries][task.keys])
    }

    /// The last queries before these that see the keys.
    fn before(&self, task: Task) -> Option<usize> {
        (0..task.queries).rev().find(|&queries| self.visible[queries][task.keys])
    }

    /// The keys that queries `to` finish before the block of `task` is sent to them: those of the last wave before that of `task`.
    fn finished_before(&self, task: Task, to: usize) -> Option<usize> {
        (0..(task.queries + task.keys).saturating_sub(to)).rev().find(|&keys| self.visible[to][keys])
    }
}

/// The tensors of this rank.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'x, E: WireElement> {
    pub(crate) q: &'x ArrayView4<'x, E>,
    pub(crate) k: &'x ArrayView4<'x, E>,
    pub(crate) v: &'x ArrayView4<'x, E>,
    pub(crate) saved: &'x Saved<E>,
    pub(crate) d_out: &'x ArrayView4<'x, E>,
}

impl<E: WireElement> Operands<'_, E> {
    pub(crate) fn saved_rows(&self, batch: &Range<usize>, rows: &Range<usize>) -> SavedView<'_, E> {
        let Saved { out, out_unrounded, row_max, row_sum } = self.saved;
        let per_row = s![batch.clone(), .., rows.clone()];
        let vectors = s![batch.clone(), .., rows.clone(), ..];
        let out_unrounded = out_unrounded.as_ref().map(|x| x.slice(vectors));
        SavedView { out: out.slice(vectors), out_unrounded, row_max: row_max.slice(per_row), row_sum: row_sum.slice(per_row) }
    }
}

/// dk and dv of a block.
type KeyGradients<T> = [Array4<T>; 2];

/// Blocks and gradients that wait on this rank.
struct Waiting<E: WireElement> {
    /// For later queries of this rank, by block of keys.
    blocks: HashMap<usize, InFlightBlock<E>>,
    /// Finished, of keys of this rank.
    gradients: HashMap<usize, KeyGradients<E::Real>>,
}

impl<X: Exchange> Distributed<'_, X> {
    /// [`regard::Attention::backward`] of all tokens; `saved` and `d_out` are those of this rank's rows, and so are dq, dk and dv. The
    /// gradients of sinks and of the scale are those of all tokens, on every rank.
    ///
    /// # Errors
    /// As [`Distributed::forward_saved`]; and [`regard::Error::Unsupported`] with top-k, a scale beyond 4, and the gradient of a bias (see
    /// [`regard::Attention::bias_gradient`]).
    pub fn backward<E: WireElement>(
        &self,
        q: ArrayView4<'_, E>,
        k: ArrayView4<'_, E>,
        v: ArrayView4<'_, E>,
        saved: &Saved<E>,
        d_out: ArrayView4<'_, E>,
    ) -> Result<Gradients<E>> {
        let operands = Operands { q: &q, k: &k, v: &v, saved, d_out: &d_out };
        let scores = self.check([&q, &k, &v], self.check_saved(&operands), "backward")?;
        self.check_options([&q, &k, &v], scores)?;
        let local_blocks = self.local_blocks();
        let d_sink = self.sink_gradient(scores, &local_blocks, &operands)?;
        let visibility = self.visibility(scores, &local_blocks)?;
        let mut dq = Array4::from_elem(q.raw_dim(), E::Real::ZERO);
        let count = self.partition.blocks().len();
        let mut waiting = Waiting { blocks: HashMap::new(), gradients: HashMap::new() };
        for wave in 0..(2 * count).saturating_sub(1) {
            self.send_first_keys(wave, &visibility, &operands)?;
            for block in &local_blocks {
                let Some(keys) = wave.checked_sub(block.index).filter(|&keys| keys < count) else { continue };
                let task = Task { queries: block.index, keys };
                let mut dq = dq.slice_mut(s![.., .., block.local.clone(), ..]);
                if !visibility.sees(task) {
                    // One process adds zeros here, which changes -0.
                    dq.mapv_inplace(|x| x + E::Real::ZERO);
                    continue;
                }
                let mut in_flight = self.receive_block(task, &visibility, &mut waiting, &operands)?;
                self.add_pairs(scores, block, keys, &mut in_flight, &operands, dq)?;
                self.send_block(task, &visibility, in_flight, &mut waiting)?;
            }
        }
        let (mut dk, mut dv) = (Array4::from_elem(k.raw_dim(), E::zeroed()), Array4::from_elem(v.raw_dim(), E::zeroed()));
        for block in &local_blocks {
            let [from_k, from_v] = self.receive_gradients(block, &visibility, &mut waiting, [&k, &v])?;
            dk.slice_mut(s![.., .., block.local.clone(), ..]).zip_mut_with(&from_k, |to, &x| *to = E::from_real(x));
            dv.slice_mut(s![.., .., block.local.clone(), ..]).zip_mut_with(&from_v, |to, &x| *to = E::from_real(x));
        }
        let d_scale = self.attention.has_scale_gradient().then(|| self.scale_gradient(scores, &q, &dq)).transpose()?;
        let scale = E::Real::from_f64(self.attention.scale_of(q.len_of(Axis(3))));
        let dq = dq.mapv(|x| E::from_real(x * scale));
        Ok(Gradients { dq, dk, dv, d_biases: Vec::new(), d_sink, d_scale })
    }

    /// Saved results and d_out have the shapes of this rank's rows.
    fn check_saved<E: WireElement>(&self, Operands { q, v, saved, d_out, .. }: &Operands<'_, E>) -> Result<()> {
        let per_row = [q.len_of(Axis(0)), q.len_of(Axis(1)), self.partition.count(self.comm.rank())];
        let vectors = [per_row[0], per_row[1], per_row[2], v.len_of(Axis(3))];
        self.check_operand("d_out", d_out.shape(), &vectors)?;
        self.check_operand("saved.out", saved.out.shape(), &vectors)?;
        saved.out_unrounded.iter().try_for_each(|x| self.check_operand("saved.out_unrounded", x.shape(), &vectors))?;
        self.check_operand("saved.row_max", saved.row_max.shape(), &per_row)?;
        self.check_operand("saved.row_sum", saved.row_sum.shape(), &per_row)
    }

    fn owner(&self, block: usize) -> usize {
        self.partition.blocks()[block].rank
    }

    fn block_tokens(&self, block: usize) -> &Range<usize> {
        &self.partition.blocks()[block].tokens
    }

    fn visibility(&self, scores: [usize; 4], local_blocks: &[LocalBlock]) -> Result<Visibility> {
        let key_range = self.attention.key_ranges(scores)?;
        let blocks: Vec<_> = self.partition.blocks().iter().map(|block| block.tokens.clone()).collect();
        let visible_to = |queries: &Range<usize>| {
            let mut marks = vec![false; blocks.len()];
            mark_visible(&key_range, queries, &blocks, &mut marks);
            marks
        };
        let visible: Vec<_> = blocks.iter().map(visible_to).collect();
        let first = (0..blocks.len()).map(|keys| visible.iter().position(|visible| visible[keys])).collect();
        let mut visibility = Visibility { visible, first, credits: HashMap::new() };
        let mut credits: HashMap<_, Vec<_>> = HashMap::new();
        for block in local_blocks {
            for task in (0..blocks.len()).map(|keys| Task { queries: block.index, keys }).filter(|&task| visibility.sees(task)) {
                let Some(from) = visibility.before(task).filter(|&from| self.owner(from) != self.comm.rank()) else { continue };
                let sender = Task { queries: from, keys: task.keys };
                if let Some(keys) = visibility.finished_before(sender, task.queries) {
                    credits.entry(Task { keys, ..task }).or_default().push(Credit { keys: task.keys, to: self.owner(from) });
                }
            }
        }
        visibility.credits = credits;
        Ok(visibility)
    }

    /// Send the keys whose first task is in the wave after the next: its rank sends credit, and the owner sends the keys.
    fn send_first_keys<E: WireElement>(&self, wave: usize, visibility: &Visibility, operands: &Operands<'_, E>) -> Result<()> {
        let rank = self.comm.rank();
        let soon = |start: usize| start < wave + AHEAD && (wave == 0 || start + 1 == wave + AHEAD);
        // Keys, and the rank of their first task.
        let due = || {
            let firsts = visibility.first.iter().enumerate().filter_map(|(keys, first)| Some((keys, (*first)?)));
            firsts.filter(|&(keys, first)| soon(keys + first)).map(|(keys, first)| (keys, self.owner(first)))
        };
        for (keys, _) in due().filter(|&(keys, to)| to == rank && self.owner(keys) != rank) {
            let what = || format!("keys {:?}", self.block_tokens(keys));
            self.comm.send(self.owner(keys), (Kind::Credit, keys as u32), Vec::new(), what)?;
        }
        for (keys, to) in due().filter(|&(keys, to)| to != rank && self.owner(keys) == rank) {
            let block = self.local_block(keys);
            let what = || format!("credit for keys {:?}", block.range);
            self.comm.receive(to, (Kind::Credit, keys as u32), what)?;
            let mut bytes = Vec::new();
            [operands.k, operands.v].iter().for_each(|x| put(&mut bytes, &tokens(x, &block.local)));
            self.comm.send(to, (Kind::Keys, keys as u32), bytes, what)?;
        }
        Ok(())
    }

    /// A block of this rank, by its index.
    fn local_block(&self, index: usize) -> LocalBlock {
        self.local_blocks().into_iter().find(|block| block.index == index).expect("the block is this rank's")
    }

    /// The keys of a task, with the sums over the queries before it.
    fn receive_block<E: WireElement>(
        &self,
        task: Task,
        visibility: &Visibility,
        waiting: &mut Waiting<E>,
        Operands { k, v, .. }: &Operands<'_, E>,
    ) -> Result<InFlightBlock<E>> {
        let (rank, owner, keys) = (self.comm.rank(), self.owner(task.keys), self.block_tokens(task.keys));
        let shapes = [k, v].map(|x| shape_of(x, keys.len()));
        let Some(before) = visibility.before(task) else {
            if owner == rank {
                let local = self.local_block(task.keys).local;
                return Ok(InFlightBlock::new([tokens(k, &local), tokens(v, &local)]));
            }
            let expected = shapes.iter().map(|shape| shape.iter().product::<usize>() * size_of::<E>()).sum();
            let bytes = self.comm.receive_exactly(owner, (Kind::Keys, task.keys as u32), expected, || format!("keys {keys:?}"))?;
            let mut rest = &bytes[..];
            let received: [Array4<E>; 2] = shapes.map(|shape| get(&mut rest, shape));
            return Ok(InFlightBlock::new(received.each_ref().map(|x| x.view())));
        };
        let from = self.owner(before);
        if from == rank {
            return Ok(waiting.blocks.remove(&task.keys).expect("the task before left it"));
        }
        let what = || format!("keys {keys:?} with their sums over queries before {}", self.block_tokens(task.queries).start);
        let expected = InFlightBlock::<E>::bytes_of(&shapes, keys.len());
        let bytes = self.comm.receive_exactly(from, (Kind::Block, task.keys as u32), expected, what)?;
        Ok(InFlightBlock::received(bytes, shapes))
    }

    /// Add the gradients of all pairs of a task, one span of keys after the other.
    fn add_pairs<E: WireElement>(
        &self,
        scores: [usize; 4],
        queries: &LocalBlock,
        keys: usize,
        in_flight: &mut InFlightBlock<E>,
        operands: &Operands<'_, E>,
        mut dq: ArrayViewMut4<'_, E::Real>,
    ) -> Result<()> {
        let block = self.block_tokens(keys);
        let mut share = Array4::from_elem(dq.raw_dim(), E::Real::ZERO);
        for first in (0..block.len()).step_by(GRADIENT_SPLIT) {
            let part = GlobalOffset { batch: 0, query: queries.range.start, key: block.start + first, whole: scores };
            let span = in_flight.span(first);
            let ([k, v], [mut dk, mut dv]) = (span.keys, span.sums);
            let [q, d_out] = [operands.q, operands.d_out].map(|x| tokens(x, &queries.local));
            let inputs = PartInputs { q, k: k.view(), v: v.view(), d_out };
            let sums = PartSums { dq: &mut share.view_mut(), dk: &mut dk, dv: &mut dv };
            let saved = operands.saved_rows(&(0..scores[0]), &queries.local);
            self.attention.backward_part(part, inputs, saved, sums)?;
            // Where all keys are one span, there is no sum of spans.
            if scores[3] <= GRADIENT_SPLIT { dq.assign(&share) } else { dq.zip_mut_with(&share, |to, &x| *to += x) }
        }
        Ok(())
    }

    /// Pass a block on to the next queries that see it, or its gradients to their owner.
    fn send_block<E: WireElement>(
        &self,
        task: Task,
        visibility: &Visibility,
        in_flight: InFlightBlock<E>,
        waiting: &mut Waiting<E>,
    ) -> Result<()> {
        let (rank, owner) = (self.comm.rank(), self.owner(task.keys));
        for credit in visibility.credits.get(&task).into_iter().flatten() {
            let what = || format!("the sums of keys {:?}", self.block_tokens(credit.keys));
            self.comm.send(credit.to, (Kind::BlockCredit, credit.keys as u32), Vec::new(), what)?;
        }
        let what = || format!("credit for the sums of keys {:?}", self.block_tokens(task.keys));
        let Some(next) = visibility.after(task) else {
            if owner == rank {
                waiting.gradients.insert(task.keys, in_flight.sums());
                return Ok(());
            }
            let mut bytes = Vec::new();
            in_flight.sums().iter().for_each(|x| put(&mut bytes, &x.view()));
            return self.comm.send(owner, (Kind::Gradients, task.keys as u32), bytes, what);
        };
        let to = self.owner(next);
        if to == rank {
            waiting.blocks.insert(task.keys, in_flight);
            return Ok(());
        }
        if visibility.finished_before(task, next).is_some() {
            self.comm.receive(to, (Kind::BlockCredit, task.keys as u32), what)?;
        }
        self.comm.send(to, (Kind::Block, task.keys as u32), in_flight.into_bytes(), what)
    }

    /// The finished gradients of a block of this rank.
    fn receive_gradients<E: WireElement>(
        &self,
        block: &LocalBlock,
        visibility: &Visibility,
        waiting: &mut Waiting<E>,
        like: [&ArrayView4<'_, E>; 2],
    ) -> Result<KeyGradients<E::Real>> {
        if let Some(gradients) = waiting.gradients.remove(&block.index) {
            return Ok(gradients);
        }
        let shapes = like.map(|x| shape_of(x, block.local.len()));
        let expected = shapes.iter().map(|shape| shape.iter().product::<usize>() * size_of::<E::Real>()).sum();
        // The last queries that see the keys have the gradients; keys that no query sees have none.
        let end = Task { queries: self.partition.blocks().len(), keys: block.index };
        let Some(last) = visibility.before(end) else { return Ok(shapes.map(|shape| Array4::from_elem(shape, E::Real::ZERO))) };
        let what = || format!("the gradients of keys {:?}", block.range);
        let bytes = self.comm.receive_exactly(self.owner(last), (Kind::Gradients, block.index as u32), expected, what)?;
        let mut rest = &bytes[..];
        Ok(shapes.map(|shape| get(&mut rest, shape)))
    }
}
