//! Token embedding: rows of a table; and the table as the last layer, when both are tied.

use super::linear::{Linear, Write, matrix_mut};
use crate::float::Float;
use crate::parallel::{Cut, for_pieces};
use crate::tensors::layout::{Gradients, Init, Layout, TensorId};
use crate::tensors::weights::matrix;
use crate::tensors::{Order, Weights};
use ndarray::Axis;
use rayon::prelude::*;
use regard::matmul::matmul;

/// A table of one row per token.
#[derive(Debug, Clone)]
pub struct Embedding {
    /// None where rows come from a front end instead of tokens.
    table: Option<TensorId>,
    count: usize,
    width: usize,
}

/// Rows of the table that one task of the backward pass owns.
const OWNED_ROWS: usize = 64;

impl Embedding {
    /// Rows begin normal with standard deviation 0.02.
    pub fn new(layout: &mut Layout, name: &str, count: usize, width: usize, decay: bool) -> Self {
        Self { table: Some(layout.within(name, |l| l.add("table", &[count, width], Init::Normal(0.02), decay))), count, width }
    }

    /// No table: rows come from a front end.
    pub(crate) fn absent(count: usize, width: usize) -> Self {
        Self { table: None, count, width }
    }

    pub(crate) fn is_absent(&self) -> bool {
        self.table.is_none()
    }

    fn table(&self) -> TensorId {
        self.table.expect("tokens are refused where there is no table")
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// `y[i] = table[ids[i]]`.
    pub fn forward<T: Float>(&self, w: &Weights<'_, T>, ids: &[u32], y: &mut [T]) {
        let table = w.matrix(self.table(), self.width, self.count, Order::OutIn);
        for (y, &id) in y.chunks_exact_mut(self.width).zip(ids) {
            table.line(id as usize, y);
        }
    }

    /// `d_table[ids[i]] += dy[i]`, in the order of i.
    pub fn backward<T: Float>(&self, g: &mut Gradients<'_, T>, ids: &[u32], dy: &[T]) {
        let width = self.width;
        g.of(self.table()).par_chunks_mut(OWNED_ROWS * width).enumerate().for_each(|(i, owned)| {
            let first = i * OWNED_ROWS;
            for (dy, &id) in dy.chunks_exact(width).zip(ids) {
                if let Some(at) = (id as usize).checked_sub(first).filter(|at| *at < OWNED_ROWS) {
                    owned[at * width..(at + 1) * width].iter_mut().zip(dy).for_each(|(g, &d)| *g += d);
                }
            }
        });
    }

    /// The table as a layer: `logits = x table^T`.
    pub fn unembedding(&self) -> Linear {
        Linear::of_table(self.table(), self.count, self.width)
    }

    /// Backward of [`Embedding::unembedding`]: writes dx, adds to the table's gradient.
    pub fn unembed_backward<T: Float>(&self, w: &Weights<'_, T>, g: &mut Gradients<'_, T>, x: &[T], d_logits: &[T], dx: &mut [T]) {
        let table = matrix(w.own(self.table()), self.width);
        let cut = Cut::rows_of(x, self.width);
        let tasks = cut.pieces(d_logits, self.count).zip(cut.pieces_mut(dx, self.width)).collect();
        for_pieces(tasks, |_, (dy, dx)| matmul(matrix_mut(dx, self.width), Write::Replace, matrix(dy, self.count), table));
        let (x, dy) = (matrix(x, self.width), matrix(d_logits, self.count));
        let mut d_table = matrix_mut(g.of(self.table()), self.width);
        let tasks = d_table.axis_chunks_iter_mut(Axis(0), 4 * OWNED_ROWS).zip(dy.axis_chunks_iter(Axis(1), 4 * OWNED_ROWS)).collect();
        for_pieces(tasks, |_, (d_table, dy)| matmul(d_table, Write::Add, dy.t(), x));
    }
}
