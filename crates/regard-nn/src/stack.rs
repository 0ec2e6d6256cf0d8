//! Blocks of a transformer, one after the other: self-attention, (cross-attention,) network, each a [`Sublayer`].

use crate::attention::{AttentionConfig, AttentionSaved, MultiHeadAttention};
use crate::cache::KvCache;
use crate::config::ModelConfig;
use crate::error::Result;
use crate::float::Float;
use crate::look::Call;
use crate::mlp::Mlp;
use crate::norm::{NORM_STATS, Norm};
use crate::parallel::{Cut, for_pieces};
use crate::params::Layout;
use crate::positions::{Positions, Rotary, add};
use crate::sublayer::{Branch, NormPlace, Scratch, Sublayer, SublayerSaved};

/// Blocks, and with pre-norm a last norm.
#[derive(Debug, Clone)]
pub struct Stack {
    sublayers: Vec<Sublayer>,
    last: Option<Norm>,
    width: usize,
    rotary: Option<(f64, usize)>,
}

/// What a pass through a stack keeps, and the room for its gradients.
#[derive(Debug, Clone)]
pub struct StackSaved<T: Float> {
    /// The residual stream: before each sublayer, and behind the last.
    stream: Vec<Vec<T>>,
    sublayers: Vec<SublayerSaved<T>>,
    normed: Vec<T>,
    stats: Vec<T>,
    scratch: Option<Scratch<T>>,
    partials: Vec<T>,
    d: Vec<T>,
}

impl<T: Float> StackSaved<T> {
    /// Where rows go in.
    pub fn input(&mut self) -> &mut [T] {
        &mut self.stream[0]
    }

    /// The result of the last forward pass.
    pub fn output(&self) -> &[T] {
        if self.normed.is_empty() { self.stream.last().map_or(&[], Vec::as_slice) } else { &self.normed }
    }

    /// The gradient: of the result before [`Stack::backward`], of the input after it.
    pub fn gradient(&mut self) -> &mut [T] {
        &mut self.d
    }

    /// The result and the place for its gradient.
    pub(crate) fn output_and_gradient(&mut self) -> (&[T], &mut [T]) {
        let Self { stream, normed, d, .. } = self;
        (if normed.is_empty() { stream.last().map_or(&[], Vec::as_slice) } else { normed }, d)
    }
}

impl Stack {
    /// Blocks as the configuration says, with cross-attention or without.
    pub fn new(layout: &mut Layout, config: &ModelConfig, layers: usize, cross: bool) -> Self {
        let rotary = if let Positions::Rotary(base) = config.positions { Some(base) } else { None };
        let attention = AttentionConfig {
            width: config.width,
            heads: config.heads,
            kv_heads: config.kv_heads(),
            head_dim: config.head_dim(),
            bias: config.attention_bias,
            alibi: config.positions == Positions::Alibi,
            rotary,
            scale: config.scale,
            dropout: config.dropout,
        };
        let mut sublayers = Vec::new();
        for block in 0..layers {
            let mut add = |part: &str, branch: &dyn Fn(&mut Layout) -> Branch| {
                let (norm, branch) = layout.within(format!("blocks.{block}.{part}"), |layout| {
                    (Norm::new(layout, "norm", config.norm, config.width), branch(layout))
                });
                let number = sublayers.len() as u64;
                sublayers.push(Sublayer { norm, place: config.norm_place, branch, dropout: config.dropout, number });
            };
            add("attention", &|layout| Branch::Attention(MultiHeadAttention::new(layout, attention)));
            if cross {
                add("cross", &|layout| Branch::Attention(MultiHeadAttention::cross(layout, attention)));
            }
            add("mlp", &|layout| Branch::Mlp(Mlp::new(layout, config.mlp, config.width, config.hidden())));
        }
        let last = (config.norm_place == NormPlace::Pre).then(|| Norm::new(layout, "last_norm", config.norm, config.width));
        Self { sublayers, last, width: config.width, rotary: rotary.map(|base| (base, config.head_dim())) }
    }

    /// Buffers for a shape; those of the backward pass only where asked for.
    pub fn plan<T: Float>(&self, call: &Call<'_>, backward: bool) -> StackSaved<T> {
        let rows = call.rows();
        let stream = || vec![T::ZERO; rows * self.width];
        StackSaved {
            stream: (0..=self.sublayers.len()).map(|_| stream()).collect(),
            sublayers: self.sublayers.iter().map(|s| s.plan(call)).collect(),
            normed: if self.last.is_some() { stream() } else { Vec::new() },
            stats: vec![T::ZERO; rows * NORM_STATS],
            scratch: backward.then(|| Scratch::new(self.sublayers.iter(), self.width, call)),
            partials: vec![T::ZERO; Cut::new(rows).count() * 2 * self.width],
            d: if backward { stream() } else { Vec::new() },
        }
    }

    /// From [`StackSaved::input`] to [`StackSaved::output`].
    ///
    /// # Errors
    /// When attention refuses the call.
    pub fn forward<T: Float>(&self, p: &[T], call: &Call<'_>, memory: &[T], saved: &mut StackSaved<T>) -> Result<()> {
        for (i, (sublayer, kept)) in self.sublayers.iter().zip(&mut saved.sublayers).enumerate() {
            let (before, behind) = saved.stream.split_at_mut(i + 1);
            sublayer.forward(p, call, &before[i], memory, &mut behind[0], kept)?;
        }
        if let (Some(norm), Some(x)) = (&self.last, saved.stream.last()) {
            let cut = Cut::rows_of(x, self.width);
            let tasks = cut
                .pieces(x, self.width)
                .zip(cut.pieces_mut(&mut saved.normed, self.width))
                .zip(cut.pieces_mut(&mut saved.stats, NORM_STATS));
            for_pieces(tasks.collect(), |_, ((x, y), stats)| norm.forward(p, x, y, stats));
        }
        Ok(())
    }

    /// From the gradient of the output to that of the input, both in [`StackSaved::gradient`]; `d_memory` and `g` are added to.
    ///
    /// # Errors
    /// When there was no forward pass with these buffers.
    pub fn backward<T: Float>(
        &self,
        p: &[T],
        g: &mut [T],
        call: &Call<'_>,
        memory: &[T],
        d_memory: &mut [T],
        saved: &mut StackSaved<T>,
    ) -> Result<()> {
        let StackSaved { stream, sublayers, stats, scratch, partials, d, .. } = saved;
        let scratch = scratch.as_mut().ok_or(crate::Error::BackwardFirst)?;
        if let (Some(norm), Some(x)) = (&self.last, stream.last()) {
            partials.fill(T::ZERO);
            let width = self.width;
            let cut = Cut::rows_of(x, width);
            let tasks = cut.pieces(x, width).zip(cut.pieces(stats, NORM_STATS)).zip(cut.pieces_mut(d, width));
            let tasks = tasks.zip(partials.chunks_mut((2 * width).max(1))).collect();
            for_pieces(tasks, |_, (((x, stats), d), partial)| norm.backward_in_place(p, x, stats, d, partial));
            norm.reduce(g, partials);
        }
        for (i, (sublayer, kept)) in self.sublayers.iter().zip(sublayers).enumerate().rev() {
            sublayer.backward(p, g, call, &stream[i], memory, kept, d, d_memory, scratch)?;
        }
        Ok(())
    }

    /// The attention sublayers with what they kept, in order: self (and cross) of each block.
    pub fn attentions<'s, T: Float>(
        &'s self,
        saved: &'s StackSaved<T>,
    ) -> impl Iterator<Item = (&'s MultiHeadAttention, &'s AttentionSaved<T>)> {
        self.sublayers.iter().zip(&saved.sublayers).filter_map(|(sublayer, kept)| match &sublayer.branch {
            Branch::Attention(attention) => kept.attention().map(|kept| (attention, kept)),
            Branch::Mlp(_) => None,
        })
    }

    /// Caches for decoding `batch` sequences of up to `capacity` tokens; with a memory, its keys and values are made here.
    pub fn cache<T: Float>(&self, p: &[T], batch: usize, capacity: usize, memory: Option<Memory<'_, T>>) -> StackCache<T> {
        let past = |sublayer: &Sublayer| match &sublayer.branch {
            Branch::Mlp(_) => Past::Nothing,
            Branch::Attention(a) if a.is_cross() => match memory {
                Some(memory) => Past::Memory(a.memory_heads(p, memory.rows)),
                None => Past::Nothing,
            },
            Branch::Attention(a) => Past::Tokens(KvCache::new(a, batch, capacity)),
        };
        StackCache {
            past: self.sublayers.iter().map(past).collect(),
            rotary: self.rotary.map(|(base, dim)| Rotary::new(base, dim, capacity)),
            batch,
            capacity,
            len: 0,
            memory_seq: memory.map_or(0, |m| m.seq),
            memory_lengths: memory.and_then(|m| m.lengths).map(<[usize]>::to_vec),
            rows: [const { Vec::new() }; 5],
        }
    }

    /// Send the rows of `new` more tokens per sequence through all blocks, causally, with the past from the cache; x becomes the result.
    ///
    /// # Errors
    /// When the cache is full.
    pub fn extend<T: Float>(&self, p: &[T], x: &mut [T], cache: &mut StackCache<T>) -> Result<()> {
        let rows = x.len() / self.width;
        let new = rows / cache.batch.max(1);
        if cache.len + new > cache.capacity {
            return Err(crate::Error::TooLong { tokens: cache.len + new, context: cache.capacity });
        }
        let StackCache { past, rotary, batch, memory_seq, memory_lengths, rows: buffers, .. } = cache;
        let [normed, stats, inner, act, y] = buffers;
        let fit = |buffer: &mut Vec<T>, width: usize| buffer.resize(rows * width, T::ZERO);
        fit(normed, self.width);
        fit(stats, NORM_STATS);
        fit(y, self.width);
        for (sublayer, past) in self.sublayers.iter().zip(past) {
            let pre = sublayer.place == NormPlace::Pre;
            if pre {
                sublayer.norm.forward(p, x, normed, stats);
            }
            let input = if pre { &*normed } else { &*x };
            match (&sublayer.branch, past) {
                (Branch::Mlp(mlp), _) => {
                    fit(inner, mlp.inner());
                    fit(act, mlp.hidden());
                    mlp.forward_only(p, input, inner, act, y);
                }
                (Branch::Attention(attention), past) => {
                    fit(inner, attention.input().outputs());
                    fit(act, attention.output().inputs());
                    attention.input().forward(p, input, inner);
                    match past {
                        Past::Tokens(cache) => attention.attend_cached(new, rotary.as_ref(), inner, cache, act)?,
                        Past::Memory(kv) => {
                            attention.attend_memory(*batch, new, inner, kv, *memory_seq, memory_lengths.as_deref(), act)?;
                        }
                        Past::Nothing => act.fill(T::ZERO),
                    }
                    attention.output().forward(p, act, y);
                }
            }
            add(x, y);
            if !pre {
                normed.copy_from_slice(x);
                sublayer.norm.forward(p, normed, x, stats);
            }
        }
        if let Some(norm) = &self.last {
            normed.copy_from_slice(x);
            norm.forward(p, normed, x, stats);
        }
        cache.len += new;
        Ok(())
    }
}

/// What cross-attention reads.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'m, T> {
    /// `[batch, seq, width]`.
    pub rows: &'m [T],
    /// Tokens of each sequence.
    pub seq: usize,
    /// Only the first so many of these exist.
    pub lengths: Option<&'m [usize]>,
}

#[derive(Debug, Clone)]
enum Past<T> {
    Nothing,
    Tokens(KvCache<T>),
    Memory(Vec<T>),
}

/// The past of a stack, for decoding.
#[derive(Debug, Clone)]
pub struct StackCache<T> {
    past: Vec<Past<T>>,
    rotary: Option<Rotary<T>>,
    batch: usize,
    capacity: usize,
    len: usize,
    memory_seq: usize,
    memory_lengths: Option<Vec<usize>>,
    rows: [Vec<T>; 5],
}

impl<T: Float> StackCache<T> {
    /// Tokens per sequence so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// No tokens yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens per sequence that there is room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forget the tokens; the memory stays.
    pub fn clear(&mut self) {
        self.len = 0;
        for past in &mut self.past {
            if let Past::Tokens(cache) = past {
                cache.clear();
            }
        }
    }
}
