//! Cross-attention head by head, and the curves of learning.

use crate::drawing::{SCALED, UNSCALED, part};
use crate::error::Result;
use regard_plot::Tables;
use regard_plot::figure::{Axis, Figure, HeatPlot, LinePlot, Series, numbers, texts};

/// The tokens of one side of the input that cross-attention was drawn of.
fn tokens(tables: &Tables, task: &str, side: &str) -> Result<Vec<String>> {
    let rows = part(tables.get("pairs_tokens")?, &[("task", task.into()), ("side", side.into())]);
    Ok(texts(&rows, "token")?)
}

pub(super) fn figures(tables: &Tables) -> Result<Vec<Figure>> {
    let (results, curves, maps, heads) =
        (tables.get("pairs_results")?, tables.get("pairs_curves")?, tables.get("pairs_maps")?, tables.get("pairs_heads")?);
    let mut figures = Vec::new();
    let mut learning = LinePlot::new("", Axis::linear("step"), Axis::log10("training loss (nats per token)"));
    for (place, task) in texts(results, "task")?.iter().enumerate() {
        let series = Series::from_rows(task.clone(), curves, "task", task, "step", "loss")?;
        learning = learning.series(series.colour(if place == 0 { SCALED } else { UNSCALED }).without_markers());
    }
    for task in texts(results, "task")? {
        let (written, read) = (tokens(tables, &task, "written")?, tokens(tables, &task, "read")?);
        let mut grid = Vec::new();
        for row in heads.rows_where("task", task.as_str()) {
            let (block, head) = (heads.value(row, "block").clone(), heads.value(row, "head").clone());
            let title = format!("block {}, head {}", block.to_field(), head.to_field());
            let weights = numbers(&part(maps, &[("task", task.as_str().into()), ("block", block), ("head", head)]), "weight")?;
            let mut map = HeatPlot::new(title, written.len(), read.len(), weights)?.tokens(&written, &read)?.limits(0.0, 1.0);
            (map.row_title, map.col_title) = ("written".to_owned(), "read".to_owned());
            grid.push(map);
        }
        let (name, title, caption) = if task == "reverse" {
            (
                "pairs_reverse",
                "To write a word backwards, look at it backwards",
                "Cross-attention of every head of the decoder on one held-out input. The letter that is written at row i is read at column n - 1 - i: the anti-diagonal.",
            )
        } else {
            (
                "pairs_number_words",
                "To write a number in words, look at the digit that the word is for",
                "Cross-attention of every head of the decoder on one held-out number.",
            )
        };
        figures.push(Figure::grid(name, title, grid, 4).caption(caption));
    }
    figures.push(
        Figure::new("pairs_learning", "Learning to read one sequence and write another").panel(learning).caption(
            "Training loss per written token, logarithmic. Inputs are drawn afresh at every step; one in ten is never trained on.",
        ),
    );
    Ok(figures)
}
