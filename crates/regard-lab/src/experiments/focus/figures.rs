//! Right answers by length and distance; losses and gradient norms.

use super::run::{MODELS, WINDOW};
use crate::drawing::{CheckedFigure, estimate_at, part, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::figure::{Axis, LinePlot, Names};
use regard_plot::{Table, Tables};

fn lines(table: &Table, task: &str, plot: LinePlot, x: &str, y: &str) -> Result<LinePlot> {
    let mut plot = plot.names(Names::Legend);
    for (colour, (model, _)) in MODELS.iter().enumerate() {
        let rows = part(table, &[("task", task.into()), ("model", (*model).into())]);
        plot = plot.series(with_band(*model, &rows, x, y)?.colour(colour));
    }
    Ok(plot)
}

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (table, distance, curves) = (tables.get("focus")?, tables.get("focus_distance")?, tables.get("focus_curves")?);
    let share = || Axis::linear("share of right answers").limits(0.0, 1.0);
    let by_length = |title: &str, task: &str| {
        let axis = Axis::log2("positions before the question").ticks([16.0, 32.0, 64.0]);
        lines(table, task, LinePlot::new(title, axis, share()).horizontal(1.0 / 16.0, ""), "length", "right")
    };
    let by_distance = LinePlot::new("Recall by distance", Axis::linear("distance of the pair"), share());
    let of = |task: &str, model: &str, length: usize| {
        estimate_at(table, &[("task", task.into()), ("model", model.into()), ("length", length.into())], "right")
    };
    let recalls = of("recall", "attention", 16).low > of("recall", "GRU", 16).high.max(of("recall", "convolution", 16).high);
    let at = |d: usize| {
        estimate_at(distance, &[("task", "recall".into()), ("model", "local attention".into()), ("distance", d.into())], "right")
    };
    let beyond = at(WINDOW).low > at(WINDOW + 1).high;
    let curve = |title: &str, task: &str, axis: Axis, column: &str| {
        lines(curves, task, LinePlot::new(title, Axis::linear("step"), axis), "step", column)
    };
    let last = crate::judging::short;
    let end = |model: &str, column: &str| {
        let rows = part(curves, &[("task", "recall".into()), ("model", model.into())]);
        rows.rows.last().map_or(f64::NAN, |row| rows.number(row, column))
    };
    let gradients = end("GRU", "gradient") > end("attention", "gradient") && end("GRU", "loss") > end("attention", "loss");
    Ok(vec![
        CheckedFigure::new("focus", "Right answers of four models with equal parameters")
            .title("Attention recalls what a convolution and a GRU of equal size do not", recalls)
            .panel(by_length("Recall", "recall")?)
            .panel(by_length("Copy", "copy")?)
            .panel(lines(distance, "recall", by_distance, "distance", "right")?)
            .shows("a, b: trained with up to 16 positions. c: recall among 16 pairs, by distance. Dotted: chance.")
            .says(format!("c: local attention loses what lies beyond its {WINDOW} positions."), beyond)
            .drawn(),
        CheckedFigure::new("focus_curves", "Loss and gradient norm side by side")
            .title("A large gradient norm is no sign of learning: the GRU's is larger and its loss stays higher", gradients)
            .panel(curve("Recall: loss", "recall", Axis::linear("training loss (nats)").limits(0.0, 4.5), "loss")?)
            .panel(curve("Recall: gradient", "recall", Axis::log10("norm of the gradient").limits(1e-3, 10.0), "gradient")?)
            .says(
                format!("Final norms: GRU {}, attention {}.", last(end("GRU", "gradient")), last(end("attention", "gradient"))),
                gradients,
            )
            .drawn(),
    ])
}
