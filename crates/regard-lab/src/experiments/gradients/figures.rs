//! What vanishes without the scale, and what does not.

use crate::drawing::{Told, WORDS, d_k_axis, estimate_at, falls, part, rises, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use crate::judging::percent;
use regard_plot::Tables;
use regard_plot::figure::{Axis, LinePlot, Series, numbers};

/// The median row is not drawn below this.
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
    let of = |scaled: bool, column: &str| numbers(&part(table, &[("scaled", scaled.into())]), column);
    let widest = numbers(table, "d_k")?.into_iter().fold(0.0, f64::max) as usize;
    let at = |scaled: bool, column: &str| estimate_at(table, &[("d_k", widest.into()), ("scaled", scaled.into())], column);
    let grows = rises(&of(false, "grad_norm_q")?);
    let vanishes = at(false, "row_dq_median").high < 1e-3 * at(true, "row_dq_median").low;
    let few = falls(&of(false, "rows_holding_90_percent")?);
    let heavy = at(false, "largest_percent");
    Ok(vec![
        Told::new("attention_gradients", "Gradients against the width of a head")
            .title("Without the scale the gradient grows, and gathers in few rows", grows && vanishes && few)
            .panel(lines("The norm of dQ", Axis::linear("mean norm of dQ"), "grad_norm_q")?)
            .panel(median)
            .panel(lines("Rows that hold 90 % of the square", Axis::linear("share of rows").limits(0.0, 1.0), "rows_holding_90_percent")?)
            .panel(lines("Rows without a gradient", Axis::linear("share of rows below 10^{-8}").limits(0.0, 1.0), "rows_below_1e_8")?)
            .shows("Gradients of a loss in a random direction. a, c, d: lines are means over draws, bands their 95 % intervals, mostly narrower than the line.")
            .says("a: it grows without the scale, slower and slower.", grows)
            .says(
                format!(
                    "Its tail is heavy: at d_{{k}} = {widest} a hundredth of the draws makes {} of the mean, so few draws give a wrong one.",
                    percent(heavy)
                ),
                heavy.low > 0.03,
            )
            .says("b: median of all rows, the band holds the middle 80 %; both are cut at 10^{-12}.", vanishes)
            .says("c: the smallest share of rows that holds 90 % of the squared norm.", few)
            .drawn(),
    ])
}
