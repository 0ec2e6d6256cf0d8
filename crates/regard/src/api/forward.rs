//! Entry points of the forward pass.

use super::{Element, View};
use crate::arrays::uninit;
use crate::error::{Result, check_shape};
use crate::forward::{Forward, Inputs, Outputs, Saved, SavedViewMut, as_uninit, row_array, saved};
use crate::plan::Attention;
use ndarray::{ArrayViewMut3, ArrayViewMut4};
use regard_simd::Real;

impl Attention<'_> {
    /// Attend. q is `[batch, heads_q, seq_q, head_dim]`, k `[batch, heads_kv, seq_kv, head_dim]`,
    /// v `[batch, heads_kv, seq_kv, value_dim]`, with any strides; query head `h` reads key/value head
    /// `h / (heads_q / heads_kv)`.
    ///
    /// ```
    /// let x = ndarray::Array4::<f32>::ones((1, 2, 5, 8));
    /// let result = regard::Attention::new().causal().forward(&x, &x, &x)?;
    /// assert_eq!(result.out, x);
    /// # Ok::<(), regard::Error>(())
    /// ```
    ///
    /// # Errors
    /// When shapes or options do not fit, before anything is computed.
    pub fn forward<'x, E: Element>(&self, q: impl View<'x, E>, k: impl View<'x, E>, v: impl View<'x, E>) -> Result<Forward<E>> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan(&inputs.q, &inputs.k, Some(&inputs.v))?;
        let (mut out, mut lse) = (uninit("out", plan.dims.out())?, row_array(&plan, E::Real::NEG_INFINITY)?);
        E::forward(&plan, inputs, Outputs { lse: Some(lse.view_mut()), ..Outputs::new(out.view_mut()) })?;
        // SAFETY: the call succeeded, so every row of every query tile was written, and the tiles are all of `out`.
        Ok(Forward { out: unsafe { out.assume_init() }, lse })
    }

    /// Attend, and keep what [`Attention::backward`] needs.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn forward_saved<'x, E: Element>(&self, q: impl View<'x, E>, k: impl View<'x, E>, v: impl View<'x, E>) -> Result<Saved<E>> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan(&inputs.q, &inputs.k, Some(&inputs.v))?;
        // SAFETY: a call that succeeds has written every row of every query tile, and the tiles are all of `out` and `out_unrounded`.
        Ok(unsafe { saved(&plan, |outputs| E::forward(&plan, inputs, outputs)) }?.0)
    }

    /// [`Attention::forward`] into the caller's buffers; `lse` may be left out.
    ///
    /// # Errors
    /// As [`Attention::forward`], and when a buffer has another shape than the result; it is then untouched.
    pub fn forward_into<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        mut out: ArrayViewMut4<'_, E>,
        lse: Option<ArrayViewMut3<'_, E::Real>>,
    ) -> Result<()> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan(&inputs.q, &inputs.k, Some(&inputs.v))?;
        let shape = plan.dims.out();
        check_shape("out", out.shape(), &shape)?;
        if let Some(lse) = &lse {
            check_shape("lse", lse.shape(), &shape[..3])?;
        }
        E::forward(&plan, inputs, Outputs { lse, ..Outputs::new(as_uninit(&mut out)) })
    }

    /// [`Attention::forward_saved`] into the caller's buffers.
    ///
    /// # Errors
    /// As [`Attention::forward_into`].
    pub fn forward_saved_into<'x, E: Element>(
        &self,
        q: impl View<'x, E>,
        k: impl View<'x, E>,
        v: impl View<'x, E>,
        to: SavedViewMut<'_, E>,
    ) -> Result<()> {
        let inputs = Inputs { q: q.into(), k: k.into(), v: v.into() };
        let plan = self.plan(&inputs.q, &inputs.k, Some(&inputs.v))?;
        let shape = plan.dims.out();
        let SavedViewMut { mut out, mut out_unrounded, row_max, row_sum } = to;
        check_shape("out", out.shape(), &shape)?;
        if let Some(out_unrounded) = &out_unrounded {
            check_shape("out_unrounded", out_unrounded.shape(), &shape)?;
        }
        check_shape("row_max", row_max.shape(), &shape[..3])?;
        check_shape("row_sum", row_sum.shape(), &shape[..3])?;
        // What is not rounded is not written twice.
        let out_unrounded = out_unrounded.as_mut().filter(|_| !E::IS_REAL).map(as_uninit);
        E::forward(
            &plan,
            inputs,
            Outputs { out_unrounded, row_max: Some(row_max), row_sum: Some(row_sum), ..Outputs::new(as_uninit(&mut out)) },
        )
    }
}
