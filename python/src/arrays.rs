//! NumPy arrays as the library's views: which element type, which strides, and what is refused; and results as NumPy arrays.
//!
//! Arrays are read where they lie. Only what Rust cannot address is copied first: unaligned or byte-swapped numbers.

use half::{bf16, f16};
use ndarray::{Array, Array4, ArrayView4, ArrayViewD, Axis, Dimension, Ix3, Ix4};
use numpy::{
    IntoPyArray, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyRange;
use std::any::Any;

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

/// An array of this type exists only if the package that registers the type is imported.
fn is_bfloat16(dtype: &Bound<'_, PyArrayDescr>) -> bool {
    static BFLOAT16: PyOnceLock<Py<PyArrayDescr>> = PyOnceLock::new();
    let py = dtype.py();
    let known = BFLOAT16.get_or_try_init(py, || PyArrayDescr::new(py, "bfloat16").map(Bound::unbind));
    known.is_ok_and(|known| dtype.is_equiv_to(known.bind(py)))
}

pub(crate) fn is_bool(array: &Bound<'_, PyUntypedArray>) -> bool {
    array.dtype().num() == NPY_BOOL
}

/// The name of the element type.
pub(crate) fn dtype_name(array: &Bound<'_, PyUntypedArray>) -> String {
    array.dtype().to_string()
}

/// A longer range is no argument of attention.
const LONGEST_RANGE: usize = 1 << 24;

/// A function of the `numpy` module, looked up once.
pub(crate) fn numpy_function<'py>(cell: &'static PyOnceLock<Py<PyAny>>, py: Python<'py>, name: &str) -> PyResult<&'py Bound<'py, PyAny>> {
    cell.import(py, "numpy", name)
}

/// The object as an array that Rust can read in place, copied only where it could not.
pub(crate) fn array<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if !object.is_exact_instance_of::<PyUntypedArray>() && object.hasattr("filled")? {
        let text = "whose mask would be lost: give its .filled(number), and what is hidden as mask=";
        return Err(PyValueError::new_err(format!("{name} is a masked array, {text}")));
    }
    // NumPy makes an array of it without looking at a signal.
    if object.is_instance_of::<PyRange>() && object.len().unwrap_or(usize::MAX) > LONGEST_RANGE {
        return Err(PyValueError::new_err(format!("{name} is a range of more than {LONGEST_RANGE} numbers; give an array")));
    }
    let array = match object.cast::<PyUntypedArray>() {
        Ok(array) => array.clone(),
        Err(_) if object.hasattr("detach")? => tensor(name, object)?,
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

/// The memory of a PyTorch tensor as an array, without its gradient.
fn tensor<'py>(name: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static VIEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let view = VIEW.import(object.py(), "regard._autograd", "_array")?;
    let on_cpu = || object.getattr("is_cpu")?.extract::<bool>();
    if !on_cpu().unwrap_or(true) {
        let device = object.getattr("device")?;
        return Err(PyValueError::new_err(format!("{name} is on {device}; regard computes on the CPU: move it there with .cpu()")));
    }
    Ok(view.call1((object,))?.cast_into::<PyUntypedArray>()?)
}

/// Refuses tensors that require a gradient, which would be lost.
pub(crate) fn no_gradient(tensors: [(&str, &Bound<'_, PyAny>); 3]) -> PyResult<()> {
    for (name, x) in tensors {
        let requires = x.getattr("requires_grad").and_then(|flag| flag.extract::<bool>()).unwrap_or(false);
        if !x.is_exact_instance_of::<PyUntypedArray>() && requires {
            let text = "call regard.torch.scaled_dot_product_attention, which has one, or give its .detach()";
            return Err(PyValueError::new_err(format!("{name} requires a gradient, which would be lost: {text}")));
        }
    }
    Ok(())
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

/// How the tensors of a call are laid out, and so its results.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The last 2 to 4 axes of `[batch, head, seq, dim]`.
    Axes(usize),
    /// Packed sequences, `[token, head, dim]`.
    Packed,
}

impl Layout {
    fn view<'a, T: numpy::Element>(self, array: &'a PyReadonlyArrayDyn<'_, T>) -> ArrayView4<'a, T> {
        let mut view: ArrayViewD<'a, T> = array.as_array();
        if self == Self::Packed {
            view.swap_axes(0, 1);
        }
        four_axes(view).expect("the number of axes was checked")
    }

    /// A result of the library's, whose first axes are `[batch, head]`, as NumPy's: without the axes that the tensors lack.
    pub(crate) fn give<'py, T: numpy::Element, D: Dimension>(self, py: Python<'py>, array: Array<T, D>) -> Bound<'py, PyAny> {
        let mut array = array.into_dyn();
        match self {
            Self::Axes(axes) => {
                for _ in axes..4 {
                    array = array.index_axis_move(Axis(0), 0);
                }
            }
            Self::Packed => {
                array = array.index_axis_move(Axis(0), 0);
                if array.ndim() == 3 {
                    array.swap_axes(0, 1);
                }
            }
        }
        array.into_pyarray(py).into_any()
    }
}

/// An array that is borrowed from NumPy for the time of a call.
pub(crate) struct Tensor<'py, E: numpy::Element> {
    array: PyReadonlyArrayDyn<'py, E>,
    layout: Layout,
}

impl<E: numpy::Element> Tensor<'_, E> {
    /// `[batch, head, seq, dim]`
    pub(crate) fn view(&self) -> ArrayView4<'_, E> {
        self.layout.view(&self.array)
    }
}

/// q, k and (for what needs values) v: arrays of one element type and one number of axes.
pub(crate) struct Inputs<'py> {
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
    q_name: &'static str,
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
        (q_name, q): (&'static str, &Bound<'py, PyAny>),
        (k_name, k): (&'static str, &Bound<'py, PyAny>),
        v: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let q = array(q_name, q)?;
        float_dtype(q_name, &q)?;
        let axes = q.ndim();
        if !(2..=4).contains(&axes) {
            return Err(PyValueError::new_err(format!(
                "{q_name} has shape {:?} with {axes} axes; it must have 4, [batch, head, seq, dim], or the last 3 or 2 of them",
                q.shape()
            )));
        }
        Self::laid_out(Layout::Axes(axes), (q_name, q), (k_name, k), v)
    }

    /// Packed sequences.
    pub(crate) fn packed(q: &Bound<'py, PyAny>, k: &Bound<'py, PyAny>, v: &Bound<'py, PyAny>) -> PyResult<Self> {
        let q = array("q", q)?;
        if q.ndim() != 3 {
            return Err(PyValueError::new_err(format!("q has shape {:?}; packed sequences have 3 axes: [token, head, dim]", q.shape())));
        }
        Self::laid_out(Layout::Packed, ("q", q), ("k", k), Some(v))
    }

    fn laid_out(
        layout: Layout,
        (q_name, q): (&'static str, Bound<'py, PyUntypedArray>),
        (k_name, k): (&'static str, &Bound<'py, PyAny>),
        v: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let dtype = float_dtype(q_name, &q)?;
        let mut inputs = Self { dtype, layout, q_name, k: q.clone(), q, v: None };
        inputs.k = inputs.alike(k_name, k)?;
        inputs.v = v.map(|v| inputs.alike("v", v)).transpose()?;
        Ok(inputs)
    }

    /// An array that has the element type and the number of axes of q.
    fn alike(&self, name: &str, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
        let (array, q_name) = (array(name, object)?, self.q_name);
        if float_dtype(name, &array)? != self.dtype {
            let (this, that) = (dtype_name(&array), dtype_name(&self.q));
            return Err(PyTypeError::new_err(format!(
                "{name} is {this} but {q_name} is {that}; both need the same dtype, for instance {name}.astype({q_name}.dtype)"
            )));
        }
        if array.ndim() != self.q.ndim() {
            let (this, that) = (array.shape(), self.q.shape());
            let wanted = if self.layout == Layout::Packed { "[token, head, dim]" } else { "[batch, head, seq, dim]" };
            return Err(PyValueError::new_err(format!(
                "{name} has shape {this:?} and {q_name} {that:?}; both need the same number of axes, {wanted}"
            )));
        }
        Ok(array)
    }

    fn tensor<E: Scalar>(&self, array: &Bound<'py, PyUntypedArray>) -> PyResult<Tensor<'py, E>> {
        Ok(Tensor { array: readonly(array)?, layout: self.layout })
    }

    /// One more array of the element type and the axes of q.
    pub(crate) fn companion<E: Scalar>(&self, name: &str, object: &Bound<'py, PyAny>) -> PyResult<Tensor<'py, E>> {
        self.tensor(&self.alike(name, object)?)
    }

    /// `out` of an earlier call before rounding.
    pub(crate) fn exact<E: Scalar>(&self, object: &Bound<'py, PyAny>) -> PyResult<Tensor<'py, E::Real>> {
        let array = array("exact", object)?;
        if array.ndim() != self.q.ndim() {
            return Err(PyValueError::new_err(format!("exact has shape {:?}; it must be what the forward pass returned", array.shape())));
        }
        Ok(Tensor { array: readonly(&array)?, layout: self.layout })
    }

    pub(crate) fn q<E: Scalar>(&self) -> PyResult<Tensor<'py, E>> {
        self.tensor(&self.q)
    }

    pub(crate) fn k<E: Scalar>(&self) -> PyResult<Tensor<'py, E>> {
        self.tensor(&self.k)
    }

    pub(crate) fn v<E: Scalar>(&self) -> PyResult<Option<Tensor<'py, E>>> {
        self.v.as_ref().map(|v| self.tensor(v)).transpose()
    }

    /// For functions that were given values.
    pub(crate) fn values<E: Scalar>(&self) -> PyResult<Tensor<'py, E>> {
        Ok(self.v()?.expect("the function has values"))
    }

    /// `[batch, head, seq, dim]` of q or k.
    fn shape4(&self, array: &Bound<'py, PyUntypedArray>) -> [usize; 4] {
        let shape = array.shape();
        match self.layout {
            Layout::Packed => [1, shape[1], shape[0], shape[2]],
            Layout::Axes(axes) => std::array::from_fn(|axis| if axis + axes < 4 { 1 } else { shape[axis + axes - 4] }),
        }
    }

    pub(crate) fn q_shape(&self) -> [usize; 4] {
        self.shape4(&self.q)
    }

    /// `[batch, heads_q, seq_q, seq_kv]`
    pub(crate) fn scores_shape(&self) -> [usize; 4] {
        let ([b, h, n, _], [_, _, m, _]) = (self.q_shape(), self.shape4(&self.k));
        [b, h, n, m]
    }

    /// Multiply-adds of a forward pass, at most; a backward pass takes five products to its two.
    pub(crate) fn work(&self) -> usize {
        let dims = self.q_shape()[3].saturating_add(self.v.as_ref().map_or(0, |v| self.shape4(v)[3]));
        self.scores_shape().into_iter().fold(dims, usize::saturating_mul)
    }
}

pub(crate) fn float_dtype(name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<DType> {
    DType::of(array).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "{name} is {}; it must be float32, float64, float16 or bfloat16, for instance {name}.astype(np.float32)",
            dtype_name(array)
        ))
    })
}

pub(crate) fn readonly<'py, T: numpy::Element>(array: &Bound<'py, PyUntypedArray>) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    Ok(array.as_any().cast::<PyArrayDyn<T>>()?.try_readonly()?)
}

/// Axes of length 1 in front until there are four.
pub(crate) fn four_axes<T>(mut view: ArrayViewD<'_, T>) -> Option<ArrayView4<'_, T>> {
    while view.ndim() < 4 {
        view = view.insert_axis(Axis(0));
    }
    view.into_dimensionality::<Ix4>().ok()
}

/// One element per row, returned by an earlier call, `[batch, heads_q, seq_q]` without the axes that q lacks.
pub(crate) struct PerRow<'py, T: numpy::Element>(Tensor<'py, T>);

impl<'py, T: numpy::Element> PerRow<'py, T> {
    /// `from` says which call returned it.
    pub(crate) fn new(name: &str, from: &str, object: &Bound<'py, PyAny>, layout: Layout) -> PyResult<Self> {
        let array = array(name, object)?;
        let wanted = match layout {
            Layout::Axes(axes) => axes - 1,
            Layout::Packed => 2,
        };
        let typed = array.as_any().cast::<PyArrayDyn<T>>().ok().filter(|array| array.ndim() == wanted);
        let dtype = if size_of::<T>() == 8 { "float64" } else { "float32" };
        let text =
            || PyValueError::new_err(format!("{name} must be the {dtype} array of {wanted} axes, a number per row, that {from} gives"));
        // Axes are put in front: those of packed rows are [head, token] already.
        Ok(Self(Tensor { array: typed.ok_or_else(text)?.try_readonly()?, layout: Layout::Axes(wanted) }))
    }

    pub(crate) fn view(&self) -> ndarray::ArrayView3<'_, T> {
        self.0.view().index_axis_move(Axis(0), 0).into_dimensionality::<Ix3>().expect("one axis of four was taken")
    }
}

/// Rounds from the compute type to the element type; an error if memory is exhausted.
pub(crate) fn rounded<E: Scalar>(what: &'static str, array: Array4<E::Real>) -> regard::Result<Array4<E>> {
    let mut same = Some(array);
    if let Some(same) = (&mut same as &mut dyn Any).downcast_mut::<Option<Array4<E>>>() {
        return Ok(same.take().expect("it was put there"));
    }
    let array = same.expect("it was not taken");
    let mut elements = Vec::new();
    let no_memory = |_| regard::Error::OutOfMemory { what, bytes: array.len().saturating_mul(size_of::<E>()) };
    elements.try_reserve_exact(array.len()).map_err(no_memory)?;
    elements.extend(array.iter().map(|&x| E::from_real(x)));
    Ok(Array4::from_shape_vec(array.raw_dim(), elements).expect("the length is that of the shape"))
}

/// Widens elements to the compute type; an error if memory is exhausted.
pub(crate) fn widened<E: Scalar>(what: &'static str, array: ArrayView4<'_, E>) -> regard::Result<Array4<E::Real>> {
    let mut numbers = Vec::new();
    let no_memory = |_| regard::Error::OutOfMemory { what, bytes: array.len().saturating_mul(size_of::<E::Real>()) };
    numbers.try_reserve_exact(array.len()).map_err(no_memory)?;
    numbers.extend(array.iter().map(|&x| x.to_real()));
    Ok(Array4::from_shape_vec(array.raw_dim(), numbers).expect("the length is that of the shape"))
}
