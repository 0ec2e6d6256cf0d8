//! Sharpness and gradient norms against d_k, and the maps themselves.

use crate::drawing::{CheckedFigure, WORDS, d_k_axis, map, part};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::figure::{Axis, LinePlot, Series, numbers};
use regard_plot::{Table, Tables};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("attention_sweep_results")?;
    let lines = |column: &str, axis: Axis, title: &str| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, d_k_axis(), axis);
        for (scaled, word, colour) in WORDS {
            let rows = part(table, &[("scaled", scaled.into())]);
            plot = plot.series(Series::from_table(word, &rows, "d_k", column)?.colour(colour));
        }
        Ok(plot)
    };
    let of = |scaled: bool, column: &str| numbers(&part(table, &[("scaled", scaled.into())]), column);
    let above = |column: &str| -> Result<bool> { Ok(of(false, column)?.iter().zip(of(true, column)?).all(|(a, b)| *a > b)) };
    let mut figures = vec![
        CheckedFigure::new("attention_sweep", "Sharpness against d_{k}")
            .title("In every cell attention is sharper without the scale", above("mean_max_weight")?)
            .panel(lines("mean_max_weight", Axis::linear("mean largest weight").limits(0.0, 1.0), "Largest weight")?)
            .panel(lines("mean_entropy", Axis::linear("mean entropy (nats)"), "Entropy")?)
            .shows("Means over rows.")
            .drawn(),
        CheckedFigure::new("gradient_norms_vs_dk", "Gradient norms against d_{k}")
            .title("In these draws the norms of dQ and dK are larger without the scale", above("grad_norm_q")? && above("grad_norm_k")?)
            .panel(lines("grad_norm_q", Axis::log10("norm of dQ"), "Queries")?)
            .panel(lines("grad_norm_k", Axis::log10("norm of dK"), "Keys")?)
            .shows("Frobenius norms.")
            .drawn(),
    ];
    if let Some(weights) = tables.find("attention_sweep_weights") {
        figures.push(gallery(weights)?);
    }
    Ok(figures)
}

fn gallery(weights: &Table) -> Result<Drawn> {
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
    // The largest weights of rows, on average.
    let sharpness = |scaled: bool| -> Result<f64> {
        let rows = part(weights, &[("scaled", scaled.into()), ("d_k", d_k.last().copied().unwrap_or(0).into())]);
        let (query, weight) = (numbers(&rows, "query")?, numbers(&rows, "weight")?);
        let count = query.iter().copied().fold(0.0, f64::max) + 1.0;
        let largest = |q: f64| query.iter().zip(&weight).filter(|(at, _)| **at == q).map(|(_, w)| *w).fold(0.0, f64::max);
        Ok((0..count as usize).map(|q| largest(q as f64)).sum::<f64>() / count)
    };
    let collapses = sharpness(false)? > 1.5 * sharpness(true)?;
    Ok(CheckedFigure::grid("attention_heatmap_gallery", "The same draws without (top) and with the scale (bottom)", maps, d_k.len())
        .title("The same draws: without the scale (top) rows choose one key, with it (bottom) they do not", collapses)
        .shows("First draw of each cell, by d_{k}.")
        .drawn())
}
