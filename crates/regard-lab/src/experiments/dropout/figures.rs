//! What dropping does to weights, and to a training.

use crate::drawing::{CheckedFigure, SCALED, UNSCALED, part, rises, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, LinePlot, Series, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (weights, training, curves) = (tables.get("dropout_weights")?, tables.get("dropout_training")?, tables.get("dropout_curves")?);
    let rate = || Axis::linear("probability of dropping");
    let scatter = LinePlot::new("The sum of a row", rate(), Axis::linear("standard deviation"))
        .series(with_band("measured", weights, "rate", "row_sum_std")?.colour(SCALED))
        .series(Series::from_table("expected", weights, "rate", "expected_std")?.theory().colour(6));
    let change = LinePlot::new("The output", rate(), Axis::linear("relative change"))
        .series(with_band("change", weights, "rate", "output_change")?.colour(UNSCALED));
    // Three rates: their intervals are widened to what a verdict asks for.
    let near = |column: &str, known: &[f64]| {
        let every = weights.rows.iter().zip(known);
        every.into_iter().all(|(row, known)| {
            let e = crate::rows::estimate(weights, row, column);
            e.high - e.low < 0.01 && e.above(known + 1e-9) != Some(true) && e.below(known - 1e-9) != Some(true)
        })
    };
    let unbiased = near("bias", &vec![0.0; weights.rows.len()]);
    let expected = near("row_sum_std", &numbers(weights, "expected_std")?);
    let end = LinePlot::new("After training", rate(), Axis::linear("loss (nats)"))
        .series(with_band("held out", training, "rate", "validation_loss")?.colour(UNSCALED))
        .series(with_band("learnt", training, "rate", "train_loss")?.colour(SCALED));
    let mut learning = LinePlot::new("While it learns", Axis::linear("step"), Axis::linear("training loss (nats)"));
    for (place, p) in numbers(training, "rate")?.into_iter().enumerate() {
        let series = with_band(format!("{p}"), &part(curves, &[("rate", p.into())]), "step", "loss")?;
        learning = learning.series(series.colour(place).without_markers());
    }
    let others = training.rows.iter().skip(1);
    let costs = training.rows.len() > 1 && others.into_iter().all(|row| crate::rows::estimate(training, row, "difference").low > 0.0);
    Ok(vec![
        CheckedFigure::new("dropout_weights", "Weights of random tokens, some of them dropped")
            .title("Dropping leaves weights right on average and scatters every row", unbiased && expected)
            .panel(scatter)
            .panel(change)
            .shows("a: rows sum to 1 before; dashed: sqrt(p / (1 - p) \u{d7} sum of squared weights). b: |after - before| / |before|.")
            .drawn(),
        CheckedFigure::new("dropout_training", "A short text learnt with dropout")
            .title("In this training dropout costs held-out loss", costs)
            .panel(end)
            .panel(learning)
            .shows("a: evaluated without dropout. b: by dropout probability.")
            .says("More dropout, higher training loss.", rises(&final_losses(tables)?))
            .drawn(),
    ])
}

/// The last training loss of each rate.
fn final_losses(tables: &Tables) -> Result<Vec<f64>> {
    let curves = tables.get("dropout_curves")?;
    let rates = numbers(tables.get("dropout_training")?, "rate")?;
    let last = |p: f64| numbers(&part(curves, &[("rate", p.into())]), "loss").map(|x| x.last().copied().unwrap_or(f64::NAN));
    Ok(rates.into_iter().map(last).collect::<std::result::Result<_, _>>()?)
}
