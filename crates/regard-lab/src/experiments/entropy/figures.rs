//! Entropy against d_k, and one row weight by weight.

use crate::drawing::{CheckedFigure, WORDS, d_k_axis, falls, part, with_published};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, BarPlot, LinePlot, Names, Series, numbers, texts};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("attention_entropy")?;
    let seq = numbers(table, "seq")?.first().copied().unwrap_or(1.0);
    let mut plot = LinePlot::new("Entropy against d_{k}", d_k_axis(), Axis::linear("mean entropy (nats)"))
        .horizontal(seq.ln(), format!("ln {seq}: uniform"))
        .names(Names::Legend);
    let mut exact = Vec::new();
    for (scaled, word, colour) in WORDS {
        let rows = part(table, &[("scaled", scaled.into())]);
        let series = Series::from_table(word, &rows, "d_k", "exact")?.band(&numbers(&rows, "q025")?, &numbers(&rows, "q975")?);
        plot = plot.series(series.colour(colour));
        exact.push(numbers(&rows, "exact")?);
    }
    let plot = with_published(plot, table)?;
    let row = tables.get("attention_entropy_row")?;
    let d_k = numbers(row, "d_k")?.first().copied().unwrap_or(0.0);
    let mut bars = BarPlot::new(format!("Weights of one row at d_{{k}} = {d_k}"), "key", texts(row, "key")?, Axis::linear("weight"));
    bars.show_values = false;
    for (_, word, colour) in WORDS {
        bars = bars.bars(word, numbers(row, word)?);
        if let Some(series) = bars.series.last_mut() {
            series.colour = Some(colour);
        }
    }
    let spread = |x: &[f64]| x.iter().copied().fold(f64::NEG_INFINITY, f64::max) - x.iter().copied().fold(f64::INFINITY, f64::min);
    let says = falls(&exact[0]) && spread(&exact[1]) < 0.05 * spread(&exact[0]);
    let sharper = numbers(row, "unscaled")?.into_iter().fold(0.0, f64::max) > numbers(row, "scaled")?.into_iter().fold(0.0, f64::max);
    Ok(vec![
        CheckedFigure::new("attention_entropy", format!("Entropy of attention over {seq} tokens"))
            .title("Entropy falls with the width without the scale, and stays where it is with it", says)
            .panel(plot)
            .panel(bars)
            .shows("a: lines are exact expectations, bands hold 95 % of single matrices.")
            .says("b: one row; without the scale its largest weight is larger.", sharper)
            .drawn(),
    ])
}
