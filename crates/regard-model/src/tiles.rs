//! Data for a viewer of a run: means of every head, tiles of a head's weights at any zoom, and all values of one pair of tokens.
//!
//! A tile costs its own pairs: what the rows of a head are divided by is made once, as [`HeadStates`]. Cells are `step x step` tokens;
//! those at the edge of the text are smaller.

use crate::error::{Error, Result};
use crate::run::Run;
use ndarray::{Array2, Axis, Slice};
use regard::{HeatMap, Mask, Rectangle, SoftmaxDenominators, StatsOptions};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How the first token is treated, which often takes most of the weight and hides the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sink {
    /// Shown as it is.
    #[default]
    Show,
    /// Left out, but for the first query.
    Hide,
    /// Left out, and the rest divided by what remains.
    Renormalise,
}

/// How the weights of a cell become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pool {
    /// Their mean.
    #[default]
    Mean,
    /// The largest.
    Max,
}

/// Means over the rows of a head.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeadSummary {
    /// Which layer.
    pub layer: usize,
    /// Which head.
    pub head: usize,
    /// Entropy of a row, in nats.
    pub entropy: f64,
    /// Its largest weight.
    pub max_weight: f64,
    /// Weight of its own token.
    pub own: f64,
    /// Of the token before.
    pub previous: f64,
    /// Of the first token.
    pub first: f64,
    /// Of tokens at most three away.
    pub local: f64,
    /// Mean distance of what is looked at.
    pub distance: f64,
}

/// What the rows of one head are divided by.
#[derive(Debug, Clone)]
pub struct HeadStates {
    layer: usize,
    head: usize,
    sink: Sink,
    /// One for each way in which rows attend.
    groups: Vec<SoftmaxDenominators<f32>>,
}

impl HeadStates {
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.groups.iter().map(|rows| size_of::<f32>() * (rows.row_max.len() + rows.row_sum.len())).sum()
    }
}

/// Rows of a tile that are made at a time, where edits treat rows differently.
const STRIP: usize = 64;

/// The part of `range` that is whole cells, and the cell at the edge.
fn cells(range: Range<usize>, step: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
    let whole = range.len() / step;
    let edge = range.start + whole * step;
    [(range.start..edge, whole), (edge..range.end, 1)].into_iter().filter(|(range, _)| !range.is_empty())
}

impl Run {
    /// Means of every head of a layer.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn layer_summary(&self, layer: usize) -> Result<Vec<HeadSummary>> {
        let means = self.layer_statistics(layer, StatsOptions::default())?.0.heads();
        let of_head = |head: usize| {
            let at = [0, head];
            HeadSummary {
                layer,
                head,
                entropy: means.entropy[at],
                max_weight: means.max_weight[at],
                own: means.diagonal_mass[at],
                previous: means.previous_token_mass[at],
                first: means.first_token_mass[at],
                local: means.local_mass[at],
                distance: means.mean_distance[at],
            }
        };
        Ok((0..self.model().shape().heads).map(of_head).collect())
    }

    /// The keys that are shown.
    fn shown(sink: Sink) -> Option<Mask<'static>> {
        (sink != Sink::Show).then(|| !Mask::first_keys(1) | Mask::window(Some(0), Some(0)))
    }

    /// What the rows of a head are divided by: made once, for any number of tiles.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn head_states(&self, layer: usize, head: usize, sink: Sink) -> Result<HeadStates> {
        // Divided by what all keys add up to, the keys that are shown keep their weights.
        let counted = if sink == Sink::Renormalise { Self::shown(sink) } else { None };
        let groups = self.each_group(layer, head, 0..self.len(), counted, |attention, [q, k, _], _| Ok(attention.row_states(q, k)?))?;
        Ok(HeadStates { layer, head, sink, groups })
    }

    /// A rectangle of a head's weights in cells of `step x step` tokens: with a step of one the weights themselves.
    ///
    /// # Errors
    /// [`Error::Outside`].
    pub fn tile(&self, states: &HeadStates, of: Rectangle, step: usize, pool: Pool) -> Result<Array2<f32>> {
        let step = step.max(1);
        for (what, range, n) in [("row", &of.rows, self.len()), ("key", &of.keys, self.keys())] {
            if range.start >= range.end || range.end > n {
                return Err(Error::Outside { what, number: range.end, count: n });
            }
        }
        let mut tile = Array2::zeros((of.rows.len().div_ceil(step), of.keys.len().div_ceil(step)));
        for (rows, row_cells) in cells(of.rows.clone(), step) {
            for (keys, key_cells) in cells(of.keys.clone(), step) {
                let (i, j) = ((rows.start - of.rows.start) / step, (keys.start - of.keys.start) / step);
                let part = self.pooled(states, Rectangle { rows: rows.clone(), keys }, [row_cells, key_cells], pool)?;
                let mut place = tile.slice_axis_mut(Axis(0), Slice::from(i..i + row_cells));
                place.slice_axis_mut(Axis(1), Slice::from(j..j + key_cells)).assign(&part);
            }
        }
        Ok(tile)
    }

    /// Cells of a rectangle that all are of one size.
    fn pooled(&self, states: &HeadStates, of: Rectangle, [rows, keys]: [usize; 2], pool: Pool) -> Result<Array2<f32>> {
        if states.groups.len() == 1 {
            let map = self.map(states, of, [rows, keys])?;
            let cells = if pool == Pool::Mean { map.mean } else { map.max };
            return Ok(cells.index_axis_move(Axis(0), 0).index_axis_move(Axis(0), 0));
        }
        let (high, wide) = (of.rows.len() / rows, of.keys.len() / keys);
        let mut cells = Array2::<f64>::zeros((rows, keys));
        for start in of.rows.clone().step_by(STRIP) {
            let strip = start..(start + STRIP).min(of.rows.end);
            let weights = self.exact(states, Rectangle { rows: strip.clone(), keys: of.keys.clone() })?;
            for ((i, j), weight) in weights.indexed_iter() {
                let cell = &mut cells[[(strip.start + i - of.rows.start) / high, j / wide]];
                *cell = if pool == Pool::Mean { *cell + f64::from(*weight) } else { cell.max(f64::from(*weight)) };
            }
        }
        let pairs = if pool == Pool::Mean { (high * wide) as f64 } else { 1.0 };
        Ok(cells.mapv(|x| (x / pairs) as f32))
    }

    /// Cells of a rectangle, all rows in the first rows' way.
    pub(crate) fn map(&self, states: &HeadStates, of: Rectangle, cells: [usize; 2]) -> Result<HeatMap<f32>> {
        let mut group = states.groups.iter();
        let mut maps = self.each_group(states.layer, states.head, 0..self.len(), Self::shown(states.sink), |attention, [q, k, _], _| {
            Ok(attention.heat_map_of(q, k, group.next().expect("as many as ways"), of.clone(), cells)?)
        })?;
        Ok(maps.swap_remove(0))
    }

    /// The weights of a rectangle, each row in its own way.
    pub(crate) fn exact(&self, states: &HeadStates, of: Rectangle) -> Result<Array2<f32>> {
        let mut weights = Array2::zeros((of.rows.len(), of.keys.len()));
        let mut group = states.groups.iter();
        self.each_group(states.layer, states.head, 0..self.len(), Self::shown(states.sink), |attention, [q, k, _], chosen| {
            let made = attention.weights_of(q, k, group.next().expect("as many as ways"), of.clone())?;
            let made = made.index_axis_move(Axis(0), 0).index_axis_move(Axis(0), 0);
            for row in chosen.iter().filter(|row| of.rows.contains(row)) {
                weights.row_mut(row - of.rows.start).assign(&made.row(row - of.rows.start));
            }
            Ok(())
        })?;
        Ok(weights)
    }
}
