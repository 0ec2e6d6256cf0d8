//! Gradients through the softmax, by row and by position.

use crate::drawing::{CheckedFigure, WORDS, d_k_axis, estimate_at, falls, part, rises, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use crate::judging::percent;
use regard_plot::Tables;
use regard_plot::figure::{Axis, Line, LinePlot, Names, Series, numbers};

/// Smaller values are drawn here.
const CUT: f64 = 1e-12;

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("attention_gradients")?;
    let lines = |title: &str, axis: Axis, column: &str| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, d_k_axis(), axis);
        for (scaled, word, colour) in WORDS {
            plot = plot.series(with_band(word, &part(table, &[("scaled", scaled.into())]), "d_k", column)?.colour(colour));
        }
        Ok(plot)
    };
    let mut median = LinePlot::new("The median row of dQ", d_k_axis(), Axis::log10("norm of a row of dQ").limits(CUT, 10.0));
    for (scaled, word, colour) in WORDS {
        let rows = part(table, &[("scaled", scaled.into())]);
        let low: Vec<f64> = numbers(&rows, "row_dq_q10")?.into_iter().map(|x| x.max(CUT)).collect();
        let series = Series::from_table(word, &rows, "d_k", "row_dq_median")?.band(&low, &numbers(&rows, "row_dq_q90")?);
        median = median.series(series.colour(colour));
    }
    let places = tables.get("attention_gradient_positions")?;
    let by_place = |title: &str, axis: &str, columns: [(&str, &str); 2]| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, d_k_axis(), Axis::log10(axis).limits(CUT, 10.0)).names(Names::Legend);
        for (scaled, word, colour) in WORDS {
            let rows = part(places, &[("scaled", scaled.into())]);
            for ((column, label), line) in columns.into_iter().zip([Line::Solid, Line::Dashed]) {
                let values: Vec<f64> = numbers(&rows, column)?.into_iter().map(|x| x.max(CUT)).collect();
                plot = plot.series(Series::new(format!("{word}, {label}"), &numbers(&rows, "d_k")?, &values).line(line).colour(colour));
            }
        }
        Ok(plot)
    };
    let place = |scaled: bool, column: &str| estimate_at(places, &[("d_k", 1024usize.into()), ("scaled", scaled.into())], column);
    let falls_to = |column: &str, share: f64| place(false, column).high < share * place(true, column).low;
    let first = place(false, "ds_other").high < 1e-3 * place(false, "ds_dominant").low;
    let by_position = falls_to("ds_other", 1e-3) && falls_to("ds_dominant", 0.01) && falls_to("dv_other", 0.01) && first;
    let of = |scaled: bool, column: &str| numbers(&part(table, &[("scaled", scaled.into())]), column);
    let widest = numbers(table, "d_k")?.into_iter().fold(0.0, f64::max) as usize;
    let at = |scaled: bool, column: &str| estimate_at(table, &[("d_k", widest.into()), ("scaled", scaled.into())], column);
    let grows = rises(&of(false, "grad_norm_q")?);
    let vanishes = at(false, "row_dq_median").high < 1e-3 * at(true, "row_dq_median").low;
    let few = falls(&of(false, "rows_holding_90_percent")?);
    let heavy = at(false, "largest_percent");
    Ok(vec![
        CheckedFigure::new("attention_gradient_positions", "Gradients through the softmax by position")
            .title("Without the scale the gradient through the softmax vanishes, first at the keys that are not dominant", by_position)
            .panel(by_place("Through the softmax: |dS|", "median |dS|", [("ds_dominant", "dominant key"), ("ds_other", "other keys")])?)
            .panel(by_place(
                "On the values: rows of dV",
                "median norm of a row",
                [("dv_favoured", "favoured"), ("dv_other", "other keys")],
            )?)
            .shows(
                "Medians over draws. Solid: dominant or favoured keys (dominant for some query); dashed: the others. Smaller values are \
                 drawn at 10^{-12}.",
            )
            .drawn(),
        CheckedFigure::new("attention_gradients", "Gradients against the width of a head")
            .title("The mean norm of dQ grows without the scale, carried by few rows; the median row vanishes", grows && vanishes && few)
            .panel(lines("The norm of dQ", Axis::linear("mean norm of dQ"), "grad_norm_q")?)
            .panel(median)
            .panel(lines("Rows that hold 90 % of the square", Axis::linear("share of rows").limits(0.0, 1.0), "rows_holding_90_percent")?)
            .panel(lines("Rows without a gradient", Axis::linear("share of rows below 10^{-8}").limits(0.0, 1.0), "rows_below_1e_8")?)
            .says("a: mean over draws; it grows without the scale.", grows)
            .says(
                format!(
                    "At d_{{k}} = {widest} the mean rests on rare draws: 1 % of them contribute {}. The typical draw is smaller.",
                    percent(heavy)
                ),
                heavy.low > 0.03,
            )
            .says("b: median row; the band holds the middle 80 %, cut at 10^{-12}.", vanishes)
            .says("c: share of rows that holds 90 % of the squared norm.", few)
            .drawn(),
    ])
}
