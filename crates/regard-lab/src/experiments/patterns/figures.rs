//! The masks as maps, and what they cost.

use super::run::PATTERNS;
use crate::drawing::{map, part};
use crate::error::Result;
use regard_plot::Tables;
use regard_plot::figure::{Axis, BarPlot, Figure, numbers, texts};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Figure>> {
    let table = tables.get("attention_patterns_maps")?;
    let mut maps = Vec::new();
    for pattern in PATTERNS {
        let rows = part(table, &[("pattern", pattern.into())]);
        let hidden = numbers(&rows, "visible")?.into_iter().map(|x| x == 0.0).collect();
        maps.push(map(pattern, &rows, "weight")?.hidden(hidden)?.limits(0.0, 0.5));
    }
    let mut figures = vec![
        Figure::grid("attention_patterns", "Eight masks, one draw", maps, 4).caption("Weights of the same queries and keys under each mask; hatched cells are hidden. The colours end at 0.5, so that small weights can be told apart."),
    ];
    if let Some(times) = tables.find("patterns_time") {
        let plot = BarPlot::new("", "pattern", texts(times, "pattern")?, Axis::linear("share of full attention").limits(0.0, 1.0))
            .bars("pairs of query and key", numbers(times, "share")?)
            .bars("time", numbers(times, "of_full")?)
            .lying();
        let seq = numbers(times, "seq")?.first().copied().unwrap_or(0.0);
        figures.push(
            Figure::new("attention_pattern_cost", format!("What is hidden is not computed: {seq} tokens"))
                .panel(plot)
                .caption("Pairs that each pattern needs, and measured time, both as a share of full attention."),
        );
    }
    Ok(figures)
}
