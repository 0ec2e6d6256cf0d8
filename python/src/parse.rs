//! Python objects as numbers, strings and short lists; errors name the argument.

use crate::arrays;
use numpy::{PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyString};

/// The library's error as a Python exception.
pub(crate) fn refused(error: regard::Error) -> PyErr {
    match error {
        regard::Error::OutOfMemory { .. } | regard::Error::TooLarge { .. } => PyMemoryError::new_err(error.to_string()),
        regard::Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

pub(crate) fn wrong_type(name: &str, wanted: &str, object: &Bound<'_, PyAny>) -> PyErr {
    let got = object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{name} must be {wanted}, not {got}"))
}

pub(crate) fn number(name: &str, object: &Bound<'_, PyAny>) -> PyResult<f64> {
    object.extract().map_err(|_| wrong_type(name, "a number", object))
}

/// An integer; a bool, which Python counts as one, is refused.
pub(crate) fn integer(name: &str, object: &Bound<'_, PyAny>) -> PyResult<i64> {
    if object.is_instance_of::<PyBool>() {
        return Err(wrong_type(name, "an integer", object));
    }
    object.extract::<i64>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(object.py()) {
            PyValueError::new_err(format!("{name} is {object}; it must fit into 64 bits"))
        } else {
            wrong_type(name, "an integer", object)
        }
    })
}

pub(crate) fn not_negative(name: &str, n: i64) -> PyResult<usize> {
    usize::try_from(n).map_err(|_| PyValueError::new_err(format!("{name} is {n}; it must not be negative")))
}

pub(crate) fn count(name: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    not_negative(name, integer(name, object)?)
}

pub(crate) fn text(name: &str, object: &Bound<'_, PyAny>) -> PyResult<String> {
    object.extract().map_err(|_| wrong_type(name, "a string", object))
}

/// Entries of a list at most: a `range` can announce more than any memory holds, and extracting a `Vec` reserves that first.
const LONGEST: usize = 1 << 24;

/// A list, a tuple or anything else that can be iterated, but no text.
pub(crate) struct Listed<T>(pub(crate) Vec<T>);

impl<'py, T: FromPyObjectOwned<'py>> FromPyObject<'_, 'py> for Listed<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(wrong_type("the argument", "a list", &object));
        }
        let mut list = Vec::new();
        for entry in object.try_iter()? {
            if list.len() == LONGEST {
                return Err(PyValueError::new_err(format!("a list has more than {LONGEST} entries; give a shorter one")));
            }
            list.push(entry?.extract::<T>().map_err(Into::into)?);
        }
        Ok(Self(list))
    }
}

/// The two entries of a tuple, a list or an array.
pub(crate) fn pair<'py>(name: &str, wanted: &str, object: &Bound<'py, PyAny>) -> PyResult<[Bound<'py, PyAny>; 2]> {
    let entries: Vec<_> = object.try_iter().map_err(|_| wrong_type(name, wanted, object))?.take(3).collect::<PyResult<_>>()?;
    <[_; 2]>::try_from(entries).map_err(|_| PyValueError::new_err(format!("{name} is {object}; it must be {wanted}")))
}

/// One number per query head, or one for all.
pub(crate) fn per_head(name: &str, object: &Bound<'_, PyAny>, heads: usize) -> PyResult<Vec<f64>> {
    if object.is_instance_of::<PyBool>() {
        return Err(wrong_type(name, "a number per query head", object));
    }
    if let Ok(one) = object.extract::<f64>() {
        return Ok(vec![one; heads]);
    }
    let array = arrays::array(name, object)?;
    let wanted = "a number per query head";
    if arrays::DType::of(&array).is_none() && !is_integer(&array)? {
        return Err(PyTypeError::new_err(format!("{name} must be {wanted}, not an array of {}", arrays::dtype_name(&array))));
    }
    line(name, wanted, &array, "float64")
}

pub(crate) fn integers(name: &str, wanted: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let array = arrays::array(name, object)?;
    // An empty list is an array of floats to NumPy.
    if !is_integer(&array)? && !array.is_empty() {
        return Err(PyTypeError::new_err(format!("{name} must be {wanted}, not {}", arrays::dtype_name(&array))));
    }
    line(name, wanted, &array, "int64")
}

/// Like [`integers`], not negative.
pub(crate) fn counts(name: &str, wanted: &str, object: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let one = |(i, n): (usize, i64)| not_negative(&format!("{name}[{i}]"), n);
    integers(name, wanted, object)?.into_iter().enumerate().map(one).collect()
}

pub(crate) fn is_integer(array: &Bound<'_, PyUntypedArray>) -> PyResult<bool> {
    let kind: String = array.dtype().getattr("kind")?.extract()?;
    Ok(kind == "i" || kind == "u")
}

/// The elements of an array of one axis.
fn line<T: numpy::Element + Copy>(name: &str, wanted: &str, array: &Bound<'_, PyUntypedArray>, dtype: &str) -> PyResult<Vec<T>> {
    static ASCONTIGUOUS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if array.ndim() != 1 {
        return Err(PyValueError::new_err(format!("{name} has shape {:?}; it must be {wanted}, in one axis", array.shape())));
    }
    if dtype == "int64" && array.dtype().getattr("kind")?.extract::<String>()? == "u" && array.dtype().itemsize() == 8 {
        let largest = array.call_method0("max").ok().and_then(|x| x.extract::<u64>().ok()).unwrap_or(0);
        if largest > i64::MAX as u64 {
            return Err(PyValueError::new_err(format!("{name} has the value {largest}; values must be below 2**63")));
        }
    }
    let array = arrays::numpy_function(&ASCONTIGUOUS, array.py(), "ascontiguousarray")?.call1((array, dtype))?;
    Ok(array.cast::<numpy::PyArray1<T>>()?.try_readonly()?.as_slice()?.to_vec())
}
