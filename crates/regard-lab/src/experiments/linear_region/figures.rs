//! Three widths, and the softmax against its tangent.

use crate::drawing::{CheckedFigure, WORDS, estimate_at, part, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, BarPlot, LinePlot, numbers, texts};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (table, spread) = (tables.get("linear_region")?, tables.get("linear_region_spread")?);
    let names = texts(&part(table, &[("scaled", true.into())]), "d_k")?;
    let mut bars = BarPlot::new("Largest of 8 weights", "d_{k}", names, Axis::linear("expected largest weight").limits(0.0, 1.0));
    for (scaled, word, colour) in WORDS {
        bars = bars.bars(word, numbers(&part(table, &[("scaled", scaled.into())]), "max_weight")?);
        if let Some(series) = bars.series.last_mut() {
            series.colour = Some(colour);
        }
    }
    let line =
        LinePlot::new("The softmax against its tangent", Axis::log2("standard deviation of the scores"), Axis::log10("error / unevenness"))
            .series(with_band("error", spread, "spread", "error")?.colour(3))
            .vertical(1.0, "scaled");
    let at_one = estimate_at(spread, &[("spread", 1.0.into())], "error");
    let at_small = estimate_at(spread, &[("spread", 0.125.into())], "error");
    let difference = |d_k: usize| {
        let of = |scaled: bool| estimate_at(table, &[("d_k", d_k.into()), ("scaled", scaled.into())], "max_weight").value;
        of(false) - of(true)
    };
    let already = difference(64) > 0.3;
    Ok(vec![
        CheckedFigure::new("linear_region", "Three widths, and how straight the softmax is")
            .title(
                "At 64 the scale makes half a weight's difference already, and the softmax is not linear with it",
                already && at_one.low > 0.3,
            )
            .panel(bars)
            .panel(line)
            .shows("a: exact expectations. b: error of the straight-line approximation.")
            .says("Only scores of 1/8 and less are nearly on the line.", at_small.high < 0.15)
            .drawn(),
    ])
}
