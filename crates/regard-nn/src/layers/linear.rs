//! Linear layer: `y = x W + b`, with `W` stored `[inputs, outputs]` or `[outputs, inputs]`.
//!
//! ```text
//! forward    y  = x W + b           pieces of rows
//! backward   dx = dy W^T            pieces of rows
//!            dW += x^T dy           pieces of dW's longer side
//!            db += sum of dy's rows
//! ```
//!
//! Few rows (a token that is decoded) go through a product of our own, one chain of multiply-adds per output. Several layers of the same
//! rows (`Joined`: queries, keys and values; gate and up) write side by side into one row, as one layer would.

use crate::float::{Float, kernel};
use crate::parallel::{Cut, for_pieces};
use crate::tensors::layout::{Gradients, Init, Layout, TensorId};
use crate::tensors::weights::matrix;
use crate::tensors::{Matrix, Order, Weights};
use ndarray::{ArrayView2, ArrayViewMut2, Axis, Slice};
use rayon::prelude::*;
pub use regard::matmul::Write;
use regard::matmul::{PackedMatrix, matmul};
use std::ops::Range;

/// Up to this number of rows the one-row product is faster than packing matrices.
const FEW_ROWS: usize = 4;
/// Outputs that are packed at a time where that is done for one piece of rows.
const PASSING_STRIP: usize = 64;
/// Columns of a weight gradient that one thread takes at least: fewer would pack the other matrix too often.
const WEIGHT_COLUMNS: usize = 384;
/// Rows of a partial sum of bias gradients.
const SUM_ROWS: usize = 64;
/// Outputs of a wide layer that are packed at a time: 8 MB of f32 at a depth of 512.
const STRIP: usize = 4096;
/// Outputs of a wide layer that are packed together, and rows of a block of [`strips`]: a block fits in a second cache of 256 KB.
const NARROW_STRIP: usize = 512;
const BLOCK_ROWS: usize = 96;
/// Matrices of a sublayer, at most.
const PACKS: usize = 4;

/// Room for the packed matrices of a sublayer.
pub(crate) fn packs<T: Float>() -> [Strips<T>; PACKS] {
    [(); PACKS].map(|()| Strips(Vec::new()))
}

/// How many rows a matrix is made ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    /// Fewer than packing is worth.
    Few,
    /// One piece: what is packed is used once.
    Piece,
    /// Several pieces, or rows whose pass is kept: packed once for all.
    Many,
}

impl Amount {
    pub(crate) fn of(rows: usize) -> Self {
        match rows {
            0..=FEW_ROWS => Self::Few,
            _ if Cut::new(rows).count() == 1 => Self::Piece,
            _ => Self::Many,
        }
    }
}

/// A packed matrix, in strips of columns that threads pack side by side; elements of few bits are widened a strip at a time.
#[derive(Debug, Clone)]
pub(crate) struct Strips<T: Float>(Vec<PackedMatrix<T>>);

impl<T: Float> Strips<T> {
    fn pack(&mut self, matrix: &Matrix<'_, T>, outputs: Range<usize>) {
        self.0.resize_with(outputs.len().div_ceil(NARROW_STRIP), PackedMatrix::default);
        self.0.par_iter_mut().with_max_len(1).enumerate().for_each(|(i, packed)| {
            let first = outputs.start + i * NARROW_STRIP;
            matrix.pack(first..(first + NARROW_STRIP).min(outputs.end), packed);
        });
    }

    /// `y = x W` or `y += x W` on the calling thread; y is columns `first ..` of rows of `width`.
    fn product(&self, x: &[T], inputs: usize, y: &mut [T], width: usize, columns: Range<usize>, write: Write) {
        for (first, packed) in columns.clone().step_by(NARROW_STRIP).zip(&self.0) {
            packed.matmul(columns_mut(y, width, first, NARROW_STRIP.min(columns.end - first)), write, matrix(x, inputs));
        }
    }

    /// One matrix as a whole.
    fn whole(&mut self) -> &mut PackedMatrix<T> {
        self.0.resize_with(1, PackedMatrix::default);
        &mut self.0[0]
    }
}

/// `y = x W + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: TensorId,
    bias: Option<TensorId>,
    inputs: usize,
    outputs: usize,
    order: Order,
}

pub(crate) fn matrix_mut<T>(x: &mut [T], width: usize) -> ArrayViewMut2<'_, T> {
    ArrayViewMut2::from_shape((x.len() / width.max(1), width), x).expect("whole rows")
}

/// Some columns of rows.
fn columns<T>(rows: &[T], width: usize, first: usize, count: usize) -> ArrayView2<'_, T> {
    matrix(rows, width).slice_axis_move(Axis(1), Slice::from(first..first + count))
}

/// The same, to write.
fn columns_mut<T>(rows: &mut [T], width: usize, first: usize, count: usize) -> ArrayViewMut2<'_, T> {
    matrix_mut(rows, width).slice_axis_move(Axis(1), Slice::from(first..first + count))
}

/// A matrix that is ready for products: packed; to be packed strip by strip while it is used, so that elements of few bits are never all
/// there widened; or as it is for few rows.
#[derive(Debug)]
pub(crate) enum Prepared<'w, T: Float> {
    Packed(&'w Strips<T>, usize),
    Passing(Matrix<'w, T>),
    Rows(Matrix<'w, T>),
}

impl<T: Float> Prepared<'_, T> {
    /// `y = x W` or `y += x W`, without a bias; y is columns `first ..` of rows of `width`. What was packed before is used on the calling
    /// thread.
    pub(crate) fn product(&self, x: &[T], inputs: usize, y: &mut [T], width: usize, first: usize, write: Write) {
        match self {
            Self::Packed(packed, outputs) => packed.product(x, inputs, y, width, first..first + outputs, write),
            Self::Passing(weights) => {
                let mut y = columns_mut(y, width, first, weights.outputs());
                let strips: Vec<_> = y.axis_chunks_iter_mut(Axis(1), PASSING_STRIP).enumerate().collect();
                strips.into_par_iter().with_max_len(1).for_each(|(strip, y)| {
                    let (first, mut packed) = (strip * PASSING_STRIP, PackedMatrix::default());
                    weights.pack(first..first + y.ncols(), &mut packed);
                    packed.matmul(y, write, matrix(x, inputs));
                });
            }
            Self::Rows(matrix) => {
                for (x, y) in x.chunks_exact(inputs.max(1)).zip(y.chunks_exact_mut(width.max(1))) {
                    matrix.row_product(x, &mut y[first..first + matrix.outputs()], write);
                }
            }
        }
    }
}

impl Linear {
    /// Weights `[inputs, outputs]` and bias begin uniform in `(-1, 1) / sqrt(inputs)`.
    pub fn new(layout: &mut Layout, name: &str, inputs: usize, outputs: usize, bias: bool) -> Self {
        Self::with_order(layout, name, inputs, outputs, bias, Order::InOut)
    }

    /// The same with the weights in either order.
    pub fn with_order(layout: &mut Layout, name: &str, inputs: usize, outputs: usize, bias: bool, order: Order) -> Self {
        let init = Init::Uniform(1.0 / (inputs.max(1) as f64).sqrt());
        let shape = if order == Order::InOut { [inputs, outputs] } else { [outputs, inputs] };
        layout.within(name, |layout| Self {
            weight: layout.add("weight", &shape, init, true),
            bias: bias.then(|| layout.add("bias", &[outputs], init, false)),
            inputs,
            outputs,
            order,
        })
    }

    /// A table of tokens as a layer without bias, from rows to one number per token.
    pub(crate) fn of_table(table: TensorId, count: usize, width: usize) -> Self {
        Self { weight: table, bias: None, inputs: width, outputs: count, order: Order::OutIn }
    }

    /// Width of x.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Width of y.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// How the weights lie.
    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// The bias, if there is one.
    pub fn bias<'w, T: Float>(&self, w: &'w Weights<'_, T>) -> Option<&'w [T]> {
        self.bias.map(|b| w.own(b))
    }

    /// The weights.
    pub fn matrix<'w, T: Float>(&self, w: &'w Weights<'_, T>) -> Matrix<'w, T> {
        w.matrix(self.weight, self.inputs, self.outputs, self.order)
    }

    /// `y = x W + b` for any number of rows.
    pub fn forward<T: Float>(&self, w: &Weights<'_, T>, x: &[T], y: &mut [T]) {
        let (weights, bias) = (self.matrix(w), self.bias(w));
        if y.len() <= FEW_ROWS * self.outputs {
            for (x, y) in x.chunks_exact(self.inputs.max(1)).zip(y.chunks_exact_mut(self.outputs.max(1))) {
                weights.row_product(x, y, Write::Replace);
                if let Some(bias) = bias {
                    add_to_rows(y, bias);
                }
            }
            return;
        }
        let cut = Cut::rows_of(x, self.inputs);
        if cut.count() == 1 {
            // One piece of rows: threads share the outputs.
            let mut y = matrix_mut(y, self.outputs);
            let strips: Vec<_> = y.axis_chunks_iter_mut(Axis(1), NARROW_STRIP).enumerate().collect();
            strips.into_par_iter().with_max_len(1).for_each(|(strip, mut y)| {
                let (first, mut packed) = (strip * NARROW_STRIP, PackedMatrix::default());
                weights.pack(first..first + y.ncols(), &mut packed);
                packed.matmul(y.view_mut(), Write::Replace, matrix(x, self.inputs));
                if let Some(bias) = bias {
                    let bias = &bias[first..first + y.ncols()];
                    y.rows_mut().into_iter().for_each(|mut row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += *b));
                }
            });
            return;
        }
        let mut packed = Strips(Vec::new());
        for first in (0..self.outputs).step_by(STRIP) {
            let strip = first..(first + STRIP).min(self.outputs);
            packed.pack(&weights, strip.clone());
            let ready = Prepared::Packed(&packed, strip.len());
            let tasks = cut.pieces(x, self.inputs).zip(cut.pieces_mut(y, self.outputs)).collect();
            for_pieces(tasks, |_, (x, y)| {
                ready.product(x, self.inputs, y, self.outputs, first, Write::Replace);
                if let Some(bias) = bias {
                    add_to_columns(y, self.outputs, first, &bias[strip.clone()]);
                }
            });
        }
    }

    /// `y = x W + b` for those who need no more of y than a strip at a time: see [`strips`].
    pub(crate) fn strips<T: Float, R: Send>(
        &self,
        w: &Weights<'_, T>,
        x: &[T],
        each: impl Fn(usize, Range<usize>, &mut [T], &mut Vec<R>) + Sync,
    ) -> Vec<Vec<R>> {
        let bias = self.bias(w);
        strips(&self.matrix(w), x, |row, columns, y, made| {
            if let Some(bias) = bias {
                add_to_rows(y, &bias[columns.clone()]);
            }
            each(row, columns, y, made);
        })
    }

    /// W for [`Prepared::product`].
    pub(crate) fn prepare<'w, T: Float>(&self, w: &'w Weights<'_, T>, amount: Amount, packed: &'w mut Strips<T>) -> Prepared<'w, T> {
        let matrix = self.matrix(w);
        match amount {
            Amount::Few => Prepared::Rows(matrix),
            Amount::Piece if !matrix.is_own() => Prepared::Passing(matrix),
            _ => {
                packed.pack(&matrix, 0..self.outputs);
                Prepared::Packed(packed, self.outputs)
            }
        }
    }

    /// Pack W^T for [`Linear::input_gradient`].
    pub(crate) fn pack_transposed<T: Float>(&self, w: &Weights<'_, T>, packed: &mut Strips<T>) {
        self.matrix(w).pack_transposed(packed.whole());
    }

    /// `dx = dy W^T` or `dx += dy W^T`, on the calling thread; dy is columns `first ..` of rows of `width`.
    pub(crate) fn input_gradient<T: Float>(&self, packed: &Strips<T>, dy: &[T], width: usize, first: usize, dx: &mut [T], write: Write) {
        packed.0[0].matmul(matrix_mut(dx, self.inputs), write, columns(dy, width, first, self.outputs));
    }

    /// `dx = dy W^T` of rows of a wide layer, whose weights are widened a strip at a time.
    pub(crate) fn wide_input_gradient<T: Float>(&self, w: &Weights<'_, T>, dy: &[T], dx: &mut [T]) {
        let weights = self.matrix(w);
        dx.fill(T::ZERO);
        for first in (0..self.outputs).step_by(STRIP) {
            let count = STRIP.min(self.outputs - first);
            weights.columns(first..first + count, |weights| {
                let cut = Cut::rows_of(dx, self.inputs);
                let tasks = cut.pieces(dy, self.outputs).zip(cut.pieces_mut(dx, self.inputs)).collect();
                for_pieces(tasks, |_, (dy, dx)| {
                    matmul(matrix_mut(dx, self.inputs), Write::Add, columns(dy, self.outputs, first, count), weights.t());
                });
            });
        }
    }

    /// `dW += x^T dy` and `db += sum of dy's rows`; dy is columns `first ..` of rows of `width`.
    pub(crate) fn weight_gradient<T: Float>(&self, g: &mut Gradients<'_, T>, x: &[T], dy: &[T], width: usize, first: usize) {
        enum Task<'t, T> {
            Weight(ArrayViewMut2<'t, T>, ArrayView2<'t, T>, ArrayView2<'t, T>),
            Bias(&'t mut [T], usize),
        }
        if !g.are_wanted() {
            return;
        }
        let (inputs, outputs) = (self.inputs, self.outputs);
        let mut tasks = Vec::new();
        let (weight, bias) = match self.bias {
            None => (g.of(self.weight), None),
            Some(bias) => {
                let (weight, bias) = g.both(self.weight, bias);
                (weight, Some(bias))
            }
        };
        let (x2, dy2) = (matrix(x, inputs), columns(dy, width, first, outputs));
        let long = inputs.max(outputs);
        // An even number of pieces: two threads have the same to do.
        let count = if x.len() * outputs < 1 << 18 { 1 } else { long.div_ceil(WEIGHT_COLUMNS).next_multiple_of(2) };
        let size = long.div_ceil(count).next_multiple_of(16);
        let mut dw = match self.order {
            Order::InOut => matrix_mut(weight, outputs),
            Order::OutIn => matrix_mut(weight, inputs).reversed_axes(),
        };
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
            Task::Bias(db, column) => column_sums(dy, width, first + column, db),
        });
    }

    /// The whole backward pass: gradients of the parameters are added to `g`; `dx` is written.
    pub fn backward<T: Float>(&self, w: &Weights<'_, T>, g: &mut Gradients<'_, T>, x: &[T], dy: &[T], dx: &mut [T]) {
        let cut = Cut::rows_of(x, self.inputs);
        let tasks = cut.pieces(dy, self.outputs).zip(cut.pieces_mut(dx, self.inputs)).collect();
        let weights = self.matrix(w);
        let turned = weights.own().reversed_axes();
        for_pieces(tasks, |_, (dy, dx)| matmul(matrix_mut(dx, self.inputs), Write::Replace, matrix(dy, self.outputs), turned));
        self.weight_gradient(g, x, dy, self.outputs, 0);
    }
}

/// `y = x W` for those who need no more of y than a strip of columns and a block of rows at a time: `each` is told the first row and the
/// columns, and writes what it makes of them into its strip's list. Strips are shared out over threads, each packed once; what comes of a
/// row does not depend on the other rows.
pub(crate) fn strips<T: Float, R: Send>(
    weights: &Matrix<'_, T>,
    x: &[T],
    each: impl Fn(usize, Range<usize>, &mut [T], &mut Vec<R>) + Sync,
) -> Vec<Vec<R>> {
    let (inputs, outputs) = (weights.inputs(), weights.outputs());
    let strip = |first: usize| {
        let columns = first..(first + NARROW_STRIP).min(outputs);
        let (mut packed, mut made) = (PackedMatrix::default(), Vec::new());
        weights.pack(columns.clone(), &mut packed);
        let mut y = vec![T::ZERO; BLOCK_ROWS.min(x.len() / inputs.max(1)) * columns.len()];
        for (block, x) in x.chunks((BLOCK_ROWS * inputs).max(1)).enumerate() {
            let y = &mut y[..x.len() / inputs * columns.len()];
            packed.matmul(matrix_mut(y, columns.len()), Write::Replace, matrix(x, inputs));
            each(block * BLOCK_ROWS, columns.clone(), y, &mut made);
        }
        made
    };
    let firsts: Vec<usize> = (0..outputs).step_by(NARROW_STRIP).collect();
    firsts.into_par_iter().with_max_len(1).map(strip).collect()
}

/// Layers that read the same rows and write side by side.
#[derive(Debug, Clone)]
pub(crate) struct Joined {
    parts: Vec<Linear>,
    inputs: usize,
}

impl Joined {
    /// One layer per name and number of outputs.
    pub(crate) fn new(layout: &mut Layout, inputs: usize, parts: &[(&str, usize)], bias: bool, order: Order) -> Self {
        assert!(parts.len() < PACKS, "room for their matrices and one more");
        let linear = |(name, outputs): &(&str, usize)| Linear::with_order(layout, name, inputs, *outputs, bias, order);
        Self { parts: parts.iter().map(linear).collect(), inputs }
    }

    pub(crate) fn parts(&self) -> &[Linear] {
        &self.parts
    }

    pub(crate) fn outputs(&self) -> usize {
        self.parts.iter().map(Linear::outputs).sum()
    }

    /// The layers, and where each writes.
    fn placed(&self) -> impl Iterator<Item = (&Linear, usize)> {
        self.parts.iter().scan(0, |next, part| {
            let first = *next;
            *next += part.outputs;
            Some((part, first))
        })
    }

    pub(crate) fn prepare<'w, T: Float>(&self, w: &'w Weights<'_, T>, amount: Amount, packs: &'w mut [Strips<T>]) -> Vec<Prepared<'w, T>> {
        self.parts.iter().zip(packs).map(|(part, packed)| part.prepare(w, amount, packed)).collect()
    }

    /// The products, without biases, on the calling thread.
    pub(crate) fn product<T: Float>(&self, ready: &[Prepared<'_, T>], x: &[T], y: &mut [T]) {
        let width = self.outputs();
        for ((_, first), ready) in self.placed().zip(ready) {
            ready.product(x, self.inputs, y, width, first, Write::Replace);
        }
    }

    pub(crate) fn add_biases<T: Float>(&self, w: &Weights<'_, T>, y: &mut [T]) {
        let width = self.outputs();
        for (part, first) in self.placed() {
            if let Some(bias) = part.bias(w) {
                add_to_columns(y, width, first, bias);
            }
        }
    }

    /// All rows, with biases, in pieces.
    pub(crate) fn forward<T: Float>(&self, w: &Weights<'_, T>, amount: Amount, packs: &mut [Strips<T>], x: &[T], y: &mut [T]) {
        let ready = self.prepare(w, amount, packs);
        let cut = Cut::rows_of(x, self.inputs);
        let tasks = cut.pieces(x, self.inputs).zip(cut.pieces_mut(y, self.outputs())).collect();
        for_pieces(tasks, |_, (x, y)| {
            self.product(&ready, x, y);
            self.add_biases(w, y);
        });
    }

    pub(crate) fn pack_transposed<T: Float>(&self, w: &Weights<'_, T>, packs: &mut [Strips<T>]) {
        self.parts.iter().zip(packs).for_each(|(part, packed)| part.pack_transposed(w, packed));
    }

    /// dx, written.
    pub(crate) fn input_gradient<T: Float>(&self, packs: &[Strips<T>], dy: &[T], dx: &mut [T]) {
        let width = self.outputs();
        for (i, ((part, first), packed)) in self.placed().zip(packs).enumerate() {
            part.input_gradient(packed, dy, width, first, dx, if i == 0 { Write::Replace } else { Write::Add });
        }
    }

    /// dx, added to.
    pub(crate) fn add_input_gradient<T: Float>(&self, packs: &[Strips<T>], dy: &[T], dx: &mut [T]) {
        let width = self.outputs();
        for ((part, first), packed) in self.placed().zip(packs) {
            part.input_gradient(packed, dy, width, first, dx, Write::Add);
        }
    }

    /// The gradient of x through outputs `first .. first + dim` alone, of one of the layers.
    pub(crate) fn gradient_through<T: Float>(&self, w: &Weights<'_, T>, dy: &[T], first: usize, dim: usize, dx: &mut [T]) {
        let (part, start) = self.placed().filter(|(_, start)| *start <= first).last().expect("the first layer begins at 0");
        let dy = columns(dy, self.outputs(), first, dim);
        part.matrix(w).columns(first - start..first - start + dim, |weights| {
            matmul(matrix_mut(dx, self.inputs), Write::Replace, dy, weights.t());
        });
    }

    /// Outputs `first .. first + dim` of one of the layers, without its bias; and that bias.
    pub(crate) fn product_of<T: Float>(&self, w: &Weights<'_, T>, x: &[T], first: usize, dim: usize) -> (Vec<T>, Option<Vec<T>>) {
        let (part, start) = self.placed().filter(|(_, start)| *start <= first).last().expect("the first layer begins at 0");
        let mut y = vec![T::ZERO; x.len() / self.inputs.max(1) * dim];
        let columns = first - start..first - start + dim;
        part.matrix(w).columns(columns.clone(), |weights| matmul(matrix_mut(&mut y, dim), Write::Replace, matrix(x, self.inputs), weights));
        (y, part.bias(w).map(|bias| bias[columns].to_vec()))
    }

    pub(crate) fn weight_gradient<T: Float>(&self, g: &mut Gradients<'_, T>, x: &[T], dy: &[T]) {
        let width = self.outputs();
        for (part, first) in self.placed() {
            part.weight_gradient(g, x, dy, width, first);
        }
    }
}

/// Add `bias` to columns `first ..` of rows of `width`.
fn add_to_columns<T: Float>(y: &mut [T], width: usize, first: usize, bias: &[T]) {
    if bias.len() == width {
        return add_to_rows(y, bias);
    }
    for y in y.chunks_exact_mut(width.max(1)) {
        add_to_rows(&mut y[first..first + bias.len()], bias);
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
