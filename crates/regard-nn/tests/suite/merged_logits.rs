//! Tokens that are alike, taken together: losses as if each were for itself.

use regard_nn::ModelConfig;
use regard_nn::models::merged_logits::MergedLogits;
use regard_nn::models::transformer::Transformer;
use regard_nn::random::Draws;
use std::ops::Range;

const VOCAB: usize = 1500;
const WIDTH: usize = 24;
/// Tokens from here on are alike.
const FIRST: usize = 500;

fn model(tied: bool) -> Transformer {
    Transformer::new(&ModelConfig { vocab: VOCAB, width: WIDTH, heads: 2, layers: 1, context: 8, tied, ..ModelConfig::default() }.parts())
}

fn table(model: &Transformer) -> Range<usize> {
    model.layout().entries().iter().find(|entry| entry.shape == [VOCAB, WIDTH]).expect("a table").range.clone()
}

/// A table whose last tokens differ by `noise`.
fn params(model: &Transformer, noise: f64) -> Vec<f32> {
    let (mut params, mut draws) = (model.layout().init(1), Draws::at(7, &[]));
    let shared: Vec<f64> = (0..WIDTH).map(|_| draws.normal()).collect();
    for (token, row) in params[table(model)].chunks_mut(WIDTH).enumerate() {
        row.iter_mut().zip(&shared).for_each(|(x, s)| *x = if token >= FIRST { s + noise * draws.normal() } else { draws.normal() } as f32);
    }
    params
}

#[test]
fn losses_are_those_of_every_token_for_itself() {
    let model = model(true);
    for (noise, found) in [(0.0, true), (1e-5, true), (1e-2, false)] {
        let params = params(&model, noise);
        let weights = model.weights(&params);
        let alike = model.merged_logits(&weights);
        assert_eq!(alike.as_ref().map(MergedLogits::count), found.then_some(VOCAB - FIRST), "noise {noise}");
        let Some(alike) = alike else { continue };
        let mut draws = Draws::at(3, &[]);
        let mut rows: Vec<f32> = (0..100 * WIDTH).map(|_| 2.0 * draws.normal() as f32).collect();
        // One row is all for those that are alike, and long: where they differ at all, it must be computed as a whole.
        let one = &params[table(&model)][1000 * WIDTH..1001 * WIDTH];
        rows[..WIDTH].iter_mut().zip(one).for_each(|(x, w)| *x = 20.0 * w);
        let targets: Vec<u32> = (0..100).map(|_| draws.below(VOCAB) as u32).collect();
        assert!(targets.iter().any(|t| *t as usize >= FIRST) && targets.iter().any(|t| (*t as usize) < FIRST));
        let whole = model.losses_of(&weights, &rows, &targets).expect("losses");
        let short = model.losses_merged(&weights, &alike, &rows, &targets).expect("losses");
        for (row, (a, b)) in whole.iter().zip(&short).enumerate() {
            // By the rounding of logits of f32, of which the first row's are the largest.
            assert!((a - b).abs() < if row == 0 { 1e-3 } else { 2e-5 }, "noise {noise}, row {row}: {a} {b}");
        }
        assert!(noise == 0.0 || whole[0].to_bits() == short[0].to_bits(), "as a whole");
    }
}

#[test]
fn matrices_that_are_not_tables_are_left_alone() {
    let model = model(false);
    let params = params(&model, 0.0);
    assert!(model.merged_logits(&model.weights(&params)).is_none());
}
