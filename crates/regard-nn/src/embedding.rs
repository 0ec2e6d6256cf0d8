//! Token embedding: rows of a table; and the table as the last layer, when both are tied.

use crate::float::Float;
use crate::linear::{Write, matrix, matrix_mut};
use crate::parallel::{Cut, for_pieces};
use crate::params::{Init, Layout, Slot};
use ndarray::Axis;
use rayon::prelude::*;
use regard::matmul::matmul;

/// A table of one row per token.
#[derive(Debug, Clone)]
pub struct Embedding {
    table: Slot,
    count: usize,
    width: usize,
}

/// Rows of the table that one task of the backward pass owns.
const OWNED_ROWS: usize = 64;

impl Embedding {
    /// Rows begin normal with standard deviation 0.02.
    pub fn new(layout: &mut Layout, name: &str, count: usize, width: usize, decay: bool) -> Self {
        Self { table: layout.within(name, |l| l.add("table", &[count, width], Init::Normal(0.02), decay)), count, width }
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Numbers per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    pub fn row<'p, T>(&self, p: &'p [T], id: usize) -> &'p [T] {
        &self.table.of(p)[id * self.width..(id + 1) * self.width]
    }

    /// `y[i] = table[ids[i]]`.
    pub fn forward<T: Float>(&self, p: &[T], ids: &[u32], y: &mut [T]) {
        for (y, &id) in y.chunks_exact_mut(self.width).zip(ids) {
            y.copy_from_slice(self.row(p, id as usize));
        }
    }

    /// `d_table[ids[i]] += dy[i]`, in the order of i.
    pub fn backward<T: Float>(&self, g: &mut [T], ids: &[u32], dy: &[T]) {
        let width = self.width;
        self.table.of_mut(g).par_chunks_mut(OWNED_ROWS * width).enumerate().for_each(|(i, owned)| {
            let first = i * OWNED_ROWS;
            for (dy, &id) in dy.chunks_exact(width).zip(ids) {
                if let Some(at) = (id as usize).checked_sub(first).filter(|at| *at < OWNED_ROWS) {
                    owned[at * width..(at + 1) * width].iter_mut().zip(dy).for_each(|(g, &d)| *g += d);
                }
            }
        });
    }

    /// `logits = x table^T`.
    pub fn unembed<T: Float>(&self, p: &[T], x: &[T], logits: &mut [T]) {
        let table = matrix(self.table.of(p), self.width);
        let cut = Cut::rows_of(x, self.width);
        let tasks = cut.pieces(x, self.width).zip(cut.pieces_mut(logits, self.count)).collect();
        for_pieces(tasks, |_, (x, y)| matmul(matrix_mut(y, self.count), Write::Replace, matrix(x, self.width), table.t()));
    }

    /// Backward of [`Embedding::unembed`]: writes dx, adds to the table's gradient.
    pub fn unembed_backward<T: Float>(&self, p: &[T], g: &mut [T], x: &[T], d_logits: &[T], dx: &mut [T]) {
        let table = matrix(self.table.of(p), self.width);
        let cut = Cut::rows_of(x, self.width);
        let tasks = cut.pieces(d_logits, self.count).zip(cut.pieces_mut(dx, self.width)).collect();
        for_pieces(tasks, |_, (dy, dx)| matmul(matrix_mut(dx, self.width), Write::Replace, matrix(dy, self.count), table));
        let (x, dy) = (matrix(x, self.width), matrix(d_logits, self.count));
        let mut d_table = matrix_mut(self.table.of_mut(g), self.width);
        let tasks = d_table.axis_chunks_iter_mut(Axis(0), 4 * OWNED_ROWS).zip(dy.axis_chunks_iter(Axis(1), 4 * OWNED_ROWS)).collect();
        for_pieces(tasks, |_, (d_table, dy)| matmul(d_table, Write::Add, dy.t(), x));
    }
}
