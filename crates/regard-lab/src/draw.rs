//! The figures of each experiment, made of its tables alone.

mod learning;

use crate::error::Result;
use crate::experiments::PATTERNS;
use crate::figure::{Axis, BarPlot, Figure, HeatPlot, Line, LinePlot, Names, Series, numbers, texts};
use crate::table::{Table, Value};
use crate::tables::Tables;

/// The same colour for the same thing in every figure.
const SCALED: usize = 0;
const UNSCALED: usize = 1;
const OTHER: usize = 2;
const PUBLISHED: usize = 3;

const WORDS: [(bool, &str, usize); 2] = [(false, "unscaled", UNSCALED), (true, "scaled", SCALED)];

fn d_k_axis() -> Axis {
    Axis::log2("head dimension d_{k}")
}

/// The rows where each column has its value.
fn part(table: &Table, at: &[(&str, Value)]) -> Table {
    table.filtered(|table, row| at.iter().all(|(column, value)| table.value(row, column) == value))
}

/// The rows of an experiment with a value in that column.
fn with(table: &Table, column: &str) -> Table {
    table.filtered(|table, row| table.number(row, column).is_finite())
}

/// Figures of the tables that are there.
///
/// # Errors
/// When a table lacks what its figure needs.
pub fn all(tables: &Tables) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let has = |name| tables.find(name).is_some();
    if has("attention_sweep_results") {
        figures.extend(sweep(tables)?);
    }
    if has("attention_robustness_summary") {
        figures.extend(robustness(tables)?);
    }
    if has("attention_gradients") {
        figures.push(gradients(tables.get("attention_gradients")?)?);
    }
    if has("attention_entropy") {
        figures.push(entropy(tables)?);
    }
    if has("attention_patterns_maps") {
        figures.extend(patterns(tables)?);
    }
    if has("head_diversity") {
        figures.extend(heads(tables)?);
    }
    if has("check_growth") {
        figures.extend(checks(tables)?);
    }
    if has("mask_training") {
        figures.extend(learning::masks(tables)?);
    }
    if has("scale_training") {
        figures.extend(learning::scale(tables)?);
    }
    if has("trained_heads") {
        figures.extend(learning::trained_heads(tables)?);
    }
    if has("pairs_results") {
        figures.extend(learning::pairs(tables)?);
    }
    Ok(figures)
}

/// Cause and effect: the scores spread, and the weights collapse.
///
/// # Errors
/// When a table is missing.
pub fn lead(tables: &Tables) -> Result<Figure> {
    let growth = tables.get("check_growth")?;
    let d_k = numbers(growth, "d_k")?;
    let cause = LinePlot::new("Cause: dot products spread", d_k_axis(), Axis::log2("standard deviation of the scores"))
        .series(Series::new("unscaled", &d_k, &numbers(growth, "std")?).colour(UNSCALED))
        .series(Series::new("scaled", &d_k, &numbers(growth, "scaled_std")?).colour(SCALED));
    let effect = with_draws(tables, 8, "max_weight", "Effect: one key takes everything", "largest of 8 weights", false)?;
    Ok(Figure::new("why_the_scale", "Without 1/sqrt(d_{k}) the scores spread and attention collapses onto one key").panel(cause).panel(effect).caption(
        "Left: the standard deviation of q.k is sqrt(d_{k}); divided by sqrt(d_{k}) it is 1. Right: the largest weight of a row of 8, averaged over a matrix; lines are exact expectations, bands hold 95 % of single matrices.",
    ))
}

/// A statistic against d_k: exact expectation, range of single draws, and published single draws where wanted.
fn with_draws(tables: &Tables, seq: usize, statistic: &str, title: &str, axis: &str, published: bool) -> Result<LinePlot> {
    let table = tables.get("attention_robustness_summary")?;
    let mut plot = LinePlot::new(title, d_k_axis(), Axis::linear(axis));
    for (scaled, word, colour) in WORDS {
        let rows = part(table, &[("seq", seq.into()), ("statistic", statistic.into()), ("scaled", scaled.into())]);
        let d_k = numbers(&rows, "d_k")?;
        let centre = if with(&rows, "exact").rows.is_empty() { "mean" } else { "exact" };
        let series = Series::new(word, &d_k, &numbers(&rows, centre)?).band(&numbers(&rows, "q025")?, &numbers(&rows, "q975")?);
        plot = plot.series(series.colour(colour));
    }
    if published {
        plot = with_published(plot, &part(table, &[("seq", seq.into()), ("statistic", statistic.into())]))?;
    }
    Ok(plot)
}

/// The published single draws as points, where there are any.
fn with_published(plot: LinePlot, rows: &Table) -> Result<LinePlot> {
    let quoted = with(rows, "published");
    if quoted.rows.is_empty() {
        return Ok(plot);
    }
    Ok(plot.series(Series::from_table("published draws", &quoted, "d_k", "published")?.line(Line::None).colour(PUBLISHED)))
}

fn sweep(tables: &Tables) -> Result<Vec<Figure>> {
    let table = tables.get("attention_sweep_results")?;
    let lines = |column: &str, axis: Axis, title: &str| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, d_k_axis(), axis);
        for (scaled, word, colour) in WORDS {
            let rows = part(table, &[("scaled", scaled.into())]);
            plot = plot.series(Series::from_table(word, &rows, "d_k", column)?.colour(colour));
        }
        Ok(plot)
    };
    let mut figures = vec![
        Figure::new("attention_sweep", "Sharpness against d_{k}")
            .panel(lines("mean_max_weight", Axis::linear("mean largest weight").limits(0.0, 1.0), "Largest weight")?)
            .panel(lines("mean_entropy", Axis::linear("mean entropy (nats)"), "Entropy")?)
            .caption("Means over the rows and draws of each cell of the sweep."),
        Figure::new("gradient_norms_vs_dk", "Gradient norms against d_{k}")
            .panel(lines("grad_norm_q", Axis::log10("norm of dQ"), "Queries")?)
            .panel(lines("grad_norm_k", Axis::log10("norm of dK"), "Keys")?)
            .caption("Frobenius norms of the gradients, averaged over the draws. Without the scale they are larger, not smaller."),
    ];
    if let Some(weights) = tables.find("attention_sweep_weights") {
        figures.push(gallery(weights)?);
    }
    Ok(figures)
}

/// A square map out of rows of query, key and a value.
fn map(title: &str, rows: &Table, value: &str) -> Result<HeatPlot> {
    let values = numbers(rows, value)?;
    let n = (values.len() as f64).sqrt().round() as usize;
    Ok(HeatPlot::new(title, n, values.len() / n.max(1), values)?)
}

fn gallery(weights: &Table) -> Result<Figure> {
    let mut d_k: Vec<i64> = Vec::new();
    for d in numbers(weights, "d_k")? {
        if d_k.last() != Some(&(d as i64)) && !d_k.contains(&(d as i64)) {
            d_k.push(d as i64);
        }
    }
    let mut maps = Vec::new();
    for (scaled, word, _) in WORDS {
        for &d in &d_k {
            maps.push(
                map(&format!("{d}, {word}"), &part(weights, &[("d_k", d.into()), ("scaled", scaled.into())]), "weight")?.limits(0.0, 1.0),
            );
        }
    }
    Ok(Figure::grid("attention_heatmap_gallery", "The same draws without (top) and with the scale (bottom)", maps, d_k.len())
        .caption("Attention weights of the first draw of each cell, named by d_{k}: rows are queries, columns keys."))
}

fn robustness(tables: &Tables) -> Result<Vec<Figure>> {
    let table = tables.get("attention_robustness_summary")?;
    let seq = numbers(table, "seq")?.into_iter().fold(0.0, f64::max) as usize;
    let weight = with_draws(tables, seq, "max_weight", "Largest weight", "mean largest weight", true)?.names(Names::Legend);
    let entropy = with_draws(tables, seq, "entropy", "Entropy", "mean entropy (nats)", true)?.names(Names::Legend);
    let mut figures = vec![
        Figure::new("attention_robustness", format!("Single draws scatter: {seq} tokens"))
            .panel(weight)
            .panel(entropy)
            .caption("Lines are exact expectations; bands hold 95 % of single matrices; points are published single draws."),
    ];
    let quoted = with(table, "percentile");
    if !quoted.rows.is_empty() {
        figures.push(percentiles(&quoted)?);
    }
    Ok(figures)
}

/// The number of a column in the row where each key column has its value; NaN where there is no such row, so that nothing is drawn there.
fn joined(table: &Table, at: &[(&str, Value)], column: &str) -> f64 {
    let rows = part(table, at);
    rows.rows.first().map_or(f64::NAN, |row| rows.number(row, column))
}

fn percentiles(quoted: &Table) -> Result<Figure> {
    let statistics = [("max_weight", "largest weight"), ("entropy", "entropy"), ("norm_dq", "norm of dQ"), ("norm_dk", "norm of dK")];
    let mut cells: Vec<[Value; 3]> = Vec::new();
    for row in &quoted.rows {
        let cell = ["seq", "d_k", "scaled"].map(|column| quoted.value(row, column).clone());
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    let several = cells.iter().any(|[seq, ..]| *seq != cells[0][0]);
    let name = |[seq, d_k, scaled]: &[Value; 3]| {
        let tokens = if several { format!("{} tokens, ", seq.to_field()) } else { String::new() };
        format!("{tokens}{}, {}", d_k.to_field(), if *scaled == true.into() { "scaled" } else { "unscaled" })
    };
    let axis = Axis::linear("percentile of the published value").limits(0.0, 100.0);
    let mut plot = BarPlot::new("", "d_{k}, scale", cells.iter().map(name).collect(), axis).lying();
    for (word, name) in statistics {
        let percentile = |[seq, d_k, scaled]: &[Value; 3]| {
            let at = [("seq", seq.clone()), ("d_k", d_k.clone()), ("scaled", scaled.clone()), ("statistic", word.into())];
            joined(quoted, &at, "percentile")
        };
        plot = plot.bars(name, cells.iter().map(percentile).collect());
    }
    let plot = plot.reference(2.5, "2.5").reference(97.5, "97.5");
    Ok(Figure::new("published_percentiles", "Where the published draws lie among all draws").panel(plot).caption(
        "Share of independent draws below each published number. Typical draws lie anywhere between the two lines; what lies at an edge is an unusual draw.",
    ))
}

fn gradients(table: &Table) -> Result<Figure> {
    let lines = |title: &str, axis: Axis, columns: &[(&str, &str)], band: bool| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, d_k_axis(), axis);
        for (scaled, word, colour) in WORDS {
            let rows = part(table, &[("scaled", scaled.into())]);
            for (place, (column, name)) in columns.iter().enumerate() {
                let label = if name.is_empty() { word.to_owned() } else { format!("{name}, {word}") };
                let mut series = Series::from_table(label, &rows, "d_k", column)?.colour(colour);
                if place > 0 {
                    series = series.line(Line::Dashed);
                }
                if band {
                    series = series.band(&numbers(&rows, "row_dq_q10")?, &numbers(&rows, "row_dq_q90")?);
                }
                plot = plot.series(series);
            }
        }
        Ok(plot)
    };
    Ok(Figure::new("attention_gradients", "What vanishes without the scale, and what does not")
        .panel(lines("The norm of dQ grows", Axis::linear("mean norm of dQ"), &[("grad_norm_q", "")], false)?)
        .panel(lines("The median row of dQ vanishes", Axis::log10("norm of a row of dQ"), &[("row_dq_median", "")], true)?)
        .panel(lines("The gradient is in few rows", Axis::linear("share of rows").limits(0.0, 1.0), &[("rows_holding_90_percent", "")], false)?)
        .panel(lines("Rows without a gradient", Axis::linear("share of rows below 10^{-8}").limits(0.0, 1.0), &[("rows_below_1e_8", "")], false)?)
        .caption(
            "Gradients of a loss in a random direction. Top right: median of all rows, the band holds the middle 80 %. Bottom left: the smallest share of rows that holds 90 % of the squared norm.",
        ))
}

fn entropy(tables: &Tables) -> Result<Figure> {
    let table = tables.get("attention_entropy")?;
    let seq = numbers(table, "seq")?.first().copied().unwrap_or(1.0);
    let mut plot = LinePlot::new("Entropy against d_{k}", d_k_axis(), Axis::linear("mean entropy (nats)"))
        .horizontal(seq.ln(), format!("ln {seq}: uniform"))
        .names(Names::Legend);
    for (scaled, word, colour) in WORDS {
        let rows = part(table, &[("scaled", scaled.into())]);
        let series = Series::from_table(word, &rows, "d_k", "exact")?.band(&numbers(&rows, "q025")?, &numbers(&rows, "q975")?);
        plot = plot.series(series.colour(colour));
    }
    let plot = with_published(plot, table)?;
    let row = tables.get("attention_entropy_row")?;
    let d_k = numbers(row, "d_k")?.first().copied().unwrap_or(0.0);
    let mut bars = BarPlot::new(format!("Weights of one row at d_{{k}} = {d_k}"), "key", texts(row, "key")?, Axis::linear("weight"));
    bars.show_values = false;
    for (_, word, colour) in WORDS {
        bars = bars.bars(word, numbers(row, word)?);
        if let Some(series) = bars.series.last_mut() {
            series.colour = Some(colour);
        }
    }
    Ok(Figure::new("attention_entropy", format!("Entropy of attention over {seq} tokens"))
        .panel(plot)
        .panel(bars)
        .caption("Left: lines are exact expectations, bands hold 95 % of single matrices, points are published draws. Right: the same row without and with the scale."))
}

fn patterns(tables: &Tables) -> Result<Vec<Figure>> {
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

fn heads(tables: &Tables) -> Result<Vec<Figure>> {
    let table = with(tables.get("head_diversity")?, "mean");
    let plain = part(&table, &[("measure", "plain_cosine".into())]);
    // By the number of heads, so that a bar cannot stand under another one's name.
    let of = |measure: &str, column: &str| -> Vec<f64> {
        let heads = plain.rows.iter().map(|row| plain.value(row, "heads").clone());
        heads.map(|heads| joined(&table, &[("measure", measure.into()), ("heads", heads)], column)).collect()
    };
    let around = |measure: &str| of(measure, "q025").into_iter().zip(of(measure, "q975")).collect();
    let bars = BarPlot::new("Measured and published", "heads", texts(&plain, "heads")?, Axis::linear("similarity of two heads"))
        .bars_with_intervals("plain cosine", of("plain_cosine", "mean"), around("plain_cosine"))
        .bars("of independent heads", of("plain_cosine", "independent"))
        .bars("published", of("plain_cosine", "published"))
        .bars_with_intervals("centred cosine", of("centred_cosine", "mean"), around("centred_cosine"));
    let sharpness = tables.get("head_sharpness")?;
    let mut plot = LinePlot::new(
        "Independent heads at other sharpness",
        Axis::log10("mean sum of squared weights"),
        Axis::linear("similarity of two heads"),
    )
    .names(Names::Legend);
    let mut lengths: Vec<f64> = numbers(sharpness, "seq")?;
    lengths.dedup();
    for (place, seq) in lengths.into_iter().enumerate() {
        let rows = part(sharpness, &[("seq", Value::Integer(seq as i64))]);
        plot = plot
            .series(Series::from_table(format!("plain, {seq} tokens"), &rows, "sum_of_squares", "plain_cosine")?.colour(place))
            .series(Series::from_table("", &rows, "sum_of_squares", "independent")?.theory().colour(place));
    }
    let rows = part(sharpness, &[("seq", 20usize.into())]);
    plot = plot.series(Series::from_table("centred, 20 tokens", &rows, "sum_of_squares", "centred_cosine")?.colour(OTHER + 4));
    let mut figures = vec![Figure::new("head_similarity", "The plain cosine of two heads measures sharpness, not likeness").panel(bars).panel(plot).caption(
        "Left: means over many untrained models, whiskers hold 95 % of them. Right: the same heads with their scores multiplied by 0.01 to 8; dashed: 1 / (tokens x sum of squares).",
    )];
    if let Some(maps) = tables.find("head_maps") {
        let count = numbers(maps, "head")?.into_iter().fold(0.0, f64::max) as usize + 1;
        let maps =
            (0..count).map(|h| map(&format!("head {h}"), &part(maps, &[("head", h.into())]), "weight")).collect::<Result<Vec<_>>>()?;
        figures.push(
            Figure::grid("head_maps", "The heads of one untrained model", maps, 4)
                .caption("Weights of each head of the first draw. They look different because they are random."),
        );
    }
    Ok(figures)
}

fn checks(tables: &Tables) -> Result<Vec<Figure>> {
    let growth = tables.get("check_growth")?;
    let d_k = numbers(growth, "d_k")?;
    let plot = LinePlot::new("Growth of q.k", d_k_axis(), Axis::log2("score"))
        .series(Series::new("largest of 25", &d_k, &numbers(growth, "largest")?).colour(OTHER))
        .series(Series::new("std, unscaled", &d_k, &numbers(growth, "std")?).colour(UNSCALED))
        .series(Series::new("sqrt(d_{k})", &d_k, &numbers(growth, "sqrt_d_k")?).theory().colour(6))
        .series(Series::new("std, scaled", &d_k, &numbers(growth, "scaled_std")?).colour(SCALED));
    let ranks = tables.get("check_rank")?;
    let bars = BarPlot::new("Rank in and out", "case", texts(ranks, "case")?, Axis::linear("rank").ticks([0.0, 4.0, 8.0, 12.0]))
        .bars("in", numbers(ranks, "input_rank")?)
        .bars("out", numbers(ranks, "output_rank")?)
        .lying();
    Ok(vec![
        Figure::new("attention_checks", "How scores grow, and what attention does to rank")
            .panel(plot)
            .panel(bars)
            .caption("Left: dot products of random vectors. Right: ranks at 12 tokens, by singular values in double precision."),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{RobustnessConfig, Unwatched};
    use crate::figure::Panel;

    #[test]
    fn a_bar_stands_under_the_name_of_its_own_cell() {
        // In this order the published cells of the statistics are not the same, and lists would be out of step.
        let config = RobustnessConfig { d_k: vec![8, 64, 256], seq: vec![20, 8], seeds: 20, seed: 1 };
        let table = config.run(&Unwatched).unwrap().remove(0);
        let figure = percentiles(&with(&table, "percentile")).unwrap();
        let Panel::Bars(bars) = &figure.panels[0] else { panic!("bars") };
        assert!(bars.categories.contains(&"20 tokens, 8, unscaled".to_owned()), "{:?}", bars.categories);
        let mut drawn = 0;
        for (series, word) in bars.series.iter().zip(["max_weight", "entropy", "norm_dq", "norm_dk"]) {
            assert_eq!(series.values.len(), bars.categories.len());
            for (name, value) in bars.categories.iter().zip(&series.values) {
                let mut words = name.split(", ");
                let seq: usize = words.next().unwrap().trim_end_matches(" tokens").parse().unwrap();
                let d_k: usize = words.next().unwrap().parse().unwrap();
                let at = [
                    ("seq", seq.into()),
                    ("d_k", d_k.into()),
                    ("scaled", (words.next() == Some("scaled")).into()),
                    ("statistic", word.into()),
                ];
                let known = joined(&table, &at, "percentile");
                assert!(known == *value || (known.is_nan() && value.is_nan()), "{name}, {word}: {value} instead of {known}");
                drawn += usize::from(value.is_finite());
            }
        }
        assert_eq!(drawn, 16 + 6);
    }
}
