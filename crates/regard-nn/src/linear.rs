//! Linear layer: `y = x W + b`, with `W` stored `[inputs, outputs]`.
//!
//! ```text
//! forward    y  = x W + b           pieces of rows
//! backward   dx = dy W^T            pieces of rows
//!            dW += x^T dy           pieces of dW's longer side
//!            db += sum of dy's rows
//! ```
//!
//! Few rows (a token that is decoded) go through a product of our own, one chain of multiply-adds per output.

use crate::float::{Float, kernel};
use crate::parallel::{Cut, for_pieces};
use crate::params::{Init, Layout, Slot};
use ndarray::{ArrayView2, ArrayViewMut2, Axis};
use rayon::prelude::*;
pub use regard::matmul::Write;
use regard::matmul::{Packed, matmul};

/// Up to so many rows the one-row product is faster than packing matrices.
const FEW_ROWS: usize = 4;
/// A one-row product with so many weights is worth several threads.
pub(crate) const PARALLEL_WEIGHTS: usize = 1 << 18;
/// Columns that one thread takes of a one-row product.
const ROW_COLUMNS: usize = 256;
/// Columns of a weight gradient that one thread takes at least: fewer would pack the other matrix too often.
const WEIGHT_COLUMNS: usize = 384;
/// Rows of a partial sum of bias gradients.
const SUM_ROWS: usize = 64;

/// `y = x W + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Slot,
    bias: Option<Slot>,
    inputs: usize,
    outputs: usize,
}

pub(crate) fn matrix<T>(x: &[T], width: usize) -> ArrayView2<'_, T> {
    ArrayView2::from_shape((x.len() / width.max(1), width), x).expect("whole rows")
}

pub(crate) fn matrix_mut<T>(x: &mut [T], width: usize) -> ArrayViewMut2<'_, T> {
    ArrayViewMut2::from_shape((x.len() / width.max(1), width), x).expect("whole rows")
}

impl Linear {
    /// Weights and bias begin uniform in `(-1, 1) / sqrt(inputs)`.
    pub fn new(layout: &mut Layout, name: &str, inputs: usize, outputs: usize, bias: bool) -> Self {
        let init = Init::Uniform(1.0 / (inputs.max(1) as f64).sqrt());
        layout.within(name, |layout| Self {
            weight: layout.add("weight", &[inputs, outputs], init, true),
            bias: bias.then(|| layout.add("bias", &[outputs], init, false)),
            inputs,
            outputs,
        })
    }

    /// Width of x.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Width of y.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// The bias, if there is one.
    pub fn bias<'p, T>(&self, p: &'p [T]) -> Option<&'p [T]> {
        self.bias.map(|b| b.of(p))
    }

    fn weights<'p, T>(&self, p: &'p [T]) -> ArrayView2<'p, T> {
        matrix(self.weight.of(p), self.outputs)
    }

    /// `y = x W + b` for any number of rows.
    pub fn forward<T: Float>(&self, p: &[T], x: &[T], y: &mut [T]) {
        if y.len() <= FEW_ROWS * self.outputs {
            for (x, y) in x.chunks_exact(self.inputs.max(1)).zip(y.chunks_exact_mut(self.outputs.max(1))) {
                self.forward_row(p, x, y);
            }
            return;
        }
        let cut = Cut::rows_of(x, self.inputs);
        let tasks = cut.pieces(x, self.inputs).zip(cut.pieces_mut(y, self.outputs)).collect();
        for_pieces(tasks, |_, (x, y)| {
            matmul(matrix_mut(y, self.outputs), Write::Replace, matrix(x, self.inputs), self.weights(p));
            if let Some(bias) = self.bias(p) {
                add_to_rows(y, bias);
            }
        });
    }

    /// Pack W for [`Linear::product`]: once for all pieces of rows.
    pub(crate) fn pack<T: Float>(&self, p: &[T], weights: &mut Packed<T>) {
        weights.pack(self.weights(p));
    }

    /// Pack W^T for [`Linear::input_gradient`].
    pub(crate) fn pack_turned<T: Float>(&self, p: &[T], turned: &mut Packed<T>) {
        turned.pack(self.weights(p).reversed_axes());
    }

    /// `y = x W` or `y += x W`, without the bias, on the calling thread.
    pub(crate) fn product<T: Float>(&self, weights: &Packed<T>, x: &[T], y: &mut [T], write: Write) {
        weights.matmul(matrix_mut(y, self.outputs), write, matrix(x, self.inputs));
    }

    /// `dx = dy W^T` or `dx += dy W^T`, on the calling thread.
    pub(crate) fn input_gradient<T: Float>(&self, turned: &Packed<T>, dy: &[T], dx: &mut [T], write: Write) {
        turned.matmul(matrix_mut(dx, self.inputs), write, matrix(dy, self.outputs));
    }

    /// One row: `y = x W + b`.
    pub fn forward_row<T: Float>(&self, p: &[T], x: &[T], y: &mut [T]) {
        let (weights, n) = (self.weight.of(p), self.outputs);
        if weights.len() < PARALLEL_WEIGHTS {
            row_times_matrix(x, weights, 0, n, y);
        } else {
            y.par_chunks_mut(ROW_COLUMNS).enumerate().for_each(|(i, y)| row_times_matrix(x, weights, i * ROW_COLUMNS, n, y));
        }
        if let Some(bias) = self.bias(p) {
            add_to_rows(y, bias);
        }
    }

    /// `dW += x^T dy` and `db += sum of dy's rows`.
    pub fn weight_gradient<T: Float>(&self, g: &mut [T], x: &[T], dy: &[T]) {
        enum Task<'t, T> {
            Weight(ArrayViewMut2<'t, T>, ArrayView2<'t, T>, ArrayView2<'t, T>),
            Bias(&'t mut [T], usize),
        }
        let (inputs, outputs) = (self.inputs, self.outputs);
        let mut tasks = Vec::new();
        let (weight, bias) = self.gradients(g);
        let (x2, dy2) = (matrix(x, inputs), matrix(dy, outputs));
        let long = inputs.max(outputs);
        // An even number of pieces: two threads have the same to do.
        let count = if x.len() * outputs < 1 << 18 { 1 } else { long.div_ceil(WEIGHT_COLUMNS).next_multiple_of(2) };
        let size = long.div_ceil(count).next_multiple_of(16);
        let mut dw = matrix_mut(weight, outputs);
        if inputs >= outputs {
            let xs = x2.axis_chunks_iter(Axis(1), size);
            tasks.extend(dw.axis_chunks_iter_mut(Axis(0), size).zip(xs).map(|(dw, x)| Task::Weight(dw, x, dy2)));
        } else {
            let dys = dy2.axis_chunks_iter(Axis(1), size);
            tasks.extend(dw.axis_chunks_iter_mut(Axis(1), size).zip(dys).map(|(dw, dy)| Task::Weight(dw, x2, dy)));
        }
        if let Some(bias) = bias {
            let size = if dy.len() < 1 << 16 { outputs.max(1) } else { 128 };
            tasks.extend(bias.chunks_mut(size).enumerate().map(|(i, db)| Task::Bias(db, i * size)));
        }
        for_pieces(tasks, |_, task| match task {
            Task::Weight(dw, x, dy) => matmul(dw, Write::Add, x.reversed_axes(), dy),
            Task::Bias(db, first) => column_sums(dy, outputs, first, db),
        });
    }

    fn gradients<'g, T>(&self, g: &'g mut [T]) -> (&'g mut [T], Option<&'g mut [T]>) {
        match self.bias {
            None => (self.weight.of_mut(g), None),
            Some(bias) => {
                // The bias was laid out right behind the weights.
                let (weight, rest) = self.weight.and_rest_mut(g);
                (weight, Some(&mut rest[..bias.len()]))
            }
        }
    }

    /// The whole backward pass: gradients of the parameters are added to `g`; `dx` is written.
    pub fn backward<T: Float>(&self, p: &[T], g: &mut [T], x: &[T], dy: &[T], dx: &mut [T]) {
        let cut = Cut::rows_of(x, self.inputs);
        let tasks = cut.pieces(dy, self.outputs).zip(cut.pieces_mut(dx, self.inputs)).collect();
        let turned = self.weights(p).reversed_axes();
        for_pieces(tasks, |_, (dy, dx)| matmul(matrix_mut(dx, self.inputs), Write::Replace, matrix(dy, self.outputs), turned));
        self.weight_gradient(g, x, dy);
    }
}

kernel! {
    /// Add `bias` to every row.
    pub(crate) fn add_to_rows<'a, T>(y: &'a mut [T], bias: &'a [T]) -> () {
        for y in y.chunks_exact_mut(bias.len().max(1)) {
            for (y, &b) in y.iter_mut().zip(bias) {
                *y += b;
            }
        }
    }
}

kernel! {
    /// Columns `first ..` of `x W`, for one row x and as many columns as y has.
    fn row_times_matrix<'a, T>(x: &'a [T], w: &'a [T], first: usize, width: usize, y: &'a mut [T]) -> () {
        const WIDE: usize = 32;
        const NARROW: usize = 8;
        let mut wide = y.chunks_exact_mut(WIDE);
        let mut column = first;
        for y in wide.by_ref() {
            let y: &mut [T; WIDE] = y.try_into().expect("a whole chunk");
            columns(x, w, column, width, y);
            column += WIDE;
        }
        let mut narrow = wide.into_remainder().chunks_exact_mut(NARROW);
        for y in narrow.by_ref() {
            let y: &mut [T; NARROW] = y.try_into().expect("a whole chunk");
            columns(x, w, column, width, y);
            column += NARROW;
        }
        for y in narrow.into_remainder() {
            columns(x, w, column, width, std::array::from_mut(y));
            column += 1;
        }
    }
}

#[inline(always)]
fn columns<T: Float, const N: usize>(x: &[T], w: &[T], column: usize, width: usize, y: &mut [T; N]) {
    let mut sums = [T::ZERO; N];
    for (&x, w) in x.iter().zip(w.chunks_exact(width)) {
        let w: &[T; N] = w[column..column + N].try_into().expect("as many columns");
        for (sum, &w) in sums.iter_mut().zip(w) {
            *sum = x.mul_add(w, *sum);
        }
    }
    *y = sums;
}

kernel! {
    /// Add the sums of columns `first ..` of dy, which has rows of `width`, to db.
    fn column_sums<'a, T>(dy: &'a [T], width: usize, first: usize, db: &'a mut [T]) -> () {
        let mut sums = vec![T::ZERO; db.len()];
        for rows in dy.chunks(SUM_ROWS * width.max(1)) {
            sums.fill(T::ZERO);
            for row in rows.chunks_exact(width) {
                for (sum, &x) in sums.iter_mut().zip(&row[first..]) {
                    *sum += x;
                }
            }
            for (db, &sum) in db.iter_mut().zip(&sums) {
                *db += sum;
            }
        }
    }
}
