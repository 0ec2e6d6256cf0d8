//! Pictures of a run: every head, or one with its tokens. The command and the Python package draw the same ones.

use anyhow::Result;
use regard_lab::figure::{Figure, HeatPlot};
use regard_model::{Run, Sink};

/// Cells of a side of one head's picture, and of one among all.
const CELLS: usize = 256;
const SMALL: usize = 48;
/// Tokens that are written beside a picture.
const NAMED: usize = 64;

/// A token as pictures show it.
pub fn shown(piece: &str) -> String {
    piece.replace('\n', "\u{21b5}").replace(' ', "\u{2423}")
}

/// What a picture says of the first token.
pub fn said_of(sink: Sink) -> &'static str {
    match sink {
        Sink::Show => "",
        Sink::Hide => " The first token is left out.",
        Sink::Renormalise => " The first token is left out, and the rest divided by what remains.",
    }
}

fn cells(run: &Run, layer: usize, head: usize, most: usize, sink: Sink) -> Result<(usize, Vec<f64>)> {
    let map = run.heat_map_without(layer, head, [most, most], sink)?.mean;
    Ok((map.dim().2, map.iter().map(|x| f64::from(*x)).collect()))
}

/// One head's weights: rows and columns of the picture, and its cells row by row.
///
/// # Errors
/// When there is no such head.
pub fn weights(run: &Run, layer: usize, head: usize, sink: Sink) -> Result<(usize, Vec<f64>)> {
    cells(run, layer, head, CELLS, sink)
}

/// Which cells of a picture the model's own mask hides as a whole.
fn hidden(run: &Run, n: usize, values: &[f64]) -> Vec<bool> {
    (0..n * n).map(|i| run.model().is_causal() && run.edits().is_empty() && i % n > i / n && values[i] == 0.0).collect()
}

/// One head, with its tokens where they are not too many.
///
/// # Errors
/// When there is no such head.
pub fn head(run: &Run, layer: usize, head: usize, sink: Sink) -> Result<Figure> {
    let (n, values) = weights(run, layer, head, sink)?;
    let hidden = hidden(run, n, &values);
    // The first query keeps its own key, and would set the scale of the colours.
    let most = if sink == Sink::Show { 1.0 } else { values.iter().skip(1).copied().fold(0.0, f64::max).clamp(0.01, 1.0) };
    // A picture goes without its caption where it is taken out of its folder.
    let title = match sink {
        Sink::Show => "",
        Sink::Hide => "without the first token",
        Sink::Renormalise => "without the first token, the rest divided by what remains",
    };
    let mut plot = HeatPlot::new(title, n, n, values)?.value_title("weight").limits(0.0, most).hidden(hidden)?;
    if n == run.len() && n <= NAMED {
        let pieces: Vec<String> = run.ids().iter().map(|id| shown(&run.model().piece(*id))).collect();
        plot = plot.tokens(&pieces, &pieces)?;
    } else if n < run.len() {
        plot = plot.pooled(run.len(), run.len());
    }
    let figure = Figure::new(format!("head_{layer}_{head}"), format!("Layer {layer}, head {head}: attention weights")).panel(plot);
    Ok(figure.caption(caption(run, sink)))
}

/// Every head, one beside the other.
///
/// # Errors
/// Never for a run that succeeded.
pub fn heads(run: &Run, sink: Sink) -> Result<Figure> {
    let shape = run.model().shape();
    let mut maps = Vec::new();
    for layer in 0..shape.layers {
        for head in 0..shape.heads {
            let (n, cells) = cells(run, layer, head, SMALL, sink)?;
            let without = if sink == Sink::Show { "" } else { " without first" };
            maps.push(HeatPlot::new(format!("{layer}.{head}{without}"), n, n, cells)?.limits(0.0, 1.0));
        }
    }
    let figure = Figure::grid("heads", "Every head: rows are queries, columns are keys", maps, shape.heads);
    Ok(figure.caption(caption(run, sink)))
}

fn caption(run: &Run, sink: Sink) -> String {
    let edits = if run.edits().is_empty() { String::new() } else { format!(" {}", run.edits().explain().replace('\n', " ")) };
    format!("{} on {} tokens; colour is the weight.{}{edits}", run.model().path().display(), run.len(), said_of(sink))
}
