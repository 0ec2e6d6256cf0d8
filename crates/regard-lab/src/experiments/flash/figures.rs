//! Memory and time against the length.

use crate::drawing::{CheckedFigure, SCALED, UNSCALED, joined, part};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, Line, LinePlot, Series, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("flash_memory")?;
    let mut memory = LinePlot::new("Memory", Axis::log2("tokens n"), Axis::log10("megabytes beyond q, k, v"));
    let mut time = LinePlot::new("Time", Axis::log2("tokens n"), Axis::log10("milliseconds"));
    for (method, colour) in [("laid out", UNSCALED), ("tiled", SCALED)] {
        let rows = part(table, &[("method", method.into())]);
        let n = numbers(&rows, "seq")?;
        let megabytes = |column: &str| -> Result<Vec<f64>> { Ok(numbers(&rows, column)?.into_iter().map(|b| b / 1e6).collect()) };
        memory = memory
            .series(Series::new(method, &n, &megabytes("measured")?).colour(colour))
            .series(Series::new("", &n, &megabytes("laid_out")?).line(Line::Dashed).without_markers().colour(colour));
        time = time.series(Series::from_table(method, &rows, "seq", "milliseconds")?.colour(colour));
    }
    let longest = numbers(table, "seq")?.into_iter().fold(0.0, f64::max) as usize;
    let of = |method: &str, column: &str| joined(table, &[("seq", longest.into()), ("method", method.into())], column);
    let less = of("tiled", "measured") < 0.2 * of("laid out", "measured");
    let same = numbers(table, "apart")?.iter().all(|x| *x < 1e-4);
    Ok(vec![
        CheckedFigure::new("flash_memory", "Memory and time of attention, tiled and laid out")
            .title("Tiled attention needs a fraction of the memory: it never forms the weight matrix", less)
            .panel(memory)
            .panel(time)
            .shows("a: solid: measured; dashed: what must be held. b: the textbook version uses one thread.")
            .says("Outputs agree to rounding.", same)
            .drawn(),
    ])
}
