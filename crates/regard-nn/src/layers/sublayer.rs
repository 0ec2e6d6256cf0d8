//! A branch with its norm and its residual connection.
//!
//! ```text
//! pre-norm     y = x + dropout(branch(norm(x)))
//! post-norm    y = norm(x + dropout(branch(x)))
//! sandwich     y = x + norm(branch(norm(x)))
//! parallel     y = x + branch(norm(the sublayer's before it))          network beside attention
//! ```
//!
//! All are computed piece by piece: a piece of rows goes through norm, branch and residual while it is in the cache. Of the two
//! places that a sum or a normalised row can be kept in, `work` is the one that is not `y`.

use super::attention::{AttentionSaved, MultiHeadAttention, Past};
use super::dropout::Dropout;
use super::linear::{Amount, Strips, Write, add_to_rows, packs};
use super::mlp::Mlp;
use super::norm::{NORM_STATS, Norm};
use super::pass::Pass;
use super::positions::add;
use super::probe::{GradientProbe, NoProbe, Operand, Probe, Reads};
use super::stack::Keep;
use crate::error::Result;
use crate::float::Float;
use crate::parallel::{Cut, for_pieces, pieces_or_none};
use crate::tensors::Weights;
use crate::tensors::layout::Gradients;
use serde::{Deserialize, Serialize};

/// Where the norm stands, of the models that [`crate::ModelConfig`] knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormPlace {
    /// Before the branch; the residual stream itself is never normalised.
    #[default]
    Pre,
    /// After the sum.
    Post,
}

/// How a branch, its norms and the residual stream go together.
#[derive(Debug, Clone)]
pub enum Wiring {
    /// Norm before the branch.
    PreNorm(Norm),
    /// Norm of the sum.
    PostNorm(Norm),
    /// A norm before the branch and one of its result.
    Sandwich(Norm, Norm),
    /// Norm before the branch, which reads what the sublayer before it read.
    Parallel(Norm),
}

impl Wiring {
    /// The norm before the branch.
    fn before(&self) -> Option<&Norm> {
        match self {
            Self::PreNorm(norm) | Self::Sandwich(norm, _) | Self::Parallel(norm) => Some(norm),
            Self::PostNorm(_) => None,
        }
    }

    /// Any of its norms: of the one that a backward pass knows.
    fn norm(&self) -> &Norm {
        match self {
            Self::PreNorm(norm) | Self::Sandwich(norm, _) | Self::Parallel(norm) | Self::PostNorm(norm) => norm,
        }
    }
}

/// What a sublayer does to normalised rows.
#[derive(Debug, Clone)]
pub enum Branch {
    /// Self- or cross-attention.
    Attention(Box<MultiHeadAttention>),
    /// The two-layer network.
    Mlp(Box<Mlp>),
}

/// A branch with its norm and its residual connection.
#[derive(Debug, Clone)]
pub struct Sublayer {
    pub(crate) wiring: Wiring,
    pub(crate) branch: Branch,
    pub(crate) dropout: f64,
    /// Names the sublayer where dropout draws its masks, and to probes.
    pub(crate) number: u64,
}

/// What the forward pass of a sublayer keeps.
#[derive(Debug, Clone)]
pub struct SublayerSaved<T: Float> {
    work: Vec<T>,
    stats: Vec<T>,
    /// Of a norm of the branch's result: the rows before it and its numbers; empty where no backward pass will come.
    result: Vec<T>,
    result_stats: Vec<T>,
    branch: BranchSaved<T>,
}

#[derive(Debug, Clone)]
enum BranchSaved<T: Float> {
    Attention(Box<AttentionSaved<T>>),
    /// Empty where no backward pass will come: a piece of rows has buffers of its own then.
    Mlp {
        inner: Vec<T>,
        act: Vec<T>,
    },
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
    /// Of post-norm, and of a norm of the branch's result.
    d_sum: Vec<T>,
    /// What a parallel network adds to the gradient of the rows that attention read.
    pub(crate) d_parallel: Vec<T>,
    /// Of dropout.
    d_branch: Vec<T>,
    d_act: Vec<T>,
    d_out: Vec<T>,
    d_q: Vec<T>,
    d_kv: Vec<T>,
    partials: Vec<T>,
    /// Of a norm of the branch's result.
    result_partials: Vec<T>,
}

impl<T: Float> Scratch<T> {
    /// Room for the largest of the sublayers.
    pub(crate) fn new<'s>(sublayers: impl Iterator<Item = &'s Sublayer> + Clone, width: usize, pass: &Pass<'_>) -> Self {
        let rows = pass.rows();
        let room = |per_row: fn(&Sublayer) -> usize| vec![T::ZERO; rows * sublayers.clone().map(per_row).max().unwrap_or(0)];
        let stream_where = |needed: bool| if needed { vec![T::ZERO; rows * width] } else { Vec::new() };
        let kv = sublayers.clone().map(|s| if let Branch::Attention(a) = &s.branch { a.memory_width() } else { 0 }).max().unwrap_or(0);
        Self {
            d_normed: stream_where(true),
            d_sum: stream_where(sublayers.clone().any(|s| matches!(s.wiring, Wiring::PostNorm(_) | Wiring::Sandwich(..)))),
            d_parallel: stream_where(sublayers.clone().any(Sublayer::is_parallel)),
            d_branch: stream_where(pass.dropout.is_some()),
            d_act: room(|s| if let Branch::Mlp(mlp) = &s.branch { mlp.hidden() } else { 0 }),
            d_out: room(|s| if let Branch::Attention(a) = &s.branch { a.output().inputs() } else { 0 }),
            d_q: room(|s| if let Branch::Attention(a) = &s.branch { a.input().outputs() } else { 0 }),
            d_kv: vec![T::ZERO; pass.memory_rows() * kv],
            partials: vec![T::ZERO; Cut::new(rows).count() * 2 * width],
            result_partials: vec![T::ZERO; Cut::new(rows).count() * 2 * width],
        }
    }

    /// It has the buffers that a pass needs.
    pub(crate) fn serves(&self, pass: &Pass<'_>) -> bool {
        pass.dropout.is_none() || !self.d_branch.is_empty()
    }
}

/// What all sublayers of a pass share.
pub(crate) struct Shared<'p, T: Float> {
    pub(crate) w: &'p Weights<'p, T>,
    pub(crate) pass: &'p Pass<'p>,
    pub(crate) memory: &'p [T],
    pub(crate) keep: Keep,
    pub(crate) probe: &'p dyn Probe<T>,
}

impl<T: Float> Shared<'_, T> {
    /// How many rows the matrices are prepared for.
    fn amount(&self) -> Amount {
        if self.keep == Keep::Discard { Amount::of(self.pass.rows()) } else { Amount::Many }
    }
}

/// What one sublayer goes forward with.
pub(crate) struct Forward<'f, T: Float> {
    pub(crate) x: &'f [T],
    /// What the branch reads: x but for parallel sublayers.
    pub(crate) input: &'f [T],
    pub(crate) y: &'f mut [T],
    pub(crate) saved: &'f mut SublayerSaved<T>,
    /// Room for its matrices.
    pub(crate) packs: &'f mut [Strips<T>],
}

/// What one sublayer goes backward with.
pub(crate) struct Backward<'b, T: Float> {
    /// What the branch read: before a parallel network, the rows that attention read.
    pub(crate) x: &'b [T],
    pub(crate) saved: &'b mut SublayerSaved<T>,
    /// The gradient: of y on entry, of x on return.
    pub(crate) d: &'b mut [T],
    /// Is added to.
    pub(crate) d_memory: &'b mut [T],
    /// Room for its matrices.
    pub(crate) packs: &'b mut [Strips<T>],
    pub(crate) seen: &'b dyn GradientProbe<T>,
}

/// A norm of the branch's result in a piece of rows: what went into it, its numbers, and the sums for its parameters' gradients.
struct ResultNorm<'r, T> {
    rows: &'r [T],
    stats: &'r [T],
    partial: &'r mut [T],
}

/// What each piece of rows has of a norm of the branch's result.
fn result_pieces<'r, T: Float>(
    cut: Cut,
    width: usize,
    rows: &'r [T],
    stats: &'r [T],
    partials: &'r mut [T],
) -> impl Iterator<Item = ResultNorm<'r, T>> {
    let of = move |x: &'r [T], i: usize, width: usize| cut.pieces(x, width).nth(i).unwrap_or_default();
    partials.chunks_mut((2 * width).max(1)).enumerate().map(move |(i, partial)| ResultNorm {
        rows: of(rows, i, width),
        stats: of(stats, i, NORM_STATS),
        partial,
    })
}

impl Sublayer {
    /// Buffers for a shape.
    pub fn plan<T: Float>(&self, pass: &Pass<'_>, keep: Keep) -> SublayerSaved<T> {
        let rows = pass.rows();
        let kept = if keep == Keep::Tape { rows } else { 0 };
        let results = if self.norms_result() { kept } else { 0 };
        SublayerSaved {
            work: vec![T::ZERO; rows * self.width()],
            stats: vec![T::ZERO; rows * NORM_STATS],
            result: vec![T::ZERO; results * self.width()],
            result_stats: vec![T::ZERO; results * NORM_STATS],
            branch: match &self.branch {
                Branch::Attention(attention) => {
                    let mut saved = attention.plan(pass);
                    if keep == Keep::Discard {
                        saved.raw = Vec::new();
                    }
                    BranchSaved::Attention(Box::new(saved))
                }
                Branch::Mlp(mlp) => BranchSaved::Mlp { inner: vec![T::ZERO; kept * mlp.inner()], act: vec![T::ZERO; kept * mlp.hidden()] },
            },
        }
    }

    /// Sublayers of the same kind can share what is not kept.
    pub(crate) fn kind(&self) -> usize {
        match &self.branch {
            Branch::Mlp(_) => 0,
            Branch::Attention(attention) => 1 + usize::from(attention.is_cross()),
        }
    }

    /// It reads what the sublayer before it read.
    pub(crate) fn is_parallel(&self) -> bool {
        matches!(self.wiring, Wiring::Parallel(_))
    }

    /// A part that has no backward pass.
    pub(crate) fn untrainable(&self) -> Option<&'static str> {
        match (&self.wiring, &self.branch) {
            (Wiring::Parallel(_), Branch::Attention(_)) => Some("attention that reads what an earlier sublayer read"),
            (_, Branch::Attention(attention)) => attention.untrainable(),
            (_, Branch::Mlp(mlp)) => mlp.untrainable(),
        }
    }

    fn drop(&self, pass: &Pass<'_>) -> Option<Dropout> {
        pass.dropout.and_then(|seed| Dropout::new(self.dropout, seed, self.number))
    }

    fn width(&self) -> usize {
        self.wiring.norm().width()
    }

    /// Rows through norm, branch and residual: `y = x + branch(input)`.
    ///
    /// # Errors
    /// When attention refuses the pass.
    pub(crate) fn forward<T: Float>(&self, shared: &Shared<'_, T>, rows: Forward<'_, T>, past: Option<&mut Past<T>>) -> Result<()> {
        match &self.branch {
            Branch::Mlp(mlp) => {
                self.forward_mlp(mlp, shared, rows);
                Ok(())
            }
            Branch::Attention(attention) => self.forward_attention(attention, shared, rows, past),
        }
    }

    fn forward_mlp<T: Float>(&self, mlp: &Mlp, shared: &Shared<'_, T>, rows: Forward<'_, T>) {
        let Forward { x, input, y, saved, packs } = rows;
        let (w, width) = (shared.w, self.width());
        let (cut, drop) = (Cut::rows_of(x, width), self.drop(shared.pass));
        let apart = shared.probe.wants_branch(self.number as usize);
        let SublayerSaved { work, stats, result, result_stats, branch: BranchSaved::Mlp { inner, act } } = saved else {
            unreachable!("planned by the same sublayer")
        };
        let ready = mlp.prepare(w, shared.amount(), packs);
        let kept = pieces_or_none(cut, inner, mlp.inner()).into_iter().zip(pieces_or_none(cut, act, mlp.hidden()));
        let rows = cut.pieces(x, width).zip(cut.pieces(input, width)).zip(cut.pieces_mut(y, width));
        let tasks = rows.zip(cut.pieces_mut(work, width)).zip(cut.pieces_mut(stats, NORM_STATS));
        let results = pieces_or_none(cut, result, width).into_iter().zip(pieces_or_none(cut, result_stats, NORM_STATS));
        for_pieces(tasks.zip(kept.zip(results)).collect(), |i, (((((x, input), y), work), stats), ((inner, act), result))| {
            let rows = x.len() / width.max(1);
            let own = |width| if inner.is_empty() { vec![T::ZERO; rows * width] } else { Vec::new() };
            let (mut own_inner, mut own_act) = (own(mlp.inner()), own(mlp.hidden()));
            let (inner, act) = if inner.is_empty() { (own_inner.as_mut_slice(), own_act.as_mut_slice()) } else { (inner, act) };
            if let Some(norm) = self.wiring.before() {
                norm.forward(w, input, work, stats);
                let work = &*work;
                self.residual(w, drop, cut.first(i), x, y, apart, result, |sum| mlp.forward(w, &ready, work, inner, act, sum));
            } else {
                self.residual(w, drop, cut.first(i), x, work, apart, result, |sum| mlp.forward(w, &ready, input, inner, act, sum));
                if !apart {
                    self.wiring.norm().forward(w, work, y, stats);
                }
            }
        });
        if apart {
            self.join(shared, x, y, work, stats);
        }
    }

    /// The probe's view of a branch that was made apart, in `y` or (post-norm) in `work`, and the residual connection.
    fn join<T: Float>(&self, shared: &Shared<'_, T>, x: &[T], y: &mut [T], work: &mut [T], stats: &mut [T]) {
        let branch = if self.is_pre() { &mut *y } else { &mut *work };
        shared.probe.branch(self.number as usize, branch);
        add(branch, x);
        if !self.is_pre() {
            self.wiring.norm().forward(shared.w, work, y, stats);
        }
    }

    fn forward_attention<T: Float>(
        &self,
        attention: &MultiHeadAttention,
        shared: &Shared<'_, T>,
        rows: Forward<'_, T>,
        past: Option<&mut Past<T>>,
    ) -> Result<()> {
        let Forward { x, input, y, saved, packs } = rows;
        let (w, pass, amount, width, out) = (shared.w, shared.pass, shared.amount(), self.width(), attention.output());
        let (cut, drop, before) = (Cut::rows_of(x, width), self.drop(pass), self.wiring.before());
        let apart = shared.probe.wants_branch(self.number as usize);
        let SublayerSaved { work, stats, result, result_stats, branch: BranchSaved::Attention(saved) } = saved else {
            unreachable!("planned by the same sublayer")
        };
        attention.fit(pass, saved);
        let (last, first) = packs.split_last_mut().expect("room for the output projection");
        let ready = attention.input().prepare(w, amount, first);
        let (q, raw, angles) = MultiHeadAttention::split(saved);
        let outputs = attention.input().outputs();
        let tasks = cut.pieces(input, width).zip(cut.pieces_mut(work, width)).zip(cut.pieces_mut(stats, NORM_STATS));
        let tasks = tasks.zip(cut.pieces_mut(q, outputs).zip(pieces_or_none(cut, raw, outputs))).collect();
        for_pieces(tasks, |i, (((input, work), stats), (q, raw))| {
            if let Some(norm) = before {
                norm.forward(w, input, work, stats);
            }
            attention.project(w, &ready, if before.is_some() { work } else { input }, cut.first(i), pass, angles, (q, raw));
        });
        if past.is_none() {
            attention.project_memory(w, shared.memory, &mut saved.kv);
        }
        attention.attend(pass, self.number, saved, shared.keep, past, shared.probe)?;
        let ready = out.prepare(w, amount, last);
        let rows = cut.pieces(x, width).zip(cut.pieces_mut(y, width)).zip(cut.pieces_mut(work, width));
        let results = pieces_or_none(cut, result, width).into_iter().zip(pieces_or_none(cut, result_stats, NORM_STATS));
        let tasks = rows.zip(cut.pieces_mut(stats, NORM_STATS)).zip(cut.pieces(&saved.out, out.inputs()).zip(results)).collect();
        for_pieces(tasks, |i, ((((x, y), work), stats), (heads, result))| {
            let sum = if before.is_some() { &mut *y } else { &mut *work };
            self.residual(w, drop, cut.first(i), x, sum, apart, result, |sum| {
                ready.product(heads, out.inputs(), sum, width, 0, Write::Add);
                if let Some(bias) = out.bias(w) {
                    add_to_rows(sum, bias);
                }
            });
            if before.is_none() && !apart {
                self.wiring.norm().forward(w, work, y, stats);
            }
        });
        if apart {
            self.join(shared, x, y, work, stats);
        }
        Ok(())
    }

    /// `sum = x + dropout(norm(branch))` for the piece from row `first` on, where `branch` adds to what it is given; without x when it is
    /// to be kept apart. What goes into a norm of the branch, and that norm's numbers, are kept in `result` where it has room.
    fn residual<T: Float>(
        &self,
        w: &Weights<'_, T>,
        drop: Option<Dropout>,
        first: usize,
        x: &[T],
        sum: &mut [T],
        apart: bool,
        (result, result_stats): (&mut [T], &mut [T]),
        branch: impl FnOnce(&mut [T]),
    ) {
        let after = if let Wiring::Sandwich(_, norm) = &self.wiring { Some(norm) } else { None };
        if drop.is_none() && after.is_none() && !apart {
            sum.copy_from_slice(x);
            return branch(sum);
        }
        sum.fill(T::ZERO);
        branch(sum);
        match after {
            Some(norm) if result.is_empty() => norm.apply(w, sum),
            Some(norm) => {
                result.copy_from_slice(sum);
                norm.forward(w, result, sum, result_stats);
            }
            None => {}
        }
        if let Some(drop) = drop {
            drop.apply(first * self.width(), sum);
        }
        if !apart {
            add(sum, x);
        }
    }

    /// The gradient of y becomes that of x; the parameters' are added to.
    ///
    /// # Errors
    /// When there was no forward pass with these buffers.
    pub(crate) fn backward<T: Float>(
        &self,
        shared: &Shared<'_, T>,
        g: &mut Gradients<'_, T>,
        rows: Backward<'_, T>,
        scratch: &mut Scratch<T>,
    ) -> Result<()> {
        scratch.partials.fill(T::ZERO);
        scratch.result_partials.fill(T::ZERO);
        match &self.branch {
            Branch::Mlp(mlp) => self.backward_mlp(mlp, shared, g, rows, scratch),
            Branch::Attention(attention) => self.backward_attention(attention, shared, g, rows, scratch)?,
        }
        self.wiring.norm().reduce(g, &scratch.partials);
        if let Wiring::Sandwich(_, after) = &self.wiring {
            after.reduce(g, &scratch.result_partials);
        }
        Ok(())
    }

    /// Rows as the branch reads them.
    fn normed<T: Float>(&self, w: &Weights<'_, T>, rows: &[T]) -> Vec<T> {
        let mut rows = rows.to_vec();
        if let Some(norm) = self.wiring.before() {
            norm.apply(w, &mut rows);
        }
        rows
    }

    /// Queries, keys and values of rows of the stream, side by side, after norms and positions; none of a network.
    pub(crate) fn projected<T: Float>(&self, w: &Weights<'_, T>, pass: &Pass<'_>, rows: &[T]) -> Vec<T> {
        let Branch::Attention(attention) = &self.branch else { return Vec::new() };
        let mut saved = attention.plan(pass);
        attention.fit(pass, &mut saved);
        let (normed, outputs) = (self.normed(w, rows), attention.input().outputs());
        let (q, raw, angles) = MultiHeadAttention::split(&mut saved);
        let mut packs = packs();
        let ready = attention.input().prepare(w, Amount::of(pass.rows()), &mut packs);
        let cut = Cut::rows_of(rows, self.width());
        let tasks = cut.pieces(&normed, self.width()).zip(cut.pieces_mut(q, outputs)).zip(pieces_or_none(cut, raw, outputs)).collect();
        for_pieces(tasks, |i, ((x, q), raw)| attention.project(w, &ready, x, cut.first(i), pass, angles, (q, raw)));
        std::mem::take(q)
    }

    /// Heads' results of rows as [`Sublayer::projected`] makes them.
    pub(crate) fn attended<T: Float>(&self, pass: &Pass<'_>, projected: Vec<T>) -> Result<Vec<T>> {
        let Branch::Attention(attention) = &self.branch else { return Ok(Vec::new()) };
        let mut saved = attention.plan(pass);
        saved.q = projected;
        attention.attend(pass, self.number, &mut saved, Keep::Discard, None, &NoProbe)?;
        Ok(saved.out)
    }

    /// Which experts the network takes for rows of the stream.
    pub(crate) fn routing<T: Float>(&self, w: &Weights<'_, T>, rows: &[T]) -> Vec<Vec<(usize, T)>> {
        let Branch::Mlp(mlp) = &self.branch else { return Vec::new() };
        mlp.routing(w, &self.normed(w, rows))
    }

    /// What the network makes of rows of the stream; none of attention.
    pub(crate) fn network<T: Float>(&self, w: &Weights<'_, T>, rows: &[T]) -> Vec<T> {
        let Branch::Mlp(mlp) = &self.branch else { return Vec::new() };
        let mut y = vec![T::ZERO; rows.len()];
        mlp.forward_all(w, &self.normed(w, rows), &mut y);
        y
    }

    /// What parts of a row of the stream come to in the queries or keys of a head: see [`MultiHeadAttention::operand_parts`]. One part more
    /// is what the norm and the projection add.
    pub(crate) fn operand_parts<T: Float>(
        &self,
        w: &Weights<'_, T>,
        (operand, head): (Operand, usize),
        position: usize,
        row: &[T],
        parts: &[T],
    ) -> Vec<T> {
        let (Branch::Attention(attention), Some(norm)) = (&self.branch, self.wiring.before()) else { return Vec::new() };
        let mut parts = parts.to_vec();
        let shift = norm.apply_parts(w, row, &mut parts);
        parts.extend(shift.unwrap_or_else(|| vec![T::ZERO; row.len()]));
        attention.operand_parts(w, operand, head, position, &parts)
    }

    fn is_pre(&self) -> bool {
        self.wiring.before().is_some()
    }

    /// The gradient of the branch's result is the gradient of y itself: pre-norm without dropout.
    fn shares_gradient(&self, drop: Option<Dropout>) -> bool {
        self.is_pre() && drop.is_none() && !self.norms_result()
    }

    /// The branch's result goes through a norm.
    fn norms_result(&self) -> bool {
        matches!(self.wiring, Wiring::Sandwich(..))
    }

    /// Which of two buffers [`Sublayer::enter`] wrote the gradient of the branch's result to, where it is not that of y.
    fn branch_gradient<'s, T: Float>(&self, drop: Option<Dropout>, d_sum: &'s [T], d_branch: &'s [T]) -> &'s [T] {
        if drop.is_some() && !self.norms_result() { d_branch } else { d_sum }
    }

    fn backward_mlp<T: Float>(
        &self,
        mlp: &Mlp,
        shared: &Shared<'_, T>,
        g: &mut Gradients<'_, T>,
        rows: Backward<'_, T>,
        scratch: &mut Scratch<T>,
    ) {
        let Backward { x, saved, d, packs, seen, .. } = rows;
        let (w, width, drop) = (shared.w, self.width(), self.drop(shared.pass));
        let SublayerSaved { work, stats, result, result_stats, branch: BranchSaved::Mlp { inner, act } } = saved else {
            unreachable!("planned by the same sublayer")
        };
        if self.shares_gradient(drop) {
            // Before `d` becomes the gradient of x.
            mlp.down_gradient(g, act, d);
        }
        if self.is_pre() {
            seen.branch(self.number as usize, d);
        }
        mlp.pack_transposed(w, packs);
        let cut = Cut::rows_of(x, width);
        let backs = pieces_or_none(cut, &mut scratch.d_sum, width).into_iter().zip(pieces_or_none(cut, &mut scratch.d_branch, width));
        let branch = cut.pieces_mut(inner, mlp.inner()).zip(cut.pieces_mut(&mut scratch.d_act, mlp.hidden()));
        let rows = cut.pieces(x, width).zip(cut.pieces(work, width)).zip(cut.pieces(stats, NORM_STATS)).zip(cut.pieces_mut(d, width));
        let norms = scratch.partials.chunks_mut((2 * width).max(1)).zip(cut.pieces_mut(&mut scratch.d_normed, width));
        let parallel = pieces_or_none(cut, &mut scratch.d_parallel, width);
        let results = result_pieces(cut, width, result, result_stats, &mut scratch.result_partials);
        let tasks = rows.zip(backs).zip(branch).zip(norms.zip(parallel)).zip(results).collect();
        let turned = &*packs;
        for_pieces(tasks, |i, (((((((x, work), stats), d), backs), (inner, d_act)), ((partial, d_normed), parallel)), result)| {
            let (d_sum, d_branch) = backs;
            let dy = self.enter(w, drop, cut.first(i), (work, stats), d, (&mut *d_sum, d_branch), partial, result);
            mlp.backward(turned, dy, d_act, inner, d_normed);
            if let Wiring::Parallel(norm) = &self.wiring {
                norm.backward(w, x, stats, d_normed, parallel, false, partial);
            } else {
                self.leave(w, x, stats, d_normed, d, d_sum, partial);
            }
        });
        if !self.is_pre() {
            seen.branch(self.number as usize, &scratch.d_sum);
        }
        let reads = Reads { w, norm: self.wiring.before(), x, stats, attention: None, d: &scratch.d_normed };
        seen.reads(self.number as usize, &reads);
        if !self.shares_gradient(drop) {
            mlp.down_gradient(g, act, self.branch_gradient(drop, &scratch.d_sum, &scratch.d_branch));
        }
        mlp.up_gradient(g, if self.is_pre() { work } else { x }, inner);
    }

    fn backward_attention<T: Float>(
        &self,
        attention: &MultiHeadAttention,
        shared: &Shared<'_, T>,
        g: &mut Gradients<'_, T>,
        rows: Backward<'_, T>,
        scratch: &mut Scratch<T>,
    ) -> Result<()> {
        let Backward { x, saved, d, d_memory, packs, seen } = rows;
        let (w, pass, width, drop) = (shared.w, shared.pass, self.width(), self.drop(shared.pass));
        let SublayerSaved { work, stats, result, result_stats, branch: BranchSaved::Attention(kept) } = &*saved else {
            unreachable!("planned by the same sublayer")
        };
        let (input, out) = (attention.input(), attention.output());
        let (last, first) = packs.split_last_mut().expect("room for the output projection");
        input.pack_transposed(w, first);
        out.pack_transposed(w, last);
        let Scratch { d_normed, d_sum, d_branch, d_out, d_q, d_kv, partials, result_partials, .. } = scratch;
        let (d_out, d_q) = (&mut d_out[..pass.rows() * out.inputs()], &mut d_q[..pass.rows() * input.outputs()]);
        if self.shares_gradient(drop) {
            out.weight_gradient(g, &kept.out, d, width, 0);
        }
        if self.is_pre() {
            seen.branch(self.number as usize, d);
        }
        let cut = Cut::rows_of(x, width);
        let backs = pieces_or_none(cut, d_sum, width).into_iter().zip(pieces_or_none(cut, d_branch, width));
        let tasks = cut.pieces(work, width).zip(cut.pieces(stats, NORM_STATS)).zip(cut.pieces_mut(d, width));
        let results = result_pieces(cut, width, result, result_stats, result_partials);
        let partial = partials.chunks_mut((2 * width).max(1)).zip(results);
        let tasks = tasks.zip(backs.zip(cut.pieces_mut(d_out, out.inputs()))).zip(partial).collect();
        let turned = &*last;
        for_pieces(tasks, |i, ((((work, stats), d), (backs, d_out)), (partial, result))| {
            let dy = self.enter(w, drop, cut.first(i), (work, stats), d, backs, partial, result);
            out.input_gradient(turned, dy, width, 0, d_out, Write::Replace);
        });
        if !self.is_pre() {
            seen.branch(self.number as usize, d_sum);
        }
        if !self.shares_gradient(drop) {
            out.weight_gradient(g, &kept.out, self.branch_gradient(drop, d_sum, d_branch), width, 0);
        }
        attention.attend_backward((w, &mut *g), (pass, self.number), kept, d_out, (&mut *d_q, d_kv), seen)?;
        let reads = Reads { w, norm: self.wiring.before(), x, stats, attention: Some(attention), d: d_q };
        seen.reads(self.number as usize, &reads);
        let tasks = cut.pieces(x, width).zip(cut.pieces(stats, NORM_STATS)).zip(cut.pieces(d_q, input.outputs()));
        let backs = cut.pieces_mut(d, width).zip(pieces_or_none(cut, d_sum, width)).zip(cut.pieces_mut(d_normed, width));
        let tasks = tasks.zip(backs).zip(partials.chunks_mut((2 * width).max(1))).collect();
        let turned = &*first;
        for_pieces(tasks, |_, ((((x, stats), d_q), ((d, d_sum), d_normed)), partial)| {
            input.input_gradient(turned, d_q, d_normed);
            self.leave(w, x, stats, d_normed, d, d_sum, partial);
        });
        input.weight_gradient(g, if self.is_pre() { work } else { x }, d_q);
        attention.memory_backward(w, g, shared.memory, d_kv, d_memory, packs);
        Ok(())
    }

    /// From the gradient of y to that of the branch's result, for the piece from row `first` on; of post-norm, also that of the sum.
    fn enter<'b, T: Float>(
        &self,
        w: &Weights<'_, T>,
        drop: Option<Dropout>,
        first: usize,
        (work, stats): (&[T], &[T]),
        d: &'b [T],
        (d_sum, d_branch): (&'b mut [T], &'b mut [T]),
        partial: &mut [T],
        result: ResultNorm<'_, T>,
    ) -> &'b [T] {
        if let Wiring::Sandwich(_, after) = &self.wiring {
            let source = match drop {
                None => d,
                Some(drop) => {
                    d_branch.copy_from_slice(d);
                    drop.apply(first * self.width(), d_branch);
                    d_branch
                }
            };
            after.backward(w, result.rows, result.stats, source, d_sum, false, result.partial);
            return d_sum;
        }
        let source = if let Wiring::PostNorm(norm) = &self.wiring {
            norm.backward(w, work, stats, d, d_sum, false, partial);
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
    fn leave<T: Float>(&self, w: &Weights<'_, T>, x: &[T], stats: &[T], d_input: &[T], d: &mut [T], d_sum: &[T], partial: &mut [T]) {
        if let Wiring::PostNorm(_) = self.wiring {
            d.copy_from_slice(d_sum);
            add(d, d_input);
        } else {
            self.wiring.norm().backward(w, x, stats, d_input, d, true, partial);
        }
    }
}
