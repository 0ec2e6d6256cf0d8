//! Runs of one pair in which each reader gets some edges from the clean side and the others from the corrupt text.

use super::{Graph, Pair, Reader};
use crate::edits::{Edits, Remember, Sources};
use crate::error::{Error, Result};
use crate::model::Model;
use ndarray::{ArrayView2, Axis, Slice};
use regard_nn::tensors::Weights;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A text as it was run.
pub(super) struct Recorded {
    /// The stream before each sublayer, and after the last.
    pub(super) streams: Vec<Vec<f32>>,
    /// What each writer writes, rows of the stream's width.
    pub(super) writes: Vec<Vec<f32>>,
}

/// One pair, with both of its texts run.
pub(super) struct Bench<'m> {
    pub(super) model: &'m Model,
    pub(super) weights: &'m Weights<'m, f32>,
    pub(super) graph: &'m Graph,
    pub(super) pair: Pair,
    pub(super) clean: Recorded,
    pub(super) corrupt: Recorded,
    /// The difference of logits on the clean and on the corrupt text.
    pub(super) ends: [f64; 2],
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

impl<'m> Bench<'m> {
    pub(super) fn of(model: &'m Model, weights: &'m Weights<'m, f32>, graph: &'m Graph, pair: Pair) -> Result<Self> {
        let nothing = || Recorded { streams: Vec::new(), writes: Vec::new() };
        let mut bench = Self { model, weights, graph, pair, clean: nothing(), corrupt: nothing(), ends: [0.0; 2] };
        (bench.clean, bench.corrupt) = (bench.record(&bench.pair.clean)?, bench.record(&bench.pair.corrupt)?);
        let last = |text: &Recorded| text.streams.last().cloned().unwrap_or_default();
        bench.ends = [bench.metric(&last(&bench.clean))?, bench.metric(&last(&bench.corrupt))?];
        Ok(bench)
    }

    fn record(&self, ids: &[u32]) -> Result<Recorded> {
        let remember = Remember { heads: true, networks: true, streams: true };
        let (_, memory) = self.model.forward(ids, &Edits::default(), &Sources::default(), remember)?;
        let mut writes = vec![memory.streams[0].clone()];
        for (layer, (heads, network)) in memory.heads.iter().zip(memory.networks).enumerate() {
            let (count, rows, dim) = heads.z.dim();
            let mut z = vec![0f32; rows * count * dim];
            for (head, of) in heads.z.outer_iter().enumerate() {
                for (row, of) in of.outer_iter().enumerate() {
                    z[(row * count + head) * dim..(row * count + head + 1) * dim].iter_mut().zip(of).for_each(|(to, x)| *to = *x);
                }
            }
            writes.extend(self.head_writes(layer, &z));
            writes.push(network);
        }
        Ok(Recorded { streams: memory.streams, writes })
    }

    /// What heads of a layer write, from their results side by side.
    fn head_writes(&self, layer: usize, z: &[f32]) -> Vec<Vec<f32>> {
        let output = self.model.layer(layer).expect("a layer of the model").output();
        let (matrix, dim) = (output.matrix(self.weights).to_dense(), self.model.head_dim());
        let z = ArrayView2::from_shape((z.len() / output.inputs(), output.inputs()), z).expect("whole rows");
        let one = |head: usize| {
            let columns = Slice::from(head * dim..(head + 1) * dim);
            let written = z.slice_axis(Axis(1), columns).dot(&matrix.slice_axis(Axis(0), columns));
            written.as_standard_layout().iter().copied().collect()
        };
        (0..self.model.shape().heads).map(one).collect()
    }

    /// The difference of logits, from the stream after the last layer.
    fn metric(&self, stream: &[f32]) -> Result<f64> {
        let width = self.model.width();
        let mut row = stream[self.pair.position * width..(self.pair.position + 1) * width].to_vec();
        self.model.transformer().stack().apply_last_norm(self.weights, &mut row);
        let logits = self.model.logits(&row)?;
        Ok(f64::from(logits[self.pair.answer as usize]) - f64::from(logits[self.pair.wrong as usize]))
    }

    /// What a reader reads: of the edges that are kept what writers write now, of the others what they write on the corrupt text.
    fn input(&self, kept: &[bool], now: &[Cow<'_, [f32]>], stream: &[f32], corrupt: &[f32]) -> Vec<f32> {
        let count = kept.iter().filter(|kept| **kept).count();
        // The shorter of two sums that are the same.
        let from_corrupt = 2 * count <= kept.len();
        let mut rows = if from_corrupt { corrupt.to_vec() } else { stream.to_vec() };
        for (writer, _) in kept.iter().enumerate().filter(|(_, kept)| **kept == from_corrupt) {
            let (mine, theirs) = (&*now[writer], &*self.corrupt.writes[writer]);
            let (plus, minus) = if from_corrupt { (mine, theirs) } else { (theirs, mine) };
            rows.iter_mut().zip(plus.iter().zip(minus)).for_each(|(x, (p, m))| *x += p - m);
        }
        rows
    }

    /// The difference of logits where only these edges are kept.
    pub(super) fn run(&self, kept: &[bool]) -> Result<f64> {
        let (shape, stack) = (self.model.shape(), self.model.transformer().stack());
        let pass = self.model.pass(self.pair.clean.len());
        let changed = |layer: &usize| {
            let readers = self.graph.readers_of(*layer);
            kept[self.graph.starts[readers.start]..self.graph.starts[readers.end]].contains(&false)
        };
        // Layers before the first change are those of the clean text.
        let first = (0..shape.layers).find(changed).unwrap_or(shape.layers);
        let mut now: Vec<Cow<'_, [f32]>> =
            self.clean.writes[..self.graph.first_of(first)].iter().map(|x| Cow::Borrowed(x.as_slice())).collect();
        let mut stream = self.clean.streams[2 * first].clone();
        for layer in first..shape.layers {
            self.model.cancel().check()?;
            let mut groups: BTreeMap<&[bool], Vec<Reader>> = BTreeMap::new();
            for number in self.graph.readers_of(layer) {
                groups.entry(&kept[self.graph.edges_of(number)]).or_default().push(self.graph.readers[number]);
            }
            let before = stream.clone();
            let mut rows: Vec<f32> = Vec::new();
            let mut network = None;
            let parallel = stack.is_parallel(2 * layer + 1);
            for (kept, readers) in &groups {
                let is_network = |reader: &&Reader| matches!(reader, Reader::Network { .. });
                let heads: Vec<&Reader> = readers.iter().filter(|reader| !is_network(reader)).collect();
                if heads.is_empty() && !parallel {
                    continue;
                }
                let input = self.input(kept, &now, &before, &self.corrupt.streams[2 * layer]);
                if parallel && readers.iter().any(|reader| is_network(&reader)) {
                    network = Some(stack.network(self.weights, 2 * layer + 1, &input));
                }
                if heads.is_empty() {
                    continue;
                }
                let made = stack.projected(self.weights, &pass, 2 * layer, &input);
                rows.resize(made.len(), 0.0);
                let width = made.len() / pass.rows().max(1);
                for reader in heads {
                    let Reader::Head { head, operand, .. } = *reader else { continue };
                    let columns = stack.columns_of(2 * layer, operand, head);
                    for (to, from) in rows.chunks_exact_mut(width).zip(made.chunks_exact(width)) {
                        to[columns.clone()].copy_from_slice(&from[columns.clone()]);
                    }
                }
            }
            let z = stack.attended(&pass, 2 * layer, rows)?;
            let writes = self.head_writes(layer, &z);
            writes.iter().for_each(|write| add(&mut stream, write));
            if let Some(bias) = self.model.layer(layer).expect("a layer of the model").output().bias(self.weights) {
                stream.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
            }
            let network = match network {
                Some(network) => network,
                None => {
                    now.extend(writes.iter().map(|write| Cow::Owned(write.clone())));
                    let reader = self.graph.readers_of(layer).end - 1;
                    let kept = &kept[self.graph.edges_of(reader)];
                    let input = self.input(kept, &now, &stream, &self.corrupt.streams[2 * layer + 1]);
                    stack.network(self.weights, 2 * layer + 1, &input)
                }
            };
            if parallel {
                now.extend(writes.into_iter().map(Cow::Owned));
            }
            add(&mut stream, &network);
            now.push(Cow::Owned(network));
        }
        let output = self.graph.readers.len() - 1;
        let corrupt = &self.corrupt.streams[2 * shape.layers];
        let last = self.input(&kept[self.graph.edges_of(output)], &now, &stream, corrupt);
        if last.iter().any(|x| !x.is_finite()) {
            return Err(Error::NotNumbers { what: "the hidden states" });
        }
        self.metric(&last)
    }

    /// The change of the difference of logits where one edge comes from the corrupt text, all else clean.
    pub(super) fn exact(&self, edge: usize) -> Result<f64> {
        let mut kept = vec![true; self.graph.edges()];
        kept[edge] = false;
        Ok(self.run(&kept)? - self.ends[0])
    }

    /// How much of the difference between the two texts a circuit keeps: 1 all, 0 nothing.
    pub(super) fn faithfulness(&self, kept: &[bool]) -> Result<f64> {
        Ok((self.run(kept)? - self.ends[1]) / (self.ends[0] - self.ends[1]))
    }
}
