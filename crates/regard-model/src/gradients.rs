//! Gradients of a loss, of a difference of logits or of hidden states with respect to activations, by the backward passes of the parts.
//!
//! ```text
//! loss              mean loss of next tokens
//! logit difference  logit of one token minus that of another, at one position
//! hidden states     the sum of their products with given numbers: for models without a head, and for directions
//! ```
//!
//! Weights are constant, so they may be of any type of a file, and are widened as in a forward pass.

use crate::error::{Error, Result};
use crate::hooks::Site;
use crate::model::Model;
use ndarray::{Array2, Array3, ArrayD, ArrayView4, Axis};
use regard_nn::layers::attention::Heads;
use regard_nn::layers::probe::{GradientProbe, NoProbe, Probe};
use regard_nn::loss::cross_entropy;
use regard_nn::{Keep, Wanted};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Rows whose logits are there at once.
const ROWS: usize = 64;

/// What gradients are of.
#[derive(Debug, Clone, PartialEq)]
pub enum Objective {
    /// The mean loss of next tokens, in nats.
    Loss,
    /// The logit of the first token minus that of the second, after the token at `position`.
    LogitDifference {
        /// Whose prediction.
        position: usize,
        /// The two tokens.
        tokens: [u32; 2],
    },
    /// The sum of the final hidden states times these numbers, `[tokens, width]`.
    Hidden(Array2<f32>),
}

/// Gradients by layer and site, in the shapes of the activations.
#[derive(Debug, Clone)]
pub struct ActivationGradients {
    /// The value that they are of.
    pub value: f64,
    /// By layer and site.
    pub at: BTreeMap<(usize, Site), ArrayD<f32>>,
}

/// Begins a pass with these rows of the stream instead of the embedding.
pub(crate) struct StartAt<'s>(pub(crate) &'s [f32]);

impl Probe<f32> for StartAt<'_> {
    fn stream(&self, number: usize, rows: &mut [f32]) {
        if number == 0 {
            rows.copy_from_slice(self.0);
        }
    }
}

/// Keeps the gradients that are wanted.
struct Collector<'c> {
    wants: &'c (dyn Fn(usize, Site) -> bool + Sync),
    layers: usize,
    tokens: usize,
    at: Mutex<BTreeMap<(usize, Site), ArrayD<f32>>>,
}

impl Collector<'_> {
    fn put(&self, layer: usize, site: Site, d: impl FnOnce() -> ArrayD<f32>) {
        if (self.wants)(layer, site) {
            self.at.lock().unwrap_or_else(PoisonError::into_inner).insert((layer, site), d());
        }
    }

    fn rows(&self, layer: usize, site: Site, d: &[f32]) {
        let shape = vec![self.tokens, d.len() / self.tokens.max(1)];
        self.put(layer, site, || ArrayD::from_shape_vec(shape, d.to_vec()).expect("whole rows"));
    }

    /// The only sequence of `[batch, head, seq, dim]`.
    fn heads(&self, layer: usize, site: Site, d: &ArrayView4<'_, f32>) {
        self.put(layer, site, || d.index_axis(Axis(0), 0).as_standard_layout().into_owned().into_dyn());
    }
}

impl GradientProbe<f32> for Collector<'_> {
    fn stream(&self, number: usize, d: &[f32]) {
        let layer = number / 2;
        if number % 2 == 1 {
            return self.rows(layer, Site::ResidMid, d);
        }
        if number > 0 {
            self.rows(layer - 1, Site::ResidPost, d);
        }
        if layer < self.layers {
            self.rows(layer, Site::ResidPre, d);
        }
    }

    fn branch(&self, number: usize, d: &[f32]) {
        self.rows(number / 2, if number.is_multiple_of(2) { Site::AttnOut } else { Site::MlpOut }, d);
    }

    fn results(&self, number: usize, heads: &Heads<'_, f32>, d: ArrayView4<'_, f32>) {
        self.heads(number / 2, Site::Z, &d);
        self.put(number / 2, Site::Pattern, || {
            // z = weights v, so the gradient of a weight is that of its row of z times its value.
            let (d, v) = (d.index_axis(Axis(0), 0), heads.v.index_axis(Axis(0), 0));
            let (count, group) = (d.len_of(Axis(0)), d.len_of(Axis(0)) / v.len_of(Axis(0)).max(1));
            let mut weights = Array3::zeros((count, self.tokens, self.tokens));
            for (head, mut weights) in weights.outer_iter_mut().enumerate() {
                weights.assign(&d.index_axis(Axis(0), head).dot(&v.index_axis(Axis(0), head / group).t()));
            }
            weights.into_dyn()
        });
    }

    fn heads(&self, number: usize, d: &Heads<'_, f32>) {
        for (site, d) in [(Site::Q, &d.q), (Site::K, &d.k), (Site::V, &d.v)] {
            self.heads(number / 2, site, d);
        }
    }
}

impl Model {
    /// Gradients of an objective with respect to the activations that `wants` names.
    ///
    /// # Errors
    /// When tokens do not fit, the model has no such objective, or a gradient is not finite.
    pub fn gradients(
        &self,
        ids: &[u32],
        objective: &Objective,
        wants: &(dyn Fn(usize, Site) -> bool + Sync),
    ) -> Result<ActivationGradients> {
        let collector = Collector { wants, layers: self.shape().layers, tokens: ids.len(), at: Mutex::default() };
        let value = self.backward(ids, objective, &NoProbe, &collector)?;
        let at = collector.at.into_inner().unwrap_or_else(PoisonError::into_inner);
        if at.values().flatten().any(|x| !x.is_finite()) {
            return Err(Error::NotNumbers { what: "the gradients" });
        }
        Ok(ActivationGradients { value, at })
    }

    /// Forward, with a probe, and backward; the value of the objective.
    pub(crate) fn backward(
        &self,
        ids: &[u32],
        objective: &Objective,
        probe: &(dyn Probe<f32> + Sync),
        seen: &(dyn GradientProbe<f32> + Sync),
    ) -> Result<f64> {
        self.check(ids, &crate::Edits::default(), &crate::Sources::default())?;
        self.check_plain("gradients")?;
        self.check_objective(ids, objective)?;
        let (weights, transformer) = (self.weights()?, self.transformer());
        let mut pass = self.pass(ids.len());
        pass.wanted = Wanted::Rows(&[]);
        let mut acts = transformer.plan(1, ids.len(), Keep::Tape);
        rayon::scope(|_| transformer.probe(&weights, ids, &pass, &mut acts, probe))?;
        let rows = acts.rows().to_vec();
        self.cancel().check()?;
        let (value, d_rows) = rayon::scope(|_| self.rows_gradient(&weights, ids, &rows, objective))?;
        if !value.is_finite() {
            return Err(Error::NotNumbers { what: "the objective" });
        }
        rayon::scope(|_| transformer.activation_gradients(&weights, &pass, &mut acts, &d_rows, seen))?;
        Ok(value)
    }

    fn check_objective(&self, ids: &[u32], objective: &Objective) -> Result<()> {
        match objective {
            Objective::Loss => self.check_loss(ids),
            Objective::LogitDifference { position, tokens } => {
                if *position >= ids.len() {
                    return Err(Error::Outside { what: "row", number: *position, count: ids.len() });
                }
                self.check_tokens(tokens)?;
                if self.has_head() { Ok(()) } else { Err(Error::NoHead { what: "logits" }) }
            }
            Objective::Hidden(numbers) if numbers.dim() == (ids.len(), self.width()) => Ok(()),
            Objective::Hidden(numbers) => {
                let reason = format!("{:?} numbers are given for hidden states of shape {:?}", numbers.dim(), (ids.len(), self.width()));
                Err(Error::Tokens { reason })
            }
        }
    }

    /// The objective, and its gradient with respect to the final rows.
    fn rows_gradient(
        &self,
        weights: &regard_nn::tensors::Weights<'_, f32>,
        ids: &[u32],
        rows: &[f32],
        objective: &Objective,
    ) -> Result<(f64, Vec<f32>)> {
        let (width, transformer) = (self.width(), self.transformer());
        let mut d_rows = vec![0f32; rows.len()];
        let mut value = 0.0;
        match objective {
            Objective::Hidden(numbers) => {
                value = rows.iter().zip(numbers).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                d_rows.iter_mut().zip(numbers).for_each(|(d, x)| *d = *x);
            }
            Objective::LogitDifference { position, tokens: [a, b] } => {
                let row = position * width..(position + 1) * width;
                let d = transformer.rows_gradient(weights, &rows[row.clone()], |logits| {
                    value = f64::from(logits[*a as usize]) - f64::from(logits[*b as usize]);
                    logits.fill(0.0);
                    logits[*a as usize] += 1.0;
                    logits[*b as usize] -= 1.0;
                })?;
                d_rows[row].copy_from_slice(&d);
            }
            Objective::Loss => {
                let count = ids.len() - 1;
                let (predicting, d_rows) = (&rows[..count * width], &mut d_rows[..count * width]);
                let pieces = predicting.chunks(ROWS * width).zip(d_rows.chunks_mut(ROWS * width)).zip(ids[1..].chunks(ROWS));
                for ((rows, d_rows), targets) in pieces {
                    self.cancel().check()?;
                    let mut losses = vec![0.0; targets.len()];
                    let d = transformer.rows_gradient(weights, rows, |logits| {
                        value += cross_entropy(logits, targets, Some(count as f64), &mut losses).sum / count as f64;
                    })?;
                    d_rows.copy_from_slice(&d);
                }
            }
        }
        Ok((value, d_rows))
    }
}
