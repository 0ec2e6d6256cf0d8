//! How many rows are lost, by width.

use crate::drawing::{CheckedFigure, WORDS, d_k_axis, estimate_at, part, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, LinePlot, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("overflow_shares")?;
    let lines = |title: &str, column: &str| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, d_k_axis(), Axis::linear("share of rows that are NaN").limits(0.0, 1.0));
        for (scaled, word, colour) in WORDS {
            plot = plot.series(with_band(word, &part(table, &[("scaled", scaled.into())]), "d_k", column)?.colour(colour));
        }
        Ok(plot)
    };
    let widest = numbers(table, "d_k")?.into_iter().fold(0.0, f64::max) as usize;
    let of = |scaled: bool, column: &str| estimate_at(table, &[("d_k", widest.into()), ("scaled", scaled.into())], column);
    let loses = of(false, "lost").low > 0.05 && of(false, "lost_half").low > of(false, "lost").high;
    let stable = numbers(table, "lost_stable")?.iter().all(|x| *x == 0.0);
    Ok(vec![
        CheckedFigure::new("overflow", "Rows lost when powers are taken before the maximum is subtracted")
            .title("Without the scale, wide heads lose rows to overflow unless the maximum is subtracted", loses && stable)
            .panel(lines("Single precision", "lost")?)
            .panel(lines("Half precision", "lost_half")?)
            .says("Rows of 8 random keys; with the maximum subtracted none is lost.", stable)
            .drawn(),
    ])
}
