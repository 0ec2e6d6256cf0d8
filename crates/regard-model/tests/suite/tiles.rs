//! Tiles of a head's weights against the weights themselves, pooled here.

use ndarray::Array2;
use regard::Rectangle;
use regard_model::{Edits, Input, Model, Pool, Sink, Sources};

/// Cells of `step x step` tokens, in plain loops over the whole matrix.
fn pooled(weights: &Array2<f32>, of: &Rectangle, step: usize, sink: Sink, pool: Pool) -> Vec<f64> {
    let weight = |i: usize, j: usize| {
        let (first, own) = (f64::from(weights[[i, 0]]), f64::from(weights[[i, j]]));
        match sink {
            Sink::Hide if i > 0 && j == 0 => 0.0,
            Sink::Renormalise if i > 0 && j == 0 => 0.0,
            Sink::Renormalise if i > 0 => own / (1.0 - first),
            _ => own,
        }
    };
    let mut cells = Vec::new();
    for top in of.rows.clone().step_by(step) {
        for left in of.keys.clone().step_by(step) {
            let (mut sum, mut most, mut count) = (0.0, 0.0, 0);
            for i in top..(top + step).min(of.rows.end) {
                for j in left..(left + step).min(of.keys.end) {
                    (sum, most, count) = (sum + weight(i, j), f64::max(most, weight(i, j)), count + 1);
                }
            }
            cells.push(if pool == Pool::Mean { sum / f64::from(count) } else { most });
        }
    }
    cells
}

#[test]
fn tiles_are_the_weights_in_cells() {
    let model = Model::built_in().expect("it is in the crate");
    let ids = model.ids(Input::Text("Emma and David went to the market. David said, Emma, look at the red apple.")).expect("letters");
    let n = ids.len();
    for edits in ["", "scale=0.4", "L1.H2=uniform@3-40", "L1.H2=temp:2@10-20/L1.H2=previous@5-9"] {
        let run = model.run(&ids, &Edits::parse(edits).expect(edits), &Sources::default()).expect(edits);
        let weights = run.weights(1, 2).expect("it is there");
        for sink in [Sink::Show, Sink::Hide, Sink::Renormalise] {
            let states = run.head_states(1, 2, sink).expect("it is there");
            for (rows, keys, step) in
                [(0..n, 0..n, 1), (0..n, 0..n, 7), (3..n - 2, 0..31, 4), (10..11, 5..n, 2), (0..1, 0..1, 1), (16..48, 8..40, 16)]
            {
                for pool in [Pool::Mean, Pool::Max] {
                    let of = Rectangle { rows: rows.clone(), keys: keys.clone() };
                    let tile = run.tile(&states, of.clone(), step, pool).expect("it is inside");
                    let right = pooled(&weights, &of, step, sink, pool);
                    assert_eq!(tile.len(), right.len());
                    for (ours, right) in tile.iter().zip(right) {
                        // Divided by what remains, little may remain.
                        let near = (f64::from(*ours) - right).abs() <= 1e-6 + 1e-3 * right * f64::from(u8::from(sink == Sink::Renormalise));
                        assert!(near, "{edits:?} {sink:?} {pool:?} {rows:?} {keys:?} by {step}: {ours} is not {right}");
                    }
                    if step == 1 && sink == Sink::Show {
                        let exact = weights.slice_axis(ndarray::Axis(0), ndarray::Slice::from(rows.clone()));
                        assert_eq!(
                            tile,
                            exact.slice_axis(ndarray::Axis(1), ndarray::Slice::from(keys.clone())),
                            "{edits:?}: not the same bits"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_lies_outside_is_refused() {
    let model = Model::built_in().expect("it is in the crate");
    let ids = model.ids(Input::Text("Emma")).expect("letters");
    let run = model.run(&ids, &Edits::default(), &Sources::default()).expect("a text");
    assert!(run.head_states(99, 0, Sink::Show).is_err() && run.head_states(0, 99, Sink::Show).is_err());
    let states = run.head_states(0, 0, Sink::Show).expect("it is there");
    #[expect(clippy::reversed_empty_ranges, reason = "what a hostile request may ask for")]
    for rows in [0..99, 2..2, 3..1, 5..6, 0..usize::MAX] {
        assert!(run.tile(&states, Rectangle { rows, keys: 0..1 }, 1, Pool::Mean).is_err());
    }
    assert!(model.lens_of(&ids, &Edits::default(), &Sources::default(), 3, 0..99).is_err());
}

#[test]
fn a_lens_of_some_rows_is_that_of_all() {
    let model = Model::built_in().expect("it is in the crate");
    let ids = model.ids(Input::Text("Emma and David went")).expect("letters");
    let (edits, sources) = (Edits::default(), Sources::default());
    let all = model.lens(&ids, &edits, &sources, 3).expect("a text");
    let some = model.lens_of(&ids, &edits, &sources, 3, 4..9).expect("a text");
    for layer in 0..=model.shape().layers {
        for row in 0..5 {
            assert_eq!(some.top[[layer, row, 0]], all.top[[layer, row + 4, 0]]);
            assert_eq!(some.loss[[layer, row]].to_bits(), all.loss[[layer, row + 4]].to_bits());
        }
    }
}
