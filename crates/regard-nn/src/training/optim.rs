//! AdamW, with clipping of the gradient's norm, and learning rates over time.
//!
//! ```text
//! g *= min(1, clip / norm)
//! m = b1 m + (1 - b1) g            v = b2 v + (1 - b2) g^2
//! p -= rate * (decay p + (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps))
//! ```

use crate::error::{Error, Result};
use crate::float::{Float, kernel, lane_sum};
use crate::parallel::for_pieces;
use crate::tensors::layout::Layout;
use serde::{Deserialize, Serialize};

/// How the learning rate falls, after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Not at all.
    Constant,
    /// In a straight line to this share of the full rate at the last step.
    Linear(f64),
    /// In half a cosine to this share.
    Cosine(f64),
    /// In a straight line to a tenth.
    #[default]
    LinearToTenth,
}

/// The optimiser's settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OptimConfig {
    /// The full learning rate.
    pub rate: f64,
    /// Steps until it is reached.
    pub warmup: u64,
    /// How it falls.
    pub decay: Decay,
    /// The mean of gradients forgets with this factor per step.
    pub beta1: f64,
    /// The mean of squares forgets with this one.
    pub beta2: f64,
    /// Keeps small squares from dividing by zero.
    pub eps: f64,
    /// Shrinks matrices, by this share of the rate and step.
    pub weight_decay: f64,
    /// The gradient's norm is cut to this.
    pub clip: Option<f64>,
}

impl Default for OptimConfig {
    fn default() -> Self {
        Self { rate: 3e-3, warmup: 50, decay: Decay::LinearToTenth, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0, clip: Some(1.0) }
    }
}

impl OptimConfig {
    /// Whether the settings are valid.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check(&self) -> Result<()> {
        let refuse = |name, value: f64, requirement: &str| {
            Err(Error::Config { name, value: value.to_string(), requirement: requirement.to_owned() })
        };
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !positive(self.rate) {
            return refuse("the learning rate", self.rate, "finite and positive");
        }
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return refuse(name, beta, "in [0, 1)");
            }
        }
        if !positive(self.eps) {
            return refuse("eps", self.eps, "finite and positive");
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            return refuse("weight decay", self.weight_decay, "finite and not negative");
        }
        match self.clip {
            Some(clip) if !positive(clip) => refuse("clip", clip, "finite and positive"),
            _ => Ok(()),
        }
    }

    /// The learning rate of a step, counted from 1.
    pub fn rate_at(&self, step: u64, steps: u64) -> f64 {
        let progress = step as f64 / steps.max(1) as f64;
        let line = |to: f64| 1.0 - (1.0 - to) * progress;
        let share = match self.decay {
            Decay::Constant => 1.0,
            Decay::Linear(to) => line(to),
            Decay::LinearToTenth => line(0.1),
            Decay::Cosine(to) => to + (1.0 - to) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos()),
        };
        self.rate * (step as f64 / self.warmup.max(1) as f64).min(1.0) * share
    }
}

/// Elements that one task of an update takes.
pub(crate) const CHUNK: usize = 1 << 14;

/// The moments of AdamW, in the layout of the parameters, or of a slice of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Adam<T> {
    /// The parameter that the first of them are of.
    pub start: usize,
    /// Mean of gradients.
    pub first: Vec<T>,
    /// Mean of their squares.
    pub second: Vec<T>,
}

/// The numbers of one update.
#[derive(Debug, Clone, Copy)]
struct Update<T> {
    scale: T,
    beta1: T,
    beta2: T,
    /// rate / (1 - beta1^t)
    rate: T,
    /// 1 / (1 - beta2^t)
    correction: T,
    eps: T,
}

impl<T: Float> Adam<T> {
    /// Nothing seen yet.
    pub fn new(count: usize) -> Self {
        Self { start: 0, first: vec![T::ZERO; count], second: vec![T::ZERO; count] }
    }

    /// Update the parameters (those that there are moments of) by the gradient of step `step` (from 1), whose [`norm`] is given, and clear
    /// it.
    pub fn update(&mut self, config: &OptimConfig, layout: &Layout, p: &mut [T], g: &mut [T], norm: f64, step: u64, rate: f64) {
        let scale = config.clip.map_or(1.0, |clip| (clip / (norm + 1e-6)).min(1.0));
        let power = |beta: f64| 1.0 - beta.powi(step.min(i32::MAX as u64) as i32);
        let update = Update {
            scale: T::from_f64(scale),
            beta1: T::from_f64(config.beta1),
            beta2: T::from_f64(config.beta2),
            rate: T::from_f64(rate / power(config.beta1)),
            correction: T::from_f64(1.0 / power(config.beta2)),
            eps: T::from_f64(config.eps),
        };
        let start = self.start;
        let moments = self.first.chunks_mut(CHUNK).zip(self.second.chunks_mut(CHUNK));
        let tasks = p.chunks_mut(CHUNK).zip(g.chunks_mut(CHUNK)).zip(moments).collect();
        let shrink = T::from_f64(1.0 - rate * config.weight_decay);
        for_pieces(tasks, |i, ((p, g), (m, v))| {
            if config.weight_decay > 0.0 {
                let here = start + i * CHUNK..start + i * CHUNK + p.len();
                let touched = layout.entries().iter().filter(|e| e.decay && e.range.start < here.end && e.range.end > here.start);
                for entry in touched {
                    let part = entry.range.start.max(here.start) - here.start..entry.range.end.min(here.end) - here.start;
                    p[part].iter_mut().for_each(|p| *p *= shrink);
                }
            }
            update_chunk(update, p, g, m, v);
        });
    }
}

kernel! {
    fn update_chunk<'a, T>(u: Update<T>, p: &'a mut [T], g: &'a mut [T], m: &'a mut [T], v: &'a mut [T]) -> () {
        let (rest1, rest2) = (T::ONE - u.beta1, T::ONE - u.beta2);
        for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
            let x = *g * u.scale;
            *m = u.beta1.mul_add(*m, rest1 * x);
            *v = u.beta2.mul_add(*v, rest2 * x * x);
            *p -= u.rate * *m / ((*v * u.correction).sqrt() + u.eps);
            *g = T::ZERO;
        }
    }
}

kernel! {
    fn squares<'a, T>(x: &'a [T]) -> f64 {
        // A loop and not an iterator's closure, which might not be compiled for the level.
        let mut sum = 0.0;
        for x in x.chunks(1024) {
            sum += lane_sum(x, |x, s| x.mul_add(x, s)).to_f64();
        }
        sum
    }
}

/// Sums of squares, of which [`norm_of`] is made.
pub(crate) fn sums_of_squares<T: Float>(x: &[T]) -> Vec<f64> {
    let mut sums = vec![0.0; x.len().div_ceil(CHUNK)];
    for_pieces(x.chunks(CHUNK).zip(&mut sums).collect(), |_, (x, sum)| *sum = squares(x));
    sums
}

pub(crate) fn norm_of(sums: &[f64]) -> f64 {
    sums.iter().sum::<f64>().sqrt()
}

/// The Euclidean norm; its bits do not depend on threads.
pub fn norm<T: Float>(x: &[T]) -> f64 {
    norm_of(&sums_of_squares(x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::layout::Init;

    #[test]
    fn update_is_the_textbooks() {
        let mut layout = Layout::new();
        layout.add("matrix", &[2], Init::Zero, true);
        layout.add("bias", &[1], Init::Zero, false);
        let config = OptimConfig { weight_decay: 0.1, clip: Some(1.0), ..OptimConfig::default() };
        let mut adam = Adam::<f64>::new(3);
        let mut p = vec![1.0, -2.0, 0.5];
        let (mut m, mut v, mut right) = ([0.0; 3], [0.0; 3], [1.0, -2.0, 0.5]);
        for step in 1..=5u64 {
            let gradient = [3.0 * step as f64, -1.0, 0.2];
            let mut g = gradient.to_vec();
            let norm = norm(&g);
            adam.update(&config, &layout, &mut p, &mut g, norm, step, 0.01);
            assert_eq!(g, [0.0; 3]);
            let right_norm = gradient.iter().map(|x| x * x).sum::<f64>().sqrt();
            assert!((norm - right_norm).abs() < 1e-12);
            for i in 0..3 {
                let x = gradient[i] / right_norm.max(1.0);
                m[i] = 0.9 * m[i] + 0.1 * x;
                v[i] = 0.99 * v[i] + 0.01 * x * x;
                let t = step as i32;
                let decay = if i < 2 { 0.1 * right[i] } else { 0.0 };
                right[i] -= 0.01 * (decay + m[i] / (1.0 - 0.9f64.powi(t)) / ((v[i] / (1.0 - 0.99f64.powi(t))).sqrt() + 1e-8));
                assert!((p[i] - right[i]).abs() < 1e-7, "step {step}: {p:?}, not {right:?}");
            }
        }
    }

    #[test]
    fn rate_warms_up_and_falls() {
        let config = OptimConfig { rate: 1.0, warmup: 10, ..OptimConfig::default() };
        assert!((config.rate_at(5, 100) - 0.5 * (1.0 - 0.9 * 0.05)).abs() < 1e-15);
        assert!((config.rate_at(100, 100) - 0.1).abs() < 1e-15);
        let cosine = OptimConfig { decay: Decay::Cosine(0.2), ..config };
        assert!((cosine.rate_at(100, 100) - 0.2).abs() < 1e-15 && (cosine.rate_at(50, 100) - 0.6).abs() < 1e-15);
        let constant = OptimConfig { decay: Decay::Constant, warmup: 0, ..config };
        assert_eq!(constant.rate_at(1, 100), 1.0);
    }

    #[test]
    fn settings_without_sense_are_refused() {
        let good = OptimConfig::default();
        assert!(good.check().is_ok());
        for bad in [
            OptimConfig { rate: 0.0, ..good },
            OptimConfig { rate: f64::NAN, ..good },
            OptimConfig { beta1: 1.0, ..good },
            OptimConfig { beta2: -0.1, ..good },
            OptimConfig { eps: 0.0, ..good },
            OptimConfig { weight_decay: -1.0, ..good },
            OptimConfig { clip: Some(0.0), ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
