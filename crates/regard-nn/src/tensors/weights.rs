//! The weights of a model, bound once: names, shapes and types are checked, and everything after that is infallible.

use super::layout::{Layout, TensorId};
use super::numbers::Numbers;
use super::source::Source;
use crate::error::{Error, Result};
use crate::float::{Float, WIDE, fold_wide, kernel};
use ndarray::{Array2, ArrayView2, Axis, Slice};
use rayon::prelude::*;
use regard::matmul::{PackedMatrix, Write};
use std::borrow::Cow;
use std::ops::Range;

/// How the elements of a matrix lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// `[inputs, outputs]`: ours, and GPT-2's.
    #[default]
    InOut,
    /// `[outputs, inputs]`: PyTorch's linear layers, and tables of tokens.
    OutIn,
}

/// A tensor in the type of the computation where that costs nothing or little; as it is where it would cost.
#[derive(Debug, Clone)]
enum Held<'w, T: Float> {
    Own(Cow<'w, [T]>),
    Other(Numbers<'w>),
}

/// The weights of a model in the order of its [`Layout`].
#[derive(Debug, Clone)]
pub struct Weights<'w, T: Float> {
    tensors: Vec<Held<'w, T>>,
    len: usize,
}

impl<'w, T: Float> Weights<'w, T> {
    /// The buffer of a training.
    ///
    /// # Panics
    /// When it is not as long as the layout.
    pub fn of_buffer(layout: &Layout, buffer: &'w [T]) -> Self {
        assert_eq!(layout.len(), buffer.len(), "parameters have the layout of the model");
        Self { tensors: layout.entries().iter().map(|e| Held::Own(Cow::Borrowed(&buffer[e.range.clone()]))).collect(), len: buffer.len() }
    }

    /// The tensors of a source. Vectors are widened here; matrices stay as they are.
    ///
    /// # Errors
    /// [`Error::Tensor`] when one is missing or has another shape.
    pub fn bind(layout: &Layout, source: &'w dyn Source) -> Result<Self> {
        let mut tensors = Vec::with_capacity(layout.entries().len());
        for entry in layout.entries() {
            let tensor = source.tensor(&entry.name)?;
            let refused = |reason: String| Error::Tensor { name: entry.name.clone(), reason };
            if tensor.shape != entry.shape {
                return Err(refused(format!("it has shape {:?}, the model needs {:?}", tensor.shape, entry.shape)));
            }
            if tensor.numbers.len() != entry.range.len() {
                return Err(refused(format!("it has {} elements for its shape {:?}", tensor.numbers.len(), tensor.shape)));
            }
            tensors.push(match T::own(tensor.numbers) {
                Ok(own) => Held::Own(own),
                Err(numbers) if entry.shape.len() < 2 => {
                    let mut widened = vec![T::ZERO; numbers.len()];
                    numbers.widen(0..numbers.len(), &mut widened);
                    Held::Own(Cow::Owned(widened))
                }
                Err(numbers) => Held::Other(numbers),
            });
        }
        Ok(Self { tensors, len: layout.len() })
    }

    /// Numbers in all tensors together.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every tensor is of the type of the computation, as a backward pass needs them.
    pub fn is_trainable(&self) -> bool {
        self.tensors.iter().all(|held| !matches!(held, Held::Other(_)))
    }

    /// A vector, or any tensor of a training.
    ///
    /// # Panics
    /// When it is a matrix of another element type: see [`Weights::is_trainable`].
    pub fn own(&self, id: TensorId) -> &[T] {
        match &self.tensors[id.index()] {
            Held::Own(x) => x,
            Held::Other(x) => panic!("a matrix of {} is used as a vector", x.kind()),
        }
    }

    /// A matrix.
    pub fn matrix(&self, id: TensorId, inputs: usize, outputs: usize, order: Order) -> Matrix<'_, T> {
        let numbers = match &self.tensors[id.index()] {
            Held::Own(x) => MatrixNumbers::Own(x),
            Held::Other(x) => MatrixNumbers::Other(x),
        };
        Matrix { numbers, inputs, outputs, order }
    }
}

#[derive(Debug, Clone, Copy)]
enum MatrixNumbers<'m, T> {
    Own(&'m [T]),
    Other(&'m Numbers<'m>),
}

/// A matrix of any element type and order: `y = x W`, for one row or many.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'m, T> {
    numbers: MatrixNumbers<'m, T>,
    inputs: usize,
    outputs: usize,
    order: Order,
}

/// From this number of weights on, a one-row product uses several threads.
pub(crate) const PARALLEL_WEIGHTS: usize = 1 << 18;
/// Rows of another element type that are widened at a time for a one-row product.
const WIDENED_ROWS: usize = 4;
/// Columns that one thread takes of a one-row product.
const ROW_COLUMNS: usize = 256;

impl<'m, T: Float> Matrix<'m, T> {
    /// One output per row of `inputs` elements.
    pub(crate) fn of_rows(rows: &'m [T], inputs: usize) -> Self {
        Self { numbers: MatrixNumbers::Own(rows), inputs, outputs: rows.len() / inputs.max(1), order: Order::OutIn }
    }

    /// Width of x.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Width of y.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Its elements are of the type of the computation.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.numbers, MatrixNumbers::Own(_))
    }

    /// Pack some of the outputs for products with many rows.
    pub fn pack(&self, outputs: Range<usize>, packed: &mut PackedMatrix<T>) {
        self.columns(outputs, |columns| packed.pack(columns));
    }

    /// Pack the transposed matrix, for gradients of x.
    pub fn pack_transposed(&self, packed: &mut PackedMatrix<T>) {
        self.columns(0..self.outputs, |all| packed.pack(all.reversed_axes()));
    }

    /// Some of the outputs as `[inputs, outputs]` of the type of the computation.
    pub fn columns<R>(&self, outputs: Range<usize>, what: impl FnOnce(ArrayView2<'_, T>) -> R) -> R {
        match (self.numbers, self.order) {
            (MatrixNumbers::Own(x), _) => what(self.view(x).slice_axis(Axis(1), Slice::from(outputs))),
            (MatrixNumbers::Other(x), Order::OutIn) => {
                let mut widened = vec![T::ZERO; outputs.len() * self.inputs];
                x.widen(outputs.start * self.inputs..outputs.end * self.inputs, &mut widened);
                what(matrix(&widened, self.inputs).reversed_axes())
            }
            (MatrixNumbers::Other(x), Order::InOut) => {
                let mut widened = vec![T::ZERO; outputs.len() * self.inputs];
                for (input, widened) in widened.chunks_exact_mut(outputs.len().max(1)).enumerate() {
                    x.widen(input * self.outputs + outputs.start..input * self.outputs + outputs.end, widened);
                }
                what(matrix(&widened, outputs.len()))
            }
        }
    }

    /// `[inputs, outputs]`.
    ///
    /// # Panics
    /// When it is not of the type of the computation.
    pub fn own(&self) -> ArrayView2<'_, T> {
        let MatrixNumbers::Own(x) = self.numbers else { panic!("a backward pass needs weights of the type of the computation") };
        self.view(x)
    }

    fn view<'a>(&self, x: &'a [T]) -> ArrayView2<'a, T> {
        match self.order {
            Order::InOut => matrix(x, self.outputs),
            Order::OutIn => matrix(x, self.inputs).reversed_axes(),
        }
    }

    /// One row: `y = x W` or `y += x W`.
    pub fn row_product(&self, x: &[T], y: &mut [T], write: Write) {
        if let (MatrixNumbers::Other(numbers), Order::InOut) = (self.numbers, self.order) {
            return scaled_rows(x, numbers, y, write);
        }
        let part = |first: usize, y: &mut [T]| match (self.numbers, self.order) {
            (MatrixNumbers::Own(w), Order::InOut) => row_times_matrix(x, w, first, self.outputs, y, write),
            (MatrixNumbers::Own(w), Order::OutIn) => dots(x, &w[first * self.inputs..][..y.len() * self.inputs], y, write),
            (MatrixNumbers::Other(numbers), _) => {
                if numbers.dots(first, x, y, write) {
                    return;
                }
                // A few rows at a time: they are read again while they are in the nearest cache.
                let mut w = vec![T::ZERO; WIDENED_ROWS * self.inputs];
                for (output, y) in (first..).step_by(WIDENED_ROWS).zip(y.chunks_mut(WIDENED_ROWS)) {
                    let w = &mut w[..y.len() * self.inputs];
                    numbers.widen(output * self.inputs..(output + y.len()) * self.inputs, w);
                    dots(x, w, y, write);
                }
            }
        };
        if self.inputs * self.outputs < PARALLEL_WEIGHTS {
            part(0, y);
        } else {
            y.par_chunks_mut(ROW_COLUMNS).enumerate().for_each(|(i, y)| part(i * ROW_COLUMNS, y));
        }
    }

    /// A copy, `[inputs, outputs]`, of the type of the computation.
    pub fn to_dense(&self) -> Array2<T> {
        let (lines, width) = match self.order {
            Order::InOut => (self.inputs, self.outputs),
            Order::OutIn => (self.outputs, self.inputs),
        };
        let mut dense = Array2::from_elem((lines, width), T::ZERO);
        for (number, mut line) in dense.outer_iter_mut().enumerate() {
            self.line(number, line.as_slice_mut().expect("standard layout"));
        }
        if self.order == Order::InOut { dense } else { dense.reversed_axes() }
    }

    /// The weights of one output, one per input.
    pub fn output(&self, number: usize) -> Vec<T> {
        let mut weights = vec![T::ZERO; self.inputs];
        match (self.order, self.numbers) {
            (Order::OutIn, _) => self.line(number, &mut weights),
            (Order::InOut, MatrixNumbers::Own(x)) => {
                weights.iter_mut().zip(x[number..].iter().step_by(self.outputs)).for_each(|(to, &x)| *to = x);
            }
            (Order::InOut, MatrixNumbers::Other(x)) => {
                for (input, to) in weights.iter_mut().enumerate() {
                    let at = input * self.outputs + number;
                    x.widen(at..at + 1, std::slice::from_mut(to));
                }
            }
        }
        weights
    }

    /// One of the rows as they lie: of a table of tokens.
    pub fn line(&self, number: usize, to: &mut [T]) {
        let width = to.len();
        match self.numbers {
            MatrixNumbers::Own(x) => to.copy_from_slice(&x[number * width..(number + 1) * width]),
            MatrixNumbers::Other(x) => x.widen(number * width..(number + 1) * width, to),
        }
    }
}

pub(crate) fn matrix<T>(x: &[T], width: usize) -> ArrayView2<'_, T> {
    ArrayView2::from_shape((x.len() / width.max(1), width), x).expect("whole rows")
}

/// `y (+)= sum over inputs of x[i] * row i`, where rows are widened one after the other.
fn scaled_rows<T: Float>(x: &[T], numbers: &Numbers<'_>, y: &mut [T], write: Write) {
    let width = y.len();
    let (mut row, mut sums) = (vec![T::ZERO; width], vec![T::ZERO; width]);
    for (i, &x) in x.iter().enumerate() {
        numbers.widen(i * width..(i + 1) * width, &mut row);
        add_scaled(x, &row, &mut sums);
    }
    for (y, &sum) in y.iter_mut().zip(&sums) {
        *y = if write == Write::Add { *y + sum } else { sum };
    }
}

kernel! {
    fn add_scaled<'a, T>(x: T, row: &'a [T], sums: &'a mut [T]) -> () {
        for (sum, &w) in sums.iter_mut().zip(row) {
            *sum = x.mul_add(w, *sum);
        }
    }
}

kernel! {
    /// y = x . w for as many rows w as y has elements.
    fn dots<'a, T>(x: &'a [T], w: &'a [T], y: &'a mut [T], write: Write) -> () {
        for (y, w) in y.iter_mut().zip(w.chunks_exact(x.len().max(1))) {
            let mut lanes = [T::ZERO; WIDE];
            let (mut xs, mut ws) = (x.chunks_exact(WIDE), w.chunks_exact(WIDE));
            for (x, w) in xs.by_ref().zip(ws.by_ref()) {
                for (j, lane) in lanes.iter_mut().enumerate() {
                    *lane = x[j].mul_add(w[j], *lane);
                }
            }
            for ((lane, &x), &w) in lanes.iter_mut().zip(xs.remainder()).zip(ws.remainder()) {
                *lane = x.mul_add(w, *lane);
            }
            let dot = fold_wide(lanes);
            *y = if write == Write::Add { *y + dot } else { dot };
        }
    }
}

kernel! {
    /// Columns `first ..` of `x W`, for one row x and as many columns as y has.
    fn row_times_matrix<'a, T>(x: &'a [T], w: &'a [T], first: usize, width: usize, y: &'a mut [T], write: Write) -> () {
        const WIDE: usize = 32;
        const NARROW: usize = 8;
        let mut wide = y.chunks_exact_mut(WIDE);
        let mut column = first;
        for y in wide.by_ref() {
            let y: &mut [T; WIDE] = y.try_into().expect("a whole chunk");
            columns(x, w, column, width, y, write);
            column += WIDE;
        }
        let mut narrow = wide.into_remainder().chunks_exact_mut(NARROW);
        for y in narrow.by_ref() {
            let y: &mut [T; NARROW] = y.try_into().expect("a whole chunk");
            columns(x, w, column, width, y, write);
            column += NARROW;
        }
        for y in narrow.into_remainder() {
            columns(x, w, column, width, std::array::from_mut(y), write);
            column += 1;
        }
    }
}

#[inline(always)]
fn columns<T: Float, const N: usize>(x: &[T], w: &[T], column: usize, width: usize, y: &mut [T; N], write: Write) {
    let mut sums = [T::ZERO; N];
    for (&x, w) in x.iter().zip(w.chunks_exact(width)) {
        let w: &[T; N] = w[column..column + N].try_into().expect("as many columns");
        for (sum, &w) in sums.iter_mut().zip(w) {
            *sum = x.mul_add(w, *sum);
        }
    }
    if write == Write::Add {
        for (y, sum) in y.iter_mut().zip(sums) {
            *y += sum;
        }
    } else {
        *y = sums;
    }
}
