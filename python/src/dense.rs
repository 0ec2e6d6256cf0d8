//! Masks and biases with one entry per pair of query and key, of up to four axes, read where they lie.

use crate::arrays::{self, DType, readonly};
use half::{bf16, f16};
use ndarray::{Array4, ArrayView4, ArrayViewD, Axis};
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use regard::Bias;

/// A bias, added to the scores.
pub(crate) enum Dense<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F64(PyReadonlyArrayDyn<'py, f64>),
    F16(PyReadonlyArrayDyn<'py, f16>),
    Bf16(PyReadonlyArrayDyn<'py, bf16>),
}

impl<'py> Dense<'py> {
    pub(crate) fn new(name: &str, wanted: &str, array: &Bound<'py, PyUntypedArray>) -> PyResult<Self> {
        match DType::of(array) {
            Some(DType::F32) => Ok(Self::F32(readonly(array)?)),
            Some(DType::F64) => Ok(Self::F64(readonly(array)?)),
            Some(DType::F16) => Ok(Self::F16(readonly(array)?)),
            Some(DType::Bf16) => Ok(Self::Bf16(readonly(array)?)),
            None => Err(PyTypeError::new_err(format!("{name} is {}; it must be {wanted}", arrays::dtype_name(array)))),
        }
    }

    pub(crate) fn as_bias(&self) -> Bias<'_> {
        match self {
            Self::F32(array) => Bias::Dense(view(array).into()),
            Self::F64(array) => Bias::Dense64(view(array).into()),
            Self::F16(array) => Bias::DenseF16(view(array).into()),
            Self::Bf16(array) => Bias::DenseBf16(view(array).into()),
        }
    }
}

impl Dense<'_> {
    /// Whether the first elements are zeros and ones, and both occur: probably a bool mask.
    pub(crate) fn looks_like_truth(&self) -> bool {
        fn look<T: numpy::Element + Copy + Into<f64>>(array: &PyReadonlyArrayDyn<'_, T>) -> bool {
            let (mut zero, mut one) = (false, false);
            let mut is_either = |x: f64| {
                (zero, one) = (zero || x == 0.0, one || x == 1.0);
                x == 0.0 || x == 1.0
            };
            array.as_array().iter().take(4096).all(|&x| is_either(x.into())) && zero && one
        }
        match self {
            Self::F32(array) => look(array),
            Self::F64(array) => look(array),
            Self::F16(array) => look(array),
            Self::Bf16(array) => look(array),
        }
    }
}

pub(crate) fn view<'a, T: numpy::Element>(array: &'a PyReadonlyArrayDyn<'_, T>) -> ArrayView4<'a, T> {
    arrays::four_axes(array.as_array()).expect("check_broadcast has refused more than four axes")
}

/// A gradient in the shape and the element type of the operand that it is of.
pub(crate) fn like_operand<'py, T: numpy::Element>(
    py: Python<'py>,
    gradient: Array4<T>,
    operand: &Bound<'py, PyUntypedArray>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = gradient.into_pyarray(py).into_any();
    let array = if operand.ndim() == 4 { array } else { array.call_method1("reshape", (operand.shape().to_vec(),))? };
    let keywords = pyo3::types::PyDict::new(py);
    keywords.set_item("copy", false)?;
    array.call_method("astype", (operand.dtype(),), Some(&keywords))
}

/// A bool array whose bytes are 0 or 1. NumPy makes others too, by `view` and `frombuffer`; they are copied.
pub(crate) fn truth<'py>(array: &Bound<'py, PyUntypedArray>) -> PyResult<PyReadonlyArrayDyn<'py, bool>> {
    static NOT_EQUAL: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let bytes = array.call_method1("view", ("u1",))?;
    let odd = {
        let bytes = bytes.cast::<PyArrayDyn<u8>>()?.try_readonly()?;
        let view = bytes.as_array();
        array.py().detach(|| has_odd_bytes(view))
    };
    if odd {
        let array = arrays::numpy_function(&NOT_EQUAL, array.py(), "not_equal")?.call1((bytes, 0))?;
        return Ok(array.cast::<PyArrayDyn<bool>>()?.try_readonly()?);
    }
    readonly(array)
}

/// Whether any byte is neither 0 nor 1. Every byte is looked at once, in the order of memory, whatever the strides: along an axis of stride
/// 0 there is but one.
fn has_odd_bytes(mut bytes: ArrayViewD<'_, u8>) -> bool {
    if bytes.is_empty() {
        return false;
    }
    for axis in (0..bytes.ndim()).map(Axis) {
        if bytes.stride_of(axis) == 0 {
            bytes.collapse_axis(axis, 0);
        } else if bytes.stride_of(axis) < 0 {
            bytes.invert_axis(axis);
        }
    }
    let mut order: Vec<usize> = (0..bytes.ndim()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(if bytes.len_of(Axis(axis)) > 1 { bytes.stride_of(Axis(axis)) } else { isize::MAX }));
    let bytes = bytes.permuted_axes(order);
    let odd = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all | byte) > 1;
    match bytes.as_slice() {
        Some(all) => odd(all),
        None => bytes.rows().into_iter().any(|row| match row.as_slice() {
            Some(row) => odd(row),
            None => row.iter().any(|&byte| byte > 1),
        }),
    }
}

/// Each axis is 1 or that of the scores; axes in front may be missing.
pub(crate) fn check_broadcast(name: &str, shape: &[usize], scores: [usize; 4]) -> PyResult<()> {
    let fits = shape.len() <= 4 && shape.iter().rev().zip(scores.iter().rev()).all(|(&n, &m)| n == m || n == 1);
    if fits {
        return Ok(());
    }
    let text = "(batch, heads_q, seq_q, seq_kv); each axis must be 1 or equal";
    let padding =
        if name == "mask" && shape == [scores[0], scores[3]] { "; for key padding give mask=regard.Mask.key_padding(mask)" } else { "" };
    Err(PyValueError::new_err(format!("{name} {shape:?} cannot be broadcast to the scores {scores:?} {text}{padding}")))
}
