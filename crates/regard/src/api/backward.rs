//! Entry points of the backward pass.

use super::{Element, View};
use crate::arrays::uninit;
use crate::backward::{GradientOutputs, GradientStats, GradientSums, Gradients, GradientsViewMut, OptionGradients, check_saved, norms};
use crate::error::{Result, check_shape};
use crate::forward::{Inputs, SavedView, as_uninit};
use crate::plan::{Attention, Plan};
use ndarray::{Array3, ArrayView4};

impl Attention<'_> {
    /// The gradients on q, k and v (and on biases, sinks and the scale), given the gradient on the result. `saved` is what
    /// [`Attention::forward_saved`] returned for the same options and tensors, by reference or as a [`SavedView`]. Linear in memory.
    ///
    /// ```
    /// use ndarray::Array4;
    /// use regard::Attention;
    /// let x = Array4::from_shape_fn((1, 2, 5, 8), |(_, h, i, d)| ((h + i * d) as f64).sin());
    /// let attention = Attention::new().causal();
    /// let saved = attention.forward_saved(&x, &x, &x)?;
    /// // The loss is the sum of the result, so its gradient on the result is one everywhere.
    /// let ones = Array4::ones(saved.out.raw_dim());
    /// let gradients = attention.backward(&x, &x, &x, &saved, &ones)?;
    /// // Rows of weights sum to one: each value is handed on whole, by all the rows together.
    /// assert!((gradients.dv.sum() - ones.sum()).abs() < 1e-12);
    /// # Ok::<(), regard::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Attention::forward`], and when `saved` or `d_out` do not have the shape of the result.
    pub fn backward<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        saved: impl Into<SavedView<'x, E>>,
        d_out: impl View<'x, E>,
    ) -> Result<Gradients<E>> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        Ok(self.gradients(inputs, saved.into(), d_out.into(), false)?.0)
    }

    /// [`Attention::backward`] with norms of the gradients of every row. Linear in memory.
    ///
    /// # Errors
    /// As [`Attention::backward`].
    pub fn backward_with_stats<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        saved: impl Into<SavedView<'x, E>>,
        d_out: impl View<'x, E>,
    ) -> Result<(Gradients<E>, GradientStats)> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let (gradients, squares) = self.gradients(inputs, saved.into(), d_out.into(), true)?;
        let level = self.chosen_level()?;
        let [(dq_rows, dq), (dk_rows, dk), (dv_rows, dv)] = [&gradients.dq, &gradients.dk, &gradients.dv].map(|x| norms(level, x));
        let d_scores_rows = squares.expect("stats is true").mapv(f64::sqrt);
        Ok((gradients, GradientStats { dq_rows, dk_rows, dv_rows, d_scores_rows, dq, dk, dv }))
    }

    /// [`Attention::backward`] into the caller's buffers. Where they are f32 or f64 in the standard layout, with `head_dim` and `value_dim`
    /// multiples of 16 (8 in f64), sums are made in place.
    ///
    /// # Errors
    /// As [`Attention::backward`], and when a buffer has another shape; it is then untouched.
    pub fn backward_into<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        saved: impl Into<SavedView<'x, E>>,
        d_out: impl View<'x, E>,
        mut to: GradientsViewMut<'_, E>,
    ) -> Result<OptionGradients> {
        let (inputs, saved, d_out) = (Inputs { q: q.into(), k: k.into(), v: v.into() }, saved.into(), d_out.into());
        let plan = self.plan_gradients(&inputs, &saved, &d_out)?;
        check_shape("dq", to.dq.shape(), inputs.q.shape())?;
        check_shape("dk", to.dk.shape(), inputs.k.shape())?;
        check_shape("dv", to.dv.shape(), inputs.v.shape())?;
        let outputs = GradientOutputs { dq: as_uninit(&mut to.dq), dk: as_uninit(&mut to.dk), dv: as_uninit(&mut to.dv), adds: false };
        Ok(E::backward(&plan, inputs, saved, d_out, outputs, false)?.options)
    }

    fn gradients<E: Element>(
        &self,
        inputs: Inputs<'_, E>,
        saved: SavedView<'_, E>,
        d_out: ArrayView4<'_, E>,
        stats: bool,
    ) -> Result<(Gradients<E>, Option<Array3<f64>>)> {
        let plan = self.plan_gradients(&inputs, &saved, &d_out)?;
        let shape = |x: &ArrayView4<'_, E>| [x.shape()[0], x.shape()[1], x.shape()[2], x.shape()[3]];
        let (mut dq, mut dk, mut dv) = (uninit("dq", shape(&inputs.q))?, uninit("dk", shape(&inputs.k))?, uninit("dv", shape(&inputs.v))?);
        let outputs = GradientOutputs { dq: dq.view_mut(), dk: dk.view_mut(), dv: dv.view_mut(), adds: false };
        let GradientSums { options, squares } = E::backward(&plan, inputs, saved, d_out, outputs, stats)?;
        // SAFETY: the call succeeded, so every element was written.
        let (dq, dk, dv) = unsafe { (dq.assume_init(), dk.assume_init(), dv.assume_init()) };
        let OptionGradients { d_biases, d_sink, d_scale } = options;
        Ok((Gradients { dq, dk, dv, d_biases, d_sink, d_scale }, squares))
    }

    fn plan_gradients<E: Element>(&self, inputs: &Inputs<'_, E>, saved: &SavedView<'_, E>, d_out: &ArrayView4<'_, E>) -> Result<Plan<'_>> {
        let plan = self.plan(&inputs.q, &inputs.k, Some(&inputs.v))?;
        check_saved(&plan.dims, saved, d_out)?;
        Ok(plan)
    }
}
