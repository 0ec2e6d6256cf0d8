//! What vanishes without the scale, and what does not.

use crate::drawing::{WORDS, d_k_axis, part};
use crate::error::Result;
use regard_plot::Tables;
use regard_plot::figure::{Axis, Figure, Line, LinePlot, Series, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Figure>> {
    let table = tables.get("attention_gradients")?;
    let lines = |title: &str, axis: Axis, columns: &[(&str, &str)], band: bool| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, d_k_axis(), axis);
        for (scaled, word, colour) in WORDS {
            let rows = part(table, &[("scaled", scaled.into())]);
            for (place, (column, name)) in columns.iter().enumerate() {
                let label = if name.is_empty() { word.to_owned() } else { format!("{name}, {word}") };
                let mut series = Series::from_table(label, &rows, "d_k", column)?.colour(colour);
                if place > 0 {
                    series = series.line(Line::Dashed);
                }
                if band {
                    series = series.band(&numbers(&rows, "row_dq_q10")?, &numbers(&rows, "row_dq_q90")?);
                }
                plot = plot.series(series);
            }
        }
        Ok(plot)
    };
    Ok(vec![Figure::new("attention_gradients", "What vanishes without the scale, and what does not")
        .panel(lines("The norm of dQ grows", Axis::linear("mean norm of dQ"), &[("grad_norm_q", "")], false)?)
        .panel(lines("The median row of dQ vanishes", Axis::log10("norm of a row of dQ"), &[("row_dq_median", "")], true)?)
        .panel(lines("The gradient is in few rows", Axis::linear("share of rows").limits(0.0, 1.0), &[("rows_holding_90_percent", "")], false)?)
        .panel(lines("Rows without a gradient", Axis::linear("share of rows below 10^{-8}").limits(0.0, 1.0), &[("rows_below_1e_8", "")], false)?)
        .caption(
            "Gradients of a loss in a random direction. Top right: median of all rows, the band holds the middle 80 %. Bottom left: the smallest share of rows that holds 90 % of the squared norm.",
        )])
}
