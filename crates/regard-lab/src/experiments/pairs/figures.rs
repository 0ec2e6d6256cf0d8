//! Cross-attention head by head beside what the answer depends on, and the curves of learning.

use crate::drawing::{CheckedFigure, SCALED, UNSCALED, estimate_at, part, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::Tables;
use regard_plot::figure::{Axis, BarPlot, HeatPlot, LinePlot, numbers, texts};

/// The tokens of one side of the input that cross-attention was drawn of.
fn tokens(tables: &Tables, task: &str, side: &str) -> Result<Vec<String>> {
    let rows = part(tables.get("pairs_tokens")?, &[("task", task.into()), ("side", side.into())]);
    Ok(texts(&rows, "token")?)
}

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (results, curves, maps) = (tables.get("pairs_results")?, tables.get("pairs_curves")?, tables.get("pairs_maps")?);
    let influence = tables.get("pairs_influence")?;
    let mut figures = Vec::new();
    let mut learning = LinePlot::new("", Axis::linear("step"), Axis::log10("training loss (nats)"));
    let tasks = texts(results, "task")?;
    for (place, task) in tasks.iter().enumerate() {
        let series = with_band(task.clone(), &part(curves, &[("task", task.as_str().into())]), "step", "loss")?;
        learning = learning.series(series.colour(if place == 0 { SCALED } else { UNSCALED }).without_markers());
    }
    for task in &tasks {
        let (written, read) = (tokens(tables, task, "written")?, tokens(tables, task, "read")?);
        let of = |column: &str| estimate_at(results, &[("task", task.as_str().into())], column);
        let map_of = |title: String, values: Vec<f64>| -> Result<HeatPlot> {
            let mut map = HeatPlot::new(title, written.len(), read.len(), values)?.tokens(&written, &read)?.limits(0.0, 1.0);
            (map.row_title, map.col_title) = ("written".to_owned(), "read".to_owned());
            Ok(map)
        };
        let own = part(maps, &[("task", task.as_str().into())]);
        let mut heads: Vec<_> = own.rows.iter().map(|row| (own.value(row, "block").clone(), own.value(row, "head").clone())).collect();
        heads.dedup();
        let answers = numbers(&part(influence, &[("task", task.as_str().into())]), "influence")?;
        let (mut grid, mut last) = (vec![map_of("influence".to_owned(), answers.clone())?], Vec::new());
        let last_block = heads.last().map(|(block, _)| block.clone());
        for (block, head) in heads {
            let title = format!("L{}.H{}", block.to_field(), head.to_field());
            let weights = numbers(&part(&own, &[("block", block.clone()), ("head", head)]), "weight")?;
            if Some(block) == last_block {
                last.push(weights.clone());
            }
            grid.push(map_of(title, weights)?);
        }
        // The end has no token of the input.
        let all = written.len().saturating_sub(1);
        let near = near(&answers, &last, read.len(), all);
        let apart = of("influence").low > of("weight").high;
        let (name, plain, place) = if task == "reverse" {
            ("pairs_reverse", "Writing a word backwards: influence on the answer, and cross-attention", "letter")
        } else {
            ("pairs_number_words", "Writing a number in words: influence on the answer, and cross-attention", "digit")
        };
        let title = if 4 * near > 3 * all {
            format!(
                "The last block looks within one place of the {place} in {near} of {all} rows; the answer depends mostly on that \
                 {place}"
            )
        } else {
            format!("The answer depends on its own {place}; the last block looks near it in {near} of {all} rows")
        };
        figures.push(
            CheckedFigure::grid(name, plain, grid, 3)
                .title(title, apart)
                .shows(format!(
                    "First map: change of each prediction when a {place} is replaced. Others: cross-attention of every head, \
                     one input. Rows are written, columns read."
                ))
                .says(
                    format!(
                        "Over all trainings {} of the influence and {} of the best head's weight are at the matching {place}.",
                        percent(of("influence")),
                        percent(of("weight"))
                    ),
                    apart,
                )
                .drawn(),
        );
    }
    figures.push(explained(tables)?);
    let falls = tasks.iter().all(|task| {
        let loss = numbers(&part(curves, &[("task", task.as_str().into())]), "loss").unwrap_or_default();
        loss.last() < loss.first()
    });
    figures.push(
        CheckedFigure::new("pairs_learning", "Training loss of two tasks")
            .title("Learning to read one sequence and write another", falls)
            .panel(learning)
            .shows("Training loss per written token; one input in ten is held out.")
            .drawn(),
    );
    Ok(figures)
}

/// Rows in which every map has its peak at most one place from the input that the answer depends on most.
fn near(influence: &[f64], maps: &[Vec<f64>], keys: usize, rows: usize) -> usize {
    let peak = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
    let of = |map: &[f64], row: usize| map.get(row * keys..(row + 1) * keys).map_or(0, peak);
    (0..rows).filter(|&row| maps.iter().all(|map| of(map, row).abs_diff(of(influence, row)) <= 1)).count()
}

fn percent(e: crate::statistics::estimate::Estimate) -> String {
    crate::judging::percent(e)
}

/// What is looked at, what counts, and what is lost.
fn explained(tables: &Tables) -> Result<Drawn> {
    let results = tables.get("pairs_results")?;
    let tasks = texts(results, "task")?;
    let bars = |title: &str, axis: &str, columns: &[(&str, &str)]| -> Result<BarPlot> {
        let mut plot = BarPlot::new(title, "task", tasks.clone(), Axis::linear(axis).limits(0.0, 1.0));
        for (column, label) in columns {
            let (values, ends) = crate::drawing::with_ends(results, column)?;
            plot = plot.bars_with_intervals(*label, values, ends);
        }
        Ok(plot)
    };
    let own = [
        ("weight", "weight, best head"),
        ("value_weighted", "value-weighted, best head"),
        ("influence", "influence"),
        ("even", "if all counted alike"),
    ];
    let right = [
        ("right", "as it is"),
        ("worst_ablated", "without the most important head"),
        ("all_permuted", "weights shuffled"),
        ("all_even", "even weights"),
    ];
    let of = |task: &String, column: &str| estimate_at(results, &[("task", task.as_str().into())], column);
    let needed = tasks.iter().all(|task| of(task, "all_permuted").high < of(task, "right").low);
    let apart = tasks.iter().all(|task| of(task, "influence").low > of(task, "weight").high);
    Ok(CheckedFigure::new("pairs_explained", "Weights, influence, and what is lost without them")
        .title("The weights are needed, and do not say what they are for", needed && apart)
        .panel(bars("On the token that the answer is for", "share", &own)?)
        .panel(bars("Operated on", "share of tokens right", &right)?)
        .shows(
            "a: weight, value-weighted weight and influence of the matching input token. b: tokens right after edits of cross-attention.",
        )
        .says("Shuffled weights give fewer right tokens.", needed)
        .drawn())
}
