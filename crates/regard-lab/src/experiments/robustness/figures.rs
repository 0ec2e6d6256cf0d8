//! How far single draws scatter, and where the published ones lie.

use crate::drawing::{CheckedFigure, WORDS, d_k_axis, joined, part, with, with_published};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::figure::{Axis, BarPlot, LinePlot, Names, Series, numbers};
use regard_plot::{Table, Tables, Value};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let table = tables.get("attention_robustness_summary")?;
    let seq = numbers(table, "seq")?.into_iter().fold(0.0, f64::max) as usize;
    let weight = with_draws(tables, seq, "max_weight", "Largest weight", "mean largest weight", true)?.names(Names::Legend);
    let entropy = with_draws(tables, seq, "entropy", "Entropy", "mean entropy (nats)", true)?.names(Names::Legend);
    // The bands are as wide as says the title: at the widest heads, at least a tenth of the mean.
    let widest = numbers(table, "d_k")?.into_iter().fold(0.0, f64::max) as usize;
    let at = |scaled: bool| [("seq", seq.into()), ("d_k", widest.into()), ("scaled", scaled.into()), ("statistic", "max_weight".into())];
    let wide = |scaled: bool| {
        let of = |column: &str| joined(table, &at(scaled), column);
        (of("q975") - of("q025")) / of("mean") > 0.1
    };
    let mut figures = vec![
        CheckedFigure::new("attention_robustness", format!("Single draws of {seq} tokens, and their expectation"))
            .title(format!("Single draws scatter by a tenth and more: {seq} tokens"), wide(false) && wide(true))
            .panel(weight)
            .panel(entropy)
            .shows("Lines are exact expectations; bands hold 95 % of single matrices.")
            .drawn(),
    ];
    let quoted = with(table, "percentile");
    if !quoted.rows.is_empty() {
        figures.push(percentiles(&quoted)?);
    }
    Ok(figures)
}

/// A statistic against d_k: exact expectation, range of single draws, and published single draws where wanted.
pub(crate) fn with_draws(tables: &Tables, seq: usize, statistic: &str, title: &str, axis: &str, published: bool) -> Result<LinePlot> {
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

fn percentiles(quoted: &Table) -> Result<Drawn> {
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
    let axis = Axis::linear("percentile of the published value").limits(0.0, 100.0).ticks([0.0, 25.0, 50.0, 75.0, 100.0]);
    let mut plot = BarPlot::new("", "d_{k}, scale", cells.iter().map(name).collect(), axis).as_dots().shaded(2.5, 97.5, "central 95 %");
    let mut outside = 0;
    for (word, name) in statistics {
        let of = |[seq, d_k, scaled]: &[Value; 3], column: &str| {
            let at = [("seq", seq.clone()), ("d_k", d_k.clone()), ("scaled", scaled.clone()), ("statistic", word.into())];
            joined(quoted, &at, column)
        };
        let percentiles: Vec<f64> = cells.iter().map(|cell| of(cell, "percentile")).collect();
        outside += percentiles.iter().filter(|p| **p < 2.5 || **p > 97.5).count();
        let ends = cells.iter().map(|cell| (of(cell, "percentile_low"), of(cell, "percentile_high"))).collect();
        plot = plot.bars_with_intervals(name, percentiles, ends);
    }
    let count = quoted.rows.len();
    Ok(CheckedFigure::new("published_percentiles", "Where the published draws lie among all draws")
        .title(format!("Of {count} published numbers {outside} lie outside the central 95 % of their distributions"), outside > 0)
        .panel(plot)
        .shows("Share of draws below each published number; the band is the central 95 %.")
        .drawn())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Unwatched;
    use crate::experiments::RobustnessConfig;
    use regard_plot::figure::Panel;

    #[test]
    fn a_bar_stands_under_the_name_of_its_own_cell() {
        // In this order the published cells of the statistics are not the same, and lists would be out of step.
        let config = RobustnessConfig { d_k: vec![8, 64, 256], seq: vec![20, 8], seeds: 20, seed: 1 };
        let table = config.run(&Unwatched).unwrap().remove(0);
        let figure = percentiles(&with(&table, "percentile")).unwrap();
        let Panel::Bars(bars) = &figure.figure.panels[0] else { panic!("bars") };
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
