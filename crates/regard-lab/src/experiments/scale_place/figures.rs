//! Maps at three widths, and outputs by the place of the scale.

use super::run::{D_K, PLACES};
use crate::drawing::{CheckedFigure, estimate_at, map, part, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, LinePlot, Names};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (table, maps) = (tables.get("scale_place")?, tables.get("scale_place_maps")?);
    let mut plots = Vec::new();
    for (place, word) in [(PLACES[2], "unscaled"), (PLACES[0], "scaled")] {
        for d_k in D_K {
            let rows = part(maps, &[("d_k", d_k.into()), ("place", place.into())]);
            plots.push(map(&format!("{word}, d_{{k}} = {d_k}"), &rows, "weight")?.limits(0.0, 1.0));
        }
    }
    let of = |d_k: usize, place: usize, column: &str| estimate_at(table, &[("d_k", d_k.into()), ("place", PLACES[place].into())], column);
    let sharp = D_K.iter().all(|&d| of(d, 2, "largest").low > 0.8 && of(d, 0, "largest").high < 0.5);
    let lines = |title: &str, axis: Axis, column: &str| -> Result<LinePlot> {
        let ticks = D_K.map(|d| d as f64);
        let mut plot = LinePlot::new(title, Axis::log2("width d_{k}").ticks(ticks), axis).names(Names::Legend);
        for (colour, place) in [0usize, 3, 1].into_iter().zip(PLACES) {
            plot = plot.series(with_band(place, &part(table, &[("place", place.into())]), "d_k", column)?.colour(colour));
        }
        Ok(plot)
    };
    let shrinks = of(1024, 1, "output").high < 0.1 * of(1024, 0, "output").low;
    Ok(vec![
        CheckedFigure::grid("scale_place_maps", "One draw at three widths", plots, 3)
            .title("Without the scale each row has one winner at 64 already; with it the maps look alike at every width", sharp)
            .shows("8 tokens, one draw each.")
            .drawn(),
        CheckedFigure::new("scale_place", "Weights and outputs by the place of the scale")
            .title("After the softmax the scale keeps the winner and only makes the output small", shrinks)
            .panel(lines("Largest weight", Axis::linear("share of its row").limits(0.0, 1.0), "largest")?)
            .panel(lines("Outputs", Axis::log10("RMS of the outputs"), "output")?)
            .shows("a: scaled after the softmax and not at all are the same line.")
            .drawn(),
    ])
}
