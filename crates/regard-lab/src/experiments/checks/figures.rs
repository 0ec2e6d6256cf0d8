//! Growth of scores, and ranks of inputs and outputs.

use crate::drawing::{CheckedFigure, GREY, OTHER, SCALED, UNSCALED, d_k_axis};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, BarPlot, LinePlot, Series, numbers, texts};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let growth = tables.get("check_growth")?;
    let d_k = numbers(growth, "d_k")?;
    let plot = LinePlot::new("Growth of q.k", d_k_axis(), Axis::log2("score"))
        .series(Series::new("largest of 25", &d_k, &numbers(growth, "largest")?).colour(OTHER))
        .series(Series::new("std, unscaled", &d_k, &numbers(growth, "std")?).colour(UNSCALED))
        .series(Series::new("sqrt(d_{k})", &d_k, &numbers(growth, "sqrt_d_k")?).theory().colour(GREY))
        .series(Series::new("std, scaled", &d_k, &numbers(growth, "scaled_std")?).colour(SCALED));
    let ranks = tables.get("check_rank")?;
    let bars = BarPlot::new("Rank in and out", "case", texts(ranks, "case")?, Axis::linear("rank").ticks([0.0, 4.0, 8.0, 12.0]))
        .bars("in", numbers(ranks, "input_rank")?)
        .bars("out", numbers(ranks, "output_rank")?)
        .lying();
    let root = numbers(growth, "ratio")?.iter().all(|ratio| (ratio - 1.0).abs() < 0.05);
    let raised = numbers(ranks, "input_rank")?.iter().zip(numbers(ranks, "output_rank")?).any(|(a, b)| b > *a);
    let one_head = ranks.rows.first().is_some_and(|row| ranks.number(row, "output_rank") <= ranks.number(row, "input_rank"));
    Ok(vec![
        CheckedFigure::new("attention_checks", "How scores grow, and what attention does to rank")
            .title("Scores grow as the square root of the width; heads side by side can raise the rank", root && raised && one_head)
            .panel(plot)
            .panel(bars)
            .shows("a: random vectors. b: ranks at 12 tokens.")
            .drawn(),
    ])
}
