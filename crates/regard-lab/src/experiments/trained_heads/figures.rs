//! How alike heads are, what each looks at, and which patterns they have.

use super::run::ORDERS;
use crate::drawing::{CheckedFigure, SCALED, part, with_band};
use crate::error::Result;
use crate::experiment::Drawn;
use regard_plot::figure::{Axis, HeatPlot, LinePlot, numbers, texts};
use regard_plot::{Table, Tables, Value};

/// The map of one head, with tokens; what the causal mask hides is hatched.
fn head_map(maps: &Table, tokens: &[String], order: &str, block: &Value, head: &Value, title: String) -> Result<HeatPlot> {
    let rows = part(maps, &[("order", order.into()), ("block", block.clone()), ("head", head.clone())]);
    let n = tokens.len();
    let (mut weights, mut hidden) = (vec![0.0; n * n], vec![true; n * n]);
    for row in &rows.rows {
        let at = rows.number(row, "query") as usize * n + rows.number(row, "key") as usize;
        if let Some(weight) = weights.get_mut(at) {
            (*weight, hidden[at]) = (rows.number(row, "weight"), false);
        }
    }
    Ok(HeatPlot::new(title, n, n, weights)?.hidden(hidden)?.tokens(tokens, tokens)?.limits(0.0, 1.0))
}

pub(super) fn figures(tables: &Tables) -> Result<Vec<Drawn>> {
    let (likeness, named, patterns) =
        (tables.get("trained_heads_likeness")?, tables.get("trained_heads_named")?, tables.get("trained_heads_patterns")?);
    let pre = part(likeness, &[("order", "pre-norm".into())]);
    let mut blocks = numbers(&pre, "block")?;
    blocks.sort_by(f64::total_cmp);
    blocks.dedup();
    let lines = |title: &str, axis: Axis, column: &str| -> Result<LinePlot> {
        let mut plot = LinePlot::new(title, Axis::linear("step"), axis);
        for (place, &block) in blocks.iter().enumerate() {
            let rows = part(&pre, &[("block", Value::Integer(block as i64))]);
            let colour = if place == 0 { SCALED } else { place + 1 };
            plot = plot.series(with_band(format!("block {block}"), &rows, "step", column)?.colour(colour).without_markers());
        }
        Ok(plot)
    };
    let cosine = lines("Likeness", Axis::linear("centred cosine of two heads").limits(0.0, 1.0), "centred_cosine")?;
    let divergence = lines("Difference", Axis::linear("Jensen-Shannon divergence (nats)"), "jensen_shannon")?
        .horizontal(std::f64::consts::LN_2, "ln 2: disjoint");
    let parted = blocks.iter().all(|&block| {
        let of = |column: &str| numbers(&part(&pre, &[("block", Value::Integer(block as i64))]), column).unwrap_or_default();
        let ends = |x: Vec<f64>| (x.first().copied().unwrap_or(f64::NAN), x.last().copied().unwrap_or(f64::NAN));
        let ((first, last), (low, high)) = (ends(of("centred_cosine")), ends(of("jensen_shannon")));
        last < first && high > low
    });
    let mut figures = vec![
        CheckedFigure::new("trained_heads", "How alike heads are while the model learns")
            .title("Heads begin alike and part as the model learns", parted)
            .panel(cosine)
            .panel(divergence)
            .shows("Means over pairs of heads of a block and trainings. Two uniform heads count as identical here.")
            .drawn(),
    ];
    let tokens: Vec<String> =
        texts(tables.get("trained_heads_tokens")?, "token")?.iter().map(|t| t.trim_matches(['\u{201c}', '\u{201d}']).to_owned()).collect();
    let maps = tables.get("trained_heads_maps")?;
    let name = |order: &str, block: &Value, head: &Value| {
        let rows = part(patterns, &[("order", order.into()), ("block", block.clone()), ("head", head.clone())]);
        rows.rows.first().map_or_else(String::new, |row| rows.text(row, "pattern").to_owned())
    };
    let count = |order: &str| -> usize {
        let rows = part(named, &[("order", order.into())]);
        rows.rows.iter().filter(|row| rows.text(row, "pattern") != super::run::NONE).map(|row| rows.number(row, "named") as usize).sum()
    };
    // The same count out of the numbers behind the names.
    let recount = |order: &str| -> usize {
        let rows = part(patterns, &[("order", order.into())]);
        let has_one = |row: &&Vec<Value>| {
            let all = ["diagonal", "vertical", "horizontal", "block_weight"].map(|column| crate::rows::estimate(&rows, row, column));
            super::run::name(&all) != super::run::NONE
        };
        rows.rows.iter().filter(has_one).count()
    };
    for (order, _) in ORDERS {
        let of_order = part(maps, &[("order", order.into())]);
        let mut heads: Vec<(Value, Value)> = Vec::new();
        for row in &of_order.rows {
            let place = (of_order.value(row, "block").clone(), of_order.value(row, "head").clone());
            if !heads.contains(&place) {
                heads.push(place);
            }
        }
        let mut grid = Vec::new();
        for (block, head) in &heads {
            let title =
                format!("L{}.H{}: {}", block.to_field(), head.to_field(), name(order, block, head).trim_end_matches(" of the four"));
            grid.push(head_map(maps, &tokens, order, block, head, title)?);
        }
        // The first head by itself, once.
        if order == "pre-norm"
            && let Some((block, head)) = heads.first()
        {
            let row_sum = |map: &HeatPlot| map.values.chunks(tokens.len()).all(|row| (row.iter().sum::<f64>() - 1.0).abs() < 0.02);
            let title = format!("L{}.H{}", block.to_field(), head.to_field());
            let map = head_map(maps, &tokens, order, block, head, title)?;
            let sums = row_sum(&map);
            figures.push(
                CheckedFigure::new("trained_heads_one", "One trained head on held-out text")
                    .title("One trained head: each row is a character that looks at those before it", sums)
                    .panel(map)
                    .shows("\u{2423} is a space; hatched cells are hidden by the causal mask.")
                    .says("Each row sums to 1.", sums)
                    .drawn(),
            );
        }
        let all = part(named, &[("order", order.into())]).rows.first().map_or(0.0, |row| named.number(row, "heads"));
        let figure_name = if order == "pre-norm" { "trained_heads_pre_norm" } else { "trained_heads_post_norm" };
        figures.push(
            CheckedFigure::grid(figure_name, format!("Every head of a {order} model on held-out text"), grid, 4)
                .title(
                    format!("Every head of a {order} model: {} of {all} heads of all trainings have a pattern", count(order)),
                    count(order) > 0 && count(order) == recount(order),
                )
                .shows(
                    "Diagonal: itself or a fixed step back; vertical: spaces and marks; horizontal: even rows; block: letters of its word.",
                )
                .drawn(),
        );
    }
    Ok(figures)
}
