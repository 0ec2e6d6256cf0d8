//! Gradients of activations against differences of runs with hooks, for every family; and their sums.

use crate::golden::{Golden, all, folder};
use ndarray::ArrayViewMutD;
use regard_model::{Edits, Hook, Model, Objective, Site, Sources};

/// Adds a direction to one activation.
struct Along<'d> {
    at: (usize, Site),
    direction: &'d ndarray::ArrayD<f32>,
    by: f32,
}

impl Hook for Along<'_> {
    fn wants(&self, layer: usize, site: Site) -> bool {
        (layer, site) == self.at
    }

    fn at(&self, _: usize, _: Site, mut x: ArrayViewMutD<'_, f32>) -> bool {
        x.scaled_add(self.by, self.direction);
        true
    }
}

/// The objective of a run with a hook, computed from its results alone.
fn value(model: &Model, ids: &[u32], objective: &Objective, hook: &dyn Hook) -> f64 {
    let run = model.run_with(ids, &Edits::default(), &Sources::default(), hook).expect("a run");
    match objective {
        Objective::Loss => run.loss().expect("a loss"),
        Objective::LogitDifference { position, tokens: [a, b] } => {
            let logits = run.logits().expect("logits");
            f64::from(logits[[*position, *a as usize]]) - f64::from(logits[[*position, *b as usize]])
        }
        Objective::Hidden(numbers) => run.hidden().iter().zip(numbers).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum(),
    }
}

#[test]
fn gradients_are_slopes_of_runs_in_every_family() {
    let names = all();
    assert!(names.len() >= 16);
    for name in names {
        let (golden, model) = (Golden::read(&name), Model::load(folder(&name)).expect(&name));
        let ids = &golden.ids;
        if name == "mixtral" {
            let refused = model.gradients(ids, &Objective::Loss, &|_, _| true).expect_err("experts").to_string();
            assert!(refused.contains("a mixture of experts"), "{refused}");
            continue;
        }
        let hidden = ndarray::Array2::from_shape_fn((ids.len(), model.width()), |(i, j)| ((i * 7 + j * 3) as f32).sin());
        let mut objectives = vec![Objective::Hidden(hidden)];
        if model.has_head() {
            objectives.push(Objective::LogitDifference { position: ids.len() - 2, tokens: [5, 9] });
            if model.is_causal() {
                objectives.push(Objective::Loss);
            }
        }
        for objective in objectives {
            let made = model.gradients(ids, &objective, &|_, _| true).expect(&name);
            assert_eq!(made.at.len(), model.shape().layers * Site::ALL.len(), "{name}");
            for (at, gradient) in &made.at {
                let norm: f64 = gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
                assert!(norm.is_finite(), "{name} {at:?}");
                if norm == 0.0 {
                    continue;
                }
                // Along the gradient itself, the slope is its length. A step must be small beside the curvature and large beside rounding:
                // one of several is.
                let terms = if matches!(objective, Objective::Hidden(_)) { (ids.len() * model.width()) as f64 } else { 1.0 };
                let size = made.value.abs().max(terms.sqrt());
                let slope = |step: f64| {
                    let by = step * size / norm / norm;
                    let along = |sign: f64| Along { at: *at, direction: gradient, by: (sign * by) as f32 };
                    let value = |sign: f64| value(&model, ids, &objective, &along(sign));
                    (value(1.0) - value(-1.0)) / (2.0 * by)
                };
                let measured: Vec<f64> = [1e-2, 3e-3, 1e-3, 3e-4].map(slope).to_vec();
                let error = measured.iter().map(|slope| (slope / (norm * norm) - 1.0).abs()).fold(f64::INFINITY, f64::min);
                assert!(error < 0.02, "{name} {at:?}: slopes {measured:?}, gradient {}", norm * norm);
            }
        }
    }
}

#[test]
fn objectives_that_cannot_be_are_refused() {
    let model = Model::load(folder("bert_only")).expect("an encoder");
    let nothing = |_: usize, _: Site| false;
    assert!(model.gradients(&[1, 2, 3], &Objective::Loss, &nothing).is_err());
    let other = Objective::Hidden(ndarray::Array2::zeros((2, model.width())));
    assert!(model.gradients(&[1, 2, 3], &other, &nothing).is_err());
    let model = Model::built_in().expect("the small model");
    let beyond = Objective::LogitDifference { position: 3, tokens: [1, 2] };
    assert!(model.gradients(&[1, 2, 3], &beyond, &nothing).is_err());
    assert!(model.gradients(&[], &Objective::Loss, &nothing).is_err());
}
