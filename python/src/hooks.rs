//! Hooks in Python: functions that see activations and may return others; and activations that are kept.

use ndarray::{ArrayD, ArrayViewMutD};
use numpy::{IntoPyArray, PyArrayDyn, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use regard_model::{Cancel, Hook, Site};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Activations by layer and site.
pub(crate) type Activations = HashMap<(usize, Site), ArrayD<f32>>;

/// `L3.z`, or `z` for all layers.
pub(crate) fn parse(name: &str, layers: usize) -> PyResult<(Option<usize>, Site)> {
    let unknown = || {
        let names: Vec<&str> = Site::ALL.iter().map(|site| site.name()).collect();
        let text = format!("{name:?} is no activation: NAME or L<layer>.NAME, with layers from 0 to {}", layers.saturating_sub(1));
        PyValueError::new_err(format!("{text} and NAME one of {}", names.join(", ")))
    };
    let (layer, site) = match name.split_once('.') {
        Some((layer, site)) => (Some(layer.strip_prefix('L').and_then(|layer| layer.parse::<usize>().ok()).ok_or_else(unknown)?), site),
        None => (None, name),
    };
    if layer.is_some_and(|layer| layer >= layers) {
        return Err(unknown());
    }
    Ok((layer, Site::of_name(site).ok_or_else(unknown)?))
}

/// Functions of a run, and what it keeps.
pub(crate) struct PyHooks {
    functions: Vec<(Option<usize>, Site, Py<PyAny>)>,
    keep: Vec<(Option<usize>, Site)>,
    kept: Mutex<Activations>,
    raised: Mutex<Option<PyErr>>,
    cancel: Cancel,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Those that every run keeps, or makes when they are asked for.
pub(crate) fn is_always_there(site: Site) -> bool {
    matches!(site, Site::Q | Site::K | Site::V | Site::Z | Site::Pattern)
}

impl PyHooks {
    pub(crate) fn new(layers: usize, keep: &[String], hooks: Option<&Bound<'_, PyDict>>, cancel: &Cancel) -> PyResult<Self> {
        let mut functions = Vec::new();
        for (name, function) in hooks.into_iter().flatten() {
            let (layer, site) = parse(&name.extract::<String>()?, layers)?;
            if !function.is_callable() {
                return Err(PyValueError::new_err(format!("the hook of {name} is no function: {function}")));
            }
            functions.push((layer, site, function.unbind()));
        }
        let named = keep.iter().filter(|name| *name != "logits").map(|name| parse(name, layers)).collect::<PyResult<Vec<_>>>()?;
        // What is always there is kept where a hook may have changed it.
        let keep = named.into_iter().filter(|(_, site)| !is_always_there(*site) || *site == Site::Pattern && !functions.is_empty());
        Ok(Self { keep: keep.collect(), functions, kept: Mutex::default(), raised: Mutex::default(), cancel: cancel.clone() })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.keep.is_empty()
    }

    /// What was kept, or what a function raised.
    pub(crate) fn finish(self) -> PyResult<Activations> {
        match lock(&self.raised).take() {
            Some(raised) => Err(raised),
            None => Ok(std::mem::take(&mut *lock(&self.kept))),
        }
    }

    fn call(&self, py: Python<'_>, name: &str, function: &Py<PyAny>, x: &mut ArrayViewMutD<'_, f32>) -> PyResult<bool> {
        let given = x.to_owned().into_pyarray(py);
        let result = function.bind(py).call1((&given,))?;
        if result.is_none() {
            return Ok(false);
        }
        let array = py.import("numpy")?.call_method1("asarray", (result, "float32"))?;
        let array = array.cast::<PyArrayDyn<f32>>()?.try_readonly()?;
        if array.as_array().shape() != x.shape() {
            let text = format!("the hook of {name} returned shape {:?} for {:?}", array.as_array().shape(), x.shape());
            return Err(PyValueError::new_err(format!("{text}; it must return an array of the same shape, or None")));
        }
        x.assign(&array.as_array());
        Ok(true)
    }
}

impl Hook for PyHooks {
    fn wants(&self, layer: usize, site: Site) -> bool {
        let is = |at: Option<usize>, of: Site| of == site && at.is_none_or(|at| at == layer);
        self.functions.iter().any(|(at, of, _)| is(*at, *of)) || self.keep.iter().any(|(at, of)| is(*at, *of))
    }

    fn at(&self, layer: usize, site: Site, mut x: ArrayViewMutD<'_, f32>) -> bool {
        let mut changed = false;
        let is = |at: Option<usize>, of: Site| of == site && at.is_none_or(|at| at == layer);
        for (_, _, function) in self.functions.iter().filter(|(at, of, _)| is(*at, *of)) {
            let name = format!("L{layer}.{}", site.name());
            match Python::attach(|py| self.call(py, &name, function, &mut x)) {
                Ok(by_it) => changed |= by_it,
                Err(error) => {
                    lock(&self.raised).get_or_insert(error);
                    self.cancel.cancel();
                    return changed;
                }
            }
        }
        if self.keep.iter().any(|(at, of)| is(*at, *of)) {
            lock(&self.kept).insert((layer, site), x.to_owned());
        }
        changed
    }
}
