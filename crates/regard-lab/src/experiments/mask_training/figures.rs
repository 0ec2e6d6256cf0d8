//! What training shows, what use shows, and both beside each other.

use crate::drawing::{GREY, with};
use crate::error::Result;
use regard_plot::figure::{Axis, BarPlot, Figure, Line, LinePlot, Names, Series, numbers, texts};
use regard_plot::{Table, Tables};

/// Masks in the order of the palette: the same colour for the same mask, whichever were trained.
const MASKS: [&str; 6] = ["causal", "reverse", "strictly future", "none", "future without target", "right to left"];

fn masks_of(table: &Table) -> Vec<(usize, &'static str)> {
    MASKS.into_iter().enumerate().filter(|(_, name)| table.rows_where("variant", *name).next().is_some()).collect()
}

fn baseline(tables: &Tables, name: &str) -> Option<f64> {
    tables.number("mask_training_baselines", &[("name", name.into())], "value").ok()
}

/// What training shows, what use shows, and both beside each other.
pub(super) fn figures(tables: &Tables) -> Result<Vec<Figure>> {
    let curves = tables.get("mask_training_curves")?;
    let mut training =
        LinePlot::new("What training shows", Axis::linear("step"), Axis::log10("training loss (nats per token)")).names(Names::Legend);
    let prefix = tables.get("mask_training_prefix")?;
    let mut use_ = LinePlot::new("What use shows", Axis::linear("tokens of the prefix"), Axis::linear("loss from the prefix alone"))
        .names(Names::Legend);
    for (colour, mask) in masks_of(curves) {
        let series = Series::from_rows(mask, curves, "variant", mask, "step", "loss")?.colour(colour).without_markers();
        // Two cheaters lie on each other: the second is dashed, so that both can be seen.
        let line = if mask == "strictly future" || mask == "right to left" { Line::Dashed } else { Line::Solid };
        training = training.series(series.line(line));
        use_ = use_.series(Series::from_rows(mask, prefix, "variant", mask, "length", "loss")?.colour(colour).without_markers().line(line));
    }
    for (name, label) in [("bigram", "bigram"), ("five_gram", "5-gram")] {
        if let Some(value) = baseline(tables, name) {
            training = training.horizontal(value, label);
        }
    }
    let across = |table: &Table, column: &str, label: &str, value: f64| -> Result<Series> {
        let last = numbers(table, column)?.into_iter().fold(1.0, f64::max);
        Ok(Series::new(label, &[1.0, last], &[value, value]).line(Line::Dotted).without_markers().colour(GREY))
    };
    if let Some(entropy) = baseline(tables, "entropy") {
        training = training.series(across(curves, "step", "entropy of the text", entropy)?);
    }
    if let Some(uniform) = baseline(tables, "uniform") {
        use_ = use_.series(across(prefix, "length", "knowing nothing", uniform)?);
    }
    let floor = if baseline(tables, "entropy").is_some() {
        " No honest model can fall below the entropy of the text: the cheaters do, at once."
    } else {
        ""
    };
    Ok(vec![
        Figure::new("mask_training", "The cheater looks perfect until it is used")
            .panel(training)
            .panel(use_)
            .caption(format!("Left: training loss, logarithmic.{floor} Right: the same models on held-out text, given only the tokens that exist when one writes.")),
        masks_in_use(tables)?,
    ])
}

fn masks_in_use(tables: &Tables) -> Result<Figure> {
    let table = tables.get("mask_training")?;
    let mut losses = BarPlot::new("Loss", "mask", texts(table, "variant")?, Axis::linear("nats per token"))
        .bars("validation, teacher-forced", numbers(table, "validation_loss")?)
        .bars("validation, prefix alone", numbers(table, "prefix_only_loss")?)
        .lying();
    (losses.series[0].colour, losses.series[1].colour) = (Some(GREY), Some(3));
    if let Some(uniform) = baseline(tables, "uniform") {
        losses = losses.reference(uniform, "uniform");
    }
    let written = with(table, "real_words");
    let mut words = BarPlot::new("Writing", "mask", texts(&written, "variant")?, Axis::linear("share of real words").limits(0.0, 1.0))
        .bars("sampled at temperature 1", numbers(&written, "real_words")?)
        .lying();
    words.series[0].colour = Some(2);
    Ok(Figure::new("mask_training_use", "Validation does not find the cheater: it hands over the future as training does").panel(losses).panel(words).caption(
        "Left: the loss on held-out windows, with the whole window in sight of the mask (as models are validated), and with the prefix alone (as models are used). An honest mask has two equal bars; `uniform` is knowing nothing. Right: the share of written words that the training text has.",
    ))
}
