//! The masks as maps, and what they cost.

use super::run::{PATTERNS, TIMED};
use crate::drawing::{CheckedFigure, estimate_at, map, part, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, LinePlot, Series, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("attention_patterns_maps")?;
    let mut maps = Vec::new();
    let mut nothing_hidden = true;
    for pattern in PATTERNS {
        let rows = part(table, &[("pattern", pattern.into())]);
        let (visible, weights) = (numbers(&rows, "visible")?, numbers(&rows, "weight")?);
        nothing_hidden &= visible.iter().zip(&weights).all(|(visible, weight)| *visible == 1.0 || *weight == 0.0);
        let hidden = visible.into_iter().map(|x| x == 0.0).collect();
        maps.push(map(pattern, &rows, "weight")?.hidden(hidden)?.limits(0.0, 0.5));
    }
    let mut figures = vec![
        CheckedFigure::grid("attention_patterns", "Eight masks, one draw", maps, 4)
            .title("Eight masks, one draw: what is hidden has no weight", nothing_hidden)
            .shows("Hatched cells are hidden; colours end at 0.5.")
            .drawn(),
    ];
    let (Some(times), Some(exponents)) = (tables.find("patterns_time"), tables.find("patterns_exponents")) else { return Ok(figures) };
    let length = || Axis::log2("tokens n");
    let mut pairs = LinePlot::new("Pairs of query and key", length(), Axis::log10("pairs"));
    let mut time = LinePlot::new("Time", length(), Axis::log10("milliseconds"));
    for (colour, pattern) in TIMED.into_iter().enumerate() {
        let rows = part(times, &[("pattern", pattern.into())]);
        pairs = pairs.series(Series::from_table(pattern, &rows, "seq", "pairs")?.colour(colour));
        time = time.series(with_band(pattern, &rows, "seq", "milliseconds")?.colour(colour));
    }
    let of = |pattern: &str, column: &str| estimate_at(exponents, &[("pattern", pattern.into())], column);
    let slower = of("local", "time_exponent").high < of("full", "time_exponent").low;
    let fitted: Vec<String> = TIMED.iter().map(|p| format!("{p} {}", of(p, "time_exponent").words())).collect();
    figures.push(
        CheckedFigure::new("attention_pattern_cost", "Pairs and time against the length")
            .title("The time of a window grows more slowly with the length than that of full attention", slower)
            .panel(pairs)
            .panel(time)
            .shows(format!("b: medians; bands: fastest to slowest round. Fitted exponents of n: {}.", fitted.join(", ")))
            .drawn(),
    );
    Ok(figures)
}
