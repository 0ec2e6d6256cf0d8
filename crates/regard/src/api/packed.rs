//! Entry points for packed sequences: contiguous on the token axis, without padding. Each attends to itself, with its own positions, masks
//! and dropout.
//! Sequence `i` is batch entry `i` for options with one value per batch entry.

use super::{Element, View};
use crate::arrays::{take, uninit};
use crate::backward::{GradientOutputs, GradientSums, Gradients, OptionGradients, check_saved};
use crate::bias::{Bias, BiasGradient};
use crate::error::{Error, Result, check_shape};
use crate::forward::{Forward, Inputs, Outputs, Saved, SavedView};
use crate::plan::{Attention, CuSeqlens, Dims, GlobalOffset, Plan, run_on};
use ndarray::{Array3, Array4, ArrayView4, ArrayViewMut4, Axis};
use regard_simd::Real;
use std::mem::MaybeUninit;
use std::ops::Range;

impl Attention<'_> {
    /// [`Attention::forward`] for packed sequences: tensors are `[1, heads, tokens, dim]`, with any strides.
    ///
    /// # Errors
    /// As [`Attention::forward`], and [`Error::CumulativeLengths`] when the sequences are not all of the tokens.
    pub fn forward_packed<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        packed: &CuSeqlens<'_>,
    ) -> Result<Forward<E>> {
        let saved = self.packed(Inputs { q: q.into(), k: k.into(), v: v.into() }, packed, false)?;
        Ok(Forward { lse: saved.lse(), out: saved.out })
    }

    /// [`Attention::forward_saved`] for packed sequences.
    ///
    /// # Errors
    /// As [`Attention::forward_packed`].
    pub fn forward_saved_packed<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        packed: &CuSeqlens<'_>,
    ) -> Result<Saved<E>> {
        self.packed(Inputs { q: q.into(), k: k.into(), v: v.into() }, packed, !E::IS_REAL)
    }

    /// [`Attention::backward`] for packed sequences.
    ///
    /// # Errors
    /// As [`Attention::backward`] and [`Attention::forward_packed`]; and [`Error::Unsupported`] when the gradient of a dense bias is
    /// wanted.
    pub fn backward_packed<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        saved: impl Into<SavedView<'x, E>>,
        d_out: impl View<'x, E>,
        packed: &CuSeqlens<'_>,
    ) -> Result<Gradients<E>> {
        let (inputs, saved, d_out) = (Inputs { q: q.into(), k: k.into(), v: v.into() }, saved.into(), d_out.into());
        let plans = self.plan_packed(&inputs, packed)?;
        if let Some(plan) = plans.first() {
            let dense = |bias: &Bias<'_>| !matches!(bias, Bias::Alibi(_) | Bias::Relative(_));
            if plan.biases_with_gradient().iter().any(dense) {
                return Err(Error::Unsupported { what: "the gradient of a dense bias of packed sequences" });
            }
            let dims = Dims { seq_q: inputs.q.len_of(Axis(2)), seq_kv: inputs.k.len_of(Axis(2)), ..plan.dims };
            check_saved(&dims, &saved, &d_out)?;
        }
        let shape = |x: &ArrayView4<'_, E>| [x.shape()[0], x.shape()[1], x.shape()[2], x.shape()[3]];
        let (mut dq, mut dk, mut dv) = (uninit("dq", shape(&inputs.q))?, uninit("dk", shape(&inputs.k))?, uninit("dv", shape(&inputs.v))?);
        let [dqs, dks, dvs] = [(&mut dq, 0), (&mut dk, 1), (&mut dv, 1)].map(|(x, of)| cut_tokens(x.view_mut(), packed, of));
        let parts: Vec<_> = plans.iter().enumerate().zip(dqs).zip(dks.into_iter().zip(dvs)).collect();
        let run = |((i, plan), dq): ((usize, &Plan<'_>), _), (dk, dv)| {
            let [queries, keys] = packed.sequence(i);
            let q = |x: &ArrayView4<'x, E>| tokens(x, &queries);
            let inputs = Inputs { q: q(&inputs.q), k: tokens(&inputs.k, &keys), v: tokens(&inputs.v, &keys) };
            let rows = |x: &ndarray::ArrayView3<'x, E::Real>| x.slice_move(ndarray::s![.., .., queries.clone()]);
            let out_unrounded = saved.out_unrounded.as_ref().map(|x| tokens(x, &queries));
            let saved = SavedView { out: q(&saved.out), out_unrounded, row_max: rows(&saved.row_max), row_sum: rows(&saved.row_sum) };
            E::backward(plan, inputs, saved, q(&d_out), GradientOutputs { dq, dk, dv, adds: false }, false)
        };
        let sums = run_on(self.threads, parts, |(a, b)| run(a, b))?;
        let OptionGradients { d_biases, d_sink, d_scale } = add_options(sums);
        // SAFETY: every call succeeded and wrote its part, and the sequences are all of the tokens.
        let (dq, dk, dv) = unsafe { (dq.assume_init(), dk.assume_init(), dv.assume_init()) };
        Ok(Gradients { dq, dk, dv, d_biases, d_sink, d_scale })
    }

    /// One plan per sequence.
    fn plan_packed<E: Element>(&self, inputs: &Inputs<'_, E>, packed: &CuSeqlens<'_>) -> Result<Vec<Plan<'_>>> {
        let Inputs { q, k, v } = inputs;
        check_shape("q of packed sequences", &q.shape()[..1], &[1])?;
        packed.check(q.len_of(Axis(2)), k.len_of(Axis(2)))?;
        let dims = Dims::check(q.shape(), k.shape(), Some(v.shape()))?;
        (0..packed.count())
            .map(|i| {
                let [queries, keys] = packed.sequence(i).map(|range| range.len());
                let dims = Dims { seq_q: queries, seq_kv: keys, ..dims };
                let whole = [packed.count(), dims.heads_q, queries, keys];
                self.plan_part::<E::Real>(dims, GlobalOffset { batch: i, query: 0, key: 0, whole })
            })
            .collect()
    }

    fn packed<E: Element>(&self, inputs: Inputs<'_, E>, packed: &CuSeqlens<'_>, keeps_unrounded: bool) -> Result<Saved<E>> {
        let plans = self.plan_packed(&inputs, packed)?;
        let Inputs { q, k, v } = inputs;
        let shape = [1, q.len_of(Axis(1)), q.len_of(Axis(2)), v.len_of(Axis(3))];
        let mut out = uninit("out", shape)?;
        let mut out_unrounded = if keeps_unrounded { Some(uninit("out", shape)?) } else { None };
        let rows = |with: E::Real| Array3::from_elem([1, shape[1], shape[2]], with);
        let (mut row_max, mut row_sum) = (rows(E::Real::NEG_INFINITY), rows(E::Real::ZERO));
        let [max, sum] = [&mut row_max, &mut row_sum].map(|rows| Some(rows.view_mut()));
        let unrounded_view = out_unrounded.as_mut().map(|x: &mut Array4<_>| x.view_mut());
        let mut all = Outputs { out_unrounded: unrounded_view, row_max: max, row_sum: sum, ..Outputs::new(out.view_mut()) };
        let tasks = plans.iter().enumerate().map(|(i, plan)| (i, plan, all.take(2, packed.sequence(i)[0].len()))).collect();
        let run = |(i, plan, outputs): (usize, &Plan<'_>, Outputs<'_, E>)| {
            let [queries, keys] = packed.sequence(i);
            E::forward(plan, Inputs { q: tokens(&q, &queries), k: tokens(&k, &keys), v: tokens(&v, &keys) }, outputs)
        };
        run_on(self.threads, tasks, run)?;
        // SAFETY: every call succeeded and wrote its part, and the sequences are all of the tokens.
        let (out, out_unrounded) = unsafe { (out.assume_init(), out_unrounded.map(|x| x.assume_init())) };
        Ok(Saved { out, out_unrounded, row_max, row_sum })
    }
}

/// Some tokens of a tensor.
fn tokens<'x, T>(x: &ArrayView4<'x, T>, range: &Range<usize>) -> ArrayView4<'x, T> {
    x.slice_move(ndarray::s![.., .., range.clone(), ..])
}

/// The tokens of each sequence: of its queries (0) or keys (1).
fn cut_tokens<'x, T>(x: ArrayViewMut4<'x, MaybeUninit<T>>, packed: &CuSeqlens<'_>, of: usize) -> Vec<ArrayViewMut4<'x, MaybeUninit<T>>> {
    let mut rest = x;
    (0..packed.count()).map(|i| take(&mut rest, 2, packed.sequence(i)[of].len())).collect()
}

/// The gradients on options, over all sequences, in order.
fn add_options(sums: Vec<GradientSums>) -> OptionGradients {
    let mut all = sums.into_iter().map(|sums| sums.options);
    let mut total = all.next().unwrap_or_default();
    for one in all {
        for (to, from) in total.d_biases.iter_mut().zip(one.d_biases) {
            match (to, from) {
                (BiasGradient::Alibi(to), BiasGradient::Alibi(from)) => to.iter_mut().zip(from).for_each(|(to, x)| *to += x),
                (BiasGradient::Relative(to), BiasGradient::Relative(from)) => *to += &from,
                _ => unreachable!("dense ones were refused"),
            }
        }
        if let (Some(to), Some(from)) = (&mut total.d_sink, one.d_sink) {
            to.iter_mut().zip(from).for_each(|(to, x)| *to += x);
        }
        total.d_scale = total.d_scale.zip(one.d_scale).map(|(a, b)| a + b);
    }
    total
}
