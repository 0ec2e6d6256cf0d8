//! Figures of the experiments that train.

use super::{SCALED, UNSCALED, WORDS, d_k_axis, part, with};
use crate::error::Result;
use crate::figure::{Axis, BarPlot, Figure, HeatPlot, Line, LinePlot, Names, Series, numbers, texts};
use crate::table::{Table, Value};
use crate::tables::Tables;

/// The last colour of the palette: for what is no model.
const GREY: usize = 6;

/// Masks in the order of the palette: the same colour for the same mask, whichever were trained.
const MASKS: [&str; 6] = ["causal", "reverse", "strictly future", "none", "future without target", "right to left"];

fn masks_of(table: &Table) -> Vec<(usize, &'static str)> {
    MASKS.into_iter().enumerate().filter(|(_, name)| table.rows_where("variant", *name).next().is_some()).collect()
}

fn baseline(tables: &Tables, name: &str) -> Option<f64> {
    tables.number("mask_training_baselines", &[("name", name.into())], "value").ok()
}

/// What training shows, what use shows, and both beside each other.
pub(super) fn masks(tables: &Tables) -> Result<Vec<Figure>> {
    let curves = tables.get("mask_training_curves")?;
    let mut training =
        LinePlot::new("What training shows", Axis::linear("step"), Axis::log10("training loss (nats per token)")).names(Names::Legend);
    let prefix = tables.get("mask_training_prefix")?;
    let mut use_ = LinePlot::new("What use shows", Axis::linear("tokens of the prefix"), Axis::linear("loss from the prefix alone"))
        .names(Names::Legend);
    for (colour, mask) in masks_of(curves) {
        let series = Series::from_rows(mask, curves, "variant", mask, "step", "loss")?.colour(colour).without_markers();
        // Two cheaters lie on each other: the second is dashed, so that both can be seen.
        let line = if mask == "strictly future" || mask == "right to left" { Line::Dashed } else { Line::Solid };
        training = training.series(series.line(line));
        use_ = use_.series(Series::from_rows(mask, prefix, "variant", mask, "length", "loss")?.colour(colour).without_markers().line(line));
    }
    for (name, label) in [("bigram", "bigram"), ("five_gram", "5-gram")] {
        if let Some(value) = baseline(tables, name) {
            training = training.horizontal(value, label);
        }
    }
    let across = |table: &Table, column: &str, label: &str, value: f64| -> Result<Series> {
        let last = numbers(table, column)?.into_iter().fold(1.0, f64::max);
        Ok(Series::new(label, &[1.0, last], &[value, value]).line(Line::Dotted).without_markers().colour(GREY))
    };
    if let Some(entropy) = baseline(tables, "entropy") {
        training = training.series(across(curves, "step", "entropy of the text", entropy)?);
    }
    if let Some(uniform) = baseline(tables, "uniform") {
        use_ = use_.series(across(prefix, "length", "knowing nothing", uniform)?);
    }
    let floor = if baseline(tables, "entropy").is_some() {
        " No honest model can fall below the entropy of the text: the cheaters do, at once."
    } else {
        ""
    };
    Ok(vec![
        Figure::new("mask_training", "The cheater looks perfect until it is used")
            .panel(training)
            .panel(use_)
            .caption(format!("Left: training loss, logarithmic.{floor} Right: the same models on held-out text, given only the tokens that exist when one writes.")),
        masks_in_use(tables)?,
    ])
}

fn masks_in_use(tables: &Tables) -> Result<Figure> {
    let table = tables.get("mask_training")?;
    let mut losses = BarPlot::new("Loss", "mask", texts(table, "variant")?, Axis::linear("nats per token"))
        .bars("validation, teacher-forced", numbers(table, "validation_loss")?)
        .bars("validation, prefix alone", numbers(table, "prefix_only_loss")?)
        .lying();
    (losses.series[0].colour, losses.series[1].colour) = (Some(GREY), Some(3));
    if let Some(uniform) = baseline(tables, "uniform") {
        losses = losses.reference(uniform, "uniform");
    }
    let written = with(table, "real_words");
    let mut words = BarPlot::new("Writing", "mask", texts(&written, "variant")?, Axis::linear("share of real words").limits(0.0, 1.0))
        .bars("sampled at temperature 1", numbers(&written, "real_words")?)
        .lying();
    words.series[0].colour = Some(2);
    Ok(Figure::new("mask_training_use", "Validation does not find the cheater: it hands over the future as training does").panel(losses).panel(words).caption(
        "Left: the loss on held-out windows, with the whole window in sight of the mask (as models are validated), and with the prefix alone (as models are used). An honest mask has two equal bars; `uniform` is knowing nothing. Right: the share of written words that the training text has.",
    ))
}

/// A value over steps, without and with the scale: mean over heads or blocks, the band from the least to the largest of them.
fn over_time(table: &Table, head_dim: f64, column: &str, title: &str, axis: Axis) -> Result<LinePlot> {
    let mut plot = LinePlot::new(title, Axis::linear("step"), axis);
    for (scaled, word, colour) in WORDS {
        let rows = part(table, &[("head_dim", Value::Integer(head_dim as i64)), ("scaled", scaled.into())]);
        let mut steps = numbers(&rows, "step")?;
        steps.dedup();
        let (mut mean, mut low, mut high) = (Vec::new(), Vec::new(), Vec::new());
        for &step in &steps {
            let here = numbers(&part(&rows, &[("step", Value::Integer(step as i64))]), column)?;
            mean.push(here.iter().sum::<f64>() / here.len() as f64);
            low.push(here.iter().copied().fold(f64::INFINITY, f64::min));
            high.push(here.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
        plot = plot.series(Series::new(word, &steps, &mean).band(&low, &high).colour(colour));
    }
    Ok(plot)
}

pub(super) fn scale(tables: &Tables) -> Result<Vec<Figure>> {
    let table = tables.get("scale_training")?;
    let (curves, heads, gradients) =
        (tables.get("scale_training_curves")?, tables.get("scale_training_heads")?, tables.get("scale_training_gradients")?);
    let mut sizes = numbers(table, "head_dim")?;
    sizes.dedup();
    let widest = sizes.iter().copied().fold(0.0, f64::max);
    let mut end = LinePlot::new("After training", d_k_axis(), Axis::linear("validation loss (nats per token)"));
    for (scaled, word, colour) in WORDS {
        end =
            end.series(Series::from_table(word, &part(table, &[("scaled", scaled.into())]), "head_dim", "validation_loss")?.colour(colour));
    }
    let at = |what: &str| format!("{what}, d_{{k}} = {widest}");
    let loss = over_time(curves, widest, "loss", &at("Learning"), Axis::linear("training loss (nats per token)"))?;
    let query = over_time(gradients, widest, "query_gradient", &at("Gradient on queries"), Axis::log10("norm on a block's weights"))?;
    let value = over_time(gradients, widest, "value_gradient", &at("Gradient on values"), Axis::log10("norm on a block's weights"))?;
    let mut figures = vec![
        Figure::new("scale_training", "What the scale does for a model that learns").panel(end).panel(loss).panel(query).panel(value).caption(
            "Top left: loss on held-out text at the end, one training each. The other panels follow the widest heads; the bands reach from one block to the other.",
        ),
    ];
    for (name, column, title, axis, caption) in [
        (
            "scale_training_entropy",
            "relative_entropy",
            "Entropy of the heads while the model learns",
            "entropy / ln(visible keys)",
            "Mean over all heads; the bands reach from the sharpest head to the flattest. 1 is uniform attention, 0 a one-hot choice.",
        ),
        (
            "scale_training_saturation",
            "saturated",
            "Saturated rows while the model learns",
            "share of rows with a weight above 0.99",
            "Mean over all heads; the bands reach from the least saturated head to the most.",
        ),
    ] {
        let mut figure = Figure::new(name, title).caption(caption);
        for &size in &sizes {
            let plot = over_time(heads, size, column, &format!("d_{{k}} = {size}"), Axis::linear(axis).limits(0.0, 1.0))?;
            figure = figure.panel(plot);
        }
        figures.push(figure);
    }
    Ok(figures)
}

pub(super) fn trained_heads(tables: &Tables) -> Result<Vec<Figure>> {
    let (heads, likeness) = (tables.get("trained_heads")?, tables.get("trained_heads_likeness")?);
    let mut blocks = numbers(likeness, "block")?;
    blocks.sort_by(f64::total_cmp);
    blocks.dedup();
    let lines = |title: &str, axis: Axis, column: &str| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, Axis::linear("step"), axis);
        for (place, &block) in blocks.iter().enumerate() {
            let rows = part(likeness, &[("block", Value::Integer(block as i64))]);
            let colour = if place == 0 { SCALED } else { place + 1 };
            plot = plot.series(Series::from_table(format!("block {block}"), &rows, "step", column)?.colour(colour).without_markers());
        }
        Ok(plot)
    };
    let cosine = lines("Likeness", Axis::linear("centred cosine of two heads").limits(0.0, 1.0), "centred_cosine")?;
    let divergence = lines("Difference", Axis::linear("Jensen-Shannon divergence (nats)"), "jensen_shannon")?
        .horizontal(std::f64::consts::LN_2, "ln 2: disjoint");
    let last = numbers(heads, "step")?.into_iter().fold(0.0, f64::max);
    let at_end = part(heads, &[("step", Value::Integer(last as i64))]);
    let names: Vec<String> =
        at_end.rows.iter().map(|row| format!("block {}, head {}", at_end.number(row, "block"), at_end.number(row, "head"))).collect();
    let mut mass = BarPlot::new("", "head", names, Axis::linear("share of weight")).lying();
    for (column, label) in [("previous_token_mass", "token before"), ("diagonal_mass", "itself"), ("first_token_mass", "first token")] {
        mass = mass.bars(label, numbers(&at_end, column)?);
    }
    Ok(vec![
        Figure::new("trained_heads", "How alike heads are while the model learns").panel(cosine).panel(divergence).caption(
            "How alike and how different two heads of a block are, mean over pairs. Before training all heads are nearly uniform, so under a causal mask they are alike.",
        ),
        Figure::new("trained_heads_look", format!("Where each head looks after {last} steps"))
            .panel(mass)
            .caption("Mean weight over the rows of held-out windows. What is missing to 1 goes to other tokens of the past."),
    ])
}

/// The tokens of one side of the input that cross-attention was drawn of.
fn tokens(tables: &Tables, task: &str, side: &str) -> Result<Vec<String>> {
    let rows = part(tables.get("pairs_tokens")?, &[("task", task.into()), ("side", side.into())]);
    Ok(texts(&rows, "token")?)
}

pub(super) fn pairs(tables: &Tables) -> Result<Vec<Figure>> {
    let (results, curves, maps, heads) =
        (tables.get("pairs_results")?, tables.get("pairs_curves")?, tables.get("pairs_maps")?, tables.get("pairs_heads")?);
    let mut figures = Vec::new();
    let mut learning = LinePlot::new("", Axis::linear("step"), Axis::log10("training loss (nats per token)"));
    for (place, task) in texts(results, "task")?.iter().enumerate() {
        let series = Series::from_rows(task.clone(), curves, "task", task, "step", "loss")?;
        learning = learning.series(series.colour(if place == 0 { SCALED } else { UNSCALED }).without_markers());
    }
    figures.push(
        Figure::new("pairs_learning", "Learning to read one sequence and write another").panel(learning).caption(
            "Training loss per written token, logarithmic. Inputs are drawn afresh at every step; one in ten is never trained on.",
        ),
    );
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
    Ok(figures)
}
