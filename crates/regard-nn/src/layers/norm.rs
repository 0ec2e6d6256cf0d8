//! Normalisation of rows.
//!
//! ```text
//! layer norm   y = (x - mean) / sqrt(variance + eps) * gain + shift
//! RMS norm     y = x / sqrt(mean of squares + eps) * gain
//! ```
//!
//! With `n` the normalised row before the gain and `e = dy * gain`, the gradient is
//! `dx = (e - mean(e) - n mean(e n)) / deviation`; RMS norm has no `mean(e)`.

use crate::float::{Float, kernel, lane_sum, lane_sum2};
use crate::tensors::Weights;
use crate::tensors::layout::{Gradients, Init, Layout, TensorId};
use serde::{Deserialize, Serialize};

/// Which normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Mean and variance, gain and shift.
    #[default]
    Layer,
    /// Mean of squares, gain only.
    Rms,
}

/// What most models keep small variances from dividing by zero with.
pub const EPS: f64 = 1e-5;

/// Normalisation of each row of `width` elements.
#[derive(Debug, Clone)]
pub struct Norm {
    kind: NormKind,
    eps: f64,
    /// None of the identity.
    gain: Option<TensorId>,
    shift: Option<TensorId>,
    width: usize,
}

/// Numbers that the forward pass keeps per row: the mean and the inverse deviation.
pub const NORM_STATS: usize = 2;

impl Norm {
    /// Gain 1, shift 0; [`EPS`] is added under the root.
    pub fn new(layout: &mut Layout, name: &str, kind: NormKind, width: usize) -> Self {
        Self::with_eps(layout, name, kind, width, EPS)
    }

    /// The same with another number under the root.
    pub fn with_eps(layout: &mut Layout, name: &str, kind: NormKind, width: usize, eps: f64) -> Self {
        layout.within(name, |layout| Self {
            kind,
            eps,
            gain: Some(layout.add("gain", &[width], Init::One, false)),
            shift: (kind == NormKind::Layer).then(|| layout.add("shift", &[width], Init::Zero, false)),
            width,
        })
    }

    /// Rows as they are.
    pub(crate) fn identity(width: usize) -> Self {
        Self { kind: NormKind::Rms, eps: 0.0, gain: None, shift: None, width }
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Normalise rows on the calling thread; `stats` gets [`NORM_STATS`] elements per row.
    pub fn forward<T: Float>(&self, w: &Weights<'_, T>, x: &[T], y: &mut [T], stats: &mut [T]) {
        let eps = T::from_f64(self.eps);
        match (self.gain, self.shift) {
            (Some(gain), Some(shift)) => layer_rows(eps, x, w.own(gain), w.own(shift), y, stats),
            (Some(gain), None) => rms_rows(eps, x, w.own(gain), y, stats),
            (None, _) => y.copy_from_slice(x),
        }
    }

    /// Rows in their own place; nothing is kept for a backward pass.
    pub fn apply<T: Float>(&self, w: &Weights<'_, T>, x: &mut [T]) {
        let (mut row, mut stats) = (vec![T::ZERO; self.width], [T::ZERO; NORM_STATS]);
        for x in x.chunks_exact_mut(self.width.max(1)) {
            row.copy_from_slice(x);
            self.forward(w, &row, x, &mut stats);
        }
    }

    /// Parts of one row, normalised with the scale of the whole: their sum and the shift, which is given back, are the row normalised.
    pub fn apply_parts<T: Float>(&self, w: &Weights<'_, T>, row: &[T], parts: &mut [T]) -> Option<Vec<T>> {
        let gain = w.own(self.gain?);
        let (mut normed, mut stats) = (vec![T::ZERO; self.width], [T::ZERO; NORM_STATS]);
        self.forward(w, row, &mut normed, &mut stats);
        let inverse = stats[1];
        let count = T::from_f64(self.width as f64);
        for part in parts.chunks_exact_mut(self.width.max(1)) {
            let mean = if self.kind == NormKind::Layer { part.iter().copied().sum::<T>() / count } else { T::ZERO };
            part.iter_mut().zip(gain).for_each(|(x, &gain)| *x = (*x - mean) * inverse * gain);
        }
        self.shift.map(|shift| w.own(shift).to_vec())
    }

    /// Gradient of rows on the calling thread. Writes dx, or adds to it with `add`. The gradients of gain and shift are
    /// added to `partial`, which is `[2, width]`.
    pub fn backward<T: Float>(&self, w: &Weights<'_, T>, x: &[T], stats: &[T], dy: &[T], dx: &mut [T], add: bool, partial: &mut [T]) {
        match self.gain {
            Some(gain) => backward_rows(self.kind == NormKind::Layer, x, stats, w.own(gain), dy, dx, add, partial),
            None if add => dx.iter_mut().zip(dy).for_each(|(dx, &dy)| *dx += dy),
            None => dx.copy_from_slice(dy),
        }
    }

    /// [`Norm::backward`] with dx in the place of dy.
    pub(crate) fn backward_in_place<T: Float>(&self, w: &Weights<'_, T>, x: &[T], stats: &[T], d: &mut [T], partial: &mut [T]) {
        let mut dy = vec![T::ZERO; self.width];
        for ((x, stats), d) in x.chunks_exact(self.width).zip(stats.chunks_exact(NORM_STATS)).zip(d.chunks_exact_mut(self.width)) {
            dy.copy_from_slice(d);
            self.backward(w, x, stats, &dy, d, false, partial);
        }
    }

    /// Add the partial sums of [`Norm::backward`], `[pieces, 2, width]`, to the gradients.
    pub fn reduce<T: Float>(&self, g: &mut Gradients<'_, T>, partials: &[T]) {
        let (Some(id), true) = (self.gain, g.are_wanted()) else { return };
        for partial in partials.chunks_exact((2 * self.width).max(1)) {
            let (gain, shift) = partial.split_at(self.width);
            g.of(id).iter_mut().zip(gain).for_each(|(g, &x)| *g += x);
            if let Some(id) = self.shift {
                g.of(id).iter_mut().zip(shift).for_each(|(g, &x)| *g += x);
            }
        }
    }
}

kernel! {
    fn layer_rows<'a, T>(eps: T, x: &'a [T], gain: &'a [T], shift: &'a [T], y: &'a mut [T], stats: &'a mut [T]) -> () {
        let width = gain.len();
        let scale = T::from_f64(1.0 / width as f64);
        for ((x, y), stats) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(stats.chunks_exact_mut(NORM_STATS)) {
            let mean = lane_sum(x, |x, s| s + x) * scale;
            let variance = lane_sum(x, |x, s| (x - mean).mul_add(x - mean, s)) * scale;
            let inverse = T::ONE / (variance + eps).sqrt();
            for (((y, &x), &gain), &shift) in y.iter_mut().zip(x).zip(gain).zip(shift) {
                *y = ((x - mean) * inverse).mul_add(gain, shift);
            }
            stats[0] = mean;
            stats[1] = inverse;
        }
    }
}

kernel! {
    fn rms_rows<'a, T>(eps: T, x: &'a [T], gain: &'a [T], y: &'a mut [T], stats: &'a mut [T]) -> () {
        let width = gain.len();
        let scale = T::from_f64(1.0 / width as f64);
        for ((x, y), stats) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(stats.chunks_exact_mut(NORM_STATS)) {
            let inverse = T::ONE / (lane_sum(x, |x, s| x.mul_add(x, s)) * scale + eps).sqrt();
            for ((y, &x), &gain) in y.iter_mut().zip(x).zip(gain) {
                *y = x * inverse * gain;
            }
            stats[0] = T::ZERO;
            stats[1] = inverse;
        }
    }
}

kernel! {
    fn backward_rows<'a, T>(
        centred: bool,
        x: &'a [T],
        stats: &'a [T],
        gain: &'a [T],
        dy: &'a [T],
        dx: &'a mut [T],
        add: bool,
        partial: &'a mut [T],
    ) -> () {
        let width = gain.len();
        let scale = T::from_f64(1.0 / width as f64);
        let (d_gain, d_shift) = partial.split_at_mut(width);
        let mut normalised = vec![T::ZERO; width];
        let mut e = vec![T::ZERO; width];
        let rows = x.chunks_exact(width).zip(dy.chunks_exact(width)).zip(dx.chunks_exact_mut(width)).zip(stats.chunks_exact(NORM_STATS));
        for (((x, dy), dx), stats) in rows {
            let (mean, inverse) = (stats[0], stats[1]);
            for (((((n, e), &x), &dy), &gain), (dg, ds)) in
                normalised.iter_mut().zip(&mut e).zip(x).zip(dy).zip(gain).zip(d_gain.iter_mut().zip(d_shift.iter_mut()))
            {
                *n = (x - mean) * inverse;
                *e = dy * gain;
                *dg = dy.mul_add(*n, *dg);
                *ds += dy;
            }
            let mean_e = if centred { lane_sum(&e, |e, s| s + e) * scale } else { T::ZERO };
            let mean_en = lane_sum2(&e, &normalised, |e, n, s| e.mul_add(n, s)) * scale;
            if add {
                for ((dx, &e), &n) in dx.iter_mut().zip(&e).zip(&normalised) {
                    *dx = (e - mean_e - n * mean_en).mul_add(inverse, *dx);
                }
            } else {
                for ((dx, &e), &n) in dx.iter_mut().zip(&e).zip(&normalised) {
                    *dx = (e - mean_e - n * mean_en) * inverse;
                }
            }
        }
    }
}
