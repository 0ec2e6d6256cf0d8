//! How alike heads are, and where each looks.

use crate::drawing::{SCALED, part};
use crate::error::Result;
use regard_plot::figure::{Axis, BarPlot, Figure, LinePlot, Series, numbers};
use regard_plot::{Tables, Value};

pub(super) fn figures(tables: &Tables) -> Result<Vec<Figure>> {
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
