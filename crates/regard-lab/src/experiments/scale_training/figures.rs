//! Loss, gradients, entropy and saturation while models learn.

use crate::drawing::{WORDS, d_k_axis, part};
use crate::error::Result;
use regard_plot::figure::{Axis, Figure, LinePlot, Series, numbers};
use regard_plot::{Table, Tables, Value};

/// A value over steps, without and with the scale: mean over heads or blocks, the band from the least to the largest of them.
fn over_time(table: &Table, head_dim: f64, column: &str, title: &str, axis: Axis) -> Result<LinePlot> {
    let mut plot = LinePlot::new(title, Axis::linear("step"), axis);
    for (scaled, word, colour) in WORDS {
        let rows = part(table, &[("head_dim", Value::Integer(head_dim as i64)), ("scaled", scaled.into())]);
        let mut steps = numbers(&rows, "step")?;
        steps.dedup();
        let (mut mean, mut low, mut high) = (Vec::new(), Vec::new(), Vec::new());
        for &step in &steps {
            let here = numbers(&part(&rows, &[("step", Value::Integer(step as i64))]), column)?;
            mean.push(here.iter().sum::<f64>() / here.len() as f64);
            low.push(here.iter().copied().fold(f64::INFINITY, f64::min));
            high.push(here.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
        plot = plot.series(Series::new(word, &steps, &mean).band(&low, &high).colour(colour));
    }
    Ok(plot)
}

pub(super) fn figures(tables: &Tables) -> Result<Vec<Figure>> {
    let table = tables.get("scale_training")?;
    let (curves, heads, gradients) =
        (tables.get("scale_training_curves")?, tables.get("scale_training_heads")?, tables.get("scale_training_gradients")?);
    let mut sizes = numbers(table, "head_dim")?;
    sizes.dedup();
    let widest = sizes.iter().copied().fold(0.0, f64::max);
    let mut end = LinePlot::new("After training", d_k_axis(), Axis::linear("validation loss (nats per token)"));
    for (scaled, word, colour) in WORDS {
        end =
            end.series(Series::from_table(word, &part(table, &[("scaled", scaled.into())]), "head_dim", "validation_loss")?.colour(colour));
    }
    let at = |what: &str| format!("{what}, d_{{k}} = {widest}");
    let loss = over_time(curves, widest, "loss", &at("Learning"), Axis::linear("training loss (nats per token)"))?;
    let query = over_time(gradients, widest, "query_gradient", &at("Gradient on queries"), Axis::log10("norm on a block's weights"))?;
    let value = over_time(gradients, widest, "value_gradient", &at("Gradient on values"), Axis::log10("norm on a block's weights"))?;
    let mut figures = vec![
        Figure::new("scale_training", "What the scale does for a model that learns").panel(end).panel(loss).panel(query).panel(value).caption(
            "Top left: loss on held-out text at the end, one training each. The other panels follow the widest heads; the bands reach from one block to the other.",
        ),
    ];
    for (name, column, title, axis, caption) in [
        (
            "scale_training_entropy",
            "relative_entropy",
            "Entropy of the heads while the model learns",
            "entropy / ln(visible keys)",
            "Mean over all heads; the bands reach from the sharpest head to the flattest. 1 is uniform attention, 0 a one-hot choice.",
        ),
        (
            "scale_training_saturation",
            "saturated",
            "Saturated rows while the model learns",
            "share of rows with a weight above 0.99",
            "Mean over all heads; the bands reach from the least saturated head to the most.",
        ),
    ] {
        let mut figure = Figure::new(name, title).caption(caption);
        for &size in &sizes {
            let plot = over_time(heads, size, column, &format!("d_{{k}} = {size}"), Axis::linear(axis).limits(0.0, 1.0))?;
            figure = figure.panel(plot);
        }
        figures.push(figure);
    }
    Ok(figures)
}
