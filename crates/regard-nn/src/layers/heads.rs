//! Heads are columns of rows: views of these as `[batch, head, seq, dim]`, which attention reads and writes without transposing anything.

use crate::float::Float;
use ndarray::{Array4, ArrayView4, ArrayViewMut4, ShapeBuilder};
use rayon::prelude::*;

/// Rows of sequences, and which columns of them are heads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadView {
    pub(crate) batch: usize,
    pub(crate) seq: usize,
    /// Of a row.
    pub(crate) width: usize,
    pub(crate) first: usize,
    /// From one head to the next.
    pub(crate) stride: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
}

impl HeadView {
    fn shape(&self) -> ndarray::StrideShape<ndarray::Ix4> {
        (self.batch, self.heads, self.seq, self.dim).strides((self.seq * self.width, self.stride, self.width, 1))
    }

    /// As `[batch, head, seq, dim]`.
    pub(crate) fn of<'r, T>(&self, rows: &'r [T]) -> ArrayView4<'r, T> {
        ArrayView4::from_shape(self.shape(), rows.get(self.first..).unwrap_or_default()).expect("columns of whole rows")
    }

    /// The same, to write.
    pub(crate) fn of_mut<'r, T>(&self, rows: &'r mut [T]) -> ArrayViewMut4<'r, T> {
        ArrayViewMut4::from_shape(self.shape(), rows.get_mut(self.first..).unwrap_or_default()).expect("columns of whole rows")
    }

    /// Where head `h` of a row lies.
    pub(crate) fn head(&self, h: usize) -> std::ops::Range<usize> {
        self.first + h * self.stride..self.first + h * self.stride + self.dim
    }

    /// Copy `[batch, head, seq, dim]` to these columns.
    pub(crate) fn put<T: Float>(&self, from: &Array4<T>, rows: &mut [T]) {
        let sequence = (self.seq * self.width).max(1);
        let from = from.as_slice().expect("standard layout");
        let size = (self.heads * self.seq * self.dim).max(1);
        let tasks = rows.par_chunks_mut(sequence).zip(from.par_chunks(size));
        tasks.for_each(|(rows, from)| {
            for (h, from) in from.chunks_exact((self.seq * self.dim).max(1)).enumerate() {
                for (row, from) in rows.chunks_exact_mut(self.width).zip(from.chunks_exact(self.dim.max(1))) {
                    row[self.head(h)].copy_from_slice(from);
                }
            }
        });
    }
}

/// The three operands of attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) q: HeadView,
    pub(crate) k: HeadView,
    pub(crate) v: HeadView,
}

/// Queries, keys and values of a pass, `[batch, head, seq, dim]`.
#[derive(Debug, Clone)]
pub struct Heads<'s, T> {
    /// Queries.
    pub q: ArrayView4<'s, T>,
    /// Keys.
    pub k: ArrayView4<'s, T>,
    /// Values.
    pub v: ArrayView4<'s, T>,
}

/// The rows of a pass as heads, one operand at a time, to change.
#[derive(Debug)]
pub struct HeadsMut<'s, T> {
    rows: &'s mut [T],
    /// Of cross-attention; empty where the memory's keys and values are in a cache.
    kv: Option<&'s mut [T]>,
    operands: Operands,
}

impl<'s, T> HeadsMut<'s, T> {
    pub(crate) fn new(rows: &'s mut [T], kv: Option<&'s mut [T]>, operands: Operands) -> Self {
        Self { rows, kv, operands }
    }

    /// Queries.
    pub fn q(&mut self) -> ArrayViewMut4<'_, T> {
        self.operands.q.of_mut(self.rows)
    }

    /// Keys.
    pub fn k(&mut self) -> ArrayViewMut4<'_, T> {
        self.of_keys(self.operands.k)
    }

    /// Values.
    pub fn v(&mut self) -> ArrayViewMut4<'_, T> {
        self.of_keys(self.operands.v)
    }

    fn of_keys(&mut self, view: HeadView) -> ArrayViewMut4<'_, T> {
        match &mut self.kv {
            None => view.of_mut(self.rows),
            Some(kv) => HeadView { seq: if kv.is_empty() { 0 } else { view.seq }, ..view }.of_mut(kv),
        }
    }
}
