//! Sharpness and gradient norms against d_k, and the maps themselves.

use crate::drawing::{WORDS, d_k_axis, map, part};
use crate::error::Result;
use regard_plot::figure::{Axis, Figure, LinePlot, Series, numbers};
use regard_plot::{Table, Tables};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Figure>> {
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
