//! Objectives of gradients; the gradients themselves are tested in regard-nn, in f64.

use crate::golden::folder;
use regard_model::{Model, Objective, Site};

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
