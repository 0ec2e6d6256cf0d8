//! A branch with its norm and its residual connection.
//!
//! ```text
//! pre-norm     y = x + dropout(branch(norm(x)))
//! post-norm    y = norm(x + dropout(branch(x)))
//! ```
//!
//! Both are computed piece by piece: a piece of rows goes through norm, branch and residual while it is in the cache. Of the two
//! places that a sum or a normalised row can be kept in, `work` is the one that is not `y`.

use crate::attention::{AttentionSaved, MultiHeadAttention};
use crate::dropout::Dropout;
use crate::error::Result;
use crate::float::Float;
use crate::linear::{Write, add_to_rows};
use crate::look::Call;
use crate::mlp::Mlp;
use crate::norm::{NORM_STATS, Norm};
use crate::parallel::{Cut, for_pieces};
use crate::positions::add;
use regard::matmul::Packed;
use serde::{Deserialize, Serialize};

/// Where the norm stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlace {
    /// Before the branch; the residual stream itself is never normalised.
    #[default]
    Pre,
    /// After the sum.
    Post,
}

/// What a sublayer does to normalised rows.
#[derive(Debug, Clone)]
pub enum Branch {
    /// Self- or cross-attention.
    Attention(MultiHeadAttention),
    /// The two-layer network.
    Mlp(Mlp),
}

/// A branch with its norm and its residual connection.
#[derive(Debug, Clone)]
pub struct Sublayer {
    pub(crate) norm: Norm,
    pub(crate) place: NormPlace,
    pub(crate) branch: Branch,
    pub(crate) dropout: f64,
    /// Names the sublayer where dropout draws its masks.
    pub(crate) number: u64,
}

/// What the forward pass of a sublayer keeps.
#[derive(Debug, Clone)]
pub struct SublayerSaved<T: Float> {
    work: Vec<T>,
    stats: Vec<T>,
    branch: BranchSaved<T>,
    /// The two matrices of the branch, packed: as they are for the forward pass, turned for the backward pass.
    weights: [Packed<T>; 2],
}

#[derive(Debug, Clone)]
enum BranchSaved<T: Float> {
    Attention(Box<AttentionSaved<T>>),
    Mlp { inner: Vec<T>, act: Vec<T> },
}

impl<T: Float> SublayerSaved<T> {
    /// Of an attention sublayer: what its attention kept.
    pub fn attention(&self) -> Option<&AttentionSaved<T>> {
        if let BranchSaved::Attention(saved) = &self.branch { Some(saved) } else { None }
    }
}

/// Buffers of the backward pass, shared by all sublayers of a stack.
#[derive(Debug, Clone)]
pub struct Scratch<T> {
    d_normed: Vec<T>,
    d_sum: Vec<T>,
    d_branch: Vec<T>,
    d_act: Vec<T>,
    d_out: Vec<T>,
    d_q: Vec<T>,
    d_kv: Vec<T>,
    partials: Vec<T>,
}

impl<T: Float> Scratch<T> {
    /// Room for the largest of the sublayers.
    pub(crate) fn new<'s>(sublayers: impl Iterator<Item = &'s Sublayer> + Clone, width: usize, call: &Call<'_>) -> Self {
        let rows = call.rows();
        let room = |per_row: fn(&Sublayer) -> usize| vec![T::ZERO; rows * sublayers.clone().map(per_row).max().unwrap_or(0)];
        let stream = || vec![T::ZERO; rows * width];
        let kv = |s: &Sublayer| match &s.branch {
            Branch::Attention(a) if a.is_cross() => 2 * a.config().kv_heads * a.config().head_dim,
            _ => 0,
        };
        Self {
            d_normed: stream(),
            d_sum: stream(),
            d_branch: stream(),
            d_act: room(|s| if let Branch::Mlp(mlp) = &s.branch { mlp.hidden() } else { 0 }),
            d_out: room(|s| if let Branch::Attention(a) = &s.branch { a.output().inputs() } else { 0 }),
            d_q: room(|s| if let Branch::Attention(a) = &s.branch { a.input().outputs() } else { 0 }),
            d_kv: vec![T::ZERO; call.memory_rows() * sublayers.clone().map(kv).max().unwrap_or(0)],
            partials: vec![T::ZERO; Cut::new(rows).count() * 2 * width],
        }
    }
}

impl Sublayer {
    /// Buffers for a shape.
    pub fn plan<T: Float>(&self, call: &Call<'_>) -> SublayerSaved<T> {
        let rows = call.rows();
        SublayerSaved {
            work: vec![T::ZERO; rows * self.norm.width()],
            stats: vec![T::ZERO; rows * NORM_STATS],
            branch: match &self.branch {
                Branch::Attention(attention) => BranchSaved::Attention(Box::new(attention.plan(call))),
                Branch::Mlp(mlp) => BranchSaved::Mlp { inner: vec![T::ZERO; rows * mlp.inner()], act: vec![T::ZERO; rows * mlp.hidden()] },
            },
            weights: Default::default(),
        }
    }

    fn drop(&self, call: &Call<'_>) -> Option<Dropout> {
        call.dropout.and_then(|seed| Dropout::new(self.dropout, seed, self.number))
    }

    fn width(&self) -> usize {
        self.norm.width()
    }

    /// Rows through norm, branch and residual.
    ///
    /// # Errors
    /// When attention refuses the call.
    pub fn forward<T: Float>(
        &self,
        p: &[T],
        call: &Call<'_>,
        x: &[T],
        memory: &[T],
        y: &mut [T],
        saved: &mut SublayerSaved<T>,
    ) -> Result<()> {
        let (pre, width, drop) = (self.place == NormPlace::Pre, self.width(), self.drop(call));
        let cut = Cut::rows_of(x, width);
        let SublayerSaved { work, stats, branch, weights } = saved;
        match (&self.branch, branch) {
            (Branch::Mlp(mlp), BranchSaved::Mlp { inner, act }) => {
                mlp.pack(p, weights);
                let kept = cut.pieces_mut(inner, mlp.inner()).zip(cut.pieces_mut(act, mlp.hidden()));
                let tasks = cut
                    .pieces(x, width)
                    .zip(cut.pieces_mut(y, width))
                    .zip(cut.pieces_mut(work, width))
                    .zip(cut.pieces_mut(stats, NORM_STATS));
                for_pieces(tasks.zip(kept).collect(), |i, ((((x, y), work), stats), (inner, act))| {
                    if pre {
                        self.norm.forward(p, x, work, stats);
                        residual(drop, cut.first(i) * width, x, y, |sum| mlp.forward(p, weights, work, inner, act, sum));
                    } else {
                        residual(drop, cut.first(i) * width, x, work, |sum| mlp.forward(p, weights, x, inner, act, sum));
                        self.norm.forward(p, work, y, stats);
                    }
                });
            }
            (Branch::Attention(attention), BranchSaved::Attention(saved)) => {
                let out = attention.output();
                attention.input().pack(p, &mut weights[0]);
                out.pack(p, &mut weights[1]);
                let (q, rotary) = MultiHeadAttention::split(saved);
                let tasks = cut.pieces(x, width).zip(cut.pieces_mut(work, width)).zip(cut.pieces_mut(stats, NORM_STATS));
                let tasks = tasks.zip(cut.pieces_mut(q, attention.input().outputs())).collect();
                for_pieces(tasks, |i, (((x, work), stats), q)| {
                    if pre {
                        self.norm.forward(p, x, work, stats);
                    }
                    attention.project(p, &weights[0], if pre { work } else { x }, cut.first(i), call.seq, rotary, q);
                });
                attention.project_memory(p, memory, saved);
                attention.attend(call, self.number, saved)?;
                let tasks = cut
                    .pieces(x, width)
                    .zip(cut.pieces_mut(y, width))
                    .zip(cut.pieces_mut(work, width))
                    .zip(cut.pieces_mut(stats, NORM_STATS));
                for_pieces(tasks.zip(cut.pieces(&saved.out, out.inputs())).collect(), |i, ((((x, y), work), stats), heads)| {
                    let sum = if pre { &mut *y } else { &mut *work };
                    residual(drop, cut.first(i) * width, x, sum, |sum| {
                        out.product(&weights[1], heads, sum, Write::Add);
                        if let Some(bias) = out.bias(p) {
                            add_to_rows(sum, bias);
                        }
                    });
                    if !pre {
                        self.norm.forward(p, work, y, stats);
                    }
                });
            }
            _ => unreachable!("planned by the same sublayer"),
        }
        Ok(())
    }

    /// Gradients: `d` is that of y on entry and that of x on return; `d_memory` and the parameters' are added to.
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
        saved: &mut SublayerSaved<T>,
        d: &mut [T],
        d_memory: &mut [T],
        scratch: &mut Scratch<T>,
    ) -> Result<()> {
        scratch.partials.fill(T::ZERO);
        match &self.branch {
            Branch::Mlp(mlp) => self.backward_mlp(mlp, p, g, call, x, saved, d, scratch),
            Branch::Attention(attention) => self.backward_attention(attention, p, g, call, x, memory, saved, d, d_memory, scratch)?,
        }
        self.norm.reduce(g, &scratch.partials);
        Ok(())
    }

    /// The gradient of the branch's result is the gradient of y itself: pre-norm without dropout.
    fn shares_gradient(&self, drop: Option<Dropout>) -> bool {
        self.place == NormPlace::Pre && drop.is_none()
    }

    fn backward_mlp<T: Float>(
        &self,
        mlp: &Mlp,
        p: &[T],
        g: &mut [T],
        call: &Call<'_>,
        x: &[T],
        saved: &mut SublayerSaved<T>,
        d: &mut [T],
        scratch: &mut Scratch<T>,
    ) {
        let (pre, width, drop) = (self.place == NormPlace::Pre, self.width(), self.drop(call));
        let BranchSaved::Mlp { inner, act } = &mut saved.branch else { unreachable!("planned by the same sublayer") };
        if self.shares_gradient(drop) {
            // Before `d` becomes the gradient of x.
            mlp.down_gradient(g, act, d);
        }
        mlp.pack_turned(p, &mut saved.weights);
        let cut = Cut::rows_of(x, width);
        let backs = cut.pieces_mut(&mut scratch.d_sum, width).zip(cut.pieces_mut(&mut scratch.d_branch, width));
        let branch = cut.pieces_mut(inner, mlp.inner()).zip(cut.pieces_mut(&mut scratch.d_act, mlp.hidden()));
        let tasks = cut
            .pieces(x, width)
            .zip(cut.pieces(&saved.work, width))
            .zip(cut.pieces(&saved.stats, NORM_STATS))
            .zip(cut.pieces_mut(d, width));
        let norms = scratch.partials.chunks_mut((2 * width).max(1)).zip(cut.pieces_mut(&mut scratch.d_normed, width));
        let tasks = tasks.zip(backs).zip(branch).zip(norms).collect();
        for_pieces(tasks, |i, ((((((x, work), stats), d), (d_sum, d_branch)), (inner, d_act)), (partial, d_normed))| {
            let dy = self.enter(p, drop, cut.first(i), work, stats, d, d_sum, d_branch, partial);
            mlp.backward(&saved.weights, dy, d_act, inner, d_normed);
            self.leave(p, x, stats, d_normed, d, d_sum, partial);
        });
        if !self.shares_gradient(drop) {
            mlp.down_gradient(g, act, if drop.is_some() { &scratch.d_branch } else { &scratch.d_sum });
        }
        mlp.up_gradient(g, if pre { &saved.work } else { x }, inner);
    }

    fn backward_attention<T: Float>(
        &self,
        attention: &MultiHeadAttention,
        p: &[T],
        g: &mut [T],
        call: &Call<'_>,
        x: &[T],
        memory: &[T],
        saved: &mut SublayerSaved<T>,
        d: &mut [T],
        d_memory: &mut [T],
        scratch: &mut Scratch<T>,
    ) -> Result<()> {
        let (pre, width, drop) = (self.place == NormPlace::Pre, self.width(), self.drop(call));
        let BranchSaved::Attention(kept) = &saved.branch else { unreachable!("planned by the same sublayer") };
        let (input, out) = (attention.input(), attention.output());
        input.pack_turned(p, &mut saved.weights[0]);
        out.pack_turned(p, &mut saved.weights[1]);
        let Scratch { d_normed, d_sum, d_branch, d_out, d_q, d_kv, partials, .. } = scratch;
        let (d_out, d_q) = (&mut d_out[..call.rows() * out.inputs()], &mut d_q[..call.rows() * input.outputs()]);
        if self.shares_gradient(drop) {
            out.weight_gradient(g, &kept.out, d);
        }
        let cut = Cut::rows_of(x, width);
        let backs = cut.pieces_mut(d_sum, width).zip(cut.pieces_mut(d_branch, width)).zip(cut.pieces_mut(d_out, out.inputs()));
        let tasks = cut.pieces(&saved.work, width).zip(cut.pieces(&saved.stats, NORM_STATS)).zip(cut.pieces_mut(d, width));
        let tasks = tasks.zip(backs).zip(partials.chunks_mut((2 * width).max(1))).collect();
        for_pieces(tasks, |i, ((((work, stats), d), ((d_sum, d_branch), d_out)), partial)| {
            let dy = self.enter(p, drop, cut.first(i), work, stats, d, d_sum, d_branch, partial);
            out.input_gradient(&saved.weights[1], dy, d_out, Write::Replace);
        });
        if !self.shares_gradient(drop) {
            out.weight_gradient(g, &kept.out, if drop.is_some() { d_branch } else { d_sum });
        }
        attention.attend_backward(call, self.number, kept, d_out, d_q, d_kv)?;
        let tasks = cut.pieces(x, width).zip(cut.pieces(&saved.stats, NORM_STATS)).zip(cut.pieces(d_q, input.outputs()));
        let backs = cut.pieces_mut(d, width).zip(cut.pieces(d_sum, width)).zip(cut.pieces_mut(d_normed, width));
        let tasks = tasks.zip(backs).zip(partials.chunks_mut((2 * width).max(1))).collect();
        for_pieces(tasks, |_, ((((x, stats), d_q), ((d, d_sum), d_normed)), partial)| {
            input.input_gradient(&saved.weights[0], d_q, d_normed, Write::Replace);
            self.leave(p, x, stats, d_normed, d, d_sum, partial);
        });
        input.weight_gradient(g, if pre { &saved.work } else { x }, d_q);
        attention.memory_backward(p, g, memory, d_kv, d_memory);
        Ok(())
    }

    /// From the gradient of y to that of the branch's result, for the piece from row `first` on; of post-norm, also that of the sum.
    fn enter<'b, T: Float>(
        &self,
        p: &[T],
        drop: Option<Dropout>,
        first: usize,
        work: &[T],
        stats: &[T],
        d: &'b [T],
        d_sum: &'b mut [T],
        d_branch: &'b mut [T],
        partial: &mut [T],
    ) -> &'b [T] {
        let source = if self.place == NormPlace::Post {
            self.norm.backward(p, work, stats, d, d_sum, false, partial);
            &*d_sum
        } else {
            d
        };
        match drop {
            None => source,
            Some(drop) => {
                d_branch.copy_from_slice(source);
                drop.apply(first * self.width(), d_branch);
                d_branch
            }
        }
    }

    /// From the gradient of the branch's input to that of x, for one piece.
    fn leave<T: Float>(&self, p: &[T], x: &[T], stats: &[T], d_input: &[T], d: &mut [T], d_sum: &[T], partial: &mut [T]) {
        match self.place {
            NormPlace::Pre => self.norm.backward(p, x, stats, d_input, d, true, partial),
            NormPlace::Post => {
                d.copy_from_slice(d_sum);
                add(d, d_input);
            }
        }
    }
}

/// `sum = x + dropout(branch)`, where `branch` adds to what it is given.
fn residual<T: Float>(drop: Option<Dropout>, first: usize, x: &[T], sum: &mut [T], branch: impl FnOnce(&mut [T])) {
    match drop {
        None => {
            sum.copy_from_slice(x);
            branch(sum);
        }
        Some(drop) => {
            sum.fill(T::ZERO);
            branch(sum);
            drop.apply(first, sum);
            add(sum, x);
        }
    }
}
