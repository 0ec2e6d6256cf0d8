//! Blocks of a transformer, one after the other: self-attention, (cross-attention,) network, each a [`Sublayer`].
//!
//! A pass keeps what its backward pass will need ([`Keep::Tape`]: every layer's own), or nothing ([`Keep::Discard`]: a few buffers that go
//! round). Decoding is a pass like any other, over new rows only, with the past from a [`StackCache`].

use super::attention::{AttentionConfig, AttentionSaved, MultiHeadAttention, Past};
use super::cache::CacheType;
use super::linear::{Strips, packs};
use super::mlp::{Mlp, MlpConfig};
use super::norm::{NORM_STATS, Norm, NormKind};
use super::pass::Pass;
use super::positions::add;
use super::probe::{GradientProbe, NoProbe, Operand, Probe};
use super::sublayer::{Backward, Branch, Forward, Scratch, Shared, Sublayer, SublayerSaved, Wiring};
use crate::error::{Error, Result};
use crate::float::Float;
use crate::parallel::{Cut, for_pieces};
use crate::tensors::Weights;
use crate::tensors::layout::{Gradients, Layout};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What a pass keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing: memory does not grow with the number of layers.
    Discard,
    /// What the backward pass needs, and what can be looked at afterwards.
    Tape,
}

/// How sublayers, their norms and the residual stream go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockWiring {
    /// Norm before each branch.
    #[default]
    PreNorm,
    /// Norm of each sum.
    PostNorm,
    /// A norm before each branch and one of its result.
    Sandwich,
    /// A norm of each branch's result alone.
    ResultNorm,
    /// Attention and network read the same rows, each with a norm of its own.
    Parallel,
}

/// One block.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockConfig {
    /// What names of its tensors begin with; blocks of the same name are the same weights.
    pub name: String,
    /// How it goes together.
    pub wiring: BlockWiring,
    /// Which norms.
    pub norm: NormKind,
    /// What is added under their root.
    pub eps: f64,
    /// Self-attention.
    pub attention: AttentionConfig,
    /// Cross-attention after it, of the same options.
    pub cross: bool,
    /// The network.
    pub mlp: MlpConfig,
    /// Probability of dropping, in training.
    pub dropout: f64,
}

impl BlockConfig {
    /// Self-attention and a network, with norms of that kind and that number under their root; no cross-attention, nothing is dropped.
    pub fn new(name: String, wiring: BlockWiring, (norm, eps): (NormKind, f64), attention: AttentionConfig, mlp: MlpConfig) -> Self {
        Self { name, wiring, norm, eps, attention, cross: false, mlp, dropout: 0.0 }
    }
}

/// Blocks, and where wanted a last norm.
#[derive(Debug, Clone)]
pub struct Stack {
    sublayers: Vec<Sublayer>,
    last: Option<Norm>,
    width: usize,
}

/// What a pass through a stack keeps, and the room for its gradients.
#[derive(Debug, Clone)]
pub struct Activations<T: Float> {
    keep: Keep,
    rows: usize,
    /// The residual stream: before each sublayer and after the last; or three that go round.
    stream: Vec<Vec<T>>,
    sublayers: Vec<SublayerSaved<T>>,
    /// Which of them a sublayer has.
    slots: Vec<usize>,
    normed: Vec<T>,
    stats: Vec<T>,
    /// The matrices of one sublayer, packed.
    packs: [Strips<T>; 4],
    scratch: Option<Scratch<T>>,
    d: Vec<T>,
    /// The sublayers of a pass; all by default.
    part: Range<usize>,
}

impl<T: Float> Activations<T> {
    /// Go through these sublayers only: rows go in as they are before the first of them, and come out as they are after the last. The last
    /// norm belongs to the last sublayer.
    ///
    /// # Panics
    /// When there are fewer sublayers.
    pub fn restrict(&mut self, sublayers: Range<usize>) {
        assert!(sublayers.start <= sublayers.end && sublayers.end <= self.slots.len(), "there are {} sublayers", self.slots.len());
        self.part = sublayers;
    }

    /// Where rows go in.
    pub fn input(&mut self) -> &mut [T] {
        let first = self.part.start % self.stream.len();
        &mut self.stream[first]
    }

    /// The residual stream after sublayer `number`.
    fn stream(&self, number: usize) -> &[T] {
        &self.stream[number % self.stream.len()]
    }

    /// The result of the last forward pass.
    pub fn output(&self) -> &[T] {
        if self.normed.is_empty() || self.part.end < self.slots.len() { self.stream(self.part.end) } else { &self.normed }
    }

    /// The gradient: of the result before [`Stack::backward`], of the input after it.
    pub fn gradient(&mut self) -> &mut [T] {
        self.d.resize(self.stream[0].len(), T::ZERO);
        &mut self.d
    }

    /// The result and the place for its gradient.
    pub(crate) fn output_and_gradient(&mut self) -> (&[T], &mut [T]) {
        self.gradient();
        let Self { stream, normed, d, slots, .. } = self;
        (if normed.is_empty() { &stream[slots.len() % stream.len()] } else { normed }, d)
    }
}

impl Stack {
    /// These blocks, with a last norm or without.
    pub fn new(layout: &mut Layout, width: usize, blocks: &[BlockConfig], last: Option<(NormKind, f64)>) -> Self {
        let mut sublayers = Vec::new();
        for block in blocks {
            let mut add = |part: &str, branch: &dyn Fn(&mut Layout) -> Branch| {
                let (wiring, branch) = layout.within(format!("{}.{part}", block.name), |layout| {
                    let mut norm = |name| Norm::with_eps(layout, name, block.norm, width, block.eps);
                    let wiring = match block.wiring {
                        BlockWiring::PreNorm => Wiring::PreNorm(norm("norm")),
                        BlockWiring::PostNorm => Wiring::PostNorm(norm("norm")),
                        BlockWiring::Sandwich => Wiring::Sandwich(norm("norm"), norm("result_norm")),
                        BlockWiring::ResultNorm => Wiring::Sandwich(Norm::identity(width), norm("norm")),
                        BlockWiring::Parallel if part == "mlp" => Wiring::Parallel(norm("norm")),
                        BlockWiring::Parallel => Wiring::PreNorm(norm("norm")),
                    };
                    (wiring, branch(layout))
                });
                let number = sublayers.len() as u64;
                sublayers.push(Sublayer { wiring, branch, dropout: block.dropout, number });
            };
            add("attention", &|layout| Branch::Attention(Box::new(MultiHeadAttention::new(layout, block.attention))));
            if block.cross {
                add("cross", &|layout| Branch::Attention(Box::new(MultiHeadAttention::cross(layout, block.attention))));
            }
            add("mlp", &|layout| Branch::Mlp(Box::new(Mlp::new(layout, block.mlp))));
        }
        let last = last.map(|(kind, eps)| Norm::with_eps(layout, "last_norm", kind, width, eps));
        Self { sublayers, last, width }
    }

    /// Sublayers: attention and network of each block.
    pub fn sublayers(&self) -> usize {
        self.sublayers.len()
    }

    /// The attention sublayers with the indices that probes get.
    pub fn attention_sublayers(&self) -> impl Iterator<Item = (usize, &MultiHeadAttention)> {
        self.sublayers.iter().enumerate().filter_map(|(i, sublayer)| match &sublayer.branch {
            Branch::Attention(attention) => Some((i, &**attention)),
            Branch::Mlp(_) => None,
        })
    }

    /// Queries, keys and values that attention sublayer `number` makes of rows of the stream, side by side, after norms and positions.
    pub fn projected<T: Float>(&self, w: &Weights<'_, T>, pass: &Pass<'_>, number: usize, rows: &[T]) -> Vec<T> {
        self.sublayers[number].projected(w, pass, rows)
    }

    /// Take the tables of relative positions from the weights.
    pub(crate) fn read_tables<T: Float>(&mut self, w: &Weights<'_, T>) {
        for sublayer in &mut self.sublayers {
            if let Branch::Attention(attention) = &mut sublayer.branch {
                attention.read_table(w);
            }
        }
    }

    /// Which experts the network of sublayer `number` takes for rows of the stream, with their shares; none of a plain network.
    pub fn routing<T: Float>(&self, w: &Weights<'_, T>, number: usize, rows: &[T]) -> Vec<Vec<(usize, T)>> {
        self.sublayers[number].routing(w, rows)
    }

    /// Which of these columns are an operand of a head.
    pub fn columns_of(&self, number: usize, operand: Operand, head: usize) -> Range<usize> {
        match &self.sublayers[number].branch {
            Branch::Attention(attention) => {
                let first = attention.first_of(operand, head);
                first..first + attention.config().head_dim
            }
            Branch::Mlp(_) => 0..0,
        }
    }

    /// The heads' results of such rows, side by side.
    ///
    /// # Errors
    /// When attention refuses the pass.
    pub fn attended<T: Float>(&self, pass: &Pass<'_>, number: usize, projected: Vec<T>) -> Result<Vec<T>> {
        self.sublayers[number].attended(pass, projected)
    }

    /// What the network of sublayer `number` makes of rows of the stream.
    pub fn network<T: Float>(&self, w: &Weights<'_, T>, number: usize, rows: &[T]) -> Vec<T> {
        self.sublayers[number].network(w, rows)
    }

    /// What `parts` of a row of the stream (several, one after the other, whose sum it is) come to in the queries or keys of a head, with
    /// the scale of the whole row in all norms; one part more is what norm and projection add. Their sum is the query or key.
    pub fn operand_parts<T: Float>(
        &self,
        w: &Weights<'_, T>,
        number: usize,
        head: (Operand, usize),
        position: usize,
        row: &[T],
        parts: &[T],
    ) -> Vec<T> {
        self.sublayers[number].operand_parts(w, head, position, row, parts)
    }

    /// Branches are added to the stream as they are, and read it through norms of their own: what heads write can be told apart.
    pub fn is_additive(&self) -> bool {
        self.sublayers.iter().all(|s| matches!(s.wiring, Wiring::PreNorm(_) | Wiring::Parallel(_)))
    }

    /// Sublayer `number` reads what the one before it read.
    pub fn is_parallel(&self, number: usize) -> bool {
        self.sublayers[number].is_parallel()
    }

    /// The last norm, of rows of the stream in their own place; nothing where there is none.
    pub fn apply_last_norm<T: Float>(&self, w: &Weights<'_, T>, rows: &mut [T]) {
        if let Some(norm) = &self.last {
            norm.apply(w, rows);
        }
    }

    /// The last norm as the linear map that it is for one row: `parts` of the row (several, one after the other) go through it with the
    /// scale of the whole row. What it adds, where it does, is given back.
    pub fn last_norm_parts<T: Float>(&self, w: &Weights<'_, T>, row: &[T], parts: &mut [T]) -> Option<Vec<T>> {
        self.last.as_ref().and_then(|norm| norm.apply_parts(w, row, parts))
    }

    /// Whether there is a backward pass.
    ///
    /// # Errors
    /// [`Error::Untrainable`] with the first part that has none.
    pub fn check_trainable(&self) -> Result<()> {
        match self.sublayers.iter().find_map(Sublayer::untrainable) {
            Some(part) => Err(Error::Untrainable { part }),
            None => Ok(()),
        }
    }

    /// Buffers for a shape; those of the backward pass are made when it comes.
    pub fn plan<T: Float>(&self, pass: &Pass<'_>, keep: Keep) -> Activations<T> {
        let rows = pass.rows();
        let stream = || vec![T::ZERO; rows * self.width];
        let (sublayers, slots) = match keep {
            Keep::Tape => (self.sublayers.iter().map(|s| s.plan(pass, keep)).collect(), (0..self.sublayers.len()).collect()),
            Keep::Discard => self.shared_plans(pass),
        };
        let streams = if keep == Keep::Tape { self.sublayers.len() + 1 } else { 3 };
        Activations {
            keep,
            rows,
            stream: (0..streams).map(|_| stream()).collect(),
            sublayers,
            slots,
            normed: if self.last.is_some() { stream() } else { Vec::new() },
            stats: vec![T::ZERO; rows * NORM_STATS],
            packs: packs(),
            scratch: None,
            d: Vec::new(),
            part: 0..self.sublayers.len(),
        }
    }

    /// One plan for each kind and shape of sublayer.
    fn shared_plans<T: Float>(&self, pass: &Pass<'_>) -> (Vec<SublayerSaved<T>>, Vec<usize>) {
        let shape = |s: &Sublayer| match &s.branch {
            Branch::Mlp(_) => (s.kind(), 0, 0),
            Branch::Attention(a) => (s.kind(), a.input().outputs(), a.output().inputs()),
        };
        let (mut plans, mut shapes, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        for sublayer in &self.sublayers {
            let slot = shapes.iter().position(|known| *known == shape(sublayer)).unwrap_or_else(|| {
                plans.push(sublayer.plan(pass, Keep::Discard));
                shapes.push(shape(sublayer));
                shapes.len() - 1
            });
            slots.push(slot);
        }
        (plans, slots)
    }

    /// From [`Activations::input`] to [`Activations::output`].
    ///
    /// # Errors
    /// When attention refuses the pass.
    pub fn forward<T: Float>(&self, w: &Weights<'_, T>, pass: &Pass<'_>, memory: &[T], acts: &mut Activations<T>) -> Result<()> {
        self.run(w, pass, memory, acts, None, &NoProbe)
    }

    /// The same, looked into.
    ///
    /// # Errors
    /// As [`Stack::forward`].
    pub fn probe<T: Float>(
        &self,
        w: &Weights<'_, T>,
        pass: &Pass<'_>,
        memory: &[T],
        acts: &mut Activations<T>,
        probe: &dyn Probe<T>,
    ) -> Result<()> {
        self.run(w, pass, memory, acts, None, probe)
    }

    pub(crate) fn run<T: Float>(
        &self,
        w: &Weights<'_, T>,
        pass: &Pass<'_>,
        memory: &[T],
        acts: &mut Activations<T>,
        mut past: Option<&mut [Option<Past<T>>]>,
        probe: &dyn Probe<T>,
    ) -> Result<()> {
        let shared = Shared { w, pass, memory, keep: acts.keep, probe };
        let count = acts.stream.len();
        for (i, sublayer) in self.sublayers.iter().enumerate().take(acts.part.end).skip(acts.part.start) {
            if probe.interrupt().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                return Err(regard::Error::Interrupted.into());
            }
            probe.stream(i, &mut acts.stream[i % count]);
            let mut y = std::mem::take(&mut acts.stream[(i + 1) % count]);
            let x = &acts.stream[i % count];
            let input = if sublayer.is_parallel() { &acts.stream[(i + count - 1) % count] } else { x };
            let past = past.as_deref_mut().and_then(|past| past[i].as_mut());
            let saved = &mut acts.sublayers[acts.slots[i]];
            let done = sublayer.forward(&shared, Forward { x, input, y: &mut y, saved, packs: &mut acts.packs }, past);
            acts.stream[(i + 1) % count] = y;
            done?;
        }
        if acts.part.end < self.sublayers.len() {
            return Ok(());
        }
        probe.stream(self.sublayers.len(), &mut acts.stream[self.sublayers.len() % count]);
        let last = &acts.stream[self.sublayers.len() % count];
        if let Some(norm) = &self.last {
            let cut = Cut::rows_of(last, self.width);
            let tasks = cut
                .pieces(last, self.width)
                .zip(cut.pieces_mut(&mut acts.normed, self.width))
                .zip(cut.pieces_mut(&mut acts.stats, NORM_STATS));
            for_pieces(tasks.collect(), |_, ((x, y), stats)| norm.forward(w, x, y, stats));
        }
        Ok(())
    }

    /// From the gradient of the output to that of the input, both in [`Activations::gradient`]; `d_memory` and `g` are added to.
    ///
    /// # Errors
    /// When there was no forward pass with these buffers that kept what is needed.
    pub fn backward<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut Gradients<'_, T>,
        pass: &Pass<'_>,
        memory: &[T],
        d_memory: &mut [T],
        acts: &mut Activations<T>,
    ) -> Result<()> {
        self.backward_probed(w, g, pass, (memory, d_memory), acts, &NoProbe)
    }

    /// The same, looked into.
    ///
    /// # Errors
    /// As [`Stack::backward`].
    pub fn backward_probed<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut Gradients<'_, T>,
        pass: &Pass<'_>,
        (memory, d_memory): (&[T], &mut [T]),
        acts: &mut Activations<T>,
        seen: &dyn GradientProbe<T>,
    ) -> Result<()> {
        self.check_trainable()?;
        if acts.keep != Keep::Tape {
            return Err(Error::BackwardFirst);
        }
        let Activations { stream, sublayers, stats, scratch, d, packs, .. } = acts;
        if scratch.as_ref().is_none_or(|scratch| !scratch.serves(pass)) {
            *scratch = Some(Scratch::new(self.sublayers.iter(), self.width, pass));
        }
        let scratch = scratch.as_mut().ok_or(Error::BackwardFirst)?;
        if let (Some(norm), Some(x)) = (&self.last, stream.last()) {
            let width = self.width;
            let cut = Cut::rows_of(x, width);
            let mut partials = vec![T::ZERO; cut.count() * 2 * width];
            let tasks = cut.pieces(x, width).zip(cut.pieces(stats, NORM_STATS)).zip(cut.pieces_mut(d, width));
            let tasks = tasks.zip(partials.chunks_mut((2 * width).max(1))).collect();
            for_pieces(tasks, |_, (((x, stats), d), partial)| norm.backward_in_place(w, x, stats, d, partial));
            norm.reduce(g, &partials);
        }
        seen.stream(self.sublayers.len(), d);
        let shared = Shared { w, pass, memory, keep: Keep::Tape, probe: &NoProbe };
        for (i, (sublayer, saved)) in self.sublayers.iter().zip(sublayers).enumerate().rev() {
            let x = &stream[if sublayer.is_parallel() { i - 1 } else { i }];
            sublayer.backward(&shared, g, Backward { x, saved, d, d_memory, packs, seen }, scratch)?;
            if self.sublayers.get(i + 1).is_some_and(Sublayer::is_parallel) {
                add(d, &scratch.d_parallel);
            }
            seen.stream(i, d);
        }
        Ok(())
    }

    /// The attention sublayers with what they kept, in order: self (and cross) of each block. Only what was kept can be looked at.
    pub fn attentions<'s, T: Float>(
        &'s self,
        acts: &'s Activations<T>,
    ) -> impl Iterator<Item = (&'s MultiHeadAttention, &'s AttentionSaved<T>)> {
        let kept = if acts.keep == Keep::Tape { acts.sublayers.as_slice() } else { &[] };
        self.sublayers.iter().zip(kept).filter_map(|(sublayer, kept)| match &sublayer.branch {
            Branch::Attention(attention) => kept.attention().map(|kept| (&**attention, kept)),
            Branch::Mlp(_) => None,
        })
    }

    /// Caches for decoding `batch` sequences; with a memory, its keys and values are made here.
    pub fn cache<T: Float>(&self, w: &Weights<'_, T>, batch: usize, memory: Option<Memory<'_, T>>) -> StackCache<T> {
        let past = |sublayer: &Sublayer| match &sublayer.branch {
            Branch::Mlp(_) => None,
            Branch::Attention(a) => Some(a.past(w, batch, memory.map(|m| m.rows))),
        };
        StackCache {
            past: self.sublayers.iter().map(past).collect(),
            lengths: vec![0; batch],
            memory_seq: memory.map_or(0, |m| m.seq),
            memory_lengths: memory.and_then(|m| m.lengths).map(<[usize]>::to_vec),
            acts: None,
        }
    }

    /// Send the rows of `seq` more tokens per sequence through all blocks, with the past from the cache; returns the results. Of `pass`
    /// its positions and its memory are the cache's.
    ///
    /// # Errors
    /// When attention refuses the pass.
    pub fn extend<'c, T: Float>(
        &self,
        w: &Weights<'_, T>,
        x: &[T],
        pass: &Pass<'_>,
        cache: &'c mut StackCache<T>,
        probe: &dyn Probe<T>,
    ) -> Result<&'c [T]> {
        let StackCache { past, lengths, memory_seq, memory_lengths, acts } = cache;
        let pass = Pass {
            offsets: Some(lengths),
            memory_seq: *memory_seq,
            memory_lengths: memory_lengths.as_deref(),
            dropout: None,
            ..pass.clone()
        };
        if acts.as_ref().is_some_and(|acts| acts.rows != pass.rows()) {
            *acts = None;
        }
        // The memory's keys and values are in the cache: a plan needs no room for them.
        let acts = acts.get_or_insert_with(|| self.plan(&Pass { memory_seq: 0, ..pass.clone() }, Keep::Discard));
        acts.input().copy_from_slice(x);
        self.run(w, &pass, &[], acts, Some(past), probe)?;
        let seq = pass.seq;
        lengths.iter_mut().for_each(|length| *length += seq);
        Ok(acts.output())
    }
}

/// What cross-attention reads.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'m, T> {
    /// `[batch, seq, width]`.
    pub rows: &'m [T],
    /// Tokens of each sequence.
    pub seq: usize,
    /// The number of valid rows of each sequence.
    pub lengths: Option<&'m [usize]>,
}

/// The past of a stack, for decoding; it grows with its tokens, and each sequence has a length of its own.
#[derive(Debug, Clone)]
pub struct StackCache<T: Float> {
    past: Vec<Option<Past<T>>>,
    lengths: Vec<usize>,
    memory_seq: usize,
    memory_lengths: Option<Vec<usize>>,
    acts: Option<Activations<T>>,
}

impl<T: Float> StackCache<T> {
    /// Tokens of the longest sequence so far.
    pub fn len(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// Tokens of each sequence so far.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Sequences.
    pub fn batch(&self) -> usize {
        self.lengths.len()
    }

    /// No tokens yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An empty cache that stores keys and values in another type. What cross-attention reads stays as it is.
    #[must_use]
    pub fn stored_as(mut self, kind: CacheType) -> Self {
        self.lengths.fill(0);
        for past in self.past.iter_mut().flatten() {
            if let Past::Tokens(cache) = past {
                *cache = cache.clone().stored_as(kind);
            }
        }
        self
    }

    /// Bytes of the keys and values of tokens, with the room to grow.
    pub fn bytes(&self) -> usize {
        let bytes = |past: &Past<T>| if let Past::Tokens(cache) = past { cache.bytes() } else { 0 };
        self.past.iter().flatten().map(bytes).sum()
    }

    /// Forget the tokens of one sequence after the first `length`.
    pub fn truncate(&mut self, sequence: usize, length: usize) {
        self.lengths[sequence] = self.lengths[sequence].min(length);
    }

    /// Forget the tokens; the memory stays.
    pub fn clear(&mut self) {
        self.lengths.fill(0);
        for past in self.past.iter_mut().flatten() {
            if let Past::Tokens(cache) = past {
                cache.clear();
            }
        }
    }
}
