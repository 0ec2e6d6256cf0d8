//! Right answers of each variant.

use super::run::TASKS;
use crate::drawing::{CheckedFigure, estimate_at, part, with_ends};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, BarPlot, texts};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("roles")?;
    let of_task = |at: usize| part(table, &[("task", TASKS[at].name().into())]);
    let names = texts(&of_task(0), "variant")?;
    let mut bars = BarPlot::new("", "", names, Axis::linear("share of right answers").limits(0.0, 1.0));
    for (at, label) in ["the same key", "the next key"].into_iter().enumerate() {
        let (right, ends) = with_ends(&of_task(at), "right")?;
        bars = bars.bars_with_intervals(label, right, ends);
    }
    let of = |at: usize, variant: &str| estimate_at(table, &[("task", TASKS[at].name().into()), ("variant", variant.into())], "right");
    let lost =
        ["Q and K exchanged", "K and V exchanged", "Q and V exchanged"].iter().all(|v| of(1, v).high < of(1, "three projections").low);
    let tied = of(1, "Q = K").high < of(1, "three projections").low;
    Ok(vec![
        CheckedFigure::new("roles", "Right answers with projections shared or exchanged")
            .title("Exchanged projections answer wrongly: queries, keys and values are three roles", lost)
            .panel(bars.reference(1.0 / 16.0, "chance").lying())
            .shows("Recall among 16 pairs.")
            .says("One matrix for Q and K cannot ask for the next key: its scores are symmetric.", tied)
            .drawn(),
    ])
}
