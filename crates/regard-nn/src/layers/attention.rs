//! Attention with its projections: [`MultiHeadAttention`].
//!
//! ```text
//! self    [q | k | v] = x Wqkv        cross    q = x Wq,  [k | v] = memory Wkv
//! heads are columns of these rows; out = concat over heads of attention(q, k, v);  y = out Wo
//! ```
//!
//! `kv_heads` below `heads` is grouped-query attention, 1 is multi-query. Heads are never transposed: attention reads and
//! writes strided views of the rows.

use super::cache::{CacheViews, KvCache};
use super::heads::{HeadView, Operands};
pub use super::heads::{Heads, HeadsMut};
use super::linear::{Amount, Joined, Linear, Prepared, Strips, packs};
use super::norm::{NORM_STATS, Norm, NormKind};
use super::pass::{MaskKind, Pass};
use super::positions::{Angles, Rotary};
use super::probe::{Attending, Change, GradientProbe, Operand, Probe};
pub use super::relative::Buckets;
use super::relative::Relative;
use super::stack::Keep;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::parallel::{Cut, for_pieces, pieces_or_none};
use crate::random::Draws;
use crate::tensors::layout::{Gradients, Layout};
use crate::tensors::{Order, Weights};
use ndarray::{Array2, Array3, Array4, Axis, Slice, concatenate, stack};
use regard::{Attention, Bias, HeadSimilarity, Mask, RowStats, SavedView, Scale, StatsOptions};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What the dot products are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleKind {
    /// `1 / sqrt(head_dim)`.
    #[default]
    InvSqrtDim,
    /// Nothing: the experiment.
    Off,
    /// Any number.
    Value(f64),
}

impl From<ScaleKind> for Scale {
    fn from(kind: ScaleKind) -> Self {
        match kind {
            ScaleKind::InvSqrtDim => Self::InvSqrtDim,
            ScaleKind::Off => Self::Off,
            ScaleKind::Value(x) => Self::By(x),
        }
    }
}

/// How queries, keys and values are made of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Projection {
    /// One matrix: all queries, all keys, all values.
    #[default]
    Joined,
    /// Three matrices.
    Separate,
    /// One matrix: query, key and value of one head after another; as many key and value heads as query heads.
    PerHead,
}

/// The options of [`MultiHeadAttention`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionConfig {
    /// Width of the residual stream.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Biases in the projections to queries, keys and values.
    pub bias: bool,
    /// A bias in the output projection.
    pub out_bias: bool,
    /// How queries, keys and values are made.
    pub projection: Projection,
    /// How the matrices lie.
    pub order: Order,
    /// RMS norms of each head's queries and keys, before positions; the number is their eps.
    pub head_norms: Option<f64>,
    /// These norms are of whole rows of queries and keys instead of each head's.
    pub whole_norms: bool,
    /// ALiBi on the scores.
    pub alibi: bool,
    /// A learned number per head and bucket of distances on the scores; not in cross-attention.
    pub relative: Option<Buckets>,
    /// Rotary positions, if they are used.
    pub rotary: Option<Rotary>,
    /// What the scores are scaled by.
    pub scale: ScaleKind,
    /// Scores are bent to stay below this.
    pub softcap: Option<f64>,
    /// The number of visible tokens before the query's own.
    pub window: Option<usize>,
    /// Probability of dropping a weight in training.
    pub dropout: f64,
}

impl AttentionConfig {
    /// Heads of equal width that share out `width`; everything else off.
    pub fn new(width: usize, heads: usize) -> Self {
        Self {
            width,
            heads,
            kv_heads: heads,
            head_dim: width / heads.max(1),
            bias: false,
            out_bias: false,
            projection: Projection::Joined,
            order: Order::InOut,
            head_norms: None,
            whole_norms: false,
            alibi: false,
            relative: None,
            rotary: None,
            scale: ScaleKind::InvSqrtDim,
            softcap: None,
            window: None,
            dropout: 0.0,
        }
    }
}

/// Multi-head attention with its projections.
#[derive(Debug, Clone)]
pub struct MultiHeadAttention {
    config: AttentionConfig,
    input: Joined,
    /// Of cross-attention: from the memory to keys and values.
    memory: Option<Joined>,
    /// Of each head's queries and keys.
    norms: Option<[Norm; 2]>,
    out: Linear,
    slopes: Option<Vec<f64>>,
    relative: Option<Relative>,
}

/// What the forward pass keeps: buffers planned once per shape.
#[derive(Debug, Clone)]
pub struct AttentionSaved<T: Float> {
    /// Rows of `[q | k | v]`; of cross-attention, of q alone.
    pub(crate) q: Vec<T>,
    /// Rows of `[k | v]` of the memory; empty for self-attention.
    pub(crate) kv: Vec<T>,
    /// The same rows before the norms of queries and keys; empty without such norms, and where nothing is kept.
    pub(crate) raw: Vec<T>,
    /// The heads' results, side by side.
    pub(crate) out: Vec<T>,
    angles: Option<Angles<T>>,
    /// `row_max` and `row_sum` of each row, for the backward pass.
    ends: Option<[Array3<T::Real>; 2]>,
}

/// What attention remembers of the tokens before.
#[derive(Debug, Clone)]
pub(crate) enum Past<T> {
    /// Keys and values of the same sequences.
    Tokens(KvCache<T>),
    /// Rows of keys and values of the memory.
    Memory(Vec<T>),
}

impl MultiHeadAttention {
    /// Queries, keys and values from the same rows.
    pub fn new(layout: &mut Layout, config: AttentionConfig) -> Self {
        let AttentionConfig { width, bias, order, .. } = config;
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let input = match config.projection {
            Projection::Joined | Projection::PerHead => Joined::new(layout, width, &[("qkv", q + 2 * kv)], bias, order),
            Projection::Separate => Joined::new(layout, width, &[("q", q), ("k", kv), ("v", kv)], bias, order),
        };
        Self::build(layout, config, input, None)
    }

    /// Queries from the rows, keys and values from a memory. Positions do not enter.
    pub fn cross(layout: &mut Layout, config: AttentionConfig) -> Self {
        let projection = if config.projection == Projection::PerHead { Projection::Joined } else { config.projection };
        let config = AttentionConfig { rotary: None, alibi: false, relative: None, window: None, projection, ..config };
        let AttentionConfig { width, bias, order, .. } = config;
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let input = Joined::new(layout, width, &[("q", q)], bias, order);
        let memory = match projection {
            Projection::Separate => Joined::new(layout, width, &[("k", kv), ("v", kv)], bias, order),
            _ => Joined::new(layout, width, &[("kv", 2 * kv)], bias, order),
        };
        Self::build(layout, config, input, Some(memory))
    }

    fn build(layout: &mut Layout, config: AttentionConfig, input: Joined, memory: Option<Joined>) -> Self {
        let width = |heads: usize| config.head_dim * if config.whole_norms { heads } else { 1 };
        let norms = config.head_norms.map(|eps| {
            [("q_norm", config.heads), ("k_norm", config.kv_heads)]
                .map(|(name, heads)| Norm::with_eps(layout, name, NormKind::Rms, width(heads), eps))
        });
        let out = Linear::with_order(layout, "out", config.heads * config.head_dim, config.width, config.out_bias, config.order);
        let relative = config.relative.map(|buckets| Relative::new(layout, buckets, config.heads));
        Self { config, input, memory, norms, out, slopes: config.alibi.then(|| regard::alibi_slopes(config.heads)), relative }
    }

    /// Take the table of relative positions, where there is one, from the weights.
    pub(crate) fn read_table<T: Float>(&mut self, w: &Weights<'_, T>) {
        if let Some(relative) = &mut self.relative {
            relative.read(w);
        }
    }

    /// The options.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// Copies of the projections of queries, keys and values, `[heads, width, head_dim]`, and of the output, `[heads, head_dim, width]`.
    pub fn projections<T: Float>(&self, w: &Weights<'_, T>) -> [Array3<T>; 4] {
        let parts: Vec<Array2<T>> = self.input.parts().iter().map(|part| part.matrix(w).to_dense()).collect();
        let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
        let joined = concatenate(Axis(1), &views).expect("the same inputs");
        let operands = self.operands(&Pass::new(1, 1, MaskKind::Everything));
        let heads = |view: HeadView| {
            let each: Vec<_> = (0..view.heads).map(|h| joined.slice_axis(Axis(1), Slice::from(view.head(h)))).collect();
            stack(Axis(0), &each).expect("the same shapes")
        };
        let output = self.out.matrix(w).to_dense();
        let shape = (self.config.heads, self.config.head_dim, self.config.width);
        let output = Array3::from_shape_vec(shape, output.iter().copied().collect()).expect("as many elements");
        [heads(operands.q), heads(operands.k), heads(operands.v), output]
    }

    pub(crate) fn is_cross(&self) -> bool {
        self.memory.is_some()
    }

    /// A part that has no backward pass.
    pub(crate) fn untrainable(&self) -> Option<&'static str> {
        if self.relative.is_some() {
            return Some("a table of relative positions");
        }
        (self.norms.is_some() && self.is_cross()).then_some("cross-attention with norms of queries and keys")
    }

    /// The layers that make queries (and of self-attention keys and values) of rows.
    pub(crate) fn input(&self) -> &Joined {
        &self.input
    }

    /// The output projection.
    pub fn output(&self) -> &Linear {
        &self.out
    }

    /// Numbers per row of keys and values of a memory.
    pub(crate) fn memory_width(&self) -> usize {
        self.memory.as_ref().map_or(0, Joined::outputs)
    }

    fn q_width(&self) -> usize {
        self.config.heads * self.config.head_dim
    }

    fn operands(&self, pass: &Pass<'_>) -> Operands {
        let AttentionConfig { heads, kv_heads, head_dim: dim, .. } = self.config;
        let (q_width, kv_width) = (heads * dim, kv_heads * dim);
        let q = HeadView { batch: pass.batch, seq: pass.seq, width: self.input.outputs(), first: 0, stride: dim, heads, dim };
        if self.is_cross() {
            let k = HeadView { seq: pass.memory_seq, width: 2 * kv_width, heads: kv_heads, ..q };
            return Operands { q, k, v: HeadView { first: kv_width, ..k } };
        }
        if self.config.projection == Projection::PerHead {
            let q = HeadView { stride: 3 * dim, ..q };
            return Operands { q, k: HeadView { first: dim, ..q }, v: HeadView { first: 2 * dim, ..q } };
        }
        let k = HeadView { first: q_width, heads: kv_heads, ..q };
        Operands { q, k, v: HeadView { first: q_width + kv_width, ..k } }
    }

    fn out_view(&self, pass: &Pass<'_>) -> HeadView {
        let AttentionConfig { heads, head_dim: dim, .. } = self.config;
        HeadView { batch: pass.batch, seq: pass.seq, width: heads * dim, first: 0, stride: dim, heads, dim }
    }

    /// Buffers for a shape.
    pub fn plan<T: Float>(&self, pass: &Pass<'_>) -> AttentionSaved<T> {
        AttentionSaved {
            q: vec![T::ZERO; pass.rows() * self.input.outputs()],
            kv: vec![T::ZERO; pass.memory_rows() * self.memory_width()],
            raw: vec![T::ZERO; if self.norms.is_some() { pass.rows() * self.input.outputs() } else { 0 }],
            out: vec![T::ZERO; pass.rows() * self.q_width()],
            angles: None,
            ends: None,
        }
    }

    /// What parts of one row come to in the queries or keys of a head, of `parts` (several, one after the other) that were normalised as
    /// the row was; the last of them takes the bias. Norms of queries and keys keep the scale of the whole row.
    pub(crate) fn operand_parts<T: Float>(
        &self,
        w: &Weights<'_, T>,
        operand: Operand,
        head: usize,
        position: usize,
        parts: &[T],
    ) -> Vec<T> {
        let dim = self.config.head_dim;
        // A norm of whole rows needs all heads for its scale.
        let whole = self.config.whole_norms && operand != Operand::V;
        let heads = if operand == Operand::Q { self.config.heads } else { self.config.kv_heads };
        let (first, span) = if whole { (0, heads * dim) } else { (head, dim) };
        let (mut made, bias) = self.input.product_of(w, parts, self.first_of(operand, first), span);
        let last = made.len().saturating_sub(span);
        made[last..].iter_mut().zip(bias.iter().flatten()).for_each(|(x, b)| *x += *b);
        if let (Some([q_norm, k_norm]), true) = (&self.norms, operand != Operand::V) {
            let mut whole = vec![T::ZERO; span];
            made.chunks_exact(span).for_each(|part| whole.iter_mut().zip(part).for_each(|(sum, x)| *sum += *x));
            let norm = if operand == Operand::Q { q_norm } else { k_norm };
            norm.apply_parts(w, &whole, &mut made);
        }
        if whole {
            made = made.chunks_exact(span).flat_map(|part| part[head * dim..(head + 1) * dim].iter().copied()).collect();
        }
        if let (Some(rotary), true) = (self.config.rotary, operand != Operand::V) {
            let angles = Angles::new(rotary, dim, position + 1);
            made.chunks_exact_mut(dim).for_each(|part| angles.rotate(part, position, false));
        }
        made
    }

    /// Make sure that there are angles for the positions of a pass.
    pub(crate) fn fit<T: Float>(&self, pass: &Pass<'_>, saved: &mut AttentionSaved<T>) {
        let count = pass.end();
        match (self.config.rotary, &saved.angles) {
            (None, _) => saved.angles = None,
            (Some(rotary), Some(angles)) if angles.serves(rotary, count) => {}
            (Some(rotary), before) => {
                // One token more at a time must not make them anew each time.
                let count = if before.is_some() { count.next_power_of_two() } else { count };
                saved.angles = Some(Angles::new(rotary, self.config.head_dim, count));
            }
        }
    }

    /// The attention itself, for a pass, with other scores than the model's own where `change` says so.
    pub fn attention<'a>(&self, pass: &Pass<'a>, layer: u64, change: &Change<'a>) -> Attention<'a> {
        let Change { temperature, flat, .. } = *change;
        let scale = match (flat, change.scale.unwrap_or_else(|| self.config.scale.into()), temperature) {
            (true, ..) => Scale::By(0.0),
            (false, scale, None) => scale,
            (false, Scale::InvSqrtDim, Some(t)) => Scale::By(1.0 / (self.config.head_dim as f64).sqrt() / t),
            (false, Scale::Off, Some(t)) => Scale::By(1.0 / t),
            (false, Scale::By(x), Some(t)) => Scale::By(x / t),
        };
        let mut attention = Attention::new().scale(scale);
        // cap tanh(s / cap) / t is the same function of s / t, with the cap cap / t.
        let cooled = |x: f64| temperature.map_or(x, |t| x / t);
        if let (Some(slopes), false) = (&self.slopes, flat) {
            let slopes = change.head.map_or(slopes.as_slice(), |head| &slopes[head..=head]);
            attention = attention.bias(Bias::Alibi(slopes.iter().map(|&slope| cooled(slope)).collect()));
        }
        if let (Some(relative), false) = (&self.relative, flat) {
            attention = attention.bias(relative.bias(change.head, temperature));
        }
        if let (Some(cap), false) = (self.config.softcap, flat) {
            attention = attention.softcap(cooled(cap));
        }
        let lengths = if self.is_cross() {
            pass.memory_lengths
        } else {
            attention = attention.mask(change.mask.clone().unwrap_or_else(|| pass.mask.clone()));
            if let (Some(left), None) = (self.config.window, &change.mask) {
                attention = attention.mask(Mask::window(Some(left), None));
            }
            pass.key_lengths
        };
        if let Some(only) = &change.only {
            attention = attention.mask(only.clone());
        }
        if let Some(lengths) = lengths {
            attention = attention.key_lengths(lengths);
        }
        match pass.dropout {
            Some(seed) if self.config.dropout > 0.0 => attention.dropout(self.config.dropout, Draws::at(seed, &[0xA77E, layer]).bits()),
            _ => attention,
        }
    }

    /// Queries (keys, values) of rows on the calling thread; the first is row `first` of all.
    pub(crate) fn project<T: Float>(
        &self,
        w: &Weights<'_, T>,
        ready: &[Prepared<'_, T>],
        x: &[T],
        first: usize,
        pass: &Pass<'_>,
        angles: Option<&Angles<T>>,
        (q, raw): (&mut [T], &mut [T]),
    ) {
        self.input.product(ready, x, q);
        self.input.add_biases(w, q);
        if !raw.is_empty() {
            raw.copy_from_slice(q);
        }
        if let Some([q_norm, k_norm]) = &self.norms {
            let operands = self.operands(pass);
            for row in q.chunks_exact_mut(self.input.outputs().max(1)) {
                self.normed(operands.q).for_each(|columns| q_norm.apply(w, &mut row[columns]));
                if !self.is_cross() {
                    self.normed(operands.k).for_each(|columns| k_norm.apply(w, &mut row[columns]));
                }
            }
        }
        self.rotate(angles, first, pass, q, false);
    }

    /// The columns of each norm of queries or keys.
    fn normed(&self, view: HeadView) -> impl Iterator<Item = Range<usize>> {
        let count = if self.config.whole_norms { 1 } else { view.heads };
        (0..count).map(move |h| {
            let columns = view.head(h);
            columns.start..columns.end + (view.heads - 1) * view.dim * usize::from(count != view.heads)
        })
    }

    fn rotate<T: Float>(&self, angles: Option<&Angles<T>>, first: usize, pass: &Pass<'_>, rows: &mut [T], back: bool) {
        let Some(angles) = angles else { return };
        let (operands, dim) = (self.operands(pass), self.config.head_dim);
        for (row, numbers) in (first..).zip(rows.chunks_exact_mut(self.input.outputs().max(1))) {
            let position = pass.position(row);
            if operands.q.stride == dim {
                // Keys follow the queries in memory.
                let end = (self.config.heads + self.config.kv_heads) * dim;
                angles.rotate_heads(&mut numbers[..end], dim, position, back);
            } else {
                for h in 0..self.config.heads {
                    angles.rotate(&mut numbers[operands.q.head(h)], position, back);
                    angles.rotate(&mut numbers[operands.k.head(h)], position, back);
                }
            }
        }
    }

    /// Keys and values of the memory's rows.
    pub(crate) fn project_memory<T: Float>(&self, w: &Weights<'_, T>, memory: &[T], kv: &mut [T]) {
        let Some(layers) = &self.memory else { return };
        layers.forward(w, Amount::Many, &mut packs(), memory, kv);
        if let Some([_, k_norm]) = &self.norms {
            for row in kv.chunks_exact_mut(layers.outputs().max(1)) {
                k_norm.apply(w, &mut row[..self.config.kv_heads * self.config.head_dim]);
            }
        }
    }

    /// The past of an empty text, or of a memory.
    pub(crate) fn past<T: Float>(&self, w: &Weights<'_, T>, batch: usize, memory: Option<&[T]>) -> Past<T> {
        if self.is_cross() {
            let memory = memory.unwrap_or_default();
            let mut kv = vec![T::ZERO; memory.len() / self.config.width.max(1) * self.memory_width()];
            self.project_memory(w, memory, &mut kv);
            Past::Memory(kv)
        } else {
            Past::Tokens(KvCache::new(&self.config, batch))
        }
    }

    /// The rows, the same before norms, and the rotary angles of a plan.
    pub(crate) fn split<T: Float>(saved: &mut AttentionSaved<T>) -> (&mut Vec<T>, &mut Vec<T>, Option<&Angles<T>>) {
        (&mut saved.q, &mut saved.raw, saved.angles.as_ref())
    }

    /// The first of the projected columns that are an operand of a head.
    pub(crate) fn first_of(&self, operand: Operand, head: usize) -> usize {
        let operands = self.operands(&Pass::new(1, 1, MaskKind::Everything));
        let view = match operand {
            Operand::Q => operands.q,
            Operand::K => operands.k,
            Operand::V => operands.v,
        };
        view.head(head).start
    }

    /// Queries, keys and values of the last forward pass, for the instruments of `regard`.
    pub fn heads<'s, T: Float>(&self, pass: &Pass<'_>, saved: &'s AttentionSaved<T>) -> Heads<'s, T> {
        let operands = self.operands(pass);
        let kv = if self.is_cross() { &saved.kv } else { &saved.q };
        Heads { q: operands.q.of(&saved.q), k: operands.k.of(kv), v: operands.v.of(kv) }
    }

    /// Attend: `saved.out` from the projected rows, over these alone or over the past and them.
    ///
    /// # Errors
    /// When key lengths do not fit the pass.
    pub(crate) fn attend<T: Float>(
        &self,
        pass: &Pass<'_>,
        layer: u64,
        saved: &mut AttentionSaved<T>,
        keep: Keep,
        past: Option<&mut Past<T>>,
        probe: &dyn Probe<T>,
    ) -> Result<()> {
        let operands = self.operands(pass);
        probe.heads(layer as usize, &mut HeadsMut::new(&mut saved.q, self.is_cross().then_some(saved.kv.as_mut_slice()), operands));
        let AttentionSaved { q, kv, out, ends, .. } = saved;
        let rows = if self.is_cross() { &*kv } else { &*q };
        let mut attending = Attending { layer: self, pass, number: layer, offsets: None };
        // Of a compressed cache, for who looks at them.
        let widened;
        let mut compressed = None;
        let heads = match &past {
            None => Heads { q: operands.q.of(q), k: operands.k.of(rows), v: operands.v.of(rows) },
            Some(Past::Memory(kv)) => Heads { q: operands.q.of(q), k: operands.k.of(kv), v: operands.v.of(kv) },
            Some(Past::Tokens(_)) => {
                attending.offsets = Some((0..pass.batch).map(|b| pass.start(b) as i64).collect());
                let Some(Past::Tokens(cache)) = past else { unreachable!("matched above") };
                cache.push(pass, operands.k.of(q), operands.v.of(q));
                let [k, v] = match cache.views() {
                    CacheViews::Full(full) => full,
                    CacheViews::Compressed(views) => {
                        compressed = Some(views);
                        let looked_at = keep == Keep::Tape || probe.reads_heads(layer as usize);
                        widened = if looked_at {
                            cache.widened()
                        } else {
                            [(); 2].map(|()| Array4::from_elem((pass.batch, operands.k.heads, 0, operands.k.dim), T::ZERO))
                        };
                        widened.each_ref().map(|rows| rows.view())
                    }
                };
                Heads { q: operands.q.of(q), k, v }
            }
        };
        let change = probe.change(layer as usize);
        let attention = match probe.interrupt() {
            Some(flag) => attending.attention(&change).interrupt(flag),
            None => attending.attention(&change),
        };
        let view = self.out_view(pass);
        match keep {
            Keep::Discard => {
                match compressed {
                    Some([k, v]) => attention.forward_with_cache_into(heads.q, k, v, view.of_mut(out), None)?,
                    None => attention.forward_into(heads.q, heads.k, heads.v, view.of_mut(out), None)?,
                }
                *ends = None;
            }
            Keep::Tape => {
                let kept = attention.forward_saved(heads.q, heads.k, heads.v)?;
                view.put(&kept.out, out);
                *ends = Some([kept.row_max, kept.row_sum]);
            }
        }
        Ok(probe.results(layer as usize, &attending, &heads, view.of_mut(out))?)
    }

    /// Gradients on the projected rows: `d_q` (and of cross-attention `d_kv`), from the gradient on `saved.out`.
    pub(crate) fn attend_backward<T: Float>(
        &self,
        (w, g): (&Weights<'_, T>, &mut Gradients<'_, T>),
        (pass, layer): (&Pass<'_>, u64),
        saved: &AttentionSaved<T>,
        d_out: &[T],
        (d_q, d_kv): (&mut [T], &mut [T]),
        seen: &dyn GradientProbe<T>,
    ) -> Result<()> {
        let heads = self.heads(pass, saved);
        let [row_max, row_sum] = saved.ends.as_ref().ok_or(Error::BackwardFirst)?;
        let view = self.out_view(pass);
        let kept = SavedView { out: view.of(&saved.out), out_unrounded: None, row_max: row_max.view(), row_sum: row_sum.view() };
        let gradients = self.attention(pass, layer, &Change::default()).backward(heads.q, heads.k, heads.v, kept, view.of(d_out))?;
        seen.results(layer as usize, &heads, view.of(d_out));
        seen.heads(layer as usize, &Heads { q: gradients.dq.view(), k: gradients.dk.view(), v: gradients.dv.view() });
        let operands = self.operands(pass);
        operands.q.put(&gradients.dq, d_q);
        let d_kv = if self.is_cross() { d_kv } else { &mut *d_q };
        operands.k.put(&gradients.dk, d_kv);
        operands.v.put(&gradients.dv, d_kv);
        if saved.angles.is_some() {
            let cut = Cut::new(pass.rows());
            let tasks = cut.pieces_mut(d_q, self.input.outputs()).collect();
            for_pieces(tasks, |i, d_q| self.rotate(saved.angles.as_ref(), cut.first(i), pass, d_q, true));
        }
        self.norms_backward(w, g, pass, &saved.raw, d_q);
        Ok(())
    }

    /// Gradients after the norms of queries and keys become those before them.
    fn norms_backward<T: Float>(&self, w: &Weights<'_, T>, g: &mut Gradients<'_, T>, pass: &Pass<'_>, raw: &[T], d_q: &mut [T]) {
        let Some([q_norm, k_norm]) = &self.norms else { return };
        let (operands, width) = (self.operands(pass), self.input.outputs());
        let (of_q, all) = (2 * q_norm.width(), 2 * (q_norm.width() + k_norm.width()));
        let cut = Cut::new(pass.rows());
        let mut partials = vec![T::ZERO; cut.count() * all];
        let tasks = cut.pieces(raw, width).zip(cut.pieces_mut(d_q, width)).zip(partials.chunks_mut(all)).collect();
        for_pieces(tasks, |_, ((raw, d_q), partial)| {
            let (of_q, of_k) = partial.split_at_mut(of_q);
            let (mut normed, mut stats) = (vec![T::ZERO; q_norm.width().max(k_norm.width())], [T::ZERO; NORM_STATS]);
            for (raw, d_q) in raw.chunks_exact(width).zip(d_q.chunks_exact_mut(width)) {
                for (norm, view, partial) in [(q_norm, operands.q, &mut *of_q), (k_norm, operands.k, &mut *of_k)] {
                    for head in self.normed(view) {
                        norm.forward(w, &raw[head.clone()], &mut normed[..norm.width()], &mut stats);
                        norm.backward_in_place(w, &raw[head.clone()], &stats, &mut d_q[head], partial);
                    }
                }
            }
        });
        for partial in partials.chunks_exact(all) {
            q_norm.reduce(g, &partial[..of_q]);
            k_norm.reduce(g, &partial[of_q..]);
        }
    }

    /// The whole module: `y = attention(x) Wo`, of a memory where it is cross-attention.
    ///
    /// # Errors
    /// When key lengths do not fit the pass.
    pub fn forward<T: Float>(
        &self,
        w: &Weights<'_, T>,
        pass: &Pass<'_>,
        x: &[T],
        memory: &[T],
        y: &mut [T],
        saved: &mut AttentionSaved<T>,
    ) -> Result<()> {
        self.fit(pass, saved);
        let (q, raw, angles) = Self::split(saved);
        let cut = Cut::rows_of(x, self.config.width);
        let outputs = self.input.outputs();
        let tasks = cut.pieces(x, self.config.width).zip(cut.pieces_mut(q, outputs)).zip(pieces_or_none(cut, raw, outputs)).collect();
        let mut packs = packs();
        let ready = self.input.prepare(w, Amount::Many, &mut packs);
        for_pieces(tasks, |i, ((x, q), raw)| self.project(w, &ready, x, cut.first(i), pass, angles, (q, raw)));
        self.project_memory(w, memory, &mut saved.kv);
        self.attend(pass, 0, saved, Keep::Tape, None, &super::probe::NoProbe)?;
        self.out.forward(w, &saved.out, y);
        Ok(())
    }

    /// The whole module backwards: writes dx, adds to `d_memory` and to the parameters' gradients.
    ///
    /// # Errors
    /// When there was no forward pass with these buffers.
    pub fn backward<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut Gradients<'_, T>,
        pass: &Pass<'_>,
        (x, memory): (&[T], &[T]),
        saved: &AttentionSaved<T>,
        dy: &[T],
        (dx, d_memory): (&mut [T], &mut [T]),
    ) -> Result<()> {
        let mut d_out = vec![T::ZERO; saved.out.len()];
        let (mut d_q, mut d_kv) = (vec![T::ZERO; saved.q.len()], vec![T::ZERO; saved.kv.len()]);
        self.out.backward(w, g, &saved.out, dy, &mut d_out);
        self.attend_backward((w, g), (pass, 0), saved, &d_out, (&mut d_q, &mut d_kv), &super::probe::NoProbe)?;
        let mut packs = packs();
        self.input.pack_transposed(w, &mut packs);
        let cut = Cut::rows_of(x, self.config.width);
        let tasks = cut.pieces(&d_q, self.input.outputs()).zip(cut.pieces_mut(dx, self.config.width)).collect();
        for_pieces(tasks, |_, (d_q, dx)| self.input.input_gradient(&packs, d_q, dx));
        self.input.weight_gradient(g, x, &d_q);
        self.memory_backward(w, g, memory, &d_kv, d_memory, &mut packs);
        Ok(())
    }

    /// Adds to `d_memory` and the gradients of the memory's projection.
    pub(crate) fn memory_backward<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut Gradients<'_, T>,
        memory: &[T],
        d_kv: &[T],
        d_memory: &mut [T],
        packs: &mut [Strips<T>],
    ) {
        let Some(layers) = &self.memory else { return };
        let cut = Cut::rows_of(memory, self.config.width);
        let tasks = cut.pieces(d_kv, layers.outputs()).zip(cut.pieces_mut(d_memory, self.config.width)).collect();
        layers.pack_transposed(w, packs);
        for_pieces(tasks, |_, (dy, dx)| layers.add_input_gradient(packs, dy, dx));
        layers.weight_gradient(g, memory, d_kv);
    }

    /// The weights of the last forward pass, `[batch, heads, seq, keys]`: quadratic in memory.
    ///
    /// # Errors
    /// When key lengths do not fit the pass.
    pub fn weights<T: Float>(&self, pass: &Pass<'_>, saved: &AttentionSaved<T>) -> Result<Array4<T>> {
        let heads = self.heads(pass, saved);
        Ok(self.attention(pass, 0, &Change::default()).weights(heads.q, heads.k)?)
    }

    /// What each row of the last forward pass attended to, in linear memory.
    ///
    /// # Errors
    /// When key lengths do not fit the pass.
    pub fn stats<T: Float>(&self, pass: &Pass<'_>, saved: &AttentionSaved<T>, options: StatsOptions) -> Result<RowStats<T>> {
        let heads = self.heads(pass, saved);
        Ok(self.attention(pass, 0, &Change::default()).forward_with_stats(heads.q, heads.k, heads.v, options)?.1)
    }

    /// How alike the heads of the last forward pass are.
    ///
    /// # Errors
    /// When key lengths do not fit the pass.
    pub fn similarity<T: Float>(&self, pass: &Pass<'_>, saved: &AttentionSaved<T>) -> Result<HeadSimilarity> {
        let heads = self.heads(pass, saved);
        Ok(self.attention(pass, 0, &Change::default()).head_similarity(heads.q, heads.k)?)
    }
}
