//! Masks and biases with one entry per pair of query and key, of up to four axes.

use crate::arrays::{self, DType};
use half::{bf16, f16};
use ndarray::{Array4, ArrayView4, Axis};
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use regard::{Bias, HeadPosition};

/// Numbers that are added to the scores: read in place, or made here.
pub(crate) enum Dense<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F64(PyReadonlyArrayDyn<'py, f64>),
    Made32(Array4<f32>),
    Made64(Array4<f64>),
}

impl<'py> Dense<'py> {
    pub(crate) fn new(name: &str, wanted: &str, array: &Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        match DType::of(array) {
            Some(DType::F32) => Ok(Self::F32(readonly(array)?)),
            Some(DType::F64) => Ok(Self::F64(readonly(array)?)),
            Some(DType::F16) => widened(readonly(array)?, f16::to_f32),
            Some(DType::Bf16) => widened(readonly(array)?, bf16::to_f32),
            None => Err(PyTypeError::new_err(format!("{name} is {}; it must be {wanted}", arrays::dtype_name(array)))),
        }
    }

    pub(crate) fn as_bias(&self) -> Bias<'_> {
        match self {
            Self::F32(array) => Bias::Dense(view(array).into()),
            Self::F64(array) => Bias::Dense64(view(array).into()),
            Self::Made32(array) => Bias::Dense(array.view().into()),
            Self::Made64(array) => Bias::Dense64(array.view().into()),
        }
    }

    fn shape(&self) -> [usize; 4] {
        let shape = match self {
            Self::F32(array) => view(array).dim(),
            Self::F64(array) => view(array).dim(),
            Self::Made32(array) => array.dim(),
            Self::Made64(array) => array.dim(),
        };
        shape.into()
    }

    fn add_to(&self, total: &mut Array4<f64>) {
        match self {
            Self::F32(array) => add(total, view(array)),
            Self::F64(array) => add(total, view(array)),
            Self::Made32(array) => add(total, array.view()),
            Self::Made64(array) => add(total, array.view()),
        }
    }
}

fn readonly<'py, T: numpy::Element>(array: &Bound<'py, PyUntypedArray>) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    Ok(array.as_any().cast::<PyArrayDyn<T>>()?.try_readonly()?)
}

fn view<'a, T: numpy::Element>(array: &'a PyReadonlyArrayDyn<'_, T>) -> ArrayView4<'a, T> {
    arrays::view4(array).expect("check_broadcast has refused more than four axes")
}

fn widened<'py, T: numpy::Element + Copy>(array: PyReadonlyArrayDyn<'py, T>, to_f32: fn(T) -> f32) -> PyResult<Dense<'py>> {
    arrays::room_for::<f32>(array.shape())?;
    Ok(Dense::Made32(view(&array).mapv(to_f32)))
}

/// Minus infinity hides, whatever is added to it.
fn add<T: Copy + Into<f64>>(total: &mut Array4<f64>, part: ArrayView4<'_, T>) {
    const HIDDEN: f64 = f64::NEG_INFINITY;
    let part = part.broadcast(total.dim()).expect("the shape of the sum covers its parts");
    total.zip_mut_with(&part, |sum, &x| {
        let x = x.into();
        *sum = if *sum == HIDDEN || x == HIDDEN { HIDDEN } else { *sum + x };
    });
}

/// Several biases as one, in the precision that the scores have. Distances make it as large as the scores.
pub(crate) fn sum<'py>(
    parts: &[Dense<'py>],
    alibi: Option<&Bias<'_>>,
    place: impl Fn(usize, usize) -> Place,
    scores: [usize; 4],
    dtype: DType,
) -> PyResult<Dense<'py>> {
    let mut shape = if alibi.is_some() { scores } else { [1; 4] };
    for part in parts {
        for (n, m) in shape.iter_mut().zip(part.shape()) {
            *n = if m == 1 { *n } else { m };
        }
    }
    arrays::room_for::<[f64; 2]>(&shape)?;
    let mut total = Array4::zeros(shape);
    if let Some(bias) = alibi {
        for ((b, h, i, j), sum) in total.indexed_iter_mut() {
            *sum = bias.at(&place(b, h), i, j);
        }
    }
    for part in parts {
        part.add_to(&mut total);
    }
    Ok(if dtype == DType::F64 { Dense::Made64(total) } else { Dense::Made32(total.mapv(|x| x as f32)) })
}

/// The gradient of a dense bias, as the library gives it.
pub(crate) enum DenseGradient {
    F32(Array4<f32>),
    F64(Array4<f64>),
}

impl DenseGradient {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(array) => array.len(),
            Self::F64(array) => array.len(),
        }
    }

    pub(crate) fn widened(self) -> Array4<f64> {
        match self {
            Self::F32(array) => array.mapv(f64::from),
            Self::F64(array) => array,
        }
    }

    /// In the shape and the element type of the operand.
    pub(crate) fn into_array<'py>(self, py: Python<'py>, operand: &Bound<'py, PyUntypedArray>) -> PyResult<Bound<'py, PyAny>> {
        let (array, dtype) = match self {
            Self::F32(array) => (array.into_pyarray(py).into_any(), DType::F32),
            Self::F64(array) => (array.into_pyarray(py).into_any(), DType::F64),
        };
        let array = if operand.ndim() == 4 { array } else { array.call_method1("reshape", (operand.shape().to_vec(),))? };
        if DType::of(operand) == Some(dtype) { Ok(array) } else { array.call_method1("astype", (operand.dtype(),)) }
    }
}

/// Summed over the axes that an operand of this shape is broadcast along.
pub(crate) fn folded(whole: &Array4<f64>, shape: &[usize]) -> Array4<f64> {
    let mut sum = whole.clone();
    for axis in 0..4 {
        let own = (axis + shape.len()).checked_sub(4).map_or(1, |at| shape[at]);
        if own == 1 && sum.len_of(Axis(axis)) != 1 {
            sum = sum.sum_axis(Axis(axis)).insert_axis(Axis(axis));
        }
    }
    sum
}

/// One per head: forward, `score += -slope * distance`.
pub(crate) fn slope_gradient(whole: &Array4<f64>, place: impl Fn(usize, usize) -> Place) -> Vec<f64> {
    let heads = whole.len_of(Axis(1));
    let per_slope = Bias::Alibi(vec![1.0; heads]);
    let mut gradient = vec![0.0; heads];
    for ((b, h, i, j), x) in whole.indexed_iter() {
        gradient[h] += per_slope.at(&place(b, h), i, j) * x;
    }
    gradient
}

/// A bool array whose bytes are 0 or 1. NumPy makes others too, by `view` and `frombuffer`; they are copied.
pub(crate) fn truth<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<PyReadonlyArrayDyn<'py, bool>> {
    static NOT_EQUAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let bytes = array.call_method1("view", ("u1",))?;
    let odd = {
        let bytes = bytes.cast::<PyArrayDyn<u8>>()?.try_readonly()?;
        match bytes.as_slice() {
            Ok(bytes) => bytes.iter().fold(0, |all, b| all | b) > 1,
            Err(_) => bytes.as_array().iter().any(|&b| b > 1),
        }
    };
    if odd {
        let array = arrays::numpy_function(&NOT_EQUAL, array.py(), "not_equal")?.call1((bytes, 0))?;
        return Ok(array.cast::<PyArrayDyn<bool>>()?.try_readonly()?);
    }
    readonly(array)
}

/// Each axis is 1 or that of the scores; axes in front may be missing.
pub(crate) fn check_broadcast(name: &str, shape: &[usize], scores: [usize; 4]) -> PyResult<()> {
    let fits = shape.len() <= 4 && shape.iter().rev().zip(scores.iter().rev()).all(|(&n, &m)| n == m || n == 1);
    if fits {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name} {shape:?} cannot be broadcast to the scores {scores:?} (batch, heads_q, seq_q, seq_kv); each axis must be 1 or equal"
    )))
}
