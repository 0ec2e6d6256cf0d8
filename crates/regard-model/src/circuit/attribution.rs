//! Attribution patching: the effect of every edge and node at once, to first order.

use super::bench::Bench;
use super::{Graph, Reader};
use crate::error::Result;
use crate::gradients::{Objective, StartAt};
use ndarray::{Array2, ArrayView1};
use rayon::prelude::*;
use regard_nn::layers::probe::{GradientProbe, Reads};
use std::sync::{Mutex, PoisonError};

/// What one pair says of edges and nodes.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct Attributed {
    /// By number of edge: the change of the difference of logits where it comes from the corrupt text.
    pub(super) edges: Vec<f64>,
    /// By number of writer: the same where all that it writes does.
    pub(super) nodes: Vec<f64>,
    /// The difference of logits on the clean and on the corrupt text.
    pub(super) ends: [f64; 2],
}

struct Scorer<'s> {
    graph: &'s Graph,
    /// What writers write on the corrupt text less what they write on the clean one, a row each.
    changes: &'s Array2<f32>,
    share: f64,
    sums: Mutex<Attributed>,
}

impl Scorer<'_> {
    /// The gradient times the changes of some writers.
    fn products(&self, writers: std::ops::Range<usize>, d: &[f32]) -> Vec<f64> {
        let d = ArrayView1::from(d);
        let row = |writer: usize| self.share * f64::from(self.changes.row(writer).dot(&d));
        writers.map(row).collect()
    }

    fn add(&self, to: impl FnOnce(&mut Attributed) -> &mut [f64], products: &[f64]) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        to(&mut sums).iter_mut().zip(products).for_each(|(to, x)| *to += x);
    }

    fn edges(&self, reader: usize, d: &[f32]) {
        let products = self.products(0..self.graph.reach[reader], d);
        self.add(|sums| &mut sums.edges[self.graph.edges_of(reader)], &products);
    }

    fn nodes(&self, writers: std::ops::Range<usize>, d: &[f32]) {
        let products = self.products(writers.clone(), d);
        self.add(|sums| &mut sums.nodes[writers], &products);
    }
}

impl GradientProbe<f32> for Scorer<'_> {
    fn stream(&self, number: usize, d: &[f32]) {
        if number == 0 {
            self.nodes(0..1, d);
        }
        if number == 2 * self.graph.shape.layers {
            self.edges(self.graph.readers.len() - 1, d);
        }
    }

    fn branch(&self, number: usize, d: &[f32]) {
        let first = self.graph.first_of(number / 2);
        let heads = self.graph.shape.heads;
        self.nodes(if number.is_multiple_of(2) { first..first + heads } else { first + heads..first + heads + 1 }, d);
    }

    fn reads(&self, number: usize, reads: &Reads<'_, f32>) {
        let readers = self.graph.readers_of(number / 2);
        if !number.is_multiple_of(2) {
            return self.edges(readers.end - 1, &reads.network());
        }
        readers.into_par_iter().for_each(|reader| {
            if let Reader::Head { head, operand, .. } = self.graph.readers[reader] {
                self.edges(reader, &reads.through(operand, head));
            }
        });
    }
}

impl Bench<'_> {
    /// Attribution of every edge and node, with gradients at `steps` points between the clean and the corrupt embedding; at the clean one
    /// where there are none.
    pub(super) fn attribution(&self, steps: usize) -> Result<Attributed> {
        let size = self.clean.streams[0].len();
        let mut changes = Array2::zeros((self.graph.writers(), size));
        for (mut row, (clean, corrupt)) in changes.outer_iter_mut().zip(self.clean.writes.iter().zip(&self.corrupt.writes)) {
            row.iter_mut().zip(corrupt.iter().zip(clean)).for_each(|(x, (b, a))| *x = b - a);
        }
        let nothing = Attributed { edges: vec![0.0; self.graph.edges()], nodes: vec![0.0; self.graph.writers()], ends: self.ends };
        let scorer = Scorer { graph: self.graph, changes: &changes, share: 1.0 / steps.max(1) as f64, sums: Mutex::new(nothing) };
        let objective = Objective::LogitDifference { position: self.pair.position, tokens: [self.pair.answer, self.pair.wrong] };
        for step in 0..steps.max(1) {
            let share = if steps == 0 { 0.0 } else { (step as f32 + 0.5) / steps as f32 };
            let (a, b) = (&self.clean.streams[0], &self.corrupt.streams[0]);
            let start: Vec<f32> = a.iter().zip(b).map(|(a, b)| a + share * (b - a)).collect();
            self.model.backward(&self.pair.clean, &objective, &StartAt(&start), &scorer)?;
        }
        Ok(scorer.sums.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}
