//! What training shows, what use shows, and both beside each other.

use crate::drawing::{CheckedFigure, GREY, estimate_at, part, with, with_band, with_ends};
use crate::error::Result;
use crate::experiment::Drawn;
use crate::statistics::estimate::Estimate;
use regard_plot::figure::{Axis, BarPlot, Line, LinePlot, Names, Series, numbers, texts};
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
pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let curves = tables.get("mask_training_curves")?;
    let mut training = LinePlot::new("What training shows", Axis::linear("step"), Axis::log10("training loss (nats)")).names(Names::Legend);
    let prefix = tables.get("mask_training_prefix")?;
    let mut use_ = LinePlot::new("What use shows", Axis::linear("tokens of the prefix"), Axis::log10("loss from the prefix alone"))
        .names(Names::Legend);
    // The strictly future mask learns as the reverse one, and reading from right to left as from left to right: both are in the table.
    for (colour, mask) in masks_of(curves).into_iter().filter(|(_, mask)| !["strictly future", "right to left"].contains(mask)) {
        let of = |table: &Table, x: &str| with_band(mask, &part(table, &[("variant", mask.into())]), x, "loss");
        training = training.series(of(curves, "step")?.colour(colour).without_markers());
        use_ = use_.series(of(prefix, "length")?.colour(colour).without_markers());
    }
    if let Some(value) = baseline(tables, "bigram") {
        training = training.horizontal(value, "bigram");
    }
    let across = |table: &Table, column: &str, label: &str, value: f64| -> Result<Series> {
        let last = numbers(table, column)?.into_iter().fold(1.0, f64::max);
        Ok(Series::new(label, &[1.0, last], &[value, value]).line(Line::Dotted).without_markers().colour(GREY))
    };
    if let Some(entropy) = baseline(tables, "entropy") {
        training = training.series(across(curves, "step", "entropy of the text", entropy)?);
    }
    if let Some(uniform) = baseline(tables, "uniform") {
        use_ = use_.series(across(prefix, "length", "uniform guessing", uniform)?);
    }
    let entropy = baseline(tables, "entropy").unwrap_or(f64::NAN);
    let outcome = tables.get("mask_training")?;
    let of = |mask: &str, column: &str| estimate_at(outcome, &[("variant", mask.into())], column);
    let below = of("reverse", "train_loss").high < entropy && of("causal", "train_loss").low > entropy;
    Ok(vec![
        CheckedFigure::new("mask_training", "Training loss, and loss in use, under six masks")
            .title(
                "A model that sees its target looks perfect until it is used",
                is_caught(
                    &of("reverse", "train_loss"),
                    &of("causal", "train_loss"),
                    &of("reverse", "prefix_only_loss"),
                    &of("causal", "prefix_only_loss"),
                ),
            )
            .panel(training)
            .panel(use_)
            .shows("a: training. b: held-out text, from the prefix alone.")
            .says("The reverse mask falls below the entropy of the text, which no model of the past can.", below)
            .drawn(),
        masks_in_use(tables)?,
    ])
}

/// Better than the causal model in training, and worse in use.
fn is_caught(trained: &Estimate, causal: &Estimate, used: &Estimate, causal_used: &Estimate) -> bool {
    trained.high < causal.low && used.low > causal_used.high
}

fn masks_in_use(tables: &Tables) -> Result<Drawn> {
    let table = tables.get("mask_training")?;
    let ((validation, validation_ends), (prefix, prefix_ends)) =
        (with_ends(table, "validation_loss")?, with_ends(table, "prefix_only_loss")?);
    let mut losses = BarPlot::new("Loss", "mask", texts(table, "variant")?, Axis::linear("loss (nats)"))
        .bars_with_intervals("validation, teacher-forced", validation, validation_ends)
        .bars_with_intervals("validation, prefix alone", prefix, prefix_ends)
        .lying();
    (losses.series[0].colour, losses.series[1].colour) = (Some(GREY), Some(3));
    if let Some(uniform) = baseline(tables, "uniform") {
        losses = losses.reference(uniform, "uniform");
    }
    let written = with(table, "real_words");
    let (real, real_ends) = with_ends(&written, "real_words")?;
    let mut words = BarPlot::new("Writing", "mask", texts(&written, "variant")?, Axis::linear("share of real words").limits(0.0, 1.0))
        .bars_with_intervals("sampled at temperature 1", real, real_ends)
        .lying();
    words.series[0].colour = Some(2);
    let of = |mask: &str, column: &str| estimate_at(table, &[("variant", mask.into())], column);
    let hidden = of("reverse", "validation_loss").high < of("causal", "validation_loss").low;
    let shown = of("reverse", "prefix_only_loss").low > of("causal", "prefix_only_loss").high;
    let equal = (of("causal", "validation_loss").value - of("causal", "prefix_only_loss").value).abs() < crate::rules::SAME_LOSS;
    Ok(CheckedFigure::new("mask_training_use", "Validation as it is usually done, and as models are used")
        .title("Validation does not detect the leak: it shows the future as training does", hidden && shown)
        .panel(losses)
        .panel(words)
        .shows(
            "a: held-out loss with the whole window (validation) and from the prefix alone (in use); `uniform` is uniform guessing. \
             b: written words that are real.",
        )
        .says("Without a leak both bars are equal.", equal)
        .drawn())
}
