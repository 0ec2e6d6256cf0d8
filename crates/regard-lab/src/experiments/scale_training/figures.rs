//! Loss, gradients, entropy and saturation while models learn.

use crate::drawing::{CheckedFigure, WORDS, d_k_axis, estimate_at, part, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::figure::{Axis, Line, LinePlot, Series, numbers};
use regard_plot::{Table, Tables, Value};

/// A value over steps, without and with the scale.
fn over_time(table: &Table, head_dim: f64, column: &str, title: &str, axis: Axis) -> Result<LinePlot> {
    let mut plot = LinePlot::new(title, Axis::linear("step"), axis);
    for (scaled, word, colour) in WORDS {
        let rows = part(table, &[("head_dim", Value::Integer(head_dim as i64)), ("scaled", scaled.into())]);
        plot = plot.series(with_band(word, &rows, "step", column)?.colour(colour));
    }
    Ok(plot)
}

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (table, paired) = (tables.get("scale_training")?, tables.get("scale_training_paired")?);
    let (seeds, curves) = (tables.get("scale_training_seeds")?, tables.get("scale_training_curves")?);
    let (heads, gradients) = (tables.get("scale_training_heads")?, tables.get("scale_training_gradients")?);
    let mut sizes = numbers(table, "head_dim")?;
    sizes.dedup();
    let widest = sizes.iter().copied().fold(0.0, f64::max);
    let mut end = LinePlot::new("After training", d_k_axis(), Axis::linear("validation loss (nats)"));
    for (scaled, word, colour) in WORDS {
        let of = |table: &Table| part(table, &[("scaled", scaled.into())]);
        end = end.series(with_band(word, &of(table), "head_dim", "validation_loss")?.colour(colour));
        end = end.series(Series::from_table("", &of(seeds), "head_dim", "validation_loss")?.line(Line::None).colour(colour));
    }
    let difference = LinePlot::new("Without minus with, same seed", d_k_axis(), Axis::linear("difference of validation losses"))
        .series(with_band("difference", paired, "head_dim", "difference")?.colour(3))
        .horizontal(0.0, "no difference");
    let at = |what: &str| format!("{what}, d_{{k}} = {widest}");
    let loss = over_time(curves, widest, "loss", &at("Learning"), Axis::linear("training loss (nats)"))?;
    let query = over_time(gradients, widest, "query_gradient", &at("Gradient on queries"), Axis::log10("norm on the weights"))?;
    let of =
        |scaled: bool, column: &str| estimate_at(table, &[("head_dim", Value::Integer(widest as i64)), ("scaled", scaled.into())], column);
    let worse = estimate_at(paired, &[("head_dim", Value::Integer(widest as i64))], "difference").low > 0.0;
    let larger = of(false, "first_query_gradient").low > of(true, "first_query_gradient").high;
    let mut figures = vec![
        CheckedFigure::new("scale_training", "What the scale does for a model that learns")
            .title(
                format!("Without the scale heads of {widest} learn too, and less than with it"),
                worse && of(false, "validation_loss").value < 0.6 * of(false, "first_loss").value,
            )
            .panel(end)
            .panel(difference)
            .panel(loss)
            .panel(query)
            .shows("a: final held-out loss; points are single trainings. b: the same, paired by seed. c, d: the widest heads.")
            .says("d: without the scale the norm of dQ begins larger.", larger)
            .drawn(),
    ];
    for (name, column, ends, title, plain, axis, holds) in [
        (
            "scale_training_entropy",
            "relative_entropy",
            ["sharpest", "flattest"],
            "Without the scale heads begin sharper, the more so the wider they are",
            "Entropy of the heads while the model learns",
            "relative entropy",
            of(false, "first_entropy").high < of(true, "first_entropy").low,
        ),
        (
            "scale_training_saturation",
            "saturated",
            ["least_saturated", "most_saturated"],
            "Without the scale more rows are saturated (a weight above 0.99) at the end",
            "Saturated rows while the model learns",
            "share of saturated rows",
            of(false, "last_saturated").low > of(true, "last_saturated").high,
        ),
    ] {
        let mut figure = CheckedFigure::new(name, plain).title(title, holds);
        for &size in &sizes {
            let mut plot = LinePlot::new(format!("d_{{k}} = {size}"), Axis::linear("step"), Axis::linear(axis).limits(0.0, 1.0));
            for (scaled, word, colour) in WORDS {
                let rows = part(heads, &[("head_dim", Value::Integer(size as i64)), ("scaled", scaled.into())]);
                let band = (numbers(&rows, ends[0])?, numbers(&rows, ends[1])?);
                plot = plot.series(Series::from_table(word, &rows, "step", column)?.band(&band.0, &band.1).colour(colour));
            }
            figure = figure.panel(plot);
        }
        figures.push(figure.shows("Means over heads and trainings; bands: lowest to highest head.").drawn());
    }
    Ok(figures)
}
