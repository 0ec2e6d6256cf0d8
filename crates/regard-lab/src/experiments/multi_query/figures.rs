//! Loss against the size of the cache.

use crate::drawing::{CheckedFigure, SCALED, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, Line, LinePlot, Series, numbers};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (table, seeds) = (tables.get("multi_query")?, tables.get("multi_query_seeds")?);
    let heads = Axis::log2("key/value heads");
    let single = Series::from_table("single trainings", seeds, "kv_heads", "validation_loss")?.line(Line::None).colour(3);
    let loss = LinePlot::new("Quality", heads.clone(), Axis::linear("validation loss (nats)"))
        .series(with_band("mean", table, "kv_heads", "validation_loss")?.colour(SCALED))
        .series(single);
    let cache = LinePlot::new("Cache", heads, Axis::linear("bytes per token"))
        .series(Series::from_table("keys and values", table, "kv_heads", "cache_bytes")?.colour(2));
    let (bytes, kv) = (numbers(table, "cache_bytes")?, numbers(table, "kv_heads")?);
    let proportional = bytes.iter().zip(&kv).all(|(b, k)| (b / k - bytes[0] / kv[0]).abs() < 1e-9);
    let unchanged = table.rows.iter().skip(1).all(|row| {
        let difference = crate::rows::estimate(table, row, "difference");
        difference.low <= 0.0 && difference.high >= 0.0
    });
    Ok(vec![
        CheckedFigure::new("multi_query", "Loss and cache against the number of key/value heads")
            .title("One key/value head needs a fraction of the cache; the loss does not change measurably", proportional && unchanged)
            .panel(loss)
            .panel(cache)
            .shows("a: mean and single trainings. b: all blocks, single precision.")
            .drawn(),
    ])
}
