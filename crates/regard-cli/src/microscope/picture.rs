//! Pictures of a run: every head, or one with its tokens. The command and the Python package draw the same ones.

use anyhow::Result;
use regard::Rectangle;
use regard_lab::figure::{Figure, HeatPlot};
use regard_model::edits::Action;
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

/// A map by rows and columns, row by row.
type Cells = ([usize; 2], Vec<f64>);

fn cells(run: &Run, layer: usize, head: usize, most: usize, sink: Sink) -> Result<Cells> {
    let [rows, keys] = run.filled();
    let map = run.heat_map_of(layer, head, Rectangle { rows: 0..rows, keys: 0..keys }, [most, most], sink)?.mean;
    Ok(([map.dim().2, map.dim().3], map.iter().map(|x| f64::from(*x)).collect()))
}

/// One head's weights: rows and columns of the picture, and its cells row by row.
///
/// # Errors
/// When there is no such head.
pub fn weights(run: &Run, layer: usize, head: usize, sink: Sink) -> Result<Cells> {
    cells(run, layer, head, CELLS, sink)
}

/// Which cells of a picture the model's own mask hides as a whole.
fn hidden(run: &Run, [_, n]: [usize; 2], values: &[f64]) -> Vec<bool> {
    (0..values.len()).map(|i| run.is_causal() && run.edits().is_empty() && i % n > i / n && values[i] == 0.0).collect()
}

/// Weights are spread over many rows of sound or patches: colours end at the largest.
fn is_faint(run: &Run) -> bool {
    run.is_cross() || run.model().front_kind().is_some()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max).clamp(0.01, 1.0)
}

/// One head, with its tokens where they are not too many.
///
/// # Errors
/// When there is no such head.
pub fn head(run: &Run, layer: usize, head: usize, sink: Sink) -> Result<Figure> {
    let (size, values) = weights(run, layer, head, sink)?;
    let hidden = hidden(run, size, &values);
    // The first query keeps its own key, and would set the scale of the colours.
    let most = if sink == Sink::Show && !is_faint(run) { 1.0 } else { largest(&values[1.min(values.len())..]) };
    // A picture goes without its caption where it is taken out of its folder.
    let title = match sink {
        Sink::Show => "",
        Sink::Hide => "without the first token",
        Sink::Renormalise => "without the first token, the rest divided by what remains",
    };
    let mut plot = HeatPlot::new(title, size[0], size[1], values)?.value_title("weight").limits(0.0, most).hidden(hidden)?;
    let filled = run.filled();
    if size == filled && size.iter().all(|n| *n <= NAMED) {
        let [rows, keys] = run.pieces().map(|pieces| pieces.iter().map(|piece| shown(piece)).collect::<Vec<_>>());
        plot = plot.tokens(&rows[..size[0]], &keys[..size[1]])?;
    } else if size != filled {
        plot = plot.pooled(filled[0], filled[1]);
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
            let ([rows, keys], cells) = cells(run, layer, head, SMALL, sink)?;
            let without = if sink == Sink::Show { "" } else { " without first" };
            let most = if is_faint(run) { largest(&cells) } else { 1.0 };
            maps.push(HeatPlot::new(format!("{layer}.{head}{without}"), rows, keys, cells)?.limits(0.0, most));
        }
    }
    let figure = Figure::grid("heads", "Every head: rows are queries, columns are keys", maps, shape.heads);
    Ok(figure.caption(caption(run, sink)))
}

/// What keys get from the queries of each head of a layer: the sum of the weights, and their mean over the queries that may see the key,
/// key by key.
///
/// # Errors
/// When there is no such layer.
pub fn key_weights(run: &Run, layer: usize) -> Result<Vec<Vec<[f64; 2]>>> {
    let sums = run.layer_column_sums(layer)?;
    // A causal query sees the keys up to its own.
    let causal = run.is_causal() && !run.edits().list().iter().any(|edit| matches!(edit.action, Action::Mask(_)));
    let of_key = |(key, sum): (usize, &f32)| {
        let queries = if causal { run.len() - key } else { run.len() };
        [f64::from(*sum), f64::from(*sum) / queries as f64]
    };
    Ok(sums.outer_iter().map(|head| head.iter().enumerate().map(of_key).collect()).collect())
}

/// Which keys are attended to: the mean weight of each key, a row per head.
///
/// # Errors
/// Never for a run that succeeded.
pub fn keys(run: &Run) -> Result<Figure> {
    let (shape, [_, n]) = (run.model().shape(), run.filled());
    let (rows, cells) = (shape.layers * shape.heads, n.min(CELLS));
    let mut values = Vec::with_capacity(rows * cells);
    for layer in 0..shape.layers {
        for head in key_weights(run, layer)? {
            let of_cell = |cell: usize| &head[cell * n / cells..(cell + 1) * n / cells];
            let mean = |keys: &[[f64; 2]]| keys.iter().map(|[_, mean]| mean).sum::<f64>() / keys.len() as f64;
            values.extend((0..cells).map(|cell| mean(of_cell(cell))));
        }
    }
    let mut plot = HeatPlot::new("", rows, cells, values)?.value_title("mean weight").limits(0.0, 1.0);
    plot.row_title = "head".to_owned();
    if cells == n && n <= NAMED && rows <= NAMED {
        let heads: Vec<String> = (0..rows).map(|row| format!("{}.{}", row / shape.heads, row % shape.heads)).collect();
        let [_, keys] = run.pieces();
        plot = plot.tokens(&heads, &keys[..n].iter().map(|piece| shown(piece)).collect::<Vec<_>>())?;
    } else {
        plot = plot.pooled(rows, n);
    }
    let caption = format!("{} The mean is over the queries that may see the key.", caption(run, Sink::Show));
    Ok(Figure::new("keys", "Which keys each head attends to").panel(plot).caption(caption))
}

pub(crate) fn caption(run: &Run, sink: Sink) -> String {
    let edits = if run.edits().is_empty() { String::new() } else { format!(" {}", run.edits().explain().replace('\n', " ")) };
    format!("{} on {} tokens; colour is the weight.{}{edits}", run.model().path().display(), run.len(), said_of(sink))
}
