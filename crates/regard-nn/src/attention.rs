//! Attention with its projections: [`MultiHeadAttention`] and the single-head [`ScaledAttention`].
//!
//! ```text
//! self    [q | k | v] = x Wqkv        cross    q = x Wq,  [k | v] = memory Wkv
//! heads are columns of these rows; out = concat over heads of attention(q, k, v);  y = out Wo
//! ```
//!
//! `kv_heads` below `heads` is grouped-query attention, 1 is multi-query. Heads are never transposed: attention reads and
//! writes strided views of the rows.

use crate::error::{Error, Result};
use crate::float::Float;
use crate::linear::{Linear, Write, add_to_rows};
use crate::look::Call;
use crate::parallel::{Cut, for_pieces};
use crate::params::Layout;
use crate::positions::Rotary;
use crate::random::Draws;
use ndarray::{Array4, ArrayView4, ShapeBuilder};
use rayon::prelude::*;
use regard::matmul::Packed;
use regard::{Attention, Bias, HeadSimilarity, RowStats, Saved, Scale, StatsOptions};
use serde::{Deserialize, Serialize};

/// What the dot products are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleKind {
    /// `1 / sqrt(head_dim)`.
    #[default]
    InvSqrtDim,
    /// Nothing: the experiment.
    Off,
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
    /// Biases in all projections.
    pub bias: bool,
    /// ALiBi on the scores.
    pub alibi: bool,
    /// The base of rotary positions, if they are used.
    pub rotary: Option<f64>,
    /// What the scores are scaled by.
    pub scale: ScaleKind,
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
            alibi: false,
            rotary: None,
            scale: ScaleKind::InvSqrtDim,
            dropout: 0.0,
        }
    }
}

#[derive(Debug, Clone)]
enum Projections {
    SelfAttention { qkv: Linear },
    Cross { q: Linear, kv: Linear },
}

/// Multi-head attention with its projections.
#[derive(Debug, Clone)]
pub struct MultiHeadAttention {
    config: AttentionConfig,
    projections: Projections,
    out: Linear,
    slopes: Option<Vec<f64>>,
}

/// What the forward pass keeps: buffers planned once per shape.
#[derive(Debug, Clone)]
pub struct AttentionSaved<T: Float> {
    /// Rows of `[q | k | v]`; of cross-attention, of q alone.
    pub(crate) q: Vec<T>,
    /// Rows of `[k | v]` of the memory; empty for self-attention.
    pub(crate) kv: Vec<T>,
    /// The heads' results, side by side.
    pub(crate) out: Vec<T>,
    rotary: Option<Rotary<T>>,
    kept: Option<Saved<T>>,
}

/// Rows of sequences, and which columns of them are heads.
#[derive(Debug, Clone, Copy)]
struct Columns {
    batch: usize,
    seq: usize,
    /// Of a row.
    width: usize,
    first: usize,
    heads: usize,
    dim: usize,
}

impl Columns {
    /// As `[batch, head, seq, dim]`.
    fn of<'r, T>(&self, rows: &'r [T]) -> ArrayView4<'r, T> {
        let shape = (self.batch, self.heads, self.seq, self.dim).strides((self.seq * self.width, self.dim, self.width, 1));
        ArrayView4::from_shape(shape, rows.get(self.first..).unwrap_or_default()).expect("columns of whole rows")
    }

    /// Copy `[batch, head, seq, dim]` to these columns.
    fn put<T: Float>(&self, from: &Array4<T>, rows: &mut [T]) {
        let sequence = (self.seq * self.width).max(1);
        let from = from.as_slice().expect("standard layout");
        let size = (self.heads * self.seq * self.dim).max(1);
        let tasks = rows.par_chunks_mut(sequence).zip(from.par_chunks(size));
        tasks.for_each(|(rows, from)| {
            for (h, from) in from.chunks_exact((self.seq * self.dim).max(1)).enumerate() {
                let at = self.first + h * self.dim;
                for (row, from) in rows.chunks_exact_mut(self.width).zip(from.chunks_exact(self.dim.max(1))) {
                    row[at..at + self.dim].copy_from_slice(from);
                }
            }
        });
    }
}

/// The three operands of attention.
#[derive(Debug, Clone, Copy)]
struct Operands {
    q: Columns,
    k: Columns,
    v: Columns,
}

/// Queries, keys and values of a pass, `[batch, head, seq, dim]`.
#[derive(Debug, Clone)]
pub struct Heads<'s, T> {
    /// Queries.
    pub q: ArrayView4<'s, T>,
    /// Keys.
    pub k: ArrayView4<'s, T>,
    /// Values.
    pub v: ArrayView4<'s, T>,
}

impl MultiHeadAttention {
    /// Queries, keys and values from the same rows.
    pub fn new(layout: &mut Layout, config: AttentionConfig) -> Self {
        Self::build(layout, config, |layout, q, kv| Projections::SelfAttention {
            qkv: Linear::new(layout, "qkv", config.width, q + 2 * kv, config.bias),
        })
    }

    /// Queries from the rows, keys and values from a memory. Positions do not enter.
    pub fn cross(layout: &mut Layout, config: AttentionConfig) -> Self {
        let config = AttentionConfig { rotary: None, alibi: false, ..config };
        Self::build(layout, config, |layout, q, kv| Projections::Cross {
            q: Linear::new(layout, "q", config.width, q, config.bias),
            kv: Linear::new(layout, "kv", config.width, 2 * kv, config.bias),
        })
    }

    fn build(layout: &mut Layout, config: AttentionConfig, projections: impl Fn(&mut Layout, usize, usize) -> Projections) -> Self {
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let projections = projections(layout, q, kv);
        let out = Linear::new(layout, "out", q, config.width, config.bias);
        Self { config, projections, out, slopes: config.alibi.then(|| regard::alibi_slopes(config.heads)) }
    }

    /// The options.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    pub(crate) fn is_cross(&self) -> bool {
        matches!(self.projections, Projections::Cross { .. })
    }

    /// The layer that makes queries (and of self-attention keys and values) of rows.
    pub(crate) fn input(&self) -> &Linear {
        match &self.projections {
            Projections::SelfAttention { qkv } => qkv,
            Projections::Cross { q, .. } => q,
        }
    }

    /// The layer that makes keys and values of a memory.
    pub(crate) fn memory_input(&self) -> Option<&Linear> {
        if let Projections::Cross { kv, .. } = &self.projections { Some(kv) } else { None }
    }

    pub(crate) fn output(&self) -> &Linear {
        &self.out
    }

    fn q_width(&self) -> usize {
        self.config.heads * self.config.head_dim
    }

    fn operands(&self, call: &Call<'_>) -> Operands {
        let AttentionConfig { heads, kv_heads, head_dim: dim, .. } = self.config;
        let (q_width, kv_width) = (heads * dim, kv_heads * dim);
        let width = self.input().outputs();
        let q = Columns { batch: call.batch, seq: call.seq, width, first: 0, heads, dim };
        let k = match self.projections {
            Projections::SelfAttention { .. } => Columns { first: q_width, heads: kv_heads, ..q },
            Projections::Cross { .. } => Columns { seq: call.memory_seq, width: 2 * kv_width, heads: kv_heads, ..q },
        };
        Operands { q, k, v: Columns { first: k.first + kv_width, ..k } }
    }

    fn out_columns(&self, call: &Call<'_>) -> Columns {
        let AttentionConfig { heads, head_dim: dim, .. } = self.config;
        Columns { batch: call.batch, seq: call.seq, width: heads * dim, first: 0, heads, dim }
    }

    /// Buffers for a shape.
    pub fn plan<T: Float>(&self, call: &Call<'_>) -> AttentionSaved<T> {
        let cross = if self.is_cross() { call.memory_rows() * 2 * self.config.kv_heads * self.config.head_dim } else { 0 };
        AttentionSaved {
            q: vec![T::ZERO; call.rows() * self.input().outputs()],
            kv: vec![T::ZERO; cross],
            out: vec![T::ZERO; call.rows() * self.q_width()],
            rotary: self.config.rotary.map(|base| Rotary::new(base, self.config.head_dim, call.seq)),
            kept: None,
        }
    }

    /// The attention itself, for a pass.
    fn attention<'a>(&'a self, call: &Call<'a>, layer: u64) -> Attention<'a> {
        let mut attention = self.plain_attention();
        let lengths = if self.is_cross() {
            call.memory_lengths
        } else {
            attention = attention.mask(call.look.mask.mask());
            call.look.key_lengths
        };
        if let Some(lengths) = lengths {
            attention = attention.key_lengths(lengths);
        }
        match call.dropout {
            Some(seed) if self.config.dropout > 0.0 => attention.dropout(self.config.dropout, Draws::at(seed, &[0xA77E, layer]).bits()),
            _ => attention,
        }
    }

    /// Scale and ALiBi, no mask.
    pub(crate) fn plain_attention(&self) -> Attention<'_> {
        let scale = match self.config.scale {
            ScaleKind::InvSqrtDim => Scale::InvSqrtDim,
            ScaleKind::Off => Scale::Off,
        };
        let attention = Attention::new().scale(scale);
        match &self.slopes {
            Some(slopes) => attention.bias(Bias::Alibi(slopes.clone())),
            None => attention,
        }
    }

    /// Queries (keys, values) of rows on the calling thread; the first is row `first` of all.
    pub(crate) fn project<T: Float>(
        &self,
        p: &[T],
        weights: &Packed<T>,
        x: &[T],
        first: usize,
        seq: usize,
        rotary: Option<&Rotary<T>>,
        q: &mut [T],
    ) {
        let linear = self.input();
        linear.product(weights, x, q, Write::Replace);
        if let Some(bias) = linear.bias(p) {
            add_to_rows(q, bias);
        }
        self.turn(rotary, first, seq, q, false);
    }

    fn turn<T: Float>(&self, rotary: Option<&Rotary<T>>, first: usize, seq: usize, rows: &mut [T], back: bool) {
        if let Some(rotary) = rotary {
            for (row, q) in (first..).zip(rows.chunks_exact_mut(self.input().outputs())) {
                rotary.turn(q, self.config.heads + self.config.kv_heads, row % seq, back);
            }
        }
    }

    /// Keys and values of the memory.
    pub(crate) fn project_memory<T: Float>(&self, p: &[T], memory: &[T], saved: &mut AttentionSaved<T>) {
        if let Projections::Cross { kv, .. } = &self.projections {
            kv.forward(p, memory, &mut saved.kv);
        }
    }

    /// The rotary angles of a plan.
    pub(crate) fn split<T: Float>(saved: &mut AttentionSaved<T>) -> (&mut Vec<T>, Option<&Rotary<T>>) {
        (&mut saved.q, saved.rotary.as_ref())
    }

    /// Queries, keys and values of the last forward pass, for the instruments of `regard`.
    pub fn heads<'s, T: Float>(&self, call: &Call<'_>, saved: &'s AttentionSaved<T>) -> Heads<'s, T> {
        let operands = self.operands(call);
        let kv = if self.is_cross() { &saved.kv } else { &saved.q };
        Heads { q: operands.q.of(&saved.q), k: operands.k.of(kv), v: operands.v.of(kv) }
    }

    /// Attend: `saved.out` from the projected rows.
    ///
    /// # Errors
    /// When key lengths do not fit the call.
    pub(crate) fn attend<T: Float>(&self, call: &Call<'_>, layer: u64, saved: &mut AttentionSaved<T>) -> Result<()> {
        let heads = self.heads(call, saved);
        let kept = self.attention(call, layer).forward_saved(heads.q, heads.k, heads.v)?;
        self.out_columns(call).put(&kept.out, &mut saved.out);
        saved.kept = Some(kept);
        Ok(())
    }

    /// Gradients on the projected rows: `d_q` (and of cross-attention `d_kv`), from the gradient on `saved.out`.
    pub(crate) fn attend_backward<T: Float>(
        &self,
        call: &Call<'_>,
        layer: u64,
        saved: &AttentionSaved<T>,
        d_out: &[T],
        d_q: &mut [T],
        d_kv: &mut [T],
    ) -> Result<()> {
        let heads = self.heads(call, saved);
        let kept = saved.kept.as_ref().ok_or(Error::BackwardFirst)?;
        let d_out = self.out_columns(call).of(d_out);
        let gradients = self.attention(call, layer).backward(heads.q, heads.k, heads.v, kept, d_out)?;
        let operands = self.operands(call);
        operands.q.put(&gradients.dq, d_q);
        let d_kv = if self.is_cross() { d_kv } else { &mut *d_q };
        operands.k.put(&gradients.dk, d_kv);
        operands.v.put(&gradients.dv, d_kv);
        if saved.rotary.is_some() {
            let cut = Cut::new(call.rows());
            let tasks = cut.pieces_mut(d_q, self.input().outputs()).collect();
            for_pieces(tasks, |i, d_q| self.turn(saved.rotary.as_ref(), cut.first(i), call.seq, d_q, true));
        }
        Ok(())
    }

    /// The whole module: `y = attention(x) Wo`, of a memory where it is cross-attention.
    ///
    /// # Errors
    /// When key lengths do not fit the call.
    pub fn forward<T: Float>(
        &self,
        p: &[T],
        call: &Call<'_>,
        x: &[T],
        memory: &[T],
        y: &mut [T],
        saved: &mut AttentionSaved<T>,
    ) -> Result<()> {
        let (q, rotary) = Self::split(saved);
        let cut = Cut::rows_of(x, self.config.width);
        let tasks = cut.pieces(x, self.config.width).zip(cut.pieces_mut(q, self.input().outputs())).collect();
        let mut weights = Packed::default();
        self.input().pack(p, &mut weights);
        for_pieces(tasks, |i, (x, q)| self.project(p, &weights, x, cut.first(i), call.seq, rotary, q));
        self.project_memory(p, memory, saved);
        self.attend(call, 0, saved)?;
        self.out.forward(p, &saved.out, y);
        Ok(())
    }

    /// The whole module backwards: writes dx, adds to `d_memory` and to the parameters' gradients.
    ///
    /// # Errors
    /// When there was no forward pass with these buffers.
    pub fn backward<T: Float>(
        &self,
        p: &[T],
        g: &mut [T],
        call: &Call<'_>,
        x: &[T],
        memory: &[T],
        saved: &AttentionSaved<T>,
        dy: &[T],
        dx: &mut [T],
        d_memory: &mut [T],
    ) -> Result<()> {
        let mut d_out = vec![T::ZERO; saved.out.len()];
        let (mut d_q, mut d_kv) = (vec![T::ZERO; saved.q.len()], vec![T::ZERO; saved.kv.len()]);
        self.out.backward(p, g, &saved.out, dy, &mut d_out);
        self.attend_backward(call, 0, saved, &d_out, &mut d_q, &mut d_kv)?;
        self.input().backward(p, g, x, &d_q, dx);
        self.memory_backward(p, g, memory, &d_kv, d_memory);
        Ok(())
    }

    /// Adds to `d_memory` and the gradients of the memory's projection.
    pub(crate) fn memory_backward<T: Float>(&self, p: &[T], g: &mut [T], memory: &[T], d_kv: &[T], d_memory: &mut [T]) {
        if let Projections::Cross { kv, .. } = &self.projections {
            let cut = Cut::rows_of(memory, kv.inputs());
            let tasks = cut.pieces(d_kv, kv.outputs()).zip(cut.pieces_mut(d_memory, kv.inputs())).collect();
            let mut turned = Packed::default();
            kv.pack_turned(p, &mut turned);
            for_pieces(tasks, |_, (dy, dx)| kv.input_gradient(&turned, dy, dx, Write::Add));
            kv.weight_gradient(g, memory, d_kv);
        }
    }

    /// The weights of the last forward pass, `[batch, heads, seq, keys]`: quadratic in memory.
    ///
    /// # Errors
    /// When key lengths do not fit the call.
    pub fn weights<T: Float>(&self, call: &Call<'_>, saved: &AttentionSaved<T>) -> Result<Array4<T>> {
        let heads = self.heads(call, saved);
        Ok(self.attention(call, 0).weights(heads.q, heads.k)?)
    }

    /// What each row of the last forward pass attended to, in linear memory.
    ///
    /// # Errors
    /// When key lengths do not fit the call.
    pub fn stats<T: Float>(&self, call: &Call<'_>, saved: &AttentionSaved<T>, options: StatsOptions) -> Result<RowStats<T>> {
        let heads = self.heads(call, saved);
        Ok(self.attention(call, 0).forward_with_stats(heads.q, heads.k, heads.v, options)?.1)
    }

    /// How alike the heads of the last forward pass are.
    ///
    /// # Errors
    /// When key lengths do not fit the call.
    pub fn similarity<T: Float>(&self, call: &Call<'_>, saved: &AttentionSaved<T>) -> Result<HeadSimilarity> {
        let heads = self.heads(call, saved);
        Ok(self.attention(call, 0).head_similarity(heads.q, heads.k)?)
    }
}
