//! NumPy arrays as the library's views: which element type, which strides, and what is refused.
//!
//! Arrays are read where they lie. Only what Rust cannot address is copied first: unaligned or byte-swapped numbers.

use half::{bf16, f16};
use ndarray::{ArrayView4, ArrayViewD, Axis, Dimension, IntoDimension, Ix4};
use numpy::{
    PyArray, PyArray4, PyArrayDescr, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray4, PyReadonlyArrayDyn, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// An element type that NumPy and the library share.
pub(crate) trait Scalar: numpy::Element + regard::Element<Real: numpy::Element> {}
impl Scalar for f32 {}
impl Scalar for f64 {}
impl Scalar for f16 {}
impl Scalar for bf16 {}

/// The element types of q, k and v.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DType {
    F32,
    F64,
    F16,
    Bf16,
}

/// Evaluate an expression with `$E` standing for the element type.
macro_rules! with_dtype {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            $crate::arrays::DType::F32 => {
                type $E = f32;
                $body
            }
            $crate::arrays::DType::F64 => {
                type $E = f64;
                $body
            }
            $crate::arrays::DType::F16 => {
                type $E = half::f16;
                $body
            }
            $crate::arrays::DType::Bf16 => {
                type $E = half::bf16;
                $body
            }
        }
    };
}
pub(crate) use with_dtype;

// NumPy's type numbers; they are part of its ABI.
const NPY_BOOL: i32 = 0;
const NPY_FLOAT: i32 = 11;
const NPY_DOUBLE: i32 = 12;
const NPY_HALF: i32 = 23;
const NPY_USER_TYPES: i32 = 256;

impl DType {
    pub(crate) fn of(array: &Bound<'_, PyUntypedArray>) -> Option<Self> {
        let dtype = array.dtype();
        match dtype.num() {
            NPY_FLOAT => Some(Self::F32),
            NPY_DOUBLE => Some(Self::F64),
            NPY_HALF => Some(Self::F16),
            NPY_USER_TYPES.. if is_bfloat16(&dtype) => Some(Self::Bf16),
            _ => None,
        }
    }
}

/// Whoever has such an array has imported the package that registers the type.
fn is_bfloat16(dtype: &Bound<'_, PyArrayDescr>) -> bool {
    static BFLOAT16: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
    let py = dtype.py();
    let known = BFLOAT16.get_or_try_init(py, || PyArrayDescr::new(py, "bfloat16").map(Bound::unbind));
    known.is_ok_and(|known| dtype.is_equiv_to(known.bind(py)))
}

pub(crate) fn is_bool(array: &Bound<'_, PyUntypedArray>) -> bool {
    array.dtype().num() == NPY_BOOL
}

/// What the user calls the element type.
pub(crate) fn dtype_name(array: &Bound<'_, PyUntypedArray>) -> String {
    array.dtype().to_string()
}

/// A function of the `numpy` module, looked up once.
pub(crate) fn numpy_function<'py>(cell: &'static PyOnceLock<Py<PyAny>>, py: Python<'py>, name: &str) -> PyResult<&'py Bound<'py, PyAny>> {
    cell.import(py, "numpy", name)
}

/// The object as an array that Rust can read in place, copied only where it could not.
pub(crate) fn array<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let array = match object.cast::<PyUntypedArray>() {
        Ok(array) => array.clone(),
        Err(_) => numpy_function(&ASARRAY, object.py(), "asarray")?
            .call1((object,))
            .and_then(|array| Ok(array.cast_into::<PyUntypedArray>()?))
            .map_err(|e| PyTypeError::new_err(format!("{name} cannot be made an array: {e}")))?,
    };
    if readable(&array) {
        return Ok(array);
    }
    let native = array.dtype().call_method1("newbyteorder", ("=",))?;
    Ok(array.call_method1("astype", (native,))?.cast_into::<PyUntypedArray>()?)
}

fn readable(array: &Bound<'_, PyUntypedArray>) -> bool {
    let dtype = array.dtype();
    let size = dtype.itemsize().max(1) as isize;
    let empty = array.is_empty();
    // A negative stride along an axis of length 0 would point outside of the array.
    let strides =
        array.strides().iter().zip(array.shape()).all(|(&stride, &n)| if empty { stride >= 0 } else { n == 1 || stride % size == 0 });
    strides && array.is_aligned() && dtype.is_native_byteorder() != Some(false)
}

/// q, k and (for what needs values) v: arrays of four axes and one element type.
pub(crate) struct Inputs<'py> {
    pub(crate) dtype: DType,
    q: Bound<'py, PyUntypedArray>,
    k: Bound<'py, PyUntypedArray>,
    v: Option<Bound<'py, PyUntypedArray>>,
}

impl<'py> Inputs<'py> {
    pub(crate) fn new(q: &Bound<'py, PyAny>, k: &Bound<'py, PyAny>, v: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        Self::named(("q", q), ("k", k), v)
    }

    /// With other names for q and k.
    pub(crate) fn named(
        (q_name, q): (&str, &Bound<'py, PyAny>),
        (k_name, k): (&str, &Bound<'py, PyAny>),
        v: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let q = array(q_name, q)?;
        let dtype = float_dtype(q_name, &q)?;
        four_axes(q_name, &q)?;
        let like = (q_name, &q, dtype);
        let k = alike(k_name, k, like)?;
        let v = v.map(|v| alike("v", v, like)).transpose()?;
        Ok(Self { dtype, q, k, v })
    }

    /// One more array of four axes, of the element type of q.
    pub(crate) fn companion<E: Scalar>(&self, name: &str, object: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray4<'py, E>> {
        typed(&alike(name, object, ("q", &self.q, self.dtype))?)
    }

    /// `[batch, heads_q, seq_q, head_dim]`
    pub(crate) fn q_shape(&self) -> [usize; 4] {
        shape4(&self.q)
    }

    /// `[batch, heads_kv, seq_kv, head_dim]`
    pub(crate) fn k_shape(&self) -> [usize; 4] {
        shape4(&self.k)
    }

    /// `[batch, heads_q, seq_q, seq_kv]`
    pub(crate) fn scores_shape(&self) -> [usize; 4] {
        let ([b, h, n, _], [_, _, m, _]) = (self.q_shape(), self.k_shape());
        [b, h, n, m]
    }

    pub(crate) fn q<E: Scalar>(&self) -> PyResult<PyReadonlyArray4<'py, E>> {
        typed(&self.q)
    }

    pub(crate) fn k<E: Scalar>(&self) -> PyResult<PyReadonlyArray4<'py, E>> {
        typed(&self.k)
    }

    pub(crate) fn v<E: Scalar>(&self) -> PyResult<Option<PyReadonlyArray4<'py, E>>> {
        self.v.as_ref().map(typed).transpose()
    }
}

/// An array of four axes that has the element type of another one, whose name comes with it.
fn alike<'py>(
    name: &str,
    object: &Bound<'py, PyAny>,
    (other_name, other, dtype): (&str, &Bound<'py, PyUntypedArray>, DType),
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let array = array(name, object)?;
    if float_dtype(name, &array)? != dtype {
        let (this, that) = (dtype_name(&array), dtype_name(other));
        return Err(PyTypeError::new_err(format!(
            "{name} is {this} but {other_name} is {that}; both need the same dtype, for instance {name}.astype({other_name}.dtype)"
        )));
    }
    four_axes(name, &array)?;
    Ok(array)
}

fn shape4(array: &Bound<'_, PyUntypedArray>) -> [usize; 4] {
    let shape = array.shape();
    std::array::from_fn(|axis| shape[axis])
}

pub(crate) fn float_dtype(name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<DType> {
    DType::of(array).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{name} is {}; it must be float32, float64, float16 or bfloat16, for instance {name}.astype(np.float32)",
            dtype_name(array)
        ))
    })
}

fn four_axes(name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
    if array.ndim() == 4 {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{name} has shape {:?} with {} axes; it must have 4: [batch, head, seq, dim]",
        array.shape(),
        array.ndim()
    )))
}

pub(crate) fn typed<'py, E: Scalar>(array: &Bound<'py, PyUntypedArray>) -> PyResult<PyReadonlyArray4<'py, E>> {
    Ok(array.as_any().cast::<PyArray4<E>>()?.try_readonly()?)
}

/// Axes of length 1 in front until there are four.
pub(crate) fn view4<'a, T: numpy::Element>(array: &'a PyReadonlyArrayDyn<'_, T>) -> Option<ArrayView4<'a, T>> {
    let mut view: ArrayViewD<'a, T> = array.as_array();
    while view.ndim() < 4 {
        view = view.insert_axis(Axis(0));
    }
    view.into_dimensionality::<Ix4>().ok()
}

/// A new array of zeros, owned by NumPy; `MemoryError` where there is no room.
pub(crate) fn zeros<'py, T: numpy::Element, D: Dimension>(
    py: Python<'py>,
    shape: impl IntoDimension<Dim = D>,
) -> PyResult<Bound<'py, PyArray<T, D>>> {
    let shape = shape.into_dimension();
    room_for::<T>(shape.slice())?;
    Ok(PyArray::zeros(py, shape, false))
}

/// `MemoryError` if the system would not give that much memory: Rust's own answer to that is the end of the process.
pub(crate) fn room_for<T>(shape: &[usize]) -> PyResult<()> {
    const SURELY_THERE: usize = 1 << 20;
    let bytes = shape.iter().try_fold(size_of::<T>(), |n, &d| n.checked_mul(d));
    if bytes.is_some_and(|n| n <= SURELY_THERE) || bytes.is_some_and(|n| Vec::<u8>::new().try_reserve_exact(n).is_ok()) {
        return Ok(());
    }
    Err(PyMemoryError::new_err(format!("no memory for a result of shape {shape:?}")))
}
