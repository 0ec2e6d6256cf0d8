//! What a model of images attends to: maps over the patches of an image, and the image seen through them.

use super::picture::caption;
use crate::options::Unusable;
use anyhow::Result;
use regard_lab::Table;
use regard_lab::figure::{ColourMap, Figure, HeatPlot};
use regard_model::front::Front;
use regard_model::front::image::Image;
use regard_model::{Run, Sink};

/// Pixels of a side of the drawn image, at most.
const SIDE: usize = 224;

/// A query of a model of images.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    /// Its row in the run.
    row: usize,
    /// Patches of a side.
    per_side: usize,
    /// Pixels of a side.
    side: usize,
}

impl Query {
    /// A patch by its row and column; without, the row of the class.
    pub(crate) fn new(front: Front, patch: Option<[usize; 2]>) -> Result<Self> {
        let Front::Image { side, patch: size, .. } = front else {
            return Err(Unusable("the model reads no images; leave --image out".to_owned()).into());
        };
        let per_side = side / size.max(1);
        let row = match patch {
            None => 0,
            Some([row, column]) if row < per_side && column < per_side => 1 + row * per_side + column,
            Some([row, column]) => {
                let reason = format!("there is no patch {row},{column}; the image has {per_side} x {per_side}, counted from 0");
                return Err(Unusable(reason).into());
            }
        };
        Ok(Self { row, per_side, side: side.min(SIDE) })
    }

    fn words(self) -> String {
        match self.row.checked_sub(1) {
            None => "the row of the class".to_owned(),
            Some(patch) => format!("patch {},{}", patch / self.per_side, patch % self.per_side),
        }
    }

    /// The weights of the query over patches, without the row of the class.
    fn weights(self, run: &Run, layer: usize, head: usize) -> Result<Vec<f64>> {
        let weights = run.weights_of(layer, head, self.row..self.row + 1)?;
        Ok(weights.iter().skip(1).map(|weight| f64::from(*weight)).collect())
    }

    fn said(self, run: &Run) -> String {
        let class = "the weight of the class itself is left out";
        format!("{} Queries are {}; {class}.", caption(run, Sink::Show), self.words())
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max).max(1e-6)
}

fn map(title: String, side: usize, values: Vec<f64>) -> Result<HeatPlot> {
    let mut plot = HeatPlot::new(title, side, side, values)?;
    (plot.row_title, plot.col_title) = ("row of patches".to_owned(), "column of patches".to_owned());
    Ok(plot)
}

/// Every head: what the query attends to.
pub(crate) fn heads(run: &Run, query: Query) -> Result<Figure> {
    let shape = run.model().shape();
    let all: Vec<usize> = (0..shape.layers * shape.heads).collect();
    let weights: Vec<Vec<f64>> = all.iter().map(|at| query.weights(run, at / shape.heads, at % shape.heads)).collect::<Result<_>>()?;
    let most = weights.iter().map(|weights| largest(weights)).fold(0.0, f64::max);
    let named = all.iter().zip(weights);
    let maps = named.map(|(at, weights)| {
        let plot = map(format!("{}.{}", at / shape.heads, at % shape.heads), query.per_side, weights)?;
        Ok(plot.limits(0.0, most))
    });
    let figure = Figure::grid("heads", "Every head: weights over the patches of the image", maps.collect::<Result<_>>()?, shape.heads);
    Ok(figure.caption(query.said(run)))
}

/// One head: the image, the weights of the query over its patches, and the image seen through them.
pub(crate) fn head(run: &Run, image: &Image, layer: usize, head: usize, query: Query) -> Result<Figure> {
    let (side, per_side) = (query.side, query.per_side);
    let (bright, weights) = (image.brightness(side), query.weights(run, layer, head)?);
    let most = largest(&weights);
    let seen = bright.iter().enumerate().map(|(at, bright)| {
        let patch = (at / side * per_side / side) * per_side + at % side * per_side / side;
        bright * (0.1 + 0.9 * weights[patch] / most)
    });
    let picture = |title: &str, values: Vec<f64>| {
        let mut plot = HeatPlot::new(title, side, side, values)?.map(ColourMap::Magma).limits(0.0, 1.0).value_title("brightness");
        (plot.row_title, plot.col_title) = ("row of pixels".to_owned(), "column of pixels".to_owned());
        Ok::<_, anyhow::Error>(plot)
    };
    let through = picture("seen through the weights", seen.collect())?;
    let figure = Figure::new(format!("head_{layer}_{head}"), format!("Layer {layer}, head {head}: attention over the image"))
        .panel(picture("the image", bright)?)
        .panel(map("weights".to_owned(), per_side, weights)?.value_title("weight").limits(0.0, most))
        .panel(through);
    Ok(figure.caption(query.said(run)))
}

/// The weights of one head's query, a row per patch.
pub(crate) fn weights(run: &Run, layer: usize, head: usize, query: Query) -> Result<Table> {
    let columns = [("row", "row of patches"), ("column", "column of patches"), ("weight", "weight")];
    let caption = format!("Weights of layer {layer}, head {head}, of {}, over the patches of the image.", query.words());
    let mut table = Table::new(&format!("head_{layer}_{head}"), &caption, &columns);
    for (patch, weight) in query.weights(run, layer, head)?.into_iter().enumerate() {
        table.push(vec![(patch / query.per_side).into(), (patch % query.per_side).into(), weight.into()]);
    }
    Ok(table)
}
