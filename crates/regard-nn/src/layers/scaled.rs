//! [`ScaledAttention`]: one head, three projections, nothing after it. The module that teaching texts begin with.
//!
//! ```text
//! out = softmax(x Wq (x Wk)^T / sqrt(d_k)) x Wv
//! ```

use super::attention::ScaleKind;
use super::pass::Pass;
use crate::error::{Error, Result};
use crate::float::Float;
use crate::linear::Linear;
use crate::positions::add;
use crate::tensors::Weights;
use crate::tensors::layout::{Gradients, Layout};
use ndarray::{Array4, ArrayView4};
use regard::{Attention, RowStats, Saved, StatsOptions};

/// Single-head self-attention.
#[derive(Debug, Clone)]
pub struct ScaledAttention {
    q: Linear,
    k: Linear,
    v: Linear,
    scale: ScaleKind,
}

/// What a forward pass keeps.
#[derive(Debug, Clone, Default)]
pub struct ScaledSaved<T: Float> {
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    kept: Option<Saved<T>>,
}

/// Rows as the only head of `[batch, 1, seq, width]`.
fn head<'r, T>(rows: &'r [T], pass: &Pass<'_>, width: usize) -> ArrayView4<'r, T> {
    ArrayView4::from_shape((pass.batch, 1, pass.seq, width), rows).expect("as many rows as the pass has")
}

impl ScaledAttention {
    /// Queries and keys of `key_dim`, values of `value_dim` elements.
    pub fn new(layout: &mut Layout, width: usize, key_dim: usize, value_dim: usize, bias: bool, scale: ScaleKind) -> Self {
        Self {
            q: Linear::new(layout, "q", width, key_dim, bias),
            k: Linear::new(layout, "k", width, key_dim, bias),
            v: Linear::new(layout, "v", width, value_dim, bias),
            scale,
        }
    }

    fn attention<'a>(&self, pass: &Pass<'a>) -> Attention<'a> {
        let attention = Attention::new().scale(self.scale.into()).mask(pass.mask.clone());
        match pass.key_lengths {
            Some(lengths) => attention.key_lengths(lengths),
            None => attention,
        }
    }

    /// Rows `[batch, seq, width]` to rows `[batch, seq, value_dim]`.
    ///
    /// # Errors
    /// When the pass does not fit the rows.
    pub fn forward<T: Float>(&self, w: &Weights<'_, T>, pass: &Pass<'_>, x: &[T], out: &mut [T], saved: &mut ScaledSaved<T>) -> Result<()> {
        if x.len() != pass.rows() * self.q.inputs() {
            return Err(Error::Length { what: "x", got: x.len(), expected: pass.rows() * self.q.inputs() });
        }
        for (linear, rows) in [(&self.q, &mut saved.q), (&self.k, &mut saved.k), (&self.v, &mut saved.v)] {
            rows.resize(pass.rows() * linear.outputs(), T::ZERO);
            linear.forward(w, x, rows);
        }
        let (q, k, v) = self.views(pass, saved);
        let kept = self.attention(pass).forward_saved(q, k, v)?;
        out.copy_from_slice(kept.out.as_slice().expect("standard layout"));
        saved.kept = Some(kept);
        Ok(())
    }

    fn views<'s, T: Float>(&self, pass: &Pass<'_>, saved: &'s ScaledSaved<T>) -> (ArrayView4<'s, T>, ArrayView4<'s, T>, ArrayView4<'s, T>) {
        let view = |linear: &Linear, rows: &'s [T]| head(rows, pass, linear.outputs());
        (view(&self.q, &saved.q), view(&self.k, &saved.k), view(&self.v, &saved.v))
    }

    /// Writes dx, adds to the parameters' gradients.
    ///
    /// # Errors
    /// When there was no forward pass.
    pub fn backward<T: Float>(
        &self,
        w: &Weights<'_, T>,
        g: &mut Gradients<'_, T>,
        pass: &Pass<'_>,
        x: &[T],
        saved: &ScaledSaved<T>,
        d_out: &[T],
        dx: &mut [T],
    ) -> Result<()> {
        let kept = saved.kept.as_ref().ok_or(Error::BackwardFirst)?;
        let (q, k, v) = self.views(pass, saved);
        let gradients = self.attention(pass).backward(q, k, v, kept, head(d_out, pass, self.v.outputs()))?;
        let mut part = vec![T::ZERO; dx.len()];
        dx.fill(T::ZERO);
        for (linear, d) in [(&self.q, &gradients.dq), (&self.k, &gradients.dk), (&self.v, &gradients.dv)] {
            linear.backward(w, g, x, d.as_slice().expect("standard layout"), &mut part);
            add(dx, &part);
        }
        Ok(())
    }

    /// The weights of the last forward pass, `[batch, 1, seq, seq]`.
    ///
    /// # Errors
    /// When the pass is another one.
    pub fn weights<T: Float>(&self, pass: &Pass<'_>, saved: &ScaledSaved<T>) -> Result<Array4<T>> {
        let (q, k, _) = self.views(pass, saved);
        Ok(self.attention(pass).weights(q, k)?)
    }

    /// What each row of the last forward pass attended to.
    ///
    /// # Errors
    /// When the pass is another one.
    pub fn stats<T: Float>(&self, pass: &Pass<'_>, saved: &ScaledSaved<T>, options: StatsOptions) -> Result<RowStats<T>> {
        let (q, k, v) = self.views(pass, saved);
        Ok(self.attention(pass).forward_with_stats(q, k, v, options)?.1)
    }
}
